"""Binary classification and the tree of classes, against quadrature, NumPy, scipy and scikit-learn."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from scipy import integrate, optimize
from scipy.special import expit, log_expit
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from pacpfl.methods import pfedgp as polya_gamma
from pacpfl.methods.pfedgp import class_tree

pytestmark = pytest.mark.usefixtures("x64")

# Three samples among ten; the others have no label, and must change nothing: the oracles below never
# see them. One size of matrices also means that every function is compiled once.
PLACES = np.array([1, 4, 8])
X = np.random.default_rng(0).normal(size=(10, 1))
X[PLACES] = [[-1.0], [0.2], [0.9]]
LABELS = np.zeros(10)
LABELS[PLACES] = [-1.0, 1.0, 1.0]


fit = compiled(polya_gamma.fit)
bound = compiled(polya_gamma.log_evidence_bound)
posterior_given = compiled(polya_gamma.posterior_given)
latent = compiled(polya_gamma.latent)
log_probability = compiled(polya_gamma.log_probability)
compiled_tree = compiled(class_tree)


def covariance(a: np.ndarray, b: np.ndarray, variance: float = 3.0) -> np.ndarray:
    return variance * np.exp(-0.5 * ((a[:, None] - b[None, :]) ** 2).sum(-1))


K = covariance(X, X)
OWN_K, OWN_LABELS = K[np.ix_(PLACES, PLACES)], LABELS[PLACES]


def grid(kernel: np.ndarray, points: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """Nodes f [points^m, m] and weights of the prior N(0, K), by a product of Gauss-Hermite rules."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    z = np.array(list(itertools.product(nodes, repeat=len(kernel))))
    products = np.prod(list(itertools.product(weights, repeat=len(kernel))), axis=1)
    return z @ np.linalg.cholesky(kernel).T, products / products.sum()


F, PRIOR = grid(OWN_K)
LIKELIHOOD = np.exp(log_expit(OWN_LABELS * F).sum(1))
EVIDENCE = np.log(PRIOR @ LIKELIHOOD)


def dense_bound(c: np.ndarray) -> float:
    """Jaakkola and Jordan's bound with explicit inverses: the square completed by hand."""
    slope = np.tanh(c / 2) / (4 * c)
    posterior = np.linalg.inv(np.linalg.inv(OWN_K) + np.diag(2 * slope))
    constant = log_expit(c) - c / 2 + slope * c**2
    determinants = np.linalg.slogdet(posterior)[1] - np.linalg.slogdet(OWN_K)[1]
    return float(constant.sum() + 0.5 * determinants + OWN_LABELS @ posterior @ OWN_LABELS / 8)


def among_others(c: np.ndarray) -> np.ndarray:
    whole = np.full(10, 0.7)
    whole[PLACES] = c
    return whole


def test_mean_of_the_polya_gamma_distribution_against_its_series() -> None:
    """PG(1, c) is a sum of exponentials: its mean is 1 / (2 pi^2) sum 1 / ((k - 1/2)^2 + c^2 / 4 pi^2)."""
    k = np.arange(1, 2_000_001) - 0.5
    for c in (0.0, 1e-9, 0.3, 2.0, 15.0):
        series = np.sum(1 / (k**2 + (c / (2 * np.pi)) ** 2)) / (2 * np.pi**2)
        found = float(polya_gamma.expected_omega(jnp.array([c]))[0])
        assert found == pytest.approx(series, rel=1e-6)


@pytest.mark.parametrize("c", [np.array([0.4, 1.7, 3.0]), np.array([2.0, 2.0, 0.1])])
def test_the_bound_is_the_integral_of_the_bounded_likelihood(c: np.ndarray) -> None:
    slope = np.tanh(c / 2) / (4 * c)
    each = log_expit(c) + (OWN_LABELS * F - c) / 2 - slope * (F**2 - c**2)
    assert (each <= log_expit(OWN_LABELS * F) + 1e-12).all()
    found = float(bound(K, LABELS, among_others(c)))
    assert found == pytest.approx(np.log(PRIOR @ np.exp(each.sum(1))), abs=1e-8)
    assert found == pytest.approx(dense_bound(c), abs=1e-12)
    assert found < EVIDENCE


def test_the_updates_end_at_the_best_bound() -> None:
    best = optimize.minimize(lambda c: -dense_bound(np.exp(c)), np.zeros(3), tol=1e-10)
    c = fit(K, LABELS, 100)
    np.testing.assert_allclose(c[PLACES], np.exp(best.x), rtol=1e-5)
    assert np.count_nonzero(c) == 3
    assert float(bound(K, LABELS, c)) == pytest.approx(-best.fun, abs=1e-10)
    few = [float(bound(K, LABELS, fit(K, LABELS, n))) for n in (0, 1, 2, 5, 100)]
    assert (np.diff(few) > -1e-12).all(), "every update raises the bound"
    assert 0 < EVIDENCE - few[-1] < 0.1, "which cannot be exact"


