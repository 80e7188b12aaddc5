"""pFedGP with class labels, against nodes fitted one by one in NumPy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiling import compiled
from scipy.special import expit, log_expit

from pacpfl.methods import pfedgp
from pacpfl.methods.base import mini_batch
from pacpfl.methods.network import State, Update
from pacpfl.methods.pfedgp import ABSENT, PFedGPClassify, PFedGPSettings, half_of_each_class
from pacpfl.priors.networks import MLP
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

CLASSES, SLOTS, COUNT = 5, 10, 8
SETTINGS = PFedGPSettings(tree="number", iterations=6, personal_iterations=6)
METHOD = PFedGPClassify(MLP((2, 4, 3)), CLASSES, optax.adam(0.02), SETTINGS)
KEY = jax.random.key(0)


def make_client(seed: int, absent: tuple[int, ...] = (3,)) -> Data:
    """Classes are directions in the plane, turned by an angle that is the client's own."""
    rng = np.random.default_rng(seed)
    y = np.resize([c for c in range(CLASSES) if c not in absent], SLOTS)
    angle = 2 * np.pi * (y / CLASSES + 0.1 * rng.normal()) + 0.15 * rng.normal(size=SLOTS)
    x = rng.uniform(0.5, 2, SLOTS)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    mask = np.arange(SLOTS) < COUNT
    return Data(np.where(mask[:, None], x, 7.0), np.where(mask, y, -3.0).astype(float), mask)


CLIENT = make_client(0)
OWN_X, OWN_Y = CLIENT.x[CLIENT.mask], CLIENT.y[CLIENT.mask].astype(int)
PARAMETERS = np.asarray(METHOD.network.initial(KEY), float)
PARAMETERS = np.concatenate([PARAMETERS, [np.log(5.0), np.log(0.6)]])
AT = np.random.default_rng(1).normal(size=(SLOTS, 2))


def kernel_of(a: np.ndarray, b: np.ndarray, oracle: SimpleNamespace) -> np.ndarray:
    """v exp(-|u - u'|^2 / 2 l^2) on directions of the network's output, by differences."""
    u, v = (oracle.network(PARAMETERS[:-2], (2, 4, 3), x) for x in (a, b))
    u, v = (w / np.linalg.norm(w, axis=1, keepdims=True) for w in (u, v))
    distances = ((u[:, None] - v[None, :]) ** 2).sum(-1)
    return 5.0 * np.exp(-0.5 * distances / 0.6**2)


