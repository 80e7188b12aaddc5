"""A study is data: `reproduction/NAME.toml` says what is run and shown, and this module runs it.

    title = "..."                       # of the page
    overview = ["rsmse"]                # measures that have a table over all data sets
    [quick]                             # what `--quick` changes: set, datasets, rows
    [datasets.NAME]                     # title, base, tuned, set, rows, methods, images, quick
    [rows.NAME]                         # title, method, set, tuned, columns
    [[summary]]                         # sentences (reproduction/sentences.py)
    [[panels]]                          # figures (reproduction/figures.py)
    [published.GROUP]                   # the paper's values by row and measure, one for each of `columns`

A cell is one row on one data set with one seed. Its configuration is the data set's `base` (shipped
configurations by name, files below configs/, one on top of the other), with what the row sets, with the
file configs/<tuned>/<row>.toml where there is one, with what data set and `--quick` set. The data are
those of the first base in any case: all rows see the same.

Each run is kept as one line of outcomes.jsonl, with the identity of its configuration: a study goes on
where it stopped, and a run whose configuration has changed is made again.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from pacpfl.build import build_federation
from pacpfl.cli.common import shipped
from pacpfl.config import SECTIONS, Config, identity, load, override
from pacpfl.data.settings import CLASSIFICATION
from pacpfl.data.store import ClientStore, from_clients
from pacpfl.engine import runtime
from pacpfl.engine.measure import Evaluation
from pacpfl.errors import InputError
from pacpfl.files import append_line, read_lines
from pacpfl.folder import MethodResult, summarise
from pacpfl.run import Watcher, run_method
from pacpfl.tune.workers import Job, work
from pacpfl.types import Federation

FOLDER = Path(__file__).parent
STUDIES = ("polynomial", "regression", "fortnights", "ablation", "classification", "privacy")
BOXED = {"numbers": ("rsmse", "ce"), "classes": ("accuracy", "nll")}  # kept for every client
Place = tuple[str, str, int]  # data set, row, seed
Values = Mapping[str, Mapping[str, float]]  # group -> measure -> value


@dataclass(frozen=True)
class Dataset:
    title: str
    base: Sequence[str]
    tuned: str = ""
    set: Sequence[str] = ()
    rows: Sequence[str] = ()  # of these only; none named: all
    methods: Mapping[str, str] = field(default_factory=dict)  # of rows that run another one here
    images: str = ""  # which option names the images
    quick: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    title: str
    method: str
    set: Sequence[str] = ()  # `{seed}` becomes the cell's
    tuned: str = ""  # name of the file of settings, where it is not the row's
    columns: Sequence[Any] = ()  # what table.csv says of it besides


@dataclass(frozen=True)
class Quick:
    set: Sequence[str] = ()
    datasets: Sequence[str] = ()
    rows: Sequence[str] = ()


@dataclass(frozen=True)
class Study:
    """A study's file in memory."""

    name: str
    title: str
    datasets: Mapping[str, Dataset]
    rows: Mapping[str, Row]
    quick: Quick
    summary: Sequence[Mapping[str, Any]]
    panels: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    overview: Sequence[str] = ()
    boxes: Sequence[str] = ()
    set: Sequence[str] = ()
    columns: Sequence[str] = ()
    published: Mapping[str, Any] = field(default_factory=dict)
    times: bool = False
    floor: str = ""  # the data set whose true process is known
    readme: Sequence[str] = ()  # names of the figures beside README.md; none: the first two

    def paper(self) -> dict[tuple[str, ...], tuple[float, float]]:
        """Return the paper's mean and half width by (data set, group, row, measure)."""
        values: dict[tuple[str, ...], tuple[float, float]] = {}
        for group in ("existing", "new"):
            for row, measures in self.published.get(group, {}).items():
                for measure, numbers in measures.items():
                    for datasets, (mean, *half) in zip(
                        self.published["columns"], numbers, strict=True
                    ):
                        for dataset in datasets:
                            pair = float(mean), float(half[0] if half else math.nan)
                            values[dataset, group, row, measure] = pair
        return values


def read_study(name: str) -> Study:
    """Return the study of this name."""
    if name not in STUDIES:
        raise InputError(f"There is no study {name!r}; there are {', '.join(STUDIES)}.")
    text = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    text["datasets"] = {key: Dataset(**value) for key, value in text["datasets"].items()}
    text["rows"] = {key: Row(**value) for key, value in text["rows"].items()}
    return Study(name, quick=Quick(**text.pop("quick")), **text)


