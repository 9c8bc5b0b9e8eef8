"""Properties of the blockwise engine: linear memory, skipped tiles, equal results for all block sizes.

That results are correct, in blocks that do not divide T and S, is tested by the tests of the contract.
"""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import (
  BLOCK_SIZES,
  DIMS,
  FLOAT32,
  SCORES,
  always,
  assert_close,
  assert_trees_close,
  draw,
  draw_loss,
  expected,
  expected_gradients,
  narrow,
)

import attention
from attention import masks, positions
from attention.arrays import device
from attention.engines import plan as plan_module

B, T, S = DIMS["BTS"]


def largest_array(program):
  """Returns the number of elements of the largest array in a compiled program."""
  shapes = re.findall(r"[a-z]+\d*\[([\d,]*)\]", program.as_text())
  return max(
    int(np.prod([int(size) for size in shape.split(",") if size], dtype=np.int64)) for shape in shapes
  )


def compiled(kind, length, mask, derivative):
  """Returns the compiled program of self-attention with one head, as a function of the score's parameters
  too.
  """
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
    return sum(jnp.sum(output**2) for output in jax.tree.leaves(outputs))

  inputs = parameters, vectors, vectors, vectors
  functions = {
    "none": loss,
    "gradient": jax.grad(loss, (0, 1, 2, 3)),
    "tangent": lambda *inputs: jax.jvp(loss, inputs, inputs),
    "hessian_vector_product": lambda *inputs: jax.jvp(jax.grad(loss, (0, 1, 2, 3)), inputs, inputs),
  }
  return jax.jit(functions[derivative]).lower(*inputs).compile()


def test_values_of_no_width_need_no_array_of_pairs():
  def logsumexp(vectors):
    return attention.scaled_dot_product_attention(
      vectors, vectors, vectors[..., :0], return_logsumexp=True, implementation="blockwise"
    ).logsumexp

  program = (
    jax.jit(jax.grad(lambda vectors: jnp.sum(logsumexp(vectors)))).lower(jnp.ones((1, 4096, 8))).compile()
  )
  assert program.memory_analysis().temp_size_in_bytes < 4096 * 4096


@pytest.mark.parametrize(
  ("kind", "derivative"),
  always(
    *((kind, "gradient") for kind in ("scaled_dot_product", "additive")),
    of=[
      *((kind, "gradient") for kind in SCORES),
      *((kind, "none") for kind in ("scaled_dot_product", "user_defined")),
      *((kind, "tangent") for kind in ("additive", "user_defined")),
      *((kind, "hessian_vector_product") for kind in ("scaled_dot_product", "user_defined")),
    ],
  ),
)
def test_program_has_no_array_of_pairs(kind, derivative):
  length = 1024
  program = compiled(kind, length, masks.causal(), derivative)
  # A tile of 64 x 64 pairs, times the width 8 for a score that does not reduce it.
  assert largest_array(program) <= max(length * 8 * 4, 64 * 64 * 8)
  assert program.memory_analysis().temp_size_in_bytes < length * length * 4


