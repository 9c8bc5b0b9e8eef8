"""The page for weights from a file: files, errors, all heads, and the search for tokens."""

import io
import json
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
def test_heads_are_selected_and_tokens_are_found(tmp_path):
  path = save(tmp_path / "bert.npz", weights=SELF, tokens=TOKENS)
  html = tmp_path / "explore.html"
  html.write_text(page({"runs": [weights_file(path)]}), "utf-8")
  with opened(html) as shown:
    assert shown.locator(".overview canvas").count() == 6
    assert "Recorded, because" not in shown.inner_text("#results")
    assert not shown.is_visible("#sentence") and not shown.is_visible("#side")
    shown.click('[aria-label="layer 2, head 1"]')
    assert (shown.input_value("#layer"), shown.input_value("#head")) == ("1", "0")
    label = shown.get_attribute('[data-cell="2,3"]', "aria-label")
    assert label == f"cat attends to sees: {SELF[1, 0, 2, 3]:.3f}"
    shown.fill("#find", "CAT")
    assert shown.locator("th.found").all_inner_texts() == ["cat", "cats", "cat", "cats"]
    assert "“CAT” in rows: 3, 7; in columns: 3, 7." in shown.inner_text("#results")
    address = shown.url.split("#")[1]
    assert shown.get_attribute('[aria-label="layer 2, head 1"]', "aria-pressed") == "true"
    shown.click('[aria-label="layer 2, head 1"]')  # again: the mean
    assert shown.input_value("#layer") == ""
  with opened(html, f"#{address}&view=arcs") as shown:
    assert shown.input_value("#find") == "CAT" and shown.input_value("#layer") == "1"
    assert shown.locator("text.found").count() == 4


@browser.needs_chromium
def test_pictures_show_the_strongest_weights(tmp_path):
  weights = np.full((1, 2, 100, 100), 0.001, np.float32)
  weights[0, 1, 99, 0] = -0.5  # a picture has fewer pixels than weights
  path = save(tmp_path / "long.npz", weights=weights, tokens=[str(i) for i in range(100)])
  html = tmp_path / "explore.html"
  html.write_text(page({"runs": [weights_file(path)]}), "utf-8")
  program = """canvas => [...canvas.getContext("2d").getImageData(0, canvas.height - 1, 1, 1).data]"""
  with opened(html) as shown:
    first, second = (shown.locator(".overview canvas").nth(i).evaluate(program) for i in (0, 1))
    assert second[3] == 255 and second[0] > second[2] and first[3] < 30


@browser.needs_chromium
def test_labels_are_not_cut_off(tmp_path):
  tokens = [f"word{i}" for i in range(1024)]
  path = save(tmp_path / "long.npz", weights=np.full((1, 1, 1024, 1024), 0.001, np.float32), tokens=tokens)
  html = tmp_path / "explore.html"
  html.write_text(page({"runs": [weights_file(path)]}), "utf-8")
  program = """framed => {
    const outer = framed.getBoundingClientRect();
    const isVisible = (svg) => getComputedStyle(svg).overflow === "visible";
    return [...framed.querySelectorAll("svg")].every(isVisible) &&
      [...framed.querySelectorAll("text")].every((text) => {
      const inner = text.getBoundingClientRect();
      return inner.left >= outer.left && inner.right <= outer.right &&
        inner.top >= outer.top && inner.bottom <= outer.bottom;
    });
  }"""
  with opened(html) as shown:
    assert shown.locator(".framed").evaluate(program)
