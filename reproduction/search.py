"""`python -m reproduction search`: settings for the privacy study, the same small grid for every mode.

What noise leaves of a signal depends on how many numbers are released (the prior's shape, rounds) and on
the clip. Every mode tries every combination, on federations drawn with seeds from 100 on, which no
result uses, and measures by the mean over their existing and new clients. The best few are tried on
further seeds, for with noise one seed in five may end in a poor optimum; the best of these is kept.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from pacpfl import files
from pacpfl.cli.common import console
from pacpfl.config import override
from pacpfl.engine import runtime
from pacpfl.errors import InputError
from pacpfl.report.terminal import watching
from pacpfl.tune.workers import work
from reproduction.study import Cell, base_config, read_study, run_cell

FIRST_SEED = 100
FINALISTS = 4
Proposal = Mapping[str, Any]  # key of the configuration -> value

_ADAM = {"train.optimizer": "adam", "train.learning_rate": 0.1}
_SMALL = {
    "train.particles": 1,
    "prior.mean": "constant",
    "prior.kernel": "ard",
    "prior.output_scale": "learned",
}  # 4 numbers
_LARGE = {
    **_SMALL,
    "prior.mean": "mlp",
    "prior.mean_widths": [16],
    "prior.members": 4,
    "prior.noise": 0.2,
}  # 212


def _each(key: str, *values: Any) -> tuple[Proposal, ...]:
    return tuple({key: value} for value in values)


def _sgd(clip: float, rate: float) -> Proposal:
    """Adam makes steps of one size of signal and of noise; plain SGD leaves them in proportion."""
    return {"train.optimizer": "sgd", "train.learning_rate": rate, "privacy.clip": clip}


# Dimensions of the grids; what is not searched was settled by a first look at seeds from 100 on.
GRIDS: Mapping[str, Sequence[Sequence[Proposal]]] = {
    "polynomial": (
        (
            {**_SMALL, **_ADAM, "privacy.clip": 10.0},
            {**_LARGE, **_ADAM, "privacy.clip": 10.0},
            {**_LARGE, **_sgd(10.0, 0.0016)},
            {**_LARGE, **_sgd(5.0, 0.0032)},
            {**_LARGE, **_sgd(5.0, 0.01)},
            {**_LARGE, **_sgd(3.0, 0.005)},
        ),
        _each("train.rounds", 30, 100, 300, 1000),
    ),
    "pv": (
        (
            {**_SMALL, **_ADAM, "prior.mean": "linear", "prior.kernel": "linear"},
            {**_SMALL, **_ADAM, "prior.mean": "linear", "prior.kernel": "ard+linear"},
        ),
        ({"train.hyper_std": 0.3},),
        _each("train.rounds", 30, 100),
        _each("privacy.clip", 10.0, 30.0),
    ),
    "digits": (
        ({"train.particles": 1, "bnn.std_per": "layer", "bnn.initial_std": 0.1},),
        _each("train.learning_rate", 0.03, 0.1),
        _each("train.rounds", 100, 300),
        _each("privacy.clip", 1.0, 3.0),
    ),
}


class Tried(NamedTuple):
    proposal: Proposal
    score: float  # lower is better
    failures: int


class Task(NamedTuple):
    number: int
    cell: Cell


def proposals(dataset: str) -> list[Proposal]:
    """Return every combination."""
    return [
        {key: value for part in parts for key, value in part.items()}
        for parts in product(*GRIDS[dataset])
    ]


def settings(proposal: Proposal) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in proposal.items()]


def tasks(
    dataset: str, mode: str, epsilon: float | None, tried: Sequence[Proposal], seeds: Sequence[int]
) -> Iterator[Task]:
    base = base_config(read_study("privacy").datasets[dataset])
    for number, proposal in enumerate(tried):
        for seed in seeds:
            budget = [f"mode={mode}", f"epsilon={epsilon}", f"noise_seed={seed}"]
            private = [f"privacy.{part}" for part in budget] if epsilon is not None else []
            config = override(base, [*settings(proposal), *private, f"seed={seed}"])
            yield Task(number, Cell(dataset, mode, "pacpfl", config))


def measure(task: Task, stop: Callable[[], bool]) -> float:
    """Return the mean over both groups, in the direction in which less is better."""
    groups = run_cell(task.cell, stop).groups.values()
    if task.cell.classes:
        return -float(np.mean([values["accuracy"] for values in groups]))
    return float(np.mean([values["rsmse"] for values in groups]))


def best_first(
    dataset: str,
    mode: str,
    epsilon: float | None,
    seeds: Sequence[int],
    further: Sequence[int] = (),
    workers: int = 1,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Tried]:
    """Return the proposals, the best first: all on `seeds`, and the best of these on `further` ones.

    One that fails on a seed comes last. Where there are further seeds, only finalists are returned.
    """
    if min((*seeds, *further), default=0) < FIRST_SEED:
        raise InputError(f"Settings are chosen on seeds from {FIRST_SEED} on; results use others.")
    tried = proposals(dataset)
    scores: dict[int, list[float]] = {number: [] for number in range(len(tried))}
    done = 0

    def rate(numbers: Sequence[int], seeds: Sequence[int]) -> list[int]:
        nonlocal done
        chosen = [tried[number] for number in numbers]
        every = tasks(dataset, mode, epsilon, chosen, seeds)
        for ended in work(measure, every, workers, stop):
            score = math.inf if ended.result is None else ended.result
            known = scores[numbers[ended.task.number]]
            known.append(score if math.isfinite(score) else math.inf)
            done += 1
            progress(done)
        return sorted(numbers, key=lambda number: _mean(scores[number]))

    order = rate(range(len(tried)), seeds)
    if further and not stop():
        order = rate(order[:FINALISTS], further)
    return [
        Tried(tried[n], _mean(scores[n]), sum(math.isinf(score) for score in scores[n]))
        for n in order
    ]


def _mean(scores: Sequence[float]) -> float:
    return float(np.mean(scores)) if scores else math.inf


def as_toml(best: Tried, tried: int, seeds: Sequence[int], command: str) -> str:
    """Return the settings as a file, and how they were found."""
    lines = [
        f"# The best of {tried} proposals, {best.score:.4f} on seeds {min(seeds)} to {max(seeds)}",
        "# (mean over existing and new clients; accuracy with a minus sign), found by:",
        f"#   {command}",
        f"# {datetime.now(UTC):%Y-%m-%d}, {runtime.machine()}.",
    ]
    sections: dict[str, list[str]] = {}
    for key, value in best.proposal.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    for section, entries in sections.items():
        lines += ["", f"[{section}]", *entries]
    return "\n".join(lines) + "\n"


def search(
    dataset: Annotated[str, typer.Argument(help="polynomial, pv or digits.")],
    out: Annotated[Path, typer.Option(help="Folder for the settings that are found.")],
    modes: Annotated[
        str, typer.Option(help="Of which modes, with commas.")
    ] = "none,gaussian,laplace,paper",
    epsilons: Annotated[str, typer.Option(help="At which epsilons, with commas.")] = "2,8",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds from 100 on, for all proposals.")] = 2,
    further: Annotated[int, typer.Option(min=0, help="Seeds after those, for the best few.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, each a process.")] = 1,
) -> None:
    """Choose the settings of the privacy study: the same proposals for every mode."""
    if dataset not in GRIDS:
        raise InputError(f"There is no data set {dataset!r}; there are {', '.join(GRIDS)}.")
    runtime.configure()
    tried = len(proposals(dataset))
    chosen = range(FIRST_SEED, FIRST_SEED + seeds + further)
    runs = tried * seeds + min(tried, FINALISTS) * further
    command = f"python -m reproduction {shlex.join(sys.argv[1:])}"
    for mode in modes.split(","):
        for epsilon in [None] if mode == "none" else [float(e) for e in epsilons.split(",")]:
            name = mode if epsilon is None else f"{mode}-{epsilon:g}"
            with watching(console, name) as watcher:
                found = best_first(
                    *(dataset, mode, epsilon, chosen[:seeds], chosen[seeds:], jobs, watcher.stop),
                    lambda done, watcher=watcher: watcher.count(done, runs, ""),  # type: ignore[misc]
                )
            if watcher.stop():
                raise typer.Exit(130)
            text = as_toml(found[0], tried, chosen, command)
            files.write(out / f"{name}.toml", text.encode())
            print(f"{name}: {found[0].score:.4f}", flush=True)
