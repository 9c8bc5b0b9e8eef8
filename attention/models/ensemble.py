"""Several translators that translate as one."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """The mean of what several translators expect: of their probabilities, and of their attention.

      log p(y_t | y_<t, x) = log(1/M sum_m p_m(y_t | y_<t, x))

  It is called like `Seq2Seq` by a search: `ensemble.apply({"params": [first, second]}, ..., method="step")`.

  Source: Hansen and Salamon 1990, "Neural Network Ensembles"; for translation Sutskever et al. 2014,
  arXiv:1409.3215, section 3.6.

  Attributes:
    members: modules such as `Seq2Seq`, of the same vocabularies; one module may be several members.
  """

  members: tuple[nn.Module, ...]

  def apply(self, variables: Any, *arguments: Any, method: str) -> Any:
    """Returns what a method, "encode" or "step", returns.

    Args:
      variables: {"params": the parameters of each member}.
      *arguments: of the method.
      method: its name.

    Raises:
      ValueError: if there are not as many parameters as members, or there is no such method.
    """
    params = variables["params"]
    if len(params) != len(self.members):
      raise ValueError(f"params must be of {len(self.members)} members, got {len(params)}")
    if method not in ("encode", "step"):
      raise ValueError(f"method must be encode or step, got {method!r}")
    return self._encode(params, arguments) if method == "encode" else self._step(params, *arguments)

  def _encode(self, params: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the first state and the memory of each member."""
    members = zip(self.members, params, strict=True)
    encoded = [member.apply({"params": own}, *arguments, method="encode") for member, own in members]
    return tuple(zip(*encoded, strict=True))

  def _step(
    self, params: Any, state: Any, tokens: jax.Array, memory: Any
  ) -> tuple[Any, jax.Array, jax.Array | None]:
    """Returns the next states, log-probabilities [B V] and weights [B S] after the tokens [B].

    The weights are the mean of those members that have any; None if none has.
    """
    steps: Any = [
      member.apply({"params": own}, before, tokens, its, method="step")
      for member, own, before, its in zip(self.members, params, state, memory, strict=True)
    ]
    states, logits, weights = zip(*steps, strict=True)
    expected = jnp.stack([jax.nn.log_softmax(each) for each in logits])
    there = [each for each in weights if each is not None]
    mean = jnp.mean(jnp.stack(there), axis=0) if there else None
    return states, jax.nn.logsumexp(expected, axis=0) - math.log(len(self.members)), mean
