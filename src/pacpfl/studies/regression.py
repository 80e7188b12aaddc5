"""The paper's table of regression results: every method on every data set, existing and new clients.

A cell's configuration is the tuned one, `configs/regression/DATASET/ROW.toml`, where there is one; else
that of the data set it borrows from; else what the data set starts from,
`configs/regression/defaults/DATASET.toml`. The data are the latter's in any case: all methods see the
same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from pacpfl import metrics
from pacpfl.config import load, override
from pacpfl.data.polynomial import true_predictive
from pacpfl.data.weather import Weather
from pacpfl.errors import InputError
from pacpfl.sections import Config, PVConfig
from pacpfl.studies.crossval import raw_federation
from pacpfl.studies.outcomes import Cell, Kept, boxes
from pacpfl.studies.spaces import ROWS, prepare
from pacpfl.studies.table import Published, rows

DATASETS = {
    "pv-s-150-first": "PV-S, first 150",
    "pv-s-150-random": "PV-S, random 150",
    "pv-s-610": "PV-S, 610",
    "pv-ew-150-first": "PV-EW, first 150",
    "pv-ew-150-random": "PV-EW, random 150",
    "pv-ew-610": "PV-EW, 610",
    "polynomial": "Polynomial",
}

# The paper's table of regression results, column by column: mean and half width of RSMSE, then of CE.
_COLUMNS = (
    ("pv-s-150-first", "pv-s-150-random"),
    ("pv-ew-150-first", "pv-ew-150-random"),
    ("pv-s-610",),
    ("pv-ew-610",),
    ("polynomial",),
)
_PAPER: dict[tuple[str, str], tuple[tuple[float, ...], ...]] = {
    ("existing", "pacpfl"): (
        (0.43, 0.02, 0.07, 0.00),
        (0.41, 0.01, 0.04, 0.00),
        (0.42, 0.01, 0.07, 0.00),
        (0.40, 0.01, 0.04, 0.00),
        (0.58, 0.05, 0.14, 0.02),
    ),
    ("existing", "pfedgp"): (
        (0.48, 0.04, 0.07, 0.02),
        (0.45, 0.01, 0.06, 0.01),
        (0.51, 0.03, 0.07, 0.00),
        (0.46, 0.01, 0.05, 0.01),
        (0.80, 0.15, 0.12, 0.01),
    ),
    ("existing", "mtl"): (
        (0.45, 0.00),
        (0.43, 0.00),
        (0.44, 0.01),
        (0.41, 0.00),
        (0.85, 0.15),
    ),
    ("existing", "maml"): (
        (0.57, 0.02),
        (0.52, 0.03),
        (0.58, 0.02),
        (0.52, 0.02),
        (0.98, 0.13),
    ),
    ("existing", "vanilla"): (
        (0.68, 0.02, 0.12, 0.01),
        (0.63, 0.03, 0.12, 0.01),
        (0.49, 0.04, 0.04, 0.00),
        (0.46, 0.02, 0.03, 0.00),
        (0.73, 0.07, 0.18, 0.01),
    ),
    ("existing", "pooled"): (
        (0.48, 0.03, 0.26, 0.00),
        (0.47, 0.05, 0.26, 0.01),
        (0.49, 0.02, 0.26, 0.01),
        (0.46, 0.03, 0.27, 0.01),
        (2.33, 0.55, 0.33, 0.04),
    ),
    ("new", "pacpfl"): (
        (0.43, 0.02, 0.07, 0.00),
        (0.42, 0.01, 0.04, 0.00),
        (0.43, 0.01, 0.07, 0.00),
        (0.43, 0.01, 0.04, 0.00),
        (0.65, 0.02, 0.16, 0.01),
    ),
    ("new", "pfedgp"): (
        (0.46, 0.04, 0.07, 0.02),
        (0.45, 0.02, 0.06, 0.01),
        (0.51, 0.05, 0.06, 0.01),
        (0.46, 0.01, 0.06, 0.01),
        (0.87, 0.41, 0.15, 0.02),
    ),
    ("new", "mtl"): (
        (0.44, 0.00),
        (0.42, 0.00),
        (0.45, 0.00),
        (0.43, 0.00),
        (0.88, 0.12),
    ),
    ("new", "maml"): (
        (0.55, 0.03),
        (0.52, 0.01),
        (0.55, 0.01),
        (0.53, 0.02),
        (1.11, 0.28),
    ),
    ("new", "vanilla"): (
        (0.69, 0.02, 0.12, 0.01),
        (0.63, 0.05, 0.12, 0.01),
        (0.69, 0.02, 0.12, 0.01),
        (0.63, 0.52, 0.12, 0.01),
        (0.76, 0.05, 0.24, 0.03),
    ),
    ("new", "pooled"): (
        (0.48, 0.03, 0.26, 0.00),
        (0.47, 0.05, 0.26, 0.01),
        (0.48, 0.02, 0.27, 0.00),
        (0.46, 0.03, 0.27, 0.01),
        (2.32, 0.37, 0.36, 0.02),
    ),
}


def _published() -> Published:
    """The paper has one window of 150 hours and one pFedGP; its values stand beside both of ours."""
    values = {}
    for (group, row), columns in _PAPER.items():
        for name in ("pfedgp", "pfedgp-nn") if row == "pfedgp" else (row,):
            for datasets, numbers in zip(_COLUMNS, columns, strict=True):
                for dataset in datasets:
                    for metric, start in (("rsmse", 0), ("ce", 2)):
                        if start < len(numbers):
                            pair = (numbers[start], numbers[start + 1])
                            values[dataset, group, name, metric] = pair
    return Published(values)


PUBLISHED = _published()
# A look at the whole: two data sets of houses and Polynomial, smaller and shorter.
QUICK_DATASETS = ("pv-s-150-random", "pv-ew-150-random", "polynomial")
QUICK = (
    *("data.clients=8", "data.new_clients=4", "train.rounds=100"),
    *("alone.steps=50", "alone.restarts=1", "mtl.personal_steps=100", "local.steps=1"),
)
NOTES = (
    "Settings were chosen by cross-validation on the training samples of a federation drawn with seed "
    "100, which is not among the seeds reported; that of houses in the weather of Bern. With houses every "
    "method had twelve trials by three of five folds on each data set, PAC-PFL with the first hours seven "
    "by all five, and PV-S with 610 hours takes over what was found on PV-EW. The spaces searched are the "
    "paper's, narrowed after a first look by the same cross-validation, at PAC-PFL more often than at the "
    "others (docs/studies.md). On Polynomial every method had 32 trials by all five folds in the spaces "
    "as they are. Each tuned configuration says how it was found; ridge and ARD-GP choose for themselves.",
    "The paper's text takes the first 150 hours and its authors' generator 150 at random; its one value "
    "stands beside both. It does not say which mean its pFedGP has; its value stands beside both.",
    "MTL, MAML and FedAvg give point predictions; their calibration error is that of a normal "
    "distribution around them, as wide as their errors on the client's own training samples.",
    "Seconds are those of one run, compilation, training, personalising and measuring together.",
)
UNLIKE = "The paper gives neither its polynomials nor their noise: there, compare the order, not the size."


def dataset_config(dataset: str) -> Config:
    """What every row starts from on this data set."""
    text = _packaged("defaults", dataset)
    if text is None:
        raise InputError(f"There is no data set {dataset!r}; there are {', '.join(DATASETS)}.")
    return load(text, f"regression/defaults/{dataset}.toml")


# The settings of this data set are those found on its neighbour.
BORROWED = {"pv-s-610": "pv-ew-610"}


def cell_config(dataset: str, row: str, weather: str, seed: int) -> Config:
    base = dataset_config(dataset)
    config = prepare(row, base)
    for source in (dataset, BORROWED.get(dataset, dataset)):
        text = _packaged(source, row)
        if text is not None:
            config = load(text, f"regression/{source}/{row}.toml")
            break
    return replace(config, seed=seed, data=base.data, pv=replace(base.pv, weather=weather))


def _packaged(folder: str, name: str) -> str | None:
    path = resources.files("pacpfl.studies") / "configs" / "regression" / folder / f"{name}.toml"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def cells(
    seeds: Sequence[int],
    weather: str = "synthetic",
    quick: bool = False,
    settings: Sequence[str] = (),
) -> list[Cell]:
    """All runs of the study, seed after seed: an unfinished study has a little of everything."""
    changes = [*(QUICK if quick else ()), *settings]
    return [
        Cell(
            dataset,
            row,
            ROWS[row].method,
            override(cell_config(dataset, row, weather, seed), changes),
        )
        for seed in seeds
        for dataset in (QUICK_DATASETS if quick else DATASETS)
        for row in ROWS
    ]


def select(every: Sequence[Cell], names: Sequence[str]) -> list[Cell]:
    """The cells of the named data sets and rows; names of one kind only leave the other open."""
    datasets = {cell.dataset for cell in every} & set(names) or {cell.dataset for cell in every}
    chosen = {cell.name for cell in every} & set(names) or {cell.name for cell in every}
    for name in names:
        if name not in datasets | chosen:
            known = dict.fromkeys([c.dataset for c in every] + [c.name for c in every])
            raise InputError(f"--only {name}: there is no such row; there are {', '.join(known)}.")
    return [cell for cell in every if cell.dataset in datasets and cell.name in chosen]


def describe(kept: Sequence[Kept], seeds: Sequence[int], command: str) -> dict[str, Any]:
    """study.json, as far as the study has come: titles, boxes, and what the numbers say."""
    present = {(outcome.dataset, outcome.method) for outcome, _ in kept}
    datasets = {d: title for d, title in DATASETS.items() if any(d == p[0] for p in present)}
    methods = {row: ROWS[row].title for row in ROWS if any(row == p[1] for p in present)}
    return {
        "title": "Regression: every method of the paper's table, and two that people try first",
        "summary": summary(kept),
        "command": command,
        "seeds": list(seeds),
        "datasets": datasets,
        "methods": methods,
        "overview": ["rsmse", "ce"],
        "panels": client_by_client(kept, datasets, methods),
        "notes": [*NOTES, *([UNLIKE, floor(seeds)] if "polynomial" in datasets else [])],
    }


def floor(seeds: Sequence[int]) -> str:
    """What clients of Polynomial would have who knew the process they are drawn from."""
    found: dict[str, list[tuple[float, float]]] = {"existing": [], "new": []}
    for seed in seeds:
        config = cell_config("polynomial", "ridge", "synthetic", seed)
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
        "Who knew the process that a client of Polynomial is drawn from, and its samples, would have an "
        f"RSMSE of {error:.3f} and a calibration error of {calibration:.3f} with the existing and "
        f"{new_error:.3f} and {new_calibration:.3f} with the new clients of the whole study. Errors at "
        "neighbouring points go together, so a hundred of them are worth far fewer: even the true "
        "distribution is that far from a straight curve of calibration, client by client."
    )


def setting(houses: PVConfig, weather: Weather) -> str:
    """Where the houses of a study stand, in one sentence."""
    kind = {"synthetic": "synthetic weather", "pvgis": "weather from PVGIS"}
    north, east = weather.latitude, weather.longitude
    return (
        f"The houses stand at {abs(north):.2f}° {'N' if north >= 0 else 'S'}, {abs(east):.2f}° "
        f"{'E' if east >= 0 else 'W'} in "
        f"{kind.get(houses.weather) or f'the weather of {Path(houses.weather).name}'}."
    )


def client_by_client(
    kept: Sequence[Kept], datasets: Mapping[str, str], methods: Iterable[str]
) -> list[dict[str, Any]]:
    """A figure of boxes for each data set."""
    present = {(outcome.dataset, outcome.method) for outcome, _ in kept}
    panels = []
    for dataset, title in datasets.items():
        names = [row for row in methods if (dataset, row) in present]
        panels.append(
            {
                "kind": "boxes",
                "title": f"{title}: client by client",
                "dataset": dataset,
                "methods": names,
                "metric": "rsmse",
                "second": "ce",
                "boxes": {m: boxes(kept, dataset, names, m) for m in ("rsmse", "ce")},
                "caption": "Clients of all seeds together: the line is the median, the box the middle "
                "half, the whiskers reach to the last client within 1.5 times its width, and the dots "
                "are the others.",
            }
        )
    return panels


def summary(kept: Sequence[Kept], titles: Mapping[str, str] = DATASETS) -> list[str]:
    """Where PAC-PFL is best, where it is not and by whom it is beaten, and its calibration."""
    table: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    errors: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows([outcome for outcome, _ in kept], PUBLISHED):
        if row["metric"] == "rsmse" and math.isfinite(row["mean"]):
            table.setdefault((row["dataset"], row["group"]), {})[row["method"]] = row
        if row["metric"] == "ce":
            errors.setdefault((row["dataset"], row["group"]), {})[row["method"]] = row
    contested = {place: r for place, r in table.items() if "pacpfl" in r and len(r) > 1}
    if not contested:
        return ["There is nothing to compare PAC-PFL with yet."]
    won, lost, clear, printed = [], [], 0, []
    for (dataset, group), found in contested.items():
        ours = found["pacpfl"]
        other = min((r for r in found.values() if r is not ours), key=lambda r: r["mean"])
        where = f"{titles[dataset]}, {group} clients"
        if ours["mean"] < other["mean"]:
            won.append(where)
            gap = other["mean"] - ours["mean"]
            clear += gap > ours["ci95"] + other["ci95"]
        else:
            lost.append(
                f"{where} ({ours['mean']:.3f} against {other['mean']:.3f} of "
                f"{ROWS[other['method']].title})"
            )
        if ours["paper_mean"] != "":
            printed.append(ours["mean"] <= ours["paper_mean"] + 0.005)
    sentences = [
        f"PAC-PFL has the lowest mean RSMSE of all methods in {len(won)} of {len(contested)} columns "
        "(data set and group of clients)"
        + (
            f", in {clear} of them by more than both 95% intervals together."
            if any(math.isfinite(found["pacpfl"]["ci95"]) for found in contested.values())
            else "; with one seed there are no intervals to tell whether that means anything."
        )
    ]
    if lost:
        sentences.append(f"It does not have the lowest on {'; '.join(lost)}.")
    if printed:
        sentences.append(
            f"As printed, with two decimals, its RSMSE is at most the paper's in {sum(printed)} of "
            f"{len(printed)} columns."
        )
    calibration = [errors[place] for place in contested]
    own = [found["pacpfl"]["mean"] for found in calibration]
    lowest = sum(
        found["pacpfl"]["mean"] <= min(row["mean"] for row in found.values())
        for found in calibration
    )
    sentences.append(
        f"Its calibration error is between {min(own):.3f} and {max(own):.3f}, the lowest of all methods "
        f"in {lowest} of {len(own)} columns."
    )
    worse = [
        f"{titles[dataset]}, {group} clients ({row['mean']:.3f} against {row['paper_mean']:.2f})"
        for dataset, group in contested
        if (row := errors[dataset, group]["pacpfl"])["paper_mean"] != ""
        and row["mean"] > row["paper_mean"] + 0.005
    ]
    if worse:
        sentences.append(f"It is above the paper's on {'; '.join(worse)}.")
    return sentences
