"""Everything that a user can mend is told in one sentence: what, where, and the way out."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pacpfl.errors import InputError


def refused(call: Callable[[], object], *words: str) -> str:
    """Check that a call ends in one sentence with all of these words (regular expressions); return it."""
    with pytest.raises(InputError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith((".", "?")), sentence
    for word in words:
        assert re.search(word, sentence), sentence
    return sentence
