"""What the battery found: table.csv, and a README.md that begins with who wins where."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pacpfl.files import write
from pacpfl.report.measures import Measure, best, number, plus_minus
from reproduction.battery import peers, tables
from reproduction.battery.methods import METHODS, OURS
from reproduction.page import facts
from reproduction.study import Outcome
from reproduction.table import DIGITS, Entry

COLUMNS = ("dataset", "group", "method", "metric", "mean", "ci95", "seeds", "published")
ENOUGH = 200  # tests, for a coverage to be asked for
PROMISED = (0.85, 0.95)  # where the share inside a 90% interval has to lie
SLACK = 1.03  # of the best simple method's RMSE
NLL = Measure("nll", "NLL", "lower is better", "negative log density of a test row")
MEASURES = {
    measure.key: measure
    for measure in (
        NLL,
        Measure("rmse", "RMSE", "lower is better", "root mean squared error over all test rows"),
        Measure("accuracy", "Accuracy", "higher is better", "share of rows named rightly", ideal=1.0),
        Measure("crps", "CRPS", "lower is better", "mean pinball loss over all levels, doubled"),
        Measure("brier", "Brier score", "lower is better", "squared distance of probabilities"),
        Measure("ce", "CE", "lower is better", "mean gap between level and share below it"),
        Measure("coverage_90", "90% coverage", "0.9 is ideal", "share inside 90% bands", ideal=0.9),
        Measure("explained", "Explained variance", "higher is better", "1 - MSE / variance", ideal=1.0),
        Measure("client_rmse", "RMSE, mean of clients", "lower is better", ""),
        Measure("client_nll", "NLL, mean of clients", "lower is better", ""),
        Measure("client_ce", "CE, mean of clients", "lower is better", ""),
        Measure("client_accuracy", "Accuracy, mean of clients", "higher is better", "", ideal=1.0),
    )
}  # fmt: skip
SHOWN = {
    "tables": ("nll", "rmse", "accuracy", "crps", "brier", "coverage_90", "ce"),
    "peers": ("client_rmse", "client_ce", "client_nll", "client_accuracy", "accuracy", "nll",
              "rmse", "explained", "coverage_90"),
}  # fmt: skip
Contest = tuple[str, str]  # data set, group


@dataclass(frozen=True)
class Results:
    """What was measured, by (data set, group, method, measure)."""

    battery: str
    outcomes: Sequence[Outcome]

    @property
    def published(self) -> dict[tuple[str, str, str], float]:
        """Return the best that peers published, by (data set, group, measure)."""
        if self.battery == "tables":
            return {}
        return {
            (name, *place): value
            for name, benchmark in peers.BENCHMARKS.items()
            for place, value in benchmark.published.items()
        }

    @property
    def seeds(self) -> list[int]:
        return sorted({one.seed for one in self.outcomes})

    def entries(self) -> dict[tuple[str, str, str, str], Entry]:
        values: dict[tuple[str, str, str, str], dict[int, float]] = {}
        for one in self.outcomes:
            for group, measured in one.groups.items():
                for key, value in measured.items():
                    values.setdefault((one.dataset, group, one.name, key), {})[one.seed] = value
        return {place: Entry(found) for place, found in values.items()}

    def contests(self, key: str) -> dict[Contest, dict[str, Entry]]:
        """Return the methods' entries wherever a measure is known."""
        found: dict[Contest, dict[str, Entry]] = {}
        for (dataset, group, method, measure), entry in self.entries().items():
            if measure == key:
                found.setdefault((dataset, group), {})[method] = entry
        return {
            place: {name: ours[name] for name in METHODS if name in ours}
            for place, ours in sorted(found.items())
        }

    def as_csv(self) -> str:
        """Return table.csv; `published` is the best value that peers published of the measure."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for (dataset, group, method, key), entry in sorted(self.entries().items()):
            theirs = self.published.get((dataset, group, key), math.nan)
            shown = [_text(value) for value in (entry.mean, entry.ci95)]
            writer.writerow([dataset, group, method, key, *shown, entry.seeds, _text(theirs)])
        return text.getvalue()


def _text(value: float) -> str:
    return f"{value:.{DIGITS}g}" if math.isfinite(value) else ""


def summary(results: Results) -> list[str]:
    """Return who wins where, in sentences: losses by name."""
    found = {p: e for p, e in results.contests("nll").items() if len(e) > 1}
    if not found:
        return ["There is nothing to compare yet."]
    counts = {name: 0 for name in METHODS}
    for entries in found.values():
        for name in best({n: e.mean for n, e in entries.items()}, NLL):
            counts[name] += 1
    order = sorted(counts, key=lambda name: -counts[name])
    wins = ", ".join(f"{METHODS[name].title} {counts[name]}" for name in order)
    said = [f"Lowest NLL, of {len(found)} cells (a data set's existing or new clients): {wins}."]
    if not any(OURS in entries for entries in found.values()):
        return [*said, "PAC-PFL itself has not been run here yet."]
    said += [*losses(found, NLL, 1.0)]
    said += [*losses(results.contests("rmse"), MEASURES["rmse"], SLACK), *coverage(results)]
    return said + list(against_published(results))


def losses(
    found: Mapping[Contest, Mapping[str, Entry]], measure: Measure, slack: float
) -> Iterator[str]:
    """Yield where PAC-PFL is behind the best other method, by more than a factor where one is given."""
    worse, asked = [], 0
    for (dataset, group), entries in found.items():
        others = {name: entry for name, entry in entries.items() if name != OURS}
        if OURS not in entries or not others:
            continue
        asked += 1
        rival = min(others, key=lambda name: others[name].mean)
        ours, theirs = entries[OURS].mean, others[rival].mean
        if ours > theirs * slack if slack > 1 else ours > theirs:
            chance = ", within chance" if within_chance(entries[OURS], others[rival]) else ""
            values = f"{number(ours)} against {number(theirs)} of {METHODS[rival].title}"
            worse.append(f"{dataset} {group} ({values}{chance})")
    if asked:
        by = f" by more than {slack - 1:.0%}" if slack > 1 else ""
        listed = f": {'; '.join(worse)}" if worse else ""
        yield (
            f"PAC-PFL's {measure.title} is behind the best other method{by} in {len(worse)} of "
            f"{asked} cells{listed}."
        )


def within_chance(one: Entry, other: Entry) -> bool:
    """Return whether zero is in the 95% interval of the difference over the seeds of both."""
    shared = sorted(one.by_seed.keys() & other.by_seed.keys())
    gaps = Entry({seed: one.by_seed[seed] - other.by_seed[seed] for seed in shared})
    return len(shared) > 1 and abs(gaps.mean) <= gaps.ci95


def coverage(results: Results) -> Iterator[str]:
    """Yield where PAC-PFL's 90% intervals hold too little or too much, of cells with enough tests."""
    rows = results.contests("rows")
    found = {
        place: entries[OURS].mean
        for place, entries in results.contests("coverage_90").items()
        if OURS in entries and rows[place][OURS].mean >= ENOUGH
    }
    off = [
        f"{dataset} {group} ({number(value, 2)})"
        for (dataset, group), value in found.items()
        if not PROMISED[0] <= value <= PROMISED[1]
    ]
    if found:
        listed = f": {', '.join(off)}" if off else ""
        yield (
            f"Its 90% intervals cover less than 85% or more than 95% in {len(off)} of the "
            f"{len(found)} cells with at least {ENOUGH} tests{listed}."
        )


