"""Runs that differ in their seed share what was traced and compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from toys import StatelessToy, make_store

from pacpfl.engine.runtime import PROGRAMS, compiled_once
from pacpfl.engine.simulate import train

TRACED: list[str] = []


@dataclass(frozen=True)
class Counted(StatelessToy):
    """Leaves a mark whenever it is traced."""

    name: str = "one"

    def server_update(self, *arguments: Any) -> Any:
        TRACED.append(self.name)
        return super().server_update(*arguments)


def test_another_seed_is_not_traced_again_and_gives_other_numbers() -> None:
    store = make_store((3, 5, 2))
    TRACED.clear()
    one, two = (train(Counted(), store, rounds=3, seed=seed) for seed in (1, 2))
    assert TRACED == ["one"], "neither for the second seed, nor twice for the first"
    assert not np.array_equal(one.state.value, two.state.value)
    again = train(Counted(), store, rounds=3, seed=1)
    np.testing.assert_array_equal(again.state.value, one.state.value)


def test_another_method_or_more_samples_are_traced() -> None:
    TRACED.clear()
    for name, lengths in (("a", (3, 2)), ("b", (3, 2)), ("b", (4, 2)), ("a", (3, 2))):
        train(Counted(name), make_store(lengths), rounds=2)
    assert TRACED == ["a", "b", "b"]


def test_what_is_kept_is_bounded_and_what_has_no_hash_is_made_each_time() -> None:
    calls: list[object] = []

    @compiled_once
    def make(argument: object) -> list[object]:
        calls.append(argument)
        return [argument]

    assert make("x") is make("x")
    assert make([1]) is not make([1])
    assert calls == ["x", [1], [1]]
    for number in range(PROGRAMS):
        make(number)
    make("x")
    assert calls[-1] == "x"
