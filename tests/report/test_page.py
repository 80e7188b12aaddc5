"""The page holds the numbers of the run, nothing it should not, and stands on its own."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from folders import changing, make_class_run, make_run
from matplotlib.colors import to_rgb
from reading import read_page

from pacpfl.report import page as pages
from pacpfl.report.folder import read_run
from pacpfl.report.page import write_report
from pacpfl.report.style import COLOURS, DARK_COLOURS, INK

NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "München/東京 & co",
    "$x_1$ {{ 7*7 }} {% raw %}",
    "two\nlines",
)


def value(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-"))


def test_the_table_of_measures_is_metrics_json(polynomial_page: Path) -> None:
    metrics = json.loads((polynomial_page.parent / "metrics.json").read_text())
    titles = {"PAC-PFL": "pacpfl", "GP per client": "vanilla", "One GP on pooled data": "pooled"}
    table = read_page(polynomial_page).one("table", id="measures")
    for body, group in zip(table.all("tbody"), ("existing", "new"), strict=True):
        rows = body.all("tr")[1:]
        assert [row.one("th").text for row in rows] == list(titles)
        columns = zip(*([cell.text for cell in row.all("td")] for row in rows), strict=True)
        keys = ("rsmse", "ce", "nll", "crps", "coverage_90", "width_90")
        for cells, key in zip(columns, keys, strict=True):
            entries = [metrics[method][group][key] for method in titles.values()]
            shown = [[value(t) for t in text.replace("★ best ", "").split(" ± ")] for text in cells]
            expected = [(entry["mean"], entry["ci95"]) for entry in entries]
            np.testing.assert_allclose(shown, expected, atol=0.000501, rtol=0)
            gaps = [abs(mean - 0.9) if key == "coverage_90" else mean for mean, _ in expected]
            best = [number == int(np.argmin(gaps)) for number in range(3)]
            assert ["best" in text for text in cells] == (
                best if key != "width_90" else [False] * 3
            )


def test_the_table_of_clients_is_clients_csv(mixture: Path) -> None:
    table = read_page(pages.render(read_run(mixture), [])).one("table", class_="sortable")
    headers = [header.one("button").text for header in table.one("thead").all("th")]
    assert headers == [
        "Client", "Group", "Kind", "Samples", "Test points", "RSMSE", "RSMSE alone", "Gain", "CE",
        "NLL", "CRPS", "90% coverage", "90% width",
    ]  # fmt: skip
    with (mixture / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = {(row["method"], row["client"]): row for row in csv.DictReader(file)}
    shown = table.one("tbody").all("tr")
    assert len(shown) == 48
    for line in shown:
        cells = [cell for cell in line.children if not isinstance(cell, str)]
        main, alone = (rows[method, cells[0].text] for method in ("pacpfl", "vanilla"))
        assert cells[0].one("a").attributes["href"] == f"#client={main['group']}/{main['client']}"
        assert [cell.text for cell in cells[1:3]] == [main["group"], main["kind"]]
        gain = 1 - float(main["rsmse"]) / float(alone["rsmse"])
        assert cells[7].text.startswith("\N{MINUS SIGN}") == (round(100 * gain) < 0)
        measured = [main[key] for key in ("ce", "nll", "crps", "coverage_90", "width_90")]
        expected = [main["samples"], main["test"], main["rsmse"], alone["rsmse"], gain, *measured]
        for cell, number in zip(cells[3:], map(float, expected), strict=True):
            assert float(cell.attributes["data-value"]) == pytest.approx(number, rel=1e-12)
            shares = cell.text.endswith("%")
            told = value(cell.text.rstrip("%")) / (100 if shares else 1)
            assert told == pytest.approx(number, abs=0.00501 if shares else 0.000501)


def test_every_figure_is_explained_and_beside_the_page_as_files(polynomial_page: Path) -> None:
    names = [
        "gains", "boxes", "calibration", "bands_existing", "bands_new", "training", "diversity",
        "weights",
    ]  # fmt: skip
    figures = read_page(polynomial_page).all("figure")
    assert [figure.attributes["id"] for figure in figures] == [f"figure-{name}" for name in names]
    for figure in figures:
        drawing = figure.one("svg")
        assert drawing.attributes["role"] == "img"
        assert len(drawing.all("path")) > 5
    folder = polynomial_page.parent / "figures"
    assert len(list(folder.iterdir())) == 2 * len(names)
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.fromstring((folder / f"{name}.svg").read_text(encoding="utf-8"))


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "images"])
def test_the_page_needs_nothing_from_outside(
    polynomial_page: Path, tmp_path: Path, classes: bool
) -> None:
    text = polynomial_page.read_text(encoding="utf-8")
    if classes:
        run = read_run(make_class_run(tmp_path / "digits"))
        text = pages.render(run, pages.draw(run))
        assert text.count('href="data:image/png;base64,') == 24
    assert not re.search(
        r"https?:|[^/]//[a-z]|@import|@font-face", re.sub('base64,[^"]*', "", text)
    )
    for element in read_page(text).all():
        for name in ("src", "href"):
            target = element.attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), target
    for target in re.findall(r"url\(([^)]*)\)", text):
        assert target.startswith("#")


def test_ids_occur_once_and_every_link_leads_somewhere(polynomial_page: Path) -> None:
    page = read_page(polynomial_page)
    ids = Counter(e.attributes["id"] for e in page.all() if "id" in e.attributes)
    assert not [name for name, times in ids.items() if times > 1]
    for element in page.all():
        target = element.attributes.get("href", "")
        if target.startswith("#") and not target.startswith("#client="):
            assert target[1:] in ids
        for name in re.findall(r"url\(#([^)]*)\)", " ".join(element.attributes.values())):
            assert name in ids
        for name in element.attributes.get("aria-labelledby", "").split():
            assert name in ids


def test_the_page_can_be_found_ones_way_in(polynomial_page: Path) -> None:
    page = read_page(polynomial_page)
    assert page.one("html").attributes["lang"] == "en"
    for landmark in ("title", "header", "nav", "main", "footer", "h1"):
        page.one(landmark)
    assert page.one("body").all("a")[0].attributes["href"] == "#main"
    for header in page.one("table", class_="sortable").one("thead").all("th"):
        assert (header.attributes["scope"], header.attributes["aria-sort"]) == ("col", "none")
        assert header.one("button").attributes["type"] == "button"


def test_inline_figures_follow_the_text_and_theme(polynomial_page: Path) -> None:
    text = polynomial_page.read_text(encoding="utf-8")
    drawings = re.findall(r"<svg [^>]*viewBox.*?</svg>", text, flags=re.S)
    assert len(drawings) == 8
    for drawing in drawings:
        assert "currentColor" in drawing
        assert INK not in drawing
        assert not set(re.findall(r"#[0-9a-f]{6}\b", drawing)), "a colour that knows one theme"
        assert "<style" not in drawing and "<metadata" not in drawing
    for saved in (polynomial_page.parent / "figures").glob("*.svg"):
        content = saved.read_text(encoding="utf-8")
        assert INK in content
        assert "dc:date" not in content


def luminance(colour: str) -> float:
    values = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)]
    return float(np.dot([0.2126, 0.7152, 0.0722], values))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colours_of_methods_stand_out_in_both_themes(polynomial_page: Path, theme: str) -> None:
    style = polynomial_page.read_text(encoding="utf-8").split("</style>")[0]
    blocks = re.findall(r":root[^{}]* \{([^{}]*--page[^{}]*)\}", style, flags=re.S)
    assert len(blocks) == 3, "light, dark as the device wishes, dark as the reader wishes"
    assert blocks[1] == blocks[2]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", blocks[theme == "dark"]))
    for number, colour in enumerate(DARK_COLOURS if theme == "dark" else COLOURS):
        assert colours[f"colour-{number}"] == colour
        dark, bright = sorted(map(luminance, (colour, colours["page"])))
        assert (bright + 0.05) / (dark + 0.05) >= 3


def test_whatever_a_client_is_called_it_stays_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pacpfl.report.figures.DRAWN_CLIENTS", 6)
    folder = make_run(tmp_path / "run", clients=6, names=NASTY, components=2)
    with changing(folder / "run.json") as record:
        record |= {"dataset": "<b>bold</b>", "machine": "<script>alert(3)</script>"}
        record["clients"]["target"] = "</svg><script>alert(4)</script>"
        record["methods"]["vanilla"]["title"] = "<i>GP</i>"
    (folder / "config.toml").write_text('name = "</pre><script>alert(5)</script>"\n')
    page = read_page(write_report(folder))
    data, program = page.all("script")
    assert data.attributes == {"type": "application/json", "id": "panel-data"}
    assert program.attributes == {}
    assert [c["name"] for c in json.loads(data.children[0])["clients"][:5]] == list(NASTY)
    assert not page.all("img") and not page.all("b") and not page.all("i")
    assert page.one("h1").text == "<b>bold</b>"
    table = page.one("table", class_="sortable")
    names = [row.all("th")[0].attributes["data-value"] for row in table.one("tbody").all("tr")]
    assert names[:5] == list(NASTY)
    drawing = page.one("figure", id="figure-bands_existing").one("svg")
    assert {NASTY[0], NASTY[2], NASTY[3]} <= {text.text for text in drawing.all("text")}
    assert NASTY[1] in drawing.attributes["aria-label"]
    assert page.one("pre").text == 'name = "</pre><script>alert(5)</script>"'


def test_two_reports_of_one_run_are_the_same_bytes(polynomial_page: Path, tmp_path: Path) -> None:
    again = write_report(Path(shutil.copytree(polynomial_page.parent, tmp_path / "polynomial")))
    assert again.read_bytes() == polynomial_page.read_bytes()
    for path in sorted((polynomial_page.parent / "figures").iterdir()):
        assert (again.parent / "figures" / path.name).read_bytes() == path.read_bytes()


def test_sections_without_material_are_left_out(tmp_path: Path) -> None:
    without = ("panels/", "weights/", "diversity/", "curve/")
    page = read_page(write_report(make_run(tmp_path / "run", clients=4, without=without)))
    sections = [section.attributes["id"] for section in page.all("section")]
    assert sections == ["gains", "warnings", "results", "calibration", "clients", "details"]
    links = [link.attributes["href"] for link in page.one("nav").all("a")]
    assert links == [f"#{section}" for section in sections]


def test_the_least_a_run_can_hold(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", clients=2, methods=("fedavg",), groups=("existing",))
    (folder / "arrays.safetensors").unlink()
    (folder / "config.toml").unlink()
    (folder / "run.json").write_text('{"methods": {"fedavg": {}}}')
    page = read_page(write_report(folder))
    assert page.one("h1").text == "run"
    assert [figure.attributes["id"] for figure in page.all("figure")] == ["figure-boxes"]
    assert not page.all("details")
    table = page.one("table", id="measures")
    assert [cell.text.split()[0] for cell in table.one("thead").all("th")] == ["Method", "RSMSE"]


def test_so_many_clients_are_shown_and_the_rest_counted(
    polynomial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pacpfl.report.page.CLIENTS_SHOWN", 30)
    section = read_page(pages.render(read_run(polynomial), [])).one("section", id="clients")
    assert len(section.one("tbody").all("tr")) == 30
    assert "18 further clients are in clients.csv." in section.text


def test_a_strictly_private_run_lists_only_new_clients(tmp_path: Path) -> None:
    """What was measured on the data it learned from is left out of the folder; the counts are not."""
    run = read_run(make_run(tmp_path / "run", clients=3))
    kept = run.clients[run.clients["group"] == "new"].reset_index(drop=True)
    strict = replace(run, clients=kept)
    page = read_page(pages.render(strict, []))
    assert "learned from 3 clients" in page.one("dl", id="summary").text
    assert page.one("ul", class_="about").text.startswith("3 existing + 3 new clients")
    assert len(page.one("table", class_="sortable").one("tbody").all("tr")) == 3
    assert "0 clients" not in pages.render(replace(run, clients=kept[:0]), [])
