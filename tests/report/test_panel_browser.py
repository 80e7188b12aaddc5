"""Clients in a real browser: filtered, opened, walked through, kept, printed; dark, narrow, many."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from folders import changing, make_class_run, make_run

pytest.importorskip("selenium", reason="The page is tried with the Python package selenium.")
from browsing import Browser
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pacpfl.report import page as pages
from pacpfl.report.folder import Run, read_run
from pacpfl.report.judge import judge

NASTY = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "it's 100% / a&b #1", "")
TITLES = "[...document.querySelectorAll('{}')].map(title => title.textContent)"
CONTRAST = """
const luminance = (c) => {
  const [r, g, b] = c.map((v) => v / 255).map((v) =>
    v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const read = (text) => {
  const parts = text.match(/[\\d.]+/g).map(Number);
  return [parts.slice(0, 3), parts.length > 3 ? parts[3] : 1];
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const [colour, alpha] = read(getComputedStyle(at).backgroundColor);
    if (alpha === 1) return colour;
    if (alpha > 0) throw new Error("half transparent: " + at.outerHTML.slice(0, 80));
  }
  return [255, 255, 255];
};
const found = [];
for (const element of document.querySelectorAll(arguments[0])) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || element.closest("script, style, title, noscript") || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const [colour, alpha] = read(element instanceof SVGElement ? style.fill : style.color);
  const a = luminance(colour);
  const b = luminance(behind(element));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  found.push([alpha * Number(style.opacity) < 1 ? 0 : ratio, element.outerHTML.slice(0, 120)]);
}
return found;
"""


def page_of(run: Run, folder: Path) -> Path:
    """The page without the large figures, which other tests look at."""
    path = folder / "report.html"
    path.write_text(pages.render(run, []), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two groups of six, a mixture prior, one client over-confident and one better off alone."""
    folder = tmp_path_factory.mktemp("panel_pages") / "run"
    run = read_run(make_run(folder, clients=6, components=2))
    run.clients.loc[0, "coverage_90"] = 0.5
    run.arrays["gain/vanilla/existing"][1] = [60, -60, 61]
    for method, error in (("pacpfl", 0.6), ("vanilla", 0.5)):
        row = run.rows(method, "existing").index[1]
        run.clients.loc[row, "rsmse"] = error
    return run


