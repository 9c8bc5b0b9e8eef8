"""Point 8 of the contract: all functions can be exported with symbolic sizes."""

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import FLOAT32, always, assert_trees_close
from helpers.model_reference import random_parameters

import attention
from attention import decoding, losses, masks, positions

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


def check(cases, platforms=PLATFORMS):
  """Checks that functions exported with symbolic sizes return the same as with known sizes.

  All are exported as one program, which is faster than separate programs.

  Args:
    cases: for each name, a function of arrays or pytrees, and its arguments as pairs of axes, such as "b 2 t
      8", and an array. Axes are None for parameters.
    platforms: platforms to lower for.
  """
  scope = jax.export.SymbolicScope()

  def specify(axes, array):
    shape = None if axes is None else ", ".join(axes.split())
    return jax.export.symbolic_args_specs(array, shape, scope=scope)

  def run(arguments):
    return {name: function(*arguments[name]) for name, (function, _) in cases.items()}

  specs = {name: [specify(*argument) for argument in arguments] for name, (_, arguments) in cases.items()}
  arrays = {name: [array for _, array in arguments] for name, (_, arguments) in cases.items()}
  exported = jax.export.export(jax.jit(run), platforms=platforms)(specs).call(arrays)
  desired = jax.jit(run)(arrays)
  for name in cases:
    try:
      assert_trees_close(exported[name], desired[name], 10 * FLOAT32)
    except AssertionError as error:
      raise AssertionError(f"{name}: {error}") from error


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


@pytest.mark.parametrize("implementation", always("blockwise", of=["auto", "dense", "blockwise"]))
@pytest.mark.exhaustive
def test_scores_and_their_gradients(implementation):
  def gradients_of(score):
    def total(score, *arrays):
      return jnp.sum(jnp.sin(attention.attend(score, *arrays, implementation=implementation)))

    return lambda *arrays: jax.value_and_grad(total, argnums=(0, 1, 2, 3))(score, *arrays)

  check({name: (gradients_of(score), HEADS) for name, score in SCORES.items()})


@pytest.mark.parametrize("implementation", always("blockwise", of=["dense", "blockwise"]))
def test_masks_biases_and_options(implementation):
  def with_options(name):
    def run(queries, keys, values, lengths):
      options = dict(OPTIONS[name])
      if name == "lengths":
        options["mask"] = masks.lengths(source=lengths[:, None])
      if name == "array":
        options["mask"] = (jnp.arange(keys.shape[-2])[None] < lengths[:, None])[:, None, None]
      return attention.scaled_dot_product_attention(
        queries, keys, values, implementation=implementation, **options
      )

    return run

  check({name: (with_options(name), (*HEADS, LENGTHS)) for name in OPTIONS})


@pytest.mark.exhaustive
def test_symbolic_lengths_in_blocks():
  arrays = [jnp.asarray(random.normal(size=(1, 1, 1031, 8)), jnp.float32) for _ in range(3)]

  def run(*arrays):
    return attention.scaled_dot_product_attention(
      *arrays, mask=masks.causal(), implementation="blockwise", block_sizes=(128, 256), return_logsumexp=True
    )

  check({"blocks": (run, [("1 1 t 8", array) for array in arrays])})


@pytest.mark.parametrize("name", always("dot", of=["dot", "additive"]))
def test_blockwise_never_materializes_all_pairs(name):
  def gradients(*arrays):
    def total(*arrays):
      return jnp.sum(attention.attend(SCORES[name], *arrays, mask=masks.causal(), implementation="blockwise"))

    return jax.grad(total, argnums=(0, 1, 2))(*arrays)

  scope = jax.export.SymbolicScope()
  specs = [
    jax.export.symbolic_args_specs(array, axes, scope=scope)
    for axes, (_, array) in zip(("3, t, 8", "3, s, 8", "3, s, 6"), WORDS, strict=True)
  ]
  program = str(jax.jit(gradients).trace(*specs).jaxpr)
  assert re.search(r"\[3,t,8\]", program)
  assert not re.search(r"\[[^\]]*\bt\b[^\]]*\bs\b[^\]]*\]|\[[^\]]*\bs\b[^\]]*\bt\b[^\]]*\]", program)


@pytest.mark.parametrize("implementation", always("blockwise", of=["dense", "blockwise"]))
def test_normalizers(implementation):
  def gradients_of(normalizer):
    def loss(*arrays):
      return jnp.sum(
        attention.scaled_dot_product_attention(*arrays, normalizer=normalizer, implementation=implementation)
      )

    return jax.grad(loss, argnums=(0, 1, 2))

  names = ("Sparsemax", "Entmax15", "Sigmoid", "Softpick", "StickBreaking")
  check({name: (gradients_of(getattr(attention, name)()), HEADS) for name in names})


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
    (
      ("b t 4 8", normal("b t 4 8")),
      ("b s 2 8", normal("b s 2 8")),
      ("b s 2 8", normal("b s 2 8")),
    ),
  ),
  "rotary": (lambda x: positions.rotary(x), (("b t 8", normal("b t 8")),)),
  "sinusoidal": (lambda x: x + positions.sinusoidal(x.shape[1], 8)[None], (("b t 8", normal("b t 8")),)),
  "segment_positions": (lambda x: positions.segment_positions(x), (("b t", integers("b t", 0, 2)),)),
  "monotonic_weights": (
    lambda p, before: attention.monotonic_weights(p, before),
    (("b s", jax.nn.sigmoid(normal("b s"))), ("b s", jax.nn.softmax(normal("b s")))),
  ),
}


def test_functions():
  check(FUNCTIONS)


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


# Scores whose programs differ most.
FEW_LAYERS = ("MultiHeadAttention", "MonotonicAttention", "relative encoder")


@pytest.mark.parametrize("which", always("few", of=["few", "others"]))
@pytest.mark.exhaustive
def test_layers_and_models(which):
  def applied(module, arguments):
    params = random_parameters(module, *(array for _, array in arguments))
    return module.apply, ((None, params), *arguments)

  check({name: applied(*LAYERS[name]) for name in LAYERS if (name in FEW_LAYERS) == (which == "few")})


@pytest.mark.parametrize("method", always("beam_search", of=["greedy", "beam_search", "sample"]))
def test_search_with_symbolic_batch(method):
  table = normal("11 11")

  def run(state):
    options = {"batch_size": state.shape[0], "max_length": 4, "bos_id": 1, "eos_id": 2}
    options |= {"beam_search": {"beam_size": 3}, "sample": {"rng": jax.random.key(0)}}.get(method, {})
    return getattr(decoding, method)(lambda state, token: (state, table[token], None), state, **options)

  check({method: (run, (("b 4", normal("b 4")),))})


@pytest.mark.exhaustive
def test_losses():
  weights, links = jax.nn.softmax(normal("b t s")), integers("b t s", 0, 2) > 0
  check(
    {
      "alignment": (losses.alignment_loss, (("b t s", weights), ("b t s", links))),
      "coverage": (losses.coverage_loss, (("b t s", weights), ("b", integers("b", 1, 4)))),
    }
  )
