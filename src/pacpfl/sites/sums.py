"""Methods whose server needs no more than the sum of its clients' updates.

Secure aggregation gives the server S = sum_i u_i over the m clients who took part. It then goes on as if
each of them had sent the mean S / m: a method whose server reads its updates in sums and counts alone
cannot tell the difference. `check_summable` tries it out, so any method may be asked for.

Private PAC-PFL is `SummedPrivate` here: S already holds the sites' noise, and the server adds none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pacpfl.errors import InputError
from pacpfl.methods.base import Method
from pacpfl.methods.pacpfl import Update
from pacpfl.methods.private import Private, PrivateState, PrivateUpdate

SAME = 1e-3  # of how far a step moves: more than rounding in float32, less than any other formula


@dataclass(frozen=True)
class SummedPrivate(Private):
    """Only the clipped update is sent, and the noise comes with the sum (secure_terms.py)."""

    def server_update(
        self, state: PrivateState, updates: PrivateUpdate, weights: Float[Array, " c"], key: Array
    ) -> PrivateState:
        """`Private`'s step from its noisy sum on."""
        noisy = jnp.einsum("c,ckp->kp", weights, updates.gradients, precision="highest")
        mean = Update((noisy / self.plan.cohort)[None], jnp.zeros(1, noisy.dtype))
        inner = self.method.server_update(state.inner, mean, jnp.ones(1, noisy.dtype), key)
        average = self._average(state, inner.particles)
        return PrivateState(inner, state.clip, state.round + 1, average)


def summed(method: Method) -> Method:
    """The method as secure rounds need it; what they cannot do is refused."""
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


def size_of(pattern: Any) -> int:
    """Numbers in one client's update. All of them are real: others have no fixed-point form."""
    leaves = jax.tree.leaves(pattern)
    if not leaves or any(np.dtype(leaf.dtype).kind != "f" for leaf in leaves):
        raise InputError(
            "This method's updates are not made of real numbers alone, so they cannot be summed up "
            "securely; set secure = false in [run]."
        )
    return sum(int(np.prod(leaf.shape)) for leaf in leaves)


def to_rows(updates: Any) -> np.ndarray:
    """[c, d] in float64, from updates of c clients."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(updates)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def from_row(row: np.ndarray, pattern: Any) -> Any:
    """One client's update in the form of `pattern`, from d numbers."""
    leaves, structure = jax.tree.flatten(pattern)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
    parts = np.split(row, ends[:-1])
    return jax.tree.unflatten(
        structure,
        [p.reshape(leaf.shape).astype(leaf.dtype) for p, leaf in zip(parts, leaves, strict=True)],
    )


def check_summable(step: Callable[..., Any], state: Any, pattern: Any, clients: int) -> None:
    """Refuse a method whose step with different updates is not that with their mean in place of each.

    `step` is the engine's own (state, updates, weights, number, noise) -> (state, curves). Updates are
    drawn at random, also where a method expects something else of them, such as a count.
    """
    size = size_of(pattern)
    weights = np.ones(clients, jax.tree.leaves(pattern)[0].dtype)
    rows = np.random.default_rng(0).normal(1.0, 0.5, (clients, size))
    drawn, alike = (
        jax.tree.map(lambda *each: np.stack(each), *(from_row(row, pattern) for row in some))
        for some in (rows, np.broadcast_to(rows.mean(0), rows.shape))
    )
    one, two = (step(state, updates, weights, 0, None)[0] for updates in (drawn, alike))
    for before, a, b in zip(*map(jax.tree.leaves, (state, one, two)), strict=True):
        before, a, b = (np.asarray(leaf, np.float64) for leaf in (before, a, b))
        moved = np.abs(a - before).max(initial=0.0)
        if not np.abs(a - b).max(initial=0.0) <= SAME * moved:
            raise InputError(
                "This method's server looks at its clients' updates one by one, and secure aggregation "
                "shows it their sum alone; choose another method, or set secure = false in [run]."
            )
