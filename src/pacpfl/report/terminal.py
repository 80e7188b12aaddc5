"""Certificates for the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pacpfl.report.certificates import conditions, sentences
from pacpfl.report.measures import number

CLIENTS_SHOWN = 12  # per group; the rest is in certificates.json


def print_certificates(document: dict[str, Any], console: Console) -> None:
    """One row per client, what the certificates rest on, and the verdicts in words."""
    console.print(_clients(document))
    hidden = sum(max(0, facts["clients"] - CLIENTS_SHOWN) for facts in document["groups"].values())
    if hidden:
        console.print(f"{hidden} more clients are in certificates.json.")
    console.print(_conditions(document))
    for sentence in sentences(document):
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
                standing(row),
                "helps" if row["participation"]["margin"] >= 0 else "costs",
                end_section=index == min(CLIENTS_SHOWN, len(rows)) - 1,
            )
    return table


def standing(row: dict[str, Any]) -> str:
    """One word for a certificate: what it is worth."""
    if any(c["status"] == "does not hold" and c["kind"] == "premise" for c in row["conditions"]):
        return "not valid"
    if row["vacuous"]:
        return "no statement"
    return "proved" if row["proved"] else "assumed"


def _conditions(document: dict[str, Any]) -> Table:
    table = Table(title="What they rest on", title_justify="left")
    for name in ("for", "condition", "status", "why"):
        table.add_column(name)
    for row in conditions(document):
        table.add_row(*(Text(row[key]) for key in ("who", "name", "status", "reason")))
    return table
