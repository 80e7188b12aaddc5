"""`python -m reproduction STUDY`: real processes, what is kept, and faults in one sentence."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

from pacpfl import cli
from pacpfl.data.weather import synthetic_weather
from reproduction import study
from reproduction.__main__ import STUDIES, main, without_folders
from reproduction.study import Cell, Outcome
from scripts.reference_years import as_csv

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240  # seconds after which a process counts as hanging


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    errors: str


def spawned(folder: Path, *arguments: str) -> Ended:
    ended = subprocess.run(
        [sys.executable, "-m", "reproduction", *arguments],
        cwd=folder,
        env=os.environ
        | {"COLUMNS": "200"}
        | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},  # programs run once or twice on a few numbers
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Within this process."""
    jax.devices()  # once JAX has started, the command cannot change its devices under other tests
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str, entry=main) -> Ended:
        monkeypatch.setattr(sys, "argv", ["reproduction", *arguments])
        try:
            entry()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Ended(code, captured.out, captured.err)

    return call


def save_images(path: Path) -> Path:
    """Six writers with thirty images of 4 x 4 pixels each; the class is the column with ink."""
    random = np.random.default_rng(2)
    labels = random.integers(4, size=180)
    pixels = random.integers(60, size=(180, 4, 4)).astype(np.uint8)
    pixels[np.arange(180), :, labels] += 150
    np.savez(path, images=pixels, labels=labels, writer=np.repeat(np.arange(6), 30), classes=4)
    return path


def test_every_study_has_a_command() -> None:
    assert tuple(STUDIES) == study.STUDIES


