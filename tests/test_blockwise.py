"""What only the blockwise engine promises: linear memory, tiles that are skipped, the same in every walk.

That it gives the right results, in blocks that do not divide T and S, is tested by the tests of the contract.
"""

import dataclasses
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import (
  BLOCK_SIZES,
  DIMS,
  FLOAT32,
  SCORES,
  assert_close,
  assert_trees_close,
  draw,
  draw_loss,
  expected,
  expected_gradients,
  kinds,
  narrow,
)

import attention
from attention import masks, tiles
from attention.blockwise import walk
from attention.blockwise.plan import plan_for

B, T, S = DIMS["BTS"]


def largest_array(program):
  """Returns how many elements the largest array in a compiled program has."""
  shapes = re.findall(r"[a-z]+\d*\[([\d,]*)\]", program.as_text())
  return max(
    int(np.prod([int(size) for size in shape.split(",") if size], dtype=np.int64)) for shape in shapes
  )


def compiled(kind, length, mask, derivative):
  """Returns the compiled program of one head of self-attention, by the score's parameters too."""
  width = 8
  parameters = {
    name: np.ones((width,) * len(axes), np.float32) for name, axes in SCORES[kind].parameters.items()
  }
  vectors = np.ones((1, length, width), np.float32)

  def loss(parameters, *vectors):
    score = SCORES[kind].score(**parameters)
    outputs = attention.attend(
      score, *vectors, mask=mask, return_logsumexp=True, implementation="blockwise", block_sizes=(64, 64)
    )
    return sum(jnp.sum(output**2) for output in outputs)

  inputs = parameters, vectors, vectors, vectors
  functions = {
    "none": loss,
    "gradient": jax.grad(loss, (0, 1, 2, 3)),
    "tangent": lambda *inputs: jax.jvp(loss, inputs, inputs),
    "hessian_vector_product": lambda *inputs: jax.jvp(jax.grad(loss, (0, 1, 2, 3)), inputs, inputs),
  }
  return jax.jit(functions[derivative]).lower(*inputs).compile()


@pytest.mark.parametrize(
  ("kind", "derivative"),
  [
    *((kind, "gradient") for kind in SCORES),
    ("scaled_dot_product", "none"),
    ("user_defined", "none"),
    ("additive", "tangent"),
    ("user_defined", "tangent"),
    ("scaled_dot_product", "hessian_vector_product"),
    ("user_defined", "hessian_vector_product"),
  ],
)
def test_nothing_in_the_program_grows_with_the_number_of_pairs(kind, derivative):
  length = 1024
  program = compiled(kind, length, masks.causal(), derivative)
  # A tile of 64 x 64 pairs, of the width 8 for a score that does not see to that itself.
  assert largest_array(program) <= max(length * 8 * 4, 64 * 64 * 8)
  assert program.memory_analysis().temp_size_in_bytes < length * length * 4


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
def test_temporary_memory_grows_with_the_length(kind):
  short, long = (
    compiled(kind, length, None, "gradient").memory_analysis().temp_size_in_bytes for length in (2048, 8192)
  )
  assert long < 4.5 * short


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
  """Returns a mask of 19 x 19 pairs cut to some of its rows and columns, as the engine does."""
  leaves, structure = jax.tree.flatten(mask)
  places = {"T": rows, "S": columns}
  cut = [
    np.asarray(leaf)[(..., *(places[axis] for axis in axes))]
    for leaf, axes in zip(leaves, attention.shapes.axes_of(mask), strict=True)
  ]
  return jax.tree.unflatten(structure, cut)


@pytest.mark.parametrize("name", MASKS)
def test_an_outline_says_nothing_that_is_not_so(name):
  rng = np.random.default_rng(0)
  said = set()
  for _ in range(40):
    mask = MASKS[name](rng)
    t, s = rng.integers(0, 15), rng.integers(0, 13)
    rows, columns = slice(t, t + 5), slice(s, s + 7)
    allowed = np.asarray(mask.array(19, 19))[..., rows, columns]
    tile = np.arange(t, t + 5)[:, None], np.arange(s, s + 7)[None, :]
    here = cut_to(mask, rows, columns)
    np.testing.assert_array_equal(np.broadcast_to(here.tile(*tile), allowed.shape), allowed)
    some, every = (np.asarray(one) for one in here.outline(*tile))
    assert np.all(some | ~np.any(allowed, axis=(-2, -1)))
    assert np.all(~every | np.all(allowed, axis=(-2, -1)))
    said |= {(bool(np.any(some)), bool(np.all(every)))}
  # It does know tiles that are empty, tiles that are full, and others.
  # (Unsorted segments have neither but for chance.)
  known = {(False, False), (True, True), (True, False)}
  assert said >= known if name != "unsorted_segments" else said


