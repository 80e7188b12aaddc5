r"""A predictive MIXTURE answers with its mean, std, quantiles, CDF, density and samples.

With weights w_c and components N(mu_c, sigma_c^2). None of these treat the mixture as one
moment-matched Gaussian: two particles that disagree give two bumps, and the quantiles know it. Of a
warped target all are in the target's own terms.

>>> two = Prediction(jnp.array([0.5, 0.5]), jnp.array([[-3.0], [3.0]]), jnp.ones((2, 1)))
>>> float(mean(two)[0]), round(float(std(two)[0]), 3)  # sqrt(1 + 9)
(0.0, 3.162)
>>> cdf(two, jnp.zeros(1)).tolist()
[0.5]
>>> bool(log_density(two, jnp.zeros(1))[0] < log_density(two, jnp.full(1, 3.0))[0])
True
>>> quantiles(two, jnp.array([0.25, 0.75])).round(1).tolist()  # the bumps' own medians
[[-3.0], [3.0]]
>>> draws = samples(jax.random.key(0), two, 100)
>>> draws.shape, bool((jnp.abs(draws) > 0.1).all())
((100, 1), True)
>>> in_units(two, 10.0, 2.0).means.tolist()
[[4.0], [16.0]]
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
    r"""Return $\mu = \sum_c w_c \mu_c$."""
    return jnp.einsum("...c,...ct->...t", prediction.weights, _moments(prediction)[0])


def std(prediction: Mixture) -> Float[Array, " t"]:
    r"""Return $\sqrt{\sum_c w_c (\sigma_c^2 + (\mu_c - \mu)^2)}$, by the law of total variance."""
    means, variances = _moments(prediction)
    centre = jnp.einsum("...c,...ct->...t", prediction.weights, means)
    second = variances + (means - centre[..., None, :]) ** 2
    return jnp.sqrt(jnp.einsum("...c,...ct->...t", prediction.weights, second))


def cdf(prediction: Mixture, y: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""Return $\sum_c w_c \Phi((y - \mu_c) / \sigma_c)$."""
    return jnp.einsum("...c,...ct->...t", prediction.weights, ndtr(_standardised(prediction, y)))


def log_density(prediction: Mixture, y: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""Return $\ln \sum_c w_c N(y | \mu_c, \sigma_c^2)$: between the bumps, low."""
    each = (
        -0.5 * _standardised(prediction, y) ** 2
        - jnp.log(prediction.stds)
        - 0.5 * math.log(2 * math.pi)
    )
    if not isinstance(prediction, Prediction):
        each += warp.log_slope(prediction.warps[..., None, :], y[..., None, :])
    return logsumexp(each, axis=-2, b=prediction.weights[..., :, None])


def quantiles(prediction: Mixture, levels: Float[Array, " q"]) -> Float[Array, "q t"]:
    """Return the y with CDF(y) = level, by bisection to the last bit.

    Each component's own quantile brackets the mixture's: it lies between the lowest and the highest.
    Components of weight zero must not widen the bracket: they would cost digits.
    """
    z = jax.scipy.special.ndtri(levels)
    used = (prediction.weights > 0)[..., :, None]

    def one(shift: Array, level: Array) -> Array:
        own = prediction.means + prediction.stds * shift
        if not isinstance(prediction, Prediction):
            own = warp.backward(prediction.warps[..., None, :], own)
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
    """Return independent draws of y at each input (of one component for each draw and input)."""
    component_key, noise_key = jax.random.split(key)
    inputs = prediction.means.shape[-1]
    log_weights = jnp.log(prediction.weights)
    chosen = jax.random.categorical(component_key, log_weights, shape=(count, inputs))
    means = jnp.take_along_axis(prediction.means, chosen, axis=0)
    stds = jnp.take_along_axis(prediction.stds, chosen, axis=0)
    drawn = means + stds * jax.random.normal(noise_key, means.shape, means.dtype)
    if isinstance(prediction, Prediction):
        return drawn
    return warp.backward(prediction.warps[chosen], drawn)


def in_units(prediction: Mixture, shift: float, scale: float) -> Mixture:
    """Return the prediction of shift + scale y."""
    if isinstance(prediction, Prediction):
        means, stds = shift + scale * prediction.means, scale * prediction.stds
        return prediction._replace(means=means, stds=stds)
    return prediction._replace(warps=warp.in_units(prediction.warps, shift, scale))


def _moments(prediction: Mixture) -> tuple[Array, Array]:
    """Mean and variance of every component."""
    if isinstance(prediction, Prediction):
        return prediction.means, prediction.stds**2
    return warp.moments(prediction.warps[..., None, :], prediction.means, prediction.stds)


def _standardised(prediction: Mixture, y: Array) -> Array:
    """Where y lies in every component: a standard normal number, if it is one of the component's."""
    y = y[..., None, :]
    if not isinstance(prediction, Prediction):
        y = warp.forward(prediction.warps[..., None, :], y)
    return (y - prediction.means) / prediction.stds
