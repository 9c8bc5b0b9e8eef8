"""What a person sees while a model trains: a bar at a terminal, plain lines elsewhere; and a profile."""

import contextlib
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from tqdm import tqdm


class Progress(contextlib.AbstractContextManager):
  """Shows how far training is, and measures it. A context manager.

  Time that is spent aside, on compilation, validation or checkpoints, does not count as training.

  Args:
    start: the step to begin after.
    steps: the last step.
    tokens: those that the first record will count, and that were seen before the start.
    is_shown: whether anything is; of several processes, one shows what all do.
  """

  def __init__(self, start: int, steps: int, tokens: float = 0.0, *, is_shown: bool = True):
    self._start, self._step, self._steps = start, start, steps
    self._earlier_tokens, self._is_shown = tokens, is_shown
    has_bar = is_shown and sys.stderr.isatty()
    self._bar = tqdm(initial=start, total=steps, unit="step", disable=not has_bar)
    self._begin = self._mark = time.perf_counter()
    self._aside = self._aside_at_mark = 0.0
    self._seconds_of: dict[str, float] = {}
    self._waited = 0.0
    self._tokens = self._seconds_of_tokens = 0.0
    self._compiled: set[str] = set()

  def __exit__(self, *_) -> None:
    self._bar.close()

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Measures what the data takes, whether a step is running meanwhile or not."""
    begin = time.perf_counter()
    yield
    self._waited += time.perf_counter() - begin

  @contextlib.contextmanager
  def aside(self, what: str) -> Iterator[None]:
    """Leaves out what is no training, and adds it up by what it is."""
    begin = time.perf_counter()
    yield
    seconds = time.perf_counter() - begin
    self._aside += seconds
    self._seconds_of[what] = self._seconds_of.get(what, 0.0) + seconds

  @contextlib.contextmanager
  def compiling(self, shape: str) -> Iterator[None]:
    """Counts and shows the compilation of a step, unless one of this shape was made before."""
    if shape in self._compiled:
      yield
      return
    self._compiled.add(shape)
    self.print_primary(f"compiling the step for {shape}")
    begin = time.perf_counter()
    with self.aside("compiling"):
      yield
    self.print_primary(f"compiled the step in {time.perf_counter() - begin:.1f} s")

  def advance(self, step: int) -> None:
    """Takes note of the steps up to this one."""
    self._bar.update(step - self._step)
    self._step = step

  def record(self, loss: float, tokens: float) -> dict[str, float]:
    """Shows the loss (nats a token) and the speed since the last record, and returns the speed.

    Args:
      loss: of a token.
      tokens: how many target tokens there were, padding left out.
    """
    tokens, self._earlier_tokens = tokens - self._earlier_tokens, 0.0
    now = time.perf_counter()
    seconds = now - self._mark - (self._aside - self._aside_at_mark)
    self._mark, self._aside_at_mark = now, self._aside
    self._tokens += tokens
    self._seconds_of_tokens = self._seconds()
    rate = tokens / max(seconds, 1e-9)
    self._bar.set_postfix_str(f"loss {loss:.4f}, {rate:,.0f} tokens/s")
    if self._bar.disable:
      left = self._seconds() / (self._step - self._start) * (self._steps - self._step)
      text = f"step {self._step:,}/{self._steps:,}, loss {loss:.4f}, {rate:,.0f} tokens/s"
      self.print_primary(text + (f", {left:.0f} s left" if self._step < self._steps else ""))
    return {"train/tokens_per_second": rate}

  def print_primary(self, text: str) -> None:
    """Prints a line, above the bar if there is one."""
    if self._is_shown:
      self._bar.write(text)
      sys.stdout.flush()

  def summary(self) -> str:
    """Returns what all the steps took."""
    steps, seconds = self._step - self._start, max(self._seconds(), 1e-9)
    rate = self._tokens / max(self._seconds_of_tokens, 1e-9)  # of the steps up to the last record
    shapes = f"{len(self._compiled)} shape{'' if len(self._compiled) == 1 else 's'}"
    parts = [f"{seconds:.0f} s of steps"]
    for what, spent in self._seconds_of.items():
      parts.append(f"{spent:.0f} s {what}" + (f" {shapes}" if what == "compiling" else ""))
    return (
      f"trained {steps:,} steps in {time.perf_counter() - self._begin:.0f} s ({', '.join(parts)}): "
      f"{1e3 * seconds / steps:.0f} ms a step, {rate:,.0f} target tokens/s, {self._waited / seconds:.1%} of "
      f"the time waiting for data; peak memory {_peak_memory() / 2**20:,.0f} MiB"
    )

  def _seconds(self) -> float:
    """Returns the time spent on training."""
    return time.perf_counter() - self._begin - self._aside


class Profile(contextlib.AbstractContextManager):
  """Records some steps, or those of them that are made; once. A context manager.

  Args:
    folder: where the profile goes.
    steps: the first and the last; None for no profile.
    print_primary: is told what was written.
  """

  def __init__(
    self, folder: pathlib.Path, steps: tuple[int, int] | None, print_primary: Callable[[str], None]
  ):
    self._folder, self._steps, self._say = folder, steps, print_primary
    self._is_recording = False

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


def _peak_memory() -> float:
  """Returns the most memory in use at once, in bytes: the device's, or else this process's."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    return stats["peak_bytes_in_use"]
  unit = 1 if sys.platform == "darwin" else 2**10
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
