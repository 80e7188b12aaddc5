"""What more particles (k) and more base priors in each (K) buy, everything else equal.

The paper's ablation: RSMSE of existing clients against k, five seeds, mean +- standard deviation. Its
kernel between particles (`rbf`) lets them collapse in many dimensions, so the kernel on function space
stands beside it, with the particles' diversity below both; and the mixture prior beside these.

The prior is the paper's, networks for mean and kernel. What the search chose for the table has fewer
parameters, so there is less for particles to disagree on: it is swept as well. And each prior
is tried with a constant noise and with one that depends on the features, and with a warped target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pacpfl.config import Config, override
from pacpfl.tune.spaces import prepare
from reproduction.outcomes import Cell, Kept
from reproduction.regression import DATASETS, cell_config, dataset_config
from reproduction.table import Published


class Swept(NamedTuple):
    dataset: str
    title: str
    tuned: bool = False  # the settings of the table's row; else what the data set starts from


SWEPT = {
    **{d: Swept(d, DATASETS[d]) for d in ("pv-ew-150-random", "pv-s-150-random", "polynomial")},
    **{
        f"{d}-tuned": Swept(d, f"{DATASETS[d]}, the table's prior", tuned=True)
        for d in ("pv-ew-150-random", "pv-s-150-random", "polynomial")
    },
}
QUICK_SWEPT = ("pv-ew-150-random", "polynomial")
QUICK = ("data.clients=8", "train.rounds=100")
PARTICLES = (1, 2, 4, 8)
MEMBERS = (1, 2, 3)
# What the first value is compared with: the paper's number of particles, and the kinds of PV-EW.
ENDS = {"k": 4, "K": 2}
NOISES = {"constant": "a constant noise", "mlp": "noise that depends on the features"}
WARPS = {"none": "the target as it is", "sinh-arcsinh": "a warped target"}
KERNELS = {"rbf": "the paper's kernel between particles", "function": "the kernel on functions"}
PUBLISHED = Published({})  # the paper shows a figure and prints no numbers


def variants() -> dict[str, tuple[str, list[str]]]:
    """Name in the table -> title, and what it changes. One particle has no kernel to choose."""
    found = {"k1": ("k = 1", ["train.particles=1"])}
    for kernel in KERNELS:
        for k in PARTICLES[1:]:
            changes = [f"train.particles={k}", f"train.svgd_kernel={kernel}"]
            found[f"k{k}-{kernel}"] = (f"k = {k}, {kernel} kernel", changes)
    for members in MEMBERS:
        found[f"members{members}"] = (f"K = {members}", [f"prior.members={members}"])
    for model, title in NOISES.items():
        found[f"noise-{model}"] = (title[0].upper() + title[1:], [f"prior.noise_model={model}"])
    for warp, title in WARPS.items():
        found[f"warp-{warp}"] = (title[0].upper() + title[1:], [f"prior.warp={warp}"])
    return found


def cells(
    seeds: Sequence[int],
    weather: str = "synthetic",
    quick: bool = False,
    settings: Sequence[str] = (),
) -> list[Cell]:
    """All runs of the study: existing clients only, as in the paper."""
    shared = ["data.new_clients=0", *(QUICK if quick else ()), *settings]
    return [
        Cell(
            dataset,
            name,
            "pacpfl",
            override(_base(SWEPT[dataset], weather, seed), [*shared, *changes]),
        )
        for seed in seeds
        for dataset in (QUICK_SWEPT if quick else SWEPT)
        for name, (_, changes) in variants().items()
    ]


def _base(swept: Swept, weather: str, seed: int) -> Config:
    if swept.tuned:
        return cell_config(swept.dataset, "pacpfl", weather, seed)
    config = prepare("pacpfl", dataset_config(swept.dataset))
    return replace(config, seed=seed, pv=replace(config.pv, weather=weather))


def describe(kept: Sequence[Kept], seeds: Sequence[int], command: str) -> dict[str, Any]:
    """study.json, as far as the study has come."""
    values, nll = by_seed(kept, "rsmse"), by_seed(kept, "nll")
    datasets = {d: SWEPT[d].title for d in SWEPT if any(d == place[0] for place in values)}
    sweeps = {
        **{
            f"k, {KERNELS[kernel]}": (
                "k",
                "particles k",
                [(k, "k1" if k == 1 else f"k{k}-{kernel}") for k in PARTICLES],
            )
            for kernel in KERNELS
        },
        "K, the mixture prior": (
            "K",
            "base priors K in one prior",
            [(members, f"members{members}") for members in MEMBERS],
        ),
    }
    panels, summary = [], []
    for dataset, title in datasets.items():
        for what, (symbol, x_label, every) in sweeps.items():
            points = [(x, name) for x, name in every if (dataset, name) in values]
            if len(points) < 2:
                continue
            told = verdict({x: values[dataset, name] for x, name in points}, symbol, ENDS[symbol])
            panels.append(
                {
                    "kind": "sweep",
                    "title": f"{title}: RSMSE against {what}",
                    "dataset": dataset,
                    "x_label": x_label,
                    "points": points,
                    "metric": "rsmse",
                    "second": "diversity",
                    "bars": "std",
                    "caption": f"{told} Below: how far apart the particles' predictions end.",
                }
            )
            summary.append(f"{title}, {what}: {told}")
        for name, titles, found, metric in (
            ("noise", NOISES, values, "RSMSE"),
            ("warp", WARPS, nll, "NLL"),
        ):
            plain, changed = (found.get((dataset, f"{name}-{value}"), {}) for value in titles)
            if plain and changed:
                words = either(plain, changed, titles.values(), metric)
                summary.append(f"{title}: {words}")
    return {
        "title": "Ablation: more particles, more base priors, other noise",
        "summary": summary,
        "command": command,
        "seeds": list(seeds),
        "datasets": datasets,
        "methods": {name: title for name, (title, _) in variants().items()},
        "panels": panels,
        "notes": [
            "Mean and kernel are networks, as in the paper, and the rest is what the data set starts "
            "from; with the table's prior, everything but what is swept is as in PAC-PFL's row of the "
            "regression table. Error bars are one standard deviation over seeds, as in the paper; the "
            "tables have 95% intervals."
        ],
    }


def by_seed(kept: Sequence[Kept], metric: str) -> dict[tuple[str, str], dict[int, float]]:
    """(data set, variant) -> seed -> what existing clients reach."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for outcome, _ in kept:
        place = (outcome.dataset, outcome.method)
        found.setdefault(place, {})[outcome.seed] = outcome.groups["existing"][metric]
    return found