NUM_HEADS = 2
OPTIONS = {
  "dropout": lambda length: {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)},
  "alibi": lambda length: {"bias": positions.ALiBi(np.ones(NUM_HEADS, np.float32))},
  "relative_positions": lambda length: {
    "bias": positions.RelativePositionBias(np.ones((NUM_HEADS, 8), np.float32))
  },
  "bias_of_keys": lambda length: {"bias": np.ones((NUM_HEADS, 1, length), np.float32)},
  "bias_of_positions": lambda length: {"bias": lambda t, s: jnp.cos((t - s).astype(jnp.float32))},
  "soft_cap": lambda length: {"score": attention.SoftCap(attention.ScaledDotProduct(), 7.0)},
  "lengths": lambda length: {"mask": masks.lengths(source=np.array([length - 1, 3]))},
  "segments": lambda length: {"mask": masks.segments(np.arange(length) // 5, np.arange(length) // 5)},
  "window": lambda length: {"mask": masks.sliding_window(7, 7)},
  "window_of_each_head": lambda length: {"mask": masks.sliding_window(np.array([7, 900]), 0)},
}


@pytest.mark.parametrize(
  ("option", "num_key_heads"),
  always(
    *(("lengths", NUM_HEADS), ("window_of_each_head", 1)),
    of=list(itertools.product(OPTIONS, (1, NUM_HEADS))),
  ),
)
def test_no_option_makes_array_of_pairs(option, num_key_heads):
  length, width = 1024, 8
  queries = np.ones((NUM_HEADS, length, width), np.float32)
  keys = np.ones((num_key_heads, length, width), np.float32)

  def loss(options, *vectors):
    return jnp.sum(
      attention.attend_heads(*vectors, **options, implementation="blockwise", block_sizes=(64, 64)) ** 2
    )

  options = OPTIONS[option](length)
  program = (
    jax.jit(jax.grad(functools.partial(loss, options), (0, 1, 2))).lower(queries, keys, keys).compile()
  )
  assert largest_array(program) <= NUM_HEADS * length * width * 4
  assert program.memory_analysis().temp_size_in_bytes < length * length * 4


NORMALIZERS = {
  "sink": attention.Softmax(sink=0.5),
  "sparsemax": attention.Sparsemax(),
  "entmax15": attention.Entmax15(),
  "sigmoid": attention.Sigmoid(subtract_log_length=True),
  "softpick": attention.Softpick(),
  "stick_breaking": attention.StickBreaking(),
}


@pytest.mark.parametrize("normalizer", always("sparsemax", "stick_breaking", of=NORMALIZERS))
@pytest.mark.parametrize(
  "derivative", always("gradient", of=["gradient", "tangent", "hessian_vector_product"])
)
def test_no_normalizer_makes_array_of_pairs(normalizer, derivative):
  length, width = 1024, 8
  vectors = (np.ones((length, width), np.float32),) * 3

  def loss(*vectors):
    context = attention.scaled_dot_product_attention(
      *vectors,
      mask=masks.causal(),
      normalizer=NORMALIZERS[normalizer],
      implementation="blockwise",
      block_sizes=(64, 64),
    )
    return jnp.sum(context**2)

  gradient = jax.grad(loss, (0, 1, 2))
  function = {
    "gradient": lambda vectors: gradient(*vectors),
    "tangent": lambda vectors: jax.jvp(loss, vectors, vectors),
    "hessian_vector_product": lambda vectors: jax.jvp(gradient, vectors, vectors),
  }[derivative]
  program = jax.jit(function).lower(vectors).compile()
  assert largest_array(program) <= length * width * 4
  assert program.memory_analysis().temp_size_in_bytes < length * length


def test_unread_weights_are_not_computed():
  length = 4200  # more pairs than "auto" stores
  vectors = np.ones((length, 8), np.float32)

  def loss(*vectors):
    return jnp.sum(attention.scaled_dot_product_attention(*vectors, return_weights=True).context ** 2)

  program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(vectors, vectors, vectors).compile()
  assert program.memory_analysis().temp_size_in_bytes < length * length


@pytest.mark.parametrize("kind", always("scaled_dot_product", of=["scaled_dot_product", "additive"]))
def test_temporary_memory_grows_with_the_length(kind):
  short, long = (
    compiled(kind, length, None, "gradient").memory_analysis().temp_size_in_bytes for length in (2048, 8192)
  )
  assert long < 4.5 * short


@pytest.mark.parametrize(
  ("kind", "is_causal"),
  always(
    *(("scaled_dot_product", True), ("additive", False)),
    of=list(itertools.product(("scaled_dot_product", "additive", "bilinear", "cosine"), (False, True))),
  ),
)
def test_long_heads_need_little_memory(kind, is_causal):
  mask = masks.causal() if is_causal else None
  vectors = np.ones((16384, 64), np.float32)
  parameters = {
    name: np.ones((64,) * len(axes), np.float32) for name, axes in SCORES[kind].parameters.items()
  }

  def both_passes(parameters, of_context, *vectors):
    def attend(parameters, *vectors):
      return attention.attend(
        SCORES[kind].score(**parameters), *vectors, mask=mask, implementation="blockwise"
      )

    context, gradients = jax.vjp(attend, parameters, *vectors)
    return context, gradients(of_context)

  program = jax.jit(both_passes).lower(parameters, *(vectors,) * 4).compile()
  assert program.memory_analysis().temp_size_in_bytes <= 64 * 2**20


@pytest.mark.parametrize("kind", always("scaled_dot_product", "user_defined", of=SCORES))
def test_parallel_tiles_have_bounded_memory(kind, monkeypatch, fresh_programs):
  # As on a GPU, with default block sizes, for a batch with heads.
  monkeypatch.setattr(device, "is_cpu", lambda: False)
  monkeypatch.setattr(plan_module, "PAIRS_IN_PARALLEL", 2**12)
  monkeypatch.setattr(plan_module, "default_block_sizes", lambda *_: (32, 64))
  parameters = {name: np.ones((4,) * len(axes), np.float32) for name, axes in SCORES[kind].parameters.items()}
  vectors = np.ones((2, 3, 512, 4), np.float32)

  def loss(parameters, *vectors):
    score = SCORES[kind].score(**parameters)
    return jnp.sum(attention.attend(score, *vectors, implementation="blockwise") ** 2)

  program = jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(parameters, vectors, vectors, vectors).compile()
  # A score with few terms, or one that does not reduce them, has the width 4 in its tiles.
  assert largest_array(program) <= max(
    vectors.size, 2**12 * (4 if kind in ("user_defined", "additive") else 1)
  )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counting(attention.Score):
  """A dot product that records each computed tile in `tiles`."""

  tiles: list = dataclasses.field(metadata={"static": True}, hash=False, compare=False)

  def scores(self, query_features, key_features):
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
def test_vmap_gradient_equals_a_loop(kind):
  # Each batch element has other empty tiles, and one uses another formula for additive scores.
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


def test_lengths_and_segments_are_not_constants():
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


@pytest.mark.parametrize("kind", always("bilinear", "additive", of=SCORES))
def test_all_tiles_at_once(kind, monkeypatch, fresh_programs):
  # As on a GPU.
  monkeypatch.setattr(device, "is_cpu", lambda: False)
  inputs = narrow(kind, draw(kind, "BTH", "SH", "BSD"))
  allowed = np.tri(T, S, dtype=bool) & (np.arange(S) < 4)
  desired = expected(kind, inputs, mask=allowed)
  of_loss = draw_loss(desired)

  def run(inputs):
    return tuple(
      attention.attend(
        SCORES[kind].score(**inputs.parameters),
        *inputs[:3],
        mask=masks.causal() & masks.prefix(4),
        return_weights=True,
        return_logsumexp=True,
        implementation="blockwise",
        block_sizes=BLOCK_SIZES,
      )
    )

  outputs, pull = jax.vjp(jax.jit(run), inputs)
  slopes = pull(tuple(jnp.asarray(array, jnp.float32) for array in of_loss))[0]
  assert_trees_close(outputs, tuple(desired), FLOAT32)
  assert_trees_close(slopes, expected_gradients(kind, inputs, of_loss, mask=allowed), 8 * FLOAT32)


def test_unnamed_axes_may_differ_by_head():
  inputs = draw("user_defined", "BNTH", "BNSH", "BNSD")
  temperature = np.linspace(0.1, 0.7, DIMS.N, dtype=np.float32)

  def run(temperature):
    score = SCORES["user_defined"].score(temperature)
    return attention.attend(score, *inputs[:3], implementation="blockwise", block_sizes=BLOCK_SIZES)

  desired = expected("user_defined", inputs._replace(parameters={"temperature": temperature}))
  assert_close(jax.jit(run)(temperature), desired.context, FLOAT32)


def test_bias_functions_may_differ_by_head():
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
  assert_close(jax.jit(run, static_argnums=1)(slopes, "blockwise"), desired.context, FLOAT32)
  of_loss = np.random.default_rng(1).normal(size=desired.context.shape).astype(np.float32)
  gradients = [
    jax.jit(jax.grad(lambda slopes, engine=engine: jnp.sum(of_loss * run(slopes, engine))))(slopes)
    for engine in ("blockwise", "dense")
  ]
  assert np.all(np.abs(gradients[0]) > 1e-3)
  assert_close(*gradients, 8 * FLOAT32)


@pytest.mark.parametrize("block_sizes", [(0, 2), (2,), 2, (2, -1), (2.0, 2), (True, 2)])
def test_block_sizes_are_two_positive_numbers(block_sizes):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match=r"block_sizes must be (two positive|an) integer"):
    attention.scaled_dot_product_attention(vectors, vectors, vectors, block_sizes=block_sizes)