@pytest.mark.parametrize("name", MASKS)
def test_nothing_is_allowed_outside_of_the_band(name):
  rng = np.random.default_rng(0)
  distance = np.arange(19) - np.arange(19)[:, None]
  for _ in range(20):
    mask = MASKS[name](rng)
    before, after = mask.band()
    allowed = np.asarray(mask.array(19, 19))
    assert before is None or not np.any(allowed & (distance < -before))
    assert after is None or not np.any(allowed & (distance > after))


@pytest.mark.parametrize(
  ("mask", "band"),
  [
    (masks.causal(-2), (None, -2)),
    (masks.causal(np.int32(3)), (None, 3)),
    (masks.sliding_window(5, 1), (5, 1)),
    (masks.sliding_window(5, np.array([1, 2])), (5, None)),
    (masks.causal() & masks.sliding_window(5, 1), (5, 0)),
    (masks.prefix(3) & masks.sliding_window(5, 1), (5, 1)),
    (masks.causal(2) | masks.sliding_window(5, 1), (None, 2)),
    (masks.sliding_window(2, 3) | masks.sliding_window(5, 1), (5, 3)),
    (~masks.sliding_window(5, 1), (None, None)),
    (masks.prefix(3), (None, None)),
  ],
)
def test_a_band_is_known_from_plain_numbers(mask, band):
  assert tuple(mask.band()) == band
  # Under jit the numbers of a mask that is an argument are not known.
  jax.eval_shape(lambda mask: chex.assert_equal(tuple(mask.band()), (None, None)), mask)


