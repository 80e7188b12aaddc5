"""The battery's cells: one method on one data set with one seed, run and kept like those of a study."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from pacpfl.errors import InputError
from pacpfl.files import read_lines, write
from reproduction.battery import peers, tables
from reproduction.battery.methods import METHODS
from reproduction.battery.score import measures
from reproduction.battery.task import Task
from reproduction.study import Outcome, Place

VERSION = 1  # of splits, measures and simple methods: counted up, everything is run again


@dataclass(frozen=True)
class Cell:
    """One method on one data set with one seed; `folder` is where the peers' data are."""

    battery: str  # tables, or peers
    dataset: str
    name: str
    seed: int
    folder: str = ""
    precision: str = "float32"

    @property
    def place(self) -> Place:
        return self.dataset, self.name, self.seed

    @property
    def identity(self) -> str:
        """Return the name of what the numbers depend on, but for the code."""
        recipe = asdict(tables.recipes()[self.dataset]) if self.battery == "tables" else {}
        text = json.dumps([VERSION, self.battery, *self.place, recipe], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def run_cell(cell: Cell, stop: Callable[[], bool]) -> Outcome:
    """Run one method on one data set with one seed; it is not stopped on its way."""
    task = task_of(cell.battery, cell.dataset, cell.seed, cell.folder)
    start = time.perf_counter()
    said = METHODS[cell.name].predict(task, cell.seed)
    seconds = time.perf_counter() - start
    groups = {
        group: measures(rows.y, rows.clients, said[group]) for group, rows in task.tests.items()
    }
    return Outcome(*cell.place, seconds, groups)


@lru_cache(maxsize=2)
def task_of(battery: str, dataset: str, seed: int, folder: str) -> Task:
    """Return a task, once for the methods that follow each other on it."""
    if battery == "tables":
        return tables.make_task(dataset, seed)
    return peers.make_task(dataset, seed, Path(folder))


def chosen(given: str | None, known: Sequence[str], what: str) -> list[str]:
    """Return the names of a list with commas, in the order of those known; all without a list."""
    wanted = given.split(",") if given else list(known)
    for name in wanted:
        if name not in known:
            raise InputError(f"There is no {what} {name!r}; there are {', '.join(known)}.")
    return [name for name in known if name in wanted]


def datasets(battery: str) -> list[str]:
    """Return the names of a battery's data sets."""
    return list(tables.recipes() if battery == "tables" else peers.BENCHMARKS)


def cells(
    battery: str,
    datasets: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: str = "",
) -> list[Cell]:
    """Return the cells, seed after seed, and the methods on a data set side by side."""
    return [
        Cell(battery, dataset, method, seed, folder)
        for seed in seeds
        for dataset in datasets
        for method in methods
    ]


def forget(path: Path, methods: Sequence[str]) -> None:
    """Drop what is kept of some methods."""
    kept = [line for line in read_lines(path, "remove it") if line.get("name") not in methods]
    write(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
