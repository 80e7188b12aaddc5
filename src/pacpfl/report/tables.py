"""The tables of the page: measures per method and group, one row per client, and certificates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

import pandas as pd

from pacpfl.report import sentences
from pacpfl.report.folder import Facts, Run
from pacpfl.report.judge import Judgement, going_alone, mean_of
from pacpfl.report.measures import OF_A_CLASS_CLIENT, Measure, best, number, plus_minus

CLIENTS_SHOWN = 5000  # a page with more rows than this is slow to open and read by nobody


class Cell(NamedTuple):
    """What stands in a cell; `value` is what it is sorted by (empty: not known, sorts last)."""

    text: str
    value: str = ""
    notes: tuple[str, ...] = ()


class Column(NamedTuple):
    title: str
    numeric: bool = True
    note: str = ""


class ClientRow(NamedTuple):
    """A row of the table of clients; `link` opens its panel."""

    link: str
    client: Judgement
    cells: list[Cell]


class MethodRow(NamedTuple):
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


def client_table(run: Run, judged: list[Judgement]) -> tuple[list[Column], list[ClientRow], int]:
    """Return columns, rows, and how many clients were left out because there are too many.

    One row per client: who it is, what it reached with the main method and alone, what federating
    gained it, and what the main method says about its own doubt. Other methods are in its panel.
    """
    main = run.clients[run.clients["method"] == run.main]
    columns = _columns(run, judged, main)
    rows = [
        ClientRow(client_link(client), client, [cell(client, row) for cell in columns.values()])
        for client, (_, row) in zip(judged[:CLIENTS_SHOWN], main.iterrows(), strict=False)
    ]
    return list(columns), rows, len(judged) - len(rows)


def _columns(
    run: Run, judged: list[Judgement], main: pd.DataFrame
) -> dict[Column, Callable[[Judgement, pd.Series], Cell]]:
    """Return the columns that hold anything, each with what makes a client's cell of it."""
    lead, *others = run.measures
    alone = going_alone(run)
    columns: dict[Column, Callable[[Judgement, pd.Series], Cell]] = {
        Column("Client", False): lambda client, row: _text(client.name),
        Column("Group", False): lambda client, row: _text(client.group),
    }
    if any(client.kind for client in judged):
        columns[Column("Kind", False)] = lambda client, row: _text(client.kind)
    columns[Column("Samples")] = lambda client, row: _number(row["samples"], 0)
    if any(client.later for client in judged):
        columns[Column("Later")] = lambda client, row: _number(row["later"], 0)
    columns[Column("Test points")] = lambda client, row: _number(row["test"], 0)
    title = Column(lead.title, note=run.titles[run.main])
    columns[title] = lambda client, row: _number(row[lead.key])
    if alone is not None:
        title = Column(f"{lead.title} alone", note=run.titles[alone])
        columns[title] = lambda client, row: _number(client.alone)
        title = Column("Gain", note="points" if run.classification else "error saved")
        columns[title] = lambda client, row: _gain(run, client.gain)
    for measure in OF_A_CLASS_CLIENT if run.classification else others:
        if main[measure.key].notna().any():
            columns[Column(measure.title)] = lambda client, row, key=measure.key: _number(row[key])  # type: ignore[misc]
    if any(map(sentences.notes, judged)):
        columns[Column("Notes", False)] = lambda client, row: _notes(sentences.notes(client))
    return columns


def client_link(client: Judgement) -> str:
    """Return the end of the page's address that opens a client's panel."""
    return f"#client={quote(client.group, safe='')}/{quote(client.name, safe='')}"


def _text(text: str) -> Cell:
    return Cell(text if text else "\N{EN DASH}", text)


def _notes(notes: tuple[str, ...]) -> Cell:
    return Cell("", ", ".join(notes), notes)


def _number(value: float, digits: int = 3) -> Cell:
    return Cell(number(value, digits), "" if math.isnan(value) else repr(float(value)))


def _gain(run: Run, value: float) -> Cell:
    """Return a gain with its sign: in per cent of the error, or in points of accuracy."""
    if not math.isfinite(value):
        return Cell(number(math.nan))
    text = number(100 * abs(value), 1 if run.classification else 0)
    sign = "" if float(text) == 0 else "+" if value > 0 else "\N{MINUS SIGN}"
    return Cell(sign + text + ("" if run.classification else "%"), repr(float(value)))


class CertificateTable(NamedTuple):
    """What the page says of certificates, above their figure."""

    sentences: list[str]
    loss: str
    delta: str
    titles: tuple[str, ...]
    rows: list[tuple[str, list[str]]]  # of a group of clients
    conditions: list[dict[str, str]]


def certificate_table(document: Facts) -> CertificateTable:
    """Return medians over the clients of each group, and how many certificates say and prove something."""
    medians = {
        "own risk": "empirical_risk", "bound": "bound", "in use": "bound_in_use",
        "test risk": "test_risk",
    }  # fmt: skip
    counts = {"below b": "below", "proved": "proved", "helped by the federation": "helped"}
    rows = [
        (
            sentences.GROUP_TITLES[group],
            [number(facts[name]) for name in medians.values()]
            + [f"{facts[name]} of {facts['clients']}" for name in counts.values()],
        )
        for group, facts in document["groups"].items()
    ]
    loss = document["loss"]
    return CertificateTable(
        sentences.certificates(document),
        f"{loss['name']}, b = {loss['b']:g}",
        f"{document['delta']:g}",
        (*medians, *counts),
        rows,
        sentences.conditions(document),
    )
