"""The privacy study: its cells, its table, its search and its figures."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pacpfl.config import Config, load, override
from pacpfl.errors import InputError
from reproduction import privacy_search, privacy_study, privacy_summary
from reproduction.cli_privacy_study import reproduce_privacy
from reproduction.outcomes import Cell, Kept, read_outcomes
from reproduction.privacy_plots import write_privacy_study
from reproduction.table import Outcome

TINY = (
    *("data.clients=3", "data.new_clients=2", "data.samples=4", "data.test_samples=5"),
    *("train.rounds=2", "train.particles=1", "prior.members=1", "prior.mean=constant"),
    *("prior.kernel=ard", "privacy.clip=1.0"),
)


def test_cells_of_the_whole_study() -> None:
    cells = privacy_study.cells([3, 4], "some/weather.csv")
    places = [cell.place for cell in cells]
    assert len(set(places)) == len(places)
    # 3 modes at 6 epsilons and two lines; two data sets with one mode at 3 epsilons and two lines.
    assert len(places) == 2 * (20 + 5 + 5)
    for cell in cells:
        privacy = cell.config.privacy
        mode, _, epsilon = cell.name.partition("-")
        assert privacy.mode == (mode if epsilon else "none")
        assert privacy.epsilon == (float(epsilon) if epsilon else None)
        if epsilon:
            assert privacy.delta == 1e-5
            assert privacy.noise_seed == cell.config.seed
            assert privacy.sampling == "all"
            assert cell.method == "pacpfl"
        assert cell.config.pv.weather == "some/weather.csv"
    for dataset in privacy_study.SUBJECTS:
        assert len({cell.config.data for cell in cells if cell.dataset == dataset}) == 1
    polynomial = next(c.config.data for c in cells if c.dataset == "polynomial")
    assert (polynomial.clients, polynomial.samples) == (120, 10)


def test_names_in_the_table_have_titles() -> None:
    assert {cell.name for cell in privacy_study.cells([0])} <= set(privacy_study.titles())


def test_a_look_is_small() -> None:
    cells = privacy_study.cells([0], quick=True)
    assert {cell.name for cell in cells} == {
        *("none", "alone", "gaussian-8", "laplace-8", "paper-8")
    }
    assert all(cell.config.train.rounds <= 20 and cell.config.data.clients <= 12 for cell in cells)


@pytest.mark.parametrize(
    ("epsilon", "source"), [(1.0, 2.0), (2.0, 2.0), (4.0, 8.0), (8.0, 8.0), (32.0, 8.0)]
)
def test_settings_come_from_the_nearest_searched_epsilon(epsilon: float, source: float) -> None:
    assert privacy_study.searched(epsilon) == source


def test_every_private_row_has_settings_that_say_how_they_were_found() -> None:
    for dataset, subject in privacy_study.SUBJECTS.items():
        for mode in subject.modes:
            for epsilon in privacy_study.SEARCHED:
                text = privacy_study._packaged(f"{dataset}/{mode}-{epsilon:g}.toml")
                assert "found by" in text and "seeds 10" in text, (dataset, mode, epsilon)
                load(text, "settings", privacy_study.base_config(dataset))


def test_identity_knows_the_budget_and_not_the_folder() -> None:
    def identity(epsilon: float, weather: str = "a/w.csv") -> str:
        config = privacy_study.cell_config("polynomial", "gaussian", epsilon, weather, 0)
        return privacy_study.PrivateCell("polynomial", "x", "pacpfl", config).identity

    assert identity(8.0) == identity(8.0, "b/w.csv")
    assert identity(8.0) != identity(16.0)
    with pytest.raises(InputError, match="no data set"):
        privacy_study.base_config("weather")


def tiny_cells() -> list[Cell]:
    every = privacy_study.cells([0])
    rows = ("none", "gaussian-8")
    return [
        privacy_study.PrivateCell(
            cell.dataset, cell.name, cell.method, override(cell.config, list(TINY))
        )
        for cell in every
        if cell.dataset == "polynomial" and cell.name in rows
    ]


def test_runs_are_kept_and_not_repeated(tmp_path: Path) -> None:
    cells, path = tiny_cells()[1:], tmp_path / "outcomes.jsonl"
    assert privacy_study.run_cells(cells, path) == []
    kept = read_outcomes(path, cells)
    assert set(kept) == {cell.place for cell in cells}
    for found in kept.values():
        assert math.isfinite(found.outcome.groups["new"]["rsmse"])
    before = path.read_bytes()
    assert privacy_study.run_cells(cells, path) == []
    assert path.read_bytes() == before
    # The same rows, written as a study.
    about = privacy_summary.describe(list(kept.values()), [0], "pacpfl reproduce privacy")
    privacy_summary.write_table(tmp_path, list(kept.values()), about)
    assert write_privacy_study(tmp_path) == tmp_path / "report.html"


def test_a_failure_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_cell(cell: Cell, stop: Any) -> Kept:
        if cell.name == "none":
            raise InputError("There is no weather.")
        return Kept(Outcome(*cell.place, 1.0, {}), {})

    monkeypatch.setattr(privacy_study, "run_cell", run_cell)
    cells, path = tiny_cells(), tmp_path / "outcomes.jsonl"
    assert privacy_study.run_cells(cells, path) == [
        "none on polynomial, seed 0: There is no weather."
    ]
    assert set(read_outcomes(path, cells)) == {("polynomial", "gaussian-8", 0)}


def outcomes(values: dict[str, float], dataset: str = "polynomial") -> list[Kept]:
    metric = privacy_study.SUBJECTS[dataset].metric
    return [
        Kept(
            Outcome(dataset, name, seed, 1.0, {g: {metric: value} for g in ("existing", "new")}), {}
        )
        for name, value in values.items()
        for seed in (0, 1)
    ]


POINTS = {
    **{"none": 0.30, "alone": 0.45, "gaussian-1": 0.46, "gaussian-8": 0.33},
    **{"laplace-8": 0.44, "paper-8": 0.40},
}


def test_summary_compares_the_distances_to_no_privacy() -> None:
    sentences = privacy_summary.summary(outcomes(POINTS))
    assert "70% closer" in sentences[0]
    assert "0.030 with gaussian" in sentences[0] and "0.100 with paper" in sentences[0]
    assert sentences[-1].endswith("from epsilon = 8 on.")
    worse = {**POINTS, "gaussian-8": 0.5}
    assert "-100% closer" in privacy_summary.summary(outcomes(worse))[0]
    assert "at none of these" in privacy_summary.summary(outcomes(worse))[-1]
    accuracy = outcomes({"alone": 60.0, "gaussian-2": 50.0, "gaussian-8": 70.0}, "digits")
    assert "from epsilon = 8 on" in privacy_summary.summary(accuracy)[-1]
    assert privacy_summary.summary([]) == ["There is nothing to compare yet."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = [
        *outcomes(POINTS),
        *outcomes({"none": 90.0, "gaussian-8": 70.0, "alone": 60.0}, "digits"),
    ]
    about = privacy_summary.describe(kept, [0, 1], "pacpfl reproduce privacy")
    privacy_summary.write_table(tmp_path, kept, about)
    return tmp_path


def test_table_names_epsilon_delta_adjacency_and_mode(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    found = {row["method"]: row for row in rows if row["dataset"] == "polynomial"}
    privacy = ("mode", "epsilon", "delta", "adjacency")

    def told(name: str) -> list[str]:
        return [found[name][column] for column in privacy]

    add = "add or remove one client"
    assert told("gaussian-8") == ["gaussian", "8.0", "1e-05", add]
    assert told("laplace-8") == ["laplace", "8.0", "0", add]
    assert told("alone") == ["alone", "0", "0", add]
    assert told("none") == ["none", "", "", ""]
    assert float(found["gaussian-8"]["mean"]) == pytest.approx(0.33)
    assert found["gaussian-8"]["seeds"] == "2"


def test_figures_name_delta_and_adjacency(folder: Path) -> None:
    page = write_privacy_study(folder)
    for dataset in ("polynomial", "digits"):
        svg = (folder / "figures" / f"epsilon_{dataset}.svg").read_text()
        assert "delta = 1e-05" in svg and "add or remove one client" in svg
        assert (folder / "figures" / f"epsilon_{dataset}.png").read_bytes()[:4] == b"\x89PNG"
    svg = (folder / "figures" / "epsilon_polynomial.svg").read_text()
    for words in ("Gaussian noise", "no guarantee", "without privacy", "a GP per client"):
        assert words in svg
    text = page.read_text()
    assert "existing clients, Gaussian noise, by epsilon: 1: 0.460" in text
    assert "70% closer" in (folder / "README.md").read_text()
    # The same study gives the same bytes.
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_privacy_study(folder)
    assert all(path.read_bytes() == data for path, data in before.items())


def test_curves_hold_only_what_was_run(folder: Path) -> None:
    record = json.loads((folder / "study.json").read_text())
    curve = record["curves"][0]
    assert curve["modes"]["gaussian"]["points"] == [[1.0, "gaussian-1"], [8.0, "gaussian-8"]]
    assert curve["modes"]["paper"]["points"] == [[8.0, "paper-8"]]


def test_the_command_writes_the_study_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run_cell(cell: Cell, stop: Any) -> Kept:
        ran.append(cell.name)
        metric = privacy_study.SUBJECTS[cell.dataset].metric
        groups = {group: {metric: POINTS[cell.name]} for group in ("existing", "new")}
        return Kept(Outcome(*cell.place, 1.0, groups), {})

    monkeypatch.setattr(privacy_study, "run_cell", run_cell)
    monkeypatch.setattr("sys.argv", ["reproduction", "privacy", "--out", "/some/folder"])
    for only in ("polynomial,none,paper-8", "polynomial"):
        reproduce_privacy(tmp_path, range(1), True, "synthetic", only, 1, None)
    assert sorted(ran) == sorted(["none", "paper-8", "gaussian-8", "laplace-8", "alone"])
    printed = capsys.readouterr().out
    assert "70% closer" in printed and str(tmp_path / "report.html") in printed
    record = json.loads((tmp_path / "study.json").read_text())
    assert record["command"] == "python -m reproduction privacy --out folder"
    assert (tmp_path / "figures" / "epsilon_polynomial.png").exists()
    with pytest.raises(InputError, match="no such row"):
        reproduce_privacy(tmp_path, range(1), True, "synthetic", "gausian-8", 1, None)


def test_every_mode_tries_the_same_proposals() -> None:
    def tried(mode: str, epsilon: float | None) -> list[Any]:
        drawn = privacy_search.proposals("polynomial")
        tasks = list(privacy_search.tasks("polynomial", mode, epsilon, drawn, [100, 101]))
        assert len(tasks) == 2 * len(drawn)
        for task in tasks:
            assert task.cell.config.privacy.mode == mode
            assert task.cell.config.privacy.epsilon == epsilon
        configs = [task.cell.config for task in tasks]
        return [(c.seed, c.train, c.prior, c.privacy.clip) for c in configs]

    assert tried("gaussian", 8.0) == tried("paper", 8.0) == tried("none", None)


@pytest.mark.parametrize("dataset", list(privacy_search.GRIDS))
def test_proposals_are_possible_and_all_different(dataset: str) -> None:
    base, found = privacy_study.base_config(dataset), privacy_search.proposals(dataset)
    configs = [override(base, privacy_search.settings(proposal)) for proposal in found]
    assert len(set(configs)) == len(configs) == math.prod(map(len, privacy_search.GRIDS[dataset]))


def test_the_best_few_are_tried_on_further_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number 1 wins on the first seed, and number 3 in the final; number 0 is not in it."""
    first = {0: 0.9, 1: 0.1, 2: 0.3, 3: 0.2}
    final = {1: 0.8, 2: 0.6, 3: 0.1}
    drawn = privacy_search.proposals("polynomial")[:4]
    asked = []

    def measured(task: privacy_search.Task, stop: Any) -> float:
        settings = task.cell.config
        number = next(n for n, one in enumerate(drawn) if _has(settings, one))
        asked.append((number, settings.seed))
        return first[number] if settings.seed == 100 else final[number]

    monkeypatch.setattr(privacy_search, "measure", measured)
    monkeypatch.setattr(privacy_search, "proposals", lambda dataset: drawn)
    monkeypatch.setattr(privacy_search, "FINALISTS", 3)
    found = privacy_search.search("polynomial", "gaussian", 8.0, [100], [101, 102])
    assert [one.proposal for one in found] == [drawn[3], drawn[2], drawn[1]]
    assert found[0].score == pytest.approx((0.2 + 2 * 0.1) / 3)
    assert sorted(asked) == sorted(
        [(n, 100) for n in range(4)] + [(n, seed) for n in (1, 2, 3) for seed in (101, 102)]
    )


