"""Runs the page of experiments/explorer: its functions in Node, the whole page in headless Chromium."""

import atexit
import contextlib
import functools
import json
import pathlib
import shutil
import subprocess
import urllib.parse

import pytest
from playwright import sync_api

PROGRAM = pathlib.Path(__file__).parents[2] / "experiments" / "explorer" / "page" / "built" / "page.js"
NODE = shutil.which("node")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def in_node(program, given=None):
  """Returns the result of a JavaScript program, the body of an async function.

  The program can use `given`, a value from Python, and `explorer`, the exports of page/src/main.tsx.
  """
  script = f"""
import fs from "node:fs";
import vm from "node:vm";
const given = JSON.parse(fs.readFileSync(0, "utf8"));
vm.runInThisContext(fs.readFileSync({json.dumps(str(PROGRAM))}, "utf8"));
const found = await (async () => {{ {program} }})();
fs.writeSync(1, JSON.stringify(found ?? null));
"""
  command = [NODE, "--input-type=module", "--eval", script]
  finished = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=300)
  assert finished.returncode == 0, finished.stderr
  return json.loads(finished.stdout)


class ExplorerPage:
  """A page of Playwright. Each call waits until the results of previous changes are shown."""

  def __init__(self, page):
    self._page = page

  def __getattr__(self, name):
    self._page.wait_for_function("!document.querySelector('[aria-busy=true]')")
    return getattr(self._page, name)

  def press(self, *keys):
    for key in keys:
      self.keyboard.press(key)

  def button(self, name):
    return self.get_by_role("button", name=name, exact=True)

  def tokens(self, axis):
    """Returns the labels of "left" (rows), "top" (columns) or "bottom" (rows of arcs)."""
    return self.locator(f".labels.{axis} > :not(.later)")

  def selected(self):
    """Returns what a screen reader reads of the selected cell."""
    return self.get_attribute("[role=gridcell]", "aria-label")

  def row_weights(self, t):
    """Returns the weights of a row of the heatmap, as a screen reader reads them."""
    self.focus("[role=grid]")
    self.press("ArrowUp", *["ArrowDown"] * t, "Home")
    texts = []
    for _ in range(self.tokens("top").count()):
      texts.append(self.selected())
      self.press("ArrowRight")
    self.press("Escape")
    return [float(text.split("): ")[1].split(",")[0].replace("\N{MINUS SIGN}", "-")) for text in texts]


def address_of(**state):
  """Returns the address of a state of the page."""
  return "#" + urllib.parse.quote(json.dumps(state))


@functools.cache
def start():
  """Returns one Chromium for all tests of a process."""
  playwright = sync_api.sync_playwright().start()
  flags = "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"
  browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*flags])
  atexit.register(playwright.stop)
  atexit.register(browser.close)
  return browser


@contextlib.contextmanager
def opened(path, address=None, **state):
  """Yields the page of a file, and checks that it requests no other files and raises no errors."""
  asked, errors = [], []
  page = start().new_page(viewport={"width": 1200, "height": 900})
  try:
    page.set_default_timeout(60_000)
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{path.as_uri()}{address or address_of(**state)}")
    page.wait_for_function("!document.querySelector('.waiting')")
    yield ExplorerPage(page)
  finally:
    page.close()
  assert not [url for url in asked if not url.startswith(("file:", "blob:"))]
  assert errors == []
