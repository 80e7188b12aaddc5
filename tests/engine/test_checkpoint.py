"""Checkpoints are whole or not there, and every damage is found before it is used."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from toys import assert_same_tree

from pacpfl.engine.checkpoint import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)
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
    return Checkpoint(number, (state, ()), {"value": random.normal(size=number)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.safetensors"


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The system refuses to let any file grow further, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refused(path: Path, checkpoint: Checkpoint | None = None, identity: str = "me") -> str:
    template = (checkpoint or make()).state
    with pytest.raises(InputError) as found:
        load_checkpoint(path, template, identity)
    message = str(found.value)
    assert str(path) in message
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_what_was_saved_comes_back_bit_for_bit(path: Path) -> None:
    assert load_checkpoint(path, make().state, "me") is None
    saved = make()
    save_checkpoint(path, saved, "me")
    found = load_checkpoint(path, make(seed=5).state, "me")
    assert found is not None
    assert found.round == 12
    assert_same_tree(found.state, saved.state)
    assert_same_tree(found.history, saved.history)
    signs = np.signbit(found.state[0].particles)
    np.testing.assert_array_equal(signs, np.signbit(saved.state[0].particles))


def test_it_is_plain_safetensors(path: Path) -> None:
    save_checkpoint(path, make(), "me")
    arrays = load_file(path)
    np.testing.assert_array_equal(arrays["history/value"], make().history["value"])
    assert any(
        values.shape == (2, 3) and np.array_equal(values, make().state[0].particles, equal_nan=True)
        for values in arrays.values()
    )


def test_a_write_that_was_killed_leaves_the_old_checkpoint(path: Path) -> None:
    """What a kill in the middle leaves: part of the new file, under another name."""
    save_checkpoint(path, make(3), "me")
    whole = path.read_bytes()
    seen: list[str] = []

    def killed(source: str, target: str) -> None:
        seen.append(os.fspath(source))
        raise KeyboardInterrupt  # nothing after this instant happens, as in a kill

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(path, make(4), "me")
    assert path.read_bytes() == whole
    partial = Path(seen[0])
    assert partial.parent == path.parent, "a rename is atomic only within one file system"
    partial.write_bytes(whole[: len(whole) // 2])
    found = load_checkpoint(path, make().state, "me")
    assert found is not None
    assert found.round == 3
    save_checkpoint(path, make(5), "me")
    again = load_checkpoint(path, make().state, "me")
    assert again is not None
    assert again.round == 5


def test_every_truncation_is_found(path: Path) -> None:
    save_checkpoint(path, make(), "me")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused(path)


def test_additional_bytes_are_found(path: Path) -> None:
    save_checkpoint(path, make(), "me")
    path.write_bytes(path.read_bytes() + b"\0" * 8)
    refused(path)


@pytest.mark.parametrize("bit", [0, 2, 5])
def test_every_flipped_bit_is_found(path: Path, bit: int) -> None:
    """Refused, or without any effect (a blank that is another blank); never used changed."""
    saved = make()
    save_checkpoint(path, saved, "me")
    whole = path.read_bytes()
    changed: list[int] = []
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        path.write_bytes(bytes(flipped))
        try:
            found = load_checkpoint(path, saved.state, "me")
        except InputError as error:
            assert str(path) in str(error)
            continue
        assert found is not None
        try:
            assert found.round == saved.round
            assert_same_tree((found.state, found.history), (saved.state, saved.history))
        except AssertionError:
            changed.append(place)
    assert not changed, [whole[place - 12 : place + 4] for place in changed]


def foreign(path: Path) -> None:
    save_file({"weights": np.zeros(3)}, path)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"not a checkpoint at all, but long enough to be one"),
        lambda path: path.write_bytes(b"\xff" * 200),
        foreign,
        folder,
    ],
    ids=["empty", "text", "ones", "foreign", "folder"],
)
def test_other_files_are_refused(damage: Callable[[Path], object], path: Path) -> None:
    damage(path)
    refused(path)


def test_another_configuration_is_refused(path: Path) -> None:
    save_checkpoint(path, make(), "another")
    assert "another configuration" in refused(path)


def other_shape(state: State) -> State:
    return state._replace(particles=np.zeros((3, 3), np.float32))


def other_type(state: State) -> State:
    return state._replace(particles=state.particles.astype(np.float64))


def one_more(state: State) -> State:
    return state._replace(memory=(*state.memory, np.zeros(2)))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [other_shape, other_type, one_more])
def test_other_arrays_are_refused(change: Callable[[State], State], path: Path) -> None:
    save_checkpoint(path, make(), "me")
    expected = make()._replace(state=(change(make().state[0]), ()))
    assert "shapes" in refused(path, expected)


def test_a_full_disk_leaves_the_old_checkpoint(path: Path) -> None:
    save_checkpoint(path, make(3), "me")
    whole = path.read_bytes()
    with files_no_larger_than(len(whole) + 100), pytest.raises(InputError) as found:
        save_checkpoint(path, make(4000), "me")
    assert str(path) in str(found.value)
    assert "\n" not in str(found.value)
    assert path.read_bytes() == whole
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    save_checkpoint(path, make(4000), "me")
    again = load_checkpoint(path, make().state, "me")
    assert again is not None
    assert again.round == 4000
