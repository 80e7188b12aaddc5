"""FLARE's server and client as processes that are kept running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pacpfl.errors import InputError
from pacpfl.sites.provision import ABOUT, settle

LOG = "output.txt"
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds before a process that died is started again
STEADY = 60.0  # seconds after which a process counts as running well
WANTED = {"server": "the server's", "site": "a site's", "admin": "the administrator's"}
PROGRAMS = {
    "server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
    "site": ("nvflare.private.fed.app.client.client_train", "fed_client.json"),
}


def read_kit(kit: Path, role: str) -> dict[str, Any]:
    """What a kit is for: its name, its role, its project."""
    try:
        about = dict(json.loads((kit / ABOUT).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{kit} is no kit; give the folder that pacpfl sites provision made."
        ) from error
    if about.get("role") != role:
        raise InputError(
            f"{kit} is the kit of {about.get('name')}, and {WANTED[role]} is needed here."
        )
    return about


def command(kit: Path, role: str) -> list[str]:
    about = read_kit(kit, role)
    program, settings = PROGRAMS[role]
    identity = [f"uid={about['name']}"] if role == "site" else []
    return [
        *(sys.executable, "-u", "-m", program, "-m", str(kit.resolve()), "-s", settings),
        *(
            "--set",
            "secure_train=true",
            *identity,
            f"org={about['project']}",
            "config_folder=config",
        ),
    ]


def keep_running(
    kit: Path,
    role: str,
    environment: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Until SIGTERM or SIGINT; a process that dies is started again, after ever longer waits.

    What FLARE says is in the kit's log.txt, and what it prints in output.txt.
    """
    arguments = command(kit, role)
    settle(kit)
    stopping = False

    def stop(number: int, frame: Any) -> None:
        nonlocal stopping
        stopping = True
        if child is not None and child.poll() is None:
            child.terminate()

    child: subprocess.Popen[bytes] | None = None
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    wait = FIRST_WAIT
    (kit / "transfer").mkdir(exist_ok=True)
    while not stopping:
        began = time.monotonic()
        with open(kit / LOG, "ab") as log:
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        (kit / "process.pid").write_text(str(child.pid))
        child.wait()
        wait = FIRST_WAIT if time.monotonic() - began > STEADY else min(2 * wait, LONGEST_WAIT)
        if not stopping:
            say(f"It ended with code {child.returncode}, see {kit / LOG}; again in {wait:.0f} s.")
        until = time.monotonic() + wait
        while not stopping and time.monotonic() < until:
            time.sleep(0.1)
