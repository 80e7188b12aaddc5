"""The command line. JAX is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pacpfl.cli_audit import audit
from pacpfl.cli_classification import download
from pacpfl.cli_own import check, compare, fit, init
from pacpfl.cli_predict import evaluate, personalize, predict, update
from pacpfl.cli_privacy import privacy, warn_of_earlier
from pacpfl.cli_reproduce import reproduce
from pacpfl.cli_sites import add_to, run_across
from pacpfl.cli_tune import tune
from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.sections import Config

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Personalised federated learning with honest uncertainty.

Many clients hold small, private, different data sets. pacpfl learns a distribution over priors from
their gradients, and each client, also one who joins later, turns it into its own calibrated model.

[bold]Start here[/bold]

  pacpfl run polynomial                     train, personalise, measure; about a minute
  pacpfl run polynomial --set particles=8   change one setting
  pacpfl run digits                         the same for images of digits
  pacpfl report runs/polynomial             draw the figures and the page again

A run folder holds config.toml (complete: edit it and pass it with --config), metrics.json,
clients.csv, figures/ and report.html. Stop a run with Ctrl-C: it saves, and the same command goes on.""",
)
console = Console(stderr=True, highlight=False)


@app.command()
def run(
    dataset: Annotated[
        str | None,
        typer.Argument(
            help="A shipped configuration: polynomial, polynomial-opposite, digits, femnist, "
            "femnist-all, emnist.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A configuration of your own (TOML).", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change one key, e.g. particles=8 or prior.kernel=ard.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="File or folder of the images (femnist, emnist).", show_default=False),
    ] = None,
    m: Annotated[
        int | None,
        typer.Option(
            "--m", min=0, help="Training samples of each client; 0: all.", show_default=False
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Train with differential privacy: the budget (mode gaussian unless set otherwise).",
            show_default=False,
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="With --epsilon [1e-5].", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of everything random.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder [runs/NAME-seedN].", show_default=False)
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Curves for tensorboard or mlflow, below tracking/.", show_default=False),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over, even if a checkpoint is there.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="simulate: here; flare: at the sites (docs/deploy.md).")
    ] = "simulate",
    kit: Annotated[
        Path | None,
        typer.Option(help="With --engine flare: the administrator's kit.", show_default=False),
    ] = None,
    demonstration: Annotated[
        bool,
        typer.Option(
            "--demonstration", help="With --engine flare: the sites hold this configuration's data."
        ),
    ] = False,
) -> None:
    """Train, personalise every client, measure, and write a run folder with a report.

    Started again with the same command, a run that was stopped or killed goes on from its last
    checkpoint and ends with the same particles, bit for bit.
    """
    from pacpfl import config as configuration

    if (dataset is None) == (config is None):
        raise InputError(
            "Name either a shipped configuration (pacpfl run polynomial) or your own with --config."
        )
    chosen = configuration.load_file(config) if config else shipped(str(dataset))
    more = {
        "images.path": None if data is None else json.dumps(str(data), ensure_ascii=False),
        "data.samples": m,
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "seed": seed,
    }
    given = [f"{name}={value}" for name, value in more.items() if value is not None]
    mode = ["privacy.mode=gaussian"] if epsilon and chosen.privacy.mode == "none" else []
    chosen = configuration.override(chosen, [*mode, *(settings or []), *given])
    name = config.stem if config else str(dataset)
    folder = out or Path("runs") / (name if chosen.seed == 0 else f"{name}-seed{chosen.seed}")

    from pacpfl.engine import runtime

    runtime.configure(chosen.run.precision)
    from pacpfl import folder as run_folder
    from pacpfl import run as study
    from pacpfl.report.page import write_report
    from pacpfl.report.track import tracked

    if engine not in ("simulate", "flare"):
        raise InputError(f"There is no engine {engine!r}; there are simulate and flare.")
    if fresh:
        warn_of_earlier(folder, console)
        run_folder.clear(folder)
    with watching() as bar, tracked(track or [], folder, chosen, bar) as tracking:
        watcher = tracking.watcher
        try:
            if engine == "flare":
                left = run_across(chosen, folder, kit, watcher, fresh, demonstration)
                if left is None:
                    print(f"Trained: {folder}. Each site goes on with pacpfl site personalize.")
                    return
                chosen = left
            results = study.run(chosen, folder, watcher)
            tracking.finish(results)
        except study.Interrupted as reason:
            console.print(f"Saved: {reason}. The same command goes on from there.", soft_wrap=True)
            raise typer.Exit(130) from None
        watcher.stage("drawing the report")
        page = write_report(folder)
    summary(
        {name: (r.about["title"], run_folder.summarise(r.groups)) for name, r in results.items()}
    )
    diversity = next(
        (r.about["diversity"]["words"] for r in results.values() if "diversity" in r.about), None
    )
    if diversity:
        print(diversity)
    for result in results.values():
        if "privacy" in result.about:
            print(result.about["privacy"]["words"])
    print(f"Report: {page}")


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Draw the figures and write report.html again, from what the run folder holds."""
    from pacpfl.report.page import write_report

    print(write_report(folder))


app.command()(reproduce)


@app.command()
def certify(
    folder: Annotated[Path, typer.Argument(help="The folder of a complete run of pacpfl.")],
    delta: Annotated[
        float, typer.Option(help="Probability with which each certificate may fail.")
    ] = 0.05,
    loss: Annotated[
        str | None,
        typer.Option(
            help="What is bounded: clipped-nll or clipped-squared; for classes zero-one, brier or "
            "clipped-nll [clipped-nll; for classes zero-one].",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            help="Where the loss is clipped [2 for clipped-nll, for classes ln(their number); 1 for "
            "clipped-squared]."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Privacy of the training towards existing clients [as recorded, or assumed]."
        ),
    ] = None,
    unit: Annotated[
        str, typer.Option(help="What --epsilon protects: a whole client, or one sample.")
    ] = "client",
) -> None:
    """Tell every client what its risk is guaranteed to stay below, and what that rests on.

    Writes certificates.json into the run folder and draws its report again. Clients who joined after
    the training have certificates that are proved; for the others the training's privacy is a
    premise. Of Bayesian networks, the Gaussian variational posterior is certified.
    docs/certificates.md tells how to read one.
    """
    from pacpfl import config as configuration
    from pacpfl.engine import runtime

    if (folder / "config.toml").is_file():
        runtime.configure(configuration.load_file(folder / "config.toml").run.precision)
    from pacpfl.report.page import write_report
    from pacpfl.report.terminal import print_certificates
    from pacpfl.studies import certify as study

    with console.status("certifying") as status:
        document = study.certify(
            folder,
            delta=delta,
            loss=loss,
            limit=limit,
            epsilon=epsilon,
            unit=unit,  # type: ignore[arg-type]
            progress=lambda who: status.update(f"certifying {who}"),
        )
        status.update("drawing the report")
        page = write_report(folder)
    print_certificates(document, Console(highlight=False))
    print(f"Report: {page}")


for own in (init, check, fit, compare, personalize, predict, update, evaluate):
    app.command()(own)
app.command()(tune)
app.command()(audit)
app.command()(privacy)
app.command()(download)
add_to(app)


@app.command()
def version() -> None:
    """Print the version."""
    from pacpfl import __version__

    print(__version__)


def shipped(name: str) -> Config:
    """A configuration that comes with the package."""
    from importlib import resources

    from pacpfl import config as configuration

    folder = resources.files("pacpfl.studies") / "configs"
    path = folder / f"{name}.toml"
    if not path.is_file():
        names = sorted(
            p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
        )
        raise InputError(
            f"There is no shipped configuration {name!r}; there are {', '.join(names)}."
        )
    return configuration.load(path.read_text(encoding="utf-8"), f"{name}.toml")


@contextmanager
def watching() -> Iterator[Any]:
    """A progress bar where there is a terminal, and Ctrl-C that asks instead of breaking."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    from pacpfl.run import Watcher

    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print(
            "Stopping after this step; press Ctrl-C again to stop at once without saving."
        )

    before = signal.signal(signal.SIGINT, ask)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[evidence]}"),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("starting", total=None, speed="", evidence="")
    base: dict[str, float] = {}

    def stage(text: str) -> None:
        """A new task: to rich, `reset(total=None)` means that the total stays as it was."""
        nonlocal task
        base.clear()
        bar.remove_task(task)
        task = bar.add_task(text, total=None, speed="", evidence="")

    def progress(now: Any) -> None:
        base.setdefault("round", now.round)
        base.setdefault("seconds", now.seconds)
        elapsed = now.seconds - base["seconds"]
        speed = (now.round - base["round"]) / elapsed if elapsed > 0 else 0.0
        bar.update(
            task,
            completed=now.round,
            total=now.rounds,
            speed=f"{speed:.0f} rounds/s" if speed else "",
            evidence=latest(now.diagnostics),
        )

    try:
        with bar:
            yield Watcher(stage, progress, lambda: asked)
    finally:
        signal.signal(signal.SIGINT, before)


