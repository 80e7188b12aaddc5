"""What is compiled: a client's model from particles and rows, and answers to questions.

Rows are padded to one of few sizes, so that clients of different sizes share compiled programs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from pacpfl.data.standardize import Scaler
from pacpfl.data.store import round_up
from pacpfl.personal import PersonalModel, personal_model
from pacpfl.priors.base import Prior
from pacpfl.types import Data


class Question(NamedTuple):
    """What is asked of a prediction: arrays with rows last, and how they get the target's units."""

    of: Callable[..., Any]
    in_units: Callable[[np.ndarray, Scaler], np.ndarray] = lambda answer, scaler: answer


def room(count: int) -> int:
    """Rows that are made room for. Small tables cost nothing, and share one program."""
    return round_up(max(count, 64))


@partial(jax.jit, static_argnums=(0, 1))
def conditioned(
    prior: Prior,
    rule: str,
    particles: jax.Array,
    data: Data,
    temperature: float,
    seed: jax.Array | None,
) -> PersonalModel:
    key = None if seed is None else jax.random.wrap_key_data(seed)
    return personal_model(prior, particles, data, rule, temperature, key)


@partial(jax.jit, static_argnums=0)
def answered(
    function: Callable[..., Any], model: PersonalModel, x: jax.Array, *arguments: jax.Array
) -> Any:
    return function(model(x), *arguments)
