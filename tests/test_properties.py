"""Properties that hold whatever the numbers are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pacpfl import predictive
from pacpfl.data.prepare import fit_scaler
from pacpfl.methods.pacpfl import PACPFL, State, TrainSettings
from pacpfl.personal import personal_model
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Data, Prediction, Samples

pytestmark = pytest.mark.usefixtures("x64")

quick = settings(max_examples=20, deadline=None, derandomize=True, database=None)
PRIOR = GPPrior(1, GPSettings(mean="linear", kernel="ard", noise_model="linear"))
METHOD = PACPFL(PRIOR, 3, optax.sgd(0.01), TrainSettings(particles=3, tau=0.5), references=3)
SAMPLES, POINTS = 6, 4
AT = np.linspace(-3, 3, POINTS)[:, None]
LEVELS = np.array([0.01, 0.25, 0.5, 0.9])


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


def array(low: float, high: float, *shape: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, shape, elements=numbers(low, high))


xs, ys = array(-3, 3, SAMPLES, 1), array(-3, 3, SAMPLES)
masks = arrays(np.bool_, SAMPLES)
particle = array(-1.5, 1.5, PRIOR.size)
particles = array(-1.5, 1.5, 3, PRIOR.size)


@jax.jit
def personalize(phis: jax.Array, data: Data) -> tuple[jax.Array, ...]:
    """The weights of the particles, and what their mixture predicts."""
    model = personal_model(PRIOR, phis, data, "evidence")
    prediction = model(AT)
    return (
        model.weights,
        predictive.mean(prediction),
        predictive.std(prediction),
        predictive.quantiles(prediction, jnp.asarray(LEVELS)),
    )


@jax.jit
def predictive_std(phi: jax.Array, data: Data) -> tuple[jax.Array, jax.Array]:
    """The predictive std of one particle, and its noise."""
    _, _, stds = PRIOR.predict(phi, PRIOR.posterior(phi, data), AT.astype(phi.dtype))
    return stds[0], PRIOR.noise_std(phi, AT.astype(phi.dtype))


@jax.jit
def play_round(phis: jax.Array, data: Data) -> jax.Array:
    key = jax.random.key(0)
    state = State(
        phis, jax.vmap(METHOD.optimizer.init)(phis), jnp.zeros((3, 1)), jnp.zeros(3, jnp.int32)
    )
    updates, _ = jax.vmap(lambda d: METHOD.client_update(state, (), d, key))(data)
    return METHOD.server_update(state, updates, jnp.ones(3), key).particles


cdf, quantiles = jax.jit(predictive.cdf), jax.jit(predictive.quantiles)


@quick
@given(particles, xs, ys, masks, st.permutations(range(SAMPLES)))
def test_the_order_of_samples_does_not_matter(phis, x, y, mask, order):
    data = Data(x, y, mask)
    turned = Data(x[order], y[order], mask[order])
    for found, expected in zip(personalize(phis, turned), personalize(phis, data), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


@quick
@given(particles, xs, ys, st.permutations(range(3)))
def test_the_order_of_particles_permutes_their_weights_alone(phis, x, y, order):
    data = Data(x, y, np.ones(SAMPLES, bool))
    weights, *answers = personalize(phis, data)
    turned_weights, *turned_answers = personalize(phis[order], data)
    np.testing.assert_allclose(turned_weights, np.asarray(weights)[order], rtol=1e-9, atol=1e-12)
    for found, expected in zip(turned_answers, answers, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@quick
@given(
    particles,
    array(-3, 3, 3, SAMPLES, 1),
    array(-3, 3, 3, SAMPLES),
    st.permutations(range(3)),
    st.permutations(range(3)),
    st.permutations(range(SAMPLES)),
)
def test_a_round_knows_no_order(phis, x, y, clients, order, rows):
    """Clients and samples in another order: the same particles; particles: the same, permuted."""
    mask = np.ones((3, SAMPLES), bool)
    expected = np.asarray(play_round(phis, Data(x, y, mask)))
    shuffled = Data(x[clients][:, rows], y[clients][:, rows], mask)
    np.testing.assert_allclose(play_round(phis, shuffled), expected, rtol=1e-8, atol=1e-8)
    turned = play_round(phis[order], Data(x, y, mask))
    np.testing.assert_allclose(turned, expected[order], rtol=1e-8, atol=1e-8)


@quick
@given(particles, xs, ys, numbers(0.01, 100), numbers(-50, 50), numbers(0.1, 10), numbers(-9, 9))
def test_units_of_the_data_are_units_of_the_predictions(
    phis: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    y_scale: float,
    y_shift: float,
    x_scale: float,
    x_shift: float,
) -> None:
    """Scaling and shifting x and y changes means and quantiles like y, and the std like its scale."""
    x, y = x + np.linspace(0, 1, SAMPLES)[:, None], y + np.linspace(0, 1, SAMPLES)
    if x.std() < 0.05 or y.std() < 0.05:  # nearly constant: standardising would amplify rounding
        x, y = np.linspace(-1, 1, SAMPLES)[:, None], np.linspace(-1, 1, SAMPLES) ** 3

    def answers(samples: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scaler = fit_scaler(samples)
        train = scaler(samples)
        _, mean, std, quantile = personalize(phis, Data(train.x, train.y, np.ones(SAMPLES, bool)))
        return (
            scaler.target(np.asarray(mean)),
            np.asarray(std) * scaler.y_std,
            scaler.target(np.asarray(quantile)),
        )

    mean, std, quantile = answers(Samples(x, y))
    moved = answers(Samples(x_scale * x + x_shift, y_scale * y + y_shift))
    np.testing.assert_allclose((moved[0] - y_shift) / y_scale, mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(moved[1] / y_scale, std, rtol=1e-6)
    np.testing.assert_allclose((moved[2] - y_shift) / y_scale, quantile, rtol=1e-6, atol=1e-6)


@quick
@given(particle, xs, ys, masks, st.integers(0, SAMPLES - 1))
def test_knowing_more_never_widens_and_noise_is_the_floor(phi, x, y, mask, added):
    """At fixed hyper-parameters; a sample is added by taking it out of the padding."""
    less, more = mask.copy(), mask.copy()
    less[added], more[added] = False, True
    before, noise = predictive_std(phi, Data(x, y, less))
    after, _ = predictive_std(phi, Data(x, y, more))
    assert (np.asarray(after) <= np.asarray(before) * (1 + 1e-12)).all()
    assert (np.asarray(after) >= np.asarray(noise) * (1 - 1e-12)).all()
    prior_std = np.sqrt(1 + np.asarray(noise) ** 2)
    assert (np.asarray(before) <= prior_std * (1 + 1e-12)).all()


@quick
@given(particle, xs, ys)
def test_noise_is_the_floor_in_single_precision(phi, x, y):
    with jax.enable_x64(False):
        data = Data(x.astype(np.float32), y.astype(np.float32), np.ones(SAMPLES, bool))
        stds, noise = predictive_std(phi.astype(np.float32), data)
    assert stds.dtype == np.float32 and (np.asarray(stds) >= np.asarray(noise) * (1 - 1e-6)).all()


@quick
@given(
    array(0, 1, 3),
    array(-100, 100, 3, POINTS),
    array(1e-3, 10, 3, POINTS),
    array(1e-4, 1 - 1e-4, 5),
)
def test_cdf_and_quantiles_are_inverse(weights, means, stds, levels):
    weights = weights + np.array([0.0, 1e-3, 0.0])
    prediction = Prediction(weights / weights.sum(), means, stds)
    levels = np.sort(levels)
    values = np.asarray(quantiles(prediction, levels))
    assert (np.diff(values, axis=0) >= -1e-9).all()
    for row, level in zip(values, levels, strict=True):
        np.testing.assert_allclose(cdf(prediction, row), level, atol=1e-9)
