"""User errors and preemption."""


class UserError(ValueError):
  """An error that the user can fix, with a one-line message. A script prints it and exits with code 2."""


class DataError(UserError):
  """A data file that cannot be used."""


class TrainingDiverged(UserError):
  """A loss, parameter or output that is not finite. The last checkpoint is from an earlier step."""


class Preempted(Exception):
  """A run was stopped by a signal, after a checkpoint was written.

  Attributes:
    code: exit code of the program, 128 plus the signal number.
  """

  def __init__(self, message: str, signal_number: int):
    super().__init__(message)
    self.code = 128 + signal_number
