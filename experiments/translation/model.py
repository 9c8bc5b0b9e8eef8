"""From a config to a model."""

from collections.abc import Iterator
from typing import Any

import attention
from attention.models.base import POSITIONS
from attention.models.looking import ATTENTIONS
from attention.models.recurrent_decoder import LOOKS
from configs import base
from experiments.commands import fields, own
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
  if config.decoder != "recurrent":
    raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, got {config.decoder!r}")
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
  if config.encoder != "transformer":
    raise ValueError(f"encoder must be one of {', '.join(ENCODERS)}, got {config.encoder!r}")
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


def rules(model: base.Model) -> Iterator[fields.Rule]:
  """Returns what a config's model must be."""
  yield fields.one_of("model.encoder", model.encoder, ENCODERS, or_own=True)
  yield fields.one_of("model.decoder", model.decoder, DECODERS, or_own=True)
  yield fields.one_of("model.attention", model.attention, ATTENTIONS, or_own=True)
  yield fields.one_of("model.normalizer", model.normalizer, NORMALIZERS, or_own=True)
  yield fields.one_of("model.looks", model.looks, LOOKS)
  yield fields.one_of("model.positions", model.positions, POSITIONS)
  yield fields.one_of("model.dtype", model.dtype, DTYPES)
  sizes = "embedding_width", "width", "num_layers", "num_decoder_layers", "num_heads", "feed_forward_width"
  for name in sizes:
    yield fields.at_least(f"model.{name}", getattr(model, name), 1, fields.LARGEST)
  parts = model.encoder, model.decoder, model.attention
  is_own = any(map(own.is_own, parts))  # which may read any field
  is_transformer = "transformer" in (model.encoder, model.decoder)
  is_recurrent = model.decoder == "recurrent"
  has_heads = is_transformer or model.attention == "multi_head"
  if is_transformer:
    yield "model.width", model.width, model.width % 2 == 0, "even"
  if is_transformer or (has_heads and not model.attention_width):
    fits = model.width % model.num_heads == 0
    yield "model.width", model.width, fits, f"a multiple of config.model.num_heads={model.num_heads}"
  if model.positions == "rotary" and is_transformer:
    width = model.width // model.num_heads
    yield "model.width", model.width, width % 2 == 0, "such that a head's is even, for rotary positions"
  takes_normalizer = is_recurrent and model.attention not in ("monotonic", "local", "none")
  if own.is_own(model.normalizer):
    is_given = takes_normalizer and not own.is_own(model.attention)
    allowed = "softmax, for no part of this model reads it"
    yield "model.normalizer", model.normalizer, is_given, allowed
  yield fields.at_least("model.attention_width", model.attention_width, 0, fields.LARGEST)
  if model.attention == "multi_head" and model.attention_width:
    fits = model.attention_width % model.num_heads == 0
    allowed = f"a multiple of config.model.num_heads={model.num_heads}"
    yield "model.attention_width", model.attention_width, fits, allowed
  has_recurrence = is_recurrent or model.encoder == "recurrent"
  for name, is_read in (
    ("num_heads", has_heads),
    ("feed_forward_width", is_transformer),
    ("positions", is_transformer),
    ("normalize_qk", is_transformer),
    ("attention", is_recurrent),
    ("attention_width", is_recurrent and model.attention not in ("bilinear", "local", "none")),
    ("normalizer", takes_normalizer),
    ("looks", is_recurrent),
    ("input_feeding", is_recurrent),
    ("embedding_width", has_recurrence),
    ("residual", has_recurrence),
    ("use_norm", has_recurrence),
    ("recurrent_dropout_rate", has_recurrence),
  ):
    value, default = getattr(model, name), getattr(base.Model(), name)
    is_allowed = is_own or is_read or value == default
    yield f"model.{name}", value, is_allowed, f"{default}, for no part of this model reads it"
  for name in ("dropout_rate", "recurrent_dropout_rate", "word_dropout_rate"):
    yield fields.share(f"model.{name}", getattr(model, name))
