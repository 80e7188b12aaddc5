"""Scaling by training statistics: what comes out, what must not leak in, and the way back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pacpfl.data.prepare import fit_scaler, standardize
from pacpfl.types import Client, Federation, Samples


def samples(m: int, seed: int, shift: float = 0.0) -> Samples:
    random = np.random.default_rng(seed)
    x = random.normal(size=(m, 3)) * [1, 10, 0.01] + [5, -3, 100]
    return Samples(x + shift, random.normal(size=m) * 7 + 20 + shift)


def scaled(client: Client) -> Client:
    names = tuple(f"x{number}" for number in range(client.train.x.shape[1]))
    return standardize(Federation("f", (client,), features=names), "client").existing[0]


@pytest.fixture
def client() -> Client:
    return Client("a", samples(8, 0), samples(5, 1, 1.0), samples(6, 2, 2.0), kind=1)


def test_later_and_test_samples_are_scaled_by_training_statistics(client: Client) -> None:
    after_scaling = scaled(client)
    x, y = client.train.x, client.train.y
    for part in ("later", "test"):
        before, after = getattr(client, part), getattr(after_scaling, part)
        np.testing.assert_allclose(after.x, (before.x - x.mean(0)) / x.std(0))
        np.testing.assert_allclose(after.y, (before.y - y.mean()) / y.std())
        assert abs(after.y.mean()) > 0.01


def test_nothing_leaks_from_other_samples_or_clients(client: Client) -> None:
    other = replace(client, test=samples(9, 7, 500.0), later=None)
    one, two = scaled(client), scaled(other)
    np.testing.assert_array_equal(one.train.x, two.train.x)
    np.testing.assert_array_equal(one.train.y, two.train.y)
    assert two.later is None

    neighbour = Client("b", samples(4, 9, 1000.0))
    both = Federation("f", (neighbour, client), (replace(client),), ("a", "b", "c"))
    federation = standardize(both, "client")
    for alike in (federation.existing[1], federation.new[0]):
        np.testing.assert_array_equal(alike.train.x, one.train.x)
    np.testing.assert_allclose(federation.existing[0].train.x.mean(0), 0, atol=1e-6)
    assert (federation.existing[1].name, federation.existing[1].kind) == ("a", 1)


def test_a_constant_target_keeps_its_unit() -> None:
    train = Samples(np.arange(4.0)[:, None], np.full(4, 3.0))
    scaler = fit_scaler(train)
    np.testing.assert_array_equal(scaler(train).y, np.zeros(4))
    np.testing.assert_allclose(scaler(Samples(train.x, train.y + 2)).y, 2)
