"""`pacpfl run`: a configuration is trained, measured and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pacpfl.cli.common import console, shipped
from pacpfl.cli.privacy import warn_of_earlier
from pacpfl.cli.sites import run_across
from pacpfl.errors import InputError


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
    from pacpfl import run as study
    from pacpfl.folder import RunFolder
    from pacpfl.report.page import write_report
    from pacpfl.report.progress import watching
    from pacpfl.report.sentences import diversity, privacy
    from pacpfl.report.terminal import print_results
    from pacpfl.report.track import tracked

    if engine not in ("simulate", "flare"):
        raise InputError(f"There is no engine {engine!r}; there are simulate and flare.")
    if fresh:
        warn_of_earlier(folder, console)
        RunFolder(folder).clear()
    with watching(console) as bar, tracked(track or [], folder, chosen, bar) as tracking:
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
    print_results(results)
    for result in results.values():
        for sentence in filter(None, (diversity(result.about), privacy(result.about))):
            print(sentence)
    print(f"Report: {page}")
