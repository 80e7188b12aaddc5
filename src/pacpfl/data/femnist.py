"""FEMNIST (Caldas et al., 2018): characters of some 3,600 writers, in the two forms in which it is shared.

LEAF writes JSON files of up to a hundred writers each: `users`, `num_samples`, and `user_data` with, for
each writer, `x` (rows of 784 fractions) and `y`. Hugging Face (flwrlabs/femnist) has Parquet with
a PNG per row: `image` {bytes, path}, `writer_id`, `hsf_id`, `character`. In both the labels are 0-9
for digits, 10-35 for A-Z and 36-61 for a-z, and the paper is white: here ink is high, as in MNIST.

Files are read one at a time, and `keep` drops other classes at once (10: digits only), so that the
whole set never lies in memory as text.
"""

from __future__ import annotations

import importlib
import io
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pacpfl.data.npz import Arrays, to_bytes
from pacpfl.errors import InputError

CLASSES = 62
_BATCH = 4096  # rows of Parquet decoded at a time
_COLUMNS = ("image", "writer_id", "character")

# Some samples of one file: images [m, H, W], labels [m], writers [m].
_Part = tuple[np.ndarray, np.ndarray, np.ndarray]


def read_leaf(path: Path, keep: int = CLASSES) -> Arrays:
    """A file; a folder's own files; or, where it has none, those of its folders train and test."""
    return _join(path, [part for file in leaf_files(path) for part in _leaf_parts(file, keep)])


def leaf_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # Not deeper: LEAF leaves the same samples in all_data, sampled_data and train.
    own = sorted(path.glob("*.json"))
    return own or [
        file for part in ("train", "test") for file in sorted((path / part).glob("*.json"))
    ]


def read_parquet(path: Path, keep: int = CLASSES) -> Arrays:
    """A file, or all Parquet files of a folder."""
    return _join(
        path, [part for file in parquet_files(path) for part in _parquet_parts(file, keep)]
    )


def parquet_files(path: Path) -> list[Path]:
    """A folder's own files, or those of its folder `data`, where Hugging Face keeps them."""
    if not path.is_dir():
        return [path]
    return sorted(path.glob("*.parquet")) or sorted((path / "data").glob("*.parquet"))


def _join(path: Path, parts: list[_Part]) -> Arrays:
    if not parts:
        raise InputError(f"{path} holds no samples of the classes asked for; ask for more classes.")
    if len({images.shape[1:] for images, _, _ in parts}) > 1:
        raise InputError(f"The images in {path} differ in size; give files of one set.")
    images, labels, writer = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Most of a sheet is paper: a bright mean says that the paper is white.
    if images.mean() > 127.5:
        np.subtract(255, images, out=images)
    return Arrays(images, labels, writer, CLASSES)


def _leaf_parts(file: Path, keep: int) -> Iterator[_Part]:
    """One part per writer, after the whole file was found to be sound."""
    try:
        with open(file, encoding="utf-8") as stream:
            content = json.load(stream, object_hook=_compact)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{file} is no complete JSON file ({error}); make or copy it again."
        ) from error
    try:
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        if not len(users) == len(counts) == len(data) or set(users) != data.keys():
            raise InputError(
                f"{file} lists {len(users)} users with {len(counts)} numbers of samples and data of "
                f"{len(data)}; make the file again with LEAF's scripts."
            )
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} lacks LEAF's users, num_samples and user_data; give a file that LEAF's scripts wrote."
        ) from error
    parts = [
        _leaf_writer(file, str(user), count, data[user])
        for user, count in zip(users, counts, strict=True)
    ]
    for user, (images, labels) in zip(users, parts, strict=True):
        chosen = labels < keep
        if chosen.any():
            yield images[chosen], labels[chosen], np.full(int(chosen.sum()), str(user))


