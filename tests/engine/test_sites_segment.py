"""Server and sites, without a network between them, against the simulator and the replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from local_sites import ALL, LENGTHS, RUN, SHARES, WITHOUT_B, Crash, World, assert_close
from scipy import optimize, stats
from toys import StatelessToy, Toy, make_store

from pacpfl.data.store import ClientStore
from pacpfl.engine.simulate import train
from pacpfl.engine.training import Saving, load_checkpoint, save_checkpoint
from pacpfl.methods.base import Method
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.methods.transforms import Code, Compressed, decode
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.sites import guard, participation
from pacpfl.sites.segment import CHECKPOINT
from pacpfl.sites.terms import give_order, read_outcome

pytestmark = pytest.mark.usefixtures("x64")

ROUNDS = 12


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


METHODS: dict[str, Callable[[int], Method]] = {
    "stateless": lambda n: StatelessToy(),
    "stateful": lambda n: Toy(),
    "counting": lambda n: Counting(n),
    "gaussian": gaussian,
    "int8": lambda n: Compressed(Toy(), "int8"),
}
Make = Callable[..., World]


@pytest.fixture
def world(store: ClientStore, wide: ClientStore, tmp_path: Path) -> Make:
    """Sites for a method of this kind; `int8`: its updates are compressed on their way."""

    def make(kind: str = "stateful", rounds: int = ROUNDS, **recipe: Any) -> World:
        if kind != "int8":
            return World(tmp_path, store, SHARES, METHODS[kind], rounds, **recipe)
        made = World(tmp_path, wide, SHARES, METHODS["stateful"], rounds, **recipe)
        made.method, made.terms = METHODS[kind](5), {"encoding": "int8"}
        return made

    return make


@pytest.mark.parametrize("kind", ["stateful", "counting"])
def test_with_everybody_it_is_the_simulators_run(kind: str, world: Make) -> None:
    here = world(kind)
    outcome = here.play()
    assert outcome.finished and outcome.rounds == ROUNDS, outcome
    assert_close(here.final()[1], here.simulated())
    here.assert_replayed(METHODS[kind])


def test_rounds_at_sites_and_in_one_process_are_parts_of_one_training(world: Make) -> None:
    """Both cohorts play for the same loop, so either goes on from the other's checkpoint."""
    here = world("stateless")

    def stop(site: str, about: Any, reply: Any) -> Any:
        here.net.stop = about.get("round") == 4
        return reply

    assert here.play(spoil=stop).rounds == 5
    saving, reached = Saving(here.run / CHECKPOINT, "a run"), list[int]()
    train(here.method, here.store, rounds=ROUNDS, seed=7, dtype=np.float64, saving=saving,
          progress=lambda now: reached.append(now.round),
          stop=lambda: bool(reached))  # fmt: skip
    assert 5 < reached[-1] < ROUNDS
    with open(here.run / participation.FILE, "ab") as log:  # everybody took part
        for number in range(5, reached[-1]):
            entry = {"kind": "round", "round": number, "clients": ALL}
            log.write(json.dumps(entry).encode() + b"\n")
    assert here.play(2).finished
    done, state = here.final()
    assert done == ROUNDS
    assert_close(state, here.simulated())


def test_compressed_updates_travel_in_an_eighth_and_give_the_simulators_run(
    world: Make, tmp_path: Path
) -> None:
    here, received = world("int8", 5), {}
    for encoding in ("exact", "int8"):
        here.folder, here.run = tmp_path / encoding, tmp_path / encoding / "run"
        here.play(encoding=encoding)
        received[encoding] = here.entries[-1]["received"]
    assert received == {"exact": 5 * 80 * 8, "int8": 5 * (80 + 8)}
    assert_close(here.final()[1], here.simulated())


def test_some_clients_in_a_round_are_those_the_simulator_chooses(world: Make) -> None:
    here = world(clients_per_round=3)
    here.play()
    assert_close(here.final()[1], here.simulated(clients_per_round=3))
    assert set(map(len, here.clients)) == {3}


@pytest.mark.parametrize("kind", ["stateful", "int8"])
def test_a_silent_site_leaves_and_the_run_goes_on(kind: str, world: Make) -> None:
    def lose(site: str, about: Any, reply: Any) -> Any:
        gone = site == "b" and about["task"] == "train" and about["round"] >= 4
        return None if gone else reply

    here = world(kind)
    assert here.play(spoil=lose).finished
    assert here.clients == [ALL] * 4 + [WITHOUT_B] * (ROUNDS - 4)
    asked = [s for about, s, _ in here.net.asked if about["task"] == "train"]
    assert sum("b" in names for names in asked) == 5, "a silent site is asked no more"
    here.assert_replayed(METHODS[kind])


