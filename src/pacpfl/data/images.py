"""Labelled images: the record, what can be wrong with it, how files and federations relate to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pacpfl.data import emnist, femnist
from pacpfl.data.npz import Arrays, read_npz
from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples

FORMATS = (
    "an .npz with images and labels, a folder with an idx pair, a .mat of EMNIST, Parquet of "
    "flwrlabs/femnist, or JSON of LEAF"
)


@dataclass(frozen=True)
class Images:
    """Images of one size with their class and, where it is known, who wrote them."""

    name: str
    images: np.ndarray  # [N, H, W] uint8, ink high
    labels: np.ndarray  # [N] 0 .. classes - 1
    classes: int
    writer: np.ndarray | None = None  # [N] numbers or names

    def __post_init__(self) -> None:
        check_arrays(Arrays(self.images, self.labels, self.writer, self.classes), self.name)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int]:
        return self.images.shape[1], self.images.shape[2]


class Part(NamedTuple):
    """One client of a partition: the rows it trains on and the rows it is tested on."""

    name: str
    train: np.ndarray
    test: np.ndarray


def check_arrays(arrays: Arrays, origin: str) -> None:
    """Raise InputError, naming `origin`, at the first thing that cannot be used."""
    images, labels, writer, classes = arrays
    if images.ndim != 3 or images.dtype != np.uint8 or not images.size:
        raise InputError(
            f"{origin}: images are {images.dtype} of shape {images.shape}; give bytes of shape "
            "(number, height, width)."
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(
            f"{origin}: labels are {labels.dtype} of shape {labels.shape}; give one whole number per image."
        )
    if len(labels) != len(images):
        raise InputError(
            f"{origin}: there are {len(images)} images and {len(labels)} labels; each image needs its own."
        )
    bad = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    if bad.any():
        row = int(np.argmax(bad))
        limit = "0 on" if classes is None else f"0 to {classes - 1}"
        raise InputError(
            f"{origin}: the label in row {row} is {labels[row]}, and classes are numbered from {limit}; "
            "mend or drop such rows."
        )
    if writer is not None and writer.shape != labels.shape:
        raise InputError(
            f"{origin}: writers have shape {writer.shape} and labels {labels.shape}; each image needs "
            "its writer."
        )


def load_images(path: Path | str, classes: int | None = None) -> Images:
    """Images of any of FORMATS. With `classes` only the first so many are kept (10: digits)."""
    path = Path(path)
    if classes is not None and classes < 2:
        raise InputError(f"{classes} classes cannot be told apart; ask for at least 2.")
    if not path.exists():
        raise InputError(f"There is no file or folder {path}; give {FORMATS}.")
    try:
        arrays = _read(path, classes)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give {FORMATS}.") from error
    check_arrays(arrays, str(path))
    images, labels, writer, known = arrays
    labels = labels.astype(np.int64)
    if classes is not None:
        kept = labels < classes
        if not kept.any():
            raise InputError(f"{path} holds no image of the first {classes} classes; ask for more.")
        if not kept.all():
            images, labels = images[kept], labels[kept]
            writer = None if writer is None else writer[kept]
    return Images(
        path.resolve().stem,
        images,
        labels,
        classes or known or int(labels.max()) + 1,
        writer,
    )


def samples(images: Images, rows: np.ndarray) -> Samples:
    """x [m, H W] in 0..1 with ink high, y the class numbers; float32 both."""
    x = images.images[rows].reshape(len(rows), -1).astype(np.float32)
    x /= np.float32(255)
    return Samples(x, images.labels[rows].astype(np.float32))


def federation(images: Images, existing: Sequence[Part], new: Sequence[Part] = ()) -> Federation:
    """The federation in which every part of a partition is a client."""

    def clients(parts: Sequence[Part]) -> tuple[Client, ...]:
        return tuple(
            Client(part.name, samples(images, part.train), test=samples(images, part.test))
            for part in parts
        )

    return Federation(
        images.name,
        clients(existing),
        clients(new),
        features=tuple(f"pixel {number}" for number in range(images.shape[0] * images.shape[1])),
        target="label",
        classes=images.classes,
        shape=images.shape,
    )


def _read(path: Path, classes: int | None) -> Arrays:
    """By the name, and where the name says nothing by the first bytes."""
    keep = femnist.CLASSES if classes is None else classes
    if path.is_dir():
        if any(emnist.is_idx(file) for file in path.iterdir()):
            return emnist.read_idx(path)
        if femnist.parquet_files(path):
            return femnist.read_parquet(path, keep)
        if femnist.leaf_files(path):
            return femnist.read_leaf(path, keep)
        raise InputError(f"The folder {path} holds no images that can be read; give {FORMATS}.")
    match _kind(path):
        case ".npz":
            return read_npz(path)
        case ".mat":
            return emnist.read_mat(path)
        case ".parquet":
            return femnist.read_parquet(path, keep)
        case ".json":
            return femnist.read_leaf(path, keep)
        case "idx":
            return emnist.read_idx(path)
    raise InputError(f"{path} is of no format that can be read; give {FORMATS}.")


_SUFFIXES = (".npz", ".mat", ".parquet", ".json")
_BEGINNINGS = {
    b"PK\x03\x04": ".npz",
    b"MATLAB": ".mat",
    b"PAR1": ".parquet",
    b"{": ".json",
    b"\x00\x00\x08": "idx",
    b"\x1f\x8b": "idx",
}


def _kind(path: Path) -> str | None:
    if emnist.is_idx(path):
        return "idx"
    if path.suffix in _SUFFIXES:
        return path.suffix
    with open(path, "rb") as file:
        beginning = file.read(64).lstrip()
    return next((kind for start, kind in _BEGINNINGS.items() if beginning.startswith(start)), None)
