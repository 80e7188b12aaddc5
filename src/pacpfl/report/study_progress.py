"""What people see while many runs are under way, and how they stop them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Counter(NamedTuple):
    """Tell it how many are done and what to say about them; ask it whether to stop."""

    show: Callable[[int, int, str], None]  # done, of how many, words
    stop: Callable[[], bool]


@contextmanager
def counting(title: str, console: Console) -> Iterator[Counter]:
    """A bar with time left where there is a terminal. The first Ctrl-C asks to stop and to keep what
    there is, the second stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print("Stopping; press Ctrl-C again to stop at once.")

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task(title, total=None)

    def show(done: int, total: int, words: str) -> None:
        bar.update(task, completed=done, total=total, description=f"{title}: {words}")

    before = signal.signal(signal.SIGINT, ask)
    try:
        with bar:
            yield Counter(show, lambda: asked)
    finally:
        signal.signal(signal.SIGINT, before)
