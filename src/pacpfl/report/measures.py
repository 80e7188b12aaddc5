"""The measures the report shows: what they are called, what is better, and how to say a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measure:
    """One column of metrics.json.

    `ideal` is the value to be near; without it, lower is better. A `share` is said in per cent, and a
    gain of it in points; other gains are shares of the value they are compared with.
    """

    key: str
    title: str
    goal: str
    explanation: str
    ideal: float | None = None
    ranked: bool = True
    digits: int = 3
    noun: str = ""
    comparative: str = "lower"
    share: bool = False
    gained: tuple[str, str] = ("", "")  # what one has who gains, and who loses

    def distance(self, value: Any) -> Any:
        """Return how far a value, or each of many, is from the best one could ask for."""
        return value if self.ideal is None else abs(value - self.ideal)

    def gain(self, own: float, other: float) -> float:
        """Return how much better `own` is than `other`; NaN where that cannot be told."""
        if self.share:
            return own - other
        return 1 - own / other if other > 0 else float("nan")

    def say(self, value: float) -> str:
        """Return a value as it stands in a sentence."""
        return percent(value, 1) if self.share else number(value, self.digits)

    def say_size(self, gain: float) -> str:
        """Return how large a gain is, without its sign."""
        points = f"{100 * abs(gain):.1f}"
        return f"{points} point{'s' * (points != '1.0')}" if self.share else percent(abs(gain))

    def say_gain(self, gain: float) -> str:
        """Return what somebody has with this gain, such as "5% less error"."""
        return f"{self.say_size(gain)} {self.gained[gain < 0]}"


RSMSE = Measure(
    "rsmse", "RSMSE", "lower is better",
    "root mean squared error divided by the standard deviation of the targets: 0 is perfect, "
    "1 is no better than always answering the average",
    noun="an RSMSE", gained=("less error", "more error"),
)  # fmt: skip
CE = Measure(
    "ce", "CE", "lower is better",
    "calibration error, the mean gap between the confidence that was promised and the frequency "
    "that was observed: 0 is perfect",
)  # fmt: skip
NLL = Measure(
    "nll", "NLL", "lower is better",
    "negative log likelihood per test point: it rewards being right and being honest about doubt",
)  # fmt: skip
CRPS = Measure(
    "crps", "CRPS", "lower is better",
    "continuous ranked probability score: the mean absolute error of a whole "
    "distribution",
)  # fmt: skip
COVERAGE_90 = Measure(
    "coverage_90", "90% coverage", "0.9 is ideal",
    "share of test points inside the 90% band", ideal=0.9,
)  # fmt: skip
WIDTH_90 = Measure(
    "width_90", "90% width", "narrow only counts where the coverage holds",
    "mean width of the 90% band", ranked=False,
)  # fmt: skip

ACCURACY = Measure(
    "accuracy", "Accuracy", "higher is better",
    "share of test samples that are classified correctly", ideal=1.0,
    noun="an accuracy", comparative="higher", share=True,
    gained=("more accuracy", "less accuracy"),
)  # fmt: skip
CLASS_CE = Measure(
    "ce", "CE", "lower is better",
    "calibration error of all clients' predictions together, the mean gap between how confident they "
    "are and how often they are right: 0 is perfect",
)  # fmt: skip
OWN_CE = Measure(
    "ce_own", "CE of its own", "lower is better",
    "calibration error of one client alone, which its few test samples make larger",
)  # fmt: skip
BRIER = Measure(
    "brier", "Brier score", "lower is better",
    "mean squared distance between the probabilities of the classes and the truth",
)  # fmt: skip

# Numbers as targets; classes as targets. The first of each is what methods are ranked by.
RANKED = (RSMSE, CE, NLL, CRPS, COVERAGE_90)
MEASURES = (*RANKED, WIDTH_90)
BOXED = (RSMSE, CE, NLL)
CLASS_MEASURES = (ACCURACY, CLASS_CE, NLL, BRIER)
CLASS_BOXED = (ACCURACY, NLL, BRIER)
CLIENT_CLASS_MEASURES = (ACCURACY, OWN_CE, NLL, BRIER)  # of one client


def best(means: Mapping[str, float], measure: Measure) -> set[str]:
    """Return the methods nearest to the ideal: several when they tie, none when there is no contest."""
    distances = {
        method: measure.distance(mean) for method, mean in means.items() if math.isfinite(mean)
    }
    if len(distances) < 2 or not measure.ranked:
        return set()
    least = min(distances.values())
    return {method for method, distance in distances.items() if distance == least}


def number(value: float | None, digits: int = 3) -> str:
    """Return a number for people: fixed decimals, a true minus sign, a dash for what is not known."""
    if value is None or math.isnan(value):
        return "\N{EN DASH}"
    size = abs(value)
    text = f"{size:.{digits}f}" if size < 1000 else f"{size:.3g}".replace("inf", "\N{INFINITY}")
    negative = value < 0 and text.strip("0.")
    return ("\N{MINUS SIGN}" if negative else "") + text


def plus_minus(mean: float, half: float | None, digits: int = 3) -> str:
    """Return "0.350 ± 0.021"; the mean alone where it has no interval."""
    known = half is not None and math.isfinite(mean) and math.isfinite(half)
    return number(mean, digits) + (f" \N{PLUS-MINUS SIGN} {number(half, digits)}" if known else "")


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f}%"


VERBS = {"has": "have", "is": "are", "does": "do", "was": "were", "gets": "get"}


def verb(singular: str, amount: int) -> str:
    return singular if amount == 1 else VERBS[singular]


def counted(amount: int, thing: str, does: str = "") -> str:
    """Return "1 client" or "2 clients"; with a verb "1 client has" or "2 clients have"."""
    things = thing if amount == 1 else f"{thing}s"
    return f"{amount} {things} {verb(does, amount)}" if does else f"{amount} {things}"
