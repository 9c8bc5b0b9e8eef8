"""Reports of a run: table of scores and example translations."""

from collections.abc import Mapping
from types import MappingProxyType

from experiments.cli import messages
from experiments.cli.messages import escape_controls
from experiments.data.task import Example
from experiments.evaluation.evaluate import Metric, evaluate
from experiments.evaluation.metrics import normalize
from experiments.inference.translator import Translator

Results = dict[str, dict[str, float]]  # split -> metric -> value

# Maximum number of tokens per side of an attention map. Larger maps are unreadable, and slow to draw.
MAX_MAP_LENGTH = 60

_NUM_EXAMPLES = 5  # translations and attention maps

_COLUMNS = {
  "sentences": "{:,.0f}",
  "exact_match": "{:.3f}",
  "bleu": "{:.1f}",
  "chrf": "{:.1f}",
  "token_accuracy": "{:.4f}",
  "loss": "{:.4f}",
  "alignment_error_rate": "{:.3f}",
  "attention_mass": "{:.3f}",
}


def evaluate_splits(
  translator: Translator, num_examples: int, custom_metrics: Mapping[str, Metric] = MappingProxyType({})
) -> Results:
  """Returns the metrics of all splits of the task. See `evaluate`.

  Args:
    translator: the translator to evaluate.
    num_examples: number of sentences per split. 0 means all.
    custom_metrics: additional metrics by name.
  """
  task = translator.task
  return {
    split: evaluate(translator, task.examples(split, num_examples), custom_metrics) for split in task.splits
  }


def table(results: Results) -> str:
  """Returns results as text, one line per split.

  >>> print(table({"test": {"sentences": 1000.0, "exact_match": 0.5}}))
  split  sentences  exact_match
  test       1,000        0.500
  """
  names = dict.fromkeys(name for values in results.values() for name in values)
  custom_metrics = [name for name in names if name not in _COLUMNS]
  metrics = [*(name for name in _COLUMNS if name in names), *custom_metrics]
  rows = [["split", *metrics]]
  for split, values in results.items():
    cells = [_COLUMNS.get(name, "{:.4f}").format(values[name]) if name in values else "-" for name in metrics]
    rows.append([split, *cells])
  return messages.columns(rows)


def show_translations(translator: Translator) -> None:
  """Prints example translations, and the references of those that differ."""
  examples = select_examples(translator)
  hypotheses = translator.n_best([example.source for example in examples], with_attention=False)
  for example, (best, *_) in zip(examples, hypotheses, strict=True):
    texts = example.source_text, best.text, example.target_text
    source, translation, reference = map(escape_controls, texts)
    print(f"\n  source       {source}\n  translation  {translation}")
    is_correct = normalize(best.text) == normalize(example.target_text)  # like exact match
    print("  (correct)" if is_correct else f"  reference    {reference}")


def select_examples(translator: Translator) -> list[Example]:
  """Returns the longest sentences that fit into a map, among the first sentences of the first split."""
  examples = [
    example
    for example in translator.task.examples(translator.task.splits[0], 20 * _NUM_EXAMPLES)
    if max(len(example.source), len(example.target)) <= MAX_MAP_LENGTH
  ]
  by_length = sorted(examples, key=lambda example: -len(example.source))
  return by_length[:_NUM_EXAMPLES]
