"""What the numbers of a run show: which method is ahead, whom federating helps, who is over-confident."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special  # scipy.stats takes half a second to import

from pacpfl import metrics
from pacpfl.report.folder import Run

LEVEL = 0.05  # chance that any client at all is named wrongly, all tests of one kind together
PROMISED = 0.9  # of the band whose coverage is tested
FEW_SAMPLES = 8  # fewer leave nearly everything to the prior
FEW_TESTS = 20  # fewer leave the client's own measures to chance


class Comparison(NamedTuple):
    """One method against another, client by client.

    `low` and `high` are the ends of the 95% Student interval of the mean difference
    (second minus first); `better` counts clients where the first has the smaller error.
    """

    clients: int
    better: int
    low: float
    high: float

    @property
    def clear(self) -> bool:
        return self.low > 0 or self.high < 0


def compare(run: Run, first: str, second: str, group: str) -> Comparison | None:
    """Compare two methods over the clients that both of them served.

    Compared is the distance of the run's first measure from its ideal: the RSMSE, or the share of
    samples classified wrongly. None for fewer than two clients.
    """
    lead = run.measures[0]
    errors = [
        lead.distance(run.rows(method, group).set_index("client")[lead.key])
        for method in (first, second)
    ]
    gaps = (errors[1].reindex(errors[0].index) - errors[0]).to_numpy(dtype=float)
    gaps = gaps[np.isfinite(gaps)]
    if len(gaps) < 2:
        return None
    middle, half = metrics.interval(gaps)
    return Comparison(len(gaps), int((gaps > 0).sum()), middle - half, middle + half)


def ranking(run: Run, group: str) -> list[tuple[str, float]]:
    """Return the methods that have a mean of the run's first measure, each with it, best first."""
    lead = run.measures[0]
    means = {method: run.mean(method, group, lead.key) for method in run.titles}
    finite = [entry for entry in means.items() if np.isfinite(entry[1])]
    return sorted(finite, key=lambda entry: lead.distance(entry[1]))


def promised_and_kept(run: Run, method: str, group: str) -> tuple[float, float] | None:
    """Return what a method promises a group on average, and what it keeps: the level of its 90% bands
    and their coverage, or its confidence and its accuracy."""
    if not run.classification:
        covered = run.mean(method, group, "coverage_90")
        return (PROMISED, covered) if np.isfinite(covered) else None
    tables = run.per_client(f"calibration/{method}", group)
    if tables is None:
        return None
    samples, right, sure = tables.sum(axis=(0, 1))
    return (float(sure / samples), float(right / samples)) if samples > 0 else None


def recovered_kinds(run: Run, group: str) -> tuple[int, int] | None:
    """Return how many clients have the component of their true kind, of how many of known kind.

    Components have no names of their own: they are matched with the kinds so that the most
    clients agree.
    """
    values, kinds = run.per_client("responsibilities", group), np.array(run.kinds(group), str)
    known = kinds != ""
    if values is None or not known.any():
        return None
    from scipy.optimize import linear_sum_assignment  # a third of a second to import

    agreement = pd.crosstab(kinds[known], values.argmax(axis=1)[known]).to_numpy()
    pairs = linear_sum_assignment(agreement, maximize=True)
    return int(agreement[pairs].sum()), int(known.sum())


def overconfident(run: Run, method: str) -> np.ndarray:
    """Mark the rows of a method that promise more than they keep, beyond chance (`holm` over all).

    Numbers: fewer test points inside the 90% band than nine in ten would leave there by chance.
    Classes: fewer right answers than their confidences allow.
    """
    rows = run.rows(method)
    if not run.classification:
        return holm(too_few_inside(rows["coverage_90"], rows["test"], PROMISED))
    who = zip(rows["group"], rows["client"], strict=True)
    tables = (run.of_client(f"calibration/{method}", *client) for client in who)
    return holm(np.array([np.nan if t is None else surer_than_right(t) for t in tables]))


