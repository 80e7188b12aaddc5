"""Every method that learns in rounds: server and sites in one process, against the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training import difference, final, served, settings, simulated

from pacpfl import config as configuration
from pacpfl.build import build_federation
from pacpfl.data.store import from_clients
from pacpfl.engine.simulate import train
from pacpfl.engine.training import Secrecy
from pacpfl.methods.registry import build_method, named
from pacpfl.methods.transforms import protect
from pacpfl.privacy.accounting import PrivacySettings
from pacpfl.privacy.ledger import FILE, read_ledger
from pacpfl.sites.limits import Limits
from pacpfl.sites.recipe import recipe_of
from pacpfl.sites.site import Site
from pacpfl.types import Federation

ROUNDS = 3
KEEPING = ("mtl", "pfedbayes")


def site_with(folder: Path, own: Federation, limits: Limits) -> Site:
    folder.mkdir()

    def open_run(text: str, method: str) -> Any:
        return recipe_of(configuration.load(text, "it"), method), lambda: own

    return Site(folder.name, folder, limits, open_run)


@pytest.mark.parametrize("method", named(learns="in rounds"))
def test_it_is_the_simulators_run(method: str, tmp_path: Path) -> None:
    config = settings(ROUNDS, method)
    federation = build_federation(config)
    sites = {}
    for name, chosen in {"a": slice(0, 4), "b": slice(4, 6)}.items():
        own = replace(federation, existing=federation.existing[chosen], new=())
        sites[name] = site_with(tmp_path / name, own, Limits())
    folder = served(tmp_path / "run", config, method, sites)
    assert difference(final(folder, config, method), simulated(federation, config, method)) < 1e-9
    for name in sites:
        kept = list((tmp_path / name / "states").glob("*/*/*"))
        assert bool(kept) == (method in KEEPING)


def test_private_rounds_are_written_in_the_ledger_first(tmp_path: Path) -> None:
    """With a noise seed, a private run across sites is the simulator's, too."""
    privacy = PrivacySettings(mode="gaussian", epsilon=5.0, noise_seed=4, sampling="all")
    config = replace(settings(ROUNDS), privacy=privacy)
    federation = build_federation(config)
    limits = Limits(privacy="gaussian", clip_norm=1.0)
    sites = {"a": site_with(tmp_path / "a", replace(federation, new=()), limits)}
    folder = served(tmp_path / "run", config, "pacpfl", sites)
    assert read_ledger(folder / FILE)[-1].released == ROUNDS
    plan = privacy.plan(ROUNDS, 6, config.train.clients_per_round)
    assert plan is not None
    method = protect(build_method("pacpfl", config, federation.form), plan, privacy, ROUNDS)  # type: ignore[arg-type]
    expected = train(
        method, from_clients(federation.existing), rounds=ROUNDS, seed=config.seed,
        dtype=np.float64, secrecy=Secrecy(plan, None, privacy.noise_seed),
    )  # fmt: skip
    assert difference(final(folder, config), expected.state) < 1e-9
