"""The two tables of the page: measures per method and group, and one row per client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np

from pacpfl.report.folder import Run
from pacpfl.report.judge import Judgement, going_alone, judge, mean_of
from pacpfl.report.measures import OF_A_CLASS_CLIENT, Measure, best, number, plus_minus
from pacpfl.report.sentences import notes

CLIENTS_SHOWN = 5000  # a page with more rows than this is slow to open and read by nobody


@dataclass(frozen=True)
class Cell:
    """What stands in a cell; `value` is what it is sorted by (empty: not known, sorts last)."""

    text: str
    value: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    title: str
    numeric: bool
    note: str = ""


@dataclass(frozen=True)
class ClientRow:
    """A row of the table of clients; `link` opens its panel."""

    link: str
    client: Judgement
    cells: list[Cell]


@dataclass(frozen=True)
class MethodRow:
    title: str
    cells: list[Cell]


def shown_measures(run: Run) -> list[Measure]:
    """Return the measures that at least one method has for at least one group."""
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
    """Return one row per method for each group; cells read "mean ± half width", the best is marked."""
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
    winning = method in best_methods(run, group, measure)
    return Cell(plus_minus(mean, half), repr(mean), ("best",) if winning else ())


def best_methods(run: Run, group: str, measure: Measure) -> set[str]:
    """Return the methods nearest to the ideal of a measure (`measures.best`)."""
    return best({m: mean_of(run, m, group, measure.key) for m in run.titles}, measure)


def client_table(
    run: Run, judged: list[Judgement] | None = None
) -> tuple[list[Column], list[ClientRow], int]:
    """Return columns, rows, and how many clients were left out because there are too many.

    One row per client: who it is, what it reached with the main method and alone, what federating
    gained it, and what the main method says about its own doubt. Other methods are in its panel.
    """
    judged = judge(run) if judged is None else judged
    lead, *others = run.measures
    if run.classification:
        others = list(OF_A_CLASS_CLIENT)
    main = run.clients[run.clients["method"] == run.main].reset_index(drop=True)
    alone = going_alone(run)
    kinds, later = any(c.kind for c in judged), any(c.later for c in judged)
    noted = any(notes(client) for client in judged)
    measures = [m for m in others if main[m.key].notna().any()]

    columns = [Column("Client", False), Column("Group", False)]
    columns += [Column("Kind", False)] * kinds
    columns += [Column("Samples", True)]
    columns += [Column("Later", True)] * later
    columns += [Column("Test points", True), Column(lead.title, True, run.titles[run.main])]
    if alone is not None:
        columns += [Column(f"{lead.title} alone", True, run.titles[alone])]
        columns += [Column("Gain", True, "points" if run.classification else "error saved")]
    columns += [Column(measure.title, True) for measure in measures]
    columns += [Column("Notes", False)] * noted

    selected = run.clients[run.clients["method"] == alone]
    scores = {
        (group, name): score
        for group, name, score in zip(
            selected["group"], selected["client"], selected[lead.key], strict=True
        )
    }
    rows = []
    for client, (_, values) in zip(
        judged[:CLIENTS_SHOWN], main.head(CLIENTS_SHOWN).iterrows(), strict=True
    ):
        cells = [_text(client.name), _text(client.group)]
        cells += [_text(client.kind)] * kinds
        cells += [_whole(values["samples"])]
        cells += [_whole(values["later"])] * later
        cells += [_whole(values["test"]), _decimal(values[lead.key])]
        if alone is not None:
            cells += [_decimal(scores.get((client.group, client.name), math.nan))]
            cells += [_gain(run, client.gain)]
        cells += [_decimal(values[measure.key]) for measure in measures]
        said = notes(client)
        cells += [Cell("", ", ".join(said), said)] * noted
        rows.append(ClientRow(client_link(client), client, cells))
    return columns, rows, max(0, len(main) - CLIENTS_SHOWN)


def client_link(client: Judgement) -> str:
    """Return the end of the page's address that opens a client's panel."""
    return f"#client={quote(client.group, safe='')}/{quote(client.name, safe='')}"


def _text(value: object) -> Cell:
    text = str(value)
    return Cell(text if text else "\N{EN DASH}", text)


def _whole(value: float) -> Cell:
    return Cell(number(value, 0), "" if np.isnan(value) else repr(float(value)))


def _decimal(value: float) -> Cell:
    return Cell(number(value), "" if np.isnan(value) else repr(float(value)))


def _gain(run: Run, value: float) -> Cell:
    """Return a gain with its sign: in per cent of the error, or in points of accuracy."""
    if not math.isfinite(value):
        return Cell(number(math.nan))
    text = number(100 * abs(value), 1 if run.classification else 0)
    sign = "" if float(text) == 0 else "+" if value > 0 else "\N{MINUS SIGN}"
    return Cell(sign + text + ("" if run.classification else "%"), repr(float(value)))
