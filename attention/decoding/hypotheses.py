"""The arguments and results of decoding."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

from attention.arrays.checks import check_size, check_token

# step(state, tokens [B]) -> (state, logits [B V], weights [B S] or None)
Step: TypeAlias = Callable[[Any, jax.Array], tuple[Any, jax.Array, jax.Array | None]]


class SearchResult(NamedTuple):
  """The result of decoding.

  Attributes:
    tokens: [B T], including the end symbol, then padding; for beam search [B n_best T], best first.
    scores: log-probability of each sequence in nats, including the end symbol, float32 [B]; for beam search
      [B n_best], divided by the length penalty.
    weights: attention weights of each token, [B T S] or [B n_best T S], zero after the end; None if the step
      function returns none.
  """

  tokens: jax.Array
  scores: jax.Array
  weights: jax.Array | None


def check_search(batch_size: int, max_length: int, bos_id: int, eos_id: int, pad_id: int) -> tuple[Any, ...]:
  """Returns the validated arguments of a search, with sizes as int and tokens as int32."""
  sizes = check_size("batch_size", batch_size, least=0), check_size("max_length", max_length)
  return *sizes, check_token("bos_id", bos_id), check_token("eos_id", eos_id), check_token("pad_id", pad_id)
