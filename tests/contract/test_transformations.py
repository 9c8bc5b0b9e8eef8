"""Transformations: every score under every transformation of JAX, compared with "dense"."""

import jax.numpy as jnp
import pytest
from cases import SCORES, attend_fully, draw
from transformations import assert_equals_plain_calls

from attention import masks

pytestmark = pytest.mark.slow


def attend(arrays, implementation):
  """Returns the context and the logsumexp, with 0 for empty rows."""
  context, _, logsumexp = attend_fully(arrays, mask=masks.causal(-1), implementation=implementation)
  return context, jnp.where(logsumexp > -jnp.inf, logsumexp, 0)


@pytest.mark.parametrize("kind", SCORES)
def test_scores_under_every_transformation(kind):
  assert_equals_plain_calls(attend, draw(kind, "TH", "SH", "SD"), "blockwise")


def test_transformations_of_dense():
  # In the others, "dense" would be compared with itself.
  names = "checkpoint", "reverse_over_forward", "jacobians", "vmap", "vmap_of_grad", "scan"
  assert_equals_plain_calls(attend, draw("additive", "TH", "SH", "SD"), "dense", names)
