"""Who should not be there is refused and logged, and the run goes on with the particles of its record.

One training, during which all of them try at once: a site that sends anything but updates, a site with
another major version, a site whose limits forbid the run, kits of another authority and under other
names, a line without a certificate, jobs with commands and code of their own.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from deployment import Deployment
from training import Running, settings, wait_for

from pacpfl import __version__
from pacpfl.sites.kits import command, provision, write_job

ROUNDS = 60
HONEST, EVIL, NEWER, STRICT = "east", "north", "west", "south"


@dataclass
class Siege:
    """What the intruders did and saw while the training ran."""

    deployment: Deployment
    running: Running
    greeted: dict[str, bool]
    connected: dict[str, float]
    logs: dict[str, str]
    ran: list[str]

    def refusals(self, site: str) -> dict[int, str]:
        lines = self.running.of_rounds()
        return {x["round"]: x["refused"][site] for x in lines if site in x["refused"]}


@pytest.fixture(scope="module")
def siege(
    shared_deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Siege]:
    deployment, folder = shared_deployment, tmp_path_factory.mktemp("intruders")
    deployment.mend()
    deployment.restart(EVIL, "evil")
    deployment.restart(NEWER, "newer")
    if not (deployment.kits / STRICT).exists():
        provision(deployment.project, deployment.kits, (STRICT,))
    deployment.limit(STRICT, methods=["fedavg"])
    deployment.start(STRICT)
    deployment.wait_connected(STRICT)
    running = deployment.begin(settings(ROUNDS), strangers=True, deadline=60.0)
    running.wait_round(10)  # what the evil site sends comes first: a gigabyte takes its time
    with deployment.slowed(HONEST, 5.0):
        with ThreadPoolExecutor() as both:
            met, submitted = (both.submit(what, deployment, folder) for what in (meet, submit))
            (greetings, logs), ran = met.result(), submitted.result()
        connected = deployment.connected()
        assert running.rounds[-1] < ROUNDS, "the intruders came too late"
    assert running.finish().finished
    yield Siege(deployment, running, greetings, connected, logs, ran)
    deployment.limit(STRICT)


def meet(deployment: Deployment, folder: Path) -> tuple[dict[str, bool], dict[str, str]]:
    """Who knocks with which certificate: whether the server speaks to them, and what is logged."""
    real, port = deployment.kits / NEWER, deployment.port
    root = real / "startup" / "rootCA.pem"
    strange = replace(deployment.project, sites=("stranger",))
    provision(strange, folder / "kits")
    kit = folder / "kits" / "stranger"
    greetings = {
        "right": greeted(port, root, real / "startup"),
        "another authority": greeted(port, root, kit / "startup"),
        "no certificate": greeted(port, root, None),
    }
    logs = {}
    with intruder(kit):
        log = kit / "intruder.txt"
        wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text(), "the handshake to fail")
        logs["another authority"] = log.read_text()
    server = deployment.kits / "server" / "log.txt"
    for name in ("nobody", HONEST):
        kit = folder / name
        for part in ("startup", "local"):
            shutil.copytree(real / part, kit / part)
        about = {"name": name, "role": "site", "project": deployment.project.name}
        (kit / "pacpfl.json").write_text(json.dumps(about))
        words = f"authenticated as '{NEWER}' but claimed endpoint '{name}'"
        with intruder(kit):
            wait_for(lambda words=words: words in server.read_text(), f"{name} to be refused")
        logs[name] = words
    return greetings, logs


def submit(deployment: Deployment, folder: Path) -> list[str]:
    """Jobs of the administrator that nobody knows: which of them ran anything."""
    ran = []
    for kind in ("command", "code"):
        bait = folder / f"{kind}-ran"
        job = write_job(folder / kind, folder / "run", "0123abcd", 1, [HONEST])
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
        with closing(deployment.connect()) as console:
            number = console.submit(job)
            wait_for(lambda c=console, n=number: c.has_ended(n), f"the job with {kind} to end")
        ran += [kind] if bait.exists() else []
    return ran


def test_the_run_ends_with_the_particles_of_its_record(siege: Siege) -> None:
    siege.deployment.check_record(siege.running, settings(ROUNDS))


def test_the_honest_site_takes_part_in_every_round(siege: Siege) -> None:
    assert all(HONEST in line["sites"] for line in siege.running.of_rounds())


def test_updates_that_are_none_are_refused_and_logged(siege: Siege) -> None:
    """Wrong shapes, NaN, a pickle, a gigabyte: one round each, and the site's other rounds count."""
    reasons = siege.refusals(EVIL)
    assert "shape" in reasons[2] and "not finite" in reasons[4] and "no plain array" in reasons[6]
    sites = {line["round"]: line["sites"] for line in siege.running.of_rounds()}
    assert all(EVIL in sites[number] for number in (0, 1, 3, 5, 7))
    assert "shape" in reasons[8], "a gigabyte"
    assert not (siege.deployment.own(EVIL) / "unpickled").exists()
    log = (siege.deployment.kits / "server" / "output.txt").read_text()
    assert f"{EVIL} was refused, or refuses: 'value" in log


def test_another_major_version_is_refused_with_a_clear_message(siege: Siege) -> None:
    told = siege.running.of_segments()[0]["refused"][NEWER]
    for words in (
        f"this side {__version__}",
        "pacpfl 99.0.0",
        "install the same major version on both",
    ):
        assert words in told
    assert "install the same major version on both" in siege.deployment.refusals(NEWER)[-1]
    assert siege.running.last_round_of(NEWER) == -1


def test_a_site_refuses_what_its_limits_forbid(siege: Siege) -> None:
    words = "method pacpfl is not allowed here, only fedavg"
    assert "its limit methods forbids it" in siege.running.of_segments()[0]["refused"][STRICT]
    assert words in siege.deployment.refusals(STRICT)
    assert siege.running.last_round_of(STRICT) == -1


def test_only_the_projects_own_certificates_are_spoken_to(siege: Siege) -> None:
    assert siege.greeted == {"right": True, "another authority": False, "no certificate": False}
    assert "CERTIFICATE_VERIFY_FAILED" in siege.logs["another authority"]
    assert "stranger" not in siege.connected


def test_a_certificate_speaks_for_its_own_name_alone(siege: Siege) -> None:
    """A valid kit, presented as a site that does not exist, and as one that does."""
    assert {"nobody", HONEST} <= set(siege.logs)
    assert "nobody" not in siege.connected


def test_unknown_jobs_run_nothing(siege: Siege) -> None:
    """A job with a command of its own, and one that brings code: the sites run neither."""
    assert siege.ran == []
    kits = siege.deployment.kits
    assert "BYOC not permitted" in (kits / "server" / "log.txt").read_text()
    assert (
        "ClientAPIExecutor' at config path 'executors.#1.executor' is not in allow_list"
        in (kits / HONEST / "output.txt").read_text()
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


@contextmanager
def intruder(kit: Path) -> Iterator[None]:
    """A site's program with a kit that is not its own, until the block ends."""
    (kit / "transfer").mkdir(parents=True, exist_ok=True)
    with open(kit / "intruder.txt", "wb") as log:
        process = subprocess.Popen(
            command(kit, "site"),
            start_new_session=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait(30)
