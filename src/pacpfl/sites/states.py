"""What clients keep between rounds, at their site, for as many rounds back as may be needed.

A server that was killed goes on from its last checkpoint, and so must the clients: the state of a
client after round r lies in a file of its own until a later one is older than the checkpoint. The
server says which round's state it counts on, so an update that came too late leaves no trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl import files
from pacpfl.errors import InputError
from pacpfl.sites.wire import Refused, from_wire, to_wire

KIND = "pacpfl-state-1"
NEVER = -1  # the round of a client that has not taken part yet


def save_tree(path: Path, tree: PyTree) -> None:
    files.save_arrays(path, KIND, to_wire(tree), private=True)


def load_tree(path: Path, template: PyTree) -> PyTree:
    arrays, _ = files.load_arrays(path, KIND, "let the run across sites end again")
    return from_wire(arrays, template)


@dataclass(frozen=True)
class Memories:
    """The states of a site's clients in one run; `pattern` has the shapes and types of one of them."""

    folder: Path
    pattern: PyTree

    @property
    def empty(self) -> bool:
        return all(math.prod(leaf.shape) == 0 for leaf in jax.tree.leaves(self.pattern))

    def rows(self, clients: Sequence[int], one: Callable[[int], PyTree]) -> PyTree:
        """Return what `one` knows of each client, one row each; where nothing is kept it is not asked."""
        if self.empty:
            count = len(clients)
            return jax.tree.map(lambda s: np.zeros((count, *s.shape), s.dtype), self.pattern)
        return jax.tree.map(lambda *each: np.stack(each), *map(one, clients))

    def keep(self, clients: Sequence[int], rows: PyTree, number: int, saved: int) -> None:
        """Keep states after a round, on disk when this returns.

        States that no server can ask for any more, older than the last before round `saved`, go.
        """
        if self.empty:
            return
        for row, client in enumerate(clients):
            one = jax.tree.map(lambda a, row=row: a[row], rows)
            save_tree(self._path(client, number), one)
            for old in [kept for kept in self.kept(client) if kept < saved][:-1]:
                self._path(client, old).unlink(missing_ok=True)

    def recall(self, client: int, number: int) -> PyTree:
        try:
            return load_tree(self._path(client, number), self.pattern)
        except InputError as error:
            raise Refused(f"what client {client} kept after round {number} is not here") from error

    def kept(self, client: int) -> list[int]:
        """Return the rounds after which a client's state is here, in order."""
        place = self._path(client, 0).parent
        return sorted(int(path.stem) for path in place.glob("*.safetensors"))

    def _path(self, client: int, number: int) -> Path:
        return self.folder / f"client-{client:06d}" / f"{number:09d}.safetensors"
