"""The page of a classification run: its numbers, its figures, its words, and what may be missing."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pacpfl.errors import InputError
from pacpfl.report import class_plots, class_words, write_report
from pacpfl.report.cautions import cautions
from pacpfl.report.compare import compare
from pacpfl.report.figures import boxes
from pacpfl.report.folder import Run, read_run
from pacpfl.report.style import drawing
from pacpfl.report.tables import best_methods, client_table, method_table, shown_measures
from pacpfl.report.words import summary

TITLES = {"pacpfl": "PAC-PFL", "fedavg": "FedAvg", "vanilla": "BNN per client"}
# How sure a method is of its answer, and how often that answer is right.
SKILL = {"pacpfl": (0.86, 0.85), "fedavg": (0.97, 0.80), "vanilla": (0.45, 0.60)}
CLIENTS, TESTED, CLASSES, SIDE = 12, 30, 10, 8
COLUMNS = ("accuracy", "ce_own", "nll", "brier")


def table_of(sure: np.ndarray, right: np.ndarray) -> np.ndarray:
    """[20, 3]: how many, how many right, sum of confidences; counted one by one."""
    table = np.zeros((20, 3))
    for confidence, correct in zip(sure, right, strict=True):
        table[max(0, int(np.ceil(confidence * 20)) - 1)] += (1, correct, confidence)
    return table


def error_of(table: np.ndarray) -> float:
    return float(np.abs(table[:, 1] - table[:, 2]).sum() / table[:, 0].sum())


def make_run(
    folder: Path,
    *,
    methods: tuple[str, ...] = tuple(TITLES),
    groups: tuple[str, ...] = ("existing", "new"),
    names: tuple[str, ...] = (),
    without: str = "nothing",
    skill: dict[str, tuple[float, float]] = SKILL,
) -> Path:
    """A run folder as docs/run-folder.md describes it for a classification run."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    metrics: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {"calibration/levels": np.linspace(0, 1, 20)}
    people = {
        g: [*names[: CLIENTS if g == "existing" else 0]] or [f"{g}-{n:02d}" for n in range(CLIENTS)]
        for g in groups
    }
    for method in methods:
        confidence, chance = skill[method]
        for group in groups:
            tables = []
            for name in people[group]:
                sure = np.clip(random.normal(confidence, 0.03, TESTED), 0.2, 1.0)
                right = random.uniform(size=TESTED) < chance
                tables.append(table_of(sure, right))
                rows.append(
                    {
                        "method": method, "group": group, "client": name, "kind": "",
                        "samples": 20, "later": 0, "test": TESTED,
                        "accuracy": right.mean(), "ce_own": error_of(tables[-1]),
                        "nll": float(random.uniform(0.2, 0.6)), "brier": float(random.uniform(0.1, 0.3)),
                    }
                )  # fmt: skip
            arrays[f"calibration/{method}/{group}"] = np.stack(tables)
            own = rows[-len(people[group]) :]
            cells = {}
            for column in COLUMNS:
                values = np.array([row[column] for row in own])
                cells[column] = {
                    "mean": values.mean(), "ci95": 2 * values.std() / len(own) ** 0.5, "n": len(own)
                }  # fmt: skip
            together = error_of(np.sum(tables, axis=0))
            cells["ce"] = {"mean": together, "ci95": None, "n": len(own)}
            metrics.setdefault(method, {})[group] = cells
    for group in groups:
        # Two answers of each kind: right and sure, right and in doubt, wrong.
        labels = np.array([3, 7, 1, 4, 9, 5])
        probabilities = np.full((6, CLASSES), 0.01)
        for place, (label, chance) in enumerate(
            zip(labels, (0.9, 0.8, 0.4, 0.3, 0.1, 0.2), strict=True)
        ):
            rest = (1 - chance) / (CLASSES - 1)
            probabilities[place] = rest if place < 4 else rest / 4
            probabilities[place, label] = chance
            if place >= 4:
                probabilities[place, (label + 1) % CLASSES] = 1 - chance - 8 * rest / 4
        arrays |= {
            f"examples/{group}/images": random.integers(256, size=(6, SIDE, SIDE)).astype(np.uint8),
            f"examples/{group}/labels": labels.astype(np.int32),
            f"examples/{group}/probabilities": probabilities.astype(np.float32),
            f"examples/{group}/client": np.arange(6, dtype=np.int32),
            f"examples/{group}/kind": np.repeat([0, 1, 2], 2).astype(np.int32),
        }
    record = {
        "dataset": "digits", "status": "complete", "seed": 0,
        "finished": "2026-11-15T08:00:14+00:00", "machine": "Linux, 2 cores",
        "clients": {"existing": CLIENTS, "new": CLIENTS, "classes": CLASSES, "target": "label",
                    "features": [f"pixel {n}" for n in range(SIDE**2)],
                    "samples": {"min": 20, "median": 20, "max": 20}},
        "methods": {name: {"title": TITLES[name], "seconds": 1.0} for name in methods},
    }  # fmt: skip
    if "pacpfl" in methods:
        record["methods"]["pacpfl"] |= {  # type: ignore[index]
            "particles": 3, "rounds": 600, "skipped_steps": 0,
            "diversity": {"value": 0.2, "at_start": 0.1, "collapsed": False, "words": "They differ."},
        }  # fmt: skip
    save_file(
        {key: value for key, value in arrays.items() if not key.startswith(without)},
        folder / "arrays.safetensors",
    )
    with (folder / "clients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("class_runs") / "digits")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return read_run(folder)


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return write_report(folder)


def test_the_figures_are_those_of_classes(page: Path) -> None:
    drawn = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert drawn == {"boxes", "reliability", "examples_existing", "examples_new"}
    assert {path.stem for path in (page.parent / "figures").glob("*.png")} == drawn


def test_the_table_of_methods_is_metrics_json(
    page: Path, run: Run, read_page: Callable[[Path], Any]
) -> None:
    measures = read_page(page).one("table", id="measures")
    heads = [head.text.split(" ")[0] for head in measures.all("th", scope="col")]
    assert heads == ["Method", "Accuracy", "CE", "NLL", "Brier"]
    for group in run.groups:
        (body,) = measures.all("tbody", **{"data-group": group})
        shown = {
            row.one("th").text: [cell.attributes["data-value"] for cell in row.all("td")]
            for row in body.all("tr")
            if row.all("td")
        }
        for method, title in run.titles.items():
            expected = [
                run.metrics[method][group][m]["mean"] for m in ("accuracy", "ce", "nll", "brier")
            ]
            assert [float(value) for value in shown[title]] == pytest.approx(expected)
        cells = {row.title: row.cells for row in method_table(run)[group]}
        assert "±" in cells["PAC-PFL"][0].text
        assert "±" not in cells["PAC-PFL"][1].text, (
            "all clients together have no interval over clients"
        )


def test_the_most_accurate_is_the_best_and_so_is_the_best_calibrated(run: Run) -> None:
    accuracy, ce, *_ = shown_measures(run)
    for group in run.groups:
        means = {m: run.metrics[m][group]["accuracy"]["mean"] for m in run.titles}
        assert best_methods(run, group, accuracy) == {max(means, key=lambda m: means[m])}
        errors = {m: run.metrics[m][group]["ce"]["mean"] for m in run.titles}
        assert best_methods(run, group, ce) == {min(errors, key=lambda m: errors[m])}


def test_the_table_of_clients_has_everyones_accuracy_with_and_without_the_others(run: Run) -> None:
    columns, rows, left_out = client_table(run)
    titles = [column.title for column in columns]
    assert titles == [
        "Client", "Group", "Samples", "Test points", "Accuracy", "Accuracy alone", "Gain",
        "CE of its own", "NLL", "Brier score",
    ]  # fmt: skip
    assert (len(rows), left_out) == (2 * CLIENTS, 0)
    for row, (_, own), (_, alone) in zip(
        rows,
        run.clients[run.clients["method"] == "pacpfl"].iterrows(),
        run.clients[run.clients["method"] == "vanilla"].iterrows(),
        strict=True,
    ):
        cells = dict(zip(titles, row.cells, strict=True))
        assert cells["Client"].text == own["client"] == alone["client"]
        assert float(cells["Accuracy"].value) == own["accuracy"]
        assert float(cells["Accuracy alone"].value) == alone["accuracy"]
        assert float(cells["Gain"].value) == pytest.approx(own["accuracy"] - alone["accuracy"])
        shown = float(cells["Gain"].text.replace("\N{MINUS SIGN}", "-"))
        assert shown == pytest.approx(100 * (own["accuracy"] - alone["accuracy"]), abs=0.0501)


def test_two_methods_are_compared_by_their_accuracy(run: Run) -> None:
    first, second = (run.rows(m, "new")["accuracy"].to_numpy() for m in ("pacpfl", "vanilla"))
    found = compare(run, "pacpfl", "vanilla", "new")
    assert found is not None
    assert found.better == int((first > second).sum())
    assert (found.low + found.high) / 2 == pytest.approx((first - second).mean())


def test_the_summary_tells_accuracy_and_calibration_in_per_cent(run: Run) -> None:
    told = " ".join(text for texts in summary(run).values() for text in texts)
    mean = 100 * run.metrics["pacpfl"]["existing"]["accuracy"]["mean"]
    other = 100 * run.metrics["fedavg"]["existing"]["accuracy"]["mean"]
    assert f"PAC-PFL is the most accurate, with {mean:.1f}% of the test samples" in told
    assert f"{mean - other:.1f} points more than FedAvg ({other:.1f}%)" in told
    assert f"{run.metrics['pacpfl']['new']['ce']['mean']:.3f} for new clients" in told
    assert "it means what it says" in told
    assert "RSMSE" not in told
    assert "band" not in told


@pytest.mark.parametrize(
    ("sure", "right", "words", "warned"),
    [
        (0.86, 0.85, "it means what it says", False),
        (0.97, 0.80, "it is over-confident", True),
        (0.45, 0.60, "it is more careful than it needs to be", False),
    ],
)
def test_confidence_is_weighed_against_how_often_it_is_right(
    tmp_path: Path, sure: float, right: float, words: str, warned: bool
) -> None:
    run = read_run(make_run(tmp_path / "run", methods=("pacpfl",), skill={"pacpfl": (sure, right)}))
    found = class_words.confidence_and_accuracy(run, "pacpfl", "existing")
    assert found is not None
    assert found[0] == pytest.approx(sure, abs=0.01)
    assert found[1] == pytest.approx(run.rows("pacpfl", "existing")["accuracy"].mean())
    assert words in class_words.calibration(run)
    titles = [caution.title for caution in cautions(run)]
    assert any("over-confident" in title for title in titles) == warned


def test_a_method_that_comes_second_is_told_its_place(tmp_path: Path) -> None:
    skill = {"pacpfl": (0.7, 0.5), "fedavg": (0.95, 0.95)}
    run = read_run(make_run(tmp_path / "run", methods=("pacpfl", "fedavg"), skill=skill))
    assert "PAC-PFL is in place 2 of 2" in class_words.winner(run, "existing")
    alone = read_run(make_run(tmp_path / "alone", methods=("fedavg",), skill=skill))
    assert class_words.winner(alone, "new").startswith("On new clients FedAvg names 9")
    assert class_words.points(0.01) == "1.0 point"
    assert class_words.points(0.0249) == "2.5 points"


def test_the_reliability_diagram_draws_bins_that_hold_enough(run: Run) -> None:
    with drawing():
        figure = class_plots.reliability(run)
    assert figure is not None
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "Existing clients",
        "New clients",
    ]
    drawn = figure.axes[1].collections  # one for each method, in their order
    assert len(drawn) == len(TITLES)
    for method, marks in zip(TITLES, drawn, strict=True):
        table = run.arrays[f"calibration/{method}/new"].sum(0)
        expected = [(c / n, r / n) for n, r, c in table if n >= class_plots.LEAST_IN_A_BIN]
        np.testing.assert_allclose(marks.get_offsets(), expected)
        assert len(expected) < np.count_nonzero(table[:, 0]), "some bins hold too few"


