"""Before the first round of a segment: who takes part, what their data look like, who has which number."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pacpfl import files
from pacpfl.files import Facts
from pacpfl.methods.base import Method
from pacpfl.methods.transforms import compressed, summed
from pacpfl.sites import participation, wire
from pacpfl.sites.gather import Inquiry, Read
from pacpfl.sites.participation import Record, Seat
from pacpfl.sites.recipe import Recipe
from pacpfl.sites.secure_site import known_as
from pacpfl.sites.secure_terms import Agreed
from pacpfl.sites.terms import Exchange, Reply, Terms
from pacpfl.sites.wire import Refused, to_form
from pacpfl.types import Form
from pacpfl.version import __version__

FORM = "federation.json"


@dataclass
class Opening:
    """A segment's beginning; `authority` is the certificate by which secure rounds know the sites' keys."""

    exchange: Exchange
    recipe: Recipe
    config: str
    terms: Terms
    folder: Path
    authority: str = ""
    refused: dict[str, str] = field(default_factory=dict)  # site -> why
    identities: dict[str, bytes] = field(default_factory=dict)  # for secure rounds, by site
    introductions: Facts = field(default_factory=dict)  # that vouch for these

    def about(self, task: str, **more: Any) -> str:
        return wire.to_text({"task": task, "run": self.terms.run, **more})

    def hello(self) -> dict[str, Form]:
        """Ask who takes part, and what their data look like; return that by the sites' names, in order."""
        forms: dict[str, Form] = {}

        def read(reply: Reply, about: Facts) -> None:
            wire.same_major(__version__, about.get("version"))
            form = to_form(about.get("data"))
            next(iter(forms.values()), form).agrees(form)
            if self.terms.secure:  # checked here as the other sites will check it
                site, shown = reply.site, about.get("introduction")
                self.identities[site] = known_as(self.authority, site, shown, self.terms.run)
                self.introductions[site] = shown
            forms[reply.site] = form

        run = {"config": self.config, "method": self.recipe.method, "version": __version__}
        about = self.about("hello", **run, secure=self.terms.secure)
        self.ask(self.exchange.sites(), wire.empty(), about, self.terms.start_deadline, read)
        return forms

    def ask(
        self,
        sites: list[str],
        params: dict[str, np.ndarray],
        text: str,
        deadline: float,
        read: Read = lambda reply, about: None,
    ) -> list[str]:
        """Ask and return who answered as asked, in order; refuse the others who answered."""
        inquiry = Inquiry(self.exchange)
        found = inquiry.ask(sites, params, text, deadline, read)
        for site, reason in inquiry.refused.items():
            self.refuse(site, reason)
        return list(found)

    def seat(
        self, forms: dict[str, Form], record: Record
    ) -> tuple[Form, tuple[Seat, ...], list[str]]:
        """Return the form of the whole federation, everybody's numbers, and who may take part."""
        seated = {seat.site: seat.clients for seat in record.roster}
        path = self.folder / FORM
        stored: Facts = json.loads(path.read_text()) if seated and path.exists() else {}
        one = next(iter(forms.values()))
        for site, description in forms.items():
            if seated and site not in seated and self.recipe.privacy != "none":
                self.refuse(site, "a private run keeps the sites that its budget was planned for")
            elif description.clients != seated.get(site, description.clients):
                self.refuse(
                    site, f"it has {description.clients} clients now, and began with {seated[site]}"
                )
        live = [site for site in forms if site not in self.refused]
        newcomers = [(site, forms[site].clients) for site in live if site not in seated]
        roster = participation.seats([*seated.items(), *newcomers])
        sizes: dict[str, list[int] | None] = dict(stored.get("sizes", {}))
        for site in live:
            own = forms[site].sizes
            sizes[site] = None if own is None else list(own)
        each = [sizes.get(seat.site) for seat in roster]
        every = None if None in each else tuple(chain(*filter(None, each)))
        whole = one._replace(clients=participation.total(roster), sizes=every)
        if stored:
            to_form(stored["form"]).agrees(one)
        files.write_json(path, {"form": whole._asdict(), "sizes": sizes})
        return whole, roster, live

    def begin(
        self,
        live: list[str],
        whole: Form,
        roster: tuple[Seat, ...],
        agreed: Agreed | None = None,
    ) -> list[str]:
        """Have the sites build and compile the method, before the first round's clock ticks."""
        seats = {seat.site: seat.first for seat in roster}
        more: Facts = {"data": whole._asdict(), "seats": seats, "encoding": self.terms.encoding}
        if agreed is not None:
            shown = {site: self.introductions[site] for site in live}
            more |= {"secure": agreed.to_json(), "introductions": shown}

        def read(reply: Reply, about: Facts) -> None:
            if about.get("ready") is not True:
                raise Refused("it is not ready")

        text = self.about("begin", **more)
        return self.ask(live, wire.empty(), text, self.terms.start_deadline, read)

    def refuse(self, site: str, reason: str) -> None:
        self.refused[site] = reason
        self.exchange.note(f"{site} was refused, or refuses: {reason}")

    def build(self, whole: Form) -> Method:
        made = self.recipe.build(whole)
        return summed(made) if self.terms.secure else compressed(made, self.terms.encoding)

    def too_few(self, count: int) -> str:
        why = "".join(f"; {site}: {reason}" for site, reason in sorted(self.refused.items()))
        return f"{count} sites are ready, and {self.terms.needed} are needed{why}"
