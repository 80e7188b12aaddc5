"""Models without rounds, of one client's samples alone or of all: what everybody would try first.

`Pooled` and `PooledBNN` send everybody's samples to one place, so they are no federated methods,
and show what ignoring the clients' differences costs. Clients who join later get the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from pacpfl import hyper
from pacpfl.errors import InputError
from pacpfl.linalg import factorise
from pacpfl.methods.base import Curves, Method, Nothing, Weights
from pacpfl.methods.settings import AloneSettings
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior, ascend
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.tiles import matmul, transpose
from pacpfl.types import Data, Prediction

Parameters = TypeVar("Parameters")  # a pytree of arrays

if TYPE_CHECKING:
    from pacpfl.priors.sparse import SparseModel


class Alone(Method[PyTree, Nothing, Nothing]):
    """A method without a federation: the server knows nothing, and nobody tells it anything."""

    def init(self, key: Array, example: Data) -> PyTree:
        return ()

    def client_update(
        self, state: PyTree, client_state: Nothing, data: Data, key: Array
    ) -> tuple[Nothing, Nothing]:
        return (), ()

    def server_update(
        self, state: PyTree, updates: Nothing, weights: Weights, key: Array
    ) -> PyTree:
        return state

    def diagnostics(self, state: PyTree, updates: Nothing, weights: Weights) -> Curves:
        return {}


@dataclass(frozen=True)
class Vanilla(Alone):
    """Every client fits its own prior to its own data, alone (type-II maximum likelihood).

    The paper leaves the optimiser open: here Adam with a cosine schedule on -ln Z(P_phi, S_i), from
    `restarts` draws of the hyper-prior, of which the one with the highest evidence is kept.
    """

    prior: Prior
    settings: AloneSettings = AloneSettings()

    def starts(self, data: Data, key: Array) -> Float[Array, "starts size"]:
        around = hyper.hyper_prior(self.prior.blocks, self.settings.hyper_std, data.x.dtype)
        return hyper.sample(key, around, 1 if self.central else self.settings.restarts)

    def personalize(
        self, state: Nothing, client_state: Nothing, data: Data, key: Array
    ) -> PersonalModel | SparseModel:
        own, per_sample = self.settings, 1 / data.mask.sum()
        objective = lambda phi: per_sample * self.prior.log_evidence(phi, data)  # noqa: E731
        best = maximise(objective, self.starts(data, key), own.steps, own.learning_rate)
        return personal_model(self.prior, best[None], data, "uniform")


def maximise(
    objective: Callable[[Parameters], Array], starts: Parameters, steps: int, learning_rate: float
) -> Parameters:
    """The best of where Adam with a cosine schedule ends from each start (leading axis of every leaf)."""
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    uphill = jax.grad(objective)

    def search(start: Parameters) -> tuple[Parameters, Array]:
        found = ascend(lambda place, step: uphill(place), start, optimizer, steps)
        return found, objective(found)

    found, values = jax.vmap(search)(starts)
    best = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
    return jax.tree.map(lambda a: a[best], found)


def plain_prior(features: int, noise: float = 0.4) -> GPPrior:
    """Constant mean, one length scale per feature, learned scale, and a wide hyper-prior of the noise,
    centred at `noise`."""
    settings = GPSettings(
        mean="constant", kernel="ard", output_scale="learned", noise=noise, noise_spread=1.0
    )
    return GPPrior(features, settings)


@dataclass(frozen=True)
class Pooled(Vanilla):
    """One prior, fitted to everybody's samples, from one start.

    Up to `exact_limit` samples it is fitted like `Vanilla`. Beyond, it has inducing points, as the
    paper says: the collapsed variational bound takes the place of the evidence (`priors.sparse`),
    and the inputs, which start at the centres of k-means, are learned with the parameters. Every
    step uses all samples, at O(n M^2).
    """

    exact_limit: int = 500

    central: ClassVar[bool] = True

    def personalize(
        self, state: Nothing, client_state: Nothing, data: Data, key: Array
    ) -> PersonalModel | SparseModel:
        if len(data.mask) <= self.exact_limit:
            return super().personalize(state, client_state, data, key)
        prior, own = self.prior.gaussian, self.settings
        if prior is None or prior is not self.prior:
            raise InputError(
                f"A pooled model of {len(data.mask)} samples needs inducing points, which only a "
                'single Gaussian process of the plain target has: set members = 1 and warp = "none", or '
                "leave out the pooled model."
            )
        from pacpfl.priors import sparse

        inducing = sparse.initial_inducing(data, min(own.inducing, len(data.mask)))

        def objective(parameters: tuple[Array, Array]) -> Array:
            return sparse.bound(prior, *parameters, data) / data.mask.sum()

        start = (self.starts(data, key), inducing[None])
        phi, inducing = maximise(objective, start, own.steps, own.learning_rate)
        return sparse.SparseModel(prior, phi, sparse.condition(prior, phi, inducing, data))


@dataclass(frozen=True)
class VanillaBNN(Alone):
    """Vanilla and Pooled with Bayesian neural networks: posterior inference without a learned prior.

    The prior is fixed before any data are seen: where PAC-PFL's particles start, N(initial values of a
    network, initial_std^2). From there each client infers alone, exactly as a client of PAC-PFL does.

    A prior that has learned nothing must not bind: let every layer adapt (adapt = "all", hundreds of
    steps) and give the samples a high temperature. Measured on scikit-learn's digits, 20
    samples a client, one hidden layer of 64, initial_std 0.1: accuracy 18% at temperature 1, 67% at
    100, 68% at 1,000 (a logistic regression: 63%), and the same for std 0.3 and a ninth of the
    temperature. A prior around zero would be the textbook's choice, but SVGD with a few networks
    contracts to the most probable weights, which with few samples are nearly zero everywhere.
    """

    prior: Prior
    particles: int = 1  # independent initial values, as of an ensemble

    def init(self, key: Array, example: Data) -> Float[Array, "k size"]:
        """The particles of the fixed prior: all that clients have in common."""
        around = hyper.hyper_prior(self.prior.blocks, 1.0, example.x.dtype)
        return self.prior.start(key, around, self.particles)

    def personalize(
        self, state: Float[Array, "k size"], client_state: Nothing, data: Data, key: Array
    ) -> PersonalModel:
        return personal_model(self.prior, state, data, "uniform", key=key)


@dataclass(frozen=True)
class PooledBNN(VanillaBNN):
    """One model for all, and for clients who join later."""

    central: ClassVar[bool] = True


PENALTIES = tuple(10 ** (exponent / 4) for exponent in range(-8, 21))  # 0.01 to 100,000


class RidgeModel(eqx.Module):
    """One client's line, and how sure it is of it."""

    centre: Float[Array, " d"]  # mean of the inputs
    intercept: Float[Array, ""]  # b, the value at the centre
    slope: Float[Array, " d"]  # w
    factor: Float[Array, "d d"]  # W
    noise: Float[Array, ""]  # s
    count: Float[Array, ""]  # m
    penalty: Float[Array, ""]

    def __call__(self, x: Float[Array, "t d"]) -> Prediction:
        offset = x - self.centre
        mean = self.intercept + matmul(offset, self.slope)
        spread = jnp.sum(matmul(offset, transpose(self.factor)) ** 2, axis=1)
        std = self.noise * jnp.sqrt(1 + 1 / self.count + spread)
        return Prediction(jnp.ones(1, x.dtype), mean[None], std[None])


