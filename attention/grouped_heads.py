"""Grouped-query attention: N query heads share K key and value heads."""

import functools
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_array, check_rank, check_vectors
from attention.arrays.eager_jit import eager_jit
from attention.arrays.named_axes import leaf_axes
from attention.arrays.shapes import LAYOUT
from attention.engines.component_checks import at_one_index, check_components, scores_shape
from attention.engines.dense import AttentionOutput
from attention.engines.inputs import Options, Settings
from attention.functional import attend_checked
from attention.scores.base import Score
from attention.scores.dot_product import ScaledDotProduct
from attention.validation import AttendOptions, check_names, check_options


def attend_heads(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  score: Score | None = None,
  **options: Unpack[AttendOptions],
) -> Any:
  """Computes `attend` with N query heads and K key and value heads, where K divides N.

  Query head n attends to key head n // (N / K). Keys and values are shared by the heads of a group, and not
  copied.

  Args:
    queries: [... N T H].
    keys: [... K S H].
    values: [... K S D].
    score: the score function. Default: `ScaledDotProduct()`. Scores, masks and biases have N heads or 1.
    **options: those of `attend`: mask, bias, dropout_rate, dropout_rng, normalizer, return_weights,
      return_logsumexp, implementation, block_sizes.

  Returns:
    The context [... N T D], or an `AttentionOutput`, as in `attend`.

  Raises:
    ValueError: if K does not divide N; see also `attend`.

  References:
    Ainslie et al. 2023, arXiv:2305.13245.
  """
  check_names("attend_heads", options)
  checked, settings = check_options(ScaledDotProduct() if score is None else score, **options)
  queries, keys, values = map(as_array, ("queries", "keys", "values"), (queries, keys, values))
  return settings.select_output(attend_heads_checked(queries, keys, values, checked, settings=settings))


@functools.partial(eager_jit, static_argnames=("settings",))
def attend_heads_checked(
  queries: jax.Array, keys: jax.Array, values: jax.Array, options: Options, *, settings: Settings
) -> AttentionOutput:
  """Computes `attend_heads` from validated options."""
  for name, array in (("queries", queries), ("keys", keys), ("values", values)):
    check_rank(name, array, "[... N T H]")
  check_vectors(queries=queries, keys=keys, values=values)
  N, K = queries.shape[-3], keys.shape[-3]
  if K == 0 or N % K or values.shape[-3] != K:
    hint = f"; {LAYOUT}" if queries.shape[-2] == keys.shape[-2] else ""
    raise ValueError(
      "the number of query heads must be a multiple of the number of key heads, and keys and values must "
      f"have the same number of heads, got queries {N}, keys {K}, values {values.shape[-3]}{hint}"
    )
  if K == N:
    return attend_checked(queries, keys, values, options, settings=settings)
  try:
    leading = jnp.broadcast_shapes(*(array.shape[:-3] for array in (queries, keys, values)))
  except ValueError:
    raise ValueError(
      "leading axes of queries, keys and values must broadcast, got shapes "
      f"{queries.shape}, {keys.shape}, {values.shape}"
    ) from None
  # Each group of query heads is an axis of its own, [... K G T H], over which keys and values broadcast.
  shape = scores_shape(options.score, (*leading, N), queries.shape[-2], keys.shape[-2])
  check_components(options, shape)
  options = at_one_index(options, shape)
  heads = _Heads(N, K)
  queries, keys, values = heads.split(queries, 2), jnp.expand_dims(keys, -3), jnp.expand_dims(values, -3)
  output = attend_checked(queries, keys, values, heads.split_leaves(options), settings=settings)
  weights, logsumexp = output.weights, output.logsumexp
  return AttentionOutput(
    heads.join(output.context, 2),
    None if weights is None else heads.join(weights, 2),
    None if logsumexp is None else heads.join(logsumexp, 1),
  )


class _Heads(NamedTuple):
  """N query heads in groups, one group for each key head."""

  num_heads: int
  num_groups: int

  def split(self, array: jax.Array, num_trailing: int) -> jax.Array:
    """Splits heads: [... N ...] to [... K G ...], with `num_trailing` axes after the heads."""
    axis = array.ndim - num_trailing - 1
    if axis < 0:
      return array
    groups = (1, 1) if array.shape[axis] == 1 else (self.num_groups, self.num_heads // self.num_groups)
    return array.reshape(*array.shape[:axis], *groups, *array.shape[axis + 1 :])

  def join(self, array: jax.Array, num_trailing: int) -> jax.Array:
    """Joins heads: [... K G ...] to [... N ...], the inverse of `split`."""
    axis = array.ndim - num_trailing - 2
    return array.reshape(*array.shape[:axis], self.num_heads, *array.shape[axis + 2 :])

  def split_leaves(self, options: Options) -> Options:
    """Returns the options with the heads of their arrays split."""
    leaves, structure = jax.tree.flatten(options)
    split = [
      leaf if np.ndim(leaf) == 0 else self.split(jnp.asarray(leaf), len(letters))
      for leaf, letters in zip(leaves, leaf_axes(options), strict=True)
    ]
    return jax.tree.unflatten(structure, split)
