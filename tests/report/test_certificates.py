"""The section about guarantees: the numbers of certificates.json, its words, and a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from folders import certified_client, make_document, make_run
from reading import read_page
from rich.console import Console

from pacpfl.errors import InputError
from pacpfl.report.figures import certificates as figure
from pacpfl.report.page import write_report
from pacpfl.report.sentences import certificates
from pacpfl.report.style import drawing
from pacpfl.report.terminal import print_certificates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small run folder with certificates, and little else to draw."""
    without = ("panels/", "weights/", "diversity/", "curve/", "calibration/")
    made = make_run(
        tmp_path / "run", clients=4, test=5, methods=("pacpfl", "pooled"), without=without
    )
    (made / "certificates.json").write_text(json.dumps(make_document()))
    return made


def test_the_figure_draws_bounds_up_to_the_largest_loss() -> None:
    with drawing():
        drawn = figure(make_document()).figure
    first, second = drawn.axes
    bars = [[path.vertices[0, 1] for path in c.get_paths()] for c in first.collections[1:2]]
    assert bars == [pytest.approx([1.2, 1.4, 2.0])]
    own, tests = first.lines[1], first.lines[2]
    assert list(own.get_ydata()) == pytest.approx([0.1] * 3)
    assert list(tests.get_ydata()) == pytest.approx([0.25] * 3)
    assert first.get_ylim() == second.get_ylim() and first.get_ylim()[1] > 2.0


def test_without_test_samples_nothing_is_claimed_about_them(folder: Path) -> None:
    document = make_document()
    for row in document["clients"]:
        row["test_risk"] = None
    for facts in document["groups"].values():
        facts |= {"test_risk": None, "tested": 0, "covered": 0}
    (folder / "certificates.json").write_text(json.dumps(document))
    section = read_page(write_report(folder)).one("section", id="certificates")
    assert "test samples" not in " ".join(certificates(document))
    assert "on test samples" not in [text.text for text in section.one("figure").all("text")]


@pytest.mark.parametrize("without", ["file", "run"])
def test_certificates_of_another_run_are_not_shown(folder: Path, without: str) -> None:
    document = make_document() | {"finished": "2026-01-01T00:00:00+00:00"}
    (folder / "certificates.json").write_text(json.dumps(document))
    if without == "file":
        (folder / "certificates.json").unlink()
    page = read_page(write_report(folder))
    assert not page.all("section", id="certificates")
    assert not (folder / "figures" / "certificates.png").exists()


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_file_is_named(folder: Path, content: str) -> None:
    (folder / "certificates.json").write_text(content)
    with pytest.raises(InputError, match=r"certificates\.json is damaged .* delete it, or certify"):
        write_report(folder)


def test_names_stay_text(folder: Path, capsys: Any) -> None:
    document = make_document()
    nasty = "<script>alert(1)</script>[bold]"
    document["clients"][0] |= {"client": nasty, "subject": nasty}
    document["clients"][0]["conditions"][1]["reason"] = nasty
    (folder / "certificates.json").write_text(json.dumps(document))
    page = read_page(write_report(folder))
    kinds = [script.attributes.get("type") for script in page.all("script")]
    assert kinds == ["application/json", None]
    assert nasty in page.one("section", id="certificates").text
    print_certificates(document, Console(width=200))
    assert nasty in capsys.readouterr().out


def test_many_clients_are_cut_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    document = make_document()
    document["clients"] = [certified_client(f"new-{i:03d}", "new", 0.5, 0.2) for i in range(30)]
    document["groups"] = {"new": document["groups"]["new"] | {"clients": 30}}
    print_certificates(document, Console(width=200))
    out = capsys.readouterr().out
    assert "new-011" in out and "new-012" not in out
    assert "18 more clients are in certificates.json." in out
