"""Secure rounds without a network: who drops out, who lies, who sends nonsense, and what is accounted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from authority import Authority
from local_sites import ALL, LENGTHS, RUN, SHARES, WITHOUT_B, World, assert_close
from toys import StatelessToy, Toy, make_store

from pacpfl.config import Config
from pacpfl.data.store import ClientStore
from pacpfl.engine.training import Secrecy
from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.methods.pacpfl import State, Update
from pacpfl.methods.transforms import Private, PrivateUpdate, summed
from pacpfl.privacy.accounting import Plan, epsilon_spent
from pacpfl.privacy.ledger import FILE, open_ledger, read_ledger
from pacpfl.privacy.mechanisms import AdaptiveClip
from pacpfl.secagg.certified import Introduction
from pacpfl.secagg.grid import Grid, guarantee
from pacpfl.secagg.messages import SURVIVORS, Envelope
from pacpfl.secagg.server import Server
from pacpfl.sites import wire
from pacpfl.sites.limits import Limits
from pacpfl.sites.runs import prepare_run, replay
from pacpfl.sites.secure import (
    Agreed,
    SecureRounds,
    accept,
    check_summable,
    from_row,
    limit_of,
    propose,
    to_rows,
)
from pacpfl.sites.secure_site import SecureSite, known_as, read_passport
from pacpfl.sites.segment import CHECKPOINT
from pacpfl.sites.terms import Inquiry, Reply, Terms, read_terms
from pacpfl.sites.wire import Refused
from pacpfl.types import Data

ROUNDS = 5
FOUR = {"a": range(0, 2), "b": range(2, 3), "c": range(3, 4), "d": range(4, 5)}
TINY = make_store(LENGTHS, seed=4)
TERMS = Terms(RUN, 1, secure=True)
STEPS = ("advertise", "share", "mask", "agree", "reveal")
CLOSE = 1e-7  # some rounds' fixed-point steps of 2^-30, five clients


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Not compiled: most of these tests are about messages, and toys are quick enough without."""
    with jax.enable_x64(True), jax.disable_jit():
        yield


@pytest.fixture(scope="module")
def store() -> ClientStore:
    return make_store(LENGTHS)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


Make = Callable[..., World]


@pytest.fixture
def world(store: ClientStore, tmp_path: Path, authority: Authority) -> Make:
    """Sites with certificates, whose rounds are secure."""

    def make(
        shares: dict[str, range] = SHARES,
        method: Any = None,
        rounds: int = ROUNDS,
        *,
        data: ClientStore = store,
        folder: Path = tmp_path,
        **more: Any,
    ) -> World:
        method = method or StatelessToy()
        return World(folder, data, shares, lambda n: method, rounds, authority=authority, **more)

    return make


def assert_sums(here: World) -> None:
    """Who has all samples gets the same from the log, compiled."""
    with jax.disable_jit(False):
        here.assert_replayed(lambda n: StatelessToy(), CLOSE)


def refusals(here: World, site: str) -> list[str]:
    return [line["reason"] for line in here.refused(site)]


def dies(site: str, step: str, number: int = 2) -> Callable[..., Any]:
    """Silent from this step of this round on, until the segment ends."""
    dead = []

    def spoil(name: str, about: Any, reply: Any) -> Any:
        if name == site and (about.get("round"), about.get("step")) == (number, step):
            dead.append(name)
        return None if name in dead else reply

    return spoil


# The sum, and nothing else.


def test_a_secure_run_is_the_simulators_run(world: Make) -> None:
    """With clients that keep something between rounds; compiled, as it is across sites."""
    here, said = world(method=Toy()), list[Reply]()

    def listen(site: str, about: Any, reply: Reply) -> Reply:
        said.append(reply)
        return reply

    with jax.disable_jit(False):
        outcome = here.play(spoil=listen)
        assert outcome.finished, outcome
        expected = here.simulated()
        again, _ = replay(lambda n: Toy(), here.store, here.record, seed=7, dtype=np.float64)
    assert_close(here.final()[1], expected, CLOSE)
    assert_close(here.final()[1], again, CLOSE)
    steps = [about["step"] for about, _, _ in here.net.asked if "step" in about]
    assert steps == [*STEPS] * ROUNDS
    for reply in said:
        assert set(reply.params) <= {"message", "nothing"}
        assert reply.params.get("message", np.zeros(0, np.uint8)).dtype == np.uint8
    lines = here.entries[1:]
    assert {line["traces"] for line in lines} == {1} and all(line["received"] for line in lines)


