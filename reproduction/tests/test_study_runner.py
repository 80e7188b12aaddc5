"""A study's file gives the right cells; runs are kept, gone on with and made again when they must."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pacpfl.build import build_federation, load_weather
from pacpfl.config import Config, override
from pacpfl.data.store import from_clients
from pacpfl.engine.evaluate import Evaluation
from pacpfl.errors import InputError
from pacpfl.folder import METRICS, MethodResult
from pacpfl.run import Watcher, run, run_method
from pacpfl.types import Client, Federation, Samples
from reproduction import study as studies
from reproduction.study import (
    STUDIES,
    Cell,
    Outcome,
    cell_config,
    cells,
    read_outcomes,
    read_study,
    run_cell,
    run_cells,
    select,
)

IMAGES = {"femnist": Path("writers.npz"), "emnist": Path("emnist.npz")}
TINY = (
    "data.clients=4", "data.new_clients=4", "data.samples=12", "data.test_samples=6", "rounds=3",
    "particles=2", "mean_widths=[3]", "kernel_widths=[3]", "network.widths=[3]", "alone.steps=3",
    "alone.restarts=1", "mtl.personal_steps=4", "local.steps=1",
)  # fmt: skip


def of(name: str, seeds: list[int] | None = None, **more: Any) -> list[Cell]:
    return cells(read_study(name), seeds or [3], images=IMAGES, **more)


# ------------------------------------------------------------------------------------------ cells


@pytest.mark.parametrize("name", STUDIES)
def test_all_rows_of_a_data_set_meet_the_same_data(name: str) -> None:
    every, study = of(name, [4, 5]), read_study(name)
    assert len({cell.place for cell in every}) == len(every) > 0
    seen: dict[tuple[str, int], Any] = {}
    for cell in every:
        data = (cell.config.data, cell.config.pv, cell.config.images)
        assert seen.setdefault((cell.dataset, cell.config.seed), data) == data
        assert cell.dataset in study.datasets and cell.name in study.rows
    half = len(every) // 2
    assert [cell.config.seed for cell in every] == [4] * half + [5] * half, "seed after seed"


@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_look_is_small(name: str) -> None:
    whole, quick = of(name), of(name, quick=True)
    assert 0 < len(quick) <= len(whole)
    assert all(cell.config.train.rounds <= 100 for cell in quick)


@pytest.mark.parametrize(
    ("name", "count"),
    [("regression", 70), ("fortnights", 32), ("ablation", 84), ("classification", 24),
     ("privacy", 30), ("polynomial", 18)],
)  # fmt: skip
def test_every_study_has_its_cells(name: str, count: int) -> None:
    assert len(of(name)) == count


def test_the_regression_table_has_the_papers_data_sets() -> None:
    for cell in of("regression", weather="weather.csv"):
        config, words = cell.config, cell.dataset.split("-")
        assert (config.data.clients, config.data.new_clients) == (24, 24)
        assert config.pv.weather == "weather.csv"
        if words[0] == "pv":
            assert (config.data.name, config.data.standardize) == ("pv", "client")
            assert (config.pv.panels, config.data.samples) == (words[1].upper(), int(words[2]))
            assert words[3:] in ([], [config.pv.window])
        else:
            assert (config.data.name, config.data.samples) == ("polynomial", 10)
    study = read_study("regression")
    for dataset in study.datasets:
        means = [cell_config(study, dataset, row, 0).prior.mean for row in ("pfedgp", "pfedgp-nn")]
        assert means[0] == "zero" != means[1]


def test_tuned_settings_are_used_or_borrowed_and_cannot_change_the_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for dataset, coupling in (("pv-ew-610", 7.5), ("pv-s-150-random", 2.5)):
        path = tmp_path / "configs" / "regression" / dataset / "mtl.toml"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"seed = 9\n[data]\nclients = 3\n[pv]\nweather = 'x'\n[mtl]\ncoupling = {coupling}\n"
        )
    study, defaults = read_study("regression"), "configs/regression/defaults"
    (tmp_path / defaults).symlink_to(studies.FOLDER / defaults)
    monkeypatch.setattr(studies, "FOLDER", tmp_path)
    for dataset, coupling in (
        ("pv-ew-610", 7.5), ("pv-s-610", 7.5), ("pv-s-150-random", 2.5), ("polynomial", 0.1),
    ):  # fmt: skip
        config = cell_config(study, dataset, "mtl", 2)
        plain = cell_config(study, dataset, "maml", 2)
        assert config.mtl.coupling == (coupling if dataset != "polynomial" else plain.mtl.coupling)
        assert (config.seed, config.data, config.pv) == (2, plain.data, plain.pv)


def test_an_ablation_changes_one_thing() -> None:
    regression = read_study("regression")
    for cell in of("ablation"):
        dataset, tuned, _ = cell.dataset.partition("-tuned")
        first = cell_config(regression, dataset, "pacpfl", 3)
        if not tuned:
            start = studies.base_config(regression.datasets[dataset])
            first = replace(first, prior=start.prior, train=start.train, personal=start.personal)
        base = override(first, ["data.new_clients=0"])
        kind, _, value = cell.name.partition("-")
        changes = {
            "noise": [f"prior.noise_model={value}"],
            "warp": [f"prior.warp={value}"],
            "members": [f"members={kind[-1]}"],
            "k": [f"particles={kind[-1]}", *([f"svgd_kernel={value}"] if value else [])],
        }[kind.rstrip("0123456789")]
        assert cell.config == override(base, changes), cell.place


def test_a_fortnight_is_the_tables_but_for_its_days() -> None:
    regression = read_study("regression")
    for cell in of("fortnights"):
        column, _, number = cell.dataset.rpartition("-")
        usual = cell_config(regression, column, cell.name, 3)
        assert cell.config == replace(usual, pv=replace(usual.pv, skip=150 * (int(number) - 1)))
    assert set(Counter(cell.name for cell in of("fortnights")).values()) == {8}


def test_titles_name_the_days_that_the_houses_have() -> None:
    pytest.importorskip("pvlib")
    for cell in of("fortnights"):
        if cell.name != "ridge" or not cell.dataset.startswith("pv-s"):
            continue
        config = override(cell.config, ["data.clients=1", "data.new_clients=0"])
        (house,) = build_federation(config).existing
        assert house.times is not None
        days = load_weather(config.pv).local[house.times].normalize().unique()
        first, last = (f"{day.month_name()} {day.day}" for day in (days[0], days[-1]))
        title = read_study("fortnights").datasets[cell.dataset].title
        month, since, _, until = title.removeprefix("PV-S, ").split()
        assert (first, last, len(days)) == (f"{month} {since}", f"{month} {until}", 15)


def test_writers_are_the_same_with_few_images_and_with_all() -> None:
    sizes = {cell.dataset: cell.config.data for cell in of("classification")}
    assert (sizes["femnist-20"].samples, sizes["femnist-all"].samples) == (20, 0)
    assert sizes["femnist-20"] == replace(sizes["femnist-all"], samples=20, new_clients=200)
    only = cells(read_study("classification"), [0], images={"emnist": Path("e.npz")})
    assert {cell.dataset for cell in only} == {"emnist"}
    assert all(cell.config.images.path == "e.npz" for cell in only)


def test_private_rows_have_their_budget_and_settings_of_the_nearer_search() -> None:
    study = read_study("privacy")
    for cell in of("privacy"):
        privacy = cell.config.privacy
        mode, _, epsilon = cell.name.partition("-")
        assert privacy.mode == (mode if epsilon else "none")
        assert privacy.epsilon == (float(epsilon) if epsilon else None)
        if epsilon:
            assert (privacy.delta, privacy.noise_seed) == (1e-5, cell.config.seed)
            assert (privacy.sampling, cell.method) == ("all", "pacpfl")
            row, searched = study.rows[cell.name], min((2.0, 8.0), key=lambda e: (
                abs(math.log(e / float(epsilon))), -e))  # fmt: skip
            assert (row.tuned or cell.name) == f"{mode}-{searched:g}"
            path = studies.FOLDER / f"configs/privacy/{cell.dataset}/{row.tuned or cell.name}.toml"
            assert "found by" in path.read_text() and "seeds 10" in path.read_text()
            delta = 1e-5 if mode == "gaussian" else 0
            assert list(row.columns) == [mode, float(epsilon), delta, "add or remove one client"]


def test_parts_of_a_study_can_be_chosen() -> None:
    every, study = of("regression", [0, 1]), read_study("regression")

    def chosen(*names: str) -> set[tuple[str, str]]:
        return {(c.dataset, c.name) for c in select(every, names)}

    assert len(select(every, [])) == len(every)
    assert chosen("mtl") == {(d, "mtl") for d in study.datasets}
    assert chosen("pv-s-610") == {("pv-s-610", row) for row in study.rows}
    assert chosen("pv-s-610", "polynomial", "mtl") == {("pv-s-610", "mtl"), ("polynomial", "mtl")}
    with pytest.raises(InputError, match=r"mlt.*pv-s-610.*mtl"):
        chosen("mtl", "mlt")
    with pytest.raises(InputError, match=r"'pv'.*regression"):
        read_study("pv")


def test_the_papers_values_stand_where_they_belong() -> None:
    """All were compared with the paper once; here those at the corners."""
    values = read_study("regression").paper()
    assert len(values) == 2 * 7 * (5 * 2 + 2)  # groups, data sets; five rows with CE, two without
    assert values["pv-s-150-first", "existing", "pacpfl", "rsmse"] == (0.43, 0.02)
    assert values["pv-ew-150-random", "existing", "pacpfl", "ce"] == (0.04, 0.00)
    assert values["pv-ew-610", "new", "vanilla", "rsmse"] == (0.63, 0.52)
    assert values["polynomial", "new", "pooled", "ce"] == (0.36, 0.02)
    assert ("pv-s-610", "new", "mtl", "ce") not in values
    for (dataset, group, row, measure), value in values.items():
        if row == "pfedgp":
            assert values[dataset, group, "pfedgp-nn", measure] == value
        if dataset.endswith("first"):
            assert values[dataset.replace("first", "random"), group, row, measure] == value
    classes = read_study("classification").paper()
    assert classes["femnist-20", "existing", "pacpfl", "accuracy"] == (94.2, 2.6)
    seconds, half = classes["femnist-all", "existing", "pacpfl", "train_seconds"]
    assert seconds == 970 and math.isnan(half)


# ------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("row", read_study("regression").rows)
def test_the_study_and_a_run_give_the_same_numbers(row, programs, tmp_path):
    known = read_study("regression")
    config = override(cell_config(known, "polynomial", row, 1), list(TINY))
    method = known.rows[row].method
    outcome = run_cell(Cell("polynomial", row, method, config), lambda: False)
    run(replace(config, run=replace(config.run, methods=(method,))), tmp_path)
    measured = json.loads((tmp_path / "metrics.json").read_text())[method]
    with (tmp_path / "clients.csv").open(newline="") as file:
        clients = list(csv.DictReader(file))
    for group in ("existing", "new"):
        for measure in METRICS:
            assert outcome.groups[group][measure] == measured[group][measure]["mean"]
        for measure in ("rsmse", "ce"):
            values = [float(r[measure]) for r in clients if r["group"] == group]
            assert outcome.clients[group][measure] == values
    assert outcome[:3] == ("polynomial", row, 1) and outcome.seconds > 0


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight writers with thirty images of 5 x 4 pixels each; the class is the row with ink."""
    random = np.random.default_rng(0)
    labels = random.integers(5, size=240)
    pixels = random.integers(60, size=(240, 5, 4)).astype(np.uint8)
    pixels[np.arange(240), labels] += 150
    path = tmp_path_factory.mktemp("images") / "writers.npz"
    np.savez(path, images=pixels, labels=labels, writer=np.repeat(np.arange(8), 30), classes=5)
    return path


