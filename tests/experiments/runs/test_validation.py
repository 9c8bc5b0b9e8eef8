"""Tests of experiments/runs/validation.py."""

import dataclasses
import functools
import math

import pytest

from attention.models import decoder_attention
from attention.models.base import POSITION_ENCODINGS
from attention.models.recurrent_decoder import ATTEND_ORDERS
from configs import base
from experiments.cli import config_fields
from experiments.cli.config_fields import ConfigError, flat
from experiments.data import tasks
from experiments.data.alignments import ALIGNMENT_TOKENS
from experiments.data.scan import scan_grammar
from experiments.data.text_processor import TOKENIZATIONS
from experiments.data.tokenizers import SUBWORD_MODELS
from experiments.evaluation.metrics import HIGHER_IS_BETTER
from experiments.learning import model
from experiments.runs.validation import validate

CUSTOM = ", or a custom component (package.module:Name)"
ENCODERS = "one of recurrent, transformer" + CUSTOM
DECODERS = "one of recurrent, transformer" + CUSTOM
ATTENTION_TYPES = (
  "one of additive, dot_product, scaled_dot_product, bilinear, cosine, multi_head, location_aware, coverage, "
  f"monotonic, local, none{CUSTOM}"
)
FILE = "the path of a file with one source TAB target per line"

