"""Runs the page of experiments/explorer: its modules in Node, the whole page in headless Chromium."""

import atexit
import contextlib
import functools
import json
import pathlib
import shutil
import subprocess

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


@functools.cache
def _browser():
  """Returns one Chromium for all tests of a process."""
  playwright = sync_api.sync_playwright().start()
  flags = "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"
  browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*flags])
  atexit.register(playwright.stop)
  atexit.register(browser.close)
  return browser


@contextlib.contextmanager
def in_chromium(path, address="", *, width=1200, height=900):
  """Opens a file in Playwright, checks that it requests no other files, and returns the page."""
  asked, errors = [], []
  page = _browser().new_page(viewport={"width": width, "height": height})
  try:
    page.set_default_timeout(60_000)
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{path.as_uri()}{address}")
    page.wait_for_function("!document.querySelector('.waiting')")
    yield page
  finally:
    page.close()
  assert not [url for url in asked if not url.startswith(("file:", "blob:"))]
  assert errors == []


def shown_text(path):
  """Returns the visible text of a file, even if its program fails."""
  page = _browser().new_page()
  try:
    page.goto(path.as_uri())
    return page.inner_text("body")
  finally:
    page.close()
