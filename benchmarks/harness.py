"""Times implementations side by side.

All candidates take turns in one process, in a new order each turn, so that a slow moment of the
machine and the state that one candidate leaves behind hit all of them alike. What counts is the
ratio to the reference; milliseconds hold for one machine on one day.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pacpfl.errors import InputError

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "torch", "gpytorch")


@dataclass(frozen=True)
class Row:
    """One candidate: quartiles of its seconds per call, and how often it fits in the reference."""

    name: str
    lower_quartile: float
    median: float
    upper_quartile: float
    times_faster: float  # median of the reference / median of this candidate


@dataclass(frozen=True)
class Table:
    title: str
    reference: str
    repeats: int
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int,
    *,
    reference: str | None = None,
    title: str = "",
    pause: float = 0.02,
    rounds: Mapping[str, int] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Table:
    """Time every candidate `repeats` times, after `warmup` calls that do not count.

    A candidate must not return before its result is there. The reference is the first candidate
    unless named. At each turn the candidate is called twice and the second call is timed, since
    rounds of a training follow each other: the first fills the caches that others have emptied.
    Before that comes a `pause`, in seconds, in which idle worker threads of the candidate before
    fall asleep: those of OpenMP would otherwise spin on the cores that are needed.
    One call of a candidate named in `rounds` does so many rounds, and its time is divided by
    their number. `tick` is called after every turn.
    """
    names = list(candidates)
    if not names or repeats < 1:
        raise InputError("A benchmark needs at least one candidate and one repeat: give more.")
    reference = names[0] if reference is None else reference
    if reference not in candidates:
        raise InputError(
            f"No candidate of the benchmark is called {reference!r}: take one of {names}."
        )
    for name in names:
        for _ in range(warmup):
            candidates[name]()
    random = np.random.default_rng(0)
    seconds = np.empty((len(names), repeats))
    for turn in range(repeats):
        for index in random.permutation(len(names)):
            candidate = candidates[names[index]]
            time.sleep(pause)
            candidate()
            start = time.perf_counter()
            candidate()
            seconds[index, turn] = time.perf_counter() - start
        tick()
    for index, name in enumerate(names):
        seconds[index] /= (rounds or {}).get(name, 1)
    return summarise(dict(zip(names, seconds, strict=True)), reference, title)


def summarise(seconds: Mapping[str, np.ndarray], reference: str, title: str) -> Table:
    """Quartiles and ratios of measured seconds per call."""
    quartiles = {name: np.percentile(values, [25, 50, 75]) for name, values in seconds.items()}
    rows = tuple(
        Row(name, float(low), float(middle), float(high), float(quartiles[reference][1] / middle))
        for name, (low, middle, high) in quartiles.items()
    )
    return Table(title, reference, len(seconds[reference]), rows)


def describe_machine() -> dict[str, Any]:
    """Processor, usable cores, what JAX runs on, load, system, and versions of the packages."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count() if usable is None else len(usable),
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def _processor() -> str:
    """The model of the processor; Linux tells it only here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown processor"
