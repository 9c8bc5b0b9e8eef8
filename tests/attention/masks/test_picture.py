"""Pictures of masks as text."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import masks
from attention.engines.plan import default_block_sizes

CAUSAL = """\
T=4 queries (rows), S=5 keys (columns)
10 of 20 pairs allowed (50.0%)
1 of 1 tiles computed (100.0%)
██· · · ·
████· · ·
██████· ·
████████·"""

WINDOW = """\
T=5 queries (rows), S=5 keys (columns)
9 of 25 pairs allowed (36.0%)
5 of 9 tiles computed (55.6%)
██· · · ·
████· · ·
· ████· ·
· · ████·
· · · ████"""

# Of the tiles of three queries and three keys, those with later keys only are empty.
DOCUMENTS = """\
T=5 queries (rows), S=5 keys (columns)
7 of 25 pairs allowed (28.0%)
3 of 4 tiles computed (75.0%)
first index of the leading axes (2, 1)
██· · · ·
████· · ·
· · ██· ·
· · ████·
· · · · ██"""

PREFIX = """\
T=16 queries (rows), S=16 keys (columns)
48 of 256 pairs allowed (18.8%)
1 of 1 tiles computed (100.0%)"""


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class NotTheFirst(masks.Mask):
  """A mask without a summary of tiles, with an array of keys. One of its heads allows all keys."""

  axes = {"is_first": "S"}
  is_first: jax.Array

  def mask_mod(self, t, s):
    return ~self.is_first[None, None] | jnp.array([False, True])[:, None, None]


@pytest.mark.parametrize(
  ("mask", "shape", "block_sizes", "expected"),
  [
    (masks.causal(), (4, 5), (512, 512), CAUSAL),
    (masks.from_function(lambda t, s: s <= t), (4, 5), (512, 512), CAUSAL),
    (masks.sliding_window(1, 0), (5, 5), (2, 2), WINDOW),
    (~~masks.sliding_window(1, 0), (5, 5), (2, 2), WINDOW),
  ],
)
def test_pictures_show_pairs(mask, shape, block_sizes, expected):
  assert mask.to_string(*shape, block_sizes=block_sizes) == expected


def test_first_index_is_shown():
  documents = np.array([[[0, 0, 1, 1, 2]], [[0, 0, 0, 0, 0]]])
  mask = masks.segments(documents, documents) & masks.causal()
  assert mask.to_string(5, 5, block_sizes=(3, 3)) == DOCUMENTS
  assert str(mask).splitlines()[0] == DOCUMENTS.splitlines()[0]  # the sizes of the arrays


def test_sizes_have_a_default():
  assert str(masks.prefix(3)) == "\n".join([PREFIX, *["██████" + "· " * 12 + "·"] * 16])
  assert str(masks.from_array(np.ones((1, 5), bool))).startswith("T=5 queries (rows), S=5 keys (columns)\n")


def test_user_defined_masks_are_shown():
  mask = NotTheFirst(jnp.array([True, False, False]))
  lines = str(mask).splitlines()
  assert lines[0] == "T=3 queries (rows), S=3 keys (columns)"  # T is unknown and set to S
  assert lines[1] == "6 of 9 pairs allowed (66.7%)"
  assert lines[3:] == ["first index of the leading axes (2,)", *["· ████"] * 3]
  # Without `block_summary`, no tile is skipped.
  assert mask.to_string(4, 3, block_sizes=(2, 2)).splitlines()[2] == "4 of 4 tiles computed (100.0%)"


def test_last_tiles_end_with_the_sequence():
  lines = masks.causal().to_string(5, 10, block_sizes=(2, 5)).splitlines()
  assert lines[2] == "3 of 6 tiles computed (50.0%)"


def test_default_tiles_are_those_of_blockwise():
  default = inspect.signature(masks.Mask.to_string).parameters["block_sizes"].default
  assert default == default_block_sizes(4096, 4096, has_mask=True, num_leading=1)


def test_long_masks_are_shown_in_blocks():
  *_, legend, first, second = masks.causal().to_string(5, 70).splitlines()
  assert legend == "each cell: all (██), some (░░) or none (·) of 3 x 3 pairs"
  assert first == "░░" + "· " * 22 + "·"
  assert second == "██░░" + "· " * 21 + "·"  # two queries, since T = 5


def test_pictures_have_at_most_32_rows():
  for size, rows in ((32, 32), (33, 17), (64, 32), (1000, 32)):
    text = masks.causal().to_string(size, size)
    assert len([line for line in text.splitlines() if line[0] in "█░·"]) == rows


def test_masks_inside_jit():
  texts = []

  @jax.jit
  def run(length):
    traced, known = masks.lengths(source=length), masks.causal()
    texts.extend([str(traced) == repr(traced), str(known)])
    return length

  run(3)
  assert texts == [True, str(masks.causal())]


def test_failing_and_huge_masks_are_shown_as_repr():
  failing = masks.Mask()  # without mask_mod
  assert str(failing) == repr(failing)
  huge = masks.packed(jnp.array([10]), 2**15)
  assert str(huge) == repr(huge)


@pytest.mark.parametrize(
  ("shape", "message"),
  [((0, 3), "T must be an integer of at least 1, got 0"), ((3, 4), "broadcastable .* with T=3, S=4")],
)
def test_invalid_sizes_raise(shape, message):
  with pytest.raises(ValueError, match=message):
    masks.from_array(np.ones((3, 5), bool)).to_string(*shape)
