"""The Polynomial study: its variants, and the summary that is computed from them."""

from __future__ import annotations

import pytest

from pacpfl.cli.common import shipped
from pacpfl.config import override
from pacpfl.run import Watcher
from reproduction import polynomial
from reproduction.table import Outcome

SMALL = ["rounds=2", "data.clients=4", "new_clients=4", "samples=4"]


def variants() -> list[tuple[str, str]]:
    return [(dataset, name) for dataset, names in polynomial.SUITE.items() for name in names]


@pytest.mark.parametrize(("dataset", "name"), variants())
def test_every_variant_differs_from_the_shipped_configuration_by_its_changes(
    dataset: str, name: str
) -> None:
    config = shipped(dataset)
    _, _, changes = polynomial.SUITE[dataset][name]
    as_shipped = not changes or name == "mixture-K2"
    assert (override(config, changes) == config) == as_shipped


def test_variants_run_with_their_own_method_and_changes() -> None:
    """One particle has no diversity, four have; a GP of a client alone has no particles at all."""
    names = ("pacpfl", "pacpfl-k1", "vanilla-deep", "pooled-deep")
    suite = {"polynomial": {name: polynomial.PLAIN[name] for name in names}}
    configs = {"polynomial": override(shipped("polynomial"), SMALL)}
    told = []
    outcomes = polynomial.run_study(
        configs,
        [7],
        Watcher(),
        ["mean_widths=[4]", "kernel_widths=[4]"],
        lambda done, total: told.append((done, total)),
        suite,
    )
    four, one, alone, pooled = (outcome.groups["new"] for outcome in outcomes)
    assert [outcome.method for outcome in outcomes] == list(names)
    assert four["diversity"] > 0 and one["diversity"] == 0
    assert "diversity" not in alone and "diversity" not in pooled
    assert len({round(group["rsmse"], 6) for group in (four, one, alone, pooled)}) == 4
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_summary_is_computed_from_the_numbers() -> None:
    """Made-up ones: 0.1, 0.2, ... variant by variant, new clients a tenth worse."""

    def values(number: int, factor: float) -> dict[str, float]:
        return {"rsmse": 0.1 * number * factor, "ce": 0.01 * number * factor, "recovered": 0.75}

    outcomes = [
        Outcome(*variant, 7, 1.0, {"existing": values(number, 1), "new": values(number, 1.1)})
        for number, variant in enumerate(variants(), 1)
    ]
    about = polynomial.describe(outcomes, [7], "pacpfl reproduce polynomial --quick")
    for panel in about["panels"]:
        names = panel.get("methods") or [name for _, name in panel["points"]]
        assert {(panel["dataset"], name) for name in names} <= set(variants())
    first, calibration, particles, mixture = about["summary"]
    assert "0.100 for existing and 0.110 for new clients" in first
    assert "0.900 and 0.990 for a GP fitted per client and 1.100 and 1.210 for one GP" in first
    assert "0.010 and 0.011" in calibration
    assert "from 0.200 to 0.400" in particles
    # 1.4 with K = 2 against 1.3 with K = 1.
    assert "is -8% (existing) and -8% (new) better" in mixture
    assert "75% of the existing and 75% of the new" in mixture
