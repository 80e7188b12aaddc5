"""Benchmarks of peers on the peers' own data and splits, beside what the peers published.

The data are not part of the project: they are read from a folder, and what is not there is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.io import loadmat
from sklearn.model_selection import train_test_split

from reproduction.battery.task import Rows, Task

FIRST_SEED = 28  # PACOH's; its evaluation counts on from there
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, its files, and the best that peers published: (group, measure) -> value."""

    title: str
    files: tuple[str, ...]
    published: dict[tuple[str, str], float]
    source: str
    classes: bool = False


BENCHMARKS = {
    "berkeley": Benchmark(
        "Berkeley sensors: 36 tasks of 288 rows, 11 features",
        ("berkeley_sensor/berkeley_data.mat",),
        {("new", "client_rmse"): 0.043, ("new", "client_ce"): 0.067},
        "PACOH-NN, to two digits",
    ),
    "cauchy": Benchmark(
        "Cauchy: 20 tasks of 20 rows, 2 features",
        ("cauchy_sinusoid/cauchy_seed28.npz",),
        {("new", "client_rmse"): 0.200, ("new", "client_ce"): 0.060, ("new", "client_nll"): -0.394},
        "PACOH, in MetaL-Benchmark",
    ),
    "heart": Benchmark(
        "FLamby heart disease: 4 hospitals",
        tuple(f"heart_disease/processed.{name}.data" for name in HOSPITALS),
        {("existing", "client_accuracy"): 0.731, ("existing", "accuracy"): 0.785},
        "the best federated method of FLamby, mean of five seeds",
        classes=True,
    ),
    "school": Benchmark("School: examination scores of 139 schools", ("school/school.mat",), {}, ""),
    "sinusoid": Benchmark(
        "Sinusoid: 20 tasks of 5 rows",
        ("cauchy_sinusoid/sinusoid_seed28.npz",),
        {("new", "client_rmse"): 0.315, ("new", "client_ce"): 0.120, ("new", "client_nll"): -0.313},
        "PACOH-GP, in MetaL-Benchmark",
    ),
}  # fmt: skip


def absent(name: str, folder: Path) -> list[str]:
    """Return the files of a benchmark that are not in the folder."""
    return [file for file in BENCHMARKS[name].files if not (folder / file).is_file()]


def make_task(name: str, seed: int, folder: Path) -> Task:
    """Return a benchmark by its recipe; where the recipe fixes the split, seeds have the same one."""
    paths = [folder / file for file in BENCHMARKS[name].files]
    if name == "heart":
        return heart(paths)
    if name == "school":
        return school(paths[0], seed)
    if name == "berkeley":
        return berkeley(paths[0], FIRST_SEED + seed)
    return drawn_tasks(paths[0])


def stack(parts: list[tuple[np.ndarray, np.ndarray]], prefix: str) -> Rows:
    """Return the rows of several tasks, named by their numbers."""
    clients = [np.full(len(x), f"{prefix}{number:03d}") for number, (x, _) in enumerate(parts)]
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Rows(x.astype(float), np.asarray(y).ravel(), np.concatenate(clients))


def drawn_tasks(path: Path) -> Task:
    """Return the Cauchy or Sinusoid tasks that PACOH's generator draws with seed 28."""
    with np.load(path, allow_pickle=False) as file:

        def tasks(kind: str, count: str) -> list[tuple[np.ndarray, np.ndarray]]:
            return [(file[f"{kind}x{i}"], file[f"{kind}y{i}"]) for i in range(int(file[count]))]

        train = stack(tasks("tr", "ntr"), "train")
        given, test = stack(tasks("c", "nte"), "test"), stack(tasks("t", "nte"), "test")
    return Task(train, given, {"new": test}, tuple(f"x{i}" for i in range(train.x.shape[1])))


def berkeley(path: Path, seed: int, lags: int = 10) -> Task:
    """Return the temperatures of 46 sensors, each predicted from its last ten values and the hour."""
    data = loadmat(path)["berkeley_data"]["data"][0][0].astype(float)
    data[4278, 6] = (data[4277, 6] + data[4279, 6]) / 2  # a sensor that said zero once
    day = len(data) // 5
    data = data[day:]  # the first day lies apart from the others
    hour = np.tile(np.arange(day) / day, 4)[lags:]
    series = []
    for sensor in data.T:
        past = [sensor[lag : lag - lags] for lag in range(lags)]
        series.append((np.stack([*past, hour], axis=1)[::10], sensor[lags:][::10]))
    order = np.arange(len(series))
    np.random.RandomState(seed + 1).shuffle(order)
    train = [tuple(part[:288] for part in series[i]) for i in order[:36]]
    given = [tuple(part[-432:-288] for part in series[i]) for i in order[36:]]
    tests = [tuple(part[-288:] for part in series[i]) for i in order[36:]]
    names = (*(f"lag {lags - lag}" for lag in range(lags)), "hour")
    parts = stack(train, "train"), stack(given, "test")
    return Task(*parts, {"new": stack(tests, "test")}, names)


def heart(paths: list[Path]) -> Task:
    """Return FLamby's four hospitals, with its cleaning, split and scaling."""
    frames = [pd.read_csv(path, header=None, na_values=["?", "NaN"]) for path in paths]
    frames = [frame.drop(columns=[10, 11, 12]).dropna() for frame in frames]
    whole = pd.concat(frames, ignore_index=True)
    y = (whole.pop(13) != 0).to_numpy().astype(int)
    table = pd.get_dummies(whole, columns=[2, 6], drop_first=True)
    x = table.to_numpy(dtype=float)
    parts: dict[str, list[Rows]] = {"train": [], "test": []}
    start = 0
    for path, frame in zip(paths, frames, strict=True):
        own = np.arange(start, start := start + len(frame))
        enough = np.bincount(y[own], minlength=2).min() > 2
        ours, theirs = train_test_split(
            *(own,),
            test_size=0.34,
            train_size=0.66,
            random_state=43,
            shuffle=True,
            stratify=y[own] if enough else None,
        )
        spread = x[ours].std(0, ddof=1)  # as torch computes it
        scaled = (x - x[ours].mean(0)) / np.where(spread > 0, spread, 1.0)
        name = path.name.split(".")[1]
        for part, which in (("train", ours), ("test", theirs)):
            parts[part].append(Rows(scaled[which], y[which], np.full(len(which), name)))
    train, test = (Rows(*map(np.concatenate, zip(*parts[p], strict=True))) for p in parts)
    nobody = train.take(np.arange(0))
    return Task(train, nobody, {"existing": test}, tuple(map(str, table.columns)), classes=2)


def school(path: Path, seed: int) -> Task:
    """Return the examination scores, three quarters of each school's rows to learn from."""
    content = loadmat(path)
    pairs = list(zip(content["X"].ravel(), content["Y"].ravel(), strict=True))
    rows = stack([(x[:, :-1], y) for x, y in pairs], "school")  # the last column is all ones
    rows = rows._replace(y=rows.y.astype(float))
    random, train, test = np.random.default_rng(seed), [], []
    for _, own in rows.by_client():
        order = random.permutation(own)
        train.append(order[: round(0.75 * len(own))])
        test.append(order[round(0.75 * len(own)) :])
    known = rows.take(np.concatenate(train))
    tests = {"existing": rows.take(np.concatenate(test))}
    names = tuple(f"x{i}" for i in range(rows.x.shape[1]))
    return Task(known, known.take(np.arange(0)), tests, names)
