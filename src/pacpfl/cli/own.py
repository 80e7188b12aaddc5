"""Own tables on the command line: look at them, try them, train on them, compare methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pacpfl.cli.common import DEFAULT, Fresh, Out, Settings, columns, console, starting
from pacpfl.errors import InputError

COMPARED = ("pacpfl", "ridge", "vanilla", "pooled", "fedavg", "pfedgp")
COMPARED_CLASSES = ("pacpfl", "fedavg", "mtl", "vanilla", "pooled")

Source = Annotated[
    Path | None,
    typer.Argument(
        help="A configuration (TOML), or tables: a folder with one CSV or Parquet file for each client, "
        "or one file (default: pacpfl.toml)."
    ),
]
Target = Annotated[
    str | None,
    typer.Option(help="The column to predict (default: guessed).", autocompletion=columns),
]
ClientColumn = Annotated[
    str | None,
    typer.Option(
        help="The column that names the client (default: guessed in one table).",
        autocompletion=columns,
    ),
]
NoRace = Annotated[
    bool, typer.Option("--no-race", help="Keep the settings that suit the tables by their size.")
]


def init(
    folder: Annotated[Path, typer.Argument(help="A folder of tables, or one table.")],
    target: Target = None,
    client: ClientColumn = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = DEFAULT,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Look at tables, write a configuration for them, and tell what was guessed and why."""
    with starting():
        from pacpfl import files
        from pacpfl.cli.tables import commented, propose

    if out.exists() and not force:
        raise InputError(
            f"{out} is there already; choose another --out, or replace it with --force."
        )
    proposal = propose(folder, target, client)
    files.write(out, commented(proposal).encode())
    for sentence in proposal.words:
        print(f"- {sentence}")
    print(f"Written: {out}. Next: pacpfl fit{'' if out == DEFAULT else f' {out}'}")


def check(source: Source = None, target: Target = None, client: ClientColumn = None) -> None:
    """Read all tables and try the configuration, before a long run does."""
    with starting():
        from pacpfl.cli.tables import examine, requested

    config = requested(source, target, client, None).config
    with console.status("reading the tables"):
        sentences = list(examine(config))
    for sentence in sentences:
        print(f"- {sentence}")
    print("All is well: pacpfl fit can start.")


def fit(
    source: Source = None,
    target: Target = None,
    client: ClientColumn = None,
    settings: Settings = None,
    no_race: NoRace = False,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Train on tables, measure every client on rows it has not seen, and write a run folder.

    First candidates race for the settings: what predicts held-out rows best is trained. A key that you
    have changed in the file, or give with --set, stays as it is; with the rounds given there is no race.

    Stopped with Ctrl-C it saves, and the same command goes on. In the folder are the clients' models
    (models.safetensors, as private as their rows) for `pacpfl predict --run`, and prior.safetensors, which
    holds nobody's rows: all that a new client needs for `pacpfl personalize`.
    """
    with starting():
        from pacpfl.cli.tables import requested, run_name
        from pacpfl.cli.training import train

    request = requested(source, target, client, settings, no_race)
    folder = out or Path("runs") / run_name(source, request.config)
    train(request, folder, fresh)
    print(f"Next: pacpfl predict --run {folder} --data NEW.csv --out predictions.csv")


def compare(
    source: Source = None,
    target: Target = None,
    client: ClientColumn = None,
    settings: Settings = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Which, with commas (default: {','.join(COMPARED)}; for classes "
            f"{','.join(COMPARED_CLASSES)})."
        ),
    ] = None,
    no_race: NoRace = False,
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Compare PAC-PFL with the usual alternatives on your tables: a table, a figure, and the report."""
    with starting():
        from pacpfl.cli.tables import requested, run_name
        from pacpfl.cli.training import train
        from pacpfl.config import updated
        from pacpfl.data.tables.read import load_own

    request = requested(source, target, client, settings, no_race)
    config = request.config
    names: tuple[str, ...] = COMPARED
    if methods:
        names = tuple(name.strip() for name in methods.split(","))
    elif load_own(config.tables, config.seed).schema.classes is not None:
        names = COMPARED_CLASSES
    config = updated(config, {"run.methods": names}, "--methods")
    if "pacpfl" not in names:
        raise InputError(f"--methods {json.dumps(methods)} leaves out pacpfl; compare with it.")
    folder = out or Path("runs") / f"{run_name(source, config)}-compare"
    train(request._replace(config=config), folder, fresh)
    print(f"Figure: {folder / 'figures' / 'boxes.png'}")
