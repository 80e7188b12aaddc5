"""Secure rounds: what server and sites agree on before them, and the server's side of one.

A party of the protocol (pacpfl.secagg) is a SITE. A site's clients lie in one process at one place, so
masks between them would hide nothing from anybody; it writes each client's update as integers, adds
these up, and masks the sum. Each update was held to the limit by itself (the clip norm of a private run,
else `bound` of [run]), so sensitivity and rounding are those of single clients.

Of the n sites that a round invites more than 2n/3 have to survive, at least `needed` (the quorum, and
never fewer than two). Noise is planned for `needed` survivors, s = sigma / sqrt(needed) per site in whole
steps, so whoever drops out, the noise that was accounted for is in the sum, or there is no sum. The
server proposes s; each site works out for itself what it spends in the planned rounds, and refuses if
that is above the budget.

The server gets S = sum_i u_i over the m clients who took part, and goes on as if each of them had sent
the mean S / m: a method whose server reads its updates in sums and counts alone cannot tell the
difference. `check_summable` tries it out, so any method may be asked for.

A round has five exchanges, after which the server knows a sum and nothing else. Who does not answer a
step, or not as the protocol says, has dropped out; the others go on as long as they are enough. With too
few the round is abandoned, nothing is revealed, and the segment asks for it anew among those who are
left. Inboxes travel in one message to all: they are sealed.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.files import Facts
from pacpfl.methods.base import Method
from pacpfl.methods.transforms import Private
from pacpfl.privacy.accounting import Plan, epsilon_spent
from pacpfl.secagg.grid import Grid, finest_step, guarantee, noise_for
from pacpfl.secagg.messages import Step
from pacpfl.secagg.primitives import digest
from pacpfl.secagg.server import Server
from pacpfl.secagg.settings import SESSION_BYTES, Settings, smallest_threshold
from pacpfl.sites import wire
from pacpfl.sites.terms import Inquiry, Reply, Terms
from pacpfl.sites.wire import INBOX, MESSAGE, Refused, count

ENVELOPE_BYTES = 2**10  # name, lengths and signature around a payload
# A norm that was clipped in float32 may lie above the clip by its last digits.
LAST_DIGITS = 1e-6


@dataclass(frozen=True)
class Agreed:
    grid: Grid
    needed: int
    contract: bytes = (
        b""  # digest of the run: configuration, method, data's form, numbers of clients
    )

    def to_json(self) -> Facts:
        grid = self.grid
        return {"step": grid.step, "clip": grid.clip, "noise": grid.noise, "needed": self.needed}

    def settings(
        self, session: bytes, number: int, cohort: dict[str, bytes], seen: bytes = b""
    ) -> Settings:
        """Return the protocol's settings for one attempt at a round, among these sites.

        `seen` is the digest of the round as a party sees it: its number, its state, who takes part. All
        signatures and keys depend on it. Without it a server could send one site the state and the
        others one at which their updates are known, and read the one's update off the sum (Pasquini,
        Francati & Ateniese 2022); the same goes for the `contract`.
        """
        threshold = max(smallest_threshold(len(cohort), "active"), self.needed)
        settings = self.grid.settings(session, number, cohort, threshold)
        return replace(settings, terms=settings.terms + b" " + digest(self.contract, seen))


def contract_of(config: str, method: str, data: Facts, seats: Facts) -> bytes:
    """Return the digest of a run's terms, on which the update at a state depends as well."""
    return wire.fingerprint({"config": config, "method": method, "data": data, "seats": seats})


def propose(method: Method, dimension: int, clients: int, terms: Terms) -> Agreed:
    if not isinstance(method, Private):
        # Sums of up to 53 bits: as exact as float64, at 8 bytes a number.
        step = finest_step(terms.bound, dimension, clients, bits=64)
        return Agreed(Grid(step, terms.bound, dimension, clients), terms.needed)
    needed = terms.needed
    return Agreed(_noisy(method.plan, limit_of(method), dimension, clients, needed), needed)


def limit_of(method: Private) -> float:
    return method.clip * (1 + LAST_DIGITS)


