"""From people's own tables to a run folder: settings that suit them, tried, trained, measured."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd
import typer
from rich.status import Status

from pacpfl import config as configuration
from pacpfl import files, metrics
from pacpfl import race as racing
from pacpfl import run as study
from pacpfl.build import build_federation, raw_federation
from pacpfl.cli.common import DEFAULT, clear, console, print_table, say
from pacpfl.client import models_of, save, shared_of_run
from pacpfl.config import Config
from pacpfl.data.prepare import fit_scalers
from pacpfl.data.settings import TableSettings
from pacpfl.data.store import IN_MEMORY, from_clients
from pacpfl.data.tables.guess import guess
from pacpfl.data.tables.read import load_own
from pacpfl.defaults import LARGEST, LEVELS_APART, defaults, expected_seconds, scaling
from pacpfl.engine import runtime
from pacpfl.engine.runtime import usable_cores
from pacpfl.errors import InputError, Interrupted
from pacpfl.files import Facts
from pacpfl.folder import MODELS, RACE, SHARED, UNITS, MethodResult
from pacpfl.methods.registry import build_method
from pacpfl.report import page as pages
from pacpfl.report import sentences
from pacpfl.report.measures import RSMSE, counted, number, percent
from pacpfl.report.terminal import print_results, watching
from pacpfl.run import Watcher
from pacpfl.types import Federation, Form

FEW = 10  # training rows below which a client leans on the others


class Proposal(NamedTuple):
    """A configuration for tables, with one sentence for each guess and choice."""

    config: Config
    words: tuple[str, ...]


class Request(NamedTuple):
    """A configuration, and the keys in it that somebody has set."""

    config: Config
    fixed: frozenset[str]


def requested(
    source: Path | None,
    target: str | None,
    client: str | None,
    settings: list[str] | None = None,
    no_race: bool = False,
) -> Request:
    """Return the configuration of a file, or the one that suits tables by their size.

    What somebody has set is what differs in a file from what `pacpfl init` would write, and what --set
    names.
    """
    path = source or DEFAULT
    changes = [*(settings or []), *(["tables.race=false"] if no_race else [])]
    fixed = configuration.named_by(changes)
    if source is None and not path.is_file():
        raise InputError(
            "There is no pacpfl.toml here; write one with pacpfl init FOLDER, or name the tables."
        )
    if path.suffix.lower() != ".toml":
        proposal = propose(path, target, client)
        for sentence in proposal.words:
            say(f"- {sentence}")
        return Request(configuration.override(proposal.config, changes), fixed)
    config = configuration.load_file(path)
    if config.data.name != "tables":
        raise InputError(
            f'{path} is about {config.data.name}; set data.name = "tables", or use pacpfl run --config.'
        )
    columns = {"tables.target": target, "tables.client": client}
    named = {key: name for key, name in columns.items() if name is not None}
    config = configuration.updated(configuration.override(config, changes), named, str(path))
    if config.tables.race:
        with console.status("reading the tables"):
            suitable = suited(config.tables, config.seed)[0]
        fixed |= configuration.differing(config, suitable)
    return Request(config, fixed)


def run_name(source: Path | None, config: Config) -> str:
    """Return the name of the configuration; where that is the usual one, of the tables."""
    if source is not None and source.suffix == ".toml" and source.name != DEFAULT.name:
        return source.stem
    return Path(config.tables.source).resolve().stem or "tables"


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
        page = pages.write_report(folder)
    if words := sentences.race(about.get("race", {})):
        print(words)
    # A client's RSMSE has the spread of its own test rows below the line, which may be two.
    print_results(results, () if units is None else (RSMSE,))
    if units is not None:
        _print_units(config.tables.target, units, results)
    print(f"Report: {page}")


def _save_models(config: Config, folder: Path) -> None:
    """Write what new clients need, and every client's model: not of private runs, for it holds rows."""
    shared = shared_of_run(folder)
    save(folder / SHARED, shared)
    federation = load_own(config.tables, config.seed).federation
    clients = [*federation.existing, *federation.new]
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


def propose(source: Path, target: str | None = None, client: str | None = None) -> Proposal:
    """Look at tables and choose settings: what `pacpfl init` writes.

    What their columns mean is guessed (`data.tables.guess`); what suits them is chosen by their
    training rows (`defaults`), as the estimators choose for rows they are given.
    """
    with console.status(f"reading {source}") as status:
        guessed = guess(source, target, client, partial(_asked, status))
        most = LARGEST if guessed.settings.task == "regression" else 0
        config, form, share = suited(replace(guessed.settings, most=most), Config().seed)
    why = "Features are scaled by the training rows of all clients together."
    if form.classes is None:
        how = "all are scaled together"
        if config.data.standardize == "client":
            how = "each is scaled by its own training rows"
        elif share > LEVELS_APART:
            how = "each would be scaled alone, had it more rows; all are scaled together"
        why = f"{share:.0%} of the target's variance lies between clients, so {how}."
    return Proposal(config, (*guessed.words, why, *reasons(config, form)))


