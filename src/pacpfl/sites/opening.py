"""Before the first round of a segment: who takes part, what their data look like, who has which number."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

from pacpfl import files
from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.files import Facts
from pacpfl.methods.base import Method
from pacpfl.methods.transforms import compressed, summed
from pacpfl.sites import participation, wire
from pacpfl.sites.gather import accepted
from pacpfl.sites.participation import Record, Seat
from pacpfl.sites.recipe import Recipe
from pacpfl.sites.secure_site import known_as
from pacpfl.sites.secure_terms import Agreed
from pacpfl.sites.terms import Exchange, Terms
from pacpfl.sites.wire import Refused, to_form
from pacpfl.types import Form
from pacpfl.version import __version__

FORM = "federation.json"


class Opening:
    def __init__(
        self,
        exchange: Exchange,
        recipe: Recipe,
        config: str,
        terms: Terms,
        folder: Path,
        authority: str = "",
    ) -> None:
        self.exchange, self.recipe, self.config = exchange, recipe, config
        self.terms, self.folder, self._authority = terms, folder, authority
        self.refused: dict[str, str] = {}
        self._introductions: Facts = {}  # for secure rounds: who vouches for whom
        self.identities: dict[str, bytes] = {}

    def about(self, task: str, **more: Any) -> str:
        return wire.to_text({"task": task, "run": self.terms.run, **more})

    def hello(self) -> dict[str, Form]:
        """Ask who takes part, and what their data look like; return that by the sites' names, in order."""
        text = self.about(
            "hello",
            config=self.config,
            method=self.recipe.method,
            version=__version__,
            secure=self.terms.secure,
        )
        sites = sorted(self.exchange.sites())
        replies = self.exchange.ask(sites, wire.empty(), text, self.terms.start_deadline)
        forms: dict[str, Form] = {}
        for reply in sorted(replies, key=lambda reply: reply.site):
            try:
                about = accepted(reply)
                wire.same_major(__version__, about.get("version"))
                one = to_form(about.get("data"))
                if forms:
                    next(iter(forms.values())).agrees(one)
                if self.terms.secure:
                    self._introduce(reply.site, about.get("introduction"))
                forms[reply.site] = one
            except (Refused, InputError) as error:
                self.refuse(reply.site, str(error))
        return forms

    def _introduce(self, site: str, introduction: object) -> None:
        """Check a site's certificate, as the other sites will; who shows nothing sound is left out."""
        try:
            identity = known_as(self._authority, site, introduction, self.terms.run)
        except (SecureAggregationError, InputError) as error:
            raise Refused(str(error)) from error
        self.identities[site], self._introductions[site] = identity, introduction

    def seat(
        self, forms: dict[str, Form], record: Record
    ) -> tuple[Form, tuple[Seat, ...], list[str]]:
        """Return the form of the whole federation, everybody's numbers, and who may take part."""
        seated = {seat.site: seat.clients for seat in record.roster}
        stored = self._stored() if seated else {}
        one = next(iter(forms.values()))
        live = []
        for site, description in forms.items():
            if seated and site in seated and description.clients != seated[site]:
                self.refuse(
                    site, f"it has {description.clients} clients now, and began with {seated[site]}"
                )
            elif seated and site not in seated and self.recipe.privacy != "none":
                self.refuse(site, "a private run keeps the sites that its budget was planned for")
            else:
                live.append(site)
        newcomers = [(site, forms[site].clients) for site in live if site not in seated]
        roster = participation.seats([*seated.items(), *newcomers])
        sizes: dict[str, list[int] | None] = dict(stored.get("sizes", {}))
        for site in live:
            own = forms[site].sizes
            sizes[site] = None if own is None else list(own)
        each = [sizes.get(seat.site) for seat in roster]
        listed = [part for part in each if part is not None]
        every = tuple(chain.from_iterable(listed)) if len(listed) == len(each) else None
        whole = one._replace(clients=participation.total(roster), sizes=every)
        if stored:
            to_form(stored["form"]).agrees(one)
        form = {"form": whole._asdict(), "sizes": sizes}
        files.write_json(self.folder / FORM, form)
        return whole, roster, live

    def _stored(self) -> Facts:
        path = self.folder / FORM
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def begin(
        self,
        live: list[str],
        whole: Form,
        roster: tuple[Seat, ...],
        agreed: Agreed | None = None,
    ) -> list[str]:
        """Have the sites build and compile the method, before the first round's clock ticks."""
        seats = {seat.site: seat.first for seat in roster}
        data, encoding = whole._asdict(), self.terms.encoding
        secure: Facts = {}
        if agreed is not None:
            shown = {site: self._introductions[site] for site in live}
            secure = {"secure": agreed.to_json(), "introductions": shown}
        text = self.about("begin", data=data, seats=seats, encoding=encoding, **secure)
        ready = []
        for reply in self.exchange.ask(live, wire.empty(), text, self.terms.start_deadline):
            try:
                if accepted(reply).get("ready") is not True:
                    raise Refused("it is not ready")
                ready.append(reply.site)
            except Refused as error:
                self.refuse(reply.site, str(error))
        return sorted(ready)

    def refuse(self, site: str, reason: str) -> None:
        self.refused[site] = reason
        self.exchange.note(f"{site} was refused, or refuses: {reason}")

    def build(self, whole: Form) -> Method:
        made = self.recipe.build(whole)
        return summed(made) if self.terms.secure else compressed(made, self.terms.encoding)

    def too_few(self, count: int) -> str:
        why = "".join(f"; {site}: {reason}" for site, reason in sorted(self.refused.items()))
        return f"{count} sites are ready, and {self.terms.needed} are needed{why}"
