"""The discrete Gaussian: integers x with probability proportional to exp(-x^2 / (2 s^2)).

The exact sampler of Canonne, Kamath and Steinke (2020), for whole s, on arrays: no floating-point number
and no approximation anywhere, all randomness is uniform bits. Loops run over all entries that are not
decided yet, so the expected number of passes hardly grows with the size.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np

from pacpfl.errors import InputError

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
