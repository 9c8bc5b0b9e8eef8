"""Packed documents have the same results as separate ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference

import attention
from attention import masks, positions

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

N, H = 3, 10
# Number of tokens of each document in a row, and of its prefix.
TOKENS = [[5, 1, 7], [3, 2, 8]]
PREFIXES = [[2, 1, 3], [0, 2, 8]]
LENGTH = 13
# Document numbers are unordered and do not start at 0.
NUMBERS = np.array([[7, 2, 4], [0, 9, 1]])
DOCUMENTS = jnp.array([np.repeat(ids, sizes) for ids, sizes in zip(NUMBERS, TOKENS, strict=True)])
PREFIX_OF_TOKEN = jnp.array([np.repeat(*row) for row in zip(PREFIXES, TOKENS, strict=True)])


def in_prefix():
  return (positions.segment_positions(DOCUMENTS) < PREFIX_OF_TOKEN)[:, None, None]


def prefix_by_function():
  within = positions.segment_positions(DOCUMENTS)

  def function(t, s):
    return ((s <= t)[None] | (within[:, s[0]] < PREFIX_OF_TOKEN[:, s[0]])[:, None])[:, None]

  return masks.from_function(function)


# Within documents: the mask of a row, and whether t may attend to s in a single document with a prefix.
RULES = {
  "everything": (None, lambda t, s, prefix: True),
  "causal": (masks.causal, lambda t, s, prefix: s <= t),
  "window": (lambda: masks.sliding_window(2, 1), lambda t, s, prefix: t - 2 <= s <= t + 1),
  "prefix": (lambda: masks.causal() | in_prefix(), lambda t, s, prefix: s <= t or s < prefix),
  "prefix_by_function": (prefix_by_function, lambda t, s, prefix: s <= t or s < prefix),
  "prefix_and_window": (
    lambda: masks.sliding_window(3, 0) | in_prefix(),
    lambda t, s, prefix: t - 3 <= s <= t or s < prefix,
  ),
}


def one_by_one(vectors, may_attend):
  """Returns the reference's context of each document, concatenated."""
  rows = []
  for row, sizes, prefixes in zip(vectors, TOKENS, PREFIXES, strict=True):
    parts = np.split(row, np.cumsum(sizes)[:-1], axis=-2)
    contexts = []
    for part, size, prefix in zip(parts, sizes, prefixes, strict=True):
      mask = [[may_attend(t, s, prefix) for s in range(size)] for t in range(size)]
      contexts.append(
        reference.attend(reference.dot_product, *[part] * 3, mask=np.array(mask), scale=H**-0.5).context
      )
    rows.append(np.concatenate(contexts, axis=-2))
  return np.stack(rows)


def draw():
  return np.random.default_rng(0).normal(size=(2, N, LENGTH, H)).astype(np.float32)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("name", RULES)
def test_packed_documents_match_separate_documents(name, implementation):
  rule, may_attend = RULES[name]
  vectors = draw()

  @jax.jit
  def run(vectors):
    mask = masks.segments(DOCUMENTS[:, None], DOCUMENTS[:, None])
    return attention.scaled_dot_product_attention(
      *[vectors] * 3,
      mask=mask if rule is None else mask & rule(),
      implementation=implementation,
      block_sizes=(2, 2),
    )

  np.testing.assert_allclose(run(vectors), one_by_one(vectors, may_attend), **CLOSE)
