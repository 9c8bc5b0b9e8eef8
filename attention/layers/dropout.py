"""Dropout of words, units, and units of recurrent states.

All use the rng "dropout", unless they are deterministic or the rate is 0.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.engines import dropout


def unit_dropout(rate: float, *, variational: bool = False) -> nn.Dropout:
  """Returns a layer that drops units of vectors [B T D].

  Args:
    rate: probability of dropping a unit.
    variational: if True, a unit is dropped at all T positions of a sentence or at none. If False, positions
      are independent.

  References:
    Variational dropout: Gal and Ghahramani 2016, arXiv:1512.05287, section 4.1.

  >>> kept = unit_dropout(0.5, variational=True).apply(
  ...   {}, jnp.ones((1, 3, 100)), deterministic=False, rngs={"dropout": jax.random.key(0)}
  ... )
  >>> sorted(set(jnp.sum(kept, axis=1).ravel().tolist()))
  [0.0, 6.0]
  """
  return nn.Dropout(rate, broadcast_dims=(1,) if variational else ())


class WordDropout(nn.Module):
  """Drops words: the vectors of a dropped word are zero at all its positions in a sentence.

  For example, in "the dog and the cat", "the" is dropped twice or not at all.

  Attributes:
    rate: probability of dropping a word.

  Raises:
    ValueError: if the rate is not in [0, 1).

  References:
    Gal and Ghahramani 2016, arXiv:1512.05287, section 4.2.
  """

  rate: float

  @nn.compact
  def __call__(self, embedded: jax.Array, tokens: jax.Array, *, deterministic: bool = True) -> jax.Array:
    """Returns the vectors [B T E] of tokens [B T] after dropout, with kept vectors divided by 1 - rate."""
    _check_rate("word_dropout_rate", self.rate)
    if deterministic or self.rate == 0:
      return embedded
    # Hash (sentence, word) instead of drawing a mask for the whole vocabulary, which could be large.
    sentences = jnp.arange(tokens.shape[0], dtype=jnp.uint32)[:, None]
    seeds = dropout.seeds(self.make_rng("dropout"))
    is_kept = dropout.keep(seeds, self.rate, sentences, tokens.astype(jnp.uint32))
    return jnp.where(is_kept[..., None], embedded / (1 - self.rate), 0)


class StateDropout(nn.Module):
  """Draws dropout masks for the recurrent products of `gru`, a new one at each call.

  Attributes:
    rate: probability of dropping a unit.

  Raises:
    ValueError: if the rate is not in [0, 1).

  References:
    Gal and Ghahramani 2016, arXiv:1512.05287, section 4.1.
  """

  rate: float

  @nn.compact
  def __call__(self, state: jax.Array, *, deterministic: bool = True) -> jax.Array | None:
    """Returns 0 or 1 / (1 - rate) for each unit of a state [B H], or None without dropout."""
    _check_rate("recurrent_dropout_rate", self.rate)
    if deterministic or self.rate == 0:
      return None
    is_kept = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.rate, state.shape)
    return is_kept.astype(state.dtype) / (1 - self.rate)


def _check_rate(name: str, rate: float) -> None:
  """Raises ValueError unless the rate is in [0, 1)."""
  if not 0.0 <= rate < 1.0:
    raise ValueError(f"{name} must be a number in [0, 1), got {rate!r}")