def test_huge_masked_values_do_not_overflow():
  rng = np.random.default_rng(0)
  queries, keys = (jnp.asarray(rng.normal(size=(size, 5)), jnp.float32) for size in (2, 8))
  values = jnp.full((8, 3), 3e38).at[jnp.array([0, 5])].set(1.0)  # sums of the others overflow
  allowed = jnp.zeros((2, 8), bool).at[0, 5].set(True).at[1, 0].set(True)
  actual = attention.scaled_dot_product_attention(
    queries, keys, values, mask=allowed, implementation="blockwise", block_sizes=(2, 4)
  )
  np.testing.assert_array_equal(actual, np.ones((2, 3), np.float32))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_modify_gets_positions(implementation):
  rng = np.random.default_rng(0)
  queries, keys, values = (jnp.asarray(rng.normal(size=(size, 5)), jnp.float32) for size in (3, 7, 7))
  actual = attention.attend(
    Distant(), queries, keys, values, implementation=implementation, block_sizes=(2, 4)
  )
  scores = np.einsum("TH,SH->TS", queries, keys) - 2.0 * np.arange(3)[:, None] * np.arange(7)[None, :]
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  desired = weights @ np.asarray(values) / weights.sum(-1, keepdims=True)
  np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-5)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Distant(attention.Score):
  """Dot products minus twice the product of the positions."""

  def scores(self, query_features, key_features):
    return jnp.einsum("...TH,...SH->...TS", query_features, key_features)

  def score_mod(self, scores, t, s):
    return scores - 2.0 * (t * s).astype(scores.dtype)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class OfEachHead(masks.Mask):
  """A mask with a leading axis that neither queries nor keys have."""

  def mask_mod(self, t, s):
    return s[None] <= t[None] + jnp.arange(3)[:, None, None]


