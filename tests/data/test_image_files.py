"""Files of images, written here byte by byte as their publishers write them, sound and broken."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from scipy.io import savemat

from pacpfl.data.image_files import load_images, to_bytes
from pacpfl.data.images import Images


def writers_of(images: Images) -> list[Any]:
    return images.writer.tolist()


def cut(file: Path, part: float) -> Path:
    """Keep only the first part of a file."""
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    return file


# ---- .npz ----

PIXELS = np.random.default_rng(7).integers(0, 256, (5, 4, 3), dtype=np.uint8)
PIXELS[0, 0, :2] = 0, 255
LABELS = np.array([0, 2, 1, 1, 0])
WRITER = np.array([1, 0, 0, 1, 1])
NAMES = np.array(["ann", "bob"])


def write_npz(folder: Path, **arrays: Any) -> Path:
    """The default arrays with some changed; one given as None is left out."""
    arrays = {"images": PIXELS, "labels": LABELS} | arrays
    np.savez(folder / "some.set.npz", **{k: v for k, v in arrays.items() if v is not None})
    return folder / "some.set.npz"


class Touch:
    """Unpickling it makes a file: the trace of code that ran."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_arrays_come_back_as_they_were_saved(tmp_path: Path) -> None:
    file = write_npz(tmp_path, writer=WRITER, classes=4, anything=np.array([None]))
    found = load_images(str(file))
    np.testing.assert_array_equal(found.images, PIXELS)
    np.testing.assert_array_equal(found.labels, LABELS)
    assert writers_of(found) == WRITER.tolist()
    assert (found.name, found.classes, len(found), found.shape) == ("some.set", 4, 5, (4, 3))
    named = load_images(write_npz(tmp_path, writer=WRITER, writer_names=NAMES))
    assert writers_of(named) == ["bob", "ann", "ann", "bob", "bob"]
    plain = load_images(write_npz(tmp_path, labels=LABELS.astype(np.uint8)))
    assert (plain.writer, plain.classes) == (None, 3)


def test_only_the_first_classes_are_kept(tmp_path: Path) -> None:
    file = write_npz(tmp_path, writer=np.arange(5))
    fewer = load_images(file, classes=2)
    assert fewer.classes == 2
    np.testing.assert_array_equal(fewer.images, PIXELS[[0, 2, 3, 4]])
    assert fewer.labels.tolist() == [0, 1, 1, 0]
    assert writers_of(fewer) == [0, 2, 3, 4]
    more = load_images(file, classes=7)
    assert (more.classes, len(more)) == (7, 5)
    write_npz(tmp_path, labels=LABELS + 5)
    refused(lambda: load_images(file, 3), "no image of the first 3 classes")
    write_npz(tmp_path, classes=2)  # what the file says is checked first
    refused(lambda: load_images(file, 2), r"some\.set\.npz: the label in row 1 is 2")
    refused(lambda: load_images(tmp_path, 1), "at least 2")


