"""Every fault in clients' samples is found, and named by client and column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pacpfl.data.polynomial import polynomial
from pacpfl.data.prepare import check_federation
from pacpfl.errors import InputError
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


def refused(faulty: Federation) -> str:
    with pytest.raises(InputError) as found:
        check_federation(faulty)
    message = str(found.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


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
    message = refused(federation(bad) if group == "existing" else federation(new=(bad,)))
    shown = {"train": "training"}.get(part, part)
    for word in (f"'{name}'", shown, "'house 9'", "row 3", str(value)):
        assert word in message


def test_no_clients_at_all() -> None:
    assert "houses" in refused(Federation("houses", (), (client("house 1"),), FEATURES))


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("group", ["existing", "new"])
def test_too_few_training_samples(count: int, group: str) -> None:
    bad = client("house 9", train=samples(count))
    message = refused(federation(bad) if group == "existing" else federation(new=(bad,)))
    assert "'house 9'" in message
    assert ("no training samples" if count == 0 else "one training sample") in message


def test_a_feature_that_never_changes() -> None:
    train = samples(4)
    constant = replace(train, x=np.column_stack([train.x[:, 0], np.full(4, 2.5)]))
    message = refused(federation(client("house 9", train=constant)))
    assert "'wind'" in message
    assert "'house 9'" in message


def test_a_feature_that_is_constant_only_in_the_test_samples_passes() -> None:
    check_federation(federation(client("house 9", test=Samples(np.ones((3, 2)), np.arange(3.0)))))


@pytest.mark.parametrize("part", ["train", "later", "test"])
@pytest.mark.parametrize("width", [1, 3])
def test_other_numbers_of_features(part: str, width: int) -> None:
    message = refused(federation(client("house 9", **{part: samples(4, width)})))
    for word in ("'house 9'", f"{width} features", "height, wind"):
        assert word in message


@pytest.mark.parametrize("part", ["train", "later", "test"])
def test_rows_without_targets(part: str) -> None:
    torn = Samples(samples(5).x, samples(4).y)
    message = refused(federation(client("house 9", **{part: torn})))
    for word in ("'house 9'", "5 rows", "4 targets"):
        assert word in message


@pytest.mark.parametrize("shape", [(4,), (4, 1, 1)])
def test_features_that_are_no_table(shape: tuple[int, ...]) -> None:
    part = Samples(np.arange(4.0).reshape(shape), np.arange(4.0))
    one_feature = Federation("houses", (client("house 9", train=part, later=None, test=None),))
    assert "'house 9'" in refused(one_feature)


@pytest.mark.parametrize("group", ["existing", "new"])
def test_two_clients_of_one_name(group: str) -> None:
    twin = client("house 1")
    assert "'house 1'" in refused(
        federation(twin) if group == "existing" else federation(new=(twin,))
    )


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


FAULTS: list[Callable[[], Federation]] = [
    lambda: federation(client("a", train=with_value(samples(4), 0, 0, np.nan))),
    lambda: federation(client("a", train=samples(0))),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_changed_by_checking(fault: Callable[[], Federation]) -> None:
    faulty = fault()
    before = [c.train.x.copy() for c in faulty.existing]
    refused(faulty)
    for a, c in zip(before, faulty.existing, strict=True):
        np.testing.assert_array_equal(a, c.train.x)
