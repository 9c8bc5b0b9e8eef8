"""Lesson 4: the parts of a translator, with realistic sizes.

References:
  Vaswani et al. 2017, arXiv:1706.03762, section 3.1; Bahdanau et al. 2015, arXiv:1409.0473, A.1.2 and A.2.2.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import attention
from experiments.introduction.printing import formulas, title


def encoder_layer(rng: jax.Array) -> dict[str, Any]:
  """Runs one encoder layer of the original Transformer (post-norm) on inputs [32 50 256].

      y = norm(x + multi_head_attention(x))
      z = norm(y + W_2 relu(W_1 y))

  >>> jax.eval_shape(encoder_layer, jax.random.key(0))["outputs"].shape
  (32, 50, 256)
  """
  inputs_rng, params_rng = jax.random.split(rng)
  inputs = jax.random.normal(inputs_rng, (32, 50, 256))
  layer = attention.EncoderLayer(num_heads=8, mlp_dim=1024, norm_position="post")
  outputs, variables = layer.init_with_output(params_rng, inputs)
  return {"inputs": inputs, "params": variables["params"], "outputs": outputs}


def decoder_step(rng: jax.Array) -> dict[str, Any]:
  """Runs one step of a GRU decoder with additive attention to 50 memory vectors and 10,000 words.

      a_j = softmax(v_a . tanh(W_a state + U_a memory_j), over j)
      context = a_1 memory_1 + ... + a_50 memory_50
      state = GRU(state, [embedding of the previous word; context])

  Returns:
    A dict of memory [B S D], final_state [B D], tokens [B] (the previous words), params, logits [B V],
    state [B H] after the step, and weights [B S].

  >>> jax.eval_shape(decoder_step, jax.random.key(0))["weights"].shape
  (32, 50)
  """
  B, S, D, V = 32, 50, 512, 10_000
  memory_rng, final_state_rng, tokens_rng, params_rng = jax.random.split(rng, 4)
  memory = jax.random.normal(memory_rng, (B, S, D))
  final_state = jax.random.normal(final_state_rng, (B, D))
  tokens = jax.random.randint(tokens_rng, (B,), 0, V)
  decoder = attention.RecurrentDecoder(vocabulary_size=V, embed_dim=256, features=512)
  (state, logits, weights), variables = decoder.init_with_output(
    params_rng, attention.Encoded(memory, final_state), tokens, method=_first_step
  )
  return {
    "memory": memory,
    "final_state": final_state,
    "tokens": tokens,
    "params": variables["params"],
    "logits": logits,
    "state": state.layers[0],
    "weights": weights,
  }


def _first_step(decoder: attention.RecurrentDecoder, encoded: attention.Encoded, tokens: jax.Array):
  """Initializes the decoder on sources without padding, and runs one step."""
  B, S, _ = encoded.memory.shape
  state, memory = decoder.prepare(encoded, jnp.full(B, S))
  return decoder.step(state, tokens, memory)


def eight_heads(rng: jax.Array) -> dict[str, Any]:
  """Runs self-attention with 8 heads on inputs [32 50 256].

  >>> jax.eval_shape(eight_heads, jax.random.key(0))["outputs"].shape
  (32, 50, 256)
  """
  inputs_rng, params_rng = jax.random.split(rng)
  inputs = jax.random.normal(inputs_rng, (32, 50, 256))
  layer = attention.MultiHeadAttention(num_heads=8, qkv_features=256)
  outputs, variables = layer.init_with_output(params_rng, inputs)
  return {"inputs": inputs, "params": variables["params"], "outputs": outputs}


def lesson(rng: jax.Array, folder: pathlib.Path) -> Iterator[str]:
  """Yields the lines of the lesson."""
  del folder
  encoder_rng, decoder_rng, heads_rng = jax.random.split(rng, 3)
  encoder = jax.jit(encoder_layer)(encoder_rng)
  step = jax.jit(decoder_step)(decoder_rng)
  heads = jax.jit(eight_heads)(heads_rng)
  yield title("4. The parts of a translator")
  yield "An encoder layer: self-attention, then a feed-forward network at each position."
  yield formulas("y = norm(x + multi_head_attention(x))", "z = norm(y + W_2 relu(W_1 y))")
  yield f"{encoder['inputs'].shape} -> {encoder['outputs'].shape}"
  yield ""
  yield "A decoder step: additive attention with the state as query, a GRU, and logits of the next word."
  yield formulas(
    "a_j = softmax(v_a . tanh(W_a state + U_a memory_j), over j)",
    "state = GRU(state, [previous word; a_1 memory_1 + ... + a_50 memory_50])",
  )
  logits = step["logits"]
  yield f"memory {step['memory'].shape}, vocabulary {logits.shape[-1]}"
  yield f"-> logits {logits.shape}, state {step['state'].shape}, weights {step['weights'].shape}"
  yield ""
  yield f"Multi-head attention alone, 8 heads: {heads['inputs'].shape} -> {heads['outputs'].shape}"
