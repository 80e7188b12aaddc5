"""The pooled model: exact for few samples, with inducing inputs for many, and what both share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from scipy.optimize import minimize

from pacpfl import hyper
from pacpfl.errors import InputError
from pacpfl.methods.alone import AloneSettings, Pooled, Vanilla, maximise
from pacpfl.personal import PersonalModel
from pacpfl.priors import sparse
from pacpfl.priors.base import Prior
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.mixture import MixturePrior
from pacpfl.priors.sparse import SparseModel
from pacpfl.priors.warped import WarpedPrior
from pacpfl.types import Data, Prediction

pytestmark = pytest.mark.usefixtures("x64")

PRIOR = GPPrior(
    1, GPSettings(mean="constant", kernel="ard", output_scale="learned", noise_spread=0.5)
)
KEY = jax.random.key(0)
SPARSE = Pooled(PRIOR, AloneSettings(steps=150, learning_rate=0.1, inducing=8), exact_limit=20)
AT = np.linspace(-1.8, 1.8, 7)[:, None]


def wave(count: int, slots: int) -> Data:
    """sin(3 x) with noise 0.1, in the first `count` slots; the rest is nonsense."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(slots, 1))
    y = np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=slots)
    mask = np.arange(slots) < count
    return Data(np.where(mask[:, None], x, 50.0), np.where(mask, y, -1e3), mask)


@partial(compiled, static_argnums=0)
def fit(method: Pooled, data: Data) -> tuple[Prediction, object]:
    model = method.personalize(method.init(KEY, data), (), data, KEY)
    return model(AT), model


@compiled
def slopes(phi: jax.Array, inducing: jax.Array, data: Data) -> tuple[Any, tuple[Any, Any]]:
    """The bound per sample, and its gradients by the parameters and by the inducing inputs."""
    bound = lambda p, z: sparse.bound(PRIOR, p, z, data) / data.mask.sum()  # noqa: E731
    return jax.value_and_grad(bound, (0, 1))(phi, inducing)


@pytest.fixture(scope="module")
def fitted(x64: None) -> tuple[Prediction, SparseModel]:
    prediction, model = fit(SPARSE, wave(55, 60))
    assert isinstance(model, SparseModel)
    return prediction, model


def test_only_many_samples_need_inducing_inputs() -> None:
    for limit, kind in ((60, PersonalModel), (59, SparseModel)):
        method = replace(SPARSE, exact_limit=limit)
        assert isinstance(jax.eval_shape(fit, method, wave(55, 60))[1], kind)


def test_many_samples_give_what_the_exact_process_gives(
    fitted: tuple[Prediction, SparseModel], oracle: SimpleNamespace
) -> None:
    """Eight inducing inputs are enough for this wave: bound, evidence and predictions agree."""
    prediction, model = fitted
    data = wave(55, 60)
    x, y = data.x[:55], data.y[:55]
    phi, inducing = np.asarray(model.phi), model.posterior.inducing
    assert inducing.shape == (8, 1)
    reached = 55 * float(slopes(model.phi, inducing, data)[0])
    evidence = oracle.log_evidence(PRIOR, phi, x, y)
    assert evidence - 1.5 < reached < evidence
    mean, std = oracle.predict(PRIOR, phi, x, y, AT)
    np.testing.assert_allclose(prediction.means[0], mean, atol=0.04)
    np.testing.assert_allclose(prediction.stds[0], std, rtol=0.1)
    np.testing.assert_array_equal(prediction.weights, [1.0])
    np.testing.assert_allclose(mean, np.sin(3 * AT[:, 0]), atol=0.15)
    noise = oracle.noise(PRIOR, phi, np.zeros((1, PRIOR.features)))
    assert noise[0] == pytest.approx(0.1, rel=0.35)