def test_fractions_become_bytes() -> None:
    every = np.arange(256)
    assert to_bytes((every / 255).astype(np.float32), "set").tolist() == every.tolist()
    assert to_bytes(np.array([0.1, 0.5, 0.999]), "set").tolist() == [26, 128, 255]
    assert to_bytes(np.array([0, 7, 255], np.int64), "set").tolist() == [0, 7, 255]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": None}, "no array called 'images'"),
        ({"labels": None}, "no array called 'labels'"),
        ({"images": PIXELS.astype(int) + 1}, "pixels lie between .* and 256"),
        ({"images": PIXELS.astype(int) - 1}, "pixels lie between -1 and"),
        ({"images": PIXELS / 254}, "pixels lie between .* and 1.00"),
        ({"images": np.where(PIXELS > 9, 0.5, np.nan)}, "pixels lie between nan"),
        ({"images": np.full((5, 4, 3), "a")}, "pixels are of type <U1"),
        ({"classes": np.array([3, 4])}, "'classes' must be one whole number"),
        ({"classes": np.array(2.5)}, "'classes' must be one whole number"),
        ({"writer": WRITER, "writer_names": np.array(list("abc"))}, "writer 'c' has no samples"),
        ({"writer": WRITER, "writer_names": np.array(["a"])}, "'writer' holds 1, and .* 1 names"),
        ({"writer": WRITER - 1, "writer_names": NAMES}, "'writer' holds -1"),
        ({"writer": WRITER, "writer_names": np.array(["a", "a"])}, "a name twice"),
        ({"writer": WRITER / 2, "writer_names": NAMES}, "positions"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    file = write_npz(tmp_path, **arrays)
    refused(lambda: load_images(file), str(file), words)


def test_pickles_are_refused_and_do_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    file = write_npz(tmp_path, labels=np.array([Touch(trace)], object))
    refused(lambda: load_images(file), "pickled objects, and those are never loaded")
    file.write_bytes(pickle.dumps(Touch(trace)))  # in disguise
    refused(lambda: load_images(file), "never loaded")
    assert not trace.exists()


def test_a_damaged_npz(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    np.savez_compressed(file, images=np.tile(PIXELS, (40, 1, 1)), labels=np.tile(LABELS, 40))
    content = bytearray(file.read_bytes())
    content[90:120] = bytes(30)
    file.write_bytes(content)
    refused(lambda: load_images(file), r"cannot be read as \.npz")
    with open(file, "wb") as stream:
        np.save(stream, PIXELS)
    refused(lambda: load_images(file), "a single array")


# ---- EMNIST ----

SIDE = 6


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """Upright images; each is different from its transpose."""
    return np.random.default_rng([51, seed]).integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8)


def by_columns(images: np.ndarray) -> list[int]:
    """The bytes in the order in which Matlab writes them: down the first column, then the next."""
    return [
        int(image[row][column]) for image in images for column in range(SIDE) for row in range(SIDE)
    ]


def idx_images(values: list[int], count: int, magic: int = 0x803) -> bytes:
    return struct.pack(">IIII", magic, count, SIDE, SIDE) + bytes(values)


def idx_labels(labels: list[int], magic: int = 0x801) -> bytes:
    return struct.pack(">II", magic, len(labels)) + bytes(labels)


def write_pair(
    folder: Path, stem: str, images: np.ndarray, labels: list[int], packed: bool = True
) -> Path:
    emnist = stem.startswith("emnist")
    values = by_columns(images) if emnist else images.reshape(-1).tolist()
    suffix = ".gz" if packed else ""
    file = folder / f"{stem}-images-idx3-ubyte{suffix}"
    pack: Callable[[bytes], bytes] = gzip.compress if packed else bytes
    file.write_bytes(pack(idx_images(values, len(images))))
    (folder / f"{stem}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_labels(labels)))
    return file


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("stem", "labels", "found", "classes"),
    [
        ("emnist-byclass-test", [0, 61, 35], [0, 61, 35], 62),
        ("emnist-letters-train", [1, 26, 4], [0, 25, 3], 26),  # they count from one
        ("t10k", [9, 3, 1], [9, 3, 1], 10),  # MNIST is upright already
    ],
)
def test_a_pair_comes_out_upright(
    tmp_path: Path, stem: str, labels: list[int], found: list[int], classes: int, packed: bool
) -> None:
    images = load_images(write_pair(tmp_path, stem, pictures(3), labels, packed))
    np.testing.assert_array_equal(images.images, pictures(3))
    assert (images.labels.tolist(), images.classes, images.writer) == (found, classes, None)


def test_a_folder_holds_training_and_test_pairs(tmp_path: Path) -> None:
    train, test = pictures(3, 1), pictures(2, 2)
    for packed in (False, True):  # a pair that lies there packed and unpacked counts once
        write_pair(tmp_path, "emnist-digits-train", train, [1, 2, 3], packed)
    write_pair(tmp_path, "emnist-digits-test", test, [4, 5])
    (tmp_path / "emnist-digits-mapping.txt").touch()
    found = load_images(tmp_path)
    np.testing.assert_array_equal(found.images, np.concatenate([test, train]))
    assert (found.labels.tolist(), found.classes) == ([4, 5, 1, 2, 3], 10)
    write_pair(tmp_path, "emnist-letters-train", pictures(1), [1])
    refused(lambda: load_images(tmp_path), r"several sets \(digits, letters\)")


def test_names_of_idx_files(tmp_path: Path) -> None:
    images = pictures(1)
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(idx_images(images.reshape(-1).tolist(), 1))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(idx_labels([4]))
    np.testing.assert_array_equal(load_images(tmp_path / "t10k-images.idx3-ubyte").images, images)
    refused(lambda: load_images(tmp_path / "t10k-labels.idx1-ubyte"), "give the file of images")
    (tmp_path / "t10k-labels.idx1-ubyte").unlink()
    refused(lambda: load_images(tmp_path), r"put t10k-labels\.idx1-ubyte")


IMAGES = idx_images(by_columns(pictures(2)), 2)
TWO_LABELS = idx_labels([3, 4])
PACKED = gzip.compress(IMAGES, mtime=0)
HUGE = struct.pack(">IIII", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES[:-1], TWO_LABELS, "images-idx3-ubyte has 87 bytes where its header announces 88"),
        (IMAGES + b"\0", TWO_LABELS, "has 89 bytes where its header announces 88"),
        (IMAGES[:9], TWO_LABELS, "has 9 bytes"),
        (IMAGES, TWO_LABELS[:-1], "labels-idx1-ubyte has 9 bytes where its header announces 10"),
        (b"", TWO_LABELS, "starts with nothing"),
        (TWO_LABELS, TWO_LABELS, "starts with 00 00 08 01, not 00 00 08 03"),
        (idx_images([0] * 72, 2, 0x0D03), TWO_LABELS, "starts with 00 00 0d 03"),
        (IMAGES, IMAGES, "labels-idx1-ubyte starts with 00 00 08 03, not 00 00 08 01"),
        (IMAGES, idx_labels([3, 4, 5]), "holds 2 images and .* 3 labels"),
        (IMAGES, idx_labels([3, 10]), "label in row 1 is 10, and classes are numbered from 0 to 9"),
        (PACKED[:-9], TWO_LABELS, "damaged"),
        (PACKED[:20] + bytes(20) + PACKED[40:], TWO_LABELS, "damaged"),
        (PACKED[:-8] + bytes(8), TWO_LABELS, "damaged"),
        (HUGE, TWO_LABELS, "header announces 79228"),
        (idx_images([], 0), idx_labels([]), "shape"),
    ],
)
def test_broken_pairs(tmp_path: Path, images: bytes, labels: bytes, words: str) -> None:
    (tmp_path / "emnist-digits-train-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "emnist-digits-train-labels-idx1-ubyte").write_bytes(labels)
    for path in (tmp_path, tmp_path / "emnist-digits-train-images-idx3-ubyte"):
        refused(lambda path=path: load_images(path), words)


def matlab(**changes: Any) -> dict[str, Any]:
    """EMNIST's nested layout: rows of pixels column by column, labels and writers as columns."""

    def part(images: np.ndarray, labels: list[int], writers: list[int]) -> dict[str, Any]:
        return {
            "images": np.array(by_columns(images), np.uint8).reshape(len(images), -1),
            "labels": np.array(labels, np.uint8)[:, None],
            "writers": np.array(writers, np.uint16)[:, None],
        }

    parts = {
        "train": part(pictures(3, 1), [1, 3, 2], [40, 41, 40]),
        "test": part(pictures(2, 2), [2, 1], [7, 41]),
        "mapping": np.array([[1, 65, 97], [2, 66, 98], [3, 67, 99]]),
    }
    return {"dataset": parts | changes}


def write_mat(folder: Path, content: dict[str, Any]) -> Path:
    savemat(folder / "emnist-letters.mat", content, do_compression=True)
    return folder / "emnist-letters.mat"


def without(part: str, name: str) -> dict[str, Any]:
    content = matlab()
    del content["dataset"][part][name]
    return content


def test_matlab_files(tmp_path: Path) -> None:
    found = load_images(write_mat(tmp_path, matlab()))
    np.testing.assert_array_equal(found.images, np.concatenate([pictures(3, 1), pictures(2, 2)]))
    assert found.labels.tolist() == [0, 2, 1, 1, 0]
    assert writers_of(found) == [40, 41, 40, 7, 41]
    assert (found.name, found.classes) == ("emnist-letters", 3)
    assert load_images(write_mat(tmp_path, without("train", "writers"))).writer is None
    one = {name: values[:1] for name, values in matlab()["dataset"]["test"].items()}
    alone = load_images(write_mat(tmp_path, matlab(test=one)))
    np.testing.assert_array_equal(alone.images[3:], pictures(2, 2)[:1])


ODD = {"images": np.zeros((2, 35), np.uint8), "labels": np.ones((2, 1))}
MORE_LABELS = {"images": np.zeros((2, 36), np.uint8), "labels": np.ones((3, 1))}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": np.zeros(3)}, "not laid out as EMNIST's"),
        ({"dataset": np.zeros(3)}, "not laid out as EMNIST's"),
        (without("test", "labels"), "no field of name labels"),
        (matlab(mapping=np.zeros((0, 2))), "not laid out as EMNIST's"),
        (matlab(test=MORE_LABELS), "2 images and 3 labels"),
        (matlab(mapping=np.array([[1, 65], [2, 66]])), "label in row 1 is 2"),
        (matlab(train=ODD, test=ODD), "35 pixels make no square"),
    ],
)
def test_other_matlab_files(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    file = write_mat(tmp_path, content)
    refused(lambda: load_images(file), words)


# ---- FEMNIST ----

Content = dict[str, Any]


def strokes(count: int, seed: int) -> np.ndarray:
    """Ink high, on mostly empty paper, and different from the transpose."""
    random = np.random.default_rng([62, seed])
    ink = random.random((count, 5, 5)) < 0.2
    return np.where(ink, random.integers(100, 256, ink.shape), 0).astype(np.uint8)


def leaf(*writers: tuple[str, list[int]], seed: int = 0) -> Content:
    """White paper is 1 and ink is low, rows of fractions, as LEAF's script writes them."""
    content: Content = {"user_data": {}}
    for number, (name, labels) in enumerate(writers, seed):
        paper = (255 - strokes(len(labels), number).astype(int)) / 255
        content["user_data"][name] = {"x": paper.reshape(-1, 25).tolist(), "y": list(labels)}
    return content


def write_leaf(path: Path, content: Content) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


TWO = (("f0001_41", [3, 61, 9]), ("f0002_00", [10, 4]))
INK_OF_TWO = np.concatenate([strokes(3, 0), strokes(2, 1)])


def test_leaf_comes_out_with_ink_high(tmp_path: Path) -> None:
    file = tmp_path / "all_data_0.json"
    white, black = leaf(*TWO), leaf(*TWO)
    for writer in black["user_data"].values():
        writer["x"] = [[1 - value for value in row] for row in writer["x"]]
    for content in (white, black):
        found = load_images(write_leaf(file, content))
        np.testing.assert_array_equal(found.images, INK_OF_TWO)
        assert (found.labels.tolist(), found.classes) == ([3, 61, 9, 10, 4], 62)
        assert writers_of(found) == ["f0001_41"] * 3 + ["f0002_00"] * 2
    letters = ("f0003_00", [50, 51])
    digits = load_images(write_leaf(file, leaf(*TWO, letters)), classes=10)
    assert (digits.labels.tolist(), digits.classes) == ([3, 9, 4], 10)
    np.testing.assert_array_equal(digits.images, INK_OF_TWO[[0, 2, 4]])
    assert writers_of(digits) == ["f0001_41", "f0001_41", "f0002_00"]
    write_leaf(file, leaf(letters))
    refused(lambda: load_images(file, 10), "no samples of the classes asked for")


def test_the_files_of_a_folder_are_joined(tmp_path: Path) -> None:
    write_leaf(tmp_path / "own" / "all_data_0.json", leaf(TWO[0]))
    write_leaf(tmp_path / "own" / "all_data_1.json", leaf(TWO[1], seed=1))
    write_leaf(tmp_path / "own" / "deeper" / "again.json", leaf(*TWO))
    found = load_images(tmp_path / "own")
    np.testing.assert_array_equal(found.images, INK_OF_TWO)
    assert set(writers_of(found)) == {"f0001_41", "f0002_00"}
    # LEAF's own split, which has the same samples in all_data.
    write_leaf(tmp_path / "train" / "a.json", leaf(TWO[0]))
    write_leaf(tmp_path / "test" / "a.json", leaf(("f0001_41", [7]), seed=1))
    write_leaf(tmp_path / "all_data" / "a.json", leaf(*TWO))
    found = load_images(tmp_path)
    assert found.labels.tolist() == [3, 61, 9, 7]
    assert set(writers_of(found)) == {"f0001_41"}


def change(edit: Callable[[Content], Any]) -> Content:
    content = leaf(*TWO)
    edit(content)
    return content


def first(content: Content) -> Content:
    return content["user_data"]["f0001_41"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (leaf(("f0001_41", [1]), ("f0002_00", [])), "'f0002_00': x has shape .0,. and y .0,.;"),
        (change(lambda c: first(c)["y"].pop()), r"'f0001_41': x has shape \(3, 25\) and y \(2,\)"),
        (change(lambda c: first(c)["x"].pop()), r"'f0001_41': x has shape \(2, 25\) and y \(3,\)"),
        (change(lambda c: c.__setitem__("user_data", [*c["user_data"]])), "lacks LEAF's"),
        (change(lambda c: first(c).pop("x")), "writer 'f0001_41': x and y are no tables"),
        (change(lambda c: first(c)["x"][1].pop()), "writer 'f0001_41': x and y are no tables"),
        (change(lambda c: [row.pop() for row in first(c)["x"]]), "24 pixels make no square"),
        (change(lambda c: first(c)["x"][0].__setitem__(0, 255)), "between .* and 255"),
        (change(lambda c: first(c)["x"][0].__setitem__(0, float("nan"))), "nan"),
        (change(lambda c: first(c)["y"].__setitem__(0, 62)), "whole numbers from 0 to 61"),
        (change(lambda c: first(c)["y"].__setitem__(0, -1)), "whole numbers from 0 to 61"),
        (change(lambda c: first(c)["y"].__setitem__(0, 1.5)), "whole numbers from 0 to 61"),
        (change(lambda c: first(c).__setitem__("y", [[1], [2], [3]])), r"y \(3, 1\);"),
        ({}, "lacks LEAF's"),
    ],
)
def test_broken_leaf_files(tmp_path: Path, content: Content, words: str) -> None:
    file = write_leaf(tmp_path / "all_data_0.json", content)
    for classes in (None, 2):  # with digits only the faults in what is dropped are found, too
        refused(lambda classes=classes: load_images(file, classes), words, str(file))


