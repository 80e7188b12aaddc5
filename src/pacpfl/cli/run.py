"""`pacpfl run` and its folder: download the data, train, report, certify, and tell what was spent."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pacpfl.cli.common import (
    Folder,
    Fresh,
    Out,
    Settings,
    clear,
    console,
    print_table,
    run_folders,
    say,
    shipped,
    shipped_names,
    starting,
)
from pacpfl.cli.sites import run_across
from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.config import Config
    from pacpfl.privacy.ledger import RunRecord

ENGINES = ("simulate", "flare")


def run(
    dataset: Annotated[
        str | None,
        typer.Argument(
            help="A shipped configuration: polynomial, polynomial-opposite, pv, digits, femnist, "
            "femnist-all, emnist.",
            autocompletion=shipped_names,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A configuration of your own (TOML).")] = None,
    settings: Settings = None,
    data: Annotated[
        Path | None, typer.Option(help="File or folder of the images (femnist, emnist).")
    ] = None,
    m: Annotated[
        int | None, typer.Option("--m", min=0, help="Training samples of each client; 0: all.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Train with differential privacy: the budget (mode gaussian unless set otherwise). "
            "Methods that pool the clients' data are left out."
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="The chance left out of the guarantee of --epsilon (default: 1e-5)."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed of all that is drawn at random (default: 0).")
    ] = None,
    out: Out = None,
    track: Annotated[
        list[str] | None, typer.Option(help="Curves for tensorboard or mlflow, below tracking/.")
    ] = None,
    fresh: Fresh = False,
    engine: Annotated[
        str, typer.Option(help="simulate: here; flare: at the sites (docs/deploy.md).")
    ] = "simulate",
    kit: Annotated[
        Path | None, typer.Option(help="With --engine flare: the administrator's kit.")
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
    if (dataset is None) == (config is None):
        raise InputError(
            "Name either a shipped configuration (pacpfl run polynomial) or your own with --config."
        )
    if engine not in ENGINES:
        raise InputError(f"There is no engine {engine!r}; there are {' and '.join(ENGINES)}.")
    options = {
        "images.path": None if data is None else json.dumps(str(data), ensure_ascii=False),
        "data.samples": m,
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "seed": seed,
    }
    chosen = configuration(dataset, config, settings or [], options)
    name = config.stem if config else str(dataset)
    folder = out or Path("runs") / (name if chosen.seed == 0 else f"{name}-seed{chosen.seed}")

    with starting():
        from pacpfl import run as study
        from pacpfl.engine import runtime
        from pacpfl.files import locked
        from pacpfl.report.terminal import print_results, watching

        if track:
            from pacpfl.report.track import tracked

    runtime.configure(chosen.run.precision)
    with (
        locked(folder),
        watching(console) as watcher,
        tracked(track, folder, chosen, watcher) if track else nullcontext() as tracking,
    ):
        watcher = tracking.watcher if tracking else watcher
        if fresh:
            clear(folder)
        if engine == "flare":
            left = run_across(chosen, folder, kit, watcher, fresh, demonstration)
            if left is None:
                print(f"Trained: {folder}. Each site goes on with pacpfl site personalize.")
                return
            chosen = left
        results = study.run(chosen, folder, watcher)
        if tracking:
            tracking.finish(results)
    print_results(results)
    with console.status("drawing the page"):
        from pacpfl.report.page import write_report  # figures take a second to import

        print(f"Report: {write_report(folder)}")


def configuration(
    dataset: str | None, file: Path | None, settings: list[str], options: Mapping[str, object]
) -> Config:
    """Return a shipped configuration, or one of a file, with what was set on the command line."""
    from pacpfl.config import load_file, override
    from pacpfl.methods.registry import entry

    config = load_file(file) if file else shipped(str(dataset))
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    if options["privacy.epsilon"] and config.privacy.mode == "none":
        quiet = [name for name in config.run.methods if entry(name).releases != "more"]
        settings = ["privacy.mode=gaussian", f"run.methods={json.dumps(quiet)}", *settings]
    return override(config, [*settings, *given])


def report(folder: Folder) -> None:
    """Draw the figures and write report.html again, from what the run folder holds."""
    with console.status("drawing the report"):
        from pacpfl.report.page import write_report

        page = write_report(folder)
    print(page)


def certify(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a complete run.", autocompletion=run_folders)
    ],
    delta: Annotated[
        float, typer.Option(help="Probability with which each certificate may fail.")
    ] = 0.05,
    loss: Annotated[
        str | None,
        typer.Option(
            help="What is bounded: clipped-nll or clipped-squared; for classes zero-one, brier or "
            "clipped-nll (default: clipped-nll; for classes zero-one)."
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            help="Where the loss is clipped (default: 2 for clipped-nll, for classes ln(their number); 1 "
            "for clipped-squared)."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Privacy of the training towards existing clients (default: as recorded, or assumed)."
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
    with starting():
        from pacpfl.certify import document as study
        from pacpfl.engine import runtime
        from pacpfl.folder import RunFolder
        from pacpfl.report.page import write_report
        from pacpfl.report.terminal import print_certificates

    runtime.configure(RunFolder(folder).config().run.precision)
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


def privacy(folder: Folder) -> None:
    """Print the privacy ledger of a run folder: every run in it, what it released, and the total.

    Rounds count when they are about to be released, so a run that was killed has counted them, too.
    Each epsilon stands with its delta and with who counts as a neighbour (docs/privacy.md).
    """
    from pacpfl.privacy.accounting import PrivacySettings
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
    print_table(
        f"Privacy ledger of {folder}",
        ("run", "mode"),
        ("unit", "sampling", "noise", "rounds", "lost", "epsilon", "delta"),
        map(_row, runs),
    )
    if any(run.plan.unit != runs[0].plan.unit for run in runs):
        print("Total: none, because the runs protect different units.")
        return
    everything = total(runs)
    before = f", {len(runs) - 1} earlier in the same folder included" if len(runs) > 1 else ""
    if math.isfinite(everything.epsilon):
        facts = everything._asdict() | {"unit": runs[-1].plan.unit}
        if any(run.plan.mode == "laplace" for run in runs):
            facts["relaxed"] = total(runs, PrivacySettings().delta)._asdict()
        print(f"Total: {guarantee(facts)}{before}.")
    else:
        print(f"Total: no guarantee, because mode paper has none{before}.")
    if not all(run.private for run in runs):
        print("NOT PRIVATE: a run in this folder has no guarantee, or noise from a seed.")


def _row(run: RunRecord) -> list[str]:
    plan, spent = run.plan, run.spent()
    reached = max((last for _, last in run.releases), default=0)
    return [
        run.started,
        plan.mode if run.private else f"{plan.mode}, NOT PRIVATE",
        plan.unit,
        f"{plan.sampling} {plan.cohort} of {plan.clients}",
        f"{plan.multiplier:.4g} x clip",
        f"{run.released} of {plan.rounds}",
        str(run.released - reached),
        *(f"{value:.4g}" if math.isfinite(value) else "none" for value in spent[:2]),
    ]


def download(
    name: Annotated[str, typer.Argument(help="Which set: femnist, emnist, emnist-matlab.")],
    folder: Annotated[Path, typer.Argument(help="Where to put it.")],
) -> None:
    """Download a set of images, and say how to run with it.

    The file appears whole or not at all. A download that breaks off goes on when the command is
    repeated, where a checksum can tell whether the whole is right.
    """
    from rich import progress

    from pacpfl.data import download as downloads

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
    )
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def show(received: int, total: int | None) -> None:
            bar.update(task, completed=received, total=total)

        path = downloads.download(name, folder, show)
    if not downloads.SOURCES[name].checksum:
        say(f"Its publisher gives no checksum: {path} was not checked.")
    dataset = name.partition("-")[0]
    print(f"pacpfl run {dataset} --data {shlex.quote(str(path))}")
