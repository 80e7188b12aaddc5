"""Programs of these tests run once or twice: the compiler need not make them fast, only once each."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

SETTINGS = (
    "jax_disable_most_optimizations",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture(scope="module", autouse=True)
def quick_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = {name: jax.config.values[name] for name in SETTINGS}
    folder = tmp_path_factory.mktemp("programs")
    compilation_cache.reset_cache()
    for name, value in zip(SETTINGS, (True, str(folder), 0.0, -1), strict=True):
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
