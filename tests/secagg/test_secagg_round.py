"""Whole rounds: exact sums whoever drops out, abandoned rounds that reveal nothing, uniform messages."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tampering import Round

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.secagg import primitives
from pacpfl.secagg.grid import Grid
from pacpfl.secagg.messages import Envelope, Revealed, Step
from pacpfl.secagg.settings import Adversary, Settings, smallest_threshold
from pacpfl.secagg.simulate import make_members, simulate_round

quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)
STEP = 2.0**-12
KINDS: tuple[Adversary, ...] = ("active", "curious")


def updates_of(clients: int, dimension: int, seed: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed).normal(size=(clients, dimension))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return {f"site-{i}": update for i, update in enumerate(drawn)}


@quick
@given(
    clients=st.integers(2, 12), adversary=st.sampled_from(KINDS), wide=st.booleans(), data=st.data()
)
def test_the_sum_is_exact_whoever_drops_out_when(
    clients: int, adversary: Adversary, wide: bool, data: st.DataObject
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


def test_noise_in_shares_has_the_stated_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of six clients survive: the sum's noise has variance 5 s^2, and s^2 of the threshold's."""
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(0).bytes)
    dimension, each = 20_000, 60
    grid = Grid(STEP, 1.0, dimension, 6, noise=each)
    updates = updates_of(6, dimension, 3)
    outcome = simulate_round(updates, grid, 5, {Step.MASK: ["site-2"]})
    exact = sum(grid.encode(updates[name]) for name in outcome.survivors)
    noise = np.rint(outcome.total / STEP) - exact
    assert noise.std() == pytest.approx(each * sqrt(5), rel=4 / sqrt(2 * dimension))
    assert stats.kstest(noise / (each * sqrt(5)), "norm").pvalue > 1e-3


def test_a_bad_update_or_grid_is_refused_before_anything_is_sent() -> None:
    updates = updates_of(3, 5, 0)
    with pytest.raises(InputError, match="above the clip norm"):
        simulate_round(updates | {"site-bad": np.full(5, 9.0)}, Grid(STEP, 1.0, 5, 4), 3)
    with pytest.raises(InputError, match="room for 2 clients"):
        simulate_round(updates, Grid(STEP, 1.0, 5, 2), 3)


def test_with_fewer_shares_than_the_threshold_every_sum_is_possible() -> None:
    """All but the threshold of holders reveal: what the server then holds fits any other sum as well."""
    party = Round()
    revealed = party.replies(Step.REVEAL)
    few = {name: revealed[name] for name in ("c0", "c1", "c4")}
    with pytest.raises(SecureAggregationError, match="nothing is revealed") as refusal:
        party.server.collect(Step.REVEAL, few)
    assert "3 of 5 clients are left, 4 are needed; missing: c2, c3" in str(refusal.value)

    # Give the server everything except the seed of c0, of which it holds three shares of four.
    settings = party.settings
    seeds = {
        holder: dict(Revealed.decode(Envelope.decode(reply).payload).seeds)
        for holder, reply in revealed.items()
    }
    held = {settings.numbers[name]: seeds[name]["c0"] for name in few}
    total = party.server.total.copy()
    for name in ("c1", "c2", "c3", "c4"):
        shares = {settings.numbers[holder]: seeds[holder][name] for holder in seeds}
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
def test_an_abandoned_round_stays_abandoned(step: Step) -> None:
    party = Round(clients=4, threshold=4)
    replies = party.replies(step)
    late = replies.pop("c1")
    with pytest.raises(SecureAggregationError, match=r"3 of 4 clients are left.*missing: c1\."):
        party.server.collect(step, replies)
    with pytest.raises(SecureAggregationError, match="out of turn"):
        party.server.collect(step, {**replies, "c1": late})


@pytest.mark.parametrize("bits", [32, 64])
def test_masked_updates_are_uniform_and_independent_of_the_update(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_bytes", np.random.default_rng(bits).bytes)
    dimension = 20_000
    drawn: dict[str, np.ndarray] = {}
    inputs = np.random.default_rng(1).integers(-(2**20), 2**20, dimension)
    for kind, values in (("zero", 0 * inputs), ("large", inputs)):
        party = Round(clients=3, dimension=dimension, bits=bits)
        party.values = dict.fromkeys(party.values, values)
        payload = Envelope.decode(party.replies(Step.MASK)["c1"]).payload
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


def test_messages_of_the_documented_size() -> None:
    """The update itself, 4 or 8 bytes per entry, and about half a kilobyte per peer."""
    grid = Grid(STEP, 1.0, 1000, 12)
    outcome = simulate_round(updates_of(12, 1000, 0), grid, 9)
    for size in outcome.bytes_per_client.values():
        assert 4000 < size < 4000 + 12 * 800


def settings_with(**changes: Any) -> Settings:
    members = make_members([f"c{i}" for i in range(6)])
    cohort = tuple((name, member.known[name]) for name, member in members.items())
    return replace(Settings(bytes(16), 0, cohort, 5, 10), **changes)


def test_the_smallest_thresholds_and_what_they_tolerate() -> None:
    """More than two thirds, or one half; the smallest such number."""
    found = [[smallest_threshold(n, kind) for n in (2, 3, 4, 6, 10, 100)] for kind in KINDS]
    assert found == [[2, 3, 3, 5, 7, 67], [2, 2, 3, 4, 6, 51]]
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
    others = (
        {"session": b"1" * 16},
        {"round": 1},
        {"threshold": 6},
        {"dimension": 11},
        {"bits": 32},
        {"adversary": "curious"},
        {"terms": b"grid"},
        {"cohort": base.cohort[:-1]},
        {"cohort": base.cohort[:-1] + renamed},
        {"cohort": (("c0", b"2" * 32), *base.cohort[1:])},
    )
    assert len({base.context, *(replace(base, **other).context for other in others)}) == 11
    assert replace(base).context == base.context


def test_the_examples_of_the_page_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "secure-aggregation.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "('site-0', 'site-1', 'site-3', 'site-4')"
    total = np.fromstring(lines[1].strip("[]"), sep=" ")
    assert np.abs(total - 0.8).max() <= 4 * 2.0**-21 + 1e-8
    assert lines[2] == "5815 32"
    epsilon = float(re.findall(r"epsilon=([\d.]+)", lines[3])[0])
    assert 3.99 < epsilon <= 4
