"""Clipping bounds what a client can change; the noise has the distribution it is said to have, and
comes from the system."""

from __future__ import annotations

import itertools
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from refusals import refused
from scipy import stats

from pacpfl.engine.training import generator, noise_key
from pacpfl.privacy import mechanisms
from pacpfl.privacy.accounting import ORDER, Plan
from pacpfl.privacy.mechanisms import (
    AdaptiveClip,
    add_noise,
    clip,
    count_std,
    next_clip,
    norm,
    sum_multiplier,
)

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
    order, limit = ORDER[mode], 0.7
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
    for sampling, found in (("all", largest["add-remove"]), ("fixed", largest["replace"])):
        bound = limit * Plan(mode, sampling, 8, 8, 1.0).change  # type: ignore[arg-type]
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


# The clip that adapts: its price together with the sum, and where it settles.


def joint_multiplier(z: float, sigma: float) -> float:
    """What the accountant sees of the noise on the sum and on the count together."""
    return (z**-2 + (2 * sigma) ** -2) ** -0.5


@pytest.mark.parametrize(("z", "sigma"), [(1.0, 1.0), (2.0, 5.0), (0.7, 0.4)])
def test_sum_and_count_are_one_gaussian_mechanism(z: float, sigma: float) -> None:
    """The privacy loss of a pair of Gaussians is Gaussian, with mean half the squared distance of
    the centres in units of the noise; one with the joint multiplier has the same."""
    clip = 3.0
    shift = np.array([clip, 0.5])  # of the sum, and of the count, when one client is added
    distance = np.linalg.norm(shift / np.array([z * clip, sigma]))
    assert joint_multiplier(z, sigma) == pytest.approx(1 / distance)
    both = np.array([2 * clip, 1.0])  # when one is replaced
    assert np.linalg.norm(both / np.array([z * clip, sigma])) == pytest.approx(2 * distance)
    assert sum_multiplier(joint_multiplier(z, sigma), sigma) == pytest.approx(z)
    assert sum_multiplier(2.0, 5.0) > 2.0, "the count is not free"


def test_noise_on_the_count_that_would_spend_everything_is_refused() -> None:
    refused(lambda: sum_multiplier(1.0, 0.5), r"at least 0\.5")


@pytest.mark.parametrize("cohort", [5, 100, 10_000])
def test_the_default_noise_on_the_count_costs_five_per_cent_at_most(cohort: int) -> None:
    for multiplier in (0.5, 2.0, 50.0):
        more = sum_multiplier(multiplier, count_std(multiplier, cohort)) / multiplier
        assert 1 < more <= 1.0501


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.9])
def test_it_settles_at_the_quantile(quantile: float) -> None:
    rng = np.random.default_rng(2)
    norms = jnp.asarray(rng.lognormal(1.0, 0.8, size=400))
    adaptive = AdaptiveClip(quantile, 20.0)

    def step(clip: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        centred = ((norms <= clip) - 0.5).sum()
        return next_clip(key, clip, centred, 400, adaptive), clip

    keys = jax.random.split(jax.random.key(3), 600)
    for start in (0.01, 500.0):
        clips = np.asarray(jax.lax.scan(step, jnp.asarray(start), keys)[1])
        wanted = float(np.quantile(np.asarray(norms), quantile))
        assert np.exp(np.log(clips[300:]).mean()) == pytest.approx(wanted, rel=0.1)
        assert clips[1] > start if start < 1 else clips[1] < start


def test_without_noise_the_step_is_the_printed_one() -> None:
    silent = AdaptiveClip(0.5, 1e-12)
    clip = next_clip(jax.random.key(0), jnp.asarray(2.0), jnp.asarray(3.0 - 0.5 * 4), 4, silent)
    assert float(clip) == pytest.approx(2.0 * np.exp(-0.2 * (3 / 4 - 0.5)), rel=1e-5)


# The randomness of private runs: the system's, all of it, and other every time.


def test_keys_are_the_systems_bits_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def known(count: int) -> bytes:
        asked.append(count)
        return bytes(range(1, count + 1))

    monkeypatch.setattr(secrets, "token_bytes", known)
    data = np.asarray(jax.random.key_data(noise_key()))
    assert data.tobytes() == bytes(range(1, asked[0] + 1))
    assert data.nbytes == asked[0] >= 8


def test_every_key_is_another() -> None:
    keys = {np.asarray(jax.random.key_data(noise_key())).tobytes() for _ in range(50)}
    assert len(keys) == 50
    assert len({generator(None, 0).random() for _ in range(50)}) == 50


def test_a_seed_makes_them_repeatable() -> None:
    one, two = (np.asarray(jax.random.key_data(noise_key(7))) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    draws = [generator(7, number).random() for number in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
