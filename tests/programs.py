"""Compiled programs stay in the clone: the other worker, processes that tests start and the next run of
the suite read what was compiled once. Warm, the suite takes half of the processor time."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import zlib
from contextlib import suppress
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "programs"
MOST = 2**31  # bytes; beyond it the store begins anew


def store() -> Path:
    """Return the folder of programs for processors such as this one, which there is then."""
    features = ""
    with suppress(OSError):
        features = str(re.findall(r"(?m)^(?:flags|Features)\s*:.*$", _read("/proc/cpuinfo"))[:1])
    name = hashlib.sha256((platform.machine() + features).encode()).hexdigest()[:16]
    (CACHE / name).mkdir(parents=True, exist_ok=True)
    return CACHE / name


def prune(kept: Path) -> None:
    """Forget everything where programs of many versions have come together."""
    with suppress(FileNotFoundError):  # the other worker does it, too
        if sum(entry.stat().st_size for entry in os.scandir(kept)) > MOST:
            for entry in os.scandir(kept):
                os.unlink(entry)


def exchange(own: Path, kept: Path) -> None:
    """Link what the store has into this process's own folder, and the other way round what is whole.

    JAX writes into the own folder alone, so that a half-written program is never met.
    """
    here, there = set(os.listdir(own)), set(os.listdir(kept))
    ours = {name for name in here - there if _whole(own / name)}
    for names, source, target in ((there - here, kept, own), (ours, own, kept)):
        for name in names:
            with suppress(FileExistsError, FileNotFoundError):
                os.link(source / name, target / name)


def settings(own: Path) -> dict[str, str | float]:
    """Return JAX's settings for programs in a folder, small and quickly compiled ones as well."""
    return {
        "jax_compilation_cache_dir": str(own),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }


def _read(path: str) -> str:
    return Path(path).read_text(errors="replace")


def _whole(program: Path) -> bool:
    """Whether JAX, which compresses programs, could read it."""
    with suppress(zlib.error):
        return bool(zlib.decompress(program.read_bytes()))
    return False
