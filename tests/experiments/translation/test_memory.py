"""Tests of experiments/translation/memory.py."""

import dataclasses

import jax
import numpy as np
import pytest

from configs import base
from experiments.commands.fields import ConfigError
from experiments.runs.devices import make_mesh
from experiments.tasks import make_task
from experiments.text.batches import Batch
from experiments.translation import memory
from experiments.translation.model import make_task_model
from experiments.translation.step import abstract_state, make_recipe, make_step


def _made(**model):
  config = base.Config(model=base.Model(**model), train=base.Train(batch_size=16))
  task = make_task(config)
  return config, task, make_recipe(config, make_task_model(config, task), make_mesh())


def test_parameters_gradients_and_both_moments_are_counted():
  _, _, recipe = _made(width=8, embedding_width=8)
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(abstract_state(recipe).params))
  counters = 5 * 4  # the step's, two sums, and those of Adam and of its schedule
  assert memory.kept_bytes(recipe) == 4 * 4 * num_parameters + counters


@pytest.mark.parametrize(
  "model",
  [
    {"attention": "additive"},
    {"attention": "dot_product", "dtype": "bfloat16"},
    {"encoder": "transformer", "decoder": "transformer", "dropout_rate": 0.1},
  ],
)
def test_the_bound_is_below_what_a_compiled_step_takes(model):
  config, _, recipe = _made(**model)
  B, S, T = 16, 11, 13
  batch = Batch(np.ones((B, S), np.int32), np.ones(B, np.int32), *np.ones((2, B, T), np.int32))
  with jax.numpy_dtype_promotion("standard"):  # by optax
    step = make_step(recipe).lower(abstract_state(recipe), batch, jax.random.key(0)).compile()
  taken = step.memory_analysis()
  counted = memory.kept_bytes(recipe) + memory._COUNTED * memory.activation_bytes(config, recipe, S, T)
  assert 0.2 * taken.temp_size_in_bytes < counted < taken.temp_size_in_bytes + taken.argument_size_in_bytes


def test_accumulated_parts_are_counted_once():
  config, _, recipe = _made(width=8, embedding_width=8)

  def activations(accumulation):
    train = dataclasses.replace(config.train, batch_size=2000, accumulation=accumulation)
    return memory.activation_bytes(dataclasses.replace(config, train=train), recipe, 5, 7)

  whole, parts = activations(1), activations(4)
  assert 3 * parts < whole < 5 * parts


@pytest.mark.parametrize(
  ("available", "words"), [(1e4, "GiB for parameters, gradients and"), (1e9, "GiB for one training step")]
)
def test_what_does_not_fit_is_told_in_one_line(available, words, monkeypatch):
  config, task, recipe = _made(width=8, embedding_width=8)
  memory.check_memory(config, task, recipe)
  train = dataclasses.replace(config.train, batch_size=10**6)
  monkeypatch.setattr(memory, "machine_memory", lambda: available)
  with pytest.raises(ConfigError) as caught:
    memory.check_memory(dataclasses.replace(config, train=train), task, recipe)
  assert words in str(caught.value) and "lower config." in str(caught.value)
  assert "\n" not in str(caught.value)


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
  limits = [tmp_path / name for name in ("limit", "none", "missing")]
  limits[0].write_text("12345\n", "ascii")
  limits[1].write_text("max\n", "ascii")
  whole = memory.machine_memory()
  monkeypatch.setattr(memory, "_CGROUP_LIMITS", limits[1:])
  assert memory.machine_memory() >= whole > 12345
  monkeypatch.setattr(memory, "_CGROUP_LIMITS", limits)
  assert memory.machine_memory() == 12345


def test_lengths_are_those_of_training_and_not_of_validation(tmp_path, monkeypatch):
  (tmp_path / "train.tsv").write_text("".join(f"a b {i}\tc d\n" for i in range(40)), "utf-8")
  (tmp_path / "long.tsv").write_text(f"{'a ' * 400}\t{'c ' * 400}\n", "utf-8")
  files = {"train": str(tmp_path / "train.tsv"), "validation": str(tmp_path / "long.tsv")}
  data = base.Data(task="parallel_text", unit="word", min_count=1, **files)
  sizes = base.Model(width=8, embedding_width=8)
  config = base.Config(data=data, model=sizes, train=base.Train(batch_size=8))
  task = make_task(config)
  recipe = make_recipe(config, make_task_model(config, task), make_mesh())
  lengths = []
  monkeypatch.setattr(memory, "activation_bytes", lambda *arguments: lengths.extend(arguments[2:]) or 0)
  memory.check_memory(config, task, recipe)
  assert lengths == [4, 4]  # a bucket that holds three words and the end symbol


def test_a_huge_batch_is_refused_before_it_is_drawn(monkeypatch):
  config, task, recipe = _made(width=8, embedding_width=8)
  config = dataclasses.replace(config, train=dataclasses.replace(config.train, batch_size=10**9))
  task = make_task(config, (task.source, task.target))
  monkeypatch.setattr(task, "training_batch", None)
  with pytest.raises(ConfigError, match=r"not enough memory: at least .* for one training step"):
    memory.check_memory(config, task, recipe)
