"""What a client asks of its prediction: the MIXTURE's mean, std, quantiles, CDF, density, samples.

None of these treat the mixture as one moment-matched Gaussian: two particles that disagree give
two bumps, and the quantiles know it.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Float

from pacpfl.types import Prediction


def mean(prediction: Prediction) -> Float[Array, " t"]:
    return jnp.einsum("...c,...ct->...t", prediction.weights, prediction.means)


def std(prediction: Prediction) -> Float[Array, " t"]:
    """Law of total variance: mean of the variances plus variance of the means."""
    centre = mean(prediction)
    second = prediction.stds**2 + (prediction.means - centre[..., None, :]) ** 2
    return jnp.sqrt(jnp.einsum("...c,...ct->...t", prediction.weights, second))


def cdf(prediction: Prediction, y: Float[Array, " t"]) -> Float[Array, " t"]:
    z = (y[..., None, :] - prediction.means) / prediction.stds
    return jnp.einsum("...c,...ct->...t", prediction.weights, ndtr(z))


def log_density(prediction: Prediction, y: Float[Array, " t"]) -> Float[Array, " t"]:
    z = (y[..., None, :] - prediction.means) / prediction.stds
    each = -0.5 * z**2 - jnp.log(prediction.stds) - 0.5 * math.log(2 * math.pi)
    return logsumexp(each, axis=-2, b=prediction.weights[..., :, None])


def quantiles(prediction: Prediction, levels: Float[Array, " q"]) -> Float[Array, "q t"]:
    """The y with CDF(y) = level, by bisection to the last bit.

    Each component's own quantile brackets the mixture's: it lies between the lowest and the highest.
    Components of weight zero must not widen the bracket: they would cost digits.
    """
    z = jax.scipy.special.ndtri(levels)
    used = (prediction.weights > 0)[..., :, None]

    def one(shift: Array, level: Array) -> Array:
        own = prediction.means + prediction.stds * shift
        low = jnp.min(jnp.where(used, own, jnp.inf), axis=-2)
        high = jnp.max(jnp.where(used, own, -jnp.inf), axis=-2)

        def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = low + 0.5 * (high - low)
            below = cdf(prediction, middle) < level
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        steps = 30 if low.dtype == jnp.float32 else 60
        low, high = jax.lax.fori_loop(0, steps, halve, (low, high))
        return 0.5 * (low + high)

    return jax.vmap(one)(z.astype(prediction.means.dtype), levels)


def samples(key: Array, prediction: Prediction, count: int) -> Float[Array, "count t"]:
    """Independent draws of y at each input (one component is drawn for each draw and input)."""
    component_key, noise_key = jax.random.split(key)
    inputs = prediction.means.shape[-1]
    chosen = jax.random.categorical(
        component_key, jnp.log(prediction.weights), shape=(count, inputs)
    )
    means = jnp.take_along_axis(prediction.means, chosen, axis=0)
    stds = jnp.take_along_axis(prediction.stds, chosen, axis=0)
    return means + stds * jax.random.normal(noise_key, means.shape, means.dtype)
