"""Ridge regression per client: the first thing a user would try, and a baseline to be beaten.

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

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl.linalg import factorise
from pacpfl.methods.vanilla import Alone, State
from pacpfl.tiles import matmul, transpose
from pacpfl.types import Data, Prediction

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
    penalties: tuple[float, ...] = PENALTIES
    least_noise: float = 1e-3

    def personalize(
        self, state: State, client_state: tuple[()], data: Data, key: Array
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
        factor = factorise(gram).inverse
        slope = matmul(transpose(factor), matmul(factor, matmul(transpose(x), y)))
        leverage = 1 / count + jnp.sum(matmul(x, transpose(factor)) ** 2, axis=1)
        # A sample that determines its own prediction says nothing about the others'.
        rest = jnp.maximum(1 - leverage, jnp.finfo(x.dtype).eps)
        residual = y - matmul(x, slope)
        error = jnp.sum((residual / rest) ** 2) / count
        noise = jnp.sqrt(jnp.sum(residual**2 / rest) / count)
        noise = jnp.maximum(noise, self.least_noise)
        return RidgeModel(centre, intercept, slope, factor, noise, count, penalty), error
