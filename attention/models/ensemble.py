"""Flax: several translators that translate as one."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class Ensemble(nn.Module):
  """The mean of what several translators expect: of their probabilities, and of their attention.

      log p(y_t | y_<t, x) = log(1/M sum_m p_m(y_t | y_<t, x))

  It has the methods of `Seq2Seq` that a search needs. The parameters of a member stand under "members_0",
  "members_1" and so on: those of models that were trained apart are `{"params": {"members_0": ..., ...}}`.

  Source: Hansen and Salamon 1990, "Neural Network Ensembles"; for translation Sutskever et al. 2014,
  arXiv:1409.3215, section 3.6.

  Attributes:
    members: modules such as `Seq2Seq`, of the same vocabularies.
  """

  members: tuple[nn.Module, ...]

  def encode(self, sources: jax.Array, source_lengths: jax.Array) -> tuple[Any, Any]:
    """Returns the first state and the memory of each member, for `step`."""
    encoded: Any = [member.encode(sources, source_lengths) for member in self.members]
    states, memories = zip(*encoded, strict=True)
    return states, memories

  def step(self, state: Any, tokens: jax.Array, memory: Any) -> tuple[Any, jax.Array, jax.Array | None]:
    """Returns the next states, log-probabilities [B V] and weights [B S] after the tokens [B].

    The weights are the mean of those members that have any; None if none has.
    """
    steps: Any = [
      member.step(own, tokens, its) for member, own, its in zip(self.members, state, memory, strict=True)
    ]
    states, logits, weights = zip(*steps, strict=True)
    expected = jnp.stack([jax.nn.log_softmax(each) for each in logits])
    there = [each for each in weights if each is not None]
    mean = jnp.mean(jnp.stack(there), axis=0) if there else None
    return states, jax.nn.logsumexp(expected, axis=0) - math.log(len(self.members)), mean
