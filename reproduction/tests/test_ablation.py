"""The ablation changes one thing at a time, and its captions say what its numbers say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pacpfl.config import override
from pacpfl.priors.gp import GPSettings
from reproduction import ablation, table
from reproduction.outcomes import Kept
from reproduction.regression import cell_config, dataset_config
from reproduction.study import write_study
from reproduction.table import Outcome


def test_a_cell_differs_from_the_regression_row_only_in_what_is_swept():
    """The row as it is tuned, or with the paper's prior and what the data set starts from."""
    cells = ablation.cells([3], "weather.csv")
    assert len({c.place for c in cells}) == len(cells) == 6 * (1 + 2 * 3 + 3 + 2 + 2)
    swept = set()
    for cell in cells:
        dataset, tuned, _ = cell.dataset.partition("-tuned")
        base = override(cell_config(dataset, "pacpfl", "weather.csv", 3), ["data.new_clients=0"])
        if not tuned:
            start = dataset_config(dataset)
            base = replace(base, prior=GPSettings(members=start.prior.members), train=start.train)
        config = cell.config
        assert cell.method == "pacpfl" and config.data == base.data
        if cell.name.startswith("members"):
            members = int(cell.name.removeprefix("members"))
            assert config == override(base, [f"members={members}"])
            swept.add(("K", members))
        elif cell.name.startswith("noise"):
            model = cell.name.removeprefix("noise-")
            assert config == override(base, [f"prior.noise_model={model}"])
            swept.add(("noise", model))
        elif cell.name.startswith("warp"):
            warp = cell.name.removeprefix("warp-")
            assert config == override(base, [f"prior.warp={warp}"])
            swept.add(("warp", warp))
        else:
            k, _, kernel = cell.name.removeprefix("k").partition("-")
            kernel = kernel or base.train.svgd_kernel
            assert config == override(base, [f"particles={k}", f"svgd_kernel={kernel}"])
            swept.add(("k", int(k), kernel if k != "1" else "any"))
    expected = {("k", k, kernel) for k in (2, 4, 8) for kernel in ("rbf", "function")}
    expected |= {("noise", "constant"), ("noise", "mlp")}
    expected |= {("warp", "none"), ("warp", "sinh-arcsinh")}
    assert swept == expected | {("k", 1, "any"), ("K", 1), ("K", 2), ("K", 3)}
    datasets = {"pv-ew-150-random", "pv-s-150-random", "polynomial"}
    assert {c.dataset for c in cells} == {*datasets, *(f"{d}-tuned" for d in datasets)}


def test_a_quick_look_is_small():
    cells = ablation.cells([0], quick=True)
    assert len(cells) == 2 * 14
    assert all(c.config.train.rounds <= 100 and c.config.data.clients <= 8 for c in cells)


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        # std 0.01 at both ends: 0.500 - 0.01 > 0.450 + 0.01; seed by seed 0.05, always
        (
            {1: {0: 0.49, 1: 0.50, 2: 0.51}, 4: {0: 0.44, 1: 0.45, 2: 0.46}},
            "RSMSE falls from 0.500 at k = 1 to 0.450 at k = 4, beyond the error bars; seed by seed by "
            "0.050 ± 0.000.",
        ),
        # the bars touch: 0.500 - 0.01 < 0.485 + 0.009; differences 0.00, 0.01, 0.035
        (
            {1: {0: 0.49, 1: 0.50, 2: 0.51}, 4: {0: 0.49, 1: 0.49, 2: 0.475}},
            "RSMSE falls from 0.500 at k = 1 to 0.485 at k = 4, but not beyond the error bars; seed by "
            "seed by 0.015 ± 0.018.",
        ),
        # the best value is not picked out afterwards
        (
            {1: {0: 0.4, 1: 0.4}, 2: {0: 0.1, 1: 0.1}, 4: {0: 0.5, 1: 0.5}, 8: {0: 0.6, 1: 0.6}},
            "RSMSE does not fall: it goes from 0.400 at k = 1 to 0.500 at k = 4 (and 0.100 at k = 2, "
            "0.600 at k = 8).",
        ),
        (
            {1: {0: 0.4}, 2: {0: 0.3}, 4: {0: 0.35}},
            "RSMSE falls from 0.400 at k = 1 to 0.350 at k = 4, on one seed (and 0.300 at k = 2).",
        ),
        (
            {1: {0: 0.4, 1: 0.42}, 2: {0: math.nan, 1: 0.3}},
            "RSMSE falls from 0.410 at k = 1 to 0.300 at k = 2, but not beyond the error bars; seed by "
            "seed by 0.120 ± nan.",
        ),
        (
            {1: {0: 0.4, 1: 0.42}, 4: {0: math.nan, 1: math.nan}},
            "RSMSE does not fall: it goes from 0.410 at k = 1 to nan at k = 4.",
        ),
    ],
)
def test_the_verdict_is_computed(sweep, words):
    assert ablation.verdict(sweep, "k", 4) == words


