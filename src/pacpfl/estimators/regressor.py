"""Regression: Gaussian processes whose prior all clients learn together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import validate_data

from pacpfl import conformal, metrics, predictive, warp
from pacpfl.calibration import WIDTHS, log_slope, recalibrate
from pacpfl.client import COMPONENTS, MOMENTS, QUANTILES, ClientModel
from pacpfl.errors import InputError
from pacpfl.estimators.base import Curve, FederatedEstimator, documented
from pacpfl.types import Mixture, Prediction, WarpedPrediction


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PACPFLRegressor(RegressorMixin, FederatedEstimator):  # type: ignore[misc]
    """Personalised federated regression with calibrated uncertainty.

    The rows of X belong to clients, named by `groups`; without groups all rows are one client's. The
    clients learn a distribution over priors together (PAC-PFL), and each predicts with its own
    posterior. Features and target are standardised inside, and predictions are in the target's units.

    Examples
    --------
    >>> import numpy as np
    >>> from pacpfl import PACPFLRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y, groups = np.sin(X[:, 0]), np.repeat(["Basel", "Chur"], 10)
    >>> model = PACPFLRegressor(rounds=5, random_state=0).fit(X, y, groups)
    >>> mean, std = model.predict(X[:3], groups=groups[:3], return_std=True)
    """

    mean: str = "auto"
    kernel: str = "auto"
    mean_widths: Sequence[int] | str = "auto"
    kernel_widths: Sequence[int] | str = "auto"
    members: int = 1
    noise: float | str = "auto"
    noise_model: str = "auto"
    warp: str = "none"

    _metric = staticmethod(r2_score)
    score = FederatedEstimator.score  # with groups, which that of the mixin has not

    def predict(
        self, X: ArrayLike, groups: ArrayLike | None = None, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the mean of the prediction at every row.

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.
        return_std : bool, default=False
            Whether to return the standard deviation, too: that of a new observation, noise included.

        Returns
        -------
        mean : ndarray of shape (n_samples,)
            Or the pair of mean and std.
        """
        mean, std = self._ask(MOMENTS, X, groups)
        return (mean, std) if return_std else mean

    def predict_quantiles(
        self,
        X: ArrayLike,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        groups: ArrayLike | None = None,
    ) -> np.ndarray:
        """Return where the predicted distribution function reaches each level.

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.
        quantiles : sequence of float, default=(0.05, 0.5, 0.95)
            Levels between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
        """
        levels = np.atleast_1d(np.asarray(quantiles, np.float64))
        if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
            raise InputError(f"quantiles must lie between 0 and 1, not {quantiles!r}.")
        return self._ask(QUANTILES, X, groups, levels).T

    def predict_interval(
        self,
        X: ArrayLike,
        level: float = 0.9,
        groups: ArrayLike | None = None,
        interval: str = "model",
    ) -> np.ndarray:
        """Return an interval for the target at every row.

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.
        level : float, default=0.9
            How often it is to hold the target.
        interval : {"model", "conformal"}, default="model"
            Between the model's own quantiles, or from its client's rows (docs/intervals.md says
            what that promises).

        Returns
        -------
        ndarray of shape (n_samples, 2)
        """
        if interval == "model":
            return self.predict_quantiles(X, ((1 - level) / 2, (1 + level) / 2), groups)
        if interval != "conformal":
            raise InputError(f'interval must be "model" or "conformal", not {interval!r}.')
        return self._each(X, groups, lambda model, x: conformal.intervals(model, x, level)).T

    def predict_distribution(self, X: ArrayLike, groups: ArrayLike | None = None) -> Mixture:
        """Return the predicted mixture of Gaussians, row by row, as it is before recalibration.

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.

        Returns
        -------
        Prediction
            Weights, means and stds, each of shape (n_samples, n_components). With a warp, means and
            stds are those of the warped target, and `warps` are the warps' numbers in the target's
            units (`pacpfl.warp`).
        """
        weights, means, stds, *warps = (part.T for part in self._ask(COMPONENTS, X, groups))
        if not warps:
            return Prediction(weights, means, stds)
        stacked: Any = np.stack(warps, axis=-1)
        return WarpedPrediction(weights, means, stds, stacked)

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: Any = 0,
        groups: ArrayLike | None = None,
    ) -> np.ndarray:
        """Draw targets at each row, independently of the other rows.

        Parameters
        ----------
        X, groups : array-like
            Rows to answer, and the client of each; needless where the estimator was fitted without.
        n_samples : int, default=1
            Draws for each row.
        random_state : int, RandomState instance or None, default=0
            Seed of the draws.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples)
        """
        said = self.predict_distribution(X, groups)
        random = np.random.default_rng(self._seed(random_state))
        shares = self._shares(X, groups)
        drawn = np.full((len(shares), n_samples), np.nan)
        most = np.log(shares / WIDTHS).max(1, keepdims=True)
        while (
            left := np.isnan(drawn)
        ).any():  # what the model draws is kept as recalibration wants it
            draws = _draws(said, n_samples, random)
            accepted = log_slope(shares, _below(said, draws)) - most
            drawn = np.where(left & (np.log(random.random(drawn.shape)) <= accepted), draws, drawn)
        return drawn

    def _shares(self, X: ArrayLike, groups: ArrayLike | None) -> np.ndarray:
        """Return the map of each row's client (`pacpfl.calibration`), [rows, bins]."""

        def own(model: ClientModel, x: np.ndarray) -> np.ndarray:
            shares = WIDTHS if model.shares is None else model.shares
            return np.tile(shares[:, None], len(x))

        return self._each(X, groups, own).T

    def _checked(self, X: ArrayLike, y: ArrayLike, first: bool) -> tuple[np.ndarray, np.ndarray]:
        x, y = validate_data(self, X, y, reset=first, y_numeric=True, dtype=np.float64)
        return x, np.asarray(y, np.float64)

    def _calibration(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> Curve:
        said = self.predict_distribution(X, groups)
        raw = _below(said, np.asarray(y, float)[:, None])[:, 0]
        below = np.array(
            [recalibrate(*pair) for pair in zip(self._shares(X, groups), raw, strict=True)]
        )
        levels = metrics.calibration_levels()
        observed = metrics.calibration_curve(below, levels)
        error = metrics.calibration_error(below, levels)
        return levels, observed, error, ("predicted quantile", "share of targets below")


def _draws(said: Mixture, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw from every row's mixture, [rows, count]."""
    steps = np.cumsum(np.asarray(said.weights), axis=1)
    uniform = random.random((len(steps), count)) * steps[:, -1:]
    chosen = (uniform[:, :, None] >= steps[:, None, :]).sum(2)
    means, stds = (np.take_along_axis(np.asarray(p), chosen, 1) for p in (said.means, said.stds))
    drawn = means + stds * random.standard_normal(chosen.shape)
    if isinstance(said, Prediction):
        return drawn
    warps = np.take_along_axis(np.asarray(said.warps), chosen[:, :, None], 1)
    with jax.enable_x64(True):
        return np.asarray(warp.backward(jnp.asarray(warps), jnp.asarray(drawn)))


def _below(said: Mixture, y: np.ndarray) -> np.ndarray:
    """Return the model's probability of less than y, [rows, count]."""
    each = said._replace(means=said.means[..., None], stds=said.stds[..., None])
    with jax.enable_x64(True):
        return np.asarray(predictive.cdf(each, jnp.asarray(y)))
