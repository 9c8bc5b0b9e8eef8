"""walkthrough.py: five lessons and their figures."""

import pathlib
import re

import pytest
from helpers import scripts

pytestmark = pytest.mark.nightly


def test_walkthrough_prints_five_lessons(tmp_path):
  folder = tmp_path / "figures"
  output = scripts.succeed("walkthrough", f"--figures={folder}").output
  assert re.findall(r"^(\d)\. .*\n=+$", output, flags=re.MULTILINE) == list("01234")
  for text in (
    '"the cat sees a bird" is [2, 6, 8, 3, 1]; embedded: (5, 16)',
    "concatenated:                  (5, 16)",
    "D = 768, N = 12: H = 64",
    "stacked heads, in one call:            (1, 5, 768)",
    "looking up dog, [1.0, 10.0, 1.0], in ['cat', 'dog', 'bird']: [[0. 1. 0.]]",
    "4 heads: (4, 10, 32) -> (4, 10, 32)",
    "mask (1, 1, 4): [[[ True  True  True False]]]",
    "-> logits (32, 10000), state (32, 512), weights (32, 50)",
    "8 heads: (32, 50, 256) -> (32, 50, 256)",
  ):
    assert text in output
  # The listed weights are those in the weighted sum, and sum to one.
  listed = re.findall(r"^  (0\.\d{3})  (\w+)$", output, flags=re.MULTILINE)
  assert [word for _, word in listed] == ["the", "cat", "sees", "a", "bird"]
  terms = re.findall(r"(0\.\d{3}) v_(\d)", output)
  assert terms == [(weight, str(j)) for j, (weight, _) in enumerate(listed, 1)]
  assert abs(sum(float(weight) for weight, _ in terms) - 1) < 0.003
  assert output.count("row sums: [1. 1. 1.]") == 2
  assert float(re.findall(r"largest difference: (\S+)", output)[0]) < 1e-4
  names = re.findall(r"heatmap: (\S+)", output)
  assert len(names) == 3 and sorted(map(pathlib.Path, names)) == sorted(folder.iterdir())
  assert all(pathlib.Path(name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for name in names)


ERRORS = [
  ("maps", "got 'maps'"),
  ("--figures=", "--figures must name a folder, got none"),
  ("--figures={file}/maps", "{file}/maps: Not a directory"),
]


@pytest.mark.parametrize(("argument", "message"), ERRORS)
def test_user_errors_are_one_line(tmp_path, argument, message):
  file = tmp_path / "file"
  file.touch()
  assert message.format(file=file) in scripts.error_of("walkthrough", argument.format(file=file))