def test_examples_show_the_image_the_truth_and_the_likeliest_classes(run: Run) -> None:
    figure = class_plots.examples(run, "existing")
    assert figure is not None
    pictures = [axis for axis in figure.axes if axis.images]
    bars = [axis for axis in figure.axes if axis.patches]
    assert len(pictures) == len(bars) == 6
    labels = run.arrays["examples/existing/labels"]
    chances = run.arrays["examples/existing/probabilities"]
    pixels = run.arrays["examples/existing/images"]
    for place, (picture, bar) in enumerate(zip(pictures, bars, strict=True)):
        assert picture.get_xlabel() == f"is {labels[place]}"
        shown = np.asarray(picture.images[0].get_array(), float)
        np.testing.assert_allclose(shown, 1 - pixels[place] / pixels[place].max())
        widths = [patch.get_width() for patch in bar.patches]
        assert widths == pytest.approx(np.sort(chances[place])[::-1][:3])
        names = [text.get_text() for text in bar.get_yticklabels()]
        assert names[0] == str(chances[place].argmax())
        hatched = [bool(patch.get_hatch()) for patch in bar.patches]
        assert hatched == [name != str(labels[place]) for name in names]


def test_classes_have_the_names_people_use() -> None:
    assert [class_plots.class_name(n, 62) for n in (0, 9, 10, 35, 36, 61)] == list("09AZaz")
    assert class_plots.class_name(7, 10) == "7"
    assert class_plots.class_name(11, 12) == "11"


