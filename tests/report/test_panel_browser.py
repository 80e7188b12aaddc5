"""Clients in a real browser: filtered, opened, walked through, kept, printed; dark, narrow, many."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from folders import make_class_run, make_run

pytest.importorskip("selenium", reason="The page is tried with the Python package selenium.")
from browsing import show, wait
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from pacpfl.report import page as pages
from pacpfl.report.folder import Run, read_run
from pacpfl.report.judge import judge

NASTY = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "it's 100% / a&b #1", "")
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
    run = read_run(
        make_run(tmp_path_factory.mktemp("panel_pages") / "run", clients=6, components=2)
    )
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
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    load(browser, address)
    return browser


def load(browser: webdriver.Chrome, address: str, width: int = 1100, theme: str = "light") -> None:
    """Freshly: an address that differs in its end only would not be loaded again."""
    show(browser, width=width, theme=theme)
    browser.get("about:blank")
    browser.get(address)
    browser.execute_script("try { localStorage.clear(); } catch {}")


def opened(browser: webdriver.Chrome) -> str:
    """The name of the client whose panel is open; empty when none is."""
    return browser.execute_script(
        "return document.getElementById('panel').open"
        " ? document.getElementById('panel-title').textContent : ''"
    )


def names(browser: webdriver.Chrome) -> list[str]:
    """The clients of the table that are not filtered away, from top to bottom."""
    return browser.execute_script(
        "return [...document.querySelectorAll('table.sortable tbody tr')]"
        ".filter(row => !row.hidden).map(row => row.cells[0].dataset.value)"
    )


def close(browser: webdriver.Chrome) -> None:
    browser.find_element(By.ID, "panel-close").click()
    wait(browser, lambda: opened(browser) == "")


def focused(browser: webdriver.Chrome) -> str:
    return browser.switch_to.active_element.text


def choose(browser: webdriver.Chrome, name: str) -> None:
    """Click on a client's name, and wait for its panel."""
    browser.find_element(By.LINK_TEXT, name).click()
    wait(browser, lambda: opened(browser) == name)


def test_a_click_opens_the_panel_and_the_button_closes_it(page: webdriver.Chrome) -> None:
    assert opened(page) == ""
    choose(page, "existing-03")
    panel = page.find_element(By.ID, "panel")
    titles = [title.text for title in panel.find_elements(By.TAG_NAME, "h4")]
    assert titles == [
        "Predictions", "Calibration", "RSMSE with each method", "Mixture weights", "Which kind it is",
    ]  # fmt: skip
    for drawing in panel.find_elements(By.TAG_NAME, "svg"):
        assert drawing.get_attribute("role") == "img"
        assert "existing-03" in (drawing.get_attribute("aria-label") or "")
        assert drawing.size["width"] > 200 and drawing.size["height"] > 40
    # The driver hears of a new address a moment after the page has it.
    wait(page, lambda: page.current_url.endswith("#client=existing/existing-03"))
    close(page)
    wait(page, lambda: "#" not in page.current_url)
    wait(page, lambda: focused(page) == "existing-03")
    assert page.get_log("browser") == []


def test_a_click_anywhere_in_a_row_opens_it(page: webdriver.Chrome) -> None:
    row = page.find_elements(By.CSS_SELECTOR, "table.sortable tbody tr")[4]
    row.find_elements(By.TAG_NAME, "td")[3].click()
    wait(page, lambda: opened(page) == "existing-05")


def test_what_is_drawn_is_what_was_predicted(page: webdriver.Chrome, run: Run) -> None:
    choose(page, "new-02")
    place = run.names("new").index("new-02")
    part = slice(40 * place, 40 * place + 40)
    heights = page.execute_script(
        "return [...document.querySelectorAll('#panel .wide-figure .ring')]"
        ".map(ring => Number(ring.getAttribute('cy')))"
    )
    y = run.arrays["panels/new/y"][part]
    assert len(heights) == len(y)
    # One straight line leads from every value to its height, downwards.
    slope, offset = np.polyfit(y, heights, 1)
    assert slope < 0
    np.testing.assert_allclose(slope * y + offset, heights, atol=0.2)
    path = page.find_element(By.CSS_SELECTOR, "#panel .wide-figure .line-0").get_attribute("d")
    drawn = [float(pair.split(",")[1]) for pair in (path or "").replace("M", "L").split("L")[1:]]
    mean = run.arrays["panels/new/mean"][part]
    np.testing.assert_allclose(slope * mean + offset, drawn, atol=0.3)
    dots = page.find_elements(By.CSS_SELECTOR, "#panel .wide-figure .dot")
    assert len(dots) == 10
    lines = page.find_elements(By.CSS_SELECTOR, "#panel figure:nth-of-type(2) path:not(.perfect)")
    assert [line.get_attribute("class") for line in lines] == ["line-0", "line-1 thin"]
    for line, method in zip(lines, ("pacpfl", "vanilla"), strict=True):
        pairs = (line.get_attribute("d") or "").replace("M", "L").split("L")[1:]
        high = [float(pair.split(",")[1]) for pair in pairs]
        curve = run.arrays[f"calibration/{method}/new"][place]
        shares = (high[0] - np.array(high)) / (high[0] - high[-1])
        np.testing.assert_allclose(shares, (curve - curve[0]) / (curve[-1] - curve[0]), atol=2e-3)
    weights = run.arrays["weights/new"][place]
    figures = page.find_elements(By.CSS_SELECTOR, "#panel figure")
    (shown,) = [figure for figure in figures if "Mixture weights" in figure.text]
    for number, weight in enumerate(weights):
        assert f"particle {number + 1} {weight:.0%}" in (
            shown.find_element(By.TAG_NAME, "svg").get_attribute("aria-label") or ""
        )
    table = page.find_element(By.CSS_SELECTOR, "#panel table").text
    for method, title in run.titles.items():
        row = run.rows(method, "new").set_index("client").loc["new-02"]
        assert f"{title} {row['rsmse']:.3f} {row['ce']:.3f}" in table


