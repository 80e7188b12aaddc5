"""From the outcome of an attack to a lower bound on epsilon that holds with confidence.

An attacker sees what was released and says whether a client was there. If the release is
(epsilon, delta)-private, then for EVERY way to decide (Kairouz, Oh & Viswanath 2015)

    1 - delta <= FNR + e^epsilon FPR      and      1 - delta <= FPR + e^epsilon FNR,

so measured error rates give a lower bound on epsilon. Rates are replaced by their upper Clopper-Pearson
limits, each at half of the allowed error probability, and the threshold is chosen on one half of the
runs and judged on the other: then the bound holds with the confidence stated, whatever the attack.

Where the mechanism is known to be Gaussian (all clients in every round), the trade-off between the two
rates has one parameter mu, the shift in standard deviations (Dong, Roth & Su 2022), which any threshold
measures: mu = Phi^-1(1 - FPR) - Phi^-1(FNR). From its lower limit follows a far tighter bound at small
delta (Nasr et al. 2023), by the exact curve of Balle & Wang (2018, Theorem 8).

Many canaries in one run: Steinke, Nasr & Jagielski (2023), Theorem 5.2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

THRESHOLDS = 400  # tried on the first half of the runs
CONFIDENCE = 0.95


class Bound(NamedTuple):
    """epsilon is at least this with the confidence stated; `false_*` are the rates that were measured."""

    epsilon: float
    delta: float
    confidence: float
    false_positives: float
    false_negatives: float
    trials: int  # judged, on each side
    how: str


def upper_limit(errors: np.ndarray | int, trials: int, confidence: float) -> np.ndarray:
    """One-sided Clopper-Pearson limit: a larger rate gives so few errors with probability
    1 - confidence at most."""
    errors = np.asarray(errors)
    limit = stats.beta.ppf(confidence, errors + 1, np.maximum(trials - errors, 1e-300))
    return np.where(errors >= trials, 1.0, limit)


def epsilon_from_rates(
    false_positives: np.ndarray, false_negatives: np.ndarray, delta: float
) -> np.ndarray:
    """The smallest epsilon that allows these rates; 0 where every epsilon does."""

    def one(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
        possible = (numerator > 0) & (denominator > 0)
        ratio = np.divide(numerator, denominator, where=possible, out=np.ones_like(numerator))
        return np.where((numerator > 0) & (denominator <= 0), np.inf, np.log(ratio))

    positives, negatives = np.atleast_1d(false_positives), np.atleast_1d(false_negatives)
    both = one(1 - delta - negatives, positives), one(1 - delta - positives, negatives)
    return np.maximum(0, np.maximum(*both))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a Gaussian shifted by mu standard deviations (Balle & Wang 2018)."""
    left = float(special.ndtr(mu / 2 - epsilon / mu))
    # e^epsilon may overflow where the probability beside it underflows: their product is below 1.
    right = math.exp(epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu)))
    return left - right


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta."""
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = mu * (mu / 2 - float(stats.norm.ppf(delta)))  # there the first term alone is delta
    return float(optimize.brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, high))


def shift_from_rates(false_positives: np.ndarray, false_negatives: np.ndarray) -> np.ndarray:
    """mu of the Gaussian whose trade-off curve goes through these rates."""
    return -special.ndtri(false_positives) - special.ndtri(false_negatives)


def lower_bound(
    outside: np.ndarray,
    inside: np.ndarray,
    delta: float,
    confidence: float = CONFIDENCE,
    gaussian: bool = False,
) -> Bound:
    """From the attacker's statistics [runs], or [ways, runs] of several ways to compute them, without
    and with the canary.

    Even runs choose way and threshold, by the bound they would give themselves; odd runs judge.
    `gaussian` uses the trade-off curve of Gaussian noise: right only where the release is known to be
    a Gaussian mechanism of unknown size.
    """
    outside, inside = np.atleast_2d(outside), np.atleast_2d(inside)
    each = 1 - (1 - confidence) / 2

    def strength(positives: np.ndarray, negatives: np.ndarray) -> np.ndarray:
        """epsilon, or mu, which orders thresholds alike."""
        if gaussian:
            return shift_from_rates(positives, negatives)
        return epsilon_from_rates(positives, negatives, delta)

    best = (-math.inf, 0, 0.0)
    for way, (without, with_) in enumerate(zip(outside[:, ::2], inside[:, ::2], strict=True)):
        both = np.concatenate([without, with_])
        # A Gaussian's mu is measured best where both errors are equally likely.
        thresholds = np.array([np.median(both)]) if gaussian else candidates(both)
        guesses = strength(*_limits(without, with_, thresholds, each))
        place = int(np.argmax(guesses))
        best = max(best, (float(guesses[place]), way, float(thresholds[place])))
    _, way, threshold = best
    without, with_ = outside[way, 1::2], inside[way, 1::2]
    found = float(strength(*_limits(without, with_, np.array([threshold]), each))[0])
    return Bound(
        gaussian_epsilon(found, delta) if gaussian else found,
        delta,
        confidence,
        float(np.mean(without > threshold)),
        float(np.mean(with_ <= threshold)),
        min(len(without), len(with_)),
        "Gaussian trade-off curve" if gaussian else "Clopper-Pearson",
    )


def candidates(values: np.ndarray) -> np.ndarray:
    """Thresholds worth trying: quantiles, closer to each other in the tails."""
    tails = np.geomspace(1 / len(values), 0.5, THRESHOLDS // 2)
    places = np.concatenate([tails, 1 - tails[::-1]])
    return np.unique(np.quantile(values, places, method="lower"))


def _limits(
    outside: np.ndarray, inside: np.ndarray, thresholds: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Upper limits of FPR and FNR at each threshold; `in` is said above it."""
    positives = len(outside) - np.searchsorted(np.sort(outside), thresholds, side="right")
    negatives = np.searchsorted(np.sort(inside), thresholds, side="right")
    return (
        upper_limit(positives, len(outside), confidence),
        upper_limit(negatives, len(inside), confidence),
    )


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """How likely `correct` of `guesses` or more would be under (epsilon, delta).

    With f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v] and m canaries, each in or out by the
    toss of a coin:  f(v) + 2 m delta max_i (f(v - i) - f(v)) / i.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    at_least = stats.binom.sf(np.arange(correct, -1, -1) - 1, guesses, chance)  # f(v), f(v-1), ...
    slope = max((float(f - at_least[0]) / i for i, f in enumerate(at_least) if i), default=0.0)
    return min(1.0, float(at_least[0]) + 2 * canaries * delta * slope)


def one_run_bound(
    present: np.ndarray,
    scores: np.ndarray,
    guesses: int,
    delta: float,
    confidence: float = CONFIDENCE,
) -> Bound:
    """From ONE run with many canaries: the attacker says `in` of the highest scores and `out` of the
    lowest, half of the guesses each, and abstains on the rest. `guesses` is fixed beforehand."""
    half = guesses // 2
    order = np.argsort(scores)
    false_negatives = int(np.sum(present[order[:half]]))
    false_positives = int(np.sum(~present[order[len(order) - half :]]))
    correct = 2 * half - false_negatives - false_positives

    def refuted(epsilon: float) -> bool:
        p_value = one_run_p_value(len(scores), 2 * half, correct, epsilon, delta)
        return p_value <= 1 - confidence

    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    rates = false_positives / half, false_negatives / half
    return Bound(low, delta, confidence, *rates, half, "one run")
