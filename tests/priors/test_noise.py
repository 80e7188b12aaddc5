"""Numbers for networks are normal, and have nothing to do with those of other keys and places."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pacpfl.priors.bnn import normal

COUNT = 400_000


def drawn(seed: int, number: int = 0, count: int = COUNT) -> np.ndarray:
    key = jax.random.fold_in(jax.random.key(seed), number)
    return np.asarray(jax.jit(lambda key: normal(key, (count,), jnp.float32))(key))


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_they_are_normal(seed: int) -> None:
    """Against scipy's distribution function, and its moments up to the sixth: 1, 3 and 15."""
    found = drawn(seed).astype(float)
    assert stats.kstest(found, "norm").pvalue > 1e-3
    for power, variance in ((1, 1), (2, 2), (3, 15), (4, 96), (5, 945), (6, 10170)):
        expected = stats.norm.moment(power)
        assert abs((found**power).mean() - expected) < 5 * np.sqrt(variance / COUNT), power
    tail = (np.abs(found) > 4).sum()  # one in 15,787
    assert stats.binomtest(int(tail), COUNT, 2 * stats.norm.sf(4)).pvalue > 1e-3
    assert np.isfinite(found).all() and np.abs(found).max() < 5.4


def test_places_and_keys_have_nothing_to_do_with_each_other() -> None:
    """Correlations of neighbours at every distance of a power of two, also of squares, and of keys that
    JAX derives from one another, are those of chance."""
    one = drawn(3)
    limit = 5 / np.sqrt(COUNT)
    for shift in 2 ** np.arange(17):
        a, b = one[:-shift], one[shift:]
        assert abs(np.corrcoef(a, b)[0, 1]) < limit, shift
        assert abs(np.corrcoef(a**2, b**2)[0, 1]) < limit, shift
    for other in (drawn(4), drawn(3, 1), drawn(3, 2), drawn(2)):
        assert abs(np.corrcoef(one, other)[0, 1]) < limit
        assert abs(np.corrcoef(one[1:], other[:-1])[0, 1]) < limit
        assert (one == other).sum() < 10  # 2^23 different values: one in 8 million by chance


def test_means_over_keys_are_normal_too() -> None:
    """What clients average: at one place, over many keys."""
    keys = jax.vmap(lambda n: jax.random.fold_in(jax.random.key(5), n))(jnp.arange(2000))
    each = np.asarray(jax.vmap(lambda key: normal(key, (500,), jnp.float32))(keys), float)
    assert stats.kstest(each.mean(0) * np.sqrt(2000), "norm").pvalue > 1e-3
    assert stats.kstest(each.mean(1) * np.sqrt(500), "norm").pvalue > 1e-3


def test_the_same_key_gives_the_same_numbers_also_under_vmap() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.vmap(lambda key: normal(key, (4, 5), jnp.float32))(keys)
    for key, found in zip(keys, together, strict=True):
        np.testing.assert_array_equal(normal(key, (4, 5), jnp.float32), found)
    assert together.dtype == jnp.float32 and together.shape == (3, 4, 5)


def test_other_precisions_are_drawn_as_jax_draws_them() -> None:
    key, half = jax.random.key(1), ((7,), jnp.float16)
    np.testing.assert_array_equal(normal(key, *half), jax.random.normal(key, *half))


@pytest.mark.parametrize("word", [0, 1])
def test_both_words_of_a_key_count(word: int) -> None:
    """Keys that differ in the lowest bit of one word give other numbers at almost every place."""
    words = np.array([17, 23], np.uint32)
    other = words.copy()
    other[word] ^= 1
    one, two = (
        np.asarray(normal(jax.random.wrap_key_data(jnp.asarray(w)), (COUNT,), jnp.float32))
        for w in (words, other)
    )
    assert (one == two).sum() < 10
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(COUNT)
