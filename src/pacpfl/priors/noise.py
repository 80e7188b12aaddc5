"""Standard normal numbers for networks, millions of them in every round.

On a processor JAX's generator (threefry) takes several times as long as the rest of a normal number, and
a large part of such a round. There, numbers in float32 come from a hash of their place: C. Wellons's
`lowbias32`, a bijection of 32 bits that changes every bit of its result with a probability near one half
when one bit of its argument changes, once over place and first word of the key and once more with the
second word. Keys are JAX's own. That is enough for estimates by sampling; privacy's noise comes from
elsewhere (`pacpfl.privacy`). Accelerators hash threefry in no time, and keep it.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32


def normal(key: Array, shape: tuple[int, ...], dtype: jnp.dtype | type) -> Float[Array, ...]:
    if jnp.dtype(dtype) != jnp.float32:
        return jax.random.normal(key, shape, dtype)

    def hashed(words: UInt32[Array, " 2"]) -> Float[Array, ...]:
        return _normal(_bits(words, math.prod(shape))).reshape(shape)

    def drawn(words: UInt32[Array, " 2"]) -> Float[Array, ...]:
        return jax.random.normal(jax.random.wrap_key_data(words), shape, dtype)

    return jax.lax.platform_dependent(jax.random.key_data(key), cpu=hashed, default=drawn)


def _bits(words: UInt32[Array, " 2"], count: int) -> UInt32[Array, " n"]:
    place = jax.lax.iota(jnp.uint32, count)
    return _mix(_mix(place ^ words[0]) + words[1])


def _mix(x: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """lowbias32 (https://nullprogram.com/blog/2018/07/31/)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _normal(bits: UInt32[Array, " n"]) -> Float[Array, " n"]:
    """The upper 23 bits as the middle of one of 2^23 equal parts of (-1, 1), through the inverse of erf."""
    middle = (bits >> 9).astype(jnp.float32) + jnp.float32(0.5)
    uniform = middle * jnp.float32(2.0**-22) - jnp.float32(1)
    return jnp.float32(math.sqrt(2)) * jax.lax.erf_inv(uniform)
