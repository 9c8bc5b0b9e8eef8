"""The systems of the five introductory texts, each a short function; `lessons` shows them.

Every function draws its inputs and parameters from `rng`, and returns them with what it computed,
so that a reader can follow each number. Nothing here is trained: the numbers are random, how they
hang together is not.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

import attention

WORDS = ("my", "name", "is", "marcello", "politi")
TOKENS = (2, 6, 8, 3, 1)
CONCEPTS = ("cat", "dog", "bird")

# A variance of 1 / D keeps scores near 1, so that no weight takes all.
kernel_init = nn.initializers.lecun_normal()
stacked_kernel_init = nn.initializers.lecun_normal(batch_axis=0)

# Text 0: one head on five words, then four.


class OneHead(NamedTuple):
  """What `one_head` returns.

  Attributes:
    embedding: a vector for each word of the vocabulary, [V D].
    inputs: the five words' vectors, [T D].
    query_kernel: W_Q [D H], H = D; likewise the key's and the value's.
    queries: [T H]; likewise keys and values [S H].
    weights: how much each word attends to each, [T S].
    context: [T H].
    z_1: the first word's row of the context, summed from the weights and values, [H].
  """

  embedding: jax.Array
  inputs: jax.Array
  query_kernel: jax.Array
  key_kernel: jax.Array
  value_kernel: jax.Array
  queries: jax.Array
  keys: jax.Array
  values: jax.Array
  weights: jax.Array
  context: jax.Array
  z_1: jax.Array


def one_head(rng: jax.Array) -> OneHead:
  """Lets each of five words attend to all five, with one head as wide as the embedding.

      q_i = x_i W_Q,  k_i = x_i W_K,  v_i = x_i W_V
      a_ij = softmax(q_i . k_j / sqrt(H), over j)
      z_1 = a_11 v_1 + a_12 v_2 + ... + a_15 v_5

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.

  >>> jax.eval_shape(one_head, jax.random.key(0)).weights.shape
  (5, 5)
  """
  V, D = 10, 16
  embedding_rng, query_rng, key_rng, value_rng = jax.random.split(rng, 4)
  embedding = jax.random.normal(embedding_rng, (V, D))
  inputs = embedding[jnp.array(TOKENS)]
  query_kernel = kernel_init(query_rng, (D, D))
  key_kernel = kernel_init(key_rng, (D, D))
  value_kernel = kernel_init(value_rng, (D, D))
  queries = jnp.einsum("TD,DH->TH", inputs, query_kernel)
  keys = jnp.einsum("SD,DH->SH", inputs, key_kernel)
  values = jnp.einsum("SD,DH->SH", inputs, value_kernel)
  attended = attention.scaled_dot_product_attention(queries, keys, values, return_weights=True)
  context, weights = attended.context, attended.weights
  z_1 = jnp.einsum("S,SH->H", weights[0], values)
  kernels = query_kernel, key_kernel, value_kernel
  return OneHead(embedding, inputs, *kernels, queries, keys, values, weights, context, z_1)


class FourHeads(NamedTuple):
  """What `four_heads` returns.

  Attributes:
    query_kernel: one [D H] for each head, [N D H]; likewise the key's and the value's.
    output_kernel: W_O, [D D].
    weights: [N T S].
    contexts: [N T H].
    concatenated: the contexts side by side, [T D], D = N H.
    result: [T D].
  """

  query_kernel: jax.Array
  key_kernel: jax.Array
  value_kernel: jax.Array
  output_kernel: jax.Array
  weights: jax.Array
  contexts: jax.Array
  concatenated: jax.Array
  result: jax.Array


def four_heads(rng: jax.Array, inputs: jax.Array) -> FourHeads:
  """Lets four narrow heads look at the same words at once, and mixes what they find.

      head_n = softmax(x W_Q[n] (x W_K[n])^T / sqrt(H)) x W_V[n]
      result = [head_1 ... head_4] W_O = sum over n of head_n W_O[n]

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.

  Args:
    rng: for the kernels.
    inputs: [T D], D a multiple of 4.

  >>> jax.eval_shape(four_heads, jax.random.key(0), jnp.ones((5, 16))).contexts.shape
  (4, 5, 4)
  """
  N, D = 4, inputs.shape[-1]
  H = D // N
  query_rng, key_rng, value_rng, output_rng = jax.random.split(rng, 4)
  query_kernel = stacked_kernel_init(query_rng, (N, D, H))
  key_kernel = stacked_kernel_init(key_rng, (N, D, H))
  value_kernel = stacked_kernel_init(value_rng, (N, D, H))
  output_kernel = kernel_init(output_rng, (D, D))
  contexts_NTH, weights, _ = attention.scaled_dot_product_attention(
    jnp.einsum("TD,NDH->NTH", inputs, query_kernel),
    jnp.einsum("SD,NDH->NSH", inputs, key_kernel),
    jnp.einsum("SD,NDH->NSH", inputs, value_kernel),
    return_weights=True,
  )
  concatenated = jnp.concatenate([*contexts_NTH], axis=-1)
  result = jnp.einsum("NTH,NHD->TD", contexts_NTH, output_kernel.reshape(N, H, D))
  kernels = query_kernel, key_kernel, value_kernel, output_kernel
  return FourHeads(*kernels, weights, contexts_NTH, concatenated, result)


# Text 1: as many heads as a config says, one by one and stacked.


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """The two sizes that fix a model's heads, by default those of BERT base.

  Source: Devlin et al. 2019, arXiv:1810.04805, section 3.

  Attributes:
    hidden_size: D.
    num_attention_heads: N.

  Raises:
    ValueError: if hidden_size is no multiple of num_attention_heads.

  >>> HeadsConfig().head_width
  64
  """

  hidden_size: int = 768
  num_attention_heads: int = 12

  def __post_init__(self):
    if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
      raise ValueError(
        "hidden_size must be a multiple of num_attention_heads, got "
        f"hidden_size={self.hidden_size}, num_attention_heads={self.num_attention_heads}"
      )

  @property
  def head_width(self) -> int:
    return self.hidden_size // self.num_attention_heads


class AttentionHead(nn.Module):
  """One head: its own queries, keys and values, then attention: [... T D] -> [... T H]."""

  width: int

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    # Biases that start at zero would hide a mistake in how they are stacked.
    bias_init = nn.initializers.normal(0.1)
    queries = nn.Dense(self.width, bias_init=bias_init, name="query")(inputs)
    keys = nn.Dense(self.width, bias_init=bias_init, name="key")(inputs)
    values = nn.Dense(self.width, bias_init=bias_init, name="value")(inputs)
    return attention.scaled_dot_product_attention(queries, keys, values)


class ConcatenatedHeads(nn.Module):
  """Multi-head attention head by head: [... T D] -> [... T D]."""

  config: HeadsConfig

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    config = self.config
    names = [f"head_{n}" for n in range(config.num_attention_heads)]
    heads = [AttentionHead(config.head_width, name=name)(inputs) for name in names]
    return nn.Dense(config.hidden_size, name="output")(jnp.concatenate(heads, axis=-1))


class HeadsFromConfig(NamedTuple):
  """What `heads_from_config` returns.

  Attributes:
    inputs: [B T D].
    params: of `ConcatenatedHeads`.
    one_by_one: the heads concatenated and projected, [B T D].
    stacked: the same from one call of `multi_head_attention`, [B T D].
  """

  inputs: jax.Array
  params: dict[str, Any]
  one_by_one: jax.Array
  stacked: jax.Array


def heads_from_config(rng: jax.Array, config: HeadsConfig, length: int) -> HeadsFromConfig:
  """Lets a sentence attend to itself twice: head by head, and with all heads stacked in one call.

  Args:
    rng: for inputs and parameters.
    config: the sizes.
    length: T; each word gets a random vector.

  >>> bert = functools.partial(heads_from_config, config=HeadsConfig(), length=5)
  >>> jax.eval_shape(bert, jax.random.key(0)).stacked.shape
  (1, 5, 768)
  """
  inputs_rng, params_rng = jax.random.split(rng)
  inputs = jax.random.normal(inputs_rng, (1, length, config.hidden_size))
  one_by_one, variables = ConcatenatedHeads(config).init_with_output(params_rng, inputs)
  weights = stack_heads(variables["params"], config)
  stacked = attention.multi_head_attention(inputs, inputs, weights)
  return HeadsFromConfig(inputs, variables["params"], one_by_one, stacked)


def stack_heads(params: dict[str, Any], config: HeadsConfig) -> attention.MultiHeadWeights:
  """Returns the parameters of `ConcatenatedHeads` as the library takes them.

  Kernels [D H] become [D N H], biases [H] become [N H], the output's kernel [D D] becomes [N H D].
  """
  N, H = config.num_attention_heads, config.head_width
  heads = [params[f"head_{n}"] for n in range(N)]
  stacked = jax.tree.map(lambda *parts: jnp.stack(parts, axis=-2), *heads)
  return attention.MultiHeadWeights(
    query=stacked["query"]["kernel"],
    key=stacked["key"]["kernel"],
    value=stacked["value"]["kernel"],
    output=params["output"]["kernel"].reshape(N, H, config.hidden_size),
    query_bias=stacked["query"]["bias"],
    key_bias=stacked["key"]["bias"],
    value_bias=stacked["value"]["bias"],
    output_bias=params["output"]["bias"],
  )


# Text 2: a soft look-up, and a block that keeps the shape.


def soft_look_up(query: list[float]) -> tuple[jax.Array, jax.Array]:
  """Looks a query up among cat, dog and bird, each the key and the value of its own axis.

      weights = softmax(query . keys), not scaled
      found = weights . values

  Args:
    query: three numbers, how much cat, dog and bird is looked for.

  Returns:
    What was found [1 3], and the weights [1 3].

  >>> found, weights = soft_look_up([1.0, 10.0, 1.0])
  >>> weights.round(2).tolist()
  [[0.0, 1.0, 0.0]]
  """
  concepts = jnp.eye(len(CONCEPTS))
  found, weights, _ = attention.scaled_dot_product_attention(
    jnp.array([query]), concepts, concepts, scale=1.0, return_weights=True
  )
  return found, weights


class LayerRun(NamedTuple):
  """One call of a layer.

  Attributes:
    inputs: the queries, [B T D].
    sources: what they attend to, [B S D]; the inputs themselves for self-attention.
    params: of the layer.
    outputs: [B T D].
  """

  inputs: jax.Array
  sources: jax.Array
  params: dict[str, Any]
  outputs: jax.Array


def same_shape(rng: jax.Array) -> LayerRun:
  """Runs 4 heads of width 8 on [4 10 32]; the result has the shape of the queries.

  >>> jax.eval_shape(same_shape, jax.random.key(0)).outputs.shape
  (4, 10, 32)
  """
  inputs_rng, sources_rng, params_rng = jax.random.split(rng, 3)
  inputs = jax.random.normal(inputs_rng, (4, 10, 32))
  sources = jax.random.normal(sources_rng, (4, 10, 32))
  layer = attention.MultiHeadAttention(num_heads=4, width=32)
  outputs, variables = layer.init_with_output(params_rng, inputs, sources)
  return LayerRun(inputs, sources, variables["params"], outputs)


# Text 3: keys and values of different widths, and a mask.


class MaskedAttention(NamedTuple):
  """What `masked_attention` returns.

  Attributes:
    queries: [B T H].
    keys: [B S H].
    values: [B S D].
    mask: True where a query may attend, [B 1 S].
    context: without the mask, [B T D].
    weights: without the mask, [B T S].
    masked_context: [B T D].
    masked_weights: [B T S].
  """

  queries: jax.Array
  keys: jax.Array
  values: jax.Array
  mask: jax.Array
  context: jax.Array
  weights: jax.Array
  masked_context: jax.Array
  masked_weights: jax.Array


def masked_attention(rng: jax.Array) -> MaskedAttention:
  """Lets 3 queries attend to 4 keys of width 8 with values of width 16; then hides the last key.

      context = softmax(Q K^T / sqrt(8), over the keys that the mask allows) V

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1; the mask: 3.2.3.

  >>> jax.eval_shape(masked_attention, jax.random.key(0)).context.shape
  (1, 3, 16)
  """
  B, T, S, H, D = 1, 3, 4, 8, 16
  queries_rng, keys_rng, values_rng = jax.random.split(rng, 3)
  queries = jax.random.normal(queries_rng, (B, T, H))
  keys = jax.random.normal(keys_rng, (B, S, H))
  values = jax.random.normal(values_rng, (B, S, D))
  mask = jnp.array([[[True, True, True, False]]])
  attend = functools.partial(attention.scaled_dot_product_attention, return_weights=True)
  context, weights, _ = attend(queries, keys, values)
  masked_context, masked_weights, _ = attend(queries, keys, values, mask=mask)
  inputs = queries, keys, values, mask
  return MaskedAttention(*inputs, context, weights, masked_context, masked_weights)


# Text 4: the parts of translators, at the sizes of real ones.


def encoder_layer(rng: jax.Array) -> LayerRun:
  """Runs one layer of the transformer's encoder as first published, norms last, on [32 50 256].

      y = norm(x + multi_head_attention(x))
      z = norm(y + W_2 relu(W_1 y))

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.

  >>> jax.eval_shape(encoder_layer, jax.random.key(0)).outputs.shape
  (32, 50, 256)
  """
  inputs_rng, params_rng = jax.random.split(rng)
  inputs = jax.random.normal(inputs_rng, (32, 50, 256))
  layer = attention.EncoderLayer(num_heads=8, feed_forward_width=1024, norm="post")
  outputs, variables = layer.init_with_output(params_rng, inputs)
  return LayerRun(inputs, inputs, variables["params"], outputs)


class DecoderStep(NamedTuple):
  """What `decoder_step` returns.

  Attributes:
    memory: [B S D].
    summary: the encoder's summary, [B D].
    tokens: the words before, [B].
    params: of `attention.RecurrentDecoder`.
    logits: [B V].
    state: after the step, [B H].
    weights: [B S].
  """

  memory: jax.Array
  summary: jax.Array
  tokens: jax.Array
  params: dict[str, Any]
  logits: jax.Array
  state: jax.Array
  weights: jax.Array


def decoder_step(rng: jax.Array) -> DecoderStep:
  """Lets a GRU decoder look at 50 memory vectors by additive attention, and say one word of 10,000.

      a_j = softmax(v_a . tanh(W_a state + U_a memory_j), over j)
      context = a_1 memory_1 + ... + a_50 memory_50
      state = GRU(state, [embedding of the word before; context])

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.1.2 and A.2.2.

  >>> jax.eval_shape(decoder_step, jax.random.key(0)).weights.shape
  (32, 50)
  """
  B, S, D, V = 32, 50, 512, 10_000
  memory_rng, summary_rng, tokens_rng, params_rng = jax.random.split(rng, 4)
  memory = jax.random.normal(memory_rng, (B, S, D))
  summary = jax.random.normal(summary_rng, (B, D))
  tokens = jax.random.randint(tokens_rng, (B,), 0, V)
  decoder = attention.RecurrentDecoder(vocabulary_size=V, embedding_width=256, width=512)
  (state, logits, weights), variables = decoder.init_with_output(
    params_rng, attention.Encoded(memory, summary), tokens, method=_first_step
  )
  return DecoderStep(memory, summary, tokens, variables["params"], logits, state.layers[0], weights)


def _first_step(decoder: attention.RecurrentDecoder, encoded: attention.Encoded, tokens: jax.Array):
  """Starts the decoder on sources without padding and takes one step."""
  B, S, _ = encoded.memory.shape
  state, memory = decoder.prepare(encoded, jnp.full(B, S))
  return decoder.step(state, tokens, memory)


def eight_heads(rng: jax.Array) -> LayerRun:
  """Runs 8 heads of self-attention on [32 50 256].

  >>> jax.eval_shape(eight_heads, jax.random.key(0)).outputs.shape
  (32, 50, 256)
  """
  inputs_rng, params_rng = jax.random.split(rng)
  inputs = jax.random.normal(inputs_rng, (32, 50, 256))
  layer = attention.MultiHeadAttention(num_heads=8, width=256)
  outputs, variables = layer.init_with_output(params_rng, inputs)
  return LayerRun(inputs, inputs, variables["params"], outputs)
