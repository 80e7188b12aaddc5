"""Across sites on the command line: kits, processes, status, and training with --engine flare."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pacpfl.cli.common import console, print_table, say
from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.config import Config
    from pacpfl.files import Facts
    from pacpfl.run import Watcher

sites_app, server_app, site_app = GROUPS = [
    typer.Typer(name=name, no_args_is_help=True, help=help)
    for name, help in {
        "sites": "Kits for a training across sites, and its status.",
        "server": "The server of a training across sites.",
        "site": "A site: its data stay here.",
    }.items()
]

Kits = Annotated[Path, typer.Option("--out", help="Where the kits lie, one folder each.")]
Kit = Annotated[Path, typer.Option(help="The kit's folder.")]
ADDED = "added.json"
MISSING = 3  # the code with which a run ends that some of the project's sites had no part in
WARN_DAYS = 30  # before a certificate ends


@sites_app.command("provision")
def provision_sites(
    file: Annotated[
        Path, typer.Argument(help="The project (TOML): name, sites, host and port of the server.")
    ],
    out: Kits = Path("kits"),
) -> None:
    """Make a kit for the server, for each site and for the administrator.

    Bring each kit to its owner over a safe channel. The folder `authority` signs further kits: keep it.
    """
    from pacpfl.sites.kits import provision, read_project

    made = provision(read_project(file), out, _added(out))
    for kit in made:
        print(kit)
    if not made:
        say(f"All kits are in {out} already; to renew one, delete its folder first.")


@sites_app.command("add")
def add_site(
    name: Annotated[str, typer.Argument(help="The new site.")],
    file: Annotated[Path, typer.Option("--project", help="The project's file.")] = Path(
        "sites.toml"
    ),
    out: Kits = Path("kits"),
) -> None:
    """Make a kit for one more site; it takes part from the next segment of a running training."""
    from pacpfl import files
    from pacpfl.sites.kits import check_name, provision, read_project

    project, added = read_project(file), _added(out)
    check_name(name, "pacpfl sites add")
    if name in (*project.sites, *added):
        raise InputError(f"There is a site {name!r} already; choose another name.")
    for kit in provision(project, out, (*added, name)):
        print(kit)
    files.write_json(out / ADDED, [*added, name])


@sites_app.command("status")
def status(
    kit: Annotated[Path, typer.Option(help="The administrator's kit.")],
    folder: Annotated[Path | None, typer.Option("--run", help="A run folder.")] = None,
) -> None:
    """Tell who is connected, when the server last heard of them, and their part in a run."""
    about = _ready(kit, "admin")
    from contextlib import closing

    from pacpfl.sites.runs import summaries
    from pacpfl.sites.session import Console as Line
    from pacpfl.sites.terms import Unreachable

    runs = summaries(folder) if folder else {}
    try:
        with closing(Line(kit, about["name"])) as line:
            connected = line.connected()
    except Unreachable as error:
        raise InputError(f"The server does not answer ({error}); is it started?") from error
    rows = []
    for site in sorted(set(connected).union(*(run["clients"] for run in runs.values()))):
        heard = f"{time.time() - connected[site]:.0f} s ago" if site in connected else ""
        counts = [str(run["answered"].get(site, 0)) for run in runs.values()]
        samples = next((run["sizes"].get(site) for run in runs.values()), None)
        shown = str(sum(samples)) if samples else "not told"
        rows.append([site, "yes" if site in connected else "no", heard, *counts, shown])
    numbers = ["connected", "last heard", *(f"{m}: rounds" for m in runs), "samples"]
    print_table("Sites", ["site"], numbers, rows)
    for method, run in runs.items():
        if run["rounds"]:
            print(
                f"{method}: {run['rounds']} rounds in {run['segments']} segments, median "
                f"{run['median_seconds']:.2f} s, {run['bytes_sent'] / 1e3:.0f} kB out and "
                f"{run['bytes_received'] / 1e3:.0f} kB in per round."
            )
        for site, norm in sorted(run["norms"].items()):
            often = run["clipped"].get(site, 0)
            print(
                f"{method}, {site}: longest update {norm:.3g} in the median round, clipped {often} times."
            )


@server_app.command("start")
def start_server(kit: Kit) -> None:
    """Run the server until it is told to stop (Ctrl-C, SIGTERM); started again whenever it dies."""
    from pacpfl.sites.kits import keep_running

    about = _ready(kit, "server")
    say(f"The server of {about['project']} runs until Ctrl-C; its log is {kit / 'log.txt'}.")
    keep_running(kit, "server", say)


@site_app.command("start")
def start_site(
    kit: Kit,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The site's data: a folder of .npz files, a client store, or tables; written into "
            "the site's own file, which keeps it.",
        ),
    ] = None,
) -> None:
    """Run the site until it is told to stop; started again whenever it dies.

    What the site allows stands in KIT/pacpfl/site.toml, and what it refused in refused.jsonl beside it.
    Tables are read once `pacpfl site allow` has said which columns may be.
    """
    from pacpfl.sites.kits import keep_running
    from pacpfl.sites.limits import FILE, read_site_file, write_site_file

    about = _ready(kit, "site")
    own = kit.resolve() / "pacpfl"
    if data is None and not (own / FILE).exists():
        raise InputError("Name the site's data at its first start, with --data.")
    if data is not None and (not data.exists() or (data.is_dir() and not any(data.iterdir()))):
        raise InputError(f"There are no data at {data}; correct --data.")
    own.mkdir(exist_ok=True)
    if data is not None:
        write_site_file(own / FILE, data.resolve())
    read_site_file(own / FILE)
    say(
        f"Site {about['name']} of {about['project']} runs until Ctrl-C; its log is {kit / 'log.txt'}, "
        f"what it allows stands in {kit / 'pacpfl' / FILE}."
    )
    keep_running(kit, "site", say, PACPFL_SITE=str(own))


@site_app.command("allow")
def allow(
    data: Annotated[Path, typer.Option(help="The site's tables: a folder of files, or one file.")],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    client: Annotated[str | None, typer.Option(help="The column that names the client.")] = None,
) -> None:
    """Draft what runs may read of the site's tables: the sections [tables] and [categories] of site.toml.

    Each line says what would leave. Correct the draft and add it to KIT/pacpfl/site.toml; without it no
    table is read. Columns of words stand in comments, because their words would leave.
    """
    from pacpfl.sites.sharing import draft

    print(draft(data, target, client), end="")


@site_app.command("says")
def says(kit: Kit) -> None:
    """Print what has left this site so far, in plain words, from a log that cannot be switched off."""
    from pacpfl.sites.kits import read_kit
    from pacpfl.sites.said import sentences

    read_kit(kit, "site")
    for words in sentences(kit / "pacpfl"):
        print(words)


@site_app.command("personalize")
def personalize_here(
    kit: Kit,
    out: Annotated[
        Path | None, typer.Option(help="The run folder (default: KIT/pacpfl/report).")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Which run (default: the newest).")] = None,
) -> None:
    """Make this site's own models from the last training's result, measure them, and write a report.

    Nothing leaves the site.
    """
    from pacpfl import config as configuration
    from pacpfl.engine import runtime
    from pacpfl.sites.kits import read_kit

    read_kit(kit, "site")
    own = kit / "pacpfl"
    folder = out or own / "report"
    found = (own / "models").glob(f"{run or '*'}/config.toml")
    if newest := max(found, key=lambda path: path.stat().st_mtime, default=None):
        runtime.configure(configuration.load_file(newest).run.precision)
    from pacpfl.report.page import write_report
    from pacpfl.sites.runs import personalize_site

    with console.status("personalising and measuring"):
        personalize_site(own, folder, run)
        page = write_report(folder)
    print(f"Report: {page}")


def run_across(
    config: Config,
    folder: Path,
    kit: Path | None,
    watcher: Watcher,
    fresh: bool = False,
    demonstration: bool = False,
) -> Config | None:
    """Train at the sites (`sites.runs.train_at_sites`), if the administrator's kit is sound."""
    if kit is None:
        raise InputError("Across sites, name the administrator's kit with --kit.")
    about = _ready(kit, "admin")
    from pacpfl.sites.runs import train_at_sites, without
    from pacpfl.sites.session import Console as Line

    line = Line(kit, about["name"])
    left = train_at_sites(config, folder, about, line, watcher, fresh, demonstration)
    if lost := without(folder, about.get("sites", ())):
        reasons = "; ".join(f"{site}: {why}" for site, why in lost.items())
        say(
            f"FINISHED WITHOUT {len(lost)} of {len(about['sites'])} sites ({reasons}). {folder} is trained."
        )
        if left is None:
            raise typer.Exit(MISSING)
    return left


def _ready(kit: Path, role: str) -> Facts:
    """Return what the kit is for; check that FLARE is there and that the certificate has not ended.

    An expired one ends every connection, with words of TLS that help nobody.
    """
    from datetime import UTC, datetime
    from importlib.util import find_spec

    from pacpfl.sites.kits import read_kit

    about = read_kit(kit, role)
    if find_spec("nvflare") is None:
        raise InputError("Runs across sites need NVIDIA FLARE; install pacpfl[flare] first.")
    from pacpfl.secagg.certified import valid_until

    path = kit / "startup" / ("server.crt" if role == "server" else "client.crt")
    if not path.exists():
        raise InputError(f"{kit} has no certificate; take the whole kit that was made.")
    end = valid_until(path.read_text())
    left = (end - datetime.now(UTC)).days
    if left < 0:
        raise InputError(f"The certificate of {kit} ended on {end:%Y-%m-%d}; renew the kit.")
    if left < WARN_DAYS:
        say(f"The certificate of {kit} ends on {end:%Y-%m-%d}, in {left} days; renew the kit.")
    return about


def _added(out: Path) -> tuple[str, ...]:
    path = out / ADDED
    return tuple(json.loads(path.read_text())) if path.exists() else ()