# field, invalid value, allowed values
INVALID = [
  ("seed", -1, "from 0 to 4,294,967,295"),
  ("data.task", "toy", "one of toy_translation, scan, parallel_text" + CUSTOM),
  ("data.split", "train", "one of simple, length, add_jump, add_turn_left"),
  ("data.tokenization", "words", "one of word, character, subword"),
  ("data.tokenization", "subword", "'word' for config.data.task=toy_translation"),
  ("data.subword_model", "BPE", "one of unigram, bpe"),
  (
    "data.train_file",
    "train.tsv",
    "'' for config.data.task=toy_translation (text files are for configs/parallel_text.py)",
  ),
  ("data.split", "length", "'simple' for config.data.task=toy_translation"),
  ("data.scan_max_train_actions", 48, "from 1 to 47"),
  ("data.scan_max_train_actions", 21, "22 unless config.data.split is length"),
  ("data.vocabulary_size", -1, "from 0 to 1,048,576"),
  ("data.source_vocabulary_size", -1, "from 0 to 1,048,576"),
  ("data.target_vocabulary_size", -1, "from 0 to 1,048,576"),
  ("data.alignment_tokens", "moses", "one of auto, words, whitespace"),
  ("data.min_count", 0, "from 1 to 1,048,576"),
  ("data.max_train_length", 0, "from 1 to 1,048,576"),
  ("data.num_buckets", 0, "from 1 to 1,048,576"),
  ("model.encoder", "Transformer", ENCODERS),
  ("model.decoder", "Transformer", DECODERS),
  ("model.attention", "", ATTENTION_TYPES),
  (
    "model.normalizer",
    "relu",
    "one of softmax, sparsemax, entmax15, sigmoid, softmax_off_by_one, softpick, stick_breaking" + CUSTOM,
  ),
  ("model.qk_features", -1, "from 0 to 1,048,576"),
  ("model.attend_order", "never", "one of before, after"),
  ("model.input_feeding", 1, "of type bool"),
  ("model.position_encoding", "learnt", "one of sinusoidal, relative, rotary, none"),
  ("model.embed_dim", 0, "from 1 to 1,048,576"),
  ("model.features", -2, "from 1 to 1,048,576"),
  ("model.num_layers", 10**6, "from 1 to 1,000"),
  ("model.num_decoder_layers", 0, "from 1 to 1,000"),
  ("model.num_heads", 0, "from 1 to 1,048,576"),
  ("model.mlp_dim", 0, "from 1 to 1,048,576"),
  ("model.dropout_rate", 1.0, "in [0, 1)"),
  ("model.recurrent_dropout_rate", 1.0, "in [0, 1)"),
  ("model.word_dropout_rate", -0.1, "in [0, 1)"),
  ("model.dtype", "float16", "one of float32, bfloat16"),
  ("train.num_train_steps", 0, "from 1 to 2,147,483,647"),
  ("train.batch_size", 0, "from 1 to 1,048,576"),
  ("train.grad_accumulation_steps", 0, "from 1 to 1,048,576"),
  ("train.grad_accumulation_steps", 129, "at most config.train.batch_size"),
  ("train.schedule", "cos", "one of cosine, linear, inverse_square_root, constant"),
  ("train.best_metric", "sentences", "one of loss, exact_match, bleu, chrf, token_accuracy"),
  ("train.early_stopping_patience", -1, "from 0 to 2,147,483,647"),
  ("train.max_to_keep", 1, "from 2 to 1,048,576"),
  ("train.label_smoothing", 1.0, "in [0, 1)"),
  ("train.ema_decay", 1.0, "in [0, 1)"),
  ("train.alignment_loss_weight", -0.1, "from 0 to 1e+38"),
  ("train.coverage_loss_weight", math.nan, "from 0 to 1e+38"),
  ("train.weight_decay", -0.1, "from 0 to 1e+38"),
  ("train.log_every_steps", 0, "from 1 to 2,147,483,647"),
  ("train.eval_every_steps", 0, "from 1 to 2,147,483,647"),
  ("train.warmup_fraction", -0.1, "in [0, 1)"),
  ("train.num_train_steps", 1.5, "of type int"),
  ("train.num_train_steps", True, "of type int"),
  ("model.encoder", None, "of type str"),
  ("train.learning_rate", 0.0, "from 1e-38 to 1e+38"),
  ("train.learning_rate", math.nan, "from 1e-38 to 1e+38"),
  ("train.grad_clip_norm", -1.0, "from 1e-38 to 1e+38"),
  ("evaluation.num_eval_examples", -1, "from 0 to 2,147,483,647"),
  ("evaluation.num_eval_examples", 0, "at least 1, because the task has unlimited sentences"),
  ("evaluation.num_validation_examples", 0, "at least 1, because the task has unlimited sentences"),
  ("evaluation.checkpoint", "first", "one of best, last, average"),
  ("evaluation.batch_size", 0, "from 1 to 1,048,576"),
  ("evaluation.beam_size", 0, "from 1 to 1,048,576"),
  ("evaluation.length_penalty", -0.5, "from 0 to 10"),
  ("evaluation.max_decode_length", 0, "from 1 to 1,048,576"),
  ("model.features", 2**20 + 2, "from 1 to 1,048,576"),
  ("train.num_train_steps", 2**31, "from 1 to 2,147,483,647"),
]

# Minimum or maximum values.
VALID = [
  {"data.task": "scan", "data.num_buckets": 1, "data.split": "length", "data.scan_max_train_actions": 47},
  {"model.num_decoder_layers": 1, "model.recurrent_dropout_rate": 0.0, "model.word_dropout_rate": 0.999},
  {"model.features": 7},  # a model without heads
  {"model.attention": "multi_head", "model.features": 9, "model.num_heads": 3},
  {"model.encoder": "transformer", "model.features": 2, "model.num_heads": 1},
  {"model.attention": "multi_head", "model.num_heads": 2, "model.features": 4, "model.qk_features": 6},
  {"model.attend_order": "after", "model.input_feeding": True},
  {"model.encoder": "transformer", "model.position_encoding": "rotary", "model.normalize_qk": True},
  {"model.decoder": "transformer", "model.position_encoding": "none", "model.num_decoder_layers": 2},
  {"train.alignment_loss_weight": 0.5, "train.coverage_loss_weight": 1},
  {
    "train.num_train_steps": 1,
    "train.batch_size": 1,
    "train.warmup_fraction": 0,
    "train.grad_accumulation_steps": 1,
  },
  {
    "train.weight_decay": 0,
    "train.label_smoothing": 0,
    "train.ema_decay": 0.999,
    "train.early_stopping_patience": 0,
  },
  {"evaluation.beam_size": 1, "evaluation.length_penalty": 0},
]


