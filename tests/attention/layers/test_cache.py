"""Caches of keys and values: decoding equals computing the whole sequence."""

import dataclasses
import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import model_reference
from helpers.fixtures import ENGINES, FLOAT32, always, assert_close, assert_trees_close
from helpers.model_reference import MODEL, compiled, float64, random_parameters

import attention
from attention import decoding, masks, positions
from attention.layers.cache import KVCache, mask_after

# T tokens in total, S slots. N: two heads share one of K key and value heads. D = N H.
DIMS = chex.Dimensions(B=3, T=7, S=11, N=4, K=2, H=6, D=24, V=13)
B, T, S, N = DIMS["BTSN"]
CAUSAL = np.tril(np.ones((T, T), bool))


def array(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


tokens = array(*DIMS["BTD"], seed=1)


def our_attention(**options):
  return attention.MultiHeadAttention(
    N, num_key_value_heads=DIMS.K, **{"position_fn": positions.rotary, "normalize_qk": True, **options}
  )


layer = our_attention()


@functools.cache
def variables_of(module):
  return random_parameters(module, tokens)


def empty(module=layer, inputs=tokens, slots=S):
  return module.apply(variables_of(module), inputs, slots, method="init_cache")


def decode(counts, module=layer, inputs=tokens, cache=None, **options):
  """Returns the results of all tokens, with `counts` tokens per call, and the cache."""
  cache = empty(module, inputs) if cache is None else cache
  results = []
  for part in jnp.split(inputs, np.cumsum(counts)[:-1], axis=-2):
    result, cache = compiled(module)(variables_of(module), part, cache=cache, **options)
    results.append(result)
  return jnp.concatenate(results, axis=-2), cache


def expected(inputs=tokens, mask=CAUSAL, bias=0.0, module=layer):
  """Returns the results of whole sequences in float64, and the weights [B N T T]."""
  parameters = float64(variables_of(module)["params"])
  mask, bias = (np.broadcast_to(given, (len(inputs), N, T, T)) for given in (mask, bias))
  output = [
    model_reference.multi_head(parameters, row, row, rotates=True, mask=mask[b], bias=bias[b])
    for b, row in enumerate(np.float64(inputs))
  ]
  return tuple(np.stack(parts) for parts in zip(*output, strict=True))


# Number of tokens per call.
@pytest.mark.parametrize("counts", always("412", of=["1111111", "412", "25", "7"]))
def test_cached_decoding_matches_the_whole_sequence(counts):
  output, cache = decode(tuple(map(int, counts)), mask=masks.causal())
  assert_close(output, expected()[0], 10 * MODEL)
  np.testing.assert_array_equal(cache.length, np.full(B, T))
  keys, values = compiled(layer, "project_kv")(variables_of(layer), tokens)
  assert_close(cache.keys[:, :, :T], keys, MODEL)
  assert_close(cache.values[:, :, :T], values, MODEL)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EverySecond(masks.Mask):
  """A custom mask: keys at an even distance. `shift` is the same for all heads, or one per head."""

  axes = {"shift": ""}
  shift: jax.Array

  def mask_mod(self, t, s):
    return (t - s + self.shift) % 2 == 0


OF_HEADS = np.array([0, 1, 1, 0])
REAL = np.array([7, 3, 5])
t, s = np.arange(T)[:, None], np.arange(T)
# The mask that is passed in every call, and its meaning for the whole sequence.
MASKS = {
  "window": (masks.causal() & masks.sliding_window(2, 0), CAUSAL & (t - s <= 2)),
  "no_bounds": (masks.causal(2**31 - 1) & masks.sliding_window(2**31 - 1, 0), CAUSAL),
  "window_of_heads": (
    masks.causal() & masks.sliding_window(1 + OF_HEADS, 2**31 - 1),
    CAUSAL & (t - s <= 1 + OF_HEADS[:, None, None]),
  ),
  "strictly_before": (masks.causal(-1), s < t),
  "not_near": (masks.causal() & ~masks.sliding_window(1, 1), CAUSAL & (t - s > 1)),
  "lengths": (
    masks.causal() & masks.lengths(source=REAL[:, None], target=REAL[:, None]),
    CAUSAL & (np.maximum(t, s) < REAL[:, None, None, None]),
  ),
  "padding_in_front": (
    masks.causal() & ~masks.prefix(T - REAL[:, None]),
    CAUSAL & (s >= T - REAL[:, None, None, None]),
  ),
  "own": (masks.causal() & EverySecond(0), CAUSAL & ((t - s) % 2 == 0)),
  "own_of_heads": (
    masks.causal() & EverySecond(OF_HEADS),
    CAUSAL & ((t - s + OF_HEADS[:, None, None]) % 2 == 0),
  ),
}


@pytest.mark.parametrize(
  ("name", "implementation"),
  always(
    *(("window_of_heads", "blockwise"), ("padding_in_front", "blockwise"), ("own_of_heads", "dense")),
    of=list(itertools.product(MASKS, ENGINES)),
  ),
)
def test_mask_rules_hold_at_every_call(name, implementation):
  # Rows of the mask of the whole sequence, though the queries of each call start at 0.
  mask, whole = MASKS[name]
  module = our_attention(implementation=implementation)
  assert_close(decode((4, 1, 2), module, mask=mask)[0], expected(mask=whole, module=module)[0], 10 * MODEL)


def test_prefix_is_visible_to_its_tokens():
  mask = masks.causal() | masks.prefix(4)
  output, _ = decode((4, 1, 2), mask=mask)
  assert_close(output, expected(mask=CAUSAL | (s < 4))[0], 10 * MODEL)


def test_unwritten_slots_are_masked():
  mask = masks.sliding_window(3, 2)
  output, _ = decode((4, 1, 2), mask=mask)
  end = np.repeat([4, 5, 7], [4, 1, 2])[:, None]
  assert_close(output, expected(mask=(t - s <= 3) & (s - t <= 2) & (s < end))[0], 10 * MODEL)


def test_mask_arrays_cover_queries_and_slots():
  allowed = (np.random.default_rng(2).random((B, 1, T, S)) < 0.6) & (np.arange(S) <= t)
  cache, results = empty(), []
  for start, stop in ((0, 4), (4, 5), (5, 7)):
    mask = jnp.asarray(allowed[..., start:stop, :])
    result, cache = compiled(layer)(variables_of(layer), tokens[:, start:stop], mask=mask, cache=cache)
    results.append(result)
  output = jnp.concatenate(results, axis=1)
  assert_close(output, expected(mask=allowed[..., :T])[0], 10 * MODEL)


def test_segments_cover_queries_and_slots():
  of_slots = np.arange(S) % 3
  cache, results = empty(), []
  for start, stop in ((0, 4), (4, 7)):
    mask = masks.causal() & masks.segments(jnp.asarray(of_slots[start:stop]), jnp.asarray(of_slots))
    result, cache = compiled(layer)(variables_of(layer), tokens[:, start:stop], mask=mask, cache=cache)
    results.append(result)
  output = jnp.concatenate(results, axis=1)
  assert_close(output, expected(mask=CAUSAL & ((t - s) % 3 == 0))[0], 10 * MODEL)


TABLE = np.random.default_rng(4).normal(size=(N, 32)).astype(np.float32)
SLOPES = np.array([1.0, 0.5, 0.25, 0.125], np.float32)
BIASES = {
  "alibi": (positions.ALiBi(SLOPES), -SLOPES[:, None, None] * np.abs(t - s)),
  "relative": (
    positions.RelativePositionBias(jnp.asarray(TABLE), bidirectional=False),
    TABLE[:, np.maximum(t - s, 0)],  # up to 16 each distance has a separate bias
  ),
  "function": (lambda t, s: jnp.sin((2 * t + s).astype(jnp.float32)), np.sin(2.0 * t + s)),
}


@pytest.mark.parametrize(
  ("name", "implementation"),
  always(
    *(("alibi", "dense"), ("relative", "blockwise")),
    of=list(itertools.product(BIASES, ENGINES)),
  ),
)
def test_position_biases_hold_at_every_call(name, implementation):
  bias, whole = BIASES[name]
  module = our_attention(implementation=implementation)
  cache, results = empty(module), []
  for start, stop in ((0, 4), (4, 5), (5, 7)):
    apply = jax.jit(functools.partial(module.apply, bias=bias))
    part = tokens[:, start:stop]
    result, cache = apply(variables_of(module), part, mask=masks.causal(), cache=cache)
    results.append(result)
  output = jnp.concatenate(results, axis=1)
  assert_close(output, expected(bias=whole, module=module)[0], 10 * MODEL)


def test_bias_arrays_cover_queries_and_slots():
  terms = array(N, T, S, seed=5)
  cache, results = empty(), []
  for start, stop in ((0, 4), (4, 7)):
    options = {"mask": masks.causal(), "bias": terms[:, start:stop], "cache": cache}
    result, cache = compiled(layer)(variables_of(layer), tokens[:, start:stop], **options)
    results.append(result)
  output = jnp.concatenate(results, axis=1)
  assert_close(output, expected(bias=np.float64(terms[..., :T]))[0], 10 * MODEL)


def test_causal_tokens_attend_to_earlier_tokens():
  # flax#5591: in Flax, the causal mask of one query and the remaining slots allowed only the first of them.
  # Zero queries attend equally to all keys, so token t gives 1 / (t + 1) to each of the t + 1 written slots.
  module = attention.MultiHeadAttention(1, use_bias=False)
  inputs = array(T, 2)
  parameters = dict(module.init(jax.random.key(0), inputs)["params"], query={"kernel": jnp.zeros((2, 1, 2))})
  cache = module.apply({"params": parameters}, inputs, S, method="init_cache")
  for step in range(T):
    attend = compiled(module, return_weights=True)
    arguments = {"params": parameters}, inputs[step : step + 1]
    _, weights, cache = attend(*arguments, mask=masks.causal(), cache=cache)
    assert_close(weights, [[np.where(np.arange(S) <= step, 1 / (step + 1), 0.0)]], FLOAT32)


def test_weights_are_of_all_slots():
  output = []
  cache = empty()
  for start, stop in ((0, 4), (4, 7)):
    apply = compiled(layer, return_weights=True)
    _, weights, cache = apply(variables_of(layer), tokens[:, start:stop], mask=masks.causal(), cache=cache)
    assert weights.shape == (B, N, stop - start, S)
    output.append(weights)
  weights = np.concatenate(output, axis=2)
  assert_close(weights[..., :T], expected()[1], MODEL)
  np.testing.assert_array_equal(weights[..., T:], 0.0)


def test_unmasked_tokens_attend_to_written_slots():
  output, _ = decode((4, 3))
  assert_close(output, expected(mask=(s < 4) | (t >= 4))[0], 10 * MODEL)


def test_one_program_per_token_count():
  traced = []

  @jax.jit
  def step(variables, tokens, cache):
    traced.append(tokens.shape[1])
    return layer.apply(variables, tokens, mask=masks.causal(), cache=cache)

  cache = empty()
  for start, stop in ((0, 3), (3, 4), (4, 5), (5, 6), (6, 7)):
    _, cache = step(variables_of(layer), tokens[:, start:stop], cache)
  assert traced == [3, 1]


def test_jit_equals_eager():
  cache, results = empty(), []
  for start, stop in ((0, 4), (4, 7)):
    result, cache = layer.apply(variables_of(layer), tokens[:, start:stop], mask=masks.causal(), cache=cache)
    results.append(result)
  output, of_jit = decode((4, 3), mask=masks.causal())
  assert_close(jnp.concatenate(results, axis=1), output, MODEL)
  assert_trees_close(cache, of_jit, MODEL)


def test_tokens_can_be_scanned():
  @jax.jit
  def run(variables, cache):
    def step(cache, token):
      result, cache = layer.apply(variables, token[:, None], mask=masks.causal(), cache=cache)
      return cache, result[:, 0]

    return jax.lax.scan(step, cache, jnp.swapaxes(tokens, 0, 1))

  cache, found = run(variables_of(layer), empty())
  assert_close(jnp.swapaxes(found, 0, 1), expected()[0], 10 * MODEL)
  np.testing.assert_array_equal(cache.length, np.full(B, T))


@pytest.mark.parametrize("num_axes", always(2, of=[0, 2]))
def test_sequences_have_any_leading_axes(num_axes):
  leading = (2, 3)[:num_axes]
  inputs = tokens[0] if leading == () else array(*leading, T, DIMS.D)
  output, cache = decode((4, 1, 2), inputs=inputs, mask=masks.causal())
  assert cache.length.shape == leading
  desired, _ = expected(inputs.reshape(-1, T, DIMS.D))
  assert_close(output, desired.reshape(inputs.shape), 10 * MODEL)


def test_sequences_have_separate_lengths():
  # Prompts of 2, 4 and 1 tokens, padded to 4; then 3 more tokens each.
  lengths = np.array([2, 4, 1])
  padded = np.where(np.arange(4)[None, :, None] < lengths[:, None, None], tokens[:, :4], 77.0)
  mask = masks.causal() & masks.sliding_window(2, 0)
  prompt, cache = compiled(layer)(variables_of(layer), jnp.asarray(padded), mask=mask, cache=empty())
  cache = cache._replace(length=lengths)
  after = jnp.stack([tokens[b, length : length + 3] for b, length in enumerate(lengths)])
  output, cache = decode((1, 2), inputs=after, cache=cache, mask=mask)
  np.testing.assert_array_equal(cache.length, lengths + 3)
  desired, _ = expected(mask=CAUSAL & (t - s <= 2))
  for b, length in enumerate(lengths):
    assert_close(prompt[b, :length], desired[b, :length], 10 * MODEL)
    assert_close(output[b], desired[b, length : length + 3], 10 * MODEL)


def test_unwritten_slots_are_ignored():
  _, cache = decode((4,), inputs=tokens[:, :4], mask=masks.causal())
  unwritten = np.arange(S)[:, None] >= 4
  spoilt = cache._replace(
    keys=np.where(unwritten, np.nan, cache.keys), values=np.where(unwritten, np.inf, cache.values)
  )
  output = [
    decode((1, 2), inputs=tokens[:, 4:], cache=given, mask=masks.causal())[0] for given in (cache, spoilt)
  ]
  np.testing.assert_array_equal(*output)


def test_nan_padding_reaches_no_token():
  is_padding = (np.arange(T) < 7 - REAL[:, None])[..., None]
  mask = masks.causal() & ~masks.prefix(7 - REAL[:, None])
  output, clean = (
    decode((4, 1, 2), inputs=jnp.where(is_padding, filling, tokens), mask=mask)[0]
    for filling in (np.nan, 0.0)
  )
  np.testing.assert_array_equal(np.where(is_padding, 0, output), np.where(is_padding, 0, clean))
  assert np.all(np.isfinite(np.where(is_padding, 0, output)))


def test_beams_are_reordered_like_any_pytree():
  _, cache = decode((4,), inputs=tokens[:, :4], mask=masks.causal())
  chosen = np.array([2, 2, 0])
  cache = jax.tree.map(lambda leaf: leaf[chosen], cache)
  output, _ = decode((1, 2), inputs=tokens[:, 4:], cache=cache, mask=masks.causal())
  desired, _ = expected(jnp.concatenate([tokens[chosen, :4], tokens[:, 4:]], axis=1))
  assert_close(output, desired[:, 4:], 10 * MODEL)


class LanguageModel(nn.Module):
  """One causal encoder layer between embeddings and logits."""

  def setup(self):
    self.embedding = nn.Embed(DIMS.V, DIMS.D)
    self.layer = attention.EncoderLayer(N, 17, self_attention_cls=our_attention_of)
    self.logits = nn.Dense(DIMS.V)

  def init_cache(self, words, slots):
    return self.layer.init_cache(self.embedding(words), slots)

  def __call__(self, words, cache=None):
    """Returns logits [B T V] of words [B T], and with a cache the new cache."""
    options = {"mask": masks.causal(), "cache": cache}
    output = self.layer(self.embedding(words), **options)
    return self.logits(output) if cache is None else (self.logits(output[0]), output[1])


def our_attention_of(*args, **options):
  return attention.MultiHeadAttention(
    *args, num_key_value_heads=DIMS.K, position_fn=positions.rotary, normalize_qk=True, **options
  )


def test_beam_search_with_a_cache():
  model = LanguageModel()
  variables = random_parameters(model, jnp.zeros((B, 1), jnp.int32))
  options = {"batch_size": B, "max_length": 5, "beam_size": 4, "bos_id": 1, "eos_id": 2, "n_best": 3}

  def step(cache, words):
    logits, cache = model.apply(variables, words[:, None], cache)
    return cache, logits[:, 0], None

  prompt = jnp.asarray([[3, 4], [5, 6], [7, 8]])  # so that the sequences differ
  cache = model.apply(variables, prompt, 5 + 2, method="init_cache")
  _, cache = compiled(model)(variables, prompt, cache)
  output = jax.jit(lambda cache: decoding.beam_search(step, cache, **options))(cache)

  def slow_step(state, words):  # stores the words and rereads all of them
    history, count = state
    history = history.at[jnp.arange(B), count].set(words)
    last = model.apply(variables, history)[jnp.arange(B), count]
    return (history, count + 1), last, None

  history = jnp.pad(prompt, ((0, 0), (0, 5)))
  slow = jax.jit(lambda state: decoding.beam_search(slow_step, state, **options))
  desired = slow((history, jnp.full(B, 2)))
  np.testing.assert_array_equal(output.tokens, desired.tokens)
  assert_close(output.scores, desired.scores, 10 * MODEL)


@pytest.mark.parametrize("norm", always("pre", of=["pre", "post"]))
def test_encoder_layer_with_a_cache(norm):
  module = attention.EncoderLayer(N, 17, norm_position=norm, self_attention_cls=our_attention_of)
  output, _ = decode((4, 1, 2), module, mask=masks.causal())
  parameters = float64(variables_of(module)["params"])

  def attend(parameters, inputs):
    return model_reference.multi_head(parameters, inputs, inputs, rotates=True, mask=CAUSAL)[0]

  desired = [model_reference.encoder_layer(parameters, row, norm, attend) for row in np.float64(tokens)]
  assert_close(output, desired, 10 * MODEL)


def test_gradients_through_the_cache():
  random = array(*DIMS["BTD"], seed=9)

  def loss(variables, inputs, counts):
    cache = layer.apply(variables, inputs, S, method="init_cache")
    results = []
    for part in jnp.split(inputs, np.cumsum(counts)[:-1], axis=1):
      result, cache = layer.apply(variables, part, mask=masks.causal(), cache=cache)
      results.append(result)
    return jnp.sum(random * jnp.concatenate(results, axis=1))

  def whole(variables, inputs):
    return jnp.sum(random * layer.apply(variables, inputs, mask=masks.causal()))

  output = jax.jit(jax.grad(functools.partial(loss, counts=(4, 1, 2)), argnums=(0, 1)))(
    variables_of(layer), tokens
  )
  desired = jax.jit(jax.grad(whole, argnums=(0, 1)))(variables_of(layer), tokens)
  assert_trees_close(output, desired, 10 * MODEL)


def test_cache_has_the_keys_dtype():
  halves = tokens.astype(jnp.bfloat16)
  module = our_attention(dtype=jnp.bfloat16)
  output, cache = decode((4, 1, 2), module, halves, mask=masks.causal())
  assert output.dtype == cache.keys.dtype == cache.values.dtype == jnp.bfloat16
  assert_close(np.float32(output), expected(halves, module=module)[0], 0.2)
  assert empty(our_attention(), halves).keys.dtype == jnp.float32  # like the parameters


def test_too_many_tokens_raise():
  with pytest.raises(ValueError, match="cache is full: 7 new tokens, but only 5 of 5 slots are free"):
    jax.eval_shape(lambda cache: layer.apply(variables_of(layer), tokens, cache=cache), empty(slots=5))
  _, cache = decode((4,), inputs=tokens[:, :4], cache=empty(slots=5))
  with pytest.raises(ValueError, match="cache is full: 2 new tokens, but only 1 of 5 slots are free"):
    layer.apply(variables_of(layer), tokens[:, 4:6], cache=cache)
  cache = cache._replace(length=np.array([0, 4, 1]))
  with pytest.raises(ValueError, match="cache is full: 2 new tokens, but only 1 of 5 slots are free"):
    layer.apply(variables_of(layer), tokens[:, 4:6], cache=cache)


def test_too_many_traced_tokens_are_nan():
  _, cache = decode((4,), inputs=tokens[:, :4], cache=empty(slots=5), mask=masks.causal())
  cache = cache._replace(length=np.array([4, 3, 4]))
  apply = compiled(layer, return_weights=True)
  mask = masks.causal() & masks.sliding_window(0, 0)  # overwrites all slots with NaN
  output, weights, after = apply(variables_of(layer), tokens[:, 4:6], mask=mask, cache=cache)
  for results in map(np.asarray, (output, weights)):
    assert np.all(np.isnan(results[[0, 2]]))
    assert np.all(np.isfinite(results[1]))
  # The first sequence's token 4 is in the last slot; token 5 has no slot and did not replace it.
  keys, values = compiled(layer, "project_kv")(variables_of(layer), tokens[:, :5])
  assert_close(after.keys[0], keys[0], MODEL)
  assert_close(after.values[0], values[0], MODEL)
  output, after = compiled(layer)(variables_of(layer), tokens[:, 6:], mask=mask, cache=after)
  assert np.all(np.isnan(output))
  np.testing.assert_array_equal(after.length, [7, 6, 7])


def test_the_last_slot_is_used():
  output, _ = decode((4, 3), cache=empty(slots=T), mask=masks.causal())
  assert_close(output, expected()[0], 10 * MODEL)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      {"inputs": tokens[:2]},
      r"cache must have the leading axes of the inputs, \(2,\), got cache.length of shape \(3,\)",
    ),
    ({"keys": jnp.zeros((B, N, S, 6))}, r"cache.keys must be float32 .* \(3, 4, 11, 6\)"),
    ({"keys": jnp.zeros((B, 2, S, 6), jnp.bfloat16)}, "cache.keys must be float32 .*, got bfloat16"),
    ({"values": jnp.zeros((B, 2, S, 5))}, r"cache.values must be float32 .* 6\) .*, got float32 .* 5\)"),
    (
      {"length": jnp.zeros((), jnp.int32)},
      r"leading axes of the inputs, \(3,\), got cache.length of shape \(\)",
    ),
    ({"length": np.array([0, -1, 0])}, r"cache.length must be from 0 to 11, .*, got \[0, -1, 0\]"),
    ({"length": np.array([0, 12, 0])}, r"cache.length must be from 0 to 11, .*, got \[0, 12, 0\]"),
    ({"length": np.zeros(3, np.float32)}, "cache.length must be integers, got float32"),
    ({"inputs_k": tokens}, "inputs_k, inputs_v and inputs_kv must be None with a cache"),
    ({"mask": np.ones((7, 7), bool)}, r"7, 11\), .* S the slots of the cache, got shape \(7, 7\)"),
    (
      {"mask": masks.causal() & masks.packed(np.array([2, 3]), 7)},
      r"`total` of masks.packed\) must .* \[... N S\] .* slots of the cache, got shape \(7,\)",
    ),
    ({"bias": np.ones((7, 7), np.float32)}, r"bias must .* S the slots of the cache, got shape \(7, 7\)"),
    (
      {"mask": EverySecond(np.zeros((B, 2), int))},
      r"mask must be broadcastable .* got shape \(3, 2, 7, 11\)",
    ),
    (
      {"bias": lambda t, s: jnp.zeros((B, 2, *jnp.broadcast_shapes(t.shape, s.shape)))},
      r"bias must be broadcastable .* got shape \(3, 2, 7, 11\)",
    ),
  ],
)
def test_mismatched_caches_raise(change, message):
  inputs = change.pop("inputs", tokens)
  cache = empty()
  cache = cache._replace(**{name: change.pop(name) for name in cache._fields if name in change})
  with pytest.raises(ValueError, match=message):
    layer.apply(variables_of(layer), inputs, cache=cache, **change)


def test_cache_without_slots_raises():
  with pytest.raises(ValueError, match="max_length must be an integer of at least 1, got 0"):
    empty(slots=0)


@pytest.mark.parametrize("dtype", always(jnp.int8, of=[jnp.int8, jnp.int16, jnp.uint32]))
def test_short_lengths_do_not_wrap(dtype):
  keys = array(1, 1, S, 4)
  before = KVCache(keys, keys, jnp.array([3], dtype))
  after = before._replace(length=before.length + jnp.array(2, dtype))
  allowed = mask_after(before, after, masks.sliding_window(100_000, 0), (1, 1, 2, S)).materialize(2, S)
  desired = np.arange(S)[None] <= np.array([[3], [4]])
  np.testing.assert_array_equal(allowed[0, 0], desired)
