"""Checkpoints come back as they were, and serve no other run (files: tests/test_files.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file
from toys import assert_same_tree

from pacpfl import files
from pacpfl.engine.training import KIND, Checkpoint, load_checkpoint, save_checkpoint
from pacpfl.errors import InputError


class State(NamedTuple):
    particles: np.ndarray
    memory: tuple[np.ndarray, dict[str, np.ndarray]]


def make(number: int = 12, seed: int = 0) -> Checkpoint:
    random = np.random.default_rng(seed)
    particles = random.normal(size=(2, 3)).astype(np.float32)
    particles[0, :2] = -0.0, np.nan
    inner = {"count": np.array(5, np.int32), "wide": random.normal(size=4)}
    state = State(particles, (np.array([True, False]), inner))
    return Checkpoint(number, (state, ()), {"value": random.normal(size=number)}, "2 ab")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.safetensors"


def refused(path: Path, checkpoint: Checkpoint | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load_checkpoint(path, (checkpoint or make()).state, "me")
    message = str(caught.value)
    assert str(path) in message and message.endswith("delete it to start over.")
    return message


def test_what_was_saved_comes_back_bit_for_bit(path: Path) -> None:
    assert load_checkpoint(path, make().state, "me") is None
    saved = make()
    save_checkpoint(path, saved, "me")
    back = load_checkpoint(path, make(seed=5).state, "me")
    assert back is not None
    assert (back.round, back.ledger) == (12, "2 ab")
    assert_same_tree((back.state, back.history), (saved.state, saved.history))
    signs = np.signbit(back.state[0].particles)
    np.testing.assert_array_equal(signs, np.signbit(saved.state[0].particles))
    # It is plain safetensors.
    np.testing.assert_array_equal(load_file(path)["history/value"], saved.history["value"])


def test_other_files_are_refused(path: Path) -> None:
    path.write_bytes(b"not a checkpoint at all, but long enough to be one")
    refused(path)
    files.save_arrays(path, "pacpfl-model-1", {"weights": np.zeros(3)})
    refused(path)
    files.save_arrays(path, KIND, {"weights": np.zeros(3)}, {"identity": "me", "round": "3"})
    assert "shapes" in refused(path)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(path: Path) -> None:
    template = make().state
    save_checkpoint(path, make(3), "me")
    save_checkpoint(path, make(6), "me")
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    for _ in range(2):  # also when it is asked again
        back = load_checkpoint(path, template, "me")
        assert back is not None and back.round == 3
    assert path.with_suffix(".damaged").is_file()
    save_checkpoint(path, make(9), "me")
    path.write_bytes(b"nothing")
    back = load_checkpoint(path, template, "me")
    assert back is not None and back.round == 3, "a damaged one is never kept as the one before"
    for one in path.parent.glob("checkpoint*.safetensors"):
        assert one.stat().st_mode & 0o077 == 0
        one.write_bytes(b"nothing")
    refused(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state._replace(particles=np.zeros((3, 3), np.float32)),
        lambda state: state._replace(particles=state.particles.astype(np.float64)),
        lambda state: state._replace(memory=(*state.memory, np.zeros(2))),
    ],
    ids=["shape", "type", "one more"],
)
def test_other_arrays_are_refused(change: Callable[[State], State], path: Path) -> None:
    save_checkpoint(path, make(), "me")
    expected = make()._replace(state=(change(make().state[0]), ()))
    assert "shapes" in refused(path, expected)
