r"""Kernels of the Gaussian-process prior: small records in one table, combined by `+`.

A kernel embeds the inputs (length scales, a network), and compares what it has embedded:

$$k(x, x') = \mathrm{similarity}(f_\phi(x), f_\phi(x')).$$

One's own kernel is one record under its name, and adds to others ("deep+cosine"): see CONTRIBUTING.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pacpfl import arrays
from pacpfl.errors import InputError
from pacpfl.hyper import Block
from pacpfl.priors.networks import MLP

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from pacpfl.priors.gp import GPSettings

    Profile = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Kernel:
    """One covariance function.

    Parameters
    ----------
    blocks
        The stretches of a particle that hold its parameters, given the number of features and the
        settings: names, sizes, and centres and spreads of their hyper-prior.
    embed
        Parameters [p], inputs [m, d] and settings to where the kernel sees the inputs, [m, e].
    similarity
        Embedded inputs [m, e] and [t, e] to covariances [m, t].
    variance
        Embedded inputs [t, e] to k(x, x), [t] or one number; 1 unless told.
    """

    blocks: Callable[[int, GPSettings], tuple[Block, ...]]
    embed: Callable[[Array, Array, GPSettings], Array]
    similarity: Callable[[Array, Array], Array]
    variance: Callable[[Array], Array] = lambda embedded: arrays.of(embedded).ones(
        (), embedded.dtype
    )


def register_kernel(name: str, kernel: Kernel) -> None:
    """Let `prior.kernel` name a kernel of one's own; an InputError if the name is taken."""
    if name in KERNELS or not name.isidentifier():
        raise InputError(
            f"A kernel cannot be registered as {name!r}: choose one word that is none of "
            f"{', '.join(KERNELS)}."
        )
    KERNELS[name] = kernel


def squared_distances(a: Float[Array, "m d"], b: Float[Array, "t d"]) -> Float[Array, "m t"]:
    """|a_i - b_j|^2. Few features: by differences, exact. Many: by products, after centring.

    Products cost one matrix multiplication instead of m t d subtractions, and lose digits only in
    proportion to the distance from the origin, which centring makes small.
    """
    if a.shape[-1] <= 4:
        return sum((a[:, None, j] - b[None, :, j]) ** 2 for j in range(a.shape[-1]))  # type: ignore[return-value]
    centre = a.mean(0)
    a, b, xp = a - centre, b - centre, arrays.of(a, b)
    products = xp.matmul(a, xp.transpose(b))
    squares = xp.sum(a**2, -1)[:, None] + xp.sum(b**2, -1)[None, :]
    return xp.maximum(squares - 2 * products, 0)


def radial(profile: Profile, a: Float[Array, "m d"], b: Float[Array, "t d"]) -> Float[Array, "m t"]:
    r"""Return k_ij = k(s) at the squared distances s = |a_i - b_j|^2.

    The `profile` gives k(s) and w(s) = -2 k'(s). With them the backward pass is written down: with
    the cotangent C and M = C * w,

    $$\bar a = M b - \mathrm{diag}(M 1) a, \qquad \bar b = M^T a - \mathrm{diag}(M^T 1) b:$$

    products that read M instead of making one matrix for each feature.
    """
    own = arrays.of(a, b).with_derivative(_radial, _radial_forward, _radial_backward)
    return own(profile, a, b)


def _radial(profile: Profile, a: Array, b: Array) -> Array:
    return profile(squared_distances(a, b))[0]


def _radial_forward(
    profile: Profile, a: Array, b: Array
) -> tuple[Array, tuple[Array, Array, Array]]:
    value, weight = profile(squared_distances(a, b))
    return value, (a, b, weight)


