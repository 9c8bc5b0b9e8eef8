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
      dropout_rate=config.dropout_rate,
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
      dropout_rate=config.dropout_rate,
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
  )
