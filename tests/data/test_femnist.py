"""FEMNIST's two forms, written here as LEAF and Hugging Face write them, sound and broken."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pacpfl.data.image_files import load_images, read_femnist
from pacpfl.errors import InputError

SIDE = 5
Content = dict[str, Any]


def strokes(count: int, seed: int) -> np.ndarray:
    """Ink high, on mostly empty paper, and different from the transpose."""
    random = np.random.default_rng([62, seed])
    ink = random.random((count, SIDE, SIDE)) < 0.2
    return np.where(ink, random.integers(100, 256, ink.shape), 0).astype(np.uint8)


def leaf(*writers: tuple[str, list[int]], seed: int = 0) -> Content:
    """White paper is 1 and ink is low, rows of fractions, as LEAF's script writes them."""
    return {
        "users": [name for name, _ in writers],
        "num_samples": [len(labels) for _, labels in writers],
        "user_data": {
            name: {
                "x": [
                    [(255 - int(value)) / 255 for row in image for value in row]
                    for image in strokes(len(labels), seed + number)
                ],
                "y": list(labels),
            }
            for number, (name, labels) in enumerate(writers)
        },
    }


def write_leaf(path: Path, content: Content) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


TWO = (("f0001_41", [3, 61, 9]), ("f0002_00", [10, 4]))


def test_leaf_comes_out_with_ink_high(tmp_path: Path) -> None:
    found = load_images(write_leaf(tmp_path / "all_data_0.json", leaf(*TWO)))
    np.testing.assert_array_equal(found.images, np.concatenate([strokes(3, 0), strokes(2, 1)]))
    assert found.labels.tolist() == [3, 61, 9, 10, 4]
    assert found.writer is not None
    assert found.writer.tolist() == ["f0001_41"] * 3 + ["f0002_00"] * 2
    assert found.classes == 62


def test_leaf_that_has_ink_high_already_stays(tmp_path: Path) -> None:
    content = leaf(*TWO)
    for writer in content["user_data"].values():
        writer["x"] = [[1 - value for value in row] for row in writer["x"]]
    found = load_images(write_leaf(tmp_path / "all_data_0.json", content))
    np.testing.assert_array_equal(found.images, np.concatenate([strokes(3, 0), strokes(2, 1)]))


def test_digits_only(tmp_path: Path) -> None:
    only_letters = ("f0003_00", [50, 51])
    found = load_images(write_leaf(tmp_path / "a.json", leaf(*TWO, only_letters)), classes=10)
    assert found.labels.tolist() == [3, 9, 4]
    np.testing.assert_array_equal(
        found.images, np.concatenate([strokes(3, 0)[[0, 2]], strokes(2, 1)[[1]]])
    )
    assert found.writer is not None
    assert found.writer.tolist() == ["f0001_41", "f0001_41", "f0002_00"]
    assert found.classes == 10


def test_no_digit_at_all(tmp_path: Path) -> None:
    file = write_leaf(tmp_path / "a.json", leaf(("f0003_00", [50, 51])))
    with pytest.raises(InputError, match="no samples of the classes asked for"):
        load_images(file, classes=10)


