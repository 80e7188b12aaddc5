"""The measures the report shows: what they are called, what is better, how to read them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One column of metrics.json. `ideal` is the value to be near; without it, lower is better."""

    key: str
    title: str
    goal: str
    explanation: str
    ideal: float | None = None
    ranked: bool = True
    digits: int = 3

    def distance(self, value: float) -> float:
        """How far a value is from the best one could ask for."""
        return value if self.ideal is None else abs(value - self.ideal)


RSMSE = Measure(
    "rsmse", "RSMSE", "lower is better",
    "root mean squared error divided by the standard deviation of the targets: 0 is perfect, "
    "1 is no better than always answering the average",
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
    "share of test samples whose class is named rightly", ideal=1.0,
)  # fmt: skip
CLASS_CE = Measure(
    "ce", "CE", "lower is better",
    "calibration error of all clients' predictions together, the mean gap between how sure they are "
    "and how often they are right: 0 is perfect",
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
MEASURES = (RSMSE, CE, NLL, COVERAGE_90, WIDTH_90)
BOXED = (RSMSE, CE, NLL)
CLASS_MEASURES = (ACCURACY, CLASS_CE, NLL, BRIER)
CLASS_BOXED = (ACCURACY, NLL, BRIER)
OF_A_CLASS_CLIENT = (OWN_CE, NLL, BRIER)  # beside its accuracy


def number(value: float, digits: int = 3) -> str:
    """A number for people: fixed decimals, a true minus sign, a dash for what is not known."""
    if value is None or math.isnan(value):
        return "\N{EN DASH}"
    if math.isinf(value):
        return ("\N{MINUS SIGN}" if value < 0 else "") + "\N{INFINITY}"
    size = abs(value)
    text = f"{size:.{digits}f}" if size < 1000 else f"{size:.3g}"
    negative = value < 0 and float(text) != 0.0
    return ("\N{MINUS SIGN}" if negative else "") + text


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f}%"


def counted(amount: int, thing: str) -> str:
    """ "1 client", "2 clients"."""
    return f"{amount} {thing}" if amount == 1 else f"{amount} {thing}s"
