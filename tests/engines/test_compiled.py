"""Options of the compiler: only where they are known, and only where they help."""

from __future__ import annotations

import jax
import pytest
from toys import StatelessToy, make_store

from pacpfl.engines import compiled
from pacpfl.engines.simulate import train

options = compiled._for_kernel_matrices.__wrapped__


def test_a_processor_needs_none() -> None:
    assert jax.default_backend() == "cpu"
    assert options() is None


def test_a_gpu_gets_them_if_its_compiler_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of GPUs are known to the compiler for processors as well, and ignored."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = options()
    assert found == {"xla_gpu_enable_triton_gemm": False}
    real = jax.jit

    def older(function, compiler_options=None, **more):
        unknown = {"xla_that_nobody_knows": True} if compiler_options else None
        return real(function, compiler_options=unknown, **more)

    monkeypatch.setattr(jax, "jit", older)
    assert options() is None


def test_methods_without_kernel_matrices_are_compiled_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unasked() -> None:
        raise AssertionError("options are for Gaussian processes")

    monkeypatch.setattr(compiled, "_for_kernel_matrices", unasked)
    train(StatelessToy(), make_store((2, 3)), rounds=1, seed=5)
