"""Small states and their checkpoints, for tests of checkpoints."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.runs.checkpoints import Checkpoints


class State(NamedTuple):
  step: Any
  params: Any
  rng: Any


def state_of(step):
  """Returns a state with arrays of many types that differ at each step."""
  weights = np.random.default_rng(step).normal(size=(7, 500)).astype(np.float32)
  params = {
    "kernel": jnp.asarray(weights),
    "scale": jnp.asarray(weights[0, :11]).astype(jnp.bfloat16),
    "counts": (jnp.arange(13, dtype=jnp.uint8) + np.uint8(step % 7), None, ()),
    "is_used": jnp.asarray(weights[:, 0] > 0),
  }
  return State(jnp.int32(step), params, jax.random.key_data(jax.random.key(step)))


# The target of `Checkpoints.restore`.
LIKE = jax.eval_shape(lambda: state_of(0))


def open_checkpoints(folder, **options):
  return Checkpoints(folder, **({"higher_is_better": True} | options))


def save(checkpoints, step, score=None):
  checkpoints.save(step, state_of(step), {"step": step}, score)


def write(folder, scores, keep=2):
  """Writes checkpoints with scores."""
  checkpoints = open_checkpoints(folder, keep=keep)
  for step, score in scores.items():
    save(checkpoints, step, score)


def steps_in(folder):
  return sorted(int(path.name) for path in folder.iterdir())


def assert_is_of(checkpoint, step):
  """Checks all bits of a restored checkpoint."""
  assert (checkpoint.step, checkpoint.position) == (step, {"step": step})
  actual, desired = checkpoint.state, state_of(step)
  assert jax.tree.structure(actual) == jax.tree.structure(desired)
  for leaf, expected in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
    assert (leaf.dtype, leaf.shape) == (expected.dtype, expected.shape)
    assert np.asarray(leaf).tobytes() == np.asarray(expected).tobytes()
