"""Fixed-point numbers for updates: integers on a grid, whose sum modulo 2^bits is the true sum.

An update x with L2 norm of at most `clip` becomes k = round(x / step), to the nearest integer (ties to
even). The step is a power of two, so the division is exact, each entry is off by at most step / 2, and a
sum over n clients by at most n step / 2. Rounding moves x by at most sqrt(d) / 2 in units of the step, so

    ||k|| <= clip / step + sqrt(d) / 2,

which bounds every entry, gives the modulus its size, and is the sensitivity that noise has to cover.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, frexp, isfinite, isqrt, log, sqrt

import numpy as np

from pacpfl.errors import InputError, SecureAggregationError

MOST_NOISE = 2**24
LARGEST_EXACT = 2**53  # up to here every integer is a float64


@dataclass(frozen=True)
class Grid:
    """How the updates of up to `clients` clients are written as integers.

    `noise` is the standard deviation of the discrete Gaussian that each client adds, in steps (0: none).
    `overflow` bounds the probability that noise makes the sum wrap around the modulus.
    """

    step: float
    clip: float
    dimension: int
    clients: int
    noise: int = 0
    overflow: float = 2.0**-40

    def __post_init__(self) -> None:
        if not (isfinite(self.step) and self.step > 0 and frexp(self.step)[0] == 0.5):
            raise InputError(
                f"The step of the fixed-point grid is {self.step}: choose a power of two, such as 2**-20."
            )
        if not (isfinite(self.clip) and self.clip > 0):
            raise InputError(
                f"The clip norm of the fixed-point grid is {self.clip}: it must be positive."
            )
        if self.dimension < 1 or self.clients < 1:
            raise InputError("The fixed-point grid needs at least one dimension and one client.")
        if not 0 <= self.noise <= MOST_NOISE:
            raise InputError(
                f"The noise is {self.noise} steps: choose 0 to {MOST_NOISE}, or a larger step."
            )
        if not 0 < self.overflow < 1:
            raise InputError(
                f"The probability of overflow is {self.overflow}: choose one in (0, 1)."
            )
        if self.sum_limit(self.clients) >= LARGEST_EXACT:
            raise InputError(
                f"Sums of {self.clients} updates with clip norm {self.clip} need more than 53 bits in "
                f"steps of {self.step}: choose a larger step."
            )

    @cached_property
    def squared_norm(self) -> int:
        """The largest allowed ||k||^2: (clip / step + sqrt(d) / 2)^2, up to less than 2 above it."""
        clip = Fraction(self.clip) / Fraction(self.step)
        # The middle term clip * sqrt(d) is irrational: the integer above its root stands for it.
        middle = isqrt(floor(clip**2 * self.dimension)) + 1
        return floor(clip**2 + middle + Fraction(self.dimension, 4))

    @property
    def entry_limit(self) -> int:
        """The largest |k_j| of one client, before noise."""
        return isqrt(self.squared_norm)

    @property
    def deviations(self) -> float:
        """Standard deviations of noise that the range leaves room for: sqrt(2 ln(2 d / overflow)).

        The discrete Gaussian of parameter s is s^2-subgaussian, and so is a sum of them with the sum
        of their s^2: P(|sum| >= z s sqrt(n)) <= 2 exp(-z^2 / 2) for each of d entries.
        """
        return sqrt(2 * log(2 * self.dimension / self.overflow))

    def sum_limit(self, clients: int) -> int:
        """The largest |entry| of a sum over so many clients, but for the stated probability."""
        noise = ceil(self.deviations * self.noise * sqrt(clients)) if self.noise else 0
        return clients * self.entry_limit + noise

    @property
    def bits(self) -> int:
        """Of the modulus 2^bits: 32 if all sums in [-limit, limit] are told apart by it, else 64."""
        return 32 if 2 * self.sum_limit(self.clients) + 1 <= 2**32 else 64

    @property
    def terms(self) -> bytes:
        """What clients must agree on, for `Settings.terms`."""
        numbers = (
            *(float(x).hex() for x in (self.step, self.clip, self.overflow)),
            str(self.noise),
        )
        return " ".join(numbers).encode()

    def encode(self, update: np.ndarray) -> np.ndarray:
        """The integers k (int64) of an update, before noise; refuses what is not a clipped update."""
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

    def decode(self, total: np.ndarray, clients: int) -> np.ndarray:
        """The sum (float64) of so many updates from their sum modulo 2^bits; refuses what cannot be one."""
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
    """The smallest power of two as a step for which the sum still fits a modulus of 32 (or 64) bits.

    `standard_deviation` is the noise of each client in the units of the update.
    """
    if not (isfinite(clip) and clip > 0):
        raise InputError(f"The clip norm of the fixed-point grid is {clip}: it must be positive.")
    step = 2.0 ** frexp(clip)[1]
    while True:
        try:
            grid = Grid(step / 2, clip, dimension, clients, ceil(2 * standard_deviation / step))
        except InputError:
            return step
        if grid.bits > bits:
            return step
        step /= 2