def test_the_keyboard_alone_is_enough(page: webdriver.Chrome) -> None:
    last = page.find_elements(By.CSS_SELECTOR, "table.sortable thead button")[-1]
    last.send_keys(Keys.TAB)
    assert focused(page) == "existing-01"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.execute_script(outline) != "none"
    press = lambda key: page.switch_to.active_element.send_keys(key)  # noqa: E731
    press(Keys.ARROW_DOWN)
    assert focused(page) == "existing-02"
    press(Keys.END)
    assert focused(page) == "new-06"
    press(Keys.ARROW_DOWN)
    assert focused(page) == "new-06"
    press(Keys.HOME)
    press(Keys.ARROW_UP)
    assert focused(page) == "existing-01"
    press(Keys.ENTER)
    wait(page, lambda: opened(page) == "existing-01")
    wait(page, lambda: page.switch_to.active_element.get_attribute("id") == "panel-title")
    press(Keys.ARROW_RIGHT)
    wait(page, lambda: opened(page) == "existing-02")
    press(Keys.ARROW_LEFT)
    press(Keys.ARROW_LEFT)
    wait(page, lambda: opened(page) == "new-06")
    wait(page, lambda: page.current_url.endswith("#client=new/new-06"))
    press(Keys.ESCAPE)
    wait(page, lambda: opened(page) == "")
    # The browser gives the focus back where it was before the dialog; the page moves it a moment later.
    wait(page, lambda: focused(page) == "new-06")
    # One stop of the Tab key for all clients: from the one last visited it leaves the table.
    tabbable = (
        "return [...document.querySelectorAll('tbody th a')].filter(a => a.tabIndex === 0).length"
    )
    assert page.execute_script(tabbable) == 1


def test_arrows_follow_the_order_and_the_filter_of_the_table(page: webdriver.Chrome) -> None:
    Select(page.find_element(By.ID, "filter-group")).select_by_visible_text("new")
    header = page.find_element(By.XPATH, "//button[text()='NLL']")
    header.click()
    order = names(page)
    assert sorted(order) == [f"new-0{n}" for n in range(1, 7)] != order
    choose(page, order[0])
    for name in [*order[1:], order[0]]:
        page.find_element(By.ID, "panel-next").click()
        assert opened(page) == name
    assert page.switch_to.active_element.get_attribute("id") == "panel-next"
    page.find_element(By.ID, "panel-previous").click()
    assert opened(page) == order[-1]


def test_the_table_is_filtered_by_name_group_and_state(page: webdriver.Chrome, run: Run) -> None:
    count = page.find_element(By.ID, "filter-count")
    assert count.text == "12 of 12 clients"
    field = page.find_element(By.ID, "filter-text")
    field.send_keys("-03")
    assert names(page) == ["existing-03", "new-03"]
    assert count.text == "2 of 12 clients"
    Select(page.find_element(By.ID, "filter-group")).select_by_visible_text("existing")
    assert names(page) == ["existing-03"]
    field.clear()
    Select(page.find_element(By.ID, "filter-group")).select_by_visible_text("all")
    state = Select(page.find_element(By.ID, "filter-state"))
    state.select_by_visible_text("with a note")
    assert names(page) == ["existing-01", "existing-02"]
    state.select_by_visible_text("better alone")
    assert names(page) == [client.name for client in judge(run) if client.gain < 0]
    assert "existing-02" in names(page)
    state.select_by_visible_text("all")
    assert len(names(page)) == 12
    field.send_keys(Keys.ENTER)  # a form that is sent would leave the page
    assert len(names(page)) == 12