# ------------------------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class Cell:
    """One run of a study: `name` is its row, `method` what is run."""

    dataset: str
    name: str
    method: str
    config: Config
    times: bool = False

    @property
    def place(self) -> Place:
        return self.dataset, self.name, self.config.seed

    @property
    def precision(self) -> str:
        return self.config.run.precision

    @property
    def classes(self) -> bool:
        return self.config.data.name in CLASSIFICATION

    @property
    def identity(self) -> str:
        """Return the name of all that the numbers depend on; where files lie is no part of it."""
        config = self.config
        images = replace(config.images, path=Path(config.images.path).name)
        config = replace(
            config, images=images, pv=replace(config.pv, weather=Path(config.pv.weather).name)
        )
        return identity(config, [name for name in SECTIONS if name != "run"], method=self.method)


def settings_file(place: str, base: Config | None = None) -> Config:
    """Return the configuration of a file below configs/, on top of `base`."""
    text = (FOLDER / "configs" / place).read_text(encoding="utf-8")
    return load(text, place, base) if base else load(text, place)


def base_config(dataset: Dataset) -> Config:
    """Return what every row starts from on this data set."""
    first, *others = dataset.base
    config = settings_file(first) if first.endswith(".toml") else shipped(first)
    start = config
    for place in others:
        config = settings_file(place, config)
    return replace(config, data=start.data, pv=start.pv, images=start.images)


def cell_config(
    study: Study,
    dataset: str,
    row: str,
    seed: int,
    weather: str = "synthetic",
    images: Path | None = None,
) -> Config:
    """Return the configuration of a row on a data set, with the settings found for it."""
    known, chosen = study.datasets[dataset], study.rows[row]
    base = base_config(known)
    config = override(base, [text.replace("{seed}", str(seed)) for text in chosen.set])
    place = f"{known.tuned}/{chosen.tuned or row}.toml"
    if known.tuned and (FOLDER / "configs" / place).is_file():
        config = settings_file(place, config)
    pictures = replace(base.images, path=str(images)) if images else base.images
    pv = replace(base.pv, weather=weather)
    config = replace(config, seed=seed, data=base.data, pv=pv, images=pictures)
    return override(config, [*study.set, *known.set])


def cells(
    study: Study,
    seeds: Sequence[int],
    weather: str = "synthetic",
    images: Mapping[str, Path] | None = None,
    quick: bool = False,
    settings: Sequence[str] = (),
) -> list[Cell]:
    """Return all runs, seed after seed: an unfinished study has a little of everything.

    Data sets whose images are not there are left out.
    """
    paths, look = images or {}, study.quick if quick else Quick()
    found = []
    for seed in seeds:
        for name, dataset in study.datasets.items():
            if (look.datasets and name not in look.datasets) or (
                dataset.images and dataset.images not in paths
            ):
                continue
            changes = [*(dataset.quick if quick else ()), *look.set, *settings]
            for row in dataset.rows or study.rows:
                if look.rows and row not in look.rows:
                    continue
                path = paths.get(dataset.images)
                config = cell_config(study, name, row, seed, weather, path)
                config = override(config, changes)
                method = dataset.methods.get(row, study.rows[row].method)
                found.append(Cell(name, row, method, config, study.times))
    return found


def select(every: Sequence[Cell], names: Sequence[str]) -> list[Cell]:
    """Return the cells of the named data sets and rows; names of one kind only leave the other open."""
    datasets = {cell.dataset for cell in every} & set(names) or {cell.dataset for cell in every}
    rows = {cell.name for cell in every} & set(names) or {cell.name for cell in every}
    for name in names:
        if name not in datasets | rows:
            known = dict.fromkeys([c.dataset for c in every] + [c.name for c in every])
            raise InputError(f"--only {name}: there is no such row; there are {', '.join(known)}.")
    return [cell for cell in every if cell.dataset in datasets and cell.name in rows]


# -------------------------------------------------------------------------------------------- runs


class Outcome(NamedTuple):
    """What a run has left: means over clients by group, and the values of each client."""

    dataset: str
    name: str
    seed: int
    seconds: float
    groups: Values
    clients: Mapping[str, Mapping[str, Sequence[float]]] = {}
    machine: str = ""  # where it ran, and with what; empty: here
    versions: Mapping[str, str] | None = None


def run_cell(cell: Cell, stop: Callable[[], bool]) -> Outcome:
    """Run one method on one data set with one seed, on the same path as `pacpfl run`."""
    config = cell.config
    data = Config(seed=config.seed, data=config.data, pv=config.pv, images=config.images)
    federation, store = _federation(data)
    result = run_method(cell.method, config, federation, store, Watcher(stop=stop))
    kind = "classes" if cell.classes else "numbers"
    clients = {
        group: {m: [_scaled(m, row[m]) for row in found.rows] for m in BOXED[kind]}
        for group, found in result.groups.items()
    }
    groups = (measures_of_classes if cell.classes else measures)(federation, result)
    seconds: float = result.about["seconds"]
    if cell.times:
        seconds = groups["existing"]["train_seconds"] = result.about.get("train_seconds", seconds)
        if "compile_seconds" in result.about:
            groups["existing"]["compile_seconds"] = result.about["compile_seconds"]
    return Outcome(*cell.place, seconds, groups, clients)


