"""Bayesian neural networks: evidence against quadrature, posteriors against exact ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from scipy import optimize, stats
from scipy.special import log_softmax, logsumexp, softmax

from pacpfl import svgd
from pacpfl.errors import InputError
from pacpfl.hyper import hyper_prior
from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.priors import inference
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.inference import Inference, Problem
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(0)


@dataclass(frozen=True)
class TwoWeights:
    """Logits (w_0 tanh x, w_1 - x): few enough weights to integrate over all of them."""

    size = 2

    def initial(self, key: jax.Array) -> jax.Array:
        return jnp.array([0.3, -0.2])

    def __call__(self, parameters: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.concatenate([parameters[0] * jnp.tanh(x), parameters[1] - x], 1)


SMALL = BNNPrior(TwoWeights(), Categorical(2))


def changed(prior: BNNPrior, **settings: Any) -> BNNPrior:
    return replace(prior, settings=replace(prior.settings, **settings))


PHI = np.array([0.4, -0.6, np.log(0.8), np.log(0.5)])
X = np.array([[-1.0], [0.3], [0.7], [2.0]])
Y = np.array([0.0, 1.0, 0.0, 1.0])
SEEN = Data(X, Y, np.ones(4, bool))


def small_log_likelihood(weights: np.ndarray) -> np.ndarray:
    """ln p(S | w) in NumPy for weights [..., 2]."""
    logits = np.stack([weights[..., :1] * np.tanh(X[:, 0]), weights[..., 1:] - X[:, 0]], -1)
    return np.sum(log_softmax(logits, -1)[..., np.arange(4), Y.astype(int)], -1)


def small_quadrature(temperature: float) -> tuple[float, float]:
    """ln E[p(S | w)^t] and E[t ln p(S | w)] over N(mu, sigma^2), by Gauss-Hermite quadrature."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1)
    mass = np.outer(masses, masses) / masses.sum() ** 2
    values = temperature * small_log_likelihood(PHI[:2] + np.exp(PHI[2:]) * grid)
    return float(logsumexp(values, b=mass)), float(np.sum(mass * values))


evidence = compiled(BNNPrior.log_evidence, static_argnums=0)


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_evidence_of_given_draws(temperature: float) -> None:
    """LogSumExp of the draws (paper's formula), and their mean for the bound."""
    noise = np.random.default_rng(0).normal(size=(7, 2))
    values = temperature * small_log_likelihood(PHI[:2] + np.exp(PHI[2:]) * noise)
    found = evidence(SMALL, PHI, SEEN, temperature, noise)
    assert float(found) == pytest.approx(logsumexp(values) - np.log(7), rel=1e-12)
    bound = evidence(changed(SMALL, objective="elbo"), PHI, SEEN, temperature, noise)
    assert float(bound) == pytest.approx(values.mean(), rel=1e-12)
    assert bound < found


@partial(compiled, static_argnums=0)
def many_evidences(prior: BNNPrior, temperature: jax.Array) -> jax.Array:
    keys = jax.random.split(jax.random.key(1), 20_000)
    return jax.vmap(
        lambda key: prior.log_evidence(PHI, SEEN, temperature, prior.draw(key, jnp.float64))
    )(keys)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_evidence_against_all_weights_there_are(temperature: float) -> None:
    """exp of the estimate is unbiased, also from few draws; the bound is below, and unbiased itself."""
    exact, bound = small_quadrature(temperature)
    prior = changed(SMALL, draws=3)
    ratios = np.exp(np.asarray(many_evidences(prior, temperature)) - exact)
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / np.sqrt(len(ratios)) < 0.05
    bounds = np.asarray(many_evidences(changed(prior, objective="elbo"), temperature))
    assert abs(bounds.mean() - bound) < 4 * bounds.std() / np.sqrt(len(bounds))
    assert bounds.mean() < exact - 0.1


