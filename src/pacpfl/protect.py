"""From the section [privacy] of a configuration to a private method, its ledger, and its facts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pacpfl import config as configuration
from pacpfl.config import Config
from pacpfl.engine.simulate import Trained
from pacpfl.engine.training import Secrecy
from pacpfl.errors import InputError
from pacpfl.methods.pacpfl import PACPFL
from pacpfl.methods.private import Private
from pacpfl.privacy.accounting import Plan, epsilon_spent, plan_for
from pacpfl.privacy.ledger import FILE, open_ledger, read_ledger
from pacpfl.privacy.mechanisms import AdaptiveClip, count_std


def plan_of(config: Config, clients: int) -> Plan | None:
    """Return the plan that spends the budget in train.rounds rounds; None for a run without privacy."""
    privacy, train = config.privacy, config.train
    if privacy.mode == "none":
        return None
    assert privacy.epsilon is not None
    return plan_for(
        privacy.epsilon,
        privacy.delta,
        train.rounds,
        mode=privacy.mode,  # type: ignore[arg-type]
        sampling=privacy.sampling,  # type: ignore[arg-type]
        clients=clients,
        cohort=train.clients_per_round or clients,
        unit=privacy.unit,  # type: ignore[arg-type]
    )


def protect(method: PACPFL, plan: Plan, config: Config) -> Private:
    """Return the method that clips, adds the plan's noise, and averages as the section says."""
    privacy, rounds = config.privacy, config.train.rounds
    adaptive = None
    if privacy.clip_quantile is not None:
        noise = count_std(plan.multiplier, plan.cohort)
        adaptive = AdaptiveClip(privacy.clip_quantile, noise, privacy.clip_rate)
    return Private(
        method,
        plan,
        privacy.clip,
        privacy.per_particle,
        adaptive,
        math.floor((1 - privacy.average) * rounds) if privacy.average > 0 else None,
        privacy.strict,
    )


@contextmanager
def secrecy(plan: Plan, config: Config, folder: Path | None) -> Iterator[Secrecy]:
    """Hold the ledger open; without a folder nothing is written down, and nothing resumed."""
    seed = config.privacy.noise_seed
    if folder is None:
        yield Secrecy(plan, None, seed)
        return
    identity = configuration.identity(config)
    ledger = open_ledger(folder / FILE, plan, identity, seed is None and plan.guaranteed)
    try:
        yield Secrecy(plan, ledger, seed)
    finally:
        ledger.close()


def describe_privacy(
    method: Private, trained: Trained, config: Config, folder: Path | None
) -> dict[str, Any]:
    """Return what run.json says: `epsilon` was spent, also in rounds that were lost in a crash."""
    plan = method.plan
    if trained.rounds == 0:
        raise InputError(
            f"All {plan.rounds} rounds of the budget were released and lost when the run was "
            "interrupted, and nothing was learned; --fresh begins a new run, whose budget adds to it."
        )
    runs = read_ledger(folder / FILE) if folder else []
    released = runs[-1].released if runs else trained.rounds
    spent = epsilon_spent(plan, released)
    private = config.privacy.noise_seed is None and plan.guaranteed
    return {
        "mode": plan.mode,
        "private": private,
        "epsilon": spent.epsilon if plan.guaranteed else plan.epsilon,
        "delta": spent.delta,
        "adjacency": spent.adjacency,
        "unit": plan.unit,
        "accountant": spent.accountant,
        "budget": plan.epsilon,
        "noise_multiplier": plan.multiplier,
        "clip": config.privacy.clip,
        "sampling": plan.sampling,
        "cohort": plan.cohort,
        "rounds_released": released,
        "rounds_planned": plan.rounds,
        "out_of_budget": trained.out_of_budget,
        "earlier_runs": max(0, len(runs) - 1),
        "strict": config.privacy.strict,
    }
