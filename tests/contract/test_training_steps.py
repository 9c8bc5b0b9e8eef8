"""A training step of each config at full size: gradients with and without compiler fusions.

Default compiler options.
"""

import dataclasses
import pathlib
import runpy

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh

from experiments.data.batches import make_batch
from experiments.data.tasks import make_task
from experiments.devices.sharding import AXES, place_batch
from experiments.learning.model import make_model
from experiments.learning.step import init_state, make_rngs, make_step, make_train_spec

pytestmark = pytest.mark.nightly

# One of the configs whose steps are equal, or part of another's.
CONFIGS = {
  path.stem: path
  for path in sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.py"))
  if path.stem not in ("__init__", "base", "toy_translation_scores", "parallel_text")
}
# Vocabulary size of a text of 30,000 sentences, which is not included; its sentences are random.
WORDS = 4_000
LENGTHS = 16, 15
UNFUSED = {"xla_cpu_experimental_ynn_fusion_type": "", "xla_disable_hlo_passes": "fusion"}
# A step is a chain of some hundred operations on numbers of order one.
TOLERANCE = 2e-4


@pytest.fixture
def standard_promotion():
  """Allows optax to divide numbers by integers."""
  with jax.numpy_dtype_promotion("standard"):
    yield


def vocabulary_sizes_and_batch(config):
  """Returns the vocabulary sizes and the first batch."""
  if config.data.task != "parallel_text":
    task = make_task(config)
    return (len(task.source.vocabulary), len(task.target.vocabulary)), task.training_batch(0)
  rng = np.random.default_rng(0)
  sentences = (
    [
      rng.integers(4, WORDS, rng.integers(length // 2, length)).tolist()
      for _ in range(config.train.batch_size)
    ]
    for length in LENGTHS
  )
  source_length, target_length = LENGTHS
  return (WORDS, WORDS), make_batch(
    *sentences, source_length=source_length, target_length=target_length, num_rows=config.train.batch_size
  )


# Errors of the library change both sides equally: this tests the compiler, which changes rarely.
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.usefixtures("standard_promotion")
def test_fusions_change_no_gradients(name):
  config = runpy.run_path(str(CONFIGS[name]))["get_config"]()
  mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES, axis_types=(AxisType.Auto,) * 2)
  sizes, batch = vocabulary_sizes_and_batch(config)
  model = make_model(config.model, source_vocabulary_size=sizes[0], target_vocabulary_size=sizes[1])
  # An optimizer whose state is the gradients.
  spec = dataclasses.replace(make_train_spec(config, model, mesh), optimizer=optax.trace(decay=0.0))
  rngs, batch = make_rngs(0), place_batch(batch, mesh)
  state = init_state(spec, rngs.params)
  lowered = make_step(spec).lower(state, batch, rngs.dropout)

  def run(**options):
    compiled = lowered.compile(**options)
    after, _ = compiled(jax.tree.map(lambda leaf: leaf.copy(), state), batch, rngs.dropout)
    return float(after.sums.loss), jax.device_get(after.optimizer.trace)

  (loss, gradients), (plain_loss, plain_gradients) = run(), run(compiler_options=UNFUSED)
  np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
  largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(plain_gradients))
  for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(plain_gradients), strict=True):
    # Some gradients are 0 except for rounding, such as those of the biases of keys.
    scale = max(np.max(np.abs(other)), 1e-3 * largest)
    np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * scale)
  assert largest > 0
