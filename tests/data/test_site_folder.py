"""A site's own files: one .npz for each client, or a client store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from pacpfl.data.site_folder import is_site_folder, read_site_folder, write_client_file
from pacpfl.data.store import write_store
from pacpfl.types import Client, Federation, Samples


def samples(m: int, seed: int) -> Samples:
    random = np.random.default_rng(seed)
    return Samples(random.normal(size=(m, 2)), random.integers(0, 3, m).astype(float))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    clients = (
        Client("one", samples(3, 0), samples(2, 1), samples(4, 2)),
        Client("two", samples(5, 3)),
    )
    federation = Federation("f", clients, features=("x1", "x2"), classes=3, shape=(1, 2))
    assert not is_site_folder(tmp_path)
    for client in clients:
        write_client_file(tmp_path, client, federation)
    assert is_site_folder(tmp_path)
    read = read_site_folder(tmp_path)
    assert (read.features, read.classes, read.shape) == (("x1", "x2"), 3, (1, 2))
    assert [client.name for client in read.existing] == ["one", "two"] and not read.new
    for one, two in zip(clients, read.existing, strict=True):
        for part in ("train", "later", "test"):
            mine, theirs = getattr(one, part), getattr(two, part)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                np.testing.assert_array_equal(mine.x, theirs.x)
                np.testing.assert_array_equal(mine.y, theirs.y)


def test_a_store_is_read(tmp_path: Path) -> None:
    parts = [samples(3, 0), samples(5, 1)]
    write_store(tmp_path, parts, 2)
    assert is_site_folder(tmp_path)
    read = read_site_folder(tmp_path)
    assert [len(client.train) for client in read.existing] == [3, 5]
    np.testing.assert_allclose(read.existing[1].train.x, parts[1].x, rtol=1e-6)


PLAIN: dict[str, Any] = {"x": np.zeros((3, 2)), "y": np.zeros(3)}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((3, 2))}, "both 'x' and 'y'"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3), "x_test": np.zeros((1, 2))}, "'y_test'"),
        ({"x": np.zeros(3), "y": np.zeros(3)}, "table of numbers"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "table of numbers"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "table of numbers"),
        ({"x": np.array([["a", "b"]]), "y": np.zeros(1)}, "table of numbers"),
        ({"x": np.full((3, 2), np.nan), "y": np.zeros(3)}, "not finite"),
        ({"x": np.array([[None, 1]]), "y": np.zeros(1)}, "cannot be read"),
        ({"x": np.zeros((2, 0)), "y": np.zeros(2)}, "table of numbers"),
        ({"x": np.zeros((2, 1)), "y": np.array(["a", "b"])}, "table of numbers"),
        ({"x": np.zeros((2, 1)), "y": np.zeros(2, complex)}, "table of numbers"),
        (PLAIN | {"x_test": np.zeros((2, 3)), "y_test": np.zeros(2)}, "as many columns"),
        (PLAIN | {"classes": np.array([3, 4])}, "classes must be one number"),
        (PLAIN | {"classes": 1}, "classes must be one number"),
        (PLAIN | {"classes": 2.5}, "classes must be whole"),
        (PLAIN | {"classes": -3}, "classes must be whole"),
        (PLAIN | {"shape": np.zeros(0, int)}, "shape must be whole"),
        (PLAIN | {"shape": "28"}, "shape must be whole"),
        (PLAIN | {"shape": np.array([2, 2])}, "no shape"),
        *(
            (PLAIN | {"y": np.array([0, label, 2.0]), "classes": 3}, "labels are 0 to 2")
            for label in (7.0, -1.0, 1.5)
        ),
    ],
)
def test_files_that_cannot_be_used_are_named(
    arrays: dict[str, Any], words: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "north.npz", **arrays)
    refused(lambda: read_site_folder(tmp_path), r"north\.npz", words)


def test_clients_of_different_form_are_errors(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.zeros(3))
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 1)), y=np.zeros(3))
    refused(lambda: read_site_folder(tmp_path), "differ in their number")
    (tmp_path / "b.npz").write_bytes(b"\x80\x05K\x01.")
    refused(lambda: read_site_folder(tmp_path), r"b\.npz cannot be read")
