"""Many rounds in one compiled call, the clients dealt to all devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import PyTree

from pacpfl.engine.keys import Keys, private_step
from pacpfl.engine.rounds import Layout, Resident, RoundInputs, look_up
from pacpfl.engine.runtime import compiled_once
from pacpfl.methods.base import Method

# Bytes of a device's share of a round's updates, from which on they are summed block by block, and devices
# exchange sums.
LARGE_UPDATES = 2**22

Carry = tuple[PyTree, PyTree, dict[str, jax.Array]]  # states of server and clients, and curves

EVERYWHERE = PartitionSpec()
ROWS = PartitionSpec(None, "clients")  # inputs are [rounds, slots, ...]


@dataclass(frozen=True)
class Rounds:
    """Rounds of a method for one layout; equal ones share what is compiled."""

    method: Method
    layout: Layout
    capacity: int  # rounds in a call, at most
    everyone: bool  # whether all clients take part in every round
    n: int
    longest: int = 0  # samples of a client, where they stay on the devices

    def call(
        self,
        state: PyTree,
        client_states: PyTree,
        inputs: RoundInputs,
        start: jax.Array,
        count: jax.Array,
        noise: jax.Array | None,
        samples: Resident | None,
        seed: jax.Array,
    ) -> Carry:
        """Play `count` rounds from round `start` on; return states, and curves in `capacity` places."""
        keys = Keys(jax.random.wrap_key_data(seed))
        # Its shapes are asked for before it runs: jitted, so that it is traced once, not twice.
        one_round = jax.jit(partial(Rounds.one_round, self), inline=True)

        def pick(index: ArrayLike) -> RoundInputs:
            place = 0 if self.everyone else index
            picked = jax.tree.map(lambda a: a[place], inputs)
            if samples is None:
                return picked
            return picked._replace(data=look_up(samples, picked.data, self.longest))

        shapes = jax.eval_shape(one_round, keys, noise, start, state, client_states, pick(0))[2]
        curves = jax.tree.map(lambda s: jnp.zeros((self.capacity, *s.shape), s.dtype), shapes)

        def body(index: jax.Array, carry: Carry) -> Carry:
            state, client_states, curves = carry
            state, client_states, values = one_round(
                keys, noise, start + index, state, client_states, pick(index)
            )
            curves = jax.tree.map(lambda c, v: c.at[index].set(v), curves, values)
            return state, client_states, curves

        return jax.lax.fori_loop(0, count, body, (state, client_states, curves))

    def one_round(
        self,
        keys: Keys,
        noise: jax.Array | None,
        number: jax.Array,
        state: PyTree,
        client_states: PyTree,
        inputs: RoundInputs,
    ) -> Carry:
        """Play one round on this device's share of the clients."""
        method, several = self.method, self.layout.devices > 1
        own_keys = jax.vmap(lambda client: keys.update(number, client))(inputs.chosen)
        if method.together:
            updates, weights = self._block_by_block(  # of each block, as if it were a client
                lambda data, keys, w: (method.mean_update(state, data, keys, w), w.sum()),
                (inputs.data, own_keys, inputs.weights),
            )
            if several:
                updates, weights = average(weighted(updates, weights), weights.sum(), several)
        else:
            own = jax.tree.map(lambda a: a.at[inputs.chosen].get(mode="clip"), client_states)
            each = jax.vmap(partial(method.client_update, state))
            arguments = own, inputs.data, own_keys
            # Updates of networks are large: all of them are not held at once, and to move them between
            # devices takes longer than to compute them. Small ones are gathered, and summed in the same
            # order on any number of devices.
            shapes = jax.tree.leaves(jax.eval_shape(each, *arguments))
            size = sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)
            stateless = not jax.tree.leaves(client_states)
            if stateless and method.averages and size > LARGE_UPDATES:
                own_weights = jnp.asarray(inputs.weights)
                sums = weighted_sum(lambda *own: each(*own)[0], arguments, own_weights, size)
                updates, weights = average(sums, own_weights.sum(), several)
            else:
                blocks = self._block_by_block(each, arguments)
                updates, own = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), blocks)
                updates, own, chosen, weights = gather(
                    (updates, own, inputs.chosen, inputs.weights), self.layout.devices
                )
                client_states = jax.tree.map(
                    lambda all_, new: all_.at[chosen].set(new, mode="drop"), client_states, own
                )
        curves = method.diagnostics(state, updates, weights)
        key = keys.step(number, self.n) if noise is None else private_step(noise, number)
        return method.server_update(state, updates, weights, key), client_states, curves

    def _block_by_block(self, compute: Callable[..., PyTree], arguments: PyTree) -> PyTree:
        """Return `compute`, of a block of clients, for all of them: results along a leading axis."""
        blocks, block = self.layout.blocks, self.layout.block
        in_blocks = jax.tree.map(lambda a: a.reshape(blocks, block, *a.shape[1:]), arguments)
        if blocks == 1:  # a loop of one would copy
            alone = compute(*jax.tree.map(lambda a: a[0], in_blocks))
            return jax.tree.map(lambda a: a[None], alone)
        return jax.lax.map(lambda parts: compute(*parts), in_blocks)


