"""EMNIST (Cohen et al., 2017) as NIST publishes it: idx pairs, plain or gzipped, and .mat files.

An idx file is a magic number 00 00 08 d (unsigned bytes, d dimensions), d sizes as big-endian
32-bit numbers, and the bytes. EMNIST stores every image TRANSPOSED (it was written by Matlab, column
by column), in idx and in .mat files alike: here they come out upright. Files are known as EMNIST's by
their name, emnist-<split>-...; any other idx pair (MNIST's own, say) is taken to be upright.

The split `letters` counts its labels from 1, the others from 0; here all count from 0.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from pacpfl.data.npz import Arrays, to_bytes
from pacpfl.errors import InputError

# How many classes each split has, and its first label.
SPLITS = {
    "byclass": (62, 0),
    "bymerge": (47, 0),
    "balanced": (47, 0),
    "letters": (26, 1),
    "digits": (10, 0),
    "mnist": (10, 0),
}
_IMAGES = re.compile(r"(?P<stem>.+)-images(?P<mark>[-.])idx3-ubyte(\.gz)?")
_SPLIT = re.compile(r"emnist-(?P<split>[a-z]+)-")


def is_idx(path: Path) -> bool:
    """Whether the name is that of an idx file of images."""
    return _IMAGES.fullmatch(path.name) is not None


def read_idx(path: Path) -> Arrays:
    """One pair, given its file of images; or all pairs of a folder, which must be of one split."""
    if path.is_dir():
        # A file may lie there twice, gzipped and not; the stem is the same, and one is enough.
        pairs = {
            match["stem"]: file
            for file in sorted(path.iterdir(), reverse=True)
            if (match := _IMAGES.fullmatch(file.name))
        }
        files = [pairs[stem] for stem in sorted(pairs)]
    else:
        files = [path]
    splits = sorted({_split(file) for file in files})
    if len(splits) > 1:
        raise InputError(
            f"{path} holds several sets ({', '.join(split or 'MNIST' for split in splits)}); give a "
            "folder with one of them, or one file of images."
        )
    classes, first = SPLITS.get(splits[0], (None, 0))
    parts = [_read_pair(file) for file in files]
    if splits[0]:
        parts = [(_upright(images), labels) for images, labels in parts]
    if len({images.shape[1:] for images, _ in parts}) > 1:
        raise InputError(f"The images in {path} differ in size; give pairs of one set.")
    images = np.concatenate([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64) - first
    return Arrays(images, labels, None, classes)


def read_mat(path: Path) -> Arrays:
    """`dataset` with `train` and `test`, each of `images` [N, H W], `labels`, `writers`; `mapping`."""
    try:
        content = loadmat(path, simplify_cells=True)
    except Exception as error:  # SciPy names no common class for what a damaged file can raise
        raise InputError(
            f"{path} cannot be read as a Matlab file ({str(error) or type(error).__name__}); download "
            "it again."
        ) from error
    try:
        dataset = content["dataset"]
        parts = [dataset[name] for name in ("train", "test")]
        images = np.concatenate([_rows(part["images"], part["labels"]) for part in parts])
        labels = np.concatenate([np.atleast_1d(part["labels"]) for part in parts]).astype(np.int64)
        writers = [np.atleast_1d(part["writers"]) for part in parts if "writers" in part]
        numbers = np.atleast_2d(dataset["mapping"])[:, 0]
        first = int(numbers.min())
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise InputError(
            f"{path} is not laid out as EMNIST's Matlab files are (dataset.train, dataset.test with "
            f"images and labels, dataset.mapping): {error}; give one of those files."
        ) from error
    side = round(images.shape[1] ** 0.5)
    if side * side != images.shape[1]:
        raise InputError(
            f"{path}: {images.shape[1]} pixels make no square image; give EMNIST's file."
        )
    return Arrays(
        _upright(to_bytes(images.reshape(-1, side, side), str(path))),
        labels - first,
        np.concatenate(writers) if len(writers) == len(parts) else None,
        len(numbers),
    )


def _rows(images: Any, labels: Any) -> np.ndarray:
    """[N, pixels]: SciPy gives the only image of a set without the first axis."""
    count = np.size(labels)
    rows = np.asarray(images)
    if rows.ndim < 2:
        rows = rows.reshape(count, -1)
    if len(rows) != count:
        raise ValueError(f"{len(rows)} images and {count} labels")
    return rows


def _upright(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 2, 1))


def _split(file: Path) -> str:
    """The split of an EMNIST file; empty for any other."""
    match = _SPLIT.match(file.name)
    return match["split"] if match else ""


def _read_pair(file: Path) -> tuple[np.ndarray, np.ndarray]:
    match = _IMAGES.fullmatch(file.name)
    if match is None:
        raise InputError(
            f"{file} is not named as idx images are (...-images-idx3-ubyte); give the file of images, "
            "and keep its labels beside it."
        )
    plain = f"{match['stem']}-labels{match['mark']}idx1-ubyte"
    partner = next(
        (p for p in (file.with_name(plain), file.with_name(f"{plain}.gz")) if p.exists()), None
    )
    if partner is None:
        raise InputError(f"{file} has no labels beside it; put {plain} or {plain}.gz there.")
    images, labels = _bytes_of(file, 3), _bytes_of(partner, 1)
    if len(images) != len(labels):
        raise InputError(
            f"{file} holds {len(images)} images and {partner.name} {len(labels)} labels; they are not "
            "a pair, so download both again."
        )
    return images, labels


def _bytes_of(path: Path, dimensions: int) -> np.ndarray:
    """The array of an idx file."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} is damaged or cannot be read ({error}); download it again."
        ) from error
    start = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)):
        raise InputError(
            f"{path} starts with {content[:4].hex(' ') or 'nothing'}, not 00 00 08 {dimensions:02x} as an "
            f"idx file of bytes with {dimensions} dimension{'s' * (dimensions > 1)} does; download it "
            "again."
        )
    # A header that is cut short announces, as far as one can tell, at least itself.
    shape = struct.unpack(f">{dimensions}I", content[4:start]) if len(content) >= start else ()
    expected = start + (math.prod(shape) if shape else 0)
    if len(content) != expected:
        raise InputError(
            f"{path} has {len(content)} bytes where its header announces {expected}; it is incomplete or "
            "damaged, so download it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
