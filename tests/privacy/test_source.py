"""The randomness of private runs: the system's, all of it, and other every time."""

from __future__ import annotations

import secrets

import jax
import numpy as np
import pytest

from pacpfl.privacy.source import generator, noise_key


def test_keys_are_the_systems_bits_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def known(count: int) -> bytes:
        asked.append(count)
        return bytes(range(1, count + 1))

    monkeypatch.setattr(secrets, "token_bytes", known)
    data = np.asarray(jax.random.key_data(noise_key()))
    assert data.tobytes() == bytes(range(1, asked[0] + 1))
    assert data.nbytes == asked[0] >= 8


def test_every_key_is_another() -> None:
    keys = {np.asarray(jax.random.key_data(noise_key())).tobytes() for _ in range(50)}
    assert len(keys) == 50
    assert len({generator(None, 0).random() for _ in range(50)}) == 50


def test_a_seed_makes_them_repeatable() -> None:
    one, two = (np.asarray(jax.random.key_data(noise_key(7))) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    draws = [generator(7, number).random() for number in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
