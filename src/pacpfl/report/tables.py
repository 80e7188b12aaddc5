"""The tables of the page: measures per method and group, one row per client, and certificates."""

from __future__ import annotations

import math
from typing import NamedTuple
from urllib.parse import quote

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


ClientRow = tuple[Judgement, str, tuple[Cell, ...]]  # the client, the link to its panel, its row


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


def method_table(run: Run) -> dict[str, list[tuple[str, list[Cell]]]]:
    """Return for each group a row per method, its title and its cells."""
    table = {}
    for group in run.groups:
        columns = [_measured(run, group, measure) for measure in shown_measures(run)]
        methods = [method for method in run.titles if group in run.metrics.get(method, {})]
        table[group] = [(run.titles[m], [cells[m] for cells in columns]) for m in methods]
    return table


def _measured(run: Run, group: str, measure: Measure) -> dict[str, Cell]:
    """Return a cell "mean ± half width" for each method that a group has; the best are marked."""
    means = {method: mean_of(run, method, group, measure.key) for method in run.titles}
    winning, cells = best(means, measure), {}
    for method, mean in means.items():
        half = run.metrics.get(method, {}).get(group, {}).get(measure.key, {}).get("ci95")
        value = "" if math.isnan(mean) else repr(mean)
        cells[method] = Cell(plus_minus(mean, half), value, ("best",) if method in winning else ())
    return cells


def client_table(run: Run, judged: list[Judgement]) -> tuple[list[Column], list[ClientRow], int]:
    """Return columns, rows, and how many clients were left out because there are too many.

    One row per client: who it is, what it reached with the main method and alone, what federating
    gained it, and what the main method says about its own doubt. Other methods are in its panel.
    """
    columns = _columns(run, judged[:CLIENTS_SHOWN])
    cells = zip(*columns.values(), strict=True)
    rows = [(client, client_link(client), row) for client, row in zip(judged, cells, strict=False)]
    return list(columns), rows, len(judged) - len(rows)


def _columns(run: Run, judged: list[Judgement]) -> dict[Column, list[Cell]]:
    """Return the columns that hold anything, each with a cell for every client."""
    main = run.clients[run.clients["method"] == run.main][: len(judged)]
    lead, *others = run.measures
    alone, classes = going_alone(run), run.classification
    found = {
        Column("Client", False): [_text(client.name) for client in judged],
        Column("Group", False): [_text(client.group) for client in judged],
    }
    if any(client.kind for client in judged):
        found[Column("Kind", False)] = [_text(client.kind) for client in judged]
    found[Column("Samples")] = [_number(count, 0) for count in main["samples"]]
    if any(client.later for client in judged):
        found[Column("Later")] = [_number(count, 0) for count in main["later"]]
    found[Column("Test points")] = [_number(count, 0) for count in main["test"]]
    title = Column(lead.title, note=run.titles[run.main])
    found[title] = [_number(client.own) for client in judged]
    if alone is not None:
        title = Column(f"{lead.title} alone", note=run.titles[alone])
        found[title] = [_number(client.alone) for client in judged]
        title = Column("Gain", note="points" if classes else "error saved")
        found[title] = [_gain(client.gain, classes) for client in judged]
    for measure in OF_A_CLASS_CLIENT if classes else others:
        if main[measure.key].notna().any():
            found[Column(measure.title)] = [_number(value) for value in main[measure.key]]
    notes = [sentences.notes(client) for client in judged]
    if any(notes):
        found[Column("Notes", False)] = [Cell("", ", ".join(words), words) for words in notes]
    return found


def client_link(client: Judgement) -> str:
    """Return the end of the page's address that opens a client's panel."""
    return f"#client={quote(client.group, safe='')}/{quote(client.name, safe='')}"


def _text(text: str) -> Cell:
    return Cell(text if text else "\N{EN DASH}", text)


def _number(value: float, digits: int = 3) -> Cell:
    return Cell(number(value, digits), "" if math.isnan(value) else repr(float(value)))


def _gain(value: float, points: bool) -> Cell:
    """Return a gain with its sign: in points of accuracy, or in per cent of the error."""
    if not math.isfinite(value):
        return Cell(number(math.nan))
    text = number(100 * abs(value), 1 if points else 0)
    sign = "" if float(text) == 0 else "+" if value > 0 else "\N{MINUS SIGN}"
    return Cell(sign + text + ("" if points else "%"), repr(float(value)))


def certificate_table(document: Facts) -> Facts:
    """Return what the page says of certificates above their figure: medians over the clients of each
    group, how many certificates say and prove something, and what they rest on."""
    medians = {
        "own risk": "empirical_risk", "bound": "bound", "in use": "bound_in_use",
        "test risk": "test_risk",
    }  # fmt: skip
    counts = {"below b": "below", "proved": "proved", "helped by the federation": "helped"}
    loss = document["loss"]
    return {
        "sentences": sentences.certificates(document),
        "loss": f"{loss['name']}, b = {loss['b']:g}",
        "delta": f"{document['delta']:g}",
        "titles": (*medians, *counts),
        "rows": [
            (
                sentences.GROUP_TITLES[group],
                [number(facts[name]) for name in medians.values()]
                + [f"{facts[name]} of {facts['clients']}" for name in counts.values()],
            )
            for group, facts in document["groups"].items()
        ],
        "conditions": sentences.conditions(document),
    }
