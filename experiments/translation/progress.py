"""What a person sees while a model trains: a bar at a terminal, plain lines elsewhere."""

import sys
import time

from tqdm import tqdm

from experiments.translation.training import Sums


class Progress:
  """Shows how far training is, and measures it. A context manager.

  The first call of the compiled step is left out of the speed: it is mostly compilation.
  """

  def __init__(self, start: int, steps: int):
    self._steps = steps
    self._step = start
    self._bar = tqdm(initial=start, total=steps, unit="step", disable=not sys.stderr.isatty())
    self._begin = time.perf_counter()
    self._running_since: float | None = None
    self._first_step = start
    self._mark: tuple[float, float] | None = None  # time and tokens at the last record
    self._tokens = 0.0
    self._loss = 0.0
    self._loss_tokens = 0.0

  def __enter__(self) -> "Progress":
    return self

  def __exit__(self, *_) -> None:
    self._bar.close()

  def advance(self, step: int, sums: Sums) -> None:
    """Takes note of the steps up to this one."""
    self._bar.update(step - self._step)
    self._step = step
    self._loss += float(sums.loss)
    self._loss_tokens += float(sums.tokens)
    now = time.perf_counter()
    if self._running_since is None:
      self._running_since, self._first_step, self._mark = now, step, (now, 0.0)
    else:
      self._tokens += float(sums.tokens)

  def record(self) -> dict[str, float]:
    """Returns loss (nats a token) and speed since the last record, and shows them.

    The speed counts target tokens, padding left out.
    """
    values = {"train/loss": self._loss / self._loss_tokens}
    self._loss = self._loss_tokens = 0.0
    now = time.perf_counter()
    values["train/seconds"] = now - self._begin
    since, tokens = self._mark or (now, 0.0)
    if self._tokens > tokens:
      values["train/tokens_per_second"] = (self._tokens - tokens) / (now - since)
      self._mark = now, self._tokens
    self._show(values)
    return values

  def say(self, text: str) -> None:
    """Prints a line, above the bar if there is one."""
    self._bar.write(text)
    if self._mark is not None:  # what went before the line, a validation say, is not training
      self._mark = time.perf_counter(), self._tokens

  def _show(self, values: dict[str, float]) -> None:
    loss, speed = values["train/loss"], values.get("train/tokens_per_second")
    rate = "" if speed is None else f"{speed:,.0f} tokens/s"
    self._bar.set_postfix_str(f"loss {loss:.4f}, {rate}".rstrip(", "))
    if self._bar.disable:
      left = self._time_left()
      parts = [f"step {self._step:,}/{self._steps:,}", f"loss {loss:.4f}", rate, left]
      print(", ".join(part for part in parts if part), flush=True)

  def _time_left(self) -> str:
    done = self._step - self._first_step
    if self._running_since is None or not done:
      return ""
    seconds = (time.perf_counter() - self._running_since) / done * (self._steps - self._step)
    return f"{seconds:.0f} s left"