def make_call(rounds: Rounds, keys: Keys, resident: Resident | None = None) -> Callable[..., Carry]:
    """Return a function that plays `count` rounds in one compiled loop.

    Clients are dealt to the devices; each computes its share of the updates, all gather all of them
    or their means, and each takes the server's step, which is small, for itself. `resident` samples
    stay on the devices from call to call; `noise` is the key of secret rounds.
    """
    compiled, mesh = _compiled(rounds)
    # The key is an argument: as a constant it would make every seed compile anew.
    held = (resident, jax.random.key_data(keys.seed))
    if mesh is not None:
        everywhere, dealt = (jax.NamedSharding(mesh, spec) for spec in (EVERYWHERE, ROWS))
        held = jax.device_put(held, everywhere)

    def run(
        state: PyTree,
        client_states: PyTree,
        inputs: RoundInputs,
        start: ArrayLike,
        count: ArrayLike,
        noise: jax.Array | None = None,
    ) -> Carry:
        shared = (state, client_states, start, count, noise)
        if mesh is not None:
            # Where the results of the call before lie, and of one type: else it compiles twice.
            counted = (jnp.int32(start), jnp.int32(count))
            shared = jax.device_put((state, client_states, *counted, noise), everywhere)
            inputs = jax.device_put(inputs, dealt)
        return compiled(*shared[:2], inputs, *shared[2:], *held)

    return run


@compiled_once
def _compiled(rounds: Rounds) -> tuple[Callable[..., Carry], jax.sharding.Mesh | None]:
    """Compile the loop for one device, or for a mesh of them."""
    count = rounds.layout.devices
    call = partial(Rounds.call, rounds)  # no bound method: a plugin's method may have no hash
    if count == 1:
        return jax.jit(call), None
    axes = ("clients",), (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((count,), *axes, devices=jax.devices()[:count])
    specs = (EVERYWHERE, EVERYWHERE, ROWS, *[EVERYWHERE] * 5)
    dealt = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=EVERYWHERE, check_vma=False)
    return jax.jit(dealt), mesh


def weighted_sum(
    compute: Callable[..., PyTree], arguments: PyTree, weights: jax.Array, size: int
) -> PyTree:
    """Return the clients' weighted sum of updates, all of which would take `size` bytes: so many clients
    at once that theirs take LARGE_UPDATES, or one after the other."""
    clients = len(weights)
    at_once = max(1, LARGE_UPDATES * clients // size)
    while clients % at_once:
        at_once -= 1

    def some(block: PyTree) -> PyTree:
        return weighted(compute(*block[0]), block[1])

    in_blocks = jax.tree.map(
        lambda a: a.reshape(-1, at_once, *a.shape[1:]), (arguments, jnp.asarray(weights))
    )
    shapes = jax.eval_shape(some, jax.tree.map(lambda a: a[0], in_blocks))
    start = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    add = lambda sums, block: (jax.tree.map(jnp.add, sums, some(block)), None)  # noqa: E731
    return jax.lax.scan(add, start, in_blocks)[0]


def weighted(updates: PyTree, weights: jax.Array) -> PyTree:
    """Return the sum of the updates, each times its weight; what has none may hold anything."""

    def total(leaf: jax.Array) -> jax.Array:
        present = (weights > 0).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.tensordot(weights, jnp.where(present, leaf, 0), 1, precision="highest")

    return jax.tree.map(total, updates)


def average(sums: PyTree, weight: jax.Array, several: bool) -> tuple[PyTree, jax.Array]:
    """Return all devices' clients as one client with their mean update and their weights' sum.

    One collective, as in `gather`.
    """
    if several:
        leaves, structure = jax.tree.flatten((weight, sums))
        parts = jnp.concatenate([leaf.ravel() for leaf in leaves])
        whole = jnp.split(
            jax.lax.psum(parts, "clients"), np.cumsum([leaf.size for leaf in leaves])[:-1]
        )
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(whole, leaves, strict=True)]
        weight, sums = jax.tree.unflatten(structure, shaped)
    return jax.tree.map(lambda total: (total / weight)[None], sums), weight[None]


def gather(tree: PyTree, devices: int) -> PyTree:
    """Return every device's slots on every device, in ONE collective.

    On a CPU a device that waits holds a thread; two collectives that the devices enter in a
    different order would wait for each other for ever. So all leaves travel in one array of floats,
    the others bit by bit where they are as wide, else by value (which is exact).
    """
    if devices == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    carrier = jnp.result_type(*(f.dtype for f in leaves if jnp.issubdtype(f.dtype, jnp.floating)))

    packed = [_cast(leaf, carrier).reshape(leaf.shape[0], -1) for leaf in leaves]
    whole = jax.lax.all_gather(jnp.concatenate(packed, 1), "clients", tiled=True)
    parts = jnp.split(whole, np.cumsum([part.shape[1] for part in packed])[:-1], axis=1)
    unpacked = [
        _cast(part, leaf.dtype).reshape(part.shape[0], *leaf.shape[1:])
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, unpacked)


def _cast(a: jax.Array, dtype: DTypeLike) -> jax.Array:
    same_width = a.dtype.itemsize == np.dtype(dtype).itemsize
    return jax.lax.bitcast_convert_type(a, dtype) if same_width else a.astype(dtype)
