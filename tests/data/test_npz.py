"""Images in .npz: what is read, what is refused, and that nothing is ever unpickled."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pacpfl.data.image_files import read_npz, to_bytes
from pacpfl.errors import InputError

PIXELS = np.random.default_rng(7).integers(0, 256, (5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 1, 0])
WRITER = np.array([1, 0, 0, 1, 1])


def save(path: Path, **arrays: Any) -> Path:
    file = path / "set.npz"
    np.savez(file, **({"images": PIXELS, "labels": LABELS} | arrays))
    return file


class Touch:
    """Unpickling it makes a file: the trace of code that ran."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_arrays_come_back_as_they_were_saved(tmp_path: Path) -> None:
    found = read_npz(save(tmp_path, writer=WRITER, classes=4, anything=np.zeros(3)))
    np.testing.assert_array_equal(found.images, PIXELS)
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_array_equal(found.writer, WRITER)
    assert found.classes == 4
    assert found.images.dtype == np.uint8


def test_without_writers_and_classes(tmp_path: Path) -> None:
    found = read_npz(save(tmp_path))
    assert found.writer is None
    assert found.classes is None


def test_writers_are_called_by_their_names(tmp_path: Path) -> None:
    found = read_npz(save(tmp_path, writer=WRITER, writer_names=np.array(["ann", "bob"])))
    assert found.writer is not None
    assert found.writer.tolist() == ["bob", "ann", "ann", "bob", "bob"]


def test_fractions_become_bytes() -> None:
    every = np.arange(256)
    assert to_bytes((every / 255).astype(np.float32), "set").tolist() == every.tolist()
    assert to_bytes(np.array([0.1, 0.5, 0.999]), "set").tolist() == [26, 128, 255]
    assert to_bytes(np.array([0, 7, 255], np.int64), "set").tolist() == [0, 7, 255]


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.array([0, 256]), "between 0 and 256"),
        (np.array([-1, 3]), "between -1 and 3"),
        (np.array([0.0, 1.01]), "between 0.0 and 1.01"),
        (np.array([0.0, np.nan]), "nan"),
        (np.array(["a"]), "of type <U1"),
    ],
)
def test_pixels_out_of_range(pixels: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        to_bytes(pixels, "set")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": PIXELS * 2.0}, "pixels lie between"),
        ({"classes": np.array([3, 4])}, "'classes' must be one whole number"),
        ({"classes": np.array(2.5)}, "'classes' must be one whole number"),
        (
            {"writer": WRITER, "writer_names": np.array(["a", "b", "c"])},
            "writer 'c' has no samples",
        ),
        ({"writer": WRITER, "writer_names": np.array(["a"])}, "'writer' holds 1, and .* 1 names"),
        ({"writer": WRITER - 1, "writer_names": np.array(["a", "b"])}, "'writer' holds -1"),
        ({"writer": WRITER, "writer_names": np.array(["a", "a"])}, "a name twice"),
        ({"writer": WRITER / 2, "writer_names": np.array(["a", "b"])}, "positions"),
    ],
)
def test_arrays_that_cannot_be_used(
    tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    file = save(tmp_path, **arrays)
    with pytest.raises(InputError, match=words) as caught:
        read_npz(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["images", "labels"])
def test_an_array_is_missing(tmp_path: Path, name: str) -> None:
    file = tmp_path / "set.npz"
    np.savez(file, **{k: v for k, v in (("images", PIXELS), ("labels", LABELS)) if k != name})
    with pytest.raises(InputError, match=f"no array called '{name}'"):
        read_npz(file)


def test_pickled_arrays_are_refused_and_do_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    file = save(tmp_path, labels=np.array([Touch(trace)], object))
    with pytest.raises(InputError, match="pickled objects, and those are never loaded"):
        read_npz(file)
    assert not trace.exists()


def test_a_pickle_in_disguise_is_refused_and_does_not_run(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace", tmp_path / "set.npz"
    file.write_bytes(pickle.dumps(Touch(trace)))
    with pytest.raises(InputError, match="never loaded"):
        read_npz(file)
    assert not trace.exists()


@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_a_truncated_file(tmp_path: Path, part: float) -> None:
    file = save(tmp_path)
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        read_npz(file)


def test_damaged_bytes(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    np.savez_compressed(file, images=np.tile(PIXELS, (40, 1, 1)), labels=np.tile(LABELS, 40))
    content = bytearray(file.read_bytes())
    content[90:120] = bytes(30)
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        read_npz(file)


def test_a_single_array_is_not_a_set(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    with open(file, "wb") as stream:
        np.save(stream, PIXELS)
    with pytest.raises(InputError, match="a single array"):
        read_npz(file)
