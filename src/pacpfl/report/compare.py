"""What the sentences of the page rest on: means, and one method against another client by client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # scipy.stats takes half a second to import

from pacpfl.report.folder import Run


@dataclass(frozen=True)
class Caution:
    """Something to look at: what it is, what it means here, and what to do."""

    title: str
    text: str
    advice: str


@dataclass(frozen=True)
class Comparison:
    """One method against another, client by client.

    `low` and `high` are the ends of the 95% Student interval of the mean difference
    (second minus first); `better` counts clients where the first has the smaller error.
    """

    clients: int
    better: int
    low: float
    high: float

    @property
    def clear(self) -> bool:
        return self.low > 0 or self.high < 0


def compare(run: Run, first: str, second: str, group: str) -> Comparison | None:
    """Paired comparison of two methods over the clients both of them served, by the distance of the
    run's first measure from its ideal: the RSMSE, or the share of samples named wrongly."""
    lead = run.measures[0]
    pairs = pd.merge(
        run.rows(first, group)[["client", lead.key]],
        run.rows(second, group)[["client", lead.key]],
        on="client",
        suffixes=("_first", "_second"),
    )
    errors = [
        np.array([lead.distance(value) for value in pairs[f"{lead.key}_{which}"]], dtype=float)
        for which in ("first", "second")
    ]
    gaps = errors[1] - errors[0]
    gaps = gaps[np.isfinite(gaps)]
    if len(gaps) < 2:
        return None
    half = stdtrit(len(gaps) - 1, 0.975) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    middle = gaps.mean()
    return Comparison(len(gaps), int((gaps > 0).sum()), middle - half, middle + half)


def mean_of(run: Run, method: str, group: str, key: str) -> float:
    """A mean of metrics.json; NaN where it was not measured."""
    value = run.metrics.get(method, {}).get(group, {}).get(key, {}).get("mean")
    return float("nan") if value is None else float(value)