def test_the_files_of_a_folder_are_joined(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all_data_0.json", leaf(TWO[0]))
    write_leaf(tmp_path / "all_data_1.json", leaf(TWO[1], seed=1))
    write_leaf(tmp_path / "deeper" / "again.json", leaf(*TWO))
    found = load_images(tmp_path)
    np.testing.assert_array_equal(found.images, np.concatenate([strokes(3, 0), strokes(2, 1)]))
    assert len(set(found.writer.tolist() if found.writer is not None else [])) == 2


def test_leafs_own_split_is_joined(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train" / "a.json", leaf(TWO[0]))
    write_leaf(tmp_path / "test" / "a.json", leaf(("f0001_41", [7]), seed=1))
    write_leaf(tmp_path / "all_data" / "a.json", leaf(*TWO))
    found = load_images(tmp_path)
    assert found.labels.tolist() == [3, 61, 9, 7]
    assert set(found.writer.tolist() if found.writer is not None else []) == {"f0001_41"}


def change(edit: Callable[[Content], Any]) -> Content:
    content = leaf(*TWO)
    edit(content)
    return content


def first(content: Content) -> Content:
    return content["user_data"]["f0001_41"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (leaf(("f0001_41", [1]), ("f0002_00", [])), "writer 'f0002_00': has no samples"),
        (
            change(lambda c: c["num_samples"].__setitem__(0, 4)),
            "writer 'f0001_41': 3 images and 3 ",
        ),
        (change(lambda c: first(c)["y"].pop()), "3 images and 2 labels where num_samples says 3"),
        (change(lambda c: first(c)["x"].pop()), "2 images and 3 labels where num_samples says 3"),
        (change(lambda c: c["num_samples"].pop()), "2 users with 1 numbers of samples"),
        (change(lambda c: c["user_data"].pop("f0002_00")), "data of 1"),
        (change(lambda c: c["users"].append("f0001_41")), "3 users"),
        (change(lambda c: c.__setitem__("user_data", c["users"])), "lacks LEAF's"),
        (change(lambda c: c.pop("users")), "lacks LEAF's users"),
        (change(lambda c: first(c).pop("x")), "writer 'f0001_41': lacks the lists"),
        (change(lambda c: first(c)["x"][1].pop()), "writer 'f0001_41': the images are not rows"),
        (change(lambda c: [row.pop() for row in first(c)["x"]]), "square number of pixels"),
        (change(lambda c: first(c)["x"][0].__setitem__(0, 255)), "between .* and 255"),
        (change(lambda c: first(c)["x"][0].__setitem__(0, float("nan"))), "nan"),
        (change(lambda c: first(c)["y"].__setitem__(0, 62)), "whole numbers from 0 to 61"),
        (change(lambda c: first(c)["y"].__setitem__(0, -1)), "whole numbers from 0 to 61"),
        (change(lambda c: first(c)["y"].__setitem__(0, 1.5)), "whole numbers from 0 to 61"),
        (change(lambda c: first(c).__setitem__("y", [[1], [2], [3]])), "labels of shape"),
        ({}, "lacks LEAF's"),
    ],
)
def test_broken_leaf_files(tmp_path: Path, content: Content, words: str) -> None:
    file = write_leaf(tmp_path / "all_data_0.json", content)
    # Digits only, and still every fault is found: also in what would be dropped.
    for classes in (None, 2):
        with pytest.raises(InputError, match=words) as caught:
            load_images(file, classes)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_writers_with_images_of_different_sizes(tmp_path: Path) -> None:
    content = leaf(*TWO)
    first(content)["x"] = [[0.5] * 16] * 3
    with pytest.raises(InputError, match="differ in size"):
        read_femnist(write_leaf(tmp_path / "a.json", content), ".json")


@pytest.mark.parametrize("text", ["", '{"users": ["f00', "[1, 2]", "\xff\xfe", "[" * 100_000])
def test_what_is_not_leafs_json(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"no complete JSON file|lacks LEAF's"):
        load_images(file)


def png(image: np.ndarray) -> bytes:
    pillow = pytest.importorskip("PIL.Image", reason="the optional package pillow is not installed")
    stream = io.BytesIO()
    pillow.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def write_parquet(file: Path, labels: list[Any], seed: int = 0, **changes: Any) -> Path:
    """The layout of flwrlabs/femnist; a column given as None is left out."""
    arrow = pytest.importorskip("pyarrow", reason="the optional package pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "image": [
            {"bytes": png(255 - image), "path": None} for image in strokes(len(labels), seed)
        ],
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


LABELS = [3, 61, 9, 10, 4]


def test_parquet_comes_out_with_ink_high(tmp_path: Path) -> None:
    found = load_images(write_parquet(tmp_path / "femnist.parquet", LABELS))
    np.testing.assert_array_equal(found.images, strokes(5, 0))
    assert found.labels.tolist() == LABELS
    assert found.writer is not None
    assert found.writer.tolist() == ["f0000_14", "f0001_14", "f0000_14", "f0001_14", "f0000_14"]
    assert found.classes == 62


def test_parquet_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_parquet(tmp_path / "femnist.parquet", LABELS)
    monkeypatch.setattr("pacpfl.data.image_files._BATCH", 2)
    np.testing.assert_array_equal(read_femnist(file, ".parquet").images, strokes(5, 0))


def test_parquet_digits_only_decodes_no_letters(tmp_path: Path) -> None:
    rows = [{"bytes": png(255 - image), "path": None} for image in strokes(5, 0)]
    rows[1]["bytes"] = b"not an image"  # label 61
    file = write_parquet(tmp_path / "femnist.parquet", LABELS, image=rows)
    found = load_images(file, classes=10)
    np.testing.assert_array_equal(found.images, strokes(5, 0)[[0, 2, 4]])
    assert found.labels.tolist() == [3, 9, 4]
    assert found.writer is not None
    assert found.writer.tolist() == ["f0000_14"] * 3
    with pytest.raises(InputError, match="the image in row 1 cannot be decoded"):
        load_images(file)


def test_the_image_that_fails_is_named_by_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"bytes": png(image), "path": None} for image in strokes(5, 0)]
    rows[4]["bytes"] = rows[4]["bytes"][:40]
    file = write_parquet(tmp_path / "femnist.parquet", LABELS, image=rows)
    monkeypatch.setattr("pacpfl.data.image_files._BATCH", 2)
    with pytest.raises(InputError, match="the image in row 4 cannot be decoded"):
        read_femnist(file, ".parquet")


