"""The paper's table of classification results and its table of training times.

Three data sets, eight methods. A cell's configuration is that of its data set, the one that
`pacpfl run` takes, with what `configs/classification/DATASET/ROW.toml` changes for its row, where there
is such a file. The data are the data set's in any case: all methods see the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

from pacpfl.build import build_federation
from pacpfl.config import Config, load, override
from pacpfl.data.store import ClientStore, from_clients
from pacpfl.folder import MethodResult, summarise
from pacpfl.run import Watcher, run_method
from pacpfl.tune.workers import work
from pacpfl.types import Federation
from reproduction.outcomes import (
    Cell,
    Kept,
    Progress,
    append_outcome,
    read_outcomes,
)
from reproduction.table import Outcome, Published

DATASETS = {"femnist-20": "FEMNIST (20)", "femnist-all": "FEMNIST (all)", "emnist": "EMNIST"}
SHIPPED = {"femnist-20": "femnist", "femnist-all": "femnist-all", "emnist": "emnist"}
ROWS = ("pacpfl", "pfedgp", "pfedbayes", "fedavg", "mtl", "maml", "vanilla", "pooled")
METRICS = ("accuracy", "ce", "nll")
PERCENT = ("accuracy",)

# The paper's two tables, columns FEMNIST (20), FEMNIST (500) and EMNIST: accuracy in % and CE with the
# half widths of their intervals, and seconds of training.
_ACCURACY = {
    "pacpfl": ((94.2, 2.6), (97.1, 1.6), (87.1, 1.1)),
    "pfedgp": ((83.6, 2.0), (97.7, 6.6), (82.4, 1.0)),
    "pfedbayes": ((87.0, 2.0), (88.3, 2.4), (79.0, 1.3)),
    "fedavg": ((88.1, 1.7), (96.7, 0.5), (79.9, 1.0)),
    "mtl": ((75.8, 3.7), (87.5, 0.1), (78.2, 1.0)),
    "maml": ((82.0, 6.7), (88.1, 2.6), (81.5, 2.8)),
    "vanilla": ((81.9, 1.3), (92.5, 1.8), (71.0, 1.2)),
    "pooled": ((89.4, 4.3), (94.3, 2.1), (63.8, 2.9)),
}
_CE = {
    "pacpfl": ((0.08, 0.01), (0.05, 0.01), (0.04, 0.01)),
    "pfedgp": ((0.10, 0.04), (0.02, 0.01), (0.06, 0.02)),
    "vanilla": ((0.12, 0.01), (0.33, 0.06), (0.09, 0.01)),
    "pooled": ((0.11, 0.05), (0.07, 0.03), (0.04, 0.02)),
}
_SECONDS = {
    "fedavg": (120, 480, 900),
    "mtl": (120, 500, 950),
    "maml": (540, 605, 1100),
    "pacpfl": (960, 970, 1260),
}
PUBLISHED = Published(
    {
        (dataset, "existing", row, metric): pair
        for metric, table in (("accuracy", _ACCURACY), ("ce", _CE))
        for row, pairs in table.items()
        for dataset, pair in zip(DATASETS, pairs, strict=True)
    }
    | {
        (dataset, "existing", row, "train_seconds"): (float(value), math.nan)
        for row, values in _SECONDS.items()
        for dataset, value in zip(DATASETS, values, strict=True)
    }
)
# A look at the whole: few rounds of few clients, and a small network.
QUICK = (
    *(
        "train.rounds=20",
        "train.clients_per_round=4",
        "network.filters=[4, 8]",
        "network.hidden=32",
    ),
    *("mtl.personal_steps=20", "pfedbayes.personal_steps=5", "pfedbayes.networks=4"),
    *("alone.steps=20", "alone.networks=2", "pfedgp.personal_support=50"),
)
QUICK_CLIENTS = {
    "femnist-20": ("data.clients=8", "data.new_clients=4"),
    "femnist-all": ("data.clients=8", "data.new_clients=4"),
}
# What a row depends on, beside the data, the network and the training.
COMMON = ("data", "images", "network", "train")
SECTIONS = {
    "pacpfl": ("bnn", "posterior", "personal"),
    "pfedgp": ("pfedgp",),
    "pfedbayes": ("local", "pfedbayes"),
    "fedavg": ("local",),
    "mtl": ("local", "mtl"),
    "maml": ("maml",),
    "vanilla": ("alone",),
    "pooled": ("alone",),
}


@dataclass(frozen=True)
class ImageCell(Cell):
    @property
    def identity(self) -> str:
        """Of what its numbers depend on. Where the images lie does not matter, nor do the settings
        of other methods."""
        config = self.config
        parts = {name: asdict(getattr(config, name)) for name in (*COMMON, *SECTIONS[self.method])}
        parts["images"]["path"] = Path(config.images.path).name
        told = [self.method, config.seed, config.run.precision, parts]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def cell_config(dataset: str, row: str, path: Path, seed: int) -> Config:
    from pacpfl.cli.common import shipped

    base = shipped(SHIPPED[dataset])
    place = f"classification/{dataset}/{row}.toml"
    config = load(_packaged(place) or "", place, base)
    return replace(config, seed=seed, data=base.data, images=replace(base.images, path=str(path)))


def _packaged(place: str) -> str | None:
    path = resources.files("reproduction").joinpath("configs", *place.split("/"))
    return path.read_text(encoding="utf-8") if path.is_file() else None


def cells(
    seeds: Sequence[int],
    paths: Mapping[str, Path],
    quick: bool = False,
    settings: Sequence[str] = (),
) -> list[Cell]:
    """All runs on the data sets whose images are there (`femnist`, `emnist`), seed after seed."""
    found: list[Cell] = []
    for seed in seeds:
        for dataset in DATASETS:
            path = paths.get("emnist" if dataset == "emnist" else "femnist")
            if path is None:
                continue
            changes = [*settings]
            if quick:
                changes = [*QUICK_CLIENTS.get(dataset, ()), *QUICK, *changes]
            for row in ROWS:
                config = override(cell_config(dataset, row, path, seed), changes)
                found.append(ImageCell(dataset, row, row, config))
    return found


def run_cells(
    cells: Sequence[Cell],
    path: Path,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[Progress], None] = lambda now: None,
) -> list[str]:
    """Run, in this process, the cells that are not kept yet; what failed, in sentences."""
    kept = read_outcomes(path, cells)
    missing = [cell for cell in cells if cell.place not in kept]
    done, failures = len(cells) - len(missing), []

    def job(cell: Cell, over: Callable[[], bool]) -> Kept:
        def stage(text: str) -> None:
            where = f"{DATASETS[cell.dataset]}, seed {cell.config.seed}"
            progress(Progress(done, len(cells), f"{where}, {text}"))

        return run_cell(cell, Watcher(stage=stage, stop=over))

    for ended in work(job, iter(missing), 1, stop, seconds):
        cell = ended.task
        if ended.failure is not None:
            failures.append(
                f"{cell.name} on {cell.dataset}, seed {cell.config.seed}: {ended.failure}"
            )
        if ended.result is not None:
            append_outcome(path, cell, ended.result)
            done += 1
    progress(Progress(done, len(cells), "done"))
    return failures


def run_cell(cell: Cell, watcher: Watcher) -> Kept:
    """One method on one data set with one seed, on the same path as `pacpfl run`."""
    config = cell.config
    federation, store = _federation(
        Config(seed=config.seed, data=config.data, images=config.images)
    )
    result = run_method(cell.method, config, federation, store, watcher)
    clients = {
        group: {
            metric: [_scaled(metric, row[metric]) for row in found.rows]
            for metric in ("accuracy", "nll")
        }
        for group, found in result.groups.items()
    }
    spent = result.about.get("train_seconds", result.about["seconds"])
    return Kept(Outcome(*cell.place, spent, measures(result)), clients)


@lru_cache(maxsize=1)
def _federation(config: Config) -> tuple[Federation, ClientStore]:
    """Methods follow each other on the same data."""
    federation = build_federation(config)
    return federation, from_clients(federation.existing, roomy=True)


def measures(result: MethodResult) -> dict[str, dict[str, float]]:
    """Group -> metric -> mean over clients; times stand with the existing clients, who trained."""
    table = {
        group: {metric: _scaled(metric, values[metric]["mean"]) for metric in METRICS}
        for group, values in summarise(result.groups).items()
    }
    about = result.about
    table["existing"]["train_seconds"] = about.get("train_seconds", about["seconds"])
    if "compile_seconds" in about:
        table["existing"]["compile_seconds"] = about["compile_seconds"]
    return table


def _scaled(metric: str, value: float) -> float:
    return 100 * value if metric in PERCENT else value
