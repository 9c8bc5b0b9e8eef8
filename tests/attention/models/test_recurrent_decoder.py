"""The GRU decoder with attention: formulas, steps, padding, gradients, dropout."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference as reference
from helpers.model_reference import compiled, float64, random_parameters

import attention

# E: width of the embeddings. D: of the memory, C: of the final state. The number of heads divides H.
DIMS = chex.Dimensions(B=3, T=5, S=7, H=22, V=13, E=11, D=17, C=19)
rng = np.random.default_rng(0)
LENGTHS, TARGETS = np.array([4, 7, 1]), rng.integers(DIMS.V, size=DIMS["BT"])
ENCODED = attention.Encoded(*(rng.normal(size=DIMS[axes]).astype(np.float32) for axes in ("BSD", "BC")))
ALL = {"num_layers": 2, "residual": True, "layer_norm": True, "tied_embeddings": True}
LUONG = {"attend_order": "after", "input_feeding": True}
DROPOUT = {
  "dropout_rate": 0.3,
  "variational_dropout": True,
  "recurrent_dropout_rate": 0.3,
  "word_dropout_rate": 0.3,
}
decoder = functools.partial(attention.RecurrentDecoder, DIMS.V, DIMS.E, DIMS.H)
assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-3, atol=1e-3)


def decode(module, targets, encoded=ENCODED, lengths=LENGTHS, **options):
  """Runs a bound decoder over whole targets."""
  state, memory = module.prepare(encoded, lengths)
  return module(state, targets, memory, **options)


def variables_of(module):
  return random_parameters(module, TARGETS, method=decode)


@pytest.mark.parametrize(
  ("kind", "options"),
  [
    ("additive", {}),
    ("additive", {**ALL, **LUONG}),
    ("dot_product", {"tied_embeddings": True}),
    ("scaled_dot_product", {"num_layers": 3, "residual": True}),
    ("bilinear", {"layer_norm": True}),
    ("cosine", {"attend_order": "after"}),
    ("multi_head", {"num_heads": 2, "qk_features": 26, "input_feeding": True}),
    ("location_aware", {**ALL, **DROPOUT}),
    ("location_aware", LUONG),
    ("coverage", {"attend_order": "after"}),
    ("local", {}),
    ("none", {}),
    ("none", LUONG),
  ],
)
def test_decoder_and_steps_match_formulas(kind, options):
  module = decoder(attention=kind, **options)
  variables = variables_of(module)

  @jax.jit
  def run(variables):
    state, memory = module.apply(variables, ENCODED, LENGTHS, method="prepare")

    def step(state, tokens):
      state, *results = module.apply(variables, state, tokens, memory, method="step")
      return state, results

    _, steps = jax.lax.scan(step, state, TARGETS.T)
    return module.apply(variables, state, TARGETS, memory), [
      jnp.swapaxes(x, 0, 1) for x in jax.tree.leaves(steps)
    ]

  (logits, weights), steps = jax.device_get(run(variables))
  assert_close(jax.tree.leaves((logits, weights)), steps)
  assert (weights is None) == (kind == "none")
  params, (memory, summary) = float64((variables["params"], ENCODED))
  how = {name: getattr(module, name) for name in ("residual", "attend_order", "input_feeding")}
  for b, length in enumerate(LENGTHS):
    desired = reference.recurrent_decoder(kind, params, memory[b, :length], summary[b], TARGETS[b], **how)
    assert_close(logits[b], desired[0])
    if weights is not None:
      assert_close(weights[b, :, :length], desired[1])
      assert not np.any(weights[b, :, length:])


def test_monotonic_attention_is_hard_in_steps():
  module = decoder(attention="monotonic")
  variables = variables_of(module)
  params = variables["params"]
  params["attention_layer"]["offset"] = jnp.float32(0)  # so that it stops at some keys instead of none

  @jax.jit
  def run(variables):
    state, memory = module.apply(variables, ENCODED, LENGTHS, method="prepare")

    def step(state, tokens):
      state, _, weights = module.apply(variables, state, tokens, memory, method="step")
      return state, weights

    return module.apply(variables, state, TARGETS, memory), jax.lax.scan(step, state, TARGETS.T)[1]

  (logits, expected), hard = jax.device_get(run(variables))
  memory, summary = float64(ENCODED)
  desired = reference.recurrent_decoder("monotonic", float64(params), memory[1], summary[1], TARGETS[1])
  assert_close((logits[1], expected[1]), desired)
  assert np.isin(hard, (0.0, 1.0)).all() and np.all(np.sum(hard, axis=-1) <= 1)
  places = np.where(np.any(hard == 1, axis=-1), np.argmax(hard, axis=-1), DIMS.S)
  assert np.all(np.diff(places, axis=0) >= 0) and np.min(places) < DIMS.S


@pytest.mark.parametrize(
  ("kind", "options"), [("additive", {**ALL, **LUONG, **DROPOUT}), ("location_aware", {**ALL, **DROPOUT})]
)
def test_training_ignores_padding(kind, options):
  module = decoder(attention=kind, **options)
  variables, random = variables_of(module), np.random.default_rng(1).normal(size=DIMS["BTV"])

  @jax.jit
  def run(encoded, targets, lengths):
    def loss(variables, encoded):
      rngs = {"dropout": jax.random.key(0)}
      results = module.apply(
        variables, targets, encoded, lengths, method=decode, deterministic=False, rngs=rngs
      )
      return jnp.sum(np.float32(random) * results[0]), results

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(variables, encoded)

  (gradients, of_encoded), results = desired = jax.device_get(run(ENCODED, TARGETS, LENGTHS))
  is_padding = (np.arange(DIMS.S) >= LENGTHS[:, None])[..., None]
  padded = ENCODED._replace(memory=np.where(is_padding, np.float32(np.nan), ENCODED.memory))
  chex.assert_trees_all_equal(run(padded, TARGETS, LENGTHS), desired)
  np.testing.assert_array_equal(np.where(is_padding, of_encoded.memory, 0), 0)
  assert np.all(np.any(of_encoded.memory != 0, axis=-1) | is_padding[..., 0])
  for path, gradient in jax.tree.leaves_with_path(gradients):
    assert np.all(np.isfinite(gradient)), path
    if [key.key for key in path[-2:]] != ["key", "bias"]:  # a bias of all keys has no effect
      assert np.max(np.abs(gradient)) > 1e-4, path
  # Later words and other sentences have no effect.
  changed = TARGETS.copy()
  changed[1, 2] = (changed[1, 2] + 1) % DIMS.V
  for actual, before in zip(jax.device_get(run(ENCODED, changed, LENGTHS)[1]), results, strict=True):
    np.testing.assert_array_equal(actual[::2], before[::2])
    np.testing.assert_array_equal(actual[1, :2], before[1, :2])
    assert np.max(np.abs(actual[1, 3] - before[1, 3])) > 1e-5
  empty = jax.device_get(run(ENCODED, TARGETS, np.array([0, 7, 2])))
  chex.assert_tree_all_finite(empty)
  np.testing.assert_array_equal(empty[1][1][0], 0)


@pytest.mark.parametrize("options", [{}, {"input_feeding": True}], ids=["plain", "fed"])
def test_monotonic_noise_in_training(options):
  module = decoder(attention="monotonic", **options)
  run = compiled(module, decode, deterministic=False)
  first, second = (
    jax.device_get(run(variables_of(module), TARGETS, rngs={"dropout": jax.random.key(seed)})[1])
    for seed in (0, 1)
  )
  assert np.max(np.abs(first - second)) > 0.01


def test_weights_of_each_head():
  module = decoder(attention="multi_head", num_heads=2)

  @jax.jit
  def run(variables):
    state, memory = module.apply(variables, ENCODED, LENGTHS, method="prepare")
    heads = module.apply(variables, state, TARGETS, memory, method="attention_weights")
    return heads, module.apply(variables, state, TARGETS, memory)[1]

  heads, weights = jax.device_get(run(variables_of(module)))
  assert heads.shape == (DIMS.B, 1, 2, DIMS.T, DIMS.S)
  assert_close(heads[:, 0].mean(axis=1), weights)
  assert np.max(np.abs(heads[:, 0, 0] - heads[:, 0, 1])) > 0.01


@pytest.mark.parametrize("options", [{}, {"attend_order": "after"}, {"input_feeding": True}])
def test_empty_targets_have_empty_results(options):
  module = decoder(**options)
  variables = variables_of(module)
  logits, weights = jax.eval_shape(lambda: module.apply(variables, TARGETS[:, :0], method=decode))
  assert logits.shape == (DIMS.B, 0, DIMS.V) and weights.shape == (DIMS.B, 0, DIMS.S)


@pytest.mark.parametrize("name", ["dropout_rate", "recurrent_dropout_rate", "word_dropout_rate"])
def test_dropout_after_the_first_query(name):
  module = decoder(**{name: 0.5})
  variables = variables_of(module)

  run = jax.jit(
    lambda rng: module.apply(variables, TARGETS, method=decode, deterministic=False, rngs={"dropout": rng})
  )
  (logits, weights), (other, _) = jax.device_get((run(jax.random.key(0)), run(jax.random.key(1))))
  without = compiled(decoder(), decode)(variables, TARGETS)[1]
  assert_close(weights[:, 0], without[:, 0])
  assert np.max(np.abs(weights - without)) > 0.01 and np.max(np.abs(logits - other)) > 0.1


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
    ({"word_dropout_rate": 1.0}, r"word_dropout_rate must be a number in \[0, 1\), got 1.0"),
    ({"recurrent_dropout_rate": -1.0}, "recurrent_dropout_rate must be .*, got -1.0"),
    ({"attention": "luong"}, "attention must be one of additive, .*, none, got 'luong'"),
    ({"attend_order": "never"}, "attend_order must be one of before, after, got 'never'"),
    ({"attention": "multi_head", "num_heads": 3}, "features=22, num_heads=3"),
    ({"attention": "additive", "implementation": "fast"}, "implementation must be one of .*, got 'fast'"),
    ({"attention": "multi_head", "implementation": "fast"}, "implementation must be one of .*, got 'fast'"),
    *(
      (
        {"attention": kind, "normalizer": attention.Sigmoid()},
        f'must be None with attention "{kind}", got Sig',
      )
      for kind in ("local", "monotonic", "none")
    ),
  ],
)
def test_invalid_fields_raise(options, message):
  with pytest.raises(ValueError, match=message):
    variables_of(decoder(**options))