def fit_node(
    kernel: np.ndarray, labels: np.ndarray, cross: np.ndarray, iterations: int
) -> tuple[float, np.ndarray]:
    """Bound and p(+1) at other inputs of one node alone, with explicit inverses."""
    c = np.sqrt(np.diag(kernel))
    for _ in range(iterations):
        omega = np.tanh(c / 2) / (2 * c)
        spread = np.linalg.inv(np.linalg.inv(kernel) + np.diag(omega))
        mean = spread @ labels / 2
        c = np.sqrt(mean**2 + np.diag(spread))
    omega = np.tanh(c / 2) / (2 * c)
    spread = np.linalg.inv(np.linalg.inv(kernel) + np.diag(omega))
    bound = np.sum(log_expit(c) - c / 2 + omega * c**2 / 2) + labels @ spread @ labels / 8
    bound += 0.5 * (np.linalg.slogdet(spread)[1] - np.linalg.slogdet(kernel)[1])
    noisy = np.linalg.inv(kernel + np.diag(1 / omega))
    mean = cross.T @ noisy @ (labels / (2 * omega))
    variance = 5.0 - np.sum(cross * (noisy @ cross), 0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    values = expit(mean[:, None] + np.sqrt(variance)[:, None] * nodes)
    return float(bound), values @ weights / weights.sum()


def node_by_node(oracle: SimpleNamespace, tree: Any, iterations: int) -> tuple[float, np.ndarray]:
    """Total bound and class probabilities, following each class from the root to its leaf."""
    kernel, cross = kernel_of(OWN_X, OWN_X, oracle), kernel_of(OWN_X, AT, oracle)
    total, probabilities = 0.0, np.ones((len(AT), CLASSES))
    nodes = [sorted(set(OWN_Y.tolist()))]
    for side in np.asarray(tree.side):
        children = []
        for node in (node for node in nodes if len(node) > 1):
            rows = np.flatnonzero(np.isin(OWN_Y, node))
            part = kernel[np.ix_(rows, rows)]
            bound, right = fit_node(part, side[OWN_Y[rows]], cross[rows], iterations)
            total += bound
            for one in node:
                probabilities[:, one] *= right if side[one] > 0 else 1 - right
            children += [[one for one in node if side[one] == s] for s in (-1, 1)]
        nodes = children
    return total, probabilities


def state_of(method: PFedGPClassify, parameters: Any, data: Data) -> State:
    return method.init(KEY, data)._replace(parameters=parameters)


@partial(compiled, static_argnums=0)
def personalized(method: PFedGPClassify, parameters: Any, data: Data, x: Any) -> Any:
    model = method.personalize(state_of(method, parameters, data), (), data, KEY)
    return model.tree, model(x).log_probabilities


@partial(compiled, static_argnums=0)
def updated(method: PFedGPClassify, parameters: Any, data: Data, key: Any) -> Update:
    return method.client_update(state_of(method, parameters, data), (), data, key)[0]


# So many iterations that the scales are at their fixed point.
SETTLED = replace(METHOD, settings=replace(SETTINGS, iterations=60))
marginal = compiled(jax.value_and_grad(SETTLED.log_evidence_bound))


def test_levels_are_nodes_fitted_one_by_one(oracle: SimpleNamespace) -> None:
    tree, log_probabilities = personalized(METHOD, PARAMETERS, CLIENT, AT)
    _, probabilities = node_by_node(oracle, tree, 6)
    probabilities[:, 3] = 0  # nobody saw this class
    expected = probabilities * (1 - ABSENT)
    expected[:, 3] = ABSENT
    np.testing.assert_allclose(np.exp(log_probabilities), expected, atol=1e-6)
    np.testing.assert_allclose(np.exp(log_probabilities).sum(1), 1, atol=1e-9)
    total, _ = node_by_node(oracle, tree, 60)
    assert float(marginal(PARAMETERS, CLIENT)[0]) == pytest.approx(total, abs=1e-9)


def test_similar_classes_share_a_side() -> None:
    """Neighbouring directions of four: the first decision is between two pairs of neighbours."""
    method = PFedGPClassify(MLP((2, 2)), CLASSES, optax.sgd(1.0))
    data = make_client(3, absent=(4,))
    unchanged = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]  # the network's weights and biases
    parameters = np.array([*unchanged, np.log(5.0), 0.0])
    sides = {}
    for name in ("similarity", "number"):
        samples = compiled(replace(method, settings=replace(method.settings, tree=name)).samples)
        tree = samples(parameters, data).tree
        sides[name] = np.asarray(tree.side[0])[:4].tolist()
        assert tree.side[0, 4] == 0
    first = sides["similarity"]
    assert sorted(first) == [-1, -1, 1, 1] and first[0] != first[2] and first[1] != first[3]
    assert sides["number"] in ([-1, -1, 1, 1], [1, 1, -1, -1])


