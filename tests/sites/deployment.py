"""A whole deployment in a temporary folder, and what can befall it. Nothing here waits without limit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from guard import MARK, marked
from patience import patience
from training import CHECKPOINT, Logged, Running, difference, final, replayed, settings, wait_for

from pacpfl.build import build_federation
from pacpfl.config import Config
from pacpfl.data.site_folder import write_client_file
from pacpfl.sites.kits import provision, read_project
from pacpfl.sites.runs import prepare_run
from pacpfl.sites.session import Console
from pacpfl.sites.supervisor import Care, Supervisor
from pacpfl.sites.terms import Unreachable
from pacpfl.types import Federation

ADMIN = "admin@houses.org"
SITES = ("east", "north", "west")
SHARE = 2  # clients of each site
PROJECT = """
name = "houses"
sites = {sites}
[server]
host = "127.0.0.1"
port = {port}
[run]
deadline = 10
checkpoint_rounds = {checkpoint}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """A server and sites, two clients each, and data for one site more: `spare`."""

    def __init__(self, folder: Path, sites: tuple[str, ...] = SITES, spare: str = "south") -> None:
        self.folder, self.kits, self.sites = folder, folder / "kits", sites
        self.port = free_port()
        self.file = folder / "sites.toml"
        names = json.dumps(list(sites))
        self.file.write_text(PROJECT.format(sites=names, port=self.port, checkpoint=CHECKPOINT))
        self.project = read_project(self.file)
        provision(self.project, self.kits)
        every = build_federation(settings(1, clients=SHARE * (len(sites) + 1)))
        self.clients = {}
        for i, name in enumerate((*sites, spare)):
            self.clients[name] = every.existing[SHARE * i : SHARE * (i + 1)]
            for client in self.clients[name]:
                write_client_file(self.data(name), client, every)
        together = tuple(client for name in sites for client in self.clients[name])
        self.federation = Federation(every.name, together, features=every.features)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.natures: dict[str, str] = {}
        self.since: dict[str, float] = {}
        self.trainings: list[Running] = []
        self.commands: list[subprocess.Popen[bytes]] = []
        self._runs = 0
        self.guard = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("guard.py")), str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def data(self, site: str) -> Path:
        return self.folder / "data" / site

    def own(self, site: str) -> Path:
        return self.kits / site / "pacpfl"

    def limit(self, site: str, **limits: Any) -> None:
        """What the people of a site write into its file."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in limits.items()]
        self.own(site).mkdir(exist_ok=True)
        text = "\n".join([f"data = {json.dumps(str(self.data(site)))}", "[limits]", *lines, ""])
        (self.own(site) / "site.toml").write_text(text)

    def refusals(self, site: str) -> list[str]:
        """What the site says of the requests that it has refused."""
        lines = (self.own(site) / "refused.jsonl").read_text().splitlines()
        return [json.loads(line)["reason"] for line in lines]

    @contextmanager
    def slowed(self, site: str, seconds: float) -> Iterator[None]:
        """So much longer takes every round, so that a training does not end before something happens."""
        file = self.own(site) / "slow"
        file.write_text(str(seconds))
        try:
            yield
        finally:
            file.unlink()

    def start(self, name: str, data: Path | None = None, nature: str = "slow") -> None:
        """A process of its own group, as an operator's service manager would start it.

        `nature` is a folder here whose sitecustomize.py changes how the site's trainer behaves.
        """
        more = ["--data", str(data)] if data is not None else []
        role = "server" if name == "server" else "site"
        self.natures[name], self.since[name] = nature, time.time()
        self.processes[name] = self.command(
            role, "start", "--kit", str(self.kits / name), *more, log=name, nature=nature
        )

    def command(self, *arguments: str, log: str, nature: str = "") -> subprocess.Popen[bytes]:
        """`pacpfl` with these arguments, in the background; what it says is in LOG.txt."""
        paths = [str(Path(__file__).parent / nature)] if nature else []
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        environment = {"PYTHONPATH": os.pathsep.join(paths), MARK: str(self.folder)}
        with open(self.folder / f"{log}.txt", "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pacpfl", *arguments],
                start_new_session=True,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | environment,
                cwd=self.folder,
            )
        self.commands.append(process)
        return process

    def mend(self) -> None:
        """Server and sites there and as they should be, whatever an earlier test has left behind."""
        self.stop_trainings()
        wanted = ("server", *self.sites)
        for name in [name for name in self.processes if name not in wanted]:
            self.kill(name)
            del self.processes[name]
        for name in wanted:
            known = self.processes.get(name)
            if known is not None and known.poll() is None and self.natures[name] == "slow":
                continue
            if known is not None:
                self.kill(name)
            self.start(name, None if name == "server" else self.data(name))
        self.wait_connected(*self.sites)

    def wait_connected(self, *sites: str) -> None:
        """Until the server has heard of them since they were started: it is slow to miss a dead one."""

        def heard() -> bool:
            connected = self.connected()
            return all(connected.get(name, 0.0) > self.since[name] for name in sites)

        wait_for(heard, f"{', '.join(sites)} to connect")

    def restart(self, name: str, nature: str = "slow") -> None:
        self.kill(name)
        self.start(name, self.data(name), nature)
        self.wait_connected(name)

    def connected(self) -> dict[str, float]:
        with suppress(Unreachable), closing(self.connect()) as console:
            return console.connected()
        return {}

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
                    if "pacpfl.sites.trainer" in process.cmdline():
                        return process
            return None

        return wait_for(find, f"the trainer of {site}")

    def kill(self, name: str) -> None:
        """Everything of a participant at once, as when its machine loses power."""
        for process in self.below(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.processes[name].wait(patience(30))

    def kill_server_program(self, with_job: bool) -> None:
        """The server's program dies; what keeps it running does not."""
        self._program("server").kill()
        if with_job:
            self.kill_job_of("server")

    def kill_job_of(self, name: str) -> None:
        """The process that works for the running segment, and what it has started."""
        jobs = ("nvflare.private.fed.app.server.runner_process",
                "nvflare.private.fed.app.client.worker_process")  # fmt: skip
        for process in marked(str(self.folder)):
            with suppress(psutil.Error):
                words = process.cmdline()
                if any(job in words for job in jobs) and str((self.kits / name).resolve()) in words:
                    process.kill()

    def _program(self, name: str) -> psutil.Process:
        return psutil.Process(int((self.kits / name / "process.pid").read_text()))

    def stop_trainings(self) -> None:
        for training in self.trainings:
            training.stop()
        self.trainings.clear()
        for process in self.commands:
            if process not in self.processes.values():
                process.kill()
                process.wait(patience(30))
        self.commands.clear()

    def stop_all(self) -> None:
        self.stop_trainings()
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        psutil.wait_procs(marked(str(self.folder)), timeout=patience(10))
        self.guard.communicate(timeout=patience(60))  # trainers outlive their site by a minute
        for process in self.processes.values():
            process.wait(patience(30))

    def begin(
        self, config: Config, method: str = "pacpfl", strangers: bool = False, **terms: Any
    ) -> Running:
        """`strangers`: whether sites that were added later take part as well."""
        out = self.out()
        wanted = {"deadline": 15.0, "checkpoint_rounds": CHECKPOINT, "quorum": 1} | terms
        folder, made = prepare_run(out, config, method, wanted)
        care = Care(
            self.sites, wanted["quorum"], strangers, rejoin_seconds=3.0, wind_down_seconds=5.0
        )
        run = self.connect(), folder, made.run, config.train.rounds, care
        running = Running(folder, lambda told: Supervisor(*run, told).run())
        self.trainings.append(running)
        return running

    def out(self) -> Path:
        self._runs += 1
        return self.folder / f"run-{self._runs}"

    def final(self, running: Logged, config: Config, method: str = "pacpfl") -> Any:
        return final(running.folder, config, method)

    def check_record(self, running: Logged, config: Config, method: str = "pacpfl") -> None:
        """What was learned is what follows from who took part, as the log says."""
        found = self.final(running, config, method)
        expected = replayed(running.folder, config, self.clients, method)
        assert difference(found, expected) < 1e-6
