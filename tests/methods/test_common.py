"""What every method must do, one battery over a table: a new method costs one row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

from pacpfl import hyper
from pacpfl.likelihoods import Gaussian
from pacpfl.methods.alone import ARD, AloneSettings, Pooled, Ridge, Vanilla
from pacpfl.methods.base import Method
from pacpfl.methods.fedavg import FedAvg
from pacpfl.methods.maml import MAML, MAMLSettings
from pacpfl.methods.mtl import MTL, MTLSettings
from pacpfl.methods.network import LocalTraining, NetworkModel
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.methods.pfedgp import PFedGP
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.networks import MLP
from pacpfl.types import Data, Prediction

pytestmark = pytest.mark.usefixtures("x64")

PRIOR = GPPrior(1, GPSettings(mean="linear", kernel="ard"))
CLIENTS, SLOTS = 3, 9
LENGTHS = np.array([7, 5, 6])
KEY = jax.random.key(0)
AT = np.linspace(-2, 2, 5)[:, None]
LINE = NetworkModel(MLP((1, 1)), Gaussian(0.3))
METHODS: dict[str, Method] = {
    "pacpfl": PACPFL(PRIOR, CLIENTS, optax.adam(0.02), TrainSettings(particles=2), references=4),
    "vanilla": Vanilla(PRIOR, AloneSettings(steps=80, restarts=2)),
    "pooled": Pooled(PRIOR, AloneSettings(steps=80)),
    "pooled-inducing": Pooled(PRIOR, AloneSettings(steps=80, inducing=5), exact_limit=0),
    "pfedgp": PFedGP(PRIOR, optax.adam(0.02)),
    "ridge": Ridge(),
    "ard": ARD(steps=80),
    "fedavg": FedAvg(LINE, LocalTraining(5, 0.1)),
    "mtl": MTL(LINE, CLIENTS, LocalTraining(5, 0.1), MTLSettings(coupling=0.1, personal_steps=20)),
    "maml": MAML(LINE, MAMLSettings(inner_learning_rate=0.1, personal_steps=20)),
}
every_method = pytest.mark.parametrize("name", METHODS)


def make_clients() -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, SLOTS, 1))
    y = 1.5 * x[..., 0] + 0.2 * rng.normal(size=(CLIENTS, SLOTS))
    return Data(x, y, np.arange(SLOTS) < LENGTHS[:, None])


def client(index: int) -> Data:
    return jax.tree.map(lambda a: jnp.asarray(a[index]), make_clients())


def play(
    method: Method, data: Data, weights: jax.Array, key: jax.Array
) -> tuple[Any, Any, dict[str, jax.Array]]:
    """Two rounds as an engine plays them: states, updates and diagnostics."""
    state = method.init(key, jax.tree.map(lambda a: a[0], data))
    own = jax.vmap(lambda d: method.init_client(state, d, key))(data)
    for _ in range(2):
        updates, own = jax.vmap(lambda o, d: method.client_update(state, o, d, key))(own, data)  # noqa: B023
        state = method.server_update(state, updates, weights, key)
    return state, updates, method.diagnostics(state, updates, weights)


def personal(method: Method, data: Data, x: jax.Array, key: jax.Array) -> Prediction:
    """A new client's prediction, from the state before the first round."""
    state = method.init(KEY, data)
    return method.personalize(state, method.init_client(state, data, key), data, key)(x)


# Called a few times on a few numbers: compiling is what takes time.
OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
compiled_play = jax.jit(play, static_argnums=0, compiler_options=OPTIONS)
compiled_personal = jax.jit(personal, static_argnums=0, compiler_options=OPTIONS)


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        found,
        expected,
    )


@every_method
def test_rounds_are_reproducible_and_ignore_who_is_absent(name: str) -> None:
    method, data = METHODS[name], make_clients()
    weights = jnp.array([1.0, 0.0, 1.0])
    state, _, curves = compiled_play(method, data, weights, KEY)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, curves)))
    again, _, _ = compiled_play(method, data, weights, KEY)
    jax.tree.map(np.testing.assert_array_equal, again, state)
    spoiled = Data(data.x.copy(), data.y.copy(), data.mask)
    spoiled.y[1] = np.nan
    harmed, _, harmed_curves = compiled_play(method, spoiled, weights, KEY)
    jax.tree.map(np.testing.assert_array_equal, (harmed, harmed_curves), (state, curves))


