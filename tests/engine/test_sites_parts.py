"""The small parts of the distributed engine, each alone: wire, log, states, compression, supervision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toys import StatelessToy, Toy

from pacpfl import files
from pacpfl.config import Config
from pacpfl.errors import InputError
from pacpfl.files import append_line
from pacpfl.methods.pacpfl import PACPFL, TrainSettings
from pacpfl.methods.transforms import Carried, Compressed, decode, decoded, encode
from pacpfl.priors.gp import GPPrior, GPSettings
from pacpfl.run import Watcher
from pacpfl.sites import participation, wire
from pacpfl.sites.kits import EXECUTOR, shorten_log, write_job
from pacpfl.sites.participation import Seat, Watch, read
from pacpfl.sites.runs import _memories, train_at_sites, without
from pacpfl.sites.states import Memories
from pacpfl.sites.supervisor import Care, Stopped, Supervisor
from pacpfl.sites.terms import TERMS, Outcome, Unreachable, order, write_outcome
from pacpfl.sites.wire import Refused, to_form
from pacpfl.types import Data, Form

pytestmark = pytest.mark.usefixtures("x64")

DATA = Data(jnp.ones((3, 2)), jnp.ones(3), jnp.ones(3, bool))


# --- wire


def test_a_tree_survives_the_wire() -> None:
    tree = {"a": np.arange(6.0).reshape(2, 3), "b": (np.int32(4), np.zeros(0, bool))}
    back = wire.from_wire(wire.to_wire(tree), tree)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for one, two in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(one, two, strict=True)


def test_only_what_a_client_reads_is_needed() -> None:
    """Spoiling what is not needed changes no update; spoiling what is needed does."""
    prior = GPPrior(2, GPSettings(mean="constant", kernel="ard"))
    method = PACPFL(prior, 3, optax.adam(0.1), TrainSettings(particles=2))
    state = method.init(jax.random.key(0), DATA)
    needed = wire.needed(method, state, (), DATA, jax.random.key(1))
    assert needed == {"value.particles"}
    assert "value.optimizer[0].mu" in wire.by_name(state)
    key = jax.random.key(2)
    before = method.client_update(state, (), DATA, key)[0]
    pairs = wire.by_name(state)
    spoilt = {n: v if n in needed else jnp.full_like(v, 7) for n, v in pairs.items()}
    other = jax.tree.unflatten(jax.tree.structure(state), list(spoilt.values()))
    np.testing.assert_array_equal(
        before.gradients, method.client_update(other, (), DATA, key)[0].gradients
    )


def test_text_must_be_a_small_json_object() -> None:
    assert wire.from_text(wire.to_text({"a": 1}))["a"] == 1
    for bad in (None, b"{}", "[]", "{", "1", "x" * (wire.MOST_TEXT + 1), "[" * 100_000):
        with pytest.raises(Refused):
            wire.from_text(bad)


# --- description


def test_a_description_survives_json_and_is_checked() -> None:
    whole = Form(("a", "b"), "y", 3, (1, 2), 2, (4, 5), 1)
    assert to_form(json.loads(json.dumps(whole._asdict()))) == whole
    good = whole._asdict()
    for change in ({"clients": 0}, {"clients": True}, {"clients": 2.0}, {"clients": 10**12},
                   {"features": []}, {"features": [1, 2]}, {"sizes": [4]}, {"sizes": [4, -5]},
                   {"classes": "3"}, {"later": 3}, {"target": None}, {"shape": 5}):  # fmt: skip
        with pytest.raises(Refused):
            to_form(good | change)
    with pytest.raises(Refused):
        to_form(None)


def test_sites_with_other_features_are_refused() -> None:
    one = Form(("a", "b"), clients=2)
    one.agrees(Form(("a", "b"), clients=5))
    with pytest.raises(InputError, match="features"):
        one.agrees(Form(("b", "a"), clients=2))


# --- participation


class Log:
    """The log of a server, in which everybody's clients are told by their sites."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def segment(self, number: int, start: int, roster: list[Any], **more: Any) -> None:
        entry = {"kind": "segment", "segment": number, "start": start, "roster": roster}
        append_line(self.path, entry | more)

    def round(self, number: int, clients: list[int], **more: Any) -> None:
        append_line(self.path, {"kind": "round", "round": number, "clients": clients, **more})


