"""Block summaries of masks, and the windows of keys that known masks allow."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import FLOAT32, SCORES, always, assert_close, assert_trees_close, draw

import attention
from attention import masks
from attention.arrays.named_axes import leaf_axes
from attention.engines.inputs import prepare
from attention.engines.plan import Blocks, find_windows, known_tiles, make_plan
from attention.validation import check_options

MASKS = {
  "causal": lambda rng: masks.causal(int(rng.integers(-9, 9))),
  "sliding_window": lambda rng: masks.sliding_window(*map(int, rng.integers(0, 9, size=2))),
  "lengths": lambda rng: masks.lengths(source=int(rng.integers(0, 20)), target=int(rng.integers(0, 20))),
  "prefix": lambda rng: masks.prefix(int(rng.integers(0, 20))),
  "segments": lambda rng: masks.segments(
    *np.sort(rng.integers(0, rng.choice([1, 2, 9]), size=(2, 19)), axis=-1)
  ),
  "unsorted_segments": lambda rng: masks.segments(*rng.integers((0, 2), (2, 4), size=(19, 2)).T),
  "array": lambda rng: masks.from_array(rng.random((19, 19)) < rng.choice([0.01, 0.5, 0.99])),
  "both": lambda rng: masks.causal(2) & masks.prefix(int(rng.integers(0, 20))),
  "either": lambda rng: masks.sliding_window(3, 0) | masks.prefix(int(rng.integers(0, 20))),
  "not": lambda rng: ~(masks.causal() & masks.prefix(int(rng.integers(0, 20)))),
}


def cut_to(mask, rows, columns):
  """Returns a mask of 19 x 19 pairs cut to some rows and columns, as the engine does."""
  places = {"T": rows, "S": columns}

  def cut(leaf, axes):
    return np.asarray(leaf)[(..., *(places[axis] for axis in axes))]

  leaves, structure = jax.tree.flatten(mask)
  return jax.tree.unflatten(structure, map(cut, leaves, leaf_axes(mask)))


@pytest.mark.parametrize("name", MASKS)
def test_block_masks_agree_with_their_masks(name):
  rng = np.random.default_rng(0)
  printed = set()
  for _ in range(40):
    mask = MASKS[name](rng)
    t, s = rng.integers(0, 15), rng.integers(0, 13)
    rows, columns = slice(t, t + 5), slice(s, s + 7)
    allowed = np.asarray(mask.materialize(19, 19))[..., rows, columns]
    tile = np.arange(t, t + 5)[:, None], np.arange(s, s + 7)[None, :]
    here = cut_to(mask, rows, columns)
    np.testing.assert_array_equal(np.broadcast_to(here.mask_mod(*tile), allowed.shape), allowed)
    any_allowed, all_allowed = map(bool, here.block_summary((t, t + 4), (s, s + 6)))
    assert any_allowed or not np.any(allowed)
    assert not all_allowed or np.all(allowed)
    printed |= {(any_allowed, all_allowed)}
  # It has empty tiles, full tiles, and others. (Unsorted segments only have these by chance.)
  known = {(False, False), (True, True), (True, False)}
  assert printed >= known if name != "unsorted_segments" else printed


@pytest.mark.parametrize("name", MASKS)
def test_all_tiles_are_summarized_at_once(name):
  rng = np.random.default_rng(0)
  rows, columns = Blocks(19, 4, 5), Blocks(19, 3, 7)
  for _ in range(20):
    mask = MASKS[name](rng)
    tiles = known_tiles(mask, 19, 19, rows, columns)
    allowed = np.asarray(mask.materialize(19, 19))
    for i, j in np.ndindex(4, 3):
      assert tiles[i, j] or not allowed[5 * i : 5 * i + 5, 7 * j : 7 * j + 7].any()


def test_tiles_are_unknown_under_jit_or_by_batch():
  rows = columns = Blocks(19, 2, 10)
  assert known_tiles(masks.lengths(source=np.array([3, 5])), 19, 19, rows, columns) is None
  known = []

  @jax.jit
  def run(mask):
    known.append(known_tiles(mask, 19, 19, rows, columns) is not None)
    return mask

  for mask in (masks.causal(), masks.causal(2), masks.sliding_window(2, 3), masks.prefix(5)):
    chex.assert_trees_all_equal(run(mask), mask)
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


WINDOWS = {
  "causal_window": lambda: masks.causal() & masks.sliding_window(3, 9),
  "ahead": lambda: masks.sliding_window(-1, 4),
  "behind": lambda: masks.sliding_window(5, -2),
  "window_of_lengths": lambda: masks.sliding_window(2, 1) & masks.lengths(source=np.array([11, 30])[:, None]),
  "window_of_an_array": lambda: (
    masks.sliding_window(3, 2) & (np.random.default_rng(1).random((31, 37)) < 0.6)
  ),
}


@pytest.mark.parametrize(
  ("kind", "name"),
  always(
    ("scaled_dot_product", "window_of_lengths"),
    ("user_defined", "ahead"),
    of=[(kind, name) for kind in ("scaled_dot_product", "user_defined") for name in WINDOWS],
  ),
)
def test_windows_match_the_whole_sequence(kind, name):
  # More keys than queries, and the reverse.
  for T, S in ((31, 37), (37, 31)) if name != "window_of_an_array" else ((31, 37),):
    rng = np.random.default_rng(0)
    drawn = draw(kind)
    vectors = [rng.normal(size=(2, 3, length, 5)).astype(np.float32) for length in (T, S, S)]
    bias = rng.normal(size=(3, T, S)).astype(np.float32)
    of_loss = rng.normal(size=(2, 3, T, 5)).astype(np.float32)
    mask = WINDOWS[name]()

    def loss(parameters, queries, keys, values, bias, engine, mask=mask, of_loss=of_loss):
      context, _, logsumexp = attention.attend(
        SCORES[kind].score(**parameters),
        queries,
        keys[:, :1],
        values,
        mask=mask,
        bias=bias,
        return_logsumexp=True,
        implementation=engine,
        block_sizes=(5, 3),
      )
      counted = jnp.where(jnp.isfinite(logsumexp), logsumexp, 0)
      return jnp.sum(of_loss * context) + jnp.sum(counted**2), (context, logsumexp)

    run = jax.jit(jax.grad(loss, (0, 1, 2, 3, 4), has_aux=True), static_argnums=5)
    inputs = drawn.parameters, *vectors, bias
    assert_trees_close(run(*inputs, "blockwise"), run(*inputs, "dense"), 8 * FLOAT32)


def test_windows_with_dropout_and_nan():
  rng = np.random.default_rng(0)
  queries, keys, values = (rng.normal(size=(31, 5)).astype(np.float32) for _ in range(3))
  keys[17] = np.nan

  def run(engine):
    return attention.scaled_dot_product_attention(
      queries,
      keys,
      values,
      mask=masks.sliding_window(4, 2),
      dropout_rate=0.5,
      dropout_rng=jax.random.key(0),
      implementation=engine,
      block_sizes=(5, 4),
    )

  actual = run("blockwise")
  assert_close(actual, run("dense"), FLOAT32)
  np.testing.assert_array_equal(np.any(np.isnan(actual), axis=-1), abs(np.arange(31) - 18) <= 3)


def test_masks_of_several_heads_keep_windows():
  heads = masks.from_function(lambda t, s: (t + s)[None] % (2 + jnp.arange(3)[:, None, None]) != 0)
  vectors = jnp.ones((3, 1024, 2))
  options, _ = check_options(attention.ScaledDotProduct(), mask=masks.sliding_window(50, 10) & heads)
  plan, _ = make_plan(*prepare(vectors, vectors, vectors, options), None)
  assert plan.windows is not None


def test_keys_beyond_windows_are_skipped():
  def visited(length, mask, block_sizes=None, num_heads=1):
    """Returns the number of keys that a query visits, and the total number of visited pairs."""
    features = jnp.ones((num_heads, length, 2))
    options, _ = check_options(
      attention.ScaledDotProduct(), mask=mask, bias=None, dropout_rate=0.0, dropout_rng=None
    )
    inputs, shape = prepare(features, features, features, options)
    plan, _ = make_plan(inputs, shape, block_sizes)
    keys = plan.keys.count * plan.keys.size
    return keys, plan.queries.count * plan.queries.size * keys

  causal = masks.causal()
  assert visited(512, causal, (16, 16))[1] == 4 * visited(256, causal, (16, 16))[1]
  window = causal & masks.sliding_window(15, 15)
  assert visited(512, window, (16, 16))[1] == 2 * visited(256, window, (16, 16))[1]
  for width in (128, 512, 2048, 8192):
    window = causal & masks.sliding_window(width - 1, 0)
    keys, pairs = visited(65536, window)
    assert keys <= 2 * width  # at least half of them are in the window
    assert pairs <= 2.5 * 65536 * width


def test_growing_offsets_share_a_program():
  traces = []
  of_mask = jax.jit(lambda mask: traces.append(mask) or mask.materialize(2, 5))
  for offset in (1, 2, 3):
    np.testing.assert_array_equal(of_mask(masks.causal(offset)), np.tri(2, 5, offset, dtype=bool))
  assert len(traces) == 1


def test_masks_without_bounds_allow_everything():
  for mask in (masks.Band(None, None), masks.Lengths(None, None)):
    assert np.all(mask.materialize(2, 3))
    assert mask.block_summary((0, 1), (0, 2)) == (True, True)


def test_one_sided_bands_have_no_windows():
  queries = jnp.asarray(np.random.default_rng(0).normal(size=(37, 3)), jnp.float32)
  for mask in (masks.Band(2, None), masks.Band(None, 2)):
    result, wanted = (
      attention.scaled_dot_product_attention(
        queries, queries, queries, mask=mask, implementation=implementation, block_sizes=(5, 7)
      )
      for implementation in ("blockwise", "dense")
    )
    assert_close(result, wanted, FLOAT32)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class PairAsSummary(attention.masks.Mask):
  """A wrong mask: its summary is a tuple."""

  def mask_mod(self, t, s):
    return s <= t

  def block_summary(self, t, s):
    return s[0] <= t[1], s[1] <= t[0]


def test_a_summary_must_be_a_block_summary():
  vectors = np.ones((16, 3), np.float32)
  with pytest.raises(ValueError, match=r"^PairAsSummary.block_summary must return a BlockSummary, got \("):
    attention.scaled_dot_product_attention(*[vectors] * 3, mask=PairAsSummary(), implementation="blockwise")
