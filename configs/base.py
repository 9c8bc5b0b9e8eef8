"""Every default of every experiment.

A config is a file with a function `get_config` that returns one of these, changed with
`dataclasses.replace`; any field can be changed again on the command line: `--config.train.steps=100`.
"""

import dataclasses


@dataclasses.dataclass
class Data:
  """What is translated.

  Attributes:
    task: "toy_translation" (English to Italian, generated) or "parallel_text" (your own files).
    train: parallel_text: path of tab-separated UTF-8 text, source first, plain or .gz.
    validation: parallel_text: path of likewise text; scored while training.
    test: parallel_text: path of likewise text; scored at the end; empty for none.
    lowercase: parallel_text: whether text is lower-cased.
    min_count: parallel_text: words rarer than this in the training text become unknown.
    max_length: parallel_text: training pairs with a longer side, in words, are left out.
  """

  task: str = "toy_translation"
  train: str = ""
  validation: str = ""
  test: str = ""
  lowercase: bool = True
  min_count: int = 2
  max_length: int = 31


@dataclasses.dataclass
class Model:
  """The translator.

  Attributes:
    encoder: "recurrent" (bidirectional GRU) or "transformer".
    attention: of the decoder: "additive", "scaled_dot_product", "bilinear", "multi_head" or "none".
    embedding_width: width of a word's vector; the transformer encoder uses `width` instead.
    width: of the decoder's state, of each direction of the recurrent encoder, of the transformer encoder.
    num_layers: of the encoder.
    num_heads: of the transformer encoder, and of the decoder's multi_head attention.
    feed_forward_width: of the transformer encoder.
    dropout_rate: probability in [0, 1) that a unit is dropped in training.
  """

  encoder: str = "recurrent"
  attention: str = "additive"
  embedding_width: int = 64
  width: int = 128
  num_layers: int = 1
  num_heads: int = 4
  feed_forward_width: int = 256
  dropout_rate: float = 0.0


@dataclasses.dataclass
class Train:
  """How the model is trained: Adam, a linear warm-up, then a cosine down to 0.

  Attributes:
    steps: number of parameter updates.
    batch_size: sentence pairs for each.
    learning_rate: the highest.
    warmup: share of the steps, in [0, 1), until the learning rate is at its highest.
    clip_norm: longest allowed norm of the gradient.
    steps_per_dispatch: updates that are compiled into one call.
    log_every: steps between two records of the training loss.
    validate_every: steps between two validations, each with a checkpoint.
  """

  steps: int = 900
  batch_size: int = 128
  learning_rate: float = 8e-3
  warmup: float = 0.1
  clip_norm: float = 1.0
  steps_per_dispatch: int = 10
  log_every: int = 50
  validate_every: int = 300


@dataclasses.dataclass
class Evaluation:
  """How the model is scored.

  Attributes:
    sentences: sentences of each split at the end, and in `experiments.evaluate`; 0 for all there are.
    validation_sentences: sentences at each validation during training.
    batch_size: sentences decoded at once.
    max_target_length: tokens, the end of the sentence included, after which a translation is cut.
  """

  sentences: int = 1000
  validation_sentences: int = 200
  batch_size: int = 200
  max_target_length: int = 60


@dataclasses.dataclass
class Config:
  """One experiment. `seed` fixes the parameters, the data's order and the dropout."""

  seed: int = 0
  data: Data = dataclasses.field(default_factory=Data)
  model: Model = dataclasses.field(default_factory=Model)
  train: Train = dataclasses.field(default_factory=Train)
  evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
