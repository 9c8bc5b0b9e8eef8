"""The GRU decoder with attention: formulas, steps, padding, gradients, dropout."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference as reference
from helpers.decoders import DIMS, ENCODED, LENGTHS, TARGETS, assert_padding_is_ignored, decode, variables_of
from helpers.model_reference import compiled, float64

import attention

ALL = {"num_layers": 2, "residual": True, "layer_norm": True, "tied_embeddings": True}
LUONG = {"attend_order": "after", "input_feeding": True}
DROPOUT = {
  "dropout_rate": 0.3,
  "variational_dropout": True,
  "recurrent_dropout_rate": 0.3,
  "word_dropout_rate": 0.3,
}
# The widths of embeddings and states; the number of heads divides that of states.
decoder = functools.partial(attention.RecurrentDecoder, DIMS.V, 11, 22)
# Rounding grows from step to step, with random parameters.
assert_close = functools.partial(chex.assert_trees_all_close, rtol=3e-4, atol=3e-4)


def run_whole_and_steps(module, variables):
  """Returns logits and weights of whole targets, [B T ...], and of single steps, [T B ...]."""

  @jax.jit
  def run(variables):
    state, memory = module.apply(variables, ENCODED, LENGTHS, method="prepare")

    def step(state, tokens):
      state, *results = module.apply(variables, state, tokens, memory, method="step")
      return state, results

    return module.apply(variables, state, TARGETS, memory), jax.lax.scan(step, state, TARGETS.T)[1]

  return jax.device_get(run(variables))


@pytest.mark.parametrize(
  ("kind", "options"),
  [
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
  ],
)
def test_decoder_and_steps_match_formulas(kind, options):
  module = decoder(attention=kind, **options)
  variables = variables_of(module)
  (logits, weights), steps = run_whole_and_steps(module, variables)
  assert_close(jax.tree.leaves((logits, weights)), [np.swapaxes(x, 0, 1) for x in jax.tree.leaves(steps)])
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
  (logits, expected), (_, hard) = run_whole_and_steps(module, variables)
  memory, summary = float64(ENCODED)
  desired = reference.recurrent_decoder("monotonic", float64(params), memory[1], summary[1], TARGETS[1])
  assert_close((logits[1], expected[1]), desired)
  assert np.isin(hard, (0.0, 1.0)).all() and np.all(np.sum(hard, axis=-1) <= 1)
  places = np.where(np.any(hard == 1, axis=-1), np.argmax(hard, axis=-1), DIMS.S)
  assert np.all(np.diff(places, axis=0) >= 0) and np.min(places) < DIMS.S


@pytest.mark.parametrize(
  ("kind", "options"), [("additive", {**ALL, **LUONG, **DROPOUT}), ("location_aware", DROPOUT)]
)
def test_training_ignores_padding(kind, options):
  assert_padding_is_ignored(decoder(attention=kind, **options))


@pytest.mark.parametrize("options", [{}, {"input_feeding": True}], ids=["plain", "fed"])
def test_monotonic_noise_in_training(options):
  module = decoder(attention="monotonic", **options)
  run = compiled(module, decode, deterministic=False)
  first, second = (
    jax.device_get(run(variables_of(module), rngs={"dropout": jax.random.key(seed)})[1]) for seed in (0, 1)
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


def test_dropout_after_the_first_query():
  module = decoder(**DROPOUT)
  variables = variables_of(module)
  run = compiled(module, decode, deterministic=False)
  (logits, weights), (other, _) = (run(variables, rngs={"dropout": jax.random.key(seed)}) for seed in (0, 1))
  without = compiled(decoder(), decode)(variables)[1]
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
