"""All clients in one process: every gradient of a round in one compiled call, many rounds per call.

Randomness depends on (seed, round, client) alone, never on how rounds are grouped into calls, so an
interrupted run that goes on from a checkpoint ends with the same bits as one that was left alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pacpfl.data.store import ClientStore
from pacpfl.engines.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pacpfl.errors import InputError
from pacpfl.methods.base import Method
from pacpfl.types import Data

CALL_SECONDS = 0.4  # how long one compiled call should take: what a progress bar needs
MAXIMUM_ROUNDS_PER_CALL = 64
# Bytes of kernel matrices in flight on each device; larger federations go in blocks. On a CPU what
# leaves the cache costs: measured from 1.5 to 8 MiB, this is 1.1 (k = 4) to 1.2 x (k = 16) faster.
WORKING_SET = {"cpu": 5 * 2**19}
WORKING_SET_ACCELERATOR = 2**31
STREAM_BYTES = 64 * 2**20  # bytes of samples handed over per call when clients are sampled
RESIDENT_BYTES = 2**29  # federations up to this size are handed over once and stay on the device


@dataclass(frozen=True)
class Saving:
    """Where and how often to save, and the name of the configuration the checkpoint belongs to."""

    path: Path
    identity: str
    rounds: int = 500
    minutes: float = 1.0


class Progress(NamedTuple):
    round: int
    rounds: int
    seconds: float
    diagnostics: dict[str, float]


class Trained(NamedTuple):
    state: Any
    client_states: Any
    history: dict[str, np.ndarray]
    rounds: int
    compile_seconds: float
    seconds: float  # without compilation
    finished: bool  # False: stopped on request, saved


def train(
    method: Method,
    store: ClientStore,
    *,
    rounds: int,
    clients_per_round: int | None = None,
    seed: int = 0,
    dtype: type = np.float32,
    matrices_per_client: int = 1,
    saving: Saving | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Run `rounds` rounds. Goes on from the checkpoint where `saving` finds one."""
    n = store.clients
    c = n if clients_per_round is None else clients_per_round
    if not 1 <= c <= n:
        raise InputError(f"{c} clients per round cannot be chosen from {n}; choose 1 to {n}.")
    layout = divide(c, store.longest, matrices_per_client, np.dtype(dtype).itemsize)
    everyone = c == n
    first = to_device(store.gather(np.array([0]), dtype))
    example = jax.tree.map(lambda a: a[0], first)
    base = jax.random.key(seed)
    state = jax.jit(method.init)(jax.random.fold_in(base, 0), example)
    client_states = initial_client_states(method, state, store, base, dtype)
    history: dict[str, list[np.ndarray]] = {}
    start = 0
    if saving is not None:
        found = load_checkpoint(saving.path, (state, client_states), saving.identity)
        if found is not None:
            start = found.round
            state, client_states = jax.tree.map(jnp.asarray, found.state)
            history = {name: [values] for name, values in found.history.items()}

    itemsize = first.x.dtype.itemsize
    bytes_per_round = layout.slots * store.longest * (store.features + 1) * itemsize
    resident = None
    # Samples that lie on disk stay there: they may be more than fits anywhere.
    in_memory = not isinstance(store.x, np.memmap)
    if not everyone and in_memory and store.x.size * itemsize <= RESIDENT_BYTES:
        resident = to_device(hold(store, dtype))
        bytes_per_round = 1
    capacity = max(1, min(MAXIMUM_ROUNDS_PER_CALL, STREAM_BYTES // bytes_per_round))
    call = make_call(method, base, layout, capacity, everyone, n, resident, store.longest)
    fixed = None
    if everyone:
        fixed = to_device(stack_rounds([gather_round(store, np.arange(n), layout.slots, dtype)], 1))

    def save(done: int) -> None:
        if saving is not None:
            flat = {name: np.concatenate(values) for name, values in history.items()}
            save_checkpoint(
                saving.path, Checkpoint(done, (state, client_states), flat), saving.identity
            )

    done, count = start, 1
    compile_seconds = train_seconds = 0.0
    began = last_saved = time.monotonic()
    last_saved_round = start
    stopped = False
    while done < rounds and not stopped:
        count = min(count, capacity, rounds - done)
        if saving is not None:
            count = min(count, last_saved_round + saving.rounds - done)
        if fixed is None:
            chosen = [choose_clients(seed, number, n, c) for number in range(done, done + count)]
            if resident is None:
                each = [gather_round(store, clients, layout.slots, dtype) for clients in chosen]
            else:
                each = [point_round(store, clients, layout.slots, dtype) for clients in chosen]
            inputs = to_device(stack_rounds(each, capacity))
        else:
            inputs = fixed
        called = time.monotonic()
        state, client_states, curves = call(state, client_states, inputs, done, count)
        jax.block_until_ready(curves)
        seconds = time.monotonic() - called
        for name, values in curves.items():
            history.setdefault(name, []).append(np.asarray(values)[:count])
        done += count
        if compile_seconds == 0.0:  # the first call, one round, is nearly all compilation
            compile_seconds = seconds
        else:
            train_seconds += seconds
            count = min(4 * count, int(CALL_SECONDS * count / seconds))
        count = max(count, 2)
        if progress is not None:
            latest = {name: float(values[-1][-1]) for name, values in history.items()}
            progress(Progress(done, rounds, time.monotonic() - began, latest))
        stopped = stop()
        due = saving is not None and (
            done - last_saved_round >= saving.rounds
            or time.monotonic() - last_saved >= 60 * saving.minutes
        )
        if due or stopped:
            save(done)
            last_saved, last_saved_round = time.monotonic(), done
    if saving is not None and done != last_saved_round:
        save(done)
    flat = {name: np.concatenate(values) for name, values in history.items()}
    return Trained(state, client_states, flat, done, compile_seconds, train_seconds, done >= rounds)


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
    """How the slots for a round's clients are dealt out."""

    devices: int
    blocks: int  # one after the other on each device
    block: int  # clients in a block, at once

    @property
    def slots(self) -> int:
        return self.devices * self.blocks * self.block


def divide(c: int, longest: int, matrices: int, itemsize: int) -> Layout:
    """All devices; blocks small enough for the working set; as few empty slots as that allows."""
    devices = min(jax.device_count(), c)
    share = math.ceil(c / devices)
    per_client = max(1, matrices * longest**2 * itemsize)
    room = WORKING_SET.get(jax.default_backend(), WORKING_SET_ACCELERATOR)
    blocks = math.ceil(share / max(1, room // per_client))
    return Layout(devices, blocks, math.ceil(share / blocks))


def make_call(
    method: Method,
    base: jax.Array,
    layout: Layout,
    capacity: int,
    everyone: bool,
    n: int,
    resident: Resident | None = None,
    longest: int = 0,
) -> Callable[..., Any]:
    """`count` rounds in one compiled loop. `count` is an argument: one compilation serves all.

    Clients are dealt to the devices; each computes its share of the updates, all gather all of them,
    and each takes the server's step, which is small, for itself. `resident` samples stay on the
    devices from call to call.
    """

    def updates_of_share(
        state: Any, client_states: Any, inputs: RoundInputs, round_key: Any
    ) -> Any:
        keys = jax.vmap(lambda client: jax.random.fold_in(round_key, client))(inputs.chosen)
        own = jax.tree.map(lambda a: a.at[inputs.chosen].get(mode="clip"), client_states)

        def update(arguments: Any) -> Any:
            return jax.vmap(lambda cs, data, key: method.client_update(state, cs, data, key))(
                *arguments
            )

        arguments = (own, inputs.data, keys)
        if layout.blocks == 1:
            return update(arguments)
        in_blocks = jax.tree.map(
            lambda a: a.reshape(layout.blocks, layout.block, *a.shape[1:]), arguments
        )
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), jax.lax.map(update, in_blocks))

    def one_round(
        seed: Any, number: Any, state: Any, client_states: Any, inputs: RoundInputs
    ) -> Any:
        rounds_key = jax.random.fold_in(jax.random.wrap_key_data(seed), 1)
        round_key = jax.random.fold_in(rounds_key, number)
        share = updates_of_share(state, client_states, inputs, round_key)
        updates, own, chosen, weights = gather(
            (*share, inputs.chosen, inputs.weights), layout.devices
        )
        client_states = jax.tree.map(
            lambda all_, new: all_.at[chosen].set(new, mode="drop"), client_states, own
        )
        curves = method.diagnostics(state, updates, weights)
        server_key = jax.random.fold_in(round_key, n)
        return method.server_update(state, updates, weights, server_key), client_states, curves

    def call(
        state: Any,
        client_states: Any,
        inputs: RoundInputs,
        start: Any,
        count: Any,
        samples: Resident | None,
        seed: Any,
    ) -> Any:
        def pick(index: Any) -> RoundInputs:
            place = 0 if everyone else index
            picked = jax.tree.map(lambda a: a[place], inputs)
            if samples is None:
                return picked
            return picked._replace(data=look_up(samples, picked.data, longest))

        shapes = jax.eval_shape(one_round, seed, start, state, client_states, pick(0))[2]
        curves = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)

        def body(index: Any, carry: Any) -> Any:
            state, client_states, curves = carry
            state, client_states, values = one_round(
                seed, start + index, state, client_states, pick(index)
            )
            curves = jax.tree.map(lambda c, v: c.at[index].set(v), curves, values)
            return state, client_states, curves

        return jax.lax.fori_loop(0, count, body, (state, client_states, curves))

    # The key is an argument: as a constant it would make every seed compile anew.
    seed = jax.random.key_data(base)
    if layout.devices == 1:
        compiled_alone = jax.jit(call)
        return lambda *arguments: compiled_alone(*arguments, resident, seed)
    mesh = jax.make_mesh(
        (layout.devices,),
        ("clients",),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=jax.devices()[: layout.devices],
    )
    rows = PartitionSpec(None, "clients")  # inputs are [rounds, slots, ...]
    everywhere = PartitionSpec()
    specs = (everywhere, everywhere, rows, *[everywhere] * 4)
    compiled = jax.jit(
        jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=False)
    )

    held = jax.device_put((resident, seed), jax.NamedSharding(mesh, everywhere))

    def placed(state: Any, client_states: Any, inputs: RoundInputs, start: Any, count: Any) -> Any:
        """Arguments that lie where the results of the call before lie: else it compiles twice."""
        shared = jax.device_put(
            (state, client_states, jnp.int32(start), jnp.int32(count)),
            jax.NamedSharding(mesh, everywhere),
        )
        dealt = jax.device_put(inputs, jax.NamedSharding(mesh, rows))
        return compiled(shared[0], shared[1], dealt, *shared[2:], *held)

    return placed


