"""Skewed targets: a Gaussian model of z = g(y) with a learned g, instead of one of y (Snelson et al. 2004).

    z = sinh(d asinh((y - c) / l) - e),   y = c + l sinh((asinh(z) + e) / d).

This g is the sinh-arcsinh of Jones and Pewsey (2009), a warp of Gaussian processes in Rios and Tobar
(2019): it and its inverse are closed form, smooth and increasing on the whole line. Skewness e: below
zero, the lower tail of y is the longer one. Tail weight d: below one, both tails are longer than a
Gaussian's. With e = 0 and d = 1 it is a line. The density of y is that of z times the slope of g:

    ln p(y) = ln N(g(y) | mean, std^2) + ln g'(y).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pacpfl import arrays

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    Warp = Float[Array, "*shape 4"]  # c, ln l, e, ln d
    Values = Float[Array, " *shape"]

# Moments are integrals over the standard normal, by the trapezoidal rule: for functions as smooth as
# these it gains digits faster than any power of the number of nodes.
NODES = np.linspace(-8, 8, 97)
SHARES = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


def forward(warp: Warp, y: Values) -> Values:
    """Return z = g(y)."""
    return arrays.of(warp, y).sinh(_bent(warp, y))


def log_slope(warp: Warp, y: Values) -> Values:
    """Return ln g'(y)."""
    xp = arrays.of(warp, y)
    bent = xp.abs(_bent(warp, y))
    log_cosh = bent + xp.log1p(xp.exp(-2 * bent)) - math.log(2)
    return log_cosh - 0.5 * xp.log1p(_standard(warp, y) ** 2) + warp[..., 3] - warp[..., 1]


def backward(warp: Warp, z: Values) -> Values:
    """Return y = g^-1(z)."""
    xp = arrays.of(warp, z)
    bent = (xp.arcsinh(z) + warp[..., 2]) * xp.exp(-warp[..., 3])
    return warp[..., 0] + xp.exp(warp[..., 1]) * xp.sinh(bent)


def moments(warp: Warp, mean: Values, std: Values) -> tuple[Values, Values]:
    """Return mean and variance of y where z is N(mean, std^2)."""
    xp = arrays.of(warp, mean, std)
    middle = backward(warp, mean)  # sums of what is left keep their digits

    def add(number: int, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        node, share = (xp.asarray(rule, mean.dtype)[number] for rule in (NODES, SHARES))
        rest = backward(warp, mean + std * node) - middle
        return sums[0] + share * rest, sums[1] + share * rest**2

    start = xp.zeros_like(middle)
    first, second = xp.repeat(len(NODES), add, (start, start))
    return middle + first, second - first**2


def in_units(warp: Warp, shift: float | Array, scale: float | Array) -> Warp:
    """Return the warp of shift + scale y that gives the same z."""
    xp = arrays.of(warp, shift, scale)
    moved = shift + scale * warp[..., :1]
    return xp.concatenate([moved, warp[..., 1:2] + xp.log(scale), warp[..., 2:]], axis=-1)


def _standard(warp: Warp, y: Array) -> Array:
    return (y - warp[..., 0]) * arrays.of(warp, y).exp(-warp[..., 1])


def _bent(warp: Warp, y: Array) -> Array:
    xp = arrays.of(warp, y)
    return xp.exp(warp[..., 3]) * xp.arcsinh(_standard(warp, y)) - warp[..., 2]