WINDOWS = {
  "causal_window": lambda: masks.causal() & masks.sliding_window(3, 9),
  "ahead": lambda: masks.sliding_window(-1, 4),
  "behind": lambda: masks.sliding_window(5, -2),
  "window_of_lengths": lambda: masks.sliding_window(2, 1) & masks.lengths(source=np.array([11, 30])[:, None]),
  "window_of_an_array": lambda: (
    masks.sliding_window(3, 2) & (np.random.default_rng(1).random((31, 37)) < 0.6)
  ),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("kind", ["scaled_dot_product", "user_defined"])
def test_a_window_is_cut_out_of_the_keys(kind, name):
  # More keys than queries, and the other way round.
  for T, S in ((31, 37), (37, 31)) if name != "window_of_an_array" else ((31, 37),):
    rng = np.random.default_rng(0)
    drawn = draw(kind)
    vectors = [rng.normal(size=(2, 3, length, 5)).astype(np.float32) for length in (T, S, S)]
    bias = rng.normal(size=(3, T, S)).astype(np.float32)
    of_loss = rng.normal(size=(2, 3, T, 5)).astype(np.float32)
    mask = WINDOWS[name]()

    def loss(parameters, queries, keys, values, bias, engine, mask=mask, of_loss=of_loss):
      context, logsumexp = attention.attend(
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


def test_a_window_of_dropout_and_of_what_is_not_finite_is_that_of_the_whole():
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


def test_keys_beyond_a_window_are_not_visited():
  def visited(length, mask):
    plan = plan_for((length, length), mask, (16, 16), None, 0.0)
    return plan.queries.count * plan.keys.count

  assert visited(512, masks.causal()) == 4 * visited(256, masks.causal())
  window = masks.causal() & masks.sliding_window(15, 15)
  assert visited(512, window) == 2 * visited(256, window)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counting(attention.Score):
  """A dot product that tells `tiles` of each tile that is calculated."""

  tiles: list = dataclasses.field(metadata={"static": True}, hash=False, compare=False)

  def tile(self, query_features, key_features):
    jax.debug.callback(lambda: self.tiles.append(1))
    return query_features @ key_features.swapaxes(-1, -2)


@pytest.mark.parametrize(
  ("mask", "count"),
  [
    (None, 64),
    (masks.causal(), 36),
    (masks.sliding_window(3, 0), 15),
    (masks.sliding_window(np.array(3), 0), 15),
    (masks.lengths(source=8, target=12), 6),
    (masks.segments(np.arange(32) // 8, np.arange(32) // 8), 16),
  ],
)
def test_empty_tiles_are_skipped(mask, count):
  calculated = []
  vectors = np.ones((32, 2), np.float32)
  attention.attend(
    Counting(calculated), vectors, vectors, vectors, mask=mask, implementation="blockwise", block_sizes=(4, 4)
  ).block_until_ready()
  jax.effects_barrier()
  assert len(calculated) == count


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
def test_the_gradient_of_a_vmap_is_that_of_a_loop(kind):
  # Each of the batch has its own empty tiles, and one its own formula for additive scores.
  inputs = narrow(kind, draw(kind, "BTH", "BSH", "BSD"))
  inputs = inputs._replace(queries=inputs.queries * np.float32([1, 50])[:, None, None])
  lengths = np.array([5, 1])

  def run(parameters, queries, keys, values, length):
    context = attention.attend(
      SCORES[kind].score(**parameters),
      queries,
      keys,
      values,
      mask=masks.prefix(length),
      implementation="blockwise",
      block_sizes=BLOCK_SIZES,
    )
    return context

  def loss(inputs):
    return jnp.sum(jax.vmap(run, (None, 0, 0, 0, 0))(inputs.parameters, *inputs[:3], lengths) ** 2)

  def loss_of_loop(inputs):
    contexts = [run(inputs.parameters, *(array[b] for array in inputs[:3]), lengths[b]) for b in range(B)]
    return sum(jnp.sum(context**2) for context in contexts)

  assert_trees_close(jax.jit(jax.grad(loss))(inputs), jax.jit(jax.grad(loss_of_loop))(inputs), FLOAT32)


def test_lengths_and_segments_are_not_compiled_in():
  vectors = np.ones((B, T, 2), np.float32)
  traced = []

  @jax.jit
  def run(lengths, segments):
    traced.append(1)
    mask = masks.lengths(source=lengths) & masks.segments(segments, segments)
    return attention.scaled_dot_product_attention(
      vectors, vectors, vectors, mask=mask, implementation="blockwise", block_sizes=BLOCK_SIZES
    )

  results = [
    run(jnp.asarray(lengths), jnp.asarray(segments))
    for lengths, segments in (([1, 2], [[0, 0, 0]] * 2), ([3, 0], [[0, 1, 1]] * 2))
  ]
  assert len(traced) == 1
  np.testing.assert_allclose(results[0], np.ones((B, T, 2)), rtol=1e-6)
  np.testing.assert_allclose(results[1], np.stack([np.ones((T, 2)), np.zeros((T, 2))]), rtol=1e-6)


@kinds
def test_all_tiles_at_once_are_the_same(kind, monkeypatch):
  # As on a GPU.
  for module in (tiles, walk):
    monkeypatch.setattr(module, "one_by_one", lambda: False)
  inputs = narrow(kind, draw(kind, "BTH", "SH", "BSD"))
  allowed = np.tri(T, S, dtype=bool) & (np.arange(S) < 4)
  desired = expected(kind, inputs, mask=allowed)
  of_loss = draw_loss(desired)

  def run(inputs):
    return attention.attend(
      SCORES[kind].score(**inputs.parameters),
      *inputs[:3],
      mask=masks.causal() & masks.prefix(4),
      return_weights=True,
      return_logsumexp=True,
      implementation="blockwise",
      block_sizes=BLOCK_SIZES,
    )

  outputs, pull = jax.vjp(jax.jit(run), inputs)
  slopes = pull(tuple(jnp.asarray(array, jnp.float32) for array in of_loss))[0]
  assert_trees_close(outputs, tuple(desired), FLOAT32)
  assert_trees_close(slopes, expected_gradients(kind, inputs, of_loss, mask=allowed), 8 * FLOAT32)


def test_a_score_that_does_not_name_its_axes_may_still_differ_from_head_to_head():
  inputs = draw("user_defined", "BNTH", "BNSH", "BNSD")
  temperature = np.linspace(0.1, 0.7, DIMS.N, dtype=np.float32)

  def run(temperature):
    score = SCORES["user_defined"].score(temperature[None, :, None, None])
    return attention.attend(score, *inputs[:3], implementation="blockwise", block_sizes=BLOCK_SIZES)

  desired = expected("user_defined", inputs._replace(parameters={"temperature": temperature}))
  assert_close(jax.jit(run)(temperature), desired.context, FLOAT32)


def test_a_bias_function_may_differ_from_head_to_head_and_is_trained():
  inputs = draw("scaled_dot_product", "BNTH", "B1SH", "B1SD")
  slopes = np.linspace(-0.5, 0.5, DIMS.N, dtype=np.float32)

  def run(slopes, implementation):
    def bias(t, s):
      return slopes[:, None, None] * jnp.abs(t - s).astype(jnp.float32)[None]

    return attention.scaled_dot_product_attention(
      *inputs[:3], bias=bias, implementation=implementation, block_sizes=BLOCK_SIZES
    )

  distance = np.abs(np.arange(T)[:, None] - np.arange(S))
  desired = expected(
    "scaled_dot_product",
    inputs._replace(bias=slopes[:, None, None] * distance, parameters={"scale": DIMS.H**-0.5}),
  )
  assert_close(run(slopes, "blockwise"), desired.context, FLOAT32)
  of_loss = np.random.default_rng(1).normal(size=desired.context.shape).astype(np.float32)
  gradients = [
    jax.grad(lambda slopes, engine=engine: jnp.sum(of_loss * run(slopes, engine)))(slopes)
    for engine in ("blockwise", "dense")
  ]
  assert np.all(np.abs(gradients[0]) > 1e-3)
  assert_close(*gradients, 8 * FLOAT32)


@pytest.mark.parametrize("block_sizes", [(0, 2), (2,), 2, (2, -1), (2.0, 2)])
def test_block_sizes_are_two_positive_numbers(block_sizes):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match=r"block_sizes must be two positive numbers, .* got"):
    attention.scaled_dot_product_attention(vectors, vectors, vectors, block_sizes=block_sizes)
