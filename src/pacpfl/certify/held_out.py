"""Rows that judge: which ones, what they say of the model in use, and what speaks against it.

A model is fitted to some of a client's rows and judged by the others, which are then like rows to come.
Nothing is asked of the model: it may average particles and functions, as the one in use does. What has to
be settled without these rows is which of them judge. What the OTHER clients of a group settle is free: for
each client, the way of stating a bound that is best for the others in the median. Where there are too few
others, all ways share delta, and the best one is stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pacpfl.bounds import Condition, betting_bound
from pacpfl.bounds.losses import LossRange
from pacpfl.certify.certificate import (
    CLIENTS_INDEPENDENT,
    NEW_LIKE_EXISTING,
    PRIVATE,
    SAMPLES_INDEPENDENT,
    Certificate,
    Privacy,
    bounded,
)
from pacpfl.types import Client, Samples

# Of the rows that may judge: those that the model is fitted to instead.
SHARES = (0.0, 0.5)
ENOUGH_OTHERS = 5
SHUFFLES = 999  # of rows, to tell whether their order says something
LARGEST_TESTED = 12.0  # epsilon: a factor that losses never differ by
ALIKE = 0.001  # how improbable an order must be to speak against independence
CHOICE = "choice made without these samples or paid for"


class RowLosses(NamedTuple):
    """A model's loss on each row: of what it predicts, and of one function drawn from it, on average."""

    averaged: np.ndarray  # [rows]
    drawn: np.ndarray  # [rows]


class Held(NamedTuple):
    """What a model that was fitted to `fitted` rows is worth on rows that it was fitted without."""

    fitted: int
    own: RowLosses  # on the client's rows that judge
    test: RowLosses  # on its test samples, maybe none


def has_fresh(group: str, client: Client) -> bool:
    """Tell whether training has not seen the rows that judge: a newcomer's, or later ones."""
    return group == "new" or bool(client.later)


def divide(group: str, client: Client, share: float, ordered: bool) -> tuple[Samples, Samples]:
    """Return the rows that a model is fitted to and those that judge it.

    Where training has seen some of the rows and not others, the latter judge. Rows that stand in the order
    of time (`ordered`) are cut in two, of others some are drawn, the same for each number of rows.
    """
    seen = client.train if client.later and group == "existing" else client.train.rows(slice(0))
    rows = client.personal.rows(slice(len(seen), None))
    places, fitted = np.arange(len(rows)), int(share * len(rows))
    if not ordered:
        places = np.random.default_rng([11, len(rows)]).permutation(len(rows))
    return seen + rows.rows(np.sort(places[:fitted])), rows.rows(np.sort(places[fitted:]))


def shuffled(values: np.ndarray) -> np.ndarray:
    """Return values in an order that does not depend on them; bets are made in it."""
    return np.random.default_rng([13, len(values)]).permutation(values)


def choose(options: Sequence[Sequence[Certificate]]) -> list[int]:
    """Return the way for each client of a group: the best for the others, or for itself if all are paid."""
    bounds = np.array([[one.bound for one in row] for row in options])
    if not paid(len(options)):
        others = [np.delete(bounds, i, 0) for i in range(len(bounds))]
        return [int(np.argmin(np.median(rest, axis=0))) for rest in others]
    return [int(np.argmin(row)) for row in bounds]


def paid(clients: int) -> bool:
    """Tell whether all ways of stating a bound share delta, for lack of other clients."""
    return clients <= ENOUGH_OTHERS


def stated(
    options: Sequence[Certificate], way: int, ways: Sequence[str], clients: int
) -> Certificate:
    """Return the certificate that is stated, with the reason for its way and what the others cost."""
    found, several = options[way], " or ".join(dict.fromkeys(ways))
    if not paid(clients):
        reason = (
            f"{ways[way]}: of {several} that is best in the median for the {clients - 1} other "
            "clients, whose rows say nothing of this client's"
        )
        return found.under(Condition(CHOICE, "holds", reason))
    reason = f"{ways[way]}: the best of {several}, which share delta equally"
    rest = found.delta * (len(ways) - 1)
    split = {**found.delta_split, "the other ways": rest}
    return replace(found, delta_split=split).under(Condition(CHOICE, "holds", reason))


