"""Signals: Ctrl-C in a terminal, or SIGTERM from a scheduler.

No handler raises an exception: JAX only prints exceptions in its callbacks, and a training step donates the
state, so an exception would lose it. While XLA compiles, Python does not run handlers, so a thread reads the
signals and ends the process.
"""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

SIGNALS = signal.SIGINT, signal.SIGTERM
# Signals within this time are one request: `timeout` sends two, and a sweep sends SIGTERM after a Ctrl-C.
_REQUEST_SECONDS = 0.5


@functools.cache  # a script calls it before its imports and in `flags.run`
def exit_on_signals() -> None:
  """Makes the first signal end the process with one line and exit code 128 plus the signal number."""
  for number in SIGNALS:
    if signal.getsignal(number) != signal.SIG_IGN:  # a shell starts background programs with SIGINT ignored
      signal.signal(number, lambda *_: None)
  signal.set_wakeup_fd(_watch(_exit)[0])


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
  """Yields a function that returns the signal that requested a stop, or 0. A second one ends the process."""
  requested, first_time = 0, None

  def handle(number: int, _) -> None:
    nonlocal requested
    requested = number

  def watch(number: int) -> None:
    nonlocal first_time
    if first_time is None:
      first_time = time.monotonic()
      _print("stopping; press Ctrl-C again to stop immediately")
    elif time.monotonic() > first_time + _REQUEST_SECONDS:
      _exit(number)

  # `signal.signal` returns None for a handler that was not set from Python. It is replaced by the default.
  previous_handlers = {number: signal.signal(number, handle) or signal.SIG_DFL for number in SIGNALS}
  writer, thread = _watch(watch)
  previous_writer = signal.set_wakeup_fd(writer)
  try:
    yield lambda: requested
  finally:
    signal.set_wakeup_fd(previous_writer)
    for number, handler in previous_handlers.items():
      signal.signal(number, handler)
    os.close(writer)
    thread.join()


def _watch(function: Callable[[int], None]) -> tuple[int, threading.Thread]:
  """Starts a thread that calls a function with each number of `SIGNALS` that is written to a pipe.

  Returns:
    The file descriptor to write to, which ends the thread when it is closed, and the thread.
  """
  _register_fork()
  reader, writer = os.pipe()
  os.set_blocking(writer, False)

  def read() -> None:
    with open(reader, "rb", buffering=0) as numbers:
      while number := numbers.read(1):
        if number[0] in SIGNALS:  # Python writes the numbers of all signals with a handler
          function(number[0])

  thread = threading.Thread(target=read, daemon=True)
  thread.start()
  return writer, thread


@functools.cache
def _register_fork() -> None:
  """Makes signals end a forked process. It would write them to the pipe of its parent."""
  change_mask = functools.partial(signal.pthread_sigmask, mask=SIGNALS)

  def restore_defaults() -> None:
    if signal.set_wakeup_fd(-1) != -1:
      for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
          signal.signal(number, signal.SIG_DFL)
    change_mask(signal.SIG_UNBLOCK)

  os.register_at_fork(
    before=functools.partial(change_mask, signal.SIG_BLOCK),
    after_in_parent=functools.partial(change_mask, signal.SIG_UNBLOCK),
    after_in_child=restore_defaults,
  )


def _exit(number: int) -> None:
  """Ends the process without cleanup, like SIGKILL. All files are written such that this is safe."""
  _print("stopped")
  os._exit(128 + number)


def _print(line: str) -> None:
  with contextlib.suppress(OSError):  # Ctrl-C may also end the reader, as in `2>&1 | tee log`
    # `print` could wait for a lock of the main thread.
    os.write(2, f"{line}\n".encode())