def against_published(results: Results) -> Iterator[str]:
    """Yield PAC-PFL's values beside what peers published."""
    for (dataset, group, key), theirs in results.published.items():
        ours = results.contests(key).get((dataset, group), {}).get(OURS)
        if ours is not None:
            measure = MEASURES[key]
            wins = measure.distance(ours.mean) <= measure.distance(theirs)
            yield (
                f"{dataset}: {measure.title} {plus_minus(ours.mean, ours.ci95)}, "
                f"{'at least as good as' if wins else 'behind'} the published {number(theirs)}."
            )


def write_results(folder: Path, results: Results) -> None:
    """Write table.csv and README.md."""
    write(folder / "table.csv", results.as_csv().encode())
    write(folder / "README.md", readme(results).encode())


def readme(results: Results) -> str:
    """Return README.md: sentences, the command, facts, a table for each measure, and the data sets."""
    about = about_tables() if results.battery == "tables" else about_peers()
    lines = [about[0], "", *(f"- {text}" for text in summary(results)), ""]
    lines += ["```sh", f"python -m reproduction {results.battery}", "```", ""]
    lines += [f"- {name}: {text}" for name, text in facts(results.outcomes, results.seeds).items()]
    for key in SHOWN[results.battery]:
        lines += _table(results, MEASURES[key])
    spent: dict[str, list[float]] = {}
    for one in results.outcomes:
        spent.setdefault(one.name, []).append(one.seconds)
    seconds = ", ".join(
        f"{METHODS[name].title} {np.mean(each):.1f} (at most {max(each):.0f})"
        for name, each in spent.items()
    )
    lines += ["", f"Seconds of a cell, on average: {seconds}.", "", "## Data", "", *about[1:]]
    return "\n".join(lines) + "\n"


