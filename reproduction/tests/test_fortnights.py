"""The study of fortnights: each data set has its own 15 days and nothing else that differs."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pacpfl.build import build_federation, load_weather
from pacpfl.config import override
from pacpfl.tune.spaces import ROWS
from reproduction import fortnights, table
from reproduction.outcomes import Kept
from reproduction.regression import cell_config
from reproduction.study import write_study
from reproduction.table import Outcome


def test_a_cell_is_the_table_s_but_for_its_days():
    cells = fortnights.cells([3], "weather.csv")
    assert len({c.place for c in cells}) == len(cells) == 2 * 4 * 4
    for cell in cells:
        column, _, number = cell.dataset.rpartition("-")
        usual = cell_config(column, cell.name, "weather.csv", 3)
        assert cell.method == ROWS[cell.name].method
        assert cell.config == replace(usual, pv=replace(usual.pv, skip=150 * (int(number) - 1)))
    assert Counter(c.name for c in cells) == dict.fromkeys(fortnights.METHODS, 8)
    first = next(c for c in cells if c.dataset == "pv-s-150-first-1")
    assert first.identity == replace(first, dataset="pv-s-150-first").identity


def test_titles_name_the_days_that_the_houses_have():
    pytest.importorskip("pvlib")
    for cell in fortnights.cells([0]):
        if cell.name != "ridge" or not cell.dataset.startswith("pv-s"):
            continue
        config = override(cell.config, ["data.clients=1", "data.new_clients=0"])
        (house,) = build_federation(config).existing
        assert house.times is not None
        days = load_weather(config.pv).local[house.times].normalize().unique()
        first, last = (f"{day.month_name()} {day.day}" for day in (days[0], days[-1]))
        month, since, _, until = fortnights.TITLES[cell.dataset].removeprefix("PV-S, ").split()
        assert (first, last) == (f"{month} {since}", f"{month} {until}")
        assert len(days) == 15 and (np.diff(days) == pd.Timedelta(days=1)).all()


def test_a_quick_look_is_small():
    cells = fortnights.cells([0], quick=True)
    assert all(c.config.train.rounds <= 100 and c.config.data.clients <= 8 for c in cells)


def kept(dataset: str, row: str, seed: int, rsmse: float, ce: float) -> Kept:
    groups = {group: {"rsmse": rsmse, "ce": ce} for group in ("existing", "new")}
    clients = {group: {m: [v, v] for m, v in values.items()} for group, values in groups.items()}
    return Kept(Outcome(dataset, row, seed, 2.0, groups), clients)


def test_the_page_has_a_column_for_each_fortnight_and_says_how_calibration_changes(tmp_path: Path):
    found = [
        kept(f"pv-s-150-first-{number}", row, seed, rsmse + 0.001 * seed, ce)
        for number, row, rsmse, ce in (
            (1, "pacpfl", 0.45, 0.09),
            (1, "ridge", 0.48, 0.08),
            (3, "pacpfl", 0.44, 0.03),
            (3, "ridge", 0.42, 0.05),
        )
        for seed in range(3)
    ]
    about = fortnights.describe(found, range(3), "pacpfl reproduce fortnights")
    assert list(about["datasets"].values()) == ["PV-S, June 1 to 15", "PV-S, July 1 to 15"]
    said = " ".join(about["summary"])
    assert "lowest mean RSMSE of all methods in 2 of 4 columns" in said
    assert "PV-S, July 1 to 15, new clients (0.441 against 0.421 of Ridge per client)" in said
    assert "between 0.030 and 0.090, the lowest of all methods in 2 of 4 columns" in said
    rows = table.rows([k.outcome for k in found], fortnights.PUBLISHED)
    table.write_table(tmp_path, rows, about)
    page = write_study(tmp_path).read_text()
    assert "June 1 to 15" in page and "CE on all data sets" in page
    assert (tmp_path / "figures" / "boxes_2.svg").exists()
    with (tmp_path / "table.csv").open(newline="") as file:
        written = {(r["dataset"], r["method"], r["metric"]) for r in csv.DictReader(file)}
    assert ("pv-s-150-first-3", "ridge", "ce") in written