def test_one_spread_for_each_layer() -> None:
    """Equals one for each weight where those of a layer are equal; the gradient adds up."""
    network, rng = MLP((2, 3, 2)), np.random.default_rng(4)
    by_layer = BNNPrior(network, Categorical(2), BNNSettings(draws=2, std_per="layer"))
    by_weight = changed(by_layer, std_per="weight")
    assert by_layer.size == 17 + 2 and by_weight.size == 34
    means, log_std = rng.normal(size=17), np.log([0.2, 0.7])
    phi, long = np.append(means, log_std), np.append(means, np.repeat(log_std, [9, 8]))
    data = Data(rng.normal(size=(5, 2)), np.array([0.0, 1, 1, 0, 1]), np.ones(5, bool))
    noise = by_layer.draw(KEY, jnp.float64)
    assert noise.shape == (2, 17)
    gradient = partial(compiled, static_argnums=0)(
        lambda prior, phi: jax.value_and_grad(prior.log_evidence)(phi, data, 1.0, noise)
    )
    value, slope = gradient(by_layer, phi)
    expected, long_slope = gradient(by_weight, long)
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    np.testing.assert_allclose(slope[:17], long_slope[:17], rtol=1e-12)
    sums = [long_slope[17:26].sum(), long_slope[26:].sum()]
    np.testing.assert_allclose(slope[17:], sums, rtol=1e-12)


def test_hyper_prior_and_initial_values() -> None:
    prior = BNNPrior(MLP((3, 4, 2)), Categorical(2), BNNSettings(initial_std=0.05, std_spread=0.5))
    means, log_std = prior.blocks
    assert (means.size, means.mean, means.std) == (26, 0.0, None)
    assert (log_std.size, log_std.mean, log_std.std) == (26, pytest.approx(np.log(0.05)), 0.5)
    start = prior.start(KEY, hyper_prior(prior.blocks, 1.0), 2, 0.3)
    for row, key in zip(start, jax.random.split(KEY, 2), strict=True):
        np.testing.assert_array_equal(row[:26], prior.network.initial(key).astype(jnp.float32))
        np.testing.assert_allclose(row[26:], np.log(0.05), rtol=1e-6)


# A line with Gaussian noise: y = w_0 x + w_1 + N(0, 0.5^2), w ~ N(mu, sigma^2): the posterior is exact.
LINE = BNNPrior(MLP((1, 1)), Gaussian(0.5))
LINE_PHI = np.array([0.5, -1.0, np.log(0.8), np.log(1.5)])
LINE_X = np.linspace(-1, 2, 6)[:, None]
LINE_Y = np.array([-1.5, -0.9, 0.2, 0.4, 1.1, 2.2])
LINE_DATA = Data(
    np.concatenate([LINE_X, np.full((2, 1), 9.0)]), np.append(LINE_Y, [50, 50]), np.arange(8) < 6
)


