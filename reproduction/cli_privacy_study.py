"""`python -m reproduction privacy`, and the search for its settings (`python -m reproduction search`)."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.report.progress import Counter

console = Console(stderr=True, highlight=False)


def reproduce_privacy(
    folder: Path,
    seeds: range,
    quick: bool,
    weather: str,
    only: str | None,
    jobs: int,
    seconds: float | None,
) -> None:
    """Run what is missing, keep each run, and write table, figures and page of what there is."""
    from pacpfl.engine import runtime
    from pacpfl.report.progress import counting

    runtime.configure()
    from pacpfl.build import load_weather
    from reproduction import privacy_study, privacy_summary, regression
    from reproduction.cli_classification import without_folders
    from reproduction.outcomes import Progress, read_outcomes
    from reproduction.privacy_plots import write_privacy_study

    every = privacy_study.cells(seeds, weather, quick)
    now = regression.select(every, only.split(",") if only else [])
    if weather != "synthetic":
        load_weather(next(c.config.pv for c in every if c.config.data.name == "pv"))  # or why not
    path = folder / "outcomes.jsonl"
    with counting("reproduce privacy", console) as counter:

        def show(progress: Progress) -> None:
            counter.show(progress.done, progress.total, progress.latest)

        failures = privacy_study.run_cells(now, path, jobs, seconds, counter.stop, show)
    kept = read_outcomes(path, every)
    for failure in failures:
        console.print(failure, soft_wrap=True, markup=False)
    if kept:
        known = list(kept.values())
        about = privacy_summary.describe(known, seeds, without_folders(sys.argv[1:]))
        privacy_summary.write_table(folder, known, about)
        for sentence in about["summary"]:
            print(sentence)
        print(f"Report: {write_privacy_study(folder)}")
    missing = sum(cell.place not in kept for cell in now)
    if missing:
        console.print(f"{missing} of {len(now)} runs are missing; the same command goes on.")
        raise typer.Exit(1 if failures else 130 if counter.stop() else 0)


def search(
    dataset: Annotated[str, typer.Argument(help="polynomial, pv or digits.")],
    out: Annotated[Path, typer.Option(help="Folder for the settings that are found.")],
    modes: Annotated[
        str, typer.Option(help="Of which modes, with commas.")
    ] = "none,gaussian,laplace,paper",
    epsilons: Annotated[str, typer.Option(help="At which epsilons, with commas.")] = "2,8",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds from 100 on, for all proposals.")] = 2,
    further: Annotated[int, typer.Option(min=0, help="Seeds after those, for the best few.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, each a process.")] = 1,
) -> None:
    """Choose the settings of the privacy study: the same proposals for every mode."""
    from pacpfl import files
    from pacpfl.engine import runtime
    from pacpfl.report.progress import counting

    runtime.configure()
    from reproduction import privacy_search, privacy_study

    if dataset not in privacy_search.GRIDS:
        raise InputError(
            f"There is no data set {dataset!r}; there are {', '.join(privacy_search.GRIDS)}."
        )
    tried = len(privacy_search.proposals(dataset))
    chosen = range(privacy_search.FIRST_SEED, privacy_search.FIRST_SEED + seeds + further)
    runs = tried * seeds + min(tried, privacy_search.FINALISTS) * further
    command = f"python -m reproduction {shlex.join(sys.argv[1:])}"
    for mode in modes.split(","):
        for epsilon in [None] if mode == "none" else [float(e) for e in epsilons.split(",")]:
            name = mode if epsilon is None else privacy_study.row_name(mode, epsilon)
            with counting(name, console) as counter:
                found = privacy_search.search(
                    *(dataset, mode, epsilon, chosen[:seeds], chosen[seeds:], jobs, counter.stop),
                    partial(_show, counter, runs),
                )
            if counter.stop():
                raise typer.Exit(130)
            text = privacy_search.as_toml(found[0], tried, chosen, command)
            files.write(out / f"{name}.toml", text.encode())
            print(f"{name}: {found[0].score:.4f}", flush=True)


def _show(counter: Counter, total: int, done: int) -> None:
    counter.show(done, total, "")
