"""`python -m benchmarks.sites [--quick] [--out FOLDER]`: a training across sites, every one a process here.

Needs pacpfl[sites] (`make test-sites` sets up .venv-sites with it) and an idle machine. What is measured
is what an operator gets: kits, mutual TLS, `pacpfl run --engine flare` from its start to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import describe_machine
from benchmarks.measure import ROOT
from benchmarks.results import Sheet, sheet_lines, to_json
from pacpfl import config as configuration
from pacpfl import files
from pacpfl.build import build_federation
from pacpfl.cli.common import shipped
from pacpfl.config import Config
from pacpfl.data.site_folder import write_client_file
from pacpfl.sites import participation
from pacpfl.sites.kits import ABOUT, Project, provision
from pacpfl.sites.session import Console
from pacpfl.sites.terms import Unreachable

ADMIN = "admin@bench.org"
MEDIAN_GOAL, TOTAL_GOAL = 0.3, 180.0  # seconds
LONGEST = 1800.0  # seconds that anything may take


@dataclass(frozen=True)
class Plan:
    rounds: int = 300
    compressed_rounds: int = 30
    sites: int = 20
    rounds_of_many: int = 50


QUICK = Plan(20, 5, 5, 5)


@dataclass(frozen=True)
class Measured:
    """One training: what its participation log says, and what it took from outside."""

    sites: int
    encoding: str
    rounds: int
    seconds: float  # of `pacpfl run`, from its start to its end
    round_seconds: np.ndarray
    sent: float  # bytes a round, to all sites
    received: float
    traces: int
    segments: int
    server_bytes: int  # memory, at most
    sites_bytes: int  # all of them together


class Deployed:
    """A server and sites in a folder, started, until the block ends."""

    def __init__(self, folder: Path, config: Config, sites: int) -> None:
        self.folder, self.config = folder, config
        self.sites = tuple(f"site{number:02d}" for number in range(1, sites + 1))
        self.kits = folder / "kits"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Deployed:
        provision(Project("bench", self.sites, "127.0.0.1", _free_port(), ADMIN), self.kits)
        federation = build_federation(self.config)
        for number, client in enumerate(federation.existing):
            site = self.sites[number % len(self.sites)]
            write_client_file(self.folder / "data" / site, client, federation)
        try:
            self._start("server", "server", "start", "--kit", str(self.kits / "server"))
            for site in self.sites:
                data = str(self.folder / "data" / site)
                kit = str(self.kits / site)
                self._start(site, "site", "start", "--kit", kit, "--data", data)
            self._wait_for_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        every = [process for name in self.processes for process in self._family(name)]
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(every, timeout=30)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        for process in self.processes.values():
            process.wait(30)

    def train(self, rounds: int, encoding: str = "exact") -> Measured:
        about = self.kits / ADMIN / ABOUT
        kit = json.loads(about.read_text(encoding="utf-8"))
        about.write_text(json.dumps(kit | {"terms": {"encoding": encoding}}), encoding="utf-8")
        config = configuration.override(self.config, [f"rounds={rounds}"])
        file, out = self.folder / "run.toml", self.folder / f"run-{encoding}"
        file.write_text(configuration.dump(config), encoding="utf-8")
        words = ["run", "--config", str(file), "--engine", "flare", "--kit", str(self.kits / ADMIN)]
        began = time.monotonic()
        running = self._start("run", *words, "--out", str(out))
        server = sites = 0
        while running.poll() is None:
            if time.monotonic() - began > LONGEST:
                running.kill()
                raise RuntimeError(f"{rounds} rounds took more than {LONGEST:.0f} s")
            server = max(server, self._memory("server"))
            sites = max(sites, sum(self._memory(site) for site in self.sites))
            with suppress(subprocess.TimeoutExpired):
                running.wait(5.0)
        seconds = time.monotonic() - began
        del self.processes["run"]
        if running.returncode != 0:
            raise RuntimeError((self.folder / "run.txt").read_text(encoding="utf-8"))
        lines = participation.entries(out / "sites" / "pacpfl" / participation.FILE)
        each = [line for line in lines if line["kind"] == "round"]
        return Measured(
            sites=len(self.sites),
            encoding=encoding,
            rounds=len(each),
            seconds=seconds,
            round_seconds=np.array([line["seconds"] for line in each]),
            sent=float(np.mean([line["sent"] for line in each])),
            received=float(np.mean([line["received"] for line in each])),
            traces=max(line["traces"] for line in each),
            segments=len(lines) - len(each),
            server_bytes=server,
            sites_bytes=sites,
        )

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.txt", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "pacpfl", *arguments],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self.processes[name]

    def _wait_for_all(self) -> None:
        until = time.monotonic() + LONGEST
        connected: set[str] = set()
        while not connected >= set(self.sites):
            if time.monotonic() > until:
                raise RuntimeError(f"only {sorted(connected)} connected")
            time.sleep(1.0)
            with suppress(Unreachable):
                line = Console(self.kits / ADMIN, ADMIN)
                try:
                    connected = set(line.connected())
                finally:
                    line.close()

    def _family(self, name: str) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.processes[name].pid)
            return [top, *top.children(recursive=True)]
        return []

    def _memory(self, name: str) -> int:
        """Of all its processes; what several share is divided among them."""
        total = 0
        for process in self._family(name):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total


def sheets(three: list[Measured], many: Measured) -> list[Sheet]:
    """`three`: of 3 sites, the long training first, then those with compressed updates."""
    long = three[0]
    median = float(np.median(long.round_seconds))
    slow = float(np.quantile(long.round_seconds, 0.95))
    goals = Sheet(
        f"{long.sites} sites",
        ("what", "measured", "goal", "met"),
        (
            ("median round, s", median, f"{MEDIAN_GOAL}", _met(median, MEDIAN_GOAL)),
            ("95% of rounds within, s", slow, "", ""),
            (
                f"{long.rounds} rounds end to end, s",
                long.seconds,
                f"{TOTAL_GOAL:.0f}",
                _met(long.seconds, TOTAL_GOAL),
            ),
            ("traces of JAX at a site", long.traces, "1", _met(long.traces, 1)),
        ),
        "Polynomial, 24 clients, k = 4, mutual TLS on loopback. End to end: `pacpfl run` from its "
        "start to its end, with the sites connected.",
    )
    sizes = Sheet(
        "Bytes of a round",
        ("updates", "rounds", "down, kB", "up, kB", "median round, s"),
        tuple(
            (
                m.encoding,
                m.rounds,
                m.sent / 1e3,
                m.received / 1e3,
                float(np.median(m.round_seconds)),
            )
            for m in three
        ),
        f"All {long.sites} sites together; arrays without FLARE's own headers.",
    )
    crowd = Sheet(
        f"{many.sites} sites",
        ("what", "measured"),
        (
            ("rounds completed", many.rounds),
            ("segments", many.segments),
            ("end to end, s", many.seconds),
            ("median round, s", float(np.median(many.round_seconds))),
            ("memory of the server, MB", many.server_bytes / 1e6),
            ("memory of all sites together, MB", many.sites_bytes / 1e6),
            ("down a round, kB", many.sent / 1e3),
            ("up a round, kB", many.received / 1e3),
            ("traces of JAX at a site", many.traces),
        ),
        "All on this machine, four processes for each site. Memory is the largest of samples taken "
        "every 5 s; pages that processes share are divided among them.",
    )
    return [goals, sizes, crowd]


def _met(value: float, goal: float) -> str:
    return "yes" if value <= goal else "no"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write(folder: Path, found: list[Sheet], machine: dict[str, Any], command: str) -> Path:
    """README.md for people, results.json for programs."""
    now = datetime.now(UTC)
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        "# Training across sites: time, memory, bytes",
        "",
        f"Measured on {now:%Y-%m-%d %H:%M} UTC: {machine['processor']}, {machine['cores']} cores, load "
        f"{machine['load']} at the start; {machine['system']}; {versions}.",
        "",
        f"Command: `{command}`. How such a deployment is set up: [deploy.md](../../deploy.md).",
    ]
    for sheet in found:
        lines += ["", f"## {sheet.title}", "", sheet.note, "", *sheet_lines(sheet)]
    folder.mkdir(parents=True, exist_ok=True)
    readme = folder / "README.md"
    files.write(readme, ("\n".join(lines) + "\n").encode())
    files.write(folder / "results.json", to_json(found, machine, command, now).encode())
    return readme


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds and sites")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    plan = QUICK if given.quick else Plan()
    folder = given.out or ROOT / ("runs/bench-sites" if given.quick else "docs/results/sites")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    machine = describe_machine()
    machine["versions"]["nvflare"] = version("nvflare")
    config = shipped("polynomial")
    with tempfile.TemporaryDirectory(prefix="pacpfl-sites-") as scratch:
        with Deployed(Path(scratch) / "three", config, 3) as deployed:
            three = [deployed.train(plan.rounds)]
            three += [deployed.train(plan.compressed_rounds, e) for e in ("float16", "int8")]
        with Deployed(Path(scratch) / "many", config, plan.sites) as deployed:
            many = deployed.train(plan.rounds_of_many)
    command = " ".join(["python -m benchmarks.sites", *["--quick"] * given.quick])
    print(write(folder, sheets(three, many), machine, command).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
