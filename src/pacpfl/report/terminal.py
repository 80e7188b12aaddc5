"""What the terminal shows: how far something is, the measures of a run, and certificates."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from rich import progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pacpfl.engine.simulate import Progress
from pacpfl.folder import MethodResult, summarise
from pacpfl.report import sentences
from pacpfl.report.folder import Facts
from pacpfl.report.measures import (
    ACCURACY,
    CLASS_MEASURES,
    CRPS,
    RANKED,
    Measure,
    number,
    plus_minus,
)
from pacpfl.report.plain import plain_table
from pacpfl.run import Watcher

CLIENTS_SHOWN = 12  # per group; the rest is in certificates.json


class Bar(progress.Progress):
    """A bar of what is done where there is a terminal, a line every tenth elsewhere; use it in a `with`."""

    def __init__(
        self, title: str, shown: bool | None = None, console: Console | None = None
    ) -> None:
        super().__init__(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(10),  # all of it fits into 80 columns
            progress.TextColumn("{task.fields[of]}"),
            progress.TextColumn("{task.fields[speed]}"),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[words]}", markup=False),
            console=console,
        )
        self.disable = not (self.console.is_terminal if shown is None else shown)
        self.in_lines = self.disable and shown is None
        self.stage(title)

    def stage(self, title: str) -> None:
        """Begin something new: to rich, `reset(total=None)` means that the total stays as it was."""
        self.first: tuple[int, float] | None = None  # round, and seconds
        for task in self.task_ids:
            self.remove_task(task)
        self.shown = self.add_task(title, total=None, of="", speed="", words="")
        self.title, self.tenth, self.told = title, 0, time.monotonic()

    def count(self, done: int, total: int, words: str) -> None:
        """Show how many are done, and what there is to say about them; a line at most once a second."""
        self.update(self.shown, completed=done, total=total, of=f"{done}/{total}", words=words)
        tenth, now = 10 * done // max(total, 1), time.monotonic()
        if self.in_lines and tenth > self.tenth and now - self.told >= 1:
            self.tenth, self.told = tenth, now
            line = f"{self.title}: {done} of {total}" + (f", {words}" if words else "")
            self.console.print(line, markup=False, soft_wrap=True)

    def rounds(self, now: Progress) -> None:
        """Show the rounds of a training, their speed, and how well it goes."""
        first, began = self.first = self.first or (now.round, now.seconds)
        if now.seconds > began:
            speed = (now.round - first) / (now.seconds - began)
            self.update(self.shown, speed=f"{speed:.0f} rounds/s")
        self.count(now.round, now.rounds, latest(now.diagnostics))


def latest(diagnostics: Mapping[str, float]) -> str:
    """Return how well a training goes: its evidence, or for methods without one the loss."""
    if "log_evidence" in diagnostics:
        return f"ln Z {diagnostics['log_evidence']:.3f} per sample"
    return f"loss {diagnostics['loss']:.3f}" if "loss" in diagnostics else ""


@contextmanager
def watching(console: Console, title: str = "starting") -> Iterator[Watcher]:
    """Show how far a run is, or many; the first Ctrl-C asks to stop after a step, the second breaks."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print(
            "Stopping after this step; press Ctrl-C again to stop at once without saving."
        )

    before = signal.signal(signal.SIGINT, ask)
    try:
        with Bar(title, console=console) as bar:
            yield Watcher(bar.stage, bar.rounds, bar.count, lambda: asked)
    finally:
        signal.signal(signal.SIGINT, before)


def print_results(results: Mapping[str, MethodResult], without: Collection[Measure] = ()) -> None:
    """Print the measures that people look at first, and what to know of them, to standard output."""
    tables = {result.about["title"]: summarise(result.groups) for result in results.values()}
    classes = any(ACCURACY.key in means for groups in tables.values() for means in groups.values())
    # Four fit into 80 columns; the report has all.
    shown = [m for m in (CLASS_MEASURES if classes else RANKED) if m not in (CRPS, *without)]
    rows = [
        ("" if place else title, group, *(_plus_minus(means[measure.key]) for measure in shown))
        for title, groups in tables.items()
        for place, (group, means) in enumerate(groups.items())
    ]
    title = "Mean over clients \N{PLUS-MINUS SIGN} 95% interval"
    numbers = [measure.title for measure in shown]
    Console(highlight=False).print(plain_table(title, ("method", "clients"), numbers, rows))
    for result in results.values():
        for sentence in (sentences.diversity(result.about), sentences.privacy(result.about)):
            if sentence:
                print(sentence)


def _plus_minus(cell: Mapping[str, float]) -> str:
    return plus_minus(cell["mean"], cell["ci95"])


def print_certificates(document: Facts, console: Console) -> None:
    """Print one row per client, what the certificates rest on, and the verdicts in words."""
    console.print(_clients(document))
    hidden = sum(max(0, facts["clients"] - CLIENTS_SHOWN) for facts in document["groups"].values())
    if hidden:
        console.print(f"{hidden} more clients are in certificates.json.")
    heads, keys = ("for", "condition", "status", "why"), ("who", "name", "status", "reason")
    rows = ([row[key] for key in keys] for row in sentences.conditions(document))
    table = plain_table("What they rest on", heads, (), rows)
    table.leading = 1
    console.print(table)
    for sentence in sentences.certificates(document):
        console.print(Text(sentence), soft_wrap=False)


def _clients(document: Facts) -> Table:
    loss = document["loss"]
    title = f"{loss['name']}, largest value {loss['b']:g}, delta {document['delta']:g}"
    numbers = ("rows", "judge", "own\nrisk", "bound", "test\nrisk", "drawn")
    table = plain_table(title, ("client",), numbers)
    table.add_column("standing")
    table.add_column("shared\nprior")
    for group in document["groups"]:
        rows = [row for row in document["clients"] if row["group"] == group]
        for row in rows[:CLIENTS_SHOWN]:
            table.add_row(
                Text(row["client"]),
                str(row["samples"] + row["later"]),
                str(row["judged"]),
                number(row["empirical_risk"]),
                number(row["bound"]),
                number(row["test_risk"]),
                number(row["drawn"]["bound"]),
                row["verdict"],
                "helps" if row["participation"]["margin"] >= 0 else "costs",
            )
        table.add_section()
    return table
