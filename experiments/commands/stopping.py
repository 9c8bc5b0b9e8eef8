"""Requests to stop: Ctrl-C at a terminal, SIGTERM from a scheduler."""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

# What a shell reports of a program that a signal has ended, which schedulers understand.
EXIT_CODES = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: 128 + signal.SIGTERM}

# What an interrupt that ends the process has still to do.
_CLEANUPS: list[Callable[[], object]] = []


def runs_as_script() -> bool:
  """Returns whether Python was started as `python -m experiments.NAME` and is still importing."""
  return sys.argv[:1] == ["-m"] and any(
    argument.removeprefix("-m").startswith("experiments.") for argument in sys.orig_argv
  )


def end_at_interrupts() -> None:
  """Makes Ctrl-C end the process with one line and exit code 130.

  A KeyboardInterrupt would be ignored in callbacks of the garbage collector, one of which is JAX's, and
  TensorStore turns one into an error of the file that it reads.
  """
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a process in the background ignores it
    signal.signal(signal.SIGINT, _end)
    atexit.register(
      signal.signal, signal.SIGINT, signal.SIG_IGN
    )  # the work is done: only Python's end is left


@contextlib.contextmanager
def cleaned_up(cleanup: Callable[[], object]) -> Iterator[None]:
  """Calls a function if Ctrl-C ends the process inside the block."""
  _CLEANUPS.append(cleanup)
  try:
    yield
  finally:
    _CLEANUPS.remove(cleanup)


def _end(*_) -> None:
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C again ends even this
  with contextlib.suppress(OSError):  # nobody may be reading
    os.write(2, b"stopped\n")
  for cleanup in [*_CLEANUPS, sys.stdout.flush]:
    with contextlib.suppress(Exception):
      cleanup()
  os._exit(EXIT_CODES[signal.SIGINT])


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
  """Gives a function that tells which signal asked to stop, 0 for none; Ctrl-C again stops at once.

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
  before = {number: signal.signal(number, handle) or signal.SIG_DFL for number in EXIT_CODES}
  try:
    yield lambda: requested
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
