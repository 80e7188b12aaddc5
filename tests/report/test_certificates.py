"""The section about guarantees: the numbers of certificates.json, its words, and a figure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pacpfl.errors import InputError
from pacpfl.report import write_report
from pacpfl.report.certificates import conditions, figure, sentences
from pacpfl.report.style import drawing
from pacpfl.report.terminal import print_certificates, standing

FINISHED = "2026-11-15T08:00:14+00:00"  # as in the run folders of conftest.py
ReadPage = Callable[[Path], Any]


def condition(name: str, status: str, reason: str, kind: str = "premise") -> dict[str, str]:
    return {"name": name, "status": status, "reason": reason, "kind": kind}


def client(name: str, group: str, bound: float, test: float | None) -> dict[str, Any]:
    new = group == "new"
    margin = 0.4 if bound < 1.5 else -0.2
    return {
        "client": name, "group": group, "subject": name, "samples": 40, "later": 2,
        "empirical_risk": 0.1 + 0.1 * new, "bound": bound, "test_risk": test, "kl": 7.25,
        "beta": 33.0, "vacuous": bound >= 2, "proved": new, "verdict": f"verdict of {name}",
        "in_use": {"bound": bound + 0.125},
        "conditions": [
            condition("bounded loss", "holds", "within [-1, 2]"),
            condition("prior independent", "holds", "new") if new
            else condition("prior private", "assumed", f"epsilon of {name}"),
        ],
        "participation": condition("taking part", "holds" if margin > 0 else "does not hold",
                                   f"a margin of {margin}", "use") | {"margin": margin},
    }  # fmt: skip


def make_document() -> dict[str, Any]:
    bounds = {"existing": (1.2, 9.7, 1.4), "new": (0.7, 0.9)}
    rows = [
        client(f"{group}-{number:02d}", group, bound, 0.25)
        for group, values in bounds.items()
        for number, bound in enumerate(values)
    ]
    average = {
        "subject": "federation", "bound": 1.3, "verdict": "The federation's verdict.",
        "conditions": [condition("bounded loss", "holds", "within [-1, 2]")],
    }  # fmt: skip
    return {
        "finished": FINISHED, "delta": 0.05, "loss": {"name": "clipped", "a": -1.0, "b": 2.0},
        "groups": {
            "existing": {"clients": 3, "below": 2, "proved": 0, "empirical_risk": 0.1,
                         "bound": 1.4, "bound_in_use": 1.525, "test_risk": 0.25, "tested": 3,
                         "covered": 3, "helped": 2, "tolerated_epsilon": 17.25},
            "new": {"clients": 2, "below": 2, "proved": 2, "empirical_risk": 0.2, "bound": 0.8,
                    "bound_in_use": 0.925, "test_risk": 0.25, "tested": 2, "covered": 1,
                    "helped": 2, "tolerated_epsilon": 30.0},
        },
        "federation": average,
        "newcomers": average | {"verdict": "No statement for those yet to come."},
        "clients": rows,
    }  # fmt: skip


@pytest.fixture
def folder(build: Callable[..., Path], tmp_path: Path) -> Path:
    """A small run folder with certificates, and little else to draw."""
    without = ("bands/", "weights/", "diversity/", "curve/", "calibration/")
    made = build(tmp_path / "run", clients=4, test=5, methods=("pacpfl", "pooled"), without=without)
    (made / "certificates.json").write_text(json.dumps(make_document()))
    return made


def test_the_section_holds_the_numbers_and_the_words(folder: Path, read_page: ReadPage) -> None:
    page = read_page(write_report(folder))
    section = page.one("section", id="certificates")
    assert [link.text for link in page.one("nav").all("a")].count("Certificates") == 1
    rows = section.one("table", id="certificates-table").one("tbody").all("tr")
    assert [[cell.text for cell in row.all("td")] for row in rows] == [
        ["0.100", "1.400", "1.525", "0.250", "2 of 3", "0 of 3", "2 of 3"],
        ["0.200", "0.800", "0.925", "0.250", "2 of 2", "2 of 2", "2 of 2"],
    ]
    for words in (
        "2 of 3 existing clients have a bound below 2", "a premise that is not proved",
        "epsilon up to 17.2", "Every premise of these certificates that can be checked holds",
        "Against test samples 1 of 2 bounds hold; at least 95% of them should",
        "The federation's verdict.", "No statement for those yet to come.",
    ):  # fmt: skip
        assert words in section.text
    assert (folder / "figures" / "certificates.png").read_bytes().startswith(b"\x89PNG")
    drawn = section.one("figure", id="figure-certificates").one("svg")
    assert "median bound 1.400" in drawn.attributes["aria-label"]
    assert "holds against the test samples for 1 of 2" in drawn.attributes["aria-label"]


def test_equal_conditions_are_told_once_and_different_ones_counted() -> None:
    rows = {
        (row["who"], row["name"], row["status"]): row["reason"]
        for row in conditions(make_document())
    }
    everyone = "Existing clients, New clients, Federation, Clients yet to come"
    assert rows == {
        (everyone, "bounded loss", "holds"): "within [-1, 2]",
        ("Existing clients", "prior private", "assumed"): "existing-00: epsilon of existing-00",
        ("Existing clients", "taking part", "holds for 2 of 3"): "a margin of 0.4",
        ("Existing clients", "taking part", "does not hold for 1 of 3"): "a margin of -0.2",
        ("New clients", "prior independent", "holds"): "new",
        ("New clients", "taking part", "holds"): "a margin of 0.4",
    }


def test_the_figure_draws_bounds_up_to_the_largest_loss() -> None:
    with drawing():
        drawn = figure(make_document())
    first, second = drawn.axes
    bars = [[path.vertices[0, 1] for path in c.get_paths()] for c in first.collections[1:2]]
    assert bars == [pytest.approx([1.2, 1.4, 2.0])]
    own, tests = first.lines[1], first.lines[2]
    assert list(own.get_ydata()) == pytest.approx([0.1] * 3)
    assert list(tests.get_ydata()) == pytest.approx([0.25] * 3)
    assert first.get_ylim() == second.get_ylim() and first.get_ylim()[1] > 2.0
    assert [axis.get_title(loc="left") for axis in drawn.axes] == [
        "Existing clients",
        "New clients",
    ]


def test_without_test_samples_nothing_is_claimed_about_them(
    folder: Path, read_page: ReadPage
) -> None:
    document = make_document()
    for row in document["clients"]:
        row["test_risk"] = None
    for facts in document["groups"].values():
        facts |= {"test_risk": None, "tested": 0, "covered": 0}
    (folder / "certificates.json").write_text(json.dumps(document))
    section = read_page(write_report(folder)).one("section", id="certificates")
    assert "test samples" not in " ".join(sentences(document))
    assert "on test samples" not in [text.text for text in section.one("figure").all("text")]


@pytest.mark.parametrize("without", ["file", "run"])
def test_certificates_of_another_run_are_not_shown(
    folder: Path, read_page: ReadPage, without: str
) -> None:
    if without == "file":
        (folder / "certificates.json").unlink()
    else:
        document = make_document() | {"finished": "2026-01-01T00:00:00+00:00"}
        (folder / "certificates.json").write_text(json.dumps(document))
    page = read_page(write_report(folder))
    assert not page.all("section", id="certificates")
    assert not (folder / "figures" / "certificates.png").exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_file_is_named(folder: Path, content: str) -> None:
    (folder / "certificates.json").write_text(content)
    with pytest.raises(InputError, match=r"certificates\.json cannot be read"):
        write_report(folder)


def test_names_stay_text(folder: Path, read_page: ReadPage, capsys: Any) -> None:
    document = make_document()
    nasty = "<script>alert(1)</script>[bold]"
    document["clients"][0] |= {"client": nasty, "subject": nasty}
    document["clients"][0]["conditions"][1]["reason"] = nasty
    document["federation"] = document["federation"] | {"verdict": nasty}
    (folder / "certificates.json").write_text(json.dumps(document))
    page = read_page(write_report(folder))
    kinds = [script.attributes.get("type") for script in page.all("script")]
    assert kinds == ["application/json", None]
    assert nasty in page.one("section", id="certificates").text
    print_certificates(document, Console(width=200))
    assert nasty in capsys.readouterr().out


def test_the_standing_in_one_word() -> None:
    existing, vacuous, *_, new = make_document()["clients"]
    assert [standing(row) for row in (existing, vacuous, new)] == [
        "assumed",
        "no statement",
        "proved",
    ]
    new["conditions"].append(condition("scaled", "does not hold", "by hand"))
    assert standing(new) == "not valid"
    new["conditions"][-1]["kind"] = "use"
    assert standing(new) == "proved"


def test_many_clients_are_cut_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    document = make_document()
    document["clients"] = [client(f"new-{i:03d}", "new", 0.5, 0.2) for i in range(30)]
    document["groups"] = {"new": document["groups"]["new"] | {"clients": 30}}
    print_certificates(document, Console(width=200))
    out = capsys.readouterr().out
    assert "new-011" in out and "new-012" not in out
    assert "18 more clients are in certificates.json." in out


def test_the_section_in_a_browser(folder: Path, tmp_path: Path) -> None:
    """It can be seen, fits a narrow window, and nothing complains."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("No browser to try the page in: install chromium and chromium-driver.")
    webdriver = pytest.importorskip("selenium.webdriver", reason="It is tried with selenium.")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path / 'browser'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    try:
        browser.get(write_report(folder).as_uri())
        for width in (400, 1100):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        section = browser.find_element("id", "certificates")
        assert section.find_element("id", "conditions").is_displayed()
        assert section.find_element("css selector", "figure svg").size["height"] > 200
        assert browser.get_log("browser") == []
    finally:
        browser.quit()
