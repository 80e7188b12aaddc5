"""Server and sites, without a network between them, against the simulator and the replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from local_sites import (
    Crash,
    Local,
    assert_close,
    final,
    make_sites,
    recipe_for,
    record_of,
    run_segment,
)
from toys import StatelessToy, Toy, make_store

from pacpfl.data.store import ClientStore
from pacpfl.engine.simulate import train
from pacpfl.engine.training import Saving
from pacpfl.methods.base import Method
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.methods.transforms import Compressed
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.sites import participation
from pacpfl.sites.runs import replay
from pacpfl.sites.segment import CHECKPOINT
from pacpfl.sites.terms import give_order, read_outcome

LENGTHS = (3, 5, 2, 4, 5)
SHARES = {"a": range(0, 2), "b": range(2, 3), "c": range(3, 5)}
ROUNDS = 12


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def store() -> ClientStore:
    return make_store(LENGTHS)


@pytest.fixture(scope="module")
def wide() -> ClientStore:
    """With updates that are worth compressing."""
    return make_store(LENGTHS, features=80)


def gaussian(n: int) -> Method:
    prior = GPPrior(2, GPSettings(mean="constant", kernel="ard"))
    return PACPFL(prior, n, optax.adam(0.05), TrainSettings(particles=2))


@dataclass(frozen=True)
class Counting(StatelessToy):
    """The server's step depends on n, as PAC-PFL's does."""

    clients: int = 1

    def server_update(self, state: Any, updates: Any, weights: Any, key: Any) -> Any:
        return super().server_update(state, self.clients * updates / 5, weights, key)


METHODS = {
    "stateless": lambda n: StatelessToy(),
    "stateful": lambda n: Toy(),
    "counting": lambda n: Counting(n),
    "int8": lambda n: Compressed(Toy(), "int8"),
}


def assert_replayed(folder: Path, store: ClientStore, build: Any, rounds: int = ROUNDS) -> None:
    done, state = final(folder, build(store.clients))
    assert done == rounds
    record = record_of(folder)
    assert len(record.rounds) == rounds
    again, _ = replay(build, store, record, seed=7, dtype=np.float64)
    assert_close(state, again)


@pytest.mark.parametrize("kind", ["stateful", "counting"])
def test_with_everybody_it_is_the_simulators_run(
    kind: str, store: ClientStore, tmp_path: Path
) -> None:
    recipe = recipe_for(METHODS[kind], ROUNDS)
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe))
    outcome = run_segment(exchange, recipe, tmp_path / "run")
    assert outcome.finished and outcome.rounds == ROUNDS, outcome
    expected = train(METHODS[kind](5), store, rounds=ROUNDS, seed=7, dtype=np.float64)
    assert_close(final(tmp_path / "run", METHODS[kind](5))[1], expected.state)
    assert_replayed(tmp_path / "run", store, METHODS[kind])


def test_rounds_at_sites_and_in_one_process_are_parts_of_one_training(
    store: ClientStore, tmp_path: Path
) -> None:
    """Both cohorts play for the same loop, so either goes on from the other's checkpoint."""
    recipe = recipe_for(METHODS["stateless"], ROUNDS)
    folder, method = tmp_path / "run", StatelessToy()
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe))

    def stop(site: str, about: Any, reply: Any) -> Any:
        exchange.stop = about.get("round") == 4
        return reply

    exchange.spoil = stop
    assert run_segment(exchange, recipe, folder).rounds == 5
    options: dict[str, Any] = {"seed": 7, "dtype": np.float64}
    whole = train(method, store, rounds=ROUNDS, **options)
    saving = Saving(folder / CHECKPOINT, "a run")
    reached: list[int] = []
    train(method, store, rounds=ROUNDS, **options, saving=saving,
          progress=lambda now: reached.append(now.round),
          stop=lambda: bool(reached))  # fmt: skip
    assert 5 < reached[-1] < ROUNDS
    with open(folder / participation.FILE, "ab") as log:  # everybody took part
        for number in range(5, reached[-1]):
            entry = {"kind": "round", "round": number, "clients": [0, 1, 2, 3, 4]}
            log.write(json.dumps(entry).encode() + b"\n")
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe))
    assert run_segment(exchange, recipe, folder, 2).finished
    done, state = final(folder, method)
    assert done == ROUNDS
    assert_close(state, whole.state)


