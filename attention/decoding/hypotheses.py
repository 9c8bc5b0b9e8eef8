"""What a search asks for, and what it finds."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

from attention.arrays.checks import check_size, check_token

# step(state, tokens [B]) -> (state, logits [B V], weights [B S] or None)
Step: TypeAlias = Callable[[Any, jax.Array], tuple[Any, jax.Array, jax.Array | None]]


class SearchResult(NamedTuple):
  """What a search has found.

  Attributes:
    tokens: [B T], the end symbol included, padding after it; [B N T] of the N best by beam search.
    scores: log-probability of each sequence, in nats, the end symbol included, float32 [B]; [B N] by beam
      search, divided there by the length penalty.
    weights: the attention with which each token was chosen, [B T S] or [B N T S], zero after the end; None
      if the step function gives none.
  """

  tokens: jax.Array
  scores: jax.Array
  weights: jax.Array | None


def check_search(batch_size: int, max_length: int, bos_id: int, eos_id: int, pad_id: int) -> tuple[Any, ...]:
  """Returns what every search is given, sizes as int and tokens as int32, or raises ValueError."""
  sizes = check_size("batch_size", batch_size, least=0), check_size("max_length", max_length)
  return *sizes, check_token("bos_id", bos_id), check_token("eos_id", eos_id), check_token("pad_id", pad_id)
