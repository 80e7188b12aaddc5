"""The user's mistakes, in the way both worlds catch them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pacpfl.errors import InputError


class InvalidInput(InputError, ValueError):
    """An InputError that is a ValueError, too: what scikit-learn's tools expect."""


@contextmanager
def as_invalid_input() -> Iterator[None]:
    """Inside, InputErrors of the layers below leave as InvalidInput."""
    try:
        yield
    except InvalidInput:
        raise
    except InputError as error:
        raise InvalidInput(str(error)) from error
