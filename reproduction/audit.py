"""Membership inference by likelihood ratio against the mechanism alone: many trials in one call.

The attacker knows everything but whether the canary was there (or, where neighbours differ by
replacement, which of two canaries): the other clients' updates, which it subtracts, the canary, the clip,
the noise, and what was released in every round. What is left of round t is

    x_t = B_t c + noise,     B_t = 1 with the sampling rate q, else 0,     c = the clipped canary,

and by Neyman & Pearson (1933) nothing tells the two worlds apart better than the likelihood ratio

    sum_t ln (1 - q + q p(x_t - c) / p(x_t))      (for two canaries: the difference of two such sums).

The canary is as bad as the clip allows: a huge update, in the direction in which the noise hides least.
For Laplace noise and updates clipped in L1 that is one axis. For Laplace noise and updates clipped in
L2 (`paper`) it is the diagonal, whose L1 norm is sqrt(d) times the clip. For Gaussian noise all are alike.

The attacker also computes the ratio for the canary as it was before clipping: if a build forgets to clip,
this one tells. Which of the two is used is chosen with the threshold, on half of the trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pacpfl.errors import InputError
from pacpfl.privacy import mechanisms
from pacpfl.privacy.accounting import ORDER, Plan, epsilon_spent
from reproduction.audit_statistics import CONFIDENCE, Bound, lower_bound, one_run_bound

OVERSIZE = 100.0  # norm of the canary before clipping, in clips
BLOCK_NUMBERS = 2**21  # released numbers at once
GRID = 2.0**-10


@dataclass(frozen=True)
class Build:
    """The two functions under audit; whoever wants to see a broken build exposed hands in others."""

    clip: Callable[..., Array] = mechanisms.clip
    add_noise: Callable[..., Array] = mechanisms.add_noise


class Audited(NamedTuple):
    """What is claimed, and what the attack shows at least."""

    bound: Bound
    claimed: float  # epsilon at the bound's delta
    adjacency: str
    guaranteed: bool  # False: mode `paper`, which names an epsilon without guaranteeing it

    @property
    def exposed(self) -> bool:
        """The claim is false, with the bound's confidence."""
        return self.bound.epsilon > self.claimed


def audit_mechanism(
    plan: Plan,
    rounds: int = 1,
    *,
    dimension: int = 100,
    trials: int = 100_000,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    build: Build | None = None,
) -> Audited:
    """Trials with and without the canary, through the functions that training uses."""
    check_trials(trials)
    without, with_ = (
        attack(plan, rounds, dimension, trials, 2 * seed + present, bool(present), build or Build())
        for present in (0, 1)
    )
    # The curve of a Gaussian is known only where nobody is left out by chance.
    gaussian = plan.mode == "gaussian" and plan.rate == 1
    bound = lower_bound(without, with_, claimed_delta(plan), confidence, gaussian)
    return Audited(bound, claimed_epsilon(plan, rounds), plan.adjacency, plan.guaranteed)


def check_trials(trials: int) -> None:
    if trials < 20:
        raise InputError(f"{trials} trials tell nothing; give at least 20.")


def claimed_delta(plan: Plan) -> float:
    return plan.delta if plan.mode == "gaussian" else 0.0


def claimed_epsilon(plan: Plan, rounds: int) -> float:
    """The accounted one; for `paper` the one it names, for the rounds it was made for."""
    if plan.guaranteed:
        return epsilon_spent(plan, rounds).epsilon
    if plan.epsilon is None:
        raise InputError("A plan of mode paper claims nothing without an epsilon; give it one.")
    return plan.epsilon * rounds / (plan.rounds or rounds)


def worst_direction(mode: str, dimension: int) -> Float[Array, "1 d"]:
    """Unit norm (of the kind that is clipped), and of all such the one that noise hides least."""
    if mode == "paper":
        return jnp.full((1, dimension), 1 / math.sqrt(dimension))
    return jnp.zeros((1, dimension)).at[0, 0].set(1)


