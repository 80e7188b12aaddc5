"""Checkpoints that are either whole or not there: safetensors, written aside, synced, then renamed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pacpfl import files
from pacpfl.errors import InputError

FORMAT = "pacpfl-checkpoint-1"


class Checkpoint(NamedTuple):
    round: int
    state: Any  # pytree of arrays: server state and clients' states
    history: dict[str, np.ndarray]  # one value per round so far
    ledger: str = ""  # of a private run: the place in its ledger at which this was saved


def save_checkpoint(path: Path, checkpoint: Checkpoint, identity: str) -> None:
    """`identity` names the configuration; only a run with the same one may go on from here."""
    arrays = _named(checkpoint.state) | {
        f"history/{name}": np.asarray(values) for name, values in checkpoint.history.items()
    }
    about = {"format": FORMAT, "identity": identity, "round": str(checkpoint.round)}
    if checkpoint.ledger:
        about["ledger"] = checkpoint.ledger
    files.write(path, save(arrays, about | {"digest": _digest(arrays, about)}))


def load_checkpoint(path: Path, template: Any, identity: str) -> Checkpoint | None:
    """None where there is no checkpoint. `template` gives the pytree, shapes and types expected."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found_digest = metadata.pop("digest", None)
        whole = metadata.get("format") == FORMAT and found_digest == _digest(arrays, metadata)
        rounds = int(metadata.get("round", "-1"))
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a readable checkpoint ({_one_line(error)}); delete it to start over."
        ) from error
    if not whole or rounds < 0:
        raise InputError(
            f"{path} is damaged: its content is not what was saved; delete it to start over."
        )
    if metadata["identity"] != identity:
        raise InputError(
            f"{path} belongs to a run with another configuration; choose another folder with --out, "
            "or delete it to start over."
        )
    expected = _named(template)
    history = {n.removeprefix("history/"): a for n, a in arrays.items() if n.startswith("history/")}
    found = {n: a for n, a in arrays.items() if not n.startswith("history/")}
    if {n: (a.shape, a.dtype) for n, a in found.items()} != {
        n: (a.shape, a.dtype) for n, a in expected.items()
    }:
        raise InputError(
            f"{path} holds arrays of other shapes than this run's; choose another folder with --out, "
            "or delete it to start over."
        )
    leaves = [found[name] for name in expected]
    state = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return Checkpoint(rounds, state, history, metadata.get("ledger", ""))


def _named(tree: Any) -> dict[str, np.ndarray]:
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {"state" + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in pairs}


def _digest(arrays: dict[str, np.ndarray], about: dict[str, str]) -> str:
    """Of the arrays and of what is said about them: a changed round is damage, too."""
    total = hashlib.sha256(repr(sorted(about.items())).encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
