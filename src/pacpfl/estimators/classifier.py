"""Classification: Bayesian neural networks whose prior all clients learn together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from pacpfl import metrics
from pacpfl.client import LOG_PROBABILITIES
from pacpfl.data.tables.columns import read_texts
from pacpfl.errors import InputError
from pacpfl.estimators.base import FederatedEstimator


class PACPFLClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """Personalised federated classification with calibrated probabilities.

    The rows of X belong to clients, named by `groups`; without groups all rows are one client's. The
    clients learn a distribution over Bayesian networks together (PAC-PFL), and each predicts with the
    networks its own rows make likely. Features are standardised inside.

    Parameters bear the names of the configuration's keys; `settings` reaches the others. "auto" is
    what `pacpfl init` would write for the same rows (docs/python-api.md has the table), and `config_`
    tells what it became.

    Parameters
    ----------
    particles : int, default=3
        k, the number of priors the server learns.
    tau : float, default=1.0
        Weight of the clients' evidence against the hyper-prior.
    hyper_std : float, default=1.0
        sigma_P, the spread of the hyper-prior.
    rounds : int or "auto"
        Rounds of the training; 0 leaves the priors as they are drawn.
    learning_rate : float or "auto"
        Step size of the training.
    batch : int, None or "auto"
        Rows of a client in one round; None is all.
    clients_per_round : int, None or "auto"
        Clients in one round; None is all.
    widths : sequence of int or "auto"
        Neurons of the network's hidden layers.
    initial_std : float, default=0.03
        Standard deviation of its weights before the training.
    networks : int, default=5
        Networks of each particle that a client predicts with.
    weights : {"uniform", "evidence"}, default="uniform"
        How a client weighs the particles.
    standardize : {"auto", "client", "global", "none"}, default="auto"
        Whether features are scaled by the statistics of each client, of all rows, or not.
    unseen_groups : {"error", "prior"}, default="error"
        Whether an unknown client at prediction is an error, or is answered by the prior.
    precision : {"float32", "float64"}, default="float32"
        Type of all numbers inside.
    settings : dict, optional
        Further keys of the configuration, such as {"posterior.inference": "laplace"}.
    random_state : int, RandomState instance or None, default=None
        Seed of everything that is drawn.
    verbose : bool, default=False
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted.
    config_ : Config
        Every setting of the training.
    particles_ : ndarray of shape (particles, size)
        Parameters of the learned priors.
    prior_ : Prior
        The family of priors that these are members of.
    clients_ : list
        Names of the clients that have a model.
    history_ : dict of ndarray
        Curves of the training, one number for each round.
    standardize_ : str
        What "auto" became.

    Examples
    --------
    >>> import numpy as np
    >>> from pacpfl import PACPFLClassifier
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y = np.where(np.sin(X[:, 0]) > 0, "day", "night")
    >>> model = PACPFLClassifier(rounds=5, random_state=0).fit(X, y, groups=["a", "b"] * 10)
    >>> probabilities = model.predict_proba(X[:3], groups=["a", "b", "a"])
    """

    __metadata_request__predict_proba: ClassVar = {"groups": True}
    __metadata_request__predict_log_proba: ClassVar = {"groups": True}

    def __init__(
        self,
        *,
        particles: int = 3,
        tau: float = 1.0,
        hyper_std: float = 1.0,
        rounds: int | str = "auto",
        learning_rate: float | str = "auto",
        batch: int | str | None = "auto",
        clients_per_round: int | str | None = "auto",
        widths: Sequence[int] | str = "auto",
        initial_std: float = 0.03,
        networks: int = 5,
        weights: str = "uniform",
        standardize: str = "auto",
        unseen_groups: str = "error",
        precision: str = "float32",
        settings: dict[str, Any] | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.particles = particles
        self.tau = tau
        self.hyper_std = hyper_std
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.batch = batch
        self.clients_per_round = clients_per_round
        self.widths = widths
        self.initial_std = initial_std
        self.networks = networks
        self.weights = weights
        self.standardize = standardize
        self.unseen_groups = unseen_groups
        self.precision = precision
        self.settings = settings
        self.random_state = random_state
        self.verbose = verbose

    _metric = staticmethod(accuracy_score)
    score = FederatedEstimator.score  # with groups, which that of the mixin has not

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> np.ndarray:
        """Return the most probable class of every row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to answer.
        groups : array-like of shape (n_samples,), optional
            The client of every row; needless where the estimator was fitted without.

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
        X : array-like of shape (n_samples, n_features)
            Rows to answer.
        groups : array-like of shape (n_samples,), optional
            The client of every row; needless where the estimator was fitted without.

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
        X : array-like of shape (n_samples, n_features)
            Rows to answer.
        groups : array-like of shape (n_samples,), optional
            The client of every row; needless where the estimator was fitted without.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self._ask(LOG_PROBABILITIES, X, groups).T

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

    def _calibration(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None
    ) -> tuple[np.ndarray, np.ndarray, float, tuple[str, str]]:
        table = metrics.reliability(self.predict_proba(X, groups), self._class_numbers(y), 10)
        count, right, promised = table[table[:, 0] > 0].T
        error = metrics.reliability_error(table)
        return (
            promised / count,
            right / count,
            error,
            ("predicted probability", "share that is right"),
        )
