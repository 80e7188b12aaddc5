"""Warped priors: the oracle's plain Gaussian process of z, and the rule for a change of variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp
from small_data import make_samples, padded

from pacpfl import predictive
from pacpfl.personal import personal_model
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.mixture import MixturePrior
from pacpfl.priors.warped import BLOCKS, WarpedPrior
from pacpfl.types import WarpedPrediction

pytestmark = pytest.mark.usefixtures("x64")

Everything = Callable[..., dict[str, Any]]
BASE = GPPrior(
    2, GPSettings(mean="linear", kernel="ard", output_scale="learned", noise_model="linear")
)
PRIOR = WarpedPrior(BASE)
BEND = (0.2, -0.6, -0.25)  # centre, skewness, logarithm of the tail weight
SLOTS = 12


def make_particle(seed: int = 0, bend: tuple[float, ...] = BEND) -> np.ndarray:
    base = 0.5 * np.random.default_rng(seed).normal(size=BASE.size)
    base[-1] = -0.5
    return np.array([*bend, *base])


def warped(phi: np.ndarray, y: np.ndarray) -> np.ndarray:
    centre, skewness, log_tail = phi[:3]
    return np.sinh(np.exp(log_tail) * np.arcsinh(y - centre) - skewness)


def log_slopes(phi: np.ndarray, y: np.ndarray) -> np.ndarray:
    step = 1e-3
    near, far = (warped(phi, y + n * step) - warped(phi, y - n * step) for n in (1, 2))
    return np.log((8 * near - far) / (12 * step))


def expected_evidence(
    oracle: SimpleNamespace, phi: np.ndarray, x: np.ndarray, y: np.ndarray, t: float = 1.0
) -> float:
    plain = oracle.log_evidence(BASE, phi[3:], x, warped(phi, y), t)
    return float(plain + t * log_slopes(phi, y).sum())


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_evidence_is_that_of_z_and_the_slopes(
    temperature: float, everything: Everything, oracle: SimpleNamespace
) -> None:
    phi, (x, y) = make_particle(), make_samples(2, 9)
    found = everything(PRIOR, phi, padded(x, y, SLOTS), temperature)
    expected = expected_evidence(oracle, phi, x, y, temperature)
    np.testing.assert_allclose(found["evidence"], expected, rtol=1e-8)


def test_the_evidence_of_one_sample_is_a_density(everything: Everything) -> None:
    """Over all targets that one sample may have, Z adds up to one."""
    phi, x = make_particle(3), np.array([[0.3, -0.8]])

    def density(y: float) -> float:
        return math.exp(float(everything(PRIOR, phi, padded(x, np.array([y]), SLOTS))["evidence"]))

    parts = [quad(density, a, a + 5, epsabs=1e-9)[0] for a in range(-60, 30, 5)]
    assert sum(parts) == pytest.approx(1, abs=1e-5)


def test_two_members_with_warps_of_their_own(oracle: SimpleNamespace) -> None:
    prior = MixturePrior(PRIOR, 2)
    members = [make_particle(11), make_particle(12, (-0.3, 0.5, 0.2))]
    phi = np.concatenate([[0.3, -0.4], *members])
    (x, y), at = make_samples(2, 7, 13), make_samples(2, 3, 14)[0]
    data = padded(x, y, SLOTS)

    @jax.jit
    def answer(phi: jax.Array) -> tuple[Any, ...]:
        posterior = prior.posterior(phi, data)
        return prior.log_evidence(phi, data), prior.predict(phi, posterior, at)

    evidence, said = answer(jnp.asarray(phi))
    log_weights = np.array([0.3, -0.4]) - logsumexp([0.3, -0.4])
    each = log_weights + [expected_evidence(oracle, member, x, y) for member in members]
    np.testing.assert_allclose(evidence, logsumexp(each), rtol=1e-8)
    assert isinstance(said, WarpedPrediction)
    np.testing.assert_allclose(said.weights, np.exp(each - logsumexp(each)), rtol=1e-7)
    for number, member in enumerate(members):
        mean, std = oracle.predict(BASE, member[3:], x, warped(member, y), at)
        np.testing.assert_allclose(said.means[number], mean, rtol=1e-8)
        np.testing.assert_allclose(said.stds[number], std, rtol=1e-8)
        np.testing.assert_allclose(said.warps[number], [member[0], 0, *member[1:3]], rtol=1e-12)


def test_a_client_predicts_with_all_particles_that_are_finite(oracle: SimpleNamespace) -> None:
    """Its distribution function at a target is the particles' average of those of z."""
    good = [make_particle(15), make_particle(16, (0.4, 0.3, 0.1))]
    broken = np.full(PRIOR.size, np.nan)
    (x, y), (at, targets) = make_samples(2, 8, 17), make_samples(2, 4, 18)

    @jax.jit
    def answer(particles: jax.Array) -> tuple[Any, ...]:
        model = personal_model(PRIOR, particles, padded(x, y, SLOTS))
        said = model(at)
        assert isinstance(said, WarpedPrediction)
        below = predictive.cdf(said, jnp.asarray(targets))
        return model.weights, below, predictive.mean(said)

    weights, below, mean = answer(jnp.asarray([good[0], broken, good[1]]))
    np.testing.assert_allclose(weights, [0.5, 0, 0.5])
    each = []
    for phi in good:
        of_z = stats.norm(*oracle.predict(BASE, phi[3:], x, warped(phi, y), at))
        each.append(of_z.cdf(warped(phi, targets)))
    np.testing.assert_allclose(below, np.mean(each, axis=0), rtol=1e-7)
    assert np.isfinite(mean).all()


def test_fingerprints_tell_warps_apart() -> None:
    x = make_samples(2, 5, 19)[0]
    bent, straight = (make_particle(20, bend) for bend in (BEND, (0.0, 0.0, 0.0)))
    found = [
        np.asarray(jax.jit(PRIOR.fingerprint)(jnp.asarray(phi), x)) for phi in (bent, straight)
    ]
    base = np.asarray(jax.jit(BASE.fingerprint)(jnp.asarray(bent[3:]), x))
    for values in found:
        np.testing.assert_allclose(values[:-5], base, rtol=1e-10)
    for values, phi in zip(found, (bent, straight), strict=True):
        expected = warped(phi, np.array([-2.0, -1, 0, 1, 2])) / math.sqrt(5)
        np.testing.assert_allclose(values[-5:], expected, rtol=1e-10, atol=1e-12)


def test_the_hyper_prior_is_centred_at_a_straight_line() -> None:
    assert all(block.mean == 0 and block.std is not None for block in BLOCKS)
    assert PRIOR.blocks == (*BLOCKS, *BASE.blocks)
