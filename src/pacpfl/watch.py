"""Alarms: has the world changed since a client's rows were gathered?

Where new rows are exchangeable with the client's own, the rank of each row's PIT among all before it is
uniform, however wrong the model's probabilities are. `evidence` bets against that: what it owns is a
martingale then, and by Ville's inequality reaches 1 / level with probability `level` at most, at any time.
It bets that rows lie too low, too high, in both tails, or too near the middle.
"""

from __future__ import annotations

import numpy as np

LEVEL = 0.01  # the probability of an alarm, ever, while nothing has changed
POWERS = np.array([0.2, 0.5, 0.8])  # a bet expects density p a^(p - 1); 1 would be no change
# For changes that come late: what is kept back, and how much of it joins the bets at each row.
RESERVE, DRIP = 0.2, 0.01


def evidence(reference: np.ndarray, pits: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return what bets on a change own after each row; they began with 1.

    `reference` are held-out PITs of the client's own rows, `pits` those of later rows, in order.
    """
    ranks = _ranks(np.asarray(reference), np.asarray(pits), np.random.default_rng(seed))
    tails = 2 * np.minimum(ranks, 1 - ranks)
    places = np.stack([ranks, 1 - ranks, tails, 1 - tails], axis=1)
    bets = (POWERS * np.maximum(places, 1e-12)[..., None] ** (POWERS - 1)).reshape(len(ranks), -1)
    kept, owned = RESERVE, np.empty(len(ranks))
    betting = np.full(bets.shape[1], (1 - RESERVE) / bets.shape[1])
    for row, bet in enumerate(bets):
        betting = (betting + DRIP * kept / len(bet)) * bet
        kept *= 1 - DRIP
        owned[row] = betting.sum() + kept
    return owned


def first_alarm(reference: np.ndarray, pits: np.ndarray, level: float = LEVEL) -> int | None:
    """Return the row, counted from 0, at which the evidence reaches 1 / level; None if it never does."""
    beyond = evidence(reference, pits) >= 1 / level
    return int(np.argmax(beyond)) if beyond.any() else None


def _ranks(reference: np.ndarray, pits: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the rank of each among the reference and all before it, between 0 and 1; ties are drawn."""
    everything, ranks = list(np.sort(reference)), np.empty(len(pits))
    for row, pit in enumerate(pits):
        left, right = np.searchsorted(everything, pit), np.searchsorted(everything, pit, "right")
        ranks[row] = (left + random.random() * (right - left + 1)) / (len(everything) + 1)
        everything.insert(int(right), float(pit))
    return ranks


def outside(known: np.ndarray, x: np.ndarray, slack: float = 1.25) -> np.ndarray:
    """Tell which rows lie farther from all known rows than any of these does from the others.

    Rows are in units in which features are comparable; with fewer than five known rows it is not known,
    and no row is told to be outside but where a feature is more than four units from the centre.
    """
    if len(known) < 5:
        return np.asarray((np.abs(x) > 4).any(1))
    from scipy.spatial import cKDTree

    tree = cKDTree(known)
    usual, nearest = np.asarray(tree.query(known, k=2)[0])[:, 1].max(), np.asarray(tree.query(x)[0])
    return np.asarray(nearest > slack * usual)
