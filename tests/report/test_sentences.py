"""The sentences name what the numbers say; how they are worded is in tests/golden/pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from folders import make_run
from scipy import stats

from pacpfl.report import sentences
from pacpfl.report.folder import Run, read_run
from pacpfl.report.judge import judge
from pacpfl.report.measures import ACCURACY, COVERAGE_90, RSMSE, best, number, plus_minus
from pacpfl.report.sentences import Caution


def cautions(run: Run) -> list[Caution]:
    return sentences.cautions(run, judge(run))


def test_a_method_without_uncertainty_and_particles(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", clients=3, methods=("fedavg",)))
    answers = sentences.summary(run, judge(run))
    assert list(answers) == ["What was learned", "How good it is", "How sure it is"]
    assert cautions(run) == []


@pytest.mark.parametrize(
    ("covered", "same"), [(0.90, True), (0.86, True), (0.84, False), (0.96, False)]
)
def test_bands_that_keep_their_promise_within_five_points(
    run: Run, covered: float, same: bool
) -> None:
    def told(share: float) -> str:
        run.metrics["pacpfl"]["existing"]["coverage_90"]["mean"] = share
        return sentences.calibration(run).replace(f" {share:.0%} of", "")

    assert (told(covered) == told(0.91)) == same


def test_nothing_to_warn_about_and_one_particle_cannot_collapse(run: Run) -> None:
    run.clients["coverage_90"] = 0.85
    run.methods["pacpfl"] |= {"particles": 1, "diversity": {"value": 0.0, "collapsed": True}}
    assert cautions(run) == []


def test_a_private_run_names_epsilon_delta_and_neighbours() -> None:
    facts = {
        "mode": "gaussian", "private": True, "strict": True, "epsilon": 1.5, "delta": 1e-6, "budget": 2.0,
        "unit": "sample", "adjacency": "replace", "accountant": "Renyi",
    }  # fmt: skip
    told = sentences.privacy({"privacy": facts})
    for part in ("1.5", "1e-06", "2", "one sample", "Renyi"):
        assert part in told
    spent = facts | {"out_of_budget": True, "rounds_released": 40, "rounds_planned": 50}
    assert "round 37 of 50: 3 rounds" in sentences.privacy({"privacy": spent, "rounds": 37})
    assert sentences.privacy({}) == ""


def test_clients_are_over_confident_beyond_chance_only(run: Run) -> None:
    """Against SciPy's own binomial test, and Holm's bounds written out for four clients."""
    rows = run.rows("pacpfl", "existing").index
    shares, counts = [0.74, 0.75, 0.60, 0.50], [50, 60, 5, 60]
    run.clients.loc[rows, ["coverage_90", "test"]] = list(zip(shares, counts, strict=True))
    run.clients.loc[run.clients["method"] == "pooled", "coverage_90"] = 0.1
    p_values = [
        stats.binomtest(round(share * count), count, 0.9, alternative="less").pvalue
        for share, count in zip(shares, counts, strict=True)
    ]
    in_order = sorted(p_values)
    assert in_order[0] < 0.05 / 4 and in_order[1] < 0.05 / 3 and in_order[2] < 0.05 / 2
    assert p_values[2] == in_order[3] > 0.05
    assert list(judge(run)["overconfident"]) == [True, True, False, True]
    text = cautions(run)[0].text
    assert text.endswith(": existing-04 (50%), existing-01 (74%), existing-02 (75%).")


def test_too_little_data(run: Run) -> None:
    rows = run.rows("pacpfl", "existing").index
    counts = [(7.0, 0.0, 60.0), (8.0, 0.0, 60.0), (3.0, 0.0, 60.0), (5.0, 3.0, 19.0)]
    run.clients.loc[rows, ["samples", "later", "test"]] = counts
    poor, unsure = cautions(run)
    assert "existing-01, existing-03." in poor.text
    assert "19): existing-04." in unsure.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"), (-0.5, "\N{MINUS SIGN}0.500"), (-0.0001, "0.000"),
        (123456.0, "1.23e+05"), (float("nan"), "\N{EN DASH}"), (float("inf"), "\N{INFINITY}"),
        (float("-inf"), "\N{MINUS SIGN}\N{INFINITY}"),
    ],
)  # fmt: skip
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_a_measure_knows_what_is_better_and_how_to_say_it() -> None:
    assert best({"a": 0.4, "b": 0.3, "c": np.nan}, RSMSE) == {"b"}
    assert best({"a": 0.4, "b": 0.3}, ACCURACY) == {"a"}
    assert best({"a": 0.85, "b": 0.97, "c": 0.93}, COVERAGE_90) == {"c"}
    assert best({"a": 0.4}, RSMSE) == set()
    assert RSMSE.gain(0.3, 0.4) == pytest.approx(0.25) and np.isnan(RSMSE.gain(0.3, 0.0))
    assert ACCURACY.gain(0.9, 0.8) == pytest.approx(0.1)
    assert RSMSE.say_size(-0.25) == "25%" and ACCURACY.say_size(0.0249) == "2.5 points"
    assert ACCURACY.say_size(0.01) == "1.0 point"
    assert RSMSE.say_gain(0.25) != RSMSE.say_gain(-0.25)
    assert plus_minus(0.5, 0.125) == "0.500 ± 0.125"
    assert plus_minus(0.5, float("nan")) == plus_minus(0.5, None) == "0.500"
