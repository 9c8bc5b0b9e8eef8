"""Tests of experiments/data/batches.py. The ids of PAD, BOS and EOS are 0, 1 and 2."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_reference import random_parameters

from configs import base
from experiments.data.batches import group_by_length, make_batch, padded_length, round_up
from experiments.learning.model import make_model

PAIRS = ([[7, 8], [9, 10, 5, 6]], [[5], [6, 4, 11]])


def test_batches_match_worked_example():
  batch = make_batch([[7, 8], [9]], [[5], [6, 4, 11]], source_length=4, target_length=5)
  assert batch.sources.tolist() == [[7, 8, 2, 0], [9, 2, 0, 0]]
  assert batch.source_lengths.tolist() == [3, 2]
  assert batch.inputs.tolist() == [[1, 5, 0, 0, 0], [1, 6, 4, 11, 0]]
  assert batch.targets.tolist() == [[5, 2, 0, 0, 0], [6, 4, 11, 2, 0]]
  assert {array.dtype for array in batch[:4]} == {np.dtype(np.int32)}
  assert batch.links is None


def test_alignments_become_links():
  sentences = [[7, 8], [9]], [[5], [6, 4, 11]]
  alignments = [{(0, 1), (0, 0)}, frozenset({(2, 0)})]
  batch = make_batch(*sentences, source_length=3, target_length=5, num_rows=3, alignments=alignments)
  assert batch.links.shape == (3, 5, 3) and batch.links.dtype == bool
  assert np.argwhere(batch.links).tolist() == [[0, 0, 0], [0, 0, 1], [1, 2, 0]]


def test_sentences_may_fill_rows():
  batch = make_batch([[7, 8]], [[5, 6, 4]], source_length=3, target_length=4)
  assert batch.sources.tolist() == [[7, 8, 2]]
  assert batch.inputs.tolist() == [[1, 5, 6, 4]]
  assert batch.targets.tolist() == [[5, 6, 4, 2]]


def test_long_sources_are_errors():
  with pytest.raises(ValueError, match=r"source must have at most 2 tokens for source_length=3, got 3"):
    make_batch([[7], [7, 8, 9]], [[5], [5]], source_length=3, target_length=5)


def test_missing_rows_are_padding():
  batch = make_batch([[7, 8]], [[5]], source_length=3, target_length=5, num_rows=3)
  assert batch.sources.tolist() == [[7, 8, 2], [0, 0, 0], [0, 0, 0]]
  assert batch.source_lengths.tolist() == [3, 0, 0]
  assert batch.inputs.tolist() == [[1, 5, 0, 0, 0], [0] * 5, [0] * 5]
  assert batch.targets.tolist() == [[5, 2, 0, 0, 0], [0] * 5, [0] * 5]
  assert {array.dtype for array in batch[:4]} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
  ("sources", "targets", "num_rows"),
  [([[7], [8], [9]], [[5], [6], [4]], 2), ([[7], [8]], [[5]], None), ([[7]], [[5], [6]], 3)],
)
def test_numbers_of_sentences_are_checked(sources, targets, num_rows):
  with pytest.raises(ValueError) as caught:
    make_batch(sources, targets, source_length=3, target_length=5, num_rows=num_rows)
  assert str(caught.value) == (
    f"sources and targets must have the same number of sentences, at most num_rows={num_rows}, "
    f"got {len(sources)} and {len(targets)}"
  )


def _losses_and_gradients(model):
  """Returns a function of parameters and a batch that computes the summed loss and its gradient."""

  def loss(params, batch):
    logits, _ = model.apply({"params": params}, batch.sources, batch.source_lengths, batch.inputs)
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.targets[..., None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(batch.targets != 0, log_probs, 0.0))

  return jax.jit(jax.value_and_grad(loss))


@pytest.mark.parametrize(("encoder", "attention"), [("recurrent", "additive"), ("transformer", "multi_head")])
def test_padding_rows_add_no_loss(encoder, attention):
  config = base.Model(encoder=encoder, attention=attention, embed_dim=5, features=6, num_heads=2, mlp_dim=7)
  model = make_model(config, source_vocabulary_size=11, target_vocabulary_size=13)
  # All batches have the same shape, so that the loss is compiled once.
  shape = {"source_length": 5, "target_length": 7, "num_rows": 2}
  both = make_batch(*PAIRS, **shape)
  single = [make_batch([source], [target], **shape) for source, target in zip(*PAIRS, strict=True)]
  params = random_parameters(model, both.sources, both.source_lengths, both.inputs)["params"]
  measured = _losses_and_gradients(model)
  expected = measured(params, both)
  assert expected[0] > 6.0  # six tokens
  summed = jax.tree.map(jnp.add, *(measured(params, batch) for batch in single))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), summed, expected)


def test_lengths_are_rounded_up():
  assert [round_up(length, 16) for length in (1, 15, 16, 17, 32, 33)] == [16, 16, 16, 32, 32, 48]
  assert round_up(7, 1) == 7


@pytest.mark.parametrize("side", [0, 1])
def test_long_sentences_are_grouped_alone(side):
  lengths = [(length, 1)[:: 1 - 2 * side] for length in (2, 100_000, 3, 5)]
  groups = list(group_by_length(lengths, batch_size=7))
  assert sorted(i for indices, _ in groups for i in indices) == [0, 1, 2, 3]
  assert ([1], 1) in groups and all(num_rows == 7 for indices, num_rows in groups if indices != [1])


@hypothesis.given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 2_000))), st.integers(1, 7))
def test_groups_have_bounded_memory(lengths, batch_size):
  groups = list(group_by_length(lengths, batch_size))
  assert sorted(i for indices, _ in groups for i in indices) == list(range(len(lengths)))
  for indices, num_rows in groups:
    longest = padded_length(max(max(lengths[i]) for i in indices))
    assert len(indices) <= num_rows <= batch_size
    assert num_rows == 1 or num_rows * longest**2 <= batch_size * 256**2
    assert num_rows == batch_size or longest > 256


def test_short_sentences_fill_batches():
  lengths = [(i % 5, 255 - i % 3) for i in range(10)]
  assert [len(indices) for indices, _ in group_by_length(lengths, 4)] == [4, 4, 2]
