"""The server's side of a segment: rounds with those who answer, until the last, or until it breaks off.

No network here: an `Exchange` carries the messages. Keys are those of the simulator (engine.keys), so
with everybody present a run across sites is the simulator's run.
"""

from __future__ import annotations

import time
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl.engine.keys import Keys, private_step
from pacpfl.engine.rounds import choose_clients
from pacpfl.engine.training import Played, Saving, States, Training, play
from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.methods.base import Curves
from pacpfl.sites import participation, wire
from pacpfl.sites.gather import Gathered, accepted, collect
from pacpfl.sites.opening import Opening
from pacpfl.sites.participation import Log
from pacpfl.sites.recipe import Recipe, Shapes, shapes_of
from pacpfl.sites.secure_round import SecureRounds, shared_out
from pacpfl.sites.secure_terms import check_everyone, check_summable, propose, size_of
from pacpfl.sites.states import NEVER
from pacpfl.sites.terms import Exchange, Outcome, Terms, is_current, order, write_outcome
from pacpfl.sites.wire import Refused
from pacpfl.types import Form

CHECKPOINT = "server.safetensors"
STRIKES = 3  # refused answers in a row after which a site is left alone for the segment


def serve(
    exchange: Exchange,
    recipe: Recipe,
    config: str,
    terms: Terms,
    folder: Path,
    authority: str = "",
) -> Outcome:
    """Run one segment; its outcome is written beside the checkpoint as well.

    `authority` is the certificate by which secure rounds know the sites' keys.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        outcome = _run(Opening(exchange, recipe, config, terms, folder, authority))
    except InputError as error:
        outcome = Outcome(terms.segment, 0, False, str(error), True)
    write_outcome(folder, outcome)
    exchange.note(f"segment {outcome.segment} ended: {outcome.reason}")
    return outcome


def _run(opening: Opening) -> Outcome:
    recipe, terms, folder = opening.recipe, opening.terms, opening.folder
    forms = opening.hello()
    if len(forms) < terms.needed:
        return Outcome(terms.segment, 0, False, opening.too_few(len(forms)))
    first = next(iter(forms.values()))
    log = Log(folder / participation.FILE)
    try:
        saving = Saving(
            folder / CHECKPOINT,
            recipe.identity,
            terms.checkpoint_rounds,
            terms.checkpoint_seconds / 60,
            lambda: is_current(folder, terms.segment) and log.sync(),
        )
        shapes = shapes_of(opening.build(first), recipe, first)
        training = Training((shapes.state, ()), recipe.rounds, saving).resume()
        cohort = AtSites(opening, training, forms, shapes, log)
        if len(cohort.live) < terms.needed:
            return Outcome(terms.segment, training.done, False, opening.too_few(len(cohort.live)))
        with recipe.secrecy(cohort.form.clients, folder) as secrecy:
            training.keep_to(secrecy)
            return cohort.run()
    finally:
        log.close()


class AtSites:
    """A cohort of clients at sites: one round at a time, with those who answer."""

    def __init__(
        self,
        opening: Opening,
        training: Training,
        forms: dict[str, Form],
        shapes: Shapes,
        log: Log,
    ) -> None:
        """Give everybody a number, and have the sites build the method."""
        self.opening, self.training, self.shapes, self.log = opening, training, shapes, log
        self.recipe, self.terms = opening.recipe, opening.terms
        start = training.done
        record = participation.read(log.path, start) if start else participation.NO_RECORD
        self.form, roster, live = opening.seat(forms, record)
        self.method = opening.build(self.form)
        self.secure: SecureRounds | None = None
        agreed = None
        if self.terms.secure:
            n = self.form.clients
            check_everyone(self.recipe.clients_per_round, n)
            agreed = propose(self.method, size_of(self.shapes.update), n, self.terms)
            self.secure = SecureRounds(opening, agreed)
        self.live = opening.begin(live, self.form, roster, agreed)
        self.seats = {seat.site: seat for seat in roster}
        self.strikes = dict.fromkeys(self.live, 0)
        self.after = record.last_counted()
        self._compiled = jax.jit(self._step)

    def run(self) -> Outcome:
        """Play the segment's rounds, and leave the result with the sites if they were the last."""
        training, terms = self.training, self.terms
        roster = tuple(self.seats.values())
        self.log.segment(
            terms.segment, training.done, roster, sites=self.live, refused=self.opening.refused
        )
        if self.secure is not None:
            state, update = training.states[0], self.shapes.update
            check_summable(self._compiled, state, update, self.form.clients)
        try:
            reason = play(self, training, stop=self._why_stop)
        except SecureAggregationError as error:
            training.save()
            reason = str(error)
        if reason:
            return Outcome(terms.segment, training.saved, False, reason)
        self._finish(training.states[0], training.done)
        ended = "the budget is used up" if training.out_of_budget else "all rounds are done"
        return Outcome(terms.segment, training.done, True, ended)

    def play(self, states: States, first: int, most: int) -> Played:
        """Try one round; with too few answers it came to nothing, and is tried again."""
        began = time.monotonic()
        clients = self._choose(first)
        gathered = Gathered.nobody(self.shapes.update, self.form.clients, self.recipe.dtype)
        if clients:
            gathered = self._ask(wire.to_wire(states[0], self.shapes.needed), clients, first)
            if not gathered.enough:
                return Played(states, {})
        noise = None
        # In secure rounds the sites have added the noise, and the release is counted before it is seen.
        if self.training.secrecy is not None and self.secure is None:
            self._count_release(first)
            noise = self.training.secrecy.noise()
        state, curves = self._compiled(states[0], gathered.updates, gathered.weights, first, noise)
        curves = {name: np.asarray(value) for name, value in curves.items()}
        self._note(first, gathered, curves, time.monotonic() - began)
        self.after |= dict.fromkeys(gathered.clients, first)
        return Played((state, ()), {name: value[None] for name, value in curves.items()})

    def _step(
        self,
        state: PyTree,
        updates: PyTree,
        weights: jax.Array,
        number: jax.Array,
        noise: jax.Array | None,
    ) -> tuple[PyTree, Curves]:
        if noise is None:
            server_key = Keys.of(self.recipe.seed).step(number, self.form.clients)
        else:
            server_key = private_step(noise, number)
        curves = self.method.diagnostics(state, updates, weights)
        return self.method.server_update(state, updates, weights, server_key), curves

    def _why_stop(self) -> str:
        if self.opening.exchange.stopped():
            return "the job was stopped"
        wish = order(self.opening.folder)
        if wish.get("segment", self.terms.segment) != self.terms.segment:
            return "another segment has taken over"
        if wish.get("end"):
            return "asked to end, so that sites can join"
        if len(self.live) < self.terms.needed:
            return self.opening.too_few(len(self.live))
        return ""

    def _choose(self, number: int) -> list[int]:
        """Draw the clients of this round: as in the simulator, among those whose sites are there."""
        here = np.sort(np.concatenate([np.array(self.seats[site].numbers) for site in self.live]))
        if self.training.secrecy is not None:
            chosen = self.training.secrecy.choose(number, self.form.clients)
            return [int(client) for client in chosen if client in here]
        c = self.recipe.clients_per_round
        if c is None or c >= len(here):
            return [int(client) for client in here]
        return [int(here[i]) for i in choose_clients(self.recipe.seed, number, len(here), c)]

    def _ask(self, message: dict[str, np.ndarray], clients: list[int], number: int) -> Gathered:
        """Ask the sites of these clients for their updates, and see who answered as asked."""
        numbers = {
            site: own
            for site in self.live
            if (own := [c for c in clients if c in self.seats[site].numbers])
        }
        take = {
            site: [[c - self.seats[site].first, self.after.get(c, NEVER)] for c in own]
            for site, own in numbers.items()
        }
        pattern, n, dtype = self.shapes.update, self.form.clients, self.recipe.dtype
        if self.secure is not None:
            summed = self.secure.run(
                message, number, self.training.saved, take,
                lambda survivors: sum(len(numbers[site]) for site in survivors),
                lambda: self._count_release(number),
            )  # fmt: skip
            gathered = shared_out(summed, numbers, pattern, n, dtype)
        else:
            saved, deadline = self.training.saved, self.terms.deadline
            text = self.opening.about("train", round=number, saved=saved, take=take)
            replies = self.opening.exchange.ask(sorted(take), message, text, deadline)
            gathered = collect(
                replies, numbers, pattern, n, dtype, number,
                quorum=self.terms.quorum, sent=len(take) * wire.size(message),
            )  # fmt: skip
        self._judge(gathered, number)
        return gathered

    def _judge(self, gathered: Gathered, number: int) -> None:
        """Drop sites that did not answer, and those refused STRIKES times in a row."""
        for site in gathered.missing:
            self.live.remove(site)
            self.opening.refuse(site, f"no answer to round {number}")
        for site, reason in gathered.refused.items():
            self.opening.refuse(site, reason)
            self.strikes[site] += 1
            if self.strikes[site] >= STRIKES:
                self.live.remove(site)
        for site in gathered.answered:
            self.strikes[site] = 0

    def _count_release(self, number: int) -> None:
        """Write a private round in the ledger before anything of it can be seen."""
        if self.training.secrecy is not None:
            self.training.secrecy.release(number, number + 1)

    def _note(
        self, number: int, gathered: Gathered, curves: dict[str, np.ndarray], seconds: float
    ) -> None:
        finite = {k: float(v) for k, v in curves.items() if v.ndim == 0 and np.isfinite(v)}
        self.log.round(
            number,
            gathered.clients,
            sites=sorted(gathered.answered),
            missing=gathered.missing,
            refused=gathered.refused,
            seconds=round(seconds, 4),
            sent=gathered.sent,
            received=gathered.received,
            traces=gathered.traces,
            curves=finite,
        )

    def _finish(self, state: PyTree, done: int) -> None:
        """Send the result to the sites that are there; the others ask for it when they are back."""
        text = self.opening.about(
            "finish", rounds=done, data=self.form._asdict(), encoding=self.terms.encoding
        )
        message, deadline = wire.to_wire(state), self.terms.deadline
        for reply in self.opening.exchange.ask(self.live, message, text, deadline):
            try:
                accepted(reply)
            except Refused as error:
                self.opening.refuse(reply.site, str(error))