def _compact(entry: dict[str, Any]) -> dict[str, Any]:
    """Turns a writer's lists into arrays while the file is being read: an eighth of the memory."""
    if entry.keys() >= {"x", "y"}:
        try:
            return {"x": np.asarray(entry["x"], np.float32), "y": np.asarray(entry["y"])}
        except (TypeError, ValueError):  # ragged, or no numbers; the writer's check says so
            return entry
    return entry


def _leaf_writer(file: Path, user: str, count: Any, entry: Any) -> tuple[np.ndarray, np.ndarray]:
    origin = f"{file}, writer {user!r}"
    try:
        x, y = entry["x"], entry["y"]
        found = (len(x), len(y))
    except (KeyError, TypeError) as error:
        raise InputError(f"{origin}: lacks the lists x and y; make the file again.") from error
    if found != (count, count):
        raise InputError(
            f"{origin}: {found[0]} images and {found[1]} labels where num_samples says {count}; make the "
            "file again."
        )
    if count == 0:
        raise InputError(f"{origin}: has no samples; leave the writer out.")
    side = round(x.shape[1] ** 0.5) if isinstance(x, np.ndarray) and x.ndim == 2 else 0
    if not side or side * side != x.shape[1]:
        raise InputError(
            f"{origin}: the images are not rows of a square number of pixels (784 in LEAF)."
        )
    if y.ndim != 1:
        raise InputError(f"{origin}: labels of shape {y.shape}; give one for each image.")
    return to_bytes(x, origin).reshape(-1, side, side), _labels(y, origin)


def _labels(values: np.ndarray, origin: str) -> np.ndarray:
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= CLASSES:
        raise InputError(f"{origin}: labels must be whole numbers from 0 to {CLASSES - 1}.")
    return values.astype(np.int64)


def _parquet_parts(file: Path, keep: int) -> Iterator[_Part]:
    arrow, parquet, pillow = (
        _package(name, file) for name in ("pyarrow", "pyarrow.parquet", "PIL.Image")
    )
    try:
        with parquet.ParquetFile(file) as table:
            schema = table.schema_arrow
            missing = [name for name in _COLUMNS if name not in schema.names]
            if missing:
                raise InputError(
                    f"{file} has the columns {', '.join(schema.names)} and lacks {', '.join(missing)}; "
                    "give a file of flwrlabs/femnist."
                )
            kind = schema.field("image").type
            if not arrow.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
                raise InputError(
                    f"{file}: column 'image' is {kind} and not a record with the image's bytes; give a "
                    "file of flwrlabs/femnist."
                )
            row = 0
            for batch in table.iter_batches(_BATCH, columns=list(_COLUMNS)):
                yield from _decoded(file, batch, row, keep, pillow)
                row += batch.num_rows
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            f"{file} is no sound Parquet file ({error}); download it again."
        ) from error


def _decoded(file: Path, batch: Any, first: int, keep: int, pillow: Any) -> Iterator[_Part]:
    for name in _COLUMNS:
        if batch.column(name).null_count:
            raise InputError(
                f"{file}: column {name!r} has gaps after row {first}; fill or drop them."
            )
    if not batch.num_rows:
        return
    labels = _labels(batch.column("character").to_numpy(zero_copy_only=False), str(file))
    writer = np.asarray(batch.column("writer_id").to_pylist(), str)
    chosen = np.flatnonzero(labels < keep)
    if not len(chosen):
        return
    images = []
    for row, record in zip(chosen, batch.column("image").take(chosen).to_pylist(), strict=True):
        try:
            with pillow.open(io.BytesIO(record["bytes"])) as image:
                images.append(np.asarray(image.convert("L")))
        except (OSError, SyntaxError, ValueError, TypeError, struct.error, zlib.error) as error:
            raise InputError(
                f"{file}: the image in row {first + row} cannot be decoded; download the file again."
            ) from error
        if images[-1].shape != images[0].shape:
            raise InputError(f"The images in {file} differ in size; give files of one set.")
    yield np.stack(images), labels[chosen], writer[chosen]


def _package(name: str, file: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"Reading {file} needs pyarrow and pillow; install them with `pip install pyarrow pillow`."
        ) from error
