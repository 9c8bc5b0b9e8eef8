"""Translations by a trained model."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

import attention
from attention.decoding import SearchResult
from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError, TrainingDiverged
from experiments.tasks import Task
from experiments.text.batches import Batch, make_batch, remove_eos, round_up
from experiments.text.tokenizers import SubwordTokenizer
from experiments.text.visible import is_blank
from experiments.text.vocabularies import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from experiments.translation import decoding
from experiments.translation.decoding import DecodeOptions
from experiments.translation.step import cast

# Padded lengths are multiples of this: few shapes, few compilations.
_LENGTH_MULTIPLE = 16

_NOT_FINITE = "the model's {} is not finite; try a smaller config.train.learning_rate"


class Translation(NamedTuple):
  """A translation that a model found.

  Attributes:
    text: plain text.
    tokens: what the text is made of, without the end of the sentence.
    score: its log-probability among translations without PAD_ID and BOS_ID, in nats; in beam search divided
      by the length penalty.
    attention: [T S], float32; rows are the tokens and, unless it was cut, the end of the sentence, columns
      the tokens of the source and its end. The mean of the heads, if there are several; None without
      attention.
    is_truncated: whether it had not ended at the greatest length.
  """

  text: str
  tokens: tuple[str, ...]
  score: float
  attention: np.ndarray | None
  is_truncated: bool = False


class PairScore(NamedTuple):
  """A given translation under the model (teacher forcing).

  Attributes:
    log_probability: of its tokens and the end of the sentence, if the model has learnt that, among those that
      the search can find, in nats.
    num_tokens: how many they are.
    attention: [T S], rows and columns as in `Translation`; None without attention.
  """

  log_probability: float
  num_tokens: int
  attention: np.ndarray | None


class Heads(NamedTuple):
  """Who attends to whom in a given translation, by each layer and head.

  Attributes:
    source: tokens; the end of the sentence is one position more.
    target: likewise.
    encoder: [L N S S], of the source to itself; None for an encoder without self-attention.
    decoder: [L N T S], of the target to the source; None without attention.
  """

  source: tuple[str, ...]
  target: tuple[str, ...]
  encoder: np.ndarray | None
  decoder: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Translator:
  """A model with its parameters and its task.

  Sentences are translated in batches of one size, sorted by length and padded to few distinct lengths: one
  compilation for each length.

  Attributes:
    task: its languages, and the sentences that it is scored on.
    model: a Flax module.
    params: its parameters.
    batch_size: number of sentences translated at once.
    search: how translations are found.
    train_eos: whether the model was trained to end sentences; otherwise the end does not count in scores.
  """

  task: Task
  model: attention.Seq2Seq | attention.Ensemble
  params: Any
  _: dataclasses.KW_ONLY
  batch_size: int
  search: DecodeOptions
  train_eos: bool = True

  def with_search(self, **changed: Any) -> "Translator":
    """Returns a translator with other fields of `search`."""
    return dataclasses.replace(self, search=self.search._replace(**changed))

  def translate(self, texts: Sequence[str]) -> list[Translation]:
    """Returns the best translation that the search finds of each text.

    Raises:
      TypeError: for what is no list of texts.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
      raise TypeError(f"texts must be a list of strings, got {texts!r:.60}")
    return [best for best, *_ in self.n_best(self.source_tokens(texts))]

  def source_tokens(self, texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the tokens of each source; a text without a visible character has none."""
    return [() if is_blank(text) else self.task.source.tokenize(text) for text in texts]

  def score(self, pairs: Sequence[tuple[str, str]]) -> list[PairScore]:
    """Returns how likely the model takes each translation for, of pairs (source, translation) of texts.

    Raises:
      TypeError: for what is no list of pairs of texts.
      DataError: for tokens that a vocabulary of subwords does not have.
    """
    return self.score_tokens(self.pair_tokens(pairs))

  def heads(self, pairs: Sequence[tuple[str, str]]) -> list[Heads]:
    """Returns the weights of each layer and head, of pairs (source, translation) of texts.

    Raises:
      ValueError: if the model is an ensemble.
      TrainingDiverged: if a weight is not finite.
    """
    return self.heads_of_tokens(self.pair_tokens(pairs))

  def heads_of_tokens(self, tokens: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Heads]:
    """Does what `heads` does, for pairs of sentences of tokens."""
    self._check_is_one()
    found: dict[int, Heads] = {}
    for chosen, batch in self._batches(tokens):
      weights = jax.tree.map(np.asarray, decoding.attention_weights(self.params, batch, model=self.model))
      for row, i in enumerate(chosen):
        S, T = (len(side) + 1 for side in tokens[i])
        encoder, decoder = (None if array is None else array[row] for array in weights)
        found[i] = Heads(
          source=tuple(tokens[i][0]),
          target=tuple(tokens[i][1]),
          encoder=None if encoder is None else np.array(encoder[..., :S, :S]),
          decoder=None if decoder is None else np.array(decoder[..., :T, :S]),
        )
        if not all(np.isfinite(side).all() for side in found[i][2:] if side is not None):
          raise TrainingDiverged(_NOT_FINITE.format("attention"))
    return [found[i] for i in range(len(tokens))]

  def n_best(
    self,
    sources: Sequence[Sequence[str]],
    *,
    with_attention: bool = True,
    numbers: Sequence[int] | None = None,
  ) -> list[list[Translation]]:
    """Returns the translations of each source, the best first; at least one, at most `search.n_best`.

    What has no tokens is not translated: it has one translation, without tokens.

    Args:
      sources: sentences of tokens.
      with_attention: whether to keep it, which for many sentences is much.
      numbers: of the sentences, on which it depends what is drawn for each; None to count from 0.

    Raises:
      TrainingDiverged: if the model's scores are not finite.
    """
    filled = [i for i, source in enumerate(sources) if source]
    found = {i: [Translation("", (), 0.0, None)] for i in range(len(sources))}
    for rows, batch in self._batches([(sources[i], ()) for i in filled]):
      chosen = [filled[row] for row in rows]
      drawn = np.zeros(self.batch_size, np.uint32)
      drawn[: len(chosen)] = chosen if numbers is None else [numbers[i] for i in chosen]
      arguments = self.params, batch.sources, batch.source_lengths, drawn, np.uint32(self.search.seed)
      search = self.search._replace(seed=0)  # all seeds have the same program
      never = self._never(ends=search.ends)
      hypotheses = decoding.decode(
        *arguments, model=self.model, search=search, with_weights=with_attention, never=never
      )
      hypotheses = jax.tree.map(np.asarray, hypotheses)
      for row, i in enumerate(chosen):
        own = jax.tree.map(lambda array, row=row: array[row], hypotheses)
        found[i] = [
          self._translation(each, len(sources[i])) for each in _one_by_one(own) if np.isfinite(each.scores)
        ]
        if not found[i]:
          raise TrainingDiverged(_NOT_FINITE.format("score of a translation"))
    return [found[i] for i in range(len(sources))]

  def score_tokens(
    self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]], *, with_attention: bool = True
  ) -> list[PairScore]:
    """Does what `score` does, for pairs of sentences of tokens.

    Args:
      pairs: (source, translation).
      with_attention: whether to keep it, which for many sentences is much.

    Raises:
      ValueError: if the model is an ensemble.
      TrainingDiverged: if a probability or the attention is not finite.
    """
    self._check_is_one()
    scored: dict[int, PairScore] = {}
    for chosen, batch in self._batches(pairs):
      scored_batch = batch if self.train_eos else remove_eos(batch)
      never = self._never(ends=self.search.ends)
      losses, weights = decoding.score(self.params, scored_batch, model=self.model, never=never)
      losses = np.asarray(losses)
      weights = None if weights is None else np.asarray(weights)
      for row, i in enumerate(chosen):
        width, length = (len(side) + 1 for side in pairs[i])
        cut = None if weights is None else np.array(weights[row, :length, :width])
        if not np.isfinite(losses[row]) or (cut is not None and not np.isfinite(cut).all()):
          raise TrainingDiverged(_NOT_FINITE.format("loss or attention"))
        count = length if self.train_eos else length - 1
        scored[i] = PairScore(-float(losses[row]), count, cut if with_attention else None)
    return [scored[i] for i in range(len(pairs))]

  def pair_tokens(
    self, pairs: Sequence[tuple[str, str]], *, are_tokens: bool = False
  ) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Returns the tokens of pairs (source, translation) of texts.

    Args:
      pairs: texts.
      are_tokens: whether translations are tokens already, with spaces between.

    Raises:
      TypeError: for what is no list of pairs of texts.
      DataError: for tokens that a vocabulary of subwords does not have.
    """
    for pair in pairs:
      if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise TypeError(f"pairs must be a list of (source, translation), both strings, got {pair!r:.60}")
    source, target = self.task.source, self.task.target
    cut = str.split if are_tokens else target.tokenize
    if are_tokens and isinstance(target.tokenizer, SubwordTokenizer):
      unknown = target.vocabulary.unknown(piece for _, text in pairs for piece in text.split())
      if unknown:
        raise DataError(f"tokens must be those of translate --tokens, got {unknown[0]!r:.60}")
    return [(source.tokenize(text), tuple(cut(given))) for text, given in pairs]

  def _never(self, *, ends: bool) -> tuple[int, ...]:
    """Returns the ids that no translation has: those that stand for no token."""
    has_all = isinstance(
      self.task.target.tokenizer, SubwordTokenizer
    )  # what has no piece is written as bytes
    return (PAD_ID, BOS_ID, *([] if ends else [EOS_ID]), *([UNK_ID] if has_all else []))

  def _check_is_one(self) -> None:
    if isinstance(self.model, attention.Ensemble):
      raise ValueError("given translations are read by one model, not by an ensemble")

  def _translation(self, found: SearchResult, source_length: int) -> Translation:
    """Cuts one hypothesis to the sentence's own lengths."""
    ids = found.tokens.tolist()
    length = ids.index(EOS_ID) + 1 if EOS_ID in ids else len(ids)
    cut = None if found.weights is None else np.array(found.weights[:length, : source_length + 1])
    target = self.task.target
    tokens = target.vocabulary.decode(ids)
    return Translation(
      target.detokenize(tokens), tokens, float(found.scores), cut, is_truncated=EOS_ID not in ids
    )

  def _batches(
    self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]
  ) -> Iterator[tuple[list[int], Batch]]:
    """Yields batches of pairs of words, and which pair each of their first rows is."""
    by_length = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][0]), len(pairs[i][1])))
    for first in range(0, len(by_length), self.batch_size):
      chosen = by_length[first : first + self.batch_size]
      # A last batch that is not full repeats its last pair.
      rows = chosen + chosen[-1:] * (self.batch_size - len(chosen))
      sources = [self.task.source.vocabulary.encode(pairs[i][0]) for i in rows]
      targets = [self.task.target.vocabulary.encode(pairs[i][1]) for i in rows]
      yield (
        chosen,
        make_batch(
          sources,
          targets,
          source_length=round_up(max(map(len, sources)) + 1, _LENGTH_MULTIPLE),
          target_length=round_up(max(map(len, targets)) + 1, _LENGTH_MULTIPLE),
        ),
      )


def make_translator(
  config: base.Config,
  task: Task,
  model: attention.Seq2Seq,
  params: Any,
  search: Mapping[str, Any] = MappingProxyType({}),
) -> Translator:
  """Returns a translator with the config's settings for evaluation, and some others of its `DecodeOptions`.

  Raises:
    ConfigError: if one of these is impossible.
  """
  if unknown := search.keys() - {*DecodeOptions._fields}:
    raise ConfigError(
      f"search must have the fields {', '.join(DecodeOptions._fields)}, got {', '.join(unknown)}"
    )
  settings = {
    "max_length": config.evaluation.max_decode_length,
    "beam_size": config.evaluation.beam_size,
    "length_penalty": config.evaluation.length_penalty,
  }
  return Translator(
    task,
    model,
    cast(params, config.model.dtype),
    batch_size=config.evaluation.batch_size,
    search=DecodeOptions(**{**settings, **search}),
    train_eos=config.train.train_eos,
  )


def _one_by_one(found: SearchResult) -> list[SearchResult]:
  """Returns the hypotheses [N ...] of one sentence."""
  return [jax.tree.map(lambda array, n=n: array[n], found) for n in range(len(found.scores))]
