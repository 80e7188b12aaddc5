"""Clipping bounds what a client can change, and the noise has the distribution it is said to have."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from pacpfl.privacy import mechanisms
from pacpfl.privacy.mechanisms import add_noise, clip, norm, sensitivity

pytestmark = pytest.mark.usefixtures("x64")
FINITE = st.floats(-1e6, 1e6, width=32)
UPDATES = arrays.arrays(np.float32, (2, 3), elements=FINITE)


def size(update: np.ndarray, order: int) -> float:
    return float(np.linalg.norm(np.asarray(update, np.float64).ravel(), order))


@settings(max_examples=60, deadline=None)
@given(UPDATES, st.floats(1e-3, 1e3), st.sampled_from([1, 2]), st.booleans())
def test_a_clipped_update_has_no_larger_norm_and_the_same_direction(
    update: np.ndarray, limit: float, order: int, per_particle: bool
) -> None:
    clipped = np.asarray(clip(jnp.asarray(update), limit, order, per_particle))
    assert size(clipped, order) <= limit * (1 + 1e-6)
    share = limit / 2 ** (1 / order)
    for row, before in zip(clipped, update, strict=True):
        if per_particle:
            assert size(row, order) <= share * (1 + 1e-6)
        if size(before, order) > 1e-3:
            factor = size(row, order) / size(before, order)
            np.testing.assert_allclose(row, factor * before, rtol=1e-4, atol=1e-4 * limit)
    if size(update, order) < (share if per_particle else limit) * 0.999:
        smallest = np.finfo(np.float32).tiny  # what is below it, XLA takes for zero
        np.testing.assert_allclose(clipped, update, rtol=0, atol=smallest)


@pytest.mark.parametrize(("order", "by_hand"), [(1, 12.0), (2, 40**0.5)])
def test_norms_by_hand(order: int, by_hand: float) -> None:
    update = jnp.array([[4.0, -2.0], [2.0, 4.0]])
    assert float(norm(update, order)) == pytest.approx(by_hand)
    clipped = clip(update, 3.0, order)
    assert float(norm(clipped, order)) == pytest.approx(3.0, rel=2e-5)


def test_a_clip_uses_what_it_may() -> None:
    """Updates that are too large end at the limit, not somewhere below."""
    for order, per_particle in itertools.product((1, 2), (False, True)):
        large = jnp.full((4, 5), 7.0)
        clipped = np.asarray(clip(large, 2.0, order, per_particle))
        assert size(clipped, order) == pytest.approx(2.0, rel=1e-4)
        assert size(clipped, order) <= 2.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_count_as_zero(bad: float) -> None:
    update = jnp.array([[3.0, 4.0], [1.0, bad]])
    np.testing.assert_allclose(clip(update, 10.0), [[3, 4], [0, 0]])
    np.testing.assert_allclose(clip(update, 1.0), [[0.6, 0.8], [0, 0]], rtol=1e-4)
    assert not np.asarray(clip(jnp.full((2, 2), bad), 1.0)).any()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("huge", [1e13, 1e20, 1e37, 3.4e38])
def test_squares_that_overflow_do_not_break_the_clip(huge: float, order: int) -> None:
    update = jnp.array([[huge, -huge]], jnp.float32)
    clipped = np.asarray(clip(update, 1.0, order))
    assert size(clipped, order) <= 1
    if huge < 1e38:
        np.testing.assert_allclose(clipped, [[2 ** (-1 / order), -(2 ** (-1 / order))]], rtol=1e-4)
    uneven = np.asarray(clip(jnp.array([[huge, 1.0]], jnp.float32), 1.0, order))
    assert size(uneven, order) <= 1


def test_tiny_updates_have_a_norm_too() -> None:
    tiny = jnp.full((1, 2), 1e-30, jnp.float32)
    assert float(norm(tiny, 2)) == pytest.approx(2**0.5 * 1e-30)
    assert size(np.asarray(clip(tiny, 1e-31)), 2) == pytest.approx(1e-31, rel=1e-4)
    assert not np.asarray(clip(jnp.zeros((2, 2)), 1.0)).any()


@pytest.mark.parametrize("mode", ["laplace", "gaussian"])
@pytest.mark.parametrize("per_particle", [False, True])
def test_sensitivity_over_all_pairs_of_neighbours(mode: str, per_particle: bool) -> None:
    """All federations of up to three out of eight possible clients, some of them malicious."""
    rng = np.random.default_rng(1)
    raw = [*rng.normal(size=(4, 2, 3)) * 10, *rng.normal(size=(1, 2, 3)) * 1e-3]
    raw += [np.full((2, 3), np.nan), np.full((2, 3), 1e30), np.full((2, 3), -1e30)]
    order, limit = mechanisms.ORDER[mode], 0.7
    sent = [np.asarray(clip(jnp.asarray(u), limit, order, per_particle)) for u in raw]
    largest = {"add-remove": 0.0, "replace": 0.0}
    everyone = range(len(sent))
    for count in range(3):
        for members in itertools.combinations(everyone, count):
            total = sum((sent[i] for i in members), np.zeros((2, 3)))
            for added in everyone:
                one = total + sent[added]
                largest["add-remove"] = max(largest["add-remove"], size(one - total, order))
                for other in everyone:
                    two = total + sent[other]
                    largest["replace"] = max(largest["replace"], size(one - two, order))
    for adjacency, found in largest.items():
        bound = sensitivity(limit, adjacency)  # type: ignore[arg-type]
        assert found <= bound
        assert found == pytest.approx(bound, rel=1e-4), "the bound is reached: no smaller one holds"


SCALE, COUNT = 2.5, 200_000


@pytest.fixture(scope="module")
def draws() -> dict[str, np.ndarray]:
    total = jnp.full((COUNT // 100, 100), 3.0, jnp.float32)
    return {
        kind: np.asarray(add_noise(jax.random.key(5), total, SCALE, kind), np.float64) - 3  # type: ignore[arg-type]
        for kind in ("laplace", "gaussian")
    }


@pytest.mark.parametrize(
    ("kind", "law"), [("laplace", stats.laplace(0, SCALE)), ("gaussian", stats.norm(0, SCALE))]
)
def test_noise_has_the_law_it_is_said_to_have(
    draws: dict[str, np.ndarray], kind: str, law: stats.rv_continuous
) -> None:
    noise = draws[kind].ravel()
    assert stats.kstest(noise, law.cdf).pvalue > 0.01
    assert noise.mean() == pytest.approx(0, abs=4 * law.std() / COUNT**0.5)
    assert noise.std() == pytest.approx(law.std(), rel=0.01)
    fourth = float(law.stats(moments="k")) + 3
    assert np.mean(noise**4) / law.var() ** 2 == pytest.approx(fourth, rel=0.08)


def test_entries_are_independent(draws: dict[str, np.ndarray]) -> None:
    for noise in draws.values():
        flat = noise.ravel()
        for lag in (1, 2, 100):
            assert abs(np.corrcoef(flat[:-lag], flat[lag:])[0, 1]) < 4 / COUNT**0.5
            squares = np.abs(flat)
            assert abs(np.corrcoef(squares[:-lag], squares[lag:])[0, 1]) < 4 / COUNT**0.5


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_another_key_gives_other_noise(kind: mechanisms.Kind) -> None:
    total = jnp.zeros((3, 4))
    one, again, two = (add_noise(jax.random.key(i), total, 1.0, kind) for i in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.any(np.asarray(one) == np.asarray(two))


def test_tails_reach_far_beyond_those_of_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest uniform is 2^-65, which gives 45 for an exponential and 9.5 for a normal."""

    def smallest(key: jax.Array, shape: tuple[int, ...], dtype: object) -> jax.Array:
        return jnp.zeros(shape, jnp.uint32)

    monkeypatch.setattr(jax.random, "bits", smallest)
    zero = jnp.zeros((1,), jnp.float32)
    key = jax.random.key(0)
    assert float(add_noise(key, zero, 1.0, "laplace")[0]) == pytest.approx(65 * np.log(2), rel=1e-6)
    normal = float(add_noise(key, zero, 1.0, "gaussian")[0])
    assert normal == pytest.approx((2 * 65 * np.log(2)) ** 0.5, rel=1e-6)
