"""Configuration of experiments, with all defaults.

A config file defines `get_config`, which creates a `Config`, assigns its fields
(`config.model.features = 256`), and returns it. Any field can be overridden by a flag:
`--config.train.num_train_steps=100`.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

# Maximum width, number of rows or length. The product of two of them does not overflow in XLA.
MAX_SIZE = 2**20
MAX_LAYERS = 1_000  # each layer is compiled
MAX_INT = 2**31 - 1
MAX_FLOAT = 1e38


# The functions below return fields with a rule as metadata: `is_allowed` tests a value, `allowed` describes
# the allowed values, and `custom` allows custom components.


def between(low: float, high: float, *, default: float) -> Any:
  """Returns a field of numbers from low to high."""
  return _field(default, f"from {low:,} to {high:,}", lambda value: low <= value <= high, range=(low, high))


def fraction(*, default: float) -> Any:
  """Returns a field of numbers in [0, 1)."""
  return _field(default, "in [0, 1)", lambda value: 0 <= value < 1)


def one_of(*choices: str, default: str, custom: bool = False) -> Any:
  """Returns a field with one of several values, or a custom component."""
  allowed = f"one of {', '.join(choices)}"
  if not custom:
    return _field(default, allowed, lambda value: value in choices, choices=choices)
  return _field(
    default,
    f"{allowed}, or a custom component (package.module:Name)",
    lambda value: value in choices or is_custom(value),
    choices=choices,
    custom=True,
  )


def custom_list() -> Any:
  """Returns a field of custom components, separated by commas."""
  return _field(
    "",
    "a list of package.module:Name, separated by commas",
    lambda value: all(map(is_custom, split(value))),
    custom=True,
  )


def _field(default: Any, allowed: str, is_allowed: Callable[[Any], bool], **details: Any) -> Any:
  metadata = {"allowed": allowed, "is_allowed": is_allowed, **details}
  return dataclasses.field(default=default, metadata=metadata)


def is_custom(name: str) -> bool:
  """Returns whether a value is the name of a custom component, package.module:Name."""
  return re.fullmatch(r"[\w.]+(?<!\.py):[\w.]+", name) is not None


def split(value: str) -> list[str]:
  """Returns the items of a list that is separated by commas."""
  return [item.strip() for item in value.split(",") if item.strip()]


@dataclasses.dataclass(slots=True)  # misspelled fields raise an error
class Data:
  """The task and its data.

  Attributes:
    task: "toy_translation" (English to Italian, generated), "scan" (commands to actions, generated),
      "parallel_text" (text files), or a custom task, package.module:Name.
    split: scan: "simple", "length", "add_jump" or "add_turn_left".
    scan_max_train_actions: scan, split "length": commands with more actions are test examples.
    train_file: parallel_text: path of tab-separated UTF-8 text, source first, plain or .gz.
    validation_file: parallel_text: path of text in the same format; evaluated during training.
    test_file: parallel_text: path of text in the same format; evaluated at the end. Optional.
    alignment_tokens: parallel_text: tokens that the alignments in these files count: "words", "whitespace"
      (separated by spaces), or "auto" (words, with an error if the file may count whitespace tokens).
    lowercase: parallel_text: whether to lowercase text.
    tokenization: parallel_text: "word", "character" or "subword".
    subword_model: parallel_text: "unigram" or "bpe".
    vocabulary_size: parallel_text: number of subwords per language, 256 bytes included. 0: 260, plus one
      per 500 characters of the training text, at most 8,000.
    source_vocabulary_size: parallel_text: number of source subwords; 0 for vocabulary_size.
    target_vocabulary_size: parallel_text: number of target subwords; 0 for vocabulary_size.
    min_count: parallel_text: words or characters with a lower count in the training text become unknown.
    max_train_length: parallel_text: training pairs with more tokens on either side are dropped.
    num_buckets: number of lengths to which training batches are padded. The step is compiled for each.
  """

  task: str = one_of("toy_translation", "scan", "parallel_text", default="toy_translation", custom=True)
  split: str = one_of("simple", "length", "add_jump", "add_turn_left", default="simple")
  scan_max_train_actions: int = between(1, 47, default=22)
  train_file: str = ""
  validation_file: str = ""
  test_file: str = ""
  alignment_tokens: str = one_of("auto", "words", "whitespace", default="auto")
  lowercase: bool = True
  tokenization: str = one_of("word", "character", "subword", default="word")
  subword_model: str = one_of("unigram", "bpe", default="unigram")
  vocabulary_size: int = between(0, MAX_SIZE, default=0)
  source_vocabulary_size: int = between(0, MAX_SIZE, default=0)
  target_vocabulary_size: int = between(0, MAX_SIZE, default=0)
  min_count: int = between(1, MAX_SIZE, default=2)
  max_train_length: int = between(1, MAX_SIZE, default=31)
  num_buckets: int = between(1, MAX_SIZE, default=3)


@dataclasses.dataclass(slots=True)
class Model:
  """The encoder and the decoder.

  Attributes:
    encoder: "recurrent" (bidirectional GRU), "transformer", or a custom encoder,
      package.module:Name: a function of this config group and the vocabulary size that returns a Flax module.
    decoder: "recurrent" (GRU), "transformer", or a custom decoder: a function of this config group and the
      vocabulary size that returns a Flax module with the methods of `attention.models.Decoder`.
    attention: attention of the recurrent decoder: "additive", "dot_product", "scaled_dot_product",
      "bilinear", "cosine", "multi_head", "location_aware", "coverage", "monotonic", "local", "none", or
      custom attention: a function of this config group that returns a Flax module (see
      `attention.RecurrentDecoder`).
    qk_features: width of the projected queries and keys of that attention; 0 for `features`.
    normalizer: normalizer of that attention: "softmax", "softmax_off_by_one", "sparsemax", "entmax15",
      "sigmoid" (of scores minus the log of the source length), "softpick", "stick_breaking", or a custom
      normalizer: a function of this config group that returns an `attention.Normalizer`.
    attend_order: whether the recurrent decoder attends "before" or "after" reading the previous word.
    input_feeding: whether the output features of a step are an input of the recurrent decoder's next step.
    embed_dim: width of word embeddings; transformers use `features` instead.
    features: width of the decoder's state, of each direction of the recurrent encoder, and of transformers.
    num_layers: number of encoder layers.
    num_decoder_layers: number of decoder layers.
    residual: whether recurrent layers from the second on add their input to their output.
    layer_norm: whether the output of each recurrent layer is normalized.
    num_heads: number of heads of transformers and of "multi_head" attention.
    mlp_dim: hidden width of the feed-forward networks of transformers.
    position_encoding: of transformers: "sinusoidal", "relative", "rotary" or "none".
    normalize_qk: whether transformers normalize the queries and keys of each head.
    tied_embeddings: whether the decoder's output kernel is its transposed embedding.
    dropout_rate: probability of dropping a unit in training.
    variational_dropout: whether a unit is dropped at all positions of a sentence or at none.
    recurrent_dropout_rate: probability of dropping a unit of the state in recurrent products.
    word_dropout_rate: probability of dropping a word at all its positions in a sentence.
    dtype: dtype of the computation, "float32" or "bfloat16"; parameters are float32.
  """

  encoder: str = one_of("recurrent", "transformer", default="recurrent", custom=True)
  decoder: str = one_of("recurrent", "transformer", default="recurrent", custom=True)
  attention: str = one_of(
    "additive",
    "dot_product",
    "scaled_dot_product",
    "bilinear",
    "cosine",
    "multi_head",
    "location_aware",
    "coverage",
    "monotonic",
    "local",
    "none",
    default="additive",
    custom=True,
  )
  qk_features: int = between(0, MAX_SIZE, default=0)
  normalizer: str = one_of(
    "softmax",
    "sparsemax",
    "entmax15",
    "sigmoid",
    "softmax_off_by_one",
    "softpick",
    "stick_breaking",
    default="softmax",
    custom=True,
  )
  attend_order: str = one_of("before", "after", default="before")
  input_feeding: bool = False
  embed_dim: int = between(1, MAX_SIZE, default=64)
  features: int = between(1, MAX_SIZE, default=128)
  num_layers: int = between(1, MAX_LAYERS, default=1)
  num_decoder_layers: int = between(1, MAX_LAYERS, default=1)
  residual: bool = False
  layer_norm: bool = False
  num_heads: int = between(1, MAX_SIZE, default=4)
  mlp_dim: int = between(1, MAX_SIZE, default=256)
  position_encoding: str = one_of("sinusoidal", "relative", "rotary", "none", default="sinusoidal")
  normalize_qk: bool = False
  tied_embeddings: bool = False
  dropout_rate: float = fraction(default=0.0)
  variational_dropout: bool = False
  recurrent_dropout_rate: float = fraction(default=0.0)
  word_dropout_rate: float = fraction(default=0.0)
  dtype: str = one_of("float32", "bfloat16", default="float32")


@dataclasses.dataclass(slots=True)
class Train:
  """Training with Adam, a linear warm-up, and a learning rate schedule.

  Attributes:
    num_train_steps: number of parameter updates.
    batch_size: sentence pairs per update. For finite data (parallel_text, scan) this is the average: batches
      of short pairs have more pairs and batches of long pairs fewer, so that all have about as many tokens.
    grad_accumulation_steps: number of parts of a batch that are computed one after another, to save memory.
      Results only differ by dropout.
    learning_rate: peak learning rate.
    schedule: "cosine" or "linear" (to 0 at the last step), "inverse_square_root", or "constant".
    warmup_fraction: fraction of the steps before the peak learning rate.
    grad_clip_norm: maximum global norm of the gradient.
    weight_decay: decoupled weight decay (AdamW), not applied to biases and scales.
    label_smoothing: probability of the training labels that is spread over the vocabulary. Not
      used in validation.
    train_eos: whether to train the end of sentences; without it, translations do not end (Newman et al. 2020,
      arXiv:2010.07174).
    alignment_loss_weight: weight of the guided alignment loss per aligned target word, for tasks with known
      alignments (see `attention.losses.alignment_loss`); 0 to disable. Part of the training loss only.
    coverage_loss_weight: weight of the coverage loss per target word (see `attention.losses.coverage_loss`);
      0 to disable. Part of the training loss only.
    ema_decay: decay of the moving average of the parameters that is used for translation; 0 to
      disable.
    best_metric: validation metric that determines the best checkpoint, such as "loss" or "bleu".
    early_stopping_patience: number of validations without improvement after which training stops; 0 to
      disable.
    log_every_steps: steps between records of the training loss.
    eval_every_steps: steps between validations; each writes a checkpoint.
    max_to_keep: number of newest checkpoints to keep, in addition to the best; at least 2.
  """

  num_train_steps: int = between(1, MAX_INT, default=900)
  batch_size: int = between(1, MAX_SIZE, default=128)
  grad_accumulation_steps: int = between(1, MAX_SIZE, default=1)
  learning_rate: float = between(1 / MAX_FLOAT, MAX_FLOAT, default=8e-3)
  schedule: str = one_of("cosine", "linear", "inverse_square_root", "constant", default="cosine")
  warmup_fraction: float = fraction(default=0.1)
  grad_clip_norm: float = between(1 / MAX_FLOAT, MAX_FLOAT, default=1.0)
  weight_decay: float = between(0, MAX_FLOAT, default=0.0)
  label_smoothing: float = fraction(default=0.0)
  train_eos: bool = True
  alignment_loss_weight: float = between(0, MAX_FLOAT, default=0.0)
  coverage_loss_weight: float = between(0, MAX_FLOAT, default=0.0)
  ema_decay: float = fraction(default=0.0)
  best_metric: str = one_of("loss", "exact_match", "bleu", "chrf", "token_accuracy", default="loss")
  early_stopping_patience: int = between(0, MAX_INT, default=0)
  log_every_steps: int = between(1, MAX_INT, default=50)
  eval_every_steps: int = between(1, MAX_INT, default=300)
  max_to_keep: int = between(2, MAX_SIZE, default=2)


@dataclasses.dataclass(slots=True)
class Evaluation:
  """Evaluation, and the defaults of translation.

  Attributes:
    checkpoint: "best" (by `train.best_metric`), "last", or "average" (mean of the newest
      `train.max_to_keep`).
    num_eval_examples: number of sentences per split at the end of training and in `experiments.evaluate`; 0
      for all.
    num_validation_examples: number of sentences of each validation during training; 0 for all.
    batch_size: number of sentences that are decoded together.
    max_decode_length: maximum number of tokens of a translation, including the end symbol.
    beam_size: beam size at the end of training and later; 1 for greedy search, which validations always use.
    custom_metrics: custom metrics, separated by commas, each package.module:Name: a function
      of the translations, the examples, and the model's scores of the references, that returns a number.
    length_penalty: exponent of the length penalty in beam search.
  """

  checkpoint: str = one_of("best", "last", "average", default="best")
  num_eval_examples: int = between(0, MAX_INT, default=1000)
  num_validation_examples: int = between(0, MAX_INT, default=200)
  batch_size: int = between(1, MAX_SIZE, default=200)
  max_decode_length: int = between(1, MAX_SIZE, default=60)
  beam_size: int = between(1, MAX_SIZE, default=1)
  custom_metrics: str = custom_list()
  length_penalty: float = between(0, 10, default=1.0)  # so that powers of lengths are finite


@dataclasses.dataclass(slots=True)
class Config:
  """The configuration of one experiment.

  Attributes:
    seed: random seed of parameters, data order and dropout.
    init_from: directory of a run whose vocabularies and matching parameters (of its `evaluation.checkpoint`)
      are used as initial values, for example for fine-tuning. Optional.
  """

  seed: int = between(0, 2**32 - 1, default=0)
  init_from: str = ""
  data: Data = dataclasses.field(default_factory=Data)
  model: Model = dataclasses.field(default_factory=Model)
  train: Train = dataclasses.field(default_factory=Train)
  evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
