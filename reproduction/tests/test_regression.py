"""The regression study: its cells, its going on, the same path as `pacpfl run`, and what it says."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import cbook
from scipy import stats

from pacpfl.config import Config, RunSettings, override
from pacpfl.data.polynomial import polynomial, true_predictive
from pacpfl.data.settings import PVSettings
from pacpfl.data.weather import Weather
from pacpfl.engine import runtime
from pacpfl.engine.evaluate import Evaluation
from pacpfl.errors import InputError
from pacpfl.folder import METRICS, MethodResult
from pacpfl.methods.registry import named
from pacpfl.metrics import LEVELS
from pacpfl.run import run
from pacpfl.tune.spaces import ROWS, prepare
from pacpfl.types import Client, Federation, Samples
from reproduction import outcomes, regression, regression_summary, table
from reproduction.outcomes import (
    Cell,
    Kept,
    append_outcome,
    box,
    boxes,
    read_outcomes,
    run_cells,
)
from reproduction.study import write_study
from reproduction.table import Outcome

TINY = (
    "data.clients=4", "data.new_clients=4", "data.samples=12", "data.test_samples=6", "rounds=3",
    "particles=2", "mean_widths=[3]", "kernel_widths=[3]", "network.widths=[3]", "alone.steps=3",
    "alone.restarts=1", "mtl.personal_steps=4", "local.steps=1",
)  # fmt: skip


# Cells.


@pytest.mark.parametrize(
    ("weather", "north", "east", "sentence"),
    [
        ("synthetic", 46.52, 6.63, "46.52° N, 6.63° E in synthetic weather"),
        ("pvgis", 40.713, -74.006, "40.71° N, 74.01° W in weather from PVGIS"),
        ("some/where/quito.csv", -0.18, -78.47, "0.18° S, 78.47° W in the weather of quito.csv"),
    ],
)
def test_where_the_houses_stand(weather: str, north: float, east: float, sentence: str):
    hours = pd.date_range("2018-06-01", periods=1, freq="h", tz="UTC")
    record = Weather("x", north, east, 10.0, hours, *np.zeros((4, 1)))
    said = regression_summary.setting(PVSettings(weather=weather), record)
    assert said == f"The houses stand at {sentence}."


def test_every_method_meets_the_same_data_on_every_data_set():
    cells = regression.cells([4, 5], "weather.csv")
    assert len(cells) == len({c.place for c in cells}) == 2 * len(regression.DATASETS) * len(ROWS)
    assert len(regression.DATASETS) == 7 and len(ROWS) == 10
    seen: dict[tuple[str, int], Any] = {}
    for cell in cells:
        config = cell.config
        assert cell.method == ROWS[cell.name].method and cell.method in named()
        data = (config.data, config.pv)
        assert seen.setdefault((cell.dataset, config.seed), data) == data
        assert config.pv.weather == "weather.csv"
        assert (config.data.clients, config.data.new_clients) == (24, 24)
        name = cell.dataset.split("-")
        if name[0] == "pv":
            assert config.data.name == "pv" and config.data.standardize == "client"
            assert config.pv.panels == name[1].upper()
            assert config.data.samples == int(name[2])
            assert name[3:] in ([], [config.pv.window])
        else:
            assert (config.data.name, config.data.samples) == ("polynomial", 10)
    half = len(cells) // 2
    assert [c.config.seed for c in cells] == [4] * half + [5] * half, "seed after seed"


def test_rows_that_share_a_method_differ_in_what_they_fix():
    for dataset in regression.DATASETS:
        zero = regression.cell_config(dataset, "pfedgp", "synthetic", 0)
        learned = regression.cell_config(dataset, "pfedgp-nn", "synthetic", 0)
        assert zero.prior.mean == "zero" != learned.prior.mean


def test_tuned_settings_are_used_or_borrowed_and_cannot_change_the_data(monkeypatch):
    packaged = regression._packaged
    tuned = {("pv-ew-610", "mtl"): 7.5, ("pv-s-150-random", "mtl"): 2.5}

    def instead(folder: str, name: str) -> str | None:
        if (folder, name) in tuned:
            coupling = f"[mtl]\ncoupling = {tuned[folder, name]}\n"
            return f"seed = 9\n[data]\nclients = 3\n[pv]\nweather = 'x'\n{coupling}"
        return packaged(folder, name) if folder == "defaults" else None

    monkeypatch.setattr(regression, "_packaged", instead)
    for dataset, coupling in (
        ("pv-ew-610", 7.5), ("pv-s-610", 7.5), ("pv-s-150-random", 2.5),
    ):  # fmt: skip
        config = regression.cell_config(dataset, "mtl", "synthetic", 2)
        plain = regression.cell_config(dataset, "maml", "synthetic", 2)
        assert config.mtl.coupling == coupling
        assert (config.seed, config.data, config.pv) == (2, plain.data, plain.pv)
    for dataset in ("pv-s-150-first", "polynomial"):
        plain = regression.cell_config(dataset, "mtl", "synthetic", 2)
        assert plain == replace(prepare("mtl", regression.dataset_config(dataset)), seed=2)


def test_a_quick_look_is_small():
    cells = regression.cells([0], quick=True)
    assert {c.dataset for c in cells} == set(regression.QUICK_DATASETS)
    assert {c.name for c in cells} == set(ROWS)
    assert all(c.config.train.rounds <= 100 and c.config.data.clients <= 8 for c in cells)


def test_parts_of_the_study_can_be_chosen():
    every = regression.cells([0, 1])

    def chosen(*names: str) -> set[tuple[str, str]]:
        return {(c.dataset, c.name) for c in regression.select(every, names)}

    assert len(regression.select(every, [])) == len(every)
    assert chosen("mtl") == {(d, "mtl") for d in regression.DATASETS}
    assert chosen("pv-s-610") == {("pv-s-610", row) for row in ROWS}
    assert chosen("pv-s-610", "polynomial", "mtl") == {("pv-s-610", "mtl"), ("polynomial", "mtl")}
    with pytest.raises(InputError, match=r"mlt.*pv-s-610.*mtl"):
        chosen("mtl", "mlt")


def test_an_unknown_data_set_is_named():
    with pytest.raises(InputError, match=r"'pv'.*pv-ew-610"):
        regression.dataset_config("pv")


# The paper's numbers: all were compared with its source once; here those at the corners.


def test_the_papers_values_stand_where_they_belong():
    values = regression.PUBLISHED.values
    assert len(values) == 2 * 7 * (5 * 2 + 2)  # groups, data sets; five rows with CE, two without
    assert values["pv-s-150-first", "existing", "pacpfl", "rsmse"] == (0.43, 0.02)
    assert values["pv-ew-150-random", "existing", "pacpfl", "ce"] == (0.04, 0.00)
    assert values["pv-ew-610", "new", "vanilla", "rsmse"] == (0.63, 0.52)
    assert values["polynomial", "new", "pooled", "ce"] == (0.36, 0.02)
    assert values["pv-s-610", "new", "pfedgp", "rsmse"] == (0.51, 0.05)
    assert values["pv-s-610", "existing", "pooled", "rsmse"] == (0.49, 0.02)
    assert ("pv-s-610", "new", "mtl", "ce") not in values
    for (dataset, group, row, metric), value in values.items():
        assert row in ROWS
        if row == "pfedgp":
            assert values[dataset, group, "pfedgp-nn", metric] == value
        if dataset.endswith("first"):
            assert values[dataset.replace("first", "random"), group, row, metric] == value


# The same path as `pacpfl run`.


@pytest.mark.parametrize("row", ROWS)
def test_the_study_and_a_run_give_the_same_numbers(row, programs, tmp_path):
    config = override(regression.cell_config("polynomial", row, "synthetic", 1), list(TINY))
    kept = outcomes.run_cell(Cell("polynomial", row, ROWS[row].method, config), lambda: False)
    method = ROWS[row].method
    run(replace(config, run=RunSettings(methods=(method,))), tmp_path)
    measured = json.loads((tmp_path / "metrics.json").read_text())[method]
    for group in ("existing", "new"):
        for metric in METRICS:
            mine = kept.outcome.groups[group][metric]
            assert mine == measured[group][metric]["mean"], (group, metric)
    with (tmp_path / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for group in ("existing", "new"):
        for metric in ("rsmse", "ce"):
            values = [float(r[metric]) for r in rows if r["group"] == group]
            assert kept.clients[group][metric] == values
            assert np.mean(values) == pytest.approx(kept.outcome.groups[group][metric], rel=1e-12)
    assert kept.outcome[:3] == ("polynomial", row, 1) and kept.outcome.seconds > 0


def test_kinds_that_nobody_knows_are_not_recovered(monkeypatch):
    """PV-S has houses of one kind only, whatever a mixture makes of them."""
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    found = Evaluation(
        [dict.fromkeys(METRICS, 0.5)] * 2, np.zeros((2, 20)), responsibilities=shares
    )
    result = MethodResult({"seconds": 1.0}, {}, {"existing": found})
    monkeypatch.setattr(outcomes, "run_method", lambda *arguments: result)
    some = Samples(np.zeros((2, 1)), np.zeros(2))
    for kinds, recovered in (((None, None), None), ((0, 1), 1.0)):
        clients = tuple(Client(f"{n}", some, test=some, kind=k) for n, k in enumerate(kinds))
        monkeypatch.setattr(outcomes, "_federation", lambda config, c=clients: Federation("f", c))
        groups = outcomes.run_cell(cell("pacpfl"), lambda: False).outcome.groups
        assert groups["existing"].get("recovered") == recovered


# Going on.


def cell(name: str = "ridge", seed: int = 0, **changes: Any) -> Cell:
    settings = [f"{key}={value}" for key, value in changes.items()]
    return Cell("polynomial", name, name, override(Config(seed=seed), settings))


def made(cell: Cell, value: float = 0.5) -> Kept:
    groups = {"existing": {"rsmse": value, "ce": 0.1}, "new": {"rsmse": math.nan, "ce": 0.1}}
    clients = {group: {m: [v, v] for m, v in values.items()} for group, values in groups.items()}
    return Kept(Outcome(*cell.place, 1.5, groups), clients)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Cells are not run but made up; those that were asked for."""
    cells: list[Cell] = []

    def run_cell(cell: Cell, stop: Callable[[], bool]) -> Kept:
        cells.append(cell)
        if cell.name == "mtl":
            raise ValueError("no luck")
        return made(cell)

    monkeypatch.setattr(outcomes, "run_cell", run_cell)
    return cells


