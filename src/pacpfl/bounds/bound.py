"""What a theorem returns: an upper bound on a risk, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """An upper bound on a risk as the sum of named terms, all in units of the loss.

    The names are those of `docs/theory.md`: `empirical` (what the samples say), `divergence`
    (KL terms), `deviation` (how far finite samples may lie), `privacy` (the price of a prior
    that has seen the client's data) and `confidence` (ln(1/delta)).
    """

    terms: Mapping[str, float]

    @property
    def value(self) -> float:
        return float(sum(self.terms.values()))
