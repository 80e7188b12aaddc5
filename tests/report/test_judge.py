"""Which method is ahead and whom federating helps: the numbers and the verdicts."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from folders import make_run
from scipy import stats

from pacpfl.report.folder import Run, read_run
from pacpfl.report.judge import compare, contest, going_alone, judge, recovered_kinds
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
    set_errors(run, pacpfl=[0.1, 0.2, 0.3, 0.4], vanilla=[0.2, 0.3, 0.4, 0.5])
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
    found = contest(run, "existing")
    assert found is not None and found.paired is not None
    assert [method for method, _ in found.ranking] == ["vanilla", "pooled", "pacpfl"]
    assert [mean for _, mean in found.ranking] == pytest.approx([0.35, 0.37, 0.5])
    assert (found.paired.better, found.paired.clients, found.paired.clear) == (2, 4, False)
    set_errors(run, vanilla=[0.1, 0.11, 0.09, 0.1])
    found = contest(run, "existing")
    assert found is not None and found.paired is not None and found.paired.clear


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


def test_the_gain_is_the_share_of_the_error_that_is_saved(run: Run) -> None:
    set_errors(run, pacpfl=[0.3, 0.5, 0.2, 0.4], vanilla=[0.4, 0.4, 0.4, 0.4])
    judged = judge(run)
    assert [c.gain for c in judged] == pytest.approx([0.25, -0.25, 0.5, 0.0])


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
    assert [c.verdict for c in judged] == ["helped", "hurt", "chance", "chance"]
    (caution,) = [c for c in cautions(run, judged) if "existing-02" in c.text]
    assert "better alone" in caution.title


def test_a_run_that_kept_no_pairs_tells_the_gain_and_no_verdict(run: Run) -> None:
    del run.arrays["gain/vanilla/existing"]
    judged = judge(run)
    assert {c.verdict for c in judged} == {"unknown"}
    assert all(np.isfinite(c.gain) for c in judged)
    assert len(whom_it_helps(run, judged)) == 2, "nothing is said about chance"


def test_the_best_of_those_that_go_alone_is_the_one_to_compare_with(run: Run) -> None:
    run.record["methods"]["ridge"] = {"title": "Ridge per client"}
    more = run.clients[run.clients["method"] == "vanilla"].copy()
    more["method"] = "ridge"
    for shift, expected in ((-0.01, "ridge"), (0.01, "vanilla")):
        rows = more.copy()
        rows["rsmse"] += shift
        table = pd.concat([run.clients, rows], ignore_index=True)
        assert going_alone(replace(run, clients=table)) == expected


@pytest.mark.parametrize(
    ("methods", "told"), [(("pacpfl", "pooled"), 1), (("vanilla", "pooled"), 0)]
)
def test_without_another_that_goes_alone_there_is_nothing_to_compare_with(
    tmp_path: Path, methods: tuple[str, ...], told: int
) -> None:
    run = read_run(make_run(tmp_path / "run", clients=3, methods=methods))
    assert run.main == methods[0]
    assert going_alone(run) is None
    judged = judge(run)
    assert all(np.isnan(c.gain) for c in judged)
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
    told = [gain_of_client(run, client) for client in judge(run)]
    assert len(set(told)) == 4
    assert "25%" in told[0] and "0.300" in told[0] and "0.400" in told[0]