@pytest.fixture(scope="module")
def address(run: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(run, tmp_path_factory.mktemp("panel_page")).as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Browser:
    browser.load(address)
    return browser


def test_a_click_opens_the_panel_and_the_button_closes_it(page: Browser) -> None:
    assert page.opened == ""
    page.choose("existing-03")
    panel = page.one("#panel")
    titles = [title.text for title in page.all("h4", panel)]
    assert titles == [
        "Predictions", "Calibration", "RSMSE with each method", "Mixture weights", "Which kind it is",
    ]  # fmt: skip
    for drawing in page.all("svg", panel):
        assert drawing.get_attribute("role") == "img"
        assert "existing-03" in (drawing.get_attribute("aria-label") or "")
        assert drawing.size["width"] > 200 and drawing.size["height"] > 40
    # The driver hears of a new address a moment after the page has it.
    page.wait(lambda: page.current_url.endswith("#client=existing/existing-03"))
    page.close_panel()
    page.wait(lambda: "#" not in page.current_url)
    page.wait(lambda: page.focused.text == "existing-03")
    page.all("table.sortable tbody tr:nth-child(5) td")[3].click()  # anywhere in a row
    page.wait(lambda: page.opened == "existing-05")
    assert page.get_log("browser") == []


def heights(path: Any) -> np.ndarray:
    """How far down the points of a drawn line lie."""
    pairs = path.get_attribute("d").replace("M", "L").split("L")[1:]
    return np.array([float(pair.split(",")[1]) for pair in pairs])


def test_what_is_drawn_is_what_was_predicted(page: Browser, run: Run) -> None:
    page.choose("new-02")
    place = run.names("new").index("new-02")
    y, mean = (run.arrays[f"panels/new/{k}"][40 * place : 40 * place + 40] for k in ("y", "mean"))
    rings = [float(r.get_attribute("cy") or "") for r in page.all("#panel .wide-figure .ring")]
    # One straight line leads from every value to its height, downwards.
    slope, offset = np.polyfit(y, rings, 1)
    assert slope < 0
    np.testing.assert_allclose(slope * y + offset, rings, atol=0.2)
    drawn = heights(page.one("#panel .wide-figure .line-0"))
    np.testing.assert_allclose(slope * mean + offset, drawn, atol=0.3)
    assert len(page.all("#panel .wide-figure .dot")) == 10
    lines = page.all("#panel figure:nth-of-type(2) path:not(.perfect)")
    assert [line.get_attribute("class") for line in lines] == ["line-0", "line-1 thin"]
    for line, method in zip(lines, ("pacpfl", "vanilla"), strict=True):
        high, curve = heights(line), run.arrays[f"calibration/{method}/new"][place]
        shares = (high[0] - high) / (high[0] - high[-1])
        np.testing.assert_allclose(shares, (curve - curve[0]) / (curve[-1] - curve[0]), atol=2e-3)
    labels = [drawing.get_attribute("aria-label") or "" for drawing in page.all("#panel svg")]
    (shown,) = [label for label in labels if label.startswith("Mixture weights")]
    for number, weight in enumerate(run.arrays["weights/new"][place]):
        assert f"particle {number + 1} {weight:.0%}" in shown
    table = page.one("#panel table").text
    for method, title in run.titles.items():
        row = run.rows(method, "new").set_index("client").loc["new-02"]
        assert f"{title} {row['rsmse']:.3f} {row['ce']:.3f}" in table


def test_the_keyboard_alone_is_enough(page: Browser) -> None:
    page.all("table.sortable thead button")[-1].send_keys(Keys.TAB)
    assert page.focused.text == "existing-01"
    assert page.js("getComputedStyle(document.activeElement).outlineStyle") != "none"
    for key, reached in (
        (Keys.ARROW_DOWN, "existing-02"), (Keys.END, "new-06"), (Keys.ARROW_DOWN, "new-06"),
        (Keys.HOME, "existing-01"), (Keys.ARROW_UP, "existing-01"),
    ):  # fmt: skip
        page.press(key)
        assert page.focused.text == reached
    page.press(Keys.ENTER)
    page.wait(lambda: page.opened == "existing-01")
    page.wait(lambda: page.focused.get_attribute("id") == "panel-title")
    page.press(Keys.ARROW_RIGHT)
    page.wait(lambda: page.opened == "existing-02")
    page.press(Keys.ARROW_LEFT)
    page.press(Keys.ARROW_LEFT)
    page.wait(lambda: page.opened == "new-06")
    page.wait(lambda: page.current_url.endswith("#client=new/new-06"))
    page.press(Keys.ESCAPE)
    page.wait(lambda: page.opened == "")
    # The browser gives the focus back where it was before the dialog; the page moves it a moment later.
    page.wait(lambda: page.focused.text == "new-06")
    # One stop of the Tab key for all clients: from the one last visited it leaves the table.
    assert len([link for link in page.all("tbody th a") if link.get_property("tabIndex") == 0]) == 1


def test_arrows_follow_the_order_and_the_filter_of_the_table(page: Browser) -> None:
    page.select("group", "new")
    page.find_element(By.XPATH, "//button[text()='NLL']").click()
    order = page.names
    assert sorted(order) == [f"new-0{n}" for n in range(1, 7)] != order
    page.choose(order[0])
    for name in [*order[1:], order[0]]:
        page.one("#panel-next").click()
        assert page.opened == name
    assert page.focused.get_attribute("id") == "panel-next"
    page.one("#panel-previous").click()
    assert page.opened == order[-1]


def test_the_table_is_filtered_by_name_group_and_state(page: Browser, run: Run) -> None:
    count = page.one("#filter-count")
    assert count.text == "12 of 12 clients"
    field = page.one("#filter-text")
    field.send_keys("-03")
    assert page.names == ["existing-03", "new-03"]
    assert count.text == "2 of 12 clients"
    page.select("group", "existing")
    assert page.names == ["existing-03"]
    field.clear()
    page.select("group", "all")
    page.select("state", "with a note")
    assert page.names == ["existing-01", "existing-02"]
    page.select("state", "better alone")
    assert page.names == list(judge(run).query("gain < 0")["name"])
    assert "existing-02" in page.names
    page.select("state", "all")
    assert len(page.names) == 12
    field.send_keys(Keys.ENTER)  # a form that is sent would leave the page
    assert len(page.names) == 12


@pytest.mark.parametrize("end", ["#client=new/new-04", "#client=new-04", "#client=new%2Fnew-04"])
def test_a_link_opens_the_client_it_names(browser: Browser, address: str, end: str) -> None:
    browser.load(address + end)
    assert browser.opened == "new-04"


def test_a_link_to_nobody_and_the_way_back(page: Browser) -> None:
    page.execute_script("location.hash = '#client=nobody'")
    status = page.one("#clients-status")
    page.wait(lambda: "no client of this name" in (status.get_property("textContent") or ""))
    page.execute_script("location.hash = '#client=%'")  # no valid name at all
    page.choose("new-01")
    page.back()
    page.wait(lambda: page.opened == "")
    assert page.get_log("browser") == []


def test_the_reader_chooses_the_colours_and_they_are_remembered(
    browser: Browser, address: str
) -> None:
    colours = "getComputedStyle(document.body).backgroundColor"
    for wished, other in (("light", "dark"), ("dark", "light")):
        browser.load(address, theme=wished)
        browser.refresh()
        button = browser.one("#theme")
        before = browser.js(colours)
        assert button.text == f"{other.capitalize()} colours"
        button.click()
        chosen = browser.js(colours)
        assert chosen != before
        assert button.text == f"{wished.capitalize()} colours"
        browser.refresh()
        assert browser.js(colours) == chosen
    assert {before, chosen} == {"rgb(252, 251, 249)", "rgb(21, 24, 29)"}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("chosen", [False, True], ids=["as the device", "as the reader"])
def test_every_text_can_be_read(browser: Browser, address: str, theme: str, chosen: bool) -> None:
    """WCAG's contrast of at least 4.5, from the colours the browser computes."""
    device = {"light": "dark", "dark": "light"}[theme] if chosen else theme
    browser.load(address, theme=device)
    if chosen:
        browser.refresh()
        browser.one("#theme").click()
    browser.choose("existing-02")
    browser.one("#panel-keep").click()
    (warning,) = browser.all("#panel .caution")
    assert "better alone" in warning.text and "20% more error" in browser.one("#panel").text
    found = browser.execute_script(CONTRAST, "body *")
    assert len(found) > 300
    poor = [entry for entry in found if entry[0] < 4.5]
    assert not poor, poor[:5]


def test_on_a_narrow_screen_everything_is_within_reach(browser: Browser, address: str) -> None:
    browser.load(address, width=360)
    wide = "document.documentElement.scrollWidth"
    assert browser.js(wide) <= 360
    browser.choose("existing-02")
    assert browser.js(wide) <= 360
    panel = browser.one("#panel")
    assert panel.rect["width"] == 360
    assert browser.js("arguments[0].scrollWidth", panel) <= 360
    for element in browser.all("button, svg, h2, figcaption", panel):
        assert element.rect["x"] >= 0 and element.rect["x"] + element.rect["width"] <= 360
    browser.execute_script("arguments[0].scrollTop = 1e6", panel)
    button = browser.one("#panel-close")
    top = browser.js("arguments[0].getBoundingClientRect().top", button)
    assert 0 <= top < 60
    browser.close_panel()


def test_kept_panels_stand_on_the_page_and_are_printed(page: Browser) -> None:
    page.choose("existing-01")
    keep = page.one("#panel-keep")
    keep.click()
    assert (keep.get_attribute("aria-pressed"), keep.text) == ("true", "Kept on the page")
    page.one("#panel-next").click()
    assert keep.get_attribute("aria-pressed") == "false"
    shown = TITLES.format("#chosen article > h4")
    assert page.js(shown) == ["existing-01"]
    # Who prints with a panel open finds it on the paper, and not on the page afterwards.
    page.execute_script(f"addEventListener('beforeprint', () => {{ window.printed = {shown} }})")
    document = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert document.startswith(b"%PDF-")
    assert page.js("window.printed") == ["existing-01", "existing-02"]
    assert page.js(shown) == ["existing-01"]
    page.one("#panel-close").click()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    display = "getComputedStyle(document.querySelector(arguments[0])).display"
    for left_out in ("#filter", "#theme", "dialog", "nav", ".remove"):
        assert page.js(display, left_out) == "none", left_out
    assert page.js(display, "#chosen") == "block"
    page.show(width=1100, theme="light")
    page.one("#chosen .remove").click()
    assert page.js(shown) == []
    assert page.js(display, "#chosen") == "none"


def test_names_stay_text_wherever_they_appear(browser: Browser, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", clients=4, names=NASTY[:3], groups=("existing",))
    with changing(folder / "run.json") as record:
        record["methods"]["vanilla"]["title"] = "<i>GP</i>"
        record["clients"]["target"] = "</script><b>y</b>"
    address = page_of(read_run(folder), tmp_path).as_uri()
    for name in NASTY[:3]:
        browser.load(f"{address}#client=existing/{quote(name, safe='')}")
        assert browser.opened == name
        browser.one("#panel-keep").click()
        assert not browser.all("main :is(img, b, i, script)")
        title = browser.one("#chosen article > h4")
        assert title.get_property("textContent") == name
        assert "</script><b>y</b>" in browser.js(TITLES.format("#panel svg text"))
        browser.close_panel()
        active = "document.activeElement.textContent"
        browser.wait(lambda name=name, active=active: browser.js(active) == name)
    assert browser.get_log("browser") == []


def test_five_hundred_clients_are_quick(browser: Browser, tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", clients=5, copies=50))
    browser.load(page_of(run, tmp_path).as_uri())
    assert browser.js("visible.length") == 500
    milliseconds = browser.execute_script(
        "const start = performance.now();"
        "document.querySelectorAll('table.sortable thead button')[5].click();"
        "const field = document.getElementById('filter-text');"
        "field.value = 'new'; field.dispatchEvent(new Event('input', { bubbles: true }));"
        "for (let n = 0; n < 20; n += 1) {"
        "  location.hash = report.clients[n].link; follow(); step(1); }"
        "return performance.now() - start"
    )
    assert milliseconds < 5000, "sorted, filtered, and forty panels asked for"
    assert browser.js("visible.length") == 250
    assert browser.js("performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []


def test_a_run_without_predictions_says_so(browser: Browser, tmp_path: Path) -> None:
    without = ("panels/", "gain/", "weights/", "calibration/")
    folder = make_run(tmp_path / "run", clients=2, without=without, methods=("pacpfl", "pooled"))
    browser.load(page_of(read_run(folder), tmp_path).as_uri() + "#client=existing-01")
    text = browser.one("#panel").text
    assert "This run kept no predictions of this client" in text
    assert "no method that goes alone was run" in text
    assert browser.get_log("browser") == []


def test_classes_are_shown_with_their_accuracy_and_wrong_answers(
    browser: Browser, tmp_path: Path
) -> None:
    run = read_run(make_class_run(tmp_path / "run", methods=("pacpfl", "vanilla")))
    run.arrays["weights/existing"] = np.repeat([[0.5, 0.5], [0.99, 0.01]], 6, axis=0)
    browser.load(page_of(run, tmp_path).as_uri() + "#client=existing-05")
    panel = browser.one("#panel")
    assert [title.text for title in browser.all("h4", panel)] == [
        "How sure and how often right", "Accuracy with each method", "Mixture weights",
        "Accuracy for each class", "Wrong answers",
    ]  # fmt: skip
    drawings = browser.all("svg", panel)
    labels = [drawing.get_attribute("aria-label") for drawing in drawings]
    bins = run.arrays["calibration/pacpfl/existing"][5].reshape(5, 4, 3).sum(axis=1)
    parts = [
        f"of {n:.0f} answers {sure / n:.0%} sure {k:.0f} are right" for n, k, sure in bins if n
    ]
    assert labels[0] == f"Reliability of existing-05: {', '.join(parts)}."
    counts = enumerate(run.arrays["classes/existing"][5])
    parts = [f"class {name} {right} of {count}" for name, (count, right) in counts if count]
    assert labels[3] == f"Test samples named rightly, of existing-05: {', '.join(parts)}."
    owner, truth, answers, sure, pixels = (
        run.arrays[f"panels/existing/errors/{key}"]
        for key in ("client", "labels", "answers", "confidence", "images")
    )
    images = browser.all("canvas", panel)
    assert [image.get_attribute("aria-label") for image in images] == [
        f"Image of a {truth[n]} taken for {answers[n]}, {sure[n]:.0%} sure"
        for n in np.flatnonzero(owner == 5)
    ]
    painted = browser.js(
        "[...arguments[0].getContext('2d').getImageData(0, 0, 8, 8).data]", images[0]
    )
    ink = pixels[owner == 5][0] / pixels[owner == 5][0].max()  # dark on light paper
    np.testing.assert_allclose(np.reshape(painted, (8, 8, 4))[..., 0], 255 * (1 - ink), atol=3)
    panel.send_keys(Keys.ARROW_RIGHT)
    assert browser.opened == "existing-06"
    assert len(browser.all("canvas", panel)) == (owner == 6).sum()
    assert "It relies on one particle, number 1 (99% of the weight)." in panel.text
    assert browser.get_log("browser") == []
