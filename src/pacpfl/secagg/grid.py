"""Updates as integers on a grid, whose sum modulo 2^bits is the true sum, and noise in shares on it.

An update x with L2 norm of at most `clip` becomes k = round(x / step), to the nearest integer (ties to
even). The step is a power of two, so the division is exact. Rounding moves x by at most sqrt(d) / 2 in
units of the step, so

    ||k|| <= clip / step + sqrt(d) / 2,

which bounds every entry, gives the modulus its size, and is the sensitivity that noise has to cover.

Each client adds a discrete Gaussian of s steps, integers x with probability proportional to
exp(-x^2 / (2 s^2)), by the exact sampler of Canonne, Kamath and Steinke (2020): all randomness is
uniform bits, and no floating-point number is involved. What the noisy sum gives away is bounded by
Kairouz, Liu and Steinke (2021); reducing it modulo 2^bits, unmasking and decoding are post-processing.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, exp, floor, frexp, isfinite, isqrt, log, log1p, pi, sqrt
from typing import Literal, NamedTuple

import numpy as np

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.secagg.settings import Adversary, Settings

MOST_NOISE = 2**24  # steps; keeps all products of the sampler below 2^63
OVERFLOW = 2.0**-40  # bounds the probability that noise makes a sum wrap around the modulus
LARGEST_EXACT = 2**53  # up to here every integer is a float64
Adjacency = Literal["add-remove", "replace"]
ORDERS = (
    *(1 + x / 100 for x in range(1, 100)),
    *(2 + x / 10 for x in range(100)),
    *(12 + x for x in range(52)),
    *(2.0**x for x in range(6, 21)),
)


@dataclass(frozen=True)
class Grid:
    """How the updates of up to `clients` clients are written as integers.

    `noise` is the standard deviation of the discrete Gaussian that each client adds, in steps (0: none).
    """

    step: float
    clip: float
    dimension: int
    clients: int
    noise: int = 0

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise InputError(problem)

    def _problems(self) -> Iterator[str]:
        if not (isfinite(self.step) and self.step > 0 and frexp(self.step)[0] == 0.5):
            yield f"The step of the grid is {self.step}: choose a power of two, such as 2**-20."
        if not (isfinite(self.clip) and self.clip > 0):
            yield f"The clip norm of the grid is {self.clip}: it must be positive."
        if self.dimension < 1 or self.clients < 1:
            yield "The fixed-point grid needs at least one dimension and one client."
        if not 0 <= self.noise <= MOST_NOISE:
            yield f"The noise is {self.noise} steps: choose 0 to {MOST_NOISE}, or a larger step."
        if self.sum_limit(self.clients) >= LARGEST_EXACT:
            yield (
                f"Sums of {self.clients} updates with clip norm {self.clip} need more than 53 bits in "
                f"steps of {self.step}: choose a larger step."
            )

    @cached_property
    def squared_norm(self) -> int:
        """Return the largest allowed ||k||^2: (clip / step + sqrt(d) / 2)^2, up to less than 2 above it."""
        clip = Fraction(self.clip) / Fraction(self.step)
        # The middle term clip * sqrt(d) is irrational: the integer above its root stands for it.
        middle = isqrt(floor(clip**2 * self.dimension)) + 1
        return floor(clip**2 + middle + Fraction(self.dimension, 4))

    @property
    def entry_limit(self) -> int:
        """Return the largest |k_j| of one client, before noise."""
        return isqrt(self.squared_norm)

    def sum_limit(self, clients: int) -> int:
        """Return the largest |entry| of a sum over so many clients, but for the probability OVERFLOW.

        The discrete Gaussian of parameter s is s^2-subgaussian, and so is a sum of them with the sum
        of their s^2: P(|sum| >= z s sqrt(n)) <= 2 exp(-z^2 / 2) for each of d entries.
        """
        deviations = sqrt(2 * log(2 * self.dimension / OVERFLOW))
        return clients * self.entry_limit + ceil(deviations * self.noise * sqrt(clients))

    @property
    def bits(self) -> int:
        """Return the bits of the modulus: 32 if that tells all sums in [-limit, limit] apart, else 64."""
        return 32 if 2 * self.sum_limit(self.clients) + 1 <= 2**32 else 64

    def settings(
        self,
        session: bytes,
        number: int,
        cohort: Mapping[str, bytes],
        threshold: int,
        adversary: Adversary = "active",
    ) -> Settings:
        """Return the settings of a round among these clients, who agree on the grid and its noise."""
        numbers = [float(x).hex() for x in (self.step, self.clip, OVERFLOW)]
        terms = " ".join([*numbers, str(self.noise)]).encode()
        invited = tuple(sorted(cohort.items()))
        sizes = self.dimension, self.bits
        return Settings(session, number, invited, threshold, *sizes, adversary, terms)

    def encode(self, update: np.ndarray) -> np.ndarray:
        """Return the integers k (int64) of an update, before noise; refuse what is not clipped."""
        if update.dtype not in (np.float32, np.float64) or update.shape != (self.dimension,):
            raise InputError(
                f"An update has {self.dimension} entries of float32 or float64, not an array of "
                f"{update.dtype} with shape {update.shape}: flatten it, and check the model's size."
            )
        if not np.isfinite(update).all():
            place = int(np.flatnonzero(~np.isfinite(update))[0])
            raise InputError(f"Entry {place} of the update is {update[place]}: nothing is sent.")
        with np.errstate(over="ignore"):  # an infinite quotient or norm is above every limit
            scaled = update.astype(np.float64) / self.step
            norm = float(np.linalg.norm(update.astype(np.float64)))
        if np.abs(scaled).max() <= self.entry_limit + 1:  # larger ones may not fit an int64
            rounded = np.rint(scaled).astype(np.int64)
            # Python's integers do not overflow: the guarantee rests on this comparison.
            if sum(k * k for k in rounded.tolist()) <= self.squared_norm:
                return rounded
        raise InputError(
            f"The update has norm {norm:.6g}, above the clip norm {self.clip:g}: clip it before it is "
            "encoded; nothing is sent."
        )

    def noisy(self, values: np.ndarray) -> np.ndarray:
        """Return encoded values with one client's share of the noise, drawn for this one round."""
        return values + sample(self.noise, self.dimension) if self.noise else values

    def decode(self, total: np.ndarray, clients: int) -> np.ndarray:
        """Return the sum (float64) of so many updates from that modulo 2^bits, or refuse it."""
        if total.dtype != np.dtype(f"u{self.bits // 8}") or total.shape != (self.dimension,):
            raise SecureAggregationError(
                f"A sum has {self.dimension} entries of {self.bits} bits, not an array of "
                f"{total.dtype} with shape {total.shape}."
            )
        centred = total.view(f"i{self.bits // 8}").astype(np.int64)
        limit = self.sum_limit(clients)
        outside = np.flatnonzero((centred > limit) | (centred < -limit))
        if outside.size:
            raise SecureAggregationError(
                f"Entry {outside[0]} of the sum is out of the range that {clients} updates can reach: "
                "a client did not keep to the protocol; leave the round out."
            )
        return centred * self.step


