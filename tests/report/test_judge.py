"""Which method is ahead and whom federating helps: the numbers and the verdicts."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from folders import make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pacpfl.report.folder import Run, read_run
from pacpfl.report.judge import (
    compare,
    holm,
    judge,
    paired_answers,
    paired_difference,
    ranking,
    recovered_kinds,
    surer_than_right,
    too_few_inside,
)  # fmt: skip
from pacpfl.report.sentences import cautions, gain_of_client, whom_it_helps


def set_errors(run: Run, **errors: list[float]) -> None:
    """Give the clients these errors with each method, and the mean to match."""
    for method, values in errors.items():
        run.clients.loc[run.rows(method, "existing").index, "rsmse"] = values
        run.metrics[method]["existing"]["rsmse"]["mean"] = float(np.mean(values))


def test_the_comparison_is_the_paired_t_interval(polynomial: Path) -> None:
    run = read_run(polynomial)
    paired = compare(run, "pacpfl", "vanilla", "existing")
    first, second = (
        run.rows(method, "existing").set_index("client")["rsmse"]
        for method in ("pacpfl", "vanilla")
    )
    interval = stats.ttest_rel(second, first[second.index]).confidence_interval(0.95)
    assert paired is not None
    np.testing.assert_allclose([paired.low, paired.high], [interval.low, interval.high])
    assert paired.clients == 24
    assert paired.better == sum(first[name] < second[name] for name in first.index)


def test_the_comparison_pairs_by_name_and_not_by_row(run: Run) -> None:
    before = compare(run, "pacpfl", "vanilla", "existing")
    main = run.clients["method"] == "pacpfl"
    turned = replace(run, clients=pd.concat([run.clients[main], run.clients[~main][::-1]]))
    assert before == compare(turned, "pacpfl", "vanilla", "existing")


def test_one_client_is_no_comparison(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", clients=2))
    run.clients.loc[run.clients["client"] == "new-02", "rsmse"] = np.nan
    assert compare(run, "pacpfl", "vanilla", "new") is None


def test_methods_are_ranked_and_the_first_two_compared(run: Run) -> None:
    set_errors(
        run, pacpfl=[0.5, 0.5, 0.5, 0.5], vanilla=[0.3, 0.5, 0.2, 0.4], pooled=[0.4, 0.3, 0.4, 0.38],
    )  # fmt: skip
    ranked = ranking(run, "existing")
    assert [method for method, _ in ranked] == ["vanilla", "pooled", "pacpfl"]
    assert [mean for _, mean in ranked] == pytest.approx([0.35, 0.37, 0.5])
    paired = compare(run, "vanilla", "pooled", "existing")
    assert paired is not None
    assert (paired.better, paired.clients, paired.clear) == (2, 4, False)
    set_errors(run, vanilla=[0.1, 0.11, 0.09, 0.1])
    paired = compare(run, "vanilla", "pooled", "existing")
    assert paired is not None and paired.clear


def test_kinds_are_matched_as_well_as_any_naming_could(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", clients=12, components=2, methods=("pacpfl",)))
    assert recovered_kinds(run, "existing") == (12, 12)
    random = np.random.default_rng(4)
    values = random.dirichlet(np.ones(3), size=12).astype(np.float32)
    kinds = random.choice(["a", "b", "c", ""], size=12)
    run.arrays["responsibilities/existing"] = values
    run.clients.loc[run.clients["group"] == "existing", "kind"] = kinds
    best = max(
        sum(kind == naming[int(row.argmax())] for kind, row in zip(kinds, values, strict=True))
        for naming in itertools.permutations("abc")
    )
    assert recovered_kinds(run, "existing") == (best, int((kinds != "").sum()))
    run.clients["kind"] = ""
    assert recovered_kinds(run, "existing") is None


def set_saved(run: Run, samples: list[list[float]]) -> None:
    """What is saved on each test sample of each client."""
    table = [(len(s), np.sum(s), np.sum(np.square(s))) for s in samples]
    run.arrays["gain/vanilla/existing"] = np.array(table)


def test_verdicts_follow_paired_tests_of_all_clients_together(run: Run) -> None:
    random = np.random.default_rng(1)
    draws = [random.normal(size=50) for _ in range(4)]
    scaled = [(values - values.mean()) / values.std(ddof=1) for values in draws]
    shifts = (2.0, -2.0, 0.05, 2.15 / 50**0.5)  # the last one: t = 2.15
    saved = [values + shift for values, shift in zip(scaled, shifts, strict=True)]
    set_errors(run, pacpfl=[0.3, 0.5, 0.39, 0.38], vanilla=[0.4, 0.4, 0.4, 0.4])
    set_saved(run, [list(values) for values in saved])
    p_values = [stats.ttest_1samp(values, 0).pvalue for values in saved]
    assert 0.05 / 2 < p_values[3] < 0.05, "clear alone, not among four"
    judged = judge(run)
    assert list(judged["gain"]) == pytest.approx([0.25, -0.25, 0.025, 0.05])
    assert list(judged["verdict"]) == ["helped", "hurt", "chance", "chance"]
    (caution,) = [c for c in cautions(run, judged) if "existing-02" in c.text]
    assert "better alone" in caution.title


def test_a_run_that_kept_no_pairs_tells_the_gain_and_no_verdict(run: Run) -> None:
    del run.arrays["gain/vanilla/existing"]
    judged = judge(run)
    assert set(judged["verdict"]) == {"unknown"}
    assert np.isfinite(judged["gain"]).all()
    assert len(whom_it_helps(run, judged)) == 2, "nothing is said about chance"


def test_the_best_of_those_that_go_alone_is_the_one_to_compare_with(run: Run) -> None:
    run.record["methods"]["ridge"] = {"title": "Ridge per client"}
    more = run.clients[run.clients["method"] == "vanilla"].copy()
    more["method"] = "ridge"
    for shift, expected in ((-0.01, "ridge"), (0.01, "vanilla")):
        rows = more.copy()
        rows["rsmse"] += shift
        table = pd.concat([run.clients, rows], ignore_index=True)
        assert replace(run, clients=table).alone == expected


@pytest.mark.parametrize(
    ("methods", "told"), [(("pacpfl", "pooled"), 1), (("vanilla", "pooled"), 0)]
)
def test_without_another_that_goes_alone_there_is_nothing_to_compare_with(
    tmp_path: Path, methods: tuple[str, ...], told: int
) -> None:
    run = read_run(make_run(tmp_path / "run", clients=3, methods=methods))
    assert run.main == methods[0]
    assert run.alone is None
    judged = judge(run)
    assert judged["gain"].isna().all()
    assert len(whom_it_helps(run, judged)) == told, "a way to compare, unless it goes alone itself"


def test_a_group_that_loses_on_average_is_warned_of(run: Run) -> None:
    def warned() -> bool:
        return any("existing clients" in c.title for c in cautions(run, judge(run)))

    set_errors(run, pacpfl=[0.50, 0.52, 0.49, 0.51], vanilla=[0.40, 0.41, 0.40, 0.39])
    assert warned()
    set_errors(run, vanilla=[0.60, 0.41, 0.60, 0.39])
    assert not warned()


def test_every_verdict_on_a_client_is_told_differently(run: Run) -> None:
    set_errors(run, pacpfl=[0.3, 0.5, 0.4, 0.4], vanilla=[0.4, 0.4, 0.4, np.nan])
    set_saved(run, [[2.0, 2.1] * 20, [-2.0, 2.1] * 20, [0.0] * 40, [1.0] * 40])
    told = [gain_of_client(run, client) for client in judge(run).itertuples()]
    assert len(set(told)) == 4
    assert "25%" in told[0] and "0.300" in told[0] and "0.400" in told[0]


# ---- Tests: against SciPy, against enumeration, and Holm's procedure against its meaning


def closed_test(p_values: list[float], level: float) -> list[bool]:
    """A hypothesis falls if every set it belongs to is rejected by Bonferroni: Holm's definition."""
    places = range(len(p_values))
    sets = [s for size in range(1, len(p_values) + 1) for s in itertools.combinations(places, size)]
    rejected = {s: min(p_values[place] for place in s) <= level / len(s) for s in sets}
    return [all(rejected[s] for s in sets if place in s) for place in places]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=6))
