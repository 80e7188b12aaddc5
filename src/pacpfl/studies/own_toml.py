"""The file that `pacpfl init` writes: what was guessed, and every key it set, with its help."""

from __future__ import annotations

from dataclasses import fields

from pacpfl.config import SECTIONS, Config, dump
from pacpfl.studies.own_data import Guess


def commented(guess: Guess) -> str:
    """All keys of [tables], and of the other sections those that differ from the default."""
    lines = [
        "# What pacpfl init saw and guessed:",
        *(f"# - {_in_one_line(words)}" for words in guess.words),
        "#",
        "# Keys that are not here have their defaults; the run folder's config.toml has all.",
    ]
    section, kept = "", [""]
    for line in dump(guess.config).splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            kept = ["", line]
        elif not section:
            lines += ["", line] if line else []
        elif line and (section == "tables" or _differs(guess.config, section, line)):
            lines += [*kept, line]
            kept = []
    return "\n".join(lines) + "\n"


def _in_one_line(words: str) -> str:
    """Names of columns and clients may hold line breaks, which would end the comment."""
    return "".join(letter if letter.isprintable() else " " for letter in words)


def _differs(config: Config, section: str, line: str) -> bool:
    name = line.partition("=")[0].strip()
    here, default = getattr(config, section), SECTIONS[section]
    for f in fields(default):
        if f.name.rstrip("_") == name:
            return bool(getattr(here, f.name) != getattr(default, f.name))
    return False
