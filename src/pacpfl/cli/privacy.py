"""`pacpfl privacy`: what a run, and earlier runs in its folder, have spent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pacpfl.errors import InputError


def privacy(folder: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Print the privacy ledger of a run folder: every run in it, what it released, and the total.

    Rounds count when they are about to be released, so a run that was killed has counted them, too.
    Each epsilon stands with its delta and with who counts as a neighbour (docs/privacy.md).
    """
    from rich.table import Table

    from pacpfl.privacy.ledger import FILE, read_ledger, total
    from pacpfl.report.sentences import guarantee

    if not folder.is_dir():
        raise InputError(f"There is no run folder {folder}; give the folder a run has written.")
    runs = read_ledger(folder / FILE)
    if not runs:
        raise InputError(
            f"{folder} holds no privacy ledger: its run was trained without privacy; give one that was "
            "trained with --epsilon."
        )
    table = Table(title=f"Privacy ledger of {folder}", title_justify="left")
    for name in ("run", "mode", "unit", "sampling", "noise", "rounds", "lost", "epsilon", "delta"):
        table.add_column(name, justify="left" if name in ("run", "mode") else "right")
    for run in runs:
        plan, spent = run.plan, run.spent()
        reached = max((last for _, last in run.releases), default=0)
        table.add_row(
            run.started,
            plan.mode if run.private else f"{plan.mode}, NOT PRIVATE",
            plan.unit,
            f"{plan.sampling} {plan.cohort} of {plan.clients}",
            f"{plan.multiplier:.4g} x clip",
            f"{run.released} of {plan.rounds}",
            str(run.released - reached),
            number(spent.epsilon),
            number(spent.delta),
        )
    Console(highlight=False).print(table)
    if any(run.plan.unit != runs[0].plan.unit for run in runs):
        print("Total: none, because the runs protect different units.")
        return
    everything = total(runs)
    before = f", {len(runs) - 1} earlier in the same folder included" if len(runs) > 1 else ""
    if math.isfinite(everything.epsilon):
        facts = everything._asdict() | {"unit": runs[-1].plan.unit}
        print(f"Total: {guarantee(facts)}{before}.")
    else:
        print(f"Total: no guarantee, because mode paper has none{before}.")
    if not all(run.private for run in runs):
        print("NOT PRIVATE: a run in this folder has no guarantee, or noise from a seed.")


def number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "none"


def warn_of_earlier(folder: Path, console: Any) -> None:
    """Say what --fresh means where the same data were released before."""
    from pacpfl.privacy.ledger import FILE, read_ledger

    runs = [run for run in read_ledger(folder / FILE) if run.released]
    if runs:
        console.print(
            f"{folder} keeps its privacy ledger: a new run releases the same data again, and what it "
            f"spends adds to the {len(runs)} earlier (pacpfl privacy {folder} prints the total).",
            soft_wrap=True,
        )