def test_rounds_after_a_lost_checkpoint_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path)
    log.segment(1, 0, [("a", 2)])
    for number in range(5):
        log.round(number, [0, 1])
    with open(path, "ab") as file:
        file.write(b'{"kind": "round", "rou')
    log.segment(2, 3, [("a", 2), ("b", 1)])
    log.round(3, [0, 2])
    record = read(path)
    assert record.roster == (Seat("a", 0, 2), Seat("b", 2, 1)) and record.segments == 2
    assert [(r.clients, r.total) for r in record.rounds] == [((0, 1), 2)] * 3 + [((0, 2), 3)]
    assert record.last_counted() == {0: 3, 1: 2, 2: 3}
    assert len(read(path, until=2).rounds) == 2
    with pytest.raises(InputError, match="tells of 4 rounds"):
        read(path, until=5)


@pytest.mark.parametrize(
    "lines",
    [
        ['{"kind": "segment", "segment": 1, "start": 2, "roster": []}'],
        ['{"kind": "round", "round": 1, "clients": []}'],
        ['{"kind": "round", "round": 0}'],
        ["nonsense"],
        ['{"kind": "segment", "segment": 1, "start": 0, "roster": [["a", 1]]}',
         '{"kind": "round", "round": 0, "clients": [0]}',
         '{"kind": "segment", "segment": 2, "start": 1, "roster": [["b", 1]]}'],
    ],
)  # fmt: skip
def test_a_damaged_log_is_an_error(lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="damaged"):
        read(tmp_path / "log")


# --- states


