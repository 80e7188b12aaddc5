"""EMNIST's files, written here byte by byte as NIST writes them, sound and broken."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from pacpfl.data.image_files import is_idx, load_images, read_idx, read_mat
from pacpfl.errors import InputError

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
    folder.mkdir(exist_ok=True)
    emnist = stem.startswith("emnist")
    values = by_columns(images) if emnist else images.reshape(-1).tolist()
    suffix = ".gz" if packed else ""
    file = folder / f"{stem}-images-idx3-ubyte{suffix}"
    pack: Callable[[bytes], bytes] = gzip.compress if packed else bytes
    file.write_bytes(pack(idx_images(values, len(images))))
    (folder / f"{stem}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_labels(labels)))
    return file


@pytest.mark.parametrize("packed", [False, True])
def test_emnist_comes_out_upright(tmp_path: Path, packed: bool) -> None:
    images = pictures(3)
    file = write_pair(tmp_path, "emnist-byclass-test", images, [0, 61, 35], packed)
    found = read_idx(file)
    np.testing.assert_array_equal(found.images, images)
    assert found.labels.tolist() == [0, 61, 35]
    assert found.classes == 62
    assert found.writer is None


def test_mnist_is_upright_already(tmp_path: Path) -> None:
    images = pictures(2)
    found = load_images(write_pair(tmp_path, "t10k", images, [9, 3]))
    np.testing.assert_array_equal(found.images, images)
    assert found.classes == 10


def test_a_folder_holds_training_and_test_pairs(tmp_path: Path) -> None:
    train, test = pictures(3, 1), pictures(2, 2)
    write_pair(tmp_path, "emnist-digits-train", train, [1, 2, 3])
    write_pair(tmp_path, "emnist-digits-test", test, [4, 5])
    (tmp_path / "emnist-digits-mapping.txt").write_text("0 48\n")
    found = load_images(tmp_path)
    np.testing.assert_array_equal(found.images, np.concatenate([test, train]))
    assert found.labels.tolist() == [4, 5, 1, 2, 3]
    assert found.classes == 10


def test_a_pair_that_lies_there_packed_and_unpacked_counts_once(tmp_path: Path) -> None:
    for packed in (False, True):
        write_pair(tmp_path, "emnist-mnist-train", pictures(3), [1, 2, 3], packed)
    assert read_idx(tmp_path).labels.tolist() == [1, 2, 3]


def test_letters_count_from_one(tmp_path: Path) -> None:
    found = load_images(write_pair(tmp_path, "emnist-letters-train", pictures(2), [1, 26]))
    assert found.labels.tolist() == [0, 25]
    assert found.classes == 26


def test_names_with_a_dot(tmp_path: Path) -> None:
    images = pictures(1)
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(idx_images(images.reshape(-1).tolist(), 1))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(idx_labels([4]))
    np.testing.assert_array_equal(read_idx(tmp_path / "t10k-images.idx3-ubyte").images, images)


def test_which_names_are_images() -> None:
    assert is_idx(Path("emnist-byclass-train-images-idx3-ubyte.gz"))
    assert not is_idx(Path("emnist-byclass-train-labels-idx1-ubyte.gz"))
    assert not is_idx(Path("images.npz"))


def test_several_splits_in_one_folder(tmp_path: Path) -> None:
    write_pair(tmp_path, "emnist-digits-train", pictures(1), [1])
    write_pair(tmp_path, "emnist-letters-train", pictures(1), [1])
    with pytest.raises(InputError, match=r"several sets \(digits, letters\)"):
        load_images(tmp_path)


def test_pairs_of_different_sizes(tmp_path: Path) -> None:
    write_pair(tmp_path, "emnist-digits-train", pictures(1), [1])
    (tmp_path / "emnist-digits-test-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 0x803, 1, 2, 2) + bytes(4)
    )
    (tmp_path / "emnist-digits-test-labels-idx1-ubyte").write_bytes(idx_labels([0]))
    with pytest.raises(InputError, match="differ in size"):
        load_images(tmp_path)


IMAGES = idx_images(by_columns(pictures(2)), 2)
LABELS = idx_labels([3, 4])
PACKED = gzip.compress(IMAGES, mtime=0)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES[:-1], LABELS, r"images-idx3-ubyte has 87 bytes where its header announces 88"),
        (IMAGES + b"\0", LABELS, "has 89 bytes where its header announces 88"),
        (IMAGES[:9], LABELS, "has 9 bytes"),
        (IMAGES, LABELS[:-1], "labels-idx1-ubyte has 9 bytes where its header announces 10"),
        (b"", LABELS, "starts with nothing"),
        (LABELS, LABELS, "starts with 00 00 08 01, not 00 00 08 03"),
        (idx_images([0] * 72, 2, 0x0D03), LABELS, "starts with 00 00 0d 03"),
        (IMAGES, IMAGES, "labels-idx1-ubyte starts with 00 00 08 03, not 00 00 08 01"),
        (IMAGES, idx_labels([3, 4, 5]), "holds 2 images and .* 3 labels"),
        (IMAGES, idx_labels([3, 10]), "label in row 1 is 10, and classes are numbered from 0 to 9"),
        (PACKED[:-9], LABELS, "damaged"),
        (PACKED[:20] + bytes(20) + PACKED[40:], LABELS, "damaged"),
        (PACKED[:-8] + bytes(8), LABELS, "damaged"),
        (
            struct.pack(">IIII", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1),
            LABELS,
            "header announces 79228",
        ),
        (idx_images([], 0), idx_labels([]), "shape"),
    ],
)
def test_broken_pairs(tmp_path: Path, images: bytes, labels: bytes, words: str) -> None:
    (tmp_path / "emnist-digits-train-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "emnist-digits-train-labels-idx1-ubyte").write_bytes(labels)
    for path in (tmp_path, tmp_path / "emnist-digits-train-images-idx3-ubyte"):
        with pytest.raises(InputError, match=words) as caught:
            load_images(path)
        assert "\n" not in str(caught.value)


def test_labels_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "emnist-digits-train-images-idx3-ubyte"
    file.write_bytes(IMAGES)
    with pytest.raises(InputError, match="put emnist-digits-train-labels-idx1-ubyte"):
        load_images(file)


def test_the_labels_were_given(tmp_path: Path) -> None:
    write_pair(tmp_path, "emnist-digits-train", pictures(1), [1], packed=False)
    with pytest.raises(InputError, match="give the file of images"):
        load_images(tmp_path / "emnist-digits-train-labels-idx1-ubyte")


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
    file = folder / "emnist-letters.mat"
    savemat(file, content, do_compression=True)
    return file


def test_matlab_files(tmp_path: Path) -> None:
    found = load_images(write_mat(tmp_path, matlab()))
    np.testing.assert_array_equal(found.images, np.concatenate([pictures(3, 1), pictures(2, 2)]))
    assert found.labels.tolist() == [0, 2, 1, 1, 0]
    assert found.writer is not None
    assert found.writer.tolist() == [40, 41, 40, 7, 41]
    assert found.classes == 3
    assert found.name == "emnist-letters"


def test_a_matlab_part_with_one_image(tmp_path: Path) -> None:
    one = matlab()["dataset"]["test"]
    one = {name: values[:1] for name, values in one.items()}
    found = read_mat(write_mat(tmp_path, matlab(test=one)))
    np.testing.assert_array_equal(found.images[3:], pictures(2, 2)[:1])


def without(part: str, name: str) -> dict[str, Any]:
    content = matlab()
    del content["dataset"][part][name]
    return content


def test_matlab_without_writers(tmp_path: Path) -> None:
    content = without("train", "writers")
    assert read_mat(write_mat(tmp_path, content)).writer is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": np.zeros(3)}, "not laid out as EMNIST's"),
        ({"dataset": np.zeros(3)}, "not laid out as EMNIST's"),
        (without("test", "labels"), "'labels'"),
        (matlab(mapping=np.zeros((0, 2))), "not laid out as EMNIST's"),
        (
            matlab(test={"images": np.zeros((2, 36), np.uint8), "labels": np.ones((3, 1))}),
            "2 images and 3 labels",
        ),
        (matlab(mapping=np.array([[1, 65], [2, 66]])), "label in row 1 is 2"),
    ],
)
def test_other_matlab_files(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_images(write_mat(tmp_path, content))


def test_matlab_images_that_are_not_square(tmp_path: Path) -> None:
    part = {
        "images": np.zeros((2, 35), np.uint8),
        "labels": np.ones((2, 1)),
        "writers": np.ones((2, 1)),
    }
    with pytest.raises(InputError, match="35 pixels make no square"):
        read_mat(write_mat(tmp_path, matlab(train=part, test=part)))


@pytest.mark.parametrize("part", [0.0, 0.3, 0.8])
def test_a_truncated_matlab_file(tmp_path: Path, part: float) -> None:
    file = write_mat(tmp_path, matlab())
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with pytest.raises(InputError, match="cannot be read as a Matlab file"):
        load_images(file)
