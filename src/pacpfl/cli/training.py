"""From tables to a run folder: the race for the settings, the run, and errors in the owners' units."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from pacpfl import config as configuration
from pacpfl import files, metrics
from pacpfl import race as racing
from pacpfl import run as study
from pacpfl.build import raw_federation
from pacpfl.cli.common import clear, console, print_table, say
from pacpfl.cli.tables import Request
from pacpfl.client import models_of, recalibrated, save, shared_of_run
from pacpfl.config import Config
from pacpfl.data.prepare import fit_scalers
from pacpfl.data.store import IN_MEMORY, from_clients
from pacpfl.data.tables.read import load_own
from pacpfl.engine import runtime
from pacpfl.errors import Interrupted
from pacpfl.files import Facts
from pacpfl.folder import MODELS, RACE, SHARED, UNITS, MethodResult
from pacpfl.report import sentences
from pacpfl.report.measures import RSMSE, number, percent
from pacpfl.report.terminal import print_results, watching
from pacpfl.run import Watcher


def train(request: Request, folder: Path, fresh: bool) -> None:
    """Run on tables; the folder also gets what new clients and owners of units need."""
    default = request.config
    runtime.configure(default.run.precision)
    for notice in load_own(default.tables, default.seed).notices:
        say(notice)
    with files.locked(folder), watching(console) as watcher:
        if fresh:
            clear(folder)
        config, about = race(request, folder, watcher)
        results = study.run(config, folder, watcher, default, about)
        watcher.stage("writing the folder")
        if "pacpfl" in config.run.methods:
            _save_models(config, folder)
        units = in_units(config, results)
        if units is not None:
            text = units.assign(target=config.tables.target).to_csv(index=False)
            files.write(folder / UNITS, text.encode())
    if words := sentences.race(about.get("race", {})):
        print(words)
    # A client's RSMSE has the spread of its own test rows below the line, which may be two.
    print_results(results, () if units is None else (RSMSE,))
    if units is not None:
        _print_units(config.tables.target, units, results)
    with console.status("drawing the page"):
        from pacpfl.report.page import write_report  # figures take a second to import

        print(f"Report: {write_report(folder)}")


def _save_models(config: Config, folder: Path) -> None:
    """Write what new clients need, and every client's model: not of private runs, for it holds rows."""
    shared = shared_of_run(folder)
    federation = load_own(config.tables, config.seed).federation
    clients = [*federation.existing, *federation.new]
    if config.privacy.mode == "none":
        shared = recalibrated(shared, [*models_of(shared, federation.existing)])
    save(folder / SHARED, shared)
    size = sum(client.personal.x.nbytes for client in clients)
    if config.privacy.mode == "none" and size <= IN_MEMORY:
        save(folder / MODELS, shared, [*models_of(shared, clients)])


def race(request: Request, folder: Path, watcher: Watcher) -> tuple[Config, Facts]:
    """Let candidates race for what nobody has set; return the best, and what run.json says of the race.

    A run that goes on reads from the folder what its race has chosen.
    """
    config, fixed = request
    if not config.tables.race or config.privacy.mode != "none" or "train.rounds" in fixed:
        return config, {}
    federation = load_own(config.tables, config.seed).federation
    samples = [client.train for client in federation.existing]
    digest = study.digest(from_clients(federation.existing))
    name = configuration.identity(config, samples=digest, fixed=sorted(fixed))
    path, kept = folder / RACE, {}
    if path.is_file():
        kept = files.read_json(path, "start over with --fresh")
    if kept.get("identity") != name:
        watcher.stage("race of settings")
        began = time.monotonic()
        unscaled = np.isin(np.array(federation.features, dtype=object), federation.unscaled)

        def progress(done: int, total: int, words: str) -> None:
            watcher.count(done, total, words)
            if watcher.stop():
                raise Interrupted("stopped in the race of settings, which will start anew")

        outcome = racing.choose(
            config, samples, federation.form, unscaled=unscaled, fixed=fixed, progress=progress
        )
        kept = {"identity": name, **outcome.facts(config), "seconds": time.monotonic() - began}
        files.write_json(path, kept)
    chosen = configuration.updated(config, kept["changes"], RACE)
    return chosen, {"race": {key: value for key, value in kept.items() if key != "identity"}}


def in_units(config: Config, results: Mapping[str, MethodResult]) -> pd.DataFrame | None:
    """Return errors, widths of 90% intervals and negative log densities in the target's own units.

    Inside a run targets are scaled; RSMSE, coverage and calibration do not notice, these do. There is
    a row for each method and client; None where the target is a class, or nobody was measured. Beside
    a client's errors stand those of who always answers the mean of its own rows, or of the group's.
    """
    raw = raw_federation(config)
    if raw.classes is not None:
        return None
    scalers = fit_scalers(raw, config.data.standardize)
    rows = []
    for method, result in results.items():
        for group, found in result.groups.items():
            clients = raw.groups()[group]
            middle = np.concatenate([c.test.y for c in clients if c.test is not None]).mean()
            for client, mean, measured in zip(clients, found.means, found.rows, strict=True):
                assert client.test is not None
                scaler = scalers[client.name]
                y = client.test.y
                answers = scaler.target(np.asarray(mean, float)), client.personal.y.mean(), middle
                rmse, of_own_mean, of_mean = (np.sqrt(np.mean((y - a) ** 2)) for a in answers)
                rows.append(
                    {
                        "method": method,
                        "group": group,
                        "client": client.name,
                        "test": len(y),
                        "rmse": rmse,
                        "rmse_of_own_mean": of_own_mean,
                        "rmse_of_mean": of_mean,
                        "width_90": measured["width_90"] * scaler.y_std,
                        "nll": measured["nll"] + float(np.log(scaler.y_std)),
                    }
                )
    return pd.DataFrame(rows) if rows else None


def _print_units(target: str, units: pd.DataFrame, results: Mapping[str, MethodResult]) -> None:
    rows = []
    for (method, group), own in units.groupby(["method", "group"], sort=False):
        means = (metrics.interval(own[name].to_numpy()) for name in ("rmse", "width_90"))
        names = ("rmse", "rmse_of_own_mean", "rmse_of_mean")
        error, of_own_mean, of_mean = ((own["test"] * own[name] ** 2).sum() for name in names)
        shares = (
            number(np.sqrt(error / of_mean)) if of_mean else "\N{EN DASH}",
            percent(1 - error / of_own_mean) if of_own_mean else "\N{EN DASH}",
        )
        cells = (*(_with_half(*m) for m in means), *shares)
        rows.append([results[method].about["title"], group, *cells])
    numbers = ("RMSE", "width of the 90% interval", "RSMSE of all rows", "skill")
    print_table(f"In the units of {target}", ("method", "clients"), numbers, rows)
    print(
        "RSMSE of all rows: their RMSE over their spread, clients together. Skill: how much less squared "
        "error than by always answering the mean of the client's own rows."
    )


def _with_half(mean: float, half: float) -> str:
    """Return both to the same digit: 11.2 ± 0.4, 30,560 ± 2,512."""
    if not 1e-2 <= abs(mean) < 1e12:
        return f"{mean:.4g}" + (f" ± {half:.2g}" if half == half else "")
    places = 0 if abs(mean) >= 1000 else 3 - len(f"{abs(mean):.0f}")
    return f"{mean:,.{places}f}" + (f" ± {half:,.{places}f}" if half == half else "")
