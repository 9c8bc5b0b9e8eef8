"""Flax layers: they hold parameters and call the pure functions of this package."""

from attention.layers.cache import KeyValueCache
from attention.layers.encoder_layer import EncoderLayer, FeedForward
from attention.layers.multi_head import MultiHeadAttention
from attention.layers.single_head import (
  AdditiveAttention,
  BilinearAttention,
  CosineAttention,
  DotProductAttention,
)

__all__ = [  # noqa: RUF022 (in reading order)
  "MultiHeadAttention",
  "KeyValueCache",
  "AdditiveAttention",
  "DotProductAttention",
  "BilinearAttention",
  "CosineAttention",
  "FeedForward",
  "EncoderLayer",
]
