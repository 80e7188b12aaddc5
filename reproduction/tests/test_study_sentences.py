"""What a study says is computed from its numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pacpfl.data.polynomial import polynomial
from pacpfl.data.settings import PVSettings
from pacpfl.data.weather import Weather
from pacpfl.metrics import LEVELS
from reproduction import sentences
from reproduction.study import Outcome, read_study
from reproduction.table import Entry, Table

Make = Callable[..., Outcome]


@pytest.fixture(scope="module")
def regression(made: Make) -> Table:
    """PAC-PFL wins clearly, wins by a hair, and loses to ridge."""
    numbers = {
        "pacpfl": (("pv-ew-610", 0.40, 0.42), ("polynomial", 0.50, 0.70)),
        "ridge": (("pv-ew-610", 0.46, 0.421), ("polynomial", 0.60, 0.65)),
        "mtl": (("pv-ew-610", 0.50, 0.50),),
    }
    errors = {"pacpfl": 0.05, "ridge": 0.06, "mtl": 0.04}
    outcomes = [
        made(dataset, row, seed, groups={
            "existing": {"rsmse": existing + 0.001 * seed, "ce": errors[row]},
            "new": {"rsmse": new + 0.001 * seed, "ce": errors[row] + 0.01},
        })
        for row, columns in numbers.items()
        for dataset, existing, new in columns
        for seed in range(3)
    ]  # fmt: skip
    return Table(read_study("regression"), outcomes, range(5))


def part(table: Table, keep: Callable[[Outcome], bool]) -> list[str]:
    outcomes = [outcome for outcome in table.outcomes if keep(outcome)]
    return sentences.summary(Table(table.study, outcomes, table.seeds))


def test_a_contest_says_where_it_is_won_and_where_not(regression: Table) -> None:
    first, lost, printed, calibration, above = sentences.summary(regression)
    assert "lowest mean RSMSE of all methods in 3 of 4 columns" in first
    assert "in 2 of them by more than both 95% intervals" in first
    assert "Polynomial, new clients (0.701 against 0.651 of Ridge per client)" in lost
    # 0.401 is printed as 0.40, like the paper's; 0.421 <= 0.43; 0.501 <= 0.58; 0.701 > 0.65.
    assert "at most the paper's in 3 of 4 columns" in printed
    assert "between 0.050 and 0.060, the lowest of all methods in 2 of 4 columns" in calibration
    # PV-EW, 610: the paper has 0.04 for both groups, and Polynomial 0.14 and 0.16.
    assert above.count("against 0.04") == 2 and "Polynomial" not in above
    won = part(regression, lambda outcome: outcome.dataset == "pv-ew-610")
    assert not any("does not" in sentence for sentence in won)


def test_one_seed_and_one_row_say_less(regression: Table) -> None:
    assert "with one seed there are no intervals" in part(regression, lambda o: o.seed == 0)[0]
    assert part(regression, lambda o: o.name == "pacpfl") == [sentences.NOTHING]


def test_accuracy_is_best_where_it_is_highest(made: Make) -> None:
    outcomes = [
        made(dataset, row, seed, groups={
            "existing": {"accuracy": accuracy + seed, "ce": ce, "train_seconds": seconds},
            **({} if dataset == "emnist" else {"new": {"accuracy": accuracy - 0.5, "ce": ce}}),
        })
        for seed in (0, 1)
        for dataset, row, accuracy, ce, seconds in (
            ("femnist-20", "pacpfl", 95.5, 0.015, 6.0),
            ("femnist-20", "fedavg", 94.0, 0.010, 4.0),
            ("emnist", "pacpfl", 87.0, 0.03, 9.0),
            ("emnist", "pooled", 88.0, 0.05, 9.0),
        )
    ]  # fmt: skip
    said = " ".join(sentences.summary(Table(read_study("classification"), outcomes, range(2))))
    assert "highest mean accuracy of all methods in 2 of 3 columns" in said
    assert "EMNIST, existing clients (87.5% against 88.5% of One BNN for all (Pooled))" in said
    assert "lowest mean calibration error of all methods in 1 of 3 columns" in said
    assert "(0.015 against 0.010 of FedAvg)" in said
    assert "names 96.0% of existing and 95.0% of new clients' images" in said
    assert "takes 6.0 s, 1.50 times as long as FedAvg's 4.0 s" in said
    assert "On EMNIST" not in said, "it has no new clients"


def test_a_text_has_its_numbers_or_is_left_out(made: Make) -> None:
    study = read_study("polynomial")
    texts = {name: {"kind": "text", "text": "{" + name + "}"} for name in (
        "mean[polynomial new pacpfl rsmse]:.2f",
        "ratio[polynomial new pacpfl vanilla rsmse]:.2f",
        "gain[polynomial new pacpfl vanilla rsmse]:.0%",
        "above[polynomial new pacpfl vanilla rsmse]:.2f",
        "closer[polynomial new vanilla pooled pacpfl rsmse]:.0%",
        "mean[polynomial new pacpfl-k8 rsmse]:.2f",
    )}  # fmt: skip
    outcomes = [
        made("polynomial", row, seed, {"rsmse": value + seed})
        for row, value in (("pacpfl", 0.2), ("vanilla", 0.5), ("pooled", 0.8))
        for seed in (0, 1)
    ]
    outcomes.append(made("polynomial", "vanilla", 7, {"rsmse": 0.5}))  # a seed that others lack
    table = Table(replace(study, summary=list(texts.values())), outcomes, range(2))
    mean = (0.5 + 1.5 + 0.5) / 3
    assert sentences.summary(table) == [
        "0.70", f"{0.7 / mean:.2f}", f"{1 - 0.7 / mean:.0%}", "-0.30", "50%",
    ]  # fmt: skip


def test_an_ablation_is_judged_at_a_point_fixed_beforehand(made: Make) -> None:
    values = {"k1": 0.5, **{f"k{k}-rbf": 0.5 for k in (2, 4, 8)}}
    values |= {f"k{k}-function": 0.5 - 0.04 * n for n, k in enumerate((2, 4, 8), 1)}
    values |= {f"members{n}": 0.46 for n in (1, 2, 3)}
    values |= {"noise-constant": 0.46, "noise-mlp": 0.42, "warp-none": 0.4}
    rng = np.random.default_rng(0)
    outcomes = [
        made("polynomial", row, seed, groups={
            "existing": {"rsmse": mean + 0.002 * rng.normal(), "nll": 2.0, "diversity": 0.2}
        })
        for seed in range(5)
        for row, mean in values.items()
    ]  # fmt: skip
    rbf, function, members, noise = sentences.summary(
        Table(read_study("ablation"), outcomes, range(5))
    )
    assert "beyond the error bars" in function and "but not" not in function
    for told in (rbf, members):
        assert "not fall" in told or "but not beyond" in told
    assert "RSMSE is 0.46" in noise and "0.42" in noise


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        # std 0.01 at both ends: 0.500 - 0.01 > 0.450 + 0.01; seed by seed 0.05, always
        ({1: (0.49, 0.50, 0.51), 4: (0.44, 0.45, 0.46)},
         "0.500 at k = 1 to 0.450 at k = 4, beyond the error bars; seed by seed by 0.050 ± 0.000"),
        # the bars touch: 0.500 - 0.01 < 0.485 + 0.009; differences 0.00, 0.01, 0.035
        ({1: (0.49, 0.50, 0.51), 4: (0.49, 0.49, 0.475)},
         "to 0.485 at k = 4, but not beyond the error bars; seed by seed by 0.015 ± 0.018."),
        # the best value is not picked out afterwards
        ({1: (0.4, 0.4), 2: (0.1, 0.1), 4: (0.5, 0.5), 8: (0.6, 0.6)},
         "it goes from 0.400 at k = 1 to 0.500 at k = 4 (and 0.100 at k = 2, 0.600 at k = 8)."),
        ({1: (0.4,), 2: (0.3,), 4: (0.35,)}, "at k = 4, on one seed (and 0.300 at k = 2)."),
        ({1: (0.4, 0.42), 2: (math.nan, 0.3)}, "but not beyond the error bars"),
        ({1: (0.4, 0.42), 4: (math.nan, math.nan)}, "does not fall: it goes from 0.410 at k = 1 to nan"),
    ],
)  # fmt: skip
def test_the_verdict_is_computed(sweep: dict[int, tuple[float, ...]], words: str) -> None:
    entries = {x: Entry(dict(enumerate(values))) for x, values in sweep.items()}
    assert words in sentences.falls(entries, "k", 4)


def test_what_a_change_buys_is_told_seed_by_seed() -> None:
    plain, changed = Entry({0: 0.5, 1: 0.54, 2: 0.6}), Entry({0: 0.48, 1: 0.5})
    told = sentences.either(plain, changed, ("this", "that"), "RSMSE")
    assert told == "RSMSE is 0.547 with this and 0.490 with that; seed by seed 0.030 ± 0.014 less."
    told = sentences.either(changed, plain, ("this", "that"), "NLL")
    assert told.endswith("; seed by seed 0.030 ± 0.014 more.")


POINTS = {
    **{"none": 0.30, "alone": 0.45, "gaussian-1": 0.46, "gaussian-8": 0.33},
    **{"laplace-8": 0.44, "paper-8": 0.40},
}


def test_privacy_is_compared_with_none_and_with_going_alone(made: Make) -> None:
    def said(values: dict[str, float], dataset: str = "polynomial") -> list[str]:
        measure = "accuracy" if dataset == "digits" else "rsmse"
        outcomes = [
            made(dataset, row, seed, {measure: v}) for row, v in values.items() for seed in (0, 1)
        ]
        return sentences.summary(Table(read_study("privacy"), outcomes, range(2)))

    first, *_, last = said(POINTS)
    assert "0.030 with gaussian" in first and "0.100 with paper" in first and "70% closer" in first
    assert last.endswith("from epsilon = 8 on.")
    first, *_, last = said({**POINTS, "gaussian-8": 0.5})
    assert "-100% closer" in first and "at none of these" in last
    accuracy = {"alone": 60.0, "gaussian-2": 50.0, "gaussian-8": 70.0}
    assert "from epsilon = 8 on" in said(accuracy, "digits")[-1]
    assert said({"none": 0.3}) == ["There is nothing to compare yet."]


@pytest.mark.parametrize(
    ("weather", "north", "east", "sentence"),
    [
        ("synthetic", 46.52, 6.63, "46.52° N, 6.63° E in synthetic weather"),
        ("pvgis", 40.713, -74.006, "40.71° N, 74.01° W in weather from PVGIS"),
        ("some/where/quito.csv", -0.18, -78.47, "0.18° S, 78.47° W in the weather of quito.csv"),
    ],
)
def test_where_the_houses_stand(weather: str, north: float, east: float, sentence: str) -> None:
    hours = pd.date_range("2018-06-01", periods=1, freq="h", tz="UTC")
    record = Weather("x", north, east, 10.0, hours, *np.zeros((4, 1)))
    said = sentences.setting(PVSettings(weather=weather), record)
    assert said == f"The houses stand at {sentence}."


def test_the_floor_of_polynomial_is_what_the_process_itself_would_have() -> None:
    expected = []
    for group in ("existing", "new"):
        errors, gaps = [], []
        for seed in (0, 3):
            for client in getattr(polynomial(24, 24, 10, 100, 0.15, seed=seed), group):
                mean, std = sentences.true_predictive(client, 0.15)
                shares = stats.norm.cdf(client.test.y, mean, std)
                errors.append(np.sqrt(np.mean((client.test.y - mean) ** 2)) / np.std(client.test.y))
                levels = np.linspace(0, 1, LEVELS)
                gaps.append(np.mean([abs(np.mean(shares <= q) - q) for q in levels]))
        expected += [f"{np.mean(errors):.3f}", f"{np.mean(gaps):.3f}"]
    assert re.findall(r"\d\.\d{3}", sentences.floor(read_study("regression"), [0, 3])) == expected
