"""What server and sites agree on before secure rounds: the grid, the noise, and how many must survive.

A party of the protocol (pacpfl.secagg) is a SITE. A site's clients lie in one process at one place, so
masks between them would hide nothing from anybody; it writes each client's update as integers, adds
these up, and masks the sum. So the server sees sums over all clients of several sites, each update was
held to the limit by itself, and sensitivity and rounding are those of single clients.

The limit is the clip norm of a private run, else `bound` of [run]: an update beyond it is refused at its
site and never clipped unseen.

Survivors. A round invites the n sites that are there, and more than 2n/3 of them have to survive, at least
`needed` (the quorum, and never fewer than two). Noise is planned for `needed` survivors,

    s = sigma / sqrt(needed)        per site, in whole steps,

so whoever drops out, the noise that was accounted for is in the sum, or there is no sum. The server
proposes s; each site works out for itself what it spends in the planned rounds (secagg's bound for sums of
discrete Gaussians) and refuses if that is above the budget.

The server gets S = sum_i u_i over the m clients who took part, and goes on as if each of them had sent
the mean S / m: a method whose server reads its updates in sums and counts alone cannot tell the
difference. `check_summable` tries it out, so any method may be asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl.errors import InputError
from pacpfl.files import Facts
from pacpfl.methods.base import Method
from pacpfl.methods.transforms import Private
from pacpfl.privacy.accounting import Plan, epsilon_spent
from pacpfl.secagg.grid import Grid, finest_step, guarantee, noise_for
from pacpfl.secagg.settings import Settings, smallest_threshold
from pacpfl.sites.terms import Terms
from pacpfl.sites.wire import Refused

# A norm that was clipped in float32 may lie above the clip by its last digits.
LAST_DIGITS = 1e-6


@dataclass(frozen=True)
class Agreed:
    grid: Grid
    needed: int

    def to_json(self) -> Facts:
        grid = self.grid
        return {"step": grid.step, "clip": grid.clip, "noise": grid.noise, "needed": self.needed}

    def settings(self, session: bytes, number: int, cohort: dict[str, bytes]) -> Settings:
        """Return the protocol's settings for one attempt at a round, among these sites."""
        threshold = max(smallest_threshold(len(cohort), "active"), self.needed)
        return Settings(
            session,
            number,
            tuple(sorted(cohort.items())),
            threshold,
            self.grid.dimension,
            self.grid.bits,
            terms=self.grid.terms,
        )


def propose(method: Method, dimension: int, clients: int, terms: Terms) -> Agreed:
    """Return the server's proposal."""
    if not isinstance(method, Private):
        # Sums of up to 53 bits: as exact as float64, at 8 bytes a number.
        step = finest_step(terms.bound, dimension, clients, bits=64)
        return Agreed(Grid(step, terms.bound, dimension, clients), terms.needed)
    return Agreed(
        _noisy(method.plan, limit_of(method), dimension, clients, terms.needed), terms.needed
    )


def check_everyone(clients_per_round: int | None, clients: int) -> None:
    if clients_per_round is not None and clients_per_round < clients:
        raise InputError(
            "With secure aggregation all clients take part in every round, because a sum over few of "
            "them may be that of one site; leave clients_per_round out, or set secure = false in [run]."
        )


def limit_of(method: Private) -> float:
    return method.clip * (1 + LAST_DIGITS)


def _noisy(plan: Plan, clip: float, dimension: int, clients: int, needed: int) -> Grid:
    """Find the least noise that keeps to the budget by the bound for sums of discrete Gaussians.

    The ledger states what the plan's continuous noise spends, by the tighter of two accountants; up to a
    tenth more noise makes its statement true after any number of rounds.
    """
    assert plan.epsilon is not None and plan.rounds is not None
    step = finest_step(clip, dimension, clients, 2 * plan.multiplier * clip / sqrt(needed))
    grid = Grid(step, clip, dimension, clients)
    grid = noise_for(plan.epsilon, grid, needed, plan.delta, rounds=plan.rounds)
    for rounds in {plan.rounds, *(2**i for i in range(plan.rounds.bit_length()))}:
        stated = epsilon_spent(plan, rounds).epsilon
        while guarantee(grid, needed, plan.delta, rounds=rounds).epsilon > stated:
            grid = replace(grid, noise=ceil(1.01 * grid.noise))
    return grid


