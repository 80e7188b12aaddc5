"""Messages: one encoding each, and a reader that survives anything."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacpfl.errors import SecureAggregationError
from pacpfl.secagg import messages as m
from pacpfl.secagg import wire

quick = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def exactly(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


def ascending(item: st.SearchStrategy[Any], name: Callable[[Any], str]) -> st.SearchStrategy[Any]:
    unique = st.lists(item, max_size=4, unique_by=name)
    return unique.map(lambda items: tuple(sorted(items, key=name)))


def named(size: int) -> st.SearchStrategy[Any]:
    return ascending(st.tuples(names, exactly(size)), lambda item: item[0])


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
envelopes = st.builds(
    m.Envelope, st.sampled_from(m.Step), names, st.binary(max_size=40), exactly(64)
)
sealed = st.builds(m.SealedShares, names, exactly(m.SEALED_BYTES), exactly(32), exactly(32))


def record(kind: Any) -> wire.Part:
    return wire.Part(kind.encode, kind.read)


ENVELOPE = record(m.Envelope)
KINDS = [
    (ENVELOPE, envelopes),
    (record(m.Advertisement), st.builds(m.Advertisement, exactly(32), exactly(32), exactly(32))),
    (record(m.Revealed), st.builds(m.Revealed, named(33), named(33))),
    (m.SHARES, ascending(sealed, lambda item: item.peer)),
    (m.KEYS, ascending(envelopes, lambda envelope: envelope.sender)),
    (m.SURVIVORS, ascending(names, str)),
    (m.SIGNATURES, named(64)),
]
every_message = st.one_of(*(st.tuples(st.just(kind), made) for kind, made in KINDS))


@quick
@given(every_message)
def test_a_message_comes_back(message: Any) -> None:
    kind, said = message
    assert kind.decode(kind.write(said)) == said


@quick
@given(every_message, st.data())
def test_a_damaged_message_is_refused_or_is_another_message(message: Any, data: Any) -> None:
    """Cut, lengthen or change it: it is refused, or reads as a message that encodes to these bytes."""
    kind, said = message
    encoded = bytearray(kind.write(said))
    place = data.draw(st.integers(0, len(encoded)))
    damage = data.draw(st.sampled_from(["cut", "lengthen", "change"]))
    if damage == "cut":
        del encoded[place:]
    elif damage == "lengthen":
        encoded[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    elif place < len(encoded):
        encoded[place] ^= data.draw(st.integers(1, 255))
    assert_refused_or_exact(kind, bytes(encoded))


@quick
@given(st.binary(max_size=200), st.sampled_from(KINDS))
def test_random_bytes_are_refused_or_read_exactly(data: bytes, kind: Any) -> None:
    assert_refused_or_exact(kind[0], data)


def assert_refused_or_exact(kind: wire.Part, data: bytes) -> None:
    with suppress(SecureAggregationError):
        assert kind.write(kind.decode(data)) == data


@pytest.mark.parametrize("order", [("a", "a"), ("b", "a")])
def test_duplicates_and_disorder_are_refused(order: tuple[str, str]) -> None:
    sealed = [m.SealedShares(name, bytes(m.SEALED_BYTES), bytes(32), bytes(32)) for name in order]
    shares = tuple((name, bytes(33)) for name in order)
    for kind, said in (
        (m.SURVIVORS, order),
        (m.SIGNATURES, [(name, bytes(64)) for name in order]),
        (record(m.Revealed), m.Revealed(shares, ())),
        (record(m.Revealed), m.Revealed((), shares)),
        (m.SHARES, sealed),
        (m.KEYS, [m.Envelope(m.Step.ADVERTISE, name, b"", bytes(64)) for name in order]),
    ):
        with pytest.raises(SecureAggregationError, match="there twice"):
            kind.decode(kind.write(said))


HEAD = wire.number(m.Step.MASK, 1) + wire.name("a")


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [  # an announced size is checked before anything is read
        (ENVELOPE, HEAD + wire.number(2**62, 8), "at most"),
        (ENVELOPE, HEAD + wire.number(2**30, 8) + b"few bytes", "were announced"),
        (m.SURVIVORS, wire.number(2**32 - 1), "entries"),
        (m.SURVIVORS, wire.number(1) + b"\x01\xff", "not text"),
        (m.SURVIVORS, wire.number(1) + b"\x00", "empty"),
        (m.SURVIVORS, wire.number(0) + b"\0", "after its end"),
        (ENVELOPE, b"\x09" + wire.name("a") + wire.block(b"") + bytes(64), "step 9"),
    ],
)
def test_bytes_that_are_no_message_are_refused_with_the_reason(
    kind: Any, data: bytes, words: str
) -> None:
    with pytest.raises(SecureAggregationError, match=words):
        kind.decode(data)
