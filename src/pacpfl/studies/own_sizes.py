"""Settings that suit a federation's size, how long they take, and both in words."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pacpfl.config import Config, RunSettings
from pacpfl.engine.runtime import usable_cores
from pacpfl.priors.gp import GPSettings
from pacpfl.priors.networks import NetworkSettings

# Rows, and microseconds of one particle of one client in one round on two cores (make bench).
MEASURED = ((10, 12.0), (150, 193.0), (610, 4680.0))
COMPILING = 25.0  # seconds before the first round and for the report
FULL = 400  # training rows above which a round sees a part of them
# Training rows for each feature, of all clients, from which the mean is a network, too.
PLENTY = 100
COUNTED = 360  # rows, of all clients together, that the evidence counts for
LARGEST = 2000  # rows a client's model keeps
PATIENCE = 60.0  # seconds for a GP fitted to every client alone, which is only to compare with


class Sizes(NamedTuple):
    clients: int
    rows: np.ndarray  # training rows of each client
    features: int
    classes: int | None = None


def mean_for(rows: int, features: int) -> str:
    return "linear+mlp" if rows >= PLENTY * features else "linear"


def tau_for(rows: int) -> float:
    """tau for `rows` training rows of all clients: 0.3, and from 1,200 rows on less, down to 0.1.

    Rows of one client are rarely independent. With 0.3, 3,600 hours of 24 houses were fitted too
    well: RSMSE 0.48 with 85% in the 90% intervals, against 0.44 and 90% with 0.1. On independent
    rows 0.1 costs a little: 0.235 against 0.221 with 1,200 of them.
    """
    return float(f"{min(0.3, max(0.1, COUNTED / rows)):.2g}")


def settings_for(config: Config, sizes: Sizes) -> tuple[Config, list[str]]:
    """The configuration with k, tau, widths and rounds for these sizes, and why."""
    middle = float(np.median(sizes.rows))
    tables, train, prior = config.tables, config.train, config.prior
    words = []
    if sizes.rows.max() > LARGEST and sizes.classes is None:
        tables = replace(tables, most=LARGEST)
        words.append(f"A Gaussian process keeps at most {LARGEST} rows: tables.most = {LARGEST}.")
    if sizes.classes is not None:
        config, chosen = _for_classes(config, sizes, middle)
        return replace(config, tables=tables), words + chosen
    batch = 256 if min(sizes.rows.max(), LARGEST) > FULL else None
    rounds = 500 if sizes.features > 1 else 1000
    alone = sizes.features == 1
    rows = int(sizes.rows.sum())
    prior = replace(
        prior,
        mean="mlp" if alone else mean_for(rows, sizes.features),
        kernel="deep" if alone else "ard+linear",
        output_scale="fixed" if alone else "learned",
        noise_spread=0.5,  # nobody knows yet how noisy these targets are
    )
    train = replace(
        train,
        rounds=rounds,
        particles=4,
        tau=1.0 if alone else tau_for(rows),
        hyper_std=1.0 if alone else 0.3,
        batch=batch,
    )
    config = replace(
        config,
        tables=tables,
        prior=prior,
        train=train,
        run=RunSettings(methods=("pacpfl", "ridge", "vanilla")),
    )
    if _alone_seconds(config, sizes) > PATIENCE:
        config = replace(config, run=RunSettings(methods=("pacpfl", "ridge")))
        words.append(
            "A Gaussian process for each client alone would take longer than all the rest: left out of "
            "run.methods."
        )
    words += [
        f"k = {train.particles} particles, tau = {train.tau:g} ({rows} training rows in all, {middle:g} at "
        "the median client), "
        f"mean {prior.mean}{_networks(prior)} and kernel {prior.kernel} for {sizes.features} features, "
        f"{rounds} rounds{f', {batch} rows a round' if batch else ''}.",
        f"Training takes about {in_words(expected_seconds(config, sizes))} on {usable_cores()} cores.",
    ]
    return config, words


def _networks(prior: GPSettings) -> str:
    widths = " and ".join(map(str, prior.mean_widths))
    return f" (a network of {widths} neurons)" if "mlp" in prior.mean else ""


def _for_classes(config: Config, sizes: Sizes, middle: float) -> tuple[Config, list[str]]:
    train = replace(
        config.train,
        rounds=600,
        particles=3,
        tau=1.0,
        learning_rate=0.01,
        clients_per_round=None if sizes.clients <= 20 else 20,
        batch=256 if sizes.rows.max() > 256 else None,
    )
    config = replace(
        config,
        network=NetworkSettings(kind="mlp", widths=(32, 16), activation="relu"),
        train=train,
        bnn=replace(config.bnn, draws=4),
        local=replace(config.local, steps=5, learning_rate=0.1),
        run=RunSettings(methods=("pacpfl", "fedavg", "vanilla")),
    )
    return config, [
        f"k = {train.particles} Bayesian networks of 32 and 16 neurons, tau = 1, {train.rounds} rounds "
        f"({middle:g} training rows at the median client, {sizes.classes} classes).",
        f"Training takes about {in_words(expected_seconds(config, sizes))} on {usable_cores()} cores.",
    ]


def expected_seconds(config: Config, sizes: Sizes) -> float:
    """From measured rounds, between the sizes that were measured and beyond them by their power."""
    train = config.train
    rows = min(float(sizes.rows.max()), train.batch or np.inf, config.tables.most or np.inf)
    clients = min(sizes.clients, train.clients_per_round or sizes.clients)
    if sizes.classes is not None:
        each = 3e-7 * rows * sizes.features**0.5 * config.bnn.draws
    else:
        each = 1e-6 * _microseconds(rows) * config.prior.members
    round_ = max(5e-4, clients * train.particles * each * 2 / usable_cores())
    alone = _alone_seconds(config, sizes) if "vanilla" in config.run.methods else 0.0
    return COMPILING + train.rounds * round_ + alone


def _alone_seconds(config: Config, sizes: Sizes) -> float:
    """A step of a client's own fit costs what one particle does in a round, with all its rows."""
    if sizes.classes is not None:
        return 0.0
    rows = min(
        float(sizes.rows.max()), config.tables.most or np.inf
    )  # all are padded to the longest
    fits = config.alone.steps * config.alone.restarts * sizes.clients
    return fits * 1e-6 * _microseconds(rows) * 2 / usable_cores()


def _microseconds(rows: float) -> float:
    sizes, times = (np.log(np.array(column)) for column in zip(*MEASURED, strict=True))
    at = np.log(max(rows, 1.0))
    if at > sizes[-1]:
        slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return float(np.exp(times[-1] + slope * (at - sizes[-1])))
    return float(np.exp(np.interp(at, sizes, times)))


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
