"""Sizes that are unknown while a function is traced: symbolic dimensions of `jax.export`."""

import math
from collections.abc import Iterable

import jax.export

# What an unknown size counts as where a choice depends on it: long, so that memory stays linear.
UNKNOWN_SIZE = 4096


def is_known(size: int) -> bool:
  """Whether a size is a number, and not a symbolic dimension."""
  return not jax.export.is_symbolic_dim(size)


def assumed(size: int) -> int:
  """Returns a size, 4,096 for an unknown one."""
  return int(size) if is_known(size) else UNKNOWN_SIZE


def assumed_product(sizes: Iterable[int]) -> int:
  """Returns the product of sizes, each unknown one as 4,096."""
  return math.prod(map(assumed, sizes))
