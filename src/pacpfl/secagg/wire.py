"""Bytes of messages: every field led by its length, and a reader that believes nothing.

A length is compared with what is really there before anything is cut out or allocated, nothing may be
left over, and each message has exactly one encoding: what can be read encodes to the same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

from pacpfl.errors import SecureAggregationError

NAME_BYTES = 255
MOST_CLIENTS = 10_000


def number(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "big")


def block(data: bytes) -> bytes:
    """Encode bytes of any length, led by it."""
    return number(len(data), 8) + data


def name(text: str) -> bytes:
    data = text.encode("utf-8")
    return number(len(data), 1) + data


class Reader:
    """Takes fields off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self.left = memoryview(data)

    def fixed(self, size: int) -> bytes:
        if size > len(self.left):
            raise SecureAggregationError(
                f"A message ends after {len(self.left)} bytes of the next {size} that were announced."
            )
        taken, self.left = bytes(self.left[:size]), self.left[size:]
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


class Part(NamedTuple):
    """How one field of a message travels, or a whole message."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]

    def decode(self, data: bytes) -> Any:
        """Return what a message says that is nothing but this part."""
        reader = Reader(data)
        value = self.read(reader)
        if reader.left:
            raise SecureAggregationError(f"A message has {len(reader.left)} bytes after its end.")
        return value


NAME = Part(name, Reader.name)


def fixed(size: int) -> Part:
    return Part(bytes, lambda reader: reader.fixed(size))


def up_to(size: int) -> Part:
    return Part(block, lambda reader: reader.block(size))


def named(size: int) -> Part:
    """Return the part of a pair: a name, and so many bytes."""
    return Part(lambda pair: name(pair[0]) + pair[1], lambda r: (r.name(), r.fixed(size)))


def ascending(entry: Part, name_of: Callable[[Any], str]) -> Part:
    """Return the part of a list whose names must be in strictly ascending order, without duplicates."""

    def write(entries: Sequence[Any]) -> bytes:
        return number(len(entries)) + b"".join(map(entry.write, entries))

    def read(reader: Reader) -> tuple[Any, ...]:
        count = reader.number()
        if count > MOST_CLIENTS:
            raise SecureAggregationError(
                f"A list in a message announces {count} entries, and at most {MOST_CLIENTS} are allowed."
            )
        entries = tuple(entry.read(reader) for _ in range(count))
        for first, second in pairwise(map(name_of, entries)):
            if first >= second:
                raise SecureAggregationError(
                    f"The clients in a message are not sorted, or {second!r} is there twice."
                )
        return entries

    return Part(write, read)


class Message:
    """A frozen record; `parts` say how its fields travel, one after the other."""

    parts: ClassVar[tuple[Part, ...]]

    def encode(self) -> bytes:
        fields = zip(self.parts, vars(self).values(), strict=True)
        return b"".join(part.write(value) for part, value in fields)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(*(part.read(reader) for part in cls.parts))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        message: Self = Part(cls.encode, cls.read).decode(data)
        return message
