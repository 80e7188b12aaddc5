"""Whom federating helps: the numbers, the verdicts, and the words made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pacpfl.report.cautions import cautions
from pacpfl.report.folder import Run, read_run
from pacpfl.report.gain_words import for_whom, of_one
from pacpfl.report.judge import going_alone, judge
from pacpfl.report.words import summary


@pytest.fixture
def run(tmp_path: Path, build: Callable[..., Path]) -> Run:
    """Four existing clients, with three methods."""
    return read_run(build(tmp_path / "run", clients=4, groups=("existing",)))


def set_errors(run: Run, method: str, values: list[float]) -> None:
    rows = run.rows(method, "existing").index
    run.clients.loc[rows, "rsmse"] = values


def set_saved(run: Run, samples: list[list[float]]) -> None:
    """What is saved on each test sample of each client."""
    table = [(len(s), np.sum(s), np.sum(np.square(s))) for s in samples]
    run.arrays["gain/vanilla/existing"] = np.array(table)


def test_the_gain_is_the_share_of_the_error_that_is_saved(run: Run) -> None:
    set_errors(run, "pacpfl", [0.3, 0.5, 0.2, 0.4])
    set_errors(run, "vanilla", [0.4, 0.4, 0.4, 0.4])
    judged = judge(run)
    assert [c.gain for c in judged] == pytest.approx([0.25, -0.25, 0.5, 0.0])
    assert [c.loses for c in judged] == [False, True, False, False]
    assert [c.place for c in judged] == [0, 1, 2, 3]


def test_verdicts_follow_paired_tests_of_all_clients_together(run: Run) -> None:
    random = np.random.default_rng(1)
    draws = [random.normal(size=50) for _ in range(4)]
    scaled = [(values - values.mean()) / values.std(ddof=1) for values in draws]
    shifts = (2.0, -2.0, 0.05, 2.15 / 50**0.5)  # the last one: t = 2.15
    saved = [values + shift for values, shift in zip(scaled, shifts, strict=True)]
    set_errors(run, "pacpfl", [0.3, 0.5, 0.39, 0.38])
    set_errors(run, "vanilla", [0.4, 0.4, 0.4, 0.4])
    set_saved(run, [list(values) for values in saved])
    p_values = [stats.ttest_1samp(values, 0).pvalue for values in saved]
    assert 0.05 / 2 < p_values[3] < 0.05, "clear alone, not among four"
    judged = judge(run)
    assert [c.verdict for c in judged] == ["helped", "hurt", "chance", "chance"]
    text = " ".join(for_whom(run, judged))
    assert "GP per client), PAC-PFL has the smaller error for 3 of 4 clients" in text
    assert "1 client does better alone, existing-02 the most (25% more error)." in text
    assert "Beyond chance it helps 1 client and hurts 1 (" in text
    (caution,) = [c for c in cautions(run, judged) if "better alone" in c.title]
    assert caution.title == "1 client does better alone"
    assert caution.text.endswith("(5% level for all 4 clients together): existing-02.")


def test_a_run_that_kept_no_pairs_tells_the_gain_and_no_verdict(run: Run) -> None:
    del run.arrays["gain/vanilla/existing"]
    judged = judge(run)
    assert {c.verdict for c in judged} == {"unknown"}
    assert all(np.isfinite(c.gain) for c in judged)
    assert "eyond chance" not in " ".join(for_whom(run, judged))


def test_the_best_of_those_that_go_alone_is_the_one_to_compare_with(run: Run) -> None:
    run.record["methods"]["ridge"] = {"title": "Ridge per client"}
    more = run.clients[run.clients["method"] == "vanilla"].copy()
    more["method"] = "ridge"
    for shift, expected in ((-0.01, "ridge"), (0.01, "vanilla")):
        rows = more.copy()
        rows["rsmse"] += shift
        table = pd.concat([run.clients, rows], ignore_index=True)
        both = Run(run.name, run.record, run.metrics, table, run.arrays, "")
        assert going_alone(both) == expected


def test_without_anybody_going_alone_it_says_how_to_get_one(
    tmp_path: Path, build: Callable[..., Path]
) -> None:
    run = read_run(build(tmp_path / "run", clients=3, methods=("pacpfl", "pooled")))
    assert going_alone(run) is None
    judged = judge(run)
    assert all(np.isnan(c.gain) for c in judged)
    (told,) = summary(run, judged)["Whom it helps"]
    assert '--set \'methods=["pacpfl", "pooled", "vanilla"]\'' in told
    assert of_one(run, judged[0], None, {"pacpfl": 0.3}) == told


def test_the_main_method_is_not_compared_with_itself(
    tmp_path: Path, build: Callable[..., Path]
) -> None:
    run = read_run(build(tmp_path / "run", clients=3, methods=("vanilla", "pooled")))
    assert run.main == "vanilla"
    assert going_alone(run) is None
    assert "Whom it helps" not in summary(run)


def test_a_group_that_loses_on_average_is_warned_of(run: Run) -> None:
    set_errors(run, "pacpfl", [0.50, 0.52, 0.49, 0.51])
    set_errors(run, "vanilla", [0.40, 0.41, 0.40, 0.39])
    (caution,) = [c for c in cautions(run) if "does not pay" in c.title]
    assert caution.title == "Federating does not pay for existing clients"
    assert "GP per client" in caution.text and "better for 4 of 4" in caution.text
    told = " ".join(for_whom(run, judge(run)))
    assert "for 0 of 4 clients; the client in the middle has 26% more error." in told
    set_errors(run, "vanilla", [0.60, 0.41, 0.60, 0.39])
    assert not [c for c in cautions(run) if "does not pay" in c.title]


def test_one_client_in_words(run: Run) -> None:
    set_errors(run, "pacpfl", [0.3, 0.5, 0.4, 0.4])
    set_errors(run, "vanilla", [0.4, 0.4, 0.4, np.nan])
    set_saved(run, [[2.0, 2.1] * 20, [-2.0, 2.1] * 20, [0.0] * 40, [1.0] * 40])
    judged = judge(run)
    leads = [{"pacpfl": own, "vanilla": other} for own, other in
             ((0.3, 0.4), (0.5, 0.4), (0.4, 0.4), (0.4, np.nan))]  # fmt: skip
    told = [
        of_one(run, client, "vanilla", values) for client, values in zip(judged, leads, strict=True)
    ]
    assert told[0] == (
        "Federating left it with 25% less error, more than chance: RSMSE 0.300 with PAC-PFL, 0.400 "
        "alone (GP per client)."
    )
    assert told[1].startswith("Federating left it with 25% more error, which could be chance: ")
    assert told[2].startswith("Federating changed nothing for this client, which could be chance")
    assert told[3] == "There is no number of GP per client for this client to compare with."
