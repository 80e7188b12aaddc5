"""The command line as people meet it: real processes, real terminals, real faults."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import Ended, assert_one_sentence, called, environment, with_settings
from patience import patience
from safetensors import safe_open
from safetensors.numpy import load_file

from pacpfl import __version__
from pacpfl.cli.app import app
from pacpfl.cli.common import shipped
from pacpfl.engine import runtime

ROUNDS = 600
SETTINGS = (
    "clients=3", "new_clients=2", "samples=5", "test_samples=6", f"rounds={ROUNDS}", "particles=2",
    "mean_widths=[48]", "kernel_widths=[48]", "checkpoint_rounds=5", 'methods=["pacpfl", "ridge"]',
)  # fmt: skip
LIMIT = patience(240)  # seconds after which a process counts as hanging


# The limit is set by the process itself: code between fork and exec is not safe beside threads.
LIMITED = """
import resource, runpy, sys
largest = int(sys.argv.pop(1))
if largest:
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
sys.argv[0] = "pacpfl"
runpy.run_module("pacpfl", run_name="__main__")
"""


def pacpfl(*arguments: str, folder: Path, largest_file: int = 0) -> Ended:
    """`pacpfl ...` as its own process in `folder`; the system may refuse to let files grow."""
    # A cache of compiled programs needs files of its own; where space is short there is none.
    cache = "/dev/null/none" if largest_file else str(folder / "programs")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(largest_file), *arguments],
        cwd=folder,
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class Finished(NamedTuple):
    folder: Path
    out: Path
    ended: Ended


AGAIN = ("run", "polynomial", "--seed", "3", *with_settings(*SETTINGS))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("command")
    ended = pacpfl(*AGAIN, folder=folder)
    return Finished(folder, folder / "runs" / "polynomial-seed3", ended)


def test_a_run_ends_well_and_quietly(finished: Finished) -> None:
    """Without a terminal: no bar, no colour, no cursor, one table and where the report is."""
    assert finished.ended.code == 0, finished.ended
    assert finished.ended.errors == ""
    output = finished.ended.output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", output)
    for word in ("PAC-PFL", "Ridge per client", "existing", "new", "RSMSE", "CE"):
        assert word in output
    assert output.rstrip().endswith(f"Report: {Path('runs') / 'polynomial-seed3' / 'report.html'}")


def test_the_run_folder_has_its_page_and_every_figure_as_png_and_svg(finished: Finished) -> None:
    """What else is in it `test_run` tells."""
    out = finished.out
    assert json.loads((out / "run.json").read_text())["status"] == "complete"
    with safe_open(out / "checkpoint.safetensors", framework="numpy") as file:
        assert file.metadata()["round"] == str(ROUNDS)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "PAC-PFL" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page), "opens without a network"
    figures = list((finished.out / "figures").iterdir())
    names = {path.stem for path in figures}
    assert len(names) >= 4
    kinds = {"png": b"\x89PNG", "svg": b"<svg"}
    assert {p.name for p in figures} == {f"{name}.{kind}" for name in names for kind in kinds}
    for path in figures:
        assert kinds[path.suffix[1:]] in path.read_bytes()[:300]


def test_report_draws_the_page_again_or_names_what_is_missing(finished, tmp_path):
    copy = tmp_path / finished.out.name
    shutil.copytree(finished.out, copy)
    (copy / "report.html").unlink()
    shutil.rmtree(copy / "figures")
    ended = called("report", str(copy))
    assert ended == Ended(0, f"{copy / 'report.html'}\n", "")
    assert (copy / "report.html").read_bytes() == (finished.out / "report.html").read_bytes()
    drawn = [{path.name for path in (out / "figures").iterdir()} for out in (copy, finished.out)]
    assert drawn[0] == drawn[1]
    (copy / "report.html").unlink()
    (copy / "metrics.json").unlink()
    assert_one_sentence(called("report", str(copy)), "metrics.json")
    assert not (copy / "report.html").exists()
    assert_one_sentence(called("report", str(tmp_path / "nowhere")), "nowhere")


def in_terminal(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run in a pseudo terminal 160 columns wide; everything that appears on it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    wide = environment(str(folder / "programs"), 160) | {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pacpfl", *arguments],
        cwd=folder, env=wide, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(timeout=LIMIT), shown.decode()


@pytest.fixture(scope="module")
def terminal(finished: Finished) -> tuple[int, str]:
    """The finished run's own config.toml, fresh, in a folder that held something else."""
    out = finished.folder / "again"
    out.mkdir()
    (out / "config.toml").write_text("seed = 99\n")
    (out / "checkpoint.safetensors").write_bytes(b"of another run")
    config = str(finished.out / "config.toml")
    return in_terminal(finished.folder, "run", "--config", config, "--out", "again", "--fresh")


def test_a_terminal_shows_rounds_speed_and_evidence(terminal: tuple[int, str]) -> None:
    code, shown = terminal
    assert code == 0, shown[-3000:]
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]", shown)]
    training = [line for line in lines if "PAC-PFL: training" in line]
    rounds = [int(found[1]) for line in training if (found := re.search(rf"(\d+)/{ROUNDS}", line))]
    assert rounds == sorted(rounds) and max(rounds) > 5
    left = r"\d:\d\d:\d\d"
    for words in (r"[1-9]\d* rounds/s", r"ln Z -?\d+\.\d{3} per sample", left):
        assert any(re.search(words, line) for line in training), words
    after = [line for line in lines if "measuring" in line or "drawing" in line]
    assert after and not [line for line in after if f"/{ROUNDS}" in line], "only while training"


