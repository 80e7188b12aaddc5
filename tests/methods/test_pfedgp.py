"""pFedGP: gradients by differences, rounds by hand, and PAC-PFL as the wider method it is a case of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiling import compiled

from pacpfl.hyper import Block
from pacpfl.methods.base import mini_batch
from pacpfl.methods.network import State
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.methods.pfedgp import PFedGP
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

PRIOR = GPPrior(1, GPSettings(mean="linear", kernel="ard"))
CLIENTS, SLOTS = 4, 6
LENGTHS = np.array([6, 4, 5, 3])
KEY = jax.random.key(0)
METHOD = PFedGP(PRIOR, optax.adam(0.05))
PHI = np.array([0.4, -0.2, 0.1, -0.6])  # slope, intercept, ln length, raw noise


def updates_of(method: Any, state: Any, data: Data, key: jax.Array) -> Any:
    """Every client's update, each with its own key. Clients do not look at the server's optimiser."""
    return compiled_updates(method, state._replace(optimizer=()), data, key)


@partial(compiled, static_argnums=0)
def compiled_updates(method: Any, state: Any, data: Data, key: jax.Array) -> Any:
    keys = jax.random.split(key, CLIENTS)
    return jax.vmap(lambda d, k: method.client_update(state, (), d, k)[0])(data, keys)


update_server = compiled(
    lambda method, *arguments: method.server_update(*arguments, KEY), static_argnums=0
)


def make_clients() -> Data:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(CLIENTS, SLOTS, 1)), rng.normal(size=(CLIENTS, SLOTS))
    mask = np.arange(SLOTS) < LENGTHS[:, None]
    return Data(np.where(mask[..., None], x, 40.0), np.where(mask, y, -1e3), mask)


def own(client: int) -> tuple[np.ndarray, np.ndarray]:
    data, count = make_clients(), LENGTHS[client]
    return data.x[client, :count], data.y[client, :count]


def make_state(method: PFedGP = METHOD) -> State:
    example = jax.tree.map(lambda a: jnp.asarray(a[0]), make_clients())
    return method.init(KEY, example)._replace(parameters=jnp.asarray(PHI))


@pytest.mark.parametrize("batch", [None, 2])
def test_clients_send_the_gradient_of_their_own_evidence(
    batch: int | None, oracle: SimpleNamespace
) -> None:
    """Each likelihood of a batch counts m / b times."""
    data = make_clients()
    updates = updates_of(replace(METHOD, batch=batch), make_state(), data, KEY)
    for client, key in enumerate(jax.random.split(KEY, CLIENTS)):
        seen = mini_batch(key, jax.tree.map(lambda a, i=client: jnp.asarray(a[i]), data), batch)
        x, y = np.asarray(seen.x)[seen.mask], np.asarray(seen.y)[seen.mask]
        power = LENGTHS[client] / len(y)
        expected = oracle.central_differences(
            lambda p: oracle.log_evidence(PRIOR, p, x, y, power),  # noqa: B023
            PHI,
        )
        np.testing.assert_allclose(-updates.gradient[client], expected, rtol=1e-7, atol=1e-8)
        evidence = oracle.log_evidence(PRIOR, PHI, x, y, power) / LENGTHS[client]
        assert float(updates.value[client]) == pytest.approx(evidence, rel=1e-9)


@dataclass(frozen=True)
class Flat(GPPrior):
    """The same family with a hyper-prior that is as good as flat in every block, the noise's too."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(block._replace(std=1e9) for block in GPPrior.blocks.fget(self))  # type: ignore[attr-defined]


FLAT = Flat(1, GPSettings(mean="linear", kernel="ard"))
WIDE = PACPFL(FLAT, CLIENTS, optax.sgd(1.0), TrainSettings(particles=1), references=2)


@pytest.mark.parametrize(
    ("aggregation", "optimizer", "same"),
    [
        ("mean", optax.adam(0.05), optax.adam(0.05)),
        # the sum's gradients are n times as large
        ("sum", optax.sgd(0.01), optax.sgd(0.01 * CLIENTS)),
    ],
    ids=["mean-adam", "sum-sgd"],
)
def test_it_is_pacpfl_with_one_particle_and_a_flat_hyper_prior(
    aggregation: str, optimizer: Any, same: Any
) -> None:
    """Six rounds with tau = 1, somebody absent in each, end at the same parameters."""
    data = make_clients()
    wide = replace(
        WIDE, optimizer=optimizer, settings=replace(WIDE.settings, aggregation=aggregation)
    )
    narrow = replace(METHOD, optimizer=same)
    example = jax.tree.map(lambda a: jnp.asarray(a[0]), data)
    one = wide.init(KEY, example)._replace(particles=jnp.asarray(PHI)[None])
    other = make_state(narrow)
    for number in range(6):
        weights = np.where(np.arange(CLIENTS) == number % CLIENTS, 0.0, 1.0)
        one = update_server(wide, one, updates_of(WIDE, one, data, KEY), weights)
        other = update_server(narrow, other, updates_of(METHOD, other, data, KEY), weights)
    assert np.abs(other.parameters - PHI).max() > 0.1
    np.testing.assert_allclose(one.particles[0], other.parameters, rtol=1e-12, atol=1e-13)


def test_a_client_conditions_the_shared_prior_on_its_samples(oracle: SimpleNamespace) -> None:
    at = np.linspace(-2, 2, 5)[:, None]
    data = jax.tree.map(lambda a: jnp.asarray(a[1]), make_clients())
    state = make_state()
    prediction = compiled(lambda s: METHOD.personalize(s, (), data, KEY)(at))(state)
    mean, std = oracle.predict(PRIOR, PHI, *own(1), at)
    np.testing.assert_array_equal(prediction.weights, [1.0])
    np.testing.assert_allclose(prediction.means[0], mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(prediction.stds[0], std, rtol=1e-8)


def test_weights_start_as_a_draw_and_scales_at_their_centre() -> None:
    example = jax.tree.map(lambda a: jnp.asarray(a[0]), make_clients())
    method = PFedGP(
        GPPrior(3, GPSettings(mean="linear", kernel="ard")), optax.sgd(0.1), initial_std=0.01
    )
    draw = jax.jit(jax.vmap(lambda key: method.init(key, example).parameters))
    draws = draw(jax.random.split(KEY, 2000))
    spread = np.std(draws, axis=0)
    np.testing.assert_allclose(spread, [0.01] * 4 + [0.0] * 4, rtol=0.07, atol=1e-12)
    np.testing.assert_allclose(draws[0, 4:7], np.log(3) / 2)
    assert float(draws[0, 7]) == pytest.approx(np.log(np.expm1(0.4)))
