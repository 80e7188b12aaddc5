"""The server's side of a segment: rounds with those who answer, until the last, or until it breaks off.

No network here: an `Exchange` carries the messages. Keys are those of the simulator (engine.keys), so
with everybody present a run across sites is the simulator's run.
"""

from __future__ import annotations

import time
from collections.abc import Collection
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
from pacpfl.sites.gather import Inquiry, gather, read_updates
from pacpfl.sites.opening import Opening
from pacpfl.sites.participation import Log
from pacpfl.sites.recipe import Recipe, Shapes, shapes_of
from pacpfl.sites.secure_round import SecureRounds
from pacpfl.sites.secure_terms import (
    check_everyone,
    check_summable,
    from_row,
    propose,
    size_of,
)
from pacpfl.sites.states import NEVER
from pacpfl.sites.terms import Exchange, Outcome, Terms, is_current, order, write_outcome
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
    saving = Saving(
        folder / CHECKPOINT,
        recipe.identity,
        terms.checkpoint_rounds,
        terms.checkpoint_seconds / 60,
        lambda: is_current(folder, terms.segment),
    )
    shapes = shapes_of(opening.build(first), recipe, first)
    training = Training((shapes.state, ()), recipe.rounds, saving).resume()
    cohort = AtSites(opening, training, forms, shapes)
    if len(cohort.live) < terms.needed:
        return Outcome(terms.segment, training.done, False, opening.too_few(len(cohort.live)))
    with recipe.secrecy(cohort.form.clients, folder) as secrecy:
        training.keep_to(secrecy)
        return cohort.run()


class AtSites:
    """A cohort of clients at sites: one round at a time, with those who answer."""

    def __init__(
        self, opening: Opening, training: Training, forms: dict[str, Form], shapes: Shapes
    ) -> None:
        """Give everybody a number, and have the sites build the method."""
        self.opening, self.training, self.shapes = opening, training, shapes
        self.recipe, self.terms = opening.recipe, opening.terms
        self.log = Log(opening.folder / participation.FILE)
        start = training.done
        record = participation.read(self.log.path, start) if start else participation.NO_RECORD
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
        numbers = self._choose(first)
        found: dict[str, PyTree] = {}
        inquiry = Inquiry(self.opening.exchange)
        if numbers:
            message = wire.to_wire(states[0], self.shapes.needed)
            found, inquiry = self._ask(message, numbers, first)
            self._judge(found, inquiry, first)
            if len(found) < max(1, min(self.terms.quorum, len(numbers))):
                return Played(states, {})
        n, dtype = self.form.clients, self.recipe.dtype
        updates, weights = gather(found, numbers, self.shapes.update, n, dtype)
        noise = None
        # In secure rounds the sites have added the noise, and the release is counted before it is seen.
        if self.training.secrecy is not None and self.secure is None:
            self._count_release(first)
            noise = self.training.secrecy.noise()
        state, curves = self._compiled(states[0], updates, weights, first, noise)
        curves = {name: np.asarray(value) for name, value in curves.items()}
        clients = [int(client) for client in np.flatnonzero(weights)]
        self.log.round(
            first,
            clients,
            sites=list(found),
            missing=sorted(inquiry.missing),
            refused=inquiry.refused,
            seconds=round(time.monotonic() - began, 4),
            sent=inquiry.sent,
            received=inquiry.received,
            traces=inquiry.traces,
            curves={k: float(v) for k, v in curves.items() if v.ndim == 0 and np.isfinite(v)},
        )
        self.after |= dict.fromkeys(clients, first)
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

    def _choose(self, number: int) -> dict[str, list[int]]:
        """Draw this round's clients, by site: as in the simulator, among those whose sites are there."""
        here = np.sort(np.concatenate([np.array(self.seats[site].numbers) for site in self.live]))
        c = self.recipe.clients_per_round
        if self.training.secrecy is not None:
            here = np.intersect1d(self.training.secrecy.choose(number, self.form.clients), here)
        elif c is not None and c < len(here):
            here = here[choose_clients(self.recipe.seed, number, len(here), c)]
        chosen = [int(client) for client in here]
        by_site = {s: [i for i in chosen if i in self.seats[s].numbers] for s in self.live}
        return {site: own for site, own in by_site.items() if own}

    def _ask(
        self, message: dict[str, np.ndarray], numbers: dict[str, list[int]], number: int
    ) -> tuple[dict[str, PyTree], Inquiry]:
        """Return updates by site, and who was asked in vain; the sites of a sum have its mean."""
        saved, pattern = self.training.saved, self.shapes.update
        take = {
            site: [[i - self.seats[site].first, self.after.get(i, NEVER)] for i in own]
            for site, own in numbers.items()
        }
        if self.secure is None:
            inquiry = Inquiry(self.opening.exchange)
            text = self.opening.about("train", round=number, saved=saved, take=take)
            read = read_updates(numbers, pattern, number)
            return inquiry.ask(take, message, text, self.terms.deadline, read), inquiry
        total, survivors, inquiry = self.secure.run(
            message, number, saved, take, lambda: self._count_release(number)
        )
        if total is None:
            return {}, inquiry
        mean = from_row(total / sum(len(numbers[site]) for site in survivors), pattern)
        return dict.fromkeys(survivors, mean), inquiry

    def _judge(self, found: Collection[str], inquiry: Inquiry, number: int) -> None:
        """Drop sites that did not answer, and those refused STRIKES times in a row."""
        for site in sorted(inquiry.missing):
            self.live.remove(site)
            self.opening.refuse(site, f"no answer to round {number}")
        for site, reason in inquiry.refused.items():
            self.opening.refuse(site, reason)
            self.strikes[site] += 1
            if self.strikes[site] >= STRIKES:
                self.live.remove(site)
        self.strikes |= dict.fromkeys(found, 0)

    def _count_release(self, number: int) -> None:
        """Write a private round in the ledger before anything of it can be seen."""
        if self.training.secrecy is not None:
            self.training.secrecy.release(number, number + 1)

    def _finish(self, state: PyTree, done: int) -> None:
        """Send the result to the sites that are there; the others ask for it when they are back."""
        text = self.opening.about(
            "finish", rounds=done, data=self.form._asdict(), encoding=self.terms.encoding
        )
        self.opening.ask(self.live, wire.to_wire(state), text, self.terms.deadline)
