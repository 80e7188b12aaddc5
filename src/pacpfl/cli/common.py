"""What the commands share: the console, shipped configurations, the progress bar, and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.config import Config

console = Console(stderr=True, highlight=False)


def shipped(name: str) -> Config:
    """A configuration that comes with the package."""
    from importlib import resources

    from pacpfl import config as configuration

    folder = resources.files("pacpfl.studies") / "configs"
    path = folder / f"{name}.toml"
    if not path.is_file():
        names = sorted(
            p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
        )
        raise InputError(
            f"There is no shipped configuration {name!r}; there are {', '.join(names)}."
        )
    return configuration.load(path.read_text(encoding="utf-8"), f"{name}.toml")


@contextmanager
def watching() -> Iterator[Any]:
    """A progress bar where there is a terminal, and Ctrl-C that asks instead of breaking."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    from pacpfl.run import Watcher

    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print(
            "Stopping after this step; press Ctrl-C again to stop at once without saving."
        )

    before = signal.signal(signal.SIGINT, ask)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[evidence]}"),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("starting", total=None, speed="", evidence="")
    base: dict[str, float] = {}

    def stage(text: str) -> None:
        """A new task: to rich, `reset(total=None)` means that the total stays as it was."""
        nonlocal task
        base.clear()
        bar.remove_task(task)
        task = bar.add_task(text, total=None, speed="", evidence="")

    def progress(now: Any) -> None:
        base.setdefault("round", now.round)
        base.setdefault("seconds", now.seconds)
        elapsed = now.seconds - base["seconds"]
        speed = (now.round - base["round"]) / elapsed if elapsed > 0 else 0.0
        bar.update(
            task,
            completed=now.round,
            total=now.rounds,
            speed=f"{speed:.0f} rounds/s" if speed else "",
            evidence=latest(now.diagnostics),
        )

    try:
        with bar:
            yield Watcher(stage, progress, lambda: asked)
    finally:
        signal.signal(signal.SIGINT, before)


def latest(diagnostics: dict[str, float]) -> str:
    """How well it goes, for the progress bar: evidence, or for methods without one the loss."""
    if "log_evidence" in diagnostics:
        return f"ln Z {diagnostics['log_evidence']:.3f} per sample"
    return f"loss {diagnostics['loss']:.3f}" if "loss" in diagnostics else ""
