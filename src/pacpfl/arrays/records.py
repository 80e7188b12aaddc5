"""Dataclasses of arrays that JAX's functions take and return, told to JAX when it is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)
WAITING: list[tuple[type, tuple[str, ...]]] = []


def record(*static: str) -> Callable[[Kind], Kind]:
    """Let JAX's functions take and return a dataclass of arrays; its `static` fields hold none."""

    def keep(kind: Kind) -> Kind:
        WAITING.append((kind, static))
        if "pacpfl.arrays.traced" in sys.modules:
            register()
        return kind

    return keep


def register() -> None:
    """Tell JAX of all that wait."""
    import jax

    while WAITING:
        kind, static = WAITING.pop()
        dynamic = [f.name for f in fields(kind) if f.name not in static]
        jax.tree_util.register_dataclass(kind, dynamic, list(static))