def test_compressed_updates_travel_in_an_eighth_and_give_the_simulators_run(
    wide: ClientStore, tmp_path: Path
) -> None:
    received = {}
    for encoding in ("exact", "int8"):
        recipe = recipe_for(METHODS["stateful"], 5)
        folder = tmp_path / encoding
        exchange = Local(make_sites(folder, wide, SHARES, recipe))
        run_segment(exchange, recipe, folder / "run", encoding=encoding)
        lines = participation.entries(folder / "run" / participation.FILE)
        received[encoding] = lines[-1]["received"]
    assert received == {"exact": 5 * 80 * 8, "int8": 5 * (80 + 8)}
    method = METHODS["int8"](5)
    expected = train(method, wide, rounds=5, seed=7, dtype=np.float64)
    assert_close(final(tmp_path / "int8" / "run", method)[1], expected.state)


def test_some_clients_in_a_round_are_those_the_simulator_chooses(
    store: ClientStore, tmp_path: Path
) -> None:
    recipe = recipe_for(METHODS["stateful"], ROUNDS, clients_per_round=3)
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe))
    run_segment(exchange, recipe, tmp_path / "run")
    expected = train(Toy(), store, rounds=ROUNDS, seed=7, dtype=np.float64, clients_per_round=3)
    assert_close(final(tmp_path / "run", Toy())[1], expected.state)
    assert {len(one.clients) for one in record_of(tmp_path / "run").rounds} == {3}


@pytest.mark.parametrize("kind", ["stateful", "int8"])
def test_a_silent_site_leaves_and_the_run_goes_on(
    kind: str, store: ClientStore, wide: ClientStore, tmp_path: Path
) -> None:
    def lose(site: str, about: Any, reply: Any) -> Any:
        gone = site == "b" and about["task"] == "train" and about["round"] >= 4
        return None if gone else reply

    recipe = recipe_for(METHODS["stateful"], ROUNDS)
    encoding = "int8" if kind == "int8" else "exact"
    data = wide if kind == "int8" else store
    exchange = Local(make_sites(tmp_path, data, SHARES, recipe), lose)
    outcome = run_segment(exchange, recipe, tmp_path / "run", encoding=encoding)
    assert outcome.finished
    clients = [one.clients for one in record_of(tmp_path / "run").rounds]
    assert clients == [(0, 1, 2, 3, 4)] * 4 + [(0, 1, 3, 4)] * (ROUNDS - 4)
    asked = [s for about, s, _ in exchange.asked if about["task"] == "train"]
    assert sum("b" in names for names in asked) == 5, "a silent site is asked no more"
    assert_replayed(tmp_path / "run", data, METHODS[kind])


@pytest.mark.parametrize("kind", ["stateful", "int8"])
def test_a_killed_server_goes_on_from_its_checkpoint(
    kind: str, store: ClientStore, wide: ClientStore, tmp_path: Path
) -> None:
    """Twice; clients that keep something go back with it."""

    def kill_in(number: int) -> Any:
        def spoil(site: str, about: Any, reply: Any) -> Any:
            if about["task"] == "train" and about["round"] == number:
                raise Crash
            return reply

        return spoil

    recipe = recipe_for(METHODS["stateful"], ROUNDS)
    encoding = "int8" if kind == "int8" else "exact"
    data = wide if kind == "int8" else store
    folder = tmp_path / "run"
    for segment, number in ((1, 5), (2, 9)):
        sites = make_sites(tmp_path, data, SHARES, recipe)  # their processes are new
        with pytest.raises(Crash):
            run_segment(
                Local(sites, kill_in(number)), recipe, folder, segment,
                checkpoint_rounds=3, encoding=encoding,
            )  # fmt: skip
    sites = make_sites(tmp_path, data, SHARES, recipe)
    outcome = run_segment(Local(sites), recipe, folder, 3, checkpoint_rounds=3, encoding=encoding)
    assert outcome.finished
    starts = [
        e["start"] for e in participation.entries(folder / participation.FILE) if "start" in e
    ]
    assert starts == [0, 3, 9]
    assert_replayed(folder, data, METHODS[kind])
    expected = train(METHODS[kind](5), data, rounds=ROUNDS, seed=7, dtype=np.float64)
    assert_close(final(folder, METHODS[kind](5))[1], expected.state)


