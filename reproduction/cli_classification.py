"""`python -m reproduction classification`: the study of images."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import typer
from rich.console import Console

from pacpfl.errors import InputError

console = Console(stderr=True, highlight=False)


def reproduce_classification(
    folder: Path,
    seeds: range,
    quick: bool,
    femnist: Path | None,
    emnist: Path | None,
    only: str | None,
    seconds: float | None,
) -> None:
    """Run what is missing, keep each run, and write table and page of what there is."""
    given = {"femnist": femnist, "emnist": emnist}
    paths = {name: path for name, path in given.items() if path is not None}
    if not paths:
        raise InputError(
            "The study classification needs images: give --femnist PATH, --emnist PATH."
        )
    for path in paths.values():
        if not path.exists():
            raise InputError(f"There is no file or folder {path}; `pacpfl download` gets one.")
    from pacpfl.engine import runtime
    from pacpfl.report.progress import counting

    runtime.configure()
    from reproduction import classification, classification_summary, regression, table
    from reproduction.outcomes import Progress, read_outcomes
    from reproduction.study import write_study

    every = classification.cells(seeds, paths, quick)
    now = regression.select(every, only.split(",") if only else [])
    path = folder / "outcomes.jsonl"
    with counting("reproduce classification", console) as counter:

        def show(progress: Progress) -> None:
            counter.show(progress.done, progress.total, progress.latest)

        failures = classification.run_cells(now, path, seconds, counter.stop, show)
    for failure in failures:
        console.print(failure, soft_wrap=True, markup=False)
    kept = read_outcomes(path, every)
    if kept:
        about = classification_summary.describe(
            list(kept.values()), seeds, without_folders(sys.argv[1:])
        )
        outcomes = [outcome for outcome, _ in kept.values()]
        about |= table.circumstances(outcomes)
        table.write_table(folder, table.rows(outcomes, classification.PUBLISHED), about)
        for sentence in about["summary"]:
            print(sentence)
        print(f"Report: {write_study(folder)}")
    missing = sum(cell.place not in kept for cell in now)
    if missing:
        console.print(f"{missing} of {len(now)} runs are missing; the same command goes on.")
        raise typer.Exit(1 if failures else 130 if counter.stop() else 0)


def without_folders(arguments: list[str]) -> str:
    """The command for the page: files by their names alone, for the folders are those of one machine."""

    def short(argument: str) -> str:
        is_option = argument.startswith("--")
        option, equals, value = argument.partition("=") if is_option else ("", "", argument)
        return option + equals + Path(value).name

    return "python -m reproduction " + shlex.join(map(short, arguments))
