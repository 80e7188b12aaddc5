"""Membership inference against whole trainings: real PAC-PFL runs, with and without a canary client.

The attacker stands between the mechanism and the SVGD step. It sees what was released in every round
and, from round to round, the particles that follow from it; it knows all other clients' data, and who
of them took part. So it can compute, at the particles of round t, the sum of the others' clipped updates
and the canary's own one, c_t, and is left with

    x_t = released sum - sum of the others = B_t c_t + noise,

to which the likelihood ratio of `reproduction.audit` applies, round after round. The canary is a
client whose targets are absurd, so that its update is as large as the clip lets it be.

Everything but the attacker is the code that trains: the method's own init, client_update and
server_update, vectorised over runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from pacpfl.data.polynomial import polynomial
from pacpfl.data.store import from_clients
from pacpfl.methods.pacpfl import PACPFL, Update
from pacpfl.methods.settings import TrainSettings
from pacpfl.methods.transforms import Private
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.privacy import mechanisms
from pacpfl.privacy.accounting import Plan
from pacpfl.types import Data
from reproduction.audit import (
    Audited,
    check_trials,
    claimed_delta,
    claimed_epsilon,
    coarse,
    ratio,
)
from reproduction.audit_statistics import CONFIDENCE, lower_bound

ABSURD = 1e3  # targets of a canary, in units of a (standardised) target


class WatchedState(NamedTuple):
    """PAC-PFL's state, and the update that its last step was taken with."""

    particles: Float[Array, "k size"]
    optimizer: Any
    references: Float[Array, "r d"]
    skipped: Array
    seed: Any
    received: Float[Array, "k size"]


class Watched(PACPFL):
    """PAC-PFL that remembers what reached it: the noisy mean, which is what a round releases."""

    def init(self, key: Array, example: Data) -> Any:
        state = super().init(key, example)
        return WatchedState(*state, jnp.zeros_like(state.particles))

    def server_update(
        self, state: Any, updates: Update, weights: Float[Array, " c"], key: Array
    ) -> Any:
        moved = super().server_update(state, updates, weights, key)
        return WatchedState(*moved, updates.gradients[0])


def watched(private: Private) -> Private:
    """The same private method around a PAC-PFL that remembers."""
    method = private.method
    settings = {field.name: getattr(method, field.name) for field in fields(method)}
    return replace(private, method=Watched(**settings))


def canary_like(data: Data) -> Data:
    """A client with one of the others' inputs (`data` of one client) and absurd targets."""
    sign = jnp.where(jnp.arange(data.y.shape[-1]) % 2 == 0, 1.0, -1.0)
    return Data(data.x, (ABSURD * sign).astype(data.y.dtype), data.mask)


def audit_training(
    private: Private,
    clients: Data,
    canary: Data,
    rounds: int,
    *,
    instead: Data | None = None,
    trials: int = 500,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    claimed: Private | None = None,
) -> Audited:
    """`trials` trainings with the canary, and as many without it (or with `instead` in its place).

    `clients` are the others, leading axis n. The claim is that of the method's own plan, or of the
    method that this one pretends to be (`claimed`).
    """
    check_trials(trials)
    plan = (claimed or private).plan
    runs = jax.jit(jax.vmap(_run(watched(private), clients, canary, instead, rounds), (0, None)))
    keys = jax.random.split(jax.random.key(seed), 2 * trials)
    without, with_ = (
        np.asarray(runs(part, present), float)
        for part, present in ((keys[:trials], 0.0), (keys[trials:], 1.0))
    )
    gaussian = plan.mode == "gaussian" and plan.rate == 1
    bound = lower_bound(without, with_, claimed_delta(plan), confidence, gaussian)
    return Audited(bound, claimed_epsilon(plan, rounds), plan.adjacency, plan.guaranteed)


def _run(
    private: Private, clients: Data, canary: Data, instead: Data | None, rounds: int
) -> Callable[[Array, Array], Float[Array, ""]]:
    """One training: (key, whether the canary is there) -> the attacker's statistic."""
    plan, kind = private.plan, mechanisms.NOISE[private.plan.mode]
    everyone = jax.tree.map(
        lambda all_, *more: jnp.concatenate([all_, *(one[None] for one in more)]),
        *(clients, canary, *(() if instead is None else (instead,))),
    )
    others = clients.y.shape[0]
    extra = everyone.y.shape[0] - others

    def one_round(carry: Any, key: Array) -> Any:
        state, present = carry
        client_key, sample_key, server_key = jax.random.split(key, 3)
        keys = jax.random.split(client_key, others + extra)
        updates, _ = jax.vmap(lambda data, key: private.client_update(state, (), data, key))(
            everyone, keys
        )
        taken = jax.random.bernoulli(sample_key, plan.rate, (others + 1,))
        here = jnp.stack([present, 1 - present][:extra]) * taken[-1]
        weights = jnp.concatenate([taken[:-1], here]).astype(clients.y.dtype)
        after: Any = private.server_update(state, updates, weights, server_key)
        known = jnp.where(taken[:-1, None, None], updates.gradients[:others], 0).sum(0)
        scale = private.multiplier * state.clip
        seen = coarse(after.inner.received * plan.cohort - known, scale)
        mine = updates.gradients[others:]

        def told(canary: Array) -> Array:
            return ratio(seen[None], canary, scale, kind, plan.rate)

        return (after, present), told(mine[0]) - (told(mine[1]) if extra > 1 else 0)

    def one_run(key: Array, present: Array) -> Float[Array, ""]:
        start, key = jax.random.split(key)
        state = private.init(start, jax.tree.map(lambda a: a[0], clients))
        _, statistics = jax.lax.scan(one_round, (state, present), jax.random.split(key, rounds))
        return statistics.sum()

    return one_run


def demonstrate(
    plan: Plan,
    rounds: int,
    *,
    clients: int = 8,
    trials: int = 500,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Audited:
    """Short trainings on a few clients of Polynomial, under a plan that is made for any number."""
    federation = polynomial(clients, 0, 5)
    store = from_clients(federation.existing)
    data = jax.tree.map(jnp.asarray, store.gather(np.arange(clients), np.float32))
    prior = GPPrior(1, GPSettings(mean="mlp", kernel="ard", mean_widths=(8,)))
    method = PACPFL(prior, clients, optax.sgd(0.001), TrainSettings(particles=2))
    canary = canary_like(jax.tree.map(lambda a: a[0], data))
    opposite = canary._replace(y=-canary.y) if plan.adjacency == "replace" else None
    return audit_training(
        Private(method, plan, 1.0),
        data,
        canary,
        rounds,
        instead=opposite,
        trials=trials,
        seed=seed,
        confidence=confidence,
    )
