"""The masked softmax, and `Normalizer`, the base class of functions that map scores to weights.

A normalizer is a function of one tile of scores. Masked pairs cannot affect its weights, and the engines
handle empty and non-finite rows, so a custom normalizer is short:

>>> import dataclasses
>>> from attention import attend, register_pytree, ScaledDotProduct
>>> @register_pytree
... @dataclasses.dataclass(frozen=True)
... class SquaredRelu(Normalizer):
...   def weights(self, tile, state):
...     return jax.nn.relu(tile.scores) ** 2
>>> queries, keys = jnp.array([[2.0]]), jnp.array([[1.0], [-1.0]])
>>> attend(ScaledDotProduct(), queries, keys, keys, normalizer=SquaredRelu()).tolist()
[[4.0]]
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_floating, check_numbers, check_rank
from attention.arrays.eager_jit import eager_jit
from attention.arrays.pytrees import NamedAxes, register_pytree
from attention.arrays.shapes import broadcasts_to, with_rank
from attention.arrays.sharding import compute_dtype
from attention.engines.attention_inputs import check_pairs
from attention.engines.masking import finish_rows, is_minus_infinity
from attention.engines.rows import ScoreRows, ScoreTile, one_tile
from attention.masks import Array, Mask, as_mask


class Normalizer(NamedAxes):
  """Maps scores to weights, one tile of keys after another.

  Subclasses are frozen dataclasses with `register_pytree` that define `weights`. Weights that depend on other
  keys of the row also need a state: a pytree of arrays [... T 1], from `row_state`.

  A normalizer may hold arrays, and names their axes as a `Score` does. These must be finite: a NaN would
  reach the gradients of other queries.

  Attributes:
    reverse: whether tiles are read from the last key to the first.
    whole_rows: whether `weights` needs all keys in one tile. Attention is then always "dense".
  """

  reverse: ClassVar[bool] = False
  whole_rows: ClassVar[bool] = False

  def row_state(self, rows: ScoreRows) -> Any:
    """Returns the state of each query before the first tile, from `rows.max()` and `rows.sum(function)`.

    Each call of `max` or `sum` computes all scores once.
    """
    return ()

  def weights(self, tile: ScoreTile, state: Any) -> jax.Array:
    """Returns the weights [... T S] of a tile. Those of invalid pairs (see `ScoreTile`) are set to 0.

    For invalid pairs, weights and their derivatives must be finite.
    """
    raise NotImplementedError(f"{type(self).__name__} must define weights(tile, state)")

  def next_state(self, tile: ScoreTile, state: Any) -> Any:
    """Returns the state after a tile. Default: unchanged."""
    return state


def pair_weights(normalizer: Normalizer, tile: ScoreTile, state: Any) -> jax.Array:
  """Returns the weights of a tile, 0 for invalid pairs.

  Raises:
    ValueError: if the normalizer returns weights of another shape.
  """
  weights, pairs = normalizer.weights(tile, state), tile.scores.shape
  if weights is None or not broadcasts_to(jnp.shape(weights), pairs):
    got = "None" if weights is None else f"shape {jnp.shape(weights)}"
    raise ValueError(
      f"{type(normalizer).__name__}.weights must return weights [... T S] = {pairs}, got {got}"
    )
  # Most masked weights are 0 already. `where` also sets their gradient to 0, which may otherwise overflow.
  return jnp.where(tile.valid, weights, 0)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Softmax(Normalizer):
  """weights[t, s] = exp(scores[t, s]) / sum over r of exp(scores[t, r]).

  Attributes:
    sink: the score of an attention sink, one more key with a value of zero: exp(sink) is added to the sum. A
      number, or an array [...] with leading axes, such as [N] for heads. 0 is "softmax off by one".

  References:
    Xiao et al. 2024, arXiv:2309.17453; one trained score per head: OpenAI 2025, arXiv:2508.10925; 0: Miller
    2023, "Attention is off by one".
  """

  axes = {"sink": ""}
  sink: jax.Array | float | None = None

  def validate(self):
    if self.sink is not None:
      check_numbers("sink", self.sink, "a real number below infinity", lambda sink: sink < np.inf)

  def row_state(self, rows):
    row_max = rows.max()
    denominator = rows.sum(lambda tile: jnp.exp(tile.shifted(row_max)))
    if self.sink is not None:
      sink = self.sink_scores(row_max)
      shift = jax.lax.stop_gradient(jnp.maximum(row_max, sink))
      return shift, denominator * jnp.exp(row_max - shift) + jnp.exp(sink - shift)
    return row_max, jnp.where(denominator == 0, 1, denominator)

  def weights(self, tile, state):
    row_max, denominator = state
    return jnp.exp(tile.shifted(row_max)) / denominator

  def sink_scores(self, rows: jax.Array) -> jax.Array:
    """Returns the score of the sink for each row, with the shape and dtype of rows [... T 1]."""
    sink = jnp.asarray(self.sink, rows.dtype)[..., None, None]
    sink = jnp.where(sink < jnp.inf, sink, jnp.nan)  # an infinite score gives NaN, as for other keys
    return jnp.broadcast_to(with_rank(sink, rows.ndim), rows.shape)


@functools.partial(eager_jit, static_argnames=("return_logsumexp",))
def masked_softmax(
  scores: jax.Array, mask: Mask | Array, *, return_logsumexp: bool = False
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """Computes the softmax over the last axis, restricted to the pairs that a mask allows.

      weights[t, s] = exp(scores[t, s]) / sum over allowed r of exp(scores[t, r]), 0 where not allowed

  A score of -inf is masked, too. Fully masked rows have zero weights and zero gradients. Rows with an allowed
  NaN have NaN weights and zero gradients.

  Args:
    scores: [... T S], floating-point.
    mask: a mask, or booleans broadcastable to [... T S]. True means "may attend".
    return_logsumexp: also return the logarithm of the sum.

  Returns:
    Weights [... T S] in the dtype of the scores. With `return_logsumexp`, a tuple of the weights and the
    logsumexp [... T], which has at least float32 and is -inf for fully masked rows.

  Raises:
    ValueError: if the scores are not floating-point, or the mask is not boolean or does not broadcast.

  >>> masked_softmax(jnp.zeros((2, 2)), jnp.array([[True, False], [False, False]])).tolist()
  [[1.0, 0.0], [0.0, 0.0]]
  """
  scores = as_floating("scores", scores)
  check_rank("scores", scores, "[... T S]")
  array = as_mask(mask).materialize(*scores.shape[-2:])
  check_pairs("mask", array.shape, scores.shape)
  allowed = jnp.broadcast_to(array, scores.shape) & ~is_minus_infinity(scores)
  positions = jnp.arange(scores.shape[-2])[:, None], jnp.arange(scores.shape[-1])[None, :]
  tile, rows, row_max = one_tile(scores.astype(compute_dtype(scores.dtype)), allowed, None, positions)
  state = Softmax().row_state(rows)
  weights = finish_rows(row_max, Softmax().weights(tile, state))
  weights = jnp.where(allowed, weights, 0).astype(scores.dtype)
  return (weights, logsumexp(row_max, state)) if return_logsumexp else weights


def logsumexp(row_max: jax.Array, state: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Returns log(sum of exp(score)), [... T]: -inf for empty rows, NaN for non-finite rows.

  Args:
    row_max: the largest score of each row after masking, [... T 1].
    state: of `Softmax`.
  """
  shift, denominator = state
  return finish_rows(row_max, jnp.log(denominator) + shift, "-inf")[..., 0]
