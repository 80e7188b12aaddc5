"""Many rounds in one compiled call, the clients dealt to all devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pacpfl.engine.cache import compiled_once
from pacpfl.engine.keys import Keys, private_step
from pacpfl.engine.rounds import Layout, Resident, RoundInputs, look_up
from pacpfl.methods.base import Method, Together

# Bytes of a device's share of a round's updates, from which on devices exchange sums.
LARGE_UPDATES = 2**22

EVERYWHERE = PartitionSpec()
ROWS = PartitionSpec(None, "clients")  # inputs are [rounds, slots, ...]


def make_call(
    method: Method,
    keys: Keys,
    layout: Layout,
    capacity: int,
    everyone: bool,
    n: int,
    resident: Resident | None = None,
    longest: int = 0,
    secret: bool = False,
) -> Callable[..., Any]:
    """Return a function that plays `count` rounds in one compiled loop.

    `count` is an argument: one compilation serves all.

    Clients are dealt to the devices; each computes its share of the updates, all gather all of them
    or their means, and each takes the server's step, which is small, for itself. `resident` samples
    stay on the devices from call to call. `secret`: the call takes one more argument, a key that the
    server's randomness comes from, instead of the seed that everybody may know.
    """
    compiled, mesh = _compiled(method, layout, capacity, everyone, n, longest, secret)
    # The key is an argument: as a constant it would make every seed compile anew.
    seed = jax.random.key_data(keys.seed)
    held = (resident, seed)
    if mesh is not None:
        everywhere, dealt = (jax.NamedSharding(mesh, spec) for spec in (EVERYWHERE, ROWS))
        held = jax.device_put(held, everywhere)

    def run(
        state: Any,
        client_states: Any,
        inputs: RoundInputs,
        start: Any,
        count: Any,
        noise: Any = None,
    ) -> Any:
        shared = (state, client_states, start, count, noise)
        if mesh is not None:
            # Where the results of the call before lie, and of one type: else it compiles twice.
            counted = (jnp.int32(start), jnp.int32(count))
            shared = jax.device_put((state, client_states, *counted, noise), everywhere)
            inputs = jax.device_put(inputs, dealt)
        return compiled(*shared[:2], inputs, *shared[2:], *held)

    return run


@compiled_once
def _compiled(
    method: Method,
    layout: Layout,
    capacity: int,
    everyone: bool,
    n: int,
    longest: int,
    secret: bool,
) -> tuple[Callable[..., Any], jax.sharding.Mesh | None]:
    """Compile the loop for one device, or for a mesh of them."""
    rounds = Rounds(method, layout, capacity, everyone, n, longest, secret)
    if layout.devices == 1:
        return jax.jit(rounds.call), None
    mesh = jax.make_mesh(
        (layout.devices,),
        ("clients",),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=jax.devices()[: layout.devices],
    )
    specs = (EVERYWHERE, EVERYWHERE, ROWS, *[EVERYWHERE] * 5)
    dealt = jax.shard_map(
        rounds.call, mesh=mesh, in_specs=specs, out_specs=EVERYWHERE, check_vma=False
    )
    return jax.jit(dealt), mesh


@dataclass(frozen=True, eq=False)
class Rounds:
    """What is compiled: the rounds of a method for one layout."""

    method: Method
    layout: Layout
    capacity: int
    everyone: bool
    n: int
    longest: int
    secret: bool

    def call(
        self,
        state: Any,
        client_states: Any,
        inputs: RoundInputs,
        start: Any,
        count: Any,
        noise: Any,
        samples: Resident | None,
        seed: Any,
    ) -> Any:
        """Play `count` rounds from round `start` on; return states, and curves in `capacity` places."""
        keys = Keys(jax.random.wrap_key_data(seed))
        # Its shapes are asked for before it runs: jitted, so that it is traced once, not twice.
        one_round = jax.jit(self.one_round, inline=True)

        def pick(index: Any) -> RoundInputs:
            place = 0 if self.everyone else index
            picked = jax.tree.map(lambda a: a[place], inputs)
            if samples is None:
                return picked
            return picked._replace(data=look_up(samples, picked.data, self.longest))

        shapes = jax.eval_shape(one_round, keys, noise, start, state, client_states, pick(0))[2]
        curves = jax.tree.map(lambda s: jnp.zeros((self.capacity, *s.shape), s.dtype), shapes)

        def body(index: Any, carry: Any) -> Any:
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
        noise: Any,
        number: Any,
        state: Any,
        client_states: Any,
        inputs: RoundInputs,
    ) -> Any:
        """Play one round on this device's share of the clients."""
        several = self.layout.devices > 1
        own_keys = jax.vmap(lambda client: keys.update(number, client))(inputs.chosen)
        if isinstance(self.method, Together) and self.method.together:
            updates, weights = self._means(self.method, state, inputs, own_keys)
            if several:
                updates, weights = average(updates, weights)
        else:
            updates, own = self._updates(state, client_states, inputs, own_keys)
            stateless = not jax.tree.leaves(own)
            if several and stateless and sums_suffice(self.method, updates):
                updates, weights = average(updates, inputs.weights)
            else:
                updates, own, chosen, weights = gather(
                    (updates, own, inputs.chosen, inputs.weights), self.layout.devices
                )
                client_states = jax.tree.map(
                    lambda all_, new: all_.at[chosen].set(new, mode="drop"), client_states, own
                )
        curves = self.method.diagnostics(state, updates, weights)
        key = private_step(noise, number) if self.secret else keys.step(number, self.n)
        return self.method.server_update(state, updates, weights, key), client_states, curves

    def _updates(self, state: Any, client_states: Any, inputs: RoundInputs, keys: Any) -> Any:
        """Return the share's updates and the new states of its clients."""
        own = jax.tree.map(lambda a: a.at[inputs.chosen].get(mode="clip"), client_states)

        def update(arguments: Any) -> Any:
            return jax.vmap(lambda cs, data, key: self.method.client_update(state, cs, data, key))(
                *arguments
            )

        blocks = self._block_by_block(update, (own, inputs.data, keys))
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), blocks)

    def _means(
        self, method: Together, state: Any, inputs: RoundInputs, keys: Any
    ) -> tuple[Any, Any]:
        """Return each block's mean update and weight, as if it were a client."""

        def mean(arguments: Any) -> Any:
            data, keys, weights = arguments
            return method.mean_update(state, data, keys, weights), weights.sum()

        return self._block_by_block(mean, (inputs.data, keys, inputs.weights))

    def _block_by_block(self, compute: Callable[[Any], Any], arguments: Any) -> Any:
        """Return `compute`, of a block of clients, for all of them: results along a leading axis."""
        layout = self.layout
        in_blocks = jax.tree.map(
            lambda a: a.reshape(layout.blocks, layout.block, *a.shape[1:]), arguments
        )
        if layout.blocks == 1:  # a loop of one would copy
            alone = compute(jax.tree.map(lambda a: a[0], in_blocks))
            return jax.tree.map(lambda a: a[None], alone)
        return jax.lax.map(compute, in_blocks)


def sums_suffice(method: Method, updates: Any) -> bool:
    """Return whether devices exchange sums instead of all updates.

    Updates of networks are large, and to move all of them between devices takes longer than to compute
    them. Small ones are gathered, and summed in the same order on any number of devices.
    """
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(updates))
    return method.averages and size > LARGE_UPDATES


def average(updates: Any, weights: Any) -> tuple[Any, Any]:
    """Return all devices' clients as one client with their mean update and their weights' sum.

    One collective, as in `gather`.
    """
    leaves, structure = jax.tree.flatten(updates)
    present = weights > 0

    def total(leaf: Any) -> Any:
        kept = jnp.where(present.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)
        return jnp.tensordot(weights, kept, 1, precision="highest").ravel()

    parts = [total(leaf) for leaf in leaves]
    whole = jax.lax.psum(jnp.concatenate([weights.sum()[None], *parts]), "clients")
    weight, *sums = jnp.split(whole, np.cumsum([1, *(part.size for part in parts)])[:-1])
    means = [
        (s / weight).reshape(1, *f.shape[1:]).astype(f.dtype)
        for s, f in zip(sums, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, means), weight


def gather(tree: Any, devices: int) -> Any:
    """Return every device's slots on every device, in ONE collective.

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