def _parallel_text():
  data = base.Data(task="parallel_text", train_file="train.tsv", validation_file="validation.tsv")
  return base.Config(data=data)


def _scan():
  return base.Config(data=base.Data(task="scan"))


def _set(config, field, value):
  *groups, name = field.split(".")
  holder = functools.reduce(getattr, groups, config)
  assert hasattr(holder, name)
  setattr(holder, name, value)
  return config


@pytest.mark.parametrize(("field", "value", "allowed"), INVALID)
def test_invalid_values_are_errors(field, value, allowed):
  with pytest.raises(ConfigError) as caught:
    validate(_set(base.Config(), field, value))
  assert str(caught.value) == f"config.{field} must be {allowed}, got {value!r}"


def test_all_numbers_have_invalid_values():
  numbers = {name for name, value in flat(base.Config()).items() if type(value) in (int, float)}
  assert numbers <= {field for field, *_ in INVALID}


@pytest.mark.parametrize("changes", VALID, ids=str)
def test_extreme_values_are_accepted(changes):
  config = base.Config()
  for field, value in changes.items():
    _set(config, field, value)
  validate(config)


@pytest.mark.parametrize("field", ["train_file", "validation_file"])
def test_parallel_text_needs_files(field):
  config = _set(_parallel_text(), f"data.{field}", "")
  with pytest.raises(ConfigError) as caught:
    validate(config)
  assert str(caught.value) == f"config.data.{field} must be {FILE}, got ''"


@pytest.mark.parametrize("task", ["parallel_text", "scan"])
@pytest.mark.parametrize("field", ["num_eval_examples", "num_validation_examples"])
def test_finite_tasks_can_use_all_examples(task, field):
  config = _parallel_text() if task == "parallel_text" else _scan()
  validate(_set(config, f"evaluation.{field}", 0))
  with pytest.raises(ConfigError) as caught:
    validate(_set(config, f"evaluation.{field}", -1))
  assert str(caught.value) == f"config.evaluation.{field} must be from 0 to 2,147,483,647, got -1"


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_transformer_widths_are_even(part):
  config = _set(base.Config(model=base.Model(**{part: "transformer"}, num_heads=1)), "model.features", 7)
  with pytest.raises(ConfigError, match=r"^config.model.features must be even, got 7$"):
    validate(config)


def test_rotary_heads_are_even():
  model = base.Model(encoder="transformer", position_encoding="rotary", num_heads=2, features=6)
  allowed = "an even multiple of config.model.num_heads for rotary positions"
  with pytest.raises(ConfigError, match=f"^config.model.features must be {allowed}, got 6$"):
    validate(base.Config(model=model))


TRANSFORMERS = base.Model(encoder="transformer", decoder="transformer")


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("attention", "none"),
    ("normalizer", "sigmoid"),
    ("attend_order", "after"),
    ("input_feeding", True),
    ("embed_dim", 32),
    ("residual", True),
    ("layer_norm", True),
    ("recurrent_dropout_rate", 0.1),
  ],
)
def test_unused_fields_are_errors(field, value):
  validate(base.Config(model=TRANSFORMERS))
  config = _set(base.Config(model=dataclasses.replace(TRANSFORMERS)), f"model.{field}", value)
  default = getattr(base.Model(), field)
  with pytest.raises(ConfigError) as caught:
    validate(config)
  message = f"config.model.{field} must be {default!r}, because it has no effect on this model, got {value!r}"
  assert str(caught.value) == message


