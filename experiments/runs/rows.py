"""Which rows of a batch a process makes."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Rows:
  """Which rows of every batch a process makes: one of `count` runs of the same length.

  Attributes:
    index: of the run.
    count: how many there are.
    multiple: rows without a sentence are added to a batch until their number is a multiple of this, which is
      itself one of `count`.

  Raises:
    ValueError: if it is not.
  """

  index: int = 0
  count: int = 1
  multiple: int = 1

  def __post_init__(self) -> None:
    if self.multiple % self.count:
      raise ValueError(f"multiple must be a multiple of count={self.count}, got {self.multiple}")

  def of(self, total: int) -> range:
    """Returns the numbers of the rows, of a batch of `total`; those from there on are without a sentence.

    >>> Rows(index=1, count=2, multiple=4).of(6)
    range(4, 8)
    """
    size = math.ceil(total / self.multiple) * self.multiple // self.count
    return range(self.index * size, (self.index + 1) * size)


ALL = Rows()
