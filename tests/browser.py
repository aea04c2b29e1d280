"""A headless Chromium that opens reports and says what went wrong in it."""

import base64
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
NEEDED = "the browser tests need chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"


def programs() -> tuple[str, str]:
    """The browser and its driver. Without them a test is skipped, on CI it fails."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NEEDED)
        pytest.skip(NEEDED)
    return browser, driver


@contextlib.contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser that logs its console and everything that it asks a network for."""
    browser, driver = programs()
    options = Options()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield started
    finally:
        started.quit()


class Page:
    """A report that is open at some width, in dark or light."""

    def __init__(self, driver: webdriver.Chrome, path: Path, width: int = 1280, dark: bool = False) -> None:
        self.driver = driver
        driver.get_log("performance")
        driver.get_log("browser")
        self.width = width
        command = driver.execute_cdp_cmd
        command(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        command("Emulation.setEmulatedMedia", {"features": scheme})
        driver.get(path.as_uri())
        self.wait("return document.documentElement.dataset.ready")

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, seconds: float = 15) -> Any:
        """What a script returns once it is true."""
        return WebDriverWait(self.driver, seconds, 0.05).until(lambda driver: driver.execute_script(script))

    def ready_ms(self) -> int:
        """From the opening of the page until all charts were drawn."""
        return int(self.run("return document.documentElement.dataset.ready"))

    def complaints(self) -> list[str]:
        """What the console has said, and whatever was asked for beside the page itself."""
        console = [entry["message"] for entry in self.driver.get_log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        own = ("file:", "data:", "blob:")
        return (
            console + [url for url in sent if not url.startswith(own)] + [u for u in sent if u.startswith("file:")][1:]
        )

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """A picture of the page, or of so much of its top."""
        height = height or self.run("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.width, "height": height, "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))