def test_the_page_says_nothing_about_bands_or_pixels(
    page: Path, read_page: Callable[[Path], Any]
) -> None:
    text = read_page(page).one("main").text
    for word in ("RSMSE", "band", "coverage"):
        assert word not in text, word
    assert "FedAvg" in text
    about = read_page(page).one("ul", _class="about").text
    assert "features" not in about
    details = read_page(page).one("section", id="details").text
    assert "pixel 0" in details
    assert "pixel 50" not in details
    assert f"({SIDE**2} in all)" in details


def test_every_figure_has_words_for_those_who_cannot_see_it(
    page: Path, read_page: Callable[[Path], Any]
) -> None:
    seen = [svg for svg in read_page(page).all("svg") if "hidden" not in svg.attributes]
    labels = [svg.attributes["aria-label"] for svg in seen]
    (reliability,) = [label for label in labels if label.startswith("Reliability")]
    assert re.search(r"FedAvg, new clients: 9\d\.\d% sure on average, \d\d\.\d% right", reliability)
    shown = [label for label in labels if label.startswith("Images of 6")]
    assert len(shown) == 2
    assert "Wrong: a 9 taken for 0 (" in shown[0]
    assert "Right and sure: a 3 taken for 3 (90%)" in shown[0]


def test_images_travel_inside_the_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count('href="data:image/png;base64,') == 12
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", methods=("fedavg",), groups=("existing",))
    before = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == before


