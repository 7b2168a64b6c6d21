"""Chromium without a window, for tests that look at pages: opened once a module, wide, narrow, light, dark or paper."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_behaviortrace.reports import html
from pytest_behaviortrace.scorecard import Scorecard

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip

# What a reader cannot see without scrolling sideways: right ends beyond the window or beyond a box that hides them.
CUT = """
return [...document.querySelectorAll(arguments[0])].filter((element) => {
  const {right, left, width} = element.getBoundingClientRect();
  return width > 0 && (right > innerWidth + 0.5 || left < -0.5);
}).map((element) => element.textContent.slice(0, 60));
"""


def programs() -> tuple[str, str]:
    """Chromium and its driver as the distribution installs them; skips where one is missing."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no chromium and chromedriver on PATH (Debian: apt-get install chromium chromium-driver)")
    return browser, driver


@contextlib.contextmanager
def opened_browser(profile: Path) -> Iterator[Any]:
    """A browser with an empty profile of its own, closed at the end."""
    from selenium.webdriver.chrome.service import Service

    binary, driver_path = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=driver_path))
    try:
        yield driver
    finally:
        driver.quit()


_PAGES: dict[str, str] = {}


def page_of(card: Scorecard) -> str:
    """The page of a scorecard; one that says the same is drawn once (seconds: dozens of figures)."""
    said = repr([getattr(card, field.name) for field in dataclasses.fields(card)])
    if said not in _PAGES:
        _PAGES[said] = html.render(card)
    return _PAGES[said]


def look(browser: Any, width: int, theme: str, medium: str = "screen") -> None:
    """Set the width of the window, what the system says about light and dark, and whether it is paper."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})


@contextlib.contextmanager
def shown(browser: Any, folder: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a scorecard in a window of a width; afterwards the console must be empty."""

    def opened(card: Scorecard, width: int = 1200, theme: str = "light") -> Any:
        path = folder / "report.html"
        path.write_text(page_of(card), encoding="utf-8", newline="\n")
        look(browser, width, theme)
        browser.get("about:blank")
        browser.get(path.as_uri())
        return browser

    yield opened
    look(browser, 1200, "light")
    assert browser.get_log("browser") == []


def find(browser: Any, selector: str) -> Any:
    """The first element that the selector means."""
    return browser.find_element("css selector", selector)


def style(browser: Any, selector: str, name: str) -> str:
    """What a style comes to."""
    found: str = browser.execute_script(
        "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])", selector, name
    )
    return found


def press(browser: Any, *keys: str) -> None:
    """Type on the keyboard, wherever the focus is."""
    webdriver.ActionChains(browser).send_keys(*keys).perform()


def unfold(browser: Any) -> None:
    """Open everything that is folded."""
    browser.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")


def page_width(browser: Any) -> int:
    """Pixels, what scrolls out of sight included."""
    return int(browser.execute_script("return document.documentElement.scrollWidth"))
