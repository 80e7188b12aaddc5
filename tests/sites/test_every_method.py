"""Every method that learns in rounds: server and sites in one process, against the simulator."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training import difference, settings, simulated

from pacpfl import config as configuration
from pacpfl.build import build_federation
from pacpfl.methods.registry import named
from pacpfl.sites.limits import Limits
from pacpfl.sites.recipe import read_recipe, recipe_of
from pacpfl.sites.runs import load_trained, prepare_run
from pacpfl.sites.segment import serve
from pacpfl.sites.site import Site
from pacpfl.sites.terms import Terms

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from local_sites import Local

ROUNDS = 3


@pytest.mark.parametrize("method", named(learns="in rounds"))
def test_it_is_the_simulators_run(method: str, tmp_path: Path) -> None:
    config = settings(ROUNDS, method)
    federation = build_federation(config)
    text = configuration.dump(config)
    sites: dict[str, Any] = {}
    for name, chosen in {"a": slice(0, 4), "b": slice(4, 6)}.items():
        own = replace(federation, existing=federation.existing[chosen], new=())
        (tmp_path / name).mkdir()
        sites[name] = Site(
            name, tmp_path / name, Limits(), lambda t, m, own=own: (read_recipe(t, m), own)
        )
    folder, run = prepare_run(tmp_path / "run", config, method, {"encoding": "exact"})
    outcome = serve(Local(sites), recipe_of(config, method), text, Terms(run, 1), folder)
    assert outcome.finished, outcome
    _, _, found = load_trained(folder, config, method)
    assert found.round == ROUNDS
    assert difference(found.state[0], simulated(federation, config, method)) < 1e-9
    for name in sites:
        kept = list((tmp_path / name / "states" / run).glob("*/*")) if method in KEEPING else []
        assert bool(kept) == (method in KEEPING)


KEEPING = ("mtl", "pfedbayes")


def test_private_rounds_are_written_in_the_ledger_first(tmp_path: Path) -> None:
    """With a noise seed, a private run across sites is the simulator's, too."""
    from pacpfl.data.store import from_clients
    from pacpfl.engine.simulate import train
    from pacpfl.engine.training import Secrecy
    from pacpfl.methods.registry import build_method
    from pacpfl.methods.transforms import protect
    from pacpfl.privacy.accounting import PrivacySettings
    from pacpfl.privacy.ledger import FILE, read_ledger

    privacy = PrivacySettings(mode="gaussian", epsilon=5.0, noise_seed=4, sampling="all")
    config = replace(settings(ROUNDS), privacy=privacy)
    federation = build_federation(config)
    text = configuration.dump(config)
    (tmp_path / "a").mkdir()
    own = replace(federation, new=())
    site = Site(
        "a", tmp_path / "a", Limits(privacy="gaussian", clip_norm=1.0),
        lambda t, m: (read_recipe(t, m), own),
    )  # fmt: skip
    folder, run = prepare_run(tmp_path / "run", config, "pacpfl", {"encoding": "exact"})
    outcome = serve(Local({"a": site}), recipe_of(config, "pacpfl"), text, Terms(run, 1), folder)
    assert outcome.finished, outcome
    assert read_ledger(folder / FILE)[-1].released == ROUNDS
    plan = privacy.plan(ROUNDS, 6, config.train.clients_per_round)
    assert plan is not None
    method = protect(build_method("pacpfl", config, federation.form), plan, privacy, ROUNDS)  # type: ignore[arg-type]
    expected = train(
        method, from_clients(federation.existing), rounds=ROUNDS, seed=config.seed,
        dtype=np.float64, secrecy=Secrecy(plan, None, privacy.noise_seed),
    )  # fmt: skip
    _, _, found = load_trained(folder, config, "pacpfl")
    assert difference(found.state[0], expected.state) < 1e-9
