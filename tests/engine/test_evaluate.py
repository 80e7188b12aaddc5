"""Measurements of clients against scipy, and that nobody's numbers depend on the others'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import log_softmax
from toys import CentralToy, Toy, ToyState

from pacpfl.engine.evaluate import Evaluation, agree, evaluate
from pacpfl.engine.rounds import divide
from pacpfl.errors import InputError
from pacpfl.folder import summarise
from pacpfl.types import Client, Data, Federation, Probabilities, Samples

pytestmark = pytest.mark.usefixtures("x64")

STATE = ToyState(jnp.zeros(1), jnp.zeros((), jnp.int32))
WEIGHTS, STDS = np.array([0.25, 0.75]), np.array([0.5, 1.0])
LEVELS = np.linspace(0, 1, 20)


def samples(m: int, seed: int) -> Samples:
    random = np.random.default_rng([m, seed])
    return Samples(random.normal(size=(m, 1)), random.normal(size=m) * 1.5)


@pytest.fixture
def federation() -> Federation:
    """Clients of unequal sizes; the second one has gathered more since."""
    existing = [Client(f"e{i}", samples(m, 0), None, samples(t, 1)) for i, (m, t) in enumerate(
        [(3, 20), (5, 7), (2, 11)])]  # fmt: skip
    existing[1] = replace(existing[1], later=samples(4, 2))
    return Federation("toys", tuple(existing), (Client("n0", samples(6, 3), None, samples(9, 3)),))


def measured(federation: Federation, method: Any = None, **more: Any) -> dict[str, Evaluation]:
    return evaluate(method or Toy(), STATE, federation, dtype=np.float64, **more)


def components(client: Client, number: int) -> np.ndarray:
    """Means [2, t] of the toy's two Gaussians at the client's test inputs."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 2), number)
    draw = float(jax.random.uniform(key, (), jnp.float64))
    assert client.test is not None
    x, mean = client.test.x[:, 0], client.personal.y.mean()
    return np.stack([mean + x, mean + draw - x])


def mixture_quantiles(means: np.ndarray, level: float) -> np.ndarray:
    def at(centres: np.ndarray) -> float:
        return optimize.brentq(
            lambda v: WEIGHTS @ stats.norm.cdf(v, centres, STDS) - level, -30, 30, xtol=1e-10
        )

    return np.array([at(centres) for centres in means.T])


