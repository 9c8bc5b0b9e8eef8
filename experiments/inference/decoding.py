"""Compiled functions that decode and score a batch."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import attention
from attention.decoding import SearchResult, beam_search, greedy, sample
from attention.losses import linear_losses
from experiments.data.batches import Batch
from experiments.data.vocabularies import BOS_ID, EOS_ID, PAD_ID

_BANNED_LOGIT = -1e30  # finite, because the loss averages logits


class DecodeOptions(NamedTuple):
  """Options of decoding.

  Attributes:
    max_length: maximum number of tokens, including EOS.
    beam_size: beam size. 1 is greedy decoding.
    length_penalty: see `attention.decoding.beam_search`.
    n_best: number of translations per sentence, at most beam_size. Sampling returns one.
    temperature: sampling temperature, see `attention.decoding.sample`. 0 disables sampling.
    top_k: sample from the k most probable tokens. 0 means all.
    top_p: sample from the most probable tokens whose probabilities sum to p. 1 means all.
    seed: random seed for sampling.
    allow_eos: allow EOS. Otherwise all translations have the maximum length.
  """

  max_length: int
  beam_size: int = 1
  length_penalty: float = 1.0
  n_best: int = 1
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0
  allow_eos: bool = True


@functools.partial(jax.jit, static_argnames=("model", "decode_options", "with_weights"))
def decode(
  params: Any,
  sources: jax.Array,
  source_lengths: jax.Array,
  example_ids: jax.Array,
  seed: jax.Array,
  *,
  model: attention.Seq2Seq | attention.Ensemble,
  decode_options: DecodeOptions,
  with_weights: bool,
  banned_ids: tuple[int, ...],
) -> SearchResult:
  """Returns the n best translations of each sentence of a batch, fields [B N ...].

  Args:
    params: parameters of the model.
    sources: source tokens, [B S].
    source_lengths: [B].
    example_ids: ids of the sentences, uint32 [B]. Together with `seed` they determine the samples.
    seed: random seed for sampling, uint32.
    model: the model.
    decode_options: options of decoding. Its seed is not used.
    with_weights: also return the attention weights, float32 [B N T S].
    banned_ids: token ids that are never generated.
  """
  variables = {"params": params}
  state, memory = model.apply(variables, sources, source_lengths, decode_options.max_length, method="encode")

  def step(state: Any, tokens: jax.Array) -> Any:
    outputs: Any = model.apply(variables, state, tokens, memory, method="step")
    state, logits, weights = outputs
    logits = logits.at[:, jnp.array(banned_ids)].set(-jnp.inf)
    return state, logits, _float32(weights) if with_weights else None

  arguments: Any = {"batch_size": sources.shape[0], "max_length": decode_options.max_length}
  arguments |= {"bos_id": BOS_ID, "eos_id": EOS_ID, "pad_id": PAD_ID}
  if decode_options.temperature:
    options: Any = {
      "temperature": decode_options.temperature,
      "top_k": decode_options.top_k or None,
      "top_p": decode_options.top_p,
    }
    rngs = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), example_ids)
    result = sample(step, state, rngs, **arguments, **options)
  elif decode_options.beam_size > 1:
    options = {"beam_size": decode_options.beam_size, "length_penalty": decode_options.length_penalty}
    return beam_search(step, state, **arguments, **options, n_best=decode_options.n_best)
  else:
    result = greedy(step, state, **arguments)
  return jax.tree.map(lambda array: array[:, None], result)


@functools.partial(jax.jit, static_argnames=("model", "banned_ids", "with_weights"))
def score(
  params: Any, batch: Batch, *, model: attention.Seq2Seq, banned_ids: tuple[int, ...], with_weights: bool
) -> tuple[jax.Array, jax.Array | None]:
  """Returns the summed loss of each sentence [B], and the attention weights [B T S] or None."""
  features: Any = model.apply(
    {"params": params}, batch.sources, batch.source_lengths, batch.inputs, method="output_features"
  )
  B, T = batch.targets.shape
  vectors, targets = features.vectors.reshape(B * T, -1), jnp.reshape(batch.targets, -1)
  bias = features.bias.at[jnp.array(banned_ids)].set(_BANNED_LOGIT)
  losses = linear_losses(vectors, features.kernel, bias, targets, PAD_ID)
  return jnp.sum(losses.reshape(B, T), axis=-1), _float32(features.weights) if with_weights else None


@functools.partial(jax.jit, static_argnames="model")
def attention_weights(params: Any, batch: Batch, *, model: attention.Seq2Seq) -> Any:
  """Returns the attention weights of each layer and head."""
  arguments = batch.sources, batch.source_lengths, batch.inputs
  return _float32(model.apply({"params": params}, *arguments, method="attention_weights"))


def _float32(tree: Any) -> Any:
  """Converts arrays to float32."""
  return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