def gather(tree: Any, devices: int) -> Any:
    """Every device's slots on every device, in ONE collective.

    On a CPU a device that waits for the others holds a thread; two collectives that the devices
    enter in a different order would wait for each other for ever. So all leaves travel in one array
    of floats, the others bit by bit where they are as wide, else by value (which is exact).
    """
    if devices == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    carrier = jnp.result_type(*(f.dtype for f in leaves if jnp.issubdtype(f.dtype, jnp.floating)))

    def pack(leaf: Any) -> Any:
        return _cast(leaf, carrier).reshape(leaf.shape[0], -1)

    def unpack(part: Any, leaf: Any) -> Any:
        return _cast(part, leaf.dtype).reshape(part.shape[0], *leaf.shape[1:])

    packed = [pack(leaf) for leaf in leaves]
    whole = jax.lax.all_gather(jnp.concatenate(packed, 1), "clients", tiled=True)
    parts = jnp.split(whole, np.cumsum([part.shape[1] for part in packed])[:-1], axis=1)
    return jax.tree.unflatten(structure, [unpack(p, f) for p, f in zip(parts, leaves, strict=True)])


def _cast(a: Any, dtype: Any) -> Any:
    same_width = a.dtype.itemsize == np.dtype(dtype).itemsize
    return jax.lax.bitcast_convert_type(a, dtype) if same_width else a.astype(dtype)