def order_says_something(held: Sequence[Held]) -> Condition | None:
    """Test whether neighbouring rows have losses alike, which independent rows have by chance only.

    The lag-one autocorrelation of losses on rows that judge, averaged over clients, is compared with that
    of shuffled rows. None where nothing speaks against independence.
    """
    series = [
        one.own.averaged - one.own.averaged.mean() for one in held if len(one.own.averaged) > 4
    ]
    series = [values for values in series if values.any()]
    rng, found, shuffles = np.random.default_rng(17), [], np.zeros(SHUFFLES)
    for values in series:
        others = rng.permuted(np.tile(values, (SHUFFLES, 1)), axis=1)
        found.append(float(values[1:] @ values[:-1] / (values @ values)))
        shuffles += np.einsum("ij,ij->i", others[:, 1:], others[:, :-1]) / (values @ values)
    if not series or (1 + np.sum(shuffles >= sum(found))) / (1 + SHUFFLES) > ALIKE:
        return None
    reason = (
        f"losses of neighbouring rows are alike (autocorrelation {np.mean(found):.2f} on average over "
        f"{len(found)} clients; none of {SHUFFLES} shuffles of the rows has as much): rows of a time "
        "series, or sorted ones, are fewer than they seem"
    )
    return Condition(SAMPLES_INDEPENDENT.name, "contradicted", reason, "world")


def memorised(
    held: Sequence[Held], loss: LossRange, privacy: Privacy, delta: float
) -> Condition | None:
    r"""Test an assumed epsilon by what the particles make of rows that they were trained on.

    Before a model is fitted to a client, its expected loss on rows to come is at most $e^\epsilon$ times
    that on rows of the training (both above a): else epsilon is larger. Bounds on both averages, with half
    of delta each, take rows as independent. None where nothing speaks against epsilon.
    """
    pairs = [(one.own.averaged, one.test.averaged) for one in held if len(one.test.averaged)]
    if privacy.standing != "assumed" or privacy.epsilon > LARGEST_TESTED or not pairs:
        return None
    own, test = (shuffled(np.concatenate(side)) - loss.a for side in zip(*pairs, strict=True))
    factor, width = math.exp(privacy.epsilon), loss.width
    most = betting_bound(own, 0.0, width, delta / 2)
    least = width - betting_bound(width - test, 0.0, width, delta / 2)
    if least <= factor * most:
        return None
    times = f"{test.mean() / own.mean():.3g} times as much" if own.any() else "all of it"
    reason = (
        "the particles have memorised the rows they were trained on: before anything is fitted to a "
        f"client, the average loss is {loss.a + own.mean():.4g} on those rows and "
        f"{loss.a + test.mean():.4g} on test rows, {times} above {loss.a:g}, and "
        f"epsilon = {privacy.epsilon:.4g} allows {factor:.3g} times"
    )
    return Condition(PRIVATE, "contradicted", reason)


def certify_newcomers(ways: Sequence[Sequence[Held]], loss: LossRange, delta: float) -> Certificate:
    """Return the bound on the average risk of clients yet to come, of the averaged model in use.

    Clients who took no part in the training are draws from those yet to come; the average loss of each on
    its judging rows is one value whose expectation is the average risk. `ways` has those of each share.
    """
    share, found = delta / len(ways), []
    for held in ways:
        values = np.array([one.own.averaged.mean() for one in held])
        bound = betting_bound(shuffled(values), loss.a, loss.b, share)
        found.append((bound, float(values.mean()), held[0].fitted))
    bound, mean, fitted = min(found)
    return Certificate(
        "clients yet to come",
        loss,
        f"averaged model in use, fitted to about {fitted} rows of a client, average over clients",
        mean,
        {"empirical": mean, "confidence": bound - mean},
        {"bound": share, "the other ways": delta - share},
        (
            bounded(loss),
            Condition(
                "prior independent of the client's data", "holds",
                f"judged by {len(ways[0])} clients who took no part in the training",
            ),
            NEW_LIKE_EXISTING, SAMPLES_INDEPENDENT, CLIENTS_INDEPENDENT,
        ),
    )  # fmt: skip
