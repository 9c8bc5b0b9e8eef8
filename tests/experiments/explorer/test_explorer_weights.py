"""The page for weights from a file: files, errors, all heads, and the search for tokens."""

import io
import itertools
import json
import re
import zipfile

import numpy as np
import pytest
from explorer_page import opened
from helpers import browser, scripts

from experiments.cli.errors import DataError
from experiments.explorer.bundle import page
from experiments.explorer.recorded import weights_file

RNG = np.random.default_rng(0)
TOKENS = ["[CLS]", "The", "cat", "sees", "the", "other", "cats"]
SELF = RNG.dirichlet(np.ones(7), size=(3, 2, 7)).astype(np.float32)
CROSS = RNG.normal(size=(2, 5, 4, 7)).astype(np.float16)


def save(path, **arrays):
  np.savez(path, **arrays)
  return path


@pytest.fixture
def path_of(tmp_path):
  """Returns a function that writes the page of a weights file."""

  def write(**arrays):
    path = tmp_path / "explore.html"
    path.write_text(page({"runs": [weights_file(save(tmp_path / "file.npz", **arrays))]}), "utf-8")
    return path

  return write


def test_files_become_runs(tmp_path):
  run = weights_file(save(tmp_path / "bert.npz", weights=SELF, tokens=TOKENS))
  (sentence,) = run["sentences"]
  assert (run["name"], run["summary"]) == ("bert", "3 layers, 2 heads, 7 by 7 tokens")
  assert sentence["rows"] == sentence["columns"] == TOKENS
  assert sentence["sides"]["encoder"]["shape"] == (3, 2, 7, 7)
  assert (sentence["sides"]["encoder"]["low"], sentence["sides"]["encoder"]["high"]) == (0, 1)
  run = weights_file(save(tmp_path / "cross.npz", weights=CROSS, source=TOKENS, target=list("abcd")))
  (sentence,) = run["sentences"]
  side = sentence["sides"]["decoder"]
  assert (sentence["rows"], sentence["columns"]) == (list("abcd"), TOKENS)
  assert (side["low"], side["high"]) == (CROSS.min(), CROSS.max())


@pytest.mark.parametrize(
  ("arrays", "message"),
  [
    ({"weights": SELF}, r"file\.npz has no tokens \(found: weights\)"),
    ({"weights": SELF, "source": TOKENS}, r"has no target \(found: weights, source\)"),
    ({}, r"has no weights and no tokens \(found: no arrays\)"),
    ({"weights": SELF, "tokens": TOKENS[1:]}, r"T=6 and S=6 tokens, got shape \(3, 2, 7, 7\)"),
    ({"weights": SELF[0], "tokens": TOKENS}, r"must have axes \[layers heads T S\]"),
    ({"weights": SELF[:0], "tokens": TOKENS}, r"got shape \(0, 2, 7, 7\)"),
    ({"weights": SELF * np.nan, "tokens": TOKENS}, "must be finite and at most 3.4e38, got 294 that are NaN"),
    ({"weights": np.full((1, 1, 7, 7), -1.7e308), "tokens": TOKENS}, "at most 3.4e38, got 49 that are NaN"),
    (
      {"weights": SELF, "tokens": np.array(TOKENS)[:, None]},
      r"strings with one axis, got <U\d+ with shape \(7, 1\)",
    ),
    ({"weights": SELF, "tokens": "a b"}, r"got <U3 with shape \(\)"),
    (
      {"weights": CROSS, "source": np.array(TOKENS, bytes), "target": list("abcd")},
      r"source must be .* got \|S",
    ),
    ({"weights": SELF.astype(int), "tokens": TOKENS}, "floating-point numbers, got int64"),
  ],
)
def test_invalid_files_are_errors(tmp_path, arrays, message):
  with pytest.raises(DataError, match=message):
    weights_file(save(tmp_path / "file.npz", **arrays))


