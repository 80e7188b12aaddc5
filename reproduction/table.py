"""Results over seeds in one long table: what every study writes, and its page is drawn from."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pacpfl import metrics
from pacpfl.report.folder import GROUPS
from pacpfl.report.measures import MEASURES, Measure, best
from reproduction.study import Outcome, Study

ACCURACY = Measure(
    "accuracy", "Accuracy, %", "higher is better",
    "share of test samples whose class is named rightly, in per cent", ideal=100.0, digits=1,
)  # fmt: skip
TRAINING = Measure(
    "train_seconds", "Training, s", "", "time of the training's rounds alone",
    ranked=False, digits=1,
)  # fmt: skip
COMPILATION = Measure(
    "compile_seconds", "Compilation, s", "", "time of the first round, compilation included",
    ranked=False, digits=1,
)  # fmt: skip
RECOVERED = Measure(
    "recovered", "Kinds found", "1 is ideal",
    "share of clients whose kind the components of the prior tell without having been told",
    ideal=1.0,
)  # fmt: skip
DIVERSITY = Measure(
    "diversity", "Diversity", "", "root mean square difference between what two particles predict",
    ranked=False,
)  # fmt: skip
SHOWN = {
    measure.key: measure
    for measure in (ACCURACY, *MEASURES, RECOVERED, DIVERSITY, TRAINING, COMPILATION)
}
LEFT_OUT = ("coverage_", "width_")  # of the bands the tables show the 90% ones
PLACE = ("dataset", "group", "method", "metric")
COLUMNS = (*PLACE, "mean", "ci95", "paper_mean", "paper_ci95", "seeds", "seconds")
DIGITS = 6  # of the numbers in table.csv


def measure(key: str) -> Measure:
    """Return what is known about a measure; one that is not known is shown, but nobody wins in it."""
    return SHOWN.get(key) or Measure(key, key.replace("_", " "), "", "", ranked=False)


@dataclass(frozen=True)
class Entry:
    """Mean over seeds and half of its 95% interval, here and in the paper."""

    by_seed: Mapping[int, float]
    paper_mean: float = math.nan
    paper_ci95: float = math.nan
    seconds: float = math.nan

    @cached_property
    def interval(self) -> tuple[float, float]:
        return metrics.interval(np.array(list(self.by_seed.values())))

    @property
    def mean(self) -> float:
        return self.interval[0]

    @property
    def ci95(self) -> float:
        return self.interval[1]

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def std(self) -> float:
        """Return the standard deviation over seeds; not known of a single one."""
        values = [value for value in self.by_seed.values() if math.isfinite(value)]
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


NOTHING = Entry({})


class Table:
    """The outcomes of a study by (data set, group, row, measure)."""

    def __init__(self, study: Study, outcomes: Sequence[Outcome], seeds: Sequence[int]) -> None:
        self.study, self.outcomes, self.seeds = study, outcomes, seeds
        present = {(outcome.dataset, outcome.name) for outcome in outcomes}
        self.datasets = {
            key: dataset.title
            for key, dataset in study.datasets.items()
            if any(key == place[0] for place in present)
        }
        self.rows = {
            key: row.title
            for key, row in study.rows.items()
            if any(key == place[1] for place in present)
        }
        self.entries = self._entries()

    def _entries(self) -> dict[tuple[str, ...], Entry]:
        values: dict[tuple[str, ...], dict[int, float]] = {}
        seconds: dict[tuple[str, str], list[float]] = {}
        for outcome in self.outcomes:
            seconds.setdefault(outcome[:2], []).append(outcome.seconds)
            for group, measured in outcome.groups.items():
                for key, value in measured.items():
                    place = (outcome.dataset, group, outcome.name, key)
                    values.setdefault(place, {})[outcome.seed] = value
        paper = self.study.paper()
        return {
            place: Entry(
                by_seed,
                *paper.get(place, (math.nan, math.nan)),
                seconds=float(np.mean(seconds[place[0], place[2]])),
            )
            for place, by_seed in values.items()
        }

    def get(self, dataset: str, group: str, row: str, key: str) -> Entry:
        return self.entries.get((dataset, group, row, key), NOTHING)

    def has(self, dataset: str, row: str, group: str | None = None) -> bool:
        return any(
            place[0] == dataset and place[2] == row and group in (None, place[1])
            for place in self.entries
        )

    def groups(self, dataset: str) -> list[str]:
        return [g for g in GROUPS if any(place[:2] == (dataset, g) for place in self.entries)]

    def measures(self, dataset: str) -> list[Measure]:
        """Return the measures of a data set's table: known ones first, in their usual order."""
        keys = dict.fromkeys(place[3] for place in self.entries if place[0] == dataset)
        other = [key for key in keys if key not in SHOWN and not key.startswith(LEFT_OUT)]
        return [SHOWN[key] for key in SHOWN if key in keys] + [measure(key) for key in other]

    def columns(self, key: str) -> Iterator[tuple[str, str, dict[str, Entry]]]:
        """Yield each data set and group in which a measure is known, with its entries by row."""
        for dataset in self.datasets:
            for group in self.groups(dataset):
                entries = {row: self.get(dataset, group, row, key) for row in self.rows}
                found = {row: e for row, e in entries.items() if math.isfinite(e.mean)}
                if found:
                    yield dataset, group, found

    def best(self, dataset: str, group: str, known: Measure) -> set[str]:
        """Return the rows nearest to the ideal; several when they tie, none without a contest."""
        means = {row: self.get(dataset, group, row, known.key).mean for row in self.rows}
        return best(means, known)

    def as_csv(self) -> str:
        """Return table.csv: a line for each entry, with what the study says of its row besides."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*COLUMNS, *self.study.columns])
        for place, entry in self.entries.items():
            numbers = (entry.mean, entry.ci95, entry.paper_mean, entry.paper_ci95)
            shown = [f"{v:.{DIGITS}g}" if math.isfinite(v) else "" for v in numbers]
            spent = f"{entry.seconds:.{DIGITS}g}"
            more = self.study.rows[place[2]].columns
            writer.writerow([*place, *shown, entry.seeds, spent, *more])
        return text.getvalue()
