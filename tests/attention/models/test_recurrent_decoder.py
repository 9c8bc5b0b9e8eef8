"""The GRU decoder with attention: steps and scans, state, padding, the order of attention."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference
from helpers.fixtures import FLOAT32, always, assert_close
from helpers.model_reference import MODEL, compiled, float64, random_parameters

import attention
from attention.models.decoder_attention import ATTENTION_TYPES

# E: width of the embeddings. D: of the memory, C: of the final state. N divides H.
DIMS = chex.Dimensions(B=3, T=5, S=7, N=2, H=22, V=13, E=11, D=17, C=19)
LENGTHS = np.array([4, 7, 1])
TARGETS = np.random.default_rng(0).integers(DIMS.V, size=DIMS["BT"])
few_kinds = pytest.mark.parametrize("kind", always("additive", "location_aware", "none", of=ATTENTION_TYPES))
OPTIONS = {
  "plain": {},
  "layers": {"num_layers": 2},
  "residual": {"num_layers": 3, "residual": True},
  "norm": {"num_layers": 2, "layer_norm": True},
  "one_norm": {"layer_norm": True},
  "tied": {"tied_embeddings": True},
  "wide": {"qk_features": 26},
  "after": {"attend_order": "after", "num_layers": 2, "residual": True, "layer_norm": True},
  "fed": {"input_feeding": True},
  "luong": {"attend_order": "after", "input_feeding": True, "num_layers": 2, "tied_embeddings": True},
  "all": {
    "num_layers": 3,
    "residual": True,
    "layer_norm": True,
    "tied_embeddings": True,
    "dropout_rate": 0.3,
    "variational_dropout": True,
    "recurrent_dropout_rate": 0.3,
    "word_dropout_rate": 0.3,
  },
}
OPTIONS["all_luong"] = {"attend_order": "after", "input_feeding": True, **OPTIONS["all"]}
MODULES = [
  *((kind, name) for kind in ATTENTION_TYPES for name in ("plain", "all")),
  *(("additive", name) for name in OPTIONS if name not in ("plain", "all")),
  *(
    ("location_aware", "luong"),
    ("multi_head", "luong"),
    ("multi_head", "wide"),
    ("coverage", "after"),
    ("none", "luong"),
  ),
]
# Each option and each kind of attention. Steps, gradients and padding are tested with fewer.
FEW_MODULES = (
  *(("additive", name) for name in ("all", "all_luong")),
  *((kind, "plain") for kind in ("location_aware", "multi_head", "monotonic", "none")),
)
modules = pytest.mark.parametrize(("kind", "options"), always(*FEW_MODULES, of=MODULES))
attending = pytest.mark.parametrize("kind", [kind for kind in ATTENTION_TYPES if kind != "none"])
few_attending = pytest.mark.parametrize(
  "kind", always("additive", "location_aware", of=[kind for kind in ATTENTION_TYPES if kind != "none"])
)


def decoder(kind, **options):
  return attention.RecurrentDecoder(DIMS.V, DIMS.E, DIMS.H, attention=kind, num_heads=DIMS.N, **options)


def encoded():
  rng = np.random.default_rng(1)
  return attention.Encoded(
    memory=jnp.asarray(rng.normal(size=DIMS["BSD"]), jnp.float32),
    final_state=jnp.asarray(rng.normal(size=DIMS["BC"]), jnp.float32),
  )


def decode(module, encoded, targets, lengths, **options):
  """Runs a bound decoder over whole targets."""
  state, memory = module.prepare(encoded, lengths)
  return module(state, targets, memory, **options)


@functools.cache
def variables_of(module):
  arguments = encoded(), jnp.asarray(TARGETS), jnp.asarray(LENGTHS)
  return random_parameters(module, *arguments, method=decode)


def run(kind, targets=TARGETS, source=None, options="plain", seed=None):
  """Returns logits [B T V] and weights [B T S]; with a seed, dropout is on."""
  module = decoder(kind, **OPTIONS[options])
  source = encoded() if source is None else source
  arguments = source, jnp.asarray(targets), jnp.asarray(LENGTHS)
  if seed is None:
    return compiled(module, decode)(variables_of(module), *arguments)
  apply = compiled(module, decode, deterministic=False)
  return apply(variables_of(module), *arguments, rngs={"dropout": jax.random.key(seed)})


@functools.cache
def differentiated(kind, options="plain", deterministic=True):
  """Returns a function of parameters, source and lengths that returns both gradients, logits and weights."""
  module, others = decoder(kind, **OPTIONS[options]), {"deterministic": deterministic}
  others |= {} if deterministic else {"rngs": {"dropout": jax.random.key(0)}}

  def loss(variables, source, lengths):
    results = module.apply(variables, source, jnp.asarray(TARGETS), lengths, method=decode, **others)
    return jnp.sum(results[0] ** 2), results

  return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))


# Each kind of attention and each option: this test defines the decoder.
@pytest.mark.parametrize(
  ("layer", "options"),
  always(
    *((kind, "plain") for kind in ATTENTION_TYPES),
    *(("additive", name) for name in ("residual", "one_norm", "tied", "after", "all_luong")),
    *(("location_aware", "luong"), ("multi_head", "wide")),
    of=MODULES,
  ),
)
def test_decoder_matches_reference(layer, options):
  kind, module = layer, decoder(layer, **OPTIONS[options])
  parameters = float64(variables_of(module)["params"])
  logits, weights = run(kind, options=options)
  memory, summary = float64(encoded())
  for b, length in enumerate(LENGTHS):
    source = memory[b, :length], summary[b]
    how = {name: getattr(module, name) for name in ("residual", "attend_order", "input_feeding")}
    desired = model_reference.decoder(kind, parameters, *source, TARGETS[b], **how)
    assert_close(logits[b], desired[0], 10 * MODEL)
    if kind != "none":
      assert_close(weights[b, :, :length], desired[1], MODEL)


# Monotonic attention decodes with hard attention, not in expectation.
@pytest.mark.parametrize(
  ("kind", "options"),
  always(
    *[module for module in FEW_MODULES if module[0] != "monotonic"],
    of=[module for module in MODULES if module[0] != "monotonic"],
  ),
)
def test_steps_match_the_scan(kind, options):
  module = decoder(kind, **OPTIONS[options])
  variables = variables_of(module)
  logits, weights = run(kind, options=options)
  state, memory = compiled(module, "prepare")(variables, encoded(), jnp.asarray(LENGTHS))
  assert [layer.shape for layer in state.layers] == module.num_layers * [DIMS["BH"]]
  for t in range(DIMS.T):
    state, step_logits, step_weights = compiled(module, "step")(
      variables, state, jnp.asarray(TARGETS[:, t]), memory
    )
    assert_close(step_logits, logits[:, t], 10 * MODEL)
    if kind == "none":
      assert step_weights is None and weights is None
    else:
      assert_close(step_weights, weights[:, t], MODEL)


def test_monotonic_decoding_moves_forward():
  module = decoder("monotonic")
  variables = jax.tree.map(jnp.asarray, variables_of(module))
  variables["params"]["attention_layer"]["offset"] = jnp.float32(
    0
  )  # so that it stops at some keys instead of none
  state, memory = compiled(module, "prepare")(variables, encoded(), jnp.asarray(LENGTHS))
  places = []
  for t in range(DIMS.T):
    state, _, weights = compiled(module, "step")(variables, state, jnp.asarray(TARGETS[:, t]), memory)
    assert np.isin(weights, (0.0, 1.0)).all() and np.all(np.sum(weights, axis=-1) <= 1)
    places.append(np.where(np.any(weights == 1, axis=-1), np.argmax(weights, axis=-1), DIMS.S))
  assert np.all(np.diff(places, axis=0) >= 0) and np.min(places) < DIMS.S


@few_kinds
def test_logits_depend_on_earlier_tokens(kind):
  logits, _ = run(kind)
  for t in range(DIMS.T):
    changed = TARGETS.copy()
    changed[1, t] = (changed[1, t] + 1) % DIMS.V
    other, _ = run(kind, changed)
    difference = np.max(np.abs(other - logits), axis=-1)
    assert np.all(difference[1, t:] > 1e-5)
    np.testing.assert_array_equal(difference[1, :t], 0.0)
    np.testing.assert_array_equal(difference[[0, 2]], 0.0)


@pytest.mark.parametrize("options", ["all", "all_luong"])
def test_logits_under_dropout_are_causal(options):
  logits, weights = run("additive", options=options, seed=0)
  assert np.max(np.abs(logits - run("additive", options=options)[0])) > 0.1
  for t in range(DIMS.T):
    changed = TARGETS.copy()
    changed[1, t] = (changed[1, t] + 1) % DIMS.V
    other, other_weights = run("additive", changed, options=options, seed=0)
    for one, two in ((logits, other), (weights, other_weights)):
      np.testing.assert_array_equal(one[1, :t], two[1, :t])
      np.testing.assert_array_equal(one[::2], two[::2])


@few_attending
def test_weights_depend_on_earlier_tokens(kind):
  # Bahdanau's order: the state before the word is the query.
  _, weights = run(kind)
  for t in range(DIMS.T):
    changed = TARGETS.copy()
    changed[1, t] = (changed[1, t] + 1) % DIMS.V
    _, other = run(kind, changed)
    difference = np.max(np.abs(other - weights)[1], axis=-1)
    np.testing.assert_array_equal(difference[: t + 1], 0.0)
    # The softmax of unscaled products nearly equals the argmax.
    assert np.all(difference[t + 1 :] > (0 if kind in ("dot_product", "bilinear") else 1e-6))


@pytest.mark.parametrize("kind", always("additive", of=[kind for kind in ATTENTION_TYPES if kind != "none"]))
def test_weights_after_the_word(kind):
  _, weights = run(kind, options="after")
  for t in range(DIMS.T):
    changed = TARGETS.copy()
    changed[1, t] = (changed[1, t] + 1) % DIMS.V
    _, other = run(kind, changed, options="after")
    difference = np.max(np.abs(other - weights)[1], axis=-1)
    np.testing.assert_array_equal(difference[:t], 0.0)
    assert np.all(difference[t:] > (0 if kind in ("dot_product", "bilinear") else 1e-6))


@attending
def test_weights_sum_to_one(kind):
  _, weights = run(kind)
  is_padding = np.arange(DIMS.S) >= LENGTHS[:, None, None]
  np.testing.assert_array_equal(np.where(is_padding, weights, 0.0), 0.0)
  total = np.sum(weights, axis=-1)
  if kind in ("monotonic", "local"):
    assert np.all(total < 1 + FLOAT32) and np.all(total > 0)
  else:
    assert_close(total, np.ones(DIMS["BT"]), FLOAT32)


@modules
def test_memory_padding_is_ignored(kind, options):
  module = decoder(kind, **OPTIONS[options])
  variables, lengths = variables_of(module), jnp.asarray(LENGTHS)
  differentiate = differentiated(kind, options, deterministic="all" not in options)
  is_padding = np.arange(DIMS.S) >= LENGTHS[:, None]
  whole = encoded()
  desired, desired_results = differentiate(variables, whole, lengths)
  chex.assert_tree_all_finite((desired, desired_results))
  for content in (1e4, np.nan):
    padded = whole._replace(memory=jnp.where(is_padding[:, :, None], content, whole.memory))
    gradients, results = differentiate(variables, padded, lengths)
    np.testing.assert_array_equal(gradients[1].memory[is_padding], 0.0)
    chex.assert_trees_all_equal(results, desired_results)
    chex.assert_trees_all_equal(gradients, desired)


@pytest.mark.exhaustive
def test_additive_steps_store_no_pairs():
  B, T, S, A = 3, 64, 64, 64

  def temporary_memory(kind):
    model = attention.RecurrentDecoder(vocabulary_size=5, embed_dim=7, features=A, attention=kind)
    memory, targets = jnp.ones((B, S, A)), jnp.ones((B, T), jnp.int32)

    def loss(variables):
      logits, _ = model.apply(variables, memory, targets, method=run)
      return jnp.sum(logits**2)

    def run(decoder, memory, targets):
      state, prepared = decoder.prepare(attention.Encoded(memory, memory[:, 0]), jnp.full((B,), S))
      return decoder(state, targets, prepared)

    variables = model.init(jax.random.key(0), memory, targets, method=run)
    return jax.jit(jax.grad(loss)).lower(variables).compile().memory_analysis().temp_size_in_bytes

  # Both have the same residuals of the recurrence; [T B S A] would be 3 MiB more.
  assert temporary_memory("additive") < temporary_memory("scaled_dot_product") + B * T * S * A


@few_kinds
def test_empty_source_is_finite(kind):
  lengths = jnp.asarray([0, 7, 2])
  gradients, (logits, weights) = differentiated(kind)(variables_of(decoder(kind)), encoded(), lengths)
  chex.assert_tree_all_finite((gradients, logits))
  if kind != "none":
    np.testing.assert_array_equal(weights[0], 0.0)


@pytest.mark.parametrize("options", ["plain", "after", "fed"])
def test_empty_targets_have_empty_results(options):
  logits, weights = run("additive", TARGETS[:, :0], options=options)
  assert logits.shape == (DIMS.B, 0, DIMS.V) and weights.shape == (DIMS.B, 0, DIMS.S)


@few_kinds
def test_context_without_attention_is_final_state(kind):
  whole = encoded()
  logits, _ = run(kind)
  other, _ = run(kind, source=whole._replace(memory=whole.memory + 1))
  sees_memory = np.max(np.abs(other - logits)) > 1e-3
  assert sees_memory == (kind != "none")
  other, _ = run(kind, source=whole._replace(final_state=whole.final_state + 1))
  assert np.max(np.abs(other - logits)[:, 0]) > 1e-3


@modules
def test_gradients_reach_every_parameter(kind, options):
  variables = variables_of(decoder(kind, **OPTIONS[options]))
  differentiate = differentiated(kind, options, deterministic="all" not in options)
  (gradients, _), _ = differentiate(variables, encoded(), jnp.asarray(LENGTHS))
  for path, gradient in jax.tree.leaves_with_path(gradients):
    assert np.all(np.isfinite(gradient)), path
    if [key.key for key in path[-2:]] != ["key", "bias"]:
      assert np.max(np.abs(gradient)) > 1e-4, path


def test_tied_embeddings_get_both_gradients():
  tied = attention.RecurrentDecoder(DIMS.V, DIMS.H, DIMS.H, tied_embeddings=True)
  untied = tied.clone(tied_embeddings=False)
  arguments = encoded(), jnp.asarray(TARGETS), jnp.asarray(LENGTHS)
  parameters = random_parameters(tied, *arguments, method=decode)["params"]
  both = dict(parameters)
  both["logits"] = {"kernel": both["embedding"]["embedding"].T, "bias": both.pop("logits_bias")}

  def differentiate(module, parameters):
    def loss(parameters):
      return jnp.sum(module.apply({"params": parameters}, *arguments, method=decode)[0] ** 2)

    return jax.jit(jax.value_and_grad(loss))(parameters)

  value, gradients = differentiate(tied, parameters)
  other_value, others = differentiate(untied, both)
  assert_close(value, other_value, MODEL)
  desired = others["embedding"]["embedding"], others["logits"]["kernel"].T
  assert all(np.max(np.abs(gradient)) > 1 for gradient in desired)
  assert_close(gradients["embedding"]["embedding"], sum(desired), 10 * MODEL)
  assert_close(gradients["logits_bias"], others["logits"]["bias"], 10 * MODEL)


def test_zero_residual_layer_is_identity():
  arguments = encoded(), jnp.asarray(TARGETS), jnp.asarray(LENGTHS)
  module = decoder("additive", num_layers=2, residual=True)
  parameters = variables_of(module)["params"]
  zeros = {name: jax.tree.map(jnp.zeros_like, parameters[name]) for name in ("initial_1", "cell_1")}
  below = {name: layer for name, layer in parameters.items() if name not in zeros}
  actual, _ = compiled(module, decode)({"params": {**below, **zeros}}, *arguments)
  desired, _ = compiled(decoder("additive"), decode)({"params": below}, *arguments)
  np.testing.assert_array_equal(actual, desired)


def dropped(variables, deterministic=True, seed=0, targets=TARGETS, **options):
  """Returns logits and weights under dropout."""
  apply = compiled(decoder("additive", **options), decode, deterministic=deterministic)
  arguments = encoded(), jnp.asarray(targets), jnp.asarray(LENGTHS)
  rngs = None if deterministic else {"dropout": jax.random.key(seed)}
  return apply(variables, *arguments, rngs=rngs)


RATES = ("dropout_rate", "recurrent_dropout_rate", "word_dropout_rate")


@pytest.mark.parametrize("name", RATES)
def test_dropout_only_when_not_deterministic(name):
  variables, rate = variables_of(decoder("additive")), {name: 0.5}
  logits = [dropped(variables, deterministic=False, seed=seed, **rate)[0] for seed in (0, 0, 1)]
  np.testing.assert_array_equal(dropped(variables, **rate)[0], dropped(variables)[0])
  np.testing.assert_array_equal(logits[0], logits[1])
  assert np.max(np.abs(logits[0] - logits[2])) > 0.1


@pytest.mark.parametrize("name", RATES)
def test_first_query_ignores_dropout(name):
  variables = variables_of(decoder("additive"))
  _, weights = dropped(variables, deterministic=False, **{name: 0.5})
  desired = dropped(variables)[1]
  np.testing.assert_array_equal(weights[:, 0], desired[:, 0])
  assert np.max(np.abs(weights - desired)) > 0.01


def reading_embeddings(**options):
  """Returns variables whose logits are tanh of the embedding, unit by unit, and the embedding."""
  variables = jax.tree.map(jnp.zeros_like, variables_of(decoder("additive", **options)))
  parameters = variables["params"]
  table = 0.3 + np.random.default_rng(2).random((DIMS.V, DIMS.E)).astype(np.float32)
  parameters["embedding"]["embedding"] = jnp.asarray(table)
  before = DIMS.H + DIMS.D
  parameters["readout"]["kernel"] = jnp.eye(before + DIMS.E, DIMS.H, -before)
  parameters["logits"]["kernel"] = jnp.eye(DIMS.H, DIMS.V)
  return variables, table


@pytest.mark.parametrize("variational", [False, True])
def test_embedding_and_readout_dropout(variational):
  variables, table = reading_embeddings()
  options = {"dropout_rate": 0.25, "variational_dropout": variational}
  logits = np.asarray(dropped(variables, deterministic=False, **options)[0])[:, :, : DIMS.E]
  twice = np.tanh(table[TARGETS] / 0.75) / 0.75
  assert_close(logits, np.where(logits == 0, 0, twice), FLOAT32)
  kept, number = 0.75**2, logits.size / (DIMS.T if variational else 1)
  assert abs(np.mean(logits != 0) - kept) < 5 * np.sqrt(kept * (1 - kept) / number)
  assert np.all((logits == 0) == (logits[:, :1] == 0)) == variational
  assert len(np.unique(logits[:, 0] == 0, axis=0)) > 1


def test_a_decoder_drops_whole_words():
  variables, table = reading_embeddings()
  logits = np.asarray(dropped(variables, deterministic=False, word_dropout_rate=0.5)[0])[:, :, : DIMS.E]
  is_dropped = np.all(logits == 0, axis=-1)
  assert 0 < np.sum(is_dropped) < is_dropped.size
  assert_close(logits, np.where(is_dropped[..., None], 0, np.tanh(table[TARGETS] / 0.5)), FLOAT32)


def reading_states(bias, num_layers, **options):
  """Returns variables whose logits are tanh of the top layer's first V units.

  The state of that layer is tanh of the bias [H] and half the previous state; nothing else has an effect.
  """
  variables = jax.tree.map(
    jnp.zeros_like, variables_of(decoder("additive", num_layers=num_layers, **options))
  )
  parameters, H = variables["params"], DIMS.H
  cell = parameters["cell" if num_layers == 1 else f"cell_{num_layers - 1}"]
  cell["recurrent"] = 0.5 * jnp.eye(H, 3 * H, 2 * H)
  cell["bias"] = jnp.concatenate([jnp.full(H, 100.0), jnp.full(H, -100.0), jnp.asarray(bias)])
  parameters["readout"]["kernel"] = jnp.eye(H + DIMS.D + DIMS.E, H)
  parameters["logits"]["kernel"] = jnp.eye(H, DIMS.V)
  return variables


ways = pytest.mark.parametrize("way", [{}, {"attend_order": "after"}, {"input_feeding": True}], ids=str)


@ways
@pytest.mark.parametrize("num_layers", always(2, of=[1, 2]))
def test_recurrent_product_dropout(num_layers, way):
  bias = 0.3 + np.random.default_rng(2).random(DIMS.H).astype(np.float32)
  options = {"recurrent_dropout_rate": 0.5, "num_layers": num_layers, **way}
  logits, _ = dropped(reading_states(bias, num_layers=num_layers, **way), deterministic=False, **options)
  dropped_states, kept = np.tanh(np.tile(bias, (DIMS.T, 1))), [np.tanh(bias)]
  for _ in range(1, DIMS.T):
    kept.append(np.tanh(bias + kept[-1]))  # a state twice as large, halved by its weight
  is_dropped = np.asarray(logits[:, 1] == logits[:, 0])
  desired = np.tanh(np.where(is_dropped[:, None], dropped_states[:, : DIMS.V], np.stack(kept)[:, : DIMS.V]))
  assert_close(logits, desired, FLOAT32)
  assert 0.1 < np.mean(is_dropped) < 0.9 and len(np.unique(is_dropped, axis=0)) > 1


@ways
def test_dropout_between_layers(way):
  bias = 0.3 + np.random.default_rng(2).random(DIMS.H).astype(np.float32)
  variables, H = reading_states(np.zeros(DIMS.H, np.float32), num_layers=2, **way), DIMS.H
  lower, upper = variables["params"]["cell"], variables["params"]["cell_1"]
  lower["bias"] = upper["bias"] + jnp.pad(bias, (2 * H, 0))
  upper["recurrent"], upper["input"] = 0 * upper["recurrent"], jnp.eye(H, 3 * H, 2 * H)
  logits = np.asarray(dropped(variables, deterministic=False, num_layers=2, dropout_rate=0.25, **way)[0])
  twice = np.tanh(np.tanh(np.tanh(bias[: DIMS.V]) / 0.75)) / 0.75  # dropped there, and from the readout
  assert_close(logits, np.where(logits == 0, 0, twice), FLOAT32)
  kept = 0.75**2
  assert abs(np.mean(logits != 0) - kept) < 5 * np.sqrt(kept * (1 - kept) / logits.size)


@pytest.mark.parametrize(
  ("module", "message"),
  [
    (decoder("additive", num_layers=0), "num_layers must be at least 1, got 0"),
    (decoder("additive", word_dropout_rate=1.0), r"word_dropout_rate must be a number in \[0, 1\), got 1.0"),
    (decoder("additive", recurrent_dropout_rate=-1.0), "recurrent_dropout_rate must be .*, got -1.0"),
    (decoder("luong"), "attention must be one of additive, .*, none, got 'luong'"),
    (decoder("additive", attend_order="never"), "attend_order must be one of before, after, got 'never'"),
    (decoder("local", normalizer=attention.Sigmoid()), 'normalizer must be None with attention "local"'),
    (attention.RecurrentDecoder(13, 11, 22, "multi_head", num_heads=3), "features=22, num_heads=3"),
    *(
      (decoder(kind, implementation="fast"), "implementation must be one of .*, got 'fast'")
      for kind in ("additive", "scaled_dot_product", "bilinear", "multi_head")
    ),
  ],
)
def test_invalid_fields_raise(module, message):
  with pytest.raises(ValueError, match=message):
    variables_of(module)
