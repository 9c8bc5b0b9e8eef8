"""Evaluation of a translator."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from configs import base
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.cli.messages import counted
from experiments.data.task import Example
from experiments.data.vocabularies import compose
from experiments.evaluation import metrics
from experiments.inference.translator import PairScore, Translation, Translator

# Metrics that `evaluate` returns without custom metrics.
METRICS = ("sentences", *metrics.HIGHER_IS_BETTER, "alignment_error_rate", "attention_mass")

Metric = Callable[[Sequence[Translation], Sequence[Example], Sequence[PairScore]], float]


def load_custom_metrics(config: base.Evaluation) -> dict[str, Metric]:
  """Imports the custom metrics of a config. An exception in a metric becomes a ConfigError with its name."""
  return {name.rpartition(":")[2]: _custom_metric(name) for name in base.split(config.custom_metrics)}


def _custom_metric(name: str) -> Metric:
  field = "evaluation.custom_metrics"
  metric = components.resolve(field, name)

  def checked_metric(*inputs: Any) -> float:
    try:
      value = metric(*inputs)
    except (Exception, SystemExit) as error:  # custom code may raise anything
      raise ConfigError(f"config.{field}={name}: {components.format_error(error, name)}") from error
    try:
      number = float(value)
    except (TypeError, ValueError):
      number = math.nan
    if not math.isfinite(number):
      raise ConfigError(f"config.{field}={name} must return a finite number, got {value!r:.80}")
    return number

  return checked_metric


def evaluate(
  translator: Translator,
  examples: Sequence[Example],
  custom_metrics: Mapping[str, Metric] = MappingProxyType({}),
) -> dict[str, float]:
  """Returns the metrics of a translator on some examples.

  Exact match, BLEU, chrF and token accuracy compare decoded translations with references. The first three
  compare normalized texts (see `metrics.normalize`), and token accuracy compares tokens. The loss, in nats
  per token, and the alignment metrics use the references (teacher forcing). Alignment metrics need
  alignments.

  Args:
    translator: the translator to evaluate.
    examples: sentences and their references.
    custom_metrics: additional metrics by name.

  Returns:
    Metric name -> value.
  """
  hypotheses = translator.n_best([example.source for example in examples], with_attention=False)
  translations = [best for best, *_ in hypotheses]
  texts = [metrics.normalize(translation.text) for translation in translations]
  references = [metrics.normalize(example.target_text) for example in examples]
  tokens = [[*map(compose, translation.tokens)] for translation in translations]
  reference_tokens = [[*map(compose, example.target)] for example in examples]
  is_aligned = any(example.alignment is not None for example in examples)
  pairs = [(example.source, example.target) for example in examples]
  scored = translator.score_tokens(pairs, with_attention=is_aligned or bool(custom_metrics))
  values = {
    "sentences": float(len(examples)),
    "exact_match": metrics.exact_match(texts, references),
    "bleu": metrics.corpus_bleu(texts, references),
    "chrf": metrics.corpus_chrf(texts, references),
    "token_accuracy": metrics.token_accuracy(tokens, reference_tokens),
    "loss": -sum(pair.log_probability for pair in scored) / sum(pair.num_tokens for pair in scored),
  }
  custom_values = {name: metric(translations, examples, scored) for name, metric in custom_metrics.items()}
  return values | _alignment_metrics(examples, scored) | custom_values


def _alignment_metrics(examples: Sequence[Example], scored: Sequence[PairScore]) -> dict[str, float]:
  """Returns the alignment metrics, or an empty dict without attention or true links.

  The attention mass needs sure links.
  """
  aligned = [
    metrics.AlignedAttention(pair.attention, example.alignment, example.possible)
    for example, pair in zip(examples, scored, strict=True)
    if pair.attention is not None and example.alignment is not None
  ]
  values = {}
  if metrics.has_error_rate(aligned):
    values["alignment_error_rate"] = metrics.alignment_error_rate(aligned)
  if any(sentence.alignment for sentence in aligned):
    values["attention_mass"] = metrics.attention_mass(aligned)
  return values


def summary(values: dict[str, float]) -> str:
  """Returns the main metrics as one line.

  >>> summary({"sentences": 200.0, "exact_match": 0.5, "bleu": 61.25, "loss": 0.1})
  '200 sentences, exact match 0.500, BLEU 61.2, loss 0.1000'
  """
  text = (
    f"{counted(round(values['sentences']), 'sentence')}, exact match {values['exact_match']:.3f}, "
    f"BLEU {values['bleu']:.1f}, loss {values['loss']:.4f}"
  )
  if "alignment_error_rate" in values:
    text += f", alignment error rate {values['alignment_error_rate']:.3f}"
  return text