@pytest.mark.parametrize("kind", ["stateful", "int8"])
def test_a_killed_server_goes_on_from_its_checkpoint(kind: str, world: Make) -> None:
    """Twice; clients that keep something go back with it."""
    here = world(kind)
    here.terms["checkpoint_rounds"] = 3
    for segment, number in ((1, 5), (2, 9)):

        def kill(site: str, about: Any, reply: Any, number: int = number) -> Any:
            if about["task"] == "train" and about["round"] == number:
                raise Crash
            return reply

        with pytest.raises(Crash):
            here.play(segment, spoil=kill)
    assert here.play(3).finished
    assert [entry["start"] for entry in here.entries if "start" in entry] == [0, 3, 9]
    here.assert_replayed(METHODS[kind])
    assert_close(here.final()[1], here.simulated())


def test_an_answer_that_does_not_count_leaves_no_trace(world: Make) -> None:
    """Only one of three answers in time: too few, so the round is asked for again."""
    times = {"count": 0}

    def lose(site: str, about: Any, reply: Any) -> Any:
        if about["task"] == "train" and about["round"] == 6 and site == "c":
            times["count"] += 1
            return reply._replace(text="?") if times["count"] == 1 else reply
        return reply

    here = world()
    assert here.play(spoil=lose, quorum=3).finished and times["count"] == 2
    assert_close(here.final()[1], here.simulated())


def first(change: Callable[[np.ndarray], Any]) -> Callable[[Any], Any]:
    """What is wrong with a reply whose first array is another."""

    def spoil(reply: Any) -> Any:
        name = next(iter(reply.params))
        return reply._replace(params=reply.params | {name: change(reply.params[name])})

    return spoil


WRONG: dict[str, Callable[[Any], Any]] = {
    "shape": first(lambda a: a[:, :-1].copy()),
    "nan": first(lambda a: a * np.nan),
    "type": first(lambda a: a.astype(np.float32)),
    "pickle": first(lambda a: b"\x80\x05c__builtin__\neval\n"),
    "objects": first(lambda a: np.array([object()] * a.size, object).reshape(a.shape)),
    "large": first(lambda a: np.broadcast_to(0.0, (2**15, 2**15))),
    "more": lambda reply: reply._replace(params=reply.params | {"value.more": np.zeros(3)}),
    "nothing": lambda reply: reply._replace(params={}),
    "list": lambda reply: reply._replace(params=[1, 2]),
    "round": lambda reply: reply._replace(text=reply.text.replace('"round":', '"round":9')),
    "text": lambda reply: reply._replace(text="{" * 10),
    "no text": lambda reply: reply._replace(text=None),
}