def choose_clients(seed: int, number: int, n: int, c: int) -> np.ndarray:
    """The random subset C_t: without replacement, in O(c), from (seed, round) alone."""
    rng = np.random.default_rng([seed, number])
    return np.sort(rng.choice(n, c, replace=False, shuffle=False))


def gather_round(store: ClientStore, chosen: np.ndarray, slots: int, dtype: type) -> RoundInputs:
    """One round's inputs; empty slots hold the first chosen client's data with weight 0."""
    empty = slots - len(chosen)
    data = store.gather(np.concatenate([chosen, np.repeat(chosen[:1], empty)]), dtype)
    numbers = np.concatenate([chosen, np.full(empty, store.clients)]).astype(np.int32)
    weights: np.ndarray = np.zeros(slots, dtype)
    weights[: len(chosen)] = 1
    return RoundInputs(data, numbers, weights)


def hold(store: ClientStore, dtype: type) -> Resident:
    x: np.ndarray = np.zeros((len(store.x) + store.longest, store.features), dtype)
    y: np.ndarray = np.zeros(len(x), dtype)
    x[: len(store.x)], y[: len(store.y)] = store.x, store.y
    return Resident(x, y)  # type: ignore[arg-type]


def point_round(store: ClientStore, chosen: np.ndarray, slots: int, dtype: type) -> RoundInputs:
    """One round's inputs when the samples are on the device: only where they lie."""
    filled = np.concatenate([chosen, np.repeat(chosen[:1], slots - len(chosen))])
    starts, ends = store.offsets[filled], store.offsets[filled + 1]
    places = Places(starts.astype(np.int32), (ends - starts).astype(np.int32))
    numbers = np.where(np.arange(slots) < len(chosen), filled, store.clients).astype(np.int32)
    return RoundInputs(places, numbers, (np.arange(slots) < len(chosen)).astype(dtype))


