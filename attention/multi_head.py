"""Multi-head attention as a pure function of its weights."""

import dataclasses
from typing import Any, NamedTuple, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.axes import HasAxes, axes_of
from attention.arrays.broadcasting import as_array, broadcast_leading, check_rank, with_rank
from attention.arrays.hints import LAYOUT, ones_hint
from attention.arrays.programs import one_program
from attention.arrays.pytrees import register_pytree
from attention.engines.dense import Attended
from attention.engines.inputs import BiasLike, Inputs
from attention.engines.normalizers import Normalizer
from attention.engines.plan import tiles_have_leading_axes
from attention.functional import attend
from attention.inputs import with_arrays
from attention.masks import Array, Mask, as_mask
from attention.options import FullOptions, Options, forwards_to
from attention.projections import linear, project
from attention.scores.dot_product import ScaledDotProduct
from attention.scores.score import Score

T = TypeVar("T")


@register_pytree
@dataclasses.dataclass(frozen=True)
class MultiHeadWeights:
  """The weights of multi-head attention: W_Q, W_K, W_V and W_O of the paper, stacked over the heads.

  Attributes:
    query: [D N H].
    key: [D N H]; D is the width of the sources. Fewer heads than the query's, a divisor of N, make
      grouped-query attention; one makes multi-query attention.
    value: [D N H], with as many heads as the key; its H may differ from the query's and key's.
    output: [N H D], H that of the value.
    query_bias: [N H], or None for none; likewise the key's and the value's.
    output_bias: [D], or None.
  """

  query: jax.Array
  key: jax.Array
  value: jax.Array
  output: jax.Array
  query_bias: jax.Array | None = None
  key_bias: jax.Array | None = None
  value_bias: jax.Array | None = None
  output_bias: jax.Array | None = None


@overload
def multi_head_attention(
  queries: jax.Array,
  sources: jax.Array,
  weights: MultiHeadWeights,
  *,
  score: Score | None = None,
  **options: Unpack[Options],
) -> jax.Array: ...


@overload
def multi_head_attention(
  queries: jax.Array,
  sources: jax.Array,
  weights: MultiHeadWeights,
  *,
  score: Score | None = None,
  **options: Unpack[FullOptions],
) -> Attended: ...


@forwards_to(attend)
@one_program
def multi_head_attention(
  queries: jax.Array,
  sources: jax.Array,
  weights: MultiHeadWeights,
  *,
  score: Score | None = None,
  **options: Any,
) -> jax.Array | Attended:
  """Returns what N heads find in the sources, each with its own projections, joined by a projection.

      head_n = attention(queries W_Q[n], sources W_K[n], sources W_V[n])
      result = sum over n of head_n W_O[n]

  The sum is the paper's product of the concatenated heads with W_O.

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. Fewer key and value heads: Ainslie et al.
  2023, arXiv:2305.13245.

  Args:
    queries: [... T D].
    sources: what to attend to, [... S D]; the queries themselves for self-attention.
    weights: the projections; converted to the dtype of the inputs.
    score: how well a key fits a query; None for `ScaledDotProduct()`.

  The other options are those of `attend`; masks and biases broadcast to [... N T S]: for lengths [B] pass
  `lengths[:, None]`.

  Returns:
    [... T D], D the width of the output projection; or, if more is asked for, an `Attended` of it, the
    weights [... N T S] and the logsumexp [... N T].

  Raises:
    ValueError: if a projection does not fit, or as in `attend`.

  >>> kernel = jnp.ones((6, 2, 3))
  >>> weights = MultiHeadWeights(kernel, kernel, kernel, jnp.ones((2, 3, 6)))
  >>> multi_head_attention(jnp.ones((5, 6)), jnp.ones((7, 6)), weights).shape
  (5, 6)
  """
  queries, sources = as_array("queries", queries), as_array("sources", sources)
  check_rank("queries", queries, "[... T D]")
  check_rank("sources", sources, "[... S D]")
  if not isinstance(weights, MultiHeadWeights):
    raise ValueError(f"weights must be MultiHeadWeights, got {weights!r}")
  if queries.dtype != sources.dtype:
    got = f"queries {queries.dtype}, sources {sources.dtype}"
    raise ValueError(f"queries and sources must have one dtype, got {got}")
  broadcast_leading(queries, sources, names="queries and sources")
  result = attend_heads(
    project_heads(queries, weights.query, weights.query_bias, name="query"),
    project_heads(sources, weights.key, weights.key_bias, name="key"),
    project_heads(sources, weights.value, weights.value_bias, name="value"),
    score=score,
    **options,
  )
  if isinstance(result, Attended):
    return result._replace(context=merge_heads(result.context, weights.output, weights.output_bias))
  return merge_heads(result, weights.output, weights.output_bias)


