"""Requests to stop: Ctrl-C at a terminal, SIGTERM from a scheduler."""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

# What a shell reports of a program that a signal has ended, which schedulers understand.
EXIT_CODES = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: 128 + signal.SIGTERM}

_GRACE = 5  # seconds that unwinding may take after Ctrl-C


def runs_as_script() -> bool:
  """Returns whether Python was started as `python -m experiments.NAME` and is still importing."""
  return sys.argv[:1] == ["-m"] and any(
    argument.removeprefix("-m").startswith("experiments.") for argument in sys.orig_argv
  )


def end_at_interrupts() -> None:
  """Makes Ctrl-C end the process at once, with one line: for imports, which have nothing to clean up."""
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a process in the background ignores it
    signal.signal(signal.SIGINT, _end_with_line)


def unwind_at_interrupts() -> None:
  """Makes Ctrl-C raise KeyboardInterrupt, and the process end with 130 even where that is swallowed.

  Python ignores exceptions in callbacks of the garbage collector, one of which is JAX's.
  """
  if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _end_with_line):
    signal.signal(signal.SIGINT, _unwind)


def _unwind(*_) -> None:
  signal.signal(signal.SIGINT, _end)  # Ctrl-C again ends at once
  _say_stopped()
  sys.excepthook = sys.unraisablehook = _end
  atexit.register(_end)
  signal.signal(signal.SIGALRM, _end)
  signal.alarm(_GRACE)
  raise KeyboardInterrupt


def _end_with_line(*_) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  _say_stopped()
  _end()


def _say_stopped() -> None:
  with contextlib.suppress(OSError):
    os.write(2, b"stopped\n")


def _end(*_) -> None:
  with contextlib.suppress(Exception):
    sys.stdout.flush()
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