def test_predictive_objective_is_that_of_a_model_of_the_other_half() -> None:
    """Both have the same tree, since it goes by number and every class keeps a sample."""
    key = jax.random.key(5)
    members = (CLIENT.y[:, None] == np.arange(CLASSES)) & CLIENT.mask[:, None]
    asked = np.asarray(half_of_each_class(jax.random.split(key)[1], jnp.asarray(members, float)))
    np.testing.assert_array_equal(members[asked].sum(0), members.sum(0) // 2)
    support = CLIENT._replace(mask=CLIENT.mask & ~asked)
    _, log_probabilities = personalized(METHOD, PARAMETERS, support, CLIENT.x)
    own = np.take_along_axis(
        np.asarray(log_probabilities)[asked], CLIENT.y[asked, None].astype(int), 1
    )
    expected = np.mean(own) - np.log1p(-ABSENT)
    update = updated(METHOD, PARAMETERS, CLIENT, key)
    assert float(update.value) == pytest.approx(expected, abs=1e-10)


def test_gradient_of_the_marginal_objective(oracle: SimpleNamespace) -> None:
    """At the scales' fixed point, where their own change counts for nothing."""
    expected = oracle.central_differences(lambda p: float(marginal(p, CLIENT)[0]), PARAMETERS)
    np.testing.assert_allclose(marginal(PARAMETERS, CLIENT)[1], expected, atol=1e-7)
    assert np.abs(expected).max() > 0.5


def test_gradient_of_the_predictive_objective(
    oracle: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scales are held fixed, as the original holds its draws of omega."""
    gradient = -updated(METHOD, PARAMETERS, CLIENT, KEY).gradient
    data, half = jax.tree.map(jnp.asarray, CLIENT), jax.random.split(KEY)[1]
    original = pfedgp.fit_levels

    def given(parameters: jax.Array, scales: jax.Array, use: bool) -> tuple[jax.Array, jax.Array]:
        found = []

        def fit(*arguments: Any) -> jax.Array:
            found.append(jnp.where(use, scales, original(*arguments)))
            return found[0]

        with monkeypatch.context() as patch:
            patch.setattr(pfedgp, "fit_levels", fit)
            return METHOD.log_predictive(parameters, data, half), found[0]

    call = compiled(given)
    _, scales = call(PARAMETERS, np.zeros((3, SLOTS)), False)
    expected = oracle.central_differences(lambda p: float(call(p, scales, True)[0]), PARAMETERS)
    np.testing.assert_allclose(gradient, expected, atol=1e-8)
    assert np.abs(expected).max() > 0.01


def test_half_of_each_class() -> None:
    members = np.zeros((20, 4))
    members[np.arange(17), np.repeat([0, 1, 3], [1, 5, 11])] = 1
    seen = np.zeros(20)
    choose = compiled(half_of_each_class)
    for seed in range(30):
        asked = np.asarray(choose(jax.random.key(seed), members))
        np.testing.assert_array_equal(members[asked].sum(0), [0, 2, 0, 5])
        assert asked.sum() == 7
        seen += asked
        longer = choose(jax.random.key(seed), np.pad(members, ((0, 3), (0, 0))))
        np.testing.assert_array_equal(longer[:20], asked)
    assert (seen[1:17] > 3).all() and (seen[1:17] < 27).all()


def test_a_client_with_one_class_has_nothing_to_learn() -> None:
    data = CLIENT._replace(y=np.where(CLIENT.mask, 2.0, 0.0))
    update = updated(METHOD, PARAMETERS, data, KEY)
    assert float(update.value) == 0 and not np.any(update.gradient)
    _, log_probabilities = personalized(METHOD, PARAMETERS, data, AT)
    expected = np.full(CLASSES, ABSENT)
    expected[2] = 1 - 4 * ABSENT
    np.testing.assert_allclose(np.exp(log_probabilities), np.tile(expected, (SLOTS, 1)), rtol=1e-9)


def test_the_server_climbs_along_the_mean_of_its_updates() -> None:
    """A plain step; which updates count is told in test_network_methods.py."""
    method, weights = replace(METHOD, optimizer=optax.sgd(0.5)), jnp.array([1.0, 3.0])
    state = method.init(KEY, CLIENT)
    gradients = np.random.default_rng(0).normal(size=(2, state.parameters.size))
    updates = Update(-jnp.asarray(gradients), jnp.array([-1.0, -3.0]))
    found = method.server_update(state, updates, weights, KEY)
    step = 0.5 * np.average(gradients, axis=0, weights=weights)
    np.testing.assert_allclose(found.parameters, state.parameters + step, atol=1e-12)
    assert float(method.diagnostics(found, updates, weights)["log_evidence"]) == -2.5


def test_support_bounds_what_a_client_looks_at() -> None:
    """Four samples, whose marginal likelihood per sample is the objective."""
    own = replace(SETTLED.settings, support=4, personal_support=4, objective="marginal")
    method = replace(METHOD, settings=own)
    data = jax.tree.map(jnp.asarray, CLIENT)
    model = jax.eval_shape(
        lambda s, d: method.personalize(s, (), d, KEY), method.init(KEY, data), data
    )
    assert model.features.shape == (4, 3) and model.posteriors.inverse_factor.shape == (3, 4, 4)
    update = updated(method, PARAMETERS, CLIENT, KEY)
    chosen = mini_batch(jax.random.split(KEY)[0], data, 4)
    assert chosen.mask.all()
    padded = Data(*(np.resize(part, (SLOTS, *part.shape[1:])) for part in chosen))
    padded = padded._replace(mask=np.arange(SLOTS) < 4)
    value, gradient = marginal(PARAMETERS, padded)
    assert float(update.value) == pytest.approx(float(value) / 4, abs=1e-12)
    np.testing.assert_allclose(-update.gradient, gradient / 4, atol=1e-12)
