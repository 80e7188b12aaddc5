"""A site's own data in plain files: a folder with one .npz for each client, or a client store.

    x, y               [m, d] and [m]: what the client trains on
    x_later, y_later   optional: gathered after training, used in personalisation only
    x_test, y_test     optional: only ever used to measure
    classes, shape     optional: number of classes of y; shape of what a row of x is

Tables (CSV, Parquet) are read by `data.tables`. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pacpfl import files
from pacpfl.data.store import open_npz, open_store
from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples

PARTS = {"train": "", "later": "_later", "test": "_test"}
NAMES = {f"{letter}{suffix}" for letter in "xy" for suffix in PARTS.values()} | {"classes", "shape"}


def is_site_folder(path: Path) -> bool:
    """Return whether the folder is in one of the two formats that are read here."""
    return (path / "store.json").is_file() or any(path.glob("*.npz"))


def read_site_folder(path: Path) -> Federation:
    """Return the clients of a folder for which `is_site_folder` holds, in the order of their names.

    All of them exist, none is new.
    """
    if (path / "store.json").is_file():
        store = open_store(path)
        rows = [slice(*ends) for ends in pairwise(store.offsets.tolist())]
        clients = [
            Client(f"client-{number:06d}", Samples(store.x[own], store.y[own]))
            for number, own in enumerate(rows)
        ]
        forms: set[Any] = {(store.features, None, None)}
    else:
        read = [_read(file) for file in sorted(path.glob("*.npz"))]
        clients, forms = [client for client, _ in read], {form for _, form in read}
    if len(forms) > 1:
        raise InputError(
            f"The clients in {path} differ in their number of features, classes or shape; give all the "
            "same."
        )
    width, classes, shape = forms.pop()
    names = ("x",) if width == 1 else tuple(f"x{j + 1}" for j in range(width))
    return Federation(path.name, tuple(clients), (), names, "y", classes, shape)


def write_client_file(folder: Path, client: Client, federation: Federation) -> Path:
    """Write one client's samples, as `read_site_folder` reads them."""
    arrays: dict[str, Any] = {"classes": federation.classes, "shape": federation.shape}
    for part, suffix in PARTS.items():
        if (samples := getattr(client, part)) is not None:
            arrays |= {f"x{suffix}": samples.x, f"y{suffix}": samples.y}
    path = folder / f"{client.name}.npz"
    with files.replacing(path) as file:
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return path


def _read(path: Path) -> tuple[Client, tuple[int, int | None, tuple[int, ...] | None]]:
    """Read a client, and how many features, which classes and what shape it has."""
    arrays = open_npz(path, NAMES, "np.savez(path, x=..., y=...)")
    parts: dict[str, Any] = {}
    for part, suffix in PARTS.items():
        x, y = (arrays.get(f"{letter}{suffix}") for letter in "xy")
        if x is None or y is None:
            if part == "train" or x is not y:
                raise InputError(f"{path} must hold both 'x{suffix}' and 'y{suffix}'; save both.")
            continue
        plain = x.dtype.kind in "fiub" and y.dtype.kind in "fiub"
        if x.ndim != 2 or y.shape != x.shape[:1] or not x.size or not plain:
            raise InputError(
                f"{path}: x must be a table of numbers and y one number for each of its rows; they have "
                f"shapes {x.shape} and {y.shape} and types {x.dtype} and {y.dtype}."
            )
        parts[part] = Samples(x.astype(float), y.astype(float))
        if not (np.isfinite(parts[part].x).all() and np.isfinite(parts[part].y).all()):
            raise InputError(
                f"{path} holds numbers that are not finite; correct or leave out the rows."
            )
    return Client(path.stem, **parts), _form(path, arrays, parts)


def _form(
    path: Path, arrays: dict[str, np.ndarray], parts: dict[str, Samples]
) -> tuple[int, int | None, tuple[int, ...] | None]:
    """Return how many features, which classes and what shape the samples have, which must fit them."""
    width = parts["train"].x.shape[1]
    if any(part.x.shape[1] != width for part in parts.values()):
        raise InputError(f"{path}: x, x_later and x_test must have as many columns; save them so.")
    classes, shape = (_whole(path, name, arrays.get(name)) for name in ("classes", "shape"))
    if classes and (len(classes) > 1 or classes[0] < 2):
        raise InputError(f"{path}: classes must be one number, 2 or more; save how many there are.")
    if shape and math.prod(shape) != width:
        raise InputError(f"{path}: a row of {width} numbers has no shape {shape}; correct shape.")
    for part in parts.values() if classes else ():
        if wrong := set(part.y.tolist()) - set(range(classes[0])):
            raise InputError(
                f"{path}: with {classes[0]} classes the labels are 0 to {classes[0] - 1}, and "
                f"{min(wrong):g} is among them; number the classes so."
            )
    return width, classes[0] if classes else None, shape or None


def _whole(path: Path, name: str, value: np.ndarray | None) -> tuple[int, ...]:
    """Return the whole numbers from 1 on that an array holds; () where there is none."""
    if value is None:
        return ()
    each = value.ravel()
    if (
        value.dtype.kind not in "iu"
        or not 0 < each.size < 9
        or not (0 < each.min() <= each.max() < 1e9)
    ):
        raise InputError(f"{path}: {name} must be whole numbers above 0; save it so.")
    return tuple(each.tolist())
