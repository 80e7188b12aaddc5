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
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def open_browser(profile: Path, log: str = "browser") -> Iterator[webdriver.Chrome]:
    """For a fixture; the test is skipped where there is no browser. It keeps the log of this name."""
    binary, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver_path:
        pytest.skip("No browser to try the page in: install chromium and chromium-driver.")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {log: "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=driver_path))
    driver.set_page_load_timeout(patience(60))
    yield driver
    driver.quit()


def show(browser: webdriver.Chrome, width: int, theme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    # Without motion a click need not wait until the page has come to rest.
    wishes = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wishes.items()]
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


def wait(browser: webdriver.Chrome, condition: Callable[[], Any]) -> Any:
    """Until the condition holds; the time is only ever used up by a test that fails."""
    return WebDriverWait(browser, 20, poll_frequency=0.02).until(lambda _: condition())
