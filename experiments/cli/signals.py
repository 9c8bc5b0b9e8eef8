"""Requests to stop: Ctrl-C at a terminal, SIGTERM from a scheduler."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

SIGNALS = signal.SIGINT, signal.SIGTERM


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
  """Gives a function that returns which signal asked to stop, 0 for none; Ctrl-C again stops at once.

  An exception in the middle of a step would lose the state, whose memory the step takes over.
  """
  requested = 0

  def handle(number: int, _) -> None:
    nonlocal requested
    requested = number
    with contextlib.suppress(OSError):  # Ctrl-C has also ended who was reading, as in `2>&1 | tee log`
      # Not print: the step that is interrupted may be writing to the same stream.
      os.write(2, b"stopping soon; Ctrl-C again stops at once\n")
    signal.signal(signal.SIGINT, before[signal.SIGINT])

  # None is a handler that Python does not know; afterwards a signal ends the program.
  before = {number: signal.signal(number, handle) or signal.SIG_DFL for number in SIGNALS}
  try:
    yield lambda: requested
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
