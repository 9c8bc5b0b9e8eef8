"""Lesson 3: values that are wider than keys, and a mask.

References:
  Vaswani et al. 2017, arXiv:1706.03762, sections 3.2.1 and 3.2.3.
"""

import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import attention
from experiments.introduction.printing import array, formulas, heat_map, title


def masked_attention(rng: jax.Array) -> dict[str, jax.Array]:
  """Computes attention of 3 queries to 4 keys, with and without a mask of the last key.

      context = softmax(Q K^T / sqrt(8), over the keys that the mask allows) V

  Returns:
    A dict of queries [B T H], keys [B S H], values [B S D], mask [B 1 S], context and masked_context [B T D],
    weights and masked_weights [B T S].

  >>> jax.eval_shape(masked_attention, jax.random.key(0))["context"].shape
  (1, 3, 16)
  """
  B, T, S, H, D = 1, 3, 4, 8, 16
  queries_rng, keys_rng, values_rng = jax.random.split(rng, 3)
  queries = jax.random.normal(queries_rng, (B, T, H))
  keys = jax.random.normal(keys_rng, (B, S, H))
  values = jax.random.normal(values_rng, (B, S, D))
  mask = jnp.array([[[True, True, True, False]]])
  full, masked = (
    attention.scaled_dot_product_attention(queries, keys, values, mask=mask, return_weights=True)
    for mask in (None, mask)
  )
  return {
    "queries": queries,
    "keys": keys,
    "values": values,
    "mask": mask,
    "context": full.context,
    "weights": full.weights,
    "masked_context": masked.context,
    "masked_weights": masked.weights,
  }


def lesson(rng: jax.Array, folder: pathlib.Path) -> Iterator[str]:
  """Yields the lines of the lesson, and writes two heatmaps."""
  run = jax.jit(masked_attention)(rng)
  labels = [f"key {s}" for s in range(4)], [f"query {t}" for t in range(3)]
  yield title("3. Masked keys")
  yield "Keys have width 8, values width 16. The weight of a masked key is distributed over the other keys."
  yield formulas("context = softmax(Q K^T / sqrt(d_k), over the keys that the mask allows) V")
  for name, prefix in (("no mask", ""), ("last key masked", "masked_")):
    context, weights = run[f"{prefix}context"], run[f"{prefix}weights"]
    yield array(f"{name}: context {context.shape}, weights {weights.shape}", weights[0])
    yield f"row sums: {np.round(weights[0].sum(axis=-1), 6)}"
    yield heat_map(folder / f"{name.replace(' ', '_')}.png", weights[0], *labels)
  yield f"mask {run['mask'].shape}: {run['mask']}"
