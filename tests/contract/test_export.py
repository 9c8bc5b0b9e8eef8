"""Export: all functions can be exported, with symbolic sizes and for every platform."""

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import decoding, losses, masks, positions

pytestmark = pytest.mark.nightly

# Batch, target and source lengths that are symbolic at export, and their later values.
UNKNOWN = {"b": 3, "t": 5, "s": 7}
PLATFORMS = ["cpu", "cuda", "tpu"]
random = np.random.default_rng(0)


def sizes_of(axes):
  """Returns the sizes of axes such as "b 2 t 8"."""
  return tuple(UNKNOWN.get(axis) or int(axis) for axis in axes.split())


def normal(axes):
  return jnp.asarray(random.normal(size=sizes_of(axes)), jnp.float32)


def integers(axes, low, high):
  return jnp.asarray(random.integers(low, high, size=sizes_of(axes)))


def check(function, arguments):
  """Checks that a function exported with symbolic sizes, for every platform, returns the same as jitted.

  Args:
    function: a function of arrays or pytrees.
    arguments: its arguments as pairs of axes, such as "b 2 t 8", and an array. Axes are None for parameters.
  """
  scope = jax.export.SymbolicScope()

  def specify(axes, array):
    shape = None if axes is None else ", ".join(axes.split())
    return jax.export.symbolic_args_specs(array, shape, scope=scope)

  specs = [specify(*argument) for argument in arguments]
  arrays = [array for _, array in arguments]
  exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*specs)
  chex.assert_trees_all_close(exported.call(*arrays), jax.jit(function)(*arrays), rtol=4e-5, atol=4e-5)


HEADS = ("b 2 t 8", normal("b 2 t 8")), ("b 2 s 8", normal("b 2 s 8")), ("b 2 s 6", normal("b 2 s 6"))
WORDS = ("b t 8", normal("b t 8")), ("b s 8", normal("b s 8")), ("b s 6", normal("b s 6"))
LENGTHS = ("b", integers("b", 1, 8))

SCORES = {
  "dot": attention.ScaledDotProduct(),
  "additive": attention.Additive(normal("8")),
  "bilinear": attention.Bilinear(normal("8 8")),
  "cosine": attention.Cosine(2.0),
  "capped": attention.SoftCap(attention.ScaledDotProduct(), 3.0),
}
OPTIONS = {
  "plain": {},
  "causal": {"mask": masks.causal()},
  "window": {"mask": masks.sliding_window(before=2, after=1) & masks.prefix(4)},
  "lengths": {"mask": None},
  "array": {"mask": None},
  "alibi": {"bias": positions.ALiBi(positions.alibi_slopes(2))},
  "relative": {"bias": positions.RelativePositionBias(normal("2 8"))},
  "function": {"bias": lambda t, s: -0.1 * jnp.abs(t - s).astype(jnp.float32)},
  "dropout": {"dropout_rate": 0.3, "dropout_rng": jax.random.key(0)},
  "logsumexp": {"return_logsumexp": True},
  "weights": {"return_weights": True},
}


@pytest.mark.parametrize("implementation", ["auto", "dense", "blockwise"])
@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_scores_and_their_gradients(score, implementation):
  def total(score, *arrays):
    return jnp.sum(jnp.sin(attention.attend(score, *arrays, implementation=implementation)))

  check(jax.value_and_grad(total, argnums=(0, 1, 2, 3)), [(None, score), *HEADS])


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("name", OPTIONS)
def test_masks_biases_and_options(name, implementation):
  def run(queries, keys, values, lengths):
    options = dict(OPTIONS[name])
    if name == "lengths":
      options["mask"] = masks.lengths(source=lengths[:, None])
    if name == "array":
      options["mask"] = (jnp.arange(keys.shape[-2])[None] < lengths[:, None])[:, None, None]
    return attention.scaled_dot_product_attention(
      queries, keys, values, implementation=implementation, **options
    )

  check(run, [*HEADS, LENGTHS])


def test_symbolic_lengths_in_blocks():
  rng = np.random.default_rng(0)
  arrays = [jnp.asarray(rng.normal(size=(1, 1, 1031, 8)), jnp.float32) for _ in range(3)]

  def run(*arrays):
    return attention.scaled_dot_product_attention(
      *arrays, mask=masks.causal(), implementation="blockwise", block_sizes=(128, 256), return_logsumexp=True
    )

  check(run, [("1 1 t 8", array) for array in arrays])


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize(
  "normalizer",
  [
    attention.Sparsemax(),
    attention.Entmax15(),
    attention.Sigmoid(),
    attention.Softpick(),
    attention.StickBreaking(),
  ],
)
def test_gradients_of_normalizers(normalizer, implementation):
  def loss(*arrays):
    options = {"normalizer": normalizer, "implementation": implementation}
    return jnp.sum(attention.scaled_dot_product_attention(*arrays, **options))

  check(jax.grad(loss, argnums=(0, 1, 2)), HEADS)


