"""Models of sequences: the GRU, encoders, the decoder, and what is made of them."""

from attention.models.encoders import Encoded, RecurrentEncoder, TransformerEncoder
from attention.models.ensemble import Ensemble
from attention.models.looking import DecoderMemory
from attention.models.parameters import GRUParameters
from attention.models.recurrent import GRUWeights, attentive_gru, gru, gru_step
from attention.models.recurrent_decoder import RecurrentDecoder
from attention.models.seq2seq import AttentionWeights, Decoder, Features, Seq2Seq
from attention.models.transformer_decoder import TransformerDecoder

__all__ = [  # noqa: RUF022 (in reading order)
  "GRUWeights",
  "gru_step",
  "gru",
  "attentive_gru",
  "GRUParameters",
  "Encoded",
  "RecurrentEncoder",
  "TransformerEncoder",
  "DecoderMemory",
  "RecurrentDecoder",
  "TransformerDecoder",
  "Decoder",
  "Features",
  "AttentionWeights",
  "Seq2Seq",
  "Ensemble",
]