def line_posterior(temperature: float = 1.0, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (w_0, w_1): textbook Bayesian linear regression."""
    design = np.column_stack([LINE_X[:count], np.ones(count)])
    prior_precision = np.diag(np.exp(-2 * LINE_PHI[2:]))
    precision = prior_precision + temperature / 0.25 * design.T @ design
    covariance = np.linalg.inv(precision)
    information = prior_precision @ LINE_PHI[:2] + temperature / 0.25 * design.T @ LINE_Y[:count]
    return covariance @ information, covariance


posterior_of = compiled(BNNPrior.posterior, static_argnums=0)
extended = compiled(BNNPrior.extend, static_argnums=0)
predicted = compiled(BNNPrior.predict, static_argnums=0)


def draws_of(prior: BNNPrior, phi: np.ndarray) -> np.ndarray:
    """The networks that inference starts from, drawn from the prior."""
    mean, log_std = np.split(phi, 2)
    shape = (prior.inference.networks, mean.size)
    return mean + np.exp(log_std) * jax.random.normal(jax.random.fold_in(KEY, 0), shape)


def test_svgd_finds_the_moments_of_the_exact_posterior() -> None:
    prior = replace(LINE, inference=Inference("svgd", 60, "all", 300, 0.15))
    found = np.asarray(posterior_of(prior, LINE_PHI, LINE_DATA, 0.4, KEY).head)
    mean, covariance = line_posterior(0.4)
    np.testing.assert_allclose(found.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(found.T, bias=True), covariance, rtol=0.15, atol=0.004)


def test_variational_finds_the_best_independent_gaussian_also_when_samples_come_later() -> None:
    """Its mean is exact, its precision the diagonal of the exact one; two of six samples come later."""
    inference = Inference("variational", 400, "all", 400, 0.05, temperature=0.05)
    prior = replace(LINE, inference=inference)
    first, later = (
        Data(LINE_X[a:b], LINE_Y[a:b], np.ones(b - a, bool)) for a, b in ((0, 4), (4, 6))
    )
    before = posterior_of(prior, LINE_PHI, first, 1.0, KEY)
    after = extended(prior, LINE_PHI, before, later)
    sigma, weights = np.exp(LINE_PHI[2:]), draws_of(prior, LINE_PHI)
    for found, count in ((before, 4), (after, 6)):
        mean, covariance = line_posterior(0.05, count)
        centre, log_std = map(np.asarray, found.reached)
        np.testing.assert_allclose(LINE_PHI[:2] + sigma * centre, mean, atol=0.03)
        stds = np.diag(np.linalg.inv(covariance)) ** -0.5
        np.testing.assert_allclose(sigma * np.exp(log_std), stds, rtol=0.04)
        np.testing.assert_allclose(np.std(found.head, axis=0), stds, rtol=0.15)
        np.testing.assert_allclose(np.mean(found.head, axis=0), mean, atol=0.2)
        lines = weights[:, :1] * LINE_X[:count, 0] + weights[:, 1:]
        expected = 0.05 * stats.norm(lines, 0.5).logpdf(LINE_Y[:count]).sum(1)
        np.testing.assert_allclose(found.log_likelihoods, expected, rtol=1e-10)
        assert found.data.y.shape == (count,)


def test_laplace_is_exact_for_a_line() -> None:
    """One step of Newton's method reaches the mean; the networks are draws of the exact posterior."""
    prior = replace(LINE, inference=Inference("laplace", 4000, "all", 1, temperature=2.0))
    found = posterior_of(prior, LINE_PHI, LINE_DATA, 1.0, KEY)
    mean, covariance = line_posterior(2.0)
    reached = LINE_PHI[:2] + np.exp(LINE_PHI[2:]) * np.asarray(found.reached)
    np.testing.assert_allclose(reached, np.tile(mean, (4000, 1)), rtol=1e-9)
    white = (np.asarray(found.head) - mean) @ np.linalg.cholesky(np.linalg.inv(covariance))
    for column in white.T:
        assert stats.kstest(column, stats.norm.cdf).pvalue > 1e-3
    np.testing.assert_allclose(np.cov(white.T), np.eye(2), atol=0.08)
    # At temperature zero nothing is learned.
    cold = posterior_of(prior, LINE_PHI, LINE_DATA, 0.0, KEY)
    np.testing.assert_array_equal(cold.reached, 0)
    np.testing.assert_allclose(cold.head, draws_of(prior, LINE_PHI), rtol=1e-12)
    np.testing.assert_array_equal(cold.log_likelihoods, 0)


def test_laplace_of_classes() -> None:
    """Against scipy's optimum of the same log density, and its Hessian by the textbook."""
    network, rng = MLP((2, 3)), np.random.default_rng(5)
    prior = BNNPrior(network, Categorical(3), inference=Inference("laplace", 600, "all", 6))
    x, y = rng.normal(size=(6, 2)), rng.integers(0, 3, 6)
    data = Data(x, y.astype(float), np.ones(6, bool))
    means, std = rng.normal(size=9), rng.uniform(0.5, 1.5, size=9)

    def logits(z: np.ndarray) -> np.ndarray:
        weights = means + std * z
        return x @ weights[:6].reshape(2, 3) + weights[6:]

    def loss(z: np.ndarray) -> float:
        return float(0.5 * z @ z - log_softmax(logits(z), 1)[np.arange(6), y].sum())

    best = optimize.minimize(loss, np.zeros(9), options={"gtol": 1e-9}).x
    found = posterior_of(prior, np.append(means, np.log(std)), data, 1.0, KEY)
    np.testing.assert_allclose(found.reached[0], best, atol=1e-5)
    p, design = softmax(logits(best), 1), np.column_stack([x, np.ones(6)])
    curvature = np.einsum("mc,cd->mcd", p, np.eye(3)) - np.einsum("mc,md->mcd", p, p)
    hessian = np.einsum("mi,mcd,mj->icjd", design, curvature, design).reshape(9, 9)
    hessian = np.eye(9) + hessian * np.outer(std, std)
    drawn = (np.asarray(found.head) - means) / std - best
    white = drawn @ np.linalg.cholesky(hessian)
    np.testing.assert_allclose(np.cov(white.T), np.eye(9), atol=0.25)
    np.testing.assert_allclose(white.mean(0), 0, atol=0.16)


def test_curvature_of_classes_is_the_hessian() -> None:
    logits = np.random.default_rng(6).normal(size=(2, 4))
    root = np.asarray(inference.curvature_root(Categorical(4), jnp.asarray(logits)))
    for r, p in zip(root, softmax(logits, 1), strict=True):
        np.testing.assert_allclose(r @ r.T, np.diag(p) - np.outer(p, p), atol=1e-14)


@pytest.mark.parametrize("kind", ["svgd", "variational", "laplace"])
def test_without_steps_the_networks_are_draws_of_the_prior(kind: str) -> None:
    prior = replace(LINE, inference=Inference(kind, 5, "all", 0))
    found = posterior_of(prior, LINE_PHI, LINE_DATA, 1.0, KEY).head
    np.testing.assert_allclose(found, draws_of(prior, LINE_PHI), rtol=1e-12)


def test_inference_goes_on_from_where_it_stands() -> None:
    """Without steps it stays there, whatever the new samples say."""
    prior = replace(LINE, inference=Inference("svgd", 3, "all", 0))
    first, later = (Data(LINE_X[a:b], LINE_Y[a:b], np.ones(3, bool)) for a, b in ((0, 3), (3, 6)))
    before = posterior_of(prior, LINE_PHI, first, 1.0, KEY)
    stands = np.arange(6.0).reshape(3, 2)
    after = extended(prior, LINE_PHI, before._replace(reached=stands), later)
    np.testing.assert_allclose(after.head, LINE_PHI[:2] + np.exp(LINE_PHI[2:]) * stands, rtol=1e-12)


def test_log_evidence_of_a_posterior_is_that_of_draws_of_the_prior() -> None:
    prior = replace(LINE, inference=Inference("svgd", 20_000, "all", 0))
    found = prior.log_evidence_of(LINE_PHI, posterior_of(prior, LINE_PHI, LINE_DATA, 1.0, KEY))
    design = np.column_stack([LINE_X, np.ones(6)])
    covariance = design @ np.diag(np.exp(2 * LINE_PHI[2:])) @ design.T + 0.25 * np.eye(6)
    exact = stats.multivariate_normal(design @ LINE_PHI[:2], covariance).logpdf(LINE_Y)
    assert float(found) == pytest.approx(exact, abs=0.15)


@dataclass(frozen=True)
class Whole:
    """A network that cannot be cut in two: it does not tell what its last layer sees."""

    inner = MLP((2, 3, 2))
    size, layer_sizes, initial = inner.size, inner.layer_sizes, inner.initial

    def __call__(self, parameters: jax.Array, x: jax.Array) -> jax.Array:
        return self.inner(parameters, x)


def two_layers(kind: str, adapt: str, **settings: Any) -> tuple[BNNPrior, np.ndarray, Data]:
    rng = np.random.default_rng(7)
    inference = Inference(kind, 4, adapt, 3, 0.1, **settings)
    prior = BNNPrior(MLP((2, 3, 2)), Categorical(2), inference=inference)
    data = Data(rng.normal(size=(6, 2)), np.array([0.0, 1, 1, 0, 1, 0]), np.arange(6) < 5)
    return prior, np.append(rng.normal(size=17), np.log(rng.uniform(0.1, 0.5, 17))), data


@pytest.mark.parametrize("kind", ["svgd", "variational", "laplace"])
def test_only_the_last_layer_adapts(kind: str) -> None:
    """By features computed once, or through the whole network: the same."""
    prior, phi, data = two_layers(kind, "last")
    found = posterior_of(prior, phi, data, 1.0, KEY)
    body, head = np.split(draws_of(prior, phi), [9], axis=1)
    np.testing.assert_allclose(found.body, body, rtol=1e-12)
    assert np.abs(found.head - head).max() > 1e-2
    if kind == "svgd":
        whole = replace(prior, network=Whole())
        other = posterior_of(whole, phi, data, 1.0, KEY)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9), found, other
        )


