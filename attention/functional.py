"""Attention as pure functions: `attend` and its named forms."""

from typing import Any

import jax

from attention.arrays.eager_jit import eager_jit
from attention.arrays.sharding import matmul_precision
from attention.engines.attention_inputs import Options, prepare
from attention.engines.bias import BiasLike
from attention.engines.blockwise import blockwise
from attention.engines.choice import fastest
from attention.engines.dense import AttentionOutput, dense
from attention.engines.softmax import Normalizer, Softmax
from attention.masks import Array, Mask
from attention.scores.additive import Additive
from attention.scores.bilinear import Bilinear
from attention.scores.cosine import Cosine
from attention.scores.dot_product import ScaledDotProduct
from attention.scores.score import Score
from attention.validation import check_options, check_vectors


def attend(
  score: Score,
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
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
  """Returns, for each query, the mean of the values weighted by how well their keys fit the query.

      weights = softmax(score(queries, keys) + bias, over the keys that the mask allows)
      context = weights . values

  A query that may attend to nothing gets zero context, zero weights, logsumexp -inf and zero gradients.
  What is masked, even NaN, changes no output and no gradient. A query that attends to a NaN or an infinity
  gets NaN in all its results, and zero gradients. Scores, softmax and sums are in float32, or float64 for
  float64.

  Outside of `jax.jit` a call is one compiled program, found again by calls of the same shapes and options.
  With a bias or mask that is a function, or a score, mask or bias of your own class, it is not: what these
  refer to may have changed. Put such calls inside `jax.jit` yourself.

  Source: Bahdanau et al. 2015, arXiv:1409.0473, equations 5 and 6; in this form Vaswani et al. 2017,
  arXiv:1706.03762, section 3.2.

  Args:
    score: `ScaledDotProduct()`, `Additive(score_vector)`, `Bilinear(matrix)`, `Cosine(scale)`, or your
      own (see `Score`).
    queries: [... T H]; leading axes of all inputs broadcast, heads are one of them.
    keys: [... S H].
    values: [... S D]. Queries, keys and values have one floating dtype.
    mask: a mask from `attention.masks`, or booleans that broadcast to [... T S], True = may attend.
    bias: added to the scores: an array that broadcasts to [... T S], or a function of query positions
      [T 1] and key positions [1 S] that returns one. It is called with T = S = 1 under `jax.vmap`, so terms
      are to be found by t and s (`table[t, s]`), not by their shapes. -inf masks a pair.
    dropout_rate: probability in [0, 1) that a weight is dropped in the weighted sum: a number, or a scalar
      array, which may be traced. Another rate compiles nothing anew.
    dropout_rng: key for the dropout; needed where the rate is not 0.
    normalizer: what makes weights of scores; None for `Softmax()`. Others, such as `Sparsemax()`, or your own
      (see `Normalizer`), are "dense", and have no logsumexp.
    return_weights: whether to return the weights too.
    return_logsumexp: whether to return the logarithm of the softmax's denominator too.
    implementation: "dense", the definition; "blockwise", the same in memory that grows with T + S (but
      for the weights, if asked for; sums of values near the largest float may overflow); or "auto", the
      best choice for the inputs. A symbolic size of `jax.export` counts as 4,096.
    block_sizes: how many queries and keys a tile of "blockwise" has at most; None for what is fast. Where
      JAX has several devices, over which they may be spread, a tile has all leading axes.
      They do not choose the implementation, and have no effect on "dense", which has no tiles.

  Returns:
    The context [... T D]; or, if more is asked for, an `AttentionOutput`: a named tuple of the context, the
    weights [... T S] (before dropout) and the logsumexp [... T]; those not asked for are None. All have the
    dtype of the inputs, only the logsumexp is never below float32.

  Raises:
    ValueError: if shapes or dtypes do not fit, or an option is not one that is allowed.

  >>> import jax.numpy as jnp
  >>> queries, keys = jnp.array([[0.0, 9.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
  >>> attend(ScaledDotProduct(scale=1.0), queries, keys, jnp.array([[5.0], [7.0]])).round(2).tolist()
  [[7.0]]
  """
  options = check_options(
    score,
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
  return options.returned(attend_checked(*check_vectors(queries, keys, values), options))


@eager_jit
def attend_checked(
  queries: jax.Array, keys: jax.Array, values: jax.Array, options: Options
) -> AttentionOutput:
  """Returns what `attend` does, from arguments that are checked."""
  dtype = queries.dtype
  implementation = options.implementation
  if implementation == "auto":
    is_softmax = type(options.normalizer) is Softmax  # not a subclass, which has weights of its own
    implementation = fastest(queries, keys, values, options.return_weights) if is_softmax else "dense"
  with jax.default_matmul_precision(matmul_precision()):
    inputs, shape = prepare(queries, keys, values, options)
    returns = options.return_logsumexp
    if implementation == "dense":
      attended = dense(inputs, shape, normalizer=options.normalizer, return_logsumexp=returns)
    else:
      attended = blockwise(inputs, shape, block_sizes=options.block_sizes, return_logsumexp=returns)
      if options.return_weights:
        attended = attended._replace(weights=dense(inputs, shape, return_logsumexp=False).weights)
  return AttentionOutput(
    attended.context.astype(dtype),
    attended.weights.astype(dtype) if options.return_weights else None,
    attended.logsumexp if options.return_logsumexp else None,
  )


def scaled_dot_product_attention(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  scale: jax.Array | float | None = None,
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
  """Returns `attend` with scores scale * queries . keys.

      context = softmax(queries keys^T / sqrt(H)) values

  Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.

  Args:
    queries: [... T H].
    keys: [... S H].
    values: [... S D].
    scale: factor of the scores; None for 1 / sqrt(H).

  The other options, the result and the errors are those of `attend`.

  >>> import jax.numpy as jnp
  >>> scaled_dot_product_attention(jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.ones((5, 7))).shape
  (3, 7)
  """
  return attend(
    ScaledDotProduct(scale),
    queries,
    keys,
    values,
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


def additive_attention(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  score_vector: jax.Array,
  *,
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
  """Returns `attend` with scores score_vector . tanh(queries + keys).

  Source: Bahdanau et al. 2015, arXiv:1409.0473, A.1.2.

  Args:
    queries: projected queries, [... T A].
    keys: projected keys, [... S A].
    values: [... S D].
    score_vector: [A], or [... A] with leading axes that broadcast.

  The other options, the result and the errors are those of `attend`.

  >>> import jax.numpy as jnp
  >>> additive_attention(jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.ones((5, 7)), jnp.ones(2)).shape
  (3, 7)
  """
  return attend(
    Additive(score_vector),
    queries,
    keys,
    values,
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


def bilinear_attention(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  matrix: jax.Array,
  *,
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
  """Returns `attend` with scores queries . matrix . keys.

  Source: Luong et al. 2015, arXiv:1508.04025, section 3.1, "general".

  Args:
    queries: [... T H].
    keys: [... S K].
    values: [... S D].
    matrix: [H K], or [... H K] with leading axes that broadcast.

  The other options, the result and the errors are those of `attend`.

  >>> import jax.numpy as jnp
  >>> bilinear_attention(jnp.ones((3, 2)), jnp.ones((5, 4)), jnp.ones((5, 7)), jnp.ones((2, 4))).shape
  (3, 7)
  """
  return attend(
    Bilinear(matrix),
    queries,
    keys,
    values,
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


def cosine_attention(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  scale: jax.Array | float = 1.0,
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
  """Returns `attend` with scores scale * cosine of the angle between query and key.

  Source: Graves et al. 2014, arXiv:1410.5401, equations 5 and 6; `scale` is the paper's key strength.

  Args:
    queries: [... T H]; a zero vector scores 0 with everything.
    keys: [... S H].
    values: [... S D].
    scale: factor of the cosine.

  The other options, the result and the errors are those of `attend`.

  >>> import jax.numpy as jnp
  >>> cosine_attention(jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.ones((5, 7)), scale=4.0).shape
  (3, 7)
  """
  return attend(
    Cosine(scale),
    queries,
    keys,
    values,
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