def test_posterior_and_predictions_against_quadrature() -> None:
    """Mean-field draws means towards 0: by up to 7% here, and probabilities by up to 0.015."""
    c = fit(K, LABELS, 100)
    posterior = posterior_given(K, LABELS, c)
    weights = PRIOR * LIKELIHOOD / (PRIOR @ LIKELIHOOD)
    ratio = (K @ posterior.alpha)[PLACES] / (weights @ F)
    assert (ratio > 0.93).all() and (ratio < 1).all()

    at = np.linspace(-2.5, 2.5, 7)[:, None]
    cross = covariance(X, at)
    gain = np.linalg.solve(OWN_K, cross[PLACES])
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(40)
    std = np.sqrt(3.0 - np.sum(cross[PLACES] * gain, axis=0))
    means = F @ gain
    exact = sum(
        weight * (weights @ expit(means + std * node))
        for node, weight in zip(nodes, node_weights / node_weights.sum(), strict=True)
    )
    mean, reduction = latent(K, LABELS, c, cross)
    found = np.exp(log_probability(mean, 3.0 - reduction))
    np.testing.assert_allclose(found, exact, atol=0.015)
    assert np.ptp(exact) > 0.3
    white = posterior.inverse_factor @ (posterior.root[:, None] * cross)
    np.testing.assert_allclose(mean, posterior.alpha @ cross, rtol=1e-12)
    np.testing.assert_allclose(reduction, np.sum(np.square(white), axis=0), rtol=1e-12)
    # Where nothing is known but the prior, nothing is taken off its variance.
    assert float(np.abs(latent(K, 0 * LABELS, c, cross)).max()) == 0


def test_predictions_against_laplace_in_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 2))
    labels = np.where(x[:, 0] + 0.5 * rng.normal(size=10) > 0, 1.0, -1.0)
    at = rng.normal(size=(7, 2))
    other = GaussianProcessClassifier(ConstantKernel(3.0) * RBF(1.0), optimizer=None).fit(x, labels)
    kernel = covariance(x, x)
    mean, reduction = latent(kernel, labels, fit(kernel, labels, 60), covariance(x, at))
    found = np.exp(log_probability(mean, 3.0 - reduction))
    np.testing.assert_allclose(found, other.predict_proba(at)[:, 1], atol=0.05)
    assert np.ptp(found) > 0.6
    evidence = float(bound(kernel, labels, fit(kernel, labels, 60)))
    assert evidence == pytest.approx(other.log_marginal_likelihood_value_, abs=0.5)


@pytest.mark.parametrize("mean", [-12.0, -0.7, 0.0, 3.0, 20.0])
def test_probability_of_a_side_against_quadrature(mean: float) -> None:
    for variance in (1e-3, 1.0, 8.0, 25.0):
        std = np.sqrt(variance)
        exact, _ = integrate.quad(
            lambda z: expit(mean + std * z) * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi),  # noqa: B023
            -12,
            12,
            epsabs=1e-12,
            limit=200,
        )
        both = log_probability(jnp.array([mean, -mean]), jnp.full(2, variance))
        assert float(jnp.exp(both[0])) == pytest.approx(exact, abs=1e-7)
        assert float(jnp.exp(both).sum()) == pytest.approx(1, abs=1e-12)


def test_a_singular_kernel_needs_no_jitter() -> None:
    singular = np.ones((10, 10))
    c = fit(singular, LABELS, 8)
    exact, _ = integrate.quad(
        lambda f: expit(-f) * expit(f) ** 2 * np.exp(-0.5 * f**2) / np.sqrt(2 * np.pi), -12, 12
    )
    found = float(bound(singular, LABELS, c))
    assert np.log(exact) - 0.1 < found < np.log(exact)


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_separates_its_classes_in_halves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    present = rng.uniform(size=11) < (1.0, 0.9, 0.6, 0.3, 0.1, 0.0)[seed]
    means = rng.normal(size=(11, 4))
    tree = jax.tree.map(np.asarray, compiled_tree(means @ means.T, present))
    nodes = [set(np.flatnonzero(present))]
    for together, side in zip(tree.together, tree.side, strict=True):
        divided = [node for node in nodes if len(node) > 1]
        expected = np.zeros((11, 11), bool)
        for node in divided:
            expected[np.ix_(list(node), list(node))] = True
        np.testing.assert_array_equal(together, expected)
        np.testing.assert_array_equal(side != 0, expected.any(1))
        halves = [{a for a in node if side[a] == s} for node in divided for s in (-1, 1)]
        for left, right in zip(halves[::2], halves[1::2], strict=True):
            assert len(left) - len(right) in (0, 1)
        nodes = halves
    assert all(len(node) <= 1 for node in nodes)


def test_classes_are_divided_along_the_first_principal_component() -> None:
    rng = np.random.default_rng(7)
    means = 5 + rng.normal(size=(8, 3)) * np.array([3.0, 1.0, 0.5])
    tree = compiled_tree(means @ means.T, np.ones(8, bool))
    centred = means - means.mean(0)
    scores = centred @ np.linalg.svd(centred)[2][0]
    upper = scores > np.median(scores)
    side = np.asarray(tree.side[0]) > 0
    assert (side == upper).all() or (side == ~upper).all()
    # The second level looks at each node by itself.
    for node in (upper, ~upper):
        centred = means[node] - means[node].mean(0)
        scores = centred @ np.linalg.svd(centred)[2][0]
        halves = scores > np.median(scores)
        side = np.asarray(tree.side[1])[node] > 0
        assert (side == halves).all() or (side == ~halves).all()
