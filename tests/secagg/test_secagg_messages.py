"""Messages: one encoding each, and a reader that survives anything."""

from __future__ import annotations

from collections.abc import Callable
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
every_message = st.one_of(
    envelopes,
    st.builds(m.Advertisement, exactly(32), exactly(32), exactly(32)),
    st.builds(m.ShareList, ascending(sealed, lambda item: item.peer)),
    st.builds(m.KeyList, ascending(envelopes, lambda envelope: envelope.sender)),
    st.builds(m.Survivors, ascending(names, str)),
    st.builds(m.Signatures, named(64)),
    st.builds(m.Revealed, named(33), named(33)),
)
KINDS = [m.Envelope, m.Advertisement, m.ShareList, m.KeyList, m.Survivors, m.Signatures, m.Revealed]


@quick
@given(every_message)
def test_a_message_comes_back(message: Any) -> None:
    assert type(message).decode(message.encode()) == message


@quick
@given(every_message, st.data())
def test_a_damaged_message_is_refused_or_is_another_message(message: Any, data: Any) -> None:
    """Cut, lengthen or change it: it is refused, or reads as a message that encodes to these bytes."""
    encoded = bytearray(message.encode())
    place = data.draw(st.integers(0, len(encoded)))
    damage = data.draw(st.sampled_from(["cut", "lengthen", "change"]))
    if damage == "cut":
        del encoded[place:]
    elif damage == "lengthen":
        encoded[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    elif place < len(encoded):
        encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        found = type(message).decode(bytes(encoded))
    except SecureAggregationError:
        return
    assert found.encode() == bytes(encoded)


@quick
@given(st.binary(max_size=200), st.sampled_from(KINDS))
def test_random_bytes_are_refused_or_read_exactly(data: bytes, kind: Any) -> None:
    try:
        found = kind.decode(data)
    except SecureAggregationError:
        return
    assert found.encode() == data


@pytest.mark.parametrize("order", [("a", "a"), ("b", "a")])
def test_duplicates_and_disorder_are_refused(order: tuple[str, str]) -> None:
    share = lambda name: m.SealedShares(name, bytes(m.SEALED_BYTES), bytes(32), bytes(32))  # noqa: E731
    for message in (
        m.Survivors(order),
        m.Signatures(tuple((name, bytes(64)) for name in order)),
        m.Revealed(tuple((name, bytes(33)) for name in order), ()),
        m.Revealed((), tuple((name, bytes(33)) for name in order)),
        m.ShareList(tuple(share(name) for name in order)),
        m.KeyList(tuple(m.Envelope(m.Step.ADVERTISE, name, b"", bytes(64)) for name in order)),
    ):
        with pytest.raises(SecureAggregationError, match="there twice"):
            type(message).decode(message.encode())


HEAD = wire.number(m.Step.MASK, 1) + wire.name("a")


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [  # an announced size is checked before anything is read
        (m.Envelope, HEAD + wire.number(2**62, 8), "at most"),
        (m.Envelope, HEAD + wire.number(2**30, 8) + b"few bytes", "were announced"),
        (m.Survivors, wire.number(2**32 - 1), "entries"),
        (m.Survivors, wire.number(1) + b"\x01\xff", "not text"),
        (m.Survivors, wire.number(1) + b"\x00", "empty"),
        (m.Survivors, wire.number(0) + b"\0", "after its end"),
        (m.Envelope, b"\x09" + wire.name("a") + wire.block(b"") + bytes(64), "step 9"),
    ],
)
def test_bytes_that_are_no_message_are_refused_with_the_reason(
    kind: Any, data: bytes, words: str
) -> None:
    with pytest.raises(SecureAggregationError, match=words):
        kind.decode(data)
