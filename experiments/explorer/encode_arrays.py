"""Arrays as text that a page can hold."""

import base64
import gzip
from collections.abc import Sequence

import numpy as np


def packed(arrays: Sequence[np.ndarray]) -> str:
  """Returns all numbers of some arrays, in order, as text that page/decode_arrays.mjs reads.

  All lowest bytes stand in front of all second ones, and so on, which makes the text a sixth shorter: signs
  and exponents, the highest bytes, are much alike. It is in base 85, five characters for four bytes; none of
  them is "<", a quotation mark or a backslash, so it can stand in a page as it is. Nothing is rounded.

  Args:
    arrays: of one dtype.

  >>> len(packed([np.zeros((2, 3), np.float32)]))
  29
  """
  numbers = np.concatenate([np.ravel(array) for array in arrays])
  little = numbers.astype(numbers.dtype.newbyteorder("<"))
  planes = little.view(np.uint8).reshape(-1, little.itemsize).T
  # Without the time of writing, the same numbers give the same text.
  return base64.b85encode(gzip.compress(planes.tobytes(), mtime=0)).decode("ascii").replace("<", ",")
