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
import reference
from contract import (
  BLOCK_SIZES,
  DIMS,
  FLOAT32,
  SCORES,
  assert_close,
  assert_trees_close,
  draw,
  draw_loss,
  engines,
  expected,
  expected_gradients,
  kinds,
  narrow,
  replaced,
)

import attention
from attention import masks, positions, tiles
from attention.blockwise import plan as plan_module
from attention.blockwise import walk
from attention.blockwise.plan import Operands, plan_for
from attention.shapes import same_rank

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


@kinds
def test_nor_where_tiles_are_worked_on_together(kind, monkeypatch):
  # As on a GPU, with the sizes that are chosen by default, of a batch with heads.
  for module in (tiles, walk, plan_module):
    monkeypatch.setattr(module, "one_by_one", lambda: False)
  monkeypatch.setattr(plan_module, "PAIRS_IN_PARALLEL", 2**12)
  monkeypatch.setattr(plan_module, "default_block_sizes", lambda *_: (32, 64))
  parameters = {name: np.ones((4,) * len(axes), np.float32) for name, axes in SCORES[kind].parameters.items()}
  vectors = np.ones((2, 3, 512, 4), np.float32)

  def loss(parameters, *vectors):
    score = SCORES[kind].score(**parameters)
    return jnp.sum(attention.attend(score, *vectors, implementation="blockwise") ** 2)

  program = jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(parameters, vectors, vectors, vectors).compile()
  # A score of few terms, or that does not see to it itself, has the width 4 in its tiles.
  assert largest_array(program) <= max(
    vectors.size, 2**12 * (4 if kind in ("user_defined", "additive") else 1)
  )


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
    features = jnp.ones((length, 2))
    operands = Operands(
      score=attention.ScaledDotProduct(),
      query_features=features,
      key_features=features,
      values=features,
      mask=mask,
      query_positions=jnp.arange(length),
      key_positions=jnp.arange(length),
    )
    plan = plan_for((length, length), operands, block_sizes, None, 0.0)
    return plan.queries.count * plan.keys.count * plan.keys.size / length

  block_sizes = 16, 16
  assert visited(512, masks.causal()) == 2 * visited(256, masks.causal())
  window = masks.causal() & masks.sliding_window(15, 15)
  assert visited(512, window) == visited(256, window)
  block_sizes = None
  for width in (128, 512, 2048, 8192):
    window = masks.causal() & masks.sliding_window(width - 1, 0)
    # Of the keys that a query visits, at least a fifth are in its window.
    blocks = visited(65536, window) * 65536 / len(range(0, 65536, max(128, width // 2)))
    assert blocks <= 5 * max(width, 128) and visited(65536, window) < visited(65536, masks.causal())


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
  for module in (tiles, walk, plan_module):
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedByHead(attention.Score):
  """A score whose heads differ by what is no array of it."""

  def tile(self, query_features, key_features):
    scores = jnp.einsum("...TH,...SH->...TS", query_features, key_features)
    factors = jnp.linspace(0.1, 0.7, DIMS.N, dtype=scores.dtype)[:, None, None]
    return jnp.multiply(*same_rank(scores, factors))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedMask(masks.Mask):
  """Heads that see one key less from one to the next."""

  def tile(self, t, s):
    return s[None] < S - np.arange(DIMS.N)[:, None, None] % 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedBias(positions.Bias):
  """A bias whose heads differ by what is no array of it."""

  def __call__(self, t, s):
    return np.arange(DIMS.N, dtype=np.float32)[:, None, None] * jnp.abs(t - s).astype(jnp.float32)[None]


@pytest.mark.parametrize("block_sizes", [BLOCK_SIZES, None])
@pytest.mark.parametrize(
  "rules",
  [
    {"score": FixedByHead()},
    {"mask": FixedMask()},
    {"bias": FixedBias()},
    {"bias": lambda t, s: (t - s).astype(jnp.float32)[None, None]},
    {"bias": positions.ALiBi([0.1 * n for n in range(DIMS.N)])},
  ],
  ids=["score", "mask", "bias", "function", "list"],
)
def test_rules_may_bring_leading_axes_that_none_of_their_arrays_has(rules, block_sizes):
  vectors = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")[:3]
  arguments = {"score": attention.ScaledDotProduct(), **rules}
  score = arguments.pop("score")

  def run(engine):
    return attention.attend(score, *vectors, **arguments, implementation=engine, block_sizes=block_sizes)

  assert_close(run("blockwise"), run("dense"), FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Flagged(attention.Score):
  """A score with features that are no numbers."""

  def key_features(self, keys):
    return {"keys": keys, "flag": keys[..., :1] > 0}

  def tile(self, query_features, key_features):
    scores = jnp.einsum("...TH,...SH->...TS", query_features, key_features["keys"])
    return jnp.where(jnp.swapaxes(~key_features["flag"], -1, -2), scores, 0)


@engines
def test_features_may_be_flags(implementation):
  queries, keys, values = draw("scaled_dot_product")[:3]
  actual = attention.attend(
    Flagged(), queries, keys, values, implementation=implementation, block_sizes=(2, 2)
  )
  scores = np.where(keys[:, 0] > 0, 0, queries @ keys.T)
  weights = np.exp(scores) / np.sum(np.exp(scores), axis=-1, keepdims=True)
  assert_close(actual, weights @ values, FLOAT32)


@pytest.mark.parametrize(
  "bias",
  [
    np.float32(300),
    lambda t, s: 300 * s.astype(jnp.float32) + 0 * t.astype(jnp.float32),
    lambda t, s: 1 / (T - t).astype(jnp.float32) + 1 / (S - s).astype(jnp.float32),
    lambda t, s: jnp.take(np.ones((T, 1), np.float32), t[:, 0], axis=0),
    positions.ALiBi(np.float32(-300)),
  ],
)
def test_what_is_beyond_the_end_of_the_last_block_spoils_no_gradient(bias):
  inputs = draw("scaled_dot_product")[:3]

  def gradients(engine):
    def loss(queries, keys, values):
      return jnp.sum(
        attention.scaled_dot_product_attention(
          queries, keys, values, bias=bias, implementation=engine, block_sizes=BLOCK_SIZES
        )
        ** 2
      )

    return jax.jit(jax.grad(loss, (0, 1, 2)))(*inputs)

  assert_trees_close(gradients("blockwise"), gradients("dense"), 8 * FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Distance(attention.Score):
  """A score that has no derivative where a query is a key."""

  def tile(self, query_features, key_features):
    difference = query_features[..., :, None, :] - key_features[..., None, :, :]
    return -jnp.sqrt(jnp.sum(difference**2, axis=-1))


@pytest.mark.parametrize("name", ["queries", "keys"])
def test_a_vector_of_zeros_does_not_meet_the_filling_of_a_block(name):
  queries, keys, values = draw("scaled_dot_product")[:3]
  arrays = {"queries": queries, "keys": keys}
  arrays[name] = replaced(arrays[name], 0, 0.0)

  def gradients(engine):
    def loss(arrays):
      return jnp.sum(
        attention.attend(
          Distance(),
          arrays["queries"],
          arrays["keys"],
          values,
          implementation=engine,
          block_sizes=BLOCK_SIZES,
        )
        ** 2
      )

    return jax.jit(jax.grad(loss))(arrays)

  assert_trees_close(gradients("blockwise"), gradients("dense"), 8 * FLOAT32)


@engines
def test_the_least_number_is_a_bias_like_any_other(implementation):
  queries, keys, values = draw("scaled_dot_product")[:3]
  bias = np.full((T, S), np.finfo(np.float32).min, np.float32)
  actual = attention.scaled_dot_product_attention(
    queries, keys, values, bias=bias, implementation=implementation, block_sizes=BLOCK_SIZES
  )
  assert_close(actual, np.broadcast_to(np.mean(values, axis=0), actual.shape), FLOAT32)


@engines
def test_masked_values_that_are_huge_spoil_no_second_derivative(implementation):
  queries, keys, values = draw("scaled_dot_product")[:3]

  def second(values):
    def loss(queries):
      context = attention.scaled_dot_product_attention(
        queries,
        keys,
        values,
        mask=masks.prefix(S - 1),
        implementation=implementation,
        block_sizes=BLOCK_SIZES,
      )
      return 1e6 * jnp.sum(context**2)

    return jax.jit(jax.grad(lambda queries: jnp.sum(jax.grad(loss)(queries) ** 2)))(queries)

  huge = values.copy()
  huge[-1] = 3e38
  np.testing.assert_array_equal(second(huge), second(values))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class All(masks.Mask):
  """A mask that holds several."""

  parts: tuple[masks.Mask, ...]

  def tile(self, t, s):
    return self.parts[0].tile(t, s) & self.parts[1].tile(t, s)


@engines
def test_masks_and_scores_within_others_are_cut_too(implementation):
  queries, keys, values = draw("additive", "BTH", "BSH", "BSD")[:3]
  ids = np.arange(S) // 2
  mask = All((masks.causal(2), masks.segments(ids[:T], ids)))
  vector = [0.1] * DIMS.H
  actual = attention.attend(
    attention.SoftCapped(attention.Additive(vector), 5.0),
    queries,
    keys,
    values,
    mask=mask,
    implementation=implementation,
    block_sizes=BLOCK_SIZES,
  )

  def capped(query, key):
    return 5 * np.tanh(np.sum(0.1 * np.tanh(query + key)) / 5)

  allowed = np.tri(T, S, 2, dtype=bool) & (ids[:T, None] == ids)
  assert_close(actual, reference.attend(capped, queries, keys, values, mask=allowed).context, FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Numbers(masks.Mask):
  def tile(self, t, s):
    return (s <= t).astype(jnp.int32)


@engines
@pytest.mark.parametrize("mask", [Numbers(), ~Numbers(), Numbers() & masks.causal()])
def test_a_mask_of_numbers_is_told(mask, implementation):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match=r"Numbers.tile must return booleans, got int32"):
    attention.scaled_dot_product_attention(
      vectors, vectors, vectors, mask=mask, implementation=implementation
    )


def test_masks_are_not_joined_by_words():
  with pytest.raises(ValueError, match="masks are joined by &"):
    masks.causal() and masks.prefix(2)


class NoTree(masks.Mask):
  def tile(self, t, s):
    return s <= t


@engines
def test_a_mask_that_is_no_pytree_is_told(implementation):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match="NoTree must be registered as a pytree"):
    attention.scaled_dot_product_attention(
      vectors, vectors, vectors, mask=NoTree(), implementation=implementation
    )


@pytest.mark.parametrize("block_sizes", [(0, 2), (2,), 2, (2, -1), (2.0, 2), (True, 2)])
def test_block_sizes_are_two_positive_numbers(block_sizes):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match=r"block_sizes must be two positive integers, .* got"):
    attention.scaled_dot_product_attention(vectors, vectors, vectors, block_sizes=block_sizes)
