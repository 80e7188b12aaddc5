"""What depends on which fortnight the houses have: the regression table's first 150 hours, four times.

The 150 hours of a `first` column are 15 days that all houses share, one sample of the weather however
many houses there are. Here the houses have the first or the second half of June or of July instead, and
are tested on the same summer of the next year. Settings stay those of the column, which were chosen on
its own 15 days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pacpfl.config import override
from pacpfl.tune.spaces import ROWS
from reproduction.outcomes import Cell, Kept
from reproduction.regression import DATASETS, cell_config
from reproduction.regression_summary import client_by_client, summary
from reproduction.table import Published

HOURS = 150  # of 15 days, the column's
FORTNIGHTS = ("June 1 to 15", "June 16 to 30", "July 1 to 15", "July 16 to 30")
COLUMNS = ("pv-s-150-first", "pv-ew-150-first")
SHIFTED = {
    f"{column}-{number}": (column, HOURS * (number - 1))
    for column in COLUMNS
    for number in range(1, len(FORTNIGHTS) + 1)
}
TITLES = {
    name: f"{DATASETS[column].split(',')[0]}, {FORTNIGHTS[skipped // HOURS]}"
    for name, (column, skipped) in SHIFTED.items()
}
METHODS = ("pacpfl", "fedavg", "vanilla", "ridge")
QUICK = ("data.clients=8", "data.new_clients=4", "train.rounds=100", "alone.steps=50")
PUBLISHED = Published({})


def cells(seeds: Sequence[int], weather: str = "synthetic", quick: bool = False) -> list[Cell]:
    changes = QUICK if quick else ()
    return [
        Cell(
            dataset,
            row,
            ROWS[row].method,
            override(cell_config(column, row, weather, seed), [f"pv.skip={skipped}", *changes]),
        )
        for seed in seeds
        for dataset, (column, skipped) in SHIFTED.items()
        for row in METHODS
    ]


def describe(kept: Sequence[Kept], seeds: Sequence[int], command: str) -> dict[str, Any]:
    """study.json, as far as the study has come."""
    present = {(outcome.dataset, outcome.method) for outcome, _ in kept}
    datasets = {name: title for name, title in TITLES.items() if any(name == p[0] for p in present)}
    methods = {row: ROWS[row].title for row in METHODS if any(row == p[1] for p in present)}
    return {
        "title": "Fortnights: what depends on which 15 days the houses have",
        "summary": summary(kept, TITLES),
        "command": command,
        "seeds": list(seeds),
        "datasets": datasets,
        "methods": methods,
        "overview": ["rsmse", "ce"],
        "panels": client_by_client(kept, datasets, methods),
        "notes": [
            "All houses train on the same 15 days of one summer, ten hours a day, and are tested on "
            "June and July of the next. The first fortnight is the regression table's column of the "
            "first 150 hours, and the settings of all four are those of that column: they were chosen "
            "by cross-validation on the first."
        ],
    }
