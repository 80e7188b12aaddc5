"""What the terminal shows: the measures of a run, and certificates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pacpfl.folder import MethodResult, summarise
from pacpfl.report import sentences
from pacpfl.report.measures import ACCURACY, BRIER, CE, COVERAGE_90, NLL, RSMSE, number, plus_minus

CLIENTS_SHOWN = 12  # per group; the rest is in certificates.json


def print_results(results: Mapping[str, MethodResult]) -> None:
    """Print the measures that people look at first, to standard output."""
    tables = {result.about["title"]: summarise(result.groups) for result in results.values()}
    every = [measured for groups in tables.values() for measured in groups.values()]
    classes = any(ACCURACY.key in measured for measured in every)
    shown = (ACCURACY, CE, NLL, BRIER) if classes else (RSMSE, CE, NLL, COVERAGE_90)
    table = Table(
        title="Mean over clients \N{PLUS-MINUS SIGN} 95% interval",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", overflow="fold")
    table.add_column("clients", no_wrap=True)
    for measure in shown:
        table.add_column(measure.title, justify="right", no_wrap=True)
    for title, groups in tables.items():
        for group, measured in groups.items():
            cells = (measured[measure.key] for measure in shown)
            table.add_row(title, group, *(plus_minus(c["mean"], c["ci95"]) for c in cells))
    Console(highlight=False).print(table)


def print_certificates(document: dict[str, Any], console: Console) -> None:
    """Print one row per client, what the certificates rest on, and the verdicts in words."""
    console.print(_clients(document))
    hidden = sum(max(0, facts["clients"] - CLIENTS_SHOWN) for facts in document["groups"].values())
    if hidden:
        console.print(f"{hidden} more clients are in certificates.json.")
    console.print(_conditions(document))
    for sentence in sentences.certificates(document):
        console.print(Text(sentence), soft_wrap=False)


def _clients(document: dict[str, Any]) -> Table:
    loss = document["loss"]
    title = f"{loss['name']}, largest value {loss['b']:g}, delta {document['delta']:g}"
    table = Table(title=title, title_justify="left")
    table.add_column("client", overflow="fold")
    for name in ("samples", "own risk", "KL", "bound", "in use", "test risk", "beta"):
        table.add_column(name, justify="right")
    table.add_column("standing")
    table.add_column("shared prior")
    for group in document["groups"]:
        rows = [row for row in document["clients"] if row["group"] == group]
        for index, row in enumerate(rows[:CLIENTS_SHOWN]):
            test = row["test_risk"]
            table.add_row(
                Text(row["client"]),
                str(row["samples"] + row["later"]),
                number(row["empirical_risk"]),
                number(row["kl"], 1),
                number(row["bound"]),
                number(row["in_use"]["bound"]),
                number(float("nan") if test is None else test),
                number(row["beta"], 0),
                row["verdict"],
                "helps" if row["participation"]["margin"] >= 0 else "costs",
                end_section=index == min(CLIENTS_SHOWN, len(rows)) - 1,
            )
    return table


def _conditions(document: dict[str, Any]) -> Table:
    table = Table(title="What they rest on", title_justify="left")
    for name in ("for", "condition", "status", "why"):
        table.add_column(name)
    for row in sentences.conditions(document):
        table.add_row(*(Text(row[key]) for key in ("who", "name", "status", "reason")))
    return table
