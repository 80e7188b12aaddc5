"""Results over seeds in one long table: what every study writes and its page is drawn from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacpfl import files, metrics
from pacpfl.engine import runtime

COLUMNS = (
    *("dataset", "group", "method", "metric"),
    *("mean", "ci95", "paper_mean", "paper_ci95", "seeds", "seconds"),
)


class Outcome(NamedTuple):
    """One method on one data set with one seed: metric values (mean over clients) by group."""

    dataset: str
    method: str
    seed: int
    seconds: float
    groups: Mapping[str, Mapping[str, float]]
    machine: str = ""  # where it ran, and with what; empty: here
    versions: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Published:
    """What the paper's table says: (dataset, group, method, metric) -> mean and half width."""

    values: Mapping[tuple[str, str, str, str], tuple[float, float]]


def rows(outcomes: Sequence[Outcome], published: Published) -> list[dict[str, Any]]:
    """Mean over seeds and half width of its 95% interval, for every combination that was run."""
    cells: dict[tuple[str, str, str, str], list[float]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    for outcome in outcomes:
        seconds.setdefault((outcome.dataset, outcome.method), []).append(outcome.seconds)
        for group, values in outcome.groups.items():
            for metric, value in values.items():
                place = (outcome.dataset, group, outcome.method, metric)
                cells.setdefault(place, []).append(value)
    table = []
    for place, over_seeds in cells.items():
        mean, half = metrics.interval(np.array(over_seeds))
        paper = published.values.get(place, ("", ""))
        spent = float(np.mean(seconds[place[0], place[2]]))
        table.append(
            dict(zip(COLUMNS, (*place, mean, half, *paper, len(over_seeds), spent), strict=True))
        )
    return table


def circumstances(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Where they ran and with what: a study may begin on one machine and end on another."""
    machines = dict.fromkeys(o.machine or runtime.machine() for o in outcomes)
    each = [o.versions or runtime.versions() for o in outcomes]
    versions = {
        name: " and ".join(dict.fromkeys(one.get(name, "?") for one in each))
        for name in runtime.versions()
    }
    return {"machine": "; ".join(machines), "versions": versions}


def write_table(folder: Path, table: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> None:
    """table.csv and study.json: `about` says what was run, and perhaps where and with what; the date is
    added."""
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({k: "" if _missing(v) else v for k, v in row.items()})
    files.write(folder / "table.csv", text.getvalue().encode())
    record = {
        "machine": runtime.machine(),
        "versions": runtime.versions(),
        **about,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
    }
    files.write(
        folder / "study.json", (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    )


def _missing(value: Any) -> bool:
    return isinstance(value, float) and not np.isfinite(value)
