"""What clients keep between rounds, at their site, for as many rounds back as may be needed.

A server that was killed goes on from its last checkpoint, and so must the clients: the state of a
client after round r lies in a file of its own until a later one is older than the checkpoint. The
server says which round's state it counts on, so an update that came too late leaves no trace.
"""

from __future__ import annotations

import math
from pathlib import Path

import jax
from jaxtyping import PyTree

from pacpfl import files
from pacpfl.errors import InputError
from pacpfl.sites.wire import Refused, from_wire, to_wire

KIND = "pacpfl-state-1"
NEVER = -1  # the round of a client that has not taken part yet


def save_tree(path: Path, tree: PyTree) -> None:
    files.save_arrays(path, KIND, to_wire(tree))


def load_tree(path: Path, template: PyTree) -> PyTree:
    arrays, _ = files.load_arrays(path, KIND, "let the run across sites end again")
    return from_wire(arrays, template)


def keep(folder: Path, client: int, number: int, state: PyTree) -> None:
    """Keep the state of a client after a round; it is on disk when this returns."""
    save_tree(_path(folder, client, number), state)


def recall(folder: Path, client: int, number: int, template: PyTree) -> PyTree:
    try:
        return load_tree(_path(folder, client, number), template)
    except InputError as error:
        raise Refused(f"what client {client} kept after round {number} is not here") from error


def forget(folder: Path, client: int, saved: int) -> None:
    """Drop what no server can ask for any more: states older than the last before round `saved`."""
    for number in [number for number in _kept(folder, client) if number < saved][:-1]:
        _path(folder, client, number).unlink(missing_ok=True)


def latest(folder: Path, client: int, template: PyTree) -> PyTree:
    """Return the newest state; None where the client never took part."""
    kept = _kept(folder, client)
    return recall(folder, client, kept[-1], template) if kept else None


def _path(folder: Path, client: int, number: int) -> Path:
    return folder / f"client-{client:06d}" / f"{number:09d}.safetensors"


def _kept(folder: Path, client: int) -> list[int]:
    """Return the rounds after which a client's state is here, in order."""
    place = _path(folder, client, 0).parent
    return sorted(int(path.stem) for path in place.glob("*.safetensors"))


def is_empty(tree: PyTree) -> bool:
    """Return whether there is nothing to keep."""
    return all(math.prod(leaf.shape) == 0 for leaf in jax.tree.leaves(tree))
