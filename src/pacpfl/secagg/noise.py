"""Differential privacy of a securely aggregated sum, with noise in shares from the clients.

Each client adds a discrete Gaussian of s steps to its integers. The sum over m clients is close to a
discrete Gaussian of s sqrt(m) steps, but is not one. Proposition 14 of Kairouz, Liu and Steinke (2021)
bounds the difference: for integer vectors that differ by at most D in L2 norm, and every order a > 1,

    D_a <= min( a D^2 / (2 m s^2) + tau d,  (a / 2) (D / (sqrt(m) s) + tau sqrt(d))^2 ),
    tau = 10 sum_{k=1}^{m-1} exp(-2 pi^2 s^2 k / (k + 1)).

From s = 2 on tau is below 1e-15 and nothing is lost. Reducing the sum modulo 2^bits, unmasking and decoding
are post-processing.

The discrete Gaussian itself, integers x with probability proportional to exp(-x^2 / (2 s^2)), comes from
the exact sampler of Canonne, Kamath and Steinke (2020), for whole s, on arrays: no floating-point number
and no approximation anywhere, all randomness is uniform bits. Loops run over all entries that are not
decided yet, so the expected number of passes hardly grows with the size.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, inf, log, log1p, pi, sqrt
from typing import Literal

import numpy as np

from pacpfl.errors import InputError
from pacpfl.secagg.grid import MOST_NOISE, Grid

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


# ---- The discrete Gaussian

RandomBytes = Callable[[int], bytes]

MOST_SCALE = 2**24  # keeps all products below 2^63


def uniform_below(bound: int, size: int, random_bytes: RandomBytes) -> np.ndarray:
    """Uniform integers in [0, bound), bound < 2^63, by rejection."""
    mask = np.uint64((1 << (bound - 1).bit_length()) - 1)
    drawn = np.empty(0, dtype=np.int64)
    while drawn.size < size:
        raw = np.frombuffer(random_bytes(8 * (size - drawn.size)), dtype="<u8") & mask
        drawn = np.concatenate([drawn, raw[raw < np.uint64(bound)].astype(np.int64)])
    return drawn


def bernoulli_exp_fraction(
    numerators: np.ndarray, denominator: int, random_bytes: RandomBytes
) -> np.ndarray:
    """True with probability exp(-numerator / denominator), for 0 <= numerator <= denominator.

    With A_k true with probability g / k, the first k whose A_k is false is odd with probability
    sum_j (-g)^j / j! = exp(-g).
    """
    result = np.zeros(numerators.size, dtype=bool)
    open_places = np.arange(numerators.size)
    k = 1
    while open_places.size:
        coins = uniform_below(denominator * k, open_places.size, random_bytes)
        going_on = coins < numerators[open_places]
        result[open_places[~going_on]] = k % 2 == 1
        open_places = open_places[going_on]
        k += 1
    return result


def bernoulli_exp(
    numerators: np.ndarray, denominator: int, random_bytes: RandomBytes
) -> np.ndarray:
    """True with probability exp(-numerator / denominator), for any numerator >= 0."""
    whole, rest = np.divmod(numerators, denominator)
    result = bernoulli_exp_fraction(rest, denominator, random_bytes)
    while True:
        places = np.flatnonzero(result & (whole > 0))  # exp(-1) once more for each whole part
        if not places.size:
            return result
        ones = np.ones(places.size, dtype=np.int64)
        result[places] = bernoulli_exp_fraction(ones, 1, random_bytes)
        whole[places] -= 1


def geometric(size: int, random_bytes: RandomBytes) -> np.ndarray:
    """How often a coin of probability exp(-1) comes up true before it is false."""
    counts = np.zeros(size, dtype=np.int64)
    places = np.arange(size)
    while places.size:
        ones = np.ones(places.size, dtype=np.int64)
        places = places[bernoulli_exp_fraction(ones, 1, random_bytes)]
        counts[places] += 1
    return counts


def discrete_laplace(scale: int, size: int, random_bytes: RandomBytes) -> np.ndarray:
    """Up to `size` integers with probability proportional to exp(-|x| / scale); the rest is rejected."""
    low = uniform_below(scale, size, random_bytes)
    low = low[bernoulli_exp_fraction(low, scale, random_bytes)]
    magnitudes = low + scale * geometric(low.size, random_bytes)
    negative = uniform_below(2, magnitudes.size, random_bytes).astype(bool)
    kept = ~(negative & (magnitudes == 0))  # zero would count twice
    return np.where(negative, -magnitudes, magnitudes)[kept]


def sample(scale: int, size: int, random_bytes: RandomBytes = secrets.token_bytes) -> np.ndarray:
    """`size` independent discrete Gaussians (int64) with whole s = `scale`.

    A discrete Laplace x of scale s is kept with probability exp(-(|x| - s)^2 / (2 s^2)), since
    x^2 / (2 s^2) = |x| / s + (|x| - s)^2 / (2 s^2) - 1/2.
    """
    if not 1 <= scale <= MOST_SCALE:
        raise InputError(f"The discrete Gaussian's scale is {scale}: choose 1 to {MOST_SCALE}.")
    drawn = np.empty(0, dtype=np.int64)
    while drawn.size < size:
        proposed = discrete_laplace(scale, 2 * (size - drawn.size) + 16, random_bytes)
        squares = (np.abs(proposed) - scale) ** 2
        kept = proposed[bernoulli_exp(squares, 2 * scale**2, random_bytes)]
        drawn = np.concatenate([drawn, kept])
    return drawn[:size]