FUNCTIONS = {
  "merge": (
    lambda x, y, u, v: attention.merge_partials([(x, u), (y, v)]),
    (("b t 8", normal("b t 8")), ("b t 8", normal("b t 8")), ("b t", normal("b t")), ("b t", normal("b t"))),
  ),
  "masked_softmax": (
    lambda scores, mask: attention.masked_softmax(scores, mask),
    (("b t s", normal("b t s")), ("b t s", integers("b t s", 0, 2) > 0)),
  ),
  "attend_heads": (
    lambda *arrays: attention.attend_heads(*arrays),
    (HEADS[0], ("b 1 s 8", normal("b 1 s 8")), ("b 1 s 6", normal("b 1 s 6"))),
  ),
  "jax_nn": (
    lambda q, k, v: attention.jax_nn.dot_product_attention(q, k, v, is_causal=True),
    (("b t 4 8", normal("b t 4 8")), ("b s 2 8", normal("b s 2 8")), ("b s 2 8", normal("b s 2 8"))),
  ),
  "rotary": (lambda x: positions.rotary(x), (("b t 8", normal("b t 8")),)),
  "sinusoidal": (lambda x: x + positions.sinusoidal(x.shape[1], 8)[None], (("b t 8", normal("b t 8")),)),
  "segment_positions": (lambda x: positions.segment_positions(x), (("b t", integers("b t", 0, 2)),)),
  "monotonic_weights": (
    lambda p, before: attention.monotonic_weights(p, before),
    (("b s", jax.nn.sigmoid(normal("b s"))), ("b s", jax.nn.softmax(normal("b s")))),
  ),
  "multi_head_attention": (
    lambda x: attention.multi_head_attention(
      x, x, attention.MultiHeadWeights(*[jnp.ones((8, 2, 3))] * 3, jnp.ones((2, 3, 8)))
    ),
    WORDS[:1],
  ),
  "alignment_loss": (
    losses.alignment_loss,
    (("b t s", jax.nn.softmax(normal("b t s"))), ("b t s", integers("b t s", 0, 2) > 0)),
  ),
  "coverage_loss": (
    losses.coverage_loss,
    (("b t s", jax.nn.softmax(normal("b t s"))), ("b", integers("b", 1, 4))),
  ),
}


@pytest.mark.parametrize(("function", "arguments"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions(function, arguments):
  check(function, arguments)


LAYERS = {
  "MultiHeadAttention": (attention.MultiHeadAttention(2, qkv_features=8), WORDS),
  "rotary heads": (
    attention.MultiHeadAttention(
      4, qkv_features=8, num_key_value_heads=2, position_fn=positions.rotary, normalize_qk=True
    ),
    WORDS[:1],
  ),
  "AdditiveAttention": (attention.AdditiveAttention(features=8), WORDS[:2]),
  "DotProductAttention": (attention.DotProductAttention(features=8), WORDS[:2]),
  "BilinearAttention": (attention.BilinearAttention(), WORDS[:2]),
  "CosineAttention": (attention.CosineAttention(features=8), WORDS[:2]),
  "LocalAttention": (attention.LocalAttention(), WORDS[:2]),
  "LocationAwareAttention": (attention.LocationAwareAttention(features=8), WORDS[:2]),
  "MonotonicAttention": (attention.MonotonicAttention(features=8), WORDS[:2]),
  "EncoderLayer": (attention.EncoderLayer(2, 6), WORDS[:1]),
  "DecoderLayer": (attention.DecoderLayer(2, 6), WORDS[:2]),
  "RecurrentEncoder": (attention.RecurrentEncoder(11, 4, 6), (("b s", integers("b s", 0, 11)), LENGTHS)),
  "TransformerEncoder": (attention.TransformerEncoder(11, 8), (("b s", integers("b s", 0, 11)), LENGTHS)),
  "relative encoder": (
    attention.TransformerEncoder(11, 8, position_encoding="relative"),
    (("b s", integers("b s", 0, 11)), LENGTHS),
  ),
  "recurrent Seq2Seq": (
    attention.Seq2Seq(attention.RecurrentEncoder(11, 4, 6), attention.RecurrentDecoder(11, 4, 6)),
    (("b s", integers("b s", 0, 11)), LENGTHS, ("b t", integers("b t", 0, 11))),
  ),
  "transformer Seq2Seq": (
    attention.Seq2Seq(attention.TransformerEncoder(11, 8), attention.TransformerDecoder(11, 8)),
    (("b s", integers("b s", 0, 11)), LENGTHS, ("b t", integers("b t", 0, 11))),
  ),
}


@pytest.mark.parametrize(("module", "arguments"), LAYERS.values(), ids=LAYERS)
def test_layers_and_models(module, arguments):
  params = module.init(jax.random.key(0), *(array for _, array in arguments))
  check(module.apply, [(None, params), *arguments])


TABLE, STATE = normal("11 11"), normal("b 4")


@pytest.mark.parametrize("method", ["greedy", "beam_search", "sample"])
def test_search_with_symbolic_batch(method):

  def run(state):
    options = {"batch_size": state.shape[0], "max_length": 4, "bos_id": 1, "eos_id": 2}
    options |= {"beam_search": {"beam_size": 3}, "sample": {"rng": jax.random.key(0)}}.get(method, {})
    return getattr(decoding, method)(lambda state, token: (state, TABLE[token], None), state, **options)

  check(run, [("b 4", STATE)])
