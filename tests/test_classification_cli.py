"""Images on the command line: runs, downloads, and the study, with what can be wrong about them."""

from __future__ import annotations

import csv
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pacpfl import cli
from pacpfl.cli.common import latest
from pacpfl.cli_classification import without_folders
from pacpfl.config import load_file
from pacpfl.data import download as downloads
from pacpfl.data.download import Source
from pacpfl.run import Watcher
from pacpfl.studies import classification
from pacpfl.studies.outcomes import Cell, Kept
from pacpfl.studies.table import Outcome

SETTINGS = (
    *("network.kind=mlp", "network.widths=[6]", "rounds=4", "particles=2", "clients=3"),
    *("new_clients=2", "clients_per_round=2", "posterior.networks=2", "posterior.steps=0"),
)


def pacpfl(*arguments: str) -> tuple[int, str, str]:
    """`pacpfl ...` within this process: exit code, what it printed, what it complained about."""
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
    return code, output.getvalue(), errors.getvalue()


def save_images(path: Path) -> Path:
    """Six writers with thirty images of 4 x 4 pixels each; the class is the column with ink."""
    random = np.random.default_rng(2)
    labels = random.integers(4, size=180)
    pixels = random.integers(60, size=(180, 4, 4)).astype(np.uint8)
    pixels[np.arange(180), :, labels] += 150
    np.savez(path, images=pixels, labels=labels, writer=np.repeat(np.arange(6), 30), classes=4)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on a file of images; its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("images")
    data = save_images(folder / "two words.npz")
    words = ["run", "femnist", "--data", str(data), "--m", "5", "--out", str(folder / "run")]
    for setting in (*SETTINGS, 'methods=["pacpfl"]'):
        words += ["--set", setting]
    code, output, errors = pacpfl(*words)
    assert (code, errors) == (0, "")
    return folder / "run", output


def test_a_run_on_images_says_how_many_it_names_rightly(finished: tuple[Path, str]) -> None:
    _, output = finished
    for word in ("PAC-PFL", "existing", "new", "accuracy", "CE", "NLL", "Brier score"):
        assert word in output
    assert "nan" not in output, "what has no interval is shown without one"
    assert "RSMSE" not in output


