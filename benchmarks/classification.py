"""`python -m benchmarks.classification [--out FOLDER]`: what a round of PAC-PFL costs beside FedAvg's.

A round as the engine runs it: 10 of 40 clients with 20 images each, the CNN of the classification
study, three particles; against FedAvg with five local steps, and MTL and MAML beside it. The methods
take turns (`benchmarks.harness`), on the processor or on an accelerator. Times do not depend on
what the images show, so they are noise. Peak memory is measured in a process of its own for each
method: what the accelerator had in use, or the largest resident set of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from benchmarks.harness import describe_machine, interleave
from benchmarks.measure import ROOT, peak_memory
from benchmarks.results import Sheet, from_table, write_results
from pacpfl.config import Config, override
from pacpfl.data.store import from_clients
from pacpfl.engine import runtime
from pacpfl.engine.compiled import Rounds, make_call
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import (
    choose_clients,
    divide,
    first_client,
    hold,
    initial_client_states,
    round_inputs,
)
from pacpfl.methods.registry import build_method
from pacpfl.types import Client, Federation, Samples

FEDAVG = "FedAvg, 5 local steps"
PAPERS_RATIO = 1.4  # training time of PAC-PFL over FedAvg's on EMNIST, in the paper
# name -> method, settings on top of the problem's
CANDIDATES: dict[str, tuple[str, tuple[str, ...]]] = {
    FEDAVG: ("fedavg", ()),
    "PAC-PFL, L = 1, shared noise": ("pacpfl", ()),
    "PAC-PFL, L = 1, own noise": ("pacpfl", ("bnn.noise=own",)),
    "PAC-PFL, L = 5, shared noise": ("pacpfl", ("bnn.draws=5",)),
    "MTL, 5 local steps": ("mtl", ()),
    "MAML, 1 inner step": ("maml", ()),
}


@dataclass(frozen=True)
class Sizes:
    clients: int = 40
    per_round: int = 10
    samples: int = 20
    particles: int = 3
    side: int = 28
    classes: int = 10
    filters: tuple[int, int] = (32, 64)
    hidden: int = 512

    def settings(self) -> list[str]:
        return [
            "data.name=digits",
            f"data.clients={self.clients}",
            f"train.clients_per_round={self.per_round}",
            f"train.particles={self.particles}",
            "train.learning_rate=0.001",
            "network.kind=cnn",
            f"network.filters={list(self.filters)}",
            f"network.hidden={self.hidden}",
            "local.steps=5",
        ]


def make_federation(sizes: Sizes) -> Federation:
    random = np.random.default_rng(0)
    pixels = sizes.side**2

    def client(number: int) -> Client:
        x = random.uniform(size=(sizes.samples, pixels)).astype(np.float32)
        y = random.integers(sizes.classes, size=sizes.samples).astype(np.float32)
        return Client(f"client {number}", Samples(x, y))

    return Federation(
        "noise",
        tuple(client(number) for number in range(sizes.clients)),
        features=tuple(f"pixel {number}" for number in range(pixels)),
        target="label",
        classes=sizes.classes,
        shape=(sizes.side, sizes.side),
    )


def make_rounds(name: str, sizes: Sizes, rounds: int) -> Callable[[], object]:
    """A call does `rounds` rounds, as training does them, and returns when they are done."""
    kind, changes = CANDIDATES[name]
    config = override(Config(), [*sizes.settings(), *changes])
    federation = make_federation(sizes)
    method = build_method(kind, config, federation.form)
    store = from_clients(federation.existing)
    layout = divide(sizes.per_round, sizes.samples, 1, 4)
    keys = Keys.of(0)
    state = jax.jit(method.init)(keys.start(), first_client(store, np.float32))
    client_states = initial_client_states(method, state, store, keys, np.float32)
    program = Rounds(method, layout, rounds, False, sizes.clients, sizes.samples)
    call = make_call(program, keys, hold(store, np.float32))
    chosen = [choose_clients(0, number, sizes.clients, sizes.per_round) for number in range(rounds)]
    inputs = round_inputs(store, chosen, layout.slots, np.float32, rounds, held=True)

    def step() -> object:
        return jax.block_until_ready(call(state, client_states, inputs, 0, rounds))

    return step


def memory(name: str, sizes: Sizes) -> float:
    """Bytes at the peak of one call, in this process."""
    make_rounds(name, sizes, 1)()
    facts = jax.devices()[0].memory_stats() or {}
    return float(facts.get("peak_bytes_in_use", peak_memory()))


def memory_in_child(name: str) -> float:
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.classification", "--memory-of", name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(json.loads(answer.stdout.splitlines()[-1]))


def measure_times(sizes: Sizes, repeats: int, rounds: int) -> Sheet:
    calls = {name: make_rounds(name, sizes, rounds) for name in CANDIDATES}
    table = interleave(
        calls,
        repeats,
        1,
        reference=FEDAVG,
        title="One round of training",
        rounds=dict.fromkeys(CANDIDATES, rounds),
    )
    about = (
        f"{sizes.per_round} of {sizes.clients} clients with {sizes.samples} images of {sizes.side} x "
        f"{sizes.side} pixels, k = {sizes.particles}, {rounds} rounds a call. "
        f"The paper's training takes {PAPERS_RATIO} times as long as FedAvg's on EMNIST."
    )
    return from_table(table, about)


def measure_memory() -> Sheet:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(memory_in_child, CANDIDATES))
    rows = tuple((name, size / 2**20) for name, size in zip(CANDIDATES, found, strict=True))
    where = "in use on the accelerator" if jax.default_backend() != "cpu" else "of the process"
    return Sheet("Peak memory", ("method", "MiB"), rows, f"Largest number {where}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results/classification/timing"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=5, help="rounds in one call")
    parser.add_argument("--memory-of", choices=list(CANDIDATES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    runtime.configure()
    if arguments.memory_of:
        print(json.dumps(memory(arguments.memory_of, Sizes())))
        return
    # The place of each device's results: those of a processor and of an accelerator stand together.
    folder = arguments.out / jax.default_backend()
    command = (
        f"python -m benchmarks.classification --repeats {arguments.repeats} --rounds "
        f"{arguments.rounds}"
    )
    machine = describe_machine()
    sheets = [measure_times(Sizes(), arguments.repeats, arguments.rounds)]
    write_results(folder, sheets, machine, command)  # what is known if the rest is interrupted
    sheets.append(measure_memory())
    markdown, _ = write_results(folder, sheets, machine, command)
    print(markdown.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