def test_warnings_of_a_client_are_shown_first(page: webdriver.Chrome) -> None:
    choose(page, "existing-02")
    (warning,) = page.find_elements(By.CSS_SELECTOR, "#panel .caution")
    assert "better alone" in warning.text
    assert "20% more error" in page.find_element(By.ID, "panel").text


@pytest.mark.parametrize("end", ["#client=new/new-04", "#client=new-04", "#client=new%2Fnew-04"])
def test_a_link_opens_the_client_it_names(
    browser: webdriver.Chrome, address: str, end: str
) -> None:
    load(browser, address + end)
    assert opened(browser) == "new-04"


def test_a_link_to_nobody_and_the_way_back(page: webdriver.Chrome) -> None:
    page.execute_script("location.hash = '#client=nobody'")
    status = page.find_element(By.ID, "clients-status")
    wait(page, lambda: "no client of this name" in (status.get_property("textContent") or ""))
    page.execute_script("location.hash = '#client=%'")  # no valid name at all
    choose(page, "new-01")
    page.back()
    wait(page, lambda: opened(page) == "")
    assert page.get_log("browser") == []


def test_the_reader_chooses_the_colours_and_they_are_remembered(
    browser: webdriver.Chrome, address: str
) -> None:
    colours = "return getComputedStyle(document.body).backgroundColor"
    for wished, other in (("light", "dark"), ("dark", "light")):
        load(browser, address, theme=wished)
        browser.refresh()
        button = browser.find_element(By.ID, "theme")
        before = browser.execute_script(colours)
        assert button.text == f"{other.capitalize()} colours"
        button.click()
        chosen = browser.execute_script(colours)
        assert chosen != before
        assert button.text == f"{wished.capitalize()} colours"
        browser.refresh()
        assert browser.execute_script(colours) == chosen
    assert {before, chosen} == {"rgb(252, 251, 249)", "rgb(21, 24, 29)"}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("chosen", [False, True], ids=["as the device", "as the reader"])
def test_every_text_can_be_read(
    browser: webdriver.Chrome, address: str, theme: str, chosen: bool
) -> None:
    """WCAG's contrast of at least 4.5, from the colours the browser computes."""
    device = {"light": "dark", "dark": "light"}[theme] if chosen else theme
    load(browser, address, theme=device)
    if chosen:
        browser.refresh()
        browser.find_element(By.ID, "theme").click()
    choose(browser, "existing-02")
    browser.find_element(By.ID, "panel-keep").click()
    found = browser.execute_script(CONTRAST, "body *")
    assert len(found) > 300
    poor = [entry for entry in found if entry[0] < 4.5]
    assert not poor, poor[:5]


def test_on_a_narrow_screen_everything_is_within_reach(
    browser: webdriver.Chrome, address: str
) -> None:
    load(browser, address, width=360)
    wide = "return document.documentElement.scrollWidth"
    assert browser.execute_script(wide) <= 360
    choose(browser, "existing-02")
    assert browser.execute_script(wide) <= 360
    panel = browser.find_element(By.ID, "panel")
    assert panel.rect["width"] == 360
    assert browser.execute_script("return arguments[0].scrollWidth", panel) <= 360
    for element in panel.find_elements(By.CSS_SELECTOR, "button, svg, h2, figcaption"):
        assert element.rect["x"] >= 0 and element.rect["x"] + element.rect["width"] <= 360
    browser.execute_script("arguments[0].scrollTop = 1e6", panel)
    button = browser.find_element(By.ID, "panel-close")
    top = browser.execute_script("return arguments[0].getBoundingClientRect().top", button)
    assert 0 <= top < 60
    close(browser)


def test_kept_panels_stand_on_the_page_and_are_printed(page: webdriver.Chrome) -> None:
    choose(page, "existing-01")
    keep = page.find_element(By.ID, "panel-keep")
    keep.click()
    assert (keep.get_attribute("aria-pressed"), keep.text) == ("true", "Kept on the page")
    page.find_element(By.ID, "panel-next").click()
    assert keep.get_attribute("aria-pressed") == "false"
    shown = "return [...document.querySelectorAll('#chosen article > h4')].map(h => h.textContent)"
    assert page.execute_script(shown) == ["existing-01"]
    # Who prints with a panel open finds it on the paper, and not on the page afterwards.
    page.execute_script(
        "addEventListener('beforeprint', () => { window.printed = "
        "[...document.querySelectorAll('#chosen article > h4')].map(h => h.textContent) })"
    )
    document = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert document.startswith(b"%PDF-")
    assert page.execute_script("return window.printed") == ["existing-01", "existing-02"]
    assert page.execute_script(shown) == ["existing-01"]
    page.find_element(By.ID, "panel-close").click()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    display = "return getComputedStyle(document.querySelector(arguments[0])).display"
    for left_out in ("#filter", "#theme", "dialog", "nav", ".remove"):
        assert page.execute_script(display, left_out) == "none", left_out
    assert page.execute_script(display, "#chosen") == "block"
    show(page, width=1100, theme="light")
    page.find_element(By.CSS_SELECTOR, "#chosen .remove").click()
    assert page.execute_script(shown) == []
    assert page.execute_script(display, "#chosen") == "none"


