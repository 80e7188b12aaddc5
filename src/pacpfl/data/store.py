"""Many clients' samples in three flat arrays, in memory or on disk.

Rows of client i are x[offsets[i] : offsets[i + 1]]. A round needs the rows of a few clients only, so
with `open_store` (memory-mapped) neither memory nor time grows with the number of clients.
"""

from __future__ import annotations

import json
import mmap
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pacpfl import files
from pacpfl.errors import InputError, explained, reason
from pacpfl.types import Client, Data, Samples

IN_MEMORY = 1 << 28  # bytes of features above which they lie on disk
ROWS = 1 << 16  # rows that are worked on at once


@dataclass(frozen=True)
class ClientStore:
    x: np.ndarray  # [total, d]
    y: np.ndarray  # [total]
    offsets: np.ndarray  # [n + 1]
    longest: int

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def features(self) -> int:
        return int(self.x.shape[1])

    def gather(self, chosen: np.ndarray, dtype: np.dtype | type) -> Data:
        """Return the chosen clients' samples, padded to the longest client of the whole store."""
        shape = (len(chosen), self.longest)
        x, y = np.zeros((*shape, self.features), dtype), np.zeros(shape, dtype)
        mask = np.zeros(shape, bool)
        for row, client in enumerate(chosen):
            own = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
            there = row, slice(own.stop - own.start)
            x[there], y[there], mask[there] = self.x[own], self.y[own], True
        return Data(x, y, mask)  # type: ignore[arg-type]


def from_clients(clients: Sequence[Client], roomy: bool = False) -> ClientStore:
    """Return the store of what clients train on."""
    return from_samples([client.train for client in clients], roomy)


def from_samples(parts: Sequence[Samples], roomy: bool = False) -> ClientStore:
    """Put the samples of several clients into one store.

    With `roomy` they are padded to one of few sizes (`round_up`), so that federations whose largest clients
    differ a little share their compiled programs.
    """
    lengths = [len(part) for part in parts]
    longest = max(lengths)
    return ClientStore(
        _joined([part.x for part in parts]),
        _joined([part.y for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)]),
        round_up(longest) if roomy else longest,
    )


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return all rows in one array. Those that follow each other in a file are not copied."""
    first, file = parts[0], getattr(parts[0], "_mmap", None)
    starts = [part.__array_interface__["data"][0] for part in parts]
    ends = [start + part.nbytes for start, part in zip(starts, parts, strict=True)]
    in_file = all(getattr(p, "_mmap", None) is file and p.flags.c_contiguous for p in parts)
    if file is None or not in_file or starts[1:] != ends[:-1]:
        return np.concatenate(parts)
    shape = (sum(map(len, parts)), *first.shape[1:])
    return np.lib.stride_tricks.as_strided(first, shape, subok=True, writeable=False)


def round_up(length: int) -> int:
    """Return the next number with at most three binary digits: at most a quarter more."""
    unit = 2 ** max(0, length.bit_length() - 3)
    return -(-length // unit) * unit


def write_store(folder: Path, parts: Iterable[Samples], features: int) -> None:
    """Stream samples to disk, one client at a time; `store.json` is written last and atomically."""
    what = f"The client store {folder} could not be written"
    offsets, longest = [0], 0
    with explained(what, "make room or choose another folder, and write it again", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "store.json").unlink(missing_ok=True)  # from here on the old store is no more
        with open(folder / "x.f32", "wb") as xs, open(folder / "y.f32", "wb") as ys:
            for number, part in enumerate(parts):
                if part.x.shape != (len(part), features) or not len(part):
                    raise InputError(
                        f"Client {number} has samples of shape {part.x.shape}, not (m, {features}) with "
                        "m > 0; give every client the same features."
                    )
                xs.write(np.ascontiguousarray(part.x, "<f4").tobytes())
                ys.write(np.ascontiguousarray(part.y, "<f4").tobytes())
                offsets.append(offsets[-1] + len(part))
                longest = max(longest, len(part))
    files.write(folder / "offsets.i64", np.asarray(offsets, "<i8").tobytes())
    about = {"features": features, "longest": longest, "clients": len(offsets) - 1, "version": 1}
    files.write_json(folder / "store.json", about)


def open_store(folder: Path) -> ClientStore:
    """Memory-map a folder that `write_store` made."""
    broken = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
    with explained(f"{folder} is not a complete client store", "write it again", *broken):
        about = json.loads((folder / "store.json").read_text())
        count, longest = int(about["clients"]), int(about["longest"])
        offsets = np.memmap(folder / "offsets.i64", "<i8", "r")
        if len(offsets) != count + 1:
            raise ValueError(f"offsets of {len(offsets) - 1} clients instead of {count}")
        shape = (int(offsets[-1]), int(about["features"]))
        x = np.memmap(folder / "x.f32", "<f4", "r", shape=shape)
        y = np.memmap(folder / "y.f32", "<f4", "r", shape=shape[:1])
        return ClientStore(x, y, offsets, longest)


# What NumPy and zipfile raise for files that were cut, changed or made by something else.
UNREADABLE = (
    *(
        OSError,
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        RuntimeError,
        KeyError,
        TypeError,
    ),
    *(MemoryError, OverflowError, SyntaxError, struct.error),
)


def open_npz(path: Path, names: Collection[str], example: str) -> dict[str, np.ndarray]:
    """Return those of the named arrays that an .npz file holds, which `example` would save."""
    try:
        with open(path, "rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it is a single array")
            with file:
                arrays = {name: file[name] for name in file.files if name in names}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("it holds other things than arrays")
        return arrays
    except UNREADABLE as error:
        pickled = "allow_pickle" in str(error)  # NumPy's own words say how to load it all the same
        why = "it holds pickled objects, and those are never loaded" if pickled else reason(error)
        raise InputError(
            f"{path} cannot be read as .npz ({why}); save it again with {example} and plain number "
            "arrays."
        ) from error


def empty_samples(rows: int, width: int, dtype: type, in_memory: int = IN_MEMORY) -> Samples:
    """Return zeros to be filled in: in memory, or in files where they take more bytes than that.

    The files have no name: the system keeps them as long as an array shows them.
    """
    shapes = ((rows, width), (rows,))
    if rows * (width + 1) * np.dtype(dtype).itemsize <= in_memory:
        return Samples(*(np.zeros(shape, dtype) for shape in shapes))
    what = f"There is no room in {tempfile.gettempdir()} for the rows"
    arrays = []
    with explained(what, "make room, or name another folder in TMPDIR", OSError):
        for shape in shapes:
            with tempfile.TemporaryFile() as file:
                arrays.append(np.memmap(file, dtype, "w+", shape=shape))
    return Samples(*arrays)


def evenly(count: int, most: int) -> np.ndarray:
    """Return the places of at most so many rows, spread over all of them."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int)


def row_blocks(count: int, rows: int = ROWS) -> Iterator[slice]:
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))


def release(array: np.ndarray) -> None:
    """Let go of the pages of a file that have been worked on: they count as memory until then."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)  # what was written is in the system's hands
