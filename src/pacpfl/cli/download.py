"""`pacpfl download`: sets of images."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console(stderr=True, highlight=False)


def download(
    name: Annotated[str, typer.Argument(help="Which set: femnist, emnist, emnist-matlab.")],
    folder: Annotated[Path, typer.Argument(help="Where to put it.")],
) -> None:
    """Download a set of images, and say how to run with it.

    The file appears whole or not at all. A download that breaks off goes on when the command is
    repeated, where a checksum can tell whether the whole is right.
    """
    from rich import progress

    from pacpfl.data import download as downloads

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
    )
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def show(received: int, total: int | None) -> None:
            bar.update(task, completed=received, total=total)

        path = downloads.download(name, folder, show)
    if not downloads.SOURCES[name].checksum:
        console.print(f"Its publisher gives no checksum: {path} was not checked.", soft_wrap=True)
    dataset = name.partition("-")[0]
    print(f"pacpfl run {dataset} --data {shlex.quote(str(path))}")
