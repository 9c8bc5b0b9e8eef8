"""Lesson 1: multi-head attention, computed head by head and with stacked heads.

References:
  Devlin et al. 2019, arXiv:1810.04805, section 3.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import attention
from experiments.introduction.printing import formulas, title


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """Sizes of multi-head attention. The defaults are those of BERT base.

  Attributes:
    hidden_size: model width D.
    num_attention_heads: number of heads N.

  Raises:
    ValueError: if hidden_size is not a multiple of num_attention_heads.

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
  """Self-attention with one head, [... T D] -> [... T H]."""

  width: int

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    # Zero biases would hide an error in stacking them.
    dense = functools.partial(nn.Dense, self.width, bias_init=nn.initializers.normal(0.1))
    queries, keys, values = (dense(name=name)(inputs) for name in ("query", "key", "value"))
    return attention.scaled_dot_product_attention(queries, keys, values)


class ConcatenatedHeads(nn.Module):
  """Multi-head self-attention computed head by head, [... T D] -> [... T D]."""

  config: HeadsConfig

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    config = self.config
    names = [f"head_{n}" for n in range(config.num_attention_heads)]
    heads = [AttentionHead(config.head_width, name=name)(inputs) for name in names]
    return nn.Dense(config.hidden_size, name="output")(jnp.concatenate(heads, axis=-1))


def heads_from_config(rng: jax.Array, config: HeadsConfig, length: int) -> dict[str, Any]:
  """Computes self-attention of one sentence, head by head and with stacked heads.

  Args:
    rng: PRNG key for inputs and parameters.
    config: sizes.
    length: number of words T. Words are random vectors.

  Returns:
    A dict of inputs [B T D], params of `ConcatenatedHeads`, one_by_one [B T D], and stacked [B T D], which
    are equal up to rounding.

  >>> bert = functools.partial(heads_from_config, config=HeadsConfig(), length=5)
  >>> jax.eval_shape(bert, jax.random.key(0))["stacked"].shape
  (1, 5, 768)
  """
  inputs_rng, params_rng = jax.random.split(rng)
  inputs = jax.random.normal(inputs_rng, (1, length, config.hidden_size))
  one_by_one, variables = ConcatenatedHeads(config).init_with_output(params_rng, inputs)
  stacked = attention.multi_head_attention(inputs, inputs, stack_heads(variables["params"], config))
  return {"inputs": inputs, "params": variables["params"], "one_by_one": one_by_one, "stacked": stacked}


def stack_heads(params: dict[str, Any], config: HeadsConfig) -> attention.MultiHeadWeights:
  """Returns the parameters of `ConcatenatedHeads` as `attention.MultiHeadWeights`.

  Kernels [D H] become [D N H], biases [H] become [N H], and the output kernel [D D] becomes [N H D].
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


def lesson(rng: jax.Array, folder: pathlib.Path) -> Iterator[str]:
  """Yields the lines of the lesson."""
  del folder
  text, config = "time flies like an arrow", HeadsConfig()
  run = jax.jit(heads_from_config, static_argnums=(1, 2))(rng, config, len(text.split()))
  yield title("1. Multi-head attention adds one axis")
  yield "The hidden size and the number of heads determine the width of a head."
  yield formulas("head_n = softmax(x W_Q[n] (x W_K[n])^T / sqrt(H)) x W_V[n],  H = D / N")
  yield f"D = {config.hidden_size}, N = {config.num_attention_heads}: H = {config.head_width}"
  yield f'"{text}", a random vector for each word: {run["inputs"].shape}'
  yield f"head by head, concatenated, projected: {run['one_by_one'].shape}"
  yield f"stacked heads, in one call:            {run['stacked'].shape}"
  yield f"largest difference: {np.abs(run['one_by_one'] - run['stacked']).max():.0e}"
