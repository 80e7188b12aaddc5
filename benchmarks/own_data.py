"""Own tables: how long a new client's model and its predictions take once the program has started.

A client with 150 rows of 15 numbers, from the file to the model and from the model to 10,000 rows of
mean, standard deviation and three quantiles. Each row of the results is a fresh process that has
imported everything; `cold` compiles its programs, `warm` finds them in the cache on disk, as every
command after the first one does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measure import ROOT
from benchmarks.results import Sheet
from pacpfl.client import ClientModel, Shared, load_shared, save
from pacpfl.config import Config, override
from pacpfl.data.prepare import fit_scaler
from pacpfl.data.tables.columns import Column, Schema
from pacpfl.data.tables.read import read_rows
from pacpfl.engine import runtime
from pacpfl.methods.registry import build_prior
from pacpfl.types import Samples

ROWS, ASKED, FEATURES, PARTICLES = 150, 10_000, 15, 4
GOAL = 1.0  # second, for each of the two


def prepare(folder: Path) -> None:
    """A shared prior and two tables. What they hold does not matter to the time."""
    random = np.random.default_rng(0)
    names = [f"f{number}" for number in range(FEATURES)]
    for name, rows in (("own", ROWS), ("ask", ASKED)):
        frame = pd.DataFrame(random.normal(size=(rows, FEATURES)).round(4), columns=names)
        frame["y"] = (frame.sum(axis=1) + random.normal(size=rows)).round(4)
        frame.to_csv(folder / f"{name}.csv", index=False)
    config = override(
        Config(),
        ["data.name=tables", "tables.source=-", "tables.target=y", "prior.kernel=deep+linear"],
    )
    schema = Schema(tuple(Column(name, "number") for name in names), "y")
    own = read_rows(folder / "own.csv", schema, targets=True)
    assert own.y is not None
    size = build_prior(config, schema.form).size
    particles = 0.1 * random.normal(size=(PARTICLES, size)).astype(np.float32)
    scaler = fit_scaler(Samples(own.x, own.y))
    save(folder / "prior.safetensors", Shared(config, schema, scaler, particles))


def measure(folder: Path) -> dict[str, float]:
    """Seconds from file to file, in this process."""
    runtime.configure()
    shared = load_shared(folder / "prior.safetensors")
    began = time.perf_counter()
    own = read_rows(folder / "own.csv", shared.schema, targets=True)
    assert own.y is not None
    made = ClientModel.condition(shared, "own", own.x, own.y)
    made.check()
    made.save(folder / "model.safetensors")
    personalised = time.perf_counter()
    asked = read_rows(folder / "ask.csv", shared.schema, targets=False)
    found = made.predict(asked.x, (0.05, 0.5, 0.95))
    pd.DataFrame({"mean": found.mean, "std": found.std}).to_csv(folder / "said.csv", index=False)
    return {"personalize": personalised - began, "predict": time.perf_counter() - personalised}


def own_data(scratch: Path) -> Sheet:
    """Both times, with an empty cache of programs and with a full one."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    prepare(folder)
    rows = []
    for state in ("cold", "warm"):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.own_data", str(folder)],
            env=os.environ | {"PACPFL_CACHE_DIR": str(folder / "programs")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = json.loads(done.stdout)
        for step, work in (("personalize", f"{ROWS} rows"), ("predict", f"{ASKED:,} rows")):
            met = "yes" if seconds[step] < GOAL else "no"
            rows.append((step, work, state, seconds[step], GOAL, met))
    return Sheet(
        "Own tables: one client after the start",
        ("step", "work", "programs", "seconds", "goal", "met"),
        tuple(rows),
        f"{FEATURES} features, k {PARTICLES}, CSV in and out; start-up and imports not counted.",
    )


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
