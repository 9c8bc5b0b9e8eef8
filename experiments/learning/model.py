"""Creation of the model of a config."""

from collections.abc import Sequence
from typing import Any

from flax import linen as nn

import attention
from configs import base
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.data.task import Task

NORMALIZERS: dict[str, attention.Normalizer | None] = {
  "softmax": None,
  "sparsemax": attention.Sparsemax(),
  "entmax15": attention.Entmax15(),
  "sigmoid": attention.Sigmoid(subtract_log_length=True),
  "softmax_off_by_one": attention.Softmax(sink=0.0),
  "softpick": attention.Softpick(),
  "stick_breaking": attention.StickBreaking(),
}
_DECODER_METHODS = ("prepare", "step", "__call__", "output_features", "output_projection")
_LAYER_METHODS = ("project_kv", "attend_with_kv")

# Fields of `config.model` that are also fields of the modules.
_DROPOUT = ("dropout_rate", "variational_dropout", "word_dropout_rate")
_RECURRENT = (*_DROPOUT, "recurrent_dropout_rate", "residual", "layer_norm")
_TRANSFORMER = (*_DROPOUT, "num_heads", "mlp_dim", "position_encoding", "normalize_qk")


def make_model(
  config: base.Model, *, source_vocabulary_size: int, target_vocabulary_size: int
) -> attention.Seq2Seq:
  """Returns the model of a config."""
  return attention.Seq2Seq(
    encoder=_make_encoder(config, source_vocabulary_size),
    decoder=_make_decoder(config, target_vocabulary_size),
  )


def make_task_model(config: base.Config, task: Task) -> attention.Seq2Seq:
  """Returns the model of a config for the vocabularies of a task."""
  return make_model(
    config.model,
    source_vocabulary_size=len(task.source.vocabulary),
    target_vocabulary_size=len(task.target.vocabulary),
  )


def _make_decoder(config: base.Model, vocabulary_size: int) -> Any:
  """Returns the decoder of a config."""
  if base.is_custom(config.decoder):
    decoder = _make_custom("decoder", config.decoder, config, vocabulary_size)
    return _check_methods("decoder", config.decoder, decoder, _DECODER_METHODS, "attention.models.Decoder")
  if config.decoder == "transformer":
    return attention.TransformerDecoder(
      vocabulary_size,
      config.features,
      num_layers=config.num_decoder_layers,
      **_fields(config, (*_TRANSFORMER, "tied_embeddings")),
    )
  layer: Any = config.attention
  if base.is_custom(config.attention):
    module = _make_custom("attention", config.attention, config)
    layer = _check_methods(
      "attention", config.attention, module, _LAYER_METHODS, "attention.RecurrentDecoder"
    )
  return attention.RecurrentDecoder(
    vocabulary_size,
    config.embed_dim,
    config.features,
    attention=layer,
    qk_features=config.qk_features or None,
    normalizer=_normalizer(config),
    num_layers=config.num_decoder_layers,
    **_fields(config, (*_RECURRENT, "tied_embeddings", "num_heads", "attend_order", "input_feeding")),
  )


def _make_encoder(config: base.Model, vocabulary_size: int) -> Any:
  """Returns the encoder of a config."""
  if base.is_custom(config.encoder):
    encoder = _make_custom("encoder", config.encoder, config, vocabulary_size)
    return _check_methods("encoder", config.encoder, encoder, ("__call__",), "attention.models.Seq2Seq")
  options: dict[str, Any] = {"num_layers": config.num_layers}
  if config.encoder == "transformer":
    options |= _fields(config, _TRANSFORMER)
    return attention.TransformerEncoder(vocabulary_size, config.features, **options)
  options |= _fields(config, _RECURRENT)
  return attention.RecurrentEncoder(vocabulary_size, config.embed_dim, config.features, **options)


def _normalizer(config: base.Model) -> attention.Normalizer | None:
  """Returns the normalizer of the decoder's attention, or None for softmax."""
  if not base.is_custom(config.normalizer):
    return NORMALIZERS[config.normalizer]
  normalizer = components.build("model.normalizer", config.normalizer, config)
  if not isinstance(normalizer, attention.Normalizer):
    raise ConfigError(
      f"config.model.normalizer={config.normalizer} must return an attention.Normalizer, "
      f"got {type(normalizer).__name__}"
    )
  return normalizer


def _make_custom(field: str, name: str, *arguments: Any) -> Any:
  """Calls the function of a custom component. Raises ConfigError if `name` is a module class."""
  function = components.resolve(f"model.{field}", name)
  if isinstance(function, type) and issubclass(function, nn.Module):
    raise ConfigError(
      f"config.model.{field}={name} must be a function that returns a Flax module, got a module class"
    )
  return components.build(f"model.{field}", name, *arguments)


def _check_methods(field: str, name: str, module: Any, methods: Sequence[str], see: str) -> Any:
  """Returns a custom module. Raises ConfigError if it does not have all methods."""
  has_methods = all(callable(getattr(module, method, None)) for method in methods)
  if not (isinstance(module, nn.Module) and has_methods):
    raise ConfigError(
      f"config.model.{field}={name} must return a Flax module with the methods {', '.join(methods)} "
      f"(see {see}), got {type(module).__name__}"
    )
  return module


def _fields(config: base.Model, names: Sequence[str]) -> dict[str, Any]:
  return {name: getattr(config, name) for name in names}