def test_mask_and_values_share_leading_axes():
  rng = np.random.default_rng(0)
  vectors = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((5, 4), (7, 4), (3, 7, 2))]

  def gradients(implementation):
    def loss(*vectors):
      return jnp.sum(
        attention.scaled_dot_product_attention(
          *vectors, mask=OfEachHead(), implementation=implementation, block_sizes=(2, 4)
        )
        ** 2
      )

    return jax.jit(jax.grad(loss, (0, 1, 2)))(*vectors)

  for actual, desired in zip(gradients("blockwise"), gradients("dense"), strict=True):
    np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block_sizes", [(4, 5), (5, 4)], ids=str)  # 5 times 4 tiles, and 4 times 5
@pytest.mark.parametrize("most_pairs", [2**26, 60])  # all blocks of queries together; three, and a remainder
@pytest.mark.parametrize("normalizer", [None, attention.Sigmoid()], ids=["softmax", "sigmoid"])
def test_arrays_of_pairs_when_blocks_are_parallel(
  normalizer, most_pairs, block_sizes, monkeypatch, fresh_programs
):
  # As on a GPU, where several blocks of queries are computed together.
  monkeypatch.setattr(device, "is_cpu", lambda: False)
  monkeypatch.setattr(plan_module, "PAIRS_IN_PARALLEL", most_pairs)
  rng = np.random.default_rng(0)
  vectors = [rng.standard_normal((2, 3, 19, 7), dtype=np.float32) for _ in range(3)]
  bias = rng.standard_normal((3, 19, 19), dtype=np.float32)
  mask = rng.random((2, 1, 19, 19)) < 0.7

  def both_passes(implementation):
    def loss(bias, *vectors):
      options = {"normalizer": normalizer, "implementation": implementation, "block_sizes": block_sizes}
      context = attention.scaled_dot_product_attention(*vectors, mask=mask, bias=bias, **options)
      return jnp.sum(context**2), context

    return jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(bias, *vectors)

  assert_trees_close(both_passes("blockwise"), both_passes("dense"), 64 * FLOAT32)
