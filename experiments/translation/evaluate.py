"""How good the translations of a model are."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from configs import base
from experiments.cli import plugins
from experiments.cli.config_fields import ConfigError
from experiments.tasks import Example
from experiments.text.vocabularies import compose
from experiments.translation import metrics
from experiments.translation.translator import PairScore, Translation, Translator

CHECKPOINTS = ("best", "last", "average")

# What `evaluate` returns, whatever a person adds.
METRICS = ("sentences", *metrics.HIGHER_IS_BETTER, "alignment_error_rate", "attention_mass")

# Of the length in beam search: its powers are numbers.
LARGEST_PENALTY = 10


Metric = Callable[[Sequence[Translation], Sequence[Example], Sequence[PairScore]], float]


def load_custom_metrics(config: base.Evaluation) -> dict[str, Metric]:
  """Returns the custom metrics that a config names. An error in one is a ConfigError that names it."""
  return {name.rpartition(":")[2]: _custom_metric(name) for name in metric_names(config)}


def metric_names(config: base.Evaluation) -> list[str]:
  """Returns where a config finds metrics of a person's own."""
  return [name.strip() for name in config.custom_metrics.split(",") if name.strip()]


def _custom_metric(name: str) -> Metric:
  metric = plugins.resolve("evaluation.custom_metrics", name)

  def checked(*inputs: Any) -> float:
    try:
      return float(metric(*inputs))
    except Exception as error:  # custom code may raise anything
      raise ConfigError(f"config.evaluation.custom_metrics={name}: {plugins.format_error(error)}") from error

  return checked


def evaluate(
  translator: Translator, examples: Sequence[Example], others: Mapping[str, Metric] = MappingProxyType({})
) -> dict[str, float]:
  """Returns the metrics of translations of examples against the true ones, and others of a person's own.

  Exact match, BLEU, chrF and token accuracy are of the translations that the search finds; the loss, in
  nats for each token, and the attention are of the true translation. Attention is scored where alignments
  are known. Exact match, BLEU and chrF compare the same plain texts (see `metrics.comparable`), token
  accuracy tokens.
  """
  found = translator.n_best([example.source for example in examples], with_attention=False)
  translations = [best for best, *_ in found]
  texts = [metrics.comparable(translation.text) for translation in translations]
  references = [metrics.comparable(example.target_text) for example in examples]
  words = [[*map(compose, translation.tokens)] for translation in translations]
  true_words = [[*map(compose, example.target)] for example in examples]
  is_aligned = any(example.alignment is not None for example in examples)
  pairs = [(example.source, example.target) for example in examples]
  scored = translator.score_tokens(pairs, with_attention=is_aligned)
  values = {
    "sentences": float(len(examples)),
    "exact_match": metrics.exact_match(texts, references),
    "bleu": metrics.corpus_bleu(texts, references),
    "chrf": metrics.corpus_chrf(texts, references),
    "token_accuracy": metrics.token_accuracy(words, true_words),
    "loss": -sum(one.log_probability for one in scored) / sum(one.num_tokens for one in scored),
  }
  found_by_others = {name: metric(translations, examples, scored) for name, metric in others.items()}
  return values | _alignment_metrics(examples, scored) | found_by_others


def _alignment_metrics(examples: Sequence[Example], scored: Sequence[PairScore]) -> dict[str, float]:
  """Returns the metrics of the attention; none where there is none, or no true link."""
  aligned = [
    metrics.AlignedAttention(one.attention, example.alignment)
    for example, one in zip(examples, scored, strict=True)
    if one.attention is not None and example.alignment is not None
  ]
  if not any(one.alignment for one in aligned):
    return {}
  return {
    "alignment_error_rate": metrics.alignment_error_rate(aligned),
    "attention_mass": metrics.attention_mass(aligned),
  }


def summary(values: dict[str, float]) -> str:
  """Returns the main metrics in a few words.

  >>> summary({"sentences": 200.0, "exact_match": 0.5, "bleu": 61.25, "loss": 0.1})
  '200 sentences, exact match 0.500, BLEU 61.2, loss 0.1000'
  """
  text = (
    f"{values['sentences']:,.0f} sentences, exact match {values['exact_match']:.3f}, "
    f"BLEU {values['bleu']:.1f}, loss {values['loss']:.4f}"
  )
  if "alignment_error_rate" in values:
    text += f", alignment error rate {values['alignment_error_rate']:.3f}"
  return text
