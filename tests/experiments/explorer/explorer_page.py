"""Opens the page in Chromium, and waits for its worker."""

import contextlib

from helpers import browser

_SETTLED = "document.getElementById('results').ariaBusy !== 'true'"


class ExplorerPage:
  """A page of Playwright. Each call waits until the results of previous changes are shown."""

  def __init__(self, page):
    self._page = page

  def __getattr__(self, name):
    self._page.wait_for_function(_SETTLED)
    return getattr(self._page, name)


@contextlib.contextmanager
def opened(path, address="", **size):
  """Yields the page of a file."""
  with browser.in_chromium(path, address, **size) as page:
    yield ExplorerPage(page)
