"""A person's mistakes."""


class Mistake(ValueError):
  """What a person can mend, told in one line. A script that meets one ends with it and exit code 2."""
