"""Lesson 0: self-attention of five words, with one head and with four heads.

References:
  Vaswani et al. 2017, arXiv:1706.03762, sections 3.2.1 and 3.2.2.
"""

import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import linen as nn

import attention
from experiments.introduction.printing import array, formulas, heat_map, title

WORDS = ("the", "cat", "sees", "a", "bird")
TOKENS = (2, 6, 8, 3, 1)

# A variance of 1 / D keeps scores small, so that no weight is close to 1.
kernel_init = nn.initializers.lecun_normal()
stacked_kernel_init = nn.initializers.lecun_normal(batch_axis=0)


def one_head(rng: jax.Array) -> dict[str, jax.Array]:
  """Computes self-attention of five words, with one head of the width of the embedding.

      q_i = x_i W_Q,  k_i = x_i W_K,  v_i = x_i W_V
      a_ij = softmax(q_i . k_j / sqrt(H), over j)
      z_1 = a_11 v_1 + a_12 v_2 + ... + a_15 v_5

  Returns:
    A dict of embedding [V D], inputs [T D], query_kernel, key_kernel and value_kernel [D H], queries [T H],
    keys and values [S H], weights [T S], context [T H], and z_1 [H], the first row of the context.

  >>> jax.eval_shape(one_head, jax.random.key(0))["weights"].shape
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
  return {
    "embedding": embedding,
    "inputs": inputs,
    "query_kernel": query_kernel,
    "key_kernel": key_kernel,
    "value_kernel": value_kernel,
    "queries": queries,
    "keys": keys,
    "values": values,
    "weights": attended.weights,
    "context": attended.context,
    "z_1": jnp.einsum("S,SH->H", attended.weights[0], values),
  }


def four_heads(rng: jax.Array, inputs: jax.Array) -> dict[str, jax.Array]:
  """Computes self-attention with four heads, combined by W_O.

      head_n = softmax(x W_Q[n] (x W_K[n])^T / sqrt(H)) x W_V[n]
      result = [head_1 ... head_4] W_O = sum over n of head_n W_O[n]

  Args:
    rng: PRNG key for the kernels.
    inputs: [T D]. D is a multiple of 4.

  Returns:
    A dict of query_kernel, key_kernel and value_kernel [N D H], output_kernel [D D], weights [N T S],
    contexts [N T H], concatenated [T D], and result [T D].

  >>> jax.eval_shape(four_heads, jax.random.key(0), jnp.ones((5, 16)))["contexts"].shape
  (4, 5, 4)
  """
  N, D = 4, inputs.shape[-1]
  H = D // N
  query_rng, key_rng, value_rng, output_rng = jax.random.split(rng, 4)
  query_kernel = stacked_kernel_init(query_rng, (N, D, H))
  key_kernel = stacked_kernel_init(key_rng, (N, D, H))
  value_kernel = stacked_kernel_init(value_rng, (N, D, H))
  output_kernel = kernel_init(output_rng, (D, D))
  attended = attention.scaled_dot_product_attention(
    jnp.einsum("TD,NDH->NTH", inputs, query_kernel),
    jnp.einsum("SD,NDH->NSH", inputs, key_kernel),
    jnp.einsum("SD,NDH->NSH", inputs, value_kernel),
    return_weights=True,
  )
  return {
    "query_kernel": query_kernel,
    "key_kernel": key_kernel,
    "value_kernel": value_kernel,
    "output_kernel": output_kernel,
    "weights": attended.weights,
    "contexts": attended.context,
    "concatenated": jnp.concatenate([*attended.context], axis=-1),
    "result": jnp.einsum("NTH,NHD->TD", attended.context, output_kernel.reshape(N, H, D)),
  }


def lesson(rng: jax.Array, folder: pathlib.Path) -> Iterator[str]:
  """Yields the lines of the lesson, and writes a heatmap."""
  head_rng, heads_rng = jax.random.split(rng)
  one = jax.jit(one_head)(head_rng)
  yield title("0. Each word attends to all words")
  yield "The query of a word is compared with the keys of all words. The weights average the values."
  yield formulas("a_1j = softmax(q_1 . k_j / sqrt(16), over j)", "z_1 = a_11 v_1 + ... + a_15 v_5")
  yield f'"{" ".join(WORDS)}" is {list(TOKENS)}; embedded: {one["inputs"].shape}'
  yield array("query of token 1", one["queries"][0])
  yield array("key of token 1", one["keys"][0])
  yield array("value of token 1", one["values"][0])
  yield "weights of token 1:"
  weights = one["weights"][0]
  yield from (f"  {a:.3f}  {word}" for a, word in zip(weights, WORDS, strict=True))
  terms = " + ".join(f"{a:.3f} v_{j}" for j, a in enumerate(weights, 1))
  yield array(f"z_1 = {terms}", one["z_1"])
  yield heat_map(folder / "self_attention.png", one["weights"], WORDS, WORDS)

  four = jax.jit(four_heads)(heads_rng, one["inputs"])
  yield ""
  yield "Four heads attend in parallel, each with its weights. W_O combines them."
  yield formulas("result = [head_1 head_2 head_3 head_4] W_O")
  yield f"stacked query kernels [N D H]: {four['query_kernel'].shape}"
  yield f"weights of the heads:          {four['weights'].shape}"
  yield f"contexts of the heads:         {four['contexts'].shape}"
  yield f"concatenated:                  {four['concatenated'].shape}"
  yield f"times W_O:                     {four['result'].shape}"
  yield array("result for token 1", four["result"][0])
