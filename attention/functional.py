"""Attention as pure functions: `attend`, and one function for each score."""

import functools
from typing import Any, Unpack

import jax

from attention.arrays.checks import check_vectors
from attention.arrays.dtypes import matmul_precision
from attention.arrays.eager_jit import eager_jit
from attention.arrays.sharding import mesh_of
from attention.biases.base import BiasLike
from attention.engines.blockwise import blockwise
from attention.engines.choice import choose_implementation
from attention.engines.dense import AttentionOutput, dense
from attention.engines.inputs import Options, Settings, prepare
from attention.masks import Array, Mask
from attention.normalizers.base import Normalizer
from attention.scores.additive import Additive
from attention.scores.base import Score
from attention.scores.bilinear import Bilinear
from attention.scores.cosine import Cosine
from attention.scores.dot_product import ScaledDotProduct
from attention.validation import AttendOptions, check_options


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
  """Computes attention with any score function.

      weights = softmax(score(queries, keys) + bias)
      context = weights . values

  Fully masked rows return zero context, zero weights and logsumexp -inf, with zero gradients. Masked
  positions never affect outputs or gradients, even if they hold NaN. A query that attends to NaN or infinity
  returns NaN, with zero gradients. Scores, softmax and sums are computed in float32 (float64 for float64
  inputs).

  Outside `jax.jit`, calls are compiled and cached by shapes and options, but not those with user-defined
  functions or classes, which may refer to values that change. Put such calls inside `jax.jit`.

  Args:
    score: a score function: `ScaledDotProduct()`, `Additive(score_vector)`, `Bilinear(matrix)`,
      `Cosine(scale)`, or a user-defined `Score`.
    queries: [... T H]. Leading axes of all inputs broadcast; heads are a leading axis.
    keys: [... S H].
    values: [... S D]. Queries, keys and values must have the same floating-point dtype.
    mask: a mask from `attention.masks`, or a boolean array broadcastable to [... T S]. True means "may
      attend".
    bias: added to the scores: an array broadcastable to [... T S], or a function of query and key positions
      that returns the bias of a pair. It is applied to each pair under `jax.vmap`, so use t and s elementwise
      or as indices: `table[t, s]`. A bias of -inf masks a pair.
    dropout_rate: probability of dropping a weight, in [0, 1): a number or a scalar array. It may be traced;
      a new rate does not recompile.
    dropout_rng: PRNG key, required if `dropout_rate` is not 0.
    normalizer: maps scores to weights. Default: `Softmax()`. Others, such as `Sparsemax()` or a user-defined
      `Normalizer`, have no logsumexp.
    return_weights: also return the weights, before dropout.
    return_logsumexp: also return the logarithm of the softmax denominator.
    implementation: "dense" stores all scores. "blockwise" uses memory linear in T + S, except for returned
      weights; sums of values near the largest float may overflow. "auto" uses "blockwise" for more than 2^24
      scores and, on CPUs, for T S of at least 2^16 if no weights are returned; otherwise, and for arrays with
      explicit sharding, "dense". A symbolic size of `jax.export` counts as 4,096.
    block_sizes: maximum tile size of "blockwise", (queries, keys). Default: chosen for speed. No effect on
      "dense", nor on the choice of "auto".

  Returns:
    The context, [... T D]. With `return_weights` or `return_logsumexp`, an `AttentionOutput` of the context,
    the weights [... T S] and the logsumexp [... T]; those not requested are None. All have the dtype of the
    inputs, but the logsumexp has at least float32.

  Raises:
    ValueError: if shapes or dtypes are incompatible, or an option is invalid.

  References:
    Bahdanau et al. 2015, arXiv:1409.0473, equations 5 and 6; Vaswani et al. 2017, arXiv:1706.03762, section
    3.2.

  >>> import jax.numpy as jnp
  >>> queries, keys = jnp.array([[0.0, 9.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
  >>> attend(ScaledDotProduct(scale=1.0), queries, keys, jnp.array([[5.0], [7.0]])).round(2).tolist()
  [[7.0]]
  """
  options, settings = check_options(
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
  queries, keys, values = check_vectors(queries=queries, keys=keys, values=values)
  return settings.select_output(attend_checked(queries, keys, values, options, settings=settings))


@functools.partial(eager_jit, static_argnames=("settings",))
def attend_checked(
  queries: jax.Array, keys: jax.Array, values: jax.Array, options: Options, *, settings: Settings
) -> AttentionOutput:
  """Computes `attend` from validated arguments."""
  dtype = queries.dtype
  return_weights, return_logsumexp, implementation, block_sizes = settings
  if implementation == "auto":
    implementation = choose_implementation(queries, keys, values, return_weights)
    implementation = "dense" if options.normalizer.whole_rows else implementation
  with jax.default_matmul_precision(matmul_precision()), mesh_of(queries, keys, values):
    inputs, shape = prepare(queries, keys, values, options)
    if implementation == "dense":
      output = dense(inputs, shape)
    else:
      output = blockwise(inputs, shape, block_sizes=block_sizes)
      if return_weights:
        output = output._replace(weights=dense(inputs, shape).weights)
  return AttentionOutput(
    output.context.astype(dtype),
    output.weights.astype(dtype) if return_weights else None,
    output.logsumexp if return_logsumexp else None,
  )


def scaled_dot_product_attention(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  scale: jax.Array | float | None = None,
  **options: Unpack[AttendOptions],
) -> Any:
  """Computes scaled dot-product attention.

      context = softmax(queries keys^T / sqrt(H)) values

  Args:
    queries: [... T H].
    keys: [... S H].
    values: [... S D].
    scale: factor of the scores. Default: 1 / sqrt(H).
    **options: those of `attend`: mask, bias, dropout_rate, dropout_rng, normalizer, return_weights,
      return_logsumexp, implementation, block_sizes.

  See `attend` for the result and the errors.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, equation 1.

  >>> import jax.numpy as jnp
  >>> scaled_dot_product_attention(jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.ones((5, 7))).shape
  (3, 7)
  """
  return attend(ScaledDotProduct(scale), queries, keys, values, **options)


def additive_attention(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  score_vector: jax.Array,
  **options: Unpack[AttendOptions],
) -> Any:
  """Computes additive (Bahdanau) attention.

      context = softmax(score_vector . tanh(queries + keys)) values

  Args:
    queries: projected queries, [... T A].
    keys: projected keys, [... S A].
    values: [... S D].
    score_vector: [A], or [... A] with leading axes that broadcast.
    **options: those of `attend`: mask, bias, dropout_rate, dropout_rng, normalizer, return_weights,
      return_logsumexp, implementation, block_sizes.

  See `attend` for the result and the errors.

  References:
    Bahdanau et al. 2015, arXiv:1409.0473, A.1.2.

  >>> import jax.numpy as jnp
  >>> additive_attention(jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.ones((5, 7)), jnp.ones(2)).shape
  (3, 7)
  """
  return attend(Additive(score_vector), queries, keys, values, **options)


def bilinear_attention(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  matrix: jax.Array,
  **options: Unpack[AttendOptions],
) -> Any:
  """Computes bilinear (Luong "general") attention.

      context = softmax(queries matrix keys^T) values

  Args:
    queries: [... T H].
    keys: [... S K].
    values: [... S D].
    matrix: [H K], or [... H K] with leading axes that broadcast.
    **options: those of `attend`: mask, bias, dropout_rate, dropout_rng, normalizer, return_weights,
      return_logsumexp, implementation, block_sizes.

  See `attend` for the result and the errors.

  References:
    Luong et al. 2015, arXiv:1508.04025, section 3.1, "general".

  >>> import jax.numpy as jnp
  >>> bilinear_attention(jnp.ones((3, 2)), jnp.ones((5, 4)), jnp.ones((5, 7)), jnp.ones((2, 4))).shape
  (3, 7)
  """
  return attend(Bilinear(matrix), queries, keys, values, **options)


def cosine_attention(
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  scale: jax.Array | float = 1.0,
  **options: Unpack[AttendOptions],
) -> Any:
  """Computes attention with cosine similarity.

      context = softmax(scale cosine(queries, keys)) values

  Args:
    queries: [... T H]. A zero vector scores 0 against every key.
    keys: [... S H].
    values: [... S D].
    scale: factor of the cosine.
    **options: those of `attend`: mask, bias, dropout_rate, dropout_rng, normalizer, return_weights,
      return_logsumexp, implementation, block_sizes.

  See `attend` for the result and the errors.

  References:
    Graves et al. 2014, arXiv:1410.5401, equations 5 and 6; `scale` is the paper's key strength.

  >>> import jax.numpy as jnp
  >>> cosine_attention(jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.ones((5, 7)), scale=4.0).shape
  (3, 7)
  """
  return attend(Cosine(scale), queries, keys, values, **options)