def test_states_are_kept_as_long_as_a_server_may_ask_for_them(tmp_path: Path) -> None:
    memories = Memories(tmp_path, {"x": np.zeros(2)})
    for number in (0, 1, 3, 4, 6):
        memories.keep([2], {"x": np.full((1, 2), float(number))}, number, saved=number // 6 * 4)
    assert memories.kept(2) == [3, 4, 6], "3 is the last before the checkpoint"
    assert memories.recall(2, 3)["x"][0] == 3
    assert memories.kept(1) == []
    with pytest.raises(Refused, match="client 2 kept after round 1 is not here"):
        memories.recall(2, 1)
    with pytest.raises(Refused, match="shape"):
        Memories(tmp_path, {"x": np.zeros(3)}).recall(2, 3)


def test_clients_who_keep_nothing_are_not_asked_for_it(tmp_path: Path) -> None:
    """Also where an update was too small for its rounding to be kept."""
    for pattern in ((), {"residual": np.zeros(0)}):
        memories = Memories(tmp_path, pattern)
        memories.keep([0, 1], jax.tree.map(lambda a: a[None], pattern), 3, saved=0)
        assert not list(tmp_path.iterdir())
        for rows in jax.tree.leaves(_memories(memories, [0, 1])):
            assert rows.shape == (2, 0)


# --- compression


@pytest.mark.parametrize(("encoding", "worst"), [("int8", 0.5 / 127), ("float16", 2.0**-11)])
def test_rounding_is_within_half_a_step_of_each_row(encoding: str, worst: float) -> None:
    values = jnp.asarray(np.random.default_rng(0).normal(size=(3, 100)) * [[1], [1e-9], [1e9]])
    code = encode(values, encoding)
    assert code.codes.dtype == encoding
    error = jnp.abs(decode(code, values.dtype) - values) / jnp.abs(values).max(1, keepdims=True)
    assert 0 < float(error.max()) <= worst * 1.0001
    zeros = encode(jnp.zeros((1, 4)), encoding)
    assert float(jnp.abs(decode(zeros, values.dtype)).max()) == 0.0


@pytest.mark.parametrize("encoding", ["int8", "float16"])
def test_what_rounding_takes_away_is_sent_later(encoding: str) -> None:
    """Over T rounds, sent updates and what is still kept add up to the updates themselves."""
    wide = Data(jnp.ones((3, 80)) * jnp.arange(80.0), jnp.ones(3), jnp.ones(3, bool))
    method, inner = Compressed(Toy(), encoding), Toy()
    state = inner.init(jax.random.key(0), wide)
    key = jax.random.key(1)
    kept, own = method.init_client(state, wide, key), inner.init_client(state, wide, key)
    assert isinstance(kept, Carried)
    sent, exact = jnp.zeros(80), jnp.zeros(80)
    for number in range(5):
        key = jax.random.fold_in(key, number)
        update, kept = method.client_update(state, kept, wide, key)
        raw, own = inner.client_update(state, own, wide, key)
        sent, exact = sent + decoded(update, sent.dtype), exact + raw
    np.testing.assert_allclose(sent + kept.residual, exact, rtol=1e-12)
    assert float(jnp.abs(kept.residual).max()) > 0
    np.testing.assert_array_equal(kept.own.number, own.number)


def test_small_updates_travel_as_they_are() -> None:
    method = Compressed(StatelessToy(), "int8")
    state = method.init(jax.random.key(0), DATA)
    kept = method.init_client(state, DATA, jax.random.key(1))
    update, _ = method.client_update(state, kept, DATA, jax.random.key(2))
    expected, _ = StatelessToy().client_update(state, (), DATA, jax.random.key(2))
    np.testing.assert_array_equal(update, expected)


# --- job and supervision


def test_who_was_not_there_at_the_end_is_named(tmp_path: Path) -> None:
    log = tmp_path / "sites" / "fedavg" / participation.FILE
    roster = [["a", 1], ["b", 1], ["c", 1], ["d", 1]]
    begin = {"kind": "segment", "roster": roster, "refused": {"e": "it differs"}}
    one = {"kind": "round", "clients": [0], "missing": [], "refused": {}}
    for line in (
        begin | {"segment": 1, "start": 0, "sites": ["a", "b", "c"]},
        one | {"round": 0, "sites": ["a", "b"], "missing": ["c"]},
        begin | {"segment": 2, "start": 1, "sites": ["a", "b", "c", "d"]},
        one | {"round": 1, "sites": ["a", "c", "d"], "refused": {"b": "not as agreed"}},
        one | {"round": 2, "sites": ["a", "b", "c"], "missing": ["d"]},
    ):
        append_line(log, line)
    lost = {"d": "no answer to round 2", "e": "it differs", "f": "it was not connected"}
    assert without(tmp_path, "abcdef") == lost
    assert without(tmp_path, "abc") == {}


def test_a_long_log_is_moved_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "output.txt"
    with files.append(log) as writer:
        writer.write(b"old" * 100)
        writer.flush()
        shorten_log(log, most=299)
        writer.write(b"new")
        writer.flush()
        shorten_log(log, most=299)
    assert (tmp_path / "output.1.txt").read_bytes() == b"old" * 100
    assert log.read_bytes() == b"new"


def test_a_job_carries_no_code_and_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = write_job(Path("run/jobs"), Path("run"), "0123abcd", 3, ["a", "b"])
    assert job.is_absolute(), "FLARE takes any other for one below the administrator's kit"
    assert not (job / "app" / "custom").exists()
    client = json.loads((job / "app" / "config" / "config_fed_client.json").read_text())
    assert client["executors"] == [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}]
    meta = json.loads((job / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", "a", "b"]}


class Fake:
    """A server that does what a script says: each entry is one segment."""

    def __init__(self, folder: Path, script: list[str]) -> None:
        self.folder, self.script, self.place = folder, script, -1
        self.here = {"a": 1e12, "b": 1e12}
        self.boots = 0
        self.submitted: list[list[str]] = []
        self.log = folder / participation.FILE

    def server_started(self) -> str:
        return str(self.boots)

    def connected(self) -> dict[str, float]:
        return dict(self.here)

    def submit(self, job: Path) -> str:
        self.place += 1
        self.submitted.append(json.loads((job / "meta.json").read_text())["deploy_map"]["app"][1:])
        segment, what = self.place + 1, self.script[self.place]
        log = Log(self.log)
        done = len(read(self.log).rounds)
        log.segment(segment, done, [("a", 1), ("b", 1)], sites=["a", "b"], refused={})
        if what != "stuck":
            missing = ["b"] if what == "without b" else []
            log.round(done, [0, 1], sites=["a"], missing=missing, curves={"loss": 1.0})
        if what == "finish":
            write_outcome(self.folder, Outcome(segment, done + 1, True, "all rounds are done"))
        elif what == "fatal":
            write_outcome(self.folder, Outcome(segment, 0, False, "lambda needs sizes.", True))
        elif what == "reboot":
            self.boots += 1
        return str(segment)

    def has_ended(self, job: str) -> bool:
        what = self.script[int(job) - 1]
        if order(self.folder).get("end"):
            outcome = Outcome(int(job), 1, False, "asked to end, so that sites can join")
            write_outcome(self.folder, outcome)
        return what in ("crash", "stuck") or order(self.folder).get("end", False)

    def abort(self, job: str) -> None: ...

    def close(self) -> None: ...


CARE = Care(
    ("a", "b"),
    poll_seconds=0.0,
    look_seconds=0.0,
    rejoin_seconds=0.0,
    wind_down_seconds=0.0,
    most_failures=3,
)


def supervised(tmp_path: Path, fake: Fake, care: Care = CARE, **told: Any) -> Outcome:
    pause = told.pop("sleep", lambda seconds: None)
    return Supervisor(fake, tmp_path, "0123abcd", 5, care, Watcher(**told), pause).run()


@pytest.mark.parametrize("script", [["finish"], ["crash", "reboot", "crash", "finish"]])
def test_it_goes_on_until_it_is_finished(script: list[str], tmp_path: Path) -> None:
    fake = Fake(tmp_path, script)
    seen: list[int] = []
    outcome = supervised(tmp_path, fake, progress=lambda now: seen.append(now.round))
    assert outcome.finished and outcome.segment == len(script)
    assert seen == list(range(1, len(script) + 1))
    assert order(tmp_path) == {"segment": len(script), "end": False}


def test_what_would_fail_again_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lambda needs sizes"):
        supervised(tmp_path, Fake(tmp_path, ["fatal", "finish"]))


def test_segments_that_get_nowhere_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 segments in a row got nowhere"):
        supervised(tmp_path, Fake(tmp_path, ["crash", *["stuck"] * 3, "finish"]))


def test_a_server_that_takes_no_job_is_quoted(tmp_path: Path) -> None:
    class Picky(Fake):
        def submit(self, job: Path) -> str:
            raise Unreachable("submit_job: it is not a valid folder")

    with pytest.raises(InputError, match="did not take its job: submit_job: it is not a valid"):
        supervised(tmp_path, Picky(tmp_path, []))


def test_a_site_that_is_back_gets_a_new_segment(tmp_path: Path) -> None:
    fake = Fake(tmp_path, ["without b", "finish"])
    assert supervised(tmp_path, fake).finished
    assert fake.submitted == [["a", "b"], ["a", "b"]]


def test_it_waits_for_a_server_that_does_not_answer(tmp_path: Path) -> None:
    tries = []

    class Late(Fake):
        def connected(self) -> dict[str, float]:
            tries.append(1)
            if len(tries) < 4:
                raise Unreachable("not yet")
            return super().connected()

    assert supervised(tmp_path, Late(tmp_path, ["finish"])).finished
    assert len(tries) == 4


def test_it_waits_for_the_sites_it_was_told_of(tmp_path: Path) -> None:
    fake = Fake(tmp_path, ["finish"])
    del fake.here["b"]
    stages: list[str] = []
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            fake.here["b"] = 1e12

    assert supervised(tmp_path, fake, stage=stages.append, sleep=sleep).finished
    assert stages == ["waiting for b", "training at 2 sites"] and fake.submitted == [["a", "b"]]


def test_who_asks_it_to_stop_is_obeyed(tmp_path: Path) -> None:
    fake = Fake(tmp_path, ["crash"])
    fake.here.clear()
    with pytest.raises(Stopped):
        supervised(tmp_path, fake, stop=lambda: True)


def test_silence_is_forgiven_once_the_site_is_heard_of_again(tmp_path: Path) -> None:
    now = [100.0]
    path = tmp_path / "log"
    watch = Watch(path, 5, lambda progress: None, lambda: now[0])
    watch.begin(1, ["a", "b"])
    log = Log(path)
    log.segment(1, 0, [("a", 1), ("b", 1)], sites=["a", "b"], refused={})
    log.round(0, [0], sites=["a"], missing=["b"])
    watch.read()
    assert watch.waiting({"a": 99.0, "b": 99.0}) == {}, "not heard of since"
    now[0] = 107.0
    assert watch.waiting({"a": 105.0, "b": 105.0}) == {"b": 7.0}
    assert watch.waiting({"a": 105.0, "b": 105.0, "c": 106.0}) == {"b": 7.0, "c": 7.0}


def test_a_site_that_refused_does_not_end_a_segment(tmp_path: Path) -> None:
    path = tmp_path / "log"
    watch = Watch(path, 5, lambda progress: None, lambda: 100.0)
    watch.begin(1, ["a", "b"])
    log = Log(path)
    log.segment(1, 0, [("a", 1)], sites=["a"], refused={"b": "limits"})
    watch.read()
    assert watch.waiting({"a": 200.0, "b": 200.0}) == {}


def test_most_of_a_projects_sites_have_to_answer_unless_it_says_otherwise(tmp_path: Path) -> None:
    for own, expected in (({}, 2), ({"quorum": 1}, 1)):
        place = tmp_path / str(expected) / "sites" / "pacpfl"
        fake = Fake(place, ["finish"])
        fake.here["c"] = 1e12
        about = {"sites": ["a", "b", "c"], "terms": own}
        train_at_sites(Config(), place.parents[1], about, fake, Watcher())
        assert json.loads((place / TERMS).read_text())["quorum"] == expected
