"""JAX in this process: settings from before it starts, compiled programs, facts about the machine."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from importlib import metadata
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MOST_DEVICES = 8
# Options of XLA with which programs that run briefly are compiled in half the time, and run as fast (a
# race's: 3.1 s of processor time for 5.5 s). Another JAX may not know them, and would stop at once.
BRIEF = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
PROGRAMS = 16  # of each kind; the one not used for longest goes first


def configure(precision: str = "float32") -> None:
    """Set precision, devices and cache of a process that is pacpfl's own: the command line."""
    import jax

    jax.config.update("jax_enable_x64", precision == "float64")
    prepare()


def prepare() -> None:
    """Use every core, and keep compiled programs on disk so that the second run starts at once.

    For processes of other people, too: where JAX has started its devices stay as they are, and a cache
    or a number of devices that somebody has chosen is left alone. The cache lies in PACPFL_CACHE_DIR,
    else in the user's cache folder; a folder that cannot be written is no reason to stop.
    """
    import jax

    # XLA runs most of a round on one thread per device, so every core becomes a device.
    chosen = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not chosen and jax.config.values["jax_num_cpu_devices"] in (-1, None):
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", min(usable_cores(), MOST_DEVICES))
    if jax.config.values["jax_compilation_cache_dir"]:
        return
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("PACPFL_CACHE_DIR") or Path(home) / "pacpfl" / "jax")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def brief_options() -> dict[str, bool | int] | None:
    """Return options for `jax.jit` of programs whose compilation takes longer than they run."""
    import jax

    known = jax.default_backend() == "cpu" and jax.__version_info__[:2] == (0, 10)
    return dict(BRIEF) if known else None


def compiled_once(make: Callable[P, R]) -> Callable[P, R]:
    """Cache what `make` builds, compiled functions, by its arguments.

    Programs on disk spare a study with many seeds the compiler, but not the tracing and reading of
    them, which for small federations takes longer than the training itself. Arguments must
    determine the result; with arguments that have no hash it is built each time.
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


def usable_cores() -> int:
    """Count the cores this process may run on: fewer than the machine has where it got a share."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    names = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "safetensors")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def devices() -> int:
    import jax

    return jax.device_count()


def machine() -> str:
    """Name the processor, the number of cores and the accelerator."""
    import jax

    processor = platform.processor() or platform.machine()
    if sys.platform == "linux":
        cores = Path("/proc/cpuinfo").read_text(errors="replace")
        processor = next(iter(re.findall(r"(?m)^model name\s*: *(.*)$", cores)), processor).strip()
    device = jax.devices()[0]
    accelerator = "" if device.platform == "cpu" else f", {device.device_kind}"
    return f"{processor}, {os.cpu_count()} cores{accelerator}"
