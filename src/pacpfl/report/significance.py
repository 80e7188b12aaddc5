"""When a number of a single client is more than chance: exact tests, corrected for how many are made.

Every test treats a client's test samples as independent draws. Where they are neighbours in time they
tell less than they count, and the tests say "more than chance" too easily.
"""

from __future__ import annotations

import numpy as np
from scipy import special  # scipy.stats takes half a second to import

LEVEL = 0.05  # chance that any client at all is named wrongly, all tests of one kind together


def holm(p_values: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Return which hypotheses fall when `level` holds for all of them together (Holm's procedure).

    Sorted, the i-th smallest of n is compared with level / (n - i + 1), until one stands. NaN: not
    tested, and not counted.
    """
    p_values = np.asarray(p_values, float)
    tested = np.flatnonzero(np.isfinite(p_values))
    order = tested[np.argsort(p_values[tested], kind="stable")]
    bounds = level / np.arange(len(order), 0, -1)
    standing = np.flatnonzero(p_values[order] > bounds)
    falls = np.zeros(len(p_values), bool)
    falls[order[: standing[0] if len(standing) else len(order)]] = True
    return falls


def too_few_inside(shares: np.ndarray, counts: np.ndarray, promised: float) -> np.ndarray:
    """Return P(at most so many of n test points lie inside | each does with probability `promised`).

    The binomial distribution, exactly; NaN where the share is not known.
    """
    shares, counts = np.asarray(shares, float), np.asarray(counts, float)
    known = np.isfinite(shares) & np.isfinite(counts) & (counts > 0)
    inside = np.rint(np.where(known, shares * counts, 0))
    values = special.bdtr(inside, np.where(known, counts, 1).astype(int), promised)
    return np.where(known, values, np.nan)


def surer_than_right(table: np.ndarray) -> float:
    """Return P(at most so many answers are right | each is right as often as its confidence says).

    `table` is [bins, 3]: answers, right ones, sum of confidences. The number of right answers is a
    sum of binomials, one for each bin with its mean confidence: spread over a bin the confidences
    would make the probability smaller, so the test errs on the careful side.
    """
    table = table[table[:, 0] > 0]
    if not len(table):
        return float("nan")
    chances = np.ones(1)
    for count, _, sure in table:
        share = min(1.0, sure / count)
        chances = np.convolve(chances, binomial(int(count), share))
    return float(min(1.0, chances[: int(np.rint(table[:, 1].sum())) + 1].sum()))


def binomial(count: int, share: float) -> np.ndarray:
    """Return P(k of n), k = 0..n."""
    k = np.arange(count + 1)
    ways = special.gammaln(count + 1) - special.gammaln(k + 1) - special.gammaln(count - k + 1)
    return np.exp(ways + special.xlogy(k, share) + special.xlog1py(count - k, -share))


def paired_difference(count: float, total: float, squares: float) -> float:
    """Return the two-sided p-value of Student's paired test, from n, sum and sum of squares."""
    if not np.isfinite([count, total, squares]).all() or count < 2:
        return float("nan")
    mean = total / count
    variance = max(squares - count * mean**2, 0.0) / (count - 1)
    if variance <= 1e-14 * squares / count:
        return 1.0 if mean == 0 else 0.0
    return float(2 * special.stdtr(count - 1, -abs(mean) / np.sqrt(variance / count)))


def paired_answers(total: float, squares: float) -> float:
    """Return the two-sided p-value of the exact sign test of differences -1, 0 or 1 (McNemar's).

    `squares` is how often the two methods disagree, `total` how often more the one is right.
    """
    if not np.isfinite([total, squares]).all():
        return float("nan")
    disagree = round(squares)
    if not disagree:
        return 1.0
    fewer = round((squares - abs(total)) / 2)
    return float(min(1.0, 2 * special.bdtr(fewer, disagree, 0.5)))