def test_prediction_of_classes_is_the_mixture_of_the_networks(oracle: SimpleNamespace) -> None:
    prior, phi, data = two_layers("svgd", "last")
    posterior = posterior_of(prior, phi, data, 1.0, KEY)
    weights = np.concatenate([posterior.body, posterior.head], 1)
    logits = np.array([oracle.network(row, (2, 3, 2), data.x) for row in weights])
    for each in (prior, replace(prior, network=Whole())):
        found = predicted(each, phi, posterior, data.x).log_probabilities
        np.testing.assert_allclose(np.exp(found), softmax(logits, -1).mean(0), rtol=1e-10)


def test_svgd_step_by_step(oracle: SimpleNamespace) -> None:
    """Two plain steps: gradients by differences, cosine schedule."""
    prior, phi, data = two_layers("svgd", "all", optimizer="sgd")
    prior = replace(prior, inference=replace(prior.inference, steps=2))
    mean, std = phi[:17], np.exp(phi[17:])
    z = (draws_of(prior, phi) - mean) / std

    def log_density(z: np.ndarray) -> float:
        weights, x = mean + std * z, data.x[:5]
        logits = oracle.network(weights, (2, 3, 2), x)
        fit = log_softmax(logits, 1)[np.arange(5), data.y[:5].astype(int)].sum()
        return float(1.5 * fit - 0.5 * z @ z)

    for rate in (0.1, 0.05):
        scores = np.array([oracle.central_differences(log_density, row) for row in z])
        z = z + rate * svgd.direction(z, scores)
    found = posterior_of(prior, phi, data, 1.5, KEY)
    np.testing.assert_allclose(found.reached, z, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found.head, mean + std * z, rtol=1e-7, atol=1e-8)


