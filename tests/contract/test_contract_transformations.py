"""Point 8 of the contract: jit, vmap, checkpoint, shard_map, scan, export."""

import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  BLOCK_SIZES,
  DIFFERENCES,
  DIMS,
  ENGINES,
  FEW,
  FLOAT32,
  SCORES,
  Inputs,
  always,
  assert_close,
  assert_trees_close,
  attend,
  attend_fully,
  compiled_together,
  draw,
  draw_loss,
  engines,
  expected,
  expected_gradients,
  few_kinds,
  in_turn,
  narrow,
  results,
)

import attention
from attention import masks, positions
from attention.arrays import device

B, T, S = DIMS["BTS"]
LENGTHS = np.array([2, 5])
ALLOWED = (np.arange(S) < LENGTHS[:, None])[:, None, :] & np.tri(T, S, 1, dtype=bool)


def causal_within(lengths):
  return masks.causal(1) & masks.lengths(source=lengths)


@in_turn(kind=FEW)
def test_jit_equals_no_jit(kind, implementation):
  inputs = draw(kind, bias="TS")
  options = {"mask": causal_within(jnp.asarray(4)), "implementation": implementation}
  desired = expected(kind, inputs, mask=np.tri(T, S, 1, dtype=bool) & (np.arange(S) < 4))
  assert_trees_close(attend_fully(kind, inputs, **options), tuple(desired), FLOAT32)
  assert_trees_close(results(kind, inputs, **options), tuple(desired), FLOAT32)


@few_kinds
@engines
def test_vmap_equals_a_loop(kind, implementation):
  # A batch axis in all arguments but the values: the last axis of the bias, and in the mask.
  inputs = narrow(kind, draw(kind, "BTH", "BSH", "SD", bias="TSB", heads="B"))
  desired = [expected(kind, one, mask=allowed) for one, allowed in zip(unstack(inputs), ALLOWED, strict=True)]
  of_loss = draw_loss(desired[0])
  outputs, slopes = vmapped(kind, implementation, inputs, LENGTHS, of_loss, alone=kind == "user_defined")
  assert all(array.dtype == jnp.float32 for array in jax.tree.leaves((outputs, slopes)))
  for b, one in enumerate(unstack(inputs)):
    assert_trees_close([array[b] for array in outputs], list(desired[b]), FLOAT32)
    assert_trees_close(
      jax.tree.map(lambda array, b=b: array[b], slopes),
      expected_gradients(kind, one, of_loss, mask=ALLOWED[b]),
      8 * FLOAT32,
    )


@compiled_together
def vmapped(kind, implementation, inputs, lengths, of_loss):
  def run(inputs, lengths):
    outputs, pull = jax.vjp(
      lambda inputs: attend_fully(kind, inputs, mask=causal_within(lengths), implementation=implementation),
      inputs,
    )
    return outputs, pull(of_loss)[0]

  axes = Inputs(queries=0, keys=0, values=None, parameters=0, bias=-1)
  return jax.vmap(run, in_axes=(axes, 0))(inputs, lengths)


def unstack(inputs):
  """Returns the inputs of each batch element."""
  return [
    inputs._replace(
      queries=inputs.queries[b],
      keys=inputs.keys[b],
      parameters=jax.tree.map(lambda array, b=b: array[b], inputs.parameters),
      bias=inputs.bias[..., b],
    )
    for b in range(B)
  ]


@compiled_together
def checkpointed_gradients(kind, implementation, inputs, of_loss):
  @jax.checkpoint
  def loss(inputs):
    outputs = attend_fully(kind, inputs, mask=ALLOWED[0], implementation=implementation)
    return sum(jnp.sum(weight * array) for weight, array in zip(of_loss, outputs, strict=True))

  return jax.grad(loss)(inputs)


@few_kinds
@engines
def test_checkpointed_gradients_match_reference(kind, implementation, float64):
  inputs = narrow(kind, draw(kind, bias="TS", dtype=np.float64))
  of_loss = draw_loss(expected(kind, inputs, mask=ALLOWED[0]))
  actual = checkpointed_gradients(kind, implementation, inputs, of_loss)
  desired = expected_gradients(kind, inputs, of_loss, mask=ALLOWED[0])
  assert_trees_close(actual, desired, DIFFERENCES)


