"""From people's own tables to a run folder: settings that suit them, tried, trained, measured."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import typer
from rich.status import Status

from pacpfl import config as configuration
from pacpfl.build import build_federation
from pacpfl.cli.common import DEFAULT, console, say
from pacpfl.config import Config
from pacpfl.data.settings import TableSettings
from pacpfl.data.tables.guess import guess
from pacpfl.data.tables.read import load_own
from pacpfl.defaults import LEVELS_APART, defaults, expected_seconds, scaling
from pacpfl.engine.runtime import usable_cores
from pacpfl.errors import InputError
from pacpfl.methods.registry import check_method
from pacpfl.report.measures import counted
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


def propose(source: Path, target: str | None = None, client: str | None = None) -> Proposal:
    """Look at tables and choose settings: what `pacpfl init` writes.

    What their columns mean is guessed (`data.tables.guess`); what suits them is chosen by their
    training rows (`defaults`), as the estimators choose for rows they are given.
    """
    with console.status(f"reading {source}") as status:
        guessed = guess(source, target, client, partial(_asked, status))
        config, form, share = suited(guessed.settings, Config().seed)
    why = "Features are scaled by the training rows of all clients together."
    if form.classes is None:
        how = "all are scaled together"
        if config.data.standardize == "client":
            how = "each is scaled by its own training rows"
        elif share > LEVELS_APART:
            how = "each would be scaled alone, had it more rows; all are scaled together"
        why = f"{share:.0%} of the target's variance lies between clients, so {how}."
    return Proposal(config, (*guessed.words, why, *reasons(config, form), *kept(form)))


def kept(form: Form) -> Iterator[str]:
    """Offer to keep rows from training: by these alone, a client's certificate is proved."""
    from pacpfl.bounds.confidence import rows_needed

    needed = rows_needed(0.1, 0.2, 0.05)
    share = needed / median(form.sizes or (0,)) if any(form.sizes or ()) else 1.0
    offer = f"tables.for_later = {math.ceil(100 * share) / 100:g} keeps so many"
    if share > 0.5:
        offer = "these clients have too few to spare"
    yield (
        "Rows that training never sees let pacpfl certify prove a bound for a client who trains; "
        f"{needed} a client bound an error of 10% by 20%, and {offer}."
    )


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
    train, prior, exact = config.train, config.prior, config.personal.exact
    rows, middle = sum(form.sizes), median(form.sizes)
    if form.classes is not None:
        widths = " and ".join(map(str, config.network.widths))
        yield (
            f"k = {train.particles} Bayesian networks of {widths} neurons, tau = {train.tau:g}, "
            f"{train.rounds} rounds ({middle:g} training rows at the median client, {form.classes} "
            "classes)."
        )
    else:
        if max(form.sizes) > exact:
            yield (
                f"A round sees {train.batch} rows of a client, its own model all of them: beyond {exact} "
                "by inducing inputs."
            )
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
        check_method(name, config, form)
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
