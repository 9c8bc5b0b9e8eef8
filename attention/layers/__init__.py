"""Flax layers: they hold parameters and call the pure functions of this package."""

from attention.layers.attention_layers import AdditiveAttention as AdditiveAttention
from attention.layers.attention_layers import BilinearAttention as BilinearAttention
from attention.layers.attention_layers import CosineAttention as CosineAttention
from attention.layers.attention_layers import DotProductAttention as DotProductAttention
from attention.layers.attention_layers import LocalAttention as LocalAttention
from attention.layers.attention_layers import ProjectedAttention as ProjectedAttention
from attention.layers.cache import KVCache as KVCache
from attention.layers.decoder_layer import DecoderLayer as DecoderLayer
from attention.layers.encoder_layer import EncoderLayer as EncoderLayer
from attention.layers.encoder_layer import FeedForward as FeedForward
from attention.layers.flax_attention_fn import flax_attention_fn as flax_attention_fn
from attention.layers.multi_head import MultiHeadAttention as MultiHeadAttention
from attention.layers.projections import LayerNorm as LayerNorm
from attention.layers.projections import RMSNorm as RMSNorm
from attention.layers.stateful_attention import LocationAwareAttention as LocationAwareAttention
from attention.layers.stateful_attention import MonotonicAttention as MonotonicAttention
