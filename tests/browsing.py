"""A headless browser for the tests of the pages: opened once, told how wide and how dark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import patience
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
ROWS = "[...document.querySelectorAll('table.sortable tbody tr')]"


class Browser(webdriver.Chrome):
    """Chromium, with short words for what the tests do often."""

    def load(self, address: str, width: int = 1100, theme: str = "light") -> None:
        """Open freshly: an address that differs in its end only would not be loaded again."""
        self.show(width, theme)
        self.get("about:blank")
        self.get(address)
        self.execute_script("try { localStorage.clear(); } catch {}")

    def show(self, width: int = 1100, theme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        # Without motion a click need not wait until the page has come to rest.
        wishes = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})

    def all(self, css: str, inside: WebElement | None = None) -> list[WebElement]:
        return (inside or self).find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.find_element(By.CSS_SELECTOR, css)

    def js(self, expression: str, *arguments: object) -> Any:
        return self.execute_script(f"return {expression}", *arguments)

    def wait(self, condition: Callable[[], Any]) -> Any:
        """Until the condition holds; the time is only ever used up by a test that fails."""
        return WebDriverWait(self, 20, poll_frequency=0.02).until(lambda _: condition())

    def select(self, name: str, text: str) -> None:
        """Choose an entry of one of the filters of the table."""
        Select(self.one(f"#filter-{name}")).select_by_visible_text(text)

    def press(self, key: str) -> None:
        self.focused.send_keys(key)

    @property
    def focused(self) -> WebElement:
        return self.switch_to.active_element

    @property
    def opened(self) -> str:
        """The name of the client whose panel is open; empty when none is."""
        title = "document.getElementById('panel-title').textContent"
        return self.js(f"document.getElementById('panel').open ? {title} : ''")

    @property
    def names(self) -> list[str]:
        """The clients of the table that are not filtered away, from top to bottom."""
        return self.js(f"{ROWS}.filter(row => !row.hidden).map(row => row.cells[0].dataset.value)")

    def choose(self, name: str) -> None:
        """Click on a client's name, and wait for its panel."""
        self.find_element(By.LINK_TEXT, name).click()
        self.wait(lambda: self.opened == name)

    def close_panel(self) -> None:
        self.one("#panel-close").click()
        self.wait(lambda: self.opened == "")


def open_browser(profile: Path, log: str = "browser") -> Iterator[Browser]:
    """For a fixture; the test is skipped where there is no browser. It keeps the log of this name."""
    binary, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver_path:
        pytest.skip("No browser to try the page in: install chromium and chromium-driver.")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {log: "ALL"})
    driver = Browser(options=options, service=Service(executable_path=driver_path))
    driver.set_page_load_timeout(patience(60))
    yield driver
    driver.quit()
