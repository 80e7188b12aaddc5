"""The file that `pacpfl init` writes: what was guessed, and every key it set, with its help."""

from __future__ import annotations

from pacpfl.config import Config, dump
from pacpfl.studies.own_data import Guess


def commented(guess: Guess) -> str:
    """Return TOML with the reasons, all keys of [tables], and other keys that differ from the default."""
    lines = [
        "# What pacpfl init saw and guessed:",
        *(f"# - {_in_one_line(words)}" for words in guess.words),
        "#",
        "# Keys that are not here have their defaults; the run folder's config.toml has all.",
        "",
    ]
    return "\n".join(lines) + dump(guess.config, Config(), whole=("tables",))


def _in_one_line(words: str) -> str:
    """Names of columns and clients may hold line breaks, which would end the comment."""
    return "".join(letter if letter.isprintable() else " " for letter in words)
