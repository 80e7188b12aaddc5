"""Client stores: padded rows equal the samples, and folders on disk are whole or refused."""

from __future__ import annotations

import itertools
import json
import resource
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from pacpfl.data.store import (
    ClientStore,
    from_clients,
    from_samples,
    open_store,
    round_up,
    write_store,
)
from pacpfl.types import Client, Samples

LENGTHS = (3, 1, 5, 2)
FEATURES = 2


def make_parts(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[Samples]:
    random = np.random.default_rng(seed)
    return [
        Samples(
            random.normal(size=(m, FEATURES)).astype(np.float32),
            random.normal(size=m).astype(np.float32),
        )
        for m in lengths
    ]


def assert_holds(store: ClientStore, parts: list[Samples]) -> None:
    assert store.clients == len(parts)
    assert store.features == FEATURES
    assert store.longest == max(map(len, parts))
    data = store.gather(np.arange(len(parts)), np.float64)
    for row, part in enumerate(parts):
        m = len(part)
        np.testing.assert_array_equal(data.x[row, :m], part.x)
        np.testing.assert_array_equal(data.y[row, :m], part.y)
        np.testing.assert_array_equal(data.mask[row], np.arange(store.longest) < m)
        assert not np.any(data.x[row, m:])
        assert not np.any(data.y[row, m:])


def test_clients_are_gathered_in_the_order_asked_for_and_may_repeat() -> None:
    store, chosen = from_samples(make_parts()), np.array([3, 1, 3])
    data, every = store.gather(chosen, np.float32), store.gather(np.arange(4), np.float32)
    assert data.x.dtype == data.y.dtype == np.float32
    for found, whole in zip(data, every, strict=True):
        np.testing.assert_array_equal(found, whole[chosen])


def test_clients_train_on_their_training_samples_alone() -> None:
    train, later, test = (make_parts(seed=seed) for seed in (1, 2, 3))
    clients = [Client(str(i), *each) for i, each in enumerate(zip(train, later, test, strict=True))]
    assert_holds(from_clients(clients), train)


def test_a_store_on_disk_comes_back_bit_for_bit(tmp_path: Path) -> None:
    parts = make_parts()
    write_store(tmp_path / "deep" / "folder", iter(parts), FEATURES)
    store = open_store(tmp_path / "deep" / "folder")
    assert_holds(store, parts)
    for array in (store.x, store.y, store.offsets):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable


def test_a_store_can_be_written_again_with_other_clients(tmp_path: Path) -> None:
    for lengths in ((2, 2, 9), (4,), (1, 6, 1, 1)):
        parts = make_parts(lengths)
        write_store(tmp_path, iter(parts), FEATURES)
        assert_holds(open_store(tmp_path), parts)


def test_samples_are_streamed_one_client_at_a_time(tmp_path: Path) -> None:
    """No client is held any longer when the one after the next is asked for."""
    held: list[weakref.ref[Samples]] = []

    def parts() -> Iterator[Samples]:
        for number in range(20):
            assert sum(reference() is not None for reference in held) <= 1
            part = Samples(np.full((4, FEATURES), number), np.full(4, number))
            held.append(weakref.ref(part))
            yield part
            del part

    write_store(tmp_path, parts(), FEATURES)
    assert open_store(tmp_path).clients == 20


@pytest.mark.parametrize(
    "bad",
    [
        Samples(np.zeros((2, FEATURES + 1)), np.zeros(2)),
        Samples(np.zeros((2, FEATURES)), np.zeros(3)),
        Samples(np.zeros((0, FEATURES)), np.zeros(0)),
        Samples(np.zeros(2), np.zeros(2)),
    ],
)
def test_a_client_that_does_not_fit_is_named_and_leaves_no_store(
    bad: Samples, tmp_path: Path
) -> None:
    """The new client data are longer than an old store's: its description must not open them."""
    write_store(tmp_path, iter(make_parts((2, 2), seed=1)), FEATURES)
    parts = [*make_parts((9, 9)), bad, *make_parts((3,))]
    refused(lambda: write_store(tmp_path, iter(parts), FEATURES), r"^Client 2 .*\.$")
    refused(lambda: open_store(tmp_path), str(tmp_path))


@pytest.mark.parametrize(
    ("name", "end"),
    [
        *itertools.product(("x.f32", "y.f32", "offsets.i64"), (None, 0)),
        *(("x.f32", -4), ("y.f32", -4), ("offsets.i64", -3), ("offsets.i64", -8)),
        *(("store.json", None), ("store.json", 1)),
    ],
)
def test_a_folder_that_lacks_something_is_refused(
    name: str, end: int | None, tmp_path: Path
) -> None:
    """A file of it, or all that follows a place in a file."""
    write_store(tmp_path, iter(make_parts()), FEATURES)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if end is not None:
        (tmp_path / name).write_bytes(content[:end])
    refused(lambda: open_store(tmp_path), f"{tmp_path} is not a complete client store")


ABOUT = {"features": 2, "longest": 5, "clients": 4}


@pytest.mark.parametrize(
    "description",
    [
        [2, 5],
        *({name: ABOUT[name] for name in ABOUT if name != lacking} for lacking in ABOUT),
        *(ABOUT | change for change in ({"features": 3}, {"features": "two"}, {"clients": 5})),
    ],
)
def test_a_wrong_description_is_refused(description: Any, tmp_path: Path) -> None:
    write_store(tmp_path, iter(make_parts()), FEATURES)
    (tmp_path / "store.json").write_text(json.dumps(description))
    refused(lambda: open_store(tmp_path), f"{tmp_path} is not a complete client store")
    shutil.rmtree(tmp_path)
    refused(lambda: open_store(tmp_path), f"{tmp_path} is not a complete client store")


def test_a_full_disk_is_told_in_one_sentence(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        refused(
            lambda: write_store(tmp_path, iter(make_parts((4000, 4000))), FEATURES), str(tmp_path)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refused(lambda: open_store(tmp_path))


def test_roomy_stores_share_few_sizes_and_hold_the_same_samples() -> None:
    assert [round_up(n) for n in (1, 2, 7, 8, 9, 20, 21, 105, 1316)] == [
        1, 2, 7, 8, 10, 20, 24, 112, 1536,
    ]  # fmt: skip
    for n in range(1, 3000):
        assert n <= round_up(n) < 1.26 * n + 1
    parts = [Samples(np.ones((n, 2)), np.arange(float(n))) for n in (9, 3)]
    roomy, plain = from_samples(parts, roomy=True), from_samples(parts)
    assert (roomy.longest, plain.longest) == (10, 9)
    found = roomy.gather(np.array([0, 1]), np.float32)
    expected = plain.gather(np.array([0, 1]), np.float32)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a)[:, :9], b)
    assert not np.asarray(found.mask)[:, 9:].any()
