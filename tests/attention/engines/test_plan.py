"""Blocks, the tiles that a mask makes empty, and the windows of keys that it allows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import masks
from attention.arrays.blocks import Blocks, even_blocks
from attention.arrays.named_axes import leaf_axes
from attention.engines.inputs import prepare
from attention.engines.plan import find_windows, known_tiles, make_plan
from attention.validation import check_options


@pytest.mark.parametrize(
  ("length", "max_size", "count", "size"),
  [(7, 7, 1, 7), (7, 9, 1, 7), (7, 3, 3, 3), (10, 4, 3, 4), (1, 1, 1, 1)],
)
def test_blocks_are_few_and_even(length, max_size, count, size):
  blocks = even_blocks(length, max_size)
  assert (blocks.length, blocks.count, blocks.size) == (length, count, size)
  assert blocks.padding == count * size - length


def test_blocks_do_not_cross_parts():
  for length, max_size, size in ((10, 2, 1), (12, 5, 3), (12, 9, 6)):
    blocks = even_blocks(length, max_size, num_parts=2)
    assert (blocks.count * blocks.size, blocks.size, blocks.padding) == (length, size, 0)


RANDOM_MASKS = {
  "causal": lambda rng: masks.causal(int(rng.integers(-9, 9))),
  "sliding_window": lambda rng: masks.sliding_window(*map(int, rng.integers(0, 9, size=2))),
  "lengths": lambda rng: masks.lengths(source=int(rng.integers(0, 20)), target=int(rng.integers(0, 20))),
  "prefix": lambda rng: masks.prefix(int(rng.integers(0, 20))),
  "segments": lambda rng: masks.segments(
    *np.sort(rng.integers(0, rng.choice([1, 2, 9]), size=(2, 19)), axis=-1)
  ),
  "self_segments": lambda rng: masks.segments(*[np.sort(rng.integers(0, 2, size=19))] * 2),
  "unsorted_segments": lambda rng: masks.segments(*rng.integers(0, 3, size=(2, 19))),
  "array": lambda rng: masks.from_array(rng.random((19, 19)) < rng.choice([0.01, 0.5, 0.99])),
  "both": lambda rng: masks.causal(2) & masks.prefix(int(rng.integers(0, 20))),
  "either": lambda rng: masks.sliding_window(3, 0) | masks.prefix(int(rng.integers(0, 20))),
  "not": lambda rng: ~(masks.causal() & masks.prefix(int(rng.integers(0, 20)))),
}


def cut_to(mask, rows, columns):
  """Returns a mask of 19 x 19 pairs cut to some rows and columns, as the engine does."""
  places = {"T": rows, "S": columns}
  leaves, structure = jax.tree.flatten(mask)
  return structure.unflatten(
    np.asarray(leaf)[(..., *(places[axis] for axis in axes))]
    for leaf, axes in zip(leaves, leaf_axes(mask), strict=True)
  )


@pytest.mark.parametrize("name", RANDOM_MASKS)
def test_block_summaries_agree_with_masks(name):
  rng = np.random.default_rng(0)
  found = set()
  for _ in range(40):
    mask = RANDOM_MASKS[name](rng)
    t, s = rng.integers(0, 15), rng.integers(0, 13)
    rows, columns = slice(t, t + 5), slice(s, s + 7)
    allowed = np.asarray(mask.materialize(19, 19))[..., rows, columns]
    tile = np.arange(t, t + 5)[:, None], np.arange(s, s + 7)[None, :]
    here = cut_to(mask, rows, columns)
    np.testing.assert_array_equal(np.broadcast_to(here.mask_mod(*tile), allowed.shape), allowed)
    any_allowed, all_allowed = map(bool, here.block_summary((t, t + 4), (s, s + 6)))
    assert any_allowed or not np.any(allowed), f"{mask!r} is not empty in targets {rows}, sources {columns}"
    assert not all_allowed or np.all(allowed), f"{mask!r} is not full in targets {rows}, sources {columns}"
    found |= {(any_allowed, all_allowed)}
  # There are empty tiles, full tiles, and others. (Unsorted segments only have these by chance.)
  assert found >= {(False, False), (True, True), (True, False)} or name == "unsorted_segments"


@pytest.mark.parametrize("name", RANDOM_MASKS)
def test_nonempty_tiles_are_known(name):
  rng = np.random.default_rng(0)
  rows, columns = Blocks(19, 4, 5), Blocks(19, 3, 7)
  for _ in range(20):
    mask = RANDOM_MASKS[name](rng)
    tiles = known_tiles(mask, rows, columns)
    allowed = np.asarray(mask.materialize(19, 19))
    for i, j in np.ndindex(4, 3):
      is_empty = not allowed[5 * i : 5 * i + 5, 7 * j : 7 * j + 7].any()
      assert tiles[i, j] or is_empty, f"{mask!r} is not empty in tile {i}, {j}"


def test_traced_or_batched_tiles_are_unknown():
  blocks = Blocks(19, 2, 10)
  assert known_tiles(masks.lengths(source=np.array([3, 5])), blocks, blocks) is None
  known = []

  @jax.jit
  def run(mask):
    known.append(known_tiles(mask, blocks, blocks) is not None)
    return mask

  for mask in (masks.causal(), masks.causal(2), masks.sliding_window(2, 3), masks.prefix(5)):
    run(mask)
  assert known == [True, False, True, False]  # only integers of Band are static


@pytest.mark.parametrize(
  ("mask", "is_narrow"),
  [
    (masks.causal(), False),
    (masks.sliding_window(50, 10), True),
    (masks.causal() & masks.sliding_window(50, 50), True),
    (masks.causal() | masks.sliding_window(50, 10), False),
    (masks.sliding_window(400, 10), False),
    (masks.segments(np.arange(1024) // 100, np.arange(1024) // 100), True),
    (masks.prefix(100), True),
  ],
)
def test_windows_hold_all_allowed_keys(mask, is_narrow):
  windows = find_windows(mask, 1024, 1024, 1, (128, 2048))
  assert (windows is not None) == is_narrow
  if windows is not None:
    queries, keys, starts = windows
    allowed = np.asarray(mask.materialize(1024, 1024))
    for i, start in enumerate(starts):
      rows = allowed[i * queries.size : (i + 1) * queries.size]
      assert rows.sum() == rows[:, start : start + keys.length].sum()
    assert keys.length <= 384


def plan_of(length, mask, block_sizes=None, heads=1):
  vectors = jnp.ones((heads, length, 2))
  options, _ = check_options(attention.ScaledDotProduct(), mask=mask)
  return make_plan(*prepare(vectors, vectors, vectors, options), block_sizes)[0]


def test_masks_of_several_heads_keep_windows():
  heads = masks.from_function(lambda t, s: (t + s)[None] % (2 + jnp.arange(3)[:, None, None]) != 0)
  assert plan_of(1024, masks.sliding_window(50, 10) & heads, heads=3).windows is not None


def test_keys_beyond_windows_are_skipped():
  def visited(length, mask, block_sizes=None):
    """Returns the number of keys that a query visits, and the total number of visited pairs."""
    plan = plan_of(length, mask, block_sizes)
    keys = plan.keys.count * plan.keys.size
    return keys, plan.queries.count * plan.queries.size * keys

  causal = masks.causal()
  assert visited(512, causal, (16, 16))[1] == 4 * visited(256, causal, (16, 16))[1]
  window = causal & masks.sliding_window(15, 15)
  assert visited(512, window, (16, 16))[1] == 2 * visited(256, window, (16, 16))[1]
  for width in (128, 512, 2048, 8192):
    keys, pairs = visited(65536, causal & masks.sliding_window(width - 1, 0))
    assert keys <= 2 * width  # at least half of them are in the window
    assert pairs <= 2.5 * 65536 * width


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class PairAsSummary(masks.Mask):
  """A wrong mask: its summary is a tuple."""

  def mask_mod(self, t, s):
    return s <= t

  def block_summary(self, t, s):
    return s[0] <= t[1], s[1] <= t[0]


def test_wrong_block_summaries_raise():
  vectors = np.ones((16, 3), np.float32)
  with pytest.raises(ValueError, match=r"^PairAsSummary.block_summary must return a BlockSummary, got \("):
    attention.scaled_dot_product_attention(*[vectors] * 3, mask=PairAsSummary(), implementation="blockwise")
