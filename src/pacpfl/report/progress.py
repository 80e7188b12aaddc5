"""One progress bar for trainings, searches and studies, and Ctrl-C that asks instead of breaking."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich import progress
from rich.console import Console

from pacpfl.engine.simulate import Progress
from pacpfl.run import Watcher


class Bar:
    """A bar of what is done, where there is a terminal; use it in a `with`."""

    def __init__(
        self, console: Console, title: str = "starting", shown: bool | None = None
    ) -> None:
        self.rich = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[speed]}"),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[words]}", markup=False),
            console=console,
            disable=not (console.is_terminal if shown is None else shown),
        )
        self.task = self.rich.add_task(title, total=None, speed="", words="")
        self.start: tuple[int, float] | None = None

    def __enter__(self) -> Bar:
        self.rich.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.rich.stop()

    def stage(self, title: str) -> None:
        """Begin something new: to rich, `reset(total=None)` means that the total stays as it was."""
        self.start = None
        self.rich.remove_task(self.task)
        self.task = self.rich.add_task(title, total=None, speed="", words="")

    def count(self, done: int, total: int, words: str) -> None:
        """Show how many are done, and what there is to say about them."""
        self.rich.update(self.task, completed=done, total=total, words=words)

    def rounds(self, now: Progress) -> None:
        """Show the rounds of a training, their speed, and how well it goes."""
        first, began = self.start = self.start or (now.round, now.seconds)
        elapsed = now.seconds - began
        speed = (now.round - first) / elapsed if elapsed > 0 else 0.0
        self.rich.update(self.task, speed=f"{speed:.0f} rounds/s" if speed else "")
        self.count(now.round, now.rounds, latest(now.diagnostics))


def latest(diagnostics: Mapping[str, float]) -> str:
    """Return how well a training goes: its evidence, or for methods without one the loss."""
    if "log_evidence" in diagnostics:
        return f"ln Z {diagnostics['log_evidence']:.3f} per sample"
    return f"loss {diagnostics['loss']:.3f}" if "loss" in diagnostics else ""


@contextmanager
def asking(console: Console, words: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether to stop: the first Ctrl-C asks for it, the second breaks."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print(words)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def watching(console: Console) -> Iterator[Watcher]:
    """Show a run, and let Ctrl-C stop it after the step it is at."""
    words = "Stopping after this step; press Ctrl-C again to stop at once without saving."
    with asking(console, words) as stop, Bar(console) as bar:
        yield Watcher(bar.stage, bar.rounds, stop)


class Counter(NamedTuple):
    """Tell it how many are done and what to say about them; ask it whether to stop."""

    show: Callable[[int, int, str], None]  # done, of how many, words
    stop: Callable[[], bool]


@contextmanager
def counting(title: str, console: Console) -> Iterator[Counter]:
    """Show how many of many runs are done; Ctrl-C asks to stop and to keep what there is."""
    with (
        asking(console, "Stopping; press Ctrl-C again to stop at once.") as stop,
        Bar(console, title) as bar,
    ):
        yield Counter(bar.count, stop)


@contextmanager
def training_bar(shown: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Show a training in a terminal or a notebook; None where nobody wants to see it."""
    if not shown:
        yield None
        return
    with Bar(Console(), "training", shown=True) as bar:
        yield bar.rounds
