"""What the commands share: console, options, shipped configurations, and folders that start over."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.config import Config

console = Console(stderr=True, highlight=False)
DEFAULT = Path("pacpfl.toml")  # what `pacpfl init` writes, and fit, check and compare read


def shipped_names() -> list[str]:
    """Return the names of the configurations that come with the package."""
    from importlib import resources

    files = (resources.files("pacpfl") / "configs").iterdir()
    return sorted(name.removesuffix(".toml") for file in files if ".toml" in (name := file.name))


def run_folders() -> list[str]:
    """Return the run folders below runs/, the newest first."""
    found = [path for path in Path("runs").glob("*/") if (path / "config.toml").is_file()]
    return [str(path) for path in sorted(found, key=lambda path: -path.stat().st_mtime)]


def columns(context: typer.Context) -> list[str]:
    """Return the columns of the tables that the command line names so far: of CSV files."""
    named = next(filter(None, map(context.params.get, ("source", "folder", "data"))), None)
    path = Path(named or ".")
    table = next(iter(sorted(path.glob("*.csv"))), None) if path.is_dir() else path
    if table is None or table.suffix.lower() != ".csv" or not table.is_file():
        return []
    with table.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        first = lines.readline()
    return next(csv.reader([first], delimiter=";" if first.count(";") > first.count(",") else ","))


@contextmanager
def starting() -> Iterator[None]:
    """Show in a terminal that something comes, while JAX and the like are imported."""
    with console.status("starting"):
        yield


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one key, e.g. particles=8 or prior.kernel=ard."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over, even if a checkpoint is there.")]
Folder = Annotated[Path, typer.Argument(help="A run folder.", autocompletion=run_folders)]
Out = Annotated[Path | None, typer.Option(help="The run folder (default: below runs/).")]


def shipped(name: str) -> Config:
    """Return a configuration that comes with the package."""
    from importlib import resources

    from pacpfl import config as configuration

    if name not in shipped_names():
        there = ", ".join(shipped_names())
        raise InputError(f"There is no shipped configuration {name!r}; there are {there}.")
    text = (resources.files("pacpfl") / "configs" / f"{name}.toml").read_text(encoding="utf-8")
    return configuration.load(text, f"{name}.toml")


def say(text: str) -> None:
    """Print a sentence for people beside the results, as it stands, to standard error."""
    console.print(text, soft_wrap=True, markup=False)


def clear(folder: Path) -> None:
    """Clear a run folder for --fresh; say what that means where the same data were released before."""
    from pacpfl.folder import RunFolder
    from pacpfl.privacy.ledger import read_ledger

    run = RunFolder(folder)
    earlier = sum(bool(record.released) for record in read_ledger(run.ledger))
    if earlier:
        say(
            f"{folder} keeps its privacy ledger: a new run releases the same data again, and what it "
            f"spends adds to the {earlier} earlier (pacpfl privacy {folder} prints the total)."
        )
    run.clear()


def print_table(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print a table to standard output, its columns of words to the left, of numbers to the right."""
    from pacpfl.report.plain import plain_table

    Console(highlight=False).print(plain_table(title, left, right, rows))