@pytest.mark.parametrize("step", STEPS)
def test_a_site_that_drops_out_is_left_out_of_the_sum_or_is_in_it(step: str, world: Make) -> None:
    """Three of four sites are enough: masks of one that dies are recovered."""
    here = world(FOUR)
    assert here.play(spoil=dies("b", step)).finished
    counted = 3 if step in ("agree", "reveal") else 2
    assert here.clients == [ALL] * counted + [WITHOUT_B] * (ROUNDS - counted)
    assert_sums(here)
    asked = [about for about, _, _ in here.net.asked if about.get("step") == "advertise"]
    attempts = [about["attempt"] for about in asked]
    assert attempts == [0, 1, 2, 3, 4], "nothing had to be repeated"


@pytest.mark.parametrize("step", STEPS)
def test_a_round_with_too_few_survivors_is_abandoned_and_repeated(step: str, world: Make) -> None:
    """All of three sites are needed; among two, both."""
    here = world()
    assert here.play(spoil=dies("b", step)).finished
    assert here.clients == [ALL] * 2 + [WITHOUT_B] * 3
    assert_sums(here)
    notes = [note for note in here.net.notes if "abandoned" in note]
    assert len(notes) == 1 and f"step {step} and nothing is revealed" in notes[0]
    assert "missing: b" in notes[0]


def test_below_the_quorum_the_segment_ends(world: Make) -> None:
    here = world()
    outcome = here.play(spoil=dies("b", "mask"), quorum=3)
    assert (outcome.finished, outcome.rounds, outcome.fatal) == (False, 2, False)
    assert "2 sites are ready, and 3 are needed" in outcome.reason
    assert here.play(2, quorum=3).finished
    assert_sums(here)


def test_one_site_alone_has_no_secure_round(world: Make) -> None:
    outcome = world({"a": range(0, 2)}).play()
    assert not outcome.finished and "1 sites are ready, and 2 are needed" in outcome.reason


# What a site refuses to send, and what the server refuses to take.


@pytest.mark.parametrize(("value", "words"), [(1e9, "above the clip norm"), (np.nan, "is nan")])
def test_an_update_without_a_place_on_the_grid_stays_at_its_site(
    value: float, words: str, store: ClientStore, world: Make
) -> None:
    spoilt = make_store(LENGTHS)
    spoilt.x[spoilt.offsets[2] : spoilt.offsets[3]] = value
    here = world(FOUR, data=spoilt)
    assert here.play().finished
    assert here.clients == [WITHOUT_B] * ROUNDS
    reasons = refusals(here, "b")
    assert len(reasons) == 3 and all(words in reason for reason in reasons)
    here.store = store
    assert_sums(here)


def wrong(reply: Reply, kind: int) -> Reply:
    message = reply.params["message"]
    changed = message.copy()
    changed[-80] ^= 1
    return [
        reply._replace(params={"message": changed}),
        reply._replace(params={"message": message[:-3].copy()}),
        reply._replace(params={"message": message.astype(np.float64)}),
        reply._replace(params={"message": np.zeros(2**20, np.uint8)}),
        reply._replace(params={"message": b"\x80\x05c__builtin__\neval\n"}),
        reply._replace(params={**reply.params, "more": message}),
        reply._replace(params={}),
        reply._replace(text="{" * 9),
    ][kind]


