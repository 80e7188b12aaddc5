"""The record of labelled images: its checks, how it becomes a federation, how files are recognised."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from pacpfl.data.image_files import load_images
from pacpfl.data.images import Images, Part, federation, samples
from pacpfl.errors import InputError

PIXELS = np.random.default_rng(3).integers(0, 256, (6, 2, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])
GOOD = Images("set", PIXELS, LABELS, 3, np.array(list("aabbcc")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": PIXELS.reshape(6, 6)}, r"images are uint8 of shape \(6, 6\)"),
        ({"images": PIXELS.astype(float)}, "images are float64"),
        ({"images": PIXELS[:0], "labels": LABELS[:0], "writer": None}, r"shape \(0, 2, 3\)"),
        ({"labels": LABELS.astype(float)}, "labels are float64"),
        ({"labels": LABELS[:, None]}, r"labels are int64 of shape \(6, 1\)"),
        ({"labels": LABELS[:5]}, "6 images and 5 labels"),
        ({"classes": 2}, "label in row 2 is 2, and classes are numbered from 0 to 1"),
        ({"labels": LABELS - 1}, "label in row 0 is -1"),
        ({"writer": np.array(list("aab"))}, r"writers have shape \(3,\)"),
    ],
)
def test_what_cannot_be_used(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"^set: .*{words}"):
        replace(GOOD, **changes)


def test_pixels_become_rows_between_0_and_1() -> None:
    found = samples(GOOD, np.array([4, 1]))
    assert found.x.dtype == found.y.dtype == np.float32
    assert found.y.tolist() == [1, 1]
    expected = [
        [PIXELS[i, row, column] / 255 for row in range(2) for column in range(3)] for i in (4, 1)
    ]
    np.testing.assert_allclose(found.x, expected, rtol=1e-6)


def test_the_extremes_are_exact() -> None:
    both = Images("set", np.array([[[0, 255]]], np.uint8), np.array([0]), 2)
    assert samples(both, np.array([0])).x.tolist() == [[0.0, 1.0]]


def test_a_federation_says_what_it_holds() -> None:
    parts = [
        Part("one", np.array([0, 1]), np.array([2])),
        Part("two", np.array([3]), np.array([4])),
    ]
    found = federation(GOOD, parts[:1], parts[1:])
    assert found.name == "set"
    assert found.classes == 3
    assert found.shape == (2, 3)
    assert found.target == "label"
    assert found.features == tuple(f"pixel {n}" for n in range(6))
    (one,), (two,) = found.existing, found.new
    assert (one.name, two.name) == ("one", "two")
    np.testing.assert_array_equal(one.train.x, samples(GOOD, np.array([0, 1])).x)
    assert one.test is not None
    assert two.test is not None
    assert (one.test.y.tolist(), two.train.y.tolist(), two.test.y.tolist()) == ([2], [2], [1])


def test_classes_of_npz(tmp_path: Path) -> None:
    file = tmp_path / "some.set.npz"
    np.savez(file, images=PIXELS, labels=LABELS.astype(np.uint8), writer=np.arange(6))
    found = load_images(str(file))
    assert (found.name, found.classes, len(found), found.shape) == ("some.set", 3, 6, (2, 3))
    fewer = load_images(file, classes=2)
    assert fewer.classes == 2
    np.testing.assert_array_equal(fewer.images, PIXELS[[0, 1, 4, 5]])
    assert fewer.labels.tolist() == [0, 1, 1, 0]
    assert fewer.writer is not None
    assert fewer.writer.tolist() == [0, 1, 4, 5]
    more = load_images(file, classes=7)
    assert (more.classes, len(more)) == (7, 6)


def test_what_the_file_says_about_classes_is_checked_first(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS, classes=2)
    with pytest.raises(InputError, match=r"a\.npz: the label in row 2 is 2"):
        load_images(tmp_path / "a.npz", classes=2)


def test_no_image_of_the_first_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS + 5)
    with pytest.raises(InputError, match="no image of the first 3 classes"):
        load_images(tmp_path / "a.npz", classes=3)


def test_one_class_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 2"):
        load_images(tmp_path, classes=1)


def write_each_format(folder: Path) -> dict[str, Path]:
    """One 2 x 2 image with label 1 in each format, under names that tell nothing."""
    square = np.array([[[0, 1], [2, 3]]], np.uint8)
    folder.mkdir()
    with open(folder / "npz", "wb") as stream:
        np.savez(stream, images=square, labels=np.array([1]))
    part = {"images": np.array([[0, 2, 1, 3]], np.uint8), "labels": np.array([[1]])}
    with open(folder / "mat", "wb") as stream:
        savemat(
            stream,
            {"dataset": {"train": part, "test": part, "mapping": np.array([[0, 48], [1, 49]])}},
        )
    row = {"x": [[0, 1 / 255, 2 / 255, 3 / 255]], "y": [1]}
    content = {"users": ["a"], "num_samples": [1], "user_data": {"a": row}}
    (folder / "json").write_text("\n " + json.dumps(content))
    return {name: folder / name for name in ("npz", "mat", "json")}


@pytest.mark.parametrize("kind", ["npz", "mat", "json"])
def test_a_file_is_recognised_by_its_content(tmp_path: Path, kind: str) -> None:
    found = load_images(write_each_format(tmp_path / "files")[kind])
    assert found.images[0].tolist() == [[0, 1], [2, 3]]
    assert found.labels[0] == 1


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_idx_file_by_another_name(tmp_path: Path, pack: Any) -> None:
    file = tmp_path / "renamed"
    file.write_bytes(pack(struct.pack(">IIII", 0x803, 1, 1, 1) + b"\0"))
    with pytest.raises(InputError, match="not named as idx images are"):
        load_images(file)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n", b"label,pixel0\n3,0\n"])
def test_a_file_of_another_format(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "images.csv"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"images\.csv is of no format that can be read"):
        load_images(file)


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(InputError, match="holds no images"):
        load_images(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.npz", "emnist-mnist-train-images-idx3-ubyte"])
def test_nothing_is_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="There is no file or folder"):
        load_images(tmp_path / name)
