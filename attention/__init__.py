"""Attention functions, Flax layers and sequence-to-sequence models for JAX.

All score functions share one contract; see `attend`. Layers and models hold parameters and call the pure
functions.
"""

from attention import convert as convert
from attention import decoding as decoding
from attention import jax_nn as jax_nn
from attention import losses as losses
from attention import masks as masks
from attention import positions as positions
from attention.arrays.named_axes import register_pytree as register_pytree
from attention.combine import add_sink as add_sink
from attention.combine import merge_partials as merge_partials
from attention.distributed import ring_attention as ring_attention
from attention.distributed import zigzag_layout as zigzag_layout
from attention.engines.dense import AttentionOutput as AttentionOutput
from attention.functional import additive_attention as additive_attention
from attention.functional import attend as attend
from attention.functional import bilinear_attention as bilinear_attention
from attention.functional import cosine_attention as cosine_attention
from attention.functional import scaled_dot_product_attention as scaled_dot_product_attention
from attention.grouped_heads import attend_heads as attend_heads
from attention.layers import AdditiveAttention as AdditiveAttention
from attention.layers import BilinearAttention as BilinearAttention
from attention.layers import CosineAttention as CosineAttention
from attention.layers import DecoderLayer as DecoderLayer
from attention.layers import DotProductAttention as DotProductAttention
from attention.layers import EncoderLayer as EncoderLayer
from attention.layers import FeedForward as FeedForward
from attention.layers import KVCache as KVCache
from attention.layers import LayerNorm as LayerNorm
from attention.layers import LocalAttention as LocalAttention
from attention.layers import LocationAwareAttention as LocationAwareAttention
from attention.layers import MonotonicAttention as MonotonicAttention
from attention.layers import MultiHeadAttention as MultiHeadAttention
from attention.layers import ProjectedAttention as ProjectedAttention
from attention.layers import RMSNorm as RMSNorm
from attention.layers import flax_attention_fn as flax_attention_fn
from attention.linear import merge_heads as merge_heads
from attention.linear import project_heads as project_heads
from attention.masked_softmax import masked_softmax as masked_softmax
from attention.masks import Mask as Mask
from attention.models import AttentionWeights as AttentionWeights
from attention.models import DecoderMemory as DecoderMemory
from attention.models import Encoded as Encoded
from attention.models import Ensemble as Ensemble
from attention.models import GRUModule as GRUModule
from attention.models import GRUWeights as GRUWeights
from attention.models import OutputFeatures as OutputFeatures
from attention.models import RecurrentDecoder as RecurrentDecoder
from attention.models import RecurrentEncoder as RecurrentEncoder
from attention.models import Seq2Seq as Seq2Seq
from attention.models import TransformerDecoder as TransformerDecoder
from attention.models import TransformerEncoder as TransformerEncoder
from attention.models import gru as gru
from attention.models import gru_step as gru_step
from attention.multi_head import MultiHeadWeights as MultiHeadWeights
from attention.multi_head import multi_head_attention as multi_head_attention
from attention.normalizers.base import Normalizer as Normalizer
from attention.normalizers.elementwise import Sigmoid as Sigmoid
from attention.normalizers.elementwise import Softpick as Softpick
from attention.normalizers.gaussian_window import GaussianWindow as GaussianWindow
from attention.normalizers.monotonic import Monotonic as Monotonic
from attention.normalizers.monotonic import monotonic_weights as monotonic_weights
from attention.normalizers.rows import ScoreRows as ScoreRows
from attention.normalizers.rows import ScoreTile as ScoreTile
from attention.normalizers.softmax import Softmax as Softmax
from attention.normalizers.sparse import Entmax15 as Entmax15
from attention.normalizers.sparse import Sparsemax as Sparsemax
from attention.normalizers.stick_breaking import StickBreaking as StickBreaking
from attention.scores import Additive as Additive
from attention.scores import Bilinear as Bilinear
from attention.scores import Cosine as Cosine
from attention.scores import LocationAware as LocationAware
from attention.scores import ScaledDotProduct as ScaledDotProduct
from attention.scores import Score as Score
from attention.scores import SoftCap as SoftCap
from attention.scores import additive_scores as additive_scores
from attention.scores import bilinear_scores as bilinear_scores
from attention.scores import cosine_scores as cosine_scores
from attention.scores import dot_product_scores as dot_product_scores
from attention.scores import location_features as location_features
from attention.statistics import RowStatistics as RowStatistics
from attention.statistics import row_statistics as row_statistics

__version__ = "0.1.0"
