"""Each client judged: did federating help it, can its bands be trusted, is there enough to tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from pacpfl.report.folder import Run
from pacpfl.report.significance import (
    holm,
    paired_answers,
    paired_difference,
    surer_than_right,
    too_few_inside,
)
from pacpfl.studies.alone import ALONE

PROMISED = 0.9  # of the band whose coverage is tested
FEW_SAMPLES = 8  # fewer leave nearly everything to the prior
FEW_TESTS = 20  # fewer leave the client's own measures to chance
Verdict = Literal["helped", "hurt", "chance", "unknown"]


@dataclass(frozen=True)
class Judged:
    """A client of the main method. `place` is its row in the arrays of its group.

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
    """The method to compare with: of those that go alone the one with the best mean over all clients.

    The best on average, not the best for each client: that would compare with a choice nobody can
    make beforehand.
    """
    lead = run.measures[0]
    means = {}
    for method in run.titles:
        if method in ALONE and method != run.main:
            values = run.clients.loc[run.clients["method"] == method, lead.key]
            distances = [lead.distance(value) for value in values if np.isfinite(value)]
            if distances:
                means[method] = float(np.mean(distances))
    return min(means, key=lambda name: means[name]) if means else None


def gain(run: Run, own: float, alone: float) -> float:
    """1 - RSMSE / RSMSE alone, or the difference of the accuracies."""
    if run.classification:
        return own - alone
    return 1 - own / alone if alone > 0 else float("nan")


def overconfident(run: Run, method: str) -> pd.Series:
    """Which rows of a method promise more than they keep, beyond chance (`holm` over all of them).

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


def judge(run: Run) -> list[Judged]:
    """Every client that the main method served, in the order of clients.csv."""
    rows = run.clients[run.clients["method"] == run.main]
    lead = run.measures[0].key
    alone = going_alone(run)
    others = {
        (group, name): value
        for group, name, value in run.clients.loc[
            run.clients["method"] == alone, ["group", "client", lead]
        ].itertuples(index=False)
    }
    places = {
        (group, name): place for group in run.groups for place, name in enumerate(run.names(group))
    }
    keys = list(zip(rows["group"], rows["client"], strict=True))
    gains = [
        gain(run, own, others.get(key, float("nan")))
        for key, own in zip(keys, rows[lead], strict=True)
    ]
    verdicts = _verdicts(run, alone, keys, places, gains)
    flagged = overconfident(run, run.main)
    return [
        Judged(
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
    """Paired tests on the test samples of each client, corrected for the number of clients."""
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
