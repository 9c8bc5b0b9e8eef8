"""Losses of attention weights, and the cross-entropy of large vocabularies."""

import functools

import jax
import jax.numpy as jnp

from attention.arrays.blocks import even_blocks
from attention.arrays.checks import as_array, as_floating, as_integers, check_rank
from attention.arrays.dtypes import compute_dtype
from attention.arrays.shapes import with_rank

# Maximum number of logits per chunk: small enough for the cache of a CPU, large enough for fast matmuls.
MAX_CHUNK_LOGITS = 3 * 2**20

Gradients = tuple[jax.Array, jax.Array, jax.Array]


def alignment_loss(weights: jax.Array, links: jax.Array) -> jax.Array:
  """Returns the cross-entropy between attention weights and a known alignment, in nats, summed over targets.

      loss = - sum over t, s of A[t, s] log weights[t, s],   A = links / (number of links of t)

  A target without links does not contribute. Weights are clipped to at least 1e-9, with zero gradient below.

  Args:
    weights: attention weights, [... T S].
    links: which sources each target is aligned with, booleans [... T S].

  Returns:
    One loss per sentence, [...], at least float32.

  Raises:
    ValueError: if the shapes differ.

  References:
    Chen et al. 2016, arXiv:1607.01628 (their mean over targets is a sum here).

  >>> weights = jnp.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
  >>> links = jnp.array([[True, False, False], [False, False, False]])
  >>> f"{alignment_loss(weights, links):.2f}"
  '0.69'
  """
  weights, links = as_floating("weights", weights), as_array("links", links)
  check_rank("weights", weights, "[... T S]")
  if weights.shape != links.shape:
    raise ValueError(f"weights and links must have the same shape, got {weights.shape} and {links.shape}")
  if jnp.issubdtype(links.dtype, jnp.complexfloating):
    raise ValueError(f"links must be booleans, got {links.dtype}")
  weights = weights.astype(compute_dtype(weights.dtype))
  labels = links.astype(weights.dtype)
  labels /= jnp.maximum(jnp.sum(labels, axis=-1, keepdims=True), 1)
  # Weights without a link may be 0, and the derivative of log(0) is not finite.
  log_weights = jnp.log(jnp.where(links, jnp.maximum(weights, 1e-9), 1))
  return -jnp.sum(labels * log_weights, axis=(-2, -1))


