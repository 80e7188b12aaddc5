"""What the commands share: console, options, shipped configurations, and folders that start over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.config import Config

console = Console(stderr=True, highlight=False)
DEFAULT = Path("pacpfl.toml")  # what `pacpfl init` writes, and fit, check and compare read

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one key, e.g. particles=8 or prior.kernel=ard."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over, even if a checkpoint is there.")]
Out = Annotated[Path | None, typer.Option(help="The run folder (default: below runs/).")]


def shipped(name: str) -> Config:
    """Return a configuration that comes with the package."""
    from importlib import resources

    from pacpfl import config as configuration

    files = (resources.files("pacpfl") / "configs").iterdir()
    known = {file.name.removesuffix(".toml"): file for file in files if ".toml" in file.name}
    if name not in known:
        there = ", ".join(sorted(known))
        raise InputError(f"There is no shipped configuration {name!r}; there are {there}.")
    return configuration.load(known[name].read_text(encoding="utf-8"), f"{name}.toml")


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
    from rich.table import Table

    table = Table(*left, title=title, title_justify="left")
    for name in right:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
