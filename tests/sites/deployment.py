"""A whole deployment in a temporary folder, and what can befall it. Nothing here waits without limit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil

from pacpfl.data.site_folder import write_client_file
from pacpfl.data.store import from_clients
from pacpfl.engines import runtime
from pacpfl.engines.flare import participation
from pacpfl.engines.flare.provision import Project, provision
from pacpfl.engines.flare.replay import replay
from pacpfl.engines.flare.session import Console
from pacpfl.engines.flare.supervisor import Care, Told, Unreachable, supervise
from pacpfl.engines.flare.terms import Outcome
from pacpfl.sections import Config, DataConfig, PriorConfig, RunConfig, TrainConfig
from pacpfl.studies.build import build_federation, build_method
from pacpfl.studies.sites import opened
from pacpfl.studies.sites_run import load_trained, prepare_run
from pacpfl.types import Federation

ADMIN = "admin@houses.org"
SITES = ("east", "north", "west")
LONG = 240.0  # seconds within which anything happens, also on a busy machine

runtime.configure("float64")


def settings(rounds: int, method: str = "pacpfl", seed: int = 3) -> Config:
    return Config(
        seed=seed,
        data=DataConfig(clients=6, new_clients=1, samples=8, test_samples=10),
        prior=PriorConfig(mean_widths=(8,), kernel_widths=(8,)),
        train=TrainConfig(rounds=rounds, particles=4),
        run=RunConfig(methods=(method,), precision="float64"),
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: Callable[[], Any], why: str, seconds: float = LONG) -> Any:
    """Until `what` returns something true; a test that waits in vain says for what."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:.0f} s in vain: {why}")


class Running:
    """A training in a thread, with its progress."""

    def __init__(self, folder: Path, work: Callable[[Told], Outcome]) -> None:
        self.folder = folder
        self.rounds: list[int] = []
        self.stages: list[str] = []
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self._stop = threading.Event()
        told = Told(lambda now: self.rounds.append(now.round), self._stage, self._stop.is_set)
        self._thread = threading.Thread(target=self._run, args=(work, told), daemon=True)
        self._thread.start()

    def _stage(self, text: str) -> None:
        if not self.stages or self.stages[-1] != text:
            self.stages.append(text)

    def _run(self, work: Callable[[Told], Outcome], told: Told) -> None:
        try:
            self.outcome = work(told)
        except BaseException as error:
            self.error = error

    def wait_round(self, number: int) -> None:
        def reached() -> bool:
            assert self.error is None, self.error
            return bool(self.rounds) and self.rounds[-1] >= number

        wait_for(reached, f"round {number}, at {self.rounds[-1:]}, {self.stages[-3:]}")

    def finish(self) -> Outcome:
        self._thread.join(LONG)
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join(30)
            raise AssertionError(f"the run did not end: {self.rounds[-1:]} {self.stages[-4:]}")
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome

    def lines(self) -> list[dict[str, Any]]:
        return participation.entries(self.folder / participation.FILE)


