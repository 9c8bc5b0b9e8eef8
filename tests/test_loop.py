"""Tests of experiments/translation/loop.py in this process; test_scripts.py has whole runs."""

import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scripts

from configs import base
from experiments.translation import loop, workdir
from experiments.translation.checkpoints import Checkpoints
from experiments.translation.training import TrainState

CONFIG = base.Config(
  model=base.Model(attention="none", embedding_width=2, width=3),
  train=base.Train(steps=6, batch_size=2, steps_per_dispatch=1, log_every=1, validate_every=2),
  evaluation=base.Evaluation(validation_sentences=2, batch_size=2, max_target_length=3),
)


@pytest.fixture(scope="module", autouse=True)
def one_optimizer():
  """Lets all runs share what is compiled for their optimiser."""
  optimizer = loop.make_optimizer(CONFIG.train)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, "make_optimizer", lambda config: optimizer)
    yield


@pytest.fixture
def break_step(monkeypatch):
  """Gives a function that breaks what a step returns."""

  def install(broken_step, damage):
    def train_steps(*arguments, **options):
      state, sums = whole(*arguments, **options)
      return damage(state, sums) if int(state.step) == broken_step else (state, sums)

    monkeypatch.setattr(loop, "train_steps", train_steps)

  whole = loop.train_steps
  with jax.numpy_dtype_promotion("standard"):  # optax divides numbers by integers
    yield install


def _lose_loss(state, sums):
  return state, sums._replace(loss=jnp.float32(jnp.inf))


def _lose_one_parameter(state, sums):
  leaves, structure = jax.tree.flatten(state.params)
  leaves[3] = leaves[3].at[(0,) * leaves[3].ndim].set(jnp.nan)
  return state._replace(params=jax.tree.unflatten(structure, leaves)), sums


@pytest.mark.parametrize(("broken_step", "damage"), [(3, _lose_loss), (4, _lose_one_parameter)])
def test_a_run_that_leaves_the_finite_numbers_stops_and_keeps_the_state_before(
  tmp_path, break_step, broken_step, damage
):
  break_step(broken_step, damage)
  with pytest.raises(loop.Diverged) as caught:
    loop.train(CONFIG, tmp_path)
  assert "config.train.learning_rate" in str(caught.value)
  assert "\n" not in str(caught.value)
  with Checkpoints(tmp_path / "checkpoints") as checkpoints:
    assert checkpoints.latest_step() == 2
  assert [record["step"] for record in workdir.read_metrics(tmp_path)][-1] in (2, 3)
  config, _ = loop.load(tmp_path)
  assert config == CONFIG


def _press_ctrl_c(state, sums):
  os.kill(os.getpid(), signal.SIGINT)
  return state, sums


def test_ctrl_c_saves_the_step_it_meets(tmp_path, break_step):
  break_step(3, _press_ctrl_c)
  with pytest.raises(loop.Interrupted, match="step 3"):
    loop.train(CONFIG, tmp_path)
  with Checkpoints(tmp_path / "checkpoints") as checkpoints:
    assert checkpoints.latest_step() == 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run")
  with jax.numpy_dtype_promotion("standard"):
    loop.train(CONFIG, folder)
  return folder


def test_the_newest_two_checkpoints_are_kept(trained):
  assert sorted(path.name for path in (trained / "checkpoints").iterdir()) == ["4", "6"]


def test_another_batch_size_for_translating_changes_no_other_field(trained):
  config, _ = loop.load(trained, batch_size=1)
  assert config.evaluation.batch_size == 1
  config.evaluation.batch_size = CONFIG.evaluation.batch_size
  assert config == CONFIG


def test_looking_at_a_run_writes_nothing(trained):
  before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
  loop.load(trained)
  assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


_SAVE_ON_ANOTHER_DEVICE = """
import pathlib, sys
import jax, jax.numpy as jnp
from experiments.translation.checkpoints import Checkpoints
from experiments.translation.training import TrainState

state = TrainState(jnp.int32(5), {"kernel": jnp.arange(7.0)}, (jnp.arange(3.0),))
with Checkpoints(pathlib.Path(sys.argv[1])) as checkpoints:
  checkpoints.save(jax.device_put(state, jax.devices()[1]))
"""


def test_a_checkpoint_of_another_machines_device_is_loaded_on_this_ones(tmp_path):
  environment = {
    "PYTHONPATH": str(scripts.ROOT),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
  }
  arguments = [sys.executable, "-c", _SAVE_ON_ANOTHER_DEVICE, str(tmp_path)]
  subprocess.run(arguments, env=os.environ | environment, check=True)
  like = jax.eval_shape(lambda: TrainState(jnp.int32(0), {"kernel": jnp.zeros(7)}, (jnp.zeros(3),)))
  with Checkpoints(tmp_path) as checkpoints:
    state = checkpoints.restore(like)
  assert state.params["kernel"].devices() == {jax.devices()[0]}
  np.testing.assert_array_equal(state.params["kernel"], np.arange(7))
