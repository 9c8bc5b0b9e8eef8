"""How well a key fits a query.

A score knows two things: what to compute once for each query and once for each key (its *features*), and
the scores of one tile of query features against one tile of key features. Everything else (masks, bias,
softmax, dropout, the weighted sum, memory) belongs to the engines, which treat every score alike. So a
score of one's own is a few lines:

>>> @jax.tree_util.register_dataclass
... @dataclasses.dataclass(frozen=True)
... class NegativeDistance(Score):
...   sharpness: jax.Array
...
...   def tile(self, query_features, key_features):
...     difference = query_features[..., :, None, :] - key_features[..., None, :, :]
...     return -self.sharpness * jnp.sum(difference**2, axis=-1)
>>> NegativeDistance(2.0).tile(jnp.ones((2, 3)), jnp.zeros((5, 3))).shape
(2, 5)
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.additive import sums_of_tanh
from attention.shapes import (
  HasAxes,
  broadcast_leading,
  check_rank,
  compute_dtype,
  matmul_precision,
  varying_like,
  with_rank,
)
from attention.tiles import leading_axes_may_be_spread, one_by_one, over_leading

# How many scores of additive attention are calculated at once.
CACHED_PAIRS = 2**19


def dot_product_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns how well every key fits every query.

      scores[t, s] = queries[t] . keys[s]

  Source: Luong et al. 2015, arXiv:1508.04025, section 3.1, "dot"; Vaswani et al. 2017,
  arXiv:1706.03762, section 3.2.1, before the scaling.

  Args:
    queries: [... T H].
    keys: [... S H].

  Returns:
    Scores, not probabilities, [... T S], at least float32.

  Raises:
    ValueError: if widths, leading axes or dtypes do not fit.

  >>> dot_product_scores(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0], [0.0, 1.0]])).tolist()
  [[11.0, 2.0]]
  """
  queries, keys = _floating(queries=queries, keys=keys)
  _check_width("keys", keys, queries.shape[-1], "the width of the queries")
  broadcast_leading(queries, keys, names="queries and keys")
  return jnp.einsum("...TH,...SH->...TS", queries, keys, precision=matmul_precision())


def additive_scores(queries: jax.Array, keys: jax.Array, score_vector: jax.Array) -> jax.Array:
  """Returns how well every key fits every query, by a network of one hidden layer.

      scores[t, s] = score_vector . tanh(queries[t] + keys[s])

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.1.2; `score_vector` is the paper's v_a. The
  projections W_a and U_a belong to the layer.

  Args:
    queries: projected queries (decoder states), [... T A].
    keys: projected keys (encoder states), [... S A].
    score_vector: [A], or [... A] with leading axes that broadcast, one vector for each head, say.

  Returns:
    Scores, not probabilities, [... T S], at least float32.

  Raises:
    ValueError: if widths, leading axes or dtypes do not fit.

  >>> additive_scores(jnp.zeros((1, 2)), jnp.zeros((3, 2)), jnp.ones(2)).tolist()
  [[0.0, 0.0, 0.0]]
  """
  queries, keys = _floating(queries=queries, keys=keys)
  score_vector = jnp.asarray(score_vector)
  check_rank("score_vector", score_vector, "[... A]")
  _check_width("keys", keys, queries.shape[-1], "the width of the queries")
  _check_width("score_vector", score_vector, queries.shape[-1], "the width of the queries")
  vectors = score_vector.astype(queries.dtype)[..., None, :]
  leading = broadcast_leading(queries, keys, vectors, names="queries, keys and score_vector")
  queries, keys, vectors = varying_like((queries, keys, vectors), (queries, keys, vectors))
  pairs = queries.shape[-2], keys.shape[-2]
  rank = len(leading) + 2
  arrays = [with_rank(array, rank) for array in (queries, keys, vectors)]

  # On a CPU as many leading axes at once as stay in the cache.
  kept = 0 if one_by_one() and not leading_axes_may_be_spread() else len(leading)
  while kept < len(leading) and math.prod((*leading[-1 - kept :], *pairs)) <= CACHED_PAIRS:
    kept += 1
  return over_leading(lambda arrays: sums_of_tanh(*arrays), arrays, ("TA", "SA", "1A"), leading, kept)


def bilinear_scores(queries: jax.Array, keys: jax.Array, matrix: jax.Array) -> jax.Array:
  """Returns how well every key fits every query, measured by a matrix.

      scores[t, s] = queries[t] . matrix . keys[s]

  Source: Luong et al. 2015, arXiv:1508.04025, section 3.1, "general"; `matrix` is the paper's W_a.

  Args:
    queries: [... T H].
    keys: [... S K]; the width K of the keys need not be that of the queries.
    matrix: [H K], or [... H K] with leading axes that broadcast.

  Returns:
    Scores, not probabilities, [... T S], at least float32.

  Raises:
    ValueError: if matrix, leading axes or dtypes do not fit.

  >>> bilinear_scores(jnp.ones((1, 2)), jnp.ones((1, 3)), jnp.ones((2, 3))).tolist()
  [[6.0]]
  """
  queries, keys = _floating(queries=queries, keys=keys)
  score = Bilinear(jnp.asarray(matrix, queries.dtype))
  return score.tile(score.query_features(queries), score.key_features(keys))


