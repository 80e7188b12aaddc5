"""The command line as people meet it: real processes, real terminals, real faults."""

from __future__ import annotations

import fcntl
import inspect
import io
import itertools
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
import typer
from commands import Ended, assert_one_sentence, called, environment, with_settings
from patience import patience
from rich.console import Console
from safetensors import safe_open
from safetensors.numpy import load_file

from pacpfl import __version__
from pacpfl.cli.app import COMMANDS, app
from pacpfl.cli.common import shipped_names
from pacpfl.engine import runtime
from pacpfl.report.terminal import Bar

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
    without = {"JAX_COMPILATION_CACHE_DIR": "", "PACPFL_CACHE_DIR": "/dev/null/none"}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(largest_file), *arguments],
        cwd=folder,
        env=environment() | (without if largest_file else {}),
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
    """Without a terminal: lines, no bar, no colour, no cursor, one table and where the report is."""
    assert finished.ended.code == 0, finished.ended
    assert re.fullmatch(rf"(PAC-PFL: training: \d+ of {ROUNDS}, .*\n)*", finished.ended.errors)
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
    wide = environment(160) | {"TERM": "xterm-256color"}
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
    left = r" \d\d:\d\d "
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
for words in (["--help"], ["-h"], ["run", "--help"], ["report", "--help"], ["--version"]):
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


GROUP = typer.main.get_command(app)
GROUPS = {name: command for name, command in GROUP.commands.items() if hasattr(command, "commands")}
PAGES = {
    (): GROUP,
    **{(name,): command for name, command in GROUP.commands.items() if not command.hidden},
    **{(name, sub): c for name, group in GROUPS.items() for sub, c in group.commands.items()},
}


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_help_says_everything_at_any_width(words: tuple[str, ...]) -> None:
    """No word is lost to markup, no default is missing, no line is too long or broken too early."""
    for width in (80, 120):
        ended = called(*words, "--help", columns=width)
        assert ended.code == 0
        lines = ended.output.splitlines()
        assert max(map(len, lines)) <= width
        said = " ".join(re.sub("[│╭╮╰╯─*]", " ", ended.output).split())
        for parameter in PAGES[words].params:
            assert " ".join(str(parameter.help).split()) in said, parameter.name
            default = parameter.default
            if not isinstance(default, bool) and default is not None and not callable(default):
                assert f"default: {default}" in said, parameter.name
        told = inspect.cleandoc(PAGES[words].callback.__doc__ or "") if words else ""
        if (words and words[0] not in GROUPS) or len(words) == 2:
            assert " ".join(told.split()) in said
        prose = [line.rstrip() for line in lines[: lines.index(next(x for x in lines if "╭" in x))]]
        for line, following in itertools.pairwise(prose):
            first = re.match(r" (\S+)", following)
            if re.match(r" \S", line) and first and words:
                assert len(line) + 1 + len(first[1]) > width - 1, line


def test_help_lists_every_command_in_its_group() -> None:
    said = called("--help").output
    panels = re.findall("╭─ ([A-Z][ a-z]+) ─", said)
    assert panels[0] == "Options" and {*COMMANDS} <= {*panels}
    for name, command in GROUP.commands.items():
        assert bool(re.search(rf"^│ {name} ", said, re.MULTILINE)) is not command.hidden


def completed(line: str, folder: Path) -> list[str]:
    """What bash offers for the last word of a line."""
    program = "import sys; from pacpfl.cli import main; sys.argv[0] = 'pacpfl'; main()"
    place = str(len(line.split(" ")) - 1)
    asked = {"_PACPFL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": place}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder, env=os.environ | asked, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    return done.stdout.split()


def test_tab_completes_names(tmp_path: Path) -> None:
    (tmp_path / "runs" / "houses").mkdir(parents=True)
    (tmp_path / "runs" / "houses" / "config.toml").touch()
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "table.csv").write_text("city;power\nBern;1\n")
    assert completed("pacpfl report r", tmp_path) == [str(Path("runs/houses"))]
    assert {"polynomial", "polynomial-opposite"} <= {*completed("pacpfl run pol", tmp_path)}
    assert completed("pacpfl fit table.csv --target ", tmp_path) == ["city", "power"]


def test_without_a_terminal_a_line_tells_every_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("pacpfl.report.terminal.time.monotonic", lambda: float(next(now)))
    console = Console(file=io.StringIO(), width=80)
    with Bar("training", console=console) as bar:
        for done in range(1, 101):
            bar.count(done, 100, "[loss] 1")
    said = console.file.getvalue().splitlines()
    assert said == [f"training: {done} of 100, [loss] 1" for done in range(10, 101, 10)]


def help_of(command: str) -> str:
    ended = called(command, "--help")
    assert ended.code == 0
    return " ".join(ended.output.replace("│", " ").split())


def test_every_configuration_that_help_names_is_shipped() -> None:
    names = re.search(r"shipped configuration: ([\w, -]+?)\.", help_of("run"))[1].split(", ")
    assert "polynomial" in names and {*names} <= {*shipped_names()}


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
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("[!.]*") if p.is_file()
    }


@pytest.mark.parametrize("error", [
    OSError(5, "Input/output error", "disk"), MemoryError(), RecursionError("deep"), OverflowError("big")
])  # fmt: skip
def test_what_a_machine_can_do_ends_in_one_sentence(error, tmp_path, monkeypatch):
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr("pacpfl.privacy.ledger.read_ledger", failing)
    words = ["disk: Input/output error"] if isinstance(error, OSError) else [";"]
    assert_one_sentence(called("privacy", str(tmp_path)), *words)


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
    last = ended.errors.splitlines(keepends=True)[-1]  # those before it tell how far training was
    assert_one_sentence(ended._replace(errors=last), str(Path("out") / "checkpoint.safetensors"))
    kept = {"config.toml", "checkpoint.safetensors", "checkpoint.before.safetensors", ".lock"}
    assert {path.name for path in out.iterdir()} == kept
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