def test_names_stay_text_wherever_they_appear(browser: webdriver.Chrome, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", clients=4, names=NASTY[:3], groups=("existing",))
    record = json.loads((folder / "run.json").read_text())
    record["methods"]["vanilla"]["title"] = "<i>GP</i>"
    record["clients"]["target"] = "</script><b>y</b>"
    (folder / "run.json").write_text(json.dumps(record))
    address = page_of(read_run(folder), tmp_path).as_uri()
    for name in NASTY[:3]:
        load(browser, f"{address}#client=existing/{quote(name, safe='')}")
        assert opened(browser) == name
        browser.find_element(By.ID, "panel-keep").click()
        assert not browser.find_elements(By.CSS_SELECTOR, "main :is(img, b, i, script)")
        title = browser.find_element(By.CSS_SELECTOR, "#chosen article > h4")
        assert title.get_property("textContent") == name
        texts = browser.execute_script(
            "return [...document.querySelectorAll('#panel svg text')].map(t => t.textContent)"
        )
        assert "</script><b>y</b>" in texts
        close(browser)
        active = "return document.activeElement.textContent"
        wait(browser, lambda name=name, active=active: browser.execute_script(active) == name)
    assert browser.get_log("browser") == []


def test_five_hundred_clients_are_quick(browser: webdriver.Chrome, tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", clients=5, copies=50))
    load(browser, page_of(run, tmp_path).as_uri())
    assert len(names(browser)) == 500
    milliseconds = browser.execute_script(
        "const start = performance.now();"
        "document.querySelectorAll('table.sortable thead button')[5].click();"
        "const field = document.getElementById('filter-text');"
        "field.value = 'new'; field.dispatchEvent(new Event('input', { bubbles: true }));"
        "for (let n = 0; n < 20; n += 1) {"
        "  location.hash = report.clients[n].link; follow(); step(1); }"
        "return performance.now() - start"
    )
    assert milliseconds < 5000, "sorted, filtered, and forty panels drawn"
    assert len(names(browser)) == 250
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []


def test_a_run_without_predictions_says_so(browser: webdriver.Chrome, tmp_path: Path) -> None:
    without = ("panels/", "gain/", "weights/", "calibration/")
    folder = make_run(tmp_path / "run", clients=2, without=without, methods=("pacpfl", "pooled"))
    load(browser, page_of(read_run(folder), tmp_path).as_uri() + "#client=existing-01")
    text = browser.find_element(By.ID, "panel").text
    assert "This run kept no predictions of this client" in text
    assert "no method that goes alone was run" in text
    assert browser.get_log("browser") == []


def test_classes_are_shown_with_their_accuracy_and_wrong_answers(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    run = read_run(make_class_run(tmp_path / "run", methods=("pacpfl", "vanilla")))
    run.arrays["weights/existing"] = np.repeat([[0.5, 0.5], [0.99, 0.01]], 6, axis=0)
    load(browser, page_of(run, tmp_path).as_uri() + "#client=existing-05")
    panel = browser.find_element(By.ID, "panel")
    assert [title.text for title in panel.find_elements(By.TAG_NAME, "h4")] == [
        "How sure and how often right", "Accuracy with each method", "Mixture weights",
        "Accuracy for each class", "Wrong answers",
    ]  # fmt: skip
    drawings = panel.find_elements(By.TAG_NAME, "svg")
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
    images = panel.find_elements(By.TAG_NAME, "canvas")
    assert [image.get_attribute("aria-label") for image in images] == [
        f"Image of a {truth[n]} taken for {answers[n]}, {sure[n]:.0%} sure"
        for n in np.flatnonzero(owner == 5)
    ]
    painted = browser.execute_script(
        "return [...arguments[0].getContext('2d').getImageData(0, 0, 8, 8).data]", images[0]
    )
    ink = pixels[owner == 5][0] / pixels[owner == 5][0].max()  # dark on light paper
    np.testing.assert_allclose(np.reshape(painted, (8, 8, 4))[..., 0], 255 * (1 - ink), atol=3)
    panel.send_keys(Keys.ARROW_RIGHT)
    assert opened(browser) == "existing-06"
    assert len(panel.find_elements(By.TAG_NAME, "canvas")) == (owner == 6).sum()
    assert "It relies on one particle, number 1 (99% of the weight)." in panel.text
    assert browser.get_log("browser") == []
