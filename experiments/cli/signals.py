"""Stop requests: Ctrl-C in a terminal, or SIGTERM from a scheduler."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

SIGNALS = signal.SIGINT, signal.SIGTERM


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
  """Yields a function that returns the signal that requested a stop, or 0. A second Ctrl-C stops immediately.

  The signal does not raise an exception, because a step donates the state, so an exception would lose it.
  """
  requested = 0

  def handle(number: int, _) -> None:
    nonlocal requested
    requested = number
    with contextlib.suppress(OSError):  # Ctrl-C may also end the reader, as in `2>&1 | tee log`
      # `print` is not reentrant, and the interrupted code may be writing to the same stream.
      os.write(2, b"stopping; press Ctrl-C again to stop immediately\n")
    signal.signal(signal.SIGINT, previous_handlers[signal.SIGINT])

  # `signal.signal` returns None for a handler that was not set from Python. It is replaced by the default.
  previous_handlers = {number: signal.signal(number, handle) or signal.SIG_DFL for number in SIGNALS}
  try:
    yield lambda: requested
  finally:
    for number, handler in previous_handlers.items():
      signal.signal(number, handler)
