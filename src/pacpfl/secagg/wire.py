"""Bytes of messages: every field led by its length, and a reader that believes nothing.

A length is compared with what is really there before anything is cut out or allocated, nothing may be
left over, and each message has exactly one encoding: what can be read encodes to the same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

from pacpfl.errors import SecureAggregationError

Item = TypeVar("Item")

NAME_BYTES = 255


def number(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "big")


def block(data: bytes) -> bytes:
    """Encode bytes of any length, led by it."""
    return number(len(data), 8) + data


def name(text: str) -> bytes:
    data = text.encode("utf-8")
    return number(len(data), 1) + data


def sequence(items: Iterable[bytes]) -> bytes:
    """Join encoded items, led by their number."""
    parts = list(items)
    return number(len(parts)) + b"".join(parts)


class Reader:
    """Takes fields off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._position = 0

    def fixed(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise SecureAggregationError(
                f"A message ends after {len(self._data)} bytes, where at least {end} were announced."
            )
        taken = bytes(self._data[self._position : end])
        self._position = end
        return taken

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.fixed(size), "big")

    def block(self, limit: int) -> bytes:
        size = self.number(8)
        if size > limit:
            raise SecureAggregationError(
                f"A field of a message announces {size} bytes, and at most {limit} are allowed."
            )
        return self.fixed(size)

    def name(self) -> str:
        data = self.fixed(self.number(1))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as refused:
            raise SecureAggregationError("A client's name in a message is not text.") from refused
        if not text:
            raise SecureAggregationError("A client's name in a message is empty.")
        return text

    def sequence(self, read: Callable[[Reader], Item], limit: int) -> tuple[Item, ...]:
        count = self.number()
        if count > limit:
            raise SecureAggregationError(
                f"A list in a message announces {count} entries, and at most {limit} are allowed."
            )
        return tuple(read(self) for _ in range(count))

    def finish(self) -> None:
        left = len(self._data) - self._position
        if left:
            raise SecureAggregationError(f"A message has {left} bytes after its end.")


def whole(data: bytes, read: Callable[[Reader], Item]) -> Item:
    """Return what `read` takes from a message, and refuse one that goes on after it."""
    reader = Reader(data)
    taken = read(reader)
    reader.finish()
    return taken


def ascending(names: Iterable[str]) -> None:
    """Refuse names that are not in strictly ascending order, hence duplicates."""
    for first, second in pairwise(names):
        if first >= second:
            raise SecureAggregationError(
                f"The clients in a message are not sorted, or {second!r} is there twice."
            )
