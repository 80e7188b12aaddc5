"""A client's own model: weights of the particles, predictions, samples that come later."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax
from small_data import padded

from pacpfl.personal import WEIGHTS, PersonalModel, personal_model, stacking_weights
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.mixture import MixturePrior
from pacpfl.types import Data, Prediction

pytestmark = pytest.mark.usefixtures("x64")

PRIOR = GPPrior(1, GPSettings(mean="linear", kernel="ard"))
PARTICLES = np.array(
    [[1.0, 0.2, -0.5, -0.4], [-0.4, 0.0, 0.3, -0.9], [0.5, -0.3, 0.1, 0.0]]
)  # slope, intercept, ln length, raw noise
SLOTS, SAMPLES = 8, 6
AT = np.linspace(-2, 2, 5)[:, None]
every_rule = pytest.mark.parametrize("rule", WEIGHTS)


def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 1))
    return x, 0.5 * x[:, 0] + 0.4 * rng.normal(size=SAMPLES)


def seen() -> Data:
    return padded(*samples(), SLOTS)


@jax.jit
def predict(model: PersonalModel, x: jax.Array) -> Prediction:
    return model(x)


fit = jax.jit(personal_model, static_argnums=(0, 3))


def best_on_simplex(log_densities: np.ndarray) -> tuple[np.ndarray, float]:
    """argmax and max over the simplex of sum_j ln sum_kappa w_kappa p_kappa(j), by scipy."""
    densities = np.exp(log_densities)
    k = len(densities)
    found = minimize(
        lambda w: -np.log(w @ densities).sum(),
        np.full(k, 1 / k),
        jac=lambda w: -(densities / (w @ densities)).sum(1),
        bounds=[(1e-12, 1)] * k,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x, -found.fun


def test_uniform_weights() -> None:
    np.testing.assert_allclose(fit(PRIOR, PARTICLES, seen(), "uniform").weights, 1 / 3)


def test_stacking_weights_of_a_client() -> None:
    """Whatever the optimiser, no point of the simplex predicts the held-out samples better."""
    model = fit(PRIOR, PARTICLES, seen(), "stacking")
    left_out = jax.vmap(PRIOR.leave_one_out)(PARTICLES, model.posteriors)
    table = np.asarray(left_out.density)[:, seen().mask]
    _, best = best_on_simplex(table)
    found = np.asarray(model.weights)
    assert found.sum() == pytest.approx(1) and (found >= 0).all()
    assert np.log(found @ np.exp(table)).sum() == pytest.approx(best, abs=5e-3)


@pytest.mark.parametrize("seed", range(4))
def test_stacking_against_scipy(seed: int) -> None:
    """Every particle is best at some samples, so the optimum lies inside the simplex."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(3, 40))
    expected, best = best_on_simplex(table)
    assert expected.min() > 0.02
    found = np.asarray(stacking_weights(jnp.asarray(table), jnp.full(3, 1 / 3)))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.log(found @ np.exp(table)).sum() == pytest.approx(best, abs=1e-4)


def test_stacking_takes_the_one_that_is_always_best_and_without_a_preference_the_start() -> None:
    table = np.stack([np.zeros(30), np.full(30, -1.0), np.full(30, -900.0)])
    found = np.asarray(stacking_weights(jnp.asarray(table), jnp.full(3, 1 / 3)))
    np.testing.assert_allclose(found, [1, 0, 0], atol=1e-6)
    start = jnp.array([0.25, 0.75])
    np.testing.assert_array_equal(stacking_weights(jnp.zeros((2, 3)), start), start)


def test_padding_has_no_say_in_stacking() -> None:
    """Ten samples among 600 rows of padding, as beside a large client, and a particle that failed."""
    table = np.random.default_rng(0).normal(size=(4, 10))
    start = np.array([1 / 3, 1 / 3, 0, 1 / 3])
    table[2] = -np.inf
    wide = np.concatenate([table, np.zeros((4, 600))], axis=1)
    wide[2] = -np.inf
    found, plain = (stacking_weights(jnp.asarray(t), jnp.asarray(start)) for t in (wide, table))
    np.testing.assert_allclose(found, plain, rtol=1e-10, atol=1e-12)


