"""Decoding and scoring of a batch, each one compiled function."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import attention
from attention.decoding import SearchResult, beam, greedy, sample
from experiments.text.batches import Batch
from experiments.text.vocabularies import BOS_ID, EOS_ID, PAD_ID
from experiments.translation.loss import linear_losses

_IMPOSSIBLE = -1e30  # a logit; finite, because a mean is taken of them


class DecodeOptions(NamedTuple):
  """How translations are looked for.

  Attributes:
    max_length: tokens, the end of the sentence included, after which a translation is cut.
    beam_size: of beam search; 1 for the greedy search.
    length_penalty: as in `attention.decoding.beam`.
    n_best: how many translations of each sentence, at most beam_size; of those that are drawn there is one.
    temperature: tokens are drawn at this temperature, as by `attention.decoding.sample`; 0 to draw none.
    top_k: so many of the likeliest tokens can be drawn; 0 for all.
    top_p: the likeliest tokens that have this probability together can be drawn; 1 for all.
    seed: of the drawing.
    ends: whether translations may end; otherwise all have the greatest length.
  """

  max_length: int
  beam_size: int = 1
  length_penalty: float = 1.0
  n_best: int = 1
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0
  ends: bool = True


@functools.partial(jax.jit, static_argnames=("model", "search", "with_weights"))
def decode(
  params: Any,
  sources: jax.Array,
  source_lengths: jax.Array,
  numbers: jax.Array,
  seed: jax.Array,
  *,
  model: attention.Seq2Seq | attention.Ensemble,
  search: DecodeOptions,
  with_weights: bool,
  never: tuple[int, ...],
) -> SearchResult:
  """Returns the best N translations of a batch of sentences, fields [B N ...].

  Args:
    params: of the model.
    sources: [B S], tokens.
    source_lengths: [B].
    numbers: [B] uint32, of the sentences; with `seed` they determine what is sampled.
    seed: uint32.
    model: what to decode with.
    search: how; its own seed is not used.
    with_weights: whether to return the attention weights, [B N T S] float32.
    never: tokens that no translation contains.
  """
  variables = {"params": params}
  state, memory = model.apply(variables, sources, source_lengths, search.max_length, method="encode")

  def step(state: Any, tokens: jax.Array) -> Any:
    outputs: Any = model.apply(variables, state, tokens, memory, method="step")
    state, logits, weights = outputs
    logits = logits.at[:, jnp.array(never)].set(-jnp.inf)
    return state, logits, _float32(weights) if with_weights else None

  arguments: Any = {"batch_size": sources.shape[0], "max_length": search.max_length}
  arguments |= {"bos_id": BOS_ID, "eos_id": EOS_ID, "pad_id": PAD_ID}
  if search.temperature:
    options: Any = {"temperature": search.temperature, "top_k": search.top_k or None, "top_p": search.top_p}
    rngs = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers)
    found = sample(step, state, rngs, **arguments, **options)
  elif search.beam_size > 1:
    options = {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
    return beam(step, state, **arguments, **options, n_best=search.n_best)
  else:
    found = greedy(step, state, **arguments)
  return jax.tree.map(lambda array: array[:, None], found)


@functools.partial(jax.jit, static_argnames=("model", "never"))
def score(
  params: Any, batch: Batch, *, model: attention.Seq2Seq, never: tuple[int, ...]
) -> tuple[jax.Array, jax.Array | None]:
  """Returns the summed loss of each sentence [B], and the attention [B T S]."""
  features: Any = model.apply(
    {"params": params}, batch.sources, batch.source_lengths, batch.inputs, method="output_features"
  )
  B, T = batch.targets.shape
  vectors, targets = features.vectors.reshape(B * T, -1), jnp.reshape(batch.targets, -1)
  bias = features.bias.at[jnp.array(never)].set(_IMPOSSIBLE)
  losses = linear_losses(vectors, features.kernel, bias, targets)
  return jnp.sum(losses.reshape(B, T), axis=-1), _float32(features.weights)


@functools.partial(jax.jit, static_argnames="model")
def attention_weights(params: Any, batch: Batch, *, model: attention.Seq2Seq) -> Any:
  """Returns the weights of each layer and head."""
  arguments = batch.sources, batch.source_lengths, batch.inputs
  return _float32(model.apply({"params": params}, *arguments, method="attention_weights"))


def _float32(tree: Any) -> Any:
  """Returns what a model computed, in float32 whatever it computes in."""
  return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
