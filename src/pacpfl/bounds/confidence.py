r"""Upper confidence bounds on the mean of independent values in [a, b]: what rows say that only judge.

$\mathrm{kl}(p \| q) = p \ln(p/q) + (1-p) \ln((1-p)/(1-q))$ is the divergence of two coins.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from pacpfl.bounds.conditions import count, finite, loss_width, not_negative, probability, risk
from pacpfl.errors import InputError

MOST_BET = 0.75  # of what there is, in one row (c of Waudby-Smith & Ramdas)
HALVINGS = 60  # of [0, 1], to the last bit


def kl_inverse(mean: float, nats: float) -> float:
    r"""Return the largest q with $\mathrm{kl}(\text{mean} \| q) \le \text{nats}$, rounded up."""
    p, nats = risk(mean, 0.0, 1.0, "The mean"), not_negative(nats, "The nats")
    p = min(max(p, 0.0), 1.0)

    def divergence(q: float) -> float:
        parts = ((p, q), (1 - p, 1 - q))
        return sum(x * math.log(x / y) if y > 0 else math.inf for x, y in parts if x > 0)

    return _crossing(lambda q: divergence(q) > nats, p)


def clopper_pearson(errors: int, rows: int, delta: float) -> float:
    """Return the q for which so few errors, or fewer, in so many rows have probability delta.

    Exact for the 0-1 loss, and never wrong more often than delta (Clopper & Pearson 1934).
    """
    rows, errors = count(rows, "the number of rows"), count(errors, "the number of errors", 0)
    if errors > rows:
        raise InputError(
            f"There are {errors} errors in {rows} rows: give the errors of these rows."
        )
    level = 1 - probability(delta)
    return 1.0 if errors == rows else float(betaincinv(errors + 1, rows - errors, level))


def rows_needed(error: float, limit: float, delta: float) -> int:
    """Return how many rows must judge so that a share of errors of `error` is certified below `limit`."""
    return next(
        n for n in range(1, 10**6) if clopper_pearson(math.ceil(error * n), n, delta) <= limit
    )


def betting_bound(values: ArrayLike, a: float, b: float, delta: float) -> float:
    r"""Return an upper bound on E[X] from independent X in [a, b], in an order chosen without them.

    In units of b - a, whoever bets that the mean is below q has after t rows

    $$K_t(q) = \prod_{i \le t} \Big( 1 - s_i + s_i \frac{1 - X_i}{1 - q} \Big), \qquad
      s_i = \min\Big( \tfrac34, (1 - \hat\mu_{i-1})
            \sqrt{\frac{2 \ln(1/\delta)}{n \hat\sigma^2_{i-1}}} \Big),$$

    with mean and variance of the rows before, as if half a row of 1 and half a row of 0 stood first. If the
    mean is q or more, no factor is expected to exceed 1, so that K reaches 1/delta with probability delta
    at most (Ville). The bound is the smallest q at which it has: K grows with q. These are the
    predictable plug-in bets of Waudby-Smith & Ramdas (2024), as shares that do not depend on q.
    """
    width, level = loss_width(a, b), -math.log(probability(delta))
    x = (finite(values, "values").ravel() - a) / width
    rows = count(x.size, "the number of values")
    if np.any(x < -1e-9) or np.any(x > 1 + 1e-9):
        raise InputError(f"A value lies outside [{a}, {b}]: give those of the bounded loss.")
    x, so_far = np.clip(x, 0.0, 1.0), np.arange(2, rows + 2)
    mean = (0.5 + np.cumsum(x)) / so_far
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / so_far
    mean, variance = np.append(0.5, mean[:-1]), np.append(0.25, variance[:-1])
    shares = np.minimum(MOST_BET, (1 - mean) * np.sqrt(2 * level / (rows * variance)))

    def reached(q: float) -> bool:
        left = np.divide(1 - x, 1 - q) if q < 1 else np.where(x < 1, np.inf, 1.0)
        return float(np.cumsum(np.log(1 - shares + shares * left)).max()) >= level

    return a + width * _crossing(reached, 0.0)


def _crossing(beyond: Callable[[float], bool], low: float) -> float:
    """Return the smallest q in [low, 1] that lies beyond, rounded up; 1 where none does."""
    high = 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high
