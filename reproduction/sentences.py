"""What the numbers of a study say: each kind of `[[summary]]` in its file is a function here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from pacpfl import metrics
from pacpfl.build import raw_federation
from pacpfl.data.polynomial import AMPLITUDE, covariance, kind_mean
from pacpfl.data.settings import PVSettings
from pacpfl.data.weather import Weather
from pacpfl.report.measures import Measure
from pacpfl.types import Client
from reproduction.study import Study, cell_config
from reproduction.table import Entry, Table, measure

OURS = "pacpfl"
NOUNS = {"rsmse": "RSMSE", "ce": "calibration error", "accuracy": "accuracy"}
NOTHING = "There is nothing to compare PAC-PFL with yet."


def summary(table: Table) -> list[str]:
    """Return what the study's file wants to be said, as far as it can be said already."""
    sentences = [s for told in table.study.summary for s in KINDS[told["kind"]](table, told)]
    return list(dict.fromkeys(sentences)) or ["There is nothing to compare yet."]


def said(known: Measure, value: float, decimals: int | None = None) -> str:
    unit = "%" if known.key == "accuracy" else ""
    return f"{value:.{known.digits if decimals is None else decimals}f}{unit}"


def contest(table: Table, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield in how many columns PAC-PFL wins a measure, where not and by whom it is beaten, and how
    its values compare with the paper's."""
    known = measure(told["measure"])
    columns = [
        (f"{table.datasets[dataset]}, {group} clients", found)
        for dataset, group, found in table.columns(known.key)
        if OURS in found and len(found) > 1
    ]
    if not columns:
        yield NOTHING
        return
    clear, lost = 0, []
    for where, found in columns:
        ours, others = found[OURS], [row for row in found if row != OURS]
        other = min(others, key=lambda row: known.distance(found[row].mean))
        gap = known.distance(found[other].mean) - known.distance(ours.mean)
        clear += gap > ours.ci95 + found[other].ci95
        if not gap > 0:
            values = (said(known, entry.mean) for entry in (ours, found[other]))
            lost.append(f"{where} ({' against '.join(values)} of {table.rows[other]})")
    extreme, noun = ("lowest" if known.ideal is None else "highest"), NOUNS[known.key]
    beyond = f", in {clear} of them by more than both 95% intervals together."
    if not any(math.isfinite(found[OURS].ci95) for _, found in columns):
        beyond = "; with one seed there are no intervals to tell whether that means anything."
    yield (
        f"PAC-PFL has the {extreme} mean {noun} of all methods in {len(columns) - len(lost)} of "
        f"{len(columns)} columns (data set and group of clients){beyond}"
    )
    if lost:
        yield f"It does not have the {extreme} on {'; '.join(lost)}."
    printed = [not _worse(known, entry) for _, found in columns if _printed(entry := found[OURS])]
    if printed:
        yield (
            f"As printed, its {noun} is at {'most' if known.ideal is None else 'least'} the paper's "
            f"in {sum(printed)} of {len(printed)} columns."
        )


def calibration(table: Table, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the range of PAC-PFL's calibration error, and where it is above the paper's."""
    known = measure(told["measure"])
    columns = [
        (f"{table.datasets[dataset]}, {group} clients", found)
        for dataset, group, found in table.columns(known.key)
        if OURS in found and len(found) > 1
    ]
    if not columns:
        return
    own = [found[OURS].mean for _, found in columns]
    lowest = sum(
        found[OURS].mean <= min(entry.mean for entry in found.values()) for _, found in columns
    )
    yield (
        f"Its {NOUNS[known.key]} is between {min(own):.3f} and {max(own):.3f}, the lowest of all "
        f"methods in {lowest} of {len(own)} columns."
    )
    worse = [
        f"{where} ({said(known, entry.mean)} against {said(known, entry.paper_mean, 2)})"
        for where, found in columns
        if _printed(entry := found[OURS]) and _worse(known, entry)
    ]
    if worse:
        yield f"It is above the paper's on {'; '.join(worse)}."


def _printed(entry: Entry) -> bool:
    return math.isfinite(entry.paper_mean)


def _worse(known: Measure, entry: Entry) -> bool:
    """Return whether a value is worse than the paper's, with the digits that the paper prints."""
    last = 0.5 * 10.0 ** -min(known.digits, 2)
    return known.distance(entry.mean) > known.distance(entry.paper_mean) + last


class Lookup:
    """Answers `name[data-set group row ... measure]` in a text; what is not there ends the text."""

    def __init__(self, table: Table, rule: Callable[[Sequence[Entry]], float]) -> None:
        self.table, self.rule = table, rule

    def __getitem__(self, place: str) -> float:
        dataset, group, *rows, key = place.split()
        entries = [self.table.get(dataset, group, row, key) for row in rows]
        if any(math.isnan(entry.mean) for entry in entries):
            raise LookupError(place)
        return self.rule(entries)


RULES: dict[str, Callable[[Sequence[Entry]], float]] = {
    "mean": lambda e: e[0].mean,
    "ratio": lambda e: e[0].mean / e[1].mean,
    "gain": lambda e: 1 - e[0].mean / e[1].mean,  # of the first over the second
    "above": lambda e: _above(e[0], e[1]),
    "closer": lambda e: 1 - _above(e[0], e[2]) / _above(e[1], e[2]),  # to the third
}


def _above(entry: Entry, base: Entry) -> float:
    """Return the mean difference over the seeds that both have."""
    both = sorted(set(entry.by_seed) & set(base.by_seed))
    return float(np.mean([entry.by_seed[seed] - base.by_seed[seed] for seed in both]))


def text(table: Table, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence of the study's file with its numbers filled in, or nothing if one is missing."""
    lookups = {name: Lookup(table, rule) for name, rule in RULES.items()}
    try:
        yield told["text"].format(**lookups)
    except (LookupError, ZeroDivisionError):
        return


def onset(table: Table, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield from which epsilon on learning together beats what a client does alone."""
    dataset, known = told["dataset"], measure(told["measure"])
    alone = table.get(dataset, "existing", "alone", known.key)
    if math.isnan(alone.mean):
        return
    better = [
        float(row.columns[1])
        for name, row in table.study.rows.items()
        if row.columns[0] == told["mode"]
        and known.distance(table.get(dataset, "existing", name, known.key).mean)
        < known.distance(alone.mean)
    ]
    words = f"from epsilon = {min(better):g} on" if better else "at none of these epsilons"
    yield (
        f"{table.datasets[dataset]}: with Gaussian noise existing clients do better together than "
        f"alone ({told['alone']}, {alone.mean:.3g}) {words}."
    )


def sweeps(table: Table, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the verdict on each sweep of each data set, and what single changes do there."""
    for dataset, title in table.datasets.items():
        for panel in table.study.panels:
            words = verdict(table, dataset, panel)
            if words:
                yield f"{panel['title'].format(title=title).replace(': RSMSE against', ',')}: {words}"
        for change in told["compare"]:
            plain, changed = (
                table.get(dataset, "existing", row, change["metric"]) for row in change["rows"]
            )
            if plain.by_seed and changed.by_seed:
                name = measure(change["metric"]).title
                yield f"{title}: {either(plain, changed, change['words'], name)}"


def verdict(table: Table, dataset: str, panel: Mapping[str, Any]) -> str:
    """Return whether RSMSE falls along a sweep, from its first point to the one fixed beforehand.

    The best of several values is better than the first by chance alone. Beyond the error bars: those
    of one standard deviation do not touch. Seeds have the same data along a sweep, so their
    differences, which say more, are told as well, and so are the other values.
    """
    entries = {
        x: table.get(dataset, "existing", row, panel["metrics"][0])
        for x, row in panel.get("points", ())
        if table.has(dataset, row)
    }
    if "verdict" not in panel or len(entries) < 2:
        return ""
    symbol, end = panel["verdict"]["symbol"], panel["verdict"]["end"]
    return falls(entries, symbol, end)


def falls(entries: Mapping[int, Entry], symbol: str, end: int) -> str:
    """Return `verdict` in words, of the entries by their place in the sweep."""
    first, *later = entries
    end = end if end in later else later[-1]
    start, reached = entries[first], entries[end]
    told = f"from {start.mean:.3f} at {symbol} = {first} to {reached.mean:.3f} at {symbol} = {end}"
    common = sorted(set(start.by_seed) & set(reached.by_seed))
    if not reached.mean < start.mean:
        told = f"RSMSE does not fall: it goes {told}"
    elif len(common) < 2:
        told = f"RSMSE falls {told}, on one seed"
    else:
        beyond = start.mean - start.std > reached.mean + reached.std
        words = "beyond the error bars" if beyond else "but not beyond the error bars"
        gap = Entry({seed: start.by_seed[seed] - reached.by_seed[seed] for seed in common})
        told = (
            f"RSMSE falls {told}, {words}; seed by seed by {gap.mean:.3f} \N{PLUS-MINUS SIGN} "
            f"{gap.std:.3f}"
        )
    others = [f"{entries[x].mean:.3f} at {symbol} = {x}" for x in later if x != end]
    return f"{told} (and {', '.join(others)})." if others else f"{told}."


def either(plain: Entry, changed: Entry, words: Sequence[str], name: str) -> str:
    """Return a measure without and with a change to the model, in words."""
    common = sorted(set(plain.by_seed) & set(changed.by_seed))
    told = " and ".join(
        f"{entry.mean:.3f} with {title}"
        for entry, title in zip((plain, changed), words, strict=True)
    )
    gap = Entry({seed: plain.by_seed[seed] - changed.by_seed[seed] for seed in common})
    direction = "more" if gap.mean < 0 else "less"
    return (
        f"{name} is {told}; seed by seed {abs(gap.mean):.3f} \N{PLUS-MINUS SIGN} {gap.std:.3f} "
        f"{direction}."
    )


KINDS: dict[str, Callable[[Table, Mapping[str, Any]], Iterator[str]]] = {
    "contest": contest,
    "calibration": calibration,
    "text": text,
    "onset": onset,
    "sweeps": sweeps,
}


def setting(houses: PVSettings, weather: Weather) -> str:
    """Return where the houses of a study stand, in one sentence."""
    kind = {"synthetic": "synthetic weather", "pvgis": "weather from PVGIS"}
    north, east = weather.latitude, weather.longitude
    return (
        f"The houses stand at {abs(north):.2f}° {'N' if north >= 0 else 'S'}, {abs(east):.2f}° "
        f"{'E' if east >= 0 else 'W'} in "
        f"{kind.get(houses.weather) or f'the weather of {Path(houses.weather).name}'}."
    )


def true_predictive(
    client: Client, noise: float = 0.15, opposite: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of a client's test targets for who knows the process it is drawn
    from and its training samples: no method can expect smaller errors."""
    if client.kind is None or client.test is None:
        raise ValueError(f"client {client.name!r} has no kind or no test samples")
    kind, x, new = client.kind, client.train.x[:, 0], client.test.x[:, 0]
    own = covariance(kind, x, x) + noise**2 * np.eye(len(x))
    cross = covariance(kind, new, x)
    weights = np.linalg.solve(own, cross.T).T
    mean = kind_mean(kind, new, opposite) + weights @ (
        client.train.y - kind_mean(kind, x, opposite)
    )
    variance = AMPLITUDE**2 - np.sum(weights * cross, axis=1) + noise**2
    return mean, np.sqrt(variance)


def floor(study: Study, seeds: Sequence[int]) -> str:
    """Return what clients would have who knew the process that their data are drawn from."""
    found: dict[str, list[tuple[float, float]]] = {"existing": [], "new": []}
    for seed in seeds:
        config = cell_config(study, study.floor, "ridge", seed)
        federation = raw_federation(config)
        for group, measured in found.items():
            for client in getattr(federation, group):
                mean, std = true_predictive(client, config.data.noise, config.data.opposite)
                shares = ndtr((client.test.y - mean) / std)
                error = metrics.rsmse(client.test.y, mean)
                measured.append((error, metrics.calibration_error(shares)))
    (error, calibration), (new_error, new_calibration) = (
        np.mean(measured, axis=0) for measured in found.values()
    )
    return (
        f"Who knew the process that a client of {study.datasets[study.floor].title} is drawn from, "
        f"and its samples, would have an RSMSE of {error:.3f} and a calibration error of "
        f"{calibration:.3f} with the existing and {new_error:.3f} and {new_calibration:.3f} with the "
        "new clients of the whole study. Errors at neighbouring points go together, so a hundred of "
        "them are worth far fewer: even the true distribution is that far from a straight curve of "
        "calibration, client by client."
    )
