"""Gaussian-process priors against scipy, scikit-learn, quadrature and refits from scratch."""

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
from scipy.integrate import dblquad
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from small_data import make_particle, make_samples, padded, small

from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

Everything = Callable[..., dict[str, Any]]
SCALED = {"output_scale": "learned"}
KINDS = {
    "zero-ard": small(2, mean="zero", kernel="ard"),
    "constant-deep": small(2, mean="constant"),
    "linear-ard-scaled": small(6, mean="linear", kernel="ard", **SCALED),
    "mlp-deep-wide": small(2, kernel_outputs=6),
    "sums-scaled-noise-mlp": small(
        2, mean="constant+linear+mlp", kernel="deep+ard", noise_model="mlp", **SCALED
    ),
    "linear-deep-linear-scaled-noise-linear": small(
        2, mean="linear", kernel="deep+linear", noise_model="linear", **SCALED
    ),
    "constant-matern-periodic-scaled": small(
        2, mean="constant", kernel="matern+periodic", **SCALED
    ),
}
SLOTS = 12  # more than one leaf of the factorisation
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(
    "kind", ["zero-ard", "constant-deep", "linear-ard-scaled", "mlp-deep-wide"]
)
def test_evidence_and_posterior_against_scikit_learn(
    kind: str, everything: Everything, oracle: SimpleNamespace
) -> None:
    """Means are subtracted and networks applied by hand: scikit-learn knows neither."""
    prior = KINDS[kind]
    phi, (x, y) = make_particle(prior, 4), make_samples(prior.features, SLOTS, seed=5)
    at = make_samples(prior.features, SLOTS, seed=6)[0]
    if prior.settings.kernel == "deep":
        sizes = (prior.features, *prior.settings.kernel_widths, prior.settings.kernel_outputs)
        weights = np.asarray(prior.split(phi)["kernel.deep"])
        embedded, embedded_at = (oracle.network(weights, sizes, rows) for rows in (x, at))
        kernel = RBF(1.0)
    else:
        scales = 1 if prior.settings.output_scale == "learned" else 0
        lengths = np.exp(phi[len(phi) - 1 - scales - prior.features : len(phi) - 1 - scales])
        amplitude = np.exp(2 * phi[-2]) if scales else 1.0
        embedded, embedded_at = x, at
        kernel = ConstantKernel(amplitude) * RBF(lengths)
    noise, noise_at = (oracle.noise(prior, phi, rows) for rows in (x, at))
    peer = GaussianProcessRegressor(kernel, alpha=noise**2, optimizer=None)
    peer.fit(embedded, y - oracle.mean(prior, phi, x))
    mean, latent_std = peer.predict(embedded_at, return_std=True)

    found = everything(prior, phi, Data(x, y, np.ones(SLOTS, bool)), at=at)
    np.testing.assert_allclose(found["evidence"], peer.log_marginal_likelihood(), rtol=1e-8)
    np.testing.assert_allclose(
        found["means"][0], mean + oracle.mean(prior, phi, at), rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(found["stds"][0], np.hypot(latent_std, noise_at), rtol=1e-8)


@pytest.mark.parametrize("temperature", [0.4, 2.0])
@pytest.mark.parametrize("model", ["constant", "linear"])
def test_tempered_evidence_of_two_samples_against_quadrature(
    model: str, temperature: float, everything: Everything, oracle: SimpleNamespace
) -> None:
    prior = GPPrior(2, GPSettings(mean="zero", kernel="ard", noise_model=model))
    phi = make_particle(prior, 11)
    x, y = make_samples(prior.features, 2, seed=12)
    noise = oracle.noise(prior, phi, x)
    process = stats.multivariate_normal(np.zeros(2), oracle.kernel(prior, phi, x, x))

    def integrand(h2: float, h1: float) -> float:
        log_likelihood = sum(
            -0.5 * ((y_j - h) / s) ** 2 - math.log(s) - 0.5 * math.log(2 * math.pi)
            for y_j, h, s in zip(y, (h1, h2), noise, strict=True)
        )
        return math.exp(temperature * log_likelihood + process.logpdf([h1, h2]))

    expected = math.log(dblquad(integrand, -6, 6, -6, 6, epsabs=1e-10, epsrel=1e-7)[0])
    found = everything(prior, phi, padded(x, y, SLOTS), temperature)
    np.testing.assert_allclose(found["evidence"], expected, rtol=1e-6)


@every_kind
@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
def test_tempered_evidence_and_posterior_against_another_closed_form(
    kind: str, temperature: float, everything: Everything, oracle: SimpleNamespace
) -> None:
    prior = KINDS[kind]
    phi, (x, y) = make_particle(prior, 13), make_samples(prior.features, 8, seed=14)
    at = make_samples(prior.features, SLOTS, seed=15)[0]
    found = everything(prior, phi, padded(x, y, SLOTS), temperature, at)
    expected = oracle.log_evidence(prior, phi, x, y, temperature)
    mean, std = oracle.predict(prior, phi, x, y, at, temperature)
    np.testing.assert_allclose(found["evidence"], expected, rtol=1e-9)
    np.testing.assert_allclose(found["evidence_of"], expected, rtol=1e-9)
    np.testing.assert_allclose(found["means"][0], mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found["stds"][0], std, rtol=1e-9)
    assert found["weights"] == found["responsibilities"] == [1.0]


def test_a_particle_that_needs_jitter_does_not_change_its_neighbours() -> None:
    """Twelve samples at one place and next to no noise: singular, for that particle alone."""
    prior = KINDS["zero-ard"]
    x, y = make_samples(prior.features, SLOTS, seed=27)
    good, bad = make_particle(prior, 28), make_particle(prior, 28)
    bad[:2], bad[-1] = 25.0, -40.0
    data = Data(x, y, np.ones(SLOTS, bool))
    many = jax.jit(jax.vmap(jax.value_and_grad(prior.log_evidence), (0, None)))
    values, gradients = many(jnp.asarray([good, bad, good]), data)
    clean_values, clean_gradients = many(jnp.asarray([good, good, good]), data)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(values[::2], clean_values[::2])
    np.testing.assert_array_equal(gradients[::2], clean_gradients[::2])


@pytest.mark.parametrize("kind", ["linear-ard-scaled", "sums-scaled-noise-mlp"])
def test_fingerprint_is_the_prior_at_the_references(kind: str, oracle: SimpleNamespace) -> None:
    prior = KINDS[kind]
    phi, x = make_particle(prior, 29), make_samples(prior.features, 6, seed=30)[0]
    kernel = oracle.kernel(prior, phi, x, x)
    neighbours = [kernel[i, i + 1] for i in range(5)] + [kernel[i, i + 2] for i in range(4)]
    noise = oracle.noise(prior, phi, x)[: 1 if prior.settings.noise_model == "constant" else 6]
    parts = oracle.mean(prior, phi, x), np.array(neighbours), noise
    expected = np.concatenate([part / math.sqrt(len(part)) for part in parts])
    found = jax.jit(prior.fingerprint)(phi, x)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_blocks_carry_their_own_hyper_priors() -> None:
    """A centre and a spread; None: the hyper-prior's common one. That of the noise must stay narrow."""
    names = ("mean.constant", "mean.linear", "kernel.ard", "kernel.scale", "noise.change", "noise")
    settings = {"mean": "constant+linear", "kernel": "ard", "noise": 0.4, "noise_model": "linear"}
    prior = GPPrior(5, GPSettings(output_scale="learned", **settings))  # type: ignore[arg-type]
    raw = math.log(math.expm1(0.4))
    expected = [(1, 0, None), (6, 0, None), (5, 0.5 * math.log(5), 1), (1, 0, 0.5), (6, 0, 0.5)]
    for name, block, row in zip(names, prior.blocks, [*expected, (1, raw, 0.1)], strict=True):
        assert (block.name, block.size, block.std) == (name, row[0], row[2])
        assert block.mean == pytest.approx(row[1], rel=1e-12)


@pytest.mark.parametrize("model", ["constant", "linear", "mlp"])
def test_the_noise_stays_between_its_limits_wherever_it_is_asked_for(model: str) -> None:
    prior = GPPrior(3, GPSettings(noise_model=model))
    phi = jnp.asarray(3 * make_particle(prior, seed=40))
    level = math.log1p(math.exp(float(phi[-1])))
    far = 1e6 * np.random.default_rng(41).normal(size=(200, 3))
    found = np.asarray(prior.noise_std(phi, far))
    least = float(prior.least_noise(phi))
    assert found.shape == (200,)
    if model == "constant":
        np.testing.assert_allclose(found, level, rtol=1e-12)
        assert least == pytest.approx(level, rel=1e-12)
    else:
        assert least == pytest.approx(level * math.exp(-1.5), rel=1e-12)
        assert least * (1 - 1e-9) <= found.min() < least * 1.001
        assert found.max() == pytest.approx(level * math.exp(1.5), rel=1e-3)


def test_a_linear_kernel_is_bayesian_linear_regression(everything: Everything) -> None:
    """In weight space: slopes and intercept N(0, s_j^2), conditioned by the normal equations."""
    prior = GPPrior(3, GPSettings(mean="zero", kernel="linear"))
    phi = make_particle(prior, seed=8)
    x, y = make_samples(prior.features, SLOTS, seed=9)
    at = make_samples(prior.features, SLOTS, seed=10)[0]
    found = everything(prior, phi, Data(x, y, np.ones(SLOTS, bool)), at=at)
    noise = np.log1p(np.exp(phi[-1])) ** 2
    penalties = noise / np.exp(2 * phi[:-1])
    design, design_at = (np.column_stack([rows, np.ones(len(rows))]) for rows in (x, at))
    precision = design.T @ design + np.diag(penalties)
    weights = np.linalg.solve(precision, design.T @ y)
    np.testing.assert_allclose(found["means"][0], design_at @ weights, rtol=1e-7, atol=1e-9)
    spread = noise * np.einsum("ij,jk,ik->i", design_at, np.linalg.inv(precision), design_at)
    np.testing.assert_allclose(found["stds"][0] ** 2, spread + noise, rtol=1e-7)
