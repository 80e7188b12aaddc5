"""The command line within a test's process, and what a fault must look like."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
from patience import patience

from pacpfl import cli

QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # programs that run for seconds


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    output: str
    errors: str


def called(*arguments: str, columns: int = 160) -> Ended:
    """Call `pacpfl ...` in this process, for a terminal that wide."""
    jax.devices()  # once JAX has started, the command cannot change its devices under other tests
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pacpfl", *arguments])
        patch.setenv("COLUMNS", str(columns))
        with redirect_stdout(output), redirect_stderr(errors):
            try:
                cli.main()
            except SystemExit as end:
                assert isinstance(end.code, int | None)
                code = end.code or 0
    return Ended(code, output.getvalue(), errors.getvalue())


def with_settings(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


# Several commands in one process: starting JAX for each would take most of the time.
SEVERAL = """
import json, os, sys
from pacpfl import cli
from pacpfl.report import page as pages
draw = pages.write_report
for folder, drawn, words in json.loads(sys.argv[1]):
    pages.write_report = draw if drawn else lambda folder: folder / "report.html"
    os.chdir(folder)
    sys.argv = ["pacpfl", *words]
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{folder}: {' '.join(words)} ended with {end.code}")
"""


def several(commands: Iterable[tuple[Path, bool, list[str]]], before: str = "") -> Ended:
    """Call commands one after the other in a process of their own, after the code `before`.

    Each has its folder, and says whether the page on a run is drawn: a run ends in what `pacpfl report`
    does, which need not happen each time.
    """
    told = [(str(folder), drawn, words) for folder, drawn, words in commands]
    done = subprocess.run(
        [sys.executable, "-c", before + SEVERAL, json.dumps(told)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=patience(300),
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def environment(columns: int = 200) -> dict[str, str]:
    """Return what a process of its own needs: programs compiled quickly, and a wide terminal."""
    return os.environ | {"COLUMNS": str(columns)} | QUICK


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