def finest_step(
    clip: float, dimension: int, clients: int, standard_deviation: float = 0.0, bits: int = 32
) -> float:
    """Return the smallest power of two as a step whose sums still fit a modulus of 32 (or 64) bits.

    `standard_deviation` is the noise of each client in the units of the update.
    """
    step = 2.0 ** frexp(clip)[1]
    Grid(step, clip, dimension, clients)  # what is wrong with these numbers for any step shows here

    def fits(step: float) -> bool:
        return Grid(step, clip, dimension, clients, ceil(standard_deviation / step)).bits <= bits

    with suppress(InputError):
        while fits(step / 2):
            step /= 2
    return step


# Differential privacy of the sum, with noise in shares from the clients.


def renyi_divergence(
    order: float, sensitivity: float, dimension: int, scale: float, sharers: int
) -> float:
    """Return Proposition 14 of Kairouz, Liu and Steinke (2021) for the noisy sums of two neighbours.

    For integer vectors that differ by at most D in L2 norm, and noise of s steps from each of m sharers,

        D_a <= min( a D^2 / (2 m s^2) + tau d,  (a / 2) (D / (sqrt(m) s) + tau sqrt(d))^2 ),
        tau = 10 sum_{k=1}^{m-1} exp(-2 pi^2 s^2 k / (k + 1)).
    """
    if scale < 0.5:
        raise InputError(
            f"The theorem needs noise of at least half a step, not {scale}: take a finer grid."
        )
    gap = 10 * sum(exp(-2 * pi**2 * scale**2 * k / (k + 1)) for k in range(1, sharers))
    ratio = sensitivity / (sqrt(sharers) * scale)
    return min(
        order * ratio**2 / 2 + gap * dimension, order / 2 * (ratio + gap * sqrt(dimension)) ** 2
    )


