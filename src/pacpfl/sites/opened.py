"""A run as both sides see it, and a federation whose samples are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacpfl.engine.simulate import Secrecy
from pacpfl.methods.base import Method
from pacpfl.sites.wire import Refused
from pacpfl.types import Client, Federation, Samples


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
    build: Callable[[Federation], Method]
    secrecy: Callable[[int, Path], AbstractContextManager[Secrecy | None]]
    adaptive: bool = False  # whether the clip moves from round to round


class Description(NamedTuple):
    """What a site tells of its data, and the server of everybody's."""

    clients: int
    features: tuple[str, ...]
    target: str
    classes: int | None = None
    shape: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None  # only where the sites allow it

    def agrees(self, other: Description) -> None:
        """Everything but the number of clients must be the same everywhere."""
        for what in ("features", "target", "classes", "shape"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                raise Refused(
                    f"its {what} are {_some(theirs)}, and those of the others {_some(mine)}"
                )


def describe(federation: Federation, sizes: bool) -> Description:
    clients = federation.existing
    return Description(
        len(clients),
        federation.features,
        federation.target,
        federation.classes,
        federation.shape,
        tuple(len(client.train) for client in clients) if sizes else None,
    )


def shadow(description: Description) -> Federation:
    """A federation of the same form without any sample: enough to build a method.

    Where sizes are told, clients have as many rows, which take no memory.
    """
    width = len(description.features)
    sizes = description.sizes or (0,) * description.clients
    rows = [Samples(np.broadcast_to(0.0, (m, width)), np.broadcast_to(0.0, (m,))) for m in sizes]
    return Federation(
        "sites",
        tuple(Client(str(number), part) for number, part in enumerate(rows)),
        features=description.features,
        target=description.target,
        classes=description.classes,
        shape=description.shape,
    )


def to_json(description: Description) -> dict[str, Any]:
    return description._asdict()


def from_json(value: Any) -> Description:
    """From the other side: every field is checked."""
    try:
        features = tuple(value["features"])
        shape, sizes, classes = value["shape"], value["sizes"], value["classes"]
        found = Description(
            value["clients"],
            features,
            value["target"],
            classes,
            None if shape is None else tuple(shape),
            None if sizes is None else tuple(sizes),
        )
        whole = [found.clients, *(found.shape or ()), *(found.sizes or ())]
        whole += [] if classes is None else [classes]
        sound = (
            all(type(number) is int and 0 < number < 2**31 for number in whole)
            and all(isinstance(name, str) for name in (*features, found.target))
            and len(features) > 0
            and (found.sizes is None or len(found.sizes) == found.clients)
        )
    except (KeyError, TypeError) as error:
        raise Refused("the description of the data is incomplete") from error
    if not sound:
        raise Refused("the description of the data makes no sense")
    return found


def _some(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else f"{text[:77]}..."
