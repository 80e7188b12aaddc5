"""The runs of a study, kept one by one in `outcomes.jsonl`, so that it can go on where it stopped.

A line is one method on one data set with one seed: its means, every client's own values, and the
identity of its configuration. A line whose configuration is no longer that of the study is not used:
its run is made again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacpfl.build import build_federation
from pacpfl.config import Config
from pacpfl.data.store import from_clients
from pacpfl.engine import runtime
from pacpfl.errors import InputError
from pacpfl.run import Watcher, run_method
from pacpfl.tune.spaces import identity
from pacpfl.tune.workers import work
from pacpfl.types import Federation
from reproduction.polynomial import measures
from reproduction.table import Outcome

BOXED = ("rsmse", "ce")  # metrics of which every client's value is kept
Place = tuple[str, str, int]  # data set, name in the table, seed


@dataclass(frozen=True)
class Cell:
    """One run of a study: `name` is its row in the table, `method` what is run."""

    dataset: str
    name: str
    method: str
    config: Config

    @property
    def place(self) -> Place:
        return self.dataset, self.name, self.config.seed

    @property
    def identity(self) -> str:
        return identity(self.config, self.method)


class Kept(NamedTuple):
    """What a run has left: the table's numbers, and group -> metric -> value of each client."""

    outcome: Outcome
    clients: Mapping[str, Mapping[str, list[float]]]


class Progress(NamedTuple):
    done: int
    total: int
    latest: str


def run_cell(cell: Cell, stop: Callable[[], bool]) -> Kept:
    """The job of a worker, on the same path as `pacpfl run`."""
    config = cell.config
    federation = _federation(Config(seed=config.seed, data=config.data, pv=config.pv))
    store = from_clients(federation.existing)
    result = run_method(cell.method, config, federation, store, Watcher(stop=stop))
    groups = measures(federation, result)
    for group, values in groups.items():
        if any(client.kind is None for client in federation.groups()[group]):
            values.pop("recovered", None)
    clients = {
        group: {metric: [row[metric] for row in found.rows] for metric in BOXED}
        for group, found in result.groups.items()
    }
    return Kept(Outcome(*cell.place, result.about["seconds"], groups), clients)


@lru_cache(maxsize=2)
def _federation(config: Config) -> Federation:
    """Methods follow each other on the same data."""
    return build_federation(config)


def run_cells(
    cells: Sequence[Cell],
    path: Path,
    workers: int = 1,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[Progress], None] = lambda now: None,
) -> list[str]:
    """Run the cells that are not kept yet; what failed, in sentences. Stops like `workers.work`."""
    kept = read_outcomes(path, cells)
    missing = [cell for cell in cells if cell.place not in kept]
    done, failures = len(cells) - len(missing), []
    precision = cells[0].config.run.precision if cells else "float32"
    progress(Progress(done, len(cells), "starting"))
    for ended in work(run_cell, iter(missing), workers, stop, seconds, precision):
        cell: Cell = ended.task
        where = f"{cell.name} on {cell.dataset}, seed {cell.config.seed}"
        if ended.failure is not None:
            failures.append(f"{where}: {ended.failure}")
        if ended.result is not None:
            append_outcome(path, cell, ended.result)
            done += 1
            progress(Progress(done, len(cells), where))
    return failures


def append_outcome(path: Path, cell: Cell, kept: Kept) -> None:
    """One more line, on the disk before the next run starts."""
    outcome = kept.outcome
    record = {
        "dataset": outcome.dataset,
        "name": outcome.method,
        "seed": outcome.seed,
        "identity": cell.identity,
        "seconds": outcome.seconds,
        "groups": outcome.groups,
        "clients": kept.clients,
        "machine": outcome.machine or runtime.machine(),
        "versions": outcome.versions or runtime.versions(),
    }
    line = json.dumps(_replaced(record, lambda v: isinstance(v, float) and not math.isfinite(v)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.tell() and not _ends_a_line(file):
                file.write(b"\n")  # after a line that was cut off
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); make room or choose another --out."
        ) from error


def _ends_a_line(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def read_outcomes(path: Path, cells: Sequence[Cell]) -> dict[Place, Kept]:
    """What is kept of these cells. Of two lines about the same run the later one counts, and a line
    that was cut off when the power went is as if it had never been written."""
    if not path.exists():
        return {}
    wanted = {cell.place: cell.identity for cell in cells}
    found: dict[Place, Kept] = {}
    for line in _lines(path):
        try:
            record = _replaced(json.loads(line), lambda v: v is None, math.nan)
            place = (record["dataset"], record["name"], record["seed"])
            about = record.get("machine", ""), record.get("versions")
            outcome = Outcome(*place, record["seconds"], record["groups"], *about)
            kept = Kept(outcome, record["clients"])
            is_wanted = wanted.get(place) == record["identity"]
        except (ValueError, KeyError, TypeError):
            continue
        if is_wanted:
            found[place] = kept
    return found


def _replaced(tree: Any, missing: Callable[[Any], bool], by: float | None = None) -> Any:
    """JSON has no NaN: a number that is none is written as null."""
    if isinstance(tree, Mapping):
        return {key: _replaced(value, missing, by) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_replaced(value, missing, by) for value in tree]
    return by if missing(tree) else tree


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); choose another --out."
        ) from error


def boxes(
    kept: Iterable[Kept], dataset: str, names: Sequence[str], metric: str
) -> dict[str, list[dict[str, Any] | None]]:
    """Group -> for each name the box over its clients, those of all seeds together."""
    values: dict[tuple[str, str], list[float]] = {}
    for outcome, clients in kept:
        if outcome.dataset == dataset:
            for group, found in clients.items():
                values.setdefault((group, outcome.method), []).extend(found[metric])
    groups = dict.fromkeys(group for group, _ in values)
    return {group: [box(values.get((group, name), [])) for name in names] for group in groups}


def box(values: Sequence[float]) -> dict[str, Any] | None:
    """Quartiles; whiskers to the last value within 1.5 times their distance; what lies beyond."""
    known = np.sort([value for value in values if math.isfinite(value)])
    if not len(known):
        return None
    q1, median, q3 = np.percentile(known, (25, 50, 75))
    reach = 1.5 * (q3 - q1)
    inside = known[(known >= q1 - reach) & (known <= q3 + reach)]
    low, high = min(inside[0], q1), max(inside[-1], q3)  # quartiles may lie between two values
    outside = known[(known < low) | (known > high)]
    numbers = {"low": low, "q1": q1, "median": median, "q3": q3, "high": high}
    return {
        **{name: round(float(value), 5) for name, value in numbers.items()},
        "outliers": [round(float(value), 5) for value in outside],
    }
