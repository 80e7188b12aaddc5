"""A configuration as the two sides of a run across sites need it: the server, and a site."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from pacpfl import config as configuration
from pacpfl.config import Config
from pacpfl.engine.keys import Keys
from pacpfl.engine.training import Secrecy, keep_secret
from pacpfl.errors import InputError
from pacpfl.methods.base import Method
from pacpfl.methods.registry import build_method, build_private, entry, named
from pacpfl.privacy.accounting import PrivacySettings
from pacpfl.sites import wire
from pacpfl.types import Data, Form


@dataclass(frozen=True)
class Recipe:
    """A configuration's terms, with the functions that make a method of it."""

    method: str
    seed: int
    dtype: type
    rounds: int
    clients_per_round: int | None
    privacy: str  # its mode
    clip: float | None  # norm to which updates are clipped; None: they are not
    identity: str
    build: Callable[[Form], Method]
    secrecy: Callable[[int, Path], AbstractContextManager[Secrecy | None]]
    adaptive: bool = False  # whether the clip moves from round to round


class Shapes(NamedTuple):
    """What a method begins with; of clients' memories and updates the shapes and types."""

    state: PyTree  # the server's, before the first round
    memory: PyTree  # of one client, between rounds
    update: PyTree  # of one client
    needed: frozenset[str]  # leaves of the server's state that an update depends on


def shapes_of(method: Method, recipe: Recipe, form: Form) -> Shapes:
    """Return what a method begins with; as the simulator makes it, of the number of features alone."""
    data, keys = example(recipe, form), Keys.of(recipe.seed)
    state, key = jax.jit(method.init)(keys.start(), data), keys.start_of(0)
    memory = jax.eval_shape(method.init_client, state, data, key)
    update, _ = jax.eval_shape(method.client_update, state, memory, data, key)
    return Shapes(state, memory, update, wire.needed(method, state, memory, data, key))


def example(recipe: Recipe, form: Form) -> Data:
    x, y = jnp.zeros((1, len(form.features)), recipe.dtype), jnp.zeros(1, recipe.dtype)
    return Data(x, y, jnp.ones(1, bool))


def recipe_of(config: Config, method: str) -> Recipe:
    able = named(learns="in rounds")
    if method not in able:
        there = ", ".join(able)
        raise InputError(f"{method} does not learn in rounds; across sites there are {there}.")
    if config.data.standardize == "global":
        raise InputError(
            'standardize = "global" needs everybody\'s samples in one place; across sites choose '
            "client or none."
        )
    train = config.train
    privacy = config.privacy if entry(method).particles else PrivacySettings()
    private = privacy.mode != "none"

    def build(form: Form) -> Method:
        return build_private(method, config, form) or build_method(method, config, form)

    def secrecy(clients: int, folder: Path) -> AbstractContextManager[Secrecy | None]:
        plan = privacy.plan(train.rounds, clients, train.clients_per_round)
        if plan is None:
            return nullcontext()
        return keep_secret(plan, privacy.noise_seed, configuration.identity(config), folder)

    return Recipe(
        method,
        config.seed,
        config.run.dtype,
        train.rounds,
        train.clients_per_round,
        privacy.mode,
        privacy.clip if private else None,
        configuration.identity(config, engine="sites", method=method),
        build,
        secrecy,
        private and privacy.clip_quantile is not None,
    )
