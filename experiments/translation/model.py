"""From a config to a model."""

import attention
from configs import base

ENCODERS = ("recurrent", "transformer")


def make_model(
  config: base.Model, *, source_vocabulary_size: int, target_vocabulary_size: int
) -> attention.Seq2Seq:
  """Returns the translator that a config describes."""
  return attention.Seq2Seq(
    encoder=_make_encoder(config, source_vocabulary_size),
    decoder=attention.Decoder(
      target_vocabulary_size,
      config.embedding_width,
      config.width,
      attention=config.attention,
      num_heads=config.num_heads,
      num_layers=config.num_decoder_layers,
      residual=config.residual,
      use_norm=config.use_norm,
      tied_embeddings=config.tied_embeddings,
      dropout_rate=config.dropout_rate,
      variational=config.variational,
      recurrent_dropout_rate=config.recurrent_dropout_rate,
      word_dropout_rate=config.word_dropout_rate,
    ),
  )


def _make_encoder(
  config: base.Model, vocabulary_size: int
) -> attention.RecurrentEncoder | attention.TransformerEncoder:
  """Returns the encoder that a config describes."""
  if config.encoder == "recurrent":
    return attention.RecurrentEncoder(
      vocabulary_size,
      config.embedding_width,
      config.width,
      num_layers=config.num_layers,
      residual=config.residual,
      use_norm=config.use_norm,
      dropout_rate=config.dropout_rate,
      variational=config.variational,
      recurrent_dropout_rate=config.recurrent_dropout_rate,
      word_dropout_rate=config.word_dropout_rate,
    )
  if config.encoder != "transformer":
    raise ValueError(f"encoder must be one of {', '.join(ENCODERS)}, got {config.encoder!r}")
  return attention.TransformerEncoder(
    vocabulary_size,
    config.width,
    num_layers=config.num_layers,
    num_heads=config.num_heads,
    feed_forward_width=config.feed_forward_width,
    dropout_rate=config.dropout_rate,
    variational=config.variational,
    word_dropout_rate=config.word_dropout_rate,
  )
