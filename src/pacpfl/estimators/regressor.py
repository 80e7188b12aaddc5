"""Regression: Gaussian processes whose prior all clients learn together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import validate_data

from pacpfl import warp
from pacpfl.client import COMPONENTS, MOMENTS, QUANTILES, Name
from pacpfl.estimators.base import FederatedEstimator
from pacpfl.estimators.errors import InvalidInput
from pacpfl.estimators.settings import seed_from
from pacpfl.types import Mixture, Prediction, WarpedPrediction


class PACPFLRegressor(RegressorMixin, FederatedEstimator):  # type: ignore[misc]
    """Personalised federated regression with calibrated uncertainty.

    The rows of X belong to clients, named by `groups`; without groups all rows are one client's. The
    clients learn a distribution over priors together (PAC-PFL), and each predicts with its own
    posterior. Features and target are standardised inside, and predictions are in the target's units.

    Parameters bear the names of the configuration's keys (`pacpfl run` writes them all, with a
    line on each, into config.toml). Those that are not parameters are reached by `settings`, such as
    {"train.svgd_kernel": "function"}. "auto" depends on the number of clients, rows and features:
    `config_` tells what it became (docs/python-api.md).

    particles : k, how many priors the server learns.
    tau : weight of the clients' evidence against the hyper-prior.
    hyper_std : sigma_P, the spread of the hyper-prior.
    rounds, learning_rate : of the training; 0 rounds leave the priors as they are drawn.
    batch, clients_per_round : rows of a client, and clients, in one round; None is all.
    mean, kernel : parts of the prior joined by +: zero, constant, linear, mlp; deep, ard, linear, matern,
        periodic.
    mean_widths, kernel_widths : neurons of their networks' hidden layers.
    members : K > 1 for clients of several kinds.
    noise : std of the observation noise the hyper-prior is centred at, in standardised units.
    noise_model : constant, or a noise that depends on the features: linear, mlp.
    warp : none, or "sinh-arcsinh" for a target whose noise is skewed.
    weights : of the particles at a client: uniform, evidence or stacking.
    standardize : by the statistics of each "client", of all rows ("global"), or "none".
    unseen_groups : an unknown client at prediction is an "error", or is answered by the "prior".
    precision : float32 or float64.
    settings : further keys of the configuration.
    random_state : seed of everything that is drawn.
    verbose : True shows a progress bar.
    """

    def __init__(
        self,
        *,
        particles: int = 4,
        tau: float | str = "auto",
        hyper_std: float | str = "auto",
        rounds: int | str = "auto",
        learning_rate: float | str = "auto",
        batch: int | str | None = "auto",
        clients_per_round: int | str | None = "auto",
        mean: str = "auto",
        kernel: str = "auto",
        mean_widths: Sequence[int] | str = "auto",
        kernel_widths: Sequence[int] | str = "auto",
        members: int = 1,
        noise: float = 0.4,
        noise_model: str = "constant",
        warp: str = "none",
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
        self.mean = mean
        self.kernel = kernel
        self.mean_widths = mean_widths
        self.kernel_widths = kernel_widths
        self.members = members
        self.noise = noise
        self.noise_model = noise_model
        self.warp = warp
        self.weights = weights
        self.standardize = standardize
        self.unseen_groups = unseen_groups
        self.precision = precision
        self.settings = settings
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn the priors from all clients' rows; `groups` names the client of every row."""
        x, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        return self._fit(x, np.asarray(y, np.float64), groups)

    def predict(
        self, X: Any, groups: Any = None, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of the prediction; with `return_std` its standard deviation, noise included, too."""
        mean, std = self._ask(MOMENTS, X, groups)
        return (mean, std) if return_std else mean

    def predict_quantiles(
        self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95), groups: Any = None
    ) -> np.ndarray:
        """[rows, quantiles]: where the mixture's distribution function reaches each level."""
        levels = np.atleast_1d(np.asarray(quantiles, np.float64))
        if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
            raise InvalidInput(f"quantiles must lie between 0 and 1, not {quantiles!r}.")
        return self._ask(QUANTILES, X, groups, levels).T

    def predict_distribution(self, X: Any, groups: Any = None) -> Mixture:
        """The whole answer, row by row: weights, means and stds, [rows, components] each.

        With a warp, means and stds are those of the warped target, and `warps` are the warps'
        numbers, [rows, components, 4], in the target's units (`pacpfl.warp`).
        """
        weights, means, stds, *warps = (part.T for part in self._ask(COMPONENTS, X, groups))
        if not warps:
            return Prediction(weights, means, stds)
        stacked: Any = np.stack(warps, axis=-1)
        return WarpedPrediction(weights, means, stds, stacked)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, groups: Any = None
    ) -> np.ndarray:
        """[rows, n_samples]: draws of the target at each row, independently of the other rows."""
        said = self.predict_distribution(X, groups)
        random = np.random.default_rng(seed_from(type(self).__name__, random_state))
        steps = np.cumsum(np.asarray(said.weights), axis=1)
        uniform = random.random((len(steps), n_samples)) * steps[:, -1:]
        chosen = (uniform[:, :, None] >= steps[:, None, :]).sum(2)
        means, stds = (
            np.take_along_axis(np.asarray(p), chosen, 1) for p in (said.means, said.stds)
        )
        drawn = means + stds * random.standard_normal(chosen.shape)
        if isinstance(said, Prediction):
            return drawn
        warps = np.take_along_axis(np.asarray(said.warps), chosen[:, :, None], 1)
        with jax.enable_x64(True):
            return np.asarray(warp.backward(jnp.asarray(warps), jnp.asarray(drawn)))

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """R^2 of the predicted means, over all rows."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def plot_predictions(self, group: Name | None = None, feature: Any = 0, **options: Any) -> Any:
        """Means and intervals along one feature, with the client's rows: see `plots.predictions`."""
        from pacpfl.estimators import plots

        return plots.predictions(self, group, feature, **options)

    def plot_calibration(self, X: Any, y: Any, groups: Any = None, **options: Any) -> Any:
        """How often targets lie below each quantile, on rows the model has not seen."""
        from pacpfl.estimators import plots

        return plots.calibration(self, X, y, groups, **options)

    def _checked_more(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        x, y = validate_data(self, X, y, reset=False, y_numeric=True, dtype=np.float64)
        return x, np.asarray(y, np.float64)