def test_inducing_inputs_are_learned_with_the_parameters(fitted: tuple[Any, SparseModel]) -> None:
    """At the end neither has a slope left, and both have moved."""
    data, model = wave(55, 60), fitted[1]
    end, gradients = slopes(model.phi, model.posterior.inducing, data)
    assert all(np.abs(gradient).max() < 0.02 for gradient in gradients)
    start = jax.jit(sparse.initial_inducing, static_argnums=1)(data, 8)
    assert np.abs(start - model.posterior.inducing).max() > 0.01
    assert float(slopes(model.phi, start, data)[0]) < float(end)


def test_order_and_padding_change_nothing(fitted: tuple[Prediction, SparseModel]) -> None:
    order = np.random.default_rng(1).permutation(60)
    turned, _ = fit(SPARSE, Data(*(part[order] for part in wave(55, 60))))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), turned, fitted[0]
    )


@pytest.mark.parametrize(
    "prior", [MixturePrior(PRIOR, 2), WarpedPrior(PRIOR)], ids=["two", "warped"]
)
def test_inducing_inputs_need_a_single_process_of_the_plain_target(prior: Prior) -> None:
    method = Pooled(prior, exact_limit=4)
    with pytest.raises(InputError, match="members = 1"):
        method.personalize(method.init(KEY, wave(5, 5)), (), wave(5, 5), KEY)


def two_hills(x: jax.Array) -> jax.Array:
    """Maxima near -1 and 1, the second the higher; no number beyond 2."""
    return jnp.where(x < 2, 0.3 * x - (x**2 - 1) ** 2, jnp.nan)


def test_the_highest_of_all_maxima_is_kept() -> None:
    """-x^4 + 2 x^2 + 0.3 x - 1 has slope -4 x^3 + 4 x + 0.3."""
    left, right = np.sort(np.roots([4, 0, -4, -0.3]).real)[[0, 2]]
    find = jax.jit(lambda starts: maximise(two_hills, starts, 200, 0.1))
    assert float(find(jnp.array([-2.0, -0.5, -1.5]))) == pytest.approx(left, abs=1e-4)
    assert float(find(jnp.array([-2.0, 0.5, 3.0]))) == pytest.approx(right, abs=1e-4)


def test_a_search_ends_where_the_gradient_is_no_number() -> None:
    """sqrt has no slope at 0, where the first step of this rate leads."""

    def objective(parameters: dict[str, jax.Array]) -> jax.Array:
        return -jnp.sqrt(parameters["a"]) - (parameters["b"] - 1) ** 2

    starts = {"a": jnp.array([0.25]), "b": jnp.array([0.0])}
    end = jax.jit(lambda s: maximise(objective, s, 100, 0.5))(starts)
    assert float(end["a"]) == pytest.approx(-0.25) and float(end["b"]) == pytest.approx(0.5)


@pytest.mark.parametrize("alone", [True, False])
def test_fits_reach_the_evidence_that_scipy_reaches(alone: bool, oracle: SimpleNamespace) -> None:
    """From the same starting points, by another optimiser; the best of the starts is kept."""
    settings = AloneSettings(steps=400, learning_rate=0.05, restarts=3)
    prior, data = GPPrior(1, GPSettings(mean="linear", kernel="ard")), wave(7, 9)
    method = Vanilla(prior, settings) if alone else Pooled(prior, settings)
    x, y = data.x[:7], data.y[:7]
    around = hyper.hyper_prior(prior.blocks, 0.5, jnp.float64)
    best = max(
        -minimize(lambda p: -oracle.log_evidence(prior, p, x, y), start, method="L-BFGS-B").fun
        for start in np.asarray(hyper.sample(KEY, around, 3 if alone else 1))
    )
    model = compiled(lambda d: method.personalize(method.init(KEY, d), (), d, KEY))(data)
    assert model.particles.shape == (1, prior.size)
    found = oracle.log_evidence(prior, np.asarray(model.particles[0]), x, y)
    # The likelihood grows without end as the length scale does: only ever by less, though.
    assert found == pytest.approx(best, abs=0.1)