def project_heads(
  inputs: jax.Array, kernel: jax.Array, bias: jax.Array | None = None, *, name: str = "head"
) -> jax.Array:
  """Returns the inputs as seen by each head: for head n, inputs . kernel[:, n] + bias[n].

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.

  Args:
    inputs: [... T D].
    kernel: [D N H].
    bias: [N H]; None for none.
    name: what errors call the kernel.

  Returns:
    [... N T H] in the dtype of the inputs.

  Raises:
    ValueError: if kernel or bias do not fit.
  """
  inputs, kernel = jnp.asarray(inputs), jnp.asarray(kernel)
  check_rank("inputs", inputs, "[... T D]")
  if kernel.ndim != 3 or kernel.shape[0] != inputs.shape[-1]:
    raise ValueError(
      f"{name} kernel must have axes [D N H], D the width of its inputs, "
      f"got kernel {kernel.shape}, inputs {inputs.shape}"
    )
  if bias is not None and np.shape(bias) != kernel.shape[1:]:
    raise ValueError(f"{name} bias must have axes [N H] = {kernel.shape[1:]}, got {np.shape(bias)}")

  def function(inputs):
    D, N, H = kernel.shape
    side_by_side = linear(inputs, kernel.reshape(D, N * H).astype(inputs.dtype))
    heads = jnp.swapaxes(side_by_side.reshape(*inputs.shape[:-1], N, H), -3, -2)
    if bias is None:
      return heads
    return heads + with_rank(jnp.asarray(bias, inputs.dtype)[:, None, :], heads.ndim)

  return project(function, inputs)


