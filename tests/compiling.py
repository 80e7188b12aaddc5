"""`compiled` instead of jax.jit in tests: functions that are called a few times on a few numbers, where
compiling is what takes time."""

from __future__ import annotations

from functools import partial

import jax

OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
compiled = partial(jax.jit, compiler_options=OPTIONS)
