"""Kits for server, sites and administrator, from one small file (docs/deploy.md shows it).

Each kit holds a certificate of the project's own authority; what a kit's owner may do is bound to it.
Kits differ from FLARE's in that they allow less: no code travels with a job, a site runs `SiteExecutor`
and nothing else, nobody reads files or stops processes at a site from outside.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pacpfl import files
from pacpfl.errors import InputError, explained
from pacpfl.files import Facts
from pacpfl.sites.job import CONTROLLER, EXECUTOR
from pacpfl.sites.terms import read_terms

SERVER = "server"
ABOUT = "pacpfl.json"  # in every kit: whose it is
SEEN_SECONDS = 30  # a site that was not heard of for so long is gone
DENIED = ("shell_commands", "byoc", "clone_job", "server-predeployed-flwr")
ALLOWED = ("submit_job", "manage_job", "download_job", "view")
LOG = "output.txt"
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds before a process that died is started again
STEADY = 60.0  # seconds after which a process counts as running well
WANTED = {"server": "the server's", "site": "a site's", "admin": "the administrator's"}
PROGRAMS = {
    "server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
    "site": ("nvflare.private.fed.app.client.client_train", "fed_client.json"),
}


@dataclass(frozen=True)
class Project:
    name: str
    sites: tuple[str, ...]
    host: str
    port: int
    admin: str
    terms: tuple[tuple[str, Any], ...] = ()  # of [run]: goes into the administrator's kit


def read_project(path: Path) -> Project:
    """Read and check the project's file."""
    table = files.read_toml(path, "give the file that names the sites")
    server = table.get("server", {})
    name, sites = table.get("name", path.stem), table.get("sites")
    admin = table.get("admin", f"admin@{name}.org")
    if not isinstance(sites, list) or not sites:
        raise InputError(f'{path}: name the sites, for instance sites = ["north", "south"].')
    for one in (name, *sites):
        check_name(one, str(path))
    if len(set(sites)) < len(sites):
        raise InputError(f"{path}: a site is named twice; give each its own name.")
    if not isinstance(server, dict) or not isinstance(server.get("host"), str):
        raise InputError(f"{path}: say where sites reach the server, [server] and host = NAME.")
    port = server.get("port", 8002)
    if type(port) is not int or not 0 < port < 65536:
        raise InputError(f"{path}: port = {port!r} is no port; give a number from 1 to 65535.")
    if not isinstance(admin, str) or not re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", admin):
        raise InputError(f"{path}: admin = {admin!r} is no address; write name@place.org.")
    terms = tuple(read_terms(table.get("run", {}), str(path)).items())
    return Project(name, tuple(sites), server["host"], port, admin, terms)


def provision(project: Project, folder: Path, extra: tuple[str, ...] = ()) -> list[Path]:
    """Make the kits that are not there yet, one folder each; return these.

    The authority's key stays in `folder`/authority. `extra` are sites that were added later.
    """
    try:
        from nvflare.lighter.constants import CtxKey, WorkDir
        from nvflare.lighter.provision import prepare_builders, prepare_project
        from nvflare.lighter.provisioner import Provisioner
    except ImportError as error:
        raise InputError(
            "Runs across sites need NVIDIA FLARE; install pacpfl[flare] first."
        ) from error
    authority = folder / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    described = _description(project, extra)
    errors = _Errors()
    provisioner = Provisioner(str(authority), prepare_builders(described))
    context = provisioner.provision(prepare_project(described), logger=errors)
    if context.get(CtxKey.BUILD_ERROR):
        raise InputError(f"The kits could not be made: {'; '.join(errors.texts) or 'see above'}.")
    made = Path(context[WorkDir.CURRENT_PROD_DIR])
    kits = []
    for name in (SERVER, project.admin, *project.sites, *extra):
        kit = folder / name
        if not kit.exists():
            # FLARE may name the server's folder after its host.
            named = project.host if name == SERVER and not (made / name).is_dir() else name
            shutil.copytree(made / named, kit)
            _restrict(kit, name, project)
            kits.append(kit)
    shutil.rmtree(made)
    _forget_keys(authority / project.name / "state" / "cert.json")
    return kits


def _forget_keys(path: Path) -> None:
    """Delete all keys but the authority's own: a kit that is made again gets a new one."""
    state = json.loads(path.read_text(encoding="utf-8"))
    own = {name: value for name, value in state.items() if not isinstance(value, dict)}
    files.write_json(path, own, private=True)