def test_an_answer_that_does_not_count_leaves_no_trace(store: ClientStore, tmp_path: Path) -> None:
    """Only one of three answers in time: too few, so the round is asked for again."""
    times = {"count": 0}

    def lose(site: str, about: Any, reply: Any) -> Any:
        if about["task"] == "train" and about["round"] == 6 and site == "c":
            times["count"] += 1
            return reply._replace(text="?") if times["count"] == 1 else reply
        return reply

    recipe = recipe_for(METHODS["stateful"], ROUNDS)
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe), lose)
    outcome = run_segment(exchange, recipe, tmp_path / "run", quorum=3)
    assert outcome.finished and times["count"] == 2
    expected = train(Toy(), store, rounds=ROUNDS, seed=7, dtype=np.float64)
    assert_close(final(tmp_path / "run", Toy())[1], expected.state)


def wrong(reply: Any, what: str) -> Any:
    params = dict(reply.params)
    name = next(iter(params))
    if what == "shape":
        params[name] = params[name][:, :-1].copy()
    elif what == "nan":
        params[name] = params[name] * np.nan
    elif what == "type":
        params[name] = params[name].astype(np.float32)
    elif what == "more":
        params["value.more"] = np.zeros(3)
    elif what == "nothing":
        params = {}
    elif what == "pickle":
        params[name] = b"\x80\x05c__builtin__\neval\n"
    elif what == "objects":
        params[name] = np.array([object()] * params[name].size, object).reshape(params[name].shape)
    elif what == "large":
        params[name] = np.broadcast_to(0.0, (2**15, 2**15))
    elif what == "round":
        return reply._replace(text=reply.text.replace('"round":', '"round":9'))
    elif what == "text":
        return reply._replace(text="{" * 10)
    elif what == "no text":
        return reply._replace(text=None)
    elif what == "list":
        return reply._replace(params=[1, 2])
    return reply._replace(params=params)


WRONG = ("shape", "nan", "type", "more", "nothing", "pickle", "objects", "large", "round", "text",
         "no text", "list")  # fmt: skip


def test_a_malformed_update_changes_nothing(store: ClientStore, tmp_path: Path) -> None:
    """Each kind of mischief in a round of its own, and an honest round after it."""

    def spoil(site: str, about: Any, reply: Any) -> Any:
        number = about.get("round", 0)
        bad = site == "b" and about["task"] == "train" and number % 2
        return wrong(reply, WRONG[number // 2]) if bad else reply

    rounds = 2 * len(WRONG) + 1
    recipe = recipe_for(METHODS["stateful"], rounds)
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe), spoil)
    assert run_segment(exchange, recipe, tmp_path / "run").finished
    clients = [one.clients for one in record_of(tmp_path / "run").rounds]
    assert clients == [(0, 1, 2, 3, 4), (0, 1, 3, 4)] * len(WRONG) + [(0, 1, 2, 3, 4)]
    assert sum(note.startswith("b was refused") for note in exchange.notes) == len(WRONG)
    lines = participation.entries(tmp_path / "run" / participation.FILE)[1:]
    reasons = [line["refused"]["b"] for line in lines if line["refused"]]
    assert len(reasons) == len(WRONG) and "not finite" in reasons[1]
    assert_replayed(tmp_path / "run", store, METHODS["stateful"], rounds)


