"""What the numbers of a run show: which method is ahead, whom federating helps, who is over-confident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # scipy.stats takes half a second to import

from pacpfl.methods.registry import named
from pacpfl.report.folder import Run
from pacpfl.report.significance import (
    holm,
    paired_answers,
    paired_difference,
    surer_than_right,
    too_few_inside,
)

PROMISED = 0.9  # of the band whose coverage is tested
FEW_SAMPLES = 8  # fewer leave nearly everything to the prior
FEW_TESTS = 20  # fewer leave the client's own measures to chance
Verdict = Literal["helped", "hurt", "chance", "unknown"]


@dataclass(frozen=True)
class Comparison:
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
    pairs = pd.merge(
        run.rows(first, group)[["client", lead.key]],
        run.rows(second, group)[["client", lead.key]],
        on="client",
        suffixes=("_first", "_second"),
    )
    errors = [
        np.array([lead.distance(value) for value in pairs[f"{lead.key}_{which}"]], dtype=float)
        for which in ("first", "second")
    ]
    gaps = errors[1] - errors[0]
    gaps = gaps[np.isfinite(gaps)]
    if len(gaps) < 2:
        return None
    half = stdtrit(len(gaps) - 1, 0.975) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    middle = gaps.mean()
    return Comparison(len(gaps), int((gaps > 0).sum()), middle - half, middle + half)


def mean_of(run: Run, method: str, group: str, key: str) -> float:
    """Return a mean of metrics.json; NaN where it was not measured."""
    value = run.metrics.get(method, {}).get(group, {}).get(key, {}).get("mean")
    return float("nan") if value is None else float(value)


@dataclass(frozen=True)
class Contest:
    """The methods of one group by the run's first measure, best first.

    `paired` compares the first two client by client; None where too few clients have both.
    """

    ranking: list[tuple[str, float]]
    paired: Comparison | None


def contest(run: Run, group: str) -> Contest | None:
    """Rank the methods that have a mean of the first measure; None where no method has one."""
    lead = run.measures[0]
    means = {method: mean_of(run, method, group, lead.key) for method in run.titles}
    ranking = sorted(
        ((method, mean) for method, mean in means.items() if np.isfinite(mean)),
        key=lambda entry: lead.distance(entry[1]),
    )
    if not ranking:
        return None
    paired = compare(run, ranking[0][0], ranking[1][0], group) if len(ranking) > 1 else None
    return Contest(ranking, paired)


def confidence_and_accuracy(run: Run, method: str, group: str) -> tuple[float, float] | None:
    """Return how confident a group's predictions are on average, and how often they are right."""
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
    values = run.per_client("responsibilities", group)
    kinds = run.kinds(group)
    known = [index for index, kind in enumerate(kinds) if kind]
    if values is None or not known:
        return None
    strongest = values.argmax(axis=1)
    names = sorted({kinds[index] for index in known})
    agreement = np.zeros((len(names), values.shape[1]))
    for index in known:
        agreement[names.index(kinds[index]), strongest[index]] += 1
    from scipy.optimize import linear_sum_assignment  # a third of a second to import

    rows, columns = linear_sum_assignment(-agreement)
    return int(agreement[rows, columns].sum()), len(known)


@dataclass(frozen=True)
class Judgement:
    """What is known of one client under the main method; `place` is its row in its group's arrays.

    `gain` is what federating saves against going alone: the share of the RSMSE, or of classes the
    accuracy that is added. `verdict` says whether that is more than chance.
    """

    group: str
    name: str
    kind: str
    place: int
    samples: int
    later: int
    test: int
    gain: float
    verdict: Verdict
    overconfident: bool

    @property
    def few_samples(self) -> bool:
        return self.samples + self.later < FEW_SAMPLES

    @property
    def few_tests(self) -> bool:
        return self.test < FEW_TESTS

    @property
    def loses(self) -> bool:
        return self.gain < 0