@dataclass(frozen=True)
class Ridge(Alone):
    """Ridge regression, the first thing a user would try, and a baseline to be beaten.

        y = b + (x - x_mean)^T w + N(0, s^2),   w ~ N(0, s^2 / penalty I),   b flat,

    on the client's own m samples, with b the unpenalised intercept. Decisions:
    - Features are taken as they are: standardise them, or one penalty cannot suit all.
    - The penalty is the one of a fixed grid with the smallest mean squared leave-one-out error, which is
      closed form: e_j = (y_j - f(x_j)) / (1 - h_j), where h_j = 1/m + |W (x_j - x_mean)|^2 is the sample's
      leverage and W (X^T X + penalty I) W^T = I. It is what scikit-learn's RidgeCV chooses.
    - The prediction is that of Bayesian linear regression, N(f(x), s^2 (1 + 1/m + |W (x - x_mean)|^2)).
      Left out, sample j is predicted with variance s^2 / (1 - h_j); the s^2 that makes these predictions
      most likely is s^2 = mean_j e_j^2 (1 - h_j). So the leave-one-out errors set the width, and the
      uncertainty of w and b, which is part of each of them, is not counted twice.
    - `least_noise` is the least s, for targets that a line meets exactly.
    """

    penalties: tuple[float, ...] = PENALTIES
    least_noise: float = 1e-3

    def personalize(
        self, state: Nothing, client_state: Nothing, data: Data, key: Array
    ) -> RidgeModel:
        penalties = jnp.asarray(self.penalties, data.x.dtype)
        models, errors = jax.vmap(lambda penalty: self._fit(penalty, data))(penalties)
        best = jnp.argmin(jnp.where(jnp.isfinite(errors), errors, jnp.inf))
        return jax.tree.map(lambda a: a[best], models)

    def _fit(self, penalty: Array, data: Data) -> tuple[RidgeModel, Array]:
        """The model with this penalty, and its mean squared leave-one-out error."""
        mask = data.mask
        count = mask.sum().astype(data.x.dtype)
        centre = jnp.where(mask[:, None], data.x, 0).sum(0) / count
        intercept = jnp.where(mask, data.y, 0).sum() / count
        x = jnp.where(mask[:, None], data.x - centre, 0)
        y = jnp.where(mask, data.y - intercept, 0)

        gram = matmul(transpose(x), x) + penalty * jnp.eye(x.shape[1], dtype=x.dtype)
        factor = factorise(gram)
        slope = matmul(transpose(factor), matmul(factor, matmul(transpose(x), y)))
        leverage = 1 / count + jnp.sum(matmul(x, transpose(factor)) ** 2, axis=1)
        # A sample that determines its own prediction says nothing about the others'.
        rest = jnp.maximum(1 - leverage, jnp.finfo(x.dtype).eps)
        residual = y - matmul(x, slope)
        error = jnp.sum((residual / rest) ** 2) / count
        noise = jnp.maximum(jnp.sqrt(jnp.sum(residual**2 / rest) / count), self.least_noise)
        return RidgeModel(centre, intercept, slope, factor, noise, count, penalty), error


@dataclass(frozen=True)
class ARD(Vanilla):
    """A Gaussian process with one length scale per feature, for each client alone.

        y = c + h(x) + N(0, s^2),   h ~ GP(0, a^2 exp(-sum_j (x_j - x'_j)^2 / (2 l_j^2))),

    where c, a, s and all l_j maximise the evidence of the client's own samples: what people reach for when
    they know Gaussian processes, and a baseline to be beaten. Decisions:
    - Adam, as in `Vanilla`, on the logarithms of the scales: for the line search of L-BFGS float32
      is too coarse, and all clients take the same steps.
    - The first start suits standardised data: every length sqrt(d), scale 1, noise 0.4. The others
      are draws around it.
    - Nothing bounds the scales: a feature that does not matter drifts to a long length, and few
      samples of many features are over-fitted, as by every implementation that finds this maximum.
    """

    settings: AloneSettings = AloneSettings(steps=250, learning_rate=0.1, restarts=2, hyper_std=0.5)

    def starts(self, data: Data, key: Array) -> Float[Array, "starts size"]:
        around = hyper.hyper_prior(self.prior.blocks, 1.0, data.x.dtype)
        own = self.settings
        return hyper.sample(key, around, own.restarts, own.hyper_std).at[0].set(around.means)
