"""The simulator against straight Python, one client and one round after the other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from toys import StatelessToy, Toy, assert_same_tree, make_store

from pacpfl.data.store import ClientStore
from pacpfl.engine import simulate
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import choose_clients, divide, initial_client_states
from pacpfl.engine.runtime import PROGRAMS, compiled_once
from pacpfl.engine.simulate import Progress, Trained, train
from pacpfl.engine.training import Saving, load_checkpoint
from pacpfl.errors import InputError
from pacpfl.types import Data

pytestmark = pytest.mark.usefixtures("x64")

LENGTHS = (3, 5, 2, 4, 5)
ROUNDS = 23


def run(method: Any, store: ClientStore, rounds: int = ROUNDS, **options: Any) -> Trained:
    return train(method, store, rounds=rounds, seed=7, dtype=np.float64, **options)


def own_rows(store: ClientStore, client: int) -> Data:
    """One client's samples without any padding."""
    rows = slice(store.offsets[client], store.offsets[client + 1])
    x, y = jnp.asarray(store.x[rows]), jnp.asarray(store.y[rows])
    return Data(x, y, jnp.ones(len(y), bool))


def plain_loop(
    method: Any, store: ClientStore, rounds: int, c: int, memories: list[Any]
) -> tuple[Any, list[Any], list[dict[str, float]]]:
    """Algorithm by the letter: keys are folded from (seed, round, client), the server is number n."""
    n = store.clients
    base = jax.random.key(7)
    state = jax.jit(method.init)(jax.random.fold_in(base, 0), own_rows(store, 0))
    client_update, server_update = jax.jit(method.client_update), jax.jit(method.server_update)
    diagnostics = jax.jit(method.diagnostics)
    curves = []
    for number in range(rounds):
        round_key = jax.random.fold_in(jax.random.fold_in(base, 1), number)
        chosen = range(n) if c == n else [int(i) for i in choose_clients(7, number, n, c)]
        updates = []
        for client in chosen:
            update, memories[client] = client_update(
                state, memories[client], own_rows(store, client),
                jax.random.fold_in(round_key, client),
            )  # fmt: skip
            updates.append(update)
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *updates)
        weights = jnp.ones(len(updates))
        curves.append({k: float(v) for k, v in diagnostics(state, stacked, weights).items()})
        state = server_update(state, stacked, weights, jax.random.fold_in(round_key, n))
    return state, memories, curves


def assert_close_tree(one: Any, two: Any, **tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), **(tolerance or {"rtol": 1e-10}))


def first_memories(method: Any, store: ClientStore) -> Any:
    """What clients keep before the first round: a run of which nobody was chosen but one."""
    state = method.init(jax.random.fold_in(jax.random.key(7), 0), own_rows(store, 0))
    return initial_client_states(method, state, store, Keys.of(7), np.float64)


@pytest.mark.parametrize("c", [5, 2])
def test_training_equals_a_plain_loop(c: int) -> None:
    store = make_store(LENGTHS)
    start = first_memories(Toy(), store)
    memories = [jax.tree.map(lambda a, i=i: a[i], start) for i in range(len(LENGTHS))]
    trained = run(Toy(), store, clients_per_round=c)
    state, memories, curves = plain_loop(Toy(), store, ROUNDS, c, memories)
    assert_close_tree(trained.state, state)
    assert_close_tree(trained.client_states, jax.tree.map(lambda *each: jnp.stack(each), *memories))
    for name, values in trained.history.items():
        np.testing.assert_allclose(values, [curve[name] for curve in curves], rtol=1e-10)


def test_clients_start_from_what_the_method_gives_them() -> None:
    """Each client's own data and a key of its own, none of which serves anything else."""
    store = make_store((4, 4, 4, 4))
    sums = [float(own_rows(store, i).y.sum()) for i in range(4)]
    draws = np.asarray(first_memories(Toy(), store).number) - sums
    assert np.all((draws > 0) & (draws < 1)) and len(np.unique(draws)) == 4
    base = jax.random.key(7)
    others = [float(jax.random.uniform(jax.random.fold_in(base, i))) for i in range(3)]
    assert not np.isclose(draws[:, None], others).any(), "a key is used for two purposes"


