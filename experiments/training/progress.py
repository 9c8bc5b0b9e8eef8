"""Progress messages of training, and profiling."""

import contextlib
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from tqdm import tqdm

from experiments.cli.messages import counted


class Progress(contextlib.AbstractContextManager):
  """Shows the progress of training and measures its speed, as a context manager.

  It shows a progress bar in a terminal, and prints lines otherwise. Compilation, validation and checkpoints
  are not counted as training time.

  Args:
    start: last finished step.
    num_steps: last step of training.
    tokens: tokens of finished steps that the first record will include.
    is_visible: show and print progress. It is True in one of several processes.
  """

  def __init__(self, start: int, num_steps: int, tokens: float = 0.0, *, is_visible: bool = True):
    self._start, self._step, self._num_steps = start, start, num_steps
    self._earlier_tokens, self._is_visible = tokens, is_visible
    has_bar = is_visible and sys.stderr.isatty()
    self._bar = tqdm(initial=start, total=num_steps, unit="step", disable=not has_bar)
    self._start_time = self._record_time = time.perf_counter()
    self._paused_seconds = self._paused_seconds_at_record = 0.0
    self._seconds_by_activity: dict[str, float] = {}
    self._data_seconds = 0.0
    self._tokens = self._token_seconds = 0.0
    self._compiled_shapes: set[str] = set()

  def __exit__(self, *_) -> None:
    self._bar.close()

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Measures the time of waiting for data, even if a step is running."""
    start = time.perf_counter()
    yield
    self._data_seconds += time.perf_counter() - start

  @contextlib.contextmanager
  def paused(self, activity: str) -> Iterator[None]:
    """Measures the time of an activity that is not training, such as validation."""
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    self._paused_seconds += seconds
    self._seconds_by_activity[activity] = self._seconds_by_activity.get(activity, 0.0) + seconds

  @contextlib.contextmanager
  def compiling(self, shape: str) -> Iterator[None]:
    """Measures and prints the compilation of a step, if this shape is new."""
    if shape in self._compiled_shapes:
      yield
      return
    self._compiled_shapes.add(shape)
    self.print(f"compiling the step for {shape}")
    start = time.perf_counter()
    with self.paused("compiling"):
      yield
    self.print(f"compiled the step in {time.perf_counter() - start:.1f} s")

  def advance(self, step: int) -> None:
    """Advances the progress bar to a step."""
    self._bar.update(step - self._step)
    self._step = step

  def record(self, loss: float, tokens: float) -> dict[str, float]:
    """Shows the loss and the speed since the last record.

    Args:
      loss: mean loss per token, in nats.
      tokens: number of target tokens since the last record, without padding.

    Returns:
      The speed, as a metric.
    """
    tokens, self._earlier_tokens = tokens - self._earlier_tokens, 0.0
    now = time.perf_counter()
    seconds = now - self._record_time - (self._paused_seconds - self._paused_seconds_at_record)
    self._record_time, self._paused_seconds_at_record = now, self._paused_seconds
    self._tokens += tokens
    self._token_seconds = self._training_seconds()
    rate = tokens / max(seconds, 1e-9)
    self._bar.set_postfix_str(f"loss {loss:.4f}, {rate:,.0f} tokens/s")
    if self._bar.disable:
      num_left = self._num_steps - self._step
      seconds_left = self._training_seconds() / (self._step - self._start) * num_left
      text = f"step {self._step:,}/{self._num_steps:,}, loss {loss:.4f}, {rate:,.0f} tokens/s"
      self.print(text + (f", {seconds_left:.0f} s left" if num_left else ""))
    return {"train/tokens_per_second": rate}

  def print(self, text: str) -> None:
    """Prints a line, above the progress bar if there is one."""
    if self._is_visible:
      self._bar.write(text)
      sys.stdout.flush()

  def summary(self) -> str:
    """Returns a line with the total time and speed."""
    num_steps, seconds = self._step - self._start, max(self._training_seconds(), 1e-9)
    rate = ""
    if self._tokens:  # counted up to the last record
      rate = f"{self._tokens / max(self._token_seconds, 1e-9):,.0f} target tokens/s, "
    parts = [f"{seconds:.0f} s of steps"]
    for activity, spent in self._seconds_by_activity.items():
      shapes = f" {counted(len(self._compiled_shapes), 'shape')}" if activity == "compiling" else ""
      parts.append(f"{spent:.0f} s {activity}{shapes}")
    return (
      f"trained {counted(num_steps, 'step')} in {time.perf_counter() - self._start_time:.0f} s "
      f"({', '.join(parts)}): {1e3 * seconds / num_steps:.0f} ms/step, {rate}"
      f"{self._data_seconds / seconds:.1%} of the time waiting for data; "
      f"peak memory {_peak_memory() / 2**20:,.0f} MiB"
    )

  def _training_seconds(self) -> float:
    """Returns the time spent on training steps."""
    return time.perf_counter() - self._start_time - self._paused_seconds


class Profile(contextlib.AbstractContextManager):
  """Profiles a range of steps, as a context manager.

  Args:
    folder: where the profile is written.
    steps: first and last step, or None for no profile.
    print_fn: called with messages.
  """

  def __init__(self, folder: pathlib.Path, steps: tuple[int, int] | None, print_fn: Callable[[str], None]):
    self._folder, self._steps, self._print_fn = folder, steps, print_fn
    self._is_recording = False

  def __exit__(self, *_) -> None:
    self._end()
    if self._steps is not None:
      first, last = self._steps
      self._print_fn(f"no profile was written: steps {first:,} to {last:,} did not run")

  def before(self, step: int, state: Any) -> None:
    """Starts the profile before its first step, after earlier steps have finished."""
    first, last = self._steps or (0, 0)
    if not self._is_recording and first <= step <= last:
      jax.block_until_ready(state)
      jax.profiler.start_trace(str(self._folder))
      self._is_recording = True

  def after(self, step: int, state: Any) -> None:
    """Ends the profile after its last step."""
    if self._is_recording and self._steps is not None and step == self._steps[1]:
      jax.block_until_ready(state)
      self._end()

  def _end(self) -> None:
    if self._is_recording:
      self._is_recording, self._steps = False, None
      jax.profiler.stop_trace()
      self._print_fn(f"wrote a profile to {self._folder}")


def _peak_memory() -> float:
  """Returns the peak memory of the device, or of this process if that is unknown, in bytes."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    return stats["peak_bytes_in_use"]
  unit = 1 if sys.platform == "darwin" else 2**10
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