def test_every_metric_equals_scipy_s(federation: Federation) -> None:
    results = measured(federation)
    assert list(results) == ["existing", "new"]
    for group, clients in federation.groups().items():
        found = results[group]
        for number, (client, row) in enumerate(zip(clients, found.rows, strict=True)):
            assert client.test is not None
            y, means = client.test.y, components(client, number)
            mean = WEIGHTS @ means
            cdf = WEIGHTS @ stats.norm.cdf(y, means, STDS[:, None])
            density = WEIGHTS @ stats.norm.pdf(y, means, STDS[:, None])
            curve = np.array([np.mean(cdf <= level) for level in LEVELS])
            assert row["rsmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)) / y.std())
            assert row["nll"] == pytest.approx(-np.log(density).mean())
            assert row["ce"] == pytest.approx(np.abs(curve - LEVELS).mean())
            np.testing.assert_allclose(found.calibration[number], curve)
            np.testing.assert_allclose(found.means[number], mean)
            variance = WEIGHTS @ (STDS[:, None] ** 2 + means**2) - mean**2
            np.testing.assert_allclose(found.stds[number], np.sqrt(variance))
            for percent in (50, 90, 95):
                low = mixture_quantiles(means, 0.5 - percent / 200)
                high = mixture_quantiles(means, 0.5 + percent / 200)
                assert row[f"coverage_{percent}"] == np.mean((low <= y) & (y <= high))
                assert row[f"width_{percent}"] == pytest.approx(np.mean(high - low), rel=1e-4)
            assert found.quantiles[number].shape == (6, len(y))
            assert np.all(np.diff(found.quantiles[number], axis=0) > 0)


def test_division_into_blocks_changes_nothing(federation: Federation) -> None:
    matrices = next(2**e for e in range(40) if divide(3, 20, 2**e, 8).blocks > 1)
    federation = replace(federation, new=())  # a group without clients is left out
    whole, divided = measured(federation), measured(federation, matrices_per_client=matrices)
    assert list(whole) == list(divided) == ["existing"]
    for a, b in zip(whole["existing"].rows, divided["existing"].rows, strict=True):
        assert a == pytest.approx(b, rel=1e-9)


def test_a_central_method_gives_everyone_the_model_of_all_existing_data(federation: Any) -> None:
    results = measured(federation, CentralToy())
    everything = np.concatenate([client.personal.y for client in federation.existing])
    key = jax.random.fold_in(jax.random.key(0), 2)
    shift = 0.75 * float(jax.random.uniform(key, (), jnp.float64))
    for group, clients in federation.groups().items():
        for client, mean in zip(clients, results[group].means, strict=True):
            assert client.test is not None
            expected = everything.mean() + shift - 0.5 * client.test.x[:, 0]
            np.testing.assert_allclose(mean, expected)


@pytest.mark.parametrize("count", [None, 0, 1])
def test_clients_that_cannot_be_measured_are_named(count: Any, federation: Federation) -> None:
    bad = replace(federation.new[0], test=None if count is None else samples(count, 0))
    with pytest.raises(InputError, match=r"'n0'.*\.$"):
        measured(replace(federation, new=(bad,)))


def test_particles_agree_on_the_numbering_of_kinds() -> None:
    random = np.random.default_rng(0)
    truth = random.dirichlet([0.2] * 3, size=30)
    orders = [np.array([0, 1, 2]), np.array([2, 0, 1]), np.array([1, 0, 2])]
    shuffled = np.stack([truth[:, order] for order in orders], axis=1)
    np.testing.assert_array_equal(agree(shuffled), np.stack([truth] * 3, axis=1))


class Chooser(eqx.Module):
    """Logits that follow the client's own most frequent label, and the input."""

    own: jax.Array

    def __call__(self, x: jax.Array) -> Probabilities:
        logits = jnp.stack([x[:, 0], -x[:, 0], jnp.zeros(len(x))], 1) + 0.7 * self.own
        return Probabilities(jax.nn.log_softmax(logits))


class ClassToy(Toy):
    def personalize(self, state: ToyState, client_state: Any, data: Data, key: jax.Array) -> Any:
        each = jax.nn.one_hot(data.y.astype(int), 3) * data.mask[:, None]
        return Chooser(each.sum(0))


@pytest.mark.parametrize("at_once", [None, 1, 2])
def test_classification_is_measured_client_by_client(at_once: int | None) -> None:
    random = np.random.default_rng(5)

    def labelled(m: int) -> Samples:
        return Samples(random.normal(size=(m, 1)), random.integers(0, 3, m).astype(float))

    clients = tuple(Client(f"c{i}", labelled(4 + i), None, labelled(30 + i)) for i in range(3))
    federation = Federation("classes", clients, classes=3)
    found = evaluate(ClassToy(), STATE, federation, dtype=np.float64, clients_at_once=at_once)
    evaluation = found["existing"]
    for client, row, table, own in zip(
        clients, evaluation.rows, evaluation.calibration, evaluation.log_probabilities, strict=True
    ):
        assert client.test is not None
        x, labels = client.test.x[:, 0], client.test.y.astype(int)
        counts = np.bincount(client.train.y.astype(int), minlength=3)
        logits = np.stack([x, -x, 0 * x], 1) + 0.7 * counts
        expected = log_softmax(logits, axis=1)
        np.testing.assert_allclose(own, expected)
        assert row["nll"] == pytest.approx(-expected[np.arange(len(labels)), labels].mean())
        assert row["accuracy"] == pytest.approx(np.mean(logits.argmax(1) == labels))
        truth = np.eye(3)[labels]
        assert row["brier"] == pytest.approx(((np.exp(expected) - truth) ** 2).sum(1).mean())
        assert table[:, 0].sum() == len(labels)
        assert row["ce_own"] == pytest.approx(np.abs(table[:, 1] - table[:, 2]).sum() / len(labels))
    together = summarise(found)["existing"]["ce"]["mean"]
    total = evaluation.calibration.sum(0)
    assert together == pytest.approx(np.abs(total[:, 1] - total[:, 2]).sum() / total[:, 0].sum())
