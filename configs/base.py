"""Every default of every experiment.

A config is a file with a function `get_config` that makes one of these, assigns to its fields,
`config.model.features = 256`, and returns it. Any field can be changed again on the command line:
`--config.train.num_train_steps=100`.
"""

import dataclasses


@dataclasses.dataclass(slots=True)  # so that a misspelt field is an error
class Data:
  """What is translated.

  Attributes:
    task: "toy_translation" (English to Italian, generated), "scan" (commands to actions, generated) or
      "parallel_text" (your own files); or a task of your own, package.module:Name or file.py:Name.
    split: scan: "simple", "length", "add_jump" or "add_turn_left".
    scan_max_train_actions: scan, split length: commands of more actions are for the test.
    train_file: parallel_text: path of tab-separated UTF-8 text, source first, plain or .gz.
    validation_file: parallel_text: path of likewise text; scored while training.
    test_file: parallel_text: path of likewise text; scored at the end; empty for none.
    alignment_tokens: parallel_text: what the alignments of these files count: "words", "whitespace" (tokens
      with spaces between), or "auto": words, but files that may count whitespace tokens are refused.
    lowercase: parallel_text: whether text is lower-cased.
    tokenization: parallel_text: what text is cut into, "word", "character" or "subword".
    subword_model: parallel_text: how subwords are learnt, "unigram" or "bpe".
    vocabulary_size: parallel_text: number of subwords of each language; 0 for 8,000 or, if that is less, the
      most that the training text allows.
    source_vocabulary_size: parallel_text: number of subwords of the source; 0 for vocabulary_size.
    target_vocabulary_size: parallel_text: number of subwords of the target; 0 for vocabulary_size.
    min_count: parallel_text: words or characters rarer than this in the training text become unknown.
    max_train_length: parallel_text: training pairs with a longer side, in units, are left out.
    num_buckets: to how many lengths training sentences are padded; the step is compiled for each.
  """

  task: str = "toy_translation"
  split: str = "simple"
  scan_max_train_actions: int = 22
  train_file: str = ""
  validation_file: str = ""
  test_file: str = ""
  alignment_tokens: str = "auto"
  lowercase: bool = True
  tokenization: str = "word"
  subword_model: str = "unigram"
  vocabulary_size: int = 0
  source_vocabulary_size: int = 0
  target_vocabulary_size: int = 0
  min_count: int = 2
  max_train_length: int = 31
  num_buckets: int = 3


@dataclasses.dataclass(slots=True)
class Model:
  """The translator.

  Attributes:
    encoder: "recurrent" (bidirectional GRU) or "transformer"; or one of your own, package.module:Name or
      file.py:Name, a function of this group and the size of the vocabulary that makes a Flax module.
    decoder: "recurrent" (GRU) or "transformer"; or one of your own, a function of this group and the size of
      the vocabulary that makes a Flax module with the methods that `attention.models.Decoder` tells of.
    attention: of the recurrent decoder: "additive", "dot_product", "scaled_dot_product", "bilinear",
      "cosine", "multi_head"; "location_aware" or "coverage", which know where they looked; "monotonic", which
      only goes forward; "local", which looks around one place; or "none". Or one of your own, a function of
      this group that makes a Flax module (see `attention.RecurrentDecoder`).
    qk_features: to which that attention projects queries and keys; 0 for `features`.
    normalizer: what makes the weights of that attention: "softmax", "sparsemax", "entmax15", or "sigmoid" (of
      scores less the log of the number of words). Or one of your own, a function of this group that makes an
      `attention.Normalizer`.
    attend_order: whether the recurrent decoder looks at the source "before" it reads a word, or "after".
    input_feeding: whether the recurrent decoder reads what it made the logits of, at the next step.
    embed_dim: width of a word's vector; transformers use `features` instead.
    features: of the decoder's state, of each direction of the recurrent encoder, of transformers.
    num_layers: of the encoder.
    num_decoder_layers: of the decoder.
    residual: whether recurrent layers from the second on add their input to their output.
    layer_norm: whether the output of each recurrent layer is normalised.
    num_heads: of transformers, and of the recurrent decoder's multi_head attention.
    mlp_dim: of transformers.
    position_encoding: how transformers know where a word stands: "sinusoidal", "relative", "rotary" or
      "none".
    normalize_qk: whether transformers normalise the queries and keys of each head.
    tied_embeddings: whether the decoder's logits are made with its embedding.
    dropout_rate: probability in [0, 1) that a unit is dropped in training.
    variational_dropout: whether a unit is dropped at all positions of a sentence or at none.
    recurrent_dropout_rate: probability that a unit of a state is dropped where it meets its next input.
    word_dropout_rate: probability that a whole word is dropped.
    dtype: "float32" or "bfloat16": what is computed in; parameters are float32.
  """

  encoder: str = "recurrent"
  decoder: str = "recurrent"
  attention: str = "additive"
  qk_features: int = 0
  normalizer: str = "softmax"
  attend_order: str = "before"
  input_feeding: bool = False
  embed_dim: int = 64
  features: int = 128
  num_layers: int = 1
  num_decoder_layers: int = 1
  residual: bool = False
  layer_norm: bool = False
  num_heads: int = 4
  mlp_dim: int = 256
  position_encoding: str = "sinusoidal"
  normalize_qk: bool = False
  tied_embeddings: bool = False
  dropout_rate: float = 0.0
  variational_dropout: bool = False
  recurrent_dropout_rate: float = 0.0
  word_dropout_rate: float = 0.0
  dtype: str = "float32"


