"""`python -m benchmarks.training --femnist PATH`: whole trainings of PAC-PFL beside FedAvg's.

The trainings are those of the classification study, on the same path, and take turns: after every
compiled call (a few rounds) the other method goes on, so that a slow moment of the machine hits both
alike. Time is that of the calls; compilation, personalisation and measuring are not in it. What each
training reaches stands beside its time, on clients who took part in it.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.harness import describe_machine
from benchmarks.results import Sheet, write_results
from pacpfl.build import build_federation
from pacpfl.data.store import from_clients
from pacpfl.engine import runtime
from pacpfl.folder import MethodResult, summarise
from pacpfl.run import Watcher, run_method
from reproduction.study import cell_config, read_study

STUDY = read_study("classification")
METHODS = ("fedavg", "pacpfl")
COLUMNS = (
    "data", "method", "rounds", "seconds", "times FedAvg's", "first call s", "accuracy %", "CE",
)  # fmt: skip


class Turns:
    """Only one of several threads is at work; `next` lets the one after it go on."""

    def __init__(self, count: int) -> None:
        self._waiting = list(range(count))
        self._changed = threading.Condition()

    def wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[0] == number)

    def next(self, number: int) -> None:
        """Stand behind the others, and wait."""
        with self._changed:
            self._waiting.append(self._waiting.pop(0))
            self._changed.notify_all()
        self.wait(number)

    def leave(self, number: int) -> None:
        with self._changed:
            self._waiting.remove(number)
            self._changed.notify_all()


def take_turns(tasks: Sequence[Callable[[Callable[[], None]], Any]]) -> list[Any]:
    """Results of the tasks; each calls what it is given where another may go on."""
    turns = Turns(len(tasks))

    def work(number: int) -> Any:
        turns.wait(number)
        try:
            return tasks[number](lambda: turns.next(number))
        finally:
            turns.leave(number)

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(work, range(len(tasks))))


def train_all(dataset: str, path: Path, seed: int, rounds: int | None) -> dict[str, MethodResult]:
    """Every method's training on one data set, clients who join later left out."""
    configs = {}
    for method in METHODS:
        config = cell_config(STUDY, dataset, method, seed, images=path)
        config = replace(config, data=replace(config.data, new_clients=0))
        if rounds is not None:
            config = replace(config, train=replace(config.train, rounds=rounds))
        configs[method] = config
    federation = build_federation(configs[METHODS[0]])
    store = from_clients(federation.existing, roomy=True)

    def task(method: str) -> Callable[[Callable[[], None]], MethodResult]:
        def run(pause: Callable[[], None]) -> MethodResult:
            watcher = Watcher(progress=lambda now: pause())
            return run_method(method, configs[method], federation, store, watcher)

        return run

    return dict(zip(METHODS, take_turns([task(method) for method in METHODS]), strict=True))


def sheet(title: str, seeds: Sequence[int], found: Mapping[str, Sequence[Any]]) -> Sheet:
    """`found`: data set -> what `train_all` said, seed by seed."""
    rows = []
    for dataset, runs in found.items():
        seconds = {m: [run[m].about["train_seconds"] for run in runs] for m in METHODS}
        for method in METHODS:
            groups = [summarise(run[method].groups)["existing"] for run in runs]
            about = [run[method].about for run in runs]
            rows.append(
                (
                    STUDY.datasets[dataset].title,
                    about[0]["title"],
                    about[0]["rounds"],
                    float(np.mean(seconds[method])),
                    float(np.sum(seconds[method]) / np.sum(seconds["fedavg"])),
                    float(np.mean([each["compile_seconds"] for each in about])),
                    100 * float(np.mean([each["accuracy"]["mean"] for each in groups])),
                    float(np.mean([each["ce"]["mean"] for each in groups])),
                )
            )
    numbers = ", ".join(map(str, seeds))
    note = (
        f"Seeds {numbers}, means. The methods take turns after every compiled call. The paper's "
        "training of PAC-PFL takes 8 times as long as FedAvg's on FEMNIST (20), 1.4 times on EMNIST."
    )
    return Sheet(title, COLUMNS, tuple(rows), note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--femnist", type=Path, help="images by writer")
    parser.add_argument("--emnist", type=Path, help="images of EMNIST")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="instead of the study's")
    parser.add_argument("--out", type=Path, default=Path("docs/results/classification/training"))
    arguments = parser.parse_args()
    paths = {"femnist-20": arguments.femnist, "emnist": arguments.emnist}
    chosen = {dataset: path for dataset, path in paths.items() if path is not None}
    if not chosen:
        parser.error("give --femnist or --emnist")
    runtime.configure()
    told = [
        f"--{name} {path.name}"
        for name in ("femnist", "emnist")
        if (path := getattr(arguments, name))
    ]
    told += [f"--seeds {arguments.seeds}"]
    told += [f"--rounds {arguments.rounds}"] if arguments.rounds else []
    machine = describe_machine()
    found = {
        dataset: [
            train_all(dataset, path, seed, arguments.rounds) for seed in range(arguments.seeds)
        ]
        for dataset, path in chosen.items()
    }
    result = sheet("Whole trainings", range(arguments.seeds), found)
    markdown, _ = write_results(
        arguments.out / jax.default_backend(), [result], machine,
        f"python -m benchmarks.training {' '.join(told)}",
    )  # fmt: skip
    print(markdown.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
