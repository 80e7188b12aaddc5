"""Methods around methods: updates in fewer bytes, and updates of which the server sees sums only.

`Compressed` sends float16 or int8, with error feedback (Seide et al. 2014; Karimireddy 2019):

    sent      code(g + e),   code(v) = round(v / s * L) for s = max |v| of each row
    kept      e <- g + e - decode(code(g + e))

What rounding takes away in one round, a client adds in the next, so that no direction is lost for
good. Simulator, sites and replay compute the same numbers.

`SummedPrivate` is private PAC-PFL under secure aggregation (sites.secure_terms): the sum of the updates
already holds the sites' noise, and the server adds none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pacpfl.errors import InputError
from pacpfl.methods.base import Method, Predictor
from pacpfl.methods.pacpfl import Update
from pacpfl.methods.private import Private, PrivateState, PrivateUpdate
from pacpfl.types import Data

ENCODINGS = ("exact", "float16", "int8")
WORTHWHILE = 64  # numbers in an array; smaller ones travel as they are
LEVELS = 127  # of int8, on each side of 0


class Code(NamedTuple):
    """v = codes * scale (/ LEVELS where the codes are whole numbers)."""

    codes: Array
    scale: Array  # max |v| of each row


class Carried(NamedTuple):
    """What a client keeps: what the method has it keep, and what rounding took away."""

    own: Any
    residual: Any


@dataclass(frozen=True)
class Compressed:
    method: Method
    encoding: str  # float16 or int8

    central: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    def init(self, key: Array, example: Data) -> Any:
        return self.method.init(key, example)

    def init_client(self, state: Any, data: Data, key: Array) -> Carried:
        own = self.method.init_client(state, data, key)
        shapes, _ = jax.eval_shape(self.method.client_update, state, own, data, key)
        residual = jax.tree.map(
            lambda s: jnp.zeros(s.shape if worthwhile(s) else (0,), s.dtype), shapes
        )
        return Carried(own, residual)

    def client_update(
        self, state: Any, client_state: Carried, data: Data, key: Array
    ) -> tuple[Any, Carried]:
        update, own = self.method.client_update(state, client_state.own, data, key)
        leaves, structure = jax.tree.flatten(update)
        kept = jax.tree.leaves(client_state.residual)
        pairs = [self._one(leaf, left) for leaf, left in zip(leaves, kept, strict=True)]
        sent = jax.tree.unflatten(structure, [code for code, _ in pairs])
        residual = jax.tree.unflatten(structure, [left for _, left in pairs])
        return sent, Carried(own, residual)

    def _one(self, leaf: Array, left: Array) -> tuple[Any, Array]:
        if not worthwhile(leaf):
            return leaf, left
        wanted = leaf + left
        code = encode(wanted, self.encoding)
        return code, wanted - decode(code, leaf.dtype)

    def server_update(
        self, state: Any, updates: Any, weights: Float[Array, " c"], key: Array
    ) -> Any:
        return self.method.server_update(state, decoded(updates, weights.dtype), weights, key)

    def personalize(self, state: Any, client_state: Carried, data: Data, key: Array) -> Predictor:
        return self.method.personalize(state, client_state.own, data, key)

    def diagnostics(
        self, state: Any, updates: Any, weights: Float[Array, " c"]
    ) -> dict[str, Array]:
        return self.method.diagnostics(state, decoded(updates, weights.dtype), weights)


def compressed(method: Method, encoding: str) -> Method:
    return method if encoding == "exact" else Compressed(method, encoding)


def worthwhile(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating)) and leaf.size >= WORTHWHILE


def encode(values: Float[Array, "*rows n"], encoding: str) -> Code:
    scale = jnp.abs(values).max(-1, keepdims=True)
    parts = values / jnp.where(scale > 0, scale, 1)
    if encoding == "float16":
        return Code(parts.astype(jnp.float16), scale)
    return Code(jnp.round(parts * LEVELS).astype(jnp.int8), scale)


def decode(code: Code, dtype: Any) -> Array:
    parts = code.codes.astype(dtype)
    if code.codes.dtype == jnp.int8:
        parts = parts / LEVELS
    return parts * code.scale


def decoded(updates: Any, dtype: Any) -> Any:
    """Return updates of any number of clients as their method knows them."""
    return jax.tree.map(
        lambda part: decode(part, dtype) if isinstance(part, Code) else part,
        updates,
        is_leaf=lambda part: isinstance(part, Code),
    )


@dataclass(frozen=True)
class SummedPrivate(Private):
    """Only the clipped update is sent, and the noise comes with the sum (secure_terms.py)."""

    def server_update(
        self, state: PrivateState, updates: PrivateUpdate, weights: Float[Array, " c"], key: Array
    ) -> PrivateState:
        """Take `Private`'s step from its noisy sum on."""
        noisy = jnp.einsum("c,ckp->kp", weights, updates.gradients, precision="highest")
        mean = Update((noisy / self.plan.cohort)[None], jnp.zeros(1, noisy.dtype))
        inner = self.method.server_update(state.inner, mean, jnp.ones(1, noisy.dtype), key)
        average = self._average(state, inner.particles)
        return PrivateState(inner, state.clip, state.round + 1, average)


def summed(method: Method) -> Method:
    """Return the method as secure rounds need it; refuse what they cannot do."""
    if not isinstance(method, Private):
        return method
    plan = method.plan
    if plan.mode != "gaussian":
        raise InputError(
            f"With secure aggregation sites add Gaussian noise in shares, and the run has privacy mode "
            f"{plan.mode}; choose gaussian, or set secure = false in [run]."
        )
    if plan.unit != "client" or method.adaptive is not None:
        raise InputError(
            "With secure aggregation a client's update needs one limit that all know; leave "
            "clip_quantile out and choose unit = client."
        )
    if plan.sampling != "all":
        raise InputError(
            "With secure aggregation the server knows who takes part in a round, so that sampling "
            "clients protects nobody; leave clients_per_round out."
        )
    settings = {f.name: getattr(method, f.name) for f in fields(Private)}
    return SummedPrivate(**(settings | {"strict": True}))
