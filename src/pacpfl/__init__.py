"""pacpfl: personalised federated learning of probabilistic models, with PAC-Bayes guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pacpfl.version import __version__

if TYPE_CHECKING:
    from pacpfl.client import load_model
    from pacpfl.estimators import PACPFLClassifier, PACPFLRegressor

__all__ = ["PACPFLClassifier", "PACPFLRegressor", "__version__", "load_model"]


def __getattr__(name: str) -> Any:
    """The estimators load JAX and scikit-learn: only those who use them wait for that."""
    if name == "load_model":
        from pacpfl.client import load_model

        return load_model
    if name not in ("PACPFLClassifier", "PACPFLRegressor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{name} needs scikit-learn; install it with pip install 'pacpfl[sklearn]'."
        ) from error
    from pacpfl import estimators

    return getattr(estimators, name)
