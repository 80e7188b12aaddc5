"""Own tables on the command line: init, check, fit and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pacpfl.cli.common import Fresh, Out, Settings, console, stopping
from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.config import Config

DEFAULT = Path("pacpfl.toml")
COMPARED = ("pacpfl", "ridge", "vanilla", "pooled", "fedavg", "pfedgp")
COMPARED_CLASSES = ("pacpfl", "fedavg", "mtl", "vanilla", "pooled")

Source = Annotated[
    Path | None,
    typer.Argument(
        help="A configuration (TOML), or tables: a folder with one CSV or Parquet file for each client, "
        "or one file (default: pacpfl.toml).",
        show_default=False,
    ),
]
Target = Annotated[
    str | None, typer.Option(help="The column to predict (default: guessed).", show_default=False)
]
ClientColumn = Annotated[
    str | None,
    typer.Option(
        help="The column that names the client (default: one file each).", show_default=False
    ),
]


def init(
    folder: Annotated[Path, typer.Argument(help="A folder of tables, or one table.")],
    target: Target = None,
    client: ClientColumn = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = DEFAULT,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Look at tables, write a configuration for them, and tell what was guessed and why."""
    from pacpfl import files
    from pacpfl.own import commented, propose

    if out.exists() and not force:
        raise InputError(
            f"{out} is there already; choose another --out, or replace it with --force."
        )
    with console.status(f"reading {folder}"):
        found = propose(folder, target, client)
    files.write(out, commented(found).encode())
    for sentence in found.words:
        print(f"- {sentence}")
    print(f"Written: {out}. Next: pacpfl fit{'' if out == DEFAULT else f' {out}'}")


def check(source: Source = None, target: Target = None, client: ClientColumn = None) -> None:
    """Read all tables and try the configuration, before a long run does."""
    config = chosen(source, target, client, [])
    from pacpfl.own import examine

    with console.status("reading the tables"):
        sentences = examine(config)
    for sentence in sentences:
        print(f"- {sentence}")
    print("All is well: pacpfl fit can start.")


def fit(
    source: Source = None,
    target: Target = None,
    client: ClientColumn = None,
    settings: Settings = None,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Train on tables, measure every client on rows it has not seen, and write a run folder.

    Stopped with Ctrl-C it saves, and the same command goes on. The folder's prior.safetensors is all
    that a new client needs for `pacpfl personalize`; it holds nobody's rows.
    """
    config = chosen(source, target, client, settings or [])
    folder = out or Path("runs") / run_name(source, config)
    train(config, folder, fresh)
    print(f"Next: pacpfl personalize --run {folder} --data NEW.csv --out model.safetensors")


def compare(
    source: Source = None,
    target: Target = None,
    client: ClientColumn = None,
    settings: Settings = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Which, with commas (default: {','.join(COMPARED)}; for classes "
            f"{','.join(COMPARED_CLASSES)}).",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Compare PAC-PFL with the usual alternatives on your tables: a table, a figure, and the report."""
    from dataclasses import replace

    from pacpfl import config as configuration

    config = chosen(source, target, client, settings or [])
    classes = own(config).federation.classes is not None
    names = methods.split(",") if methods else COMPARED_CLASSES if classes else COMPARED
    config = replace(config, run=replace(config.run, methods=tuple(name.strip() for name in names)))
    configuration.check(config, "--methods")
    if "pacpfl" not in config.run.methods:
        raise InputError(f"--methods {json.dumps(methods)} leaves out pacpfl; compare with it.")
    folder = out or Path("runs") / f"{run_name(source, config)}-compare"
    train(config, folder, fresh)
    print(f"Figure: {folder / 'figures' / 'boxes.png'}")


def train(config: Config, folder: Path, fresh: bool) -> None:
    """Run on tables; the folder also gets what new clients and owners of units need."""
    from pacpfl.engine import runtime

    runtime.configure(config.run.precision)
    from pacpfl import run as study
    from pacpfl.client import SHARED_NAME, shared_of_run
    from pacpfl.folder import RunFolder
    from pacpfl.own import in_units, means, write_units
    from pacpfl.report.page import write_report
    from pacpfl.report.progress import watching
    from pacpfl.report.terminal import print_results

    if fresh:
        RunFolder(folder).clear()
        for name in (SHARED_NAME, "units.csv"):
            (folder / name).unlink(missing_ok=True)
    for notice in own(config).notices:
        console.print(notice, soft_wrap=True, markup=False)
    with watching(console) as watcher, stopping():
        results = study.run(config, folder, watcher)
        watcher.stage("writing the folder")
        if "pacpfl" in config.run.methods:
            (folder / SHARED_NAME).unlink(missing_ok=True)  # of a run before this one
            shared_of_run(folder).save(folder / SHARED_NAME)
        rows = in_units(config, results)
        if rows:
            write_units(folder, rows, config.tables.target)
        page = write_report(folder)
    print_results(results)
    if rows:
        print_units(config.tables.target, means(rows), results)
    print(f"Report: {page}")


def print_units(target: str, means: dict[tuple[str, str], Any], results: Any) -> None:
    from rich.table import Table

    table = Table(title=f"In the units of {target}", title_justify="left")
    for name in ("method", "clients"):
        table.add_column(name)
    for name in ("RMSE", "width of the 90% interval"):
        table.add_column(name, justify="right")
    for (method, group), fields in means.items():
        cells = [_with_half(*fields[name]) for name in ("rmse", "width_90")]
        table.add_row(results[method].about["title"], group, *cells)
    Console(highlight=False).print(table)


def _with_half(mean: float, half: float) -> str:
    """Return both to the same digit: 11.2 ± 0.4, 30,560 ± 2,512."""
    if not 1e-2 <= abs(mean) < 1e12:
        return f"{mean:.4g}" + (f" ± {half:.2g}" if half == half else "")
    places = 0 if abs(mean) >= 1000 else 3 - len(f"{abs(mean):.0f}")
    return f"{mean:,.{places}f}" + (f" ± {half:,.{places}f}" if half == half else "")


def chosen(
    source: Path | None, target: str | None, client: str | None, settings: list[str]
) -> Config:
    """Return the configuration of a file, or the one guessed from tables."""
    from pacpfl import config as configuration
    from pacpfl.own import propose

    path = source or DEFAULT
    if source is None and not path.is_file():
        raise InputError(
            "There is no pacpfl.toml here; write one with pacpfl init FOLDER, or name the tables."
        )
    if path.suffix.lower() == ".toml":
        config = configuration.load_file(path)
        if config.data.name != "tables":
            raise InputError(
                f'{path} is about {config.data.name}; set data.name = "tables", or use pacpfl run --config.'
            )
        named = {"tables.target": target, "tables.client": client}
        given = {key: json.dumps(name) for key, name in named.items() if name is not None}
        settings = [*settings, *(f"{key}={name}" for key, name in given.items())]
    else:
        with console.status(f"reading {path}"):
            found = propose(path, target, client)
        for sentence in found.words:
            console.print(f"- {sentence}", soft_wrap=True, markup=False)
        config = found.config
    return configuration.override(config, settings)


def own(config: Config) -> Any:
    from pacpfl.data.tables.read import load_own

    return load_own(config.tables, config.seed)


def run_name(source: Path | None, config: Config) -> str:
    """Return the name of the configuration; where that is the usual one, of the tables."""
    if source is not None and source.suffix == ".toml" and source.name != DEFAULT.name:
        return source.stem
    return Path(config.tables.source).resolve().stem or "tables"
