"""Who should not be there is refused and logged, and the run goes on with the same particles."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from deployment import Deployment, difference, settings, wait_for

from pacpfl.engines.flare.job import write_job
from pacpfl.engines.flare.process import command
from pacpfl.engines.flare.provision import provision
from pacpfl.engines.flare.supervisor import Unreachable

ROUNDS = 40


def test_a_trainer_that_sends_anything_but_updates(deployment: Deployment) -> None:
    """Wrong shapes, NaN, a pickle, 1 GB: each refused once, none of it in the particles."""
    deployment.restart("north", "evil")
    try:
        config = settings(ROUNDS)
        running = deployment.begin(config, deadline=30.0)
        assert running.finish().finished
        lines = [line for line in running.lines() if line["kind"] == "round"]
        reasons = {line["round"]: line["refused"].get("north", "") for line in lines}
        assert "shape" in reasons[2]
        assert "not finite" in reasons[4]
        assert "no plain array" in reasons[6] or "north" in lines[6]["missing"]
        assert "north" not in lines[8]["sites"]
        found = deployment.final(running, config)
        assert difference(found, deployment.replayed(running, config)) < 1e-6
    finally:
        deployment.restart("north")


def test_a_kit_of_another_authority(deployment: Deployment, tmp_path: Path) -> None:
    """Neither side takes the other's certificate; with the right authority's, the server takes it."""
    provision(replace(deployment.project, sites=("south",)), tmp_path / "kits")
    kit, real = tmp_path / "kits" / "south", deployment.kits / "west"
    assert not greeted(deployment.port, real / "startup" / "rootCA.pem", kit / "startup")
    assert greeted(deployment.port, real / "startup" / "rootCA.pem", real / "startup")
    with Intruder(kit):
        log = kit / "intruder.txt"
        wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text(), "the handshake to fail")
        assert "south" not in deployment.connected()


def test_no_certificate(deployment: Deployment) -> None:
    root = deployment.kits / "west" / "startup" / "rootCA.pem"
    assert not greeted(deployment.port, root, None)


def test_a_valid_certificate_under_another_name(deployment: Deployment, tmp_path: Path) -> None:
    """West's kit, presented as a site that does not exist, and as one that does."""
    log = deployment.kits / "server" / "log.txt"
    for name in ("nobody", "east"):
        kit = tmp_path / name
        for part in ("startup", "local"):
            shutil.copytree(deployment.kits / "west" / part, kit / part)
        about = {"name": name, "role": "site", "project": deployment.project.name}
        (kit / "pacpfl.json").write_text(json.dumps(about))
        words = f"authenticated as 'west' but claimed endpoint '{name}'"
        with Intruder(kit):
            wait_for(lambda words=words: words in log.read_text(), f"the server to refuse {name}")
        assert "nobody" not in deployment.connected()
    assert_trains(deployment)


def test_unknown_jobs_run_nothing(deployment: Deployment, tmp_path: Path) -> None:
    """A job with a command of its own, and one that brings code: the sites run neither."""
    bait = tmp_path / "ran"
    for kind in ("command", "code"):
        job = write_job(tmp_path / kind, tmp_path / "run", "0123abcd", 1, list(deployment.sites))
        path = job / "app" / "config" / "config_fed_client.json"
        config = json.loads(path.read_text())
        if kind == "command":
            config["executors"][0]["executor"] = {
                "path": "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor",
                "args": {"execution_mode": "external_process", "command": f"touch {bait}"},
            }
        else:
            (job / "app" / "custom").mkdir()
            text = f"from pathlib import Path\nPath({str(bait)!r}).touch()\nclass Thing: pass\n"
            (job / "app" / "custom" / "thing.py").write_text(text)
            config["components"] = [{"id": "thing", "path": "thing.Thing", "args": {}}]
        path.write_text(json.dumps(config))
        console = deployment.connect()
        try:
            number = console.submit(job)
            wait_for(lambda c=console, n=number: c.has_ended(n), f"the job with {kind} to end")
        except Unreachable as error:
            assert "byoc" in str(error).lower() or "not authorized" in str(error).lower(), error
        finally:
            console.close()
        assert not bait.exists()
    assert_trains(deployment)


def assert_trains(deployment: Deployment) -> None:
    config = settings(6)
    running = deployment.begin(config)
    assert running.finish().finished
    assert (
        difference(deployment.final(running, config), deployment.replayed(running, config)) < 1e-6
    )


def greeted(port: int, root: Path, kit: Path | None) -> bool:
    """Whether the server speaks to who presents this kit's certificate, or none."""
    context = ssl.create_default_context(cafile=str(root))
    context.check_hostname = False
    if kit is not None:
        context.load_cert_chain(kit / "client.crt", kit / "client.key")
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 30) as plain,
            context.wrap_socket(plain) as line,
        ):
            line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return bool(line.recv(1))  # TLS 1.3 tells a client late that it is refused
    except (ssl.SSLError, ConnectionError):
        return False


class Intruder:
    """A site's program with a kit that is not its own, until the block ends."""

    def __init__(self, kit: Path) -> None:
        (kit / "transfer").mkdir(parents=True, exist_ok=True)
        self.log = open(kit / "intruder.txt", "wb")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            command(kit, "site"),
            start_new_session=True,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.process

    def __exit__(self, *error: Any) -> None:
        try:
            family = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        for process in family:
            process.kill()
        self.process.kill()
        self.process.wait(30)
        self.log.close()
