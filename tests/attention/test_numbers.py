"""Numeric arguments of public functions: invalid dtypes raise errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import decoding, jax_nn, losses, masks, positions

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 8)), jnp.float32)
W = jax.nn.softmax(X[..., :3])
KEY = jax.random.key(0)
ENDS = {"batch_size": 2, "max_length": 3, "bos_id": 0, "eos_id": 1}

REAL = [1j, jnp.asarray(1j), True, jnp.asarray(True), "a"]
VECTORS, MATRICES = ([array.astype(complex), array > 0] for array in (np.ones(8), np.eye(8)))
INTEGER = [1.5, 1j, "2", jnp.float32(2), np.float64(2), True, -1]
NO_KEY = [0, jnp.ones(3, jnp.uint32), jnp.ones(2), jax.random.split(KEY, 3)]
HUGE = [2**31, np.int64(2**40), np.uint32(2**32 - 1)]
INTEGERS = [jnp.ones(2), jnp.ones(2).astype(complex), jnp.ones(2, bool), jnp.ones(2, jnp.bfloat16), "ab"]


def attend(score=None, **options):
  return attention.attend(score or attention.ScaledDotProduct(), X, X, X, **options)


def step(state, tokens):
  return state, jnp.ones((2, 5)), None


def run(method, **options):
  return getattr(decoding, method)(step, jnp.zeros((2, 1)), **(ENDS | options))


ARGUMENTS = {
  "scale": (REAL, lambda v: attend(attention.ScaledDotProduct(v))),
  "scale of cosine": (REAL, lambda v: attention.cosine_attention(X, X, X, scale=v)),
  "scale of jax_nn": (REAL, lambda v: jax_nn.dot_product_attention(*[X[:, :, None]] * 3, scale=v)),
  "cap": (REAL, lambda v: attend(attention.SoftCap(attention.ScaledDotProduct(), v))),
  "score_vector": (VECTORS, lambda v: attention.additive_attention(X, X, X, v)),
  "score_vector of scores": (VECTORS, lambda v: attention.additive_scores(X, X, v)),
  "matrix": (MATRICES, lambda v: attention.bilinear_attention(X, X, X, v)),
  "matrix of scores": (MATRICES, lambda v: attention.bilinear_scores(X, X, v)),
  "slopes": ([1j, True, 2], lambda v: attend(bias=positions.ALiBi(jnp.asarray(v)))),
  "bias": ([W.astype(complex), (W > 0), jnp.ones((3, 3), int)], lambda v: attend(bias=v)),
  "max_distance": (INTEGER, lambda v: positions.relative_position_bucket(jnp.arange(3), 8, v, True)),
  "positions": (
    [*HUGE, *(jnp.arange(3.0).astype(kind) for kind in (jnp.bfloat16, jnp.float16, bool, complex))],
    lambda v: positions.rotary(X, v),
  ),
  "base": ([*REAL, 0.0, -2.0, jnp.ones(3)], lambda v: positions.rotary(X, base=v)),
  "length": (INTEGER, lambda v: positions.sinusoidal(v, 4)),
  "width": (INTEGER, lambda v: positions.sinusoidal(4, v)),
  "num_heads": (INTEGER, positions.alibi_slopes),
  "offset": (INTEGER[:-1], lambda v: attend(mask=masks.causal(v))),
  "before": (INTEGER[:-1], lambda v: attend(mask=masks.sliding_window(before=v, after=0))),
  "length of prefix": (INTEGER[:-1], lambda v: attend(mask=masks.prefix(v))),
  "source": (INTEGERS, lambda v: attend(mask=masks.lengths(source=v))),
  "target": ([jnp.ones(3), jnp.ones(3, bool)], lambda v: attend(mask=masks.segments(v, v))),
  "queries": (
    [X.astype(complex), X > 0, X.astype(int)],
    lambda v: attention.scaled_dot_product_attention(v, v, v),
  ),
  "dropout_rate": ([*REAL, X[0, 0] / 99], lambda v: attend(dropout_rate=v, dropout_rng=KEY)),
  "temperature": (
    [*REAL, jnp.ones(5), 10**40, 10**400, -(10**400)],
    lambda v: run("sample", rng=KEY, temperature=v),
  ),
  "top_p": ([*REAL, jnp.ones(5) / 2], lambda v: run("sample", rng=KEY, top_p=v)),
  "top_k": (INTEGER, lambda v: run("sample", rng=KEY, top_k=v)),
  "beam_size": (INTEGER, lambda v: run("beam_search", beam_size=v)),
  "n_best": (INTEGER, lambda v: run("beam_search", beam_size=2, n_best=v)),
  "length_penalty": (REAL, lambda v: run("beam_search", beam_size=2, length_penalty=v)),
  "max_length": (INTEGER, lambda v: run("greedy", max_length=v)),
  "batch_size": (INTEGER, lambda v: run("beam_search", beam_size=2, batch_size=v)),
  "eos_id": ([*INTEGER[:-1], 2**31, np.uint32(2**32 - 1)], lambda v: run("greedy", eos_id=v)),
  "bos_id": (INTEGER[:-1], lambda v: run("beam_search", beam_size=2, bos_id=v)),
  "cap in float32": ([float("inf"), 1e300], lambda v: attend(attention.SoftCap(attention.Cosine(), v))),
  "stddev": (
    [*REAL, 0.0, 1e-60],
    lambda v: attend(normalizer=attention.GaussianWindow(jnp.zeros(3), v), implementation="dense"),
  ),
  "key_value_seq_lengths": (
    HUGE[1:],
    lambda v: jax_nn.dot_product_attention(*[X[:, :, None]] * 3, key_value_seq_lengths=np.full(2, v)),
  ),
  "segments": (HUGE[1:], lambda v: positions.segment_positions(np.full(3, v))),
  "pad_id": ([2**31, np.uint32(2**32 - 1), -(2**31) - 1], lambda v: run("greedy", pad_id=v)),
  "rng": (NO_KEY, lambda v: run("sample", rng=v)),
  "dropout_rng": (NO_KEY, lambda v: attend(dropout_rate=0.5, dropout_rng=v)),
  "scores": ([W.astype(complex), W > 0], lambda v: attention.masked_softmax(v, masks.causal())),
  "logsumexp": ([X[..., 0].astype(complex), X[..., 0] > 0], lambda v: attention.merge_partials([(X, v)])),
  "context": ([X.astype(complex), X > 0], lambda v: attention.merge_partials([(v, X[..., 0])])),
  "sink": (REAL, lambda v: attention.add_sink(X, X[..., 0], v)),
  "probabilities": ([W.astype(complex), W > 0, W.astype(int)], lambda v: attention.monotonic_weights(v, W)),
  "weights": ([W.astype(complex), W > 0], lambda v: losses.alignment_loss(v, W > 0)),
  "links": ([W.astype(complex)], lambda v: losses.alignment_loss(W, v)),
  "lengths": ([*INTEGERS, *(np.full(2, huge) for huge in HUGE)], lambda v: losses.coverage_loss(W, v)),
  "num_heads of a layer": (INTEGER, lambda v: attention.MultiHeadAttention(v).init(KEY, X)),
  "qkv_features of a layer": (
    INTEGER,
    lambda v: attention.MultiHeadAttention(2, qkv_features=v).init(KEY, X),
  ),
  "features of feed-forward": (INTEGER, lambda v: attention.FeedForward(v).init(KEY, X)),
  "features of additive": (INTEGER, lambda v: attention.AdditiveAttention(features=v).init(KEY, X, X)),
  "features of gru": (INTEGER, lambda v: attention.GRUModule(v).init(KEY, 3)),
  "window_radius": (REAL, lambda v: attention.LocalAttention(window_radius=v).init(KEY, X, X)),
}


@pytest.mark.parametrize(
  ("name", "value", "call"),
  [(name, value, call) for name, (wrong, call) in ARGUMENTS.items() for value in wrong],
)
def test_invalid_types_raise(name, value, call):
  with pytest.raises(ValueError, match=rf"{name.split()[0]}.* must .*got"):
    call(value)


def test_known_arrays_are_accepted_inside_jit():
  x, key = jnp.ones((3, 2)), jax.random.key(0)
  rate, base = jnp.float32(0.3), jnp.float32(5e5)
  dropped = {"dropout_rate": rate, "dropout_rng": key}
  desired = attention.scaled_dot_product_attention(x, x, x, **dropped)
  result = jax.jit(lambda x: attention.scaled_dot_product_attention(x, x, x, **dropped))(x)
  np.testing.assert_allclose(result, desired, rtol=1e-6)
  rotated = jax.jit(lambda x: positions.rotary(x, jnp.arange(3), base=base))(x)
  np.testing.assert_allclose(rotated, positions.rotary(x, jnp.arange(3), base=5e5), rtol=1e-6)


def test_dropout_rates_below_one():
  def attend(rate):
    return attention.scaled_dot_product_attention(X, X, X, dropout_rate=rate, dropout_rng=KEY)

  for function, rate in ((attend, 1 - 1e-9), (attend, np.full(3, 0.1)), (jax.jit(attend), jnp.full(3, 0.1))):
    with pytest.raises(ValueError, match=r"dropout_rate must be a number in \[0, 1\), got"):
      function(rate)


def test_unsigned_bounds_beyond_all_keys():
  for mask in (masks.causal(jnp.uint32(4_000_000_000)), masks.lengths(source=jnp.uint32(4_000_000_000))):
    assert np.all(mask.materialize(3, 5))
