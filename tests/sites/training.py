"""Trainings for the tests: their settings, one that runs in a thread, and what it should have learned."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from patience import patience

from pacpfl import config as configuration
from pacpfl.config import Config, RunSettings
from pacpfl.data.settings import DataSettings
from pacpfl.data.store import from_clients
from pacpfl.engine import runtime
from pacpfl.engine.simulate import train
from pacpfl.methods.pacpfl import TrainSettings
from pacpfl.methods.registry import build_method
from pacpfl.priors.gp import GPSettings
from pacpfl.run import Watcher
from pacpfl.sites import participation
from pacpfl.sites.recipe import recipe_of
from pacpfl.sites.runs import load_trained, prepare_run, replay
from pacpfl.sites.segment import AtSites
from pacpfl.sites.site import Site
from pacpfl.sites.terms import Outcome, Terms
from pacpfl.types import Client, Federation

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from local_sites import Local

CHECKPOINT = 5  # rounds between two
LONG = patience(300)  # seconds within which anything happens, also on a busy machine

runtime.configure("float64")


def settings(rounds: int, method: str = "pacpfl", seed: int = 3, clients: int = 6) -> Config:
    return Config(
        seed=seed,
        data=DataSettings(clients=clients, new_clients=1, samples=8, test_samples=10),
        prior=GPSettings(mean_widths=(8,), kernel_widths=(8,)),
        train=TrainSettings(rounds=rounds, particles=4),
        run=RunSettings(methods=(method,), precision="float64"),
    )


def wait_for(what: Callable[[], Any], why: str | Callable[[], str], seconds: float = LONG) -> Any:
    """Until `what` returns something true; a test that waits in vain says for what."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(
        f"waited {seconds:.0f} s in vain: {why if isinstance(why, str) else why()}"
    )


class Logged:
    """A training whose participation log can be read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self) -> list[dict[str, Any]]:
        return participation.entries(self.folder / participation.FILE)

    def of_rounds(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["kind"] == "round"]

    def of_segments(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["kind"] == "segment"]

    def reached(self) -> int:
        return max((line["round"] + 1 for line in self.of_rounds()), default=0)

    def last_round_of(self, site: str) -> int:
        every = (line["round"] for line in self.of_rounds() if site in line["sites"])
        return max(every, default=-1)

    def check_nothing_lost(self) -> None:
        """Nothing but the rounds since the last checkpoint: as many as lie between two, at most."""
        reached = 0
        for line in self.lines():
            if line["kind"] == "round":
                reached = line["round"] + 1
            else:
                assert line["start"] >= reached - CHECKPOINT
                reached = line["start"]

    def wait_round(self, number: int) -> None:
        wait_for(lambda: self.reached() >= number, f"round {number} in {self.folder}")


class Running(Logged):
    """A training in a thread, with its progress."""

    def __init__(self, folder: Path, work: Callable[[Watcher], Outcome]) -> None:
        super().__init__(folder)
        self.rounds: list[int] = []
        self.stages: list[str] = []
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self._stop = threading.Event()
        stop = self._stop.is_set
        told = Watcher(self.stages.append, lambda now: self.rounds.append(now.round), stop=stop)
        self._thread = threading.Thread(target=self._run, args=(work, told), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Watcher], Outcome], told: Watcher) -> None:
        try:
            self.outcome = work(told)
        except BaseException as error:
            self.error = error

    def wait_round(self, number: int) -> None:
        def reached() -> bool:
            assert self.error is None, self.error
            return bool(self.rounds) and self.rounds[-1] >= number

        wait_for(reached, lambda: f"round {number}, {self.where()}")

    def where(self) -> str:
        return f"at {self.rounds[-1:]}: {'; '.join(self.stages[-4:])}"

    def finish(self) -> Outcome:
        self._thread.join(LONG)
        if self._thread.is_alive():
            raise AssertionError(f"the run did not end, {self.where()}")
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome

    def stop(self) -> None:
        """Whatever became of the test that began it."""
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), "a training of an earlier test cannot be stopped"


def final(folder: Path, config: Config, method: str = "pacpfl") -> Any:
    """The state that the training has reached, which is that after its last round."""
    _, _, found = load_trained(folder, config, method)
    assert found.round == config.train.rounds
    return found.state[0]


def replayed(
    folder: Path, config: Config, clients: Mapping[str, tuple[Client, ...]], method: str = "pacpfl"
) -> Any:
    """The state that the simulator's functions reach with who took part according to the log."""
    record = participation.read(folder / participation.FILE)
    assert len(record.rounds) == config.train.rounds
    everyone = tuple(client for seat in record.roster for client in clients[seat.site])
    known = recipe_of(config, method)

    def build(n: int) -> Any:
        return known.build(Federation("replay", everyone[:n]).form)

    store = from_clients(everyone)
    state, _ = replay(build, store, record, seed=config.seed, dtype=np.float64)
    return state


def served(folder: Path, config: Config, method: str, sites: Mapping[str, Site]) -> Path:
    """The folder of a run that server and sites have played in this process, to its end."""
    place, terms = prepare_run(folder, config, method, {"encoding": "exact"})
    recipe, text = recipe_of(config, method), configuration.dump(config)
    outcome = AtSites(Local(dict(sites)), recipe, text, Terms(terms.run, 1), place).serve()
    assert outcome.finished, outcome
    return place


def simulated(federation: Federation, config: Config, method: str = "pacpfl") -> Any:
    """The state after an undisturbed run on one machine."""
    made = build_method(method, config, federation.form)
    store = from_clients(federation.existing)
    return train(made, store, rounds=config.train.rounds, seed=config.seed, dtype=np.float64).state


def difference(one: Any, two: Any) -> float:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return max(float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max()) for a, b in pairs)
