"""Checkpoints of the training state, by orbax."""

import pathlib

import jax
import orbax.checkpoint as ocp

from experiments.translation.training import TrainState

_KEPT = 2


class Checkpoints:
  """The checkpoints of one run; the newest two are kept. A context manager."""

  def __init__(self, folder: pathlib.Path):
    options = ocp.CheckpointManagerOptions(max_to_keep=_KEPT, enable_async_checkpointing=False)
    self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *_) -> None:
    self._manager.close()

  def save(self, state: TrainState) -> None:
    """Writes the state, unless its step has been written."""
    step = int(state.step)
    if step != self._manager.latest_step():
      self._manager.save(step, args=ocp.args.StandardSave(state._asdict()))

  def restore(self, like: TrainState) -> TrainState | None:
    """Returns the newest state, or None if there is none.

    Args:
      like: a state of the same shapes, for instance a fresh one.
    """
    step = self._manager.latest_step()
    if step is None:
      return None
    shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
    return TrainState(**self._manager.restore(step, args=ocp.args.StandardRestore(shapes)))
