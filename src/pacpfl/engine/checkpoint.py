"""Checkpoints: what a training has reached, in one file that is whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from pacpfl import files
from pacpfl.errors import InputError

KIND = "pacpfl-checkpoint-1"
REMEDY = "delete it to start over"
HISTORY = "history/"


class Checkpoint(NamedTuple):
    """The end of a round: what a run goes on from."""

    round: int
    state: Any  # pytree of arrays: server state and clients' states
    history: dict[str, np.ndarray]  # one value per round so far
    ledger: str = ""  # of a private run: the place in its ledger at which this was saved


def save_checkpoint(path: Path, checkpoint: Checkpoint, identity: str) -> None:
    """Write a checkpoint; only a run whose configuration has this `identity` may go on from it."""
    arrays = _named(checkpoint.state) | {
        HISTORY + name: np.asarray(values) for name, values in checkpoint.history.items()
    }
    about = {"identity": identity, "round": str(checkpoint.round)}
    if checkpoint.ledger:
        about["ledger"] = checkpoint.ledger
    files.save_arrays(path, KIND, arrays, about)


def load_checkpoint(path: Path, template: Any, identity: str) -> Checkpoint | None:
    """Return the checkpoint, or None where there is none.

    Parameters
    ----------
    path
        The file.
    template
        A pytree of the structure, shapes and types that the states have.
    identity
        The run's own; a checkpoint of another configuration is refused.

    Raises
    ------
    InputError
        If the file is damaged, or is not this run's.
    """
    if not path.exists():
        return None
    arrays, about = files.load_arrays(path, KIND, REMEDY)
    if about.get("identity") != identity:
        raise InputError(
            f"{path} belongs to a run with another configuration; choose another folder with --out, "
            f"or {REMEDY}."
        )
    history = {n.removeprefix(HISTORY): a for n, a in arrays.items() if n.startswith(HISTORY)}
    states = {n: a for n, a in arrays.items() if not n.startswith(HISTORY)}
    expected = _named(template)
    if _shapes(states) != _shapes(expected):
        raise InputError(
            f"{path} holds arrays of other shapes than this run's; choose another folder with --out, "
            f"or {REMEDY}."
        )
    leaves = [states[name] for name in expected]
    state = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return Checkpoint(int(about["round"]), state, history, about.get("ledger", ""))


def _named(tree: Any) -> dict[str, np.ndarray]:
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {"state" + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in pairs}


def _shapes(arrays: dict[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}
