"""What FLARE reads: kits for server, sites and administrator, from one small file, and jobs.

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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pacpfl import files
from pacpfl.errors import InputError, explained, imported
from pacpfl.files import Facts
from pacpfl.sites.terms import read_terms

CONTROLLER = "pacpfl.sites.controller.SitesController"
EXECUTOR = "pacpfl.sites.executor.SiteExecutor"

# Measured on two cores: 2.2 s a round with FLARE's defaults, 0.12 to 0.24 s with these. Polls below
# 0.03 s starve a small machine.
POLL_SECONDS = 0.03
# For a site to find the server's process of the job, which loads JAX first; FLARE gives up after 60.
READY_SECONDS = 300.0

SERVER = "server"
ABOUT = "pacpfl.json"  # in every kit: whose it is
SEEN_SECONDS = 30  # a site that was not heard of for so long is gone
DENIED = ("shell_commands", "byoc", "clone_job", "server-predeployed-flwr")
ALLOWED = ("submit_job", "manage_job", "download_job", "view")
LOG = "output.txt"
LONGEST_LOG, LOOK_SECONDS = 10**7, 60.0  # bytes of output.txt, and how often that is looked at
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
    terms: Facts = field(default_factory=dict)  # of [run]: goes into the administrator's kit


def read_project(path: Path) -> Project:
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
    terms = read_terms(table.get("run", {}), str(path))
    return Project(name, tuple(sites), server["host"], port, admin, terms)


def provision(project: Project, folder: Path, extra: tuple[str, ...] = ()) -> list[Path]:
    """Make the kits that are not there yet, one folder each; return these.

    The authority's key stays in `folder`/authority. `extra` are sites that were added later.
    """
    imported("nvflare", "A run across sites", "pacpfl[flare]")
    from nvflare.lighter.constants import CtxKey, WorkDir
    from nvflare.lighter.provision import prepare_builders, prepare_project
    from nvflare.lighter.provisioner import Provisioner

    authority = folder / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    described, errors = _description(project, extra), list[str]()
    silent = dict.fromkeys(("debug", "info", "warning"), lambda text: None)
    context = Provisioner(str(authority), prepare_builders(described)).provision(
        prepare_project(described), logger=SimpleNamespace(error=errors.append, **silent)
    )
    if context.get(CtxKey.BUILD_ERROR):
        raise InputError(f"The kits could not be made: {'; '.join(errors) or 'see above'}.")
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
    # All keys but the authority's own go: a kit that is made again gets a new one.
    state = authority / project.name / "state" / "cert.json"
    every = json.loads(state.read_text(encoding="utf-8")).items()
    own = {name: value for name, value in every if not isinstance(value, dict)}
    files.write_json(state, own, private=True)
    return kits


def _description(project: Project, extra: tuple[str, ...]) -> Facts:
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
    }
    place = "nvflare.lighter.impl"
    built = [{"path": f"{place}.{n}", "args": args} for n, args in builders.items()]
    built += [
        {"path": "pacpfl.sites.loopback.Loopback", "args": {}},
        {"path": f"{place}.signature.SignatureBuilder", "args": {}},
    ]
    return {
        "api_version": 3,
        "name": project.name,
        "description": "pacpfl",
        "gen_scripts": False,
        "participants": [server, *sites, admin],
        "builders": built,
    }


def _restrict(kit: Path, name: str, project: Project) -> None:
    """Write down whose the kit is, and what its owner lets others do."""
    role = {SERVER: "server", project.admin: "admin"}.get(name, "site")
    about: Facts = {"name": name, "role": role, "project": project.name}
    if role == "admin":
        about |= {"terms": project.terms, "sites": project.sites}
    files.write_json(kit / ABOUT, about)
    if role == "admin":
        return
    local, is_server = kit / "local", role == "server"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [CONTROLLER if is_server else EXECUTOR]
    if is_server:
        resources["servers"][0]["heart_beat_timeout"] = SEEN_SECONDS
    else:
        resources["allow_log_streaming"] = False
        kept = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
        resources["components"] = kept
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


def check_name(name: Any, origin: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,40}", name):
        raise InputError(
            f"{origin}: {name!r} is no name for a site or project; use letters, digits, - and _."
        )
    if name in (SERVER, "authority"):
        raise InputError(f"{origin}: the name {name!r} is taken; choose another.")


def read_kit(kit: Path, role: str) -> Facts:
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


def keep_running(kit: Path, role: str, say: Callable[[str], None], **environment: str) -> None:
    """Keep FLARE's process of a kit running until SIGTERM or SIGINT, with ever longer waits.

    What FLARE says is in the kit's log.txt, and what it prints in output.txt.
    """
    arguments = command(kit, role)
    settle(kit)
    (kit / "transfer").mkdir(exist_ok=True)
    child, wait, ends = None, FIRST_WAIT, (signal.SIGTERM, signal.SIGINT)
    for number in ends:
        signal.signal(number, signal.default_int_handler)
    try:
        while True:
            began = time.monotonic()
            with files.append(kit / LOG, private=True) as log:
                child = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                )
            files.write(kit / "process.pid", str(child.pid).encode())
            while child.poll() is None:
                shorten_log(kit / LOG)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_SECONDS)
            wait = FIRST_WAIT if time.monotonic() - began > STEADY else min(2 * wait, LONGEST_WAIT)
            say(f"It ended with code {child.returncode}, see {kit / LOG}; again in {wait:.0f} s.")
            time.sleep(wait)
    except KeyboardInterrupt:
        for number in ends:
            signal.signal(number, signal.SIG_IGN)
        if child is not None:
            child.terminate()
            child.wait()


def shorten_log(path: Path, most: int = LONGEST_LOG) -> None:
    """Move what a long log holds to a second file, and begin it anew.

    It is emptied, not renamed: a process that writes it goes on at its new end.
    """
    if path.is_file() and path.stat().st_size > most:
        shutil.copyfile(path, path.with_suffix(".1.txt"), follow_symlinks=False)
        os.truncate(path, 0)


def write_job(folder: Path, run_folder: Path, run: str, segment: int, sites: list[str]) -> Path:
    """Write the job of a segment for these sites; return the folder to submit.

    Its whole path: FLARE looks for any other below the administrator's kit.
    """
    name = f"pacpfl-{run[:12]}-{segment}"
    job = folder.resolve() / name
    config = job / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    meta = {
        "name": name,
        "resource_spec": {},
        "deploy_map": {"app": ["server", *sites]},
        "min_clients": 1,
        "mandatory_clients": [],
    }
    controller = {"folder": str(run_folder.resolve()), "segment": segment}
    empty = ("task_data_filters", "task_result_filters", "components")
    common: Facts = {"format_version": 2, "np_download_chunk_size": 0} | {
        name: [] for name in empty
    }
    server = common | {
        "server": {"task_request_interval": POLL_SECONDS},
        "workflows": [{"id": "segment", "path": CONTROLLER, "args": controller}],
    }
    client = common | {
        "default_task_fetch_interval": POLL_SECONDS,
        "max_runner_sync_timeout": READY_SECONDS,
        "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}],
    }
    files.write_json(job / "meta.json", meta)
    files.write_json(config / "config_fed_server.json", server)
    files.write_json(config / "config_fed_client.json", client)
    return job
