"""pFedBayes against the formulas of its paper, by quadrature where one weight suffices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from scipy import integrate, stats
from scipy.special import expit, log_expit

from pacpfl.likelihoods import Categorical, Gaussian
from pacpfl.methods.network import LocalTraining, NetworkModel
from pacpfl.methods.pfedbayes import (
    PFedBayes,
    PFedBayesSettings,
    Update,
    WeightDistribution,
    divergence,
)
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(0)
RATES = {"learning_rate": 0.02, "shared_learning_rate": 0.02}


@dataclass(frozen=True)
class OneWeight:
    """Two classes with the logits 0 and w x, or one output w x."""

    outputs: int = 2

    @property
    def size(self) -> int:
        return 1

    def initial(self, key: jax.Array) -> jax.Array:
        return jnp.full(1, 0.3)

    def __call__(self, parameters: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.concatenate([0 * x, parameters[0] * x], axis=1)[:, -self.outputs :]


def gaussian(mean: Any, std: Any) -> WeightDistribution:
    """In NumPy: what is made when this file is imported must be float64 too."""
    return WeightDistribution(np.atleast_1d(mean), np.log(np.expm1(np.atleast_1d(std))))  # type: ignore[arg-type]


def expectation(function: Callable[[float], float], mean: float, std: float) -> float:
    value, _ = integrate.quad(
        lambda w: stats.norm.pdf(w, mean, std) * function(w), mean - 12 * std, mean + 12 * std
    )
    return value


X = np.array([[-1.2], [0.4], [1.0], [2.0], [9.0], [9.0]])
Y = np.array([0.0, 1.0, 0.0, 1.0, 5.0, 5.0])
DATA = Data(X, Y, np.arange(6) < 4)
MODEL = NetworkModel(OneWeight(), Categorical(2))
TOY = PFedBayes(MODEL, LocalTraining(3), PFedBayesSettings(zeta=2.5, **RATES))
OWN, SHARED = gaussian(0.7, 0.5), gaussian(-0.2, 0.8)


def tuned(method: PFedBayes, **changes: Any) -> PFedBayes:
    return replace(method, settings=replace(method.settings, **changes))


def negative_log_likelihood(w: float) -> float:
    signs = 2 * Y[:4] - 1
    return -float(log_expit(signs * w * X[:4, 0]).sum())


def test_divergence_against_quadrature() -> None:
    means, stds = np.array([[0.7, -2.0], [-0.2, 1.0]]), np.array([[0.5, 0.1], [0.8, 2.0]])
    expected = 0.0
    for (m, n), (s, t) in zip(means.T, stds.T, strict=True):
        ours, other = stats.norm(m, s), stats.norm(n, t)
        expected += ours.expect(lambda w: ours.logpdf(w) - other.logpdf(w), epsabs=1e-12)  # noqa: B023
    q, z = (gaussian(mean, std) for mean, std in zip(means, stds, strict=True))
    np.testing.assert_allclose(q.std, stds[0])
    assert float(divergence(q, z)) == pytest.approx(expected, rel=1e-8)
    assert float(divergence(q, q)) == pytest.approx(0, abs=1e-14)


def test_objective_is_the_papers() -> None:
    """E_q[-ln p(S | w)] + zeta KL(q || z): by quadrature, and estimated with many draws."""
    expected = expectation(negative_log_likelihood, 0.7, 0.5) + 2.5 * float(divergence(OWN, SHARED))
    spread = expectation(lambda w: negative_log_likelihood(w) ** 2, 0.7, 0.5)
    error = np.sqrt(spread - expectation(negative_log_likelihood, 0.7, 0.5) ** 2) / np.sqrt(40_000)
    method = tuned(TOY, draws=40_000)
    found = float(compiled(method.objective)(OWN, SHARED, DATA, KEY))
    assert abs(found - expected) < 4 * error < 0.05


def test_a_batch_stands_for_all_samples() -> None:
    """m / b times its likelihood: right on average over batches, with weights that do not vary."""
    own = gaussian(0.7, 1e-9)
    method = replace(TOY, local=LocalTraining(3, batch=1))
    each = jax.vmap(method.objective, (None, None, None, 0))
    values = np.asarray(compiled(each)(own, own, DATA, jax.random.split(KEY, 4000)))
    assert len(np.unique(values.round(6))) == 4
    assert values.mean() == pytest.approx(negative_log_likelihood(0.7), rel=0.02)


def test_personal_optimum_of_a_conjugate_problem() -> None:
    """y = w x + noise: the best q has precision 1/s^2 + sum x^2 / (zeta noise^2)."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 1))
    data = Data(x, 1.5 * x[:, 0] + 0.5 * rng.normal(size=12), np.ones(12, bool))
    settings = PFedBayesSettings(learning_rate=3e-3, zeta=2.0, draws=16, personal_steps=4000)
    method = PFedBayes(NetworkModel(OneWeight(1), Gaussian(0.5)), settings=settings)
    state = method.init(KEY, data)._replace(shared=gaussian(0.3, 0.6))
    model = compiled(lambda s, d: method.personalize(s, s.shared, d, KEY))(state, data)
    precision = 1 / 0.6**2 + np.sum(x**2) / (2.0 * 0.25)
    mean = (0.3 / 0.6**2 + x[:, 0] @ data.y / (2.0 * 0.25)) / precision
    assert float(model.distribution.mean[0]) == pytest.approx(mean, abs=0.01)
    assert float(model.distribution.std[0]) == pytest.approx(precision**-0.5, rel=0.05)