def test_who_is_refused_three_times_is_asked_no_more(store: ClientStore, tmp_path: Path) -> None:
    def spoil(site: str, about: Any, reply: Any) -> Any:
        return wrong(reply, "nan") if site == "a" and about["task"] == "train" else reply

    recipe = recipe_for(METHODS["stateless"], 6)
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe), spoil)
    assert run_segment(exchange, recipe, tmp_path / "run").finished
    asked = [s for about, s, _ in exchange.asked if about["task"] == "train"]
    assert sum("a" in names for names in asked) == 3


def test_too_few_sites_end_the_segment_and_nothing_is_lost(
    store: ClientStore, tmp_path: Path
) -> None:
    def lose(site: str, about: Any, reply: Any) -> Any:
        return None if site != "a" and about.get("round") == 7 else reply

    recipe = recipe_for(METHODS["stateful"], ROUNDS)
    folder = tmp_path / "run"
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe), lose)
    outcome = run_segment(exchange, recipe, folder, quorum=2)
    assert (outcome.finished, outcome.rounds, outcome.fatal) == (False, 7, False)
    assert "2 are needed" in outcome.reason and read_outcome(folder, 1) == outcome
    outcome = run_segment(
        Local(make_sites(tmp_path, store, SHARES, recipe)), recipe, folder, 2, quorum=2
    )
    assert outcome.finished
    assert_replayed(folder, store, METHODS["stateful"])


@pytest.mark.parametrize("kind", ["stateful", "counting"])
def test_a_newcomer_takes_part_from_the_next_segment(
    kind: str, store: ClientStore, tmp_path: Path
) -> None:
    recipe = recipe_for(METHODS[kind], ROUNDS)
    folder = tmp_path / "run"
    sites = make_sites(tmp_path, store, SHARES, recipe)
    early = {name: sites[name] for name in ("a", "b")}

    def end(site: str, about: Any, reply: Any) -> Any:
        if about.get("round") == 5:
            give_order(folder, 1, end=True)
        return reply

    outcome = run_segment(Local(early, end), recipe, folder)
    assert (outcome.finished, outcome.rounds) == (False, 6)
    assert run_segment(Local(sites), recipe, folder, 2).finished
    totals = [one.total for one in record_of(folder).rounds]
    assert totals == [3] * 6 + [5] * 6
    assert_replayed(folder, store, METHODS[kind])


def test_a_server_that_was_replaced_writes_nothing_more(store: ClientStore, tmp_path: Path) -> None:
    recipe = recipe_for(METHODS["stateless"], ROUNDS)
    folder = tmp_path / "run"

    def replaced(site: str, about: Any, reply: Any) -> Any:
        if about.get("round") == 5:
            give_order(folder, 2)
        return reply

    exchange = Local(make_sites(tmp_path, store, SHARES, recipe), replaced)
    outcome = run_segment(exchange, recipe, folder, checkpoint_rounds=2)
    assert not outcome.finished and outcome.reason == "another segment has taken over"
    assert final(folder, StatelessToy())[0] == 4
    assert read_outcome(folder, 1) is None


def test_a_stopped_job_stops(store: ClientStore, tmp_path: Path) -> None:
    recipe = recipe_for(METHODS["stateless"], ROUNDS)
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe))

    def stop(site: str, about: Any, reply: Any) -> Any:
        exchange.stop = about.get("round") == 3
        return reply

    exchange.spoil = stop
    outcome = run_segment(exchange, recipe, tmp_path / "run")
    assert (outcome.finished, outcome.rounds) == (False, 4)


def test_sites_keep_the_result_and_trace_once(store: ClientStore, tmp_path: Path) -> None:
    recipe = recipe_for(gaussian, 4)
    exchange = Local(make_sites(tmp_path, store, SHARES, recipe))
    run_segment(exchange, recipe, tmp_path / "run")
    for name in SHARES:
        assert (tmp_path / name / "models" / "0123abcd" / "state.safetensors").is_file()
    lines = participation.entries(tmp_path / "run" / participation.FILE)
    assert {line["traces"] for line in lines if line["kind"] == "round"} == {1}
    train_params = next(p for about, _, p in exchange.asked if about["task"] == "train")
    assert list(train_params) == ["value.particles"], "the optimiser's state stays at the server"