def test_the_run_folder_holds_what_is_documented(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    config = load_file(folder / "config.toml")
    assert config.images.path == str(folder.parent / "two words.npz")
    assert config.data.samples == 5
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    for group in ("existing", "new"):
        assert set(metrics["pacpfl"][group]) == {"accuracy", "ce", "ce_own", "nll", "brier"}
    with (folder / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 + 2
    assert {row["samples"] for row in rows} == {"5"}
    for row in rows:
        assert 0 <= float(row["accuracy"]) <= 1
    assert {path.stem for path in (folder / "figures").glob("*.png")} >= {
        "boxes", "reliability", "training", "diversity", "weights"
    }  # fmt: skip


def test_the_page_of_a_run_shows_single_images(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    assert (folder / "figures" / "examples_existing.png").is_file()
    assert (folder / "figures" / "examples_new.png").is_file()
    assert "data:image/png" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "femnist"], ["femnist needs images", "--data PATH"]),
        (["run", "emnist", "--data", "nowhere"], ["nowhere", ".npz"]),
        (["run", "femnist", "--data", "true"], ["no file or folder true"]),
        (["run", "digits", "--set", 'methods=["ridge"]'], ["ridge is not made for classes"]),
        (["run", "digits", "--m", "1"], ["samples = 1 is too few"]),
        (["reproduce", "classification"], ["--femnist PATH", "--emnist PATH"]),
        (["reproduce", "classification", "--femnist", "nowhere"], ["nowhere", "pacpfl download"]),
        (["reproduce", "classification", "--jobs", "2"], ["neither --weather nor --jobs"]),
        (["reproduce", "regression", "--emnist", "x"], ["regression has no images"]),
        (["download", "mnist", "here"], ["mnist", "femnist"]),
    ],
)
def test_what_cannot_be_used_is_told_in_one_sentence(
    words: list[str], told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, errors = pacpfl(*words)
    assert (code, output) == (2, "")
    assert errors.startswith("pacpfl: ")
    assert errors.count("\n") == 1
    for word in told:
        assert word in errors
    assert not list(tmp_path.iterdir())


def test_every_run_of_the_study_is_kept_and_the_page_is_of_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ran = save_images(tmp_path / "writers.npz"), list[str]()

    def pretend(cell: Cell, watcher: Watcher) -> Kept:
        ran.append(f"{cell.dataset} {cell.name}")
        accuracy = 90.0 + len(ran)
        values = {"accuracy": accuracy, "ce": 0.1, "nll": 0.3, "train_seconds": 2.0}
        clients = {"existing": {"accuracy": [accuracy], "nll": [0.3]}}
        return Kept(Outcome(*cell.place, 2.0, {"existing": values}), clients)

    monkeypatch.setattr(classification, "run_cell", pretend)
    out = tmp_path / "study"
    words = ["reproduce", "classification", "--femnist", str(path), "--quick", "--out", str(out)]
    code, output, errors = pacpfl(*words, "--only", "femnist-20,pacpfl,mtl")
    assert code == 0, errors
    assert ran == ["femnist-20 pacpfl", "femnist-20 mtl"]
    assert "91.0% against 92.0% of MTL" in output
    assert output.endswith(f"Report: {out / 'report.html'}\n")
    record = json.loads((out / "study.json").read_text(encoding="utf-8"))
    assert str(tmp_path) not in record["command"]
    assert "--femnist writers.npz" in record["command"]
    code, output, _ = pacpfl(*words, "--only", "pacpfl")
    assert (code, ran[2:]) == (0, ["femnist-all pacpfl"])
    assert len((out / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    code, _, errors = pacpfl(*words, "--only", "lenet")
    assert code == 2
    assert "lenet" in errors
    with (out / "table.csv").open(newline="", encoding="utf-8") as file:
        table = {(r["dataset"], r["method"], r["metric"]): r for r in csv.DictReader(file)}
    assert table["femnist-20", "mtl", "accuracy"]["paper_mean"] == "75.8"
    assert table["femnist-all", "pacpfl", "train_seconds"]["paper_mean"] == "970.0"


def test_a_study_with_failures_says_which_and_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_images(tmp_path / "writers.npz")

    def fail(cell: Cell, watcher: Watcher) -> Kept:
        raise ValueError("no luck")

    monkeypatch.setattr(classification, "run_cell", fail)
    words = ["reproduce", "classification", "--femnist", str(path), "--quick"]
    code, output, errors = pacpfl(
        *words, "--out", str(tmp_path / "out"), "--only", "femnist-20,mtl"
    )
    assert (code, output) == (1, "")
    assert "mtl on femnist-20, seed 0: ValueError: no luck" in errors
    assert "1 of 1 runs are missing" in errors


def test_commands_are_recorded_without_folders() -> None:
    told = without_folders(["reproduce", "x", "--emnist", "/a b/c d.npz", "--out=/e/f", "--quick"])
    assert told == "pacpfl reproduce x --emnist 'c d.npz' --out=f --quick"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A server on this machine with one file."""
    body = save_images(tmp_path / "served.npz").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/served.npz"
        server.shutdown()
        thread.join()


def test_a_download_says_how_to_run_with_it(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(downloads.SOURCES, "femnist", Source(site, "femnist.npz"))
    folder = tmp_path / "my images"
    code, output, errors = pacpfl("download", "femnist", str(folder))
    assert code == 0
    assert (folder / "femnist.npz").read_bytes() == (tmp_path / "served.npz").read_bytes()
    assert output == f"pacpfl run femnist --data '{folder / 'femnist.npz'}'\n"
    assert "was not checked" in errors


def test_the_progress_bar_shows_evidence_or_loss() -> None:
    assert latest({"log_evidence": -1.25, "diversity": 0.3}) == "ln Z -1.250 per sample"
    assert latest({"loss": 0.5}) == "loss 0.500"
    assert latest({}) == ""
