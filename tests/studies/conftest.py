"""Shared by the tests of the studies: compiled programs that are kept from one run to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_disable_most_optimizations",  # programs run once or twice on a few numbers
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counter[str]]:
    """As `runtime.configure` has it, for all programs; counts those found (hits) and not (misses)."""
    counts: Counter[str] = Counter()

    def listen(event: str, **more: Any) -> None:
        if event.startswith("/jax/compilation_cache/cache_"):
            counts[event.rpartition("cache_")[2]] += 1

    before = [jax.config.values[name] for name in SETTINGS]
    folder = str(tmp_path_factory.mktemp("programs"))
    jax.monitoring.register_event_listener(listen)
    for name, value in zip(SETTINGS, (folder, 0.0, True), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield counts
    for name, value in zip(SETTINGS, before, strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    jax.monitoring.unregister_event_listener(listen)
