"""`pacpfl tune`: choose a method's settings by cross-validation on training data."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from pacpfl.cli.common import Settings, console, shipped, shipped_names


def tune(
    config: Annotated[
        str,
        typer.Argument(
            help="A configuration (TOML), or the name of a shipped one such as polynomial.",
            autocompletion=shipped_names,
        ),
    ],
    method: Annotated[str, typer.Option(help="Whose settings: pacpfl, pfedgp, mtl, ...")],
    out: Annotated[Path, typer.Option(help="Where to write the best configuration (TOML).")],
    trials: Annotated[int, typer.Option(min=1, help="How many settings to try, all told.")] = 64,
    folds: Annotated[int, typer.Option(min=2, help="Parts of each client's samples.")] = 5,
    use_folds: Annotated[
        int | None, typer.Option(min=1, help="Leave out only so many of them (default: all).")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that work side by side.")] = 1,
    study: Annotated[
        Path | None,
        typer.Option(
            help="Journal of all trials; the search goes on from it (default: OUT with .journal)."
        ),
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this time.")] = None,
    space: Annotated[Path | None, typer.Option(help="A search space of your own (TOML).")] = None,
    settings: Settings = None,
    weather: Annotated[
        str | None,
        typer.Option(help="A PVGIS file for the houses' weather; it is not written into OUT."),
    ] = None,
) -> None:
    """Choose settings by cross-validation on training data only; test data are never read.

    The best configuration so far is written when the search ends, is stopped (Ctrl-C) or runs out of
    time. The same command goes on until the trials are done.
    """
    from dataclasses import replace

    from pacpfl import config as configuration
    from pacpfl import files
    from pacpfl.engine import runtime
    from pacpfl.report.terminal import watching

    path = Path(config)
    from_file = path.is_file() or path.suffix == ".toml"
    chosen = configuration.load_file(path) if from_file else shipped(config)
    chosen = configuration.override(chosen, settings or [])
    runtime.configure(chosen.run.precision)
    from pacpfl.tune import search as tuning
    from pacpfl.tune import spaces

    weathered = replace(chosen, pv=replace(chosen.pv, weather=weather or chosen.pv.weather))
    known = spaces.spaces_for(weathered)
    space_of = spaces.read_spaces(space, known) if space else known
    search = tuning.Search(method, weathered, space_of.get(method, {}), trials, folds, use_folds)

    def told(found: tuning.Found) -> str:
        return f"{tuning.decides(found.score)} {found.score[0]:.4f}"

    with watching(console, f"tuning {method}") as watcher:
        found = tuning.tune(
            search,
            study or out.with_suffix(".journal"),
            jobs,
            seconds,
            watcher.stop,
            lambda now: watcher.count(now.trials, trials, f"best {told(now)}"),
        )
    if found is not None:
        # Where the weather comes from is the run's affair, not the method's.
        kept = found._replace(config=replace(found.config, pv=chosen.pv))
        text = tuning.tuned_toml(search, kept, "pacpfl " + shlex.join(sys.argv[1:]))
        files.write(out, text.encode())
        print(f"{told(found)} after {found.trials} trials ({found.failed} failed).")
        print(f"Configuration: {out}")
    done = found.trials if found is not None else 0
    if done < trials:
        console.print(f"{done} of {trials} trials are done; the same command goes on.")
    if watcher.stop():
        raise typer.Exit(130)
