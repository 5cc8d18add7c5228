"""A real browser for the tests of pages: pages open from the file system, and everything they say is watched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser; without one the tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
        if found is None and not Path(driver.chromium.executable_path).exists():
            pytest.skip("there is no chromium here")
        browser = driver.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@contextmanager
def watched(chromium: Any, address: str) -> Iterator[Opener]:
    """Opens pages; in the end they have said nothing on the console and asked for nothing but files."""
    contexts, complaints = [], []

    def asked(request: Any) -> None:
        if not request.url.startswith("file:"):
            complaints.append(request.url)

    def open_page(fragment: str = "", **settings: Any) -> Any:
        contexts.append(chromium.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings))
        page = contexts[-1].new_page()
        page.set_default_timeout(300_000)  # a busy machine takes its time
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", asked)
        page.goto(address + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints, "no message on the console, and no request that leaves the file system"


CONTRAST = """() => {
  const parse = (said) => {
    const found = said.match(/[\\d.]+/g).map(Number);
    return { rgb: found.slice(0, 3), alpha: found.length > 3 ? found[3] : 1 };
  };
  const light = (rgb) => rgb.map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const { rgb, alpha } = parse(getComputedStyle(e).backgroundColor);
      if (alpha === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *:not(script, style, svg *, option)")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    if (!text.length || !element.checkVisibility()) continue;
    const both = [light(parse(getComputedStyle(element).color).rgb), light(behind(element))];
    const [one, two] = both.sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}: ${text[0].data.trim()}`);
  }
  return poor;
}"""
