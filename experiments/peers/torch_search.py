"""Greedy and beam search in PyTorch, for a model with the methods `start` and `step`."""

from typing import Any

import torch


@torch.inference_mode()
def search(
  model: Any,
  sources: torch.Tensor,
  lengths: torch.Tensor,
  *,
  beam_size: int,
  max_length: int,
  bos_id: int,
  banned_ids: list[int],
) -> torch.Tensor:
  """Returns the best sequence of `max_length` tokens for each source, [B T]."""
  B, K = len(sources), beam_size
  state, memory = model.start(sources, lengths, K)
  tokens = torch.full((B * K,), bos_id)
  scores = torch.full((B, K), -torch.inf)
  scores[:, 0] = 0  # K copies of one hypothesis: only one counts
  first_rows = torch.arange(B)[:, None] * K
  sequences = torch.zeros((B, K, 0), dtype=torch.long)
  for _ in range(max_length):
    state, logits = model.step(state, tokens, memory)
    logits[:, banned_ids] = -torch.inf
    if K == 1:
      tokens = torch.argmax(logits, dim=-1)
      sequences = torch.cat([sequences, tokens[:, None, None]], dim=-1)
      continue
    V = logits.shape[-1]
    continuations = scores[..., None] + torch.log_softmax(logits, dim=-1).view(B, K, V)
    scores, indices = torch.topk(continuations.view(B, K * V), K)
    parents, words = indices // V, indices % V
    state = _reorder(state, (first_rows + parents).view(-1))
    sequences = torch.cat(
      [sequences.gather(1, parents[..., None].expand(-1, -1, sequences.shape[-1])), words[..., None]], dim=-1
    )
    tokens = words.view(-1)
  return sequences[:, 0]


def _reorder(state: Any, rows: torch.Tensor) -> Any:
  """Returns the given rows of all tensors [B ...] in nested lists and tuples."""
  if isinstance(state, torch.Tensor):
    return state.index_select(0, rows)
  return type(state)(_reorder(part, rows) for part in state)
