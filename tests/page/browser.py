"""A browser without a window, driven by its own protocol."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PHONE = (390, 844)
DESKTOP = (1280, 1000)


@contextmanager
def browser(size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Iterator[Any]:
    """Chromium with a page of this size; without it, or without selenium, tests are skipped: `make test-page` says what
    to install."""
    selenium = pytest.importorskip("selenium", reason="selenium drives the browser: make test-page installs it")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = selenium.webdriver.Chrome(options=options, service=Service(driver))
    try:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        chrome.execute_cdp_cmd("Network.enable", {})
        chrome.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http://*", "https://*"]})
        yield chrome
    finally:
        chrome.quit()


def opened(chrome: Any, page: Path) -> Any:
    chrome.get(page.as_uri())
    return chrome


__all__ = ["DESKTOP", "PHONE", "browser", "opened"]
