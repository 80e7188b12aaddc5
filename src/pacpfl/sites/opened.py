"""A run as both sides see it: what a configuration says, and what a federation looks like."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pacpfl.engine.training import Secrecy
from pacpfl.methods.base import Method
from pacpfl.sites.wire import Refused
from pacpfl.types import Form


@dataclass(frozen=True)
class Opened:
    """What a configuration says, with the functions that make a method of it."""

    method: str
    seed: int
    dtype: type
    rounds: int
    clients_per_round: int | None
    privacy: str  # its mode
    clip: float | None  # norm to which updates are clipped; None: they are not
    identity: str
    build: Callable[[Form], Method]
    secrecy: Callable[[int, Path], AbstractContextManager[Secrecy | None]]
    adaptive: bool = False  # whether the clip moves from round to round


def from_json(value: Any) -> Form:
    """Return the form that the other side tells of; every field is checked."""
    try:
        features = tuple(value["features"])
        shape, sizes, classes = value["shape"], value["sizes"], value["classes"]
        found = Form(
            features,
            value["target"],
            classes,
            None if shape is None else tuple(shape),
            value["clients"],
            None if sizes is None else tuple(sizes),
            value["later"],
        )
        whole = [found.clients, *(found.shape or ()), *(found.sizes or ())]
        whole += [] if classes is None else [classes]
        sound = (
            type(found.later) is int
            and 0 <= found.later <= found.clients
            and all(type(number) is int and 0 < number < 2**31 for number in whole)
            and all(isinstance(name, str) for name in (*features, found.target))
            and len(features) > 0
            and (found.sizes is None or len(found.sizes) == found.clients)
        )
    except (KeyError, TypeError) as error:
        raise Refused("the description of the data is incomplete") from error
    if not sound:
        raise Refused("the description of the data makes no sense")
    return found
