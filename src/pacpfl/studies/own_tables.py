"""The tables of a configuration, read once as long as the files do not change."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pacpfl.data.tables.files import opening
from pacpfl.data.tables.read import Tables, load_tables
from pacpfl.data.tables.settings import TableSettings
from pacpfl.errors import InputError


def load_own(tables: TableSettings, seed: int) -> Tables:
    before = stamp(tables)
    found = _load(tables, seed, before)
    if stamp(tables) != before:  # the passes over the files may have seen different rows
        raise InputError(
            f"{tables.source} changed while it was read; start again when nobody writes there."
        )
    return found


@lru_cache(maxsize=1)
def _load(tables: TableSettings, seed: int, files: tuple[tuple[str, int, int], ...]) -> Tables:
    return load_tables(tables.source, tables, seed)


def stamp(tables: TableSettings) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of every file: when one changes, all are read again."""
    source = Path(tables.source)
    with opening(source):
        files = sorted(source.iterdir()) if source.is_dir() else [source]
        return tuple(
            (path.name, path.stat().st_size, path.stat().st_mtime_ns)
            for path in files
            if path.is_file()
        )
