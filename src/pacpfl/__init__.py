"""pacpfl: personalised federated learning of probabilistic models, with PAC-Bayes guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pacpfl.version import __version__

if TYPE_CHECKING:
    from pacpfl.client import load_model
    from pacpfl.estimators import (
        NewClientSplit,
        PACPFLClassifier,
        PACPFLRegressor,
        new_client_scores,
    )

__all__ = [
    "NewClientSplit",
    "PACPFLClassifier",
    "PACPFLRegressor",
    "__version__",
    "load_model",
    "new_client_scores",
]


def __getattr__(name: str) -> Any:
    """The estimators load JAX and scikit-learn: only those who use them wait for that."""
    if name == "load_model":
        from pacpfl.client import load_model

        return load_model
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pacpfl import estimators

    return getattr(estimators, name)