def _noisy(plan: Plan, clip: float, dimension: int, clients: int, needed: int) -> Grid:
    """Find the least noise that keeps to the budget by the bound for sums of discrete Gaussians.

    The ledger states what the plan's continuous noise spends, by the tighter of two accountants; up to a
    tenth more noise makes its statement true after any number of rounds.
    """
    assert plan.epsilon is not None and plan.rounds is not None
    step = finest_step(clip, dimension, clients, 2 * plan.multiplier * clip / math.sqrt(needed))
    grid = Grid(step, clip, dimension, clients)
    grid = noise_for(plan.epsilon, grid, needed, plan.delta, rounds=plan.rounds)
    for rounds in {plan.rounds, *(2**i for i in range(plan.rounds.bit_length()))}:
        stated = epsilon_spent(plan, rounds).epsilon
        while guarantee(grid, needed, plan.delta, rounds=rounds).epsilon > stated:
            grid = replace(grid, noise=math.ceil(1.01 * grid.noise))
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
    if {np.dtype(leaf.dtype).kind for leaf in jax.tree.leaves(pattern)} != {"f"}:
        raise InputError(
            "This method's updates are not made of real numbers alone, so they cannot be summed up "
            "securely; set secure = false in [run]."
        )
    return count(pattern)


def to_rows(updates: PyTree) -> np.ndarray:
    """Return updates of c clients as [c, d] in float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(updates)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def from_row(row: np.ndarray, pattern: PyTree) -> PyTree:
    """Return d numbers as one client's update, in the form of `pattern`."""
    rest = row

    def cut(leaf: Any) -> np.ndarray:
        nonlocal rest
        own, rest = np.split(rest, [math.prod(leaf.shape)])
        return own.reshape(leaf.shape).astype(leaf.dtype)

    return jax.tree.map(cut, pattern)


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


@dataclass
class SecureRounds:
    """A session of the protocol: the rounds of one segment."""

    agreed: Agreed
    identities: Mapping[str, bytes]
    attempts: int = 0
    session: bytes = field(default_factory=lambda: secrets.token_bytes(SESSION_BYTES))

    def run(
        self,
        inquiry: Inquiry,
        state: dict[str, np.ndarray],
        about: Facts,
        before_reveal: Callable[[], None],
    ) -> tuple[np.ndarray, tuple[str, ...]] | None:
        """Return the sum over the survivors' clients, and who these are; None if it was abandoned.

        `about` says what a plain round's request says.
        """
        number, take = about["round"], about["take"]
        identities = {site: self.identities[site] for site in take}
        seen = wire.fingerprint({"round": number, "take": take}, state)
        server = Server(self.agreed.settings(self.session, self.attempts, identities, seen))
        session = {"session": self.session.hex(), "attempt": self.attempts, "cohort": sorted(take)}
        self.attempts += 1
        # Keys and sealed shares of everybody; masked updates; never more.
        small = ENVELOPE_BYTES * (len(take) + 1)
        large = small + 8 * self.agreed.grid.dimension
        told: Collection[str] = take
        params, more, found = state, about | session, None
        try:
            for step in Step:
                name, most = step.name.lower(), large if step is Step.MASK else small

                def read(reply: Reply, about: Facts, name: str = name, most: int = most) -> bytes:
                    if (about.get("round"), about.get("step")) != (number, name):
                        raise Refused(f"it did not answer step {name} of round {number}")
                    return wire.to_message(reply.params, MESSAGE, most)

                if step is Step.REVEAL:
                    before_reveal()
                replies = inquiry.ask("secure", told, params, read, step=name, **more)
                told = server.collect(step, replies)
                alike = {MESSAGE: next(iter(told.values()), b"")}
                inboxes = {INBOX + site: inbox for site, inbox in told.items()}
                params = wire.from_messages(inboxes if step is Step.SHARE else alike)
                more = {"round": number} | session
            clients = sum(len(take[site]) for site in server.survivors)
            found = self.agreed.grid.decode(server.total, clients), server.survivors
        except SecureAggregationError as error:
            inquiry.exchange.note(str(error))
            if not (inquiry.missing or inquiry.refused or server.refused):
                raise  # nobody to leave out: the next attempt would end the same way
        inquiry.refused = server.refused | inquiry.refused
        inquiry.missing.difference_update(inquiry.refused)
        return found
