"""What the host hands over for a round: who takes part, their samples, and how they are dealt out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree
from scipy.special import bdtrc  # scipy.stats takes half a second to import

from pacpfl.data.store import ClientStore
from pacpfl.engine.keys import Keys
from pacpfl.engine.runtime import compiled_once
from pacpfl.methods.base import Method
from pacpfl.types import Data

# Bytes of kernel matrices in flight on each device; larger federations go in blocks. On a CPU what
# leaves the cache costs: measured from 1.5 to 8 MiB, this is 1.1 (k = 4) to 1.2 x (k = 16) faster.
WORKING_SET = {"cpu": 5 * 2**19}
WORKING_SET_ACCELERATOR = 2**31
OVERFLOW = 1e-12  # how likely a Poisson cohort is larger than its slots; a larger call is then made


class Resident(NamedTuple):
    """Everybody's samples one after the other, with `longest` empty rows at the end."""

    x: jax.Array  # [total + longest, d]
    y: jax.Array  # [total + longest]


class Places(NamedTuple):
    starts: np.ndarray  # [rounds, slots]
    lengths: np.ndarray  # [rounds, slots]


class RoundInputs(NamedTuple):
    """What the host hands over: leading axis = rounds of the call (or 1 when all clients take part).

    `data` are the clients' samples, or where they lie in the samples that are on the device already.
    """

    data: Data | Places
    chosen: np.ndarray  # [rounds, slots]; n where a slot is empty
    weights: np.ndarray  # [rounds, slots]; 0 where a slot is empty


class Layout(NamedTuple):
    """The division of a round's slots among devices."""

    devices: int
    blocks: int  # one after the other on each device
    block: int  # clients in a block, at once

    @property
    def slots(self) -> int:
        return self.devices * self.blocks * self.block


def divide(c: int, longest: int, matrices: int, itemsize: int) -> Layout:
    """Divide c clients among all devices, in blocks small enough for the working set."""
    devices = min(jax.device_count(), c)
    share = math.ceil(c / devices)
    per_client = max(1, matrices * longest**2 * itemsize)
    room = WORKING_SET.get(jax.default_backend(), WORKING_SET_ACCELERATOR)
    blocks = math.ceil(share / max(1, room // per_client))
    return Layout(devices, blocks, math.ceil(share / blocks))


def choose_clients(seed: int, number: int, n: int, c: int) -> np.ndarray:
    """Draw the random subset C_t: without replacement, in O(c), from (seed, round) alone."""
    rng = np.random.default_rng([seed, number])
    return np.sort(rng.choice(n, c, replace=False, shuffle=False))


def poisson_slots(n: int, rate: float) -> int:
    """Return slots enough for all but a share OVERFLOW of rounds with Poisson sampling."""
    more = bdtrc(np.arange(n + 1), n, rate)  # the probability of more clients than 0, 1, ...
    return max(1, int(np.argmax(more <= OVERFLOW)))


def round_inputs(
    store: ClientStore,
    chosen: Sequence[np.ndarray],
    slots: int,
    dtype: type,
    capacity: int = 1,
    held: bool = False,
) -> RoundInputs:
    """Return the inputs of rounds with these clients, on the device, in arrays of always the same size.

    An empty slot holds some client's data with weight 0; `capacity` counts the rounds of a call. Where
    the samples are on the device already (`hold`), only where they lie is handed over.
    """

    def one(clients: np.ndarray) -> RoundInputs:
        filled, taken = fill(clients, slots), np.arange(slots) < len(clients)
        starts = store.offsets[filled]
        lengths = store.offsets[filled + 1] - starts
        places = Places(starts.astype(np.int32), lengths.astype(np.int32))
        numbers = np.where(taken, filled, store.clients).astype(np.int32)
        data = places if held else store.gather(filled, dtype)
        return RoundInputs(data, numbers, taken.astype(dtype))

    def stack(*parts: np.ndarray) -> np.ndarray:
        whole = np.zeros((capacity, *parts[0].shape), parts[0].dtype)
        np.stack(parts, out=whole[: len(parts)])
        return whole

    return jax.device_put(jax.tree.map(stack, *map(one, chosen)))


def fill(chosen: np.ndarray, slots: int) -> np.ndarray:
    """Fill the empty slots with the first chosen client; with client 0 where nobody was chosen."""
    first = chosen[0] if len(chosen) else 0
    return np.concatenate([chosen, np.full(slots - len(chosen), first, chosen.dtype)])


def hold(store: ClientStore, dtype: type) -> Resident:
    """Put everybody's samples on the device."""
    rows = (0, store.longest)
    x: np.ndarray = np.pad(np.asarray(store.x, dtype), (rows, (0, 0)))
    return jax.device_put(Resident(x, np.pad(np.asarray(store.y, dtype), rows)))  # type: ignore[arg-type]


def look_up(samples: Resident, places: Places, longest: int) -> Data:
    """Return what a store gathers, from samples on the device."""

    def one(start: ArrayLike, length: ArrayLike) -> Data:
        mask = jnp.arange(longest) < length
        x = jax.lax.dynamic_slice_in_dim(samples.x, start, longest)
        y = jax.lax.dynamic_slice_in_dim(samples.y, start, longest)
        return Data(jnp.where(mask[:, None], x, 0), jnp.where(mask, y, 0), mask)

    return jax.vmap(one)(places.starts, places.lengths)


def initial_client_states(
    method: Method, state: PyTree, store: ClientStore, keys: Keys, dtype: type, first: int = 0
) -> PyTree:
    """Return what clients keep before the first round, leading axis n; () where they keep nothing.

    `first` is the number of the first of them, where others come before.
    """
    first_states, everyone = _first_states(method), np.arange(store.clients)
    one = everyone[:1]
    shapes = jax.eval_shape(first_states, state, keys, store.gather(one, dtype), one)
    if not jax.tree.leaves(shapes):
        return shapes
    return first_states(state, keys, store.gather(everyone, dtype), first + everyone)


@compiled_once
def _first_states(method: Method) -> Callable[..., PyTree]:
    def one(state: PyTree, keys: Keys, data: Data, client: ArrayLike) -> PyTree:
        return method.init_client(state, data, keys.start_of(client))

    return jax.jit(jax.vmap(one, in_axes=(None, None, 0, 0)))


def first_client(store: ClientStore, dtype: type) -> Data:
    """Return an example of samples: of these, methods see shapes and types before they start."""
    return jax.device_put(jax.tree.map(lambda a: a[0], store.gather(np.array([0]), dtype)))
