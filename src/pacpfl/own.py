"""People's own tables with settings that suit them: proposed, tried beforehand, measured in their units."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pacpfl import files, metrics
from pacpfl.build import build_federation
from pacpfl.config import Config, dump
from pacpfl.data.prepare import fit_scalers
from pacpfl.data.tables.columns import describe
from pacpfl.data.tables.guess import guess
from pacpfl.data.tables.read import load_own
from pacpfl.defaults import LARGEST, defaults, expected_seconds, in_words, reasons, scaling
from pacpfl.errors import InputError
from pacpfl.folder import MethodResult
from pacpfl.methods.registry import build_method
from pacpfl.types import Federation

FEW = 10  # training rows below which a client leans on the others
FIELDS = ("rmse", "width_90", "nll")


class Proposal(NamedTuple):
    """A configuration for tables, with one sentence for each guess and choice."""

    config: Config
    words: tuple[str, ...]


def propose(
    source: Path, target: str | None = None, client: str | None = None, seed: int = 0
) -> Proposal:
    """Look at tables and choose settings: what `pacpfl init` writes (`data.tables.guess.guess`)."""
    seen = guess(source, target, client)
    if seen.form.classes is not None:
        how, why = "global", "Features are scaled by the training rows of all clients together."
    else:
        how, share = scaling(seen.moments)
        why = f"{share:.0%} of the target's variance lies between clients, so " + (
            "each is scaled by its own training rows."
            if how == "client"
            else "all are scaled together."
        )
    config = defaults(seen.form, how)
    tables = replace(seen.settings, most=config.tables.most)
    config = replace(config, seed=seed, tables=tables)
    return Proposal(config, (*seen.words, why, *reasons(config, seen.form)))


def commented(proposal: Proposal) -> str:
    """Return TOML with the reasons, all keys of [tables], and other keys that differ from the default."""
    lines = [
        "# What pacpfl init saw and guessed:",
        *(f"# - {_in_one_line(words)}" for words in proposal.words),
        "#",
        "# Keys that are not here have their defaults; the run folder's config.toml has all.",
        "",
    ]
    return "\n".join(lines) + dump(proposal.config, Config(), whole=("tables",))


def _in_one_line(words: str) -> str:
    """Replace the line breaks that names of columns and clients may hold: they would end a comment."""
    return "".join(letter if letter.isprintable() else " " for letter in words)


def examine(config: Config) -> list[str]:
    """Say in sentences what the tables hold, or raise at the first thing that would stop a run."""
    tables = load_own(config.tables, config.seed)
    federation = build_federation(config)
    for name in config.run.methods:
        build_method(name, config, federation.form)
    lowest = min(client.train.y.min() for client in federation.existing)
    if lowest == max(client.train.y.max() for client in federation.existing):
        raise InputError(
            f"The target {federation.target!r} has the same value in every training row; choose another."
        )
    chosen = config.train.clients_per_round
    if chosen is not None and chosen > len(federation.existing):
        raise InputError(
            f"clients_per_round = {chosen} is more than the {len(federation.existing)} clients there are."
        )
    kinds = ", ".join(f"{count} {kind}" for kind, count in describe(tables.schema).items())
    task = "a number" if federation.classes is None else f"one of {federation.classes} classes"
    rows = np.array([len(client.train) for client in federation.existing])
    return [
        f"{len(federation.existing)} existing and {len(federation.new)} new clients; the target "
        f"{federation.target!r} is {task}.",
        f"Columns: {kinds}; {len(federation.features)} features after encoding.",
        f"Training rows of a client: {rows.min()} to {rows.max()}, median {np.median(rows):g}; "
        f"{_held_out(federation)} rows only measure.",
        *tables.notices,
        *_warnings(federation, rows),
        f"Training takes about {in_words(expected_seconds(config, federation.form))}.",
    ]


def _held_out(federation: Federation) -> int:
    clients = (*federation.existing, *federation.new)
    return sum(len(client.test) for client in clients if client.test is not None)


def _warnings(federation: Federation, rows: np.ndarray) -> list[str]:
    found = []
    if len(federation.existing) == 1:
        found.append("There is one client to train on: with nobody else nothing can be shared.")
    everything = [client.train.x for client in federation.existing]
    low = np.min([x.min(0) for x in everything], axis=0)
    high = np.max([x.max(0) for x in everything], axis=0)
    constant = [n for n, flat in zip(federation.features, low == high, strict=True) if flat]
    if constant:
        found.append(
            f"The same in all training rows, so nothing is learned from: {', '.join(constant)}."
        )
    few = [c.name for c in federation.existing if len(c.train) < FEW]
    if few:
        found.append(f"Fewer than {FEW} training rows: {len(few)} clients, such as {few[0]}.")
    if federation.classes is None and rows.max() > LARGEST:
        found.append(
            f"A client has {rows.max()} training rows: a Gaussian process takes long; set tables.most."
        )
    return found


def in_units(config: Config, results: Mapping[str, MethodResult]) -> list[dict[str, object]]:
    """Return errors, widths of 90% intervals and negative log densities in the target's own units.

    Inside a run targets are scaled; RSMSE, coverage and calibration do not notice, these do. There is
    a row for each method and client, and none where the target is a class.
    """
    raw = build_federation(replace(config, data=replace(config.data, standardize="none")))
    if raw.classes is not None:
        return []
    scalers = fit_scalers(raw, config.data.standardize)
    rows: list[dict[str, object]] = []
    for method, result in results.items():
        for group, evaluation in result.groups.items():
            clients = raw.groups()[group]
            for client, mean, measured in zip(
                clients, evaluation.means, evaluation.rows, strict=True
            ):
                assert client.test is not None
                scaler = scalers[client.name]
                error = client.test.y - scaler.target(np.asarray(mean, float))
                rows.append(
                    {
                        "method": method,
                        "group": group,
                        "client": client.name,
                        "rmse": float(np.sqrt(np.mean(error**2))),
                        "width_90": measured["width_90"] * scaler.y_std,
                        "nll": measured["nll"] + float(np.log(scaler.y_std)),
                    }
                )
    return rows


def write_units(out: Path, rows: list[dict[str, object]], target: str) -> None:
    """Write units.csv of a run folder."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["method", "group", "client", *FIELDS, "target"])
    writer.writeheader()
    writer.writerows({**row, "target": target} for row in rows)
    files.write(out / "units.csv", text.getvalue().encode())


def means(rows: list[dict[str, object]]) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """Return the mean over clients and half of its 95% interval, by (method, group) and field."""
    places = dict.fromkeys((str(row["method"]), str(row["group"])) for row in rows)
    return {
        place: {
            name: metrics.interval(
                np.array([row[name] for row in rows if (row["method"], row["group"]) == place])
            )
            for name in FIELDS
        }
        for place in places
    }
