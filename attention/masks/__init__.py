"""Attention masks.

A mask is boolean: True means that the query at position t may attend to the key at position s. Masks are
small pytrees that can be combined with `&`, `|` and `~`, and passed to `jax.jit` as arguments. A custom mask
is a function of positions (`from_function`) or a subclass of `Mask`.

Arrays inside a mask have leading axes that broadcast: lengths [B] make a mask [B T S]. With heads,
[B N T S], pass `lengths[:, None]`.
"""

from attention.masks.base import And as And
from attention.masks.base import Array as Array
from attention.masks.base import BlockSummary as BlockSummary
from attention.masks.base import FromArray as FromArray
from attention.masks.base import Mask as Mask
from attention.masks.base import Not as Not
from attention.masks.base import as_mask as as_mask
from attention.masks.base import from_array as from_array
from attention.masks.from_function import FromFunction as FromFunction
from attention.masks.from_function import from_function as from_function
from attention.masks.patterns import Band as Band
from attention.masks.patterns import Lengths as Lengths
from attention.masks.patterns import Segments as Segments
from attention.masks.patterns import causal as causal
from attention.masks.patterns import lengths as lengths
from attention.masks.patterns import packed as packed
from attention.masks.patterns import prefix as prefix
from attention.masks.patterns import segments as segments
from attention.masks.patterns import sliding_window as sliding_window
