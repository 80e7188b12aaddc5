"""Images on the command line: runs, downloads, and the study, with what can be wrong about them."""

from __future__ import annotations

import csv
import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from commands import assert_one_sentence, called, with_settings
from serving import serving

from pacpfl.config import load_file
from pacpfl.data import download as downloads
from pacpfl.data.download import Source
from pacpfl.report.terminal import latest

SETTINGS = (
    *("network.kind=mlp", "network.widths=[6]", "rounds=4", "particles=2", "clients=3"),
    *("new_clients=2", "clients_per_round=2", "posterior.networks=2", "posterior.steps=0"),
)


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
    code, output, errors = called(*words, *with_settings(*SETTINGS, 'methods=["pacpfl"]'))
    assert code == 0 and "Traceback" not in errors
    return folder / "run", output


def test_a_run_on_images_says_how_many_it_names_rightly(finished: tuple[Path, str]) -> None:
    _, output = finished
    for word in ("PAC-PFL", "existing", "new", "Accuracy", "CE", "NLL", "Brier score"):
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
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert {path.stem for path in (folder / "figures").glob("*.png")} >= {
        "boxes", "reliability", "training", "diversity", "weights", "examples_existing",
        "examples_new",
    }  # fmt: skip
    assert "data:image/png" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "femnist"], ["femnist needs images", "--data PATH"]),
        (["run", "emnist"], ["emnist needs images", "--data PATH"]),
        (["run", "emnist", "--data", "nowhere"], ["nowhere", ".npz"]),
        (["run", "femnist", "--data", "true"], ["no file or folder true"]),
        (["run", "digits", "--set", 'methods=["ridge"]'], ["ridge is not made for classes"]),
        (["run", "digits", "--m", "1"], ["samples = 1 is too few"]),
        (["download", "mnist", "here"], ["mnist", "femnist"]),
    ],
)
def test_what_cannot_be_used_is_told_in_one_sentence(words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_sentence(called(*words), *told)
    assert not list(tmp_path.iterdir())


def test_a_download_says_how_to_run_with_it(tmp_path, monkeypatch):
    body, folder = save_images(tmp_path / "served.npz").read_bytes(), tmp_path / "my images"

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    with serving(answer) as address:
        source = Source(f"{address}/served.npz", "femnist.npz")
        monkeypatch.setitem(downloads.SOURCES, "femnist", source)
        code, output, errors = called("download", "femnist", str(folder))
    assert code == 0
    assert (folder / "femnist.npz").read_bytes() == body
    assert output == f"pacpfl run femnist --data '{folder / 'femnist.npz'}'\n"
    assert "was not checked" in errors


def test_the_progress_bar_shows_evidence_or_loss() -> None:
    assert latest({"log_evidence": -1.25, "diversity": 0.3}) == "ln Z -1.250 per sample"
    assert latest({"loss": 0.5}) == "loss 0.500"
    assert latest({}) == ""