def attack(
    plan: Plan, rounds: int, dimension: int, trials: int, seed: int, present: bool, build: Build
) -> np.ndarray:
    """[2, trials]: log likelihood ratios for the clipped canary, and for the canary as it was."""
    block = max(1, min(trials, BLOCK_NUMBERS // (rounds * dimension)))
    keys = jax.random.split(jax.random.key(seed), math.ceil(trials / block))
    # In the other world there is nobody, or the opposite canary, which is as far as one can be.
    other = -1.0 if plan.adjacency == "replace" else 0.0
    about = (1.0 if present else other, other, plan.multiplier, plan.rate)
    found = _attack(keys, *about, plan.mode, rounds, dimension, block, build)
    return np.asarray(found, float).reshape(-1, 2)[:trials].T


@partial(jax.jit, static_argnames=("mode", "rounds", "dimension", "block", "build"))
def _attack(
    keys: Array,
    sign: float,
    other: float,
    multiplier: float,
    rate: float,
    mode: str,
    rounds: int,
    dimension: int,
    block: int,
    build: Build,
) -> Float[Array, "blocks block 2"]:
    """What an attacker computes where `sign` times the canary took part."""
    direction = worst_direction(mode, dimension)
    kind, order = mechanisms.NOISE[mode], ORDER[mode]
    canary = OVERSIZE * direction
    sent = build.clip(sign * canary, 1.0, order)

    def tell(seen: Float[Array, "rounds 1 d"]) -> Float[Array, " 2"]:
        def ratio_of(c: Array) -> Float[Array, ""]:
            return ratio(seen, c, multiplier, kind, rate)

        return jnp.stack([ratio_of(c) - ratio_of(other * c) for c in (direction, canary)])

    def some(key: Array) -> Float[Array, "block 2"]:
        noise_key, sample_key = jax.random.split(key)
        taken = jax.random.bernoulli(sample_key, rate, (block, rounds, 1, 1))
        total = jnp.where(taken, sent, 0)
        seen = build.add_noise(noise_key, total, multiplier, kind)
        return jax.vmap(tell)(coarse(seen, multiplier))

    return jax.lax.map(some, keys)


def coarse(seen: Array, scale: float | Array) -> Array:
    """What was released, to a thousandth of the noise's scale.

    The mechanism is audited as mathematics. The last bits of a floating-point sum tell more than the
    sum does (Mironov 2012); that is another leak, with another remedy, and would hide this one.
    """
    step = scale * GRID
    return jnp.round(seen / step) * step


def ratio(
    seen: Float[Array, "rounds k d"],
    canary: Float[Array, "*rounds k d"],
    scale: float | Array,
    kind: str,
    rate: float | Array,
) -> Float[Array, ""]:
    """sum_t ln(1 - q + q p(x_t - c) / p(x_t))."""
    if kind == "laplace":
        each = (jnp.abs(seen) - jnp.abs(seen - canary)) / scale
    else:
        each = canary * (seen - canary / 2) / scale**2
    loss = each.sum((-2, -1))
    # ln(1 - q) is minus infinity for q = 1: then only the second term counts.
    return jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + loss).sum()


def audit_one_run(
    plan: Plan,
    rounds: int = 1,
    *,
    canaries: int = 1000,
    guesses: int = 100,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    build: Build | None = None,
) -> Audited:
    """Many canaries, each there or not by the toss of a coin, each along its own axis, in ONE run.

    They do not disturb each other, and each hides behind its own coordinate of the noise. A bound from
    one run is looser than one from many, and costs one training instead of hundreds.
    """
    if plan.adjacency != "add-remove":
        raise InputError(
            "One run with many canaries is for neighbours with one client more or less."
        )
    build = build or Build()
    kind, order = mechanisms.NOISE[plan.mode], ORDER[plan.mode]
    rng = np.random.default_rng(seed)
    present = rng.random(canaries) < 0.5
    taken = jnp.asarray((rng.random((rounds, canaries)) < plan.rate) & present)
    sent = jnp.diagonal(
        jax.vmap(lambda row: build.clip(row[None], 1.0, order)[0])(OVERSIZE * jnp.eye(canaries))
    )
    noisy = build.add_noise(jax.random.key(seed), taken * sent, plan.multiplier, kind)
    seen = coarse(noisy, plan.multiplier)
    scores = jax.vmap(
        lambda x: ratio(x[:, None, None], jnp.ones((1, 1)), plan.multiplier, kind, plan.rate), 1
    )(seen)
    bound = one_run_bound(present, np.asarray(scores), guesses, claimed_delta(plan), confidence)
    return Audited(bound, claimed_epsilon(plan, rounds), plan.adjacency, plan.guaranteed)
