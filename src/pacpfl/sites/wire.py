"""What travels: named arrays and one line of JSON. Checked on receipt, on both sides; never unpickled.

A message is a dictionary of plain NumPy arrays, whose names, shapes and types both sides know
beforehand, and a JSON object. So a message that is not exactly as agreed is refused before anything is
computed from it, and the text of `Refused` is what the log says.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.files import Facts
from pacpfl.methods.base import Method
from pacpfl.secagg.primitives import digest
from pacpfl.types import Data, Form

TEXT = "pacpfl"  # where a message's JSON lies among FLARE's own data
MOST_TEXT = 2**20  # characters of JSON in a message
MESSAGE, INBOX = "message", "inbox."  # names of arrays of bytes, in secure rounds
NOTHING = "nothing"  # an engine may drop a message without arrays, so an empty one travels


REFUSALS = "refused.jsonl"  # at the site
LIMITS = (
    *("methods", "largest_model", "clip_norm", "minimum_samples", "maximum_rounds"),
    *("maximum_hellos", "privacy", "secure"),
)
# All that a site says of why it refuses. The sentence with the particulars may quote its data: it stays
# in the site's refused.jsonl.
REASONS = {
    "request": "the request is not what was agreed",
    "version": "it runs another major version of pacpfl",
    "configuration": "it cannot use the configuration",
    "tables": "its site.toml does not allow what the run asks of its tables",
    "data": "its data do not fit the configuration",
    "state": "the state that it was sent is not what was agreed",
    "update": "its update is beyond what may be sent",
    "protocol": "a message of secure aggregation is not what was agreed",
    "budget": "the budget of the run is used up there",
    "kit": "it is not set up",
    "failed": "something failed there",
    **{name: f"its limit {name} forbids it" for name in LIMITS},
}


class Refused(ValueError):
    """A message that is not what was agreed, or a request that a site does not allow; says why.

    The `code`, one of REASONS, is what leaves a site.
    """

    def __init__(self, sentence: str, code: str = "") -> None:
        super().__init__(sentence)
        self.code = code


@contextmanager
def refusing(code: str) -> Iterator[None]:
    """Give what is refused in this block a code, unless it has one."""
    try:
        yield
    except (Refused, InputError, SecureAggregationError) as error:
        raise Refused(str(error), getattr(error, "code", "") or code) from error


def refusal(about: Mapping[str, Any], mine: str) -> Refused:
    """Return what a site's refusal says, in words of this side; `mine` is this side's version."""
    code = str(about["refused"])
    if code == "version":
        same_major(mine, about.get("version"))
    why = REASONS.get(code, "it has a reason of its own")
    return Refused(f"the site refuses: {why}; its {REFUSALS} says more")


def to_wire(tree: PyTree, only: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Return the leaves of a pytree by name; `only` those named."""
    arrays = {
        name: np.array(leaf, order="C")
        for name, leaf in by_name(tree).items()
        if only is None or name in only
    }
    return arrays or empty()


def empty() -> dict[str, np.ndarray]:
    return {NOTHING: np.zeros(0, np.float32)}


def from_wire(
    params: object, template: PyTree, fill: Mapping[str, jax.Array] | None = None
) -> PyTree:
    """Return the pytree in `params`: exactly the names, shapes and types of `template`, all finite.

    Leaves that `fill` names need not be sent: they are taken from there.
    """
    expected, fill = by_name(template), fill or {}
    given = _arrays(params, {*expected, NOTHING})
    leaves: list[PyTree] = []
    for name, pattern in expected.items():
        if name not in given and name not in fill:
            raise Refused(f"the array {name!r} is missing")
        leaves.append(_checked(name, given[name], pattern) if name in given else fill[name])
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _arrays(params: object, names: Collection[str]) -> Mapping[str, Any]:
    """Check that nothing but arrays of these names was sent."""
    if not isinstance(params, Mapping):
        raise Refused(f"arrays by name were expected, not {type(params).__name__}")
    for name in params:
        if name not in names:
            raise Refused(f"an array {str(name)[:60]!r} was sent that nobody asked for")
    return params


def from_messages(messages: Mapping[str, bytes]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(data, np.uint8).copy() for name, data in messages.items()}