def test_one_round_by_hand() -> None:
    """Plain gradient steps: q against its objective with z as it was, then z towards the new q."""
    rate, zeta = 0.01, TOY.settings.zeta
    plain = tuned(TOY, optimizer="sgd", learning_rate=rate, shared_learning_rate=rate)
    method = replace(plain, local=LocalTraining(2))
    state = method.init(KEY, DATA)._replace(shared=SHARED)
    update, own = compiled(method.client_update)(state, OWN, DATA, KEY)
    q, z = (np.array([d.mean[0], d.raw[0]]) for d in (OWN, SHARED))

    def soft(raw: float) -> float:
        return float(np.log1p(np.exp(raw)))

    for key in jax.random.split(KEY, 2):
        noise = float(
            jax.random.normal(jax.random.split(jax.random.split(key)[1], 1)[0], (1,), float)[0]
        )
        s, t = soft(q[1]), soft(z[1])
        w = q[0] + s * noise
        signs = 2 * Y[:4] - 1
        slope = -np.sum(signs * X[:4, 0] * expit(-signs * w * X[:4, 0]))
        by_mean = slope + zeta * (q[0] - z[0]) / t**2
        by_std = slope * noise + zeta * (s / t**2 - 1 / s)
        q = q - rate * np.array([by_mean, by_std * expit(q[1])])
        s = soft(q[1])
        by_mean = -zeta * (q[0] - z[0]) / t**2
        by_std = zeta * (1 / t - (s**2 + (q[0] - z[0]) ** 2) / t**3)
        z = z - rate * np.array([by_mean, by_std * expit(z[1])])
    np.testing.assert_allclose([own.mean[0], own.raw[0]], q, rtol=1e-10)
    np.testing.assert_allclose([update.shared.mean[0], update.shared.raw[0]], z, rtol=1e-10)


def test_the_server_mixes_means_and_leaves_out_what_is_not_finite() -> None:
    method = tuned(TOY, mixing=0.4)
    state = method.init(KEY, DATA)._replace(shared=SHARED)
    means, raws = np.array([[1.0], [np.nan], [3.0]]), np.array([[0.5], [0.1], [-0.7]])
    updates = Update(
        WeightDistribution(jnp.asarray(means), jnp.asarray(raws)), jnp.array([-1.0, np.nan, -2.0])
    )
    step = compiled(method.server_update)
    found = step(state, updates, jnp.array([1.0, 1.0, 3.0]), KEY)
    assert float(found.shared.mean[0]) == pytest.approx(0.6 * -0.2 + 0.4 * (1 + 9) / 4)
    raw = 0.6 * float(SHARED.raw[0]) + 0.4 * (0.5 - 2.1) / 4
    assert float(found.shared.raw[0]) == pytest.approx(raw)
    assert int(found.skipped) == 1
    curves = compiled(method.diagnostics)(found, updates, jnp.array([1.0, 1.0, 3.0]))
    assert float(curves["log_evidence"]) == pytest.approx(-1.75)
    assert int(step(state, updates, jnp.array([1.0, 0.0, 3.0]), KEY).skipped) == 0
    alone = step(state, updates, jnp.array([0.0, 1.0, 0.0]), KEY)
    jax.tree.map(np.testing.assert_array_equal, alone.shared, state.shared)


client_update = compiled(TOY.client_update)


def test_a_client_that_failed_keeps_what_it_had() -> None:
    state = TOY.init(KEY, DATA)._replace(shared=SHARED)
    broken = DATA._replace(x=np.where(np.arange(6)[:, None] == 2, np.nan, DATA.x))
    update, own = client_update(state, OWN, broken, KEY)
    jax.tree.map(np.testing.assert_array_equal, own, OWN)
    assert not np.isfinite(update.shared.mean).any()
    _, own = client_update(state, OWN, DATA, KEY)
    assert float(own.mean[0]) != float(OWN.mean[0])


def test_predictions_are_the_mixture_over_the_weights() -> None:
    method = tuned(TOY, networks=20_000, personal_steps=0)
    state = method.init(KEY, DATA)
    at = np.array([[-1.0], [0.5], [3.0]])
    predict = compiled(lambda own: method.personalize(state, own, DATA, KEY)(at).log_probabilities)
    found = np.exp(predict(gaussian(0.7, 1.5)))
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
    expected = [expectation(lambda w: expit(w * x), 0.7, 1.5) for x in at[:, 0]]  # noqa: B023
    np.testing.assert_allclose(found[:, 1], expected, atol=0.01)
    sharp = np.exp(predict(gaussian(0.7, 1e-9)))[:, 1]
    np.testing.assert_allclose(sharp, expit(0.7 * at[:, 0]), atol=1e-8)
    assert np.abs(sharp - found[:, 1]).max() > 0.1


def test_a_client_begins_with_the_shared_distribution() -> None:
    method = PFedBayes(NetworkModel(MLP((1, 3, 2)), Categorical(2)))
    state = method.init(KEY, DATA)
    np.testing.assert_allclose(state.shared.std, method.settings.initial_std, rtol=1e-6)
    assert method.init_client(state, DATA, KEY) is state.shared
