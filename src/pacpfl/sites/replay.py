"""A run across sites, computed again in one process from its participation log.

With the clients' data in one place (a test, an audit) the simulator's own functions, given the clients
that took part in each round, must end with the particles that the sites ended with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pacpfl.data.store import ClientStore
from pacpfl.engine.compiled import make_call
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import (
    divide,
    first_client,
    gather_round,
    initial_client_states,
    stack_rounds,
    to_device,
)
from pacpfl.methods.base import Method
from pacpfl.sites.participation import Record


def replay(
    build: Callable[[int], Method],
    store: ClientStore,
    record: Record,
    *,
    seed: int,
    dtype: type,
    matrices_per_client: int = 1,
) -> tuple[Any, Any]:
    """Server's and clients' states after the record's last round.

    `build` makes the method for n clients; `store` holds all clients of the roster by number.
    """
    keys = Keys.of(seed)
    sizes = sorted({one.total for one in record.rounds})
    method = build(sizes[0] if sizes else store.clients)
    example = first_client(store, dtype)
    state = jax.jit(method.init)(keys.start(), example)
    client_states = initial_client_states(method, state, store, keys, dtype)
    itemsize = jnp.zeros((), dtype).dtype.itemsize
    layout = divide(store.clients, store.longest, matrices_per_client, itemsize)
    calls = {n: make_call(build(n), keys, layout, 1, False, n, None, store.longest) for n in sizes}
    for one in record.rounds:
        chosen = np.array(one.clients, int)
        inputs = stack_rounds([gather_round(store, chosen, layout.slots, dtype)], 1)
        state, client_states, _ = calls[one.total](
            state, client_states, to_device(inputs), one.number, 1
        )
    return state, client_states
