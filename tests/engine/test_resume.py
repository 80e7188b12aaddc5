"""Runs that are killed or stopped, with real processes and real signals, end with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from patience import patience
from safetensors import safe_open

ROUNDS = 200
SETTINGS = (
    "clients=16", "new_clients=0", "samples=40", "test_samples=4", f"rounds={ROUNDS}",
    "particles=3", "mean_widths=[8]", "kernel_widths=[8]", "clients_per_round=8",
    "checkpoint_rounds=10", 'methods=["pacpfl"]',
)  # fmt: skip
# On all cores, each a device, as users have it, whatever was left to the process of the tests.
COMMAND = """
import os, runpy, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, range(os.cpu_count()))
sys.argv[0] = "pacpfl"
runpy.run_module("pacpfl", run_name="__main__")
"""
LIMIT = patience(240)  # seconds after which a process that does not go on counts as hanging


def start(out: Path, programs: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMAND, "run", "polynomial", "--out", str(out)]
    for setting in SETTINGS:
        command += ["--set", setting]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(programs)},
    )  # fmt: skip


def saved_round(out: Path) -> int:
    """The round of the checkpoint, 0 where there is none yet; a half-written file raises an error."""
    try:
        with safe_open(out / "checkpoint.safetensors", framework="numpy") as file:
            return int(file.metadata()["round"])
    except FileNotFoundError:
        return 0


def wait_for_round(process: subprocess.Popen[str], out: Path, number: int) -> None:
    until = time.monotonic() + LIMIT
    while saved_round(out) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "no checkpoint appears"
        time.sleep(0.001)


def arrays(out: Path) -> dict[str, np.ndarray]:
    with safe_open(out / "checkpoint.safetensors", framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its code, output and errors."""
    output, errors = process.communicate(timeout=LIMIT)
    return process.returncode, output, errors


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a run left alone, and of one killed and stopped by Ctrl-C, at seeded rounds."""
    folder = tmp_path_factory.mktemp("resume")
    whole, out, programs = folder / "undisturbed", folder / "disturbed", folder / "programs"
    assert finish(start(whole, programs))[0] == 0
    random = np.random.default_rng(4)
    moments = np.sort(random.integers(1, 18, 2)) * 10
    saved = [0]
    for moment, sent in zip(moments, [signal.SIGKILL, signal.SIGINT], strict=True):
        process = start(out, programs)
        wait_for_round(process, out, int(moment))
        process.send_signal(sent)
        code, output, errors = finish(process)
        saved.append(saved_round(out))
        if sent == signal.SIGKILL:
            assert code == -signal.SIGKILL
    assert 0 < saved[1] <= saved[2] < ROUNDS, "it struck in the middle"
    assert code == 130 and output == ""
    assert "same command goes on" in errors and "Traceback" not in errors
    assert f"round {saved[2]} of {ROUNDS}" in errors
    left = {path.name for path in out.iterdir()}
    kept = {"config.toml", "checkpoint.safetensors", "checkpoint.before.safetensors", ".lock"}
    assert left == kept, "no results before the end"
    code, _, errors = finish(start(out, programs))
    assert code == 0 and all(": training: " in line for line in errors.splitlines()), errors
    return whole, out


def test_the_same_command_completes_the_run(runs: tuple[Path, Path]) -> None:
    for out in runs:
        assert saved_round(out) == ROUNDS
        assert not [path for path in out.rglob("*") if "partial" in path.name]
        assert (out / "report.html").is_file()


def test_particles_and_results_are_the_same_to_the_bit(runs: tuple[Path, Path]) -> None:
    one, two = map(arrays, runs)
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.tobytes() == two[name].tobytes(), name
        if name.startswith("history/"):
            assert values.shape == (ROUNDS,)
    assert any(values.ndim == 2 and len(values) == 3 for values in one.values())
    for name in ("metrics.json", "clients.csv", "arrays.safetensors", "config.toml"):
        first, second = ((out / name).read_bytes() for out in runs)
        assert first == second, name