def test_runs_are_kept_and_not_made_twice(asked, tmp_path):
    path = tmp_path / "study" / "outcomes.jsonl"
    some, more = [cell(seed=0), cell(seed=1)], [cell(seed=2), cell("ard")]
    shown: list[tuple[int, int]] = []
    assert run_cells(some, path) == []
    assert run_cells([*some, *more], path, progress=lambda now: shown.append(now[:2])) == []
    assert asked == [*some, *more]
    assert shown == [(2, 4), (3, 4), (4, 4)]
    kept = read_outcomes(path, [*some, *more])
    assert set(kept) == {c.place for c in (*some, *more)}
    found, expected = kept[some[0].place], made(some[0])
    assert found.outcome[:4] == expected.outcome[:4]
    assert found.outcome.groups["existing"] == expected.outcome.groups["existing"]
    assert math.isnan(found.outcome.groups["new"]["rsmse"]), "null on the disk"
    assert math.isnan(found.clients["new"]["rsmse"][1])
    assert "NaN" not in path.read_text()


def test_a_run_with_other_settings_is_made_again_and_the_old_one_is_not_used(asked, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    old, new = cell(), cell(rounds=7)
    personal = cell(weights="stacking")
    for each in (old, new, personal):
        run_cells([each], path)
        assert read_outcomes(path, [each]).keys() == {each.place}
    assert asked == [old, new, personal]
    run_cells([old], path)
    assert len(asked) == 3, "the old line is still there"
    assert old.identity != new.identity != personal.identity != old.identity
    assert old.identity != replace(old, method="ard").identity
    assert (
        old.identity == replace(old, config=override(old.config, ["checkpoint_rounds=3"])).identity
    )


def test_a_line_that_was_cut_off_costs_only_itself(asked, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    every = [cell(seed=s) for s in range(3)]
    run_cells(every, path)
    path.write_bytes(path.read_bytes()[:-40])
    run_cells(every, path)
    assert asked == [*every, every[2]]
    run_cells(every, path)
    assert len(asked) == 4
    path.write_bytes(b"\xff\xfe garbage\n{}\n" + path.read_bytes())
    assert len(read_outcomes(path, every)) == 3


def test_a_run_that_fails_is_told_and_tried_again(asked, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    (sentence,) = run_cells([cell("mtl", 4), cell()], path)
    assert sentence == "mtl on polynomial, seed 4: ValueError: no luck"
    assert list(read_outcomes(path, [cell("mtl", 4), cell()])) == [cell().place]
    run_cells([cell("mtl", 4), cell()], path)
    assert [c.name for c in asked] == ["mtl", "ridge", "mtl"]


def test_a_study_stops_between_runs(asked, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    every = [cell(seed=s) for s in range(4)]
    run_cells(every, path, stop=lambda: len(asked) >= 2)
    assert len(read_outcomes(path, every)) == len(asked) == 2
    run_cells(every, path)
    assert asked == every


def test_a_folder_that_cannot_be_written_is_named(asked, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        run_cells([cell()], tmp_path / "file" / "outcomes.jsonl")


# What it says.


@pytest.mark.parametrize("count", [1, 2, 3, 10, 57])
def test_boxes_are_those_everybody_draws(count):
    values = np.random.default_rng(count).standard_t(2, count)
    found, (expected,) = box([*values, math.nan]), cbook.boxplot_stats(values)
    names = {"low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "high": "whishi"}
    for mine, theirs in names.items():
        assert found[mine] == pytest.approx(expected[theirs], abs=1e-5)
    assert found["outliers"] == pytest.approx(sorted(expected["fliers"]), abs=1e-5)
    assert box([math.nan]) is None


def outcome(dataset: str, row: str, seed: int, existing: float, new: float, ce: float) -> Kept:
    groups = {
        "existing": {"rsmse": existing, "ce": ce},
        "new": {"rsmse": new, "ce": ce + 0.01},
    }
    clients = {
        g: {m: [v - 0.01, v + 0.01] for m, v in values.items()} for g, values in groups.items()
    }
    return Kept(Outcome(dataset, row, seed, 2.0, groups), clients)


@pytest.fixture
def kept() -> list[Kept]:
    """PAC-PFL wins clearly, wins by a hair, and loses to ridge."""
    numbers = {
        "pacpfl": (("pv-ew-610", 0.40, 0.42), ("polynomial", 0.50, 0.70)),
        "ridge": (("pv-ew-610", 0.46, 0.421), ("polynomial", 0.60, 0.65)),
        "mtl": (("pv-ew-610", 0.50, 0.50),),
    }
    errors = {"pacpfl": 0.05, "ridge": 0.06, "mtl": 0.04}
    return [
        outcome(dataset, row, seed, a + 0.001 * seed, b + 0.001 * seed, errors[row])
        for row, cells in numbers.items()
        for dataset, a, b in cells
        for seed in range(3)
    ]


def test_the_summary_says_where_it_wins_and_where_not(kept):
    said = regression_summary.summary(kept)
    assert "lowest mean RSMSE of all methods in 3 of 4 columns" in said[0]
    assert "in 2 of them by more than both 95% intervals" in said[0]
    assert said[1] == (
        "It does not have the lowest on Polynomial, new clients (0.701 against 0.651 of Ridge per "
        "client)."
    )
    # 0.401 is printed as 0.40, like the paper's; 0.421 <= 0.43; 0.501 <= 0.58; 0.701 > 0.65.
    assert "at most the paper's in 3 of 4 columns" in said[2]
    assert said[3] == (
        "Its calibration error is between 0.050 and 0.060, the lowest of all methods in 2 of 4 columns."
    )
    # PV-EW, 610: the paper has 0.04 for both groups, and 0.050 and 0.060 are more; Polynomial: 0.14, 0.16
    assert said[4:] == [
        "It is above the paper's on PV-EW, 610, existing clients (0.050 against 0.04); PV-EW, 610, new "
        "clients (0.060 against 0.04)."
    ]
    one_seed = regression_summary.summary([k for k in kept if k.outcome.seed == 0])
    assert "with one seed there are no intervals" in one_seed[0]
    won = regression_summary.summary([k for k in kept if k.outcome.dataset == "pv-ew-610"])
    assert not any("does not" in sentence for sentence in won)
    assert regression_summary.summary(kept[:3]) == ["There is nothing to compare PAC-PFL with yet."]


def test_clients_of_all_seeds_are_in_one_box(kept):
    found = boxes(kept, "pv-ew-610", ["mtl", "ard", "pacpfl"], "rsmse")
    assert set(found) == {"existing", "new"}
    assert found["existing"][1] is None
    expected = [0.40 + 0.001 * seed + sign * 0.01 for seed in range(3) for sign in (-1, 1)]
    assert found["existing"][2] == box(expected)


def test_an_unfinished_study_has_a_page_of_what_there_is(kept, tmp_path):
    about = regression_summary.describe(kept, range(5), "pacpfl reproduce regression")
    assert list(about["datasets"]) == ["pv-ew-610", "polynomial"]
    assert list(about["methods"]) == ["pacpfl", "mtl", "ridge"]
    rows = table.rows([k.outcome for k in kept], regression.PUBLISHED)
    table.write_table(tmp_path, rows, about)
    page = write_study(tmp_path).read_text()
    text = (tmp_path / "README.md").read_text()
    for word in ("RSMSE on all data sets", "CE on all data sets", "PV-EW, 610", "Ridge per client"):
        assert word in page and word in text
    assert "| existing | PAC-PFL | **0.401 ± 0.002** (0.40 ± 0.01) |" in text
    assert "0.46" in text and "3 of 5 seeds" in text
    with (tmp_path / "table.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert tuple(written[0]) == table.COLUMNS
    first = next(r for r in written if r["method"] == "pacpfl" and r["metric"] == "rsmse")
    assert (first["paper_mean"], first["paper_ci95"], first["seconds"]) == ("0.4", "0.01", "2.0")
    assert (tmp_path / "figures" / "boxes_1.svg").exists()
    assert Path(tmp_path / "study.json").stat().st_size < 100_000


def test_a_study_says_where_each_of_its_runs_was_made(tmp_path: Path) -> None:
    """It may begin on one machine and end on another, whatever draws the page."""
    path, first, second = tmp_path / "outcomes.jsonl", cell(seed=0), cell(seed=1)
    elsewhere = {**runtime.versions(), "jax": "9.9.9"}
    there = made(first).outcome._replace(machine="a large one", versions=elsewhere)
    append_outcome(path, first, Kept(there, {}))
    append_outcome(path, second, made(second))
    kept = read_outcomes(path, [first, second])
    about = table.circumstances([outcome for outcome, _ in kept.values()])
    assert about["machine"] == f"a large one; {runtime.machine()}"
    assert about["versions"]["jax"] == f"9.9.9 and {runtime.versions()['jax']}"
    assert about["versions"]["numpy"] == runtime.versions()["numpy"]
    table.write_table(tmp_path, table.rows([there], regression.PUBLISHED), about)
    written = json.loads((tmp_path / "study.json").read_text())
    assert (written["machine"], written["versions"]) == (about["machine"], about["versions"])


def test_the_floor_of_polynomial_is_what_the_process_itself_would_have():
    expected = []
    for group in ("existing", "new"):
        errors, gaps = [], []
        for seed in (0, 3):
            for client in getattr(polynomial(24, 24, 10, 100, 0.15, seed=seed), group):
                mean, std = true_predictive(client, 0.15)
                shares = stats.norm.cdf(client.test.y, mean, std)
                errors.append(np.sqrt(np.mean((client.test.y - mean) ** 2)) / np.std(client.test.y))
                levels = np.linspace(0, 1, LEVELS)
                gaps.append(np.mean([abs(np.mean(shares <= q) - q) for q in levels]))
        expected += [f"{np.mean(errors):.3f}", f"{np.mean(gaps):.3f}"]
    assert re.findall(r"\d\.\d{3}", regression_summary.floor([0, 3])) == expected