@lru_cache(maxsize=2)
def _federation(config: Config) -> tuple[Federation, ClientStore]:
    """Return the data, once for the methods that follow each other on them."""
    federation = build_federation(config)
    return federation, from_clients(federation.existing, roomy=federation.classes is not None)


def measures(federation: Federation, result: MethodResult) -> dict[str, dict[str, float]]:
    """Return means over clients by group, the particles' diversity, and the share of kinds recovered."""
    table = {
        group: {measure: cell["mean"] for measure, cell in values.items()}
        for group, values in summarise(result.groups).items()
    }
    for group, values in table.items():
        if "diversity" in result.about:
            values["diversity"] = result.about["diversity"]["value"]
        kinds = [client.kind for client in federation.groups()[group]]
        if None not in kinds:
            recovered = recovered_kinds(result.groups[group], np.array(kinds))
            values |= {} if recovered is None else {"recovered": recovered}
    return table


def measures_of_classes(
    federation: Federation, result: MethodResult
) -> dict[str, dict[str, float]]:
    """Return accuracy (in per cent), calibration error and NLL by group."""
    return {
        group: {m: _scaled(m, values[m]["mean"]) for m in ("accuracy", "ce", "nll")}
        for group, values in summarise(result.groups).items()
    }


def _scaled(measure: str, value: float) -> float:
    return 100 * value if measure == "accuracy" else value


def recovered_kinds(evaluation: Evaluation, kinds: np.ndarray) -> float | None:
    """Return the share of clients whose likeliest member of a mixture of two is their kind's.

    Members are numbered in whichever of the two ways fits. None where there are not two.
    """
    shares = evaluation.responsibilities
    if shares is None or shares.shape[1] != 2:
        return None
    agreement = float(np.mean(shares.argmax(1) == kinds))
    return max(agreement, 1 - agreement)


class Work(Protocol):
    """One run of any study, as it is kept and found again."""

    @property
    def place(self) -> Place: ...
    @property
    def identity(self) -> str: ...
    @property
    def precision(self) -> str: ...


class Progress(NamedTuple):
    done: int
    total: int
    latest: str


def run_cells(
    cells: Sequence[Work],
    path: Path,
    workers: int = 1,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[Progress], None] = lambda now: None,
    job: Job | None = None,
) -> list[str]:
    """Run the cells that are not kept yet, and return what failed. Stops like `workers.work`."""
    kept = read_outcomes(path, cells)
    missing = [cell for cell in cells if cell.place not in kept]
    done, failures = len(cells) - len(missing), []
    precision = cells[0].precision if cells else "float32"
    progress(Progress(done, len(cells), "starting"))
    for ended in work(job or run_cell, iter(missing), workers, stop, seconds, precision):
        dataset, name, seed = ended.task.place
        where = f"{name} on {dataset}, seed {seed}"
        if ended.failure is not None:
            failures.append(f"{where}: {ended.failure}")
        if ended.result is not None:
            append_outcome(path, ended.task, ended.result)
            done += 1
            progress(Progress(done, len(cells), where))
    return failures


# ---------------------------------------------------------------------------------------- outcomes


def append_outcome(path: Path, cell: Work, outcome: Outcome) -> None:
    """Write one more line, on the disk before the next run starts."""
    here = {
        "identity": cell.identity,
        "machine": outcome.machine or runtime.machine(),
        "versions": outcome.versions or runtime.versions(),
    }
    append_line(path, {**outcome._asdict(), **here})


def read_outcomes(path: Path, cells: Sequence[Work]) -> dict[Place, Outcome]:
    """Return what is kept of these cells, in their order; of two lines on one run the later counts."""
    wanted = {cell.place: cell.identity for cell in cells}
    found: dict[Place, Outcome] = {}
    for record in read_lines(path, "remove it, or choose another --out"):
        identity = record.pop("identity", "")
        outcome = Outcome(**_with_nan(record))
        if wanted.get(outcome[:3]) == identity:
            found[outcome[:3]] = outcome
    return {place: found[place] for place in wanted if place in found}


def _with_nan(tree: Any) -> Any:
    """Return the tree with NaN for null, which stands for it in JSON."""
    if isinstance(tree, Mapping):
        return {key: _with_nan(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_nan(value) for value in tree]
    return math.nan if tree is None else tree
