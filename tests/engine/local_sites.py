"""A server and its sites in one process: messages are handed over, and can be spoilt on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from pacpfl.data.store import ClientStore
from pacpfl.methods.base import Method
from pacpfl.sites import participation, wire
from pacpfl.sites.gather import Reply
from pacpfl.sites.limits import Limits
from pacpfl.sites.recipe import Recipe
from pacpfl.sites.segment import serve
from pacpfl.sites.site import Site
from pacpfl.sites.terms import Outcome, Terms, give_order
from pacpfl.types import Client, Federation, Samples

Spoil = Callable[[str, dict[str, Any], Reply], Reply | None]


class Crash(Exception):
    """The server's process is killed."""


class Local:
    """An exchange without a network. `spoil` may change an answer, or lose it (None)."""

    def __init__(self, sites: dict[str, Site], spoil: Spoil = lambda site, about, reply: reply):
        self.by_name, self.spoil = sites, spoil
        self.notes: list[str] = []
        self.asked: list[tuple[dict[str, Any], list[str], dict[str, np.ndarray]]] = []
        self.stop = False

    def sites(self) -> list[str]:
        return list(self.by_name)

    def ask(
        self, sites: list[str], params: dict[str, np.ndarray], text: str, deadline: float
    ) -> list[Reply]:
        about = wire.from_text(text)
        self.asked.append((about, list(sites), params))
        replies = []
        for site in reversed(sites):  # the order of arrival must not matter
            copied = {name: value.copy() for name, value in params.items()}
            reply = self.spoil(site, about, Reply(site, *self.by_name[site].answer(copied, text)))
            if reply is not None:
                replies.append(reply)
        return replies

    def stopped(self) -> bool:
        return self.stop

    def note(self, text: str) -> None:
        self.notes.append(text)


def federation_of(store: ClientStore, chosen: range) -> Federation:
    parts = [slice(store.offsets[i], store.offsets[i + 1]) for i in chosen]
    clients = [
        Client(str(i), Samples(store.x[rows], store.y[rows]))
        for i, rows in zip(chosen, parts, strict=True)
    ]
    names = tuple(f"x{j}" for j in range(store.features))
    return Federation("here", tuple(clients), features=names)


def recipe_for(build: Callable[[int], Method], rounds: int, **more: Any) -> Recipe:
    settings: dict[str, Any] = {
        "method": "toy", "seed": 7, "dtype": np.float64, "rounds": rounds,
        "clients_per_round": None, "privacy": "none", "clip": None, "identity": "a run",
        "secrecy": lambda clients, folder: nullcontext(),
    }  # fmt: skip
    return Recipe(build=lambda f: build(f.clients), **(settings | more))


def make_sites(
    folder: Path,
    store: ClientStore,
    shares: dict[str, range],
    recipe: Recipe,
    limits: dict[str, Limits] | None = None,
) -> dict[str, Site]:
    sites = {}
    for name, chosen in shares.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        own = federation_of(store, chosen)
        allowed = (limits or {}).get(name, Limits())
        sites[name] = Site(name, place, allowed, lambda text, method, own=own: (recipe, own))
    return sites


def run_segment(
    exchange: Local, recipe: Recipe, folder: Path, segment: int = 1, **terms: Any
) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    give_order(folder, segment)
    return serve(exchange, recipe, "", Terms("0123abcd", segment, **terms), folder)


def record_of(folder: Path) -> participation.Record:
    return participation.read(folder / participation.FILE)
