r"""A predictive MIXTURE answers with its mean, std, quantiles, CDF, density and samples.

With weights w_c and components N(mu_c, sigma_c^2). None of these treat the mixture as one
moment-matched Gaussian: two particles that disagree give two bumps, and the quantiles know it. Of a
warped target all are in the target's own terms.

>>> two = Prediction(np.array([0.5, 0.5]), np.array([[-3.0], [3.0]]), np.ones((2, 1)))
>>> float(mean(two)[0]), round(float(std(two)[0]), 3)  # sqrt(1 + 9)
(0.0, 3.162)
>>> cdf(two, np.zeros(1)).tolist()
[0.5]
>>> bool(log_density(two, np.zeros(1))[0] < log_density(two, np.full(1, 3.0))[0])
True
>>> quantiles(two, np.array([0.25, 0.75])).round(1).tolist()  # the bumps' own medians
[[-3.0], [3.0]]
>>> import jax
>>> draws = samples(jax.random.key(0), two, 100)
>>> draws.shape, bool((abs(draws) > 0.1).all())
((100, 1), True)
>>> in_units(two, 10.0, 2.0).means.tolist()
[[4.0], [16.0]]
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pacpfl import arrays, warp
from pacpfl.types import Mixture, Prediction

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def mean(prediction: Mixture) -> Float[Array, " t"]:
    r"""Return $\mu = \sum_c w_c \mu_c$."""
    return _average(prediction.weights, _moments(prediction)[0])


def std(prediction: Mixture) -> Float[Array, " t"]:
    r"""Return $\sqrt{\sum_c w_c (\sigma_c^2 + (\mu_c - \mu)^2)}$, by the law of total variance."""
    means, variances = _moments(prediction)
    centre = _average(prediction.weights, means)
    second = variances + (means - centre[..., None, :]) ** 2
    return arrays.of(second).sqrt(_average(prediction.weights, second))


def cdf(prediction: Mixture, y: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""Return $\sum_c w_c \Phi((y - \mu_c) / \sigma_c)$."""
    standardised = _standardised(prediction, y)
    return _average(prediction.weights, arrays.of(standardised).ndtr(standardised))


def _average(weights: Float[Array, "*b c"], values: Float[Array, "*b c t"]) -> Float[Array, "*b t"]:
    return arrays.of(weights, values).einsum("...c,...ct->...t", weights, values)


def log_density(prediction: Mixture, y: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""Return $\ln \sum_c w_c N(y | \mu_c, \sigma_c^2)$: between the bumps, low."""
    xp = arrays.of(*prediction, y)
    each = (
        -0.5 * _standardised(prediction, y) ** 2
        - xp.log(prediction.stds)
        - 0.5 * math.log(2 * math.pi)
    )
    if not isinstance(prediction, Prediction):
        each = each + warp.log_slope(prediction.warps[..., None, :], y[..., None, :])
    return xp.logsumexp(each, axis=-2, b=prediction.weights[..., :, None])


def quantiles(prediction: Mixture, levels: Float[Array, " q"]) -> Float[Array, "q t"]:
    """Return the y with CDF(y) = level, by bisection to the last bit.

    Each component's own quantile brackets the mixture's: it lies between the lowest and the highest.
    Components of weight zero must not widen the bracket: they would cost digits.
    """
    xp = arrays.of(*prediction, levels)
    # Levels come first, before the axes that the prediction may have for many clients.
    levels = levels.reshape(*levels.shape, *[1] * (prediction.means.ndim - levels.ndim))
    z = xp.ndtri(levels).astype(prediction.means.dtype)[..., None]
    own = prediction.means + prediction.stds * z
    if not isinstance(prediction, Prediction):
        own = warp.backward(prediction.warps[..., None, :], own)
    used = (prediction.weights > 0)[..., :, None]
    low = xp.min(xp.where(used, own, xp.inf), axis=-2)
    high = xp.max(xp.where(used, own, -xp.inf), axis=-2)

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = low + 0.5 * (high - low)
        below = cdf(prediction, middle) < levels
        return xp.where(below, middle, low), xp.where(below, high, middle)

    low, high = xp.repeat(30 if low.dtype == np.float32 else 60, halve, (low, high))
    return 0.5 * (low + high)


def samples(key: Array, prediction: Mixture, count: int) -> Float[Array, "count t"]:
    """Return independent draws of y at each input (of one component for each draw and input)."""
    import jax
    import jax.numpy as jnp

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
