"""The transformer decoder: values, caches, causality, padding, positions, search."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference
from helpers.fixtures import always, assert_close
from helpers.model_reference import MODEL, compiled, float64, random_parameters

import attention
from attention import decoding
from attention.models.base import POSITION_ENCODINGS

# D: of the memory. N divides W, the width of the decoder; heads have even widths.
DIMS = chex.Dimensions(B=3, T=5, S=7, N=3, W=18, V=13, F=11, D=17, C=19)
LENGTHS = np.array([4, 7, 1])
TARGETS = np.random.default_rng(0).integers(DIMS.V, size=DIMS["BT"])
OPTIONS = {
  **{places: {"position_encoding": places} for places in POSITION_ENCODINGS},
  "post": {"norm_position": "post", "tied_embeddings": True},
  "normal": {"position_encoding": "rotary", "normalize_qk": True, "num_layers": 3},
  "one": {"position_encoding": "relative", "num_layers": 1},
}
# Both norm positions, and position encodings inside and outside attention.
few_options = pytest.mark.parametrize("options", always("relative", "normal", of=OPTIONS))


def decoder(options, **others):
  sizes = {"num_heads": DIMS.N, "mlp_dim": DIMS.F}
  return attention.TransformerDecoder(DIMS.V, DIMS.W, **{**sizes, **OPTIONS[options], **others})


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


def arguments(targets=TARGETS, source=None):
  return (encoded() if source is None else source), jnp.asarray(targets), jnp.asarray(LENGTHS)


@functools.cache
def variables_of(module):
  return random_parameters(module, *arguments(), method=decode)


def prepare(module, max_length):
  """Returns a state with caches, and the memory."""
  return compiled(module, "prepare", max_length=max_length)(variables_of(module), encoded(), LENGTHS)


def run(options, targets=TARGETS, source=None):
  """Returns logits [B T V] and weights [B T S]."""
  module = decoder(options)
  return compiled(module, decode)(variables_of(module), *arguments(targets, source))


@pytest.mark.parametrize("options", always("relative", "post", "normal", of=OPTIONS))
def test_decoder_matches_reference(options):
  module = decoder(options)
  parameters = float64(variables_of(module)["params"])
  logits, weights = run(options)
  state, memory = compiled(module, "prepare")(variables_of(module), encoded(), LENGTHS)
  heads = compiled(module, "attention_weights")(variables_of(module), state, jnp.asarray(TARGETS), memory)
  L = module.num_layers
  chex.assert_shape(heads, (DIMS.B, L, DIMS.N, DIMS.T, DIMS.S))
  for b, length in enumerate(LENGTHS):
    source = np.float64(encoded().memory[b, :length])
    desired, desired_heads = model_reference.transformer_decoder(
      parameters, source, TARGETS[b], module.norm_position, module.position_encoding
    )
    assert_close(logits[b], desired, 10 * MODEL)
    assert_close(heads[b, ..., :length], desired_heads, 10 * MODEL)
    np.testing.assert_array_equal(heads[b, ..., length:], 0.0)
    layer = {1: 0, 2: 0, 3: 1}[L]  # the penultimate layer
    assert_close(weights[b, :, :length], np.mean(desired_heads[layer], axis=0), 10 * MODEL)


def test_near_distances_are_distinct():
  # If half of the table were for later words, distances of 8 and more would share a row.
  targets = np.random.default_rng(2).integers(DIMS.V, size=(DIMS.B, 16))
  module, variables = decoder("one"), variables_of(decoder("one"))
  logits, _ = run("one", targets)
  source = np.float64(encoded().memory[0, : LENGTHS[0]])
  parameters = float64(variables["params"])
  desired, _ = model_reference.transformer_decoder(
    parameters, source, targets[0], module.norm_position, module.position_encoding
  )
  assert_close(logits[0], desired, 10 * MODEL)


def test_normalize_qk():
  for name in OPTIONS:
    parameters = variables_of(decoder(name))["params"]
    for attention_name in ("attention", "cross_attention"):
      expected = name == "normal"
      assert ("query_ln" in parameters["layer_0"][attention_name]) == expected
      assert ("key_ln" in parameters["layer_0"][attention_name]) == expected


# Number of words per call: a given prefix, then one at a time.
READS = ("11111", "311", "23", "5")


@pytest.mark.parametrize(
  ("options", "reads"),
  always(
    *(("relative", "23"), ("normal", "311")),
    of=[(name, reads) for name in OPTIONS for reads in READS],
  ),
)
def test_cached_reading_matches_the_whole(options, reads):
  module = decoder(options)
  variables = variables_of(module)
  logits, weights = run(options)
  state, memory = prepare(module, DIMS.T + 2)
  start = 0
  for count in map(int, reads):
    tokens, now = jnp.asarray(TARGETS[:, start : start + count]), slice(start, start + count)
    if count == 1:
      state, *result = compiled(module, "step")(variables, state, tokens[:, 0], memory)
      result = [array[:, None] for array in result]
    else:
      state, *result = compiled(module, "prefill")(variables, state, tokens, memory)
    assert_close(result[0], logits[:, now], 10 * MODEL)
    assert_close(result[1], weights[:, now], 10 * MODEL)
    start += count
  for cache in state:
    np.testing.assert_array_equal(cache.length, DIMS.B * [DIMS.T])


def test_different_lengths_continue_together():
  module = decoder("relative")
  variables = variables_of(module)
  logits, _ = run("relative")
  state, memory = prepare(module, DIMS.T)
  state, *_ = compiled(module, "prefill")(variables, state, jnp.asarray(TARGETS[:, :4]), memory)
  begun = np.array([2, 4, 3])
  state = tuple(cache._replace(length=jnp.asarray(begun)) for cache in state)
  tokens = jnp.asarray(TARGETS[np.arange(DIMS.B), begun])
  _, next_logits, _ = compiled(module, "step")(variables, state, tokens, memory)
  assert_close(next_logits, logits[np.arange(DIMS.B), begun], 10 * MODEL)


def test_too_many_words_give_nan():
  module = decoder("relative")
  variables = variables_of(module)
  state, memory = prepare(module, 2)
  step = compiled(module, "step")
  for t in range(3):
    state, logits, _ = step(variables, state, jnp.asarray(TARGETS[:, t]), memory)
    assert np.all(np.isnan(logits)) == (t == 2)
  with pytest.raises(ValueError, match=r"state must contain caches, from prepare\(.*max_length\), got none"):
    module.apply(variables, (), jnp.asarray(TARGETS[:, 0]), memory, method="step")


@few_options
def test_logits_depend_on_earlier_tokens(options):
  logits, weights = run(options)
  for t in range(DIMS.T):
    changed = TARGETS.copy()
    changed[1, t] = (changed[1, t] + 1) % DIMS.V
    for one, other in zip((logits, weights), run(options, changed), strict=True):
      difference = np.max(np.abs(other - one), axis=-1)
      assert difference[1, t] > 1e-5
      np.testing.assert_array_equal(difference[1, :t], 0.0)
      np.testing.assert_array_equal(difference[[0, 2]], 0.0)


@pytest.mark.parametrize("options", always("sinusoidal", "rotary", "none", of=OPTIONS))
def test_word_order_needs_positions(options):
  # The last word attends to the same words in another order.
  one, other = TARGETS.copy(), TARGETS.copy()
  other[0, [0, 1]] = one[0, [1, 0]]
  assert one[0, 0] != one[0, 1]
  # Later layers depend on the order of the words between; with one layer it is exact.
  module = decoder(options, num_layers=1)
  apply = functools.partial(compiled(module, decode), variables_of(module))
  difference = np.max(np.abs(apply(*arguments(one))[0] - apply(*arguments(other))[0])[0, -1])
  assert (difference < 10 * MODEL) == (OPTIONS[options].get("position_encoding") == "none")


@pytest.mark.parametrize("options", always("normal", of=OPTIONS))
def test_memory_padding_is_ignored(options):
  module = decoder(options, dropout_rate=0.3, variational_dropout=True, word_dropout_rate=0.3)
  variables = variables_of(module)

  @jax.jit
  def differentiate(variables, source):
    def loss(variables, source):
      results = module.apply(
        variables,
        *arguments(source=source),
        method=decode,
        deterministic=False,
        rngs={"dropout": jax.random.key(0)},
      )
      return jnp.sum(results[0] ** 2), results

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(variables, source)

  is_padding = np.arange(DIMS.S) >= LENGTHS[:, None]
  whole = encoded()
  desired, desired_results = differentiate(variables, whole)
  chex.assert_tree_all_finite((desired, desired_results))
  for content in (1e4, np.nan):
    padded = whole._replace(memory=jnp.where(is_padding[:, :, None], content, whole.memory))
    gradients, results = differentiate(variables, padded)
    np.testing.assert_array_equal(gradients[1].memory[is_padding], 0.0)
    chex.assert_trees_all_equal(results, desired_results)
    chex.assert_trees_all_equal(gradients, desired)
  for path, gradient in jax.tree.leaves_with_path(gradients[0]):
    if [key.key for key in path[-2:]] != ["key", "bias"] and "table" not in path[-1].key:
      assert np.max(np.abs(gradient)) > 1e-4, path


def test_distance_parameters_have_gradients():
  module = decoder("relative")

  def loss(variables):
    return jnp.sum(module.apply(variables, *arguments(), method=decode)[0] ** 2)

  table = jax.jit(jax.grad(loss))(variables_of(module))["params"]["relative"]["table"]
  assert np.all(np.abs(table[:, : DIMS.T]) > 1e-5) and not np.any(table[:, DIMS.T :])


def test_empty_source_is_finite():
  module = decoder("relative")
  source, targets, _ = arguments()
  logits, weights = compiled(module, decode)(variables_of(module), source, targets, jnp.asarray([0, 7, 2]))
  chex.assert_tree_all_finite((logits, weights))
  np.testing.assert_array_equal(weights[0], 0.0)


def greedily(model, variables, sources, lengths, max_length):
  """Returns greedy translations, computed by rereading the whole prefix at each step.

  The prefix is padded with words that no earlier logits depend on, so that one program reads all lengths.
  """
  targets = np.zeros((len(sources), max_length + 1), int)
  targets[:, 0] = 1
  for t in range(max_length):
    logits, _ = compiled(model)(variables, sources, lengths, jnp.asarray(targets[:, :-1]))
    targets[:, t + 1] = np.argmax(logits[:, t], axis=-1)
  return targets[:, 1:]


@pytest.mark.parametrize(
  ("encoder", "places"),
  always(
    ("transformer", "relative"),
    of=[
      (encoder, places)
      for encoder in ("recurrent", "transformer")
      for places in ("sinusoidal", "relative", "rotary")
    ],
  ),
)
@pytest.mark.exhaustive
def test_search_with_caches_matches_rereading(encoder, places):
  V, W = DIMS.V, DIMS.W
  encoders = {
    "recurrent": attention.RecurrentEncoder(V, 5, 7),
    "transformer": attention.TransformerEncoder(V, W, num_heads=3, mlp_dim=5, position_encoding=places),
  }
  model = attention.Seq2Seq(encoders[encoder], decoder(places))
  sources, lengths = jnp.asarray(TARGETS), jnp.asarray([5, 2, 4])
  variables = random_parameters(model, sources, lengths, sources)
  state, memory = model.apply(variables, sources, lengths, 6, method="encode")

  def step(state, tokens):
    return model.apply(variables, state, tokens, memory, method="step")

  how = {"batch_size": DIMS.B, "max_length": 6, "bos_id": 1, "eos_id": -1}  # no sentence ends
  result = jax.jit(lambda state: decoding.greedy(step, state, **how))(state)
  np.testing.assert_array_equal(result.tokens, greedily(model, variables, sources, lengths, 6))
  # Beams change places together with their caches: a score is that of the tokens read at once.
  result = jax.jit(lambda state: decoding.beam_search(step, state, beam_size=4, n_best=4, **how))(state)
  for k in range(4):
    targets = jnp.concatenate([jnp.ones((DIMS.B, 1), int), result.tokens[:, k, :-1]], axis=1)
    logits, weights = compiled(model)(variables, sources, lengths, targets)
    log_probabilities = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probabilities, result.tokens[:, k, :, None], axis=-1)[..., 0]
    assert_close(result.scores[:, k], jnp.sum(chosen, axis=-1), 100 * MODEL)
    assert_close(result.weights[:, k], weights, 10 * MODEL)


@pytest.mark.parametrize(
  ("module", "message"),
  [
    (decoder("post", num_layers=0), "num_layers must be at least 1, got 0"),
    (decoder("post", norm_position="none"), "norm_position must be pre or post, got 'none'"),
    (
      decoder("post", position_encoding="learnt"),
      "position_encoding must be one of sinusoidal, .*, none, got 'learnt'",
    ),
    (decoder("post", num_heads=5), "qkv_features=18, num_heads=5"),
    (decoder("post", word_dropout_rate=1.0), r"word_dropout_rate must be a number in \[0, 1\), got 1.0"),
    (decoder("post", implementation="fast"), "implementation must be one of .*, got 'fast'"),
  ],
)
def test_invalid_fields_raise(module, message):
  with pytest.raises(ValueError, match=message):
    variables_of(module)
