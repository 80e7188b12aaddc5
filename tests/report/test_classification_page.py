"""The page of a classification run: its numbers, its figures, its words, and what may be missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from folders import CLASS_TITLES, make_class_run

from pacpfl.report import figures
from pacpfl.report.folder import Run, read_run
from pacpfl.report.judge import compare, judge, promised_and_kept
from pacpfl.report.page import write_report
from pacpfl.report.sentences import calibration, cautions
from pacpfl.report.style import drawing


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(make_class_run(tmp_path_factory.mktemp("class_runs") / "digits"))


def test_two_methods_are_compared_by_their_accuracy(run: Run) -> None:
    first, second = (run.rows(m, "new")["accuracy"].to_numpy() for m in ("pacpfl", "vanilla"))
    found = compare(run, "pacpfl", "vanilla", "new")
    assert found is not None and found.better == int((first > second).sum())
    assert (found.low + found.high) / 2 == pytest.approx((first - second).mean())


def test_confidence_is_weighed_against_how_often_it_is_right(tmp_path: Path) -> None:
    verdicts = []
    for number, (sure, right) in enumerate(((0.86, 0.85), (0.97, 0.80), (0.45, 0.60))):
        folder = tmp_path / f"run-{number}"
        skill = {"pacpfl": (sure, right)}
        run = read_run(make_class_run(folder, methods=("pacpfl",), skill=skill))
        found = promised_and_kept(run, "pacpfl", "existing")
        assert found is not None
        assert found[0] == pytest.approx(sure, abs=0.01)
        assert found[1] == pytest.approx(run.rows("pacpfl", "existing")["accuracy"].mean())
        verdicts.append(calibration(run).rpartition(". ")[2])
        groups = [c for c in cautions(run, judge(run)) if "existing clients" in c.title]
        assert len(groups) == (number == 1)
    assert len(set(verdicts)) == 3


def test_the_reliability_diagram_draws_bins_that_hold_enough(run: Run) -> None:
    with drawing():
        shown = figures.calibration(run)
    assert shown is not None
    figure = shown.figure
    assert len(figure.axes) == 2
    drawn = figure.axes[1].collections  # one for each method, in their order
    assert len(drawn) == len(CLASS_TITLES)
    for method, marks in zip(CLASS_TITLES, drawn, strict=True):
        table = run.arrays[f"calibration/{method}/new"].sum(0)
        expected = [(c / n, r / n) for n, r, c in table if n >= figures.LEAST_IN_A_BIN]
        np.testing.assert_allclose(marks.get_offsets(), expected)
        assert len(expected) < np.count_nonzero(table[:, 0]), "some bins hold too few"


def test_examples_show_the_image_the_truth_and_the_likeliest_classes(run: Run) -> None:
    shown = figures.examples(run, "existing")
    assert shown is not None
    pictures = [axis for axis in shown.figure.axes if axis.images]
    bars = [axis for axis in shown.figure.axes if axis.patches]
    assert len(pictures) == len(bars) == 12
    labels = run.arrays["examples/existing/labels"]
    chances = run.arrays["examples/existing/probabilities"]
    pixels = run.arrays["examples/existing/images"]
    for place, (picture, bar) in enumerate(zip(pictures, bars, strict=True)):
        assert picture.get_xlabel() == f"is {labels[place]}"
        inks = np.asarray(picture.images[0].get_array(), float)
        np.testing.assert_allclose(inks, 1 - pixels[place] / pixels[place].max())
        widths = [patch.get_width() for patch in bar.patches]
        assert widths == pytest.approx(np.sort(chances[place])[::-1][:3])
        names = [text.get_text() for text in bar.get_yticklabels()]
        assert names[0] == str(chances[place].argmax())
        hatched = [bool(patch.get_hatch()) for patch in bar.patches]
        assert hatched == [name != str(labels[place]) for name in names]


def test_classes_have_the_names_people_use() -> None:
    assert [figures.class_name(n, 62) for n in (0, 9, 10, 35, 36, 61)] == list("09AZaz")
    assert figures.class_name(7, 10) == "7"
    assert figures.class_name(11, 12) == "11"


@pytest.mark.parametrize(
    ("without", "gone"), [("examples", "examples_new"), ("calibration/", "reliability")]
)
def test_what_a_run_did_not_keep_is_left_out(tmp_path: Path, without: str, gone: str) -> None:
    run = make_class_run(tmp_path / "run", methods=("fedavg",), groups=("new",), without=without)
    page = write_report(run)
    drawn = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert gone not in drawn
    assert "boxes" in drawn
