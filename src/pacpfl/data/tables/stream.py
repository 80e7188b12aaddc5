"""Room for the rows of large tables: on disk, one file for each purpose, removed when no longer used.

Rows of one client lie together and clients follow each other, so that `store.from_samples` takes the
files as they are. Only what is small per row (whose it is, and where it goes) is held in memory.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pacpfl.errors import InputError

IN_MEMORY = 1 << 28  # bytes of features above which they lie on disk
ROWS = 1 << 16  # rows that are worked on at once


class Room:
    """Hands out arrays, in memory or in files of a temporary folder.

    The folder goes when the room does; the system keeps the files as long as an array shows them.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self.in_memory = in_memory
        self.folder: Path | None = None
        self.count = 0

    def array(self, shape: tuple[int, ...], dtype: type, total: int) -> np.ndarray:
        """Zeros. `total` is the number of bytes of all the arrays that belong together."""
        if total <= self.in_memory or 0 in shape:
            return np.zeros(shape, dtype)
        if self.folder is None:
            holder = tempfile.TemporaryDirectory(prefix="pacpfl-tables-")
            self.folder = Path(holder.name)
            weakref.finalize(self, holder.cleanup)
        self.count += 1
        try:
            return np.memmap(self.folder / f"{self.count}.rows", dtype, "w+", shape=shape)
        except OSError as error:
            raise InputError(
                f"There is no room in {self.folder.parent} for the rows ({error.strerror}); make room, or "
                "name another folder in TMPDIR."
            ) from error


def row_blocks(count: int, rows: int = ROWS) -> Iterator[slice]:
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))


def release(array: np.ndarray) -> None:
    """Let go of the pages of a file that have been worked on: they count as memory until then."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)  # what was written is in the system's hands
