"""Cross-entropy for large vocabularies, computed in chunks of positions to limit the memory of the logits."""

import functools

import jax
import jax.numpy as jnp

from attention.arrays.dtypes import compute_dtype
from attention.engines.plan import even_blocks
from experiments.text.vocabularies import PAD_ID

# Maximum number of logits per chunk: small enough for the cache of a CPU, large enough for fast matmuls.
MAX_CHUNK_LOGITS = 3 * 2**20

Gradients = tuple[jax.Array, jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def linear_cross_entropy(
  hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array, smoothing: float = 0.0
) -> jax.Array:
  """Returns the cross-entropy summed over all targets except padding, in nats, [].

      logits = hidden kernel + bias
      loss = sum over n of  logsumexp(logits[n])
             - (1 - smoothing) logits[n, targets[n]] - smoothing mean over v of logits[n, v]

  Loss and gradients are computed together, one chunk of positions at a time. Forward-mode and second
  derivatives are not supported.

  Args:
    hidden: [N H]. Must be finite at padding positions too.
    kernel: [H V].
    bias: [V].
    targets: target ids, integers [N], PAD_ID for padding.
    smoothing: label smoothing in [0, 1), distributed over all V words.

  Returns:
    A scalar, float32, or float64 for float64 inputs.

  References:
    Label smoothing: Szegedy et al. 2016, arXiv:1512.00567, section 7.
  """
  return _with_gradients(hidden, kernel, bias, targets, smoothing)[0]


def _with_gradients(
  hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array, smoothing: float
) -> tuple[jax.Array, Gradients]:
  """Returns the loss and its gradients with respect to hidden, kernel and bias."""
  N, H = hidden.shape
  hidden, targets = _split_chunks(hidden, targets, kernel.shape[1])
  dtype = compute_dtype(hidden.dtype)

  def chunk_fn(carry, inputs):
    loss, d_kernel, d_bias = carry
    hidden, targets = inputs
    losses, d_logits = _softmax_losses(hidden, kernel, bias, targets, smoothing)
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


def _backward(smoothing: float, gradients: Gradients, scale: jax.Array):
  return *(gradient * scale.astype(gradient.dtype) for gradient in gradients), None


linear_cross_entropy.defvjp(_with_gradients, _backward)


def linear_losses(hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each target in nats, [N], zero at padding.

  It is for evaluation: unlike `linear_cross_entropy`, its gradients are not computed in chunks.

  >>> losses = linear_losses(jnp.ones((2, 3)), jnp.zeros((3, 4)), jnp.zeros(4), jnp.array([1, PAD_ID]))
  >>> [round(loss, 2) for loss in losses.tolist()]
  [1.39, 0.0]
  """
  chunks = _split_chunks(hidden, targets, kernel.shape[1])
  losses = jax.lax.map(lambda chunk: _softmax_losses(chunk[0], kernel, bias, chunk[1], 0.0)[0], chunks)
  return losses.reshape(-1)[: len(targets)]


def _split_chunks(hidden: jax.Array, targets: jax.Array, V: int) -> tuple[jax.Array, jax.Array]:
  """Returns hidden [M n H] and targets [M n] in M chunks, with padding in the last one."""
  N, H = hidden.shape
  blocks = even_blocks(N, max(1, MAX_CHUNK_LOGITS // V))
  padding = (0, blocks.padding)
  hidden = jnp.pad(hidden, (padding, (0, 0))).reshape(blocks.count, blocks.size, H)
  return hidden, jnp.pad(targets, padding, constant_values=PAD_ID).reshape(blocks.count, blocks.size)


def _softmax_losses(
  hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array, smoothing: float
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
  is_valid = targets != PAD_ID
  return jnp.where(is_valid, losses[:, 0], 0.0), d_logits * is_valid[:, None].astype(dtype)
