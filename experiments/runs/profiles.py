"""A profile of some training steps: what the devices do when, for TensorBoard or Perfetto."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax


class Profile:
  """Records some steps, or those of them that are made; once. A context manager.

  Args:
    folder: where the profile goes.
    steps: the first and the last; None for no profile.
    say: is told what was written.
  """

  def __init__(self, folder: pathlib.Path, steps: tuple[int, int] | None, say: Callable[[str], None]):
    self._folder, self._steps, self._say = folder, steps, say
    self._is_recording = False

  def __enter__(self) -> "Profile":
    return self

  def __exit__(self, *_) -> None:
    self._end()
    if self._steps is not None:
      first, last = self._steps
      self._say(f"no profile: none of the steps {first:,} to {last:,} was made")

  def before(self, step: int, state: Any) -> None:
    """Starts recording if this is the first step to record; earlier steps are waited for."""
    first, last = self._steps or (0, 0)
    if not self._is_recording and first <= step <= last:
      jax.block_until_ready(state)
      jax.profiler.start_trace(str(self._folder))
      self._is_recording = True

  def after(self, step: int, state: Any) -> None:
    """Ends recording if this was the last step to record."""
    if self._is_recording and self._steps is not None and step == self._steps[1]:
      jax.block_until_ready(state)
      self._end()

  def _end(self) -> None:
    if self._is_recording:
      self._is_recording, self._steps = False, None
      jax.profiler.stop_trace()
      self._say(f"wrote {self._folder}, a profile")
