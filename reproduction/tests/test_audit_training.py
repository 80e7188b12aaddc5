"""The attack on whole trainings of PAC-PFL, with and without a canary client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pacpfl.data.polynomial import polynomial
from pacpfl.data.store import from_clients
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.methods.transforms import Private
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.privacy.accounting import plan_for
from pacpfl.types import Data
from reproduction import audit_training as audit

ROUNDS, CLIENTS, TRIALS = 3, 3, 400
METHOD = PACPFL(
    GPPrior(1, GPSettings(mean="linear", kernel="ard")),
    CLIENTS,
    optax.sgd(0.01),
    TrainSettings(particles=1),
)


@pytest.fixture(scope="module")
def clients() -> Data:
    store = from_clients(polynomial(CLIENTS, 0, 4).existing)
    return jax.tree.map(jnp.asarray, store.gather(np.arange(CLIENTS), np.float32))


def first(clients: Data) -> Data:
    return jax.tree.map(lambda a: a[0], clients)


def private(
    mode: Any, epsilon: float, kind: type[Private] = Private, sampling: Any = "all"
) -> Private:
    plan = plan_for(
        epsilon, 1e-5, ROUNDS, mode=mode, sampling=sampling, clients=CLIENTS, cohort=CLIENTS
    )
    return kind(METHOD, plan, 1.0)


class Unclipped(Private):
    """A build that forgets to clip, at the client and where the server looks again."""

    def client_update(self, state: Any, client_state: Any, data: Data, key: Any) -> Any:
        update, kept = super().client_update(state, client_state, data, key)
        raw, _ = self.method.client_update(state.inner, (), data, key)
        return update._replace(gradients=raw.gradients), kept

    def _acceptable(self, state: Any, gradients: Any) -> Any:
        return jnp.isfinite(gradients).all((1, 2))


def test_gaussian_and_the_same_with_half_the_noise(clients: Data) -> None:
    honest, canary = private("gaussian", 4.0), audit.canary_like(first(clients))
    found = audit.audit_training(honest, clients, canary, ROUNDS, trials=TRIALS)
    assert 1.0 < found.bound.epsilon <= found.claimed
    assert found.claimed == pytest.approx(4.0, rel=0.01)
    plan = replace(honest.plan, multiplier=honest.plan.multiplier / 2)
    broken = replace(honest, plan=plan)
    found = audit.audit_training(broken, clients, canary, ROUNDS, trials=TRIALS, claimed=honest)
    assert found.exposed


def test_a_build_that_does_not_clip_is_exposed(clients: Data) -> None:
    broken, canary = private("gaussian", 4.0, Unclipped), audit.canary_like(first(clients))
    assert audit.audit_training(broken, clients, canary, ROUNDS, trials=50).exposed


def test_laplace_with_one_of_two_canaries(clients: Data) -> None:
    honest, canary = private("laplace", 6.0, sampling="fixed"), audit.canary_like(first(clients))
    opposite = canary._replace(y=-canary.y)
    found = audit.audit_training(honest, clients, canary, ROUNDS, instead=opposite, trials=TRIALS)
    assert found.adjacency == "replace"
    assert found.claimed == pytest.approx(6.0)
    assert found.bound.epsilon <= found.claimed


def test_the_attacker_changes_nothing(clients: Data) -> None:
    """Trained with and without somebody watching: the same particles; and what is seen is the sum."""
    plain = replace(
        private("gaussian", 4.0), plan=replace(private("gaussian", 4.0).plan, multiplier=1e-9)
    )
    watched = audit.watched(plain)
    key, weights = jax.random.key(0), jnp.ones(CLIENTS)
    ends, received = [], None
    for method in (plain, watched):
        state: Any = method.init(key, first(clients))
        keys = jax.random.split(key, CLIENTS)
        updates, _ = jax.jit(
            jax.vmap(lambda data, key, m=method, s=state: m.client_update(s, (), data, key))
        )(clients, keys)
        state = jax.jit(method.server_update)(state, updates, weights, key)
        ends.append(np.asarray(state.inner.particles))
        received = getattr(state.inner, "received", None)
    np.testing.assert_array_equal(*ends)
    assert received is not None
    total = np.asarray(updates.gradients).sum(0)
    np.testing.assert_allclose(np.asarray(received) * CLIENTS, total, rtol=1e-5, atol=1e-6)


def test_a_canary_is_as_large_as_the_clip_allows(clients: Data) -> None:
    honest = private("gaussian", 4.0)
    canary = audit.canary_like(first(clients))
    key = jax.random.key(1)
    state = honest.init(key, canary)
    update, _ = jax.jit(honest.client_update)(state, (), canary, key)
    assert float(jnp.linalg.norm(update.gradients)) == pytest.approx(1.0, rel=1e-4)
