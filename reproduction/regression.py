"""The paper's table of regression results: every method on every data set, existing and new clients.

A cell's configuration is the tuned one, `configs/regression/DATASET/ROW.toml`, where there is one; else
that of the data set it borrows from; else what the data set starts from,
`configs/regression/defaults/DATASET.toml`. The data are the latter's in any case: all methods see the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import resources

from pacpfl.config import Config, load, override
from pacpfl.errors import InputError
from pacpfl.tune.spaces import ROWS, prepare
from reproduction.outcomes import Cell
from reproduction.table import Published

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
    path = resources.files("reproduction") / "configs" / "regression" / folder / f"{name}.toml"
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
