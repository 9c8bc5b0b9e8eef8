"""The page for weights from a file, in headless Chromium: heads, colors and many tokens."""

import numpy as np
import pytest
from helpers import browser
from helpers.browser import opened

from experiments.explorer.bundle import page
from experiments.explorer.recorded import weights_file

pytestmark = [pytest.mark.nightly, browser.needs_chromium]

TOKENS = ["[CLS]", "The", "cat", "sees", "the", "other", "cats"]
SELF = np.random.default_rng(0).dirichlet(np.ones(7), size=(3, 2, 7)).astype(np.float32)


@pytest.fixture
def path_of(tmp_path):
  """Returns a function that writes the page of a weights file."""

  def write(**arrays):
    np.savez(tmp_path / "file.npz", **arrays)
    path = tmp_path / "explore.html"
    path.write_text(page({"runs": [weights_file(tmp_path / "file.npz")]}), "utf-8")
    return path

  return write


def test_heads_and_tokens_are_found(path_of):
  path = path_of(weights=SELF, tokens=TOKENS)
  with opened(path) as shown:
    assert shown.locator(".overview canvas").count() == 6
    assert shown.locator(".overview th").all_inner_texts() == ["1", "2", "1", "2", "3"]  # heads, layers
    assert "mean of 6 heads" in shown.inner_text("article")
    shown.click('[aria-label="layer 2, head 1"]')
    selected = "[...document.querySelectorAll('select')].map((each) => each.selectedOptions[0].text)"
    assert shown.evaluate(selected) == ["2", "1"]
    np.testing.assert_allclose(shown.row_weights(2), SELF[1, 0, 2], atol=6e-4)
    shown.fill("[type=search]", "CAT")
    assert shown.locator(".found").all_inner_texts() == ["cat", "cats", "cat", "cats"]
    shown.wait_for_function("location.hash.includes('CAT')")
    address = shown.evaluate("location.hash")
    shown.click('[aria-label="layer 2, head 1"]')  # again: the mean
    assert shown.evaluate(selected) == ["mean", "mean"]
  with opened(path, address=address) as shown:
    assert shown.input_value("[type=search]") == "CAT" and shown.evaluate(selected) == ["2", "1"]
    shown.button("Arcs").click()
    assert shown.locator(".found").count() == 4


def test_negative_weights_have_a_color(path_of):
  weights = np.array([[[[2.5, -1.25, 0.0], [0.5, 0.25, 0.004]]]])
  path = path_of(weights=weights, source=["a", "b", "c"], target=["d", "a" * 100_000])
  pixel = """canvas => [0, 1].map((i) =>
    [...canvas.getContext("2d").getImageData(i * canvas.width / 3 + 4, 4, 1, 1).data])"""
  with opened(path) as shown:
    assert [shown.row_weights(t) for t in (0, 1)] == weights[0, 0].tolist()
    legend = shown.inner_text(".legend")
    assert "weights from \N{MINUS SIGN}1.25 to 2.5; full color: 2.5" in legend and "negative" in legend
    positive, negative = shown.locator(".cells canvas").evaluate(pixel)
    assert positive[2] > positive[0] and negative[0] > negative[2]  # blue, red
    assert shown.tokens("left").all_inner_texts()[1] == "a" * 39 + "…"
    shown.button("Arcs").click()
    assert shown.locator("path.negative").get_attribute("data-cell") == "0,1"
