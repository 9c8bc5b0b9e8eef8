"""Grouped-query attention: N query heads share K key and value heads."""

import dataclasses
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_array, check_rank
from attention.arrays.dtypes import compute_dtype
from attention.arrays.eager_jit import eager_jit, has_user_code
from attention.arrays.named_axes import NamedAxes, leaf_axes, register_pytree
from attention.arrays.shapes import LAYOUT, ones_hint
from attention.biases.base import BiasLike, FunctionBias
from attention.engines.dense import AttentionOutput
from attention.engines.inputs import Inputs, Options
from attention.engines.plan import tile_has_leading_axes
from attention.functional import attend_checked
from attention.masks import Array, Mask
from attention.normalizers.base import Normalizer
from attention.scores.base import Score
from attention.scores.dot_product import ScaledDotProduct
from attention.validation import check_dtypes, check_lengths, check_options, check_vectors

T = TypeVar("T")


def attend_heads(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  score: Score | None = None,
  mask: Mask | Array | None = None,
  bias: BiasLike | None = None,
  dropout_rate: jax.Array | float = 0.0,
  dropout_rng: jax.Array | None = None,
  normalizer: Normalizer | None = None,
  return_weights: bool = False,
  return_logsumexp: bool = False,
  implementation: str = "auto",
  block_sizes: tuple[int, int] | None = None,
) -> Any:
  """Computes `attend` with N query heads and K key and value heads, where K divides N.

  Query head n attends to key head n // (N / K). Keys and values broadcast over the groups and are not copied,
  unless the score, mask or bias differs between heads by more than its arrays, or does not name the axes of
  its arrays (see `Score`).

  Args:
    queries: [... N T H].
    keys: [... K S H].
    values: [... K S D].
    score: the score function. Default: `ScaledDotProduct()`. Scores, masks and biases have N heads or 1.
    mask: as in `attend`.
    bias: as in `attend`.
    normalizer: as in `attend`.

  See `attend` for the other options.

  Returns:
    The context [... N T D], or an `AttentionOutput`, as in `attend`.

  Raises:
    ValueError: if K does not divide N; see also `attend`.

  References:
    Ainslie et al. 2023, arXiv:2305.13245.
  """
  options = check_options(
    ScaledDotProduct() if score is None else score,
    mask=mask,
    bias=bias,
    dropout_rate=dropout_rate,
    dropout_rng=dropout_rng,
    normalizer=normalizer,
    return_weights=return_weights,
    return_logsumexp=return_logsumexp,
    implementation=implementation,
    block_sizes=block_sizes,
  )
  queries, keys, values = map(as_array, ("queries", "keys", "values"), (queries, keys, values))
  return options.select_output(attend_heads_checked(queries, keys, values, options))


