"""`pacpfl run`: a configuration is trained, measured and reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pacpfl.cli.common import Fresh, Out, Settings, console, shipped, stopping
from pacpfl.cli.privacy import warn_of_earlier
from pacpfl.cli.sites import run_across
from pacpfl.errors import InputError

if TYPE_CHECKING:
    from pacpfl.config import Config

ENGINES = ("simulate", "flare")

Dataset = Annotated[
    str | None,
    typer.Argument(
        help="A shipped configuration: polynomial, polynomial-opposite, digits, femnist, "
        "femnist-all, emnist.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option(help="A configuration of your own (TOML).", show_default=False)
]
Data = Annotated[
    Path | None,
    typer.Option(help="File or folder of the images (femnist, emnist).", show_default=False),
]
M = Annotated[
    int | None,
    typer.Option("--m", min=0, help="Training samples of each client; 0: all.", show_default=False),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        help="Train with differential privacy: the budget (mode gaussian unless set otherwise).",
        show_default=False,
    ),
]
Delta = Annotated[
    float | None, typer.Option(help="With --epsilon (default: 1e-5).", show_default=False)
]
Seed = Annotated[int | None, typer.Option(help="Of everything random.", show_default=False)]
Track = Annotated[
    list[str] | None,
    typer.Option(help="Curves for tensorboard or mlflow, below tracking/.", show_default=False),
]
Engine = Annotated[str, typer.Option(help="simulate: here; flare: at the sites (docs/deploy.md).")]
Kit = Annotated[
    Path | None,
    typer.Option(help="With --engine flare: the administrator's kit.", show_default=False),
]
Demonstration = Annotated[
    bool,
    typer.Option(
        "--demonstration", help="With --engine flare: the sites hold this configuration's data."
    ),
]


def run(
    dataset: Dataset = None,
    config: ConfigFile = None,
    settings: Settings = None,
    data: Data = None,
    m: M = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    seed: Seed = None,
    out: Out = None,
    track: Track = None,
    fresh: Fresh = False,
    engine: Engine = "simulate",
    kit: Kit = None,
    demonstration: Demonstration = False,
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

    from pacpfl.engine import runtime

    runtime.configure(chosen.run.precision)
    from pacpfl import run as study
    from pacpfl.folder import RunFolder
    from pacpfl.report.page import write_report
    from pacpfl.report.terminal import watching
    from pacpfl.report.track import tracked

    if fresh:
        warn_of_earlier(folder, console)
        RunFolder(folder).clear()
    with (
        watching(console) as watcher,
        tracked(track or [], folder, chosen, watcher) as tracking,
        stopping(),
    ):
        watcher = tracking.watcher
        if engine == "flare":
            left = run_across(chosen, folder, kit, watcher, fresh, demonstration)
            if left is None:
                print(f"Trained: {folder}. Each site goes on with pacpfl site personalize.")
                return
            chosen = left
        results = study.run(chosen, folder, watcher)
        tracking.finish(results)
        watcher.stage("drawing the report")
        page = write_report(folder)
    _print(results, page)


def configuration(
    dataset: str | None, file: Path | None, settings: list[str], options: Mapping[str, Any]
) -> Config:
    """Return a shipped configuration, or one of a file, with what was set on the command line."""
    from pacpfl.config import load_file, override

    config = load_file(file) if file else shipped(str(dataset))
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    if options["privacy.epsilon"] and config.privacy.mode == "none":
        settings = ["privacy.mode=gaussian", *settings]
    return override(config, [*settings, *given])


def _print(results: Any, page: Path) -> None:
    from pacpfl.report.sentences import diversity, privacy
    from pacpfl.report.terminal import print_results

    print_results(results)
    for result in results.values():
        for sentence in filter(None, (diversity(result.about), privacy(result.about))):
            print(sentence)
    print(f"Report: {page}")
