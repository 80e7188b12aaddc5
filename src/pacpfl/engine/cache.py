"""Compiled functions that outlive the run they were made for.

A study runs the same method with many seeds. Programs on disk spare it the compiler, but not the
tracing and reading of them, which for small federations takes longer than the training itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PROGRAMS = 16  # of each kind; the one not used for longest goes first


def compiled_once(make: Callable[P, R]) -> Callable[P, R]:
    """Cache what `make` builds, compiled functions, by its arguments.

    Arguments must determine the result: methods are frozen, and hold what is not learned. With
    arguments that have no hash it is built each time.
    """
    remembered = lru_cache(PROGRAMS)(make)

    @wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            hash((*args, *kwargs.values()))
        except TypeError:
            return make(*args, **kwargs)
        return remembered(*args, **kwargs)  # type: ignore[arg-type]

    get.cache_clear = remembered.cache_clear  # type: ignore[attr-defined]
    return get
