"""Times implementations side by side, and writes down what was measured, when and where.

All candidates take turns in one process, in a new order each turn, so that a slow moment of the
machine and the state that one candidate leaves behind hit all of them alike. What counts is the
ratio to the reference; milliseconds hold for one machine on one day.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from pacpfl.errors import InputError

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "torch", "gpytorch")


@dataclass(frozen=True)
class Row:
    """One candidate: quartiles of its seconds per call, and how often it fits in the reference."""

    name: str
    lower_quartile: float
    median: float
    upper_quartile: float
    times_faster: float  # median of the reference / median of this candidate


@dataclass(frozen=True)
class Table:
    title: str
    reference: str
    repeats: int
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int,
    *,
    reference: str | None = None,
    title: str = "",
    pause: float = 0.02,
) -> Table:
    """Time every candidate `repeats` times, after `warmup` calls that do not count.

    A candidate must not return before its result is there. The reference is the first candidate
    unless named. The `pause` before each call, in seconds, lets idle worker threads of the
    candidate before fall asleep: OpenMP's would otherwise spin on the cores that are needed.
    """
    names = list(candidates)
    if not names or repeats < 1:
        raise InputError("A benchmark needs at least one candidate and one repeat: give more.")
    reference = names[0] if reference is None else reference
    if reference not in candidates:
        raise InputError(
            f"No candidate of the benchmark is called {reference!r}: take one of {names}."
        )
    for name in names:
        for _ in range(warmup):
            candidates[name]()
    random = np.random.default_rng(0)
    seconds = np.empty((len(names), repeats))
    for turn in range(repeats):
        for index in random.permutation(len(names)):
            time.sleep(pause)
            start = time.perf_counter()
            candidates[names[index]]()
            seconds[index, turn] = time.perf_counter() - start
    return summarise(dict(zip(names, seconds, strict=True)), reference, title)


def summarise(seconds: Mapping[str, np.ndarray], reference: str, title: str) -> Table:
    """Quartiles and ratios of measured seconds per call."""
    quartiles = {name: np.percentile(values, [25, 50, 75]) for name, values in seconds.items()}
    rows = tuple(
        Row(name, float(low), float(middle), float(high), float(quartiles[reference][1] / middle))
        for name, (low, middle, high) in quartiles.items()
    )
    return Table(title, reference, len(seconds[reference]), rows)


def describe_machine() -> dict[str, Any]:
    """Processor, cores this process may use, load, system, and versions of what is installed."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count() if usable is None else len(usable),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def to_json(tables: Sequence[Table], machine: Mapping[str, Any], date: datetime) -> str:
    """Everything that was measured, for programs; times in milliseconds."""
    return (
        json.dumps(
            {
                "date": date.isoformat(timespec="seconds"),
                "machine": machine,
                "tables": [
                    {
                        "title": table.title,
                        "reference": table.reference,
                        "repeats": table.repeats,
                        "rows": [
                            {
                                "name": row.name,
                                "lower_quartile_ms": 1e3 * row.lower_quartile,
                                "median_ms": 1e3 * row.median,
                                "upper_quartile_ms": 1e3 * row.upper_quartile,
                                "times_faster": row.times_faster,
                            }
                            for row in table.rows
                        ],
                    }
                    for table in tables
                ],
            },
            indent=2,
        )
        + "\n"
    )


def to_markdown(tables: Sequence[Table], machine: Mapping[str, Any], date: datetime) -> str:
    """The same for people: one table per problem, with date and machine above."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"Measured on {date:%Y-%m-%d %H:%M} UTC: {machine['processor']}, {machine['cores']} "
        f"cores, load {machine['load']} at the start; {machine['system']}; {versions}.",
    ]
    for table in tables:
        lines += [
            "",
            f"**{table.title}** ({table.repeats} interleaved calls each)",
            "",
            f"| implementation | median ms | quartiles ms | times faster than {table.reference} |",
            "| --- | ---: | ---: | ---: |",
        ]
        for row in table.rows:
            low, middle, high = (
                _three_digits(1e3 * value)
                for value in (row.lower_quartile, row.median, row.upper_quartile)
            )
            ratio = _three_digits(row.times_faster)
            lines.append(f"| {row.name} | {middle} | {low} to {high} | {ratio} |")
    return "\n".join(lines) + "\n"


def write_results(
    folder: Path, tables: Sequence[Table], machine: Mapping[str, Any], date: datetime | None = None
) -> tuple[Path, Path]:
    """Write `results.md` and `results.json`, each wholly or not at all."""
    moment = datetime.now(UTC) if date is None else date.astimezone(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    markdown, data = folder / "results.md", folder / "results.json"
    _write_atomically(markdown, to_markdown(tables, machine, moment))
    _write_atomically(data, to_json(tables, machine, moment))
    return markdown, data


def _write_atomically(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never a part: rename is one operation."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)  # temporary files are private, results are not
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _processor() -> str:
    """The model of the processor; Linux tells it only here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown processor"


def _three_digits(value: float) -> str:
    """1234 -> 1,234; 56.78 -> 56.8; 0.1234 -> 0.123"""
    digits = max(0, 2 - int(np.floor(np.log10(value)))) if value > 0 else 0
    return f"{value:,.{digits}f}"
