"""What a client asks of its prediction: the MIXTURE's mean, std, quantiles, CDF, density, samples.

None of these treat the mixture as one moment-matched Gaussian: two particles that disagree give
two bumps, and the quantiles know it. Of a warped target all are in the target's own terms.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Float

from pacpfl import warp
from pacpfl.types import Mixture, Prediction


def mean(prediction: Mixture) -> Float[Array, " t"]:
    return jnp.einsum("...c,...ct->...t", prediction.weights, _moments(prediction)[0])


def std(prediction: Mixture) -> Float[Array, " t"]:
    """Law of total variance: mean of the variances plus variance of the means."""
    means, variances = _moments(prediction)
    centre = jnp.einsum("...c,...ct->...t", prediction.weights, means)
    second = variances + (means - centre[..., None, :]) ** 2
    return jnp.sqrt(jnp.einsum("...c,...ct->...t", prediction.weights, second))


def cdf(prediction: Mixture, y: Float[Array, " t"]) -> Float[Array, " t"]:
    z = (_forward(prediction, y[..., None, :]) - prediction.means) / prediction.stds
    return jnp.einsum("...c,...ct->...t", prediction.weights, ndtr(z))


def log_density(prediction: Mixture, y: Float[Array, " t"]) -> Float[Array, " t"]:
    z = (_forward(prediction, y[..., None, :]) - prediction.means) / prediction.stds
    each = -0.5 * z**2 - jnp.log(prediction.stds) - 0.5 * math.log(2 * math.pi)
    if not isinstance(prediction, Prediction):
        each += warp.log_slope(prediction.warps[..., None, :], y[..., None, :])
    return logsumexp(each, axis=-2, b=prediction.weights[..., :, None])


def quantiles(prediction: Mixture, levels: Float[Array, " q"]) -> Float[Array, "q t"]:
    """The y with CDF(y) = level, by bisection to the last bit.

    Each component's own quantile brackets the mixture's: it lies between the lowest and the highest.
    Components of weight zero must not widen the bracket: they would cost digits.
    """
    z = jax.scipy.special.ndtri(levels)
    used = (prediction.weights > 0)[..., :, None]

    def one(shift: Array, level: Array) -> Array:
        own = _backward(prediction, prediction.means + prediction.stds * shift)
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


def samples(key: Array, prediction: Mixture, count: int) -> Float[Array, "count t"]:
    """Independent draws of y at each input (one component is drawn for each draw and input)."""
    component_key, noise_key = jax.random.split(key)
    inputs = prediction.means.shape[-1]
    chosen = jax.random.categorical(
        component_key, jnp.log(prediction.weights), shape=(count, inputs)
    )
    means = jnp.take_along_axis(prediction.means, chosen, axis=0)
    stds = jnp.take_along_axis(prediction.stds, chosen, axis=0)
    drawn = means + stds * jax.random.normal(noise_key, means.shape, means.dtype)
    if isinstance(prediction, Prediction):
        return drawn
    return warp.backward(prediction.warps[chosen], drawn)


def in_units(prediction: Mixture, shift: float, scale: float) -> Mixture:
    """The prediction of shift + scale y."""
    if isinstance(prediction, Prediction):
        return prediction._replace(
            means=shift + scale * prediction.means, stds=scale * prediction.stds
        )
    return prediction._replace(warps=warp.in_units(prediction.warps, shift, scale))


def _moments(prediction: Mixture) -> tuple[Array, Array]:
    """Mean and variance of every component."""
    if isinstance(prediction, Prediction):
        return prediction.means, prediction.stds**2
    return warp.moments(prediction.warps[..., None, :], prediction.means, prediction.stds)


def _forward(prediction: Mixture, y: Array) -> Array:
    if isinstance(prediction, Prediction):
        return y
    return warp.forward(prediction.warps[..., None, :], y)


def _backward(prediction: Mixture, z: Array) -> Array:
    if isinstance(prediction, Prediction):
        return z
    return warp.backward(prediction.warps[..., None, :], z)