@pytest.mark.parametrize(
    ("without", "gone"), [("examples", "examples_new"), ("calibration/", "reliability")]
)
def test_what_a_run_did_not_keep_is_left_out(tmp_path: Path, without: str, gone: str) -> None:
    run = make_run(tmp_path / "run", methods=("fedavg",), groups=("new",), without=without)
    page = write_report(run)
    drawn = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert gone not in drawn
    assert "boxes" in drawn
    if without.startswith("calibration"):
        told = class_words.calibration(read_run(page.parent))
        assert told == "FedAvg says nothing about its uncertainty in this run."


def test_names_are_escaped(tmp_path: Path) -> None:
    names = tuple(f"<b>writer & {n}</b>" for n in range(CLIENTS))
    run = make_run(tmp_path / "run", names=names, methods=("pacpfl",), groups=("existing",))
    page = write_report(run)
    text = page.read_text(encoding="utf-8")
    assert "<b>writer" not in text
    assert "&lt;b&gt;writer &amp; 0&lt;/b&gt;" in text


def test_tables_that_do_not_fit_the_clients_are_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", methods=("pacpfl",))
    arrays = load_file(folder / "arrays.safetensors")
    arrays["calibration/pacpfl/new"] = arrays["calibration/pacpfl/new"][:-1].copy()
    save_file(arrays, folder / "arrays.safetensors")
    with pytest.raises(
        InputError, match=r"11 rows in calibration/pacpfl/new but .* 12 new clients"
    ):
        write_report(folder)


def test_boxes_are_of_accuracy_and_of_what_clients_have_alone(run: Run) -> None:
    figure = boxes(run)
    assert figure is not None
    labels = {axis.get_xlabel().split(" (")[0] for axis in figure.axes}
    assert labels == {"Accuracy", "NLL", "Brier score"}
    assert {axis.get_xscale() for axis in figure.axes} == {"linear"}