def about_tables() -> list[str]:
    """Return the title, how tables are split, and what they are."""
    lines = [
        "# Public grouped tables: untouched settings beside simple methods",
        "A quarter of the groups is new: a third of their rows, at least two, personalises, and the others "
        "are tests. Existing groups train on 70% of their rows. Where a forecast is asked for, the tests "
        "are a group's last rows, otherwise they are drawn; `reproduction/battery/tables.toml` has every "
        "recipe. Settings were developed on the tables marked so, every other one in alphabetical order.",
        "",
        "| table | | rows | groups | rows of a group | columns | classes | tests | for |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for name, size in tables.sizes().items():
        recipe = tables.recipes()[name]
        cells = [
            name, recipe.title, size["rows"], size["clients"], f"{size['fewest']} to {size['most']}",
            size["features"], size["classes"] or "", "later" if recipe.time else "drawn",
            "development" if recipe.dev else "report",
        ]  # fmt: skip
        drawn = f" ({recipe.groups} drawn)" if recipe.groups else ""
        cells[3] = f"{cells[3]}{drawn}"
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def about_peers() -> list[str]:
    """Return the title, and whose numbers are published."""
    return [
        "# Benchmarks of peers: untouched settings beside published numbers",
        "Data, splits and scaling are the peers'. Seeds vary the split of Berkeley and School, and the "
        "methods' own draws; Cauchy, Sinusoid and heart have one split. Calibration errors are PACOH-NN's, "
        "the mean over 20 levels.",
        "",
        *(
            f"- {name}: {known.title}." + (f" Published: {known.source}." if known.source else "")
            for name, known in peers.BENCHMARKS.items()
        ),
    ]


def _table(results: Results, measure: Measure) -> list[str]:
    contests = results.contests(measure.key)
    names = [name for name in METHODS if any(name in entries for entries in contests.values())]
    theirs = any(place[2] == measure.key for place in results.published)
    if not contests:
        return []
    heads = [METHODS[name].title for name in names] + (["published"] if theirs else [])
    lines = ["", f"## {measure.title}: {measure.goal}", ""]
    lines += [f"| data set | clients | {' | '.join(heads)} |"]
    lines += ["|".join(["", " --- ", " --- ", *[" ---: "] * len(heads), ""])]
    for (dataset, group), entries in contests.items():
        winners = best({name: entry.mean for name, entry in entries.items()}, measure)
        row = [_shown(entries.get(name), name in winners) for name in names]
        if theirs:
            value = results.published.get((dataset, group, measure.key))
            row.append("" if value is None else number(value))
        lines.append(f"| {dataset} | {group} | {' | '.join(row)} |")
    return lines


def _shown(entry: Entry | None, wins: bool) -> str:
    if entry is None:
        return ""
    text = plus_minus(entry.mean, entry.ci95)
    return f"**{text}**" if wins else text
