"""A headless Chromium without a network, for pages that lie on the disk or are served by this machine."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

__all__ = ["Browser", "Keys"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip("needs Chromium and its driver: apt install chromium chromium-driver", allow_module_level=True)


class Browser:
    """One window; pages are opened in it one after the other."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless=new",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.size(1200, 900)

    def close(self):
        self.driver.quit()

    def open(self, path, fragment=""):
        """Afresh, so that nothing but the address can be remembered."""
        self.driver.get("about:blank")
        self.driver.get(f"{path.as_uri()}#{fragment}")

    def go(self, fragment):
        """In the page that is open."""
        self.driver.execute_async_script(
            "const done = arguments[1]; if (location.hash === '#' + arguments[0]) return done();"
            "addEventListener('hashchange', () => setTimeout(done), {once: true}); location.hash = arguments[0];",
            fragment,
        )

    def address(self):
        """The fragment, as whoever leaves now will find it again."""
        return self.run("dispatchEvent(new Event('pagehide')); return location.hash")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def press(self, *keys):
        """Keys to whatever has the focus."""
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def point_at(self, element, x=None, y=None):
        """The pointer to the middle of an element, or to a place from its top left corner."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        actions = ActionChains(self.driver, duration=0)
        if x is not None:
            x, y = x - element.size["width"] / 2, y - element.size["height"] / 2
            actions.move_to_element_with_offset(element, round(x), round(y)).perform()
        else:
            actions.move_to_element(element).perform()

    def size(self, width, height):
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def media(self, **features):
        self.command(
            "Emulation.setEmulatedMedia",
            features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()],
        )

    def command(self, name, **arguments):
        return self.driver.execute_cdp_cmd(name, arguments)

    def console(self):
        """What was written to the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """The addresses that were asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
