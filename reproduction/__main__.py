"""`python -m reproduction STUDY`: several methods and seeds, their table, figures and page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pacpfl.errors import InputError
from reproduction.cli_audit import audit
from reproduction.cli_classification import reproduce_classification
from reproduction.cli_privacy_study import reproduce_privacy, search

STUDIES = ("polynomial", "regression", "fortnights", "ablation", "classification", "privacy")


def command(study: str) -> Callable[..., None]:
    def run(
        out: Annotated[
            Path | None, typer.Option(help="Its folder [runs/reproduce-STUDY].", show_default=False)
        ] = None,
        seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
        first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
        quick: Annotated[
            bool, typer.Option("--quick", help="One seed, few rounds: a look.")
        ] = False,
        weather: Annotated[
            str,
            typer.Option(help="The houses' weather: synthetic, pvgis, or a CSV file of PVGIS."),
        ] = "synthetic",
        only: Annotated[
            str | None,
            typer.Option(
                help="Data sets and methods to run now, with commas: pv-ew-610,pacpfl,ridge.",
                show_default=False,
            ),
        ] = None,
        femnist: Annotated[
            Path | None,
            typer.Option(help="Images by writer, for classification.", show_default=False),
        ] = None,
        emnist: Annotated[
            Path | None,
            typer.Option(help="Images of EMNIST, for classification.", show_default=False),
        ] = None,
        jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, each a process.")] = 1,
        seconds: Annotated[
            float | None, typer.Option(min=0, help="Stop after this time.", show_default=False)
        ] = None,
    ) -> None:
        """Run a whole study, several methods and seeds, and write its table, figures and page.

        All but polynomial keep every run in outcomes.jsonl: stopped by Ctrl-C or --seconds, they write
        the page of what there is, and the same command goes on.
        """
        folder = out or Path("runs") / f"reproduce-{study}"
        chosen = range(first_seed, first_seed + (1 if quick else seeds))
        if study == "classification":
            if weather != "synthetic" or jobs > 1:
                raise InputError(
                    "The study classification takes neither --weather nor --jobs; leave them out."
                )
            reproduce_classification(folder, chosen, quick, femnist, emnist, only, seconds)
            return
        if femnist or emnist:
            raise InputError(
                f"The study {study} has no images; leave out --femnist and --emnist, which belong to "
                "classification."
            )
        if study == "polynomial":
            if weather != "synthetic" or only or jobs > 1 or seconds is not None:
                raise InputError(
                    "The study polynomial takes none of --weather, --only, --jobs and --seconds; leave "
                    "them out."
                )
            command = "python -m reproduction polynomial" + (
                " --quick" if quick else f" --seeds {seeds} --first-seed {first_seed}"
            )
            _polynomial(folder, chosen, quick, command)
            return
        if study == "privacy":
            reproduce_privacy(folder, chosen, quick, weather, only, jobs, seconds)
            return
        _study(study, folder, chosen, quick, weather, only, jobs, seconds)

    return run


def _study(
    name: str,
    folder: Path,
    seeds: range,
    quick: bool,
    weather: str,
    only: str | None,
    jobs: int,
    seconds: float | None,
) -> None:
    from pacpfl.engine import runtime
    from pacpfl.report.progress import counting

    runtime.configure()
    from pacpfl.build import load_weather
    from reproduction import ablation, fortnights, regression, regression_summary, table
    from reproduction.outcomes import Progress, read_outcomes, run_cells
    from reproduction.study import write_study

    studies = {"regression": regression, "fortnights": fortnights, "ablation": ablation}
    study: Any = studies[name]
    page: Any = regression_summary if name == "regression" else study
    every = study.cells(seeds, weather, quick)
    now = regression.select(every, only.split(",") if only else [])
    solar = {cell.dataset: cell.config.pv for cell in every if cell.config.data.name == "pv"}

    @cache
    def place() -> str:
        houses = next(iter(solar.values()))
        return regression_summary.setting(houses, load_weather(houses))

    if any(cell.dataset in solar for cell in now):
        place()  # or why the weather cannot be read, before anything is run
    path, console = folder / "outcomes.jsonl", Console(stderr=True, highlight=False)
    with counting(f"reproduce {name}", console) as counter:

        def show(progress: Progress) -> None:
            counter.show(progress.done, progress.total, progress.latest)

        failures = run_cells(now, path, jobs, seconds, counter.stop, show)
    kept = read_outcomes(path, every)
    for failure in failures:
        console.print(failure, soft_wrap=True, markup=False)
    if kept:
        about = page.describe(
            list(kept.values()), seeds, "python -m reproduction " + shlex.join(sys.argv[1:])
        )
        outcomes = [outcome for outcome, _ in kept.values()]
        about |= table.circumstances(outcomes)
        if any(outcome.dataset in solar for outcome in outcomes):
            about["notes"] = [place(), *about["notes"]]
        table.write_table(folder, table.rows(outcomes, study.PUBLISHED), about)
        for sentence in about["summary"]:
            print(sentence)
        print(f"Report: {write_study(folder)}")
    missing = sum(cell.place not in kept for cell in now)
    if missing:
        console.print(f"{missing} of {len(now)} runs are missing; the same command goes on.")
        raise typer.Exit(1 if failures else 130 if counter.stop() else 0)


def _polynomial(folder: Path, seeds: range, quick: bool, command: str) -> None:
    from pacpfl.engine import runtime

    runtime.configure()
    from pacpfl.cli.common import console, shipped
    from pacpfl.report.progress import watching
    from pacpfl.run import Interrupted
    from reproduction import polynomial, table
    from reproduction.study import write_study

    with watching(console) as watcher:
        done = [0, 0]

        def finished(count: int, total: int) -> None:
            done[:] = count, total

        plain = watcher.stage
        watcher.stage = lambda text: plain(f"{done[0]} runs done; {text}")
        try:
            outcomes = polynomial.run_study(
                {name: shipped(name) for name in polynomial.SUITE},
                seeds,
                watcher,
                ["rounds=100"] if quick else [],
                finished,
            )
        except Interrupted as reason:
            console.print(f"{str(reason).capitalize()}; nothing was written.", soft_wrap=True)
            raise typer.Exit(130) from None
    about = polynomial.describe(outcomes, seeds, command)
    table.write_table(folder, table.rows(outcomes, polynomial.PUBLISHED), about)
    for sentence in about["summary"]:
        print(sentence)
    print(f"Report: {write_study(folder)}")


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reproduce the paper's studies, search their settings, and audit the privacy mechanisms.",
)
for name in STUDIES:
    app.command(name)(command(name))
app.command()(audit)
app.command()(search)


def main() -> None:
    os.environ["MPLBACKEND"] = "agg"
    console = Console(stderr=True, highlight=False)
    try:
        app(standalone_mode=True)
    except InputError as error:
        console.print(f"reproduction: {error}", soft_wrap=True, markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("Stopped.")
        sys.exit(130)


if __name__ == "__main__":
    main()
