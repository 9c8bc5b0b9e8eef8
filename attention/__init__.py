"""Attention for JAX: one contract for every score function, Flax layers, a translator.

The pure functions come first; the layers and models below hold parameters and call them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attention import jax_nn, losses, masks, positions, search
from attention.arrays.pytrees import register_pytree
from attention.distributed import ring_attention, zigzag_order
from attention.engines.dense import Attended
from attention.engines.normalizers import (
  Entmax15,
  Local,
  Monotonic,
  Sigmoid,
  Sparsemax,
  monotonic_weights,
)
from attention.engines.softmax import Normalizer, Rows, Softmax, masked_softmax
from attention.functional import (
  additive_attention,
  attend,
  bilinear_attention,
  cosine_attention,
  scaled_dot_product_attention,
)
from attention.grouped_heads import attend_heads
from attention.masks import Mask
from attention.merging import merge, with_sink
from attention.multi_head import MultiHeadWeights, multi_head_attention
from attention.projections import merge_heads, project_heads
from attention.scores import (
  Additive,
  Bilinear,
  Cosine,
  LocationAware,
  ScaledDotProduct,
  Score,
  SoftCapped,
  additive_scores,
  bilinear_scores,
  cosine_scores,
  dot_product_scores,
  location_features,
)

if TYPE_CHECKING:
  from attention.layers import *
  from attention.models import *

__all__ = [  # noqa: RUF022 (in reading order)
  # Who may attend to whom, how well a key fits a query.
  "masks",
  "Mask",
  "dot_product_scores",
  "additive_scores",
  "bilinear_scores",
  "cosine_scores",
  "masked_softmax",
  "Score",
  "ScaledDotProduct",
  "Additive",
  "Bilinear",
  "Cosine",
  "SoftCapped",
  "LocationAware",
  "location_features",
  "register_pytree",
  "Normalizer",
  "Rows",
  "Softmax",
  "Sparsemax",
  "Entmax15",
  "Sigmoid",
  "Monotonic",
  "monotonic_weights",
  "Local",
  # Attention.
  "attend",
  "Attended",
  "scaled_dot_product_attention",
  "additive_attention",
  "bilinear_attention",
  "cosine_attention",
  "merge",
  "with_sink",
  "ring_attention",
  "zigzag_order",
  "MultiHeadWeights",
  "multi_head_attention",
  "project_heads",
  "attend_heads",
  "merge_heads",
  "jax_nn",
  # What models need besides.
  "positions",
  "GRUWeights",
  "gru_step",
  "gru",
  "attentive_gru",
  "search",
  "losses",
  # Flax layers and models.
  "MultiHeadAttention",
  "KeyValueCache",
  "AdditiveAttention",
  "DotProductAttention",
  "BilinearAttention",
  "CosineAttention",
  "LocalAttention",
  "LocationAwareAttention",
  "MonotonicAttention",
  "FeedForward",
  "EncoderLayer",
  "DecoderLayer",
  "GRUParameters",
  "Encoded",
  "RecurrentEncoder",
  "TransformerEncoder",
  "DecoderMemory",
  "RecurrentDecoder",
  "TransformerDecoder",
  "Features",
  "AttentionWeights",
  "Seq2Seq",
  "Ensemble",
]


def __getattr__(name: str) -> Any:
  """Imports layers and models when they are first asked for: with Flax, they take longer than all else."""
  if name in ("layers", "models"):
    return importlib.import_module(f"attention.{name}")
  if name in __all__:
    layers, models = (importlib.import_module(f"attention.{module}") for module in ("layers", "models"))
    return getattr(layers, name) if hasattr(layers, name) else getattr(models, name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__, "layers", "models"})
