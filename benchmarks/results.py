"""Writes down what was measured, when, where and how: for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Table
from pacpfl import files

Value = str | int | float


@dataclass(frozen=True)
class Sheet:
    """One table of the results. Column names carry the units; numbers are kept as measured."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""


def from_table(table: Table, note: str = "") -> Sheet:
    """Milliseconds per round of all candidates for one size."""
    return Sheet(
        table.title,
        (
            "implementation",
            "median ms",
            "lower quartile ms",
            "upper quartile ms",
            f"times faster than {table.reference}",
        ),
        tuple(
            (
                row.name,
                1e3 * row.median,
                1e3 * row.lower_quartile,
                1e3 * row.upper_quartile,
                row.times_faster,
            )
            for row in table.rows
        ),
        f"{table.repeats} interleaved calls each. {note}".strip(),
    )


def to_json(
    sheets: Sequence[Sheet], machine: Mapping[str, Any], command: str, date: datetime
) -> str:
    """Everything that was measured; a row is a dictionary with the columns as keys."""
    content = {
        "date": date.isoformat(timespec="seconds"),
        "command": command,
        "machine": machine,
        "tables": [
            {
                "title": sheet.title,
                "note": sheet.note,
                "rows": [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows],
            }
            for sheet in sheets
        ],
    }
    return json.dumps(content, indent=2) + "\n"


def to_markdown(
    sheets: Sequence[Sheet], machine: Mapping[str, Any], command: str, date: datetime
) -> str:
    """The same for people, with date, machine and command above."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        "# Speed and memory",
        "",
        f"Measured on {date:%Y-%m-%d %H:%M} UTC: {machine['processor']}, {machine['cores']} "
        f"cores, {machine['device']}, load {machine['load']} at the start; {machine['system']}; "
        f"{versions}.",
        "",
        f"Command: `{command}`. Ratios count; milliseconds hold for this machine on this day.",
    ]
    for sheet in sheets:
        lines += ["", f"## {sheet.title}", "", *([sheet.note, ""] if sheet.note else [])]
        lines += sheet_lines(sheet)
    return "\n".join(lines) + "\n"


def sheet_lines(sheet: Sheet) -> list[str]:
    """A Markdown table; a column is set to the right where its first row has a number."""
    sides = [" --- " if isinstance(value, str) else " ---: " for value in sheet.rows[0]]
    return [
        f"| {' | '.join(sheet.columns)} |",
        f"|{'|'.join(sides)}|",
        *(f"| {' | '.join(_text(value) for value in row)} |" for row in sheet.rows),
    ]


def write_results(
    folder: Path,
    sheets: Sequence[Sheet],
    machine: Mapping[str, Any],
    command: str,
    date: datetime | None = None,
) -> tuple[Path, Path]:
    """Write `results.md` and `results.json`, each wholly or not at all."""
    moment = datetime.now(UTC) if date is None else date.astimezone(UTC)
    markdown, data = folder / "results.md", folder / "results.json"
    files.write(markdown, to_markdown(sheets, machine, command, moment).encode())
    files.write(data, to_json(sheets, machine, command, moment).encode())
    return markdown, data


def _text(value: Value) -> str:
    """Three digits for measured numbers, all of them for counts."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else three_digits(value)


def three_digits(value: float) -> str:
    """1234 -> 1,234; 56.78 -> 56.8; 0.1234 -> 0.123"""
    digits = max(0, 2 - int(np.floor(np.log10(value)))) if value > 0 else 0
    return f"{value:,.{digits}f}"