@pytest.mark.parametrize("text", ["", '{"users": ["f00', "[1, 2]", "\xff\xfe", "[" * 100_000])
def test_what_is_not_leafs_json(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text.encode("latin-1"))
    refused(lambda: load_images(file), r"no complete JSON file|lacks LEAF's")


def png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def drawn(images: np.ndarray) -> list[dict[str, Any]]:
    return [{"bytes": png(image), "path": None} for image in images]


def write_parquet(file: Path, labels: list[Any], seed: int = 0, **changes: Any) -> Path:
    """The layout of flwrlabs/femnist; a column given as None is left out."""
    arrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    columns = {
        "image": drawn(255 - strokes(len(labels), seed)),
        "writer_id": [f"f000{number % 2}_14" for number in range(len(labels))],
        "hsf_id": [0] * len(labels),
        "character": labels,
    } | changes
    file.parent.mkdir(parents=True, exist_ok=True)
    # Several row groups, as large files have them.
    parquet.write_table(
        arrow.table({k: v for k, v in columns.items() if v is not None}), file, row_group_size=2
    )
    return file


FIVE = [3, 61, 9, 10, 4]


@pytest.mark.parametrize("batch", [2, 4096])
def test_parquet_comes_out_with_ink_high(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr("pacpfl.data.image_files._BATCH", batch)
    file = write_parquet(tmp_path / "femnist.parquet", FIVE)
    found = load_images(file)
    np.testing.assert_array_equal(found.images, strokes(5, 0))
    assert (found.labels.tolist(), found.classes) == (FIVE, 62)
    assert writers_of(found) == ["f0000_14", "f0001_14", "f0000_14", "f0001_14", "f0000_14"]
    rows = drawn(255 - strokes(5, 0))
    rows[3]["bytes"] = rows[3]["bytes"][:40]
    write_parquet(file, FIVE, image=rows)
    refused(lambda: load_images(file), "the image in row 3 cannot be decoded")
    digits = load_images(file, classes=10)  # no letters are decoded
    np.testing.assert_array_equal(digits.images, strokes(5, 0)[[0, 2, 4]])
    assert digits.labels.tolist() == [3, 9, 4]
    assert writers_of(digits) == ["f0000_14"] * 3


@pytest.mark.parametrize("below", ["", "data"])
def test_a_folder_of_parquet(tmp_path: Path, below: str) -> None:
    write_parquet(tmp_path / below / "train-00000-of-00002.parquet", [1, 2])
    write_parquet(tmp_path / below / "train-00001-of-00002.parquet", [3, 4], seed=9)
    found = load_images(tmp_path)
    assert found.labels.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(found.images, np.concatenate([strokes(2, 0), strokes(2, 9)]))


NO_IMAGE = {"bytes": b"", "path": None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"writer_id": None}, "lacks writer_id"),
        (
            {"image": None, "character": None, "pixels": [1, 2]},
            "writer_id.* lacks image.bytes, char",
        ),
        ({"image": [b"one", b"two"]}, "lacks image.bytes"),
        ({"character": ["a", "b"]}, "labels must be whole numbers from 0 to 61"),
        ({"character": [1, 62]}, "labels must be whole numbers from 0 to 61"),
        ({"character": [1, None]}, "column 'character' has gaps"),
        ({"writer_id": [None, "f0000_14"]}, "column 'writer_id' has gaps"),
        ({"image": [None, NO_IMAGE]}, "column 'image' has gaps"),
        ({"image": [{"bytes": None, "path": "a.png"}] * 2}, "in row 0 cannot be decoded"),
    ],
)
def test_other_parquet(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    file = write_parquet(tmp_path / "other.parquet", [1, 2], **changes)
    refused(lambda: load_images(file), words, str(file))


def test_an_empty_parquet_file(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    kinds = {"image": arrow.struct({"bytes": arrow.binary()}), "writer_id": arrow.string()}
    empty = {name: arrow.array([], kind) for name, kind in kinds.items()}
    labels = arrow.array([], arrow.int64())
    file = write_parquet(tmp_path / "a.parquet", [], **empty, character=labels)
    refused(lambda: load_images(file), "holds no samples")


@pytest.mark.parametrize("package", ["pyarrow", "PIL.Image"])
def test_a_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    pytest.importorskip("pyarrow")
    monkeypatch.setitem(sys.modules, package, None)
    refused(lambda: load_images(tmp_path / "a.parquet"), "pip install pyarrow pillow")


# ---- all formats ----


@pytest.mark.parametrize("part", [0.0, 0.5, 0.8])
def test_truncated_files(tmp_path: Path, part: float) -> None:
    for file, words in (
        (write_npz(tmp_path), r"cannot be read as \.npz"),
        (write_mat(tmp_path, matlab()), "cannot be read as a Matlab file"),
        (write_parquet(tmp_path / "a.parquet", FIVE), "no sound Parquet file"),
        (write_leaf(tmp_path / "a.json", leaf(*TWO)), "no complete JSON file"),
    ):
        refused(lambda file=file: load_images(cut(file, part)), words)


def test_images_of_different_sizes(tmp_path: Path) -> None:
    write_pair(tmp_path, "emnist-digits-train", pictures(1), [1])
    small = struct.pack(">IIII", 0x803, 1, 2, 2) + bytes(4)
    (tmp_path / "emnist-digits-test-images-idx3-ubyte").write_bytes(small)
    (tmp_path / "emnist-digits-test-labels-idx1-ubyte").write_bytes(idx_labels([0]))
    other = change(lambda c: first(c).__setitem__("x", [[0.5] * 16] * 3))
    rows = [row for side in (4, 5) for row in drawn(np.zeros((1, side, side), np.uint8))]
    for path in (
        tmp_path,
        write_leaf(tmp_path / "a.json", other),
        write_parquet(tmp_path / "a.parquet", [1, 2], image=rows),
    ):
        refused(lambda path=path: load_images(path), "differ in size")


def test_a_file_is_recognised_by_its_content(tmp_path: Path) -> None:
    for file in (
        write_npz(tmp_path),
        write_mat(tmp_path, matlab()),
        write_leaf(tmp_path / "a.json", leaf(*TWO)),
        write_parquet(tmp_path / "a.parquet", FIVE),
    ):
        found = load_images(file)
        renamed = load_images(file.rename(tmp_path / "renamed"))
        np.testing.assert_array_equal(renamed.images, found.images)
        np.testing.assert_array_equal(renamed.labels, found.labels)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_idx_file_by_another_name(tmp_path: Path, pack: Any) -> None:
    file = tmp_path / "renamed"
    file.write_bytes(pack(struct.pack(">IIII", 0x803, 1, 1, 1) + b"\0"))
    refused(lambda: load_images(file), "not named as idx images are")


def test_what_is_no_file_of_images(tmp_path: Path) -> None:
    file = tmp_path / "images.csv"
    for content in (b"", b"\x89PNG\r\n", b"label,pixel0\n3,0\n"):
        file.write_bytes(content)
        refused(lambda: load_images(file), r"images\.csv is of no format that can be read")
    refused(lambda: load_images(tmp_path), "holds no images")
    for name in ("nowhere", "nowhere.npz", "emnist-mnist-train-images-idx3-ubyte"):
        refused(lambda name=name: load_images(tmp_path / name), "There is no file or folder")
