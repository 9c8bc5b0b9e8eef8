"""Translations by a trained model, and how good they are."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import attention
from attention import search
from experiments.translation import metrics
from experiments.translation.batches import Batch, make_batch, round_up
from experiments.translation.mistakes import Diverged
from experiments.translation.tasks import LENGTH_MULTIPLE, Example, Task
from experiments.translation.vocabularies import END, PAD, START


class Translation(NamedTuple):
  """A translation that a model found.

  Attributes:
    words: without the end of the sentence.
    score: its log-probability among translations without PAD and START, in nats.
    weights: attention, [T S]; rows are the words and, unless it was cut, the end of the sentence,
      columns the source words and the end of the source. None without attention.
    is_cut: whether it had not ended at the greatest length.
  """

  words: tuple[str, ...]
  score: float
  weights: np.ndarray | None
  is_cut: bool = False


class Scored(NamedTuple):
  """A true translation under the model (teacher forcing).

  Attributes:
    loss: cross-entropy summed over its words and the end of the sentence, in nats.
    tokens: how many they are.
    weights: attention, [T S], rows and columns as in `Translation`. None without attention.
  """

  loss: float
  tokens: int
  weights: np.ndarray | None


class Translator:
  """A model with its parameters and its task.

  Sentences are translated in batches of one size, alike in length, padded to few distinct lengths: one
  compilation for each length.
  """

  def __init__(
    self,
    task: Task,
    model: attention.Seq2Seq,
    params: Any,
    *,
    batch_size: int,
    max_target_length: int,
  ):
    self.task = task
    self._model = model
    self._params = params
    self._batch_size = batch_size
    self._max_target_length = max_target_length

  def translate(self, sources: Sequence[Sequence[str]]) -> list[Translation]:
    """Returns the greedy translation of each source, given as words."""
    translations: dict[int, Translation] = {}
    for chosen, batch in self._batches([(source, ()) for source in sources]):
      found = _decode(
        self._params,
        batch.sources,
        batch.source_lengths,
        model=self._model,
        max_length=self._max_target_length,
      )
      found = jax.tree.map(np.asarray, found)
      for row, i in enumerate(chosen):
        weights = None if found.weights is None else found.weights[row]
        tokens = found.tokens[row].tolist()
        translations[i] = self._translation(tokens, found.scores[row], weights, len(sources[i]))
    return [translations[i] for i in range(len(sources))]

  def score(self, examples: Sequence[Example]) -> list[Scored]:
    """Returns how the model sees each true translation.

    Raises:
      Diverged: if the loss or the attention is not finite.
    """
    scored: dict[int, Scored] = {}
    for chosen, batch in self._batches([(example.source, example.target) for example in examples]):
      losses, weights = _score(self._params, batch, model=self._model)
      losses = np.asarray(losses)
      weights = None if weights is None else np.asarray(weights)
      for row, i in enumerate(chosen):
        tokens, width = len(examples[i].target) + 1, len(examples[i].source) + 1
        cut = None if weights is None else weights[row, :tokens, :width]
        if not np.isfinite(losses[row]) or (cut is not None and not np.isfinite(cut).all()):
          raise Diverged(
            "the model's loss or attention is not finite; try a smaller config.train.learning_rate"
          )
        scored[i] = Scored(float(losses[row]), tokens, cut)
    return [scored[i] for i in range(len(examples))]

  def evaluate(self, examples: Sequence[Example]) -> dict[str, float]:
    """Returns the metrics of translations of examples against the true ones.

    Exact match, BLEU, chrF and token accuracy are of greedy translations; the loss, in nats for each
    token, and the attention are of the true translation. Attention is scored where alignments are known.
    BLEU and chrF compare plain text; exact match and token accuracy words, since spaces are no words.
    """
    translations = self.translate([example.source for example in examples])
    texts = [self.task.detokenize(translation.words) for translation in translations]
    references = [example.target_text for example in examples]
    words = [translation.words for translation in translations]
    true_words = [example.target for example in examples]
    scored = self.score(examples)
    values = {
      "sentences": float(len(examples)),
      "exact_match": metrics.exact_match(words, true_words),
      "bleu": metrics.corpus_bleu(texts, references),
      "chrf": metrics.corpus_chrf(texts, references),
      "token_accuracy": metrics.token_accuracy(words, true_words),
      "loss": sum(one.loss for one in scored) / sum(one.tokens for one in scored),
    }
    return values | _alignment_metrics(examples, scored)

  def _translation(
    self, tokens: list[int], score: float, weights: np.ndarray | None, source_length: int
  ) -> Translation:
    """Cuts what the search returned to the sentence's own lengths."""
    length = tokens.index(END) + 1 if END in tokens else len(tokens)
    cut = None if weights is None else weights[:length, : source_length + 1]
    words = self.task.target_vocabulary.decode(tokens)
    return Translation(words, float(score), cut, is_cut=END not in tokens)

  def _batches(
    self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]
  ) -> Iterator[tuple[list[int], Batch]]:
    """Yields batches of pairs of words, and which pair each of their first rows is."""
    by_length = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][0]), len(pairs[i][1])))
    for first in range(0, len(by_length), self._batch_size):
      chosen = by_length[first : first + self._batch_size]
      # A last batch that is not full repeats its last pair.
      rows = chosen + chosen[-1:] * (self._batch_size - len(chosen))
      sources = [self.task.source_vocabulary.encode(pairs[i][0]) for i in rows]
      targets = [self.task.target_vocabulary.encode(pairs[i][1]) for i in rows]
      yield (
        chosen,
        make_batch(
          sources,
          targets,
          source_length=round_up(max(map(len, sources)) + 1, LENGTH_MULTIPLE),
          target_length=round_up(max(map(len, targets)) + 1, LENGTH_MULTIPLE),
        ),
      )


