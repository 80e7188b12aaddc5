"""Image sets in NumPy's .npz: `images`, `labels` and, where it is known, `writer`.

    images        [N, H, W]  bytes 0..255, or fractions 0..1; ink high
    labels        [N]        class numbers from 0
    writer        [N]        optional: who wrote it, numbers or names
    writer_names  [W]        optional: then `writer` holds positions in this list
    classes       one number, optional; without it the highest label tells

This is the plainest of the formats, so the record that every reader of images returns, `Arrays`,
stands here too. Nothing is ever unpickled: a pickle from another hand can run any code.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pacpfl.errors import InputError


class Arrays(NamedTuple):
    """What an image file holds. `classes` is None where the format does not say."""

    images: np.ndarray  # [N, H, W] uint8
    labels: np.ndarray  # [N] integers
    writer: np.ndarray | None = None  # [N] numbers or names
    classes: int | None = None


def read_npz(path: Path) -> Arrays:
    try:
        with open(path, "rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("a single array")
            with file:
                found = {name: file[name] for name in file.files if name in _KNOWN}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read as .npz ({_reason(error)}); save it again with "
            "np.savez(path, images=..., labels=...) and plain number arrays."
        ) from error
    for name in ("images", "labels"):
        if name not in found:
            raise InputError(
                f"{path} holds no array called {name!r}; save it with np.savez(path, images=..., "
                "labels=...)."
            )
    classes = found.get("classes")
    if classes is not None and (classes.size != 1 or classes.dtype.kind not in "iu"):
        raise InputError(f"{path}: 'classes' must be one whole number; save it as such.")
    return Arrays(
        to_bytes(found["images"], str(path)),
        found["labels"],
        _writer(found, path),
        None if classes is None else int(classes.item()),
    )


def to_bytes(pixels: np.ndarray, origin: str) -> np.ndarray:
    """Pixels as uint8: whole numbers 0..255 as they are, fractions 0..1 times 255 and rounded."""
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


_KNOWN = frozenset({"images", "labels", "writer", "writer_names", "classes"})


def _writer(found: dict[str, np.ndarray], path: Path) -> np.ndarray | None:
    """Who wrote each sample, by name where names are given."""
    writer, names = found.get("writer"), found.get("writer_names")
    if writer is None or names is None:
        return writer
    if writer.dtype.kind not in "iu":
        raise InputError(f"{path}: 'writer' must hold positions in 'writer_names', whole numbers.")
    if len(np.unique(names)) != len(names):
        raise InputError(f"{path}: 'writer_names' holds a name twice; give each writer its own.")
    used = np.unique(writer)
    if len(used) and not 0 <= used[0] <= used[-1] < len(names):
        raise InputError(
            f"{path}: 'writer' holds {used[-1] if used[0] >= 0 else used[0]}, and 'writer_names' has "
            f"{len(names)} names; make the two agree."
        )
    for name in names[np.setdiff1d(np.arange(len(names)), used)]:
        raise InputError(f"{path}: writer {str(name)!r} has no samples; drop the name.")
    return names[writer]


def _reason(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    if "allow_pickle" in text:
        return "it holds pickled objects, and those are never loaded"
    return text.splitlines()[0] if text else type(error).__name__
