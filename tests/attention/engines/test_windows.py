"""Block summaries of masks: empty and full tiles, and bands of keys."""

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
from attention.engines.plan import make_tiling_plan
from attention.validation import check_options

MASKS = {
  "causal": lambda rng: masks.causal(int(rng.integers(-9, 9))),
  "causal_of_a_batch": lambda rng: masks.causal(rng.integers(-9, 9, size=3)),
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
  leaves, structure = jax.tree.flatten(mask)
  places = {"T": rows, "S": columns}
  cut = [
    np.asarray(leaf)[(..., *(places[axis] for axis in axes))]
    for leaf, axes in zip(leaves, leaf_axes(mask), strict=True)
  ]
  return jax.tree.unflatten(structure, cut)


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
    any_allowed, all_allowed = (np.asarray(one) for one in here.block_summary(*tile))
    assert np.all(any_allowed | ~np.any(allowed, axis=(-2, -1)))
    assert np.all(~all_allowed | np.all(allowed, axis=(-2, -1)))
    printed |= {(bool(np.any(any_allowed)), bool(np.all(all_allowed)))}
  # It has empty tiles, full tiles, and others. (Unsorted segments only have these by chance.)
  known = {(False, False), (True, True), (True, False)}
  assert printed >= known if name != "unsorted_segments" else printed


@pytest.mark.parametrize("name", MASKS)
def test_pairs_outside_the_band_are_masked(name):
  rng = np.random.default_rng(0)
  distance = np.arange(19) - np.arange(19)[:, None]
  for _ in range(20):
    mask = MASKS[name](rng)
    before, after = mask.band()
    allowed = np.asarray(mask.materialize(19, 19))
    assert before is None or not np.any(allowed & (distance < -before))
    assert after is None or not np.any(allowed & (distance > after))


@pytest.mark.parametrize(
  ("mask", "band"),
  [
    (masks.causal(), (None, 0)),
    (masks.causal(np.int32(3)), (None, None)),  # an array, as all offsets but 0
    (masks.sliding_window(5, 1), (5, 1)),
    (masks.sliding_window(5, np.array([1, 2])), (5, None)),
    (masks.causal() & masks.sliding_window(5, 1), (5, 0)),
    (masks.prefix(3) & masks.sliding_window(5, 1), (5, 1)),
    (masks.causal() | masks.sliding_window(5, 1), (None, None)),
    (~masks.sliding_window(5, 1), (None, None)),
    (masks.prefix(3), (None, None)),
  ],
)
def test_bands_of_plain_numbers(mask, band):
  assert tuple(mask.band()) == band


@pytest.mark.parametrize(
  ("mask", "band"),
  [
    (masks.sliding_window(5, 1), (5, 1)),
    (masks.causal(2) & masks.sliding_window(5, 1), (5, 1)),
    (masks.sliding_window(5, np.array(1)), (5, None)),
    (masks.causal(2), (None, None)),
    (masks.causal(), (None, 0)),
    (masks.causal() & masks.sliding_window(5, 5), (5, 0)),
  ],
)
def test_bands_under_jit(mask, band):
  jax.eval_shape(lambda mask: chex.assert_equal(tuple(mask.band()), band), mask)
  chex.assert_trees_all_equal(jax.tree.unflatten(*reversed(jax.tree.flatten(mask))), mask)


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


def test_keys_beyond_windows_are_skipped():
  def visited(length, mask, block_sizes=None, num_heads=1):
    """Returns the number of keys that a query visits, and the total number of visited pairs."""
    features = jnp.ones((num_heads, length, 2))
    bias = (lambda t, s: jnp.zeros((num_heads, 1, 1))) if num_heads > 1 else None
    options = check_options(
      attention.ScaledDotProduct(), mask=mask, bias=bias, dropout_rate=0.0, dropout_rng=None
    )
    inputs, shape = prepare(features, features, features, options)
    plan, _ = make_tiling_plan(inputs, shape, block_sizes, None)
    assert plan.leading == ((num_heads,) if num_heads > 1 else ())
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
    # The same holds if a tile has all heads.
    assert visited(65536, window, num_heads=16)[1] < 1.1 * pairs


def test_growing_offsets_share_a_program():
  traces = []
  of_mask = jax.jit(lambda mask: traces.append(mask) or mask.materialize(2, 5))
  for offset in (1, 2, 3):
    np.testing.assert_array_equal(of_mask(masks.causal(offset)), np.tri(2, 5, offset, dtype=bool))
  assert len(traces) == 1


def test_masks_without_bounds_allow_everything():
  for mask in (masks.Band(None, None), masks.Lengths(None, None)):
    assert np.all(mask.materialize(2, 3))
    assert mask.block_summary(jnp.arange(2)[:, None], jnp.arange(3)[None]) == (True, True)


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
