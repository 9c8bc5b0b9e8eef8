"""Encoding of arrays as text in the page."""

import base64
import gzip
from collections.abc import Sequence

import numpy as np


def encode_arrays(arrays: Sequence[np.ndarray]) -> str:
  """Encodes arrays losslessly as base64 of gzip, which page/src/arrays.ts decodes.

  Args:
    arrays: arrays of the same dtype.

  >>> len(encode_arrays([np.zeros((2, 3), np.float32)]))
  32
  """
  numbers = np.concatenate([np.ravel(array) for array in arrays])
  little = numbers.astype(numbers.dtype.newbyteorder("<"))
  # The time is omitted so that the same numbers give the same text.
  return base64.b64encode(gzip.compress(little.tobytes(), mtime=0)).decode("ascii")
