"""From a config to a model."""

from typing import Any

import attention
from configs import base
from experiments.commands import own
from experiments.commands.fields import ConfigError
from experiments.tasks import Task

DTYPES = ("float32", "bfloat16")
ENCODERS = ("recurrent", "transformer")
DECODERS = ("recurrent", "transformer")
NORMALIZERS: dict[str, attention.Normalizer | None] = {
  "softmax": None,
  "sparsemax": attention.Sparsemax(),
  "entmax15": attention.Entmax15(),
  "sigmoid": attention.Sigmoid(less_log_keys=True),
}
_METHODS = ("prepare", "step", "__call__", "features", "output_weights")  # of a decoder


def make_model(
  config: base.Model, *, source_vocabulary_size: int, target_vocabulary_size: int
) -> attention.Seq2Seq:
  """Returns the translator that a config describes."""
  return attention.Seq2Seq(
    encoder=_make_encoder(config, source_vocabulary_size),
    decoder=_make_decoder(config, target_vocabulary_size),
  )


def make_task_model(config: base.Config, task: Task) -> attention.Seq2Seq:
  """Returns the config's model for the task's vocabularies."""
  return make_model(
    config.model,
    source_vocabulary_size=len(task.source.vocabulary),
    target_vocabulary_size=len(task.target.vocabulary),
  )


def _make_decoder(config: base.Model, vocabulary_size: int) -> Any:
  """Returns the decoder that a config describes."""
  if own.is_own(config.decoder):
    decoder = own.make("model.decoder", config.decoder, config, vocabulary_size)
    if not all(callable(getattr(decoder, method, None)) for method in _METHODS):
      raise ConfigError(
        f"config.model.decoder={config.decoder} must make a Flax module with the methods "
        f"{', '.join(_METHODS)} (see attention.models.Decoder), got {type(decoder).__name__}"
      )
    return decoder
  if config.decoder == "transformer":
    return attention.TransformerDecoder(
      vocabulary_size,
      config.width,
      num_layers=config.num_decoder_layers,
      tied_embeddings=config.tied_embeddings,
      **_transformer_options(config),
    )
  return attention.RecurrentDecoder(
    vocabulary_size,
    config.embedding_width,
    config.width,
    attention=_attention(config),
    attention_width=config.attention_width or None,
    normalizer=_normalizer(config),
    looks=config.looks,
    input_feeding=config.input_feeding,
    num_heads=config.num_heads,
    num_layers=config.num_decoder_layers,
    residual=config.residual,
    use_norm=config.use_norm,
    tied_embeddings=config.tied_embeddings,
    dropout_rate=config.dropout_rate,
    variational=config.variational,
    recurrent_dropout_rate=config.recurrent_dropout_rate,
    word_dropout_rate=config.word_dropout_rate,
  )


def _attention(config: base.Model) -> Any:
  """Returns the name of the decoder's attention, or a layer of a person's own."""
  if not own.is_own(config.attention):
    return config.attention
  layer = own.make("model.attention", config.attention, config)
  if not all(hasattr(layer, method) for method in ("prepare", "attend_prepared")):
    raise ConfigError(
      f"config.model.attention={config.attention} must make a Flax module with the methods prepare and "
      f"attend_prepared (see attention.RecurrentDecoder), got {type(layer).__name__}"
    )
  return layer


def _normalizer(config: base.Model) -> attention.Normalizer | None:
  """Returns what makes the weights of the decoder's attention; None for the softmax."""
  if not own.is_own(config.normalizer):
    return NORMALIZERS[config.normalizer]
  normalizer = own.make("model.normalizer", config.normalizer, config)
  if not isinstance(normalizer, attention.Normalizer):
    raise ConfigError(
      f"config.model.normalizer={config.normalizer} must make an attention.Normalizer, "
      f"got {type(normalizer).__name__}"
    )
  return normalizer


def _make_encoder(config: base.Model, vocabulary_size: int) -> Any:
  """Returns the encoder that a config describes."""
  if own.is_own(config.encoder):
    return own.make("model.encoder", config.encoder, config, vocabulary_size)
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
  return attention.TransformerEncoder(
    vocabulary_size,
    config.width,
    num_layers=config.num_layers,
    **_transformer_options(config),
  )


def _transformer_options(config: base.Model) -> dict[str, Any]:
  """Returns what encoder and decoder have in common if they are transformers."""
  return {
    "num_heads": config.num_heads,
    "feed_forward_width": config.feed_forward_width,
    "positions": config.positions,
    "normalize_qk": config.normalize_qk,
    "dropout_rate": config.dropout_rate,
    "variational": config.variational,
    "word_dropout_rate": config.word_dropout_rate,
  }
