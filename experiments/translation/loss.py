"""The cross-entropy of words of a large vocabulary, without the logits of all positions at once."""

import functools

import jax
import jax.numpy as jnp

from attention.arrays.devices import compute_dtype
from attention.engines.plan import even_blocks
from experiments.text.vocabularies import PAD

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
    targets: which of the V words is right, integers [N]; PAD for none.
    smoothing: which share of the weight is spread over all words, in [0, 1).

  Returns:
    One number, float32, or float64 where that goes in.
  """
  return _in_parts(hidden, kernel, bias, targets, smoothing, has_gradients=False)[0]


def _with_gradients(hidden, kernel, bias, targets, smoothing) -> tuple[jax.Array, Gradients]:
  return _in_parts(hidden, kernel, bias, targets, smoothing, has_gradients=True)


def _scaled(smoothing: float, gradients: Gradients, scale: jax.Array):
  return *(gradient * scale.astype(gradient.dtype) for gradient in gradients), None


linear_cross_entropy.defvjp(_with_gradients, _scaled)


def linear_losses(hidden: jax.Array, kernel: jax.Array, bias: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each target, in nats, [N], zero at padding; as `linear_cross_entropy`.

  It has no rule of differentiation of its own: it is for models that are not trained.

  >>> losses = linear_losses(jnp.ones((2, 3)), jnp.zeros((3, 4)), jnp.zeros(4), jnp.array([1, PAD]))
  >>> [round(loss, 2) for loss in losses.tolist()]
  [1.39, 0.0]
  """
  N, V = len(targets), kernel.shape[1]
  hidden, targets = _cut(hidden, targets, V)

  def part(inputs):
    hidden, targets = inputs
    return jnp.where(targets != PAD, _Softmax(hidden, kernel, bias).losses(targets, 0.0), 0.0)

  return jax.lax.map(part, (hidden, targets)).reshape(-1)[:N]


def _cut(hidden: jax.Array, targets: jax.Array, V: int) -> tuple[jax.Array, jax.Array]:
  """Returns hidden [M n H] and targets [M n] in M parts, the last one filled with padding."""
  N, H = hidden.shape
  blocks = even_blocks(N, max(1, LOGITS_AT_ONCE // V))
  padding = (0, blocks.beyond_end)
  hidden = jnp.pad(hidden, (padding, (0, 0))).reshape(blocks.count, blocks.size, H)
  return hidden, jnp.pad(targets, padding, constant_values=PAD).reshape(blocks.count, blocks.size)


class _Softmax:
  """The softmax of the logits [n V] of a part."""

  def __init__(self, hidden: jax.Array, kernel: jax.Array, bias: jax.Array):
    dtype = compute_dtype(hidden.dtype)
    logits = jnp.einsum("NH,HV->NV", hidden, kernel, preferred_element_type=dtype) + bias[None].astype(dtype)
    self._logits = logits
    self._largest = jnp.max(logits, axis=-1, keepdims=True)
    self._exponentials = jnp.exp(logits - self._largest)
    self._total = jnp.sum(self._exponentials, axis=-1, keepdims=True)

  def losses(self, targets: jax.Array, smoothing: float) -> jax.Array:
    """Returns the loss of each target, [n]."""
    right = jnp.take_along_axis(self._logits, targets[:, None], axis=-1)
    mean = jnp.mean(self._logits, axis=-1, keepdims=True)
    losses = jnp.log(self._total) + self._largest - (1 - smoothing) * right - smoothing * mean
    return losses[:, 0]

  def d_logits(self, targets: jax.Array, smoothing: float) -> jax.Array:
    """Returns the gradient of the losses, [n V]."""
    V = self._logits.shape[-1]
    is_right = (targets[:, None] == jnp.arange(V)[None]).astype(self._logits.dtype)
    return self._exponentials / self._total - (1 - smoothing) * is_right - smoothing / V


def _in_parts(
  hidden: jax.Array,
  kernel: jax.Array,
  bias: jax.Array,
  targets: jax.Array,
  smoothing: float,
  *,
  has_gradients: bool,
) -> tuple[jax.Array, Gradients]:
  """Returns the loss and its gradients by hidden, kernel and bias, zeros if they are not asked for."""
  N, H = hidden.shape
  hidden, targets = _cut(hidden, targets, kernel.shape[1])
  dtype = compute_dtype(hidden.dtype)

  def part(carry, inputs):
    loss, (d_kernel, d_bias) = carry
    hidden, targets = inputs
    softmax = _Softmax(hidden, kernel, bias)
    is_real = (targets != PAD).astype(dtype)
    loss += jnp.sum(softmax.losses(targets, smoothing) * is_real)
    if not has_gradients:
      return (loss, (d_kernel, d_bias)), jnp.zeros_like(hidden)
    d_logits = softmax.d_logits(targets, smoothing) * is_real[:, None]
    d_hidden = jnp.einsum("NV,HV->NH", d_logits.astype(kernel.dtype), kernel)
    # Held position-last, so that the product comes out in the order that is fast on a CPU.
    turned = jax.lax.optimization_barrier(hidden.T)
    d_kernel += jnp.einsum("HN,NV->HV", turned, d_logits.astype(hidden.dtype), preferred_element_type=dtype)
    return (loss, (d_kernel, d_bias + jnp.sum(d_logits, axis=0))), d_hidden

  nothing = jnp.zeros((), dtype), (jnp.zeros(kernel.shape, dtype), jnp.zeros(bias.shape, dtype))
  (loss, (d_kernel, d_bias)), d_hidden = jax.lax.scan(part, nothing, (hidden, targets))
  return loss, (d_hidden.reshape(-1, H)[:N], d_kernel.astype(kernel.dtype), d_bias.astype(bias.dtype))
