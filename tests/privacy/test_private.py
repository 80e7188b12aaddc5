"""Private PAC-PFL: what a client sends, what the server makes of it, and what it does not tell."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import refused

from pacpfl.likelihoods import Categorical
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.methods.pacpfl import Update as PlainUpdate
from pacpfl.methods.transforms import Private, PrivateUpdate
from pacpfl.priors.bnn import BNNPrior, BNNSettings
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.priors.networks import MLP
from pacpfl.privacy.accounting import Plan
from pacpfl.privacy.mechanisms import AdaptiveClip
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")
CLIENTS, SAMPLES, K = 6, 4, 2
SILENT = Plan("gaussian", "all", CLIENTS, CLIENTS, 1e-12, 1e-5)
PLAIN = PACPFL(
    GPPrior(1, GPSettings(mean="linear", kernel="ard")),
    CLIENTS,
    optax.sgd(0.01),
    TrainSettings(particles=K),
)


@pytest.fixture(scope="module")
def data(x64: None) -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, SAMPLES, 1))
    mask = np.ones((CLIENTS, SAMPLES), bool)
    mask[1, -1] = False
    return Data(jnp.asarray(x), jnp.asarray(np.sin(x[..., 0])), jnp.asarray(mask))


def client(data: Data, index: int) -> Data:
    return jax.tree.map(lambda a: a[index], data)


@cache
def senders(method: Any) -> Any:
    one = jax.vmap(lambda s, d, key: method.client_update(s, (), d, key)[0], (None, 0, 0))
    return jax.jit(one)


def updates_of(method: Any, state: Any, data: Data) -> Any:
    return senders(method)(state, data, jax.random.split(jax.random.key(4), CLIENTS))


@cache
def compiled(method: Any, name: str) -> Any:
    return jax.jit(getattr(method, name))


def start(method: Any, data: Data) -> Any:
    return compiled(method, "init")(jax.random.key(0), client(data, 0))


def curves_of(method: Any, *arguments: Any) -> Any:
    return compiled(method, "diagnostics")(*arguments)


def server(method: Any, *arguments: Any) -> Any:
    return compiled(method, "server_update")(*arguments)


def test_without_noise_and_with_room_it_is_pacpfl(data: Data) -> None:
    private = Private(PLAIN, SILENT, 1e6)
    key = jax.random.key(1)
    state, plain_state = private.init(key, client(data, 0)), PLAIN.init(key, client(data, 0))
    np.testing.assert_array_equal(state.inner.particles, plain_state.particles)
    weights = jnp.ones(CLIENTS)
    for _ in range(2):
        sent, plain = updates_of(private, state, data), updates_of(PLAIN, plain_state, data)
        np.testing.assert_allclose(sent.gradients, plain.gradients)
        state = server(private, state, sent, weights, key)
        plain_state = server(PLAIN, plain_state, plain, weights, key)
    np.testing.assert_allclose(state.inner.particles, plain_state.particles, rtol=1e-6)
    assert private.released(state) is state.inner


@pytest.mark.parametrize("mode", ["laplace", "gaussian", "paper"])
def test_noise_on_the_sum_and_the_divisor(mode: str, data: Data) -> None:
    """One particle, plain steps: it moves by eta (score + tau n/c (sum + noise)); c is the expected
    cohort, whoever takes part."""
    n, c, z, clip, eta, tau = CLIENTS, 3, 2.0, 0.5, 1e-2, 0.7
    inner = replace(PLAIN, settings=replace(PLAIN.settings, particles=1, tau=tau))
    private = Private(inner, Plan(mode, "poisson", n, c, z, 1e-5), clip)  # type: ignore[arg-type]
    state = start(private, data)
    size = inner.prior.size
    direction = jnp.zeros((1, size)).at[0, 0].set(clip)
    sent = PrivateUpdate(jnp.stack([direction] * n), (), jnp.zeros(n, bool))
    keys = jax.random.split(jax.random.key(9), 4000)
    still = jnp.zeros((1, 1, size)), jnp.zeros(1)

    step = jax.jit(jax.vmap(private.server_update, (None, None, None, 0)))
    base = server(inner, state.inner, PlainUpdate(*still), jnp.ones(1), keys[0])
    scale = eta * tau * n / c
    std = scale * z * clip * (2**0.5 if mode != "gaussian" else 1)
    for present in (0, 2, 5):
        weights = (jnp.arange(n) < present).astype(float)
        moved = np.asarray(step(state, sent, weights, keys).inner.particles)[:, 0]
        change = moved - np.asarray(base.particles)[0]
        np.testing.assert_allclose(change.std(0), std, rtol=0.08)
        assert abs(np.corrcoef(change.T)[0, 1]) < 0.08
        expected = np.zeros(size)
        expected[0] = scale * present * clip
        np.testing.assert_allclose(change.mean(0), expected, atol=5 * std / 4000**0.5)


@pytest.mark.parametrize("order", ["laplace", "gaussian"])
def test_bad_updates_count_as_zero_and_break_nothing(order: str, data: Data) -> None:
    """NaN, infinite and oversized ones, from clients that do not keep to the protocol."""
    private = Private(PLAIN, replace(SILENT, mode=order), 0.5)  # type: ignore[arg-type]
    state = start(private, data)
    good = updates_of(private, state, data)
    bad = good.gradients
    bad = bad.at[1, 0, 0].set(jnp.nan).at[2].set(jnp.inf).at[3].set(1e9).at[4].mul(1.5)
    weights = jnp.ones(CLIENTS)
    one = server(private, state, good._replace(gradients=bad), weights, jax.random.key(3))
    honest = (jnp.arange(CLIENTS) % 5 == 0).astype(float)
    two = server(private, state, good, honest, jax.random.key(3))
    np.testing.assert_allclose(one.inner.particles, two.inner.particles, rtol=1e-9)
    told = curves_of(private, state, good._replace(gradients=bad), weights)
    assert int(told["refused"]) == 4
    assert int(curves_of(private, state, good, weights)["refused"]) == 0


def test_a_client_whose_gradient_is_not_finite_says_so_only_where_it_may(data: Data) -> None:
    broken = data._replace(y=data.y.at[0, 0].set(jnp.nan))
    for strict in (False, True):
        private = Private(PLAIN, SILENT, 0.5, strict=strict)
        sent = updates_of(private, start(private, data), broken)
        assert not np.asarray(sent.gradients[0]).any()
        assert np.asarray(sent.gradients[1]).any()
        assert sent.refused == () if strict else list(sent.refused) == [True, *[False] * 5]


def test_strict_updates_and_curves_hold_nothing_else(data: Data) -> None:
    private = Private(PLAIN, SILENT, 0.5, strict=True)
    state = start(private, data)
    sent = updates_of(private, state, data)
    assert len(jax.tree.leaves(sent)) == 1, "the clipped update, and nothing beside it"
    curves = curves_of(private, state, sent, jnp.ones(CLIENTS))
    assert set(curves) == {"diversity"}
    other = sent._replace(gradients=sent.gradients * 0.1)
    again = curves_of(private, state, other, jnp.ones(CLIENTS))
    assert float(again["diversity"]) == float(curves["diversity"]), "of the noisy state alone"


@pytest.mark.parametrize(("mode", "order"), [("laplace", 1), ("gaussian", 2), ("paper", 2)])
def test_every_update_is_clipped_as_the_mode_says(mode: str, order: int, data: Data) -> None:
    private = Private(PLAIN, replace(SILENT, mode=mode), 0.3)  # type: ignore[arg-type]
    state = start(private, data)
    sent = np.asarray(updates_of(private, state, data).gradients).reshape(CLIENTS, -1)
    plain = np.asarray(updates_of(PLAIN, state.inner, data).gradients).reshape(CLIENTS, -1)
    norms, whole = (np.linalg.norm(u, order, axis=1, keepdims=True) for u in (sent, plain))
    np.testing.assert_allclose(norms, 0.3, rtol=2e-5)
    np.testing.assert_allclose(sent / norms, plain / whole)


def test_the_last_particles_are_averaged(data: Data) -> None:
    private = Private(PLAIN, replace(SILENT, multiplier=1.0), 0.5, average_from=3)
    state = start(private, data)
    path = []
    for number in range(7):
        sent = updates_of(private, state, data)
        state = server(private, state, sent, jnp.ones(CLIENTS), jax.random.key(number))
        path.append(np.asarray(state.inner.particles))
        wanted = path[-1] if number < 3 else np.mean(path[3:], 0)
        np.testing.assert_allclose(private.released(state).particles, wanted, rtol=1e-10)


def test_the_clip_adapts_and_pays_with_noise_on_the_sum(data: Data) -> None:
    adaptive = AdaptiveClip(0.5, 2.0)
    private = Private(PLAIN, replace(SILENT, multiplier=1.0), 1e3, adaptive=adaptive)
    assert private.multiplier == pytest.approx((1 - 1 / 16) ** -0.5)
    state = start(private, data)
    sent = updates_of(private, state, data)
    assert np.asarray(sent.unclipped).all()
    after = server(private, state, sent, jnp.ones(CLIENTS), jax.random.key(1))
    silent = replace(private, adaptive=AdaptiveClip(0.5, 1e6), plan=SILENT)
    tight = start(silent, data)._replace(clip=jnp.asarray(1e-3))
    assert not np.asarray(updates_of(silent, tight, data).unclipped).any()
    assert float(after.clip) != 1e3
    curves = curves_of(private, after, sent, jnp.ones(CLIENTS))
    assert float(curves["clip"]) == float(after.clip)
    refused(lambda: replace(private, plan=replace(SILENT, mode="laplace")), "clip_quantile")


# The sample unit: Bayesian networks.
ELBO = BNNSettings(draws=2, objective="elbo", noise="own", initial_std=0.1)
NETWORK = BNNPrior(MLP((1, 2)), Categorical(2), ELBO)
BAYES = PACPFL(NETWORK, CLIENTS, optax.sgd(0.01), TrainSettings(particles=K))
PER_SAMPLE = replace(SILENT, unit="sample")


@pytest.fixture(scope="module")
def labels(data: Data) -> Data:
    return data._replace(y=(data.y > 0).astype(float))


@pytest.mark.parametrize(("batch", "index"), [(None, 1), (2, 0)])
def test_samples_without_a_clip_add_up_to_the_usual_gradient(
    labels: Data, batch: int | None, index: int
) -> None:
    plain = replace(BAYES, settings=replace(BAYES.settings, batch=batch))
    private = Private(plain, PER_SAMPLE, 1e9)
    state = start(private, labels)

    @jax.jit
    def both(data: Data, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        sent = private.client_update(state, (), data, key)[0]
        return sent.gradients, plain.client_update(state.inner, (), data, key)[0].gradients

    sent, usual = both(client(labels, index), jax.random.key(index))
    np.testing.assert_allclose(sent, usual, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", [None, 2])
def test_each_sample_is_clipped_and_one_changes_the_sum_by_two_clips(
    labels: Data, batch: int | None
) -> None:
    limit = 0.05
    plain = replace(BAYES, settings=replace(BAYES.settings, batch=batch))
    private = Private(plain, PER_SAMPLE, limit)
    state = start(private, labels)
    one = client(labels, 0)
    key = jax.random.key(5)
    send = jax.jit(lambda data: private.client_update(state, (), data, key)[0].gradients)
    sent = send(one)
    if batch is None:
        silent = Private(plain, PER_SAMPLE, 1e9)
        update = jax.jit(lambda data: silent.client_update(state, (), data, key)[0].gradients)

        def alone(index: int) -> np.ndarray:
            """Its own gradient: all other rows masked; the temperature is that of all rows."""
            only = one._replace(mask=jnp.arange(SAMPLES) == index)
            return np.asarray(update(only))

        parts = [alone(i) for i in range(SAMPLES)]
        wanted = sum(p * min(1, limit / np.linalg.norm(p)) for p in parts)
        np.testing.assert_allclose(sent, wanted, rtol=1e-4)
    largest = 0.0
    for value, label in ((50.0, 0.0), (-50.0, 1.0), (0.1, 1.0), (jnp.nan, 0.0)):
        for row in range(SAMPLES):
            other = one._replace(x=one.x.at[row].set(value), y=one.y.at[row].set(label))
            largest = max(largest, float(jnp.linalg.norm(send(other) - sent)))
    assert 0.5 * limit < largest <= 2 * limit


def test_padding_changes_nothing(labels: Data) -> None:
    private = Private(BAYES, PER_SAMPLE, 0.05)
    state = start(private, labels)
    padded = client(labels, 1)
    short = jax.tree.map(lambda a: a[:-1], padded)
    update = jax.jit(private.client_update)
    one, two = (update(state, (), rows, jax.random.key(1))[0] for rows in (padded, short))
    np.testing.assert_allclose(one.gradients, two.gradients, rtol=1e-12)


def test_where_the_evidence_does_not_decompose_it_says_why() -> None:
    refused(
        lambda: Private(replace(PLAIN, prior=GPPrior(1)), PER_SAMPLE, 1.0),
        "kernel matrix.*unit = client",
    )
    several, one = (replace(NETWORK, settings=BNNSettings(draws=draws)) for draws in (2, 1))
    refused(
        lambda: Private(replace(BAYES, prior=several), PER_SAMPLE, 1.0),
        r"bnn\.objective = elbo.*unit = client",
    )
    Private(replace(BAYES, prior=one), PER_SAMPLE, 1.0)
