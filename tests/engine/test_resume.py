"""Runs that are killed or stopped, with real processes and real signals, end with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from patience import patience
from safetensors import SafetensorError, safe_open

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
        env=os.environ | {"PACPFL_CACHE_DIR": str(programs)},
    )  # fmt: skip


def saved_round(out: Path) -> int:
    """The round of the checkpoint; 0 where there is none yet."""
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


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    errors: str


def finish(process: subprocess.Popen[str]) -> Ended:
    output, errors = process.communicate(timeout=LIMIT)
    return Ended(process.returncode, output, errors)


@dataclass(frozen=True)
class Story:
    """What happened to the disturbed run, and where both runs left their folders."""

    undisturbed: Path
    disturbed: Path
    killed_at: list[int]
    stopped: Ended
    stopped_at: int
    left: set[str]
    completed: Ended


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Killed twice and stopped by Ctrl-C once, at seeded rounds; then left alone."""
    folder = tmp_path_factory.mktemp("resume")
    programs = folder / "programs"
    whole, out = folder / "undisturbed", folder / "disturbed"
    ended = finish(start(whole, programs))
    assert ended.code == 0, ended
    random = np.random.default_rng(4)
    moments = np.sort(random.integers(1, 18, 3)) * 10
    killed_at = []
    for moment in moments[:2]:
        process = start(out, programs)
        wait_for_round(process, out, int(moment))
        process.send_signal(signal.SIGKILL)
        assert finish(process).code == -signal.SIGKILL
        killed_at.append(saved_round(out))
    process = start(out, programs)
    wait_for_round(process, out, int(moments[2]))
    process.send_signal(signal.SIGINT)
    stopped, stopped_at = finish(process), saved_round(out)
    left = {path.name for path in out.iterdir()}
    completed = finish(start(out, programs))
    return Story(whole, out, killed_at, stopped, stopped_at, left, completed)


def test_kills_struck_in_the_middle(story: Story) -> None:
    first, second = story.killed_at
    assert 0 < first <= second < ROUNDS
    assert second <= story.stopped_at < ROUNDS


def test_ctrl_c_saves_and_says_how_to_go_on(story: Story) -> None:
    assert story.stopped.code == 130
    assert story.stopped.output == ""
    assert "same command goes on" in story.stopped.errors
    assert f"round {story.stopped_at} of {ROUNDS}" in story.stopped.errors
    assert "Traceback" not in story.stopped.errors
    assert story.left == {"config.toml", "checkpoint.safetensors"}, "no results before the end"


def test_the_same_command_completes_the_run(story: Story) -> None:
    assert story.completed.code == 0
    assert story.completed.errors == ""
    for out in (story.undisturbed, story.disturbed):
        assert saved_round(out) == ROUNDS
        assert not [path for path in out.rglob("*") if "partial" in path.name]
        assert (out / "report.html").is_file()


def test_the_particles_are_the_same_to_the_bit(story: Story) -> None:
    one, two = arrays(story.undisturbed), arrays(story.disturbed)
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.tobytes() == two[name].tobytes(), name
        if name.startswith("history/"):
            assert values.shape == (ROUNDS,)
    assert any(values.ndim == 2 and len(values) == 3 for values in one.values())


def test_so_are_all_results(story: Story) -> None:
    for name in ("metrics.json", "clients.csv", "arrays.safetensors", "config.toml"):
        one, two = ((out / name).read_bytes() for out in (story.undisturbed, story.disturbed))
        assert one == two, name


def test_a_checkpoint_is_readable_at_every_moment(story: Story) -> None:
    """`saved_round` above met no half-written file; a torn one would have raised this."""
    torn = story.disturbed.parent / "torn"
    torn.mkdir()
    whole = (story.disturbed / "checkpoint.safetensors").read_bytes()
    (torn / "checkpoint.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SafetensorError):
        saved_round(torn)