class Guarantee(NamedTuple):
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
    """Return what `rounds` sums on this grid give away, also to who knows `colluding` clients' secrets.

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

    def epsilon(order: float) -> float:
        each = renyi_divergence(order, sensitivity, grid.dimension, grid.noise, sharers)
        return rounds * each + log1p(-1 / order) + (log(1 / delta) - log(order)) / (order - 1)

    best = min(ORDERS, key=epsilon)
    return Guarantee(max(epsilon(best), 0.0), delta, adjacency, rounds, best)


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
    """Return the grid with the least whole number of steps of noise per client that keeps to epsilon."""

    def spent(noise: int) -> float:
        noisy = replace(grid, noise=noise)
        return guarantee(
            noisy, threshold, delta, rounds=rounds, colluding=colluding, adjacency=adjacency
        ).epsilon

    if spent(MOST_NOISE) > epsilon:
        raise InputError(
            f"No noise up to {MOST_NOISE} steps reaches epsilon = {epsilon}: choose a larger step."
        )
    enough = bisect_left(range(1, MOST_NOISE), True, key=lambda noise: spent(noise) <= epsilon)
    return replace(grid, noise=1 + enough)


# The discrete Gaussian.


def uniform_below(bound: int, size: int) -> np.ndarray:
    """Draw uniform integers in [0, bound), bound < 2^63, by rejection."""
    mask = np.uint64((1 << (bound - 1).bit_length()) - 1)
    drawn = np.empty(0, dtype=np.int64)
    while drawn.size < size:
        raw = np.frombuffer(secrets.token_bytes(8 * (size - drawn.size)), dtype="<u8") & mask
        drawn = np.concatenate([drawn, raw[raw < np.uint64(bound)].astype(np.int64)])
    return drawn


def _bernoulli_exp(numerators: np.ndarray, denominator: int) -> np.ndarray:
    """Draw True with probability exp(-numerator / denominator), for 0 <= numerator <= denominator.

    With A_k true with probability g / k, the first k whose A_k is false is odd with probability
    sum_j (-g)^j / j! = exp(-g).
    """
    result = np.zeros(numerators.size, dtype=bool)
    open_places = np.arange(numerators.size)
    k = 1
    while open_places.size:
        coins = uniform_below(denominator * k, open_places.size)
        going_on = coins < numerators[open_places]
        result[open_places[~going_on]] = k % 2 == 1
        open_places = open_places[going_on]
        k += 1
    return result


def bernoulli_exp(numerators: np.ndarray, denominator: int) -> np.ndarray:
    """Draw True with probability exp(-numerator / denominator), for any numerator >= 0."""
    whole, rest = np.divmod(numerators, denominator)
    result = _bernoulli_exp(rest, denominator)
    # exp(-1) once more for each whole part
    while (places := np.flatnonzero(result & (whole > 0))).size:
        result[places] = _bernoulli_exp(np.ones(places.size, dtype=np.int64), 1)
        whole[places] -= 1
    return result


def discrete_laplace(scale: int, size: int) -> np.ndarray:
    """Draw up to `size` integers with probability proportional to exp(-|x| / scale)."""
    magnitudes = uniform_below(scale, size)
    magnitudes = magnitudes[_bernoulli_exp(magnitudes, scale)]
    places = np.arange(magnitudes.size)  # where coins of probability exp(-1) came up true so far
    while places.size:
        places = places[_bernoulli_exp(np.ones(places.size, dtype=np.int64), 1)]
        magnitudes[places] += scale
    negative = uniform_below(2, magnitudes.size).astype(bool)
    kept = ~(negative & (magnitudes == 0))  # zero would count twice
    return np.where(negative, -magnitudes, magnitudes)[kept]


def sample(scale: int, size: int) -> np.ndarray:
    """Draw `size` independent discrete Gaussians (int64) with whole s = `scale`.

    A discrete Laplace x of scale s is kept with probability exp(-(|x| - s)^2 / (2 s^2)), since
    x^2 / (2 s^2) = |x| / s + (|x| - s)^2 / (2 s^2) - 1/2.
    """
    if not 1 <= scale <= MOST_NOISE:
        raise InputError(f"The discrete Gaussian's scale is {scale}: choose 1 to {MOST_NOISE}.")
    drawn = np.empty(0, dtype=np.int64)
    while drawn.size < size:
        proposed = discrete_laplace(scale, 2 * (size - drawn.size) + 16)
        kept = proposed[bernoulli_exp((np.abs(proposed) - scale) ** 2, 2 * scale**2)]
        drawn = np.concatenate([drawn, kept])
    return drawn[:size]
