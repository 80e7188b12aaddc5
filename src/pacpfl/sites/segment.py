"""The server's side of a segment: rounds with those who answer, until the last, or until it breaks off.

No network here: an `Exchange` carries the messages. Keys are those of the simulator (engine.keys), so
with everybody present a run across sites is the simulator's run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pacpfl.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pacpfl.engine.keys import Keys, private_step
from pacpfl.engine.rounds import choose_clients, to_device
from pacpfl.engine.simulate import Secrecy
from pacpfl.errors import InputError
from pacpfl.methods.base import Method
from pacpfl.privacy.source import noise_key
from pacpfl.secagg.errors import SecureAggregationError
from pacpfl.sites import participation, wire
from pacpfl.sites.gather import Gathered, accepted, collect
from pacpfl.sites.opened import Opened
from pacpfl.sites.opening import Opening, Shapes, shapes_of
from pacpfl.sites.participation import Log, Seat
from pacpfl.sites.secure_round import SecureRounds, shared_out
from pacpfl.sites.secure_terms import check_everyone, propose
from pacpfl.sites.states import NEVER
from pacpfl.sites.sums import check_summable, size_of
from pacpfl.sites.terms import Exchange, Outcome, Terms, is_current, order, write_outcome
from pacpfl.sites.wire import Refused
from pacpfl.types import Form

CHECKPOINT = "server.safetensors"
STRIKES = 3  # refused answers in a row after which a site is left alone for the segment


def serve(
    exchange: Exchange,
    opened: Opened,
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
        outcome = _run(Opening(exchange, opened, config, terms, folder, authority))
    except InputError as error:
        outcome = Outcome(terms.segment, 0, False, str(error), True)
    write_outcome(folder, outcome)
    exchange.note(f"segment {outcome.segment} ended: {outcome.reason}")
    return outcome


def _run(opening: Opening) -> Outcome:
    opened, terms, folder = opening.opened, opening.terms, opening.folder
    said = opening.hello()
    if len(said) < terms.needed:
        return Outcome(terms.segment, 0, False, opening.too_few(len(said)))
    first = next(iter(said.values()))
    state = opening.initial(opening.build(first), first)
    found = load_checkpoint(folder / CHECKPOINT, (state, ()), opened.identity)
    start = 0 if found is None else found.round
    log_path = folder / participation.FILE
    record = participation.read(log_path, start) if start else participation.NO_RECORD
    whole, roster, live = opening.seat(said, record)
    method = opening.build(whole)
    form = shapes_of(method, state, whole, opened)
    agreed = None
    if terms.secure:
        check_everyone(opened.clients_per_round, whole.clients)
        agreed = propose(method, size_of(form.update), whole.clients, terms)
    live = opening.begin(live, whole, roster, agreed)
    if len(live) < terms.needed:
        return Outcome(terms.segment, start, False, opening.too_few(len(live)))
    log = Log(log_path)
    try:
        log.segment(terms.segment, start, roster, sites=live, refused=opening.refused)
        with opened.secrecy(whole.clients, folder) as secrecy:
            rounds = _Rounds(opening, method, form, whole, roster, live, log, secrecy)
            rounds.secure = None if agreed is None else SecureRounds(opening, agreed)
            if found is not None:
                state = rounds.go_on(found)
            rounds.after = record.last_counted()
            return rounds.run(state, start)
    finally:
        log.close()


class _Rounds:
    """The rounds of a segment that has begun."""

    def __init__(
        self,
        opening: Opening,
        method: Method,
        form: Shapes,
        whole: Form,
        roster: tuple[Seat, ...],
        live: list[str],
        log: Log,
        secrecy: Secrecy | None,
    ) -> None:
        self.opening, self.method, self.log, self.secrecy = opening, method, log, secrecy
        self.form = form
        self.secure: SecureRounds | None = None
        self.opened, self.terms, self.folder = opening.opened, opening.terms, opening.folder
        self.whole = whole
        self.seats = {seat.site: seat for seat in roster}
        self.live = list(live)
        self.strikes = dict.fromkeys(live, 0)
        self.after: dict[int, int] = {}
        self.history: dict[str, list[np.ndarray]] = {}
        self.saved = 0

    def go_on(self, found: Checkpoint) -> Any:
        """From a checkpoint: the server's state."""
        if self.secrecy is not None and self.secrecy.ledger is not None:
            self.secrecy.ledger.check(found.ledger)
        self.history = {name: [values] for name, values in found.history.items()}
        return to_device(found.state[0])

    def run(self, state: Any, start: int) -> Outcome:
        self.saved = start
        n, dtype = self.whole.clients, self.opened.dtype
        step = jax.jit(self._step)
        if self.secure is not None:
            check_summable(step, state, self.form.update, n)
        done, last = start, time.monotonic()
        while done < self.opened.rounds:
            if self.secrecy is not None and self.secrecy.left(done) == 0:
                break  # the budget is used up: the run ends here
            reason = self._why_stop()
            if reason:
                if done > self.saved:
                    self._save(state, done)
                return Outcome(self.terms.segment, self.saved, False, reason)
            began = time.monotonic()
            clients = self._choose(done)
            gathered = Gathered.nobody(self.form.update, n, dtype)
            if clients:
                message = wire.to_wire(state, self.form.needed)
                try:
                    gathered = self._ask(message, clients, done)
                except SecureAggregationError as error:
                    if done > self.saved:
                        self._save(state, done)
                    return Outcome(self.terms.segment, self.saved, False, str(error))
                if not gathered.enough:
                    continue
            noise = self._release(done) if self.secure is None else None
            state, curves = step(state, gathered.updates, gathered.weights, done, noise)
            curves = {name: np.asarray(value) for name, value in curves.items()}
            for name, value in curves.items():
                self.history.setdefault(name, []).append(value[None])
            self._note(done, gathered, curves, time.monotonic() - began)
            self.after |= dict.fromkeys(gathered.clients, done)
            done += 1
            due = done - self.saved >= self.terms.checkpoint_rounds
            due = due or time.monotonic() - last >= self.terms.checkpoint_seconds
            if due or self.secrecy is not None:
                self._save(state, done)
                last = time.monotonic()
        if done > self.saved:
            self._save(state, done)
        self._finish(state, done)
        reason = "all rounds are done" if done == self.opened.rounds else "the budget is used up"
        return Outcome(self.terms.segment, done, True, reason)

    def _step(self, state: Any, updates: Any, weights: Any, number: Any, noise: Any) -> Any:
        if noise is None:
            server_key = Keys.of(self.opened.seed).step(number, self.whole.clients)
        else:
            server_key = private_step(noise, number)
        curves = self.method.diagnostics(state, updates, weights)
        return self.method.server_update(state, updates, weights, server_key), curves

    def _why_stop(self) -> str:
        if self.opening.exchange.stopped():
            return "the job was stopped"
        wish = order(self.folder)
        if wish.get("segment", self.terms.segment) != self.terms.segment:
            return "another segment has taken over"
        if wish.get("end"):
            return "asked to end, so that sites can join"
        if len(self.live) < self.terms.needed:
            return self.opening.too_few(len(self.live))
        return ""

    def _choose(self, number: int) -> list[int]:
        """Clients of this round: as in the simulator, among those whose sites are there."""
        here = np.sort(np.concatenate([np.array(self.seats[site].numbers) for site in self.live]))
        if self.secrecy is not None:
            chosen = self.secrecy.choose(number, self.whole.clients)
            return [int(client) for client in chosen if client in here]
        c = self.opened.clients_per_round
        if c is None or c >= len(here):
            return [int(client) for client in here]
        return [int(here[i]) for i in choose_clients(self.opened.seed, number, len(here), c)]

    def _ask(self, message: dict[str, np.ndarray], clients: list[int], number: int) -> Gathered:
        take: dict[str, list[list[int]]] = {}
        for site in self.live:
            seat = self.seats[site]
            own = [client for client in clients if client in seat.numbers]
            if own:
                take[site] = [[c - seat.first, self.after.get(c, NEVER)] for c in own]
        numbers = {
            site: [self.seats[site].first + pair[0] for pair in pairs]
            for site, pairs in take.items()
        }
        pattern, n, dtype = self.form.update, self.whole.clients, self.opened.dtype
        if self.secure is not None:
            summed = self.secure.run(
                message, number, self.saved, take,
                lambda survivors: sum(len(numbers[site]) for site in survivors),
                lambda: self._count_release(number),
            )  # fmt: skip
            gathered = shared_out(summed, numbers, pattern, n, dtype)
        else:
            text = self.opening.about("train", round=number, saved=self.saved, take=take)
            deadline = self.terms.deadline
            replies = self.opening.exchange.ask(sorted(take), message, text, deadline)
            gathered = collect(
                replies, numbers, pattern, n, dtype, number,
                quorum=self.terms.quorum, sent=len(take) * wire.size(message),
            )  # fmt: skip
        self._judge(gathered, number)
        return gathered

    def _judge(self, gathered: Gathered, number: int) -> None:
        """Who is silent is asked no more; who is refused, after some times."""
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
        """A private round is written in the ledger before anything of it can be seen."""
        if self.secrecy is not None and self.secrecy.ledger is not None:
            self.secrecy.ledger.release(number, number + 1)

    def _release(self, number: int) -> Any:
        """The key of the noise that the server adds; in secure rounds the sites have added it."""
        if self.secrecy is None:
            return None
        self._count_release(number)
        return jax.random.key_data(noise_key(self.secrecy.noise_seed))

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

    def _save(self, state: Any, done: int) -> None:
        if not is_current(self.folder, self.terms.segment):
            return
        self.log.sync()
        flat = {name: np.concatenate(values) for name, values in self.history.items()}
        ledger = self.secrecy.ledger if self.secrecy is not None else None
        position = "" if ledger is None else ledger.position
        checkpoint = Checkpoint(done, (state, ()), flat, position)
        save_checkpoint(self.folder / CHECKPOINT, checkpoint, self.opened.identity)
        self.saved = done

    def _finish(self, state: Any, done: int) -> None:
        """Sites that are there keep the result; the others ask for it when they are back."""
        text = self.opening.about(
            "finish", rounds=done, data=self.whole._asdict(), encoding=self.terms.encoding
        )
        replies = self.opening.exchange.ask(
            self.live, wire.to_wire(state), text, self.terms.deadline
        )
        for reply in replies:
            try:
                accepted(reply)
            except Refused as error:
                self.opening.refuse(reply.site, str(error))
