"""A lower bound on the memory of training, from shapes alone, against what a device has."""

import dataclasses
import os
import pathlib
from typing import Any

import jax
import numpy as np

from configs import base
from experiments.commands.fields import ConfigError
from experiments.tasks import Task, make_task
from experiments.text.batches import Batch
from experiments.translation.step import Recipe, abstract_state, loss_of

# Which share of what differentiation keeps for the backward pass is counted: XLA computes some of it again.
# Compiled steps on a CPU took half of it or more.
_COUNTED = 0.25

_FEW_ROWS = 2**10

_CGROUP_LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"


def check_memory(config: base.Config, task: Task, recipe: Recipe) -> None:
  """Raises ConfigError if the parameters, or a training step, need more memory than there is.

  Args:
    config: of a task and a model that are built in.
    task: what is trained on.
    recipe: what a step does.
  """
  available, shared_by = _available()
  # Several devices of one CPU share its memory; parameters may be cut over devices.
  copies = shared_by / recipe.mesh.shape["parameters"]
  kept = copies * kept_bytes(recipe)
  if kept > available:
    lower = "config.model.width, config.model.embedding_width or config.model.feed_forward_width"
    raise ConfigError(_message("parameters, gradients and optimizer state", kept, available, lower))
  if config.train.batch_size > _FEW_ROWS:
    # Fewer rows are about as long, and are drawn in less time and memory.
    fewer = dataclasses.replace(config.train, batch_size=_FEW_ROWS)
    task = make_task(dataclasses.replace(config, train=fewer), (task.source, task.target))
  batch = task.training_batch(0)
  lengths = batch.sources.shape[1], batch.targets.shape[1]
  activations = shared_by * activation_bytes(config, recipe, *lengths) / recipe.mesh.size
  if kept + _COUNTED * activations > available:
    lower = "config.train.batch_size or config.model.width, or raise config.train.accumulation"
    raise ConfigError(_message("one training step", kept + _COUNTED * activations, available, lower))


def kept_bytes(recipe: Recipe) -> int:
  """Returns the bytes of a training state and of its gradients."""
  state = abstract_state(recipe)
  return _bytes(state) + _bytes(state.params)


def activation_bytes(config: base.Config, recipe: Recipe, source_length: int, target_length: int) -> int:
  """Returns the bytes that differentiation keeps between the forward and the backward pass, of all devices.

  Args:
    config: says how many rows are computed at once.
    recipe: what a step does.
    source_length: S, the end symbol included.
    target_length: T, likewise.
  """
  size, S, T = recipe.mesh.size, source_length, target_length
  B = max(1, config.train.batch_size // config.train.accumulation // size) * size
  links: Any = jax.ShapeDtypeStruct((B, T, S), bool) if config.train.alignment_weight else None
  batch = Batch(_ids(B, S), _ids(B), _ids(B, T), _ids(B, T), links)
  params = abstract_state(recipe).params

  def residuals(params: Any, batch: Batch) -> Any:
    rng = jax.random.key(0)
    return jax.vjp(lambda params: loss_of(params, batch, rng, recipe), params)[1]

  return max(0, _bytes(jax.eval_shape(residuals, params, batch)) - _bytes(params))


def _ids(*shape: int) -> Any:
  return jax.ShapeDtypeStruct(shape, np.int32)


def _bytes(tree: Any) -> int:
  """Returns the bytes of arrays; random keys are left out."""
  leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
  return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if isinstance(leaf.dtype, np.dtype))


def _available() -> tuple[float, int]:
  """Returns the bytes of memory that a device has, and how many devices of this process share them."""
  device = jax.local_devices()[0]
  if device.platform != "cpu":
    return (device.memory_stats() or {}).get("bytes_limit", float("inf")), 1
  return machine_memory(), jax.local_device_count()


def machine_memory() -> float:
  """Returns the bytes of memory of this machine, or of its container; infinity where nothing tells."""
  found = [float("inf")]
  if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
    found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
  for path in map(pathlib.Path, _CGROUP_LIMITS):
    if path.is_file() and (text := path.read_text("ascii").strip()).isdigit():
      found.append(int(text))
  return min(found)


def _message(what: str, needed: float, available: float, lower: str) -> str:
  return (
    f"not enough memory: at least {needed / 2**30:,.1f} GiB for {what}, and there are "
    f"{available / 2**30:,.1f} GiB; lower {lower}"
  )
