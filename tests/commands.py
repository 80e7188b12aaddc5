"""The command line within a test's process, and what a fault must look like."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import jax
import pytest

from pacpfl import cli

QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # programs that run for seconds


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    output: str
    errors: str


def called(*arguments: str) -> Ended:
    """Call `pacpfl ...` in this process."""
    jax.devices()  # once JAX has started, the command cannot change its devices under other tests
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pacpfl", *arguments])
        patch.setenv("PACPFL_CACHE_DIR", "/dev/null/none")
        patch.setenv("COLUMNS", "160")
        with redirect_stdout(output), redirect_stderr(errors):
            try:
                cli.main()
            except SystemExit as end:
                assert isinstance(end.code, int | None)
                code = end.code or 0
    return Ended(code, output.getvalue(), errors.getvalue())


def environment(programs: str, columns: int = 200) -> dict[str, str]:
    """Return what a process of its own needs: a cache of programs in a folder, and a wide terminal."""
    return os.environ | {"PACPFL_CACHE_DIR": programs, "COLUMNS": str(columns)} | QUICK


def assert_one_sentence(ended: Ended, *words: str) -> None:
    """Check that a command ended with one sentence that holds these words, and nothing else."""
    assert ended.code == 2, ended
    assert ended.output == ""
    assert ended.errors.startswith("pacpfl: "), ended.errors
    assert ended.errors.count("\n") == 1, ended.errors
    assert ended.errors.endswith((".\n", "?\n"))
    assert "Traceback" not in ended.errors
    for word in words:
        assert word in ended.errors