def _radial_backward(
    profile: Profile, saved: tuple[Array, Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    a, b, weight = saved
    weight = cotangent * weight
    # Only differences count, and they lose the fewest digits near the origin.
    centre = a.mean(0)
    a, b, xp = a - centre, b - centre, arrays.of(a)
    along = xp.matmul(weight, xp.pad(b, ((0, 0), (0, 1)), constant_values=1))
    # On its side, because XLA takes twice as long for M^T times a few columns.
    down = xp.matmul(xp.pad(a.T, ((0, 1), (0, 0)), constant_values=1), weight)
    by_b = (down[:-1] - down[-1:] * b.T).T
    return along[:, :-1] - along[:, -1:] * a, by_b


def gaussian(squared: Array) -> tuple[Array, Array]:
    """exp(-s / 2): functions with all derivatives."""
    value = arrays.of(squared).exp(-0.5 * squared)
    return value, value


def matern52(squared: Array) -> tuple[Array, Array]:
    r"""$(1 + \sqrt5 r + \tfrac53 r^2)\, e^{-\sqrt5 r}$ with r^2 = s: functions with two derivatives."""
    # The floor is for derivatives of derivatives: that of a root at 0 is infinite.
    xp = arrays.of(squared)
    root = xp.sqrt(5 * xp.maximum(squared, np.finfo(squared.dtype).tiny))
    decay = xp.exp(-root)
    return (1 + root + root**2 / 3) * decay, (5 / 3) * (1 + root) * decay


def _network(features: int, settings: GPSettings) -> MLP:
    return MLP((features, *settings.kernel_widths, settings.kernel_outputs))


def _lengths(name: str) -> Callable[[int, GPSettings], tuple[Block, ...]]:
    """ln of one length for each feature: sqrt(d) makes typical points of standardised data neighbours."""
    return lambda features, settings: (Block(name, features, 0.5 * math.log(features), 1.0),)


def _scaled(phi: Array, x: Array, settings: GPSettings) -> Array:
    return x * arrays.of(phi).exp(-phi)


def _circles(phi: Array, x: Array, settings: GPSettings) -> Array:
    r"""Each feature on a circle of radius 1 / l: $|u - u'| = 2 |\sin(\pi (x - x') / p)| / l$."""
    xp = arrays.of(phi, x)
    lengths, periods = xp.split(phi, 2)
    angles = 2 * math.pi * x * xp.exp(-periods)
    circles = xp.concatenate([xp.cos(angles), xp.sin(angles)], axis=1)
    return circles * xp.tile(xp.exp(-lengths), 2)


def _lines(phi: Array, x: Array, settings: GPSettings) -> Array:
    xp = arrays.of(phi, x)
    return xp.pad(x, ((0, 0), (0, 1)), constant_values=1) * xp.exp(phi)


def _products(a: Array, b: Array) -> Array:
    xp = arrays.of(a, b)
    return xp.matmul(a, xp.transpose(b))


KERNELS: dict[str, Kernel] = {
    # Squared exponential on a network's outputs.
    "deep": Kernel(
        lambda features, s: (Block("kernel.deep", _network(features, s).size),),
        lambda phi, x, s: _network(x.shape[1], s)(phi, x),
        partial(radial, gaussian),
    ),
    # Squared exponential with one length for each feature.
    "ard": Kernel(_lengths("kernel.ard"), _scaled, partial(radial, gaussian)),
    # sum_j s_j^2 x_j x'_j + s_0^2: ridge regression with a penalty of its own for each slope.
    "linear": Kernel(
        lambda features, s: (Block("kernel.linear", features + 1, math.log(0.1), 1.0),),
        _lines,
        _products,
        lambda a: (a**2).sum(-1),
    ),
    # Matern 5/2 with one length for each feature: rougher functions than `ard`.
    "matern": Kernel(_lengths("kernel.matern"), _scaled, partial(radial, matern52)),
    # exp(-2 sum_j sin^2(pi (x_j - x'_j) / p_j) / l_j^2). Every feature has a period of its own, since
    # hours and angles repeat at different ones, and a length: one that does not repeat gets a long one.
    # Features are standardised: the hyper-prior's periods lie between one and three in their range.
    "periodic": Kernel(
        lambda features, s: (
            *_lengths("kernel.periodic.length")(features, s),
            Block("kernel.periodic.period", features, math.log(2.0), 0.5),
        ),
        _circles,
        partial(radial, gaussian),
    ),
}
OURS = frozenset(KERNELS)  # which compute with NumPy's arrays, too