@every_rule
def test_a_failed_particle_has_no_weight_and_harms_nobody(rule: str) -> None:
    broken = np.insert(PARTICLES, 1, np.nan, axis=0)
    model, sound = (fit(PRIOR, each, seen(), rule) for each in (broken, PARTICLES))
    prediction, expected = predict(model, AT), predict(sound, AT)
    assert prediction.weights[1] == 0
    assert all(np.isfinite(part).all() for part in prediction)
    rest = np.array([0, 2, 3])
    for found, alone in zip(prediction, expected, strict=True):
        np.testing.assert_allclose(np.asarray(found)[rest], alone, rtol=1e-8, atol=1e-9)


@every_rule
@pytest.mark.parametrize("temperature", [1.0, 1 / 3])
def test_prediction_is_the_mixture_of_conditioned_particles(
    rule: str, temperature: float, oracle: SimpleNamespace
) -> None:
    """Samples that count a third: wider, nearer to the prior, and less of a reason to prefer one."""
    x, y = samples()
    model = fit(PRIOR, PARTICLES, seen(), rule, temperature)
    prediction = predict(model, AT)
    np.testing.assert_array_equal(prediction.weights, model.weights)
    for row, phi in enumerate(PARTICLES):
        mean, std = oracle.predict(PRIOR, phi, x, y, AT, temperature)
        np.testing.assert_allclose(prediction.means[row], mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(prediction.stds[row], std, rtol=1e-8)
    if rule == "evidence":
        each = [oracle.log_evidence(PRIOR, phi, x, y, temperature) for phi in PARTICLES]
        np.testing.assert_allclose(model.weights, softmax(each), rtol=1e-8)


@every_rule
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_later_samples_give_what_all_samples_give(rule: str, temperature: float) -> None:
    """S~ added afterwards against S and S~ at once."""
    x, y = samples()
    first, later = (Data(x[a:b], y[a:b], np.ones(b - a, bool)) for a, b in ((0, 4), (4, SAMPLES)))

    @jax.jit
    def both_ways(particles: jax.Array) -> tuple[PersonalModel, PersonalModel]:
        model = personal_model(PRIOR, particles, first, rule, temperature).extend(later)
        whole = Data(x, y, np.ones(SAMPLES, bool))
        return model, personal_model(PRIOR, particles, whole, rule, temperature)

    grown, anew = both_ways(PARTICLES)
    assert grown.rule == anew.rule == rule
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8), grown, anew)


def test_a_mixture_prior_gives_a_mixture_of_mixtures(oracle: SimpleNamespace) -> None:
    """Components are (particle, member) pairs: weight of the particle times the responsibility."""
    family = MixturePrior(PRIOR, 2)
    logits = np.array([[0.3, -0.3], [0.0, 1.0]])
    members = PARTICLES[np.array([[0, 1], [2, 0]])]
    particles = np.concatenate([logits, members.reshape(2, -1)], axis=1)
    model = fit(family, particles, seen(), "evidence")
    prediction = predict(model, AT)

    x, y = samples()
    each = np.array([oracle.log_evidence(PRIOR, phi, x, y) for phi in PARTICLES])
    joint = softmax(logits, axis=1) * np.exp(each)[[[0, 1], [2, 0]]]
    np.testing.assert_allclose(prediction.weights, (joint / joint.sum()).ravel(), rtol=1e-8)
    np.testing.assert_allclose(model.weights, joint.sum(1) / joint.sum(), rtol=1e-8)
    responsibilities = jax.jit(lambda m: m.responsibilities())(model)
    np.testing.assert_allclose(responsibilities, joint / joint.sum(1, keepdims=True), rtol=1e-8)
    for row, which in enumerate([0, 1, 2, 0]):
        mean, _ = oracle.predict(PRIOR, PARTICLES[which], x, y, AT)
        np.testing.assert_allclose(prediction.means[row], mean, rtol=1e-8, atol=1e-9)
