"""Inducing inputs: the bound and its predictions against dense matrices written out in NumPy."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from scipy import stats
from small_data import make_particle, make_samples, padded, small

from pacpfl.hyper import hyper_prior
from pacpfl.priors import sparse
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.mixture import mixture
from pacpfl.priors.warped import WarpedPrior
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

KINDS = {
    "linear-ard-scaled": small(2, mean="linear", kernel="ard", output_scale="learned"),
    "mlp-deep": small(6, mean_widths=(2,), kernel_widths=(3,)),
    "zero-ard-linear-noise": small(2, mean="zero", kernel="ard+linear", noise_model="linear"),
}
COUNT, SLOTS, INDUCING, TEST = 11, 14, 4, 6
every_kind = pytest.mark.parametrize("kind", KINDS)


@partial(compiled, static_argnums=0)
def values(
    prior: GPPrior, phi: jax.Array, inducing: jax.Array, data: Data, at: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The bound, and means and standard deviations at `at`."""
    posterior = sparse.condition(prior, phi, inducing, data)
    said = sparse.predict(prior, phi, posterior, at)
    return sparse.bound(prior, phi, inducing, data), said.means[0], said.stds[0]


@partial(compiled, static_argnums=0)
def slopes(
    prior: GPPrior, phi: jax.Array, inducing: jax.Array, data: Data
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The bound and its gradients by phi and by the inducing inputs."""
    return jax.value_and_grad(sparse.bound, argnums=(1, 2))(prior, phi, inducing, data)


def dense_bound(
    oracle: SimpleNamespace,
    prior: GPPrior,
    phi: np.ndarray,
    inducing: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    jitter: float = 0.0,
) -> float:
    """ln N(y | m, Q + S^2) - tr(S^-2 (K - Q)) / 2, with n x n matrices."""
    variance = oracle.noise(prior, phi, x) ** 2
    cross = oracle.kernel(prior, phi, x, inducing)
    own = oracle.kernel(prior, phi, inducing, inducing)
    q = cross @ np.linalg.solve(own + jitter * np.diag(np.diag(own)), cross.T)
    density = stats.multivariate_normal(oracle.mean(prior, phi, x), q + np.diag(variance))
    missing = np.diag(oracle.kernel(prior, phi, x, x) - q)
    return float(density.logpdf(y) - np.sum(missing / (2 * variance)))


@every_kind
def test_bound_and_gradient_against_dense_matrices(kind: str, oracle: SimpleNamespace) -> None:
    prior = KINDS[kind]
    phi, (x, y) = make_particle(prior), make_samples(prior.features, COUNT)
    inducing = make_samples(prior.features, INDUCING, seed=3)[0]
    found, slope = slopes(prior, phi, inducing, padded(x, y, SLOTS))

    def expected(place: np.ndarray) -> float:
        phi, z = np.split(place, [prior.size])
        return dense_bound(oracle, prior, phi, z.reshape(inducing.shape), x, y)

    place = np.append(phi, inducing)
    np.testing.assert_allclose(found, expected(place), rtol=1e-8)
    differences = oracle.central_differences(expected, place)
    np.testing.assert_allclose(np.append(*slope), differences, rtol=1e-6, atol=1e-7)


@every_kind
def test_inducing_inputs_at_all_samples_are_exact(kind: str, oracle: SimpleNamespace) -> None:
    """And with others the bound is below the evidence, the more so the fewer they are."""
    prior = KINDS[kind]
    phi, (x, y) = make_particle(prior), make_samples(prior.features, COUNT)
    at = make_samples(prior.features, TEST, seed=4)[0]
    exact, mean, std = values(prior, phi, x, padded(x, y, SLOTS), at)
    evidence = oracle.log_evidence(prior, phi, x, y)
    expected_mean, expected_std = oracle.predict(prior, phi, x, y, at)
    np.testing.assert_allclose(exact, evidence, rtol=1e-8)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(std, expected_std, rtol=1e-7)

    few = make_samples(prior.features, INDUCING, seed=3)[0]
    more = np.concatenate([few, x[: COUNT - INDUCING]])
    below, between = (float(values(prior, phi, z, padded(x, y, SLOTS), at)[0]) for z in (few, more))
    assert below + 1e-3 < between < evidence - 1e-3


@every_kind
def test_predictions_against_the_best_distribution_of_the_inducing_values(
    kind: str, oracle: SimpleNamespace
) -> None:
    """u | y ~ N(K S K_uf r / s^2, K S K) with S = (K + K_uf s^-2 K_fu)^-1 and K = K_uu, and h(x) | u
    as under the prior."""
    prior = KINDS[kind]
    phi, (x, y) = make_particle(prior), make_samples(prior.features, COUNT)
    (inducing, _), (at, _) = (make_samples(prior.features, *s) for s in ((INDUCING, 3), (TEST, 4)))
    variance = oracle.noise(prior, phi, x) ** 2
    own = oracle.kernel(prior, phi, inducing, inducing)
    cross = oracle.kernel(prior, phi, inducing, x)
    seen = oracle.kernel(prior, phi, inducing, at)
    inner = np.linalg.inv(own + (cross / variance) @ cross.T)
    mean_of_u = own @ inner @ cross @ ((y - oracle.mean(prior, phi, x)) / variance)
    gain = np.linalg.solve(own, seen)
    mean = oracle.mean(prior, phi, at) + gain.T @ mean_of_u
    covariance = (
        oracle.kernel(prior, phi, at, at) - gain.T @ seen + gain.T @ own @ inner @ own @ gain
    )
    _, found_mean, found_std = values(prior, phi, inducing, padded(x, y, SLOTS), at)
    noise = oracle.noise(prior, phi, at)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found_std, np.sqrt(np.diag(covariance) + noise**2), rtol=1e-7)


def test_crowded_inducing_inputs_do_no_harm_in_float32(oracle: SimpleNamespace) -> None:
    """Twelve, of which two coincide, where the function hardly varies: K_uu is singular in float32.

    The oracle adds the same jitter to it, and has digits to spare."""
    prior = KINDS["linear-ard-scaled"]
    phi, (x, y) = make_particle(prior), make_samples(prior.features, COUNT)
    inducing = 0.5 * make_samples(prior.features, 12, seed=3)[0]
    inducing[1] = inducing[0]
    data = Data(x.astype(np.float32), y.astype(np.float32), np.ones(COUNT, bool))
    found, (by_phi, _) = slopes(prior, phi.astype(np.float32), inducing.astype(np.float32), data)
    assert found.dtype == by_phi.dtype == jnp.float32

    def expected(p: np.ndarray) -> float:
        return dense_bound(oracle, prior, p, inducing, x, y, jitter=1e-5)

    assert float(found) == pytest.approx(expected(phi), abs=0.003)
    gradient = oracle.central_differences(expected, phi)
    np.testing.assert_allclose(by_phi, gradient, atol=0.003 * np.abs(gradient).max())


def test_gradient_of_the_inverse_factor(oracle: SimpleNamespace) -> None:
    rng = np.random.default_rng(6)
    root, weights = rng.normal(size=(4, 4)), rng.normal(size=(4, 4))
    a = root @ root.T + np.eye(4)

    def expected(entries: np.ndarray) -> float:
        """A function of the lower triangle: an entry and its mirror move together."""
        lower = np.zeros((4, 4))
        lower[np.tril_indices(4)] = entries
        whole = lower + np.tril(lower, -1).T
        return float(np.sum(weights * np.linalg.inv(np.linalg.cholesky(whole))))

    found = np.asarray(jax.grad(lambda m: jnp.sum(weights * sparse.inverse_factor(m)))(a))
    by_entry = (found + found.T - np.diag(np.diag(found)))[np.tril_indices(4)]
    differences = oracle.central_differences(expected, a[np.tril_indices(4)])
    np.testing.assert_allclose(by_entry, differences, rtol=1e-7, atol=1e-8)


def farthest_first(x: np.ndarray, count: int) -> np.ndarray:
    """From the sample nearest to the mean, always the one farthest from all that are chosen."""
    chosen = [int(np.argmin(np.linalg.norm(x - x.mean(0), axis=1)))]
    while len(chosen) < count:
        distances = np.linalg.norm(x[:, None] - x[chosen], axis=2).min(1)
        chosen.append(int(np.argmax(distances)))
    return x[chosen]


def lloyd(x: np.ndarray, centres: np.ndarray, rounds: int) -> np.ndarray:
    for _ in range(rounds):
        nearest = np.linalg.norm(x[:, None] - centres, axis=2).argmin(1)
        centres = np.array([x[nearest == c].mean(0) for c in range(len(centres))])
    return centres


start = jax.jit(sparse.initial_inducing, static_argnums=1)


@pytest.mark.parametrize("rounds", [0, 1, 10])
def test_inducing_inputs_start_at_the_centres_of_clusters(rounds: int) -> None:
    """Whatever the order of the samples, and without the padding."""
    x, y = make_samples(6, COUNT)
    expected = lloyd(x, farthest_first(x, INDUCING), rounds)
    order = np.random.default_rng(8).permutation(SLOTS)
    turned = Data(*(part[order] for part in padded(x, y, SLOTS)))
    np.testing.assert_allclose(start(turned, INDUCING, rounds), expected, rtol=1e-10, atol=1e-12)


def test_few_samples_are_their_own_inducing_inputs() -> None:
    x, y = make_samples(6, COUNT)
    found = np.asarray(start(padded(x, y, SLOTS), COUNT + 2))
    assert found.shape == (COUNT + 2, x.shape[1])
    distances = np.linalg.norm(found[:, None] - x, axis=2)
    assert distances.min(0).max() < 1e-12 and distances.min(1).max() < 1e-12


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@every_kind
def test_the_sparse_family_is_the_dense_model_of_its_inducing_inputs(
    kind: str, temperature: float, oracle: SimpleNamespace
) -> None:
    """Bound, leave-one-out and predictions with n x n matrices, also of samples that came later; with as
    many inducing inputs as samples everything is what exact inference says."""
    prior, exact = sparse.sparse_family(KINDS[kind], INDUCING), KINDS[kind]
    phi, (x, y) = jnp.asarray(make_particle(prior)), make_samples(prior.features, COUNT)
    at, cut = make_samples(prior.features, TEST, seed=4)[0], 8
    first = prior.posterior(phi, padded(x[:cut], y[:cut], 9), temperature)
    posterior = prior.extend(phi, first, padded(x[cut:], y[cut:], 5))
    mask, z = np.asarray(posterior.data.mask), np.asarray(posterior.inducing)
    assert {tuple(row) for row in z} <= {tuple(row) for row in x[:cut]}

    def bound(keep: np.ndarray) -> float:
        scale = oracle.noise(exact, phi, x[keep]) ** 2
        c = 0.5 * (1 - temperature) * np.log(2 * np.pi * scale) - 0.5 * np.log(temperature)
        tempered = SimpleNamespace(**vars(oracle))
        tempered.noise = lambda *a: oracle.noise(*a) / np.sqrt(temperature)
        return dense_bound(tempered, exact, phi, z, x[keep], y[keep]) + c.sum()

    every = np.arange(COUNT)
    assert float(prior.log_evidence_of(phi, posterior)) == pytest.approx(bound(every), rel=1e-8)
    left = prior.leave_one_out(phi, posterior)
    assert np.all(np.asarray(left.density)[~mask] == 0)
    for j, (density, evidence, below) in enumerate(
        zip(*(np.asarray(p)[mask] for p in left), strict=True)
    ):
        rest = np.delete(every, j)
        assert evidence == pytest.approx(bound(every) - bound(rest), rel=1e-6, abs=1e-8)
        others = sparse.condition(exact, phi, z, padded(x[rest], y[rest], SLOTS), temperature)
        said = sparse.predict(exact, phi, others, x[[j]])
        expected = stats.norm.logpdf(y[j], said.means[0, 0], said.stds[0, 0])
        assert density == pytest.approx(expected, rel=1e-6, abs=1e-8)
        share = stats.norm.cdf(y[j], said.means[0, 0], said.stds[0, 0])
        assert below == pytest.approx(share, rel=1e-6, abs=1e-8)

    whole = sparse.sparse_family(exact, COUNT)
    everything = padded(x, y, SLOTS)
    ours, theirs = whole.posterior(phi, everything, temperature), exact.posterior(
        phi, everything, temperature
    )  # fmt: skip
    for one, other in zip(
        (whole.predict(phi, ours, at), *whole.leave_one_out(phi, ours)),
        (exact.predict(phi, theirs, at), *exact.leave_one_out(phi, theirs)),
        strict=True,
    ):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), one, other)


def test_bounds_of_fewer_inducing_inputs_and_of_parts_of_the_rows(monkeypatch: Any) -> None:
    prior = KINDS["linear-ard-scaled"]
    phi, (x, y) = make_particle(prior), make_samples(prior.features, COUNT)
    data = padded(x, y, SLOTS)
    many = sparse.bounds(prior, phi, x[:6], data)
    each = [sparse.bound(prior, phi, x[: m + 1], data) for m in range(6)]
    np.testing.assert_allclose(many, each, rtol=1e-8)
    assert np.all(np.diff(many) > 0)
    monkeypatch.setattr(sparse, "ROWS", 4)
    np.testing.assert_allclose(sparse.bounds(prior, phi, x[:6], data), many, rtol=1e-10)


def test_a_large_inverse_factor_against_lapack() -> None:
    root = np.random.default_rng(1).normal(size=(150, 150))
    a = root @ root.T + np.eye(150)
    expected = np.linalg.inv(np.linalg.cholesky(a))
    np.testing.assert_allclose(sparse.inverse_factor(a), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("family", [lambda inner: inner, WarpedPrior, partial(mixture, members=2)])
def test_inducing_inputs_are_as_many_as_the_bound_gains_by(family: Any, monkeypatch: Any) -> None:
    """A wiggly function takes more of them than a smooth one, and then predicts as exact inference does."""
    monkeypatch.setattr(sparse, "COUNTS", (8, 64))
    monkeypatch.setattr(sparse, "LEAST", 4)
    monkeypatch.setattr(sparse, "DRAWN", 2)
    prior = family(GPPrior(1, GPSettings(mean="zero", kernel="ard", noise=0.1)))
    x = np.linspace(-2, 2, 80)[:, None]
    data = Data(x, np.sin(4 * x[:, 0]), np.ones(80, bool))
    counts = []
    for frequency in (0.5, 12.0):
        phi = np.array(hyper_prior(prior.blocks, 1.0, np.float64).means)
        shorter = [np.full(b.size, "kernel.ard" in b.name) for b in prior.blocks]
        phi = jnp.asarray(phi - np.log(frequency) * np.concatenate(shorter))
        found = sparse.suited(prior, phi[None], data, 1.0, exact=50)
        counts.append(plain(found).inducing)
        said, exact = (f.predict(phi, f.posterior(phi, data), x[::7]) for f in (found, prior))
        np.testing.assert_allclose(said.means, exact.means, atol=0.02)
        np.testing.assert_allclose(said.stds, exact.stds, rtol=0.08)
        assert sparse.suited(prior, phi[None], data, 1.0, exact=80) is prior
    assert counts[0] < counts[1]


def plain(prior: Any) -> Any:
    return plain(prior.base) if hasattr(prior, "base") else prior
