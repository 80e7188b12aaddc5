"""Everything that can go wrong before a long run, tried beforehand; and what is worth knowing."""

from __future__ import annotations

import numpy as np

from pacpfl.config import Config
from pacpfl.data.tables.columns import describe
from pacpfl.data.tables.read import load_own
from pacpfl.defaults import LARGEST, expected_seconds, in_words
from pacpfl.errors import InputError
from pacpfl.studies.build import build_federation, build_method
from pacpfl.types import Federation

FEW = 10  # training rows below which a client leans on the others


def examine(config: Config) -> list[str]:
    """What was found, in sentences; raises InputError at the first thing that would stop a run."""
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
