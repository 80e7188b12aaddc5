"""Run folders as runs would leave them, written by the package itself, from made-up predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Kernel

from pacpfl import folder as folders
from pacpfl.config import Config
from pacpfl.engine.evaluate import Evaluation, measure_classes, measure_numbers
from pacpfl.folder import METRICS, MethodResult, RunFolder
from pacpfl.types import Client, Federation, Prediction, Probabilities, Samples

FINISHED = "2026-11-15T08:00:14+00:00"
Array = NDArray[np.float64]
TITLES = {
    "pacpfl": "PAC-PFL",
    "vanilla": "GP per client",
    "pooled": "One GP on pooled data",
    "fedavg": "FedAvg",
}
NOISE = 0.15
SHIFTS = np.array([-0.12, 0.0, 0.07, 0.18])  # of the particles' mean functions


def truth(x: Array, kind: int) -> Array:
    """Two kinds of clients whose mean functions are opposite polynomials."""
    first = x[:, 0]
    curve = 2.4 * first**5 - 3.6 * first**3 + 1.3 * first + 0.4
    return np.asarray((1 if kind == 0 else -1) * curve + 0.15 * x[:, 1:].sum(axis=1))


def kernel(features: int, length: float, scale: float) -> Kernel:
    return scale**2 * RBF(length * np.sqrt(features))


def posterior(
    x: Array, y: Array, at: Array, prior_mean: Callable[[Array], Array], scale: float
) -> tuple[Array, Array, float]:
    """Predictive mean and std of a Gaussian process, and its log evidence."""
    prior = kernel(x.shape[1], 0.35, scale)
    process = GaussianProcessRegressor(prior, alpha=NOISE**2, optimizer=None)
    mean, std = process.fit(x, y - prior_mean(x)).predict(at, return_std=True)
    return prior_mean(at) + mean, np.hypot(std, NOISE), process.log_marginal_likelihood_value_


def make_client(
    name: str, kind: int, features: int, test: int, random: np.random.Generator
) -> Client:
    x, test_x = (random.uniform(-1, 1, (size, features)) for size in (10, test))
    if features == 1:
        test_x.sort(axis=0)
    both = np.concatenate([x, test_x])
    covariance = kernel(features, 0.3, 0.2)(both) + 1e-8 * np.eye(len(both))
    smooth = random.multivariate_normal(np.zeros(len(both)), covariance, method="cholesky")
    y = truth(both, kind) + smooth + NOISE * random.standard_normal(len(both))
    return Client(name, Samples(x, y[:10]), test=Samples(test_x, y[10:]), kind=kind)


def predicted(method: str, client: Client, pool: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """Weights [k], means [k, t] and stds [k, t] of what a method predicts for a client."""
    assert client.test is not None
    x, y, at = client.train.x, client.train.y, client.test.x
    if method == "pacpfl":
        parts = [
            posterior(x, y, at, lambda z, s=shift: truth(z, int(client.kind)) + s, 0.25)  # type: ignore[misc, arg-type]
            for shift in SHIFTS
        ]
    elif method == "pooled":
        parts = [posterior(*pool, at, lambda z: np.zeros(len(z)), 1.0)]
    else:
        parts = [posterior(x, y, at, lambda z: np.zeros(len(z)), 0.7)]
    evidence = np.array([part[2] for part in parts])
    weights = np.exp(evidence - evidence.max())
    means = np.stack([part[0] for part in parts])
    return weights / weights.sum(), means, np.stack([part[1] for part in parts])


def evaluated(method: str, clients: tuple[Client, ...], pool: tuple[Array, Array]) -> Evaluation:
    each = zip(*(predicted(method, client, pool) for client in clients), strict=True)
    mixture = Prediction(*map(np.stack, each))  # type: ignore[arg-type]
    found = measure_numbers(mixture, [client.test for client in clients if client.test])
    if method == "pacpfl":
        return found._replace(weights=np.asarray(mixture.weights))
    if method == "fedavg":  # says no word about its doubt
        rows = [dict.fromkeys(METRICS, np.nan) | {"rsmse": row["rsmse"]} for row in found.rows]
        return found._replace(rows=rows, calibration=np.full_like(found.calibration, np.nan))
    return found


def repeated(found: Evaluation, copies: int) -> Evaluation:
    """The same for every client so many times."""
    again = (lambda part: np.concatenate([part] * copies), lambda part: [*part] * copies)
    parts = (p if p is None else again[not isinstance(p, np.ndarray)](p) for p in found)
    return Evaluation(*parts)  # type: ignore[arg-type]


def make_run(
    folder: Path,
    *,
    features: int = 1,
    components: int = 1,
    groups: tuple[str, ...] = ("existing", "new"),
    methods: tuple[str, ...] = ("pacpfl", "vanilla", "pooled"),
    clients: int = 24,
    copies: int = 1,
    test: int = 60,
    names: tuple[str, ...] = (),
    changes: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    kept: int = 40,
) -> Path:
    """Write a run folder; `without` leaves out arrays whose key starts so."""
    random = np.random.default_rng(2)
    people: dict[str, tuple[Client, ...]] = {"existing": (), "new": ()}
    for group in groups:
        own = dict(enumerate(names if group == "existing" else ()))
        people[group] = tuple(
            make_client(
                own.get(n, f"{group}-{n + 1:02d}"), int(random.integers(2)), features, test, random
            )
            for n in range(clients)
        )
    pool = tuple(
        np.concatenate([getattr(client.train, part)[:4] for client in people["existing"]])
        for part in ("x", "y")
    )
    found = {m: {g: evaluated(m, people[g], pool) for g in groups} for m in methods}  # type: ignore[arg-type]
    rounds, noise = np.arange(1, 1501), random.standard_normal(1500)
    if components > 1:
        for group in groups:
            sharp = np.array([client.kind for client in people[group]]) == 0
            first = np.where(sharp, 0.97, 0.04) + random.uniform(-0.03, 0.03, len(sharp))
            shares = np.stack([first, 1 - first], axis=1)
            found["pacpfl"][group] = found["pacpfl"][group]._replace(responsibilities=shares)
    if copies > 1:
        people = {
            group: tuple(replace(c, name=f"{c.name} copy {n}") for n in range(copies) for c in own)
            for group, own in people.items()
        }
        found = {m: {g: repeated(e, copies) for g, e in own.items()} for m, own in found.items()}
    history = {
        "log_evidence": -0.55 - 6.0 * np.exp(-rounds / 90) + 0.08 * noise,
        "diversity": 0.31 + 0.6 * np.exp(-rounds / 300),
    }
    results = {m: MethodResult({"title": TITLES[m], "seconds": 3.0}, {}, found[m]) for m in methods}
    if "pacpfl" in methods:
        about = {
            "title": "PAC-PFL",
            "seconds": 9.1, "compile_seconds": 2.0, "rounds": 1500, "particles": 4,
            "components": components, "dimension": 2307, "tau": 0.5, "lambda": 12000.0,
            "lambda_condition": True, "aggregation": "sum", "svgd_kernel": "rbf",
            "mixture_weights": "evidence", "skipped_steps": 0, "jittered": 0,
            "diversity": {"value": 0.31, "at_start": 0.9, "collapsed": False},
        } | dict(changes or {})  # fmt: skip
        pairwise = {"diversity/pairwise": np.abs(SHIFTS[:, None] - SHIFTS)}
        results["pacpfl"] = MethodResult(about, history, found["pacpfl"], pairwise)
    columns = ("x",) if features == 1 else tuple(f"x{i}" for i in range(features))
    federation = Federation("polynomial", people["existing"], people["new"], columns)
    with mock.patch.object(folders, "POINTS", kept):
        return written(folder, federation, results, without)


@contextmanager
def changing(path: Path) -> Iterator[Any]:
    """What a file of JSON says, to be changed and written again."""
    value = json.loads(path.read_text(encoding="utf-8"))
    yield value
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def written(
    folder: Path,
    federation: Federation,
    results: dict[str, MethodResult],
    without: tuple[str, ...],
) -> Path:
    """Write the folder as a run does; what differs from machine to machine and day to day is fixed."""
    RunFolder(folder).write(Config(), federation, results, datetime(2026, 11, 15, 8, tzinfo=UTC))
    (folder / "config.toml").write_text(f'dataset = "{federation.name}"\nparticles = 4\n')
    with changing(folder / "run.json") as record:
        record |= {
            "dataset": federation.name, "finished": FINISHED, "pacpfl": "0.1.0", "devices": 2,
            "versions": {"python": "3.11.9", "jax": "0.10.2"}, "machine": "Linux, 2 cores",
        }  # fmt: skip
    arrays = load_file(folder / "arrays.safetensors")
    kept = {key: v for key, v in arrays.items() if not key.startswith(without or ("nothing",))}
    save_file(kept, folder / "arrays.safetensors")
    return folder


CLASS_TITLES = {"pacpfl": "PAC-PFL", "fedavg": "FedAvg", "vanilla": "BNN per client"}
# How sure a method is of its answer, and how often that answer is right.
SKILL = {"pacpfl": (0.86, 0.85), "fedavg": (0.97, 0.80), "vanilla": (0.45, 0.60)}
CLASS_CLIENTS, TESTED, CLASSES, SIDE = 12, 30, 10, 8


def answered(
    clients: tuple[Client, ...], sure: float, right: float, random: np.random.Generator
) -> Evaluation:
    """What a method of this skill answers."""
    answers = np.empty((len(clients), TESTED, CLASSES))
    for own, client in zip(answers, clients, strict=True):
        assert client.test is not None
        confidence = np.clip(random.normal(sure, 0.03, TESTED), 0.2, 0.99)
        wrong = random.uniform(size=TESTED) >= right
        own[:] = ((1 - confidence) / (CLASSES - 1))[:, None]
        own[np.arange(TESTED), (client.test.y.astype(int) + wrong) % CLASSES] = confidence
    tests = [client.test for client in clients if client.test]
    return measure_classes(Probabilities(np.log(answers)), tests)  # type: ignore[arg-type]


def make_class_run(
    folder: Path,
    *,
    methods: tuple[str, ...] = tuple(CLASS_TITLES),
    groups: tuple[str, ...] = ("existing", "new"),
    without: tuple[str, ...] = (),
    skill: Mapping[str, tuple[float, float]] = SKILL,
) -> Path:
    """Write the folder of a classification run."""
    random = np.random.default_rng(7)

    def draw(count: int) -> Samples:
        images = random.uniform(size=(count, SIDE**2))
        return Samples(images, random.integers(CLASSES, size=count).astype(float))

    people = {
        group: tuple(
            Client(f"{group}-{n:02d}", draw(20), test=draw(TESTED)) for n in range(CLASS_CLIENTS)
        )
        for group in ("existing", "new")
    }
    results = {
        name: MethodResult(
            {"title": CLASS_TITLES[name], "seconds": 1.0}, {},
            {group: answered(people[group], *skill[name], random) for group in groups},
        )
        for name in methods
    }  # fmt: skip
    if "pacpfl" in methods:
        results["pacpfl"].about.update(
            particles=3, rounds=600, skipped_steps=0,
            diversity={"value": 0.2, "at_start": 0.1, "collapsed": False},
        )  # fmt: skip
    pixels = tuple(f"pixel {n}" for n in range(SIDE**2))
    federation = Federation(
        "digits", people["existing"], people["new"], pixels, "label", CLASSES, (SIDE, SIDE)
    )
    return written(folder, federation, results, without)


def condition(name: str, status: str, reason: str, kind: str = "premise") -> dict[str, str]:
    return {"name": name, "status": status, "reason": reason, "kind": kind}


def certified_client(name: str, group: str, bound: float, test: float | None) -> dict[str, Any]:
    new = group == "new"
    margin = 0.4 if bound < 1.5 else -0.2
    return {
        "client": name, "group": group, "subject": name, "samples": 40, "later": 2,
        "empirical_risk": 0.1 + 0.1 * new, "bound": bound, "test_risk": test, "judged": 21,
        "vacuous": bound >= 2, "proved": new,
        "verdict": "no statement" if bound >= 2 else "proved" if new else "assumed",
        "drawn": {"bound": bound + 0.125},
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
                         "bound": 1.4, "bound_drawn": 1.525, "test_risk": 0.25, "tested": 3,
                         "covered": 3, "helped": 2, "contradicted": 0, "refuted": 0, "against": []},
            "new": {"clients": 2, "below": 2, "proved": 2, "empirical_risk": 0.2, "bound": 0.8,
                    "bound_drawn": 0.925, "test_risk": 0.25, "tested": 2, "covered": 1,
                    "helped": 2, "contradicted": 1, "refuted": 1, "against": []},
        },
        "federation": average,
        "newcomers": average | {"bound": 2.5, "vacuous": True},
        "clients": rows,
    }  # fmt: skip
