"""Run folders as runs would leave them, made with a small Gaussian process in NumPy."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from scipy import stats
from scipy.linalg import solve_triangular
from scipy.special import ndtr

FINISHED = "2026-11-15T08:00:14+00:00"  # as in the run folders of conftest.py
Array = NDArray[np.float64]
LEVELS = np.linspace(0.0, 1.0, 20)
BANDS = np.array([0.025, 0.05, 0.25, 0.75, 0.95, 0.975])
COLUMNS = [
    "method", "group", "client", "kind", "samples", "later", "test", "rsmse", "ce", "nll",
    "coverage_50", "coverage_90", "coverage_95", "width_50", "width_90", "width_95",
]  # fmt: skip
TITLES = {
    "pacpfl": "PAC-PFL",
    "vanilla": "GP per client",
    "pooled": "One GP on pooled data",
    "fedavg": "FedAvg",
}
NOISE = 0.15
MakeRun = Callable[..., Path]


def truth(x: Array, kind: int) -> Array:
    """Two kinds of clients whose mean functions are opposite polynomials."""
    first = x[:, 0]
    curve = 2.4 * first**5 - 3.6 * first**3 + 1.3 * first + 0.4
    return np.asarray((1 if kind == 0 else -1) * curve + 0.15 * x[:, 1:].sum(axis=1))


def kernel(a: Array, b: Array, length: float, scale: float) -> Array:
    distance = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(scale**2 * np.exp(-0.5 * distance / (length**2 * a.shape[1])))


def posterior(
    x: Array, y: Array, at: Array, prior_mean: Callable[[Array], Array], scale: float
) -> tuple[Array, Array, float]:
    """Predictive mean and std of a Gaussian process, and its log evidence up to a constant."""
    factor = np.linalg.cholesky(kernel(x, x, 0.35, scale) + NOISE**2 * np.eye(len(x)))
    half = solve_triangular(factor, kernel(x, at, 0.35, scale), lower=True)
    residual = solve_triangular(factor, y - prior_mean(x), lower=True)
    variance = scale**2 - (half**2).sum(axis=0) + NOISE**2
    evidence = -0.5 * residual @ residual - np.log(np.diag(factor)).sum()
    mean = prior_mean(at) + half.T @ residual
    return mean, np.sqrt(np.maximum(variance, 1e-9)), float(evidence)


def predictive(
    method: str, client: dict[str, Any], pool: tuple[Array, Array], shifts: Array
) -> tuple[Array, Array, Array]:
    """Weights [k], means [k, t] and stds [k, t] of what a method predicts for a client."""
    x, y, at = client["x"], client["y"], client["test_x"]
    if method == "pacpfl":
        parts = [
            posterior(x, y, at, lambda z, s=shift: truth(z, client["kind"]) + s, 0.25)  # type: ignore[misc]
            for shift in shifts
        ]
    elif method == "pooled":
        parts = [posterior(*pool, at, lambda z: np.zeros(len(z)), 1.0)]
    else:
        parts = [posterior(x, y, at, lambda z: np.zeros(len(z)), 0.7)]
    evidence = np.array([part[2] for part in parts])
    weights = np.exp(evidence - evidence.max())
    means = np.stack([part[0] for part in parts])
    return weights / weights.sum(), means, np.stack([part[1] for part in parts])


def mixture_cdf(weights: Array, means: Array, stds: Array, y: Array) -> Array:
    """At one y per input, [t], or at several, [levels, 1, t]."""
    return np.asarray((weights[:, None] * ndtr((y - means) / stds)).sum(axis=-2))


def mixture_quantiles(weights: Array, means: Array, stds: Array, levels: Array) -> Array:
    """Bisection on the distribution function, [levels, t]."""
    low = np.repeat((means - 5 * stds).min(axis=0)[None], len(levels), axis=0)
    high = np.repeat((means + 5 * stds).max(axis=0)[None], len(levels), axis=0)
    for _ in range(25):
        middle = (low + high) / 2
        below = mixture_cdf(weights, means, stds, middle[:, None, :]) < levels[:, None]
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)


def measured(
    client: dict[str, Any], mixture: tuple[Array, Array, Array], quantiles: Array
) -> tuple[dict[str, Any], Array]:
    y = client["test_y"]
    weights, means, stds = mixture
    cdf = mixture_cdf(*mixture, y)
    frequency = (cdf[None, :] <= LEVELS[:, None]).mean(axis=1)
    density = (weights[:, None] * np.exp(-0.5 * ((y - means) / stds) ** 2) / stds).sum(axis=0)
    row: dict[str, Any] = {
        "rsmse": float(np.sqrt(((weights @ means - y) ** 2).mean()) / y.std()),
        "ce": float(np.abs(frequency - LEVELS).mean()),
        "nll": float(-np.log(density / np.sqrt(2 * np.pi)).mean()),
    }
    for name, low, high in (("50", 2, 3), ("90", 1, 4), ("95", 0, 5)):
        row[f"coverage_{name}"] = float(((y >= quantiles[low]) & (y <= quantiles[high])).mean())
        row[f"width_{name}"] = float((quantiles[high] - quantiles[low]).mean())
    return row, frequency


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """metrics.json from the rows of clients.csv: mean and half width of the 95% interval."""
    result: dict[str, Any] = {}
    for row in rows:
        for column in COLUMNS[7:]:
            if row.get(column, "") != "":
                group = result.setdefault(row["method"], {}).setdefault(row["group"], {})
                group.setdefault(column, []).append(row[column])
    for groups in result.values():
        for metrics in groups.values():
            for column, values in metrics.items():
                half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
                metrics[column] = {
                    "mean": float(np.mean(values)), "ci95": float(half), "n": len(values)
                }  # fmt: skip
    return result


def single_clients(
    group: str, people: list[dict[str, Any]], methods: tuple[str, ...], kept: int
) -> dict[str, Array]:
    """`panels/GROUP/...` and `gain/METHOD/GROUP` of docs/run-folder.md, client after client."""
    place, several = f"panels/{group}", people[0]["test_x"].shape[1] > 1
    parts: dict[str, list[Array]] = {}
    saved: list[tuple[float, float, float]] = []
    for client in people:
        mean, quantiles = client["pacpfl"]
        even = np.unique(np.linspace(0, len(mean) - 1, kept).round().astype(int))
        shown = np.arange(len(even)) if several else even
        found = {
            "y": client["test_y"][shown],
            "mean": mean[shown],
            "quantiles": quantiles[:, shown],
        }
        if "vanilla" in methods:
            alone = client["vanilla"][0]
            found["vanilla/mean"] = alone[shown]
            gap = (alone - client["test_y"]) ** 2 - (mean - client["test_y"]) ** 2
            saved.append((len(gap), gap.sum(), (gap**2).sum()))
        if several:
            found |= {"spread_y": client["test_y"][even], "spread_mean": mean[even]}
        else:
            found |= {"x": client["test_x"][shown, 0], "train_x": client["x"][:, 0]}
            found["train_y"] = client["y"]
        for key, values in found.items():
            parts.setdefault(key, []).append(values)
    arrays = {f"{place}/{key}": np.concatenate(v, axis=-1) for key, v in parts.items()}
    for key, of in (("offsets", "y"), ("train_offsets", "train_y")):
        if of in parts:
            sizes = [len(values) for values in parts[of]]
            arrays[f"{place}/{key}"] = np.concatenate([[0], np.cumsum(sizes)])
    return arrays | ({f"gain/vanilla/{group}": np.array(saved)} if saved else {})


def make_run(
    folder: Path,
    *,
    features: int = 1,
    components: int = 1,
    groups: tuple[str, ...] = ("existing", "new"),
    methods: tuple[str, ...] = ("pacpfl", "vanilla", "pooled"),
    clients: int = 24,
    test: int = 60,
    names: tuple[str, ...] = (),
    changes: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    kept: int = 40,
) -> Path:
    """Write a run folder; `without` leaves out arrays whose key starts so."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(2)
    shifts = np.array([-0.12, 0.0, 0.07, 0.18])
    people: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        people[group] = []
        for number in range(clients):
            kind = int(random.integers(2))
            x, test_x = (random.uniform(-1, 1, (size, features)) for size in (10, test))
            if features == 1:
                test_x.sort(axis=0)
            both = np.concatenate([x, test_x])
            smooth = random.multivariate_normal(
                np.zeros(len(both)),
                kernel(both, both, 0.3, 0.2) + 1e-8 * np.eye(len(both)),
                method="cholesky",
            )
            y = truth(both, kind) + smooth + NOISE * random.standard_normal(len(both))
            known = number < len(names) and group == "existing"
            name = names[number] if known else f"{group}-{number + 1:02d}"
            people[group].append(
                {"name": name, "kind": kind, "x": x, "y": y[:10], "test_x": test_x,
                 "test_y": y[10:]}
            )  # fmt: skip
    pool = (
        np.concatenate([client["x"][:4] for client in people["existing"]]),
        np.concatenate([client["y"][:4] for client in people["existing"]]),
    )
    rows: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {"calibration/levels": LEVELS}
    for method in methods:
        for group in groups:
            frequencies = []
            for number, client in enumerate(people[group]):
                mixture = predictive(method, client, pool, shifts)
                quantiles = mixture_quantiles(*mixture, BANDS)
                row, frequency = measured(client, mixture, quantiles)
                if method == "fedavg":  # says no word about its doubt
                    row = {"rsmse": row["rsmse"]}
                frequencies.append(frequency)
                row |= {
                    "method": method, "group": group, "client": client["name"],
                    "kind": client["kind"], "samples": 10, "later": 0, "test": test,
                }  # fmt: skip
                rows.append(row)
                mean = mixture[0] @ mixture[1]
                client[method] = (mean, quantiles)
                if number < 4:
                    key = f"bands/{group}/{client['name']}"
                    if method == "pacpfl":
                        arrays |= {
                            f"{key}/x": client["test_x"], f"{key}/y": client["test_y"],
                            f"{key}/mean": mean, f"{key}/std": mixture[2].mean(axis=0),
                            f"{key}/quantiles": quantiles,
                            f"{key}/train_x": client["x"], f"{key}/train_y": client["y"],
                        }  # fmt: skip
                    else:
                        arrays[f"{key}/{method}/mean"] = mean
                if method == "pacpfl":
                    arrays.setdefault(f"weights/{group}", []).append(mixture[0])
            if method != "fedavg":
                arrays[f"calibration/{method}/{group}"] = np.stack(frequencies)
    if methods[0] == "pacpfl":
        for group in groups:
            arrays |= single_clients(group, people[group], methods, kept)
    rounds = np.arange(1, 1501)
    noise = random.standard_normal(1500)
    arrays["curve/log_evidence"] = -0.55 - 6.0 * np.exp(-rounds / 90) + 0.08 * noise
    arrays["curve/diversity"] = 0.31 + 0.6 * np.exp(-rounds / 300)
    arrays["diversity/pairwise"] = np.abs(shifts[:, None] - shifts[None, :])
    columns = list(COLUMNS)
    if components > 1:
        columns += [f"responsibility_{number}" for number in range(components)]
        for group in groups:
            sharp = np.array([client["kind"] for client in people[group]]) == 0
            first = np.where(sharp, 0.97, 0.04) + random.uniform(-0.03, 0.03, len(sharp))
            arrays[f"responsibilities/{group}"] = np.stack([first, 1 - first], axis=1)
        for row in rows:
            if row["method"] == "pacpfl":
                where = [c["name"] for c in people[row["group"]]].index(row["client"])
                for number in range(components):
                    value = arrays[f"responsibilities/{row['group']}"][where, number]
                    row[f"responsibility_{number}"] = float(value)
    record = {
        "dataset": "polynomial", "status": "complete",
        "started": "2026-11-15T08:00:00+00:00", "finished": "2026-11-15T08:00:14+00:00",
        "pacpfl": "0.1.0", "versions": {"python": "3.11.9", "jax": "0.10.2"},
        "machine": "Linux, 2 cores", "devices": 2, "seed": 0, "precision": "float32",
        "clients": {"existing": clients, "new": clients if "new" in groups else 0,
                    "features": ["x"] if features == 1 else [f"x{i}" for i in range(features)],
                    "target": "y", "samples": {"min": 10, "median": 10, "max": 10}},
        "methods": {name: {"title": TITLES[name], "seconds": 3.0} for name in methods},
    }  # fmt: skip
    if "pacpfl" in methods:
        record["methods"]["pacpfl"] |= {  # type: ignore[index]
            "seconds": 9.1, "compile_seconds": 2.0, "rounds": 1500, "particles": 4,
            "components": components, "dimension": 2307, "tau": 0.5, "lambda": 12000.0,
            "lambda_condition": True, "aggregation": "sum", "svgd_kernel": "rbf",
            "mixture_weights": "evidence", "skipped_steps": 0, "jittered": 0,
            "diversity": {"value": 0.31, "at_start": 0.9, "collapsed": False},
        } | (changes or {})  # fmt: skip
    arrays = {
        key: np.ascontiguousarray(value, dtype=np.float32)
        for key, value in arrays.items()
        if not key.startswith(without or ("nothing",))
    }
    save_file(arrays, folder / "arrays.safetensors")
    with (folder / "clients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "metrics.json").write_text(json.dumps(summary(rows), indent=1), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    (folder / "config.toml").write_text('dataset = "polynomial"\nparticles = 4\n', encoding="utf-8")
    return folder


def enlarge(folder: Path, copies: int) -> Path:
    """Every client of a run folder so many times, with names of their own; metrics stay as they are."""
    with (folder / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    places = dict.fromkeys((row["method"], row["group"]) for row in rows)
    with (folder / "clients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for place in places:
            own = [row for row in rows if (row["method"], row["group"]) == place]
            for copy in range(copies):
                writer.writerows(row | {"client": f"{row['client']} copy {copy}"} for row in own)
    arrays = load_file(folder / "arrays.safetensors")
    for key, values in arrays.items():
        if key.endswith("offsets"):
            steps = np.tile(np.diff(values), copies)
            arrays[key] = np.concatenate([[0], np.cumsum(steps)]).astype(values.dtype)
        elif key.startswith("panels/"):
            arrays[key] = np.concatenate([values] * copies, axis=-1)
        elif key.startswith(("calibration/", "weights/", "gain/", "responsibilities/")) and (
            key != "calibration/levels"
        ):
            arrays[key] = np.concatenate([values] * copies)
    save_file(arrays, folder / "arrays.safetensors")
    return folder


CLASS_TITLES = {"pacpfl": "PAC-PFL", "fedavg": "FedAvg", "vanilla": "BNN per client"}
# How sure a method is of its answer, and how often that answer is right.
SKILL = {"pacpfl": (0.86, 0.85), "fedavg": (0.97, 0.80), "vanilla": (0.45, 0.60)}
CLASS_CLIENTS, TESTED, CLASSES, SIDE = 12, 30, 10, 8
CLASS_COLUMNS = ("accuracy", "ce_own", "nll", "brier")


def table_of(sure: np.ndarray, right: np.ndarray) -> np.ndarray:
    """[20, 3]: how many, how many right, sum of confidences; counted one by one."""
    table = np.zeros((20, 3))
    for confidence, correct in zip(sure, right, strict=True):
        table[max(0, int(np.ceil(confidence * 20)) - 1)] += (1, correct, confidence)
    return table


def error_of(table: np.ndarray) -> float:
    return float(np.abs(table[:, 1] - table[:, 2]).sum() / table[:, 0].sum())


def make_class_run(
    folder: Path,
    *,
    methods: tuple[str, ...] = tuple(CLASS_TITLES),
    groups: tuple[str, ...] = ("existing", "new"),
    names: tuple[str, ...] = (),
    without: str = "nothing",
    skill: dict[str, tuple[float, float]] = SKILL,
) -> Path:
    """A run folder as docs/run-folder.md describes it for a classification run."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    metrics: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {"calibration/levels": np.linspace(0, 1, 20)}
    people = {
        g: [*names[: CLASS_CLIENTS if g == "existing" else 0]]
        or [f"{g}-{n:02d}" for n in range(CLASS_CLIENTS)]
        for g in groups
    }
    for method in methods:
        confidence, chance = skill[method]
        for group in groups:
            tables = []
            for name in people[group]:
                sure = np.clip(random.normal(confidence, 0.03, TESTED), 0.2, 1.0)
                right = random.uniform(size=TESTED) < chance
                tables.append(table_of(sure, right))
                rows.append(
                    {
                        "method": method, "group": group, "client": name, "kind": "",
                        "samples": 20, "later": 0, "test": TESTED,
                        "accuracy": right.mean(), "ce_own": error_of(tables[-1]),
                        "nll": float(random.uniform(0.2, 0.6)), "brier": float(random.uniform(0.1, 0.3)),
                    }
                )  # fmt: skip
            arrays[f"calibration/{method}/{group}"] = np.stack(tables)
            own = rows[-len(people[group]) :]
            cells = {}
            for column in CLASS_COLUMNS:
                values = np.array([row[column] for row in own])
                cells[column] = {
                    "mean": values.mean(), "ci95": 2 * values.std() / len(own) ** 0.5, "n": len(own)
                }  # fmt: skip
            together = error_of(np.sum(tables, axis=0))
            cells["ce"] = {"mean": together, "ci95": None, "n": len(own)}
            metrics.setdefault(method, {})[group] = cells
    for group in groups:
        # Two answers of each kind: right and sure, right and in doubt, wrong.
        labels = np.array([3, 7, 1, 4, 9, 5])
        probabilities = np.full((6, CLASSES), 0.01)
        for place, (label, chance) in enumerate(
            zip(labels, (0.9, 0.8, 0.4, 0.3, 0.1, 0.2), strict=True)
        ):
            rest = (1 - chance) / (CLASSES - 1)
            probabilities[place] = rest if place < 4 else rest / 4
            probabilities[place, label] = chance
            if place >= 4:
                probabilities[place, (label + 1) % CLASSES] = 1 - chance - 8 * rest / 4
        arrays |= {
            f"examples/{group}/images": random.integers(256, size=(6, SIDE, SIDE)).astype(np.uint8),
            f"examples/{group}/labels": labels.astype(np.int32),
            f"examples/{group}/probabilities": probabilities.astype(np.float32),
            f"examples/{group}/client": np.arange(6, dtype=np.int32),
            f"examples/{group}/kind": np.repeat([0, 1, 2], 2).astype(np.int32),
        }
    record = {
        "dataset": "digits", "status": "complete", "seed": 0,
        "finished": "2026-11-15T08:00:14+00:00", "machine": "Linux, 2 cores",
        "clients": {"existing": CLASS_CLIENTS, "new": CLASS_CLIENTS, "classes": CLASSES, "target": "label",
                    "features": [f"pixel {n}" for n in range(SIDE**2)],
                    "samples": {"min": 20, "median": 20, "max": 20}},
        "methods": {name: {"title": CLASS_TITLES[name], "seconds": 1.0} for name in methods},
    }  # fmt: skip
    if "pacpfl" in methods:
        record["methods"]["pacpfl"] |= {  # type: ignore[index]
            "particles": 3, "rounds": 600, "skipped_steps": 0,
            "diversity": {"value": 0.2, "at_start": 0.1, "collapsed": False},
        }  # fmt: skip
    save_file(
        {key: value for key, value in arrays.items() if not key.startswith(without)},
        folder / "arrays.safetensors",
    )
    with (folder / "clients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def condition(name: str, status: str, reason: str, kind: str = "premise") -> dict[str, str]:
    return {"name": name, "status": status, "reason": reason, "kind": kind}


def certified_client(name: str, group: str, bound: float, test: float | None) -> dict[str, Any]:
    new = group == "new"
    margin = 0.4 if bound < 1.5 else -0.2
    return {
        "client": name, "group": group, "subject": name, "samples": 40, "later": 2,
        "empirical_risk": 0.1 + 0.1 * new, "bound": bound, "test_risk": test, "kl": 7.25,
        "beta": 33.0, "vacuous": bound >= 2, "proved": new,
        "verdict": "no statement" if bound >= 2 else "proved" if new else "assumed",
        "in_use": {"bound": bound + 0.125},
        "conditions": [
            condition("bounded loss", "holds", "within [-1, 2]"),
            condition("prior independent", "holds", "new") if new
            else condition("prior private", "assumed", f"epsilon of {name}"),
        ],
        "participation": condition("taking part", "holds" if margin > 0 else "does not hold",
                                   f"a margin of {margin}", "use") | {"margin": margin},
    }  # fmt: skip


def make_document() -> dict[str, Any]:
    bounds = {"existing": (1.2, 9.7, 1.4), "new": (0.7, 0.9)}
    rows = [
        certified_client(f"{group}-{number:02d}", group, bound, 0.25)
        for group, values in bounds.items()
        for number, bound in enumerate(values)
    ]
    average = {
        "subject": "federation", "posterior": "Gibbs posteriors", "bound": 1.3, "vacuous": False,
        "empirical_risk": 0.1, "delta": 0.05,
        "conditions": [condition("bounded loss", "holds", "within [-1, 2]")],
    }  # fmt: skip
    return {
        "finished": FINISHED, "delta": 0.05, "loss": {"name": "clipped", "a": -1.0, "b": 2.0},
        "groups": {
            "existing": {"clients": 3, "below": 2, "proved": 0, "empirical_risk": 0.1,
                         "bound": 1.4, "bound_in_use": 1.525, "test_risk": 0.25, "tested": 3,
                         "covered": 3, "helped": 2, "tolerated_epsilon": 17.25},
            "new": {"clients": 2, "below": 2, "proved": 2, "empirical_risk": 0.2, "bound": 0.8,
                    "bound_in_use": 0.925, "test_risk": 0.25, "tested": 2, "covered": 1,
                    "helped": 2, "tolerated_epsilon": 30.0},
        },
        "federation": average,
        "newcomers": average | {"bound": 2.5, "vacuous": True},
        "clients": rows,
    }  # fmt: skip
