"""Classification: Bayesian neural networks whose prior all clients learn together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from pacpfl import conformal, metrics
from pacpfl.client import LOG_PROBABILITIES
from pacpfl.data.tables.columns import read_texts
from pacpfl.errors import InputError
from pacpfl.estimators.base import Curve, FederatedEstimator, documented


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PACPFLClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """Personalised federated classification with calibrated probabilities.

    The rows of X belong to clients, named by `groups`; without groups all rows are one client's. The
    clients learn a distribution over Bayesian networks together (PAC-PFL), and each predicts with the
    networks its own rows make likely. Features are standardised inside.

    Examples
    --------
    >>> import numpy as np
    >>> from pacpfl import PACPFLClassifier
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.where(np.sin(X[:, 0]) > 0, "day", "night")
    >>> model = PACPFLClassifier(rounds=5, random_state=0).fit(X, y, groups=["a", "b"] * 10)
    >>> probabilities = model.predict_proba(X[:3], groups=["a", "b", "a"])
    """

    particles: int = 3
    tau: float | str = "auto"
    hyper_std: float | str = "auto"
    widths: Sequence[int] | str = "auto"
    initial_std: float | str = "auto"
    networks: int | str = "auto"

    __metadata_request__predict_proba: ClassVar[dict[str, bool]] = {"groups": True}
    __metadata_request__predict_log_proba: ClassVar[dict[str, bool]] = {"groups": True}

    _metric = staticmethod(accuracy_score)
    score = FederatedEstimator.score  # with groups, which that of the mixin has not

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> np.ndarray:
        """Return the most probable class of every row.

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        chosen = self.predict_log_proba(X, groups).argmax(1)
        return self.classes_[chosen]

    def predict_proba(self, X: ArrayLike, groups: ArrayLike | None = None) -> np.ndarray:
        """Return class probabilities, in the order of `classes_`.

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        probabilities = np.exp(self.predict_log_proba(X, groups))
        return probabilities / probabilities.sum(1, keepdims=True)

    def predict_log_proba(self, X: ArrayLike, groups: ArrayLike | None = None) -> np.ndarray:
        """Return natural logarithms of the class probabilities.

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self._ask(LOG_PROBABILITIES, X, groups).T

    def predict_set(
        self, X: ArrayLike, level: float = 0.9, groups: ArrayLike | None = None
    ) -> np.ndarray:
        """Return which classes are in each row's prediction set (docs/intervals.md).

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.
        level : float, default=0.9
            How often it is to hold the class.

        Returns
        -------
        ndarray of bool, of shape (n_samples, n_classes)
        """
        return self._each(X, groups, lambda model, x: conformal.sets(model, x, level).T).T

    def _checked(self, X: ArrayLike, y: ArrayLike, first: bool) -> tuple[np.ndarray, np.ndarray]:
        x, y = validate_data(self, X, y, reset=first, dtype=np.float64)
        if first:
            check_classification_targets(y)
            classes = np.unique(column_or_1d(y))
            if len(classes) < 2:
                raise InputError(
                    f"There is one class, {classes.tolist()[0]!r}; a classifier needs rows of two."
                )
            self.classes_ = classes
        return x, self._class_numbers(y).astype(np.float64)

    def _class_names(self) -> tuple[str, ...]:
        """Return the classes as the command line writes them: 1 for 1.0, and true for True."""
        if self.classes_.dtype.kind in "biuf":
            return tuple(read_texts(pd.Series(self.classes_)).tolist())
        return tuple(map(str, self.classes_.tolist()))

    def _class_numbers(self, y: ArrayLike) -> np.ndarray:
        labels = column_or_1d(y)
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise InputError(
                f"The class {unknown.tolist()[0]!r} was not among those fitted; leave its rows out, or "
                "fit again with rows of it."
            )
        return np.searchsorted(self.classes_, labels)

    def _calibration(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> Curve:
        table = metrics.reliability(self.predict_proba(X, groups), self._class_numbers(y), 10)
        count, right, promised = table[table[:, 0] > 0].T
        error = metrics.reliability_error(table)
        names = ("predicted probability", "share that is right")
        return promised / count, right / count, error, names
