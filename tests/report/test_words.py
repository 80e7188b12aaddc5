"""The sentences say what the numbers say."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pacpfl.report.cautions import cautions
from pacpfl.report.compare import compare
from pacpfl.report.folder import Run, read_run
from pacpfl.report.measures import number
from pacpfl.report.words import recovered_kinds, summary


def sentences(run: Run) -> list[str]:
    """The whole summary, without its questions."""
    return [text for texts in summary(run).values() for text in texts]


def set_scores(run: Run, group: str, **scores: list[float]) -> None:
    """Give the first clients of a group these errors with each method, and the mean to match."""
    for method, values in scores.items():
        rows = run.rows(method, group).index[: len(values)]
        run.clients.loc[rows, "rsmse"] = values
        mean = float(run.rows(method, group)["rsmse"].mean())
        run.metrics[method][group]["rsmse"]["mean"] = mean


@pytest.fixture
def small(tmp_path: Path, build: Callable[..., Path]) -> Run:
    """Four existing clients, three methods."""
    return read_run(build(tmp_path / "run", clients=4, groups=("existing",)))


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


def test_the_comparison_pairs_by_name_and_not_by_row(small: Run) -> None:
    set_scores(small, "existing", pacpfl=[0.1, 0.2, 0.3, 0.4], vanilla=[0.2, 0.3, 0.4, 0.5])
    before = compare(small, "pacpfl", "vanilla", "existing")
    upside_down = small.clients.iloc[::-1].copy()
    upside_down.loc[upside_down["method"] == "pacpfl"] = small.clients[
        small.clients["method"] == "pacpfl"
    ]
    turned = Run(small.name, small.record, small.metrics, upside_down, small.arrays, "")
    assert before == compare(turned, "pacpfl", "vanilla", "existing")


def test_one_client_is_no_comparison(tmp_path: Path, build: Callable[..., Path]) -> None:
    run = read_run(build(tmp_path / "run", clients=2))
    run.clients.loc[run.clients["client"] == "new-02", "rsmse"] = np.nan
    assert compare(run, "pacpfl", "vanilla", "new") is None


def test_the_summary_names_the_winner_and_by_how_much(small: Run) -> None:
    set_scores(
        small, "existing",
        pacpfl=[0.30, 0.31, 0.29, 0.30], vanilla=[0.40, 0.41, 0.39, 0.40], pooled=[2, 2, 2, 2],
    )  # fmt: skip
    text = summary(small)
    assert list(text) == [
        "What was learned", "How good it is", "How sure it is", "Whom it helps"
    ]  # fmt: skip
    assert text["How good it is"] == [
        "On existing clients PAC-PFL is the most accurate, with an RSMSE of 0.300: 25% below "
        "GP per client (0.400) and smaller for 4 of 4 clients."
    ]
    assert text["What was learned"] == [
        "PAC-PFL learned from 4 clients with 10 samples each.",
        "Its 4 particles stayed different (diversity 0.310, 0.900 at the start).",
        "No training step was skipped.",
    ]


def test_the_summary_is_honest_when_another_method_wins_by_chance(small: Run) -> None:
    set_scores(
        small, "existing",
        pacpfl=[0.5, 0.5, 0.5, 0.5], vanilla=[0.3, 0.5, 0.2, 0.4], pooled=[0.4, 0.3, 0.4, 0.38],
    )  # fmt: skip
    (told,) = summary(small)["How good it is"]
    assert told == (
        "On existing clients GP per client is the most accurate, with an RSMSE of 0.350: 5% below "
        "One GP on pooled data (0.370) and smaller for 2 of 4 clients, a difference that could be "
        "chance; PAC-PFL is in place 3 of 3 (0.500)."
    )


@pytest.mark.parametrize(
    ("covered", "verdict"),
    [
        (0.90, ": they keep their promise."),
        (0.86, ": they keep their promise."),
        (0.84, ": too few, it is over-confident."),
        (0.96, ": more than they promise, so they are wider than they need to be."),
    ],
)
def test_the_summary_judges_the_coverage(small: Run, covered: float, verdict: str) -> None:
    small.metrics["pacpfl"]["existing"]["coverage_90"]["mean"] = covered
    (sentence,) = [text for text in sentences(small) if text.startswith("Its 90% bands")]
    assert sentence.startswith(f"Its 90% bands hold {covered:.0%} of the test points of existing")
    assert sentence.endswith(verdict)


def test_a_method_without_uncertainty(tmp_path: Path, build: Callable[..., Path]) -> None:
    run = read_run(build(tmp_path / "run", clients=3, methods=("fedavg",)))
    text = " ".join(sentences(run))
    assert "FedAvg says nothing about its uncertainty" in text
    assert "On new clients FedAvg reaches an RSMSE of" in text
    assert "particle" not in text
    assert cautions(run) == []


def test_unequal_clients_and_one_particle(small: Run) -> None:
    small.record["clients"]["samples"] = {"min": 3, "median": 10, "max": 61}
    small.methods["pacpfl"]["particles"] = 1
    text = sentences(small)
    assert "with 3 to 61 samples each (half of them at most 10)" in text[0]
    assert "It uses one particle." in text


def test_nothing_to_warn_about(small: Run) -> None:
    small.clients["coverage_90"] = 0.85
    assert cautions(small) == []


def test_collapsed_particles(small: Run) -> None:
    small.methods["pacpfl"]["diversity"] = {
        "value": 0.0, "at_start": 0.9, "collapsed": True, "words": "All the same."
    }  # fmt: skip
    (caution,) = cautions(small)
    assert caution.title == "PAC-PFL: the particles have collapsed"
    assert caution.text.startswith("All the same. Particles that agree")
    assert "function space" in caution.advice
    assert any("4 particles have collapsed" in text for text in sentences(small))
    small.methods["pacpfl"]["particles"] = 1  # one particle cannot collapse
    assert cautions(small) == []


def test_skipped_steps(small: Run) -> None:
    small.methods["pacpfl"]["skipped_steps"] = 3
    assert [caution.title for caution in cautions(small)] == ["PAC-PFL: 3 steps skipped"]
    assert (
        summary(small)["What was learned"][-1] == "3 training steps of 6000 (0.05%) were skipped."
    )


def test_the_condition_on_lambda(small: Run) -> None:
    small.methods["pacpfl"]["lambda_condition"] = False
    (caution,) = cautions(small)
    assert "this run has lambda = 12000 (tau = 0.5)" in caution.text


def test_a_run_that_is_not_finished(small: Run) -> None:
    small.record["status"] = "interrupted"
    (caution,) = cautions(small)
    assert "interrupted" in caution.text


def test_clients_are_over_confident_beyond_chance_only(small: Run) -> None:
    """Against SciPy's own binomial test, and Holm's bounds written out for four clients."""
    rows = small.rows("pacpfl", "existing").index
    shares, counts = [0.74, 0.75, 0.60, 0.50], [50, 60, 5, 60]
    small.clients.loc[rows, "coverage_90"] = shares
    small.clients.loc[rows, "test"] = counts
    small.clients.loc[small.clients["method"] == "pooled", "coverage_90"] = 0.1
    p_values = [
        stats.binomtest(round(share * count), count, 0.9, alternative="less").pvalue
        for share, count in zip(shares, counts, strict=True)
    ]
    in_order = sorted(p_values)
    assert in_order[0] < 0.05 / 4 and in_order[1] < 0.05 / 3 and in_order[2] < 0.05 / 2
    assert p_values[2] == in_order[3] > 0.05
    caution = cautions(small)[0]
    assert caution.title == "PAC-PFL: 3 clients are over-confident"
    assert "(5% level for all 4 clients together)" in caution.text
    assert caution.text.endswith(": existing-04 (50%), existing-01 (74%), existing-02 (75%).")
    assert "3 of 4 clients are told more than holds" in " ".join(sentences(small))


def test_many_overconfident_clients_are_not_all_named(polynomial: Path) -> None:
    run = read_run(polynomial)
    run.clients["coverage_90"] = 0.5
    (caution,) = [c for c in cautions(run) if "over-confident" in c.title]
    assert caution.title == "PAC-PFL: 48 clients are over-confident"
    assert caution.text.endswith("existing-06 (50%) and 42 more.")


def test_too_little_data(small: Run) -> None:
    rows = small.rows("pacpfl", "existing").index
    small.clients.loc[rows, "samples"] = [7.0, 8.0, 3.0, 5.0]
    small.clients.loc[rows, "later"] = [0.0, 0.0, 0.0, 3.0]
    small.clients.loc[rows, "test"] = [60.0, 60.0, 60.0, 19.0]
    poor, unsure = cautions(small)
    assert poor.title == "2 clients have very little data"
    assert "Fewer than 8 samples: existing-01, existing-03." in poor.text
    assert unsure.title == "1 client has too few test samples to be judged alone"
    assert "the fewest 19: existing-04." in unsure.text


@pytest.mark.parametrize(
    ("privacy", "warned"),
    [
        ({"mode": "paper", "private": False, "words": "NO GUARANTEE: x."}, "gaussian or laplace"),
        ({"mode": "gaussian", "private": False, "words": "NOT PRIVATE: y."}, "noise_seed"),
        ({"mode": "gaussian", "private": True, "words": "Private: z."}, ""),
        (None, ""),
    ],
)
def test_a_run_that_is_marked_not_private(
    small: Run, privacy: dict[str, object] | None, warned: str
) -> None:
    small.methods["pacpfl"]["privacy"] = privacy
    found = cautions(small)
    assert len(found) == bool(warned)
    if privacy is not None:
        assert privacy["words"] in summary(small)["What was learned"]
    if warned:
        assert found[0].title == "PAC-PFL: this run is not private"
        assert found[0].text == privacy["words"]  # type: ignore[index]
        assert warned in found[0].advice


def test_kinds_are_matched_as_well_as_any_naming_could(
    tmp_path: Path, build: Callable[..., Path]
) -> None:
    run = read_run(build(tmp_path / "run", clients=12, components=2, methods=("pacpfl",)))
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