def merge_heads(contexts: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
  """Returns the heads' contexts joined: the sum over n of contexts[n] . kernel[n], + bias.

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.

  Args:
    contexts: [... N T H].
    kernel: [N H D].
    bias: [D]; None for none.

  Returns:
    [... T D] in the dtype of the contexts.

  Raises:
    ValueError: if kernel or bias do not fit.
  """
  contexts, kernel = jnp.asarray(contexts), jnp.asarray(kernel)
  check_rank("contexts", contexts, "[... N T H]")
  if kernel.ndim != 3 or kernel.shape[:2] != (contexts.shape[-3], contexts.shape[-1]):
    raise ValueError(
      "output kernel must have axes [N H D], N the number of heads and H their width, "
      f"got kernel {kernel.shape}, contexts [... N T H] {contexts.shape}"
    )
  if bias is not None and np.shape(bias) != kernel.shape[2:]:
    raise ValueError(f"output bias must have axes [D] = {kernel.shape[2:]}, got {np.shape(bias)}")
  N, H, D = kernel.shape

  def function(side_by_side):
    merged = linear(side_by_side, kernel.reshape(N * H, D).astype(contexts.dtype))
    if bias is None:
      return merged
    return merged + with_rank(jnp.asarray(bias, contexts.dtype), merged.ndim)

  side_by_side = jnp.swapaxes(contexts, -3, -2).reshape(*contexts.shape[:-3], contexts.shape[-2], N * H)
  return project(function, side_by_side)


@overload
def attend_heads(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  score: Score | None = None,
  **options: Unpack[Options],
) -> jax.Array: ...


@overload
def attend_heads(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  score: Score | None = None,
  **options: Unpack[FullOptions],
) -> Attended: ...


@forwards_to(attend)
@one_program
def attend_heads(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  score: Score | None = None,
  mask: Mask | Array | None = None,
  bias: BiasLike | None = None,
  normalizer: Normalizer | None = None,
  **options: Any,
) -> jax.Array | Attended:
  """Returns `attend` of N heads of queries to K heads of keys and values, K a divisor of N.

  Query head n attends to head n // (N / K) of keys and values (Ainslie et al. 2023, arXiv:2305.13245). The
  queries get an axis for the group, over which keys and values broadcast. Nothing is copied, unless score,
  mask or bias differ from head to head by more than their arrays, or do not name the axes of these (see
  `Score`).

  Args:
    queries: [... N T H].
    keys: [... K S H].
    values: [... K S D].
    score: with N heads or 1, as mask and bias; `ScaledDotProduct()` by default.
    mask: as in `attend`, as are all other options.
    bias: likewise.
    normalizer: likewise.

  Returns:
    As `attend`: the context [... N T D], or an `Attended` of N heads.

  Raises:
    ValueError: if the number of query heads is no multiple of the keys', or as in `attend`.
  """
  queries, keys, values = map(as_array, ("queries", "keys", "values"), (queries, keys, values))
  for name, array in (("queries", queries), ("keys", keys), ("values", values)):
    check_rank(name, array, "[... N T H]")
  num_heads, num_key_heads = queries.shape[-3], keys.shape[-3]
  if num_key_heads == 0 or num_heads % num_key_heads or values.shape[-3] != num_key_heads:
    raise ValueError(
      "the heads of the queries must be a multiple of those of the keys, and keys and values must have "
      f"as many, got queries {num_heads}, keys {num_key_heads}, values {values.shape[-3]}"
      + f"; {LAYOUT}"
      * (queries.shape[-2] == keys.shape[-2])
    )
  score = with_arrays(ScaledDotProduct() if score is None else score)
  mask = None if mask is None else with_arrays(as_mask(mask))
  bias = with_arrays(bias)
  grouped = num_key_heads < num_heads
  if grouped and _can_be_grouped(score, queries, keys, mask, bias):
    heads = _Heads(num_heads, num_key_heads)
    score = heads.split_leaves("score", score)
    keys, values = keys[..., :, None, :, :], values[..., :, None, :, :]
    queries = heads.split("queries", queries, 2)
    mask = None if mask is None else heads.split_leaves("mask", mask)
    bias = None if bias is None else _grouped_bias(bias, heads)
    normalizer = None if normalizer is None else heads.split_leaves("normalizer", normalizer)
  elif grouped:
    grouped = False
    keys, values = (jnp.repeat(array, num_heads // num_key_heads, axis=-3) for array in (keys, values))
  result = attend(
    score,
    queries,
    keys,
    values,
    mask=mask,
    bias=bias,
    normalizer=normalizer,
    **options,
  )
  if not grouped:
    return result
  if not isinstance(result, Attended):
    return _join_groups(result, -4)
  joined = Attended(_join_groups(result.context, -4))
  if result.weights is not None:
    joined = joined._replace(weights=_join_groups(result.weights, -4))
  if result.logsumexp is not None:
    joined = joined._replace(logsumexp=_join_groups(result.logsumexp, -3))
  return joined


def _can_be_grouped(
  score: Score, queries: jax.Array, keys: jax.Array, mask: Mask | None, bias: BiasLike | None
) -> bool:
  """Whether score, mask and bias have heads by their arrays alone, and name the axes of all of these."""
  are_mistaken = not isinstance(score, Score) or isinstance(bias, Mask)  # `attend` will say so
  if are_mistaken or 0 in (*queries.shape, *keys.shape):
    return False

  def flags(array):
    return jnp.zeros(array.shape[:-1], bool)

  inputs = Inputs(
    score=score,
    queries=score.query_features(queries[..., :1, :]),
    keys=score.key_features(keys[..., :1, :]),
    values=keys,
    bad_queries=flags(queries),
    bad_keys=flags(keys),
    t=jnp.arange(queries.shape[-2]),
    s=jnp.arange(keys.shape[-2]),
    mask=mask,
    bias=bias if isinstance(bias, HasAxes) else None,  # what a function returns is split when it is called
  )
  return not tiles_have_leading_axes(inputs)


class _Heads(NamedTuple):
  """N heads of queries in groups, one for each head of the keys."""

  num_heads: int
  num_groups: int

  def split(self, name: str, array: jax.Array, own: int) -> jax.Array:
    """Returns an array [... N] and its own axes, so many, as [... K G] and these.

    Raises:
      ValueError: if it has neither N heads nor 1.
    """
    axis = array.ndim - own - 1
    if axis < 0:
      return array
    if array.shape[axis] == 1:
      return jnp.expand_dims(array, axis)
    if array.shape[axis] != self.num_heads:
      raise ValueError(
        f"{name} must be one for {self.num_heads} heads or broadcast over them, got shape {array.shape}"
        + ones_hint(1)
      )
    groups = self.num_groups, self.num_heads // self.num_groups
    return array.reshape(*array.shape[:axis], *groups, *array.shape[axis + 1 :])

  def split_leaves(self, name: str, tree: T) -> T:
    """Returns a score, mask or bias that names its axes with the heads of its arrays in groups."""
    leaves, structure = jax.tree.flatten(tree)
    split = [
      leaf if np.ndim(leaf) == 0 or own is None else self.split(name, jnp.asarray(leaf), len(own))
      for leaf, own in zip(leaves, axes_of(tree), strict=True)
    ]
    return jax.tree.unflatten(structure, split)


def _grouped_bias(bias: Any, heads: _Heads) -> Any:
  """Returns a bias for [... N T S] as one for [... K G T S]."""
  if isinstance(bias, HasAxes):
    return heads.split_leaves("bias", bias)
  if callable(bias):
    return lambda t, s: _grouped_bias(bias(t, s), heads)
  if bias is None or isinstance(bias, str):
    return bias  # `attend` says what is allowed
  return heads.split("bias", as_array("bias", bias), 2)


def _join_groups(array: jax.Array, axis: int) -> jax.Array:
  """Joins the two axes that start at `axis`."""
  axis += array.ndim
  joined = array.shape[axis] * array.shape[axis + 1]
  return array.reshape(*array.shape[:axis], joined, *array.shape[axis + 2 :])
