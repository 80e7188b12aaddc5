"""Sets of images in the files in which people share them.

NumPy's .npz, the plainest of them: `images` [N, H, W] (bytes 0..255 or fractions 0..1, ink high),
`labels` [N] (class numbers from 0), and optionally `writer` [N] (who wrote it, numbers or names),
`writer_names` (then `writer` holds positions in this list) and `classes` (one number; without it the
highest label tells).

EMNIST (Cohen et al., 2017) as NIST publishes it: idx pairs, plain or gzipped, and .mat files. An idx file
is a magic number 00 00 08 d (unsigned bytes, d dimensions), d sizes as big-endian 32-bit numbers, and
the bytes. EMNIST stores every image TRANSPOSED (it was written by Matlab, column by column), in idx and
in .mat files alike: here they come out upright. Files are known as EMNIST's by their name,
emnist-<split>-...; any other idx pair (MNIST's own, say) is taken to be upright. The split `letters`
counts its labels from 1, the others from 0; here all count from 0.

FEMNIST (Caldas et al., 2018): characters of some 3,600 writers. LEAF writes JSON files of up to a hundred
writers each: `user_data` has, for each writer, `x` (rows of 784 fractions) and `y`. Hugging Face
(flwrlabs/femnist) has Parquet with a PNG per row: `image` {bytes, path}, `writer_id`, `hsf_id`,
`character`. In both the labels are 0-9 for digits, 10-35 for A-Z and 36-61 for a-z, and the paper is
white: here ink is high, as in MNIST. Files are read one at a time, and `keep` drops other classes at once
(10: digits only), so that the whole set never lies in memory as text.

Nothing is ever unpickled: a pickle from another hand can run any code.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from pacpfl.data.images import Images
from pacpfl.data.store import open_npz
from pacpfl.errors import InputError, explained, imported

FORMATS = (
    "an .npz with images and labels, a folder with an idx pair, a .mat of EMNIST, Parquet of "
    "flwrlabs/femnist, or JSON of LEAF"
)
CLASSES = 62  # of FEMNIST
SPLITS = {  # of EMNIST: how many classes each has, and its first label
    "byclass": (62, 0),
    "bymerge": (47, 0),
    "balanced": (47, 0),
    "letters": (26, 1),
    "digits": (10, 0),
    "mnist": (10, 0),
}
_KINDS = {  # of files, by their first bytes; names tell more where they end as one of these
    b"PK\x03\x04": ".npz",
    b"MATLAB": ".mat",
    b"PAR1": ".parquet",
    b"{": ".json",
    b"\x00\x00\x08": "idx",
    b"\x1f\x8b": "idx",
}
# Where a folder has its files if not in itself: as Hugging Face has them, and LEAF, which leaves the same
# samples in all_data and sampled_data.
_FEMNIST = {".parquet": ("data",), ".json": ("train", "test")}
_IMAGES = re.compile(r"(?P<stem>.+)-images(?P<mark>[-.])idx3-ubyte(\.gz)?")
_SPLIT = re.compile(r"emnist-(?P<split>[a-z]+)-")
_BATCH = 4096  # rows of Parquet decoded at a time
_COLUMNS = ("image.bytes", "writer_id", "character")

# Some samples of one file: images [m, H, W], labels [m], writers [m].
_Part = tuple[np.ndarray, np.ndarray, np.ndarray]


def load_images(path: Path | str, classes: int | None = None) -> Images:
    """Read images of any of FORMATS. With `classes` only the first so many are kept (10: digits)."""
    path = Path(path)
    if classes is not None and classes < 2:
        raise InputError(f"{classes} classes cannot be told apart; ask for at least 2.")
    if not path.exists():
        raise InputError(f"There is no file or folder {path}; give {FORMATS}.")
    with explained(f"{path} cannot be read", f"give {FORMATS}", OSError):
        kind, files = _found(path)
        if kind in _FEMNIST:
            found = read_femnist(path, files, kind, classes or CLASSES)
        elif kind == "idx":
            found = read_idx(path, files)
        else:
            found = read_npz(path) if kind == ".npz" else read_mat(path)
    labels = found.labels.astype(np.int64)
    kept = labels < (found.classes if classes is None else classes)
    if not kept.any():
        raise InputError(f"{path} holds no image of the first {classes} classes; ask for more.")
    writer = None if found.writer is None else found.writer[kept]
    images = found.images if kept.all() else found.images[kept]
    return Images(path.resolve().stem, images, labels[kept], classes or found.classes, writer)


def _found(path: Path) -> tuple[str, list[Path]]:
    """Tell the format of a file by its name or else its first bytes, that of a folder by its files."""
    own = sorted(path.iterdir()) if path.is_dir() else [path]
    if pairs := [file for file in own if _IMAGES.fullmatch(file.name)]:
        return "idx", pairs
    if path.is_dir():
        for kind, usual in _FEMNIST.items():
            for folders in ((".",), usual):
                files = [f for folder in folders for f in sorted((path / folder).glob(f"*{kind}"))]
                if files:
                    return kind, files
        raise InputError(f"The folder {path} holds no images that can be read; give {FORMATS}.")
    if path.suffix in _KINDS.values():
        return path.suffix, own
    with open(path, "rb") as file:
        start = file.read(64).lstrip()
    for begin, kind in _KINDS.items():
        if start.startswith(begin):
            return kind, own
    raise InputError(f"{path} is of no format that can be read; give {FORMATS}.")


def _images(
    path: Path,
    images: np.ndarray,
    labels: np.ndarray,
    writer: np.ndarray | None = None,
    classes: int | None = None,
) -> Images:
    """Check that they fit together. Without `classes` the highest label tells how many there are."""
    if classes is None:
        classes = int(labels.max(initial=0)) + 1 if labels.dtype.kind in "iu" else 0
    return Images(str(path), images, labels, classes, writer)


def to_bytes(pixels: np.ndarray, origin: str) -> np.ndarray:
    """Return pixels as uint8: whole numbers 0..255 as they are, fractions 0..1 times 255 and rounded."""
    whole = pixels.dtype.kind in "iu"
    if pixels.dtype.kind not in "iuf":
        raise InputError(f"{origin}: pixels are of type {pixels.dtype}; give numbers.")
    if pixels.size:
        low, high = pixels.min(), pixels.max()
        if not (low >= 0 and high <= (255 if whole else 1)):  # also when one of them is NaN
            raise InputError(
                f"{origin}: pixels lie between {low} and {high}; give whole numbers from 0 to 255 or "
                "fractions from 0 to 1."
            )
    return (pixels if whole else np.rint(pixels * 255)).astype(np.uint8, copy=False)


def _squares(rows: np.ndarray, origin: str) -> np.ndarray:
    """Return the images whose pixels are the rows."""
    side = math.isqrt(rows.shape[1])
    if side * side != rows.shape[1]:
        raise InputError(f"{origin}: {rows.shape[1]} pixels make no square image; give others.")
    return to_bytes(rows, origin).reshape(-1, side, side)


# ---- .npz ----


def read_npz(path: Path) -> Images:
    example = "np.savez(path, images=..., labels=...)"
    names = ("images", "labels", "writer", "writer_names", "classes")
    found = open_npz(path, names, example)
    for name in names[:2]:
        if name not in found:
            raise InputError(f"{path} holds no array called {name!r}; save it with {example}.")
    classes, writer = found.get("classes"), found.get("writer")
    if classes is not None and (classes.size != 1 or classes.dtype.kind not in "iu"):
        raise InputError(f"{path}: 'classes' must be one whole number; save it as such.")
    if writer is not None and "writer_names" in found:
        writer = _named(writer, found["writer_names"], path)
    count = None if classes is None else int(classes.item())
    return _images(path, to_bytes(found["images"], str(path)), found["labels"], writer, count)


def _named(writer: np.ndarray, names: np.ndarray, path: Path) -> np.ndarray:
    """Return by name who wrote each sample."""
    if writer.dtype.kind not in "iu":
        raise InputError(f"{path}: 'writer' must hold positions in 'writer_names', whole numbers.")
    if len(np.unique(names)) != len(names):
        raise InputError(f"{path}: 'writer_names' holds a name twice; give each writer its own.")
    for wrong in writer[(writer < 0) | (writer >= len(names))]:
        raise InputError(
            f"{path}: 'writer' holds {wrong}, and 'writer_names' has {len(names)} names; make the two "
            "agree."
        )
    for name in np.delete(names, writer):
        raise InputError(f"{path}: writer {str(name)!r} has no samples; drop the name.")
    return names[writer]


# ---- EMNIST ----


def read_idx(path: Path, files: Sequence[Path]) -> Images:
    """Read pairs, given their files of images, which must be of one split."""
    # A file may lie there twice, gzipped and not (which comes first); one of the two is enough.
    stems = {_IMAGES.sub(r"\g<stem>", file.name): file for file in reversed(files)}
    names = {match["split"] if (match := _SPLIT.match(stem)) else "" for stem in stems}
    split, *others = sorted(names)
    if others:
        sets = ", ".join(name or "MNIST" for name in (split, *others))
        raise InputError(
            f"{path} holds several sets ({sets}); give a folder with one of them, or one file of images."
        )
    classes, first = SPLITS.get(split, (None, 0))
    images, labels = _joined(path, [_read_pair(file) for _, file in sorted(stems.items())])
    images = np.ascontiguousarray(images.transpose(0, 2, 1)) if split else images
    return _images(path, images, labels.astype(np.int64) - first, None, classes)


def _joined(path: Path, parts: Sequence[tuple[np.ndarray, ...]]) -> Iterator[np.ndarray]:
    """Return images, labels and what else the parts have, each in one array."""
    if len({part[0].shape[1:] for part in parts}) > 1:
        raise InputError(f"The images in {path} differ in size; give files of one set.")
    return (np.concatenate(column) for column in zip(*parts, strict=True))


def _read_pair(file: Path) -> tuple[np.ndarray, np.ndarray]:
    match = _IMAGES.fullmatch(file.name)
    if match is None:
        raise InputError(
            f"{file} is not named as idx images are (...-images-idx3-ubyte); give the file of images, "
            "and keep its labels beside it."
        )
    plain = f"{match['stem']}-labels{match['mark']}idx1-ubyte"
    beside = [p for p in (file.with_name(plain), file.with_name(f"{plain}.gz")) if p.exists()]
    if not beside:
        raise InputError(f"{file} has no labels beside it; put {plain} or {plain}.gz there.")
    images, labels = _bytes_of(file, 3), _bytes_of(beside[0], 1)
    if len(images) != len(labels):
        raise InputError(
            f"{file} holds {len(images)} images and {beside[0].name} {len(labels)} labels; they are not "
            "a pair, so download both again."
        )
    return images, labels


def _bytes_of(path: Path, dimensions: int) -> np.ndarray:
    """Read the array of an idx file."""
    broken = (OSError, EOFError, zlib.error)
    with explained(f"{path} is damaged or cannot be read", "download it again", *broken):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    start = 4 + 4 * dimensions
    magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:start].ljust(start, b"\0"))
    if magic != 0x800 + dimensions:
        raise InputError(
            f"{path} starts with {content[:4].hex(' ') or 'nothing'}, not 00 00 08 {dimensions:02x} as an "
            f"idx file of bytes with {dimensions} dimension{'s' * (dimensions > 1)} does; download it "
            "again."
        )
    if len(content) != (expected := start + math.prod(shape)):
        raise InputError(
            f"{path} has {len(content)} bytes where its header announces {expected}; it is incomplete or "
            "damaged, so download it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_mat(path: Path) -> Images:
    """Read `dataset` with `train` and `test` (`images` [N, H W], `labels`, `writers`) and `mapping`."""
    # SciPy names no common class for what a damaged file can raise.
    with explained(f"{path} cannot be read as a Matlab file", "download it again", Exception):
        content = loadmat(path)
    layout = (
        f"{path} is not laid out as EMNIST's Matlab files are, with dataset.train and dataset.test of "
        "images and labels, and dataset.mapping"
    )
    odd = (KeyError, IndexError, TypeError, ValueError)
    with explained(layout, "give one of those files", *odd):
        # A record of Matlab is a table of one row and one column.
        dataset = content["dataset"][0, 0]
        parts = [dataset[name][0, 0] for name in ("train", "test")]
        images = [part["images"] for part in parts]
        labels = [part["labels"].ravel() for part in parts]
        for rows, own in zip(images, labels, strict=True):
            if len(rows) != len(own):
                raise ValueError(f"{len(rows)} images and {len(own)} labels")
        writers = [part["writers"].ravel() for part in parts if "writers" in part.dtype.names]
        numbers = dataset["mapping"][:, 0]
        first, rows = int(numbers.min()), np.concatenate(images)
    upright = np.ascontiguousarray(_squares(rows, str(path)).transpose(0, 2, 1))
    writer = np.concatenate(writers) if len(writers) == len(parts) else None
    numbered = np.concatenate(labels).astype(np.int64) - first
    return _images(path, upright, numbered, writer, len(numbers))


# ---- FEMNIST ----


def read_femnist(path: Path, files: Sequence[Path], kind: str, keep: int) -> Images:
    """Read files of LEAF (.json) or of Hugging Face (.parquet), and of the first `keep` classes."""
    parts_of = _leaf_parts if kind == ".json" else _parquet_parts
    parts = [part for file in files for part in parts_of(file, keep) if len(part[0])]
    if not parts:
        raise InputError(f"{path} holds no samples of the classes asked for; ask for more classes.")
    images, labels, writer = _joined(path, parts)
    # Most of a sheet is paper: a bright mean says that the paper is white.
    if images.mean() > 127.5:
        np.subtract(255, images, out=images)
    return _images(path, images, labels, writer, CLASSES)


def _leaf_parts(file: Path, keep: int) -> Iterator[_Part]:
    """Yield one part per writer."""
    broken = (OSError, ValueError, RecursionError)
    with (
        explained(f"{file} is no complete JSON file", "make or copy it again", *broken),
        open(file, encoding="utf-8") as stream,
    ):
        content = json.load(stream, object_hook=_compact)
    remedy = "give a file that LEAF's scripts wrote"
    with explained(f"{file} lacks LEAF's user_data", remedy, AttributeError, KeyError, TypeError):
        writers = content["user_data"].items()
    for user, data in writers:
        origin = f"{file}, writer {user!r}"
        unusable = f"{origin}: x and y are no tables of numbers"
        with explained(unusable, "make the file again", KeyError, TypeError, ValueError):
            x, y = np.asarray(data["x"], np.float32), np.asarray(data["y"])
        if not (x.ndim == 2 and y.ndim == 1 and len(x) == len(y) > 0):
            raise InputError(
                f"{origin}: x has shape {x.shape} and y {y.shape}; give each sample a row of pixels and a "
                "label, or leave the writer out."
            )
        images, labels = _squares(x, origin), _femnist_labels(y, origin)
        chosen = labels < keep
        yield images[chosen], labels[chosen], np.full(int(chosen.sum()), user)


def _compact(entry: dict[str, Any]) -> dict[str, Any]:
    """Turn a writer's lists into arrays while the file is being read: an eighth of the memory."""
    if entry.keys() >= {"x", "y"}:
        with suppress(TypeError, ValueError):  # ragged, or no numbers; the writer's check says so
            return {"x": np.asarray(entry["x"], np.float32), "y": np.asarray(entry["y"])}
    return entry


