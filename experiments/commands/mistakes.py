"""A person's mistakes."""


class Mistake(ValueError):
  """What a person can mend, told in one line. A script that meets one ends with it and exit code 2."""


class Diverged(Mistake):
  """Training has left the finite numbers; the last checkpoint is from before."""
