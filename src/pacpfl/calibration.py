r"""Recalibration: a monotone map of a model's probabilities, learned from rows it was not shown.

Where a model says u = F(y) of rows it has not seen (their PITs), u is uniform if the model is honest. A
map R with the PITs' distribution function makes it so: the recalibrated distribution function is
R(F(y)), its quantiles are $F^{-1}(R^{-1}(p))$, and its density is $R'(F(y))\,p(y)$, which integrates to
one. R is a line between EDGES, so all it needs is the `shares` of the PITs between them:

>>> shares = WIDTHS * np.where(np.abs(EDGES[1:] - 0.5) < 0.4, 1.1, 0.5)
>>> shares /= shares.sum()
>>> levels = np.array([0.05, 0.5, 0.9])
>>> np.allclose(recalibrate(shares, invert(shares, levels)), levels)
True

The PITs of training rows are leave-one-out, so no row is set aside. A client's few are shrunk towards those
of all clients together (`learn`): its shares are the mean of a Dirichlet posterior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

EDGES = np.array([0, 0.01, *np.linspace(0.05, 0.95, 10), 0.99, 1])
WIDTHS = np.diff(EDGES)  # the shares of a model that is honest already
OFF = np.zeros(0)  # pseudo-counts where the rows' evidence is against a map
FEWEST = 40  # rows that can tell anything
CLIENTS = 64  # of whose rows a map is learned: more would say the same
BLOCKS = 10  # of neighbouring rows, each predicted by a map of the others
SURE = 1.383  # standard errors that the gain must be above zero: nine times in ten, by Student's t
WEAK = 20.0  # rows' worth of honesty that every map begins with
STRENGTHS = (30.0, 100.0, 300.0, 1000.0, 1e6)  # rows' worth of all others in a client's map
WINDOW, RECENT = 100, 30.0  # later rows that are remembered, and what they are shrunk by


def chosen(count: int) -> slice:
    """Return which of `count` clients a map is learned of."""
    return slice(None, None, -(-count // CLIENTS) or 1)


def histogram(pits: np.ndarray) -> np.ndarray:
    """Return how many PITs lie between EDGES: all that a map is learned from."""
    return np.histogram(np.clip(pits, 0, 1), EDGES)[0].astype(float)


def learn(pits: Sequence[np.ndarray], always: bool = False) -> np.ndarray:
    """Return the pseudo-counts from which every client's map starts; OFF where a map does not help.

    Each client's PITs are in the order of its rows. A map of nine tenths of everybody's rows is tried on
    the neighbouring rest: where the log density gains by more than its noise between blocks, there is to be
    a map. Neighbours in time share their weather, which drawing rows at random would not show. How
    much a client trusts the others is what predicts each client's rows best.
    """
    blocks = np.zeros((BLOCKS, len(WIDTHS)))
    for own in pits:
        for number, part in enumerate(np.array_split(own, BLOCKS)):
            blocks[number] += histogram(part)
    total, filled = blocks.sum(0), blocks[blocks.any(1)]
    if not always and (total.sum() < FEWEST or not _helps(_gain(filled, _pooled(total - filled)))):
        return OFF
    pooled, strength = _pooled(total), STRENGTHS[-1]
    each = np.array([histogram(own) for own in pits if len(own) > 1])
    if len(each) > 1:
        others = _pooled(total - each)
        rest = np.maximum(each - 1, 0)  # what is left of the row's own bin without it

        def score(strength: float) -> float:
            shares = (rest + strength * others) / (each.sum(1, keepdims=True) - 1 + strength)
            return float(_gain(each, shares).mean())

        strength = max(reversed(STRENGTHS), key=score)
    return strength * pooled


def own_shares(prior: np.ndarray, pits: np.ndarray, strength: float | None = None) -> np.ndarray:
    """Return the shares of a client with these PITs, from a prior's pseudo-counts or shares."""
    start = prior if strength is None else strength * prior
    counts = start + histogram(pits)
    return counts / counts.sum()


def shares_of(
    pits: np.ndarray, prior: np.ndarray | None, recalibration: str = "auto"
) -> np.ndarray | None:
    """Return the shares of a client's map; None for no map. Without a prior its own rows decide."""
    if prior is None:
        prior = learn([pits], recalibration == "always")
    return own_shares(prior, pits) if len(prior) else None


def is_pooled(prior: np.ndarray) -> bool:
    """Tell whether a client's own rows have no say in its map."""
    return bool(prior.sum() >= STRENGTHS[-1] / 2)


def recalibrate(shares: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return R(u), the probability that stands behind the model's u."""
    return np.interp(below, EDGES, _reached(shares))


def invert(shares: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the u with R(u) = level: what to ask the model for."""
    return np.interp(levels, _reached(shares), EDGES)


def log_slope(shares: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return ln R'(u): what the log density gains where the model says u; bins and u are last."""
    place = np.clip(np.searchsorted(EDGES, below, side="right") - 1, 0, len(WIDTHS) - 1)
    return np.take_along_axis(np.log(shares / WIDTHS), place, axis=-1)


def _helps(gains: np.ndarray) -> bool:
    return bool(gains.mean() > SURE * gains.std(ddof=1) / math.sqrt(len(gains)))


def _reached(shares: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(shares[:-1]), [1.0]])


def _pooled(counts: np.ndarray) -> np.ndarray:
    """Return the shares of rows of many; few rows in the tails do not prove these to be lighter."""
    shares = (counts + WEAK * WIDTHS) / (counts.sum(-1, keepdims=True) + WEAK)
    shares[..., [0, -1]] = np.maximum(shares[..., [0, -1]], WIDTHS[[0, -1]])
    return np.asarray(shares / shares.sum(-1, keepdims=True))


def _gain(counts: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the mean log density that rows, by where they lie, gain from each map."""
    return (counts * np.log(shares / WIDTHS)).sum(-1) / counts.sum(-1)
