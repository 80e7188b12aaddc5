"""The clip that adapts: its price together with the sum, and where it settles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pacpfl.errors import InputError
from pacpfl.privacy.mechanisms import AdaptiveClip, count_std, next_clip, sum_multiplier


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
    with pytest.raises(InputError, match=r"at least 0\.5"):
        sum_multiplier(1.0, 0.5)
    with pytest.raises(InputError, match="between 0 and 1"):
        AdaptiveClip(1.5, 1.0)


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