@pytest.mark.parametrize(
  ("field", "value"),
  [("attention", "mine:layer"), ("attention", "none"), ("attend_order", "after"), ("normalizer", "sigmoid")],
)
def test_custom_encoders_do_not_hide_unused_fields(field, value):
  model = dataclasses.replace(TRANSFORMERS, encoder="mine:encoder", mlp_dim=32, embed_dim=5)
  validate(base.Config(model=model))
  with pytest.raises(ConfigError, match=rf"^config\.model\.{field} must be .*, because it has no effect"):
    validate(_set(base.Config(model=model), f"model.{field}", value))
  validate(
    _set(base.Config(model=dataclasses.replace(model, decoder="mine:decoder")), f"model.{field}", value)
  )


@pytest.mark.parametrize(("field", "value"), [("position_encoding", "rotary"), ("num_heads", 8)])
def test_recurrent_models_use_fewer_fields(field, value):
  with pytest.raises(
    ConfigError, match=rf"^config\.model\.{field} must be .*, because it has no effect on this model"
  ):
    validate(_set(base.Config(), f"model.{field}", value))


@pytest.mark.parametrize("name", ["alignment_loss_weight", "coverage_loss_weight"])
def test_attention_losses_need_attention(name):
  config = base.Config(model=base.Model(attention="none"), train=base.Train(**{name: 0.5}))
  with pytest.raises(ConfigError) as caught:
    validate(config)
  assert str(caught.value) == f"config.train.{name} must be 0 without attention, got 0.5"


@pytest.mark.parametrize("normalizer", ["sigmoid", "sparsemax", "entmax15"])
def test_guided_alignment_needs_softmax(normalizer):
  config = base.Config(model=base.Model(normalizer=normalizer), train=base.Train(alignment_loss_weight=0.5))
  with pytest.raises(ConfigError) as caught:
    validate(config)
  message = "config.model.normalizer must be softmax with config.train.alignment_loss_weight"
  assert str(caught.value) == f"{message}, got '{normalizer}'"


def test_models_without_eos_need_loss():
  validate(base.Config(train=base.Train(train_eos=False)))
  with pytest.raises(ConfigError) as caught:
    validate(base.Config(train=base.Train(train_eos=False, best_metric="bleu")))
  message = "config.train.best_metric must be loss with config.train.train_eos=False, got 'bleu'"
  assert str(caught.value) == message


def test_guided_alignment_needs_alignments():
  config = _set(_scan(), "train.alignment_loss_weight", 0.5)
  with pytest.raises(ConfigError) as caught:
    validate(config)
  message = "config.train.alignment_loss_weight must be 0 for a task without `has_alignments = True`, got 0.5"
  assert str(caught.value) == message


@pytest.mark.parametrize(
  "changes", [{"encoder": "transformer"}, {"attention": "multi_head"}, {"decoder": "transformer"}], ids=str
)
def test_heads_divide_features(changes):
  model = dataclasses.replace(base.Model(features=30, num_heads=4), **changes)
  with pytest.raises(ConfigError) as caught:
    validate(base.Config(model=model))
  assert str(caught.value) == "config.model.features must be a multiple of config.model.num_heads=4, got 30"


@pytest.mark.parametrize(
  ("field", "names"),
  [
    ("data.task", tasks.TASKS),
    ("data.split", scan_grammar.SPLITS),
    ("data.tokenization", TOKENIZATIONS),
    ("data.subword_model", SUBWORD_MODELS),
    ("data.alignment_tokens", ALIGNMENT_TOKENS),
    ("model.attention", decoder_attention.ATTENTION_TYPES),
    ("model.normalizer", model.NORMALIZERS),
    ("model.attend_order", ATTEND_ORDERS),
    ("model.position_encoding", POSITION_ENCODINGS),
    ("train.best_metric", HIGHER_IS_BETTER),
  ],
)
def test_choices_are_those_of_the_code(field, names):
  assert {*config_fields.rules()[field]["choices"]} == {*names}


def test_defaults_are_allowed():
  for name, value in config_fields.flat(base.Config()).items():
    rule = config_fields.rules()[name]
    assert not rule or rule["is_allowed"](value), name
