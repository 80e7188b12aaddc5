"""A site's own data in plain files: a folder with one .npz for each client, or a client store.

    x, y               [m, d] and [m]: what the client trains on
    x_later, y_later   optional: gathered after training, used in personalisation only
    x_test, y_test     optional: only ever used to measure
    classes, shape     optional: number of classes of y; shape of what a row of x is

Tables (CSV, Parquet) are read by `data.tables`. Nothing is ever unpickled.
"""

from __future__ import annotations

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
        if x.ndim != 2 or y.shape != x.shape[:1] or not len(y) or x.dtype.kind not in "fiub":
            raise InputError(
                f"{path}: x must be a table of numbers and y one number for each of its rows; they have "
                f"shapes {x.shape} and {y.shape}."
            )
        parts[part] = Samples(x.astype(float), y.astype(float))
        if not (np.isfinite(parts[part].x).all() and np.isfinite(parts[part].y).all()):
            raise InputError(
                f"{path} holds numbers that are not finite; correct or leave out the rows."
            )
    classes, shape = arrays.get("classes"), arrays.get("shape")
    form = (
        parts["train"].x.shape[1],
        None if classes is None else int(classes.item()),
        None if shape is None else tuple(int(side) for side in shape),
    )
    return Client(path.stem, **parts), form
