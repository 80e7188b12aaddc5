"""Samples before training: every fault is named by client and column, and scales are those of training."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused

from pacpfl.data.polynomial import polynomial
from pacpfl.data.prepare import check_federation, fit_scaler, standardize
from pacpfl.types import Client, Federation, Samples

FEATURES = ("height", "wind")


def samples(m: int, d: int = 2, seed: int = 0) -> Samples:
    random = np.random.default_rng([m, d, seed])
    return Samples(random.normal(size=(m, d)), random.normal(size=m))


def client(name: str, **changes: object) -> Client:
    parts = {"train": samples(4), "later": samples(2), "test": samples(3)}
    return Client(name, **(parts | changes))  # type: ignore[arg-type]


def federation(*existing: Client, new: tuple[Client, ...] = ()) -> Federation:
    others = (client("house 1"), client("house 2"))
    return Federation("houses", (*others, *existing), new, FEATURES, "power")


def with_value(part: Samples, row: int, column: int | None, value: float) -> Samples:
    x, y = part.x.copy(), part.y.copy()
    if column is None:
        y[row] = value
    else:
        x[row, column] = value
    return Samples(x, y)


def with_one(group: str, bad: Client) -> Federation:
    """A good federation and one more client, existing or new."""
    return federation(bad) if group == "existing" else federation(new=(bad,))


def faulty(federation: Federation, *words: str) -> None:
    """It is refused with all these words, and left as it was."""
    before = [client.train.x.copy() for client in federation.existing]
    refused(lambda: check_federation(federation), *words)
    for x, client in zip(before, federation.existing, strict=True):
        np.testing.assert_array_equal(x, client.train.x)


def test_good_clients_pass() -> None:
    check_federation(polynomial(3, 2))
    check_federation(federation(client("house 3", later=None, test=None)))
    check_federation(federation(new=(client("house 3"),)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["train", "later", "test"])
@pytest.mark.parametrize(("column", "name"), [(0, "height"), (1, "wind"), (None, "power")])
@pytest.mark.parametrize("group", ["existing", "new"])
def test_values_that_are_no_numbers(
    value: float, part: str, column: int | None, name: str, group: str
) -> None:
    bad = client("house 9", **{part: with_value(samples(5), 3, column, value)})
    shown = {"train": "training"}.get(part, part)
    faulty(with_one(group, bad), f"'{name}'", shown, "'house 9'", "row 3", str(value))


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("group", ["existing", "new"])
def test_too_few_training_samples(count: int, group: str) -> None:
    bad = client("house 9", train=samples(count))
    faulty(with_one(group, bad), "'house 9'", f"{count} training samples")


def test_a_feature_that_never_changes() -> None:
    train = samples(4)
    constant = replace(train, x=np.column_stack([train.x[:, 0], np.full(4, 2.5)]))
    faulty(federation(client("house 9", train=constant)), "'wind'", "'house 9'")
    check_federation(federation(client("house 9", test=Samples(np.ones((3, 2)), np.arange(3.0)))))


@pytest.mark.parametrize("part", ["train", "later", "test"])
@pytest.mark.parametrize(
    "bad",
    [
        samples(4, 1),
        samples(4, 3),
        Samples(samples(5).x, samples(4).y),
        Samples(np.arange(4.0), np.arange(4.0)),
        Samples(np.ones((4, 2, 1)), np.arange(4.0)),
        Samples(samples(4).x, np.ones((4, 1))),
    ],
)
def test_samples_of_another_shape(part: str, bad: Samples) -> None:
    shapes = re.escape(f"features have shape {bad.x.shape} and targets {bad.y.shape}")
    faulty(federation(client("house 9", **{part: bad})), "'house 9'", shapes, "height, wind")


@pytest.mark.parametrize("group", ["existing", "new"])
def test_two_clients_of_one_name_or_none_at_all(group: str) -> None:
    faulty(with_one(group, client("house 1")), "'house 1'")
    faulty(Federation("houses", (), (client("house 1"),), FEATURES), "houses")


def test_a_large_federation_is_checked_in_linear_time() -> None:
    """Twice the clients cost about twice the comparisons of names, not four times."""
    counts = {}
    for n in (50, 100):
        compared = 0

        class Name(str):
            __hash__ = str.__hash__

            def __eq__(self, other: object) -> bool:
                nonlocal compared
                compared += 1
                return str.__eq__(self, str(other))

        check_federation(
            Federation("big", tuple(client(Name(i)) for i in range(n)), (), FEATURES, "power")
        )
        counts[n] = compared
    assert counts[100] <= 2.5 * counts[50] + 10


def test_later_and_test_samples_are_scaled_by_training_statistics() -> None:
    one = client("house 9", test=samples(6, seed=2))
    neighbour = Client("house 8", Samples(samples(4, seed=9).x + 1000, samples(4).y))
    whole = Federation("houses", (neighbour, one), (), FEATURES, "power")
    scaled = standardize(whole, "client").existing[1]
    x, y = one.train.x, one.train.y
    for part in ("train", "later", "test"):
        before, after = getattr(one, part), getattr(scaled, part)
        np.testing.assert_allclose(after.x, (before.x - x.mean(0)) / x.std(0))
        np.testing.assert_allclose(after.y, (before.y - y.mean()) / y.std())


def test_a_constant_target_keeps_its_unit() -> None:
    train = Samples(np.arange(4.0)[:, None], np.full(4, 3.0))
    scaler = fit_scaler(train)
    np.testing.assert_array_equal(scaler(train).y, np.zeros(4))
    np.testing.assert_allclose(scaler(Samples(train.x, train.y + 2)).y, 2)
