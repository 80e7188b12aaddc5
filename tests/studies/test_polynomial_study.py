"""What the Polynomial study promises, with the shipped configurations and five seeds."""

from __future__ import annotations

import numpy as np
import pytest

from pacpfl.cli import shipped
from pacpfl.config import override
from pacpfl.engines.evaluate import Evaluation
from pacpfl.studies import polynomial
from pacpfl.studies.run import Watcher, diversity_in_words
from pacpfl.studies.table import Outcome, Published, rows

SEEDS = range(5)
NEEDED = {
    "polynomial": ("pacpfl", "vanilla", "pooled"),
    "polynomial-opposite": ("mixture-K1", "mixture-K2"),
}


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str, str, str], float]:
    suite = {d: {n: polynomial.SUITE[d][n] for n in names} for d, names in NEEDED.items()}
    configs = {name: shipped(name) for name in suite}
    outcomes = polynomial.run_study(configs, SEEDS, Watcher(), suite=suite)
    return {
        (r["dataset"], r["group"], r["method"], r["metric"]): r["mean"]
        for r in rows(outcomes, polynomial.PUBLISHED)
    }


@pytest.mark.parametrize("group", ["existing", "new"])
@pytest.mark.parametrize("other", ["vanilla", "pooled"])
def test_learning_together_beats_going_alone_and_pooling(table, group, other):
    ours = table["polynomial", group, "pacpfl", "rsmse"]
    assert ours < table["polynomial", group, other, "rsmse"]


@pytest.mark.parametrize("group", ["existing", "new"])
def test_predictions_are_calibrated(table, group):
    assert table["polynomial", group, "pacpfl", "ce"] <= 0.12
    assert 0.85 <= table["polynomial", group, "pacpfl", "coverage_90"] <= 0.96


@pytest.mark.parametrize("group", ["existing", "new"])
def test_a_mixture_prior_beats_a_single_one_by_a_fifth_and_tells_the_kinds_apart(table, group):
    single = table["polynomial-opposite", group, "mixture-K1", "rsmse"]
    mixed = table["polynomial-opposite", group, "mixture-K2", "rsmse"]
    assert mixed <= 0.8 * single
    assert table["polynomial-opposite", group, "mixture-K2", "recovered"] >= 0.95


def test_recovered_kinds_ignores_how_members_are_numbered():
    kinds = np.array([0, 0, 1, 1])
    shares = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])

    def share(values: np.ndarray | None) -> float | None:
        return polynomial.recovered_kinds(
            Evaluation([], np.zeros(0), [], [], [], None, values), kinds
        )

    assert share(shares) == share(shares[:, ::-1]) == 0.75
    assert share(None) is None
    assert share(np.ones((4, 3)) / 3) is None


def test_rows_are_means_and_intervals_over_seeds_with_the_papers_value_beside():
    outcomes = [
        Outcome("d", "m", seed, 2.0 * seed, {"new": {"rsmse": value}})
        for seed, value in enumerate((1.0, 2.0, 3.0))
    ]
    (row,) = rows(outcomes, Published({("d", "new", "m", "rsmse"): (0.5, 0.1)}))
    assert (row["mean"], row["seeds"], row["seconds"]) == (2.0, 3, 2.0)
    # Student's t with two degrees of freedom: 4.3027; standard error 1 / sqrt(3).
    assert row["ci95"] == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)
    assert (row["paper_mean"], row["paper_ci95"]) == (0.5, 0.1)


def test_equal_particles_are_reported_as_collapsed_in_words():
    collapsed = diversity_in_words(4, 1e-4, 5.0)
    assert collapsed["collapsed"] and "collapsed" in collapsed["words"]
    apart = diversity_in_words(4, 0.3, 5.0)
    assert not apart["collapsed"] and "differ" in apart["words"]
    assert not diversity_in_words(1, 0.0, 0.0)["collapsed"]


def test_the_summary_is_computed_from_every_variant():
    configs = {
        name: override(shipped(name), ["rounds=2", "data.clients=4", "new_clients=2", "samples=4"])
        for name in polynomial.SUITE
    }
    outcomes = polynomial.run_study(
        configs, [7], Watcher(), ["mean_widths=[4]", "kernel_widths=[4]"]
    )
    about = polynomial.describe(outcomes, [7], "pacpfl reproduce polynomial --quick")
    known = {(o.dataset, o.method) for o in outcomes}
    for panel in about["panels"]:
        names = panel.get("methods") or [name for _, name in panel["points"]]
        assert {(panel["dataset"], name) for name in names} <= known
    found = next(o for o in outcomes if (o.dataset, o.method) == ("polynomial", "pacpfl"))
    assert f"{found.groups['existing']['rsmse']:.3f}" in about["summary"][0]
