"""The documentation site: links, navigation, a strict build, and nothing asked of the network."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import patience

from pacpfl import config
from pacpfl.cli.app import app
from scripts import site_reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Modules that people use through commands, not from Python: they have no page in the reference.
INSIDE = re.compile(r"pacpfl\.(cli[\w.]*|(report|estimators|sites)\.[\w.]+)")


class Loader(yaml.SafeLoader):
    """mkdocs.yml may hold tags of its own."""


Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def test_the_build_is_strict_and_fetches_nothing():
    """It then holds, too, that every page is in the navigation."""
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    assert settings["strict"] is True
    assert settings["theme"]["font"] is False
    assert "offline" in settings["plugins"]
    checks = [*settings["validation"]["nav"].items(), *settings["validation"]["links"].items()]
    assert len(checks) == 7
    assert {level for _, level in checks} == {"warn"}
    assert not {"repo_url", "extra_javascript", "site_url"} & set(settings)


def slug(heading: str) -> str:
    """As Markdown's table of contents makes it from the words of a heading."""
    plain = re.sub(r"[`*]|\[([^\]]+)\]\([^)]*\)", lambda m: m[1] or "", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(path: Path) -> set[str]:
    text = re.sub(r"(?ms)^```.*?^```$", "", path.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"(?m)^#+ (.+)$", text)}


def broken(page: Path, text: str) -> list[str]:
    """Links of a page to files or headings that are not there."""
    wrong = []
    for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{page.relative_to(ROOT)}: {link}")
    return wrong


def test_links_lead_to_pages_and_headings(pages):
    wrong = []
    for name in pages.names:
        text = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / name).read_text(encoding="utf-8"))
        wrong += broken(ROOT / name, text)
    for path in sorted(DOCS.rglob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        words = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        wrong += broken(path, "\n".join(words))
    assert not wrong, "\n".join(wrong)


def test_a_broken_link_is_noticed():
    page = DOCS / "index.md"
    text = "[a](get-started.md#install) [b](nowhere.md) [c](get-started.md#nothing) [d](https://x)"
    wrong = ("nowhere.md", "get-started.md#nothing")
    assert broken(page, text) == [f"docs/index.md: {link}" for link in wrong]


def test_every_module_has_its_place_in_the_reference():
    named, modules = site_reference.named(), site_reference.modules()
    assert len(modules) > 100
    outside = {name for name in modules if not INSIDE.fullmatch(name)}
    assert outside - named == set(), "modules without a page in docs/reference"
    for name in named - modules:
        assert name.rpartition(".")[0] in modules  # a class


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            pytest.skip(f"The site is built with {package}: pip install '.[docs]', or make docs.")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=patience(240),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr.strip(), done.stderr
    return folder


class Requests(HTMLParser):
    """What a browser fetches for a page by itself; links that people may click are none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        names = {"link": ("href",), "a": (), "form": (), "base": ("href",)}
        for name in names.get(tag, ("src", "href", "srcset", "data", "poster", "action")):
            if given.get(name):
                self.found.append(str(given[name]))


def fetched(text: str) -> Requests:
    parser = Requests()
    parser.feed(text)
    return parser


OUTSIDE = re.compile(r"\s*(?:[a-z]+:)?//|https?:", re.IGNORECASE)


def test_no_page_asks_for_anything_outside(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert [url for url in fetched(text).found if OUTSIDE.match(url)] == [], path
        assert 'class="mermaid"' not in text  # the theme would fetch a library to draw it
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import )\s*[\"']?(https?:)?//", text), path


def test_a_request_to_the_outside_is_noticed():
    text = '<a href="https://a"><img src="//b"><link href="https://c"><script src="d.js"></script>'
    assert [url for url in fetched(text).found if OUTSIDE.match(url)] == ["//b", "https://c"]


def test_it_has_light_and_dark(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert {"default", "slate"} <= set(re.findall(r'data-md-color-scheme="(\w+)"', text))
    assert "prefers-color-scheme: dark" in text


def test_the_reference_is_complete(site):
    """Functions by their docstrings, every command, every key of the configuration."""
    learning = fetched((site / "reference" / "learning.html").read_text(encoding="utf-8"))
    named = {"hyper.score", "methods.pacpfl.PACPFL.client_update"}
    assert {f"pacpfl.{name}" for name in named} <= learning.ids
    commands = fetched((site / "reference" / "command-line.html").read_text(encoding="utf-8")).ids
    names = {c.name or c.callback.__name__ for c in app.registered_commands if not c.hidden}  # type: ignore[union-attr]
    assert {name.replace("_", "-") for name in names} <= commands
    text = (site / "reference" / "configuration.html").read_text(encoding="utf-8")
    assert set(config.SECTIONS) <= fetched(text).ids
    for section in config.SECTIONS.values():
        for key in vars(section):
            assert f"<code>{key.rstrip('_')}</code>" in text, key


def test_notebooks_are_pages_with_their_figures(site):
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        page = site / "notebooks" / f"{path.stem}.html"
        images = re.findall(rf'<img alt="([^"]+)" src="({path.stem}-\d+\.png)"', page.read_text())
        assert images
        assert all(words != "Figure" and (page.parent / file).exists() for words, file in images)
        assert f'href="{path.name}"' in page.read_text()
        assert (page.parent / path.name).exists()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("selenium", reason="The site is tried with the Python package selenium.")
    from browsing import open_browser

    yield from open_browser(tmp_path_factory.mktemp("browser"), "performance")


def test_opened_as_a_file_it_searches_and_asks_for_files_only(browser, site):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.set_window_size(1200, 900)
    browser.get((site / "index.html").as_uri())
    field = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    field.click()
    field.send_keys("responsibilities")
    links = "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    found = WebDriverWait(browser, 60).until(lambda b: b.execute_script(links))
    assert any("notation.html" in link or "choosing.html" in link for link in found)
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"] for e in entries if e["method"] == "Network.requestWillBeSent"]
    # Not what the browser's own first page asks for.
    asked = [p["request"]["url"] for p in sent if not p["documentURL"].startswith("chrome:")]
    assert len(asked) > 3
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
