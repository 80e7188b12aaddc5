"""The two tables of the page: measures per method and group, and one row per client."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pacpfl.report.compare import mean_of
from pacpfl.report.folder import Run
from pacpfl.report.measures import COVERAGE_90, OF_A_CLASS_CLIENT, Measure, number
from pacpfl.report.words import overconfident

CLIENTS_SHOWN = 1000  # a page with more rows than this is slow to open and read by nobody


@dataclass(frozen=True)
class Cell:
    """What stands in a cell; `value` is what it is sorted by (empty: not known, sorts last)."""

    text: str
    value: str = ""
    note: str = ""


@dataclass(frozen=True)
class Column:
    title: str
    numeric: bool
    note: str = ""


@dataclass(frozen=True)
class MethodRow:
    title: str
    cells: list[Cell]


def shown_measures(run: Run) -> list[Measure]:
    """The measures at least one method has for at least one group."""
    return [
        measure
        for measure in run.measures
        if any(
            not math.isnan(mean_of(run, method, group, measure.key))
            for method in run.titles
            for group in run.groups
        )
    ]


def method_table(run: Run) -> dict[str, list[MethodRow]]:
    """Group -> one row per method; cells read "mean +- half width", the best is noted as such."""
    return {
        group: [
            MethodRow(
                title,
                [_measured(run, method, group, measure) for measure in shown_measures(run)],
            )
            for method, title in run.titles.items()
            if group in run.metrics.get(method, {})
        ]
        for group in run.groups
    }


def _measured(run: Run, method: str, group: str, measure: Measure) -> Cell:
    mean = mean_of(run, method, group, measure.key)
    if math.isnan(mean):
        return Cell(number(mean))
    half = run.metrics[method][group][measure.key].get("ci95")
    interval = "" if half is None or math.isnan(half) else f" \N{PLUS-MINUS SIGN} {number(half)}"
    best = measure.ranked and method in best_methods(run, group, measure)
    return Cell(number(mean) + interval, repr(mean), "best" if best else "")


def best_methods(run: Run, group: str, measure: Measure) -> set[str]:
    """The methods nearest to the ideal; several when they tie, none when there is no contest."""
    distances = {
        method: measure.distance(mean)
        for method in run.titles
        if math.isfinite(mean := mean_of(run, method, group, measure.key))
    }
    if len(distances) < 2:
        return set()
    least = min(distances.values())
    return {method for method, distance in distances.items() if distance == least}


def client_table(run: Run) -> tuple[list[Column], list[list[Cell]], int]:
    """Columns, rows, and how many clients were left out because there are too many.

    One row per client: who it is, its RSMSE or accuracy with every method, then what the main
    method says about its own doubt.
    """
    lead, *others = run.measures
    if run.classification:
        others = list(OF_A_CLASS_CLIENT)
    main = run.clients[run.clients["method"] == run.main].reset_index(drop=True)
    title = run.titles[run.main]
    kinds = bool(main["kind"].astype(bool).any())
    later = bool((main["later"].fillna(0) > 0).any())
    measures = [m for m in others if main[m.key].notna().any()]
    components = [name for name in main if str(name).startswith("responsibility_")]

    columns = [Column("Client", False), Column("Group", False)]
    columns += [Column("Kind", False)] * kinds
    columns += [Column("Samples", True)]
    columns += [Column("Later", True)] * later
    columns += [Column("Test points", True)]
    columns += [Column(f"{lead.title} {other}", True) for other in run.titles.values()]
    columns += [Column(measure.title, True, title) for measure in measures]
    columns += [Column(f"Component {n + 1}", True, title) for n in range(len(components))]

    scores = {
        tuple(place): score
        for *place, score in run.clients[["method", "group", "client", lead.key]].itertuples(
            index=False
        )
    }
    flagged = overconfident(main)
    rows = []
    for index, client in main.head(CLIENTS_SHOWN).iterrows():
        cells = [_text(client["client"]), _text(client["group"])]
        cells += [_text(client["kind"])] * kinds
        cells += [_whole(client["samples"])]
        cells += [_whole(client["later"])] * later
        cells += [_whole(client["test"])]
        cells += [
            _decimal(scores.get((method, client["group"], client["client"]), math.nan))
            for method in run.titles
        ]
        for measure in measures:
            note = "over-confident" if measure is COVERAGE_90 and flagged[index] else ""
            cells.append(_decimal(client[measure.key], note))
        cells += [_decimal(client[name]) for name in components]
        rows.append(cells)
    return columns, rows, max(0, len(main) - CLIENTS_SHOWN)


def _text(value: object) -> Cell:
    text = str(value)
    return Cell(text if text else "\N{EN DASH}", text)


def _whole(value: float) -> Cell:
    return Cell(number(value, 0), "" if np.isnan(value) else repr(float(value)))


def _decimal(value: float, note: str = "") -> Cell:
    return Cell(number(value), "" if np.isnan(value) else repr(float(value)), note)