def accept(proposal: Any, method: Method, dimension: int, clients: int) -> Agreed:
    """Check, at a site, that what the server proposes protects as the run says; return it."""
    try:
        step, clip = float(proposal["step"]), float(proposal["clip"])
        noise, needed = proposal["noise"], proposal["needed"]
        if type(noise) is not int or type(needed) is not int:
            raise TypeError("noise and needed are whole numbers")
        grid = Grid(step, clip, dimension, clients, noise)
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise Refused(f"the terms of secure aggregation make no sense ({error})") from error
    if needed < 2:
        raise Refused(f"secure aggregation needs two sites at least, not {needed}")
    if isinstance(method, Private):
        plan = method.plan
        if clip != limit_of(method):
            raise Refused(f"the run clips at {method.clip:g}, and secure rounds at {clip:g}")
        assert plan.epsilon is not None and plan.rounds is not None
        if noise < 1:
            raise Refused("the run is private, and its secure rounds have no noise")
        spent = guarantee(grid, needed, plan.delta, rounds=plan.rounds).epsilon
        if spent > plan.epsilon:
            raise Refused(
                f"with the proposed noise {plan.rounds} rounds spend epsilon = {spent:.4g}, above the "
                f"budget of {plan.epsilon:g}"
            )
    return Agreed(grid, needed)


SAME = 1e-3  # of how far a step moves: more than rounding in float32, less than any other formula


def size_of(pattern: PyTree) -> int:
    """Count the numbers in one client's update; all must be real, for others have no fixed-point form."""
    leaves = jax.tree.leaves(pattern)
    if not leaves or any(np.dtype(leaf.dtype).kind != "f" for leaf in leaves):
        raise InputError(
            "This method's updates are not made of real numbers alone, so they cannot be summed up "
            "securely; set secure = false in [run]."
        )
    return sum(int(np.prod(leaf.shape)) for leaf in leaves)


def to_rows(updates: PyTree) -> np.ndarray:
    """Return updates of c clients as [c, d] in float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(updates)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def from_row(row: np.ndarray, pattern: PyTree) -> PyTree:
    """Return d numbers as one client's update, in the form of `pattern`."""
    leaves, structure = jax.tree.flatten(pattern)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
    parts = np.split(row, ends[:-1])
    return jax.tree.unflatten(
        structure,
        [p.reshape(leaf.shape).astype(leaf.dtype) for p, leaf in zip(parts, leaves, strict=True)],
    )


def check_summable(
    step: Callable[..., PyTree], state: PyTree, pattern: PyTree, clients: int
) -> None:
    """Refuse a method whose step with different updates is not that with their mean in place of each.

    `step` is the engine's own (state, updates, weights, number, noise) -> (state, curves). Updates are
    drawn at random, also where a method expects something else of them, such as a count.
    """
    size = size_of(pattern)
    weights = np.ones(clients, jax.tree.leaves(pattern)[0].dtype)
    rows = np.random.default_rng(0).normal(1.0, 0.5, (clients, size))
    drawn, alike = (
        jax.tree.map(lambda *each: np.stack(each), *(from_row(row, pattern) for row in some))
        for some in (rows, np.broadcast_to(rows.mean(0), rows.shape))
    )
    one, two = (step(state, updates, weights, 0, None)[0] for updates in (drawn, alike))
    for before, a, b in zip(*map(jax.tree.leaves, (state, one, two)), strict=True):
        before, a, b = (np.asarray(leaf, np.float64) for leaf in (before, a, b))
        moved = np.abs(a - before).max(initial=0.0)
        if not np.abs(a - b).max(initial=0.0) <= SAME * moved:
            raise InputError(
                "This method's server looks at its clients' updates one by one, and secure aggregation "
                "shows it their sum alone; choose another method, or set secure = false in [run]."
            )