@compiled_together
def sharded_results_and_gradients(kind, implementation, inputs, lengths, of_loss):
  mesh = jax.make_mesh((DIMS.B,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  split, same = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
  sharded = jax.shard_map(
    lambda inputs, lengths: attend_fully(
      kind, inputs, mask=causal_within(lengths), implementation=implementation
    ),
    mesh=mesh,
    in_specs=(Inputs(split, split, split, parameters=same, bias=same), split),
    out_specs=split,
  )
  outputs, pull = jax.vjp(lambda inputs: sharded(inputs, lengths), inputs)
  return outputs, pull(of_loss)[0]


@few_kinds
@engines
def test_shard_map_results_and_gradients(kind, implementation):
  inputs = narrow(kind, draw(kind, "BTH", "BSH", "BSD", bias="TS"))
  desired = expected(kind, inputs, mask=ALLOWED)
  of_loss = draw_loss(desired)
  outputs, slopes = sharded_results_and_gradients(kind, implementation, inputs, LENGTHS, of_loss)
  assert_trees_close(outputs, tuple(desired), FLOAT32)
  desired = expected_gradients(kind, inputs, of_loss, mask=ALLOWED)
  assert_trees_close(slopes, desired, 8 * FLOAT32)


@engines
def test_scan_over_queries(implementation):
  # As in a decoder, the position of the query is traced.
  inputs = draw("additive")

  def step(t, query):
    outputs = attend_fully(
      "additive",
      inputs._replace(queries=query[None]),
      mask=masks.causal(offset=t),
      implementation=implementation,
    )
    return t + 1, outputs

  _, outputs = jax.lax.scan(step, jnp.asarray(0), inputs.queries)
  desired = expected("additive", inputs, mask=np.tri(T, S, dtype=bool))
  assert_trees_close([array[:, 0] for array in outputs], list(desired), FLOAT32)


def with_every_option(function):
  def run(queries, keys, values):
    return tuple(
      function(
        queries,
        keys,
        values,
        mask=masks.causal() & masks.lengths(source=jnp.asarray([4])),
        bias=lambda t, s: (t - s).astype(jnp.float32),
        dropout_rate=0.5,
        dropout_rng=jax.random.key(0),
        return_weights=True,
        return_logsumexp=True,
      )
    )

  return run


def multi_head_attention(queries, sources, values, **options):
  kernel = np.ones((11, 2, 3), np.float32)
  weights = attention.MultiHeadWeights(kernel, kernel, kernel, np.ones((2, 3, 11), np.float32))
  return attention.multi_head_attention(queries, sources, weights, **options)


PUBLIC_FUNCTIONS = {
  "attend": with_every_option(
    lambda q, k, v, **options: attention.attend(attention.Cosine(), q, k, v, **options)
  ),
  "scaled_dot_product_attention": with_every_option(attention.scaled_dot_product_attention),
  "additive_attention": with_every_option(
    lambda q, k, v, **options: attention.additive_attention(q, k, v, np.ones(11, np.float32), **options)
  ),
  "bilinear_attention": with_every_option(
    lambda q, k, v, **options: attention.bilinear_attention(q, k, v, np.eye(11, dtype=np.float32), **options)
  ),
  "cosine_attention": with_every_option(attention.cosine_attention),
  "multi_head_attention": with_every_option(multi_head_attention),
  "jax_nn.dot_product_attention": lambda q, k, v: attention.jax_nn.dot_product_attention(
    *(array[..., None, :11] for array in (q, k, v)),
    mask=masks.from_function(lambda t, s: q[0, t, 0] < k[0, s, 0]),
    is_causal=True,
    key_value_seq_lengths=np.array([4]),
    implementation="blockwise",
    return_residual=True,
  ),
  "dot_product_scores": lambda q, k, v: attention.dot_product_scores(q, k),
  "additive_scores": lambda q, k, v: attention.additive_scores(q, k, np.ones(11, np.float32)),
  "bilinear_scores": lambda q, k, v: attention.bilinear_scores(q, k, np.eye(11, dtype=np.float32)),
  "cosine_scores": lambda q, k, v: attention.cosine_scores(q, k),
  "masked_softmax": lambda q, k, v: attention.masked_softmax(
    attention.dot_product_scores(q, k), masks.causal().materialize(T, S)
  ),
}


def lower_with_its_gradient_for_every_platform(function, dtype):
  def run(*arguments):
    outputs, pull = jax.vjp(function, *arguments)
    return pull(outputs)

  platforms = ("cpu", "cuda", "tpu")
  arguments = [jax.ShapeDtypeStruct(DIMS[axes], dtype) for axes in ("1TH", "1SH", "1SD")]
  exported = jax.export.export(jax.jit(run), platforms=platforms)(*arguments)
  assert exported.platforms == platforms
  assert exported.in_avals == exported.out_avals


@pytest.mark.parametrize(
  ("name", "dtype"), [*((name, jnp.float32) for name in PUBLIC_FUNCTIONS), ("attend", jnp.bfloat16)]
)
def test_public_functions_lower_for_every_platform(name, dtype):
  lower_with_its_gradient_for_every_platform(PUBLIC_FUNCTIONS[name], dtype)


@pytest.mark.parametrize(
  ("kind", "sequentially"),
  always(
    *(("scaled_dot_product", True), ("additive", True), ("additive", False), ("user_defined", False)),
    of=[(kind, sequentially) for kind in SCORES for sequentially in (True, False)],
  ),
)
@pytest.mark.usefixtures("additive_in_loops")
def test_tiles_lower_for_every_platform(kind, sequentially, monkeypatch):
  monkeypatch.setattr(device, "is_cpu", lambda: sequentially)
  parameters = {
    name: np.ones((11,) * len(axes), np.float32) for name, axes in SCORES[kind].parameters.items()
  }

  def attend(queries, keys, values):
    return attention.attend(
      SCORES[kind].score(**parameters),
      queries,
      keys,
      values,
      mask=masks.causal() & masks.lengths(source=jnp.asarray([4])),
      bias=positions.ALiBi(np.float32(1)),
      dropout_rate=0.5,
      dropout_rng=jax.random.key(0),
      return_logsumexp=True,
      implementation="blockwise",
      block_sizes=BLOCK_SIZES,
    )

  lower_with_its_gradient_for_every_platform(attend, jnp.float32)


WAYS = {
  "eager": lambda loss: loss,
  "jit": jax.jit,
  "checkpoint": jax.checkpoint,
  "jit of checkpoint": lambda loss: jax.jit(jax.checkpoint(loss)),
}


@pytest.mark.parametrize(
  ("way", "dtype", "implementation"),
  always(
    *(("jit of checkpoint", np.int32, "blockwise"), ("jit", bool, "dense")),
    of=list(itertools.product(WAYS, (np.int32, bool, np.float32), ENGINES)),
  ),
)
def test_bias_functions_close_over_any_dtype(way, dtype, implementation):
  inputs = draw("scaled_dot_product")._replace(parameters={"scale": DIMS.H**-0.5})
  of_keys = np.array([0, 1, 1, 0, 2]).astype(dtype)

  def loss(queries, of_keys):
    context = attention.scaled_dot_product_attention(
      queries,
      inputs.keys,
      inputs.values,
      bias=lambda t, s: jnp.where(of_keys[s] == of_keys[t], 0.0, -1.0),
      implementation=implementation,
      block_sizes=BLOCK_SIZES,
    )
    return jnp.sum(context**2)

  def expected_loss(queries):
    bias = np.where(of_keys == of_keys[:T, None], 0, -1)
    return np.sum(expected("scaled_dot_product", inputs._replace(queries=queries, bias=bias)).context ** 2)

  actual = jax.grad(WAYS[way](loss))(inputs.queries, jnp.asarray(of_keys))
  assert_close(actual, reference.gradient(expected_loss, np.float64(inputs.queries)), 8 * FLOAT32)


@pytest.mark.parametrize("kind", always("scaled_dot_product", of=["scaled_dot_product", "additive"]))
@pytest.mark.usefixtures("additive_in_loops")
def test_explicitly_sharded_arrays_are_dense(kind):
  length = 512  # large enough for "auto" to use tiles
  mesh = jax.make_mesh(
    (2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2]
  )
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  vectors = np.random.default_rng(0).normal(size=(2, length, 11)).astype(np.float32)
  parameters = draw(kind).parameters

  def attend(vectors, implementation):
    score = SCORES[kind].score(**parameters)
    return attention.attend(score, *[vectors] * 3, implementation=implementation)

  assert_close(attend(jax.device_put(vectors, sharding), "auto"), attend(vectors, "dense"), FLOAT32)
  with pytest.raises(ValueError, match=r"does not support arrays .* AxisType\.Explicit"):
    attend(jax.device_put(vectors, sharding), "blockwise")


@pytest.mark.parametrize("count", [1, 2])
def test_explicitly_sharded_queries_with_replicated_arrays(count):
  mesh = jax.make_mesh(
    (count,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:count]
  )
  vectors = np.random.default_rng(0).normal(size=(2, 7, 11)).astype(np.float32)
  options = {
    "mask": attention.masks.lengths(source=jnp.array([3, 5])),
    "dropout_rate": 0.5,
    "dropout_rng": jax.random.key(0),
  }

  def loss(queries, keys):
    return jnp.sum(attention.scaled_dot_product_attention(queries, keys, keys, **options) ** 2)

  desired = jax.grad(loss, (0, 1))(vectors, vectors)
  with jax.set_mesh(mesh):
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    actual = jax.jit(jax.grad(loss, (0, 1)))(jax.device_put(vectors, sharding), jnp.asarray(vectors))
  assert_trees_close(actual, desired, 8 * FLOAT32)


@pytest.mark.parametrize("kind", always("scaled_dot_product", of=["scaled_dot_product", "additive"]))
@pytest.mark.usefixtures("additive_in_loops")
def test_explicit_mesh_axes_stay_sharded(kind):
  mesh = jax.make_mesh(
    (2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2]
  )
  inputs = draw(kind, "BTH", "BSH", "BSD")

  def loss(inputs):
    return jnp.sum(attend(kind, inputs) ** 2)

  desired = jax.grad(loss)(inputs)
  vectors, (parameters, _) = inputs[:3], inputs[3:]
  with jax.set_mesh(mesh):
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    here = Inputs(*(jax.device_put(array, sharding) for array in vectors), parameters)
    assert jax.typeof(attend(kind, here)).sharding.spec[0] == "data"
    actual = jax.jit(jax.grad(loss))(here)
  assert_trees_close(actual, desired, 8 * FLOAT32)
