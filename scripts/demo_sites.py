"""`make demo-sites`: a server and three sites on this machine, each a process with a folder of its own.

Deals the Polynomial data out to the sites and then gives the commands of docs/deploy.md, one after the
other: kits, server, sites, training, status, and each site's own models. Ends with the report of
`make demo`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from pacpfl.build import build_federation
from pacpfl.cli.common import shipped
from pacpfl.data.site_folder import write_client_file

SITES = ("east", "north", "west")
ADMIN = "kits/admin@demo.org"
PROJECT = """name = "demo"
sites = {sites}

[server]
host = "127.0.0.1"
port = {port}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-sites"))
    given = parser.parse_args()
    folder = given.out.resolve()
    if folder.exists():
        shutil.rmtree(folder)
    prepare(folder)
    print(f"In {given.out}: sites.toml, and in data/ what each site has.")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        run(folder, "sites", "provision", "sites.toml")
        processes.append(start(folder, "server", "start", "--kit", "kits/server"))
        for site in SITES:
            words = ("--kit", f"kits/{site}", "--data", f"data/{site}")
            processes.append(start(folder, "site", "start", *words))
        where = ("--engine", "flare", "--kit", ADMIN, "--demonstration", "--out", "run")
        run(folder, "run", "polynomial", "--set", f"rounds={given.rounds}", *where)
        run(folder, "sites", "status", "--kit", ADMIN, "--run", "run")
    except subprocess.CalledProcessError as error:
        sys.exit(f"It ended with code {error.returncode}; the logs are {given.out}/kits/*/log.txt.")
    finally:
        stop(processes)
    for site in SITES:
        run(folder, "site", "personalize", "--kit", f"kits/{site}")
    print(f"The report is {folder / 'run' / 'report.html'}")


def prepare(folder: Path) -> None:
    """The project's file, and each site's share of the clients."""
    folder.mkdir(parents=True)
    sites = json.dumps(list(SITES))
    (folder / "sites.toml").write_text(PROJECT.format(sites=sites, port=free_port()))
    federation = build_federation(shipped("polynomial"))
    for number, client in enumerate(federation.existing):
        site = SITES[number * len(SITES) // len(federation.existing)]
        write_client_file(folder / "data" / site, client, federation)


def run(folder: Path, *words: str) -> None:
    say(words)
    subprocess.run([sys.executable, "-m", "pacpfl", *words], cwd=folder, check=True)


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """In the background, out of reach of a Ctrl-C that is meant for this script."""
    say((*words, "&"))
    with open(folder / "output.txt", "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "pacpfl", *words],
            cwd=folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def say(words: tuple[str, ...]) -> None:
    print("$ pacpfl", " ".join(word if word == "&" else shlex.quote(word) for word in words))
    sys.stdout.flush()


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
