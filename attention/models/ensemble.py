"""Ensembles of sequence-to-sequence models."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """Averages the probabilities and attention weights of several models.

      log p(y_t | y_<t, x) = log(1/M sum_m p_m(y_t | y_<t, x))

  A search calls it like `Seq2Seq`: `ensemble.apply({"params": [first, second]}, ..., method="step")`.

  Attributes:
    members: modules such as `Seq2Seq` with the same vocabularies. The same module may occur several times.

  References:
    Hansen and Salamon 1990, "Neural Network Ensembles"; for translation: Sutskever et al. 2014,
    arXiv:1409.3215, section 3.6.
  """

  members: tuple[nn.Module, ...]

  def apply(self, variables: Any, *arguments: Any, method: str) -> Any:
    """Calls the method "encode" or "step" of all members.

    Args:
      variables: {"params": a list with the parameters of each member}.
      *arguments: arguments of the method.
      method: "encode" or "step".

    Raises:
      ValueError: if the number of parameters differs from the number of members, or the method is invalid.
    """
    params = variables["params"]
    if len(params) != len(self.members):
      raise ValueError(f"params must have one entry per member, {len(self.members)}, got {len(params)}")
    if method not in ("encode", "step"):
      raise ValueError(f"method must be encode or step, got {method!r}")
    return self._encode(params, arguments) if method == "encode" else self._step(params, *arguments)

  def _encode(self, params: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the initial states and the memories of all members."""
    members = zip(self.members, params, strict=True)
    encoded = [
      member.apply({"params": member_params}, *arguments, method="encode")
      for member, member_params in members
    ]
    return tuple(zip(*encoded, strict=True))

  def _step(
    self, params: Any, state: Any, tokens: jax.Array, memory: Any
  ) -> tuple[Any, jax.Array, jax.Array | None]:
    """Returns the next states, log-probabilities [B V] and weights [B S] after the tokens [B].

    The weights are the mean over members with attention, or None if there are none.
    """
    steps: Any = [
      member.apply({"params": member_params}, member_state, tokens, member_memory, method="step")
      for member, member_params, member_state, member_memory in zip(
        self.members, params, state, memory, strict=True
      )
    ]
    states, logits, all_weights = zip(*steps, strict=True)
    log_probabilities = jnp.stack([jax.nn.log_softmax(member_logits) for member_logits in logits])
    weights = [member_weights for member_weights in all_weights if member_weights is not None]
    mean_weights = jnp.mean(jnp.stack(weights), axis=0) if weights else None
    return states, jax.nn.logsumexp(log_probabilities, axis=0) - math.log(len(self.members)), mean_weights
