"""`python -m reproduction STUDY`: several methods and seeds, their table, figures and page."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pacpfl.cli.common import console
from pacpfl.errors import InputError
from reproduction.battery.command import peers, tables
from reproduction.certificates import certificates
from reproduction.cli_audit import audit
from reproduction.search import search

if TYPE_CHECKING:
    from reproduction.study import Cell

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reproduce the paper's studies, search their settings, and audit the privacy mechanisms.",
)
STUDIES = {
    "polynomial": "Together, alone, or pooled; what k and K buy.",
    "regression": "Every method of the paper's table of regression results.",
    "fortnights": "What depends on which 15 days the houses have.",
    "ablation": "What more particles, more base priors and other noise buy.",
    "classification": "Every method of the paper's table of classification results.",
    "privacy": "What accuracy costs in epsilon.",
}


def fuzz(
    inputs: Annotated[int, typer.Option(min=1, help="How many.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="From which all follow.")] = 0,
    only: Annotated[str, typer.Option(help="Kinds whose names hold this.")] = "",
    first: Annotated[int, typer.Option(min=0, help="The number of the first one.")] = 0,
) -> None:
    """Give damaged and hostile inputs to every format, message and command; exit with 1 at a fault."""
    from reproduction.fuzz import fuzz as play

    met = play(inputs, seed, only, first)
    print(f"{inputs} inputs, seed {seed}: {sum(met.values())} faults in {len(met)} places.")
    sys.exit(1 if met else 0)


def robust(
    out: Annotated[Path, typer.Option(help="Its folder.")] = Path("runs/reproduce-robust"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 2,
    rounds: Annotated[int, typer.Option(min=20, help="Of each training.")] = 600,
) -> None:
    """Let clients of Polynomial lie to a server, by every attack and against every rule."""
    from reproduction.robust import play

    play(out, seeds, rounds)


def reproduce(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="Its folder [runs/reproduce-STUDY].", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few rounds: a look.")] = False,
    weather: Annotated[
        str,
        typer.Option(help="The houses' weather: synthetic, pvgis, or a CSV file of PVGIS."),
    ] = "synthetic",
    only: Annotated[
        str | None,
        typer.Option(
            help="Data sets and rows to run now, with commas: pv-ew-610,pacpfl,ridge.",
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

    Every run is kept in outcomes.jsonl: stopped by Ctrl-C or --seconds, the command writes the page
    of what there is, and goes on when it is given again.
    """
    from pacpfl.engine import runtime

    runtime.configure()
    from pacpfl.report.terminal import watching
    from reproduction import page, sentences, study
    from reproduction.table import Table

    name = str(context.info_name)
    folder = out or Path("runs") / f"reproduce-{name}"
    chosen = range(first_seed, first_seed + (1 if quick else seeds))
    known = study.read_study(name)
    images = given_images(name, {d.images for d in known.datasets.values()} - {""}, femnist, emnist)
    every = study.cells(known, chosen, weather, images, quick)
    if weather != "synthetic" and not houses(every):
        raise InputError(f"The study {name} has no houses; leave out --weather.")
    now = study.select(every, only.split(",") if only else [])
    if houses(now):
        place(every)  # or why the weather cannot be read, before anything is run
    path = folder / "outcomes.jsonl"
    with watching(console, f"reproduce {name}") as watcher:
        failures = study.run_cells(
            *(now, path, jobs, seconds, watcher.stop),
            lambda now: watcher.count(now.done, now.total, now.latest),
        )
    for failure in failures:
        console.print(failure, soft_wrap=True, markup=False)
    kept = study.read_outcomes(path, every)
    if kept:
        table = Table(known, list(kept.values()), chosen)
        notes = list(known.notes)
        if houses([cell for cell in every if cell.place in kept]):
            notes.insert(0, place(every))
        if known.floor in table.datasets:
            notes.append(sentences.floor(known, chosen))
        written = page.write_page(folder, table, without_folders(sys.argv[1:]), notes)
        for sentence in sentences.summary(table):
            print(sentence)
        print(f"Report: {written}")
    missing = sum(cell.place not in kept for cell in now)
    if missing:
        console.print(f"{missing} of {len(now)} runs are missing; the same command goes on.")
        raise typer.Exit(1 if failures else 130 if watcher.stop() else 0)


def given_images(
    study: str, wanted: set[str], femnist: Path | None, emnist: Path | None
) -> dict[str, Path]:
    """Return the images by the name of their option; those a study needs must be there."""
    given = {"femnist": femnist, "emnist": emnist}
    paths = {name: path for name, path in given.items() if path is not None}
    if paths and not wanted:
        raise InputError(
            f"The study {study} has no images; leave out --femnist and --emnist, which belong to "
            "classification."
        )
    if wanted and not paths:
        raise InputError(f"The study {study} needs images: give --femnist PATH, --emnist PATH.")
    for path in paths.values():
        if not path.exists():
            raise InputError(f"There is no file or folder {path}; `pacpfl download` gets one.")
    return paths


def houses(cells: list[Cell]) -> list[Cell]:
    """Return the cells whose data are houses."""
    return [cell for cell in cells if cell.config.data.name == "pv"]


def place(cells: list[Cell]) -> str:
    """Return where the houses stand."""
    from pacpfl.build import load_weather
    from reproduction.sentences import setting

    solar = houses(cells)[0].config.pv
    return setting(solar, load_weather(solar))


def without_folders(arguments: list[str]) -> str:
    """Return the command for the page: files by name alone, for folders are those of one machine."""

    def short(argument: str) -> str:
        is_option = argument.startswith("--")
        option, equals, value = argument.partition("=") if is_option else ("", "", argument)
        return option + equals + Path(value).name

    return "python -m reproduction " + shlex.join(map(short, arguments))


for name, words in STUDIES.items():
    app.command(name, short_help=words)(reproduce)
app.command()(tables)
app.command()(peers)
app.command()(audit)
app.command()(certificates)
app.command()(search)
app.command()(robust)
app.command()(fuzz)


def main() -> None:
    # Figures are drawn into files, whatever screen or notebook the shell was set up for.
    os.environ["MPLBACKEND"] = "agg"
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