@dataclasses.dataclass(slots=True)
class Train:
  """How the model is trained: Adam, a linear warm-up, then a falling learning rate.

  Attributes:
    num_train_steps: number of parameter updates.
    batch_size: sentence pairs for each. Where these have an end (parallel_text, scan) it is the average:
      batches of short pairs have more, those of long pairs fewer, so that all have about as many tokens.
    grad_accumulation_steps: in how many parts a batch is computed, one after the other: less memory, the same
      result but for what dropout draws.
    learning_rate: the highest.
    schedule: "cosine" or "linear" down to 0 at the last step, "inverse_square_root", or "constant".
    warmup_fraction: share of the steps, in [0, 1), until the learning rate is at its highest.
    grad_clip_norm: longest allowed norm of the gradient.
    weight_decay: share of the weights, times the learning rate, that each step takes off (AdamW); biases and
      scales are left alone.
    label_smoothing: share of the training loss's weight, in [0, 1), that is spread over all words; that of a
      validation has none.
    train_eos: whether the end of a sentence is learnt; without it translations have no end (Newman et al.
      2020, arXiv:2010.07174).
    alignment_loss_weight: of the guided alignment loss, for each target word that is aligned, where the task
      knows alignments (see `attention.losses.alignment_loss`); 0 for none. The training loss that is shown
      has it, that of a validation has not.
    coverage_loss_weight: of the coverage loss, for each target word (see `attention.losses.coverage_loss`); 0
      for none. Likewise.
    ema_decay: decay in [0, 1) of the moving average of the parameters that translates; 0 for none.
    best_metric: by which of the validation's metrics the best checkpoint is chosen, "loss" or "bleu" for
      instance.
    early_stopping_patience: validations in a row without a better metric after which training stops; 0 to
      never stop early.
    log_every_steps: steps between two records of the training loss.
    eval_every_steps: steps between two validations, each with a checkpoint.
    max_to_keep: how many of the newest checkpoints are kept, beside the best, at least 2.
  """

  num_train_steps: int = 900
  batch_size: int = 128
  grad_accumulation_steps: int = 1
  learning_rate: float = 8e-3
  schedule: str = "cosine"
  warmup_fraction: float = 0.1
  grad_clip_norm: float = 1.0
  weight_decay: float = 0.0
  label_smoothing: float = 0.0
  train_eos: bool = True
  alignment_loss_weight: float = 0.0
  coverage_loss_weight: float = 0.0
  ema_decay: float = 0.0
  best_metric: str = "loss"
  early_stopping_patience: int = 0
  log_every_steps: int = 50
  eval_every_steps: int = 300
  max_to_keep: int = 2


@dataclasses.dataclass(slots=True)
class Evaluation:
  """How the model is scored, and how it translates unless a flag says otherwise.

  Attributes:
    checkpoint: "best" (by `train.best_metric`), "last", or "average", the mean of the newest
      `train.max_to_keep`.
    num_eval_examples: sentences of each split at the end, and in `experiments.evaluate`; 0 for all there are.
    num_validation_examples: sentences at each validation during training; 0 for all there are.
    batch_size: sentences decoded at once.
    max_decode_length: tokens, the end of the sentence included, after which a translation is cut.
    beam_size: of the beam search at the end of training and later; 1 for the greedy search, which is also
      that of the validations during training.
    custom_metrics: of your own, separated by commas, each package.module:Name or file.py:Name: a function of
      the translations, the examples, and the true translations as the model scores them, that returns a
      number.
    length_penalty: exponent of the length by which a translation's log-probability is divided in beam search.
  """

  checkpoint: str = "best"
  num_eval_examples: int = 1000
  num_validation_examples: int = 200
  batch_size: int = 200
  max_decode_length: int = 60
  beam_size: int = 1
  custom_metrics: str = ""
  length_penalty: float = 1.0


@dataclasses.dataclass(slots=True)
class Config:
  """One experiment.

  Attributes:
    seed: fixes the parameters, the data's order and the dropout.
    init_from: folder of a run from which the vocabularies are taken, and those of the parameters that it
      translates with (its `evaluation.checkpoint`) that fit, as to fine-tune it; empty for none.
  """

  seed: int = 0
  init_from: str = ""
  data: Data = dataclasses.field(default_factory=Data)
  model: Model = dataclasses.field(default_factory=Model)
  train: Train = dataclasses.field(default_factory=Train)
  evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