def verdict(sweep: Mapping[int, Mapping[int, float]], symbol: str, end: int) -> str:
    """Whether RSMSE falls from the first value to `end`, and beyond the error bars.

    `end` is fixed beforehand: the best of several values is better than the first by chance alone.
    Beyond: the bars of one standard deviation do not touch. Seeds have the same data along a sweep,
    so their differences, which say more, are told as well, and so are the other values.
    """
    first, *later = sweep
    end = end if end in later else later[-1]
    (start, start_bar), (reached, end_bar) = _spread(sweep[first]), _spread(sweep[end])
    told = f"from {start:.3f} at {symbol} = {first} to {reached:.3f} at {symbol} = {end}"
    common = sorted(set(sweep[first]) & set(sweep[end]))
    if not reached < start:
        told = f"RSMSE does not fall: it goes {told}"
    elif len(common) < 2:
        told = f"RSMSE falls {told}, on one seed"
    else:
        beyond = start - start_bar > reached + end_bar
        words = "beyond the error bars" if beyond else "but not beyond the error bars"
        mean, bar = _spread({seed: sweep[first][seed] - sweep[end][seed] for seed in common})
        told = (
            f"RSMSE falls {told}, {words}; seed by seed by {mean:.3f} \N{PLUS-MINUS SIGN} {bar:.3f}"
        )
    others = [f"{_spread(sweep[x])[0]:.3f} at {symbol} = {x}" for x in later if x != end]
    return f"{told} (and {', '.join(others)})." if others else f"{told}."


def either(
    plain: Mapping[int, float], changed: Mapping[int, float], titles: Iterable[str], metric: str
) -> str:
    """A metric by seed without and with a change to the model, in words."""
    common = sorted(set(plain) & set(changed))
    told = " and ".join(
        f"{_spread(found)[0]:.3f} with {title}"
        for found, title in zip((plain, changed), titles, strict=True)
    )
    mean, bar = _spread({seed: plain[seed] - changed[seed] for seed in common})
    words = "more" if mean < 0 else "less"
    return (
        f"{metric} is {told}; seed by seed {abs(mean):.3f} \N{PLUS-MINUS SIGN} {bar:.3f} {words}."
    )


def _spread(values: Mapping[int, float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    numbers = np.array([v for v in values.values() if np.isfinite(v)])
    if not len(numbers):
        return float("nan"), float("nan")
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else float("nan")
