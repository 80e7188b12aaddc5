"""`pacpfl tune` as people meet it: real processes, and faults in one sentence."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Ended, assert_one_sentence, called, environment
from patience import patience

from pacpfl import config as configuration

LIMIT = patience(240)  # seconds after which a process counts as hanging
CONFIG = """
seed = 5
[data]
clients = 3
new_clients = 0
samples = 6
test_samples = 4
[train]
rounds = 2
"""
COMMAND = shlex.split(
    "tune small.toml --method fedavg --out out/best.toml --space space.toml --folds 3 --use-folds 1 "
    "--set local.steps=1"
)
SPACE = """
[fedavg]
"network.widths" = { neurons = [2, 4], layers = [2] }
"local.learning_rate" = { low = 0.01, high = 0.1 }
"""


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pacpfl", *arguments],
        cwd=folder,
        env=environment() | {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> Ended:
    output, errors = process.communicate(timeout=LIMIT)
    return Ended(process.returncode, output, errors)


def completed(journal: Path) -> int:
    """Trials that have a value, from the journal itself."""
    text = journal.read_text() if journal.exists() else ""
    return len(re.findall(r'"values": ?\[', text))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A search in two processes that is interrupted as soon as a trial has ended."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "small.toml").write_text(CONFIG)
    (folder / "space.toml").write_text(SPACE)
    process = begin(folder, *COMMAND, "--trials", "500", "--jobs", "2")
    until = time.monotonic() + LIMIT
    while not completed(folder / "out" / "best.journal") and time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    return folder, finish(process)


def test_a_search_that_is_interrupted_keeps_what_it_has_and_says_how_to_go_on(stopped):
    folder, ended = stopped
    assert ended.code == 130, ended
    assert "of 500 trials are done; the same command goes on." in ended.errors
    assert "Traceback" not in ended.errors
    found = re.search(r"RSMSE (\d+\.\d{4}) after (\d+) trials \((\d+) failed\)", ended.output)
    assert found and int(found[2]) == completed(folder / "out" / "best.journal") >= 1
    text = (folder / "out" / "best.toml").read_text()
    assert f"pacpfl {' '.join(COMMAND)} --trials 500 --jobs 2" in text
    assert f"RSMSE {found[1]}" in text and "1 of 3 folds" in text
    config = configuration.load(text, "best.toml")
    assert config.network.widths in ((2, 2), (4, 4)) and config.local.steps == 1
    assert (config.seed, config.data.clients, config.train.rounds) == (5, 3, 2)


PV = ("--set", "data.name=pv")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.toml", "--method", "mtl"], ["nothing.toml"]),
        (["nothing", "--method", "mtl"], ["'nothing'", "polynomial"]),
        (["polynomial", "--method", "mlt"], ["'mlt'", "mtl"]),
        (["polynomial", "--method", "ridge"], ["nothing to tune"]),
        (["polynomial", "--method", "mtl", "--set", "roundz=3"], ["roundz"]),
        (["polynomial", "--method", "mtl", "--folds", "6"], ["6 folds"]),
        (["polynomial", "--method", "mtl", "--space", "none.toml"], ["none.toml"]),
        (["polynomial", "--method", "mtl", *PV, "--weather", "none.csv"], ["none.csv"]),
    ],
)
def test_a_search_that_cannot_be_made_ends_in_one_sentence(arguments, words, tmp_path):
    out = tmp_path / "out" / "x.toml"
    assert_one_sentence(called("tune", *arguments, "--out", str(out)), *words)
    assert not out.parent.exists()