def of_writers(path: Path, row: str, *settings: str) -> Cell:
    small = (
        *("data.clients=3", "data.new_clients=2", "data.samples=6", "network.kind=mlp"),
        *("network.widths=[6]", "train.rounds=3", "train.clients_per_round=2", "alone.steps=2"),
        *("alone.networks=2", *settings),
    )
    every = cells(read_study("classification"), [0], images={"femnist": path}, settings=small)
    return next(c for c in every if (c.dataset, c.name) == ("femnist-20", row))


def test_classes_are_measured_in_per_cent_with_times(writers: Path) -> None:
    cell = of_writers(writers, "fedavg")
    outcome = run_cell(cell, lambda: False)
    federation = build_federation(cell.config)
    store = from_clients(federation.existing)
    alone = run_method("fedavg", cell.config, federation, store, Watcher())
    for group, evaluation in alone.groups.items():
        accuracies = [100 * row["accuracy"] for row in evaluation.rows]
        assert outcome.groups[group]["accuracy"] == pytest.approx(np.mean(accuracies))
        assert outcome.clients[group]["accuracy"] == pytest.approx(accuracies)
        # All clients' predictions together, by an independent count.
        together = np.exp(np.concatenate(evaluation.log_probabilities))
        labels = np.concatenate([c.test.y for c in federation.groups()[group] if c.test])
        confidence, right = together.max(1), together.argmax(1) == labels
        bins = np.digitize(confidence, np.linspace(0, 1, 21)[1:-1], right=True)
        error = sum(abs(np.sum(right[bins == b] - confidence[bins == b])) for b in range(20))
        assert outcome.groups[group]["ce"] == pytest.approx(error / len(labels))
    assert outcome.seconds == outcome.groups["existing"]["train_seconds"]
    assert outcome.groups["existing"]["compile_seconds"] > 0
    assert "train_seconds" not in outcome.groups["new"]