def _femnist_labels(values: np.ndarray, origin: str) -> np.ndarray:
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= CLASSES:
        raise InputError(f"{origin}: labels must be whole numbers from 0 to {CLASSES - 1}.")
    return values.astype(np.int64)


def _parquet_parts(file: Path, keep: int) -> Iterator[_Part]:
    arrow, parquet, pillow = (
        imported(name, f"Reading {file}", "pyarrow pillow")
        for name in ("pyarrow", "pyarrow.parquet", "PIL.Image")
    )
    broken = (arrow.ArrowException, OSError)
    with (
        explained(f"{file} is no sound Parquet file", "download it again", *broken),
        parquet.ParquetFile(file) as table,
    ):
        names = [table.schema.column(number).path for number in range(len(table.schema))]
        if missing := [name for name in _COLUMNS if name not in names]:
            raise InputError(
                f"{file} has the columns {', '.join(names)} and lacks {', '.join(missing)}; give a file "
                "of flwrlabs/femnist."
            )
        row = 0
        for batch in table.iter_batches(_BATCH, columns=list(_COLUMNS)):
            if batch.num_rows:
                yield from _decoded(file, batch, row, keep, pillow)
            row += batch.num_rows


def _decoded(file: Path, batch: Any, first: int, keep: int, pillow: Any) -> Iterator[_Part]:
    for name in batch.schema.names:
        if batch.column(name).null_count:
            raise InputError(
                f"{file}: column {name!r} has gaps after row {first}; fill or drop them."
            )
    labels = _femnist_labels(batch.column("character").to_numpy(zero_copy_only=False), str(file))
    writer = np.asarray(batch.column("writer_id").to_pylist(), str)
    chosen = np.flatnonzero(labels < keep)
    images = []
    broken = (OSError, SyntaxError, ValueError, TypeError, struct.error, zlib.error)
    for row, record in zip(chosen, batch.column("image").take(chosen).to_pylist(), strict=True):
        what = f"{file}: the image in row {first + row} cannot be decoded"
        with (
            explained(what, "download the file again", *broken),
            pillow.open(io.BytesIO(record["bytes"])) as image,
        ):
            images.append(np.asarray(image.convert("L")))
        if images[-1].shape != images[0].shape:
            raise InputError(f"The images in {file} differ in size; give files of one set.")
    if images:
        yield np.stack(images), labels[chosen], writer[chosen]