def judge(run: Run) -> pd.DataFrame:
    """Return the clients that the main method served, in the order of clients.csv, with its measures.

    `own` and `alone` are the first measure with the main method and with the one that goes alone;
    `gain` is what federating saves: the share of the RSMSE, or of classes the accuracy that is added.
    `verdict` says whether that is more than chance (helped, hurt, chance or unknown), `overconfident`,
    `few_samples` and `few_tests` whether to be careful.
    """
    lead = run.measures[0]
    table, others = (
        run.rows(m).set_index(["group", "client"], drop=False) for m in (run.main, run.alone)
    )
    for key in ("samples", "later", "test"):
        table[key] = table[key].fillna(0).astype(int)
    table["own"], table["alone"] = table[lead.key], others[lead.key]
    table["gain"] = list(map(lead.gain, table["own"], table["alone"]))
    table["verdict"] = _verdicts(run, table["gain"])
    table["overconfident"] = overconfident(run, run.main)
    table["few_samples"] = table["samples"] + table["later"] < FEW_SAMPLES
    table["few_tests"] = table["test"] < FEW_TESTS
    return table.reset_index(drop=True).rename(columns={"client": "name"})


def _verdicts(run: Run, gains: pd.Series) -> np.ndarray:
    """Test the paired test samples of each client, corrected for the number of clients."""
    test = paired_answers if run.classification else paired_difference
    saved = np.full((len(gains), 3), np.nan)  # number of samples, sum and sum of squares
    for own, (client, gain) in zip(saved, gains.items(), strict=True):
        table = run.of_client(f"gain/{run.alone}", *client)
        if table is not None and np.isfinite(gain):
            own[:] = table
    p_values = np.array([test(*own) for own in saved.tolist()])
    clear = np.where(saved[:, 1] > 0, "helped", "hurt")
    return np.select([np.isnan(p_values), ~holm(p_values)], ["unknown", "chance"], clear)


# ---- Tests: when a number of a single client is more than chance. They are exact and corrected for how
# many are made. Every test treats a client's test samples as independent draws: where they are neighbours
# in time they tell less than they count, and the tests say "more than chance" too easily.


def holm(p_values: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Return which hypotheses fall when `level` holds for all of them together (Holm's procedure).

    Sorted, the i-th smallest of n is compared with level / (n - i + 1), until one stands. NaN: not
    tested, and not counted.
    """
    tested = np.flatnonzero(np.isfinite(p_values))
    order = tested[np.argsort(p_values[tested], kind="stable")]
    bounds = level / np.arange(len(order), 0, -1)
    standing = np.flatnonzero(p_values[order] > bounds)
    falls = np.zeros(len(p_values), bool)
    falls[order[: standing[0] if len(standing) else len(order)]] = True
    return falls


def too_few_inside(
    shares: np.ndarray | pd.Series, counts: np.ndarray | pd.Series, promised: float
) -> np.ndarray:
    """Return P(at most so many of n test points lie inside | each does with probability `promised`).

    The binomial distribution, exactly; NaN where the share is not known.
    """
    known = np.isfinite(shares) & (counts > 0)
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
        k, share = np.arange(count + 1), min(1.0, sure / count)
        ways = special.gammaln(count + 1) - special.gammaln(k + 1) - special.gammaln(count - k + 1)
        binomial = np.exp(ways + special.xlogy(k, share) + special.xlog1py(count - k, -share))
        chances = np.convolve(chances, binomial)
    return float(min(1.0, chances[: int(np.rint(table[:, 1].sum())) + 1].sum()))


def paired_difference(count: float, total: float, squares: float) -> float:
    """Return the two-sided p-value of Student's paired test, from n, sum and sum of squares."""
    if not np.isfinite([count, total, squares]).all() or count < 2:
        return float("nan")
    mean = total / count
    variance = max(squares - count * mean**2, 0.0) / (count - 1)
    if variance <= 1e-14 * squares / count:
        return 1.0 if mean == 0 else 0.0
    return float(2 * special.stdtr(count - 1, -abs(mean) / np.sqrt(variance / count)))


def paired_answers(count: float, total: float, squares: float) -> float:
    """Return the two-sided p-value of the exact sign test of differences -1, 0 or 1 (McNemar's).

    `squares` is how often the two methods disagree, `total` how often more the one is right.
    """
    if not np.isfinite([count, total, squares]).all():
        return float("nan")
    disagree = round(squares)
    if not disagree:
        return 1.0
    fewer = round((squares - abs(total)) / 2)
    return float(min(1.0, 2 * special.bdtr(fewer, disagree, 0.5)))