@every_method
def test_rounds_ignore_padding_and_the_order_of_clients(name: str) -> None:
    method, data = METHODS[name], make_clients()
    state, updates, _ = compiled_play(method, data, jnp.ones(CLIENTS), KEY)
    nonsense = Data(
        np.where(data.mask[..., None], data.x, 30.0), np.where(data.mask, data.y, -1e3), data.mask
    )
    padded, padded_updates, _ = compiled_play(method, nonsense, jnp.ones(CLIENTS), KEY)
    assert_close((padded, padded_updates), (state, updates), 1e-9)
    order = np.array([2, 0, 1])
    turned, turned_updates, _ = compiled_play(
        method, Data(*(part[order] for part in data)), jnp.ones(CLIENTS), KEY
    )
    assert_close(turned, state, 1e-9)
    assert_close(turned_updates, jax.tree.map(lambda a: a[order], updates), 1e-9)


@every_method
def test_a_personal_model_is_a_pytree_of_arrays(name: str) -> None:
    method, data = METHODS[name], client(0)
    state = method.init(KEY, data)
    model = jax.eval_shape(lambda d: method.personalize(state, (), d, KEY), data)
    leaves = jax.tree.leaves(model)
    assert leaves and all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert callable(model)
    assert isinstance(eqx.filter_eval_shape(lambda m: m(AT), model), Prediction)


@every_method
def test_predictions_are_mixtures_that_follow_the_data(name: str) -> None:
    method = METHODS[name]
    prediction = compiled_personal(method, client(0), AT, KEY)
    components = len(prediction.weights)
    assert prediction.means.shape == prediction.stds.shape == (components, len(AT))
    assert float(prediction.weights.sum()) == pytest.approx(1)
    assert (np.asarray(prediction.weights) >= 0).all() and (np.asarray(prediction.stds) > 0).all()
    at_samples = compiled_personal(method, client(0), client(0).x[:5], KEY)
    mean = np.asarray(at_samples.weights @ at_samples.means)
    target = np.asarray(client(0).y[:5])
    assert np.mean((mean - target) ** 2) < 0.25 * target.var()


@every_method
def test_predictions_ignore_padding_and_the_order_of_samples(name: str) -> None:
    method, data = METHODS[name], client(1)
    expected = compiled_personal(method, data, AT, KEY)
    order = np.random.default_rng(1).permutation(SLOTS)
    assert_close(
        compiled_personal(method, Data(*(a[order] for a in data)), AT, KEY), expected, 1e-7
    )
    count = int(LENGTHS[1])
    unpadded = Data(*(a[:count] for a in data))
    assert_close(compiled_personal(method, unpadded, AT, KEY), expected, 1e-7)


@pytest.mark.parametrize("name", ["vanilla", "pooled"])
def test_local_fits_reach_the_evidence_that_scipy_reaches(
    name: str, oracle: SimpleNamespace
) -> None:
    """From the same starting points, by another optimiser; the best of the starts is kept."""
    many = {
        "vanilla": Vanilla(PRIOR, AloneSettings(steps=400, learning_rate=0.05, restarts=3)),
        "pooled": Pooled(PRIOR, AloneSettings(steps=400, learning_rate=0.05)),
    }
    method, data = many[name], client(0)
    restarts = 3 if name == "vanilla" else 1
    x, y = (np.asarray(part)[: LENGTHS[0]] for part in (data.x, data.y))
    starts = hyper.sample(KEY, hyper.hyper_prior(PRIOR.blocks, 0.5, jnp.float64), restarts)
    best = max(
        -minimize(lambda p: -oracle.log_evidence(PRIOR, p, x, y), start, method="L-BFGS-B").fun
        for start in np.asarray(starts)
    )
    model = jax.jit(lambda d: method.personalize(method.init(KEY, d), (), d, KEY))(data)
    assert model.particles.shape == (1, PRIOR.size)
    found = oracle.log_evidence(PRIOR, np.asarray(model.particles[0]), x, y)
    # The likelihood grows without end as the length scale does: only ever by less, though.
    assert found == pytest.approx(best, abs=0.1)


def test_only_the_pooled_model_is_central() -> None:
    assert {name for name, method in METHODS.items() if method.central} == {
        "pooled",
        "pooled-inducing",
    }
