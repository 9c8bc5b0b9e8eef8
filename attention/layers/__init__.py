"""Flax layers: they hold parameters and call the pure functions of this package."""

from attention.layers.attention import (
  AdditiveAttention,
  BilinearAttention,
  DotProductAttention,
  MultiHeadAttention,
)
from attention.layers.cache import KeyValueCache
from attention.layers.encoder_layer import EncoderLayer, FeedForward

__all__ = [  # noqa: RUF022 (in reading order)
  "MultiHeadAttention",
  "KeyValueCache",
  "AdditiveAttention",
  "DotProductAttention",
  "BilinearAttention",
  "FeedForward",
  "EncoderLayer",
]
