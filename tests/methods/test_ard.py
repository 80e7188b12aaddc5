"""One length scale per feature: the evidence that scikit-learn's optimiser reaches, or more."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from compiling import compiled
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from pacpfl.methods.alone import ARD, AloneSettings, plain_prior
from pacpfl.personal import PersonalModel
from pacpfl.types import Data, Prediction

pytestmark = pytest.mark.usefixtures("x64")

CLIENTS, SLOTS, FEATURES = 2, 28, 3
LENGTHS = np.array([28, 20])
PRIOR = plain_prior(FEATURES)
METHOD = ARD(PRIOR)
AT = np.random.default_rng(9).normal(size=(5, FEATURES))


def make_clients() -> Data:
    """A wavy feature, a straight one, and one that does not matter; padding is nonsense."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, SLOTS, FEATURES))
    shape = np.array([1.0, -1.5])[:, None]
    y = shape * np.sin(2 * x[..., 0]) + 0.8 * x[..., 1] + 0.2 * rng.normal(size=(CLIENTS, SLOTS))
    mask = np.arange(SLOTS) < LENGTHS[:, None]
    return Data(np.where(mask[..., None], x, 77.0), np.where(mask, y, -1e3), mask)


def own(client: int) -> tuple[np.ndarray, np.ndarray]:
    data, count = make_clients(), LENGTHS[client]
    return data.x[client, :count], data.y[client, :count]


Fitted = tuple[PersonalModel, Prediction, jax.Array]


@pytest.fixture(scope="module")
def fitted(x64: None) -> Fitted:
    """Models, their predictions and evidences, all clients in one call."""

    def one(d: Data) -> Fitted:
        model = METHOD.personalize((), (), d, jax.random.key(0))
        return model, model(AT), PRIOR.log_evidence(model.particles[0], d)

    return compiled(jax.vmap(one))(make_clients())


def scales(phi: np.ndarray) -> dict[str, Any]:
    pieces = {name: np.asarray(value) for name, value in PRIOR.split(phi).items()}
    return {
        "mean": float(pieces["mean.constant"][0]),
        "lengths": np.exp(pieces["kernel.ard"]),
        "variance": float(np.exp(2 * pieces["kernel.scale"][0])),
        "noise": float(np.log1p(np.exp(pieces["noise"][0])) ** 2),
    }


@pytest.mark.filterwarnings("ignore:The optimal value:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("client", range(CLIENTS))
def test_evidence_reaches_that_of_scikit_learn(client: int, fitted: Fitted) -> None:
    """At our parameters its evidence is ours, and where its optimiser ends it is no higher."""
    x, y = own(client)
    model, prediction, evidence = fitted
    found = scales(np.asarray(model.particles[client, 0]))
    kernel = ConstantKernel(found["variance"]) * RBF(found["lengths"])
    kernel += WhiteKernel(found["noise"])
    same = GaussianProcessRegressor(kernel, alpha=0, optimizer=None).fit(x, y - found["mean"])
    value, slope = same.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    assert float(evidence[client]) == pytest.approx(value, rel=1e-9)
    forever = np.array([1, 1, 1, 5, 1])  # the length that grows without end still has a slope
    np.testing.assert_allclose(slope / forever, 0, atol=0.02)
    mean, std = same.predict(AT, return_std=True)
    np.testing.assert_allclose(prediction.means[client, 0], mean + found["mean"], rtol=1e-7)
    np.testing.assert_allclose(prediction.stds[client, 0], std, rtol=1e-7)

    free = ConstantKernel(1.0, (1e-5, 1e5)) * RBF(np.full(FEATURES, 3**0.5), (1e-3, 1e3))
    free += WhiteKernel(0.16, (1e-6, 1e2))
    searched = GaussianProcessRegressor(free, alpha=0, n_restarts_optimizer=4, random_state=0)
    best = searched.fit(x, y - found["mean"]).log_marginal_likelihood_value_
    assert float(evidence[client]) > best - 0.05


def test_a_feature_that_does_not_matter_gets_a_long_length(fitted: Fitted) -> None:
    for client in range(CLIENTS):
        lengths = scales(np.asarray(fitted[0].particles[client, 0]))["lengths"]
        assert lengths[2] > 4 * lengths[0]


def test_starts_are_the_centre_and_draws_around_it() -> None:
    many = ARD(PRIOR, AloneSettings(restarts=2001, hyper_std=0.25))
    starts = np.asarray(many.starts(make_clients(), jax.random.key(1)))
    found = scales(starts[0])
    assert found["mean"] == 0 and found["variance"] == 1
    assert found["noise"] == pytest.approx(0.4**2)
    np.testing.assert_allclose(found["lengths"], FEATURES**0.5)
    np.testing.assert_allclose(starts[1:].mean(0), starts[0], atol=0.03)
    stds = np.array([block.std or 1.0 for block in PRIOR.blocks for _ in range(block.size)])
    np.testing.assert_allclose(starts[1:].std(0), 0.25 * stds, rtol=0.07)
