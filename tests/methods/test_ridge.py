"""Ridge per client against scikit-learn, refits without each sample, and a Gaussian process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.linear_model import Ridge as Reference
from sklearn.linear_model import RidgeCV

from pacpfl.methods.alone import PENALTIES, Ridge, RidgeModel
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

CLIENTS, SLOTS, FEATURES = 4, 20, 5
LENGTHS = np.array([20, 12, 7, 4])  # the last has fewer samples than features
METHOD = Ridge()
AT = np.random.default_rng(9).normal(size=(6, FEATURES)) + 1


def make_clients() -> Data:
    """Noise differs, and with it the best penalty; padding is nonsense."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, SLOTS, FEATURES)) + 1
    x[..., 4] = x[..., 3] + 0.01 * rng.normal(size=(CLIENTS, SLOTS))  # nearly collinear
    noise = np.array([0.1, 1.0, 3.0, 0.3])[:, None]
    y = 5 + x @ [1.0, -0.5, 0.0, 0.3, 0.3] + noise * rng.normal(size=(CLIENTS, SLOTS))
    mask = np.arange(SLOTS) < LENGTHS[:, None]
    return Data(np.where(mask[..., None], x, 77.0), np.where(mask, y, -1e3), mask)


@compiled
def fit_all(data: Data) -> RidgeModel:
    key = jax.random.key(0)
    return jax.vmap(lambda d: METHOD.personalize(METHOD.init(key, d), (), d, key))(data)


@pytest.fixture(scope="module")
def models(x64: None) -> list[RidgeModel]:
    """Every client's model, from one call."""
    together = fit_all(jax.tree.map(jnp.asarray, make_clients()))
    return [jax.tree.map(lambda a, i=i: a[i], together) for i in range(CLIENTS)]


def own(client: int) -> tuple[np.ndarray, np.ndarray]:
    data, count = make_clients(), LENGTHS[client]
    return data.x[client, :count], data.y[client, :count]


def test_penalties_and_lines_are_those_of_scikit_learn(models: list[RidgeModel]) -> None:
    for client, model in enumerate(models):
        reference = RidgeCV(PENALTIES).fit(*own(client))
        assert float(model.penalty) == pytest.approx(reference.alpha_, rel=1e-12)
        np.testing.assert_allclose(model.slope, reference.coef_, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(model(AT).means[0], reference.predict(AT), rtol=1e-9)
    chosen = [float(model.penalty) for model in models]
    assert len(set(chosen)) >= 3 and chosen[0] < chosen[2]


@pytest.mark.parametrize("client", [1, 3])
def test_the_noise_makes_left_out_samples_most_likely(client: int, models: list[Any]) -> None:
    """Fit again without each sample; then search for the noise under which they are likeliest."""
    x, y = own(client)
    penalty = float(models[client].penalty)
    errors, factors = [], []
    for j in range(len(y)):
        rest, others = np.delete(x, j, 0), np.delete(y, j)
        errors.append(y[j] - Reference(penalty).fit(rest, others).predict(x[[j]])[0])
        centred, offset = rest - rest.mean(0), x[j] - rest.mean(0)
        inner = np.linalg.inv(centred.T @ centred + penalty * np.eye(FEATURES))
        factors.append(np.sqrt(1 + 1 / len(others) + offset @ inner @ offset))
    best = minimize_scalar(
        lambda s: -norm.logpdf(errors, scale=np.exp(s) * np.array(factors)).sum(), (-3, 3)
    )
    assert float(models[client].noise) == pytest.approx(np.exp(best.x), rel=1e-6)


@pytest.mark.parametrize("client", range(CLIENTS))
def test_predictions_are_those_of_a_process_with_a_linear_kernel(client: int, models: Any) -> None:
    """k(x, x') = s^2 (x^T x' / penalty + a large constant): the intercept's flat prior."""
    x, y = own(client)
    model = models[client]
    variance, penalty, flat = float(model.noise) ** 2, float(model.penalty), 1e7

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return variance * (a @ b.T / penalty + flat)

    gain = np.linalg.solve(kernel(x, x) + variance * np.eye(len(y)), kernel(x, AT)).T
    prediction = model(AT)
    np.testing.assert_allclose(prediction.means[0], gain @ y, rtol=1e-4)
    spread = np.diag(kernel(AT, AT)) - np.sum(gain * kernel(AT, x), axis=1) + variance
    np.testing.assert_allclose(prediction.stds[0], np.sqrt(spread), rtol=1e-4)


def test_targets_on_a_line_keep_a_little_noise_and_one_sample_is_predicted_again() -> None:
    mask = np.arange(SLOTS) < np.array([SLOTS, 1, 2, 3])[:, None]
    fitted = fit_all(make_clients()._replace(y=np.full((CLIENTS, SLOTS), 3.0), mask=mask))
    np.testing.assert_allclose(fitted.noise, METHOD.least_noise)
    predicted = jax.vmap(lambda m: m(jnp.asarray(AT)))(fitted)
    np.testing.assert_allclose(predicted.means, 3.0, rtol=1e-9)
    assert (np.asarray(predicted.stds) > 0).all()


def test_float32_is_close_to_float64(models: list[RidgeModel]) -> None:
    data = make_clients()
    single = Data(data.x.astype(np.float32), data.y.astype(np.float32), data.mask)
    fitted = fit_all(jax.tree.map(jnp.asarray, single))
    for client, model in enumerate(models):
        mine = jax.tree.map(lambda a, i=client: a[i], fitted)
        prediction, expected = mine(jnp.asarray(AT, jnp.float32)), model(AT)
        assert prediction.means.dtype == prediction.stds.dtype == jnp.float32
        np.testing.assert_allclose(prediction.means, expected.means, rtol=2e-3)
        np.testing.assert_allclose(prediction.stds, expected.stds, rtol=2e-2)
