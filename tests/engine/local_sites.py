"""A server and its sites in one process: messages are handed over, and can be spoilt on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pacpfl.data.store import ClientStore
from pacpfl.engine.training import load_checkpoint
from pacpfl.methods.base import Method
from pacpfl.secagg.certified import Passport
from pacpfl.sites import participation, wire
from pacpfl.sites.limits import Limits
from pacpfl.sites.opening import FORM
from pacpfl.sites.recipe import Recipe
from pacpfl.sites.segment import CHECKPOINT, serve
from pacpfl.sites.site import Site
from pacpfl.sites.terms import Outcome, Reply, Terms, give_order
from pacpfl.types import Client, Data, Federation, Samples

RUN = "0123abcd"
Spoil = Callable[[str, dict[str, Any], Reply], Reply | None]


class Crash(Exception):
    """The server's process is killed."""


class Local:
    """An exchange without a network.

    `forge` changes a request on its way to one site, as a lying server would send it; `spoil` may change
    an answer, or lose it (None).
    """

    def __init__(
        self,
        sites: dict[str, Site],
        spoil: Spoil = lambda site, about, reply: reply,
        forge: Callable[..., Any] = lambda site, about, params: None,
    ) -> None:
        self.by_name, self.spoil, self.forge = sites, spoil, forge
        self.notes: list[str] = []
        self.asked: list[tuple[dict[str, Any], list[str], dict[str, np.ndarray]]] = []
        self.stop = False

    def sites(self) -> list[str]:
        return list(self.by_name)

    def ask(
        self, sites: list[str], params: dict[str, np.ndarray], text: str, deadline: float
    ) -> list[Reply]:
        self.asked.append((wire.from_text(text), list(sites), params))
        replies = []
        for site in reversed(sites):  # the order of arrival must not matter
            about = wire.from_text(text)
            sent = {name: value.copy() for name, value in params.items()}
            self.forge(site, about, sent)
            answer = self.by_name[site].answer(sent, wire.to_text(about))
            reply = self.spoil(site, about, Reply(site, *answer))
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
    passport: Callable[[str], Passport] | None = None,
) -> dict[str, Site]:
    sites = {}
    for name, chosen in shares.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        own = federation_of(store, chosen)
        allowed = (limits or {}).get(name, Limits())
        vouched = passport(name) if passport else None
        sites[name] = Site(
            name, place, allowed, lambda text, method, own=own: (recipe, own), vouched
        )
    return sites


def run_segment(
    exchange: Local,
    recipe: Recipe,
    folder: Path,
    segment: int = 1,
    authority: str = "",
    **terms: Any,
) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    give_order(folder, segment)
    return serve(exchange, recipe, "", Terms(RUN, segment, **terms), folder, authority)


def final(folder: Path, method: Method) -> tuple[int, Any]:
    """Return the rounds of the checkpoint, and the server's state in it."""
    width = len(json.loads((folder / FORM).read_text())["form"]["features"])
    example = Data(jnp.zeros((1, width)), jnp.zeros(1), jnp.ones(1, bool))
    template = jax.jit(method.init)(jax.random.key(0), example)
    checkpoint = load_checkpoint(folder / CHECKPOINT, (template, ()), "a run")
    assert checkpoint is not None
    return checkpoint.round, checkpoint.state[0]


def assert_close(one: Any, two: Any, tolerance: float = 1e-11) -> None:
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(two)
    assert len(leaves) == len(others) > 0
    for a, b in zip(leaves, others, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def record_of(folder: Path) -> participation.Record:
    return participation.read(folder / participation.FILE)