def test_config_toml_repeats_the_run_to_the_bit(finished, terminal):
    assert terminal[0] == 0
    again = finished.folder / "again"
    for name in ("metrics.json", "clients.csv", "config.toml", "arrays.safetensors"):
        assert (again / name).read_bytes() == (finished.out / name).read_bytes(), name
    one, two = (load_file(out / "checkpoint.safetensors") for out in (finished.out, again))
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.tobytes() == two[name].tobytes(), name


WITHOUT_JAX = """
import sys
import pacpfl
for words in (["--help"], ["-h"], ["run", "--help"], ["report", "--help"], ["version"]):
    sys.argv = ["pacpfl", *words]
    from pacpfl.cli import main
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
    heavy = {"jax", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "equinox"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""


def test_help_is_quick_because_nothing_heavy_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(__version__)


def test_help_teaches_every_command() -> None:
    ended = called("--help")
    assert ended.code == 0
    commands = [c.callback.__name__ for c in app.registered_commands if not c.hidden]
    assert {"run", "report", "version"} <= set(commands)
    for command in commands:
        assert re.search(rf"^\W*{command}\b", ended.output, re.MULTILINE)
        assert re.search(rf"Usage: .*\b{command}\b", help_of(command))
    for word in ("pacpfl run polynomial", "particles=8", "config.toml", "Ctrl-C"):
        assert word in ended.output


def help_of(command: str) -> str:
    ended = called(command, "--help")
    assert ended.code == 0
    return " ".join(ended.output.replace("│", " ").split())


def test_every_configuration_that_help_names_is_shipped() -> None:
    text = help_of("run")
    names = re.search(r"shipped configuration: ([\w, -]+?)\.", text)[1].split(", ")
    assert "polynomial" in names
    for name in names:
        shipped(name)
    assert "(default: guessed)" in help_of("fit"), (
        "rich takes [words] for a style, and shows nothing"
    )


# What is refused, and in which words, `test_config` tells; this is how it reaches people.
BAD_ARGUMENTS = {
    "unknown-key": (with_settings("particels=8"), ["particels", "'particles'"]),
    "negative-seed": (["--seed=-1"], ["seed"]),
    "markup": (with_settings("[bold]=1"), ["[bold]"]),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_bad_settings_end_in_one_sentence(arguments, words, tmp_path):
    out = tmp_path / "out"
    assert_one_sentence(called("run", "polynomial", "--out", str(out), *arguments), *words)
    assert not out.exists()


def test_bad_configurations_are_named(tmp_path: Path) -> None:
    out, bad = tmp_path / "out", tmp_path / "bad.toml"
    bad.write_text("[train]\nparticels = 8")
    for arguments, words in (
        (["--config", str(bad)], ["bad.toml", "'train.particles'"]),
        (["--config", str(tmp_path / "none.toml")], ["none.toml"]),
        (["polynomal"], ["polynomial"]),
        ([], ["--config"]),
        (["polynomial", "--config", str(bad)], ["--config"]),
        (["polynomial", "--engine", "flair"], ["flair", "simulate and flare"]),
        (["polynomial", "--engine", "flare"], ["--kit"]),
    ):
        assert_one_sentence(called("run", *arguments, "--out", str(out)), *words)
    assert not out.exists()


def test_unknown_commands_and_options_exit_with_2() -> None:
    for arguments in (["rum"], ["run", "polynomial", "--sett", "particles=8"]):
        ended = called(*arguments)
        assert ended.code == 2 and "Traceback" not in ended.errors


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # the generator's own
def test_targets_that_are_no_numbers_name_client_and_column(tmp_path: Path) -> None:
    """Noise so large that targets overflow: the only way to such data from the command line."""
    out = tmp_path / "out"
    ended = called(*AGAIN, "--out", str(out), "--set", "data.noise=1e308")
    assert_one_sentence(ended, "'existing-0", "'y'", "inf")
    assert not out.exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_damaged_checkpoint_is_named_and_left_alone(finished: Finished, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(finished.out / "config.toml", out)
    content = bytearray((finished.out / "checkpoint.safetensors").read_bytes())
    content[-50] ^= 1
    (out / "checkpoint.safetensors").write_bytes(bytes(content))
    before = contents(out)
    ended = called(*AGAIN, "--out", str(out))
    assert_one_sentence(ended, str(out / "checkpoint.safetensors"))
    assert contents(out) == before


def test_a_full_disk_leaves_the_last_checkpoint(finished: Finished, tmp_path: Path) -> None:
    """Checkpoints grow by the history of their rounds until the system lets them grow no more."""
    first = (finished.out / "checkpoint.safetensors").stat().st_size
    room = first - 4 * ROUNDS  # two curves of four bytes a round: half of them find room
    ended = pacpfl(*AGAIN, "--out", "out", folder=tmp_path, largest_file=room)
    out = tmp_path / "out"
    assert_one_sentence(ended, str(Path("out") / "checkpoint.safetensors"))
    assert {path.name for path in out.iterdir()} == {"config.toml", "checkpoint.safetensors"}
    with safe_open(out / "checkpoint.safetensors", framework="numpy") as file:
        reached = int(file.metadata()["round"])
    assert 0 < reached < ROUNDS and reached % 5 == 0


def test_a_sites_own_models_are_made_in_the_precision_of_their_run(tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(runtime, "configure", asked.append)
    (tmp_path / "pacpfl.json").write_text('{"role": "site"}')
    for name, precision in (("old", "float64"), ("new", "float32")):
        folder = tmp_path / "pacpfl" / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(f'[run]\nprecision = "{precision}"')
    ended = called("site", "personalize", "--kit", str(tmp_path), "--run", "old")
    assert_one_sentence(ended, "holds no result of run old")
    assert asked == ["float64"]
