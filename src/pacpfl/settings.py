"""A knob is declared and checked once, in the frozen record of what it sets.

A record of settings stands beside what it sets and is its argument; `config.Config` lists the records,
reads them from TOML and writes them. A key needs no more than one line:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class LocalTraining(Settings):
...     steps: int = key(5, "steps in a round", least=1)
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Collection, Iterable
from dataclasses import field, fields
from functools import cache
from numbers import Integral, Real
from operator import ge, gt, le
from typing import Any

from pacpfl.errors import InputError

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
BOUNDS = {"least": ("at least", ge), "above": ("above", gt), "most": ("at most", le)}
ACCEPTED: dict[type, type] = {int: Integral, float: Real, bool: bool, str: str}


def key(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: Collection[str] = (),
    parts: Collection[str] = (),
    symbol: str = "",
) -> Any:
    """Declare a field of a record of settings, with its comment in TOML and the rules it obeys.

    Bounds are those of a number, or of each number of a list; `above` itself is out of them. `choices`
    are the words it may be, `parts` those whose sums it may be, such as "linear+mlp" (a table may grow
    later). `symbol` is what the paper calls it where people look for that, and how it follows: "beta /
    m_i".
    """
    bounds = {"least": least, "above": above, "most": most}
    words = {"choices": choices, "parts": parts, "symbol": symbol}
    given = {name: rule for name, rule in (bounds | words).items() if rule not in (None, (), "")}
    return field(default=default, metadata={"help": help, **given})


class Settings:
    """Base of records of settings: values of the wrong type or out of bounds are an `InputError`."""

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value is not f.default:
                checked = convert(type(self), f.name, value, type(self).__name__)
                object.__setattr__(self, f.name, checked)

    def problems(self) -> Iterable[str]:
        """Return what is wrong with several keys together, as sentences."""
        return ()


def convert(owner: type, name: str, value: Any, origin: str) -> Any:
    """Return `value` in the type of the field `name` of the record `owner`: lists become tuples.

    A wrong type, or a value against the rules of its key, is an InputError that names the `origin`.
    """
    rules = rules_of(owner, name)
    label = f"{origin}: {name.rstrip('_')}"
    target, optional = _target(owner, name)
    if value is None and optional:
        return None
    if typing.get_origin(target) is tuple:
        inner = typing.get_args(target)[0]
        if not isinstance(value, (list, tuple)) or not all(_is(inner, item) for item in value):
            raise InputError(f"{label} must be a list of {inner.__name__}, not {value!r}.")
        items = tuple(inner(item) for item in value)
        return tuple(_checked(rules, item, f"{label} = {list(items)}: each") for item in items)
    if not _is(target, value):
        raise InputError(f"{label} must be {KINDS[target]}, not {str(value)[:60]!r}.")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise InputError(f"{label} has more digits than any number here may; make it smaller.")
    return _checked(rules, target(value), label)


def rules_of(owner: type, name: str) -> typing.Mapping[str, Any]:
    """Return the help of a field and the rules that `key` gave it."""
    return next(f for f in fields(owner) if f.name == name).metadata


def _checked(rules: typing.Mapping[str, Any], value: Any, label: str) -> Any:
    choices, parts = rules.get("choices", ()), rules.get("parts", ())
    if choices and value not in choices:
        raise InputError(
            f"{label} = {value!r} is not one of {', '.join(choices)}{nearest(value, choices)}"
        )
    for part in value.split("+") if parts else ():
        if part not in parts:
            raise InputError(
                f"{label} = {value!r} is not known; combine {', '.join(parts)} with +"
                f"{nearest(part, parts)}"
            )
    for rule, (words, holds) in BOUNDS.items():
        if rule in rules and not (holds(value, rules[rule]) and math.isfinite(value)):
            raise InputError(f"{label} must be {words} {rules[rule]}, not {value}.")
    return value


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the name that comes nearest, if any does."""
    close = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else "."


@cache
def _target(owner: type, name: str) -> tuple[Any, bool]:
    """Return the type of a field, and whether it may stay unset."""
    hint = typing.get_type_hints(owner)[name]
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next(o for o in options if o is not type(None)), type(None) in options


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, ACCEPTED[kind]) and (kind is bool or not isinstance(value, bool))