def _asked(status: Status, names: list[str]) -> str:
    """Ask in a terminal which column names the client; elsewhere it is the likeliest."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return names[0]
    status.stop()
    question, answer = f"Which column names the client ({', '.join(names)})?", ""
    while answer not in names:
        answer = typer.prompt(question, default=names[0])
    status.start()
    return answer


def suited(settings: TableSettings, seed: int) -> tuple[Config, Form, float]:
    """Return what suits tables by their size, their form, and how much of the target's variance lies
    between clients."""
    # Whoever has too few rows to be measured is told so by check and fit.
    federation = load_own(replace(settings, small="leave"), seed).federation
    form = federation.form
    how, share = scaling([client.train for client in federation.existing], form.classes is not None)
    return replace(defaults(form, how), seed=seed, tables=settings), form, share


def commented(proposal: Proposal) -> str:
    """Return TOML with the reasons, all keys of [tables], and other keys that differ from the default."""
    lines = ["# What pacpfl init saw and guessed:"]
    for words in proposal.words:  # names of columns may hold line breaks, which would end a comment
        lines.append("# - " + "".join(c if c.isprintable() else " " for c in words))
    lines += [
        "#",
        "# Keys that are not here have their defaults; the run folder's config.toml has all.",
    ]
    return (
        "\n".join(lines) + "\n\n" + configuration.dump(proposal.config, Config(), whole=("tables",))
    )


def reasons(config: Config, form: Form) -> Iterator[str]:
    """Say what was chosen for whom, and how long it will take."""
    assert form.sizes
    train, prior, most = config.train, config.prior, config.tables.most
    rows, middle = sum(form.sizes), median(form.sizes)
    if form.classes is not None:
        widths = " and ".join(map(str, config.network.widths))
        yield (
            f"k = {train.particles} Bayesian networks of {widths} neurons, tau = {train.tau:g}, "
            f"{train.rounds} rounds ({middle:g} training rows at the median client, {form.classes} "
            "classes)."
        )
    else:
        if max(form.sizes) == most:
            yield f"A Gaussian process keeps at most {most} rows: tables.most = {most}."
        if "vanilla" not in config.run.methods:
            yield (
                "A Gaussian process for each client alone would take longer than all the rest: left out "
                "of run.methods."
            )
        widths = " and ".join(map(str, prior.mean_widths))
        network = f" (a network of {widths} neurons)" if "mlp" in prior.mean else ""
        yield (
            f"k = {train.particles} particles, tau = {train.tau:g} ({rows} training rows in all, "
            f"{middle:g} at the median client), mean {prior.mean}{network} and kernel {prior.kernel} for "
            f"{len(form.features)} features, {train.rounds} rounds"
            f"{f', {train.batch} rows a round' if train.batch else ''}."
        )
    took = _in_words(expected_seconds(config, form))
    yield f"Training takes about {took} on {counted(usable_cores(), 'core')}."


def _in_words(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def examine(config: Config) -> Iterator[str]:
    """Say what the tables hold, or raise at the first thing that would stop a run."""
    tables = load_own(config.tables, config.seed)
    federation = build_federation(config)
    existing, form = federation.existing, federation.form
    for name in config.run.methods:
        build_method(name, config, form)
    if min(c.train.y.min() for c in existing) == max(c.train.y.max() for c in existing):
        raise InputError(
            f"The target {federation.target!r} has the same value in every training row; choose another."
        )
    chosen = config.train.clients_per_round
    if chosen is not None and chosen > len(existing):
        raise InputError(
            f"clients_per_round = {chosen} is more than the {len(existing)} clients there are."
        )
    counts = Counter(column.kind for column in tables.schema.columns)
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    task = "a number" if form.classes is None else f"one of {form.classes} classes"
    rows = [len(client.train) for client in existing]
    measuring = sum(len(c.test) for c in (*existing, *federation.new) if c.test is not None)
    yield (
        f"{len(existing)} existing and {len(federation.new)} new clients; the target "
        f"{federation.target!r} is {task}."
    )
    yield f"Columns: {kinds}; {len(form.features)} features after encoding."
    yield (
        f"Training rows of a client: {min(rows)} to {max(rows)}, median {median(rows):g}; "
        f"{measuring} rows only measure."
    )
    yield from tables.notices
    yield from _warnings(federation, rows)
    yield f"Training takes about {_in_words(expected_seconds(config, form))}."


def _warnings(federation: Federation, rows: list[int]) -> Iterator[str]:
    if len(rows) == 1:
        yield "There is one client to train on: with nobody else nothing can be shared."
    low = np.min([client.train.x.min(0) for client in federation.existing], axis=0)
    high = np.max([client.train.x.max(0) for client in federation.existing], axis=0)
    constant = [n for n, flat in zip(federation.features, low == high, strict=True) if flat]
    if constant:
        yield f"The same in all training rows, so nothing is learned from: {', '.join(constant)}."
    few = [c.name for c, count in zip(federation.existing, rows, strict=True) if count < FEW]
    if few:
        yield f"Fewer than {FEW} training rows: {len(few)} clients, such as {few[0]}."
    if federation.classes is None and max(rows) > LARGEST:
        yield (
            f"A client has {max(rows)} training rows: a Gaussian process takes long; set tables.most."
        )


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
