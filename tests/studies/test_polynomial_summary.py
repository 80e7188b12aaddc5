"""The Polynomial study's summary, from a quick look at every variant."""

from __future__ import annotations

from pacpfl.cli import shipped
from pacpfl.config import override
from pacpfl.studies import polynomial
from pacpfl.studies.run import Watcher


def test_the_summary_is_computed_from_every_variant():
    configs = {
        name: override(shipped(name), ["rounds=2", "data.clients=4", "new_clients=4", "samples=4"])
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