@eager_jit
def attend_heads_checked(
  queries: jax.Array, keys: jax.Array, values: jax.Array, options: Options
) -> AttentionOutput:
  """Computes `attend_heads` from validated options."""
  for name, array in (("queries", queries), ("keys", keys), ("values", values)):
    check_rank(name, array, "[... N T H]")
  check_dtypes(queries=queries, keys=keys, values=values)
  check_lengths(keys, values)
  N, K = queries.shape[-3], keys.shape[-3]
  if K == 0 or N % K or values.shape[-3] != K:
    hint = f"; {LAYOUT}" if queries.shape[-2] == keys.shape[-2] else ""
    raise ValueError(
      "the number of query heads must be a multiple of the number of key heads, and keys and values must "
      f"have the same number of heads, got queries {N}, keys {K}, values {values.shape[-3]}{hint}"
    )
  if K == N:
    return attend_checked(*check_vectors(queries, keys, values), options)
  try:
    jnp.broadcast_shapes(*(array.shape[:-3] for array in (queries, keys, values)))
  except ValueError:
    raise ValueError(
      "leading axes of queries, keys and values must broadcast, got shapes "
      f"{queries.shape}, {keys.shape}, {values.shape}"
    ) from None

  def attend_repeated(queries: jax.Array, keys: jax.Array, values: jax.Array) -> AttentionOutput:
    keys, values = (jnp.repeat(array, N // K, axis=-3) for array in (keys, values))
    return attend_checked(*check_vectors(queries, keys, values), options)

  try:
    if _can_be_grouped(queries, keys, options):
      return _attend_grouped(queries, keys, values, options)
  except ValueError:
    # Repeated keys give the same error, without the axes of groups.
    try:
      jax.eval_shape(attend_repeated, queries, keys, values)
    except ValueError as error:
      note = f" (keys and values are repeated for {N} heads)" if "keys must have" in str(error) else ""
      raise ValueError(f"{error}{note}") from error
    raise
  return attend_repeated(queries, keys, values)


def _attend_grouped(
  queries: jax.Array, keys: jax.Array, values: jax.Array, options: Options
) -> AttentionOutput:
  """Computes attention with queries [... K G T H], and keys and values that broadcast over the groups."""
  N, K = queries.shape[-3], keys.shape[-3]
  heads, bias = _Heads(N, K), options.bias
  options = dataclasses.replace(
    options,
    score=heads.split_leaves("score", options.score),
    mask=heads.split_leaves("mask", options.mask),
    bias=_GroupedBias(bias, heads) if isinstance(bias, FunctionBias) else heads.split_leaves("bias", bias),
    normalizer=heads.split_leaves("normalizer", options.normalizer),
  )
  queries = heads.split("queries", queries, 2)
  keys, values = keys[..., :, None, :, :], values[..., :, None, :, :]
  output = attend_checked(*check_vectors(queries, keys, values), options)
  weights, logsumexp = output.weights, output.logsumexp
  return output._replace(
    context=heads.join(output.context, 2),
    weights=None if weights is None else heads.join(weights, 2),
    logsumexp=None if logsumexp is None else heads.join(logsumexp, 1),
  )


def _can_be_grouped(queries: jax.Array, keys: jax.Array, options: Options) -> bool:
  """Returns whether keys can broadcast over groups: arrays name their axes, tiles have no leading axes."""
  if 0 in (*queries.shape, *keys.shape):
    return False  # `prepare` raises the error for empty inputs
  score = options.score
  T, S = queries.shape[-2], keys.shape[-2]
  queries, keys = (array.astype(compute_dtype(array.dtype)) for array in (queries, keys))  # as `prepare` does
  inputs = Inputs(
    score=score,
    queries=score.query_features(queries),
    keys=score.key_features(keys),
    values=keys,
    nonfinite_queries=jnp.zeros(T, bool),
    nonfinite_keys=jnp.zeros(S, bool),
    t=jnp.arange(T)[:, None],
    s=jnp.arange(S)[None, :],
    mask=options.mask,
    # The result of a function is split when it is called.
    bias=None if isinstance(options.bias, FunctionBias) else options.bias,
  )
  leaf_letters = [*leaf_axes(inputs), *leaf_axes(options.normalizer)]
  is_named = not any("?" in letters for letters in leaf_letters) and not has_user_code(options.normalizer)
  return is_named and not tile_has_leading_axes(inputs)


class _Heads(NamedTuple):
  """N query heads in groups, one group for each key head."""

  num_heads: int
  num_groups: int

  def split(self, name: str, array: jax.Array, num_trailing: int) -> jax.Array:
    """Splits heads: [... N ...] to [... K G ...], with `num_trailing` axes after the heads.

    Raises:
      ValueError: if it has neither N heads nor 1.
    """
    axis = array.ndim - num_trailing - 1
    if axis < 0:
      return array
    if array.shape[axis] == 1:
      return jnp.expand_dims(array, axis)
    if array.shape[axis] != self.num_heads:
      raise ValueError(
        f"{name} must have {self.num_heads} heads or broadcast over them, got shape {array.shape}"
        + ones_hint(1)
      )
    groups = self.num_groups, self.num_heads // self.num_groups
    return array.reshape(*array.shape[:axis], *groups, *array.shape[axis + 1 :])

  def join(self, array: jax.Array, num_trailing: int) -> jax.Array:
    """Joins heads: [... K G ...] to [... N ...], the inverse of `split`."""
    axis = array.ndim - num_trailing - 2
    return array.reshape(*array.shape[:axis], self.num_heads, *array.shape[axis + 2 :])

  def split_leaves(self, name: str, tree: T) -> T:
    """Returns a score, mask or bias with the heads of its arrays split."""
    leaves, structure = jax.tree.flatten(tree)
    split = [
      leaf if np.ndim(leaf) == 0 else self.split(name, jnp.asarray(leaf), len(letters))
      for leaf, letters in zip(leaves, leaf_axes(tree), strict=True)
    ]
    return jax.tree.unflatten(structure, split)


@register_pytree
@dataclasses.dataclass(frozen=True)
class _GroupedBias(NamedAxes):
  """A bias for [... N T S] as a bias for [... K G T S]."""

  bias: FunctionBias
  heads: _Heads = dataclasses.field(metadata={"static": True})

  def __call__(self, t, s):
    return self.heads.split("bias", self.bias(t, s), 2)