def _has(config: Config, proposal: privacy_search.Proposal) -> bool:
    return config == override(config, privacy_search.settings(proposal))


def test_search_keeps_the_best_mean_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {(0, 100): 0.1, (0, 101): 0.9, (1, 100): 0.4, (1, 101): 0.4, (2, 100): 0.0}

    def measured(task: privacy_search.Task, stop: Any) -> float:
        if (task.number, task.cell.config.seed) == (2, 101):
            raise InputError("broken")
        return scores[task.number, task.cell.config.seed]

    drawn = privacy_search.proposals("polynomial")[:3]
    monkeypatch.setattr(privacy_search, "measure", measured)
    monkeypatch.setattr(privacy_search, "proposals", lambda dataset: drawn)
    found = privacy_search.search("polynomial", "gaussian", 8.0, [100, 101])
    assert [one.proposal for one in found] == [drawn[1], drawn[0], drawn[2]]
    assert found[0].score == pytest.approx(0.4)
    assert found[-1].failures == 1
    text = privacy_search.as_toml(found[0], 3, [100, 101], "the command")
    base = privacy_study.base_config("polynomial")
    assert load(text, "settings", base) == override(base, privacy_search.settings(drawn[1]))
    assert "the command" in text and "seeds 100 to 101" in text
    with pytest.raises(InputError, match="from 100 on"):
        privacy_search.search("polynomial", "gaussian", 8.0, [99])