def latest(diagnostics: dict[str, float]) -> str:
    """How well it goes, for the progress bar: evidence, or for methods without one the loss."""
    if "log_evidence" in diagnostics:
        return f"ln Z {diagnostics['log_evidence']:.3f} per sample"
    return f"loss {diagnostics['loss']:.3f}" if "loss" in diagnostics else ""


NUMBERS = {"rsmse": "RSMSE", "ce": "CE", "nll": "NLL", "coverage_90": "90% coverage"}
CLASSES = {"accuracy": "accuracy", "ce": "CE", "nll": "NLL", "brier": "Brier score"}


def summary(tables: dict[str, tuple[str, dict[str, dict[str, dict[str, float]]]]]) -> None:
    """The metrics that people look at first, to standard output."""
    from rich.table import Table

    every = [measured for _, groups in tables.values() for measured in groups.values()]
    shown = CLASSES if any("accuracy" in measured for measured in every) else NUMBERS
    table = Table(title="Mean over clients ± 95% interval", title_justify="left")
    table.add_column("method")
    table.add_column("clients")
    for metric in shown.values():
        table.add_column(metric, justify="right")
    for title, groups in tables.values():
        for group, measured in groups.items():
            table.add_row(title, group, *(plus_minus(measured[m]) for m in shown))
    Console(highlight=False).print(table)


def plus_minus(cell: dict[str, float]) -> str:
    """Without an interval where there is none: that of all clients together, or of one client."""
    half = cell["ci95"]
    return f"{cell['mean']:.3f}" + (f" ± {half:.3f}" if math.isfinite(half) else "")


def main() -> None:
    # Figures are drawn into files, whatever screen or notebook the shell was set up for.
    os.environ["MPLBACKEND"] = "agg"
    try:
        app(standalone_mode=True)
    except InputError as error:
        console.print(f"pacpfl: {error}", soft_wrap=True, markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("Stopped.")
        sys.exit(130)


if __name__ == "__main__":
    main()
