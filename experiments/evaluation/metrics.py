"""Metrics of translations and of attention weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from experiments.cli.messages import counted
from experiments.data.vocabularies import compose

Tokens: TypeAlias = tuple[str, ...]


# Metrics of all tasks, and whether higher values are better.
HIGHER_IS_BETTER = {"loss": False, "exact_match": True, "bleu": True, "chrf": True, "token_accuracy": True}


class AlignedAttention(NamedTuple):
  """Attention weights of a sentence pair, and its true alignment.

  Attributes:
    weights: [T S] without padding. Rows are the target words and EOS, columns are the source words and EOS.
    alignment: true links (target position, source position), counted from 0.
    possible: links that are possible, but not sure; only `alignment_error_rate` uses them.
  """

  weights: np.ndarray
  alignment: Collection[tuple[int, int]]
  possible: Collection[tuple[int, int]] = frozenset()


def normalize(text: str) -> str:
  """Returns a text in NFC with normalized whitespace, for comparison.

  >>> normalize(" due  mele ")
  'due mele'
  """
  return compose(" ".join(text.split()))


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
  """Returns corpus BLEU by sacrebleu with default settings, from 0 to 100.

  Args:
    hypotheses: plain text; sacrebleu tokenizes it.
    references: plain text, one per hypothesis.

  Raises:
    ValueError: if there are no sentences, or the numbers of hypotheses and references differ.

  References:
    Papineni et al. 2002; Post 2018, arXiv:1804.08771.

  >>> round(corpus_bleu(["il gatto vede la mela"], ["il gatto vede la mela"]), 6)
  100.0
  """
  _check_corpus(hypotheses, references)
  from sacrebleu.metrics import BLEU  # here, since it takes a tenth of a second, and few scripts need it

  return float(BLEU().corpus_score(hypotheses, [references]).score)


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
  """Returns corpus chrF by sacrebleu with default settings, from 0 to 100.

  Args:
    hypotheses: plain text.
    references: plain text, one per hypothesis.

  Raises:
    ValueError: if there are no sentences, or the numbers of hypotheses and references differ.

  References:
    Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation".

  >>> round(corpus_chrf(["il gatto"], ["il gatto"]), 6)
  100.0
  """
  _check_corpus(hypotheses, references)
  from sacrebleu.metrics import CHRF

  return float(CHRF().corpus_score(hypotheses, [references]).score)


def exact_match(
  hypotheses: Sequence[str] | Sequence[Tokens], references: Sequence[str] | Sequence[Tokens]
) -> float:
  """Returns the proportion of hypotheses that equal their reference, from 0 to 1.

  Args:
    hypotheses: plain text, or tuples of tokens.
    references: one per hypothesis, in the same form.

  Raises:
    ValueError: if there are no sentences, or the numbers of hypotheses and references differ.

  >>> exact_match(["il gatto", "la mela"], ["il gatto", "le mele"])
  0.5
  """
  _check_corpus(hypotheses, references)
  pairs = zip(hypotheses, references, strict=True)
  return sum(hypothesis == reference for hypothesis, reference in pairs) / len(references)


def token_accuracy(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
  """Returns the proportion of reference tokens that the hypothesis has at the same position, from 0 to 1.

      sum over sentences of #{t < T : hypothesis[t] = reference[t]} / sum over sentences of T

  T counts the tokens of the reference and EOS, which both sides have after their last token. Positions after
  the end of the hypothesis are wrong. If the hypothesis is longer than the reference, EOS is wrong.

  Args:
    hypotheses: sequences of tokens without EOS.
    references: sequences of tokens without EOS, one per hypothesis.

  Raises:
    ValueError: if there are no sentences, or the numbers of hypotheses and references differ.

  >>> token_accuracy([["il", "cane", "vede"]], [["il", "gatto", "vede"]])
  0.75
  """
  _check_corpus(hypotheses, references)
  correct = 0
  for hypothesis, reference in zip(hypotheses, references, strict=True):
    correct += sum(a == b for a, b in zip(hypothesis, reference, strict=False))
    correct += len(hypothesis) == len(reference)
  return correct / sum(len(reference) + 1 for reference in references)


def alignment_error_rate(sentences: Sequence[AlignedAttention]) -> float:
  """Returns the alignment error rate (AER) of the largest weights, from 0 (best) to 1.

      AER = 1 - (|A & S| + |A & P|) / (|A| + |S|),  each size summed over the corpus

  S is the set of sure links, and P also contains the possible links. A links each target word to the source
  position with the largest weight, the first one if several are equal. A target word has no link if that
  position is EOS or all weights are 0.

  Args:
    sentences: attention weights of references (teacher forcing), with true alignments.

  Raises:
    ValueError: if there are no links, or a true link is out of range.

  References:
    Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", section 5.

  >>> weights = np.array([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.0, 0.1, 0.9]])
  >>> alignment_error_rate([AlignedAttention(weights, {(0, 1), (1, 1)})])
  0.5
  """
  num_correct = total = 0
  for sentence in sentences:
    _check_links(sentence)
    links, sure = strongest_links(sentence.weights), set(sentence.alignment)
    num_correct += len(links & sure) + len(links & (sure | set(sentence.possible)))
    total += len(links) + len(sure)
  if not total:
    raise ValueError("sentences must have at least one true or predicted link, got none")
  return 1.0 - num_correct / total


def has_error_rate(sentences: Sequence[AlignedAttention]) -> bool:
  """Returns whether there are sure links, or both possible and predicted links."""
  if any(sentence.alignment for sentence in sentences):
    return True
  has_possible = any(sentence.possible for sentence in sentences)
  return has_possible and any(strongest_links(sentence.weights) for sentence in sentences)


def attention_mass(sentences: Sequence[AlignedAttention]) -> float:
  """Returns the mean attention weight on the true source words.

      mean over target words t with true links of  sum over (t, s) in G of weights[t, s]

  Args:
    sentences: attention weights of references (teacher forcing), with true alignments.

  Returns:
    A number from 0 to 1, or more if the weights sum to more than 1, as with a sigmoid.

  Raises:
    ValueError: if there are no true links, or a true link is out of range.

  >>> weights = np.array([[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
  >>> attention_mass([AlignedAttention(weights, {(0, 0), (0, 1)})])
  0.75
  """
  mass, count = 0.0, 0
  for weights, alignment, _ in sentences:
    _check_links(AlignedAttention(weights, alignment))
    mass += sum(float(weights[link]) for link in set(alignment))
    count += len({target for target, _ in alignment})
  if not count:
    raise ValueError("sentences must have at least one true link, got none")
  return mass / count


def strongest_links(weights: np.ndarray) -> set[tuple[int, int]]:
  """Returns the link (target, source) of each target word to the source word with the largest weight.

  Args:
    weights: [T S], rows and columns as in `AlignedAttention`.
  """
  words, end = weights[:-1], weights.shape[1] - 1
  strongest = words.argmax(axis=1)
  linked = (strongest != end) & (words.max(axis=1) > 0.0)
  return {(int(target), int(strongest[target])) for target in np.flatnonzero(linked)}


def _check_links(sentence: AlignedAttention) -> None:
  """Raises ValueError if a true link is out of range."""
  num_targets, num_sources = (length - 1 for length in sentence.weights.shape)
  for target, source in (*sentence.alignment, *sentence.possible):
    if not (0 <= target < num_targets and 0 <= source < num_sources):
      raise ValueError(
        f"alignment must link {counted(num_targets, 'target word')} and "
        f"{counted(num_sources, 'source word')}, counted from 0, got {(target, source)}"
      )


def _check_corpus(hypotheses: Sequence, references: Sequence) -> None:
  """Raises ValueError if there are no sentences, or the numbers differ."""
  for name, sentences in (("hypotheses", hypotheses), ("references", references)):
    if isinstance(sentences, str):
      raise ValueError(f"{name} must be a sequence of sentences, got the string {sentences!r}")
  if len(hypotheses) != len(references):
    raise ValueError(
      f"hypotheses and references must have the same length, got {len(hypotheses)} and {len(references)}"
    )
  if not references:
    raise ValueError("hypotheses and references must have at least one sentence, got none")
