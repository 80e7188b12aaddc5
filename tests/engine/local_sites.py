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
from pacpfl.engine.simulate import train
from pacpfl.engine.training import load_checkpoint
from pacpfl.methods.base import Method
from pacpfl.sites import participation, wire
from pacpfl.sites.limits import Limits
from pacpfl.sites.recipe import Recipe
from pacpfl.sites.runs import replay
from pacpfl.sites.segment import CHECKPOINT, FORM, AtSites
from pacpfl.sites.site import Site
from pacpfl.sites.terms import Outcome, Reply, Terms, give_order
from pacpfl.types import Client, Data, Federation, Samples

RUN = "0123abcd"
LENGTHS = (3, 5, 2, 4, 5)  # samples of the clients
SHARES = {"a": range(0, 2), "b": range(2, 3), "c": range(3, 5)}
ALL, WITHOUT_B = (0, 1, 2, 3, 4), (0, 1, 3, 4)
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


class World:
    """Sites with their data in one folder, and a run of theirs: one segment of a server after another."""

    def __init__(
        self,
        folder: Path,
        store: ClientStore,
        shares: dict[str, range],
        build: Callable[[int], Method],
        rounds: int,
        limits: dict[str, Limits] | None = None,
        authority: Any = None,
        **recipe: Any,
    ) -> None:
        self.folder, self.store, self.shares, self.limits = folder, store, shares, limits or {}
        self.rounds, self.method = rounds, build(store.clients)
        self.recipe = recipe_for(build, rounds, **recipe)
        self.authority, self.terms = authority, {"secure": True} if authority else {}
        self.name, self.run = RUN, folder / "run"
        self.net = Local({})

    def sites(self) -> dict[str, Site]:
        """Their processes are new, their folders are not."""
        sites = {}
        for name, chosen in self.shares.items():
            place, own = self.folder / name, federation_of(self.store, chosen)
            place.mkdir(parents=True, exist_ok=True)
            allowed = self.limits.get(name, Limits())
            passport = self.authority.passport(name) if self.authority else None
            sites[name] = Site(
                name,
                place,
                allowed,
                lambda text, method, own=own: (self.recipe, lambda: own),
                passport,
            )
        return sites

    def play(self, segment: int = 1, sites: dict[str, Site] | None = None, **how: Any) -> Outcome:
        """A segment, until it ends; `how`: its terms, and who spoils or forges messages."""
        between = {name: how.pop(name) for name in ("spoil", "forge") if name in how}
        self.net = Local(self.sites() if sites is None else sites, **between)
        return self.serve(segment, **how)

    def serve(self, segment: int = 1, **terms: Any) -> Outcome:
        """A segment with the sites that are there."""
        self.run.mkdir(parents=True, exist_ok=True)
        give_order(self.run, segment)
        pem = self.authority.pem if self.authority else ""
        agreed = Terms(self.name, segment, **(self.terms | terms))
        return AtSites(self.net, self.recipe, "", agreed, self.run, pem).serve()

    def final(self) -> tuple[int, Any]:
        """Return the rounds of the checkpoint, and the server's state in it."""
        width = len(json.loads((self.run / FORM).read_text())["form"]["features"])
        example = Data(jnp.zeros((1, width)), jnp.zeros(1), jnp.ones(1, bool))
        template = jax.jit(self.method.init)(jax.random.key(0), example)
        checkpoint = load_checkpoint(self.run / CHECKPOINT, (template, ()), "a run")
        assert checkpoint is not None
        return checkpoint.round, checkpoint.state[0]

    def simulated(self, **more: Any) -> Any:
        """The state that the simulator reaches."""
        settings = {"rounds": self.rounds, "seed": 7, "dtype": np.float64, **more}
        return train(self.method, self.store, **settings).state

    @property
    def record(self) -> participation.Record:
        return participation.read(self.run / participation.FILE)

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return participation.entries(self.run / participation.FILE)

    @property
    def clients(self) -> list[tuple[int, ...]]:
        """Who took part, round by round."""
        return [one.clients for one in self.record.rounds]

    def refused(self, site: str) -> list[dict[str, Any]]:
        """What the site has written down."""
        lines = (self.folder / site / "refused.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def assert_replayed(self, build: Callable[[int], Method], tolerance: float = 1e-11) -> None:
        """All rounds are done, and whoever has all samples gets the same from the log."""
        done, state = self.final()
        assert done == self.rounds == len(self.record.rounds)
        again, _ = replay(build, self.store, self.record, seed=7, dtype=np.float64)
        assert_close(state, again, tolerance)


def assert_close(one: Any, two: Any, tolerance: float = 1e-11) -> None:
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(two)
    assert len(leaves) == len(others) > 0
    for a, b in zip(leaves, others, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)
