"""Regression: Gaussian processes whose prior all clients learn together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import validate_data

from pacpfl import metrics, predictive, warp
from pacpfl.client import COMPONENTS, MOMENTS, QUANTILES
from pacpfl.errors import InputError
from pacpfl.estimators.base import FederatedEstimator
from pacpfl.types import Mixture, Prediction, WarpedPrediction


class PACPFLRegressor(RegressorMixin, FederatedEstimator):  # type: ignore[misc]
    """Personalised federated regression with calibrated uncertainty.

    The rows of X belong to clients, named by `groups`; without groups all rows are one client's. The
    clients learn a distribution over priors together (PAC-PFL), and each predicts with its own
    posterior. Features and target are standardised inside, and predictions are in the target's units.

    Parameters bear the names of the configuration's keys; `settings` reaches the others. "auto" is
    what `pacpfl init` would write for the same rows (docs/python-api.md has the table), and `config_`
    tells what it became.

    Parameters
    ----------
    particles : int, default=4
        k, the number of priors the server learns.
    tau : float or "auto"
        Weight of the clients' evidence against the hyper-prior.
    hyper_std : float or "auto"
        sigma_P, the spread of the hyper-prior.
    rounds : int or "auto"
        Rounds of the training; 0 leaves the priors as they are drawn.
    learning_rate : float or "auto"
        Step size of the training.
    batch : int, None or "auto"
        Rows of a client in one round; None is all.
    clients_per_round : int, None or "auto"
        Clients in one round; None is all.
    mean : str or "auto"
        Mean function of the prior: zero, constant, linear, mlp, or a sum such as "linear+mlp".
    kernel : str or "auto"
        Its kernel: deep, ard, linear, matern, periodic, or a sum such as "ard+linear".
    mean_widths : sequence of int or "auto"
        Neurons of the mean network's hidden layers.
    kernel_widths : sequence of int or "auto"
        Neurons of the deep kernel's hidden layers.
    members : int, default=1
        K, the number of base priors in a particle: more than 1 for clients of several kinds.
    noise : float, default=0.4
        Standard deviation of the observation noise the hyper-prior is centred at, in standardised units.
    noise_model : {"constant", "linear", "mlp"}, default="constant"
        How the noise depends on the features.
    warp : {"none", "sinh-arcsinh"}, default="none"
        "sinh-arcsinh" for a target whose noise is skewed.
    weights : {"uniform", "evidence", "stacking"}, default="uniform"
        How a client weighs the particles.
    standardize : {"auto", "client", "global", "none"}, default="auto"
        Whether features and target are scaled by the statistics of each client, of all rows, or not.
    unseen_groups : {"error", "prior"}, default="error"
        Whether an unknown client at prediction is an error, or is answered by the prior.
    precision : {"float32", "float64"}, default="float32"
        Type of all numbers inside.
    settings : dict, optional
        Further keys of the configuration, such as {"train.svgd_kernel": "function"}.
    random_state : int, RandomState instance or None, default=None
        Seed of everything that is drawn.
    verbose : bool, default=False
        Whether to show a progress bar.

    Attributes
    ----------
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
    >>> from pacpfl import PACPFLRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> y, groups = np.sin(X[:, 0]), np.repeat(["Basel", "Chur"], 10)
    >>> model = PACPFLRegressor(rounds=5, random_state=0).fit(X, y, groups)
    >>> mean, std = model.predict(X[:3], groups=groups[:3], return_std=True)
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

    _metric = staticmethod(r2_score)
    score = FederatedEstimator.score  # with groups, which that of the mixin has not

    def predict(
        self, X: ArrayLike, groups: ArrayLike | None = None, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the mean of the prediction at every row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to answer.
        groups : array-like of shape (n_samples,), optional
            The client of every row; needless where the estimator was fitted without.
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
        X : array-like of shape (n_samples, n_features)
            Rows to answer.
        quantiles : sequence of float, default=(0.05, 0.5, 0.95)
            Levels between 0 and 1.
        groups : array-like of shape (n_samples,), optional
            The client of every row; needless where the estimator was fitted without.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
        """
        levels = np.atleast_1d(np.asarray(quantiles, np.float64))
        if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
            raise InputError(f"quantiles must lie between 0 and 1, not {quantiles!r}.")
        return self._ask(QUANTILES, X, groups, levels).T

    def predict_distribution(self, X: ArrayLike, groups: ArrayLike | None = None) -> Mixture:
        """Return the predicted mixture of Gaussians, row by row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to answer.
        groups : array-like of shape (n_samples,), optional
            The client of every row; needless where the estimator was fitted without.

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
        X : array-like of shape (n_samples, n_features)
            Rows to answer.
        n_samples : int, default=1
            Draws for each row.
        random_state : int, RandomState instance or None, default=0
            Seed of the draws.
        groups : array-like of shape (n_samples,), optional
            The client of every row; needless where the estimator was fitted without.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples)
        """
        said = self.predict_distribution(X, groups)
        random = np.random.default_rng(self._seed(random_state))
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

    def _checked(self, X: ArrayLike, y: ArrayLike, first: bool) -> tuple[np.ndarray, np.ndarray]:
        x, y = validate_data(self, X, y, reset=first, y_numeric=True, dtype=np.float64)
        return x, np.asarray(y, np.float64)

    def _calibration(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None
    ) -> tuple[np.ndarray, np.ndarray, float, tuple[str, str]]:
        each = self.predict_distribution(X, groups)  # a mixture at one input for every row
        each = each._replace(means=each.means[..., None], stds=each.stds[..., None])
        with jax.enable_x64(True):
            below = np.asarray(predictive.cdf(each, jnp.asarray(y, float)[:, None]))[:, 0]
        levels = metrics.calibration_levels()
        observed = metrics.calibration_curve(below, levels)
        error = metrics.calibration_error(below, levels)
        return levels, observed, error, ("predicted quantile", "share of targets below")