def test_a_malformed_message_changes_nothing(world: Make) -> None:
    """Each kind in a round of its own, in changing steps, with an honest round between."""

    def spoil(site: str, about: Any, reply: Reply) -> Reply:
        number = about.get("round", 0)
        if site == "d" and number % 2 and about.get("step") == STEPS[number % 3]:
            return wrong(reply, number // 2)
        return reply

    here = world(FOUR, rounds=17)
    assert here.play(spoil=spoil).finished
    assert here.clients == [ALL, (0, 1, 2, 3)] * 8 + [ALL]
    assert_sums(here)


def test_a_sum_out_of_range_ends_the_segment_and_names_the_reason(world: Make) -> None:
    """A site that adds anything it likes before masking; nobody can see which."""
    here = world()

    def spoil(site: str, about: Any, reply: Reply) -> Reply:
        if site == "b" and about.get("step") == "share" and about["round"] == 2:
            here.net.by_name["b"]._secure._values += 2**60  # type: ignore[union-attr]
        return reply

    outcome = here.play(spoil=spoil)
    assert (outcome.finished, outcome.rounds) == (False, 2)
    assert "out of the range" in outcome.reason


# A server that lies.


def secure_rounds(
    sites: dict[str, SecureSite], authority: Authority, agreed: Agreed
) -> SecureRounds:
    """A server's objects, to ask single steps with."""
    known = {n: known_as(authority.pem, n, s.introduction, RUN) for n, s in sites.items()}
    return SecureRounds(agreed, known)


def secure_parts(here: World) -> dict[str, SecureSite]:
    return {name: site._secure for name, site in here.net.by_name.items()}  # type: ignore[misc]


@pytest.fixture
def begun(world: Make, authority: Authority) -> tuple[World, SecureRounds]:
    """Sites after `begin`, and a server that has not asked for a round yet."""
    here = world()
    here.play(spoil=lambda site, about, reply: None if about["task"] == "secure" else reply)
    here.net.spoil = lambda site, about, reply: reply
    here.net.asked.clear()
    sites = secure_parts(here)
    agreed = replace(propose(StatelessToy(), 2, 5, TERMS), contract=sites["a"]._agreed.contract)
    return here, secure_rounds(sites, authority, agreed)


def ask_round(net: Any, rounds: SecureRounds, number: int = 0, take: Any = None) -> Any:
    """Return the sum and the survivors, if there are any, and who was refused."""
    take = take or {"a": [[0, -1], [1, -1]], "b": [[0, -1]], "c": [[0, -1], [1, -1]]}
    state, inquiry = {"value.value": np.zeros(2)}, Inquiry(net, RUN, 1.0)
    about = {"round": number, "saved": 0, "take": take}
    return rounds.run(inquiry, state, about, lambda: None), inquiry.refused


def damage(site: str, about: Any, params: Any) -> None:
    name = next(iter(params)) if "message" in params else f"inbox.{site}"
    params[name][len(params[name]) // 2] ^= 1


def other_survivors(site: str, about: Any, params: Any) -> None:
    names = ("a", "b") if site == "a" else ("a", "b", "c")
    params["message"] = np.frombuffer(SURVIVORS.write(names), np.uint8).copy()


def others_inbox(site: str, about: Any, params: Any) -> None:
    params[f"inbox.{site}"] = params["inbox.b" if site == "a" else "inbox.a"]


LIES: dict[str, Callable[[str, Any, Any], Any]] = {
    "damage": damage,
    "survivors": other_survivors,
    "others' inbox": others_inbox,
    "no inbox": lambda site, about, params: params.pop(f"inbox.{site}"),
    "attempt": lambda site, about, params: about.update(attempt=about["attempt"] + 1),
    "stranger": lambda site, about, params: about["cohort"].append("zoe"),
    "alone": lambda site, about, params: about.update(cohort=[site]),
    "fewer clients": lambda site, about, params: about["take"].update(a=[[0, -1]]),
    "no numbers": lambda site, about, params: params["value.value"].fill(np.nan),
}


@pytest.mark.parametrize(
    ("step", "lie", "words"),
    [
        ("share", "damage", ""),
        ("share", "attempt", "no round that this site has joined"),
        ("mask", "damage", ""),
        ("mask", "others' inbox", "damaged, or was not made"),
        ("mask", "no inbox", "no shares for this site"),
        ("agree", "survivors", "2 survivors, and 3 are needed"),
        ("reveal", "damage", ""),
        ("advertise", "stranger", "'zoe'.*not introduced"),
        ("advertise", "alone", "2 to 10000 clients, not 1"),
        ("advertise", "fewer clients", "all clients of a site"),
        ("advertise", "no numbers", "not finite"),
    ],
)
def test_a_lying_server_gets_nothing(
    step: str, lie: str, words: str, begun: tuple[World, SecureRounds]
) -> None:
    here, rounds = begun
    revealed: list[str] = []

    def forge(site: str, about: Any, params: Any) -> None:
        if about.get("step") == step:
            LIES[lie](site, about, params)

    def listen(site: str, about: Any, reply: Reply) -> Reply:
        if about.get("step") == "reveal" and "refused" not in wire.from_text(reply.text):
            revealed.append(site)
        return reply

    here.net.spoil, here.net.forge = listen, forge
    assert ask_round(here.net, rounds)[0] is None
    assert revealed == []
    if words:
        assert re.search(words, " ".join(refusals(here, "a")))
    here.net.forge = lambda site, about, params: None
    assert ask_round(here.net, rounds)[0] is not None, "an honest attempt afterwards works"


def flat(site: str, about: Any, params: Any) -> None:
    if site != "a":
        params["value.value"].fill(0.5)


def later(site: str, about: Any, params: Any) -> None:
    if site != "a":
        about["round"] = 1


def remembered(site: str, about: Any, params: Any) -> None:
    if site != "a":
        about["take"]["b"] = [[0, 0]]


@pytest.mark.parametrize("lie", [flat, later, remembered])
def test_sites_that_were_shown_different_rounds_have_no_sum(
    lie: Callable[..., Any], begun: tuple[World, SecureRounds], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model inconsistency (Pasquini, Francati & Ateniese 2022): the others' updates are known to a server
    that shows them another state, so the sum would be a's update. It does not mind what is signed for
    another round than its own; the sites do."""
    here, rounds = begun
    real, own = Envelope.check, list[Any]()

    class Liar(Server):
        def __init__(self, settings: Any) -> None:
            own.append(settings)
            super().__init__(settings)

    def check(self: Envelope, settings: Any, step: Any) -> None:
        if not any(settings is one for one in own):
            real(self, settings, step)

    def forge(site: str, about: Any, params: Any) -> None:
        if about.get("step") == "advertise":
            lie(site, about, params)

    def agree_on_the_number(site: str, about: Any, reply: Reply) -> Reply:
        said = wire.from_text(reply.text)
        return reply._replace(text=wire.to_text(said | ({"round": 0} if "round" in said else {})))

    monkeypatch.setattr("pacpfl.sites.secure.Server", Liar)
    monkeypatch.setattr(Envelope, "check", check)
    here.net.forge, here.net.spoil = forge, agree_on_the_number
    assert ask_round(here.net, rounds)[0] is None
    for site in "abc":
        assert "is not valid for this session, round" in refusals(here, site)[-1]
    here.net.forge = lambda site, about, params: None
    assert ask_round(here.net, rounds)[0] is not None, "an honest attempt afterwards works"


@pytest.mark.parametrize("task", ["hello", "begin"])
def test_sites_that_were_told_of_different_runs_have_no_sum(task: str, world: Make) -> None:
    """Another configuration, or other numbers of the clients, would do the same as another state."""

    def forge(site: str, about: Any, params: Any) -> None:
        if site == "a" and about["task"] == task:
            about.update(config="another") if task == "hello" else about["seats"].update(b=7)

    here = world(FOUR)
    assert here.play(forge=forge).finished
    assert here.clients == [(2, 3, 4)] * ROUNDS
    assert "is not valid for this session" in here.entries[1]["refused"]["a"]


def test_a_round_cannot_be_asked_for_in_the_open(begun: tuple[World, SecureRounds]) -> None:
    here, _ = begun
    request = {"task": "train", "run": RUN, "round": 0, "saved": 0, "take": {"a": [[0, -1]]}}
    state = {"value.value": np.zeros(2)}
    (reply,) = here.net.ask(["a"], state, wire.to_text(request), 1.0)
    assert wire.from_text(reply.text)["refused"] == "request"
    assert set(reply.params) == {"nothing"}
    assert any("secure rounds only" in reason for reason in refusals(here, "a"))


def test_an_attempt_is_answered_once(begun: tuple[World, SecureRounds]) -> None:
    """A server that asks for the same numbers again, for the last step twice, or to begin anew."""
    here, rounds = begun
    assert ask_round(here.net, rounds)[0] is not None
    about, _, params = here.net.asked[-1]
    (reply,) = here.net.ask(["a"], params, wire.to_text(about), 1.0)
    assert wire.from_text(reply.text)["refused"] == "protocol"
    assert "out of turn" in refusals(here, "a")[-1]
    secure = secure_parts(here)
    shown = {name: site.introduction for name, site in secure.items()}
    for begin_again in (False, True):
        if begin_again:
            secure["a"].begin(rounds.agreed.to_json(), shown, StatelessToy(), 2, 5)
        rounds.attempts = 0
        found, refused = ask_round(here.net, rounds)
        assert found is None and "secure aggregation is not what was agreed" in refused["a"]
        assert "is over for 'a'" in refusals(here, "a")[-1]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("authority", "not signed by the authority"),
        ("name", "bears the name"),
        ("run", "not signed by the key of its certificate"),
        ("identity", "not signed by the key of its certificate"),
        ("nothing", "does not show a certificate"),
        ("unnamed", "'server' is taken"),
    ],
)
def test_swapped_keys_are_refused_before_the_first_round(
    kind: str, words: str, world: Make, tmp_path: Path, authority: Authority
) -> None:
    """The server puts another introduction in the place of b's: its own authority's, another site's,
    an old one, or one with its own key."""
    mallory = Authority() if kind == "authority" else authority
    name = "c" if kind == "name" else "b"
    run = "deadbeef" if kind == "run" else RUN
    swapped = SecureSite(name, tmp_path, mallory.passport(name), run).introduction

    def forge(site: str, about: dict[str, Any], params: dict[str, Any]) -> None:
        if about["task"] == "begin":
            shown = about["introductions"]
            honest = Introduction.decode(bytes.fromhex(shown["b"]))
            forged = replace(honest, identity=b"\xab" * 32).encode().hex()
            other = {"identity": forged, "nothing": None}
            shown["server" if kind == "unnamed" else "b"] = other.get(kind, swapped)

    here = world()
    outcome = here.play(forge=forge)
    assert not outcome.finished and outcome.rounds == 0
    assert any(words in reason for reason in refusals(here, "a"))
    assert not any(about["task"] == "secure" for about, _, _ in here.net.asked)


def test_a_site_with_a_bad_certificate_does_not_hold_up_the_others(
    world: Make, authority: Authority
) -> None:
    here = world(FOUR)
    sites = here.sites()
    sites["d"]._passport = authority.passport("d", days=-1.0)
    sites["c"]._passport = None
    assert here.play(1, sites).finished
    assert {seat.site for seat in here.record.roster} == {"a", "b"}
    assert any("d was refused" in n and "not valid now" in n for n in here.net.notes)
    assert any("c was refused" in n and "it is not set up" in n for n in here.net.notes)


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        ({"role": "project_admin"}, "not that of a site"),
        ({"authority": True}, "not that of a site"),
        ({"days": -1.0}, "not valid now"),
    ],
)
def test_certificates_of_others_than_sites_vouch_for_nobody(
    certificate: dict[str, Any], words: str, authority: Authority, tmp_path: Path
) -> None:
    site = SecureSite("a", tmp_path, authority.passport("a", **certificate), RUN)
    with pytest.raises(SecureAggregationError, match=words):
        known_as(authority.pem, "a", site.introduction, RUN)


def test_a_passport_lies_in_the_kit(authority: Authority, tmp_path: Path) -> None:
    assert read_passport(tmp_path) is None
    passport = authority.passport("a")
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "client.crt").write_text(passport.certificate)
    (tmp_path / "startup" / "client.key").write_bytes(passport.private)
    (tmp_path / "startup" / "rootCA.pem").write_text(passport.authority)
    assert read_passport(tmp_path) == passport and "PRIVATE" not in repr(passport)


# Limits, terms, methods.


def test_a_site_can_require_it(world: Make, tmp_path: Path) -> None:
    here = world(limits={"a": Limits(secure=True)})
    for secure, there in ((False, {"b", "c"}), (True, {"a", "b", "c"})):
        here.run = tmp_path / f"run {secure}"
        assert here.play(secure=secure).finished
        assert {seat.site for seat in here.record.roster} == there
    assert ["secure aggregation is required here" in r for r in refusals(here, "a")] == [True]


def test_terms_of_a_run() -> None:
    assert read_terms({"secure": True, "bound": 100}, "x") == {"secure": True, "bound": 100}
    with pytest.raises(InputError, match="secure must be true or false, not"):
        read_terms({"secure": 1}, "x")
    with pytest.raises(InputError, match="bound must be above 0"):
        read_terms({"bound": -1}, "x")
    with pytest.raises(InputError, match="its own encoding"):
        read_terms({"secure": True, "encoding": "int8"}, "x")
    assert (Terms("r", 1).needed, Terms("r", 1, secure=True).needed) == (1, 2)
    assert Terms("r", 1, quorum=5, secure=True).needed == 5


def test_a_run_goes_on_with_the_terms_that_it_began_with(tmp_path: Path) -> None:
    begun = prepare_run(tmp_path / "run", Config(), "pacpfl", {"secure": True})
    assert prepare_run(tmp_path / "run", Config(), "pacpfl", {"secure": True}) == begun
    assert json.loads((begun[0] / "terms.json").read_text())["secure"] is True
    with pytest.raises(InputError, match="begun with encoding 'exact'"):
        prepare_run(tmp_path / "run", Config(), "pacpfl", {"encoding": "int8"})


@dataclass(frozen=True)
class Greedy(StatelessToy):
    """Looks at single updates."""

    def server_update(self, state: Any, updates: Any, weights: Any, key: Any) -> Any:
        return state._replace(value=state.value + updates.max(0))


@dataclass(frozen=True)
class Counted(StatelessToy):
    """Reads how many took part, which a sum does not hide."""

    def server_update(self, state: Any, updates: Any, weights: Any, key: Any) -> Any:
        return state._replace(value=state.value + updates.sum(0) * (weights > 0).sum())


@pytest.mark.parametrize(("method", "right"), [(Greedy(), False), (Counted(), True), (Toy(), True)])
def test_a_method_that_needs_more_than_the_sum_is_refused(
    method: Toy, right: bool, world: Make
) -> None:
    outcome = world(method=method, rounds=1).play()
    assert (outcome.finished, outcome.fatal) == (right, not right)
    assert right or "one by one" in outcome.reason


def test_sampled_clients_are_refused(world: Make) -> None:
    outcome = world(clients_per_round=2).play()
    assert outcome.fatal and "all clients take part" in outcome.reason


def test_rows_and_trees() -> None:
    pattern = (jax.ShapeDtypeStruct((2, 3), np.float32), jax.ShapeDtypeStruct((), np.float64))
    rows = np.arange(14.0).reshape(2, 7)
    trees = [from_row(row, pattern) for row in rows]
    assert trees[0][0].shape == (2, 3) and trees[1][1] == 13.0 and trees[0][0].dtype == np.float32
    stacked = jax.tree.map(lambda *each: np.stack(each), *trees)
    np.testing.assert_array_equal(to_rows(stacked), rows)
    whole = (jax.ShapeDtypeStruct((2,), np.int32),)
    with pytest.raises(InputError, match="real numbers"):
        check_summable(lambda *a: None, (), whole, 3)


# Privacy: noise in shares.


def plan_with(epsilon: float = 6.0, rounds: int = 4, clients: int = 5, **more: Any) -> Plan:
    """As `plan_for` makes it, for which it would need some seconds: z by the formula of zCDP, which
    asks for more noise than the accountants do."""
    rho = (np.sqrt(np.log(1e5) + epsilon) - np.sqrt(np.log(1e5))) ** 2
    multiplier = float(np.sqrt(rounds / (2 * rho)))
    settings = {"mode": "gaussian", "sampling": "all", "clients": clients, "cohort": clients}
    settings |= {"multiplier": multiplier, "delta": 1e-5, "epsilon": epsilon, "rounds": rounds}
    return Plan(**(settings | more))  # type: ignore[arg-type]


class Inner:
    """What `Private` needs of PAC-PFL, without its evidence: two particles of three numbers."""

    prior, particles = SimpleNamespace(coupling=""), 2

    def init(self, key: Any, example: Data) -> State:
        drawn = jax.random.normal(key, (2, 3), example.x.dtype)
        return State(drawn, (), np.zeros((1, 2)), np.zeros(2, np.int32))

    def client_update(self, state: State, own: Any, data: Data, key: Any) -> Any:
        total = jnp.where(data.mask, data.y, 0).sum()
        return Update(total * state.particles, total), ()

    def server_update(self, state: State, updates: Update, weights: Any, key: Any) -> State:
        step = jnp.einsum("c,ckp->kp", weights, updates.gradients) / weights.sum()
        return state._replace(particles=0.9 * state.particles + step)

    def fingerprint(self, state: State) -> Any:
        return lambda particle: particle


def private(rounds: int = 4, clip: float = 0.5, **more: Any) -> Private:
    return Private(Inner(), more.pop("plan", plan_with(rounds=rounds)), clip, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("needed", [2, 5])
def test_proposed_noise_keeps_the_budget_and_the_ledgers_word(needed: int) -> None:
    method = private(rounds=6)
    agreed = propose(method, 12, 5, Terms(RUN, 1, quorum=needed, secure=True))
    plan, grid = method.plan, agreed.grid
    assert agreed.needed == needed and grid.clip == limit_of(method)
    for rounds in range(1, 7):
        spent = guarantee(grid, needed, plan.delta, rounds=rounds).epsilon
        assert spent <= epsilon_spent(plan, rounds).epsilon
    deviation = grid.noise * grid.step * np.sqrt(needed)
    assert 1.0 < deviation / (plan.multiplier * method.clip) < 1.2
    less = replace(grid, noise=int(0.8 * grid.noise))
    assert guarantee(less, needed, plan.delta, rounds=6).epsilon > plan.epsilon


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise": 0}, "no noise"),
        ({"noise": 100}, "above the budget"),
        ({"clip": 5.0}, "the run clips at 0.5"),
        ({"needed": 500}, None),
        ({"needed": 1}, "two sites"),
        ({"noise": 1.5}, "make no sense"),
        ({"step": 0.3}, "power of two"),
        ({"noise": None}, "make no sense"),
    ],
)
def test_a_site_accepts_no_less(change: dict[str, Any], words: str | None) -> None:
    method = private()
    proposal = propose(method, 12, 5, TERMS).to_json()
    assert accept(proposal, method, 12, 5).needed == 2
    if words is not None:
        with pytest.raises(Refused, match=words):
            accept(proposal | change, method, 12, 5)
        return
    # So many survivors cannot be had among three sites: then there is no round.
    with pytest.raises(InputError, match="500 survivors among 3"):
        agreed = accept(proposal | change, method, 12, 5)
        agreed.settings(bytes(16), 0, {name: name.encode() * 32 for name in "abc"})


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda: private(plan=plan_with(mode="laplace")), "privacy mode laplace"),
        (lambda: private(adaptive=AdaptiveClip(0.5, 1.0)), "clip_quantile"),
        (lambda: private(plan=plan_with(sampling="poisson", cohort=2)), "clients_per_round"),
    ],
)
def test_privacy_that_sites_cannot_share_is_refused(method: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        summed(method())


def test_the_server_steps_from_the_noisy_sum() -> None:
    """As `Private` does when its noise is nil."""
    quiet = private(plan=plan_with(multiplier=0.0), average_from=0)
    method = summed(quiet)
    assert isinstance(method, Private) and method.summed and method.strict
    example = Data(np.zeros((1, 2)), np.zeros(1), np.ones(1, bool))
    state = quiet.init(jax.random.key(1), example)
    rows = np.random.default_rng(2).normal(size=(5, *state.inner.particles.shape)) / 50
    weights = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    mean = np.broadcast_to(rows[weights > 0].mean(0), rows.shape)
    key = jax.random.key(3)
    expected = quiet.server_update(state, PrivateUpdate(rows, (), np.zeros(5, bool)), weights, key)
    found = method.server_update(state, PrivateUpdate(mean, (), ()), weights, key)
    assert_close(found, expected, 1e-12)


def test_the_sum_holds_the_noise_of_every_survivor(tmp_path: Path, authority: Authority) -> None:
    """4,000 entries: the standard deviation is known to 1.1%, and four of these are allowed."""
    method, dimension = private(), 4000
    sites = {
        name: SecureSite(name, tmp_path / name, authority.passport(name), RUN) for name in "abc"
    }
    agreed = propose(method, dimension, 5, TERMS)
    shown = {name: site.introduction for name, site in sites.items()}
    for name, site in sites.items():
        (tmp_path / name).mkdir()
        site.begin(agreed.to_json(), shown, method, dimension, 5)

    class Handed:
        """An exchange with these sites alone; all updates are zero."""

        def ask(self, names: Any, params: Any, text: str, deadline: float) -> list[Reply]:
            about, replies = wire.from_text(text), []
            for name in names:
                site = sites[name]
                if about["step"] == "advertise":
                    message = site.advertise(about, params, np.zeros((1, dimension)))
                else:
                    message = site.step(params, about)
                said = wire.to_text({"round": about["round"], "step": about["step"]})
                replies.append(Reply(name, wire.from_messages({"message": message}), said))
            return replies

        def note(self, text: str) -> None: ...

    rounds = secure_rounds(sites, authority, agreed)
    for number, names in enumerate(("abc", "ab")):
        take = {name: [[0, -1]] for name in names}
        (total, _), _ = ask_round(Handed(), rounds, number, take)
        expected = agreed.grid.noise * agreed.grid.step * np.sqrt(len(names))
        assert np.std(total) == pytest.approx(expected, rel=0.045)
        assert np.std(total) > 0.95 * method.plan.multiplier * method.clip


def privacy_of(method: Private) -> dict[str, Any]:
    """What a recipe says of a private method."""

    @contextmanager
    def secrecy(clients: int, folder: Path) -> Iterator[Secrecy]:
        ledger = open_ledger(folder / FILE, method.plan, "a run", True)
        try:
            yield Secrecy(method.plan, ledger)
        finally:
            ledger.close()

    return {"privacy": "gaussian", "clip": method.clip, "secrecy": secrecy}


def test_a_private_run_counts_before_it_reveals_and_ends_with_its_budget(
    world: Make, tmp_path: Path
) -> None:
    """Site b dies while the first round is revealed: that round counts, though nothing came of it."""
    method, released = private(rounds=3), list[int]()
    here = world(SHARES, method, 3, data=TINY, **privacy_of(method))

    def note_ledger(site: str, about: Any, params: Any) -> None:
        if about.get("step") == "reveal":
            released.append(read_ledger(here.run / FILE)[-1].released)

    outcome = here.play(spoil=dies("b", "reveal", 0), forge=note_ledger)
    assert outcome.finished and "budget is used up" in outcome.reason and outcome.rounds == 2
    assert released == [1, 1, 1, 2, 2, 3, 3], "written down before anybody is asked to reveal"
    assert here.clients == [WITHOUT_B] * 2
    counts = [json.loads((tmp_path / site / "revealed.json").read_text()) for site in "abc"]
    assert counts == [{RUN: 3}, {RUN: 1}, {RUN: 3}]
    state = here.final()[1]
    assert np.isfinite(state.inner.particles).all() and state.round == 2
    # A server that has lost its ledger is refused by the sites themselves, also by new processes.
    (here.run / FILE).unlink()
    (here.run / CHECKPOINT).unlink()
    outcome = here.play(2)
    assert not outcome.finished
    assert "the budget of the run is used up there" in outcome.reason
    assert "budget of this run is for 3 rounds" in refusals(here, "a")[-1]


@pytest.mark.parametrize("secure", [True, False])
def test_a_server_cannot_loosen_the_clip(secure: bool, world: Make) -> None:
    method = private(rounds=1)

    def forge(site: str, about: Any, params: Any) -> None:
        if "value.clip" in params and site == "a":
            params["value.clip"] = np.array(1e9)

    here = world(SHARES, method, 1, data=TINY, **privacy_of(method))
    assert here.play(forge=forge, secure=secure).finished
    assert here.clients == [(2, 3, 4)]
    assert "clip norm of 1e+09, and the run has one of 0.5" in refusals(here, "a")[0]


def test_agreed_settings_follow_the_survivors() -> None:
    agreed = Agreed(Grid(2.0**-10, 1.0, 3, 9), 4)
    cohort = {name: name.encode() * 32 for name in "abcdef"}
    assert agreed.settings(bytes(16), 0, cohort).threshold == 5
    assert replace(agreed, needed=6).settings(bytes(16), 0, cohort).threshold == 6