def test_a_malformed_update_changes_nothing(world: Make) -> None:
    """Each kind of mischief in a round of its own, and an honest round after it."""

    def spoil(site: str, about: Any, reply: Any) -> Any:
        number = about.get("round", 0)
        bad = site == "b" and about["task"] == "train" and number % 2
        return list(WRONG.values())[number // 2](reply) if bad else reply

    here = world(rounds=2 * len(WRONG) + 1)
    assert here.play(spoil=spoil).finished
    assert here.clients == [ALL, WITHOUT_B] * len(WRONG) + [ALL]
    assert sum(note.startswith("b was refused") for note in here.net.notes) == len(WRONG)
    reasons = [line["refused"]["b"] for line in here.entries[1:] if line["refused"]]
    assert len(reasons) == len(WRONG) and "not finite" in reasons[1]
    here.assert_replayed(METHODS["stateful"])


def test_who_is_refused_three_times_is_asked_no_more(world: Make) -> None:
    def spoil(site: str, about: Any, reply: Any) -> Any:
        return WRONG["nan"](reply) if site == "a" and about["task"] == "train" else reply

    here = world("stateless", 6)
    assert here.play(spoil=spoil).finished
    asked = [s for about, s, _ in here.net.asked if about["task"] == "train"]
    assert sum("a" in names for names in asked) == 3


def test_too_few_sites_end_the_segment_and_nothing_is_lost(world: Make) -> None:
    def lose(site: str, about: Any, reply: Any) -> Any:
        return None if site != "a" and about.get("round") == 7 else reply

    here = world()
    outcome = here.play(spoil=lose, quorum=2)
    assert (outcome.finished, outcome.rounds, outcome.fatal) == (False, 7, False)
    assert "2 are needed" in outcome.reason and read_outcome(here.run, 1) == outcome
    assert here.play(2, quorum=2).finished
    here.assert_replayed(METHODS["stateful"])


@pytest.mark.parametrize("kind", ["stateful", "counting"])
def test_a_newcomer_takes_part_from_the_next_segment(kind: str, world: Make) -> None:
    here = world(kind)
    sites = here.sites()

    def end(site: str, about: Any, reply: Any) -> Any:
        if about.get("round") == 5:
            give_order(here.run, 1, end=True)
        return reply

    outcome = here.play(1, {name: sites[name] for name in ("a", "b")}, spoil=end)
    assert (outcome.finished, outcome.rounds) == (False, 6)
    assert here.play(2, sites).finished
    assert [one.total for one in here.record.rounds] == [3] * 6 + [5] * 6
    here.assert_replayed(METHODS[kind])


def test_a_server_that_was_replaced_writes_nothing_more(world: Make) -> None:
    here = world("stateless")

    def replaced(site: str, about: Any, reply: Any) -> Any:
        if about.get("round") == 5:
            give_order(here.run, 2)
        return reply

    outcome = here.play(spoil=replaced, checkpoint_rounds=2)
    assert not outcome.finished and outcome.reason == "another segment has taken over"
    assert here.final()[0] == 4
    assert read_outcome(here.run, 1) is None


def test_sites_keep_the_result_and_trace_once(world: Make) -> None:
    here = world("gaussian", 4)
    here.play()
    for name in SHARES:
        assert (here.folder / name / "models" / RUN / "state.safetensors").is_file()
    assert {line["traces"] for line in here.entries if line["kind"] == "round"} == {1}
    train_params = next(p for about, _, p in here.net.asked if about["task"] == "train")
    assert list(train_params) == ["value.particles"], "the optimiser's state stays at the server"


# What a single site cannot do to the others.


def at(site: str, number: int, change: Callable[[np.ndarray], Any]) -> Callable[..., Any]:
    """A site whose update of a round is another."""

    def spoil(name: str, about: Any, reply: Any) -> Any:
        bad = name == site and about["task"] == "train" and about["round"] == number
        return first(change)(reply) if bad else reply

    return spoil


def huge(gradients: np.ndarray) -> np.ndarray:
    """Finite, and its square is not: Adam never recovers."""
    return np.full_like(gradients, 1e160)


def test_a_step_that_ruins_the_state_is_undone_and_its_sender_named(world: Make) -> None:
    here = world("gaussian", 4)
    assert here.play(spoil=at("b", 1, huge), longest=0).finished
    assert here.clients == [ALL] + [WITHOUT_B] * 3
    (told,) = [line["refused"]["b"] for line in here.entries[1:] if line["refused"]]
    assert "in round 1 left a state that is not finite" in told
    here.assert_replayed(METHODS["gaussian"])


def test_a_run_whose_state_is_not_finite_fails(world: Make) -> None:
    """With nobody left it comes to nothing; a checkpoint of an older version is not gone on from."""
    here = world("gaussian", 3)
    only = {"a": here.sites()["a"]}
    outcome = here.play(1, only, spoil=at("a", 2, huge))
    assert (outcome.finished, outcome.rounds) == (False, 2)
    assert "a: its update of norm" in outcome.reason
    done, state = here.final()
    place = here.run / CHECKPOINT
    checkpoint = load_checkpoint(place, (state, ()), "a run")
    assert checkpoint is not None
    bad = state._replace(particles=state.particles * np.inf), ()
    save_checkpoint(place, checkpoint._replace(state=bad), "a run")
    outcome = here.play(2, only)
    assert (
        outcome.fatal
        and f"After {done} rounds the state holds numbers that are not" in outcome.reason
    )


@pytest.mark.parametrize("kind", ["gaussian", "int8"])
def test_an_update_far_longer_than_usual_is_clipped_and_told(kind: str, world: Make) -> None:
    def grow(site: str, about: Any, reply: Any) -> Any:
        if (site, about.get("round")) != ("b", 1):
            return reply
        grown = {n: a * 1e6 if a.dtype.kind == "f" else a for n, a in reply.params.items()}
        return reply._replace(params=grown)

    here = world(kind, 3)
    assert here.play(spoil=grow).finished
    assert here.clients == [ALL] * 3
    clipped = [line["clipped"] for line in here.entries[1:]]
    assert clipped[0] == clipped[2] == {} and list(clipped[1]) == ["b"] and clipped[1]["b"] > 1e3
    change = here.final()[1][0] - here.simulated()[0]
    assert 0 < np.abs(change).max() < 100


def test_lengths_are_those_of_whole_updates() -> None:
    """Two clients a site; single numbers neither count nor change; a site has one vote."""
    update = np.array([[3.0, 4.0], [0.0, 5.0]]), np.array([7.0, -1e9])
    np.testing.assert_allclose(guard.lengths(update, np.float64), [5, 5])
    np.testing.assert_allclose(guard.lengths((np.full((1, 4), 1e200),), np.float64), [2e200])
    many = np.full((9, 2), 1e160), np.zeros(9)
    found = {"a": update, "b": update, "c": many}
    after, beyond = guard.shorten(found, 10.0, np.float64)
    assert after["a"] is update and list(beyond) == ["c"]
    np.testing.assert_allclose(guard.lengths(after["c"], np.float64), np.full(9, 50.0))
    np.testing.assert_array_equal(after["c"][1], many[1])
    for other, longest in (({"a": update, "c": many}, 10.0), (found, 0.0)):
        assert guard.shorten(other, longest, np.float64) == (other, {})
    code = Code(np.full((1, 4), 127, np.int8), np.full((1, 1), 80.0))
    short = guard.scaled((code,), np.array([0.25]))[0]
    np.testing.assert_allclose(decode(short, np.dtype(np.float64)), np.full((1, 4), 20.0))


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
def test_one_update_stands_for_all_by_the_rule(rule: str) -> None:
    rng = np.random.default_rng(3)
    rows, weights = rng.normal(size=(9, 2, 3)), np.array([1.0] * 8 + [0.0])
    updates = rows, np.arange(9.0)
    after, single = guard.combined(updates, weights, rule, np.float64)
    np.testing.assert_array_equal(after[8], rows[8])  # who is absent
    np.testing.assert_array_equal(single, updates[1])
    there, found = rows[:8].reshape(8, -1), after[0].ravel()
    np.testing.assert_allclose(after[:8], np.broadcast_to(after[0], (8, 2, 3)))
    if rule == "geometric-median":
        apart = lambda point: np.linalg.norm(there - point, axis=1).sum()  # noqa: E731
        best = optimize.minimize(apart, there.mean(0), method="BFGS")
        assert apart(found) <= best.fun * (1 + 1e-6)
    else:
        np.testing.assert_allclose(
            found, stats.trim_mean(there, 0.25 if rule == "trimmed" else 0.49)
        )
    assert guard.combined(updates, weights, "mean", np.float64) is updates


def test_a_liar_does_not_move_a_server_that_asks_for_the_median(world: Make) -> None:
    def lie(site: str, about: Any, reply: Any) -> Any:
        if site != "b" or "round" not in about:
            return reply
        lies = {n: -1e3 * a if a.dtype.kind == "f" else a for n, a in reply.params.items()}
        return reply._replace(params=lies)

    here = world("gaussian", 3)
    assert here.play(spoil=lie, aggregation="geometric-median", longest=0.0).finished
    moved = here.final()[1].particles - here.simulated().particles
    assert 0 < np.median(np.abs(moved)) < 0.02  # steps of 0.05 in the wrong direction make 0.3
    norms = [line["norms"] for line in here.entries[1:]]
    assert all(set(one) == set(SHARES) and min(one["b"]) > max(one["a"]) for one in norms)
    summary = participation.summary(here.run)
    assert summary["norms"]["b"] > summary["norms"]["a"] > 0


def test_rules_are_for_servers_that_take_the_mean(world: Make) -> None:
    outcome = world("stateful", 3).play(aggregation="median")
    assert outcome.fatal and "aggregation = median is for methods" in outcome.reason


def says(liars: str, **change: Any) -> Callable[..., Any]:
    """Sites that describe their data wrongly."""

    def spoil(site: str, about: Any, reply: Any) -> Any:
        if site not in liars or about["task"] != "hello":
            return reply
        told = json.loads(reply.text)
        return reply._replace(text=json.dumps(told | {"data": told["data"] | change}))

    return spoil


def test_most_sites_decide_what_the_data_look_like(world: Make) -> None:
    """Not the first by name, and not those who come after a run has begun."""
    here = world("stateless", 8)
    outcome = here.play(spoil=says("a", features=["q"]), quorum=2, checkpoint_rounds=4)
    assert outcome.finished and here.clients == [(0, 1, 2)] * 8
    assert "its features are ('q',)" in here.entries[0]["refused"]["a"]
    assert [name for name, _ in here.entries[0]["roster"]] == ["b", "c"]
    here.rounds += 1
    here.recipe = replace(here.recipe, rounds=9)
    assert here.play(2, spoil=says("ac", classes=2)).finished
    assert here.entries[-2]["sites"] == ["b"] and set(here.entries[-2]["refused"]) == {"a", "c"}


def test_two_sites_that_disagree_have_no_training(world: Make) -> None:
    here = world("stateless", 3)
    sites = {name: site for name, site in here.sites().items() if name != "c"}
    outcome = here.play(1, sites, spoil=says("a", features=["q"]))
    assert outcome.fatal and "more than half of the sites" in outcome.reason
    assert "a: (('q',)" in outcome.reason


def test_more_clients_than_a_server_can_hold_are_refused(world: Make) -> None:
    here = world("stateless", 3)
    assert here.play(spoil=says("b", clients=2**31 - 1)).finished
    assert here.clients == [(0, 1, 2, 3)] * 3
    assert "2147483647 clients" in here.entries[0]["refused"]["b"]
