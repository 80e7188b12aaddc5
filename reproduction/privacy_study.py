"""The paper's figure of privacy against accuracy: RSMSE against epsilon, with all three modes.

Polynomial with 120 clients of 10 samples, as in the appendix on DP; besides, houses and digits with
Gaussian noise. Beside every curve stand the same training without privacy, and what each client
achieves alone, which costs no privacy: a federation whose curve lies above that is worth nothing.

A cell's configuration is `configs/privacy/DATASET.toml` with what `configs/privacy/DATASET/ROW.toml`
changes: settings are searched for every mode at epsilon = 2 and 8 (`privacy_search`), and each other
epsilon takes those of the nearer one. The noise is drawn from the run's seed, so that a study can be
repeated; the data are simulated or public, and nobody's privacy depends on it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from pacpfl.build import build_federation
from pacpfl.config import SECTIONS, Config, load, override
from pacpfl.data.settings import CLASSIFICATION
from pacpfl.data.store import from_clients
from pacpfl.errors import InputError
from pacpfl.folder import summarise
from pacpfl.run import Watcher, run_method
from pacpfl.tune.workers import work
from pacpfl.types import Federation
from reproduction import outcomes
from reproduction.outcomes import Cell, Kept, Progress, append_outcome, read_outcomes
from reproduction.table import Outcome, Published

DELTA = 1e-5
MODES = {
    "gaussian": "Gaussian noise",
    "laplace": "Laplace noise, pure epsilon",
    "paper": "as printed: no guarantee",
}
SEARCHED = (2.0, 8.0)  # where settings were chosen
STATED = 8.0  # where the modes are compared
PUBLISHED = Published({})  # the paper shows a figure and prints no numbers


class Subject(NamedTuple):
    """A data set: its title, the modes and epsilons on it, what a client alone runs, the measure."""

    title: str
    modes: tuple[str, ...]
    epsilons: tuple[float, ...]
    alone: str
    alone_title: str
    metric: str


SUBJECTS = {
    "polynomial": Subject(
        "Polynomial, 120 clients of 10 samples",
        ("gaussian", "laplace", "paper"),
        (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        *("vanilla", "a GP per client"),
        "rsmse",
    ),
    "pv": Subject(
        "PV-EW, 120 houses, random 150",
        *(("gaussian",), (2.0, 8.0, 32.0), "ridge", "ridge regression per client"),
        "rsmse",
    ),
    "digits": Subject(
        "Digits, 100 simulated writers",
        *(("gaussian",), (2.0, 8.0, 32.0), "vanilla", "a Bayesian network per client"),
        "accuracy",
    ),
}
# A look at the whole: fewer clients, rounds and epsilons.
QUICK = ("data.clients=12", "data.new_clients=6", "train.rounds=20", "alone.steps=30")
QUICK_EPSILONS = (8.0,)


@dataclass(frozen=True)
class PrivateCell(Cell):
    @property
    def identity(self) -> str:
        """Of everything a run depends on, where the weather's file lies excepted."""
        config = replace(
            self.config, pv=replace(self.config.pv, weather=Path(self.config.pv.weather).name)
        )
        parts = {name: asdict(getattr(config, name)) for name in SECTIONS if name != "run"}
        told = [self.method, config.seed, config.run.precision, parts]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def row_name(mode: str, epsilon: float) -> str:
    return f"{mode}-{epsilon:g}"


def titles() -> dict[str, str]:
    """Name in the table -> what people read."""
    found = {"none": "PAC-PFL without privacy"}
    for mode, words in MODES.items():
        for epsilon in SUBJECTS["polynomial"].epsilons:
            found[row_name(mode, epsilon)] = f"epsilon = {epsilon:g}, {words}"
    found["alone"] = "Each client alone"
    return found


def searched(epsilon: float) -> float:
    """The epsilon whose settings this one takes: the nearer one by ratio, the larger at a tie."""
    return min(SEARCHED, key=lambda other: (abs(math.log(other / epsilon)), -other))


