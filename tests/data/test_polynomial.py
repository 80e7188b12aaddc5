"""The Polynomial data against the Gaussian processes it is said to come from."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, special, stats
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from pacpfl.data.polynomial import (
    AMPLITUDE,
    COEFFICIENTS,
    HALF_WIDTH,
    LENGTHS,
    kind_mean,
    polynomial,
)
from pacpfl.types import Client
from reproduction.sentences import true_predictive

NOISE = 0.15
Draws = tuple[np.ndarray, np.ndarray]


def legendre_mean(kind: int, x: np.ndarray) -> np.ndarray:
    """p_j by scipy's Legendre polynomials, its variance over the interval by quadrature."""

    def raw(u: float | np.ndarray) -> np.ndarray:
        return sum(c * special.eval_legendre(d, u) for d, c in enumerate(COEFFICIENTS[kind]))

    first = integrate.quad(lambda u: raw(u) / 2, -1, 1)[0]
    second = integrate.quad(lambda u: raw(u) ** 2 / 2, -1, 1)[0]
    return np.asarray(raw(x / HALF_WIDTH) / np.sqrt(second - first**2))


def everything(client: Client) -> Draws:
    both = client.train + client.test
    return both.x[:, 0], both.y


@pytest.fixture(scope="module")
def draws() -> dict[int, Draws]:
    """Inputs and targets of 1,500 clients of each kind from 10 seeds, 6 samples each."""
    found: dict[int, list[Draws]] = {0: [], 1: []}
    for seed in range(10):
        federation = polynomial(150, 150, samples=4, test_samples=2, noise=NOISE, seed=seed)
        for client in federation.existing + federation.new:
            found[client.kind].append(everything(client))
    return {
        kind: (np.stack([x for x, _ in each]), np.stack([y for _, y in each]))
        for kind, each in found.items()
    }


@pytest.mark.parametrize("kind", [0, 1])
def test_means_are_polynomials_of_order_7_with_unit_variance(kind: int) -> None:
    x = np.linspace(-2, 2, 41)
    np.testing.assert_allclose(kind_mean(kind, x), legendre_mean(kind, x), atol=1e-12)
    for order, exact in ((7, True), (6, False)):
        residual = np.polynomial.Polynomial.fit(x, kind_mean(kind, x), order)(x) - kind_mean(
            kind, x
        )
        assert (np.abs(residual).max() < 1e-9) == exact


@pytest.mark.parametrize("kind", [0, 1])
def test_whitened_targets_are_independent_standard_normals(
    kind: int, draws: dict[int, Draws]
) -> None:
    """The joint law of a client's samples: L^-1 (y - p) with L L' the stated covariance."""
    x, y = draws[kind]
    assert stats.kstest(x.ravel(), stats.uniform(-2, 4).cdf).pvalue > 1e-3
    covariance = AMPLITUDE**2 * np.exp(
        -0.5 * ((x[:, :, None] - x[:, None, :]) / LENGTHS[kind]) ** 2
    ) + NOISE**2 * np.eye(x.shape[1])
    residual = y - legendre_mean(kind, x)
    white = np.linalg.solve(np.linalg.cholesky(covariance), residual[..., None])[..., 0]
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-3
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], white.size)
    assert low < np.sum(white**2) < high
    place = np.digitize(x, np.linspace(-2, 2, 11)[1:-1])
    for stretch in range(10):  # the mean is right everywhere
        inside = white[place == stretch]
        assert abs(inside.mean()) < 4 / np.sqrt(len(inside))
    correlation = np.corrcoef(white.T) - np.eye(x.shape[1])
    assert np.abs(correlation).max() < 4 / np.sqrt(len(white))


def test_every_size_is_an_argument_and_the_defaults_are_the_paper_s() -> None:
    federation = polynomial(clients=5, new_clients=3, samples=7, test_samples=11)
    for client in federation.existing + federation.new:
        assert (client.train.x.shape, client.test.x.shape) == ((7, 1), (11, 1))
    assert [client.kind for client in federation.existing] == [0, 1, 0, 1, 0]
    assert [client.kind for client in federation.new] == [0, 1, 0]
    federation = polynomial()
    assert (len(federation.existing), len(federation.new)) == (24, 24)
    assert {len(client.train) for client in federation.existing + federation.new} == {10}


def test_noise_is_added_to_the_same_functions() -> None:
    quiet, loud = (polynomial(40, 0, samples=10, noise=noise, seed=3) for noise in (0.0, 2.0))
    pairs = zip(quiet.existing, loud.existing, strict=True)
    differences = np.concatenate([everything(b)[1] - everything(a)[1] for a, b in pairs])
    assert stats.kstest(differences / 2.0, "norm").pvalue > 1e-3


def test_no_two_clients_share_their_draws() -> None:
    federation = polynomial(6, 6, seed=0)
    x = np.concatenate([everything(c)[0] for c in federation.existing + federation.new])
    assert len(np.unique(x)) == len(x)


def test_opposite_means() -> None:
    x = np.linspace(-2, 2, 9)
    np.testing.assert_array_equal(kind_mean(1, x, opposite=True), -kind_mean(0, x, opposite=True))
    np.testing.assert_array_equal(kind_mean(0, x, opposite=True), kind_mean(0, x))
    assert np.abs(kind_mean(1, x) + kind_mean(0, x)).max() > 0.1

    federation = polynomial(400, 0, samples=4, test_samples=2, opposite=True, seed=0)
    slopes = {}
    for kind in (0, 1):
        pairs = [everything(c) for c in federation.existing if c.kind == kind]
        mean = np.concatenate([kind_mean(0, x) for x, _ in pairs])
        slopes[kind] = np.polyfit(mean, np.concatenate([y for _, y in pairs]), 1)[0]
    assert slopes[0] == pytest.approx(1, abs=0.06)
    assert slopes[1] == pytest.approx(-1, abs=0.06)


@pytest.mark.parametrize("opposite", [False, True])
def test_the_true_predictive_is_that_of_scikit_learns_process(opposite: bool) -> None:
    federation = polynomial(2, 0, samples=7, test_samples=9, noise=0.2, opposite=opposite, seed=3)
    for client in federation.existing:

        def mean(x: np.ndarray, kind: int = client.kind) -> np.ndarray:
            return -legendre_mean(0, x) if opposite and kind else legendre_mean(kind, x)

        kernel = kernels.ConstantKernel(AMPLITUDE**2) * kernels.RBF(LENGTHS[client.kind])
        process = GaussianProcessRegressor(kernel, alpha=0.2**2, optimizer=None)
        process.fit(client.train.x, client.train.y - mean(client.train.x[:, 0]))
        centre, std = process.predict(client.test.x, return_std=True)
        found = true_predictive(client, 0.2, opposite)
        np.testing.assert_allclose(found[0], mean(client.test.x[:, 0]) + centre, rtol=1e-9)
        np.testing.assert_allclose(found[1], np.hypot(std, 0.2), rtol=1e-9)