@pytest.mark.parametrize("command", ["reproduce", "audit"])
def test_the_package_names_the_command(called, command):
    ended = called(command, "regression", "--weather", "x.csv", entry=cli.main)
    assert ended.code == 2 and "python -m reproduction" in ended.errors
    assert ended.errors.startswith("pacpfl: ") and ended.errors.count("\n") == 1


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A part of the quick study."""
    folder = tmp_path_factory.mktemp("reproduce")
    command = ("regression", "--quick", "--out", "r", "--only", "polynomial,ridge")
    return folder, spawned(folder, *command)


def test_a_part_of_the_study_is_run_kept_and_shown(studied):
    folder, ended = studied
    assert ended.code == 0 and ended.errors == "", ended
    lines = (folder / "r" / "outcomes.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["ridge"]
    with (folder / "r" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(r["dataset"], r["method"]) for r in rows} == {("polynomial", "ridge")}
    assert {r["group"] for r in rows} == {"existing", "new"}
    for name in ("report.html", "README.md", "boxes_1.svg", "figures/boxes_1.png"):
        assert (folder / "r" / name).exists()
    assert "nothing to compare PAC-PFL with" in ended.output
    readme = (folder / "r" / "README.md").read_text()
    assert "--out r --only polynomial,ridge" in readme and "Seeds: 0" in readme


def test_the_page_says_where_the_houses_stand(tmp_path, called):
    pytest.importorskip("pvlib", reason="pvlib is not installed (pip install 'pacpfl[pv]')")
    weather, out = tmp_path / "capetown.csv", tmp_path / "out"
    weather.write_text(as_csv(synthetic_weather(-33.92, 18.42)), encoding="utf-8")
    only = ("--quick", "--only", "pv-s-150-random,ridge", "--out", str(out))
    ended = called("regression", "--weather", str(weather), *only)
    assert ended.code == 0, ended
    sentence = "The houses stand at 33.92° S, 18.42° E in the weather of capetown.csv."
    assert f"## Notes\n\n- {sentence}" in (out / "README.md").read_text(encoding="utf-8")
    more = ("--quick", "--only", "polynomial,ridge", "--out", str(out))
    assert called("regression", "--weather", str(weather), *more).code == 0
    assert sentence in (out / "README.md").read_text(encoding="utf-8"), "they are still on the page"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["classification"], ["--femnist PATH", "--emnist PATH"]),
        (["classification", "--femnist", "nowhere"], ["nowhere", "pacpfl download"]),
        (["polynomial", "--weather", "x.csv"], ["polynomial has no houses"]),
        (["regression", "--emnist", "x"], ["regression has no images"]),
        (["regression", "--only", "mlt"], ["mlt", "mtl"]),
        (["regression", "--weather", "none.csv"], ["none.csv"]),
        (["ablation", "--only", "mtl"], ["mtl", "k1"]),
    ],
)
def test_a_study_that_cannot_be_made_ends_in_one_sentence(arguments, words, tmp_path, called):
    out = tmp_path / "out"
    ended = called(*arguments, "--out", str(out))
    assert ended.code == 2
    assert ended.errors.startswith("reproduction: ") and ended.errors.count("\n") == 1
    for word in words:
        assert word in ended.errors
    assert not out.exists()


def test_time_that_is_over_leaves_the_rest_for_the_next_call(tmp_path, called):
    where = ("--out", str(tmp_path / "out"))
    ended = called("ablation", "--quick", "--seconds", "0", *where)
    assert ended.code == 0 and "28 of 28 runs are missing; the same command goes on" in ended.errors


def test_every_run_of_the_study_is_kept_and_the_page_is_of_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called
) -> None:
    path, ran = save_images(tmp_path / "writers.npz"), list[str]()

    def pretend(cell: Cell, stop) -> Outcome:
        ran.append(f"{cell.dataset} {cell.name}")
        values = {"accuracy": 90.0 + len(ran), "ce": 0.1, "nll": 0.3, "train_seconds": 2.0}
        return Outcome(*cell.place, 2.0, {"existing": values})

    monkeypatch.setattr(study, "run_cell", pretend)
    out = tmp_path / "study"
    words = ["classification", "--femnist", str(path), "--quick", "--out", str(out)]
    ended = called(*words, "--only", "femnist-20,pacpfl,mtl")
    assert ended.code == 0, ended
    assert ran == ["femnist-20 pacpfl", "femnist-20 mtl"]
    assert "91.0% against 92.0% of MTL" in ended.output
    assert ended.output.endswith(f"Report: {out / 'report.html'}\n")
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert str(tmp_path) not in readme and "--femnist writers.npz" in readme
    ended = called(*words, "--only", "pacpfl")
    assert (ended.code, ran[2:]) == (0, ["femnist-all pacpfl"])
    assert len((out / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    ended = called(*words, "--only", "lenet")
    assert ended.code == 2 and "lenet" in ended.errors
    with (out / "table.csv").open(newline="", encoding="utf-8") as file:
        table = {(r["dataset"], r["method"], r["metric"]): r for r in csv.DictReader(file)}
    assert table["femnist-20", "mtl", "accuracy"]["paper_mean"] == "75.8"
    assert table["femnist-all", "pacpfl", "train_seconds"]["paper_mean"] == "970"


def test_a_study_with_failures_says_which_and_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called
) -> None:
    path = save_images(tmp_path / "writers.npz")

    def fail(cell: Cell, stop) -> Outcome:
        raise ValueError("no luck")

    monkeypatch.setattr(study, "run_cell", fail)
    words = ["classification", "--femnist", str(path), "--quick", "--only", "femnist-20,mtl"]
    ended = called(*words, "--out", str(tmp_path / "out"))
    assert (ended.code, ended.output) == (1, "")
    assert "mtl on femnist-20, seed 0: ValueError: no luck" in ended.errors
    assert "1 of 1 runs are missing" in ended.errors


def test_commands_are_recorded_without_folders() -> None:
    told = without_folders(["x", "--emnist", "/a b/c d.npz", "--out=/e/f", "--quick"])
    assert told == "python -m reproduction x --emnist 'c d.npz' --out=f --quick"