def test_other_files_are_errors(tmp_path):
  (tmp_path / "text.npz").write_text("no arrays", "utf-8")
  np.save(tmp_path / "one.npy", SELF)
  (tmp_path / "empty.npz").write_bytes(b"")
  broken = bytearray(save(tmp_path / "file.npz", weights=SELF, tokens=TOKENS).read_bytes())
  broken[200:400] = bytes(200)
  (tmp_path / "broken.npz").write_bytes(broken)
  objects = save(tmp_path / "objects.npz", weights=SELF, tokens=np.array(TOKENS, object))
  with zipfile.ZipFile(tmp_path / "members.npz", "w") as file:
    file.writestr("weights.npy", b"no array")
  names = "text.npz", "one.npy", "empty.npz", "broken.npz", "members.npz"
  for path in (*map(tmp_path.joinpath, names), objects):
    with pytest.raises(DataError, match=f"{path} must be a file of numpy.savez"):
      weights_file(path)
  with pytest.raises(DataError, match=r"absent\.npz: cannot read the file: No such file"):
    weights_file(tmp_path / "absent.npz")


def test_huge_arrays_are_errors(tmp_path):
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6, 1, 1)}
  )
  with zipfile.ZipFile(tmp_path / "huge.npz", "w") as file:
    file.writestr("weights.npy", header.getvalue())
  with pytest.raises(DataError, match=r"huge\.npz: the arrays do not fit into memory: Unable to allocate"):
    weights_file(tmp_path / "huge.npz")


def test_counts_have_plurals(tmp_path):
  run = weights_file(save(tmp_path / "one.npz", weights=np.ones((1, 1, 1, 1)), tokens=["a"]))
  assert run["summary"] == "1 layer, 1 head, 1 by 1 token"


def test_pages_may_have_half_surrogates(tmp_path):
  run = weights_file(save(tmp_path / "half.npz", weights=np.ones((1, 1, 1, 1)), tokens=["a\ud800"]))
  assert r"a\ud800" in page({"runs": [run]}).encode("utf-8").decode("utf-8")


@pytest.mark.exhaustive
def test_the_script_needs_no_run(tmp_path):
  path = save(tmp_path / "bert.npz", weights=SELF, tokens=TOKENS)
  output = tmp_path / "explore.html"
  result = scripts.run("explore", f"--weights={path}", f"--output={output}")
  assert result.code == 0, result.errors
  data = json.loads(output.read_text("utf-8").split('id="data"')[1].split(">", 1)[1].split("</script>")[0])
  assert [run["name"] for run in data["runs"]] == ["bert"]
  result = scripts.run("explore", f"--weights={tmp_path / 'absent.npz'}", f"--output={output}")
  assert result.code != 0 and result.errors.count("\n") == 1


@browser.needs_chromium
def test_heads_are_selected_and_tokens_are_found(path_of):
  path = path_of(weights=SELF, tokens=TOKENS)
  with opened(path) as shown:
    assert shown.locator(".overview canvas").count() == 6
    assert shown.locator(".overview th").all_inner_texts() == ["1", "2", "1", "2", "3"]  # heads, layers
    article = shown.inner_text("article")
    assert "Recorded, because" not in article and "mean of 6 heads" in article
    shown.click('[aria-label="layer 2, head 1"]')
    selected = "[...document.querySelectorAll('select')].map((each) => each.selectedOptions[0].text)"
    assert shown.evaluate(selected) == ["2", "1"]
    assert "mean" not in shown.inner_text("article")
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


@browser.needs_chromium
def test_one_head_has_no_mean(path_of):
  with opened(path_of(weights=np.ones((1, 1, 1, 1)), tokens=["a"])) as shown:
    text = shown.inner_text("body")
    assert "1 layer, 1 head, 1 by 1 token" in text and "mean" not in text
    assert shown.locator("select").count() == shown.locator(".overview").count() == 0
    assert shown.row_weights(0) == [1]