def coverage_loss(weights: jax.Array, lengths: jax.Array) -> jax.Array:
  """Returns a penalty for attending to the same source repeatedly, summed over targets.

      coverage[t] = sum over t' < t of weights[t']
      loss = sum over t, s of min(weights[t, s], coverage[t, s])

  Args:
    weights: attention weights, [... T S].
    lengths: number of valid targets, integers [...].

  Returns:
    One loss per sentence, [...], at least float32.

  Raises:
    ValueError: if the shapes are incompatible.

  References:
    See et al. 2017, arXiv:1704.04368, equations 10 and 12 (without their factor).

  >>> twice = jnp.array([[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]])
  >>> coverage_loss(twice, jnp.array(2)).tolist(), coverage_loss(twice, jnp.array(3)).tolist()
  (0.25, 1.0)
  """
  weights, lengths = as_floating("weights", weights), as_integers("lengths", lengths)
  if weights.ndim < 2 or lengths.shape != weights.shape[:-2]:
    raise ValueError(
      f"weights must be [... T S] and lengths [...], got weights {weights.shape}, lengths {lengths.shape}"
    )
  weights = weights.astype(compute_dtype(weights.dtype))
  coverage = jnp.cumsum(weights, axis=-2) - weights
  losses = jnp.sum(jnp.minimum(weights, coverage), axis=-1)
  positions = with_rank(jnp.arange(weights.shape[-2]), lengths.ndim + 1)
  is_valid = positions < lengths[..., None]
  return jnp.sum(jnp.where(is_valid, losses, 0), axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def linear_cross_entropy(
  hidden: jax.Array,
  kernel: jax.Array,
  bias: jax.Array,
  targets: jax.Array,
  smoothing: float = 0.0,
  pad_id: int = 0,
) -> jax.Array:
  """Returns the cross-entropy of logits over a large vocabulary, summed over all targets, in nats, [].

      logits = hidden kernel + bias
      loss = sum over n of  logsumexp(logits[n])
             - (1 - smoothing) logits[n, targets[n]] - smoothing mean over v of logits[n, v]

  Loss and gradients are computed together, one chunk of positions at a time, to limit the memory of the
  logits. Forward-mode and second derivatives are not supported.

  Args:
    hidden: [N H]. Must be finite at padding positions too.
    kernel: [H V].
    bias: [V].
    targets: target ids, integers [N].
    smoothing: label smoothing in [0, 1), distributed over all V words. Static.
    pad_id: target id of padding, which is not counted. Static.

  Returns:
    A scalar, float32, or float64 for float64 inputs.

  References:
    Label smoothing: Szegedy et al. 2016, arXiv:1512.00567, section 7.
  """
  return _with_gradients(hidden, kernel, bias, targets, smoothing, pad_id)[0]


def _with_gradients(
  hidden: jax.Array,
  kernel: jax.Array,
  bias: jax.Array,
  targets: jax.Array,
  smoothing: float,
  pad_id: int,
) -> tuple[jax.Array, Gradients]:
  """Returns the loss and its gradients with respect to hidden, kernel and bias."""
  N, H = hidden.shape
  hidden, targets = _split_chunks(hidden, targets, kernel.shape[1], pad_id)
  dtype = compute_dtype(hidden.dtype)

  def chunk_fn(carry, inputs):
    loss, d_kernel, d_bias = carry
    hidden, targets = inputs
    losses, d_logits = _softmax_losses(hidden, kernel, bias, targets, smoothing, pad_id)
    d_hidden = jnp.einsum("NV,HV->NH", d_logits.astype(kernel.dtype), kernel)
    # The barrier keeps the transposed layout, which makes this product fast on a CPU.
    hidden_HN = jax.lax.optimization_barrier(hidden.T)
    d_kernel += jnp.einsum(
      "HN,NV->HV", hidden_HN, d_logits.astype(hidden.dtype), preferred_element_type=dtype
    )
    return (loss + jnp.sum(losses), d_kernel, d_bias + jnp.sum(d_logits, axis=0)), d_hidden

  initial = jnp.zeros((), dtype), jnp.zeros(kernel.shape, dtype), jnp.zeros(bias.shape, dtype)
  (loss, d_kernel, d_bias), d_hidden = jax.lax.scan(chunk_fn, initial, (hidden, targets))
  return loss, (d_hidden.reshape(-1, H)[:N], d_kernel.astype(kernel.dtype), d_bias.astype(bias.dtype))


def _backward(smoothing: float, pad_id: int, gradients: Gradients, scale: jax.Array):
  return *(gradient * scale.astype(gradient.dtype) for gradient in gradients), None


linear_cross_entropy.defvjp(_with_gradients, _backward)


def linear_losses(
  hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array, pad_id: int = 0
) -> jax.Array:
  """Returns the cross-entropy of each target in nats, [N], zero at padding.

  It is for evaluation: unlike `linear_cross_entropy`, its gradients are not computed in chunks.

  >>> losses = linear_losses(jnp.ones((2, 3)), jnp.zeros((3, 4)), jnp.zeros(4), jnp.array([1, 0]))
  >>> [round(loss, 2) for loss in losses.tolist()]
  [1.39, 0.0]
  """
  chunks = _split_chunks(hidden, targets, kernel.shape[1], pad_id)

  def of_chunk(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
    hidden, targets = chunk
    return _softmax_losses(hidden, kernel, bias, targets, 0.0, pad_id)[0]

  losses = jax.lax.map(of_chunk, chunks)
  return losses.reshape(-1)[: len(targets)]


def _split_chunks(hidden: jax.Array, targets: jax.Array, V: int, pad_id: int) -> tuple[jax.Array, jax.Array]:
  """Returns hidden [M n H] and targets [M n] in M chunks, with padding in the last one."""
  N, H = hidden.shape
  blocks = even_blocks(N, max(1, MAX_CHUNK_LOGITS // V))
  padding = (0, blocks.padding)
  hidden = jnp.pad(hidden, (padding, (0, 0))).reshape(blocks.count, blocks.size, H)
  return hidden, jnp.pad(targets, padding, constant_values=pad_id).reshape(blocks.count, blocks.size)


def _softmax_losses(
  hidden: jax.Array,
  kernel: jax.Array,
  bias: jax.Array,
  targets: jax.Array,
  smoothing: float,
  pad_id: int,
) -> tuple[jax.Array, jax.Array]:
  """Returns the loss of each target of a chunk, [n], and the gradient of the sum for the logits, [n V]."""
  V, dtype = kernel.shape[1], compute_dtype(hidden.dtype)
  logits = jnp.einsum("NH,HV->NV", hidden, kernel, preferred_element_type=dtype) + bias[None].astype(dtype)
  row_max = jnp.max(logits, axis=-1, keepdims=True)
  exponentials = jnp.exp(logits - row_max)
  denominator = jnp.sum(exponentials, axis=-1, keepdims=True)
  target_logits = jnp.take_along_axis(logits, targets[:, None], axis=-1)
  mean = jnp.mean(logits, axis=-1, keepdims=True)
  losses = jnp.log(denominator) + row_max - (1 - smoothing) * target_logits - smoothing * mean
  one_hot = (targets[:, None] == jnp.arange(V)[None]).astype(dtype)
  d_logits = exponentials / denominator - (1 - smoothing) * one_hot - smoothing / V
  is_valid = targets != pad_id
  return jnp.where(is_valid, losses[:, 0], 0.0), d_logits * is_valid[:, None].astype(dtype)
