"""Sequence models: the GRU, encoders, decoders, sequence-to-sequence models and ensembles."""

from attention.models.decoder_attention import DecoderMemory as DecoderMemory
from attention.models.encoders import Encoded as Encoded
from attention.models.encoders import RecurrentEncoder as RecurrentEncoder
from attention.models.encoders import TransformerEncoder as TransformerEncoder
from attention.models.ensemble import Ensemble as Ensemble
from attention.models.gru import GRUModule as GRUModule
from attention.models.gru import GRUWeights as GRUWeights
from attention.models.gru import gru as gru
from attention.models.gru import gru_step as gru_step
from attention.models.recurrent_decoder import RecurrentDecoder as RecurrentDecoder
from attention.models.seq2seq import AttentionWeights as AttentionWeights
from attention.models.seq2seq import Decoder as Decoder
from attention.models.seq2seq import OutputFeatures as OutputFeatures
from attention.models.seq2seq import Seq2Seq as Seq2Seq
from attention.models.transformer_decoder import TransformerDecoder as TransformerDecoder