@browser.needs_chromium
def test_negative_weights_have_a_color(path_of):
  weights = np.array([[[[2.5, -1.25, 0.0], [0.5, 0.25, 0.004]]]])
  path = path_of(weights=weights, source=["a", "b", "c"], target=["d", "a" * 100_000])
  pixel = """canvas => [0, 1].map((i) =>
    [...canvas.getContext("2d").getImageData(i * canvas.width / 3 + 4, 4, 1, 1).data])"""
  with opened(path) as shown:
    assert shown.row_weights(0) == [2.5, -1.25, 0]
    assert shown.row_weights(1) == [0.5, 0.25, 0.004]
    legend = shown.inner_text(".legend")
    assert "weights from \N{MINUS SIGN}1.25 to 2.5; full color: 2.5" in legend and "negative" in legend
    positive, negative = shown.locator(".cells canvas").evaluate(pixel)
    assert positive[2] > positive[0] and negative[0] > negative[2]
    assert positive[3] == 255 and negative[3] == pytest.approx(255 * 0.5**0.5, abs=2)
    assert shown.tokens("left").all_inner_texts()[1] == "a" * 39 + "…"
    assert shown.boxes(".labels.left")[0][2] < 400
    shown.button("Arcs").click()
    assert shown.locator("path.negative").get_attribute("data-cell") == "0,1"


@browser.needs_chromium
def test_pictures_show_the_strongest_weights(path_of):
  weights = np.full((1, 2, 100, 100), 0.001, np.float32)
  weights[0, 1, 99, 0] = -0.5  # a picture has fewer pixels than weights
  program = """canvas => [...canvas.getContext("2d").getImageData(0, canvas.height - 1, 1, 1).data]"""
  with opened(path_of(weights=weights, tokens=[str(i) for i in range(100)])) as shown:
    first, second = (shown.locator(".overview canvas").nth(i).evaluate(program) for i in (0, 1))
    assert second[3] == 255 and second[0] > second[2] and first[3] < 30


@browser.needs_chromium
@pytest.mark.parametrize("size", [(1400, 900), (800, 600), (390, 844)])
def test_letters_have_narrow_columns(path_of, size):
  path = path_of(weights=np.full((1, 1, 64, 64), 1 / 64), tokens=list("abcdefgh" * 8))
  with opened(path, size) as shown:
    columns = shown.boxes(".labels.top span")
    assert len(columns) == 64
    widths = {round(second[0] - first[0]) for first, second in itertools.pairwise(columns)}
    assert widths == {30 if size[0] < 640 else 19 if size[0] > 1000 else 17}
    has_hint = "scroll for more" in shown.inner_text(".head")
    scrolls = shown.locator(".map").evaluate("map => map.scrollWidth > map.clientWidth")
    assert has_hint == scrolls == (size[0] < 1000)


@browser.needs_chromium
@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_a_thousand_tokens_are_shown(path_of, size):
  weights = np.random.default_rng(0).random((1, 1, 1024, 1024), np.float32)
  path = path_of(weights=weights, tokens=[f"w{i}" for i in range(1024)])
  with opened(path, size, view="arcs") as shown:
    assert "1 layer, 1 head, 1,024 by 1,024 tokens" in shown.inner_text("h2")
    assert "arcs show at most 120 tokens" in shown.inner_text(".legend")
    assert shown.inner_text(".description") == "Point at a token or a weight."
    assert shown.locator(".pointed, [role=gridcell]").count() == 0
    labels = shown.tokens("top").all_inner_texts()
    assert labels == [f"w{i}" for i in range(0, 1024, 1024 // len(labels) + 1)] and len(labels) > 30
    shown.locator(".cells canvas").hover(position={"x": 100, "y": 100})
    point = re.fullmatch(r"from “w(\d+)” \(\d+\) to “w(\d+)” \(\d+\): (.*)", shown.inner_text(".description"))
    t, s = int(point[1]), int(point[2])
    assert float(point[3]) == pytest.approx(weights[0, 0, t, s], abs=6e-4)
    for axis, name in (("left", f"w{t}"), ("top", f"w{s}")):
      assert name in shown.locator(f".labels.{axis} .highlighted").all_inner_texts()
    shown.focus("[role=grid]")
    shown.press("ArrowDown", "End", *["ArrowDown"] * 3)
    assert shown.selected().startswith("from “w3” (4) to “w1023” (1024): ")
    ((left, top, width, height, *_),) = shown.boxes("[role=gridcell]")
    assert left >= 0 and left + width <= size[0] and top >= 0 and top + height <= size[1]