def going_alone(run: Run) -> str | None:
    """Return the method to compare with: of those that go alone, the best on average over all clients.

    The best on average, not the best for each client: that would compare with a choice nobody can
    make beforehand.
    """
    lead = run.measures[0]
    means, alone = {}, named(learns="alone")
    for method in run.titles:
        if method in alone and method != run.main:
            values = run.clients.loc[run.clients["method"] == method, lead.key]
            distances = [lead.distance(value) for value in values if np.isfinite(value)]
            if distances:
                means[method] = float(np.mean(distances))
    return min(means, key=lambda name: means[name]) if means else None


def overconfident(run: Run, method: str) -> pd.Series:
    """Mark the rows of a method that promise more than they keep, beyond chance (`holm` over all).

    Numbers: fewer test points inside the 90% band than nine in ten would leave there by chance.
    Classes: fewer right answers than their confidences allow.
    """
    rows = run.clients[run.clients["method"] == method]
    if not run.classification:
        p_values = too_few_inside(rows["coverage_90"], rows["test"], PROMISED)
    else:
        p_values = np.full(len(rows), np.nan)
        for group in run.groups:
            tables = run.per_client(f"calibration/{method}", group)
            places = {name: place for place, name in enumerate(run.names(group))}
            for row, (where, name) in enumerate(zip(rows["group"], rows["client"], strict=True)):
                if tables is not None and where == group:
                    p_values[row] = surer_than_right(tables[places[name]])
    return pd.Series(holm(p_values), index=rows.index)


def judge(run: Run) -> list[Judgement]:
    """Judge every client that the main method served, in the order of clients.csv."""
    rows = run.clients[run.clients["method"] == run.main]
    lead = run.measures[0]
    alone = going_alone(run)
    others = {
        (group, name): value
        for group, name, value in run.clients.loc[
            run.clients["method"] == alone, ["group", "client", lead.key]
        ].itertuples(index=False)
    }
    places = {
        (group, name): place for group in run.groups for place, name in enumerate(run.names(group))
    }
    keys = list(zip(rows["group"], rows["client"], strict=True))
    gains = [
        lead.gain(own, others.get(key, float("nan")))
        for key, own in zip(keys, rows[lead.key], strict=True)
    ]
    verdicts = _verdicts(run, alone, keys, places, gains)
    flagged = overconfident(run, run.main)
    return [
        Judgement(
            group=row["group"],
            name=row["client"],
            kind=row["kind"],
            place=places[row["group"], row["client"]],
            samples=_whole(row["samples"]),
            later=_whole(row["later"]),
            test=_whole(row["test"]),
            gain=gains[number],
            verdict=verdicts[number],
            overconfident=bool(flagged[index]),
        )
        for number, (index, row) in enumerate(rows.iterrows())
    ]


def _verdicts(
    run: Run,
    alone: str | None,
    keys: list[tuple[str, str]],
    places: dict[tuple[str, str], int],
    gains: list[float],
) -> list[Verdict]:
    """Test the paired test samples of each client, corrected for the number of clients."""
    tables = {group: run.per_client(f"gain/{alone}", group) for group in run.groups}
    p_values = np.full(len(keys), np.nan)
    sums = np.full(len(keys), np.nan)
    for number, key in enumerate(keys):
        table = tables[key[0]]
        if table is None or not np.isfinite(gains[number]):
            continue
        count, total, squares = (float(value) for value in table[places[key]])
        sums[number] = total
        p_values[number] = (
            paired_answers(total, squares)
            if run.classification
            else paired_difference(count, total, squares)
        )
    clear = holm(p_values)
    found: list[Verdict] = []
    for number, value in enumerate(p_values):
        if np.isnan(value):
            found.append("unknown")
        elif not clear[number]:
            found.append("chance")
        else:
            found.append("helped" if sums[number] > 0 else "hurt")
    return found


def _whole(value: float) -> int:
    return 0 if np.isnan(value) else int(value)
