"""Weights from files, for the page."""

import io
import zipfile

import numpy as np
import pytest

from experiments.cli.errors import DataError
from experiments.explorer.bundle import page
from experiments.explorer.recorded import weights_file

TOKENS = ["[CLS]", "The", "cat", "sees", "the", "other", "cats"]
SELF = np.random.default_rng(0).dirichlet(np.ones(7), size=(3, 2, 7)).astype(np.float32)
CROSS = np.random.default_rng(1).normal(size=(2, 5, 4, 7)).astype(np.float16)


def save(path, **arrays):
  np.savez(path, **arrays)
  return path


def test_files_become_runs(tmp_path):
  run = weights_file(save(tmp_path / "bert.npz", weights=SELF, tokens=TOKENS))
  (sentence,) = run["sentences"]
  assert (run["name"], run["summary"]) == ("bert", "3 layers, 2 heads, 7 by 7 tokens")
  assert sentence["rows"] == sentence["columns"] == TOKENS
  side = sentence["sides"]["encoder"]
  assert (side["shape"], side["low"], side["high"]) == ((3, 2, 7, 7), 0, 1)
  run = weights_file(save(tmp_path / "cross.npz", weights=CROSS, source=TOKENS, target=list("abcd")))
  (sentence,) = run["sentences"]
  assert (sentence["rows"], sentence["columns"]) == (list("abcd"), TOKENS)
  side = sentence["sides"]["decoder"]
  assert (side["low"], side["high"]) == (CROSS.min(), CROSS.max())
  run = weights_file(save(tmp_path / "one.npz", weights=np.ones((1, 1, 1, 1)), tokens=["a\ud800"]))
  assert run["summary"] == "1 layer, 1 head, 1 by 1 token"
  # JSON may have half of a surrogate pair, and closes no element of the page.
  html = page({"runs": [run | {"name": "</script>"}]})
  assert r"a\ud800" in html.encode("utf-8").decode("utf-8") and r"\u003c/script>" in html


INVALID = [
  ({"weights": SELF}, r"file\.npz has no tokens \(found: weights\)"),
  ({"weights": SELF, "source": TOKENS}, r"has no target \(found: weights, source\)"),
  ({}, r"has no weights and no tokens \(found: no arrays\)"),
  ({"weights": SELF, "tokens": TOKENS[1:]}, r"T=6 and S=6 tokens, got shape \(3, 2, 7, 7\)"),
  ({"weights": SELF[0], "tokens": TOKENS}, r"must have axes \[layers heads T S\]"),
  ({"weights": SELF[:0], "tokens": TOKENS}, r"got shape \(0, 2, 7, 7\)"),
  ({"weights": SELF * np.nan, "tokens": TOKENS}, "must be finite and at most 3.4e38, got 294 that are NaN"),
  ({"weights": np.full((1, 1, 7, 7), -1.7e308), "tokens": TOKENS}, "at most 3.4e38, got 49 that are NaN"),
  ({"weights": SELF, "tokens": np.array([TOKENS])}, r"with one axis, got <U5 with shape \(1, 7\)"),
  ({"weights": CROSS, "source": np.array(TOKENS, bytes), "target": [*"abcd"]}, r"source must .* got \|S5"),
  ({"weights": SELF.astype(int), "tokens": TOKENS}, "floating-point numbers, got int64"),
]


@pytest.mark.parametrize(("arrays", "message"), INVALID)
def test_invalid_files_are_errors(tmp_path, arrays, message):
  with pytest.raises(DataError, match=message):
    weights_file(save(tmp_path / "file.npz", **arrays))


def test_other_files_are_errors(tmp_path):
  (tmp_path / "text.npz").write_text("no arrays", "utf-8")
  np.save(tmp_path / "one.npy", SELF)
  broken = bytearray(save(tmp_path / "file.npz", weights=SELF, tokens=TOKENS).read_bytes())
  broken[200:400] = bytes(200)
  (tmp_path / "broken.npz").write_bytes(broken)
  save(tmp_path / "objects.npz", weights=SELF, tokens=np.array(TOKENS, object))
  with zipfile.ZipFile(tmp_path / "members.npz", "w") as file:
    file.writestr("weights.npy", b"no array")
  for name in ("text.npz", "one.npy", "broken.npz", "objects.npz", "members.npz"):
    with pytest.raises(DataError, match=f"{name} must be a file of numpy.savez"):
      weights_file(tmp_path / name)
  with pytest.raises(DataError, match=r"absent\.npz: cannot read the file: No such file"):
    weights_file(tmp_path / "absent.npz")


def test_huge_arrays_are_errors(tmp_path):
  header, shape = io.BytesIO(), (10**6, 10**6, 1, 1)
  np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
  with zipfile.ZipFile(tmp_path / "huge.npz", "w") as file:
    file.writestr("weights.npy", header.getvalue())
  with pytest.raises(DataError, match=r"huge\.npz: the arrays do not fit into memory: Unable to allocate"):
    weights_file(tmp_path / "huge.npz")