@functools.partial(jax.jit, static_argnames=("model", "max_length"))
def _decode(
  params: Any,
  sources: jax.Array,
  source_lengths: jax.Array,
  *,
  model: attention.Seq2Seq,
  max_length: int,
) -> search.Hypotheses:
  """Returns greedy translations of a batch."""
  variables = {"params": params}
  state, memory = model.apply(variables, sources, source_lengths, method="encode")

  def step(state: Any, tokens: jax.Array) -> Any:
    outputs: Any = model.apply(variables, state, tokens, memory, method="step")
    state, logits, weights = outputs
    # They are no words, and were never seen as targets.
    return state, logits.at[:, jnp.array([PAD, START])].set(-jnp.inf), weights

  return search.greedy(
    step,
    state,
    batch_size=sources.shape[0],
    max_length=max_length,
    start=START,
    end=END,
    pad=PAD,
  )


@functools.partial(jax.jit, static_argnames="model")
def _score(params: Any, batch: Batch, *, model: attention.Seq2Seq) -> tuple[jax.Array, jax.Array | None]:
  """Returns the summed loss of each sentence [B], and the attention [B T S]."""
  outputs: Any = model.apply({"params": params}, batch.sources, batch.source_lengths, batch.inputs)
  logits, weights = outputs
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
  return jnp.sum(jnp.where(batch.targets != PAD, losses, 0.0), axis=-1), weights


def _alignment_metrics(examples: Sequence[Example], scored: Sequence[Scored]) -> dict[str, float]:
  """Returns the metrics of the attention; none where there is none, or no true link."""
  aligned = [
    metrics.AlignedAttention(one.weights, example.alignment)
    for example, one in zip(examples, scored, strict=True)
    if one.weights is not None and example.alignment is not None
  ]
  if not any(one.alignment for one in aligned):
    return {}
  return {
    "alignment_error_rate": metrics.alignment_error_rate(aligned),
    "attention_mass": metrics.attention_mass(aligned),
  }
