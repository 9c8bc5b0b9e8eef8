"""Who may attend to whom.

A mask says, for the query at position t and the key at position s, whether t may attend to s. It is
boolean, True = may attend; there is no other polarity. Masks are values: small pytrees that are joined
by `&`, `|` and `~`, and go through `jax.jit` as arguments. One of your own is a function of positions
(`from_function`), or a class that also says how its arrays are cut (see `Mask`).

Arrays inside a mask have leading axes that broadcast like any other: lengths [B] make a mask [B T S].
With heads, [B N T S], pass `lengths[:, None]`.
"""

from attention.masks.functions import FromFunction, from_function
from attention.masks.patterns import (
  Band,
  Lengths,
  Segments,
  causal,
  lengths,
  prefix,
  segments,
  sliding_window,
)
from attention.masks.rules import Array, BlockMask, Both, FromArray, Mask, Not, as_mask, from_array

__all__ = [  # noqa: RUF022 (in reading order)
  "causal",
  "sliding_window",
  "prefix",
  "lengths",
  "segments",
  "from_array",
  "from_function",
  "as_mask",
  "Mask",
  "BlockMask",
  "Band",
  "Array",
  "Lengths",
  "Segments",
  "FromArray",
  "FromFunction",
  "Both",
  "Not",
]
