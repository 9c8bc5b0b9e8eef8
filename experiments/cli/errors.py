"""A person's mistakes, and a person's wish to stop."""


class UserError(ValueError):
  """What a person can mend, told in one line. A script that meets one ends with it and exit code 2."""


class DataError(UserError):
  """A file of data that cannot be used as asked, told in one line."""


class TrainingDiverged(UserError):
  """Training has left the finite numbers; the last checkpoint is from before."""


class Preempted(Exception):
  """A signal has stopped a run; its checkpoint is written.

  Attributes:
    code: exit code of the program, 128 plus the number of the signal.
  """

  def __init__(self, message: str, signal_number: int):
    super().__init__(message)
    self.code = 128 + signal_number
