"""Caches of keys and values: decoding equals computing the whole sequence."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_reference import compiled, random_parameters, softmax

import attention
from attention import masks, positions
from attention.layers.cache import KVCache, bias_from, mask_after, write

# T tokens in total, read in parts, S slots. Two of N heads share each of the K key heads.
B, T, S, N, K, H, D = 3, 7, 11, 4, 2, 6, 24
PARTS = ((0, 4), (4, 5), (5, 7))
TOKENS = np.random.default_rng(1).normal(size=(B, T, D)).astype(np.float32)
LAYER = attention.MultiHeadAttention(
  N, num_key_value_heads=K, position_fn=positions.rotary, normalize_qk=True, use_sinks=True, use_gate=True
)
VARIABLES = random_parameters(LAYER, TOKENS)
t, s = np.arange(T)[:, None], np.arange(S)
assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-4)


def read(inputs=TOKENS, cache=None, parts=PARTS, layer=LAYER, **options):
  """Returns the results of all parts, and the last cache."""
  cache = layer.apply(VARIABLES, inputs, S, method="init_cache") if cache is None else cache
  results = []
  for start, stop in parts:
    result, cache = layer.apply(VARIABLES, inputs[..., start:stop, :], cache=cache, **options)
    results.append(result)
  return jnp.concatenate(results, axis=-2), cache


PER_HEAD = np.array([0, 1, 1, 0])
SLOPES = np.array([1.0, 0.5, 0.25, 0.125], np.float32)


def test_parts_equal_the_whole_sequence():
  layer = LAYER.clone(implementation="blockwise")
  options = {
    "mask": masks.causal() & masks.sliding_window(1 + PER_HEAD, 2**31 - 1),
    "bias": positions.ALiBi(SLOPES),
  }

  @jax.jit
  def run():
    parts = read(layer=layer, **options)
    return (
      parts,
      LAYER.apply(VARIABLES, TOKENS, **options),
      LAYER.apply(VARIABLES, TOKENS, method="project_kv"),
    )

  (output, cache), desired, (keys, values) = jax.device_get(run())
  assert_close(output, desired)
  assert_close((cache.keys[:, :, :T], cache.values[:, :, :T]), (keys, values))
  chex.assert_trees_all_equal(cache.length, np.full(B, T, np.int32))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EverySecond(masks.Mask):
  """A custom mask: keys at an even distance. `shift` is the same for all heads, or one per head."""

  axes = {"shift": ""}
  shift: jax.Array

  def mask_mod(self, t, s):
    return (t - s + self.shift) % 2 == 0


REAL = np.array([7, 3, 5])
lengths, shift = REAL[:, None, None, None], PER_HEAD[:, None, None]
# Masks that are passed in every call, and the masks [T S] of the whole sequence.
MASKS = {
  "causal": (masks.causal(2**31 - 1) & masks.sliding_window(2**31 - 1, 0), s <= t),
  "window_to_both_sides": (masks.sliding_window(3, 2), (t - s <= 3) & (s - t <= 2)),
  "window_of_heads": (
    masks.causal() & masks.sliding_window(1 + PER_HEAD, 2**31 - 1),
    (s <= t) & (t - s <= 1 + shift),
  ),
  "not": (masks.causal() & ~masks.sliding_window(1, 1), t - s > 1),
  "prefix": (masks.causal() | masks.prefix(4), (s <= t) | (s < 4)),
  "padding_in_front": (masks.causal() & ~masks.prefix(T - REAL[:, None]), (s <= t) & (s >= T - lengths)),
  "lengths": (
    masks.causal() & masks.lengths(source=REAL[:, None], target=REAL[:, None]),
    (s <= t) & (np.maximum(t, s) < lengths),
  ),
  "custom_of_heads": (masks.causal() & EverySecond(PER_HEAD), (s <= t) & ((t - s + shift) % 2 == 0)),
  "none": (None, True),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_rules_hold_in_every_call(name):
  mask, whole = MASKS[name]
  whole = np.broadcast_to(whole, (B, N, T, S))
  slots = jnp.zeros((B, K, S, H))

  @jax.jit
  def run():
    caches = [[KVCache(slots, slots, jnp.full(B, number)) for number in part] for part in PARTS]
    allowed = [
      mask_after(before, after, mask, (B, N, stop - start, S)).materialize(stop - start, S)
      for (before, after), (start, stop) in zip(caches, PARTS, strict=True)
    ]
    return [jnp.broadcast_to(each, (B, N, *each.shape[-2:])) for each in allowed]

  for allowed, (start, stop) in zip(run(), PARTS, strict=True):
    np.testing.assert_array_equal(allowed, whole[:, :, start:stop] & (s < stop))


TABLE = np.random.default_rng(4).normal(size=(N, 32)).astype(np.float32)


@pytest.mark.parametrize(
  ("bias", "whole"),
  [
    (positions.ALiBi(SLOPES), -SLOPES[:, None, None] * np.abs(t - s)),
    # Up to 16, each distance has a separate bias.
    (positions.RelativePositionBias(TABLE, bidirectional=False), TABLE[:, np.maximum(t - s, 0)]),
    (lambda t, s: jnp.sin((2 * t + s).astype(jnp.float32)), np.sin(2.0 * t + s)),
  ],
  ids=["alibi", "relative", "function"],
)
def test_position_biases_hold_in_every_call(bias, whole):
  slots = jnp.zeros((B, K, S, H))

  @jax.jit
  def run(lengths):  # equal scores, so that weights are the softmax of the bias
    shifted = bias_from(bias, lengths, (B, N, 3, S))
    queries = jnp.zeros((B, N, 3, H))
    return attention.attend_heads(queries, slots, slots, bias=shifted, return_weights=True).weights

  lengths = np.array([0, 4, 2])
  desired = np.stack([np.broadcast_to(whole, (N, T, S))[:, length : length + 3] for length in lengths])
  np.testing.assert_allclose(run(lengths), softmax(desired), rtol=1e-5, atol=1e-5)


def test_arrays_cover_queries_and_slots():
  rng = np.random.default_rng(2)
  mask = (rng.random((B, 1, T, S)) < 0.6) & (s <= t)
  bias, numbers = rng.normal(size=(N, T, S)).astype(np.float32), np.arange(S) % 3

  @jax.jit
  def run():
    cache, results = LAYER.apply(VARIABLES, TOKENS, S, method="init_cache"), []
    for start, stop in PARTS:
      options = {
        "mask": mask[:, :, start:stop] | masks.segments(numbers[start:stop], numbers) & masks.causal()
      }
      part = TOKENS[:, start:stop]
      result, cache = LAYER.apply(VARIABLES, part, cache=cache, bias=bias[:, start:stop], **options)
      results.append(result)
    whole = mask[..., :T] | masks.segments(numbers[:T], numbers[:T]) & masks.causal()
    desired = LAYER.apply(VARIABLES, TOKENS, mask=whole, bias=bias[..., :T])
    return jnp.concatenate(results, axis=1), desired

  assert_close(*run())


def test_tokens_can_be_scanned():
  @jax.jit
  def run():
    def step(cache, token):
      result, weights, cache = LAYER.apply(
        VARIABLES, token[:, None], mask=masks.causal(), cache=cache, return_weights=True
      )
      return cache, (result[:, 0], weights[:, :, 0])

    cache = LAYER.apply(VARIABLES, TOKENS, S, method="init_cache")
    cache, results = jax.lax.scan(step, cache, jnp.swapaxes(TOKENS, 0, 1))
    desired = LAYER.apply(VARIABLES, TOKENS, mask=masks.causal(), return_weights=True)
    return cache, (jnp.swapaxes(results[0], 0, 1), jnp.moveaxis(results[1], 0, 2)), desired

  cache, (outputs, weights), desired = jax.device_get(run())
  assert_close((outputs, weights[..., :T]), desired)
  chex.assert_trees_all_equal(weights[..., T:], np.zeros((B, N, T, S - T), np.float32))
  chex.assert_trees_all_equal(cache.length, np.full(B, T, np.int32))


@pytest.mark.parametrize("leading", [(), (2, 3)], ids=str)
def test_sequences_have_any_leading_axes(leading):
  inputs = np.random.default_rng(3).normal(size=(*leading, T, D)).astype(np.float32)

  @jax.jit
  def run():
    return read(inputs, parts=[(0, T)]), LAYER.apply(VARIABLES, inputs)

  (output, cache), desired = jax.device_get(run())
  assert cache.length.shape == leading
  assert_close(output, desired)


def test_sequences_have_separate_lengths():
  # Prompts of 2, 4 and 1 tokens, padded to 4; then 3 more tokens each.
  lengths = np.array([2, 4, 1])
  is_real = np.arange(4)[None, :, None] < lengths[:, None, None]
  mask = masks.causal() & masks.sliding_window(2, 0)
  after = np.stack([TOKENS[b, length : length + 3] for b, length in enumerate(lengths)])

  @jax.jit
  def run(padding):
    padded = jnp.where(is_real, TOKENS[:, :4], padding)
    prompt, cache = read(padded, parts=[(0, 4)], mask=mask)
    output, cache = read(after, cache._replace(length=jnp.asarray(lengths)), ((0, 1), (1, 3)), mask=mask)
    return prompt, output, cache.length

  prompt, output, new_lengths = jax.device_get(run(77.0))
  np.testing.assert_array_equal(new_lengths, lengths + 3)
  desired = compiled(LAYER)(VARIABLES, TOKENS, mask=mask)
  for b, length in enumerate(lengths):
    assert_close(prompt[b, :length], desired[b, :length])
    assert_close(output[b], desired[b, length : length + 3])
  # Slots beyond the length have no effect, even if they contain NaN.
  chex.assert_trees_all_equal(run(np.nan)[1], output)


def test_nan_padding_in_front_is_ignored():
  is_padding = (np.arange(T) < T - REAL[:, None])[..., None]
  mask = masks.causal() & ~masks.prefix(T - REAL[:, None])
  run = jax.jit(lambda inputs: read(inputs, parts=((0, 4), (4, 7)), mask=mask)[0])
  spoilt, clean = (run(np.where(is_padding, np.float32(filling), TOKENS)) for filling in (np.nan, 0.0))
  chex.assert_trees_all_equal(np.where(is_padding, 0, spoilt), np.where(is_padding, 0, clean))


def test_cache_has_the_keys_dtype():
  halves = TOKENS.astype(jnp.bfloat16)
  layer = LAYER.clone(dtype=jnp.bfloat16)
  output, cache = jax.eval_shape(lambda: read(halves, layer=layer, mask=masks.causal()))
  assert output.dtype == cache.keys.dtype == cache.values.dtype == jnp.bfloat16
  empty = jax.eval_shape(lambda: LAYER.apply(VARIABLES, halves, S, method="init_cache"))
  assert empty.keys.dtype == jnp.float32  # like the parameters


@pytest.mark.parametrize(
  ("length", "message"),
  [
    ([4, 4, 4], "cache is full: 2 new tokens, but only 1 of 5 slots are free"),
    ([0, 5, 1], "cache is full: 2 new tokens, but only 0 of 5 slots are free"),
    ([0, -1, 0], r"cache.length must be from 0 to 5, the number of slots, got \[0, -1, 0\]"),
    ([0, 6, 0], r"cache.length must be from 0 to 5, the number of slots, got \[0, 6, 0\]"),
  ],
)
def test_known_lengths_are_checked(length, message):
  slots = np.zeros((B, K, 5, H), np.float32)
  with pytest.raises(ValueError, match=message):
    write(KVCache(slots, slots, np.array(length)), slots[:, :, :2], slots[:, :, :2], np.zeros((B, 2), int))


def test_too_many_traced_tokens_are_nan():
  @jax.jit
  def run():
    cache = LAYER.apply(VARIABLES, TOKENS, 5, method="init_cache")
    _, cache = read(cache=cache, parts=[(0, 4)])
    cache = cache._replace(length=jnp.array([4, 3, 4]))
    mask = masks.sliding_window(0, 0)
    outputs, weights, full = LAYER.apply(
      VARIABLES, TOKENS[:, 4:6], mask=mask, cache=cache, return_weights=True
    )
    later, after = read(cache=full, parts=[(6, 7)], mask=mask)
    return (outputs, weights), full, LAYER.apply(VARIABLES, TOKENS, method="project_kv"), later, after.length

  results, full, (keys, values), later, lengths = jax.device_get(run())
  for array in results:
    assert np.all(np.isnan(array[::2])) and np.all(np.isfinite(array[1]))
  # The first sequence's token 4 is in the last slot; token 5 has no slot and did not replace it.
  assert_close((full.keys[0], full.values[0]), (keys[0, :, :5], values[0, :, :5]))
  assert np.all(np.isnan(later))
  np.testing.assert_array_equal(lengths, [7, 6, 7])


ZEROS = np.zeros((B, 2, S, 6), np.float32)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"inputs": TOKENS[:2]}, r"of the inputs, \(2,\), got cache.length of shape \(3,\)"),
    ({"length": np.zeros((), int)}, r"of the inputs, \(3,\), got cache.length of shape \(\)"),
    ({"length": np.zeros(3, np.float32)}, "cache.length must be integers, got float32"),
    ({"keys": np.zeros((B, N, S, 6), np.float32)}, r"cache.keys must be float32 .* \(3, 4, 11, 6\)"),
    ({"keys": ZEROS.astype(jnp.bfloat16)}, "cache.keys must be float32 .*, got bfloat16"),
    ({"values": ZEROS[..., :5]}, r"cache.values must be float32 .* 6\) .*, got float32 .* 5\)"),
    ({"inputs": np.zeros((B, 12, D), np.float32)}, "cache is full: 12 new tokens, but only 11 of 11 slots"),
    ({"inputs_k": TOKENS}, "inputs_k, inputs_v and inputs_kv must be None with a cache"),
    ({"mask": np.ones((7, 7), bool)}, r"7, 11\), .* S the slots of the cache, got shape \(7, 7\)"),
    (
      {"mask": masks.causal() & masks.packed(np.array([2, 3]), 7)},
      r"`total` of masks.packed\) must .* \[... N S\] .* slots of the cache, got shape \(7,\)",
    ),
    (
      {"mask": EverySecond(np.zeros((B, 2), int))},
      r"mask must be broadcastable .* got shape \(3, 2, 7, 11\)",
    ),
    ({"bias": np.ones((7, 7), np.float32)}, r"bias must .* S the slots of the cache, got shape \(7, 7\)"),
  ],
)
def test_mismatched_caches_raise(change, message):
  cache = KVCache(ZEROS, ZEROS, np.zeros(B, np.int32))
  cache = cache._replace(**{name: change[name] for name in cache._fields if name in change})
  options = {name: change[name] for name in change if name not in ("inputs", *cache._fields)}
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(
      functools.partial(LAYER.apply, cache=cache, **options), VARIABLES, change.get("inputs", TOKENS)
    )


def test_cache_without_slots_raises():
  with pytest.raises(ValueError, match="max_length must be an integer of at least 1, got 0"):
    jax.eval_shape(lambda: LAYER.apply(VARIABLES, TOKENS, 0, method="init_cache"))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint32])
def test_short_lengths_do_not_wrap(dtype):
  slots = jnp.zeros((1, 1, S, 4))

  @jax.jit
  def run(before, after):
    mask = mask_after(before, after, masks.sliding_window(100_000, 0), (1, 1, 2, S))
    return mask.materialize(2, S)[0, 0]

  before, after = (KVCache(slots, slots, jnp.array([length], dtype)) for length in (3, 5))
  np.testing.assert_array_equal(run(before, after), s <= np.array([[3], [4]]))