def cosine_scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns the cosine of the angle between every query and every key; a zero vector scores 0.

  So does one whose numbers are all below the smallest normal one, 1e-38 in float32: XLA takes them for 0.

      scores[t, s] = queries[t] . keys[s] / (|queries[t]| |keys[s]|)

  Source: Graves et al. 2014, arXiv:1410.5401, equation 6.

  Args:
    queries: [... T H].
    keys: [... S H].

  Returns:
    Scores in [-1, 1], [... T S], at least float32.

  Raises:
    ValueError: if widths, leading axes or dtypes do not fit.

  >>> cosine_scores(jnp.array([[3.0, 4.0]]), jnp.array([[1.0, 0.0], [0.0, 0.0]])).round(3).tolist()
  [[0.6000000238418579, 0.0]]
  """
  queries, keys = _floating(queries=queries, keys=keys)
  return dot_product_scores(_unit(queries), _unit(keys))


class Score(HasAxes):
  """A score function. Subclasses are frozen dataclasses, registered as pytrees, that define `tile`.

  The engines call `query_features` and `key_features` once, and `tile` on blocks of what they return.
  All of it is differentiated, so a score's fields are trained like any other parameters.

  A score of arrays should say which of their axes are its own, one letter each, as in
  `axes = {"matrix": "HK", "scale": ""}`. What precedes them are leading axes that broadcast, such as heads;
  before they meet scores [... T S], `tile` puts them there: `self.scale[..., None, None]`. "blockwise" then
  cuts the arrays with the queries and keys, one index at a time; and heads of keys that several heads of
  queries share are not copied. A field that is no array or number must be static:
  `dataclasses.field(metadata={"static": True})`.

  Nothing that is masked reaches a result or a gradient, with one exception that a tile must see to itself: a
  pair for which it is not finite, or has no finite derivative (the square of 1e25, which overflows; the root
  of 0), makes the gradients of what it was calculated from NaN, masked or not. As with `jnp.where`, numbers
  have to be replaced before that: `jnp.sqrt(jnp.where(squares > 0, squares, 1))`.
  """

  def query_features(self, queries: jax.Array) -> Any:
    """Returns what is computed once for each query.

    Args:
      queries: [... T H], at least float32.

    Returns:
      An array, or a pytree of arrays, whose axis -2 is the query position.
    """
    return queries

  def key_features(self, keys: jax.Array) -> Any:
    """Returns what is computed once for each key, like `query_features` for keys [... S H]."""
    return keys

  def tile(self, query_features: Any, key_features: Any) -> jax.Array:
    """Returns the scores [... T S] of a tile of query features against a tile of key features."""
    raise NotImplementedError(f"{type(self).__name__} must define tile(query_features, key_features)")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScaledDotProduct(Score):
  """`dot_product_scores` times a scale: a number, or numbers [...] that broadcast (one for each head).

  None is the paper's 1 / sqrt(H), H the width of the queries.

  Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.
  """

  axes = {"scale": ""}
  scale: jax.Array | float | None = None

  def query_features(self, queries):
    scale = max(queries.shape[-1], 1) ** -0.5 if self.scale is None else self.scale
    return _scaled(queries, scale)

  def tile(self, query_features, key_features):
    return dot_product_scores(query_features, key_features)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Additive(Score):
  """`additive_scores` with its score vector, [A] or [... A]."""

  axes = {"score_vector": "A"}
  score_vector: jax.Array

  def tile(self, query_features, key_features):
    return additive_scores(query_features, key_features, self.score_vector)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bilinear(Score):
  """`bilinear_scores` with its matrix, [H K] or [... H K]."""

  axes = {"matrix": "HK"}
  matrix: jax.Array

  def query_features(self, queries):
    matrix = self._checked_matrix(-2, queries=queries)
    broadcast_leading(queries, matrix, names="queries and matrix")
    return jnp.einsum("...TH,...HK->...TK", queries, matrix, precision=matmul_precision())

  def key_features(self, keys):
    self._checked_matrix(-1, keys=keys)
    return keys

  def _checked_matrix(self, axis: int, **named: jax.Array) -> jax.Array:
    """Returns the matrix, or raises ValueError if its axis does not fit the width of the vectors."""
    ((name, vectors),) = named.items()
    matrix = jnp.asarray(self.matrix)
    check_rank("matrix", matrix, "[... H K]")
    if matrix.shape[axis] != vectors.shape[-1]:
      raise ValueError(
        "matrix must have axes [... H K], H the width of the queries and K that of the keys, "
        f"got matrix {matrix.shape}, {name} {vectors.shape}"
      )
    return matrix

  def tile(self, query_features, key_features):
    return dot_product_scores(query_features, key_features)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cosine(Score):
  """`cosine_scores` times a scale: a number, or numbers [...] that broadcast (one for each head)."""

  axes = {"scale": ""}
  scale: jax.Array | float = 1.0

  def query_features(self, queries):
    return _scaled(_unit(queries), self.scale)

  def key_features(self, keys):
    return _unit(keys)

  def tile(self, query_features, key_features):
    return dot_product_scores(query_features, key_features)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SoftCapped(Score):
  """Another score kept within -cap and cap: cap * tanh(score / cap).

  Source: Bello et al. 2017, arXiv:1611.09940, appendix A.2; for attention: Gemma 2, 2024, arXiv:2408.00118,
  section 2.

  Attributes:
    score: any score.
    cap: a positive number, or numbers [...] that broadcast (one for each head).

  Raises:
    ValueError: if the cap is not positive: a float at once, others when attention is calculated, if they are
      known then (not arguments of `jax.jit`, which are traced).
  """

  axes = {"cap": ""}
  score: Score
  cap: jax.Array | float

  def __post_init__(self):
    if isinstance(self.score, (int, float, np.ndarray)) or isinstance(self.cap, Score):
      raise ValueError(f"SoftCapped needs a score and then a cap, got {self.score!r}, {self.cap!r}")
    # Arrays and integers pass: JAX also builds trees of gradients, or of axes, in the form of a score.
    if type(self.cap) is float:
      self._check_cap()

  def _check_cap(self):
    if not np.all(np.asarray(self.cap) > 0):
      raise ValueError(f"cap must be positive, got {self.cap}")

  def query_features(self, queries):
    return self.score.query_features(queries)

  def key_features(self, keys):
    return self.score.key_features(keys)

  def tile(self, query_features, key_features):
    if not isinstance(self.cap, jax.core.Tracer):
      self._check_cap()
    scores = self.score.tile(query_features, key_features)
    cap = _per_score("cap", jnp.asarray(self.cap, scores.dtype), scores.ndim)
    rank = max(scores.ndim, cap.ndim)
    scores, cap = with_rank(scores, rank), with_rank(cap, rank)
    return cap * jnp.tanh(scores / cap)


def _unit(vectors: jax.Array) -> jax.Array:
  """Returns the vectors at length 1, and zero vectors as they are, with zero gradient."""
  # The direction does not depend on this scale, so no gradient is lost by stopping it here; without it
  # the squares of very long or very short vectors leave the range of float32. Its own reciprocal must
  # stay in that range too.
  largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vectors), axis=-1, keepdims=True, initial=0.0))
  is_zero = largest == 0
  smallest = 100 * float(jnp.finfo(vectors.dtype).tiny)
  vectors = vectors / jnp.where(is_zero, 1, jnp.clip(largest, smallest, 1 / smallest))
  squared = jnp.sum(vectors**2, axis=-1, keepdims=True)
  return jnp.where(is_zero, 0, vectors / jnp.sqrt(jnp.where(is_zero, 1, squared)))


def _scaled(vectors: jax.Array, scale: jax.Array | float) -> jax.Array:
  """Returns the vectors [... T H] times a scale [...], a single number or one for each head, say."""
  factors = _per_score("scale", jnp.asarray(scale, vectors.dtype), vectors.ndim)
  broadcast_leading(vectors, factors, names="queries and scale [... 1 1]")
  rank = max(vectors.ndim, factors.ndim)
  return with_rank(vectors, rank) * with_rank(factors, rank)


def _per_score(name: str, numbers: jax.Array, rank: int) -> jax.Array:
  """Returns numbers [...], one for each head, say, as [... 1 1], for arrays of a rank.

  Raises:
    ValueError: if they have these two axes already, and would bring others.
  """
  if numbers.ndim > rank - 2 and numbers.ndim > 1 and numbers.shape[-2:] == (1, 1):
    raise ValueError(
      f"{name} must be a number, or numbers for the leading axes, [N] for heads, without axes for T and S, "
      f"got shape {numbers.shape}"
    )
  return numbers[..., None, None]


def _floating(**arrays: jax.Array) -> list[jax.Array]:
  """Checks two arrays of vectors by name, and returns them at least in float32."""
  arrays = {name: jnp.asarray(array) for name, array in arrays.items()}
  for (name, array), axes in zip(arrays.items(), ("[... T H]", "[... S H]"), strict=True):
    check_rank(name, array, axes)
    if not jnp.issubdtype(array.dtype, jnp.floating):
      raise ValueError(f"{name} must be of a floating type, got {array.dtype}")
  dtypes = {array.dtype for array in arrays.values()}
  if len(dtypes) > 1:
    got = ", ".join(f"{name} {array.dtype}" for name, array in arrays.items())
    raise ValueError(f"{' and '.join(arrays)} must have one dtype, got {got}")
  return [array.astype(compute_dtype(array.dtype)) for array in arrays.values()]


def _check_width(name: str, array: jax.Array, width: int, allowed: str) -> None:
  if array.shape[-1] != width:
    raise ValueError(f"{name} must have {allowed}, {width}, got shape {array.shape}")