def test_batches_are_unbiased_and_without_padding() -> None:
    """The mean over all batches of two is the log likelihood of all five samples."""
    prior, phi, data = two_layers("svgd", "all", batch=2)
    problem = Problem(prior.network, prior.likelihood, prior.inference, phi[:17], np.exp(phi[17:]))
    data = Data(*map(jnp.asarray, data))
    target = inference.make_target(problem, jnp.zeros((4, 0)), data, jnp.asarray(0.7))
    z = np.random.default_rng(8).normal(size=(4, 17))
    batches = jnp.array(list(combinations(range(5), 2)))
    parts, whole, rows = compiled(
        lambda z: (
            jax.vmap(lambda rows: target.log_likelihoods(z, rows))(batches),
            target.log_likelihoods(z),
            jax.vmap(target.rows)(jax.random.split(KEY, 40)),
        )
    )(z)
    np.testing.assert_allclose(parts.mean(0), whole, rtol=1e-12)
    rows = np.asarray(rows)
    assert rows.shape == (40, 2) and set(rows.ravel()) == set(range(5))
    assert (rows[:, 0] != rows[:, 1]).all()
    large = problem._replace(inference=replace(prior.inference, batch=6))
    assert target._replace(problem=large).rows(KEY) == slice(None)


def test_prediction_of_numbers_is_the_mixture_of_the_networks() -> None:
    prior = replace(LINE, inference=Inference("svgd", 3, "all", 0))
    posterior = posterior_of(prior, LINE_PHI, LINE_DATA, 1.0, KEY)
    prediction, head = predicted(prior, LINE_PHI, posterior, LINE_X), np.asarray(posterior.head)
    lines = head[:, :1] * LINE_X[:, 0] + head[:, 1:]
    np.testing.assert_allclose(prediction.means, lines, rtol=1e-12)
    np.testing.assert_allclose(prediction.stds, 0.5)
    np.testing.assert_allclose(prediction.weights, 1 / 3)


def test_fingerprint_is_what_the_mean_network_predicts() -> None:
    fingerprint = compiled(BNNPrior.fingerprint, static_argnums=0)
    found = fingerprint(SMALL, PHI, X)
    logits = np.column_stack([PHI[0] * np.tanh(X[:, 0]), PHI[1] - X[:, 0]])
    np.testing.assert_allclose(found, softmax(logits, 1).ravel() / np.sqrt(8), rtol=1e-12)
    line = fingerprint(LINE, LINE_PHI, LINE_X)
    np.testing.assert_allclose(line, (0.5 * LINE_X[:, 0] - 1.0) / np.sqrt(6), rtol=1e-12)


def test_what_networks_cannot_do_is_said() -> None:
    with pytest.raises(InputError, match="uniform"):
        SMALL.leave_one_out(PHI, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="svgd"):
        inference.curvature_root(object(), jnp.zeros((1, 1)))  # type: ignore[arg-type]