def test_a_model_without_a_federation_is_fitted_in_one_go(writers: Path) -> None:
    outcome = run_cell(of_writers(writers, "pooled", "data.new_clients=0"), lambda: False)
    assert outcome.seconds == outcome.groups["existing"]["train_seconds"] > 0
    assert "compile_seconds" not in outcome.groups["existing"]
    assert 0 <= outcome.groups["existing"]["accuracy"] <= 100


def test_kinds_that_nobody_knows_are_not_recovered() -> None:
    """PV-S has houses of one kind only, whatever a mixture makes of them."""
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    rows = [dict.fromkeys(METRICS, 0.5)] * 2
    found = Evaluation(rows, np.zeros((2, 20)), responsibilities=shares)
    result = MethodResult({"seconds": 1.0}, {}, {"existing": found})
    some = Samples(np.zeros((2, 1)), np.zeros(2))
    for kinds, recovered in (((None, None), None), ((0, 1), 1.0)):
        clients = tuple(Client(f"{n}", some, test=some, kind=k) for n, k in enumerate(kinds))
        values = studies.measures(Federation("f", clients), result)
        assert values["existing"].get("recovered") == recovered


def test_recovered_kinds_ignores_how_members_are_numbered() -> None:
    kinds = np.array([0, 0, 1, 1])
    shares = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])

    def share(values: np.ndarray | None) -> float | None:
        evaluation = Evaluation([], np.zeros(0), responsibilities=values)
        return studies.recovered_kinds(evaluation, kinds)

    assert share(shares) == share(shares[:, ::-1]) == 0.75
    assert share(None) is None
    assert share(np.ones((4, 3)) / 3) is None


