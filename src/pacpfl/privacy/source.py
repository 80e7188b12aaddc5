"""Where the randomness of a private run comes from: the operating system, never the run's seed.

The seed of a run stands in its config.toml. Noise that could be drawn again from it protects nobody,
and a choice of clients that could be drawn again amplifies nothing. So both come from the system's
entropy, anew for every compiled call, and are never written down. A `noise_seed` makes them
repeatable, for tests; a run with one is marked NOT PRIVATE.
"""

from __future__ import annotations

import secrets

import jax
import jax.numpy as jnp
import numpy as np


def noise_key(noise_seed: int | None = None) -> jax.Array:
    """Draw a key for JAX; all its bits are the system's entropy."""
    if noise_seed is not None:
        return jax.random.key(noise_seed)
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(secrets.token_bytes(4 * int(np.prod(shape))), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words.reshape(shape)))


def generator(noise_seed: int | None, number: int) -> np.random.Generator:
    """Return what draws the clients of a round."""
    if noise_seed is not None:
        return np.random.default_rng([noise_seed, number])
    return np.random.default_rng(secrets.randbits(256))
