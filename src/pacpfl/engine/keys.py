"""Random keys by name: simulator, sites, replay and certificates ask here, and so agree bit by bit.

A key depends on the seed and on what it is for alone, never on how rounds are grouped into calls, nor on
where clients are.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax.typing import ArrayLike

# What is folded into the seed's key first. Certificates draw from the key of the clients' first states.
START, ROUNDS, PERSONAL, CLIENTS = range(4)


class Keys(NamedTuple):
    """Every random key of a run, from the key of its seed."""

    seed: jax.Array

    @classmethod
    def of(cls, seed: int) -> Keys:
        return cls(jax.random.key(seed))

    def start(self) -> jax.Array:
        """Return the key of the server's first state."""
        return jax.random.fold_in(self.seed, START)

    def start_of(self, client: ArrayLike) -> jax.Array:
        """Return the key of a client's first state."""
        return jax.random.fold_in(self.certificates(), client)

    def update(self, number: ArrayLike, client: ArrayLike) -> jax.Array:
        """Return the key of a client's update in a round."""
        rounds = jax.random.fold_in(self.seed, ROUNDS)
        return jax.random.fold_in(jax.random.fold_in(rounds, number), client)

    def step(self, number: ArrayLike, clients: ArrayLike) -> jax.Array:
        """Return the key of the server's step: the client's who would be the next."""
        return self.update(number, clients)

    def evaluation(self) -> Keys:
        """Return the keys by which clients are personalised: of new ones' first states as well."""
        return Keys(jax.random.fold_in(self.seed, PERSONAL))

    def personal(self, client: ArrayLike) -> jax.Array:
        """Return the key of a client's own model; clients count from 0 within their group."""
        return jax.random.fold_in(self.evaluation().seed, client)

    def certificates(self) -> jax.Array:
        """Return the key of what certificates draw."""
        return jax.random.fold_in(self.seed, CLIENTS)


def private_step(noise: jax.Array, number: ArrayLike) -> jax.Array:
    """Return the key of a private server's step, from the data of a key that nobody can draw again."""
    return jax.random.fold_in(jax.random.wrap_key_data(noise), number)
