"""The cross-entropy of words of a large vocabulary, without the logits of all positions at once."""

import functools

import jax
import jax.numpy as jnp

from attention.arrays.sharding import compute_dtype
from attention.engines.tiling import even_blocks
from experiments.text.vocabularies import PAD_ID

# So many logits are held at once: few enough for the cache of a CPU, enough for large products.
LOGITS_AT_ONCE = 3 * 2**20

Gradients = tuple[jax.Array, jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def linear_cross_entropy(
  hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array, smoothing: float = 0.0
) -> jax.Array:
  """Returns the cross-entropy summed over all targets that are no padding, in nats, [].

      logits = hidden kernel + bias
      loss = sum over n of  logsumexp(logits[n])
             - (1 - smoothing) logits[n, targets[n]] - smoothing mean over v of logits[n, v]

  The logits of some positions are made, used and forgotten before those of the next; so are their gradients,
  in the same turn. There is no forward mode, and no second derivative.

  Source: for the smoothing Szegedy et al. 2016, arXiv:1512.00567, section 7; with the whole weight spread
  over all V words.

  Args:
    hidden: [N H], finite at padding too.
    kernel: [H V].
    bias: [V].
    targets: which of the V words is right, integers [N]; PAD_ID for none.
    smoothing: which share of the weight is spread over all words, in [0, 1).

  Returns:
    One number, float32, or float64 where that goes in.
  """
  return _with_gradients(hidden, kernel, bias, targets, smoothing)[0]


def _with_gradients(
  hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array, smoothing: float
) -> tuple[jax.Array, Gradients]:
  """Returns the loss and its gradients by hidden, kernel and bias."""
  N, H = hidden.shape
  hidden, targets = _cut(hidden, targets, kernel.shape[1])
  dtype = compute_dtype(hidden.dtype)

  def part(carry, inputs):
    loss, d_kernel, d_bias = carry
    hidden, targets = inputs
    losses, d_logits = _softmax_losses(hidden, kernel, bias, targets, smoothing)
    d_hidden = jnp.einsum("NV,HV->NH", d_logits.astype(kernel.dtype), kernel)
    # Held position-last, so that the product comes out in the order that is fast on a CPU.
    turned = jax.lax.optimization_barrier(hidden.T)
    d_kernel += jnp.einsum("HN,NV->HV", turned, d_logits.astype(hidden.dtype), preferred_element_type=dtype)
    return (loss + jnp.sum(losses), d_kernel, d_bias + jnp.sum(d_logits, axis=0)), d_hidden

  nothing = jnp.zeros((), dtype), jnp.zeros(kernel.shape, dtype), jnp.zeros(bias.shape, dtype)
  (loss, d_kernel, d_bias), d_hidden = jax.lax.scan(part, nothing, (hidden, targets))
  return loss, (d_hidden.reshape(-1, H)[:N], d_kernel.astype(kernel.dtype), d_bias.astype(bias.dtype))


def _scaled(smoothing: float, gradients: Gradients, scale: jax.Array):
  return *(gradient * scale.astype(gradient.dtype) for gradient in gradients), None


linear_cross_entropy.defvjp(_with_gradients, _scaled)


def linear_losses(hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each target, in nats, [N], zero at padding; as `linear_cross_entropy`.

  It has no rule of differentiation of its own: it is for models that are not trained.

  >>> losses = linear_losses(jnp.ones((2, 3)), jnp.zeros((3, 4)), jnp.zeros(4), jnp.array([1, PAD_ID]))
  >>> [round(loss, 2) for loss in losses.tolist()]
  [1.39, 0.0]
  """
  parts = _cut(hidden, targets, kernel.shape[1])
  losses = jax.lax.map(lambda part: _softmax_losses(part[0], kernel, bias, part[1], 0.0)[0], parts)
  return losses.reshape(-1)[: len(targets)]


def _cut(hidden: jax.Array, targets: jax.Array, V: int) -> tuple[jax.Array, jax.Array]:
  """Returns hidden [M n H] and targets [M n] in M parts, the last one filled with padding."""
  N, H = hidden.shape
  blocks = even_blocks(N, max(1, LOGITS_AT_ONCE // V))
  padding = (0, blocks.padding)
  hidden = jnp.pad(hidden, (padding, (0, 0))).reshape(blocks.count, blocks.size, H)
  return hidden, jnp.pad(targets, padding, constant_values=PAD_ID).reshape(blocks.count, blocks.size)


def _softmax_losses(
  hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array, smoothing: float
) -> tuple[jax.Array, jax.Array]:
  """Returns the loss of each target of a part, [n], and the gradient of their sum by the logits, [n V]."""
  V, dtype = kernel.shape[1], compute_dtype(hidden.dtype)
  logits = jnp.einsum("NH,HV->NV", hidden, kernel, preferred_element_type=dtype) + bias[None].astype(dtype)
  largest = jnp.max(logits, axis=-1, keepdims=True)
  exponentials = jnp.exp(logits - largest)
  total = jnp.sum(exponentials, axis=-1, keepdims=True)
  right = jnp.take_along_axis(logits, targets[:, None], axis=-1)
  mean = jnp.mean(logits, axis=-1, keepdims=True)
  losses = jnp.log(total) + largest - (1 - smoothing) * right - smoothing * mean
  is_right = (targets[:, None] == jnp.arange(V)[None]).astype(dtype)
  d_logits = exponentials / total - (1 - smoothing) * is_right - smoothing / V
  is_real = targets != PAD_ID
  return jnp.where(is_real, losses[:, 0], 0.0), d_logits * is_real[:, None].astype(dtype)