def _description(project: Project, extra: tuple[str, ...]) -> Facts:
    """Return FLARE's project file, as a dictionary."""
    org = project.name
    server = {
        "name": project.host,
        "type": "server",
        "org": org,
        "fed_learn_port": project.port,
        "admin_port": project.port,
    }
    # The server's certificate must not pass for a site's: no site may be called "server", and no
    # site's name has a dot.
    if re.fullmatch(r"[0-9.]+", project.host) or "." not in project.host:
        server |= {"name": SERVER, "default_host": project.host, "host_names": [project.host]}
    sites = [{"name": n, "type": "client", "org": org} for n in (*project.sites, *extra)]
    admin = {"name": project.admin, "type": "admin", "org": org, "role": "project_admin"}
    builders = {
        "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
        "static_file.StaticFileBuilder": {"config_folder": "config"},
        "cert.CertBuilder": {"root_valid_days": 3650},
        "signature.SignatureBuilder": {},
    }
    place = "nvflare.lighter.impl"
    return {
        "api_version": 3,
        "name": project.name,
        "description": "pacpfl",
        "gen_scripts": False,
        "participants": [server, *sites, admin],
        "builders": [{"path": f"{place}.{n}", "args": args} for n, args in builders.items()],
    }


def _restrict(kit: Path, name: str, project: Project) -> None:
    """Write down whose the kit is, and what its owner lets others do."""
    role = {SERVER: "server", project.admin: "admin"}.get(name, "site")
    about: Facts = {"name": name, "role": role, "project": project.name}
    if role == "admin":
        about |= {"terms": dict(project.terms), "sites": list(project.sites)}
    files.write_json(kit / ABOUT, about)
    if role == "admin":
        return
    local, is_server = kit / "local", name == SERVER
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [CONTROLLER if is_server else EXECUTOR]
    if is_server:
        resources["servers"][0]["heart_beat_timeout"] = SEEN_SECONDS
    else:
        resources["allow_log_streaming"] = False
        dropped = "site_log_streamer"
        resources["components"] = [c for c in resources["components"] if c["id"] != dropped]
    files.write_json(local / "resources.json", resources)
    rights = dict.fromkeys(DENIED, "none") | dict.fromkeys(ALLOWED, "any")
    rights["operate"] = "any" if is_server else "none"
    policy = {"format_version": "1.0", "permissions": {"project_admin": rights}}
    files.write_json(local / "authorization.json", policy)


def settle(kit: Path) -> None:
    """Write the kit's own place where FLARE wants absolute paths; kits are moved before they start."""
    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text(encoding="utf-8"))
    if "snapshot_persistor" not in resources:
        return
    store = (kit / "store").resolve()
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(store / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(store / "jobs")
    files.write_json(path, resources)


class _Errors:
    """Logger of FLARE's provisioner: keeps its errors."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def error(self, text: str) -> None:
        self.texts.append(text)

    def debug(self, text: str) -> None: ...

    info = warning = debug


def check_name(name: Any, origin: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,40}", name):
        raise InputError(
            f"{origin}: {name!r} is no name for a site or project; use letters, digits, - and _."
        )
    if name in (SERVER, "authority"):
        raise InputError(f"{origin}: the name {name!r} is taken; choose another.")


def read_kit(kit: Path, role: str) -> Facts:
    """Return what a kit is for: its name, its role, its project."""
    remedy = "give the folder that pacpfl sites provision made"
    with explained(f"{kit} is no kit", remedy, OSError, ValueError):
        about = dict(json.loads((kit / ABOUT).read_text(encoding="utf-8")))
    if about.get("role") != role:
        raise InputError(
            f"{kit} is the kit of {about.get('name')}, and {WANTED[role]} is needed here."
        )
    return about


def command(kit: Path, role: str) -> list[str]:
    about = read_kit(kit, role)
    program, settings = PROGRAMS[role]
    identity = [f"uid={about['name']}"] if role == "site" else []
    words = ["-m", program, "-m", str(kit.resolve()), "-s", settings, "--set", "secure_train=true"]
    project = [*identity, f"org={about['project']}", "config_folder=config"]
    return [sys.executable, "-u", *words, *project]


def keep_running(
    kit: Path,
    role: str,
    environment: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Keep FLARE's process of a kit running until SIGTERM or SIGINT, with ever longer waits.

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
        files.write(kit / "process.pid", str(child.pid).encode())
        child.wait()
        wait = FIRST_WAIT if time.monotonic() - began > STEADY else min(2 * wait, LONGEST_WAIT)
        if not stopping:
            say(f"It ended with code {child.returncode}, see {kit / LOG}; again in {wait:.0f} s.")
        until = time.monotonic() + wait
        while not stopping and time.monotonic() < until:
            time.sleep(0.1)