def test_holm_is_the_closed_test(p_values: list[float]) -> None:
    assert holm(np.array(p_values), 0.05).tolist() == closed_test(p_values, 0.05)


def test_holm_counts_only_what_was_tested() -> None:
    values = np.array([0.02, np.nan, 0.03, np.nan])
    assert holm(values, 0.05).tolist() == [True, False, True, False]
    assert holm(np.array([np.nan])).tolist() == [False]
    assert holm(np.array([])).tolist() == []


def test_coverage_is_tested_as_scipy_does() -> None:
    shares, counts = np.array([0.8, 0.9, 0.55, np.nan]), np.array([10, 100, 20, 50])
    expected = [
        stats.binomtest(k, n, 0.9, alternative="less").pvalue
        for k, n in ((8, 10), (90, 100), (11, 20))
    ]
    found = too_few_inside(shares, counts, 0.9)
    np.testing.assert_allclose(found[:3], expected, rtol=1e-12)
    assert np.isnan(found[3])


def test_confidence_is_tested_by_enumeration() -> None:
    """Every pattern of right and wrong answers of eight, each with the probability of its bin."""
    table = np.array([[3, 1, 1.2], [0, 0, 0.0], [5, 2, 4.5]])
    chances = [0.4] * 3 + [0.9] * 5
    total = 0.0
    for pattern in itertools.product((0, 1), repeat=8):
        if sum(pattern) <= 3:
            total += np.prod([c if hit else 1 - c for c, hit in zip(chances, pattern, strict=True)])
    assert surer_than_right(table) == pytest.approx(total, rel=1e-10)
    assert np.isnan(surer_than_right(np.zeros((4, 3))))
    assert surer_than_right(np.array([[4.0, 4.0, 4.0]])) == 1.0


def test_differences_are_tested_as_scipy_does() -> None:
    random = np.random.default_rng(2)
    first, second = random.normal(0.3, 1, 40), random.normal(0, 1, 40)
    gap = first - second
    expected = stats.ttest_rel(first, second).pvalue
    assert paired_difference(40, gap.sum(), (gap**2).sum()) == pytest.approx(expected, rel=1e-9)
    assert paired_difference(5, 0.0, 0.0) == 1.0
    assert paired_difference(5, -10.0, 20.0) == 0.0  # each sample -2
    assert np.isnan(paired_difference(1, 1.0, 1.0))
    assert np.isnan(paired_difference(5, np.nan, 1.0))


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (3, 1), (1, 9), (5, 5), (12, 0)])
def test_answers_are_tested_as_scipy_does(wins: int, losses: int) -> None:
    found = paired_answers(50, wins - losses, wins + losses)
    count = wins + losses
    expected = stats.binomtest(wins, count, 0.5).pvalue if count else 1.0
    assert found == pytest.approx(expected, rel=1e-12)
