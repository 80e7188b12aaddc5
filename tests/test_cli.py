"""The command line as people meet it: real processes, real terminals, real faults."""

from __future__ import annotations

import csv
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
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import Ended, assert_one_sentence, called, environment
from patience import patience
from safetensors import safe_open
from safetensors.numpy import load_file

from pacpfl import __version__
from pacpfl.cli.app import app
from pacpfl.cli.common import shipped

ROUNDS = 600
SETTINGS = (
    "clients=3", "new_clients=2", "samples=5", "test_samples=6", f"rounds={ROUNDS}", "particles=2",
    "mean_widths=[48]", "kernel_widths=[48]", "checkpoint_rounds=5", 'methods=["pacpfl", "ridge"]',
)  # fmt: skip
LIMIT = patience(240)  # seconds after which a process counts as hanging


def with_settings(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


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


@dataclass(frozen=True)
class Finished:
    folder: Path
    ended: Ended

    @property
    def out(self) -> Path:
        return self.folder / "runs" / "polynomial-seed3"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("command")
    arguments = ("run", "polynomial", "--seed", "3", *with_settings(*SETTINGS))
    return Finished(folder, pacpfl(*arguments, folder=folder))


def test_a_run_ends_well_and_quietly(finished: Finished) -> None:
    """Without a terminal: no bar, no colour, no cursor, one table and where the report is."""
    assert finished.ended.code == 0, finished.ended
    assert finished.ended.errors == ""
    output = finished.ended.output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", output)
    for word in ("PAC-PFL", "Ridge per client", "existing", "new", "RSMSE", "CE"):
        assert word in output
    assert output.rstrip().endswith(f"Report: {Path('runs') / 'polynomial-seed3' / 'report.html'}")


def test_the_run_folder_holds_every_documented_file(finished: Finished) -> None:
    out = finished.out
    assert {path.name for path in out.iterdir()} == {
        "config.toml", "run.json", "checkpoint.safetensors", "metrics.json", "clients.csv",
        "arrays.safetensors", "figures", "report.html",
    }  # fmt: skip
    assert json.loads((out / "run.json").read_text())["status"] == "complete"
    metrics = json.loads((out / "metrics.json").read_text())
    assert {m: list(groups) for m, groups in metrics.items()} == {
        "pacpfl": ["existing", "new"], "ridge": ["existing", "new"]
    }  # fmt: skip
    with (out / "clients.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2 * (3 + 2)
    arrays = load_file(out / "arrays.safetensors")
    assert arrays["curve/log_evidence"].shape == (ROUNDS,)
    with safe_open(out / "checkpoint.safetensors", framework="numpy") as file:
        assert file.metadata()["round"] == str(ROUNDS)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "PAC-PFL" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page), "opens without a network"


def test_every_figure_is_there_as_png_and_svg(finished: Finished) -> None:
    figures = list((finished.out / "figures").iterdir())
    names = {path.stem for path in figures}
    assert len(names) >= 4
    kinds = {"png": b"\x89PNG", "svg": b"<svg"}
    assert {p.name for p in figures} == {f"{name}.{kind}" for name in names for kind in kinds}
    for path in figures:
        assert kinds[path.suffix[1:]] in path.read_bytes()[:300]


def test_report_draws_the_page_again(finished: Finished, tmp_path: Path) -> None:
    copy = tmp_path / finished.out.name
    shutil.copytree(finished.out, copy)
    (copy / "report.html").unlink()
    shutil.rmtree(copy / "figures")
    ended = called("report", str(copy))
    assert ended == Ended(0, f"{copy / 'report.html'}\n", "")
    assert (copy / "report.html").read_bytes() == (finished.out / "report.html").read_bytes()
    assert len(list((copy / "figures").iterdir())) == len(
        list((finished.out / "figures").iterdir())
    )


def test_report_of_an_incomplete_folder_names_what_is_missing(
    finished: Finished, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished.out, copy)
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
    assert rounds == sorted(rounds)
    assert max(rounds) > 5
    assert any(re.search(r"[1-9]\d* rounds/s", line) for line in training)
    assert any(re.search(r"ln Z -?\d+\.\d{3} per sample", line) for line in training)
    assert any(re.search(r"\d:\d\d:\d\d", line) for line in training), "time left"


def test_a_terminal_counts_rounds_only_while_training(terminal: tuple[int, str]) -> None:
    lines = re.split(r"[\r\n]", terminal[1])
    after = [line for line in lines if "measuring" in line or "drawing" in line]
    assert after
    assert not [line for line in after if f"/{ROUNDS}" in line]


def test_config_toml_repeats_the_run_to_the_bit(
    finished: Finished, terminal: tuple[int, str]
) -> None:
    assert terminal[0] == 0
    again = finished.folder / "again"
    for name in ("metrics.json", "clients.csv", "config.toml"):
        assert (again / name).read_bytes() == (finished.out / name).read_bytes(), name
    one, two = (load_file(out / "checkpoint.safetensors") for out in (finished.out, again))
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.tobytes() == two[name].tobytes(), name


WITHOUT_JAX = """
import sys
for words in (["--help"], ["-h"], ["run", "--help"], ["report", "--help"], ["version"]):
    sys.argv = ["pacpfl", *words]
    from pacpfl.cli import main
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
    heavy = {"jax", "scipy", "pandas", "matplotlib", "equinox"} & set(sys.modules)
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
        own = called(command, "--help")
        assert own.code == 0
        assert re.search(rf"Usage: .*\b{command}\b", own.output)
    for word in ("pacpfl run polynomial", "particles=8", "config.toml", "Ctrl-C"):
        assert word in ended.output


def test_every_configuration_that_help_names_is_shipped() -> None:
    text = " ".join(called("run", "--help").output.replace("│", " ").split())
    found = re.search(r"shipped configuration: ([\w, -]+?)\.", text)
    assert found
    names = found[1].split(", ")
    assert "polynomial" in names
    for name in names:
        shipped(name)


# What is refused, and in which words, `test_config` tells; this is how it reaches people.
BAD_ARGUMENTS = {
    "unknown-key": (with_settings("particels=8"), ["particels", "'particles'"]),
    "too-many-per-round": (
        with_settings("clients=3", "clients_per_round=4"), ["clients_per_round", "4", "3"]
    ),
    "no-value": (with_settings("particles"), ["key=value"]),
    "negative-seed": (["--seed=-1"], ["seed"]),
    "markup": (with_settings("[bold]=1"), ["[bold]"]),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_bad_settings_end_in_one_sentence(
    arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert_one_sentence(called("run", "polynomial", "--out", str(out), *arguments), *words)
    assert not out.exists()


def test_bad_configurations_are_named(tmp_path: Path) -> None:
    out, bad = tmp_path / "out", tmp_path / "bad.toml"
    bad.write_text("[train]\nparticels = 8")
    ended = called("run", "--config", str(bad), "--out", str(out))
    assert_one_sentence(ended, "bad.toml", "'train.particles'")
    missing = called("run", "--config", str(tmp_path / "none.toml"), "--out", str(out))
    assert_one_sentence(missing, "none.toml")
    assert_one_sentence(called("run", "polynomal", "--out", str(out)), "polynomial")
    assert_one_sentence(called("run", "--out", str(out)), "--config")
    both = called("run", "polynomial", "--config", str(bad), "--out", str(out))
    assert_one_sentence(both, "--config")
    assert not out.exists()


def test_unknown_commands_and_options_exit_with_2() -> None:
    for arguments in (["rum"], ["run", "polynomial", "--sett", "particles=8"]):
        ended = called(*arguments)
        assert ended.code == 2
        assert "Traceback" not in ended.errors


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # the generator's own
def test_targets_that_are_no_numbers_name_client_and_column(tmp_path: Path) -> None:
    """Noise so large that targets overflow: the only way to such data from the command line."""
    out = tmp_path / "out"
    settings = with_settings(*SETTINGS, "data.noise=1e308")
    ended = called("run", "polynomial", "--out", str(out), *settings)
    assert_one_sentence(ended, "'existing-0", "'y'", "inf")
    assert not out.exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_of_another_configuration_is_left_alone(finished: Finished) -> None:
    before = contents(finished.out)
    settings = with_settings(*SETTINGS, "particles=3")
    where = ("--seed", "3", "--out", str(finished.out))
    ended = called("run", "polynomial", *where, *settings)
    assert_one_sentence(ended, str(finished.out), "--out", "--fresh")
    assert contents(finished.out) == before


def test_a_damaged_checkpoint_is_named_and_left_alone(finished: Finished, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(finished.out / "config.toml", out)
    content = bytearray((finished.out / "checkpoint.safetensors").read_bytes())
    content[-50] ^= 1
    (out / "checkpoint.safetensors").write_bytes(bytes(content))
    before = contents(out)
    ended = called("run", "polynomial", "--seed", "3", "--out", str(out), *with_settings(*SETTINGS))
    assert_one_sentence(ended, str(out / "checkpoint.safetensors"))
    assert contents(out) == before


def test_a_full_disk_leaves_the_last_checkpoint(finished: Finished, tmp_path: Path) -> None:
    """Checkpoints grow by the history of their rounds until the system lets them grow no more."""
    first = (finished.out / "checkpoint.safetensors").stat().st_size
    room = first - 4 * ROUNDS  # two curves of four bytes a round: half of them find room
    settings = with_settings(*SETTINGS)
    arguments = ("run", "polynomial", "--seed", "3", "--out", "out", *settings)
    ended = pacpfl(*arguments, folder=tmp_path, largest_file=room)
    out = tmp_path / "out"
    assert_one_sentence(ended, str(Path("out") / "checkpoint.safetensors"))
    assert {path.name for path in out.iterdir()} == {"config.toml", "checkpoint.safetensors"}
    with safe_open(out / "checkpoint.safetensors", framework="numpy") as file:
        reached = int(file.metadata()["round"])
        assert 0 < reached < ROUNDS
        assert reached % 5 == 0


def test_a_disk_without_any_room_leaves_nothing(tmp_path: Path) -> None:
    settings = with_settings(*SETTINGS)
    arguments = ("run", "polynomial", "--out", "out", *settings)
    ended = pacpfl(*arguments, folder=tmp_path, largest_file=100)
    assert_one_sentence(ended, str(Path("out") / "config.toml"))
    assert list((tmp_path / "out").iterdir()) == []


def test_help_loses_no_default_to_markup() -> None:
    """rich takes [words] for a style, and shows nothing."""
    shown = called("personalize", "--help").output + called("fit", "--help").output
    assert "(default: guessed)" in " ".join(shown.replace("│", " ").split())