@pytest.mark.parametrize("below", ["", "data"])
def test_a_folder_of_parquet(tmp_path: Path, below: str) -> None:
    write_parquet(tmp_path / below / "train-00000-of-00002.parquet", [1, 2])
    write_parquet(tmp_path / below / "train-00001-of-00002.parquet", [3, 4], seed=9)
    found = load_images(tmp_path)
    assert found.labels.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(found.images, np.concatenate([strokes(2, 0), strokes(2, 9)]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"writer_id": None}, "lacks writer_id"),
        (
            {"image": None, "character": None, "pixels": [1, 2]},
            "columns writer_id.* and lacks image, char",
        ),
        ({"image": [b"one", b"two"]}, "column 'image' is binary"),
        ({"character": ["a", "b"]}, "labels must be whole numbers from 0 to 61"),
        ({"character": [1, 62]}, "labels must be whole numbers from 0 to 61"),
        ({"character": [1, None]}, "column 'character' has gaps"),
        ({"writer_id": [None, "f0000_14"]}, "column 'writer_id' has gaps"),
        ({"image": [None, {"bytes": b"", "path": None}]}, "column 'image' has gaps"),
        ({"image": [{"bytes": None, "path": "a.png"}] * 2}, "in row 0 cannot be decoded"),
    ],
)
def test_other_parquet(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    file = write_parquet(tmp_path / "other.parquet", [1, 2], **changes)
    with pytest.raises(InputError, match=words) as caught:
        load_images(file)
    assert str(file) in str(caught.value)


def test_images_of_different_sizes(tmp_path: Path) -> None:
    rows = [{"bytes": png(np.zeros((side, side), np.uint8)), "path": None} for side in (4, 5)]
    with pytest.raises(InputError, match="differ in size"):
        load_images(write_parquet(tmp_path / "a.parquet", [1, 2], image=rows))


def test_an_empty_parquet_file(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    kinds = {"image": arrow.struct({"bytes": arrow.binary()}), "writer_id": arrow.string()}
    empty = {name: arrow.array([], kind) for name, kind in kinds.items()}
    file = write_parquet(
        tmp_path / "a.parquet", [], **empty, character=arrow.array([], arrow.int64())
    )
    with pytest.raises(InputError, match="holds no samples"):
        read_femnist(file, ".parquet")


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_truncated_parquet(tmp_path: Path, part: float) -> None:
    file = write_parquet(tmp_path / "a.parquet", LABELS)
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with pytest.raises(InputError, match="no sound Parquet file"):
        load_images(file)


@pytest.mark.parametrize("package", ["pyarrow", "PIL.Image"])
def test_a_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    pytest.importorskip("pyarrow")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match="pip install pyarrow pillow"):
        load_images(tmp_path / "a.parquet")
