"""Cross-validation on training data only: what settings are chosen by.

Every existing client's training samples are cut into parts. In fold f each client trains on all parts
but its f-th, on which it is then measured. Test samples, samples gathered later, and new clients are
dropped before anything else happens, so no setting can be chosen by them.

Where samples have a time on a clock that clients share, all are cut at the same moments. Houses under
one sky see the same weather: an hour that one house is asked about must not be another's lesson.

A client's score is that of all its held-out samples together, in the target's own units, as if they
were its test samples: parts may hold two samples, and neither a standard deviation nor a calibration
curve means anything on two. The score of a setting is the mean over clients. The first number of a
score decides: RSMSE, or the negative log likelihood of classes, since few samples hardly change a
share of errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pacpfl import metrics
from pacpfl.config import Config
from pacpfl.data.prepare import check_federation, fit_scalers, standardize
from pacpfl.data.store import from_clients
from pacpfl.errors import InputError
from pacpfl.run import Watcher, run_method
from pacpfl.types import Client, Federation, Samples


class Score(NamedTuple):
    """Means over clients of what their held-out samples say; smaller is better."""

    rsmse: float
    ce: float
    nll: float


class ClassScore(NamedTuple):
    """The same for classes; `ce` is that of all clients' samples together."""

    nll: float
    error: float  # share of samples whose likeliest class is wrong
    ce: float


def cross_validate(
    method: str,
    config: Config,
    federation: Federation,
    count: int = 5,
    used: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Score | ClassScore:
    """Return the score of `used` (default: all) of `count` folds of a federation in its own units.

    Folds of equal shape compile once: the second takes the program from the cache of
    `runtime.configure`.
    """
    every, numbers = folds(federation, count), chosen_folds(count, count if used is None else used)
    answers = (_held_out(method, config, every[number], stop) for number in numbers)
    by_client = list(zip(*answers, strict=True))
    if federation.classes is not None:
        return _score_of_classes(by_client)
    spreads = [float(np.std(client.train.y)) for client in federation.existing]
    scores = [_score(held, spread) for held, spread in zip(by_client, spreads, strict=True)]
    return Score(*np.mean(scores, axis=0).tolist())


def folds(federation: Federation, count: int) -> list[Federation]:
    """Return `count` federations, whose clients are tested on one part of their training samples each."""
    fewest = min(federation.existing, key=lambda client: len(client.train))
    if not 2 <= count <= len(fewest.train) // 2:
        raise InputError(
            f"{count} folds are not possible with the {len(fewest.train)} training samples of client "
            f"{fewest.name!r}; take 2 to {max(2, len(fewest.train) // 2)}."
        )
    edges = moments(federation.existing, count)
    cut = [
        [_without(client, part) for part in parts(client, count, edges, number)]
        for number, client in enumerate(federation.existing)
    ]
    return [replace(federation, existing=clients, new=()) for clients in zip(*cut, strict=True)]


def moments(clients: Sequence[Client], count: int) -> np.ndarray | None:
    """Return the times between parts, so that parts hold equally many of all samples."""
    times = [client.times for client in clients if client.times is not None]
    if len(times) < len(clients):
        return None
    together = np.sort(np.concatenate(times))
    return together[[len(together) * number // count for number in range(1, count)]]


def parts(client: Client, count: int, edges: np.ndarray | None, seed: int) -> list[np.ndarray]:
    """Cut the samples' numbers into `count` parts: between the edges, or at random and equally many."""
    samples = len(client.train)
    if edges is None or client.times is None:
        order = np.random.default_rng([20240, seed]).permutation(samples)
        return np.array_split(order, count)
    number = np.searchsorted(edges, client.times, side="right")
    found = [np.flatnonzero(number == part) for part in range(count)]
    if not all(0 < len(part) < samples for part in found):
        raise InputError(
            f"Client {client.name!r} has no samples in one of the {count} stretches of time that all "
            "clients are cut into; take fewer folds."
        )
    return found


def chosen_folds(count: int, used: int) -> list[int]:
    """Return `used` numbers below `count`, evenly spread: all of them, or 1 and 3 of 5."""
    if not 1 <= used <= count:
        raise InputError(f"{used} of {count} folds cannot be used; use 1 to {count}.")
    return [int((number + 0.5) * count / used) for number in range(used)]


def _without(client: Client, part: np.ndarray) -> Client:
    """Return the client without a part of its samples, which it will be tested on instead."""
    kept = np.setdiff1d(np.arange(len(client.train)), part)
    x, y = client.train.x, client.train.y
    return replace(
        client,
        train=Samples(x[kept], y[kept]),
        later=None,
        test=Samples(x[part], y[part]),
        times=None if client.times is None else client.times[kept],
    )


def _held_out(
    method: str, config: Config, fold: Federation, stop: Callable[[], bool]
) -> list[tuple[Any, ...]]:
    """Train on a fold; return for each client what is said of its held-out samples, in their own units.

    Of numbers: errors, calibration curve, and mean NLL. Of classes: labels and log probabilities.
    """
    check_federation(fold)
    scaled = standardize(fold, config.data.standardize)
    scalers = fit_scalers(fold, config.data.standardize)
    # Clients may have a few samples more or less in another fold: padded alike, it compiles once.
    store = from_clients(scaled.existing, roomy=True)
    found = run_method(method, config, scaled, store, Watcher(stop=stop)).groups["existing"]
    told: list[tuple[Any, ...]] = []
    for place, client in enumerate(fold.existing):
        assert client.test is not None
        y, scaler = client.test.y, scalers[client.name]
        if fold.classes is not None:
            told.append((y.astype(int), found.log_probabilities[place]))
        else:
            nll = found.rows[place]["nll"] + float(np.log(scaler.y_std))
            told.append((y - scaler.target(found.means[place]), found.calibration[place], nll))
    return told


def _score(held: Sequence[tuple[Any, ...]], spread: float) -> Score:
    """Return one client's score over all the samples that any fold held out.

    `spread` is the standard deviation of all its training targets: where some folds are left out,
    the few held-out targets may happen to be alike.
    """
    errors, curves, nlls = zip(*held, strict=True)
    sizes = [len(part) for part in errors]
    curve = np.average(curves, axis=0, weights=sizes)
    return Score(
        float(np.sqrt(np.mean(np.concatenate(errors) ** 2)) / spread),
        float(np.mean(np.abs(curve - metrics.calibration_levels()))),
        float(np.average(nlls, weights=sizes)),
    )


def _score_of_classes(by_client: Sequence[Sequence[tuple[Any, ...]]]) -> ClassScore:
    """Return the score of all clients, each with what every fold held out of it."""
    whole = [tuple(map(np.concatenate, zip(*held, strict=True))) for held in by_client]
    each = [
        (-np.mean(log[np.arange(len(own)), own]), np.mean(log.argmax(1) != own))
        for own, log in whole
    ]
    nll, error = np.mean(each, axis=0).tolist()
    labels, logs = map(np.concatenate, zip(*whole, strict=True))
    return ClassScore(nll, error, metrics.classification_calibration_error(np.exp(logs), labels))
