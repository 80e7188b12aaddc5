"""Classification: Bayesian neural networks whose prior all clients learn together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from pacpfl.client import LOG_PROBABILITIES, Name
from pacpfl.estimators.base import FederatedEstimator
from pacpfl.estimators.errors import InvalidInput


class PACPFLClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """Personalised federated classification with calibrated probabilities.

    The rows of X belong to clients, named by `groups`; without groups all rows are one client's. The
    clients learn a distribution over Bayesian networks together (PAC-PFL), and each predicts with the
    networks its own rows make likely. Features are standardised inside.

    Parameters bear the names of the configuration's keys; those that are not parameters are reached by
    `settings`, such as {"posterior.inference": "laplace"}. "auto" depends on the number of clients,
    rows and features: `config_` tells what it became (docs/python-api.md).

    particles : k, how many priors the server learns.
    tau : weight of the clients' evidence against the hyper-prior.
    hyper_std : sigma_P, the spread of the hyper-prior.
    rounds, learning_rate : of the training; 0 rounds leave the priors as they are drawn.
    batch, clients_per_round : rows of a client, and clients, in one round; None is all.
    widths : neurons of the network's hidden layers.
    initial_std : standard deviation of its weights before training.
    networks : how many networks per particle a client predicts with.
    weights : of the particles at a client: uniform or evidence.
    standardize : by the statistics of each "client", of all rows ("global"), or "none".
    unseen_groups : an unknown client at prediction is an "error", or is answered by the "prior".
    precision : float32 or float64.
    settings : further keys of the configuration.
    random_state : seed of everything that is drawn.
    verbose : True shows a progress bar.
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

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn the priors from all clients' rows; `groups` names the client of every row."""
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        classes, numbers = np.unique(column_or_1d(y), return_inverse=True)
        if len(classes) < 2:
            raise InvalidInput(
                f"There is one class, {classes.tolist()[0]!r}; a classifier needs rows of two."
            )
        self.classes_ = classes
        return self._fit(x, numbers.astype(np.float64), groups)

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:
        """The most probable class of every row."""
        chosen = self.predict_log_proba(X, groups).argmax(1)
        return self.classes_[chosen]

    def predict_proba(self, X: Any, groups: Any = None) -> np.ndarray:
        """[rows, classes]: probabilities, in the order of `classes_`."""
        probabilities = np.exp(self.predict_log_proba(X, groups))
        return probabilities / probabilities.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any, groups: Any = None) -> np.ndarray:
        """[rows, classes]: natural logarithms of the probabilities."""
        return self._ask(LOG_PROBABILITIES, X, groups).T

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Share of the rows whose class is predicted."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def plot_predictions(self, group: Name | None = None, feature: Any = 0, **options: Any) -> Any:
        """Class probabilities along one feature: see `plots.predictions`."""
        from pacpfl.estimators import plots

        return plots.predictions(self, group, feature, **options)

    def plot_calibration(self, X: Any, y: Any, groups: Any = None, **options: Any) -> Any:
        """How often the predicted class is right, by how probable it was said to be."""
        from pacpfl.estimators import plots

        return plots.calibration(self, X, y, groups, **options)

    def _checked_more(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        x, y = validate_data(self, X, y, reset=False, dtype=np.float64)
        return x, self._class_numbers(y).astype(np.float64)

    def _class_numbers(self, y: Any) -> np.ndarray:
        labels = column_or_1d(y)
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise InvalidInput(
                f"The class {unknown.tolist()[0]!r} was not among those fitted; leave its rows out, or "
                "fit again with rows of it."
            )
        return np.searchsorted(self.classes_, labels)
