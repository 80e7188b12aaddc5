"""How far a training is, for people who wait: a bar in a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pacpfl.engine.simulate import Progress


@contextmanager
def watching(verbose: bool) -> Iterator[Callable[[Progress], None] | None]:
    """What `train` tells of its progress; None where nobody wants to see it."""
    if not verbose:
        yield None
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns) as bar:
        task = bar.add_task("training", total=None)

        def show(now: Progress) -> None:
            evidence = now.diagnostics.get("log_evidence", float("nan"))
            words = f"training, ln Z {evidence:.3f} per sample"
            bar.update(task, completed=now.round, total=now.rounds, description=words)

        yield show
