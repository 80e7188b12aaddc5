"""The tables of the page: measures per method and group, one row per client, and certificates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd

from pacpfl.report import sentences
from pacpfl.report.folder import Run
from pacpfl.report.measures import CLIENT_CLASS_MEASURES, Measure, best, number, plus_minus


class Cell(NamedTuple):
    """What stands in a cell; `value` is what it is sorted by (empty: not known, sorts last)."""

    text: str
    value: str = ""
    notes: tuple[str, ...] = ()


class Column(NamedTuple):
    title: str
    numeric: bool = True
    note: str = ""


def shown_measures(run: Run) -> list[Measure]:
    """Return the measures that at least one method has for at least one group."""
    places = [(method, group) for method in run.titles for group in run.groups]
    return [m for m in run.measures if any(not math.isnan(run.mean(*p, m.key)) for p in places)]


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
    means = {method: run.mean(method, group, measure.key) for method in run.titles}
    winning, cells = best(means, measure), {}
    for method, mean in means.items():
        text = plus_minus(mean, run.mean(method, group, measure.key, "ci95"))
        cells[method] = Cell(text, _value(mean), ("best",) if method in winning else ())
    return cells


def client_table(run: Run, judged: pd.DataFrame) -> dict[Column, list[Cell]]:
    """Return the columns that hold anything, each with a cell for every client.

    One row per client: who it is, what it reached with the main method and alone, what federating
    gained it, and what the main method says about its own doubt. Other methods are in its panel.
    """
    classes, lead = run.classification, run.measures[0]
    found: dict[Column, list[Cell]] = {}
    for title, key in (("Client", "name"), ("Group", "group"), ("Kind", "kind")):
        if key != "kind" or judged[key].any():
            cells = [Cell(text or "\N{EN DASH}", text) for text in judged[key]]
            found[Column(title, False)] = cells
    for title, key in (("Samples", "samples"), ("Later", "later"), ("Test points", "test")):
        if key != "later" or judged[key].any():
            found[Column(title)] = _numbers(judged[key], 0)
    found[Column(lead.title, note=run.titles[run.main])] = _numbers(judged["own"])
    if run.alone:
        found[Column(f"{lead.title} alone", note=run.titles[run.alone])] = _numbers(judged["alone"])
        gain = Column("Gain", note="points" if classes else "error saved")
        found[gain] = [_gain(value, classes) for value in judged["gain"]]
    for measure in (CLIENT_CLASS_MEASURES if classes else run.measures)[1:]:
        if judged[measure.key].notna().any():
            found[Column(measure.title)] = _numbers(judged[measure.key])
    notes = list(map(sentences.notes, judged.itertuples()))
    if any(notes):
        found[Column("Notes", False)] = [Cell("", ", ".join(words), words) for words in notes]
    return found


def table_data(judged: pd.DataFrame, columns: dict[Column, list[Cell]]) -> dict[str, Any]:
    """Return what the page's script sorts, filters and makes rows of: a list for each column."""
    noted = [bool(cells[-1].notes) for cells in zip(*columns.values(), strict=True)]
    return {
        "noted": np.flatnonzero(noted).tolist(),
        "loses": np.flatnonzero(judged["gain"] < 0).tolist(),
        "columns": [_packed(column, cells) for column, cells in columns.items()],
    }


def _packed(column: Column, cells: list[Cell]) -> dict[str, Any]:
    """Return a column's texts, what it is sorted by where that is something else, and its notes."""
    texts = [cell.text for cell in cells]
    values = [_brief(cell.value) if column.numeric else cell.value for cell in cells]
    packed = {"title": column.title, "numeric": column.numeric, "texts": texts}
    notes = [cell.notes for cell in cells]
    return (
        packed
        | ({"values": values} if values != texts else {})
        | ({"notes": notes} if any(notes) else {})
    )


def _brief(value: str) -> str:
    """Return a number with as many digits as it is sorted by."""
    return value and f"{float(value):.7g}"


def client_link(client: Any) -> str:
    """Return the end of the page's address that opens a client's panel."""
    return f"#client={quote(client.group, safe='')}/{quote(client.name, safe='')}"


def _numbers(values: Iterable[float], digits: int = 3) -> list[Cell]:
    return [Cell(number(value, digits), _value(value)) for value in values]


def _value(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))


def _gain(value: float, points: bool) -> Cell:
    """Return a gain with its sign: in points of accuracy, or in per cent of the error."""
    if not math.isfinite(value):
        return Cell(number(math.nan))
    text = number(100 * abs(value), 1 if points else 0)
    sign = "" if float(text) == 0 else "+" if value > 0 else "\N{MINUS SIGN}"
    return Cell(sign + text + ("" if points else "%"), _value(value))