class Deployment:
    def __init__(self, folder: Path, sites: tuple[str, ...] = SITES) -> None:
        self.folder, self.kits, self.sites = folder, folder / "kits", sites
        self.port = free_port()
        self.project = Project("houses", sites, "127.0.0.1", self.port, ADMIN)
        provision(self.project, self.kits)
        self.config = settings(10)
        self.federation = build_federation(self.config)
        share = len(self.federation.existing) // len(sites)
        for i, name in enumerate(sites):
            for client in self.federation.existing[share * i : share * (i + 1)]:
                write_client_file(self.data(name), client, self.federation)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started: list[psutil.Process] = []
        self._runs = 0

    def data(self, site: str) -> Path:
        return self.folder / "data" / site

    def own(self, site: str) -> Path:
        return self.kits / site / "pacpfl"

    def limit(self, site: str, **limits: Any) -> None:
        lines = [f"{name} = {json.dumps(value)}" for name, value in limits.items()]
        self.own(site).mkdir(exist_ok=True)
        text = "\n".join([f"data = {json.dumps(str(self.data(site)))}", "[limits]", *lines, ""])
        (self.own(site) / "site.toml").write_text(text)

    def start(self, name: str, data: Path | None = None, nature: str = "slow") -> None:
        """A process of its own group, as an operator's service manager would start it.

        `nature` is a folder here whose sitecustomize.py changes how the site's trainer behaves.
        """
        role = "server" if name == "server" else "site"
        group = f"{role}_app"
        more = ["--data", str(data)] if data is not None else []
        code = f"from pacpfl.cli_sites import {group} as app; app()"
        arguments = ["start", "--kit", str(self.kits / name), *more]
        # An app with a single command takes its arguments without the command's name.
        arguments = arguments[1:] if role == "server" else arguments
        log = open(self.folder / f"{name}.txt", "ab")  # noqa: SIM115 - as long as the process
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            start_new_session=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent / nature)},
        )

    def start_all(self) -> None:
        self.start("server")
        for name in self.sites:
            self.start(name, self.data(name))
        wait_for(lambda: set(self.sites) <= set(self.connected()), "all sites to connect")

    def restart(self, name: str, nature: str = "slow") -> None:
        """Back when the server has heard of it anew: it takes a while to see that a site is gone."""
        self.kill(name)
        since = time.time()
        self.start(name, self.data(name), nature)
        wait_for(lambda: self.connected().get(name, 0.0) > since, f"{name} to be back")

    def connected(self) -> dict[str, float]:
        try:
            console = self.connect()
        except Unreachable:
            return {}
        try:
            return console.connected()
        except Unreachable:
            return {}
        finally:
            console.close()

    def connect(self) -> Console:
        return Console(self.kits / ADMIN, ADMIN)

    def below(self, name: str) -> list[psutil.Process]:
        """The processes of a participant, the one that was started first."""
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.processes[name].pid)
            return [top, *top.children(recursive=True)]
        return []

    def trainer(self, site: str) -> psutil.Process:
        def find() -> psutil.Process | None:
            for process in self.below(site):
                with suppress(psutil.NoSuchProcess):
                    if "pacpfl.studies.site_trainer" in process.cmdline():
                        return process
            return None

        return wait_for(find, f"the trainer of {site}")

    def kill(self, name: str) -> None:
        """Everything of a participant at once, as when its machine loses power."""
        for process in self.below(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.processes[name].wait(30)

    def kill_server_program(self, with_job: bool) -> None:
        """The server's program dies; what keeps it running does not."""
        program = int((self.kits / "server" / "process.pid").read_text())
        family = [psutil.Process(program)]
        self.started += family[0].children(recursive=True)
        if with_job:
            family += family[0].children(recursive=True)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def stop_all(self) -> None:
        every = [process for name in self.processes for process in self.below(name)]
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(every, timeout=10)
        for process in [*alive, *self.started]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in self.processes.values():
            process.wait(30)

    def begin(self, config: Config, method: str = "pacpfl", **terms: Any) -> Running:
        self._runs += 1
        out = self.folder / f"run-{self._runs}"
        wanted = {"deadline": 15.0, "checkpoint_rounds": 5, "quorum": 1} | terms
        folder, name = prepare_run(out, config, method, wanted)
        care = Care(self.sites, wanted["quorum"], rejoin_seconds=3.0)
        return Running(
            folder,
            lambda told: supervise(self.connect, folder, name, config.train.rounds, care, told),
        )

    def final(self, running: Running, config: Config, method: str = "pacpfl") -> Any:
        _, _, found = load_trained(running.folder, config, method)
        assert found.round == config.train.rounds
        return found.state[0]

    def replayed(self, running: Running, config: Config, method: str = "pacpfl") -> Any:
        """The state that the simulator's functions reach with the clients of the log."""
        record = participation.read(running.folder / participation.FILE)
        assert len(record.rounds) == config.train.rounds
        everyone = in_seats(self.federation, self.sites, record)
        known = opened(config, method)

        def build(n: int) -> Any:
            return known.build(Federation("replay", everyone.existing[:n]))

        state, _ = replay(
            build, from_clients(everyone.existing), record, seed=config.seed, dtype=np.float64
        )
        return state


def in_seats(
    federation: Federation, sites: tuple[str, ...], record: participation.Record
) -> Federation:
    """The clients in the order in which the run's roster numbers them."""
    share = len(federation.existing) // len(sites)
    clients: list[Any] = []
    for seat in record.roster:
        start = share * sites.index(seat.site)
        clients += federation.existing[start : start + share]
    return Federation(federation.name, tuple(clients))


def simulated(federation: Federation, config: Config, method: str = "pacpfl") -> Any:
    from pacpfl.engines.simulate import train

    made = build_method(method, config, federation)
    store = from_clients(federation.existing)
    return train(made, store, rounds=config.train.rounds, seed=config.seed, dtype=np.float64).state


def difference(one: Any, two: Any) -> float:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return max(float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max()) for a, b in pairs)