def test_what_the_noise_buys_is_told_seed_by_seed():
    titles = ("a constant noise", "noise that depends on the features")
    told = ablation.either({0: 0.5, 1: 0.54, 2: 0.6}, {0: 0.48, 1: 0.5}, titles, "RSMSE")
    assert told == (
        "RSMSE is 0.547 with a constant noise and 0.490 with noise that depends on the features; "
        "seed by seed 0.030 ± 0.014 less."
    )
    told = ablation.either({0: 0.48, 1: 0.5}, {0: 0.5, 1: 0.54}, titles, "NLL")
    assert told.endswith("; seed by seed 0.030 ± 0.014 more.")


@pytest.fixture(scope="module")
def kept() -> list[Kept]:
    """RSMSE falls with k for the function kernel, not for the other, and K makes no difference."""
    values = {"k1": 0.5, **{f"k{k}-rbf": 0.5 for k in (2, 4, 8)}}
    values |= {f"k{k}-function": 0.5 - 0.04 * n for n, k in enumerate((2, 4, 8), 1)}
    values |= {f"members{n}": 0.46 for n in (1, 2, 3)}
    values |= {"noise-constant": 0.46, "noise-mlp": 0.42}
    values |= {"warp-none": 0.46, "warp-sinh-arcsinh": 0.465}
    nll = {"warp-none": 1.3, "warp-sinh-arcsinh": 1.1}
    rng = np.random.default_rng(0)
    return [
        Kept(
            Outcome(
                "polynomial", name, seed, 1.0,
                {
                    "existing": {
                        "rsmse": mean + 0.002 * rng.normal(),
                        "nll": nll.get(name, 2.0),
                        "diversity": 0.2,
                    }
                },
            ),
            {},
        )
        for seed in range(5)
        for name, mean in values.items()
    ]  # fmt: skip


def test_the_page_tells_which_kernel_makes_particles_worth_it(kept, tmp_path):
    about = ablation.describe(kept, range(5), "pacpfl reproduce ablation")
    assert list(about["datasets"]) == ["polynomial"]
    captions = {panel["title"]: panel["caption"] for panel in about["panels"]}
    rbf, function, members = captions.values()
    assert "beyond the error bars" in function and "but not" not in function
    for caption in (rbf, members):
        assert "not fall" in caption or "but not beyond" in caption
    *_, noise, warp = about["summary"]
    assert len(about["summary"]) == 5
    assert "RSMSE is 0.46" in noise and "0.42" in noise
    assert warp == (
        "Polynomial: NLL is 1.300 with the target as it is and 1.100 with a warped target; "
        "seed by seed 0.200 ± 0.000 less."
    )
    assert function.split(" Below")[0] in about["summary"][1]
    for panel in about["panels"]:
        assert panel["bars"] == "std" and panel["second"] == "diversity"
    assert [x for x, _ in about["panels"][0]["points"]] == [1, 2, 4, 8]
    outcomes = [outcome for outcome, _ in kept]
    table.write_table(tmp_path, table.rows(outcomes, ablation.PUBLISHED), about)
    write_study(tmp_path)
    figure = (tmp_path / "figures" / "sweep_1.svg").read_text()
    assert "standard deviation over seeds" in figure
    assert "95% interval over seeds" not in figure


def test_an_unfinished_sweep_shows_what_there_is(kept):
    some = [k for k in kept if k.outcome.method in ("k1", "k4-rbf", "members1")]
    about = ablation.describe(some, range(5), "x")
    assert [[name for _, name in panel["points"]] for panel in about["panels"]] == [
        ["k1", "k4-rbf"]
    ]
