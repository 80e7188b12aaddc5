"""Whole rounds: exact sums whoever drops out, abandoned rounds that reveal nothing, uniform messages."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from math import ceil, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.secagg import primitives
from pacpfl.secagg.grid import Grid
from pacpfl.secagg.messages import Envelope, KeyList, Revealed, Step
from pacpfl.secagg.settings import Settings, smallest_threshold
from pacpfl.secagg.simulate import make_members, simulate_round

quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)
STEP = 2.0**-12


def updates_of(clients: int, dimension: int, seed: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed).normal(size=(clients, dimension))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return {f"site-{i}": update for i, update in enumerate(drawn)}


@quick
@given(
    clients=st.integers(2, 12),
    adversary=st.sampled_from(["active", "curious"]),
    wide=st.booleans(),
    data=st.data(),
)
def test_the_sum_is_exact_whoever_drops_out_when(
    clients: int, adversary: Any, wide: bool, data: st.DataObject
) -> None:
    updates = updates_of(clients, 5, clients)
    threshold = data.draw(
        st.integers(smallest_threshold(clients, adversary), clients), label="threshold"
    )
    grid = Grid(STEP * (2.0**-24 if wide else 1), 1.0, 5, clients)
    assert grid.bits == (64 if wide else 32)
    at_once = ceil(0.3 * clients)
    leaving = st.sets(st.sampled_from(sorted(updates)), max_size=at_once)
    dropouts = {step: data.draw(leaving, label=step.name) for step in Step}

    present, failed, sent = set(updates), None, set()
    for step in Step:
        present -= dropouts[step]
        if failed is None and len(present) < threshold:
            failed = step
        if step is Step.MASK:
            sent = set(present)

    if failed is not None:
        with pytest.raises(SecureAggregationError, match="abandoned") as refusal:
            simulate_round(updates, grid, threshold, dropouts, adversary=adversary)
        assert f"in step {failed.name.lower()} " in str(refusal.value)
        missing = str(refusal.value).split("missing: ")[1]
        gone = set().union(*(dropouts[step] for step in Step if step <= failed))
        assert missing == ", ".join(sorted(gone)) + "."
        return
    outcome = simulate_round(updates, grid, threshold, dropouts, adversary=adversary)
    assert set(outcome.survivors) == sent
    exact = sum(grid.encode(updates[name]) for name in sent)
    assert np.array_equal(outcome.total, exact * grid.step)
    true = np.sum([updates[name] for name in sent], axis=0)
    assert np.abs(outcome.total - true).max() <= len(sent) * grid.step / 2


def test_noise_in_shares_has_the_stated_deviation() -> None:
    """Five of six clients survive: the sum's noise has variance 5 s^2, and s^2 of the threshold's."""
    dimension, each = 20_000, 60
    grid = Grid(STEP, 1.0, dimension, 6, noise=each)
    updates = updates_of(6, dimension, 3)
    outcome = simulate_round(
        updates,
        grid,
        5,
        {Step.MASK: ["site-2"]},
        random_bytes=np.random.default_rng(0).bytes,
    )
    exact = sum(grid.encode(updates[name]) for name in outcome.survivors)
    noise = np.rint(outcome.total / STEP) - exact
    assert noise.std() == pytest.approx(each * sqrt(5), rel=4 / sqrt(2 * dimension))
    assert stats.kstest(noise / (each * sqrt(5)), "norm").pvalue > 1e-3


def test_a_bad_update_never_leaves_its_client() -> None:
    grid = Grid(STEP, 1.0, 5, 4)
    for bad in (np.full(5, np.nan), np.full(5, 9.0), np.zeros(6)):
        updates = {**updates_of(3, 5, 0), "site-bad": bad}
        with pytest.raises(InputError):
            simulate_round(updates, grid, 3)


def test_a_grid_too_small_for_the_cohort_is_refused() -> None:
    with pytest.raises(InputError, match="room for 2 clients"):
        simulate_round(updates_of(3, 5, 0), Grid(STEP, 1.0, 5, 2), 3)


def test_with_fewer_shares_than_the_threshold_every_sum_is_possible(
    make_round: Callable[..., Any],
) -> None:
    """All but the threshold of holders reveal: what the server then holds fits any other sum as well."""
    party = make_round(clients=5, threshold=4)
    revealed = party.revealed()
    few = {name: revealed[name] for name in ("c0", "c1", "c4")}
    with pytest.raises(SecureAggregationError, match="nothing is revealed") as refusal:
        party.server.unmask(few)
    assert "3 of 5 clients are left, 4 are needed; missing: c2, c3" in str(refusal.value)

    # Give the server everything except the seed of c0, of which it holds three shares of four.
    settings = party.settings
    held = {
        settings.numbers[name]: dict(Revealed.decode(Envelope.decode(reply).payload).seeds)["c0"]
        for name, reply in few.items()
    }
    total = party.server._total.copy()
    for name in ("c1", "c2", "c3", "c4"):
        shares = {
            settings.numbers[holder]: dict(Revealed.decode(Envelope.decode(reply).payload).seeds)[
                name
            ]
            for holder, reply in revealed.items()
        }
        seed = primitives.join_shares(shares, primitives.share_weights(list(shares)[:4]))
        total -= settings.self_mask(name, seed)
    sums = []
    for guess in (b"\x01" * 32, b"\x02" * 32):
        # The share that holder 3 would have had, were the guess the seed: degree 3 through 4 points.
        weights = primitives.share_weights([*held, 3])
        value = int.from_bytes(guess, "big") - sum(
            weights[number] * int.from_bytes(share, "big") for number, share in held.items()
        )
        share = value * pow(weights[3], -1, primitives.PRIME) % primitives.PRIME
        possible = {**held, 3: share.to_bytes(primitives.SHARE_BYTES, "big")}
        assert primitives.join_shares(possible, weights) == guess
        sums.append(total - settings.self_mask("c0", guess))
    assert not np.array_equal(sums[0], sums[1])
    assert not any(np.array_equal(found, party.expected()) for found in sums)


@pytest.mark.parametrize("step", list(Step))
def test_an_abandoned_round_stays_abandoned(step: Step, make_round: Callable[..., Any]) -> None:
    party = make_round(clients=4, threshold=4)
    replies = {
        Step.ADVERTISE: party.advertise,
        Step.SHARE: party.share,
        Step.MASK: party.masked,
        Step.AGREE: party.agreed,
        Step.REVEAL: party.revealed,
    }[step]()
    collect = {
        Step.ADVERTISE: party.server.collect_keys,
        Step.SHARE: party.server.collect_shares,
        Step.MASK: party.server.collect_masked,
        Step.AGREE: party.server.collect_signatures,
        Step.REVEAL: party.server.unmask,
    }[step]
    late = replies.pop("c1")
    with pytest.raises(SecureAggregationError, match=r"3 of 4 clients are left.*missing: c1\."):
        collect(replies)
    with pytest.raises(SecureAggregationError, match="out of turn"):
        collect({**replies, "c1": late})


def test_every_client_leaves_the_round_when_it_sees_too_few(make_round: Callable[..., Any]) -> None:
    """A server that goes on all the same gets nothing from the clients either."""
    party = make_round(clients=4, threshold=4)
    replies = party.advertise()
    broadcast = KeyList(
        tuple(Envelope.decode(replies[name]) for name in ("c0", "c1", "c2"))
    ).encode()
    with pytest.raises(SecureAggregationError, match="names 3 clients with keys, and 4 are needed"):
        party.clients["c0"].share(broadcast)


@pytest.mark.parametrize("bits", [32, 64])
def test_masked_updates_are_uniform_and_independent_of_the_update(
    bits: int, make_round: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(bits).bytes)
    dimension = 20_000
    drawn: dict[str, np.ndarray] = {}
    inputs = np.random.default_rng(1).integers(-(2**20), 2**20, dimension)
    for kind, values in (("zero", 0 * inputs), ("large", inputs)):
        party = make_round(clients=3, dimension=dimension, bits=bits)
        party.values = dict.fromkeys(party.values, values)
        payload = Envelope.decode(party.masked()["c1"]).payload
        drawn[kind] = np.frombuffer(payload, dtype=f"<u{bits // 8}")
    for numbers in drawn.values():
        for shift in range(0, bits, 8):  # every byte of the numbers, lowest first
            counts = np.bincount((numbers >> np.uint8(shift)).astype(np.uint8), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-4
    scaled = drawn["large"] / 2.0**bits
    assert abs(stats.pearsonr(scaled, inputs).statistic) < 4 / sqrt(dimension)
    # The joint distribution with the sign of the input, too.
    table = [
        np.histogram(scaled[side], bins=16, range=(0, 1))[0] for side in (inputs < 0, inputs >= 0)
    ]
    assert stats.chi2_contingency(np.array(table)).pvalue > 1e-4


def test_messages_of_the_documented_size(make_round: Callable[..., Any]) -> None:
    """The update itself, 4 or 8 bytes per entry, and about half a kilobyte per peer."""
    grid = Grid(STEP, 1.0, 1000, 12)
    outcome = simulate_round(updates_of(12, 1000, 0), grid, 9)
    for size in outcome.bytes_per_client.values():
        assert 4000 < size < 4000 + 12 * 800


def settings_with(**changes: Any) -> Settings:
    members = make_members([f"c{i}" for i in range(6)])
    cohort = tuple((name, member.known[name]) for name, member in members.items())
    return replace(Settings(bytes(16), 0, cohort, 5, 10), **changes)


@pytest.mark.parametrize(
    ("clients", "active", "curious"),
    [(2, 2, 2), (3, 3, 2), (4, 3, 3), (6, 5, 4), (10, 7, 6), (100, 67, 51)],
)
def test_the_smallest_thresholds_are_above_two_thirds_and_one_half(
    clients: int, active: int, curious: int
) -> None:
    assert smallest_threshold(clients, "active") == active
    assert smallest_threshold(clients, "curious") == curious
    assert 3 * active > 2 * clients >= 3 * (active - 1)
    assert 2 * curious > clients >= 2 * (curious - 1)


def test_what_a_threshold_tolerates() -> None:
    # Two sets of 5 among 6 share at least 4 clients: up to 3 of them may plot.
    assert settings_with().tolerated == 3
    assert settings_with(threshold=4, adversary="curious").tolerated == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threshold": 4}, "choose 5 to 6, which is more than 2/3"),
        ({"threshold": 3, "adversary": "curious"}, "choose 4 to 6, which is more than 1/2"),
        ({"threshold": 7}, "choose 5 to 6"),
        ({"adversary": "kind"}, "'active' or 'curious'"),
        ({"session": b"short"}, "16 random bytes"),
        ({"round": -1}, "count from 0"),
        ({"dimension": 0}, "dimension"),
        ({"bits": 16}, "32 or 64"),
        ({"terms": bytes(2**17)}, "terms"),
        ({"cohort": (("a", bytes(32)),)}, "2 to 10000 clients"),
        ({"cohort": (("a", bytes(32)), ("a", b"1" * 32)), "threshold": 2}, "there twice"),
        ({"cohort": (("b", bytes(32)), ("a", b"1" * 32)), "threshold": 2}, "not sorted"),
        ({"cohort": (("a", bytes(32)), ("b", bytes(32))), "threshold": 2}, "same identity"),
        ({"cohort": (("a", bytes(31)), ("b", bytes(32))), "threshold": 2}, "has 31 bytes"),
        ({"cohort": (("", bytes(32)), ("b", b"1" * 32)), "threshold": 2}, "empty or too long"),
        ({"cohort": (("a" * 256, bytes(32)), ("b", b"1" * 32)), "threshold": 2}, "too long"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings_with(**changes)


def test_every_setting_changes_the_context() -> None:
    base = settings_with()
    renamed = (("c9", base.cohort[-1][1]),)
    others = [
        replace(base, session=b"1" * 16),
        replace(base, round=1),
        replace(base, threshold=6),
        replace(base, dimension=11),
        replace(base, bits=32),
        replace(base, adversary="curious"),
        replace(base, terms=b"grid"),
        replace(base, cohort=base.cohort[:-1]),
        replace(base, cohort=base.cohort[:-1] + renamed),
        replace(base, cohort=(("c0", b"2" * 32), *base.cohort[1:])),
    ]
    assert len({base.context, *(other.context for other in others)}) == 1 + len(others)
    assert replace(base).context == base.context
