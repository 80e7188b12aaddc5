"""Errors that are the user's to mend: one sentence that says what, where and the way out."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


class InputError(ValueError):
    """Something given to pacpfl cannot be used. The command line prints it and exits with 2.

    It is a ValueError because that is what scikit-learn's tools expect of a value they cannot use.
    """


class Interrupted(Exception):
    """The run was asked to stop; what it had reached is saved."""


class SecureAggregationError(Exception):
    """A message of secure aggregation is refused or its round abandoned: one sentence, which names whom."""


@contextmanager
def explained(what: str, remedy: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn an exception of one of these kinds into the sentence "what (reason); remedy.".

    An InputError, which is a ValueError, is a sentence already: it passes unless it is named.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, InputError) and InputError not in kinds:
            raise
        raise InputError(f"{what} ({reason(error)}); {remedy}.") from error


def reason(error: Exception) -> str:
    """Return what an exception says, in one line without a full stop."""
    said = str(getattr(error, "strerror", None) or error)
    return " ".join(said.split()).rstrip(".") or type(error).__name__


def imported(name: str, user: str, install: str) -> ModuleType:
    """Import a module of a package that is not always installed, or say who needs it and how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(
            f"{user} needs {package}, which is not installed; run `pip install {install}`."
        ) from error
