"""Checkpoints of the training state, by orbax."""

import pathlib

import jax
import orbax.checkpoint as ocp

from experiments.translation.training import TrainState

_KEPT = 2


class Checkpoints:
  """The checkpoints of one run; the newest two are kept. A context manager.

  Args:
    folder: where they are; it is made.
  """

  def __init__(self, folder: pathlib.Path):
    options = ocp.CheckpointManagerOptions(max_to_keep=_KEPT, enable_async_checkpointing=False)
    self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *_) -> None:
    self._manager.close()

  def latest_step(self) -> int | None:
    """Returns the step of the newest state, or None if there is none."""
    return self._manager.latest_step()

  def save(self, state: TrainState) -> None:
    """Writes the state, unless its step has been written."""
    step = int(state.step)
    if step != self.latest_step():
      self._manager.save(step, args=ocp.args.StandardSave(state._asdict()))

  def restore(self, like: TrainState) -> TrainState | None:
    """Returns the newest state, or None if there is none.

    Args:
      like: a state of the same shapes, for instance a fresh one.
    """
    step = self.latest_step()
    if step is None:
      return None
    # The device is this machine's: the checkpoint may come from another one, with devices of its own.
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), like._asdict()
    )
    return TrainState(**self._manager.restore(step, args=ocp.args.StandardRestore(shapes)))
