"""How good translations and the attention behind them are, on plain text and words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from experiments.text.vocabularies import compose

Tokens: TypeAlias = tuple[str, ...]


# Metrics that every task has, and whether more of it is better.
HIGHER_IS_BETTER = {"loss": False, "exact_match": True, "bleu": True, "chrf": True, "token_accuracy": True}


class AlignedAttention(NamedTuple):
  """The attention of one sentence and its true alignment.

  Attributes:
    weights: [T S], cut to the sentence: the rows are the words of the true target and one for the
      end of the sentence, the columns the words of the source and one for its end.
    alignment: the true links, pairs (target position, source position) of words, counted from 0.
  """

  weights: np.ndarray
  alignment: Collection[tuple[int, int]]


def comparable(text: str) -> str:
  """Returns a text with composed accents (Unicode NFC) and single spaces, which is all that is compared.

  >>> comparable(" due  mele ")
  'due mele'
  """
  return compose(" ".join(text.split()))


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
  """Returns BLEU of plain text over a whole corpus, by sacrebleu with its standard settings.

  Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771.

  Args:
    hypotheses: sentences in plain text; sacrebleu cuts them into words itself.
    references: as many.

  Returns:
    From 0 to 100.

  Raises:
    ValueError: if there are no sentences, or not as many hypotheses as references.

  >>> round(corpus_bleu(["il gatto vede la mela"], ["il gatto vede la mela"]), 6)
  100.0
  """
  _check_corpus(hypotheses, references)
  return float(BLEU().corpus_score(hypotheses, [references]).score)


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
  """Returns chrF of plain text over a whole corpus, by sacrebleu with its standard settings.

  Source: Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation".

  Args:
    hypotheses: sentences in plain text.
    references: as many.

  Returns:
    From 0 to 100.

  Raises:
    ValueError: if there are no sentences, or not as many hypotheses as references.

  >>> round(corpus_chrf(["il gatto"], ["il gatto"]), 6)
  100.0
  """
  _check_corpus(hypotheses, references)
  return float(CHRF().corpus_score(hypotheses, [references]).score)


def exact_match(
  hypotheses: Sequence[str] | Sequence[Tokens], references: Sequence[str] | Sequence[Tokens]
) -> float:
  """Returns the share of sentences that equal their reference, from 0 to 1.

  Args:
    hypotheses: sentences, in plain text or as tuples of words.
    references: as many, in the same form.

  Raises:
    ValueError: if there are no sentences, or not as many hypotheses as references.

  >>> exact_match(["il gatto", "la mela"], ["il gatto", "le mele"])
  0.5
  """
  _check_corpus(hypotheses, references)
  pairs = zip(hypotheses, references, strict=True)
  return sum(hypothesis == reference for hypothesis, reference in pairs) / len(references)


def token_accuracy(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
  """Returns the share of reference positions at which the hypothesis has the same word.

      sum over sentences of #{t < T : hypothesis[t] = reference[t]} / sum over sentences of T

  T counts the words of the reference and the end of the sentence, which both sides have after their
  last word. Positions that the hypothesis does not reach are wrong; so is a hypothesis that goes on
  where the reference ends.

  Args:
    hypotheses: sequences of words, without the end of the sentence.
    references: as many.

  Returns:
    From 0 to 1.

  Raises:
    ValueError: if there are no sentences, or not as many hypotheses as references.

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
  """Returns how far the strongest weights are from the true links.

      AER = 1 - 2 |A & G| / (|A| + |G|),  each size summed over the corpus

  G is the set of true links. A has one link for each target word, to the source position of largest
  weight (the first of equals); none where that is the end of the source or where all weights are 0,
  and none for the end of the target.

  Source: Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models",
  section 5, with all true links sure.

  Args:
    sentences: attention with its true alignment, for sentences decoded along the true target.

  Returns:
    From 0 (the same links) to 1 (no link in common).

  Raises:
    ValueError: if there is no link at all, or one to a word that is not there.

  >>> weights = np.array([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.0, 0.1, 0.9]])
  >>> alignment_error_rate([AlignedAttention(weights, {(0, 1), (1, 1)})])
  0.5
  """
  common = total = 0
  for weights, alignment in sentences:
    _check_links(AlignedAttention(weights, alignment))
    links = strongest_links(weights)
    common += len(links & set(alignment))
    total += len(links) + len(set(alignment))
  if not total:
    raise ValueError("sentences must have at least one true or attended link, got none")
  return 1.0 - 2.0 * common / total


def attention_mass(sentences: Sequence[AlignedAttention]) -> float:
  """Returns the mean weight that target words give to their true source words: a share, if weights sum to 1.

      mean over target words t with true links of  sum over (t, s) in G of weights[t, s]

  Args:
    sentences: attention with its true alignment, for sentences decoded along the true target.

  Returns:
    From 0 to 1; for weights that sum to more, such as a sigmoid's, to that.

  Raises:
    ValueError: if there is no true link, or one to a word that is not there.

  >>> weights = np.array([[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
  >>> attention_mass([AlignedAttention(weights, {(0, 0), (0, 1)})])
  0.75
  """
  mass, count = 0.0, 0
  for weights, alignment in sentences:
    _check_links(AlignedAttention(weights, alignment))
    mass += sum(float(weights[link]) for link in set(alignment))
    count += len({target for target, _ in alignment})
  if not count:
    raise ValueError("sentences must have at least one true link, got none")
  return mass / count


def strongest_links(weights: np.ndarray) -> set[tuple[int, int]]:
  """Returns each target word's link, (target, source), to its strongest source word, if that is a word.

  Args:
    weights: [T S], rows and columns as in `AlignedAttention`.
  """
  words, end = weights[:-1], weights.shape[1] - 1
  strongest = words.argmax(axis=1)
  linked = (strongest != end) & (words.max(axis=1) > 0.0)
  return {(int(target), int(strongest[target])) for target in np.flatnonzero(linked)}


def _check_links(sentence: AlignedAttention) -> None:
  """Raises ValueError for a true link to a word that is not there."""
  num_targets, num_sources = (length - 1 for length in sentence.weights.shape)
  for target, source in sentence.alignment:
    if not (0 <= target < num_targets and 0 <= source < num_sources):
      raise ValueError(
        f"alignment must link {num_targets} target and {num_sources} source words, counted from 0, "
        f"got {(target, source)}"
      )


def _check_corpus(hypotheses: Sequence, references: Sequence) -> None:
  """Raises ValueError unless there are as many hypotheses as references, and some."""
  for name, sentences in (("hypotheses", hypotheses), ("references", references)):
    if isinstance(sentences, str):
      raise ValueError(f"{name} must be a sequence of sentences, got the string {sentences!r}")
  if len(hypotheses) != len(references):
    raise ValueError(f"hypotheses must be as many as references, got {len(hypotheses)} and {len(references)}")
  if not references:
    raise ValueError("hypotheses and references must be at least one sentence, got none")
