"""`make demo-sites`: a server and three sites on this machine, each a process with a folder of its own.

Provisions kits, deals the Polynomial data out to the sites, starts everything, trains across the sites,
has each site personalise its own clients, and ends with the report of `make demo`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from pacpfl import config as configuration
from pacpfl.cli import shipped, watching
from pacpfl.cli_sites import run_across
from pacpfl.data.site_folder import write_client_file
from pacpfl.engines import runtime
from pacpfl.engines.flare.provision import Project, provision
from pacpfl.report.html import write_report
from pacpfl.studies import run as study
from pacpfl.studies.build import build_federation

SITES = ("east", "north", "west")
ADMIN = "admin@demo.org"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-sites"))
    given = parser.parse_args()
    out = given.out.resolve()
    if out.exists():
        shutil.rmtree(out)
    config = configuration.override(shipped("polynomial"), [f"rounds={given.rounds}"])
    runtime.configure(config.run.precision)
    kits = out / "kits"
    provision(Project("demo", SITES, "127.0.0.1", free_port(), ADMIN), kits)
    federation = build_federation(config)
    share = -(-len(federation.existing) // len(SITES))
    for i, site in enumerate(SITES):
        for client in federation.existing[share * i : share * (i + 1)]:
            write_client_file(out / "data" / site, client, federation)
    processes = [start("server", "start", "--kit", str(kits / "server"))]
    try:
        for site in SITES:
            data = str(out / "data" / site)
            processes.append(start("site", "start", "--kit", str(kits / site), "--data", data))
        with watching() as watcher:
            left = run_across(config, out / "run", kits / ADMIN, watcher, demonstration=True)
            assert left is not None
            study.run(left, out / "run", watcher)
            page = write_report(out / "run")
    finally:
        stop(processes)
    for site in SITES:
        subprocess.run(command("site", "personalize", "--kit", str(kits / site)), check=True)
    print(f"The report is {page}")


def command(*arguments: str) -> list[str]:
    code = (
        "import sys, typer; from pacpfl.cli_sites import add_to; "
        "app = typer.Typer(); add_to(app); app()"
    )
    return [sys.executable, "-c", code, *arguments]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(*arguments), start_new_session=True, stdin=subprocess.DEVNULL)


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    until = time.monotonic() + 20
    for process in processes:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
