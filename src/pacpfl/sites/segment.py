"""The server's side of a segment: who takes part, then rounds with those who answer, until it ends.

No network here: an `Exchange` carries the messages. Keys are those of the simulator (engine.keys), so
with everybody present a run across sites is the simulator's run.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl import files
from pacpfl.engine.keys import Keys, private_step
from pacpfl.engine.rounds import choose_clients
from pacpfl.engine.training import Played, Saving, States, Training, play
from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.files import Facts
from pacpfl.methods.base import Curves, Method
from pacpfl.methods.transforms import compressed, summed
from pacpfl.sites import guard, participation, wire
from pacpfl.sites.participation import Record, Seat
from pacpfl.sites.recipe import Recipe, Shapes, shapes_of
from pacpfl.sites.secure import (
    SecureRounds,
    check_summable,
    contract_of,
    from_row,
    propose,
    size_of,
)
from pacpfl.sites.secure_site import known_as
from pacpfl.sites.states import NEVER
from pacpfl.sites.terms import (
    Exchange,
    Inquiry,
    Outcome,
    Read,
    Reply,
    Terms,
    is_current,
    order,
    write_outcome,
)
from pacpfl.sites.wire import Refused, to_form
from pacpfl.types import Form
from pacpfl.version import __version__

CHECKPOINT = "server.safetensors"
FORM = "federation.json"
STRIKES = 3  # refused answers in a row after which a site is left alone for the segment


@dataclass
class AtSites:
    """A cohort of clients at sites: one round at a time, with those who answer.

    `authority` is the certificate by which secure rounds know the sites' keys.
    """

    exchange: Exchange
    recipe: Recipe
    config: str
    terms: Terms
    folder: Path
    authority: str = ""
    live: list[str] = field(default_factory=list)  # sites that take part
    refused: dict[str, str] = field(default_factory=dict)  # site -> why
    ruinous: dict[str, str] = field(
        default_factory=dict
    )  # of these since the last round that counted
    identities: dict[str, bytes] = field(default_factory=dict)  # for secure rounds, by site
    introductions: Facts = field(default_factory=dict)  # that vouch for these
    secure: SecureRounds | None = None
    training: Training = field(init=False)
    shapes: Shapes = field(init=False)
    form: Form = field(init=False)  # of the whole federation
    method: Method = field(init=False)

    def serve(self) -> Outcome:
        """Run the segment; its outcome is written beside the checkpoint as well."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            outcome = self._run()
        except InputError as error:
            outcome = Outcome(self.terms.segment, 0, False, str(error), True)
        write_outcome(self.folder, outcome)
        self.exchange.note(f"segment {outcome.segment} ended: {outcome.reason}")
        return outcome

    def _run(self) -> Outcome:
        """Find out who takes part; play rounds; leave the result with the sites after the last one."""
        recipe, terms = self.recipe, self.terms
        forms = self._hello()
        if reason := self._too_few(forms):
            return Outcome(terms.segment, 0, False, reason)
        smallest = min(forms.values(), key=lambda form: form.clients)
        self.shapes = shapes_of(self._build(smallest), recipe, smallest)
        counts = {site: form.clients for site, form in forms.items()}
        for site, reason in guard.too_many(counts, self.shapes.update).items():
            self._refuse(site, reason)
            del forms[site]
        saving = Saving(
            self.folder / CHECKPOINT,
            recipe.identity,
            terms.checkpoint_rounds,
            terms.checkpoint_seconds / 60,
            lambda: is_current(self.folder, terms.segment),
        )
        self.training = training = Training((self.shapes.state, ()), recipe.rounds, saving).resume()
        self._check_state()
        self._begin(forms)
        if reason := self._too_few(self.live):
            return Outcome(terms.segment, training.done, False, reason)
        with recipe.secrecy(self.form.clients, self.folder) as secrecy:
            training.keep_to(secrecy)
            if reason := self._play():
                return Outcome(terms.segment, training.saved, False, reason)
            self._check_state()
            self._finish()
        ended = "the budget is used up" if training.out_of_budget else "all rounds are done"
        return Outcome(terms.segment, training.done, True, ended)

    def _check_state(self) -> None:
        """End the run where it has reached nothing that can be used."""
        if not guard.is_finite(self.training.states[0]):
            raise InputError(
                f"After {self.training.done} rounds the state holds numbers that are not finite; start "
                "over with --fresh, and with smaller steps if no site is to blame."
            )

    # Before the first round.

    def _hello(self) -> dict[str, Form]:
        """Ask who takes part, and what their data look like; return that by the sites' names, in order."""
        forms: dict[str, Form] = {}

        def read(reply: Reply, about: Facts) -> None:
            wire.same_major(__version__, about.get("version"))
            form = to_form(about.get("data"))
            if self.terms.secure:  # checked here as the other sites will check it
                site, shown = reply.site, about.get("introduction")
                self.identities[site] = known_as(self.authority, site, shown, self.terms.run)
                self.introductions[site] = shown
            forms[reply.site] = form

        run = {"config": self.config, "method": self.recipe.method, "version": __version__}
        more: Facts = {**run, "secure": self.terms.secure}
        self._ask("hello", self.exchange.sites(), read, **more)
        return self._agreeing(forms)

    def _agreeing(self, forms: dict[str, Form]) -> dict[str, Form]:
        """Return the forms of sites whose data can be learned from together; refuse the others by name.

        What the run began with decides, or else what more than half of them have: no single site does.
        """
        path = self.folder / FORM
        if (self.folder / CHECKPOINT).exists() and path.exists():
            right = to_form(json.loads(path.read_text())["form"])
        elif forms:
            alike = Counter(form.schema for form in forms.values())
            schema, votes = alike.most_common(1)[0]
            if 2 * votes <= len(forms):
                told = "; ".join(f"{site}: {form.schema}" for site, form in forms.items())
                raise InputError(
                    "No form of the data is that of more than half of the sites, so nobody can say which "
                    f"is right; have them agree on it ({textwrap.shorten(told, 600)})."
                )
            right = next(form for form in forms.values() if form.schema == schema)
        agreeing = {}
        for site, form in forms.items():
            try:
                right.agrees(form)
                agreeing[site] = form
            except InputError as error:
                self._refuse(site, str(error))
        return agreeing

    def _begin(self, forms: dict[str, Form]) -> None:
        """Give everybody a number, and have the sites build the method before the first round's clock."""
        log, start = self.folder / participation.FILE, self.training.done
        record = participation.read(log, start) if start else participation.NO_RECORD
        self.form, roster, live = self._seat(forms, record)
        self.method, self.after = self._build(self.form), record.last_counted()
        self.seats = {seat.site: seat for seat in roster}
        firsts, form = {seat.site: seat.first for seat in roster}, self.form._asdict()
        more: Facts = {"data": form, "seats": firsts, "encoding": self.terms.encoding}
        if self.terms.secure:
            n = self.form.clients
            if (self.recipe.clients_per_round or n) < n:
                raise InputError(
                    "With secure aggregation all clients take part in every round, because a sum over "
                    "few of them may be that of one site; leave clients_per_round out, or set secure = "
                    "false in [run]."
                )
            agreed = propose(self.method, size_of(self.shapes.update), n, self.terms)
            contract = contract_of(self.config, self.recipe.method, form, firsts)
            self.secure = SecureRounds(replace(agreed, contract=contract), self.identities)
            shown = {site: self.introductions[site] for site in live}
            more |= {"secure": agreed.to_json(), "introductions": shown}

        def read(reply: Reply, about: Facts) -> None:
            if about.get("ready") is not True:
                raise Refused("it is not ready")

        self.live = self._ask("begin", live, read, **more)
        self.strikes = dict.fromkeys(self.live, 0)

    def _seat(
        self, forms: dict[str, Form], record: Record
    ) -> tuple[Form, tuple[Seat, ...], list[str]]:
        """Return the form of the whole federation, everybody's numbers, and who may take part."""
        seated = {seat.site: seat.clients for seat in record.roster}
        path = self.folder / FORM
        stored: Facts = json.loads(path.read_text()) if seated and path.exists() else {}
        for site, form in forms.items():
            if seated and site not in seated and self.recipe.privacy != "none":
                self._refuse(site, "a private run keeps the sites that its budget was planned for")
            elif (n := seated.get(site, form.clients)) != form.clients:
                self._refuse(site, f"it has {form.clients} clients now, and began with {n}")
        live = [site for site in forms if site not in self.refused]
        newcomers = [(site, forms[site].clients) for site in live if site not in seated]
        roster = participation.seats([*seated.items(), *newcomers])
        sizes = stored.get("sizes", {}) | {site: forms[site].sizes for site in live}
        each = [sizes.get(seat.site) for seat in roster]
        every = None if None in each else tuple(chain(*each))
        one = next(iter(forms.values()))
        whole = one._replace(clients=participation.total(roster), sizes=every)
        files.write_json(path, {"form": whole._asdict(), "sizes": sizes})
        return whole, roster, live

    def _build(self, form: Form) -> Method:
        made, rule = self.recipe.build(form), self.terms.aggregation
        if rule != "mean" and not made.averages:
            raise InputError(
                f"aggregation = {rule} is for methods whose server takes the mean of updates and adds no "
                "noise, which this run's does not; set aggregation to mean in [run]."
            )
        return summed(made) if self.terms.secure else compressed(made, self.terms.encoding)

    # Rounds.

    def _play(self) -> str:
        """Play the segment's rounds; return why they ended before the last."""
        training, terms = self.training, self.terms
        self._log(
            kind="segment",
            segment=terms.segment,
            start=training.done,
            roster=[[seat.site, seat.clients] for seat in self.seats.values()],
            sites=self.live,
            refused=self.refused,
        )
        self._compiled = jax.jit(self._step)
        if terms.secure:
            state, update = training.states[0], self.shapes.update
            check_summable(self._compiled, state, update, self.form.clients)
        try:
            return play(self, training, stop=self._why_stop)
        except SecureAggregationError as error:
            training.save()
            return str(error)

    def play(self, states: States, first: int, most: int) -> Played:
        """Try one round; with too few answers it came to nothing, and is tried again."""
        began = time.monotonic()
        numbers = self._choose(first)
        inquiry = Inquiry(self.exchange, self.terms.run, self.terms.deadline)
        found = self._updates(inquiry, states[0], numbers, first) if numbers else {}
        self._judge(found, inquiry, first)
        if len(found) < min(max(1, self.terms.quorum), len(numbers)):
            return Played(states, {})
        beyond: dict[str, float] = {}
        if self.secure is None and self.recipe.privacy == "none":  # else clipped, or not seen
            found, beyond = guard.shorten(found, self.terms.longest, self.recipe.dtype)
        updates, weights = self._gather(found, numbers)
        norms = {}
        if self.secure is None:
            norms = {
                s: guard.lengths(part, self.recipe.dtype).tolist() for s, part in found.items()
            }
            updates = guard.combined(updates, weights, self.terms.aggregation, self.recipe.dtype)
        noise = None
        # In secure rounds the sites have added the noise, and the release is counted before it is seen.
        if self.training.secrecy is not None and self.secure is None:
            self._count_release(first)
            noise = self.training.secrecy.noise()
        state, curves = self._compiled(states[0], updates, weights, first, noise)
        if not guard.is_finite(state):
            self._blame(found, first)
            return Played(states, {})
        curves = {name: np.asarray(value) for name, value in curves.items()}
        clients = np.flatnonzero(weights).tolist()
        self._log(
            kind="round",
            round=first,
            clients=clients,
            sites=list(found),
            missing=sorted(inquiry.missing),
            refused=self.ruinous | inquiry.refused,
            clipped={site: round(times, 3) for site, times in beyond.items()},
            norms={site: [float(f"{n:.3g}") for n in each] for site, each in norms.items()},
            seconds=round(time.monotonic() - began, 4),
            sent=inquiry.sent,
            received=inquiry.received,
            traces=inquiry.traces,
            curves={k: float(v) for k, v in curves.items() if v.ndim == 0 and np.isfinite(v)},
        )
        self.ruinous = {}
        self.after |= dict.fromkeys(clients, first)
        return Played((state, ()), {name: value[None] for name, value in curves.items()})

    def _blame(self, found: dict[str, PyTree], number: int) -> None:
        """After a step that was undone, leave out the site whose update was the longest."""
        if self.secure is not None:
            raise SecureAggregationError(
                f"the sum of round {number} leaves a state that is not finite, and nobody can see whose "
                "update it was"
            )
        longest = {s: guard.lengths(part, self.recipe.dtype).max() for s, part in found.items()}
        site = max(longest, key=lambda name: longest[name])
        self.ruinous[site] = (
            f"its update of norm {longest[site]:.3g} in round {number} left a state that is not finite, "
            "so the step was undone"
        )
        self._refuse(site, self.ruinous[site])
        self.live.remove(site)

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
        if self.exchange.stopped():
            return "the job was stopped"
        if not is_current(self.folder, self.terms.segment):
            return "another segment has taken over"
        if order(self.folder).get("end"):
            return "asked to end, so that sites can join"
        return self._too_few(self.live)

    def _choose(self, number: int) -> dict[str, list[int]]:
        """Draw this round's clients, by site: as in the simulator, among those whose sites are there."""
        here = np.sort(np.concatenate([np.array(self.seats[site].numbers) for site in self.live]))
        c = self.recipe.clients_per_round
        if self.training.secrecy is not None:
            here = np.intersect1d(self.training.secrecy.choose(number, self.form.clients), here)
        elif c is not None and c < len(here):
            here = here[choose_clients(self.recipe.seed, number, len(here), c)]
        chosen = here.tolist()
        by_site = {s: [i for i in chosen if i in self.seats[s].numbers] for s in self.live}
        return {site: own for site, own in by_site.items() if own}

    def _updates(
        self, inquiry: Inquiry, state: PyTree, numbers: dict[str, list[int]], number: int
    ) -> dict[str, PyTree]:
        """Return updates of clients by site; the sites of a sum have its mean."""
        pattern, message = self.shapes.update, wire.to_wire(state, self.shapes.needed)
        take = {
            site: [[i - self.seats[site].first, self.after.get(i, NEVER)] for i in own]
            for site, own in numbers.items()
        }
        about: Facts = {"round": number, "saved": self.training.kept, "take": take}

        def read(reply: Reply, said: Facts) -> PyTree:
            if said.get("round") != number:
                raise Refused(
                    f"it answered round {str(said.get('round'))[:20]} instead of {number}"
                )
            c = len(numbers[reply.site])
            several = jax.tree.map(lambda s: jax.ShapeDtypeStruct((c, *s.shape), s.dtype), pattern)
            return wire.from_wire(reply.params, several)

        if self.secure is None:
            return inquiry.ask("train", take, message, read, **about)
        found = self.secure.run(inquiry, message, about, lambda: self._count_release(number))
        if found is None:
            return {}
        total, survivors = found
        mean = from_row(total / sum(len(numbers[site]) for site in survivors), pattern)
        return dict.fromkeys(survivors, mean)

    def _gather(
        self, found: dict[str, PyTree], numbers: dict[str, list[int]]
    ) -> tuple[PyTree, np.ndarray]:
        """Return updates of all n clients and their weights, zero for those who are absent."""
        n = self.form.clients
        updates = jax.tree.map(lambda s: np.zeros((n, *s.shape), s.dtype), self.shapes.update)
        weights: np.ndarray = np.zeros(n, self.recipe.dtype)
        for site, part in found.items():
            for whole, own in zip(jax.tree.leaves(updates), jax.tree.leaves(part), strict=True):
                whole[numbers[site]] = own
            weights[numbers[site]] = 1
        return updates, weights

    def _judge(self, found: Collection[str], inquiry: Inquiry, number: int) -> None:
        """Drop sites that did not answer, and those refused STRIKES times in a row."""
        for site in sorted(inquiry.missing):
            self.live.remove(site)
            self._refuse(site, f"no answer to round {number}")
        for site, reason in inquiry.refused.items():
            self._refuse(site, reason)
            self.strikes[site] += 1
            if self.strikes[site] >= STRIKES:
                self.live.remove(site)
        self.strikes |= dict.fromkeys(found, 0)

    def _count_release(self, number: int) -> None:
        """Write a private round in the ledger before anything of it can be seen."""
        if self.training.secrecy is not None:
            self.training.secrecy.release(number, number + 1)

    def _finish(self) -> None:
        """Send the result to the sites that are there; the others ask for it when they are back."""
        self._ask(
            "finish",
            self.live,
            params=wire.to_wire(self.training.states[0]),
            deadline=self.terms.deadline,
            rounds=self.training.done,
            data=self.form._asdict(),
            encoding=self.terms.encoding,
        )

    def _log(self, **entry: Any) -> None:
        """Write a line about who takes part; it is on the disk before the next round begins."""
        files.append_line(self.folder / participation.FILE, entry)

    # Messages.

    def _ask(
        self,
        task: str,
        sites: list[str],
        read: Read = lambda reply, about: None,
        params: dict[str, np.ndarray] | None = None,
        deadline: float | None = None,
        **more: Any,
    ) -> list[str]:
        """Ask and return who answered as asked, in order; refuse the others who answered."""
        deadline = deadline or self.terms.start_deadline
        inquiry = Inquiry(self.exchange, self.terms.run, deadline)
        found = inquiry.ask(task, sites, params or wire.empty(), read, **more)
        for site, reason in inquiry.refused.items():
            self._refuse(site, reason)
        return list(found)

    def _refuse(self, site: str, reason: str) -> None:
        self.refused[site] = reason
        self.exchange.note(f"{site} was refused, or refuses: {reason}")

    def _too_few(self, sites: Collection[str]) -> str:
        """Return the reason to end where no round can be had with these sites."""
        if len(sites) >= self.terms.needed:
            return ""
        why = "".join(f"; {site}: {reason}" for site, reason in sorted(self.refused.items()))
        return f"{len(sites)} sites are ready, and {self.terms.needed} are needed{why}"
