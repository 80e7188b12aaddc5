"""What the commands share: console, options, shipped configurations, and what Ctrl-C means."""

from __future__ import annotations

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

    folder = resources.files("pacpfl") / "configs"
    path = folder / f"{name}.toml"
    if not path.is_file():
        names = sorted(
            p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
        )
        raise InputError(
            f"There is no shipped configuration {name!r}; there are {', '.join(names)}."
        )
    return configuration.load(path.read_text(encoding="utf-8"), f"{name}.toml")


def say(text: str) -> None:
    """Print a sentence for people beside the results, as it stands, to standard error."""
    console.print(text, soft_wrap=True, markup=False)


@contextmanager
def stopping() -> Iterator[None]:
    """End with the status of Ctrl-C, and a sentence, where a run was stopped and saved."""
    from pacpfl.run import Interrupted

    try:
        yield
    except Interrupted as reason:
        say(f"Saved: {reason}. The same command goes on from there.")
        raise typer.Exit(130) from None


def print_table(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print a table to standard output, its columns of words to the left, of numbers to the right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