@pytest.mark.parametrize("c", [2, 3])
def test_samples_on_the_device_or_handed_over_round_by_round_are_the_same(
    c: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = undisturbed(c)
    monkeypatch.setattr(simulate, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(simulate, "hold", lambda *_: pytest.fail("nothing may be held"))
    streamed = run(Toy(), make_store(LENGTHS), clients_per_round=c)
    assert_same_tree(held[:3], streamed[:3])


@cache
def undisturbed(c: int) -> Trained:
    return run(Toy(), make_store(LENGTHS), clients_per_round=c)


@pytest.mark.parametrize("c", [5, 2])
@pytest.mark.parametrize("grouping", ["three", "saves", "short"])
def test_grouping_of_rounds_into_calls_changes_no_bit(
    c: int, grouping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if grouping == "three":
        monkeypatch.setattr(simulate, "MAXIMUM_ROUNDS_PER_CALL", 3)
    if grouping == "short":
        monkeypatch.setattr(simulate, "CALL_SECONDS", 1e-9)
    saving = Saving(tmp_path / "c.safetensors", "me", rounds=5) if grouping == "saves" else None
    calls: list[int] = []
    parts = run(
        Toy(), make_store(LENGTHS), clients_per_round=c, saving=saving,
        progress=lambda now: calls.append(now.round),
    )  # fmt: skip
    assert len(calls) >= 5
    assert_same_tree(undisturbed(c)[:3], parts[:3])


@pytest.mark.parametrize("blocks", [3, 5])
def test_division_into_blocks_changes_nothing(blocks: int) -> None:
    """Also where the last block has an empty slot."""
    store = make_store(LENGTHS)
    sizes = (int(1.2**exponent) for exponent in range(120))
    matrices = next(m for m in sizes if divide(5, store.longest, m, 8).blocks == blocks)
    divided = run(Toy(), store, matrices_per_client=matrices)
    assert divide(5, store.longest, 1, 8).blocks == 1
    assert_close_tree(undisturbed(5)[:3], divided[:3], rtol=1e-9)


def test_no_more_slots_than_blocks_and_devices_need() -> None:
    for c, longest, matrices in [(1, 10, 1), (96, 150, 4), (24, 610, 4), (7, 2400, 64)]:
        devices, blocks, block = layout = divide(c, longest, matrices, 4)
        assert layout.slots == devices * blocks * block >= c
        assert layout.slots - c < devices * blocks
    assert divide(24, 10, 4, 4).blocks == 1, "a small federation needs no division"
    assert divide(7, 2400, 64, 4).block == 1, "the largest go one by one"


@pytest.mark.parametrize(("n", "c"), [(6, 3), (5, 1), (4, 4), (100_000, 50)])
def test_exactly_c_distinct_clients_are_chosen_in_each_round_anew(n: int, c: int) -> None:
    rounds = [choose_clients(3, number, n, c) for number in range(50)]
    for number, chosen in enumerate(rounds):
        assert len(set(chosen.tolist())) == len(chosen) == c
        assert 0 <= chosen.min() <= chosen.max() < n
        np.testing.assert_array_equal(chosen, choose_clients(3, number, n, c))
    if n > 6:
        others = [choose_clients(4, number, n, c) for number in range(50)]
        assert len({tuple(each) for each in (*rounds, *others)}) == 100


def test_every_subset_is_equally_likely() -> None:
    rounds, n, c = 4000, 6, 3
    found = Counter(tuple(choose_clients(1, t, n, c).tolist()) for t in range(rounds))
    observed = [found[subset] for subset in combinations(range(n), c)]
    assert sum(observed) == rounds
    assert stats.chisquare(observed).pvalue > 1e-3


def test_history_has_one_value_per_round_and_progress_never_goes_back() -> None:
    seen: list[Progress] = []
    trained = run(Toy(), make_store(LENGTHS), rounds=200, clients_per_round=3, progress=seen.append)
    assert {n: v.shape for n, v in trained.history.items()} == dict.fromkeys(
        ("clients", "rounds", "value"), (200,)
    )
    np.testing.assert_array_equal(trained.history["rounds"], np.arange(200))
    np.testing.assert_array_equal(trained.history["clients"], 3)
    assert len(seen) >= 3, "a bar needs something to show"
    assert all(a.round < b.round and a.seconds <= b.seconds for a, b in pairwise(seen))
    assert seen[-1].round == trained.rounds == 200 and {now.rounds for now in seen} == {200}
    for now in seen:
        assert now.diagnostics["value"] == trained.history["value"][now.round - 1]
    assert trained.finished and trained.compile_seconds > 0


@pytest.mark.parametrize("c", [0, -1, 6])
def test_impossible_numbers_of_clients_per_round_are_refused(c: int) -> None:
    with pytest.raises(InputError, match=rf"^{c} clients per round .* 1 to 5\.$"):
        run(Toy(), make_store(LENGTHS), clients_per_round=c)


@pytest.mark.parametrize(("c", "stop_at"), [(5, 11), (2, 1), (2, 11), (2, ROUNDS)])
def test_a_stopped_run_goes_on_to_the_same_bits(c: int, stop_at: int, tmp_path: Path) -> None:
    store = make_store(LENGTHS)
    more: dict[str, Any] = {
        "clients_per_round": c, "saving": Saving(tmp_path / "c.safetensors", "me", rounds=4)
    }  # fmt: skip
    seen = [0]
    first = run(
        Toy(), store, progress=lambda now: seen.append(now.round),
        stop=lambda: seen[-1] >= stop_at, **more,
    )  # fmt: skip
    assert first.rounds == seen[-1] and first.finished == (seen[-1] == ROUNDS)
    second = run(Toy(), store, **more)
    assert second.finished
    assert_same_tree(undisturbed(c)[:3], second[:3])


def test_a_checkpoint_is_never_older_than_promised(tmp_path: Path) -> None:
    store, path = make_store(LENGTHS), tmp_path / "c.safetensors"

    def saved() -> int:
        found = load_checkpoint(path, undisturbed(5)[:2], "me")
        return 0 if found is None else found.round

    ages: list[int] = []
    run(
        Toy(), store, saving=Saving(path, "me", rounds=4, minutes=60),
        progress=lambda now: ages.append(now.round - saved()),
    )  # fmt: skip
    assert max(ages) == 4 and saved() == ROUNDS
    path.unlink()
    before: list[int] = [0]

    def follow(now: Progress) -> None:
        assert saved() == before[-1]
        before.append(now.round)

    run(Toy(), store, saving=Saving(path, "me", rounds=1000, minutes=1e-9), progress=follow)
    assert len(before) > 3


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    store, path = make_store(LENGTHS), tmp_path / "c.safetensors"
    run(Toy(), store, rounds=2, saving=Saving(path, "one"))
    before = path.read_bytes()
    for method, name in ((Toy(), "two"), (StatelessToy(), "one")):
        with pytest.raises(InputError, match=r"another configuration|other shapes"):
            run(method, store, rounds=2, saving=Saving(path, name))
    assert path.read_bytes() == before


# Runs that differ in their seed share what was traced and compiled.

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