def look_up(samples: Resident, places: Any, longest: int) -> Data:
    """The same as `gather_round` makes of a store, from samples on the device."""

    def one(start: jax.Array, length: jax.Array) -> Data:
        mask = jnp.arange(longest) < length
        x = jax.lax.dynamic_slice_in_dim(samples.x, start, longest)
        y = jax.lax.dynamic_slice_in_dim(samples.y, start, longest)
        return Data(jnp.where(mask[:, None], x, 0), jnp.where(mask, y, 0), mask)

    return jax.vmap(one)(places.starts, places.lengths)


def stack_rounds(each: list[RoundInputs], capacity: int) -> RoundInputs:
    """Rounds along a new leading axis, in arrays of always the same size."""

    def stack(*parts: np.ndarray) -> np.ndarray:
        whole = np.zeros((capacity, *parts[0].shape), parts[0].dtype)
        for index, part in enumerate(parts):
            whole[index] = part
        return whole

    return jax.tree.map(stack, *each)


def initial_client_states(
    method: Method, state: Any, store: ClientStore, base: jax.Array, dtype: type
) -> Any:
    """What clients keep between rounds, leading axis n; computed only where a method keeps something."""

    clients_key = jax.random.fold_in(base, 3)  # 0 to 2: server, rounds, personalisation

    def one(state: Any, key: Any, data: Data, client: Any) -> Any:
        return method.init_client(state, data, jax.random.fold_in(key, client))

    example = jax.tree.map(lambda a: a[0], store.gather(np.array([0]), dtype))
    if not jax.tree.leaves(jax.eval_shape(one, state, clients_key, example, 0)):
        return one(state, clients_key, example, 0)
    everyone = np.arange(store.clients)
    many = jax.jit(jax.vmap(one, in_axes=(None, None, 0, 0)))
    return many(state, clients_key, store.gather(everyone, dtype), everyone)


def to_device(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)