# --------------------------------------------------------------------------------------- going on


def one(name: str = "ridge", seed: int = 0, **changes: Any) -> Cell:
    settings = [f"{key}={value}" for key, value in changes.items()]
    return Cell("polynomial", name, name, override(Config(seed=seed), settings))


def pretended(cell: Cell) -> Outcome:
    groups = {"existing": {"rsmse": 0.5, "ce": 0.1}, "new": {"rsmse": math.nan, "ce": 0.1}}
    clients = {group: {m: [v, v] for m, v in values.items()} for group, values in groups.items()}
    return Outcome(*cell.place, 1.5, groups, clients)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Cells are not run but made up; those that were asked for."""
    ran: list[Cell] = []

    def pretend(cell: Cell, stop: Callable[[], bool]) -> Outcome:
        ran.append(cell)
        if cell.name == "mtl":
            raise ValueError("no luck")
        return pretended(cell)

    monkeypatch.setattr(studies, "run_cell", pretend)
    return ran


def test_runs_are_kept_and_not_made_twice(asked, tmp_path):
    path = tmp_path / "study" / "outcomes.jsonl"
    some, more = [one(seed=0), one(seed=1)], [one(seed=2), one("ard")]
    shown: list[tuple[int, int]] = []
    assert run_cells(some, path) == []
    assert run_cells([*some, *more], path, progress=lambda now: shown.append(now[:2])) == []
    assert asked == [*some, *more] and shown == [(2, 4), (3, 4), (4, 4)]
    kept = read_outcomes(path, [*some, *more])
    assert list(kept) == [c.place for c in (*some, *more)]
    found, expected = kept[some[0].place], pretended(some[0])
    assert found[:4] == expected[:4] and found.groups["existing"] == expected.groups["existing"]
    assert math.isnan(found.groups["new"]["rsmse"]), "null on the disk"
    assert "NaN" not in path.read_text()


def test_a_run_with_other_settings_is_made_again_and_the_old_one_is_not_used(asked, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    old, new, personal = one(), one(rounds=7), one(weights="stacking")
    for each in (old, new, personal):
        run_cells([each], path)
        assert read_outcomes(path, [each]).keys() == {each.place}
    run_cells([old], path)
    assert asked == [old, new, personal], "the old line is still there"


def test_a_run_is_known_by_what_its_numbers_depend_on() -> None:
    ours = one("pacpfl")

    def changed(*settings: str) -> bool:
        return replace(ours, config=override(ours.config, list(settings))).identity != ours.identity

    assert changed("rounds=4") and changed("seed=5") and changed("weights=evidence")
    assert changed("posterior.steps=5") and changed("precision=float64")
    assert changed("privacy.mode=gaussian", "privacy.epsilon=8", "privacy.strict=false")
    assert not changed("checkpoint_rounds=7")
    assert changed("pv.weather=other.csv") and changed("images.path=others.npz")
    assert replace(ours, method="ard").identity != ours.identity
    here = replace(ours, config=override(ours.config, ["images.path=w.npz", "pv.weather=w.csv"]))
    there = override(ours.config, ["images.path=a/w.npz", "pv.weather=b/w.csv"])
    assert here.identity == replace(ours, config=there).identity


def test_a_line_that_was_cut_off_costs_only_itself(asked, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    every = [one(seed=s) for s in range(3)]
    run_cells(every, path)
    path.write_bytes(path.read_bytes()[:-40])
    run_cells(every, path)
    assert asked == [*every, every[2]]
    run_cells(every, path)
    assert len(asked) == 4


def test_a_run_that_fails_is_told_and_tried_again(asked, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    (sentence,) = run_cells([one("mtl", 4), one()], path)
    assert sentence == "mtl on polynomial, seed 4: ValueError: no luck"
    assert list(read_outcomes(path, [one("mtl", 4), one()])) == [one().place]
    run_cells([one("mtl", 4), one()], path)
    assert [c.name for c in asked] == ["mtl", "ridge", "mtl"]


def test_a_study_stops_between_runs(asked, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    every = [one(seed=s) for s in range(4)]
    run_cells(every, path, stop=lambda: len(asked) >= 2)
    assert len(read_outcomes(path, every)) == len(asked) == 2
    run_cells(every, path)
    assert asked == every


def test_a_folder_that_cannot_be_written_is_named(asked, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"outcomes\.jsonl"):
        run_cells([one()], tmp_path / "file" / "outcomes.jsonl")