def to_message(params: object, name: str, most: int) -> bytes:
    """Return the bytes in `params`: a plain array of bytes of this name and no other, not too many."""
    value = _arrays(params, (name,)).get(name)
    if type(value) is not np.ndarray or value.dtype != np.uint8 or value.ndim != 1:
        raise Refused(f"{name!r} is no plain array of bytes")
    if value.size > most:
        raise Refused(f"{name!r} has {value.size} bytes, and at most {most} are expected")
    return value.tobytes()


def _checked(name: str, value: object, pattern: jax.Array | jax.ShapeDtypeStruct) -> np.ndarray:
    if type(value) is not np.ndarray:
        raise Refused(f"{name!r} is no plain array but {type(value).__name__}")
    shape, dtype = tuple(pattern.shape), np.dtype(pattern.dtype)
    if value.shape != shape:
        raise Refused(f"{name!r} has shape {_short(value.shape)} instead of {_short(shape)}")
    if value.dtype != dtype:
        raise Refused(f"{name!r} is of type {value.dtype} instead of {dtype}")
    if dtype.kind == "f" and not np.isfinite(value).all():
        raise Refused(f"{name!r} holds numbers that are not finite")
    return value


def by_name(tree: PyTree) -> dict[str, jax.Array]:
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {"value" + jax.tree_util.keystr(path): leaf for path, leaf in pairs}


def count(tree: PyTree) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def size(params: object) -> int:
    values = params.values() if isinstance(params, Mapping) else ()
    return sum(int(getattr(value, "nbytes", 0)) for value in values)


def to_text(about: Mapping[str, Any]) -> str:
    return json.dumps(about, separators=(",", ":"), allow_nan=False)


def fingerprint(about: Mapping[str, Any], params: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Return a digest of what a request says and brings, alike on both sides."""
    parts = [json.dumps(about, sort_keys=True, allow_nan=False).encode()]
    for name, array in sorted((params or {}).items()):
        parts += [name.encode(), f"{array.dtype.str} {array.shape}".encode(), array.tobytes()]
    return digest(*parts)


def from_text(text: object) -> Facts:
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise Refused("the message carries no text, or too much of it")
    about = None
    with suppress(ValueError, RecursionError):
        about = json.loads(text)
    if not isinstance(about, dict):
        raise Refused("the text of the message is no JSON object")
    return about


def to_form(value: Any) -> Form:
    """Return the form that the other side tells of; every field is checked."""
    try:
        told: list[Any] = [value[name] for name in Form._fields]
        form = Form._make(tuple(part) if isinstance(part, list) else part for part in told)
        shape, sizes = (() if part is None else part for part in (form.shape, form.sizes))
        whole = [form.clients, *shape, *sizes, *([] if form.classes is None else [form.classes])]
        sound = (
            all(isinstance(part, tuple) for part in (form.features, shape, sizes))
            and all(type(number) is int and 0 < number < 2**31 for number in whole)
            and type(form.later) is int
            and 0 <= form.later <= form.clients
            and all(isinstance(name, str) for name in (*form.features, form.target))
            and len(form.features) > 0
            and (form.sizes is None or len(form.sizes) == form.clients)
        )
    except (KeyError, TypeError) as error:
        raise Refused("the description of the data is incomplete") from error
    if not sound:
        raise Refused("the description of the data makes no sense")
    return form


def same_major(mine: str, theirs: object) -> None:
    if not isinstance(theirs, str) or theirs.split(".")[0] != mine.split(".")[0]:
        raise Refused(
            f"the other side runs pacpfl {str(theirs)[:20]}, this side {mine}; install the same major "
            "version on both"
        )


def needed(
    method: Method, state: PyTree, client_state: PyTree, data: Data, key: jax.Array
) -> frozenset[str]:
    """Name the leaves of the server's state that a client's update depends on.

    The server's optimiser, twice as large as what it optimises, is of no use to a client. What a
    compiled program does not read need not be sent.
    """
    closed = jax.make_jaxpr(method.client_update)(state, client_state, data, key)
    jaxpr = closed.jaxpr
    read = {id(v) for equation in jaxpr.eqns for v in equation.invars}
    read |= {id(v) for v in jaxpr.outvars}
    every = by_name(state)
    return frozenset(
        name for name, v in zip(every, jaxpr.invars[: len(every)], strict=True) if id(v) in read
    )


def _short(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"
