"""Flax layers: they hold parameters and call the pure functions of this package."""

from attention.layers.cache import KeyValueCache
from attention.layers.decoder_layer import DecoderLayer
from attention.layers.encoder_layer import EncoderLayer, FeedForward
from attention.layers.multi_head import MultiHeadAttention
from attention.layers.single_head import (
  AdditiveAttention,
  BilinearAttention,
  CosineAttention,
  DotProductAttention,
  LocalAttention,
)
from attention.layers.stepwise import LocationAwareAttention, MonotonicAttention

__all__ = [  # noqa: RUF022 (in reading order)
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
]
