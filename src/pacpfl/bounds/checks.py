"""What every bound asks of its numbers: a wrong one is refused, never turned into a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from pacpfl.errors import InputError

# Sums of float64 risks may leave [a, b] by rounding; anything beyond this is a mistake.
ROUNDING = 1e-9


def probability(value: float, name: str = "delta") -> float:
    """A failure probability, strictly between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(
            f"{name} is {value}, but a failure probability lies strictly between 0 and 1: "
            "give for instance 0.05."
        )
    return float(value)


def positive(value: float, name: str) -> float:
    """A finite number above zero."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name} is {value}, but it must be a finite number above zero.")
    return float(value)


def not_negative(value: float, name: str) -> float:
    """A finite number that is zero or more."""
    if not (value >= 0 and math.isfinite(value)):
        raise InputError(f"{name} is {value}, but it must be a finite number, zero or more.")
    return float(value)


def count(value: int, name: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if not (math.isfinite(value) and value == int(value) and value >= least):
        raise InputError(f"{name} is {value}, but it must be a whole number of at least {least}.")
    return int(value)


def loss_width(a: float, b: float) -> float:
    """b - a of a loss with values in [a, b]."""
    if not (math.isfinite(a) and math.isfinite(b) and a < b):
        raise InputError(
            f"The loss is said to lie in [{a}, {b}], but the bounds need finite a < b: "
            "clip the loss to such an interval."
        )
    return float(b) - float(a)


def risk(value: float, a: float, b: float, name: str) -> float:
    """An average of losses, which cannot leave [a, b]."""
    slack = ROUNDING * max(1.0, abs(a), abs(b))
    if not a - slack <= value <= b + slack:
        raise InputError(
            f"{name} is {value}, outside the loss's interval [{a}, {b}]: "
            "compute it with the loss that is being bounded."
        )
    return float(value)


def finite(values: ArrayLike, name: str) -> np.ndarray:
    """A float64 array of finite numbers, of any shape."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise InputError(f"The {name} holds a value that is not finite.")
    return array


def vector(values: ArrayLike, name: str, length: int | None = None) -> np.ndarray:
    """A non-empty one-dimensional float64 array of finite numbers, of the given length."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or (length is not None and array.size != length):
        wanted = "one number per client" if length is None else f"{length} numbers"
        raise InputError(f"{name} has shape {array.shape}, but {wanted} are needed.")
    if not np.all(np.isfinite(array)):
        where = int(np.argmin(np.isfinite(array)))
        raise InputError(f"{name} is {array[where]} for entry {where}: every entry must be finite.")
    return array


def positive_vector(values: ArrayLike, name: str, length: int | None = None) -> np.ndarray:
    """A vector whose entries are all above zero."""
    array = vector(values, name, length)
    for where, value in enumerate(array):
        positive(float(value), f"{name} of entry {where}")
    return array


def sample_sizes(samples: Sequence[int]) -> np.ndarray:
    """m_i, a whole number of at least one for every client."""
    if len(samples) == 0:
        raise InputError("There is no client: give at least one number of samples.")
    return np.array(
        [float(count(m, f"the number of samples of client {i}")) for i, m in enumerate(samples)]
    )


def later_sizes(later: Sequence[int | None] | None, clients: int) -> tuple[int | None, ...]:
    """m~_i for every client: a whole number, or None where it is not known."""
    if later is None:
        return (0,) * clients
    if len(later) != clients:
        raise InputError(
            f"later has {len(later)} entries for {clients} clients: "
            "give one number of later samples per client, None where it is not known."
        )
    return tuple(
        None if m is None else count(m, f"the number of later samples of client {i}", 0)
        for i, m in enumerate(later)
    )
