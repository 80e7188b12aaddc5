"""Differential privacy of a securely aggregated sum, with noise in shares from the clients.

Each client adds a discrete Gaussian of s steps to its integers. The sum over m clients is close to a
discrete Gaussian of s sqrt(m) steps, but is not one. Proposition 14 of Kairouz, Liu and Steinke (2021)
bounds the difference: for integer vectors that differ by at most D in L2 norm, and every order a > 1,

    D_a <= min( a D^2 / (2 m s^2) + tau d,  (a / 2) (D / (sqrt(m) s) + tau sqrt(d))^2 ),
    tau = 10 sum_{k=1}^{m-1} exp(-2 pi^2 s^2 k / (k + 1)).

From s = 2 on tau is below 1e-15 and nothing is lost. Reducing the sum modulo 2^bits, unmasking and decoding
are post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, inf, log, log1p, pi, sqrt
from typing import Literal

from pacpfl.errors import InputError
from pacpfl.secagg.fixed_point import MOST_NOISE, Grid

Adjacency = Literal["add-remove", "replace"]

ORDERS = (
    *(1 + x / 100 for x in range(1, 100)),
    *(2 + x / 10 for x in range(100)),
    *(12 + x for x in range(52)),
    *(2.0**x for x in range(6, 21)),
)


def noise_per_client(standard_deviation: float, step: float, sharers: int) -> int:
    """Whole steps of noise with which `sharers` clients together reach a standard deviation.

    Rounded up: s = ceil(sigma / (step sqrt(sharers))). Take `sharers` = threshold - colluding, the
    fewest honest survivors; with more of them the sum has more noise than asked for.
    """
    if not standard_deviation > 0 or sharers < 1:
        raise InputError(
            f"Noise of standard deviation {standard_deviation} from {sharers} clients is not possible: "
            "give a positive deviation and a threshold above the number of colluding clients."
        )
    return ceil(standard_deviation / (step * sqrt(sharers)))


def discretisation_gap(scale: float, sharers: int) -> float:
    """tau of Kairouz, Liu and Steinke (2021): what a sum of discrete Gaussians is off by."""
    return 10 * sum(exp(-2 * pi**2 * scale**2 * k / (k + 1)) for k in range(1, sharers))


def renyi_divergence(
    order: float, sensitivity: float, dimension: int, scale: float, sharers: int
) -> float:
    """Their bound on the divergence of the noisy sums of two neighbours, for s >= 1/2."""
    if scale < 0.5:
        raise InputError(
            f"The theorem needs noise of at least half a step, not {scale}: take a finer grid."
        )
    gap = discretisation_gap(scale, sharers)
    ratio = sensitivity / (sqrt(sharers) * scale)
    return min(
        order * ratio**2 / 2 + gap * dimension, order / 2 * (ratio + gap * sqrt(dimension)) ** 2
    )


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of `rounds` sums towards one client's whole update."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    rounds: int
    order: float


def guarantee(
    grid: Grid,
    threshold: int,
    delta: float,
    *,
    rounds: int = 1,
    colluding: int = 0,
    adjacency: Adjacency = "add-remove",
) -> Guarantee:
    """What `rounds` sums on this grid give away, to whoever sees them and `colluding` clients' secrets.

    The sensitivity is that of the rounded integers, sqrt(grid.squared_norm), which includes what
    rounding adds; twice that if a client is replaced. Counted is the noise of threshold - colluding
    survivors; that of further ones is post-processing. Rounds add up (Rényi); there is no amplification
    by sampling, since the server knows who takes part. From order a to delta, as in Canonne, Kamath and
    Steinke (2020): epsilon = T D_a + ln(1 - 1/a) + (ln(1/delta) - ln a) / (a - 1), at the best order.
    """
    sharers = threshold - colluding
    if grid.noise < 1 or sharers < 1:
        raise InputError(
            "Without noise from honest survivors there is no differential privacy: add noise."
        )
    if not 0 < delta < 1 or rounds < 1:
        raise InputError(f"delta = {delta} over {rounds} rounds says nothing: take 0 < delta < 1.")
    sensitivity = sqrt(grid.squared_norm) * (2 if adjacency == "replace" else 1)
    best, best_order = inf, inf
    for order in ORDERS:
        divergence = rounds * renyi_divergence(
            order, sensitivity, grid.dimension, grid.noise, sharers
        )
        epsilon = divergence + log1p(-1 / order) + (log(1 / delta) - log(order)) / (order - 1)
        if epsilon < best:
            best, best_order = epsilon, order
    return Guarantee(max(best, 0.0), delta, adjacency, rounds, best_order)


def noise_for(
    epsilon: float,
    grid: Grid,
    threshold: int,
    delta: float,
    *,
    rounds: int = 1,
    colluding: int = 0,
    adjacency: Adjacency = "add-remove",
) -> Grid:
    """The grid with the least whole number of steps of noise per client that keeps to epsilon."""

    def spent(noise: int) -> float:
        noisy = Grid(grid.step, grid.clip, grid.dimension, grid.clients, noise, grid.overflow)
        return guarantee(
            noisy, threshold, delta, rounds=rounds, colluding=colluding, adjacency=adjacency
        ).epsilon

    if spent(MOST_NOISE) > epsilon:
        raise InputError(
            f"No noise up to {MOST_NOISE} steps reaches epsilon = {epsilon}: choose a larger step."
        )
    low, high = 0, MOST_NOISE  # spent(high) <= epsilon, and low is not enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return Grid(grid.step, grid.clip, grid.dimension, grid.clients, high, grid.overflow)