def base_config(dataset: str) -> Config:
    if dataset not in SUBJECTS:
        raise InputError(f"There is no data set {dataset!r}; there are {', '.join(SUBJECTS)}.")
    return load(_packaged(f"{dataset}.toml"), f"privacy/{dataset}.toml")


def cell_config(dataset: str, mode: str, epsilon: float | None, weather: str, seed: int) -> Config:
    """`mode` may also be none or alone, which have no epsilon."""
    base = base_config(dataset)
    config = base
    name = mode if epsilon is None else row_name(mode, searched(epsilon))
    if mode != "alone":
        place = f"{dataset}/{name}.toml"
        config = load(_packaged(place), f"privacy/{place}", base)
    config = replace(config, seed=seed, data=base.data, pv=replace(base.pv, weather=weather))
    if epsilon is None:
        return config
    budget = (f"mode={mode}", f"epsilon={epsilon}", f"delta={DELTA}", f"noise_seed={seed}")
    return override(config, [f"privacy.{setting}" for setting in budget])


def _packaged(place: str) -> str:
    path = resources.files("reproduction").joinpath("configs", "privacy", *place.split("/"))
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def cells(
    seeds: Sequence[int],
    weather: str = "synthetic",
    quick: bool = False,
    settings: Sequence[str] = (),
) -> list[Cell]:
    """All runs of the study, seed after seed: an unfinished study has a little of everything."""
    changes = [*(QUICK if quick else ()), *settings]
    found: list[Cell] = []
    for seed in seeds:
        for dataset, subject in SUBJECTS.items():
            epsilons = QUICK_EPSILONS if quick else subject.epsilons
            runs: list[tuple[str, str, float | None]] = [("none", "none", None)]
            runs += [(row_name(m, e), m, e) for m in subject.modes for e in epsilons]
            runs += [("alone", "alone", None)]
            for name, mode, epsilon in runs:
                config = cell_config(dataset, mode, epsilon, weather, seed)
                method = subject.alone if mode == "alone" else "pacpfl"
                found.append(PrivateCell(dataset, name, method, override(config, changes)))
    return found


def run_cell(cell: Cell, stop: Callable[[], bool]) -> Kept:
    """The job of a worker, on the same path as `pacpfl run`."""
    if cell.config.data.name not in CLASSIFICATION:
        return outcomes.run_cell(cell, stop)
    config = cell.config
    federation = _digits(Config(seed=config.seed, data=config.data, images=config.images))
    store = from_clients(federation.existing, roomy=True)
    result = run_method(cell.method, config, federation, store, Watcher(stop=stop))
    groups = {
        group: {
            metric: (100 if metric == "accuracy" else 1) * values[metric]["mean"]
            for metric in ("accuracy", "ce", "nll")
        }
        for group, values in summarise(result.groups).items()
    }
    return Kept(Outcome(*cell.place, result.about["seconds"], groups), {})


@lru_cache(maxsize=1)
def _digits(config: Config) -> Federation:
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
    progress(Progress(done, len(cells), "starting"))
    for ended in work(run_cell, iter(missing), workers, stop, seconds):
        cell: Cell = ended.task
        where = f"{cell.name} on {cell.dataset}, seed {cell.config.seed}"
        if ended.failure is not None:
            failures.append(f"{where}: {ended.failure}")
        if ended.result is not None:
            append_outcome(path, cell, ended.result)
            done += 1
            progress(Progress(done, len(cells), where))
    return failures


def means(
    kept: Sequence[Kept], dataset: str, group: str, metric: str
) -> Mapping[str, dict[int, float]]:
    """Row -> seed -> value."""
    found: dict[str, dict[int, float]] = {}
    for outcome, _ in kept:
        if outcome.dataset == dataset and group in outcome.groups:
            found.setdefault(outcome.method, {})[outcome.seed] = outcome.groups[group][metric]
    return found
