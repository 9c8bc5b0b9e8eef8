"""Opens the page in Chromium, and waits for its worker."""

import contextlib
import json
import urllib.parse

from helpers import browser

_SETTLED = "!document.querySelector('[aria-busy=true]')"


class ExplorerPage:
  """A page of Playwright. Each call waits until the results of previous changes are shown."""

  def __init__(self, page):
    self._page = page

  def __getattr__(self, name):
    self._page.wait_for_function(_SETTLED)
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

  def boxes(self, selector):
    """Returns the positions and sizes of elements."""
    return self.locator(selector).evaluate_all(
      "all => all.map((each) => Object.values(each.getBoundingClientRect().toJSON()))"
    )


def address_of(**state):
  """Returns the address of a state of the page."""
  return "#" + urllib.parse.quote(json.dumps(state))


@contextlib.contextmanager
def opened(path, size=(1200, 900), address=None, **state):
  """Yields the page of a file."""
  width, height = size
  with browser.in_chromium(path, address or address_of(**state), width=width, height=height) as page:
    yield ExplorerPage(page)
