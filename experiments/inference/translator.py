"""Translation and scoring with a trained model."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import attention
from attention.decoding import SearchResult
from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError, TrainingDiverged
from experiments.cli.messages import is_blank
from experiments.data.batches import Batch, group_by_length, make_batch, padded_length, remove_eos
from experiments.data.task import Task
from experiments.data.tokenizers import SubwordTokenizer
from experiments.data.vocabularies import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from experiments.inference import decoding
from experiments.inference.decoding import DecodeOptions

# Longest sentence whose weights of all layers and heads are returned.
_MAX_HEADS_LENGTH = 4_096

_NOT_FINITE = "the {} of the model is not finite; try a smaller config.train.learning_rate"


class Translation(NamedTuple):
  """A decoded translation.

  Attributes:
    text: plain text.
    tokens: tokens without EOS.
    score: log-probability in nats, normalized without PAD_ID and BOS_ID. In beam search it is divided by the
      length penalty.
    attention: weights averaged over heads, float32 [T S], or None without attention. Rows are the tokens and
      EOS, unless the translation is truncated. Columns are the source tokens and EOS.
    is_truncated: the translation has the maximum length without EOS.
  """

  text: str
  tokens: tuple[str, ...]
  score: float
  attention: np.ndarray | None
  is_truncated: bool = False


class PairScore(NamedTuple):
  """Score of a given translation (teacher forcing).

  Attributes:
    log_probability: log-probability in nats of the tokens, and of EOS if the model is trained with it,
      normalized over the tokens that decoding allows.
    num_tokens: number of these tokens.
    attention: weights [T S] as in `Translation`, or None without attention.
  """

  log_probability: float
  num_tokens: int
  attention: np.ndarray | None


class Heads(NamedTuple):
  """Attention weights of each layer and head for a given translation.

  Attributes:
    source: source tokens without EOS. The weights have one more position for EOS.
    target: target tokens without EOS. The weights have one more position for EOS.
    encoder: self-attention weights of the encoder, [L N S S], or None.
    decoder: weights of the decoder on the source, [L N T S], or None.
  """

  source: tuple[str, ...]
  target: tuple[str, ...]
  encoder: np.ndarray | None
  decoder: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Translator:
  """A model with its parameters and task.

  Sentences are sorted by length and translated in batches of a fixed size, or smaller ones if they have more
  than 256 tokens. Lengths are padded to multiples of 16. Each pair of lengths is compiled once.

  Attributes:
    task: the task, with languages and examples.
    model: Flax module.
    params: parameters of the model.
    batch_size: number of sentences per batch, of at most 256 tokens each.
    decode_options: options of decoding.
    train_eos: the model is trained with EOS. Otherwise scores do not include EOS.
  """

  task: Task
  model: attention.Seq2Seq | attention.Ensemble
  params: Any
  _: dataclasses.KW_ONLY
  batch_size: int
  decode_options: DecodeOptions
  train_eos: bool = True

  def with_decode_options(self, **options: Any) -> "Translator":
    """Returns a translator with some fields of `decode_options` replaced."""
    return dataclasses.replace(self, decode_options=self.decode_options._replace(**options))

  def translate(self, texts: Sequence[str]) -> list[Translation]:
    """Returns the best translation of each text.

    Raises:
      TypeError: if `texts` is not a list of strings.
      TrainingDiverged: if the scores of the model are not finite.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
      raise TypeError(f"texts must be a list of strings, got {texts!r:.60}")
    return [best for best, *_ in self.n_best(self.source_tokens(texts))]

  def source_tokens(self, texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the tokens of source texts. A blank text has no tokens."""
    return [() if is_blank(text) else self.task.source.tokenize(text) for text in texts]

  def score(self, pairs: Sequence[tuple[str, str]]) -> list[PairScore]:
    """Returns the log-probabilities of translations.

    Args:
      pairs: (source, translation), plain text.

    Raises:
      TypeError: if `pairs` is not a list of pairs of strings.
      ValueError: if the model is an ensemble.
      TrainingDiverged: if a probability or attention weight is not finite.
    """
    return self.score_tokens(self.pair_tokens(pairs))

  def heads(self, pairs: Sequence[tuple[str, str]]) -> list[Heads]:
    """Returns the attention weights of each layer and head.

    Args:
      pairs: (source, translation), plain text.

    Raises:
      TypeError: if `pairs` is not a list of pairs of strings.
      ValueError: if the model is an ensemble.
      DataError: if a sentence has more than 4,096 tokens.
      TrainingDiverged: if a weight is not finite.
    """
    return self.heads_of_tokens(self.pair_tokens(pairs))

  def heads_of_tokens(self, tokens: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Heads]:
    """Returns the attention weights of `heads` for pairs of token sequences.

    Raises:
      DataError: if a sentence has more than 4,096 tokens, whose weights would need gigabytes.
    """
    self._check_not_ensemble()
    longest = max((len(side) for pair in tokens for side in pair), default=0)
    if longest > _MAX_HEADS_LENGTH:
      raise DataError(
        f"sentences must have at most {_MAX_HEADS_LENGTH:,} tokens for the attention weights of all heads, "
        f"got {longest:,}"
      )
    heads: dict[int, Heads] = {}
    for indices, batch in self._batches(tokens):
      weights = decoding.attention_weights(self.params, batch, model=self.model)
      encoder, decoder = jax.tree.map(np.asarray, weights)
      for row, i in enumerate(indices):
        source, target = map(tuple, tokens[i])
        S, T = len(source) + 1, len(target) + 1
        self_weights = None if encoder is None else np.array(encoder[row, ..., :S, :S])
        source_weights = None if decoder is None else np.array(decoder[row, ..., :T, :S])
        heads[i] = Heads(source, target, self_weights, source_weights)
        if not all(np.isfinite(side).all() for side in heads[i][2:] if side is not None):
          raise TrainingDiverged(_NOT_FINITE.format("attention"))
    return [heads[i] for i in range(len(tokens))]

  def n_best(
    self,
    sources: Sequence[Sequence[str]],
    *,
    with_attention: bool = True,
    example_ids: Sequence[int] | None = None,
  ) -> list[list[Translation]]:
    """Returns the translations of each source, best first.

    A source without tokens has one empty translation. Other sources have 1 to
    `decode_options.n_best` translations.

    Args:
      sources: sequences of tokens.
      with_attention: also return attention weights, which need much memory for many sentences.
      example_ids: ids of the sentences, which determine their samples. Default: 0, 1, 2, ...

    Raises:
      TrainingDiverged: if the scores of the model are not finite.
    """
    nonempty = [i for i, source in enumerate(sources) if source]
    translations = {i: [Translation("", (), 0.0, None)] for i in range(len(sources))}
    for rows, batch in self._batches([(sources[i], ()) for i in nonempty]):
      indices = [nonempty[row] for row in rows]
      batch_ids = np.zeros(len(batch.sources), np.uint32)
      batch_ids[: len(indices)] = indices if example_ids is None else [example_ids[i] for i in indices]
      result = decoding.decode(
        *(self.params, batch.sources, batch.source_lengths, batch_ids),
        np.uint32(self.decode_options.seed),  # a dynamic argument, to compile once for all seeds
        model=self.model,
        decode_options=self.decode_options._replace(seed=0),
        with_weights=with_attention,
        banned_ids=self._banned_ids(),
      )
      result = jax.tree.map(np.asarray, result)
      for row, i in enumerate(indices):
        hypotheses = jax.tree.map(lambda array, row=row: array[row], result)
        translations[i] = [
          self._translation(hypothesis, len(sources[i]))
          for hypothesis in _unstack(hypotheses)
          if np.isfinite(hypothesis.scores)
        ]
        if not translations[i]:
          raise TrainingDiverged(_NOT_FINITE.format("translation score"))
    return [translations[i] for i in range(len(sources))]

  def score_tokens(
    self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]], *, with_attention: bool = True
  ) -> list[PairScore]:
    """Returns the log-probabilities of `score` for pairs of token sequences.

    Args:
      pairs: (source, translation), sequences of tokens.
      with_attention: also return attention weights, which need much memory for many sentences.

    Raises:
      ValueError: if the model is an ensemble.
      TrainingDiverged: if a probability or attention weight is not finite.
    """
    self._check_not_ensemble()
    scored: dict[int, PairScore] = {}
    for indices, batch in self._batches(pairs):
      losses, weights = decoding.score(
        self.params,
        batch if self.train_eos else remove_eos(batch),
        model=self.model,
        banned_ids=self._banned_ids(),
        with_weights=with_attention,
      )
      losses = np.asarray(losses)
      weights = None if weights is None else np.asarray(weights)
      for row, i in enumerate(indices):
        S, T = (len(side) + 1 for side in pairs[i])
        pair_weights = None if weights is None else np.array(weights[row, :T, :S])
        is_finite = pair_weights is None or np.isfinite(pair_weights).all()
        if not (np.isfinite(losses[row]) and is_finite):
          raise TrainingDiverged(_NOT_FINITE.format("loss or attention"))
        num_tokens = T if self.train_eos else T - 1
        scored[i] = PairScore(-float(losses[row]), num_tokens, pair_weights)
    return [scored[i] for i in range(len(pairs))]

  def pair_tokens(
    self, pairs: Sequence[tuple[str, str]], *, are_tokens: bool = False
  ) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Returns the tokens of pairs of texts.

    Args:
      pairs: (source, translation), plain text.
      are_tokens: translations are tokens separated by spaces.

    Raises:
      TypeError: if `pairs` is not a list of pairs of strings.
      DataError: if the vocabulary of a subword model does not have one of these tokens.
    """
    for pair in pairs:
      if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise TypeError(f"pairs must be a list of (source, translation), both strings, got {pair!r:.60}")
    source, target = self.task.source, self.task.target
    tokenize = str.split if are_tokens else target.tokenize
    if are_tokens and isinstance(target.tokenizer, SubwordTokenizer):
      unknown = target.vocabulary.unknown(piece for _, text in pairs for piece in text.split())
      if unknown:
        raise DataError(f"tokens must be written by translate --tokens, got {unknown[0]!r:.60}")
    return [(source.tokenize(text), tuple(tokenize(translation))) for text, translation in pairs]

  def _banned_ids(self) -> tuple[int, ...]:
    """Returns the ids that are never generated."""
    has_bytes = isinstance(self.task.target.tokenizer, SubwordTokenizer)  # so no token is unknown
    end = [] if self.decode_options.allow_eos else [EOS_ID]
    return (PAD_ID, BOS_ID, *end, *([UNK_ID] if has_bytes else []))

  def _check_not_ensemble(self) -> None:
    if isinstance(self.model, attention.Ensemble):
      raise ValueError("model must not be an ensemble: scores and heads need a single model")

  def _translation(self, hypothesis: SearchResult, source_length: int) -> Translation:
    """Returns a hypothesis without padding."""
    ids = hypothesis.tokens.tolist()
    T, S = ids.index(EOS_ID) + 1 if EOS_ID in ids else len(ids), source_length + 1
    weights = None if hypothesis.weights is None else np.array(hypothesis.weights[:T, :S])
    target = self.task.target
    tokens = target.vocabulary.decode(ids)
    return Translation(
      target.detokenize(tokens), tokens, float(hypothesis.scores), weights, is_truncated=EOS_ID not in ids
    )

  def _batches(
    self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]
  ) -> Iterator[tuple[list[int], Batch]]:
    """Yields the indices of the pairs of a batch, and the batch."""
    lengths = [(len(source), len(target)) for source, target in pairs]
    for indices, num_rows in group_by_length(lengths, self.batch_size):
      rows = indices + indices[-1:] * (num_rows - len(indices))  # repeats the last pair
      sources = [self.task.source.vocabulary.encode(pairs[i][0]) for i in rows]
      targets = [self.task.target.vocabulary.encode(pairs[i][1]) for i in rows]
      source_length, target_length = (padded_length(max(map(len, side))) for side in (sources, targets))
      yield indices, make_batch(sources, targets, source_length=source_length, target_length=target_length)


def make_translator(
  config: base.Config,
  task: Task,
  model: attention.Seq2Seq,
  params: Any,
  decode_options: Mapping[str, Any] = MappingProxyType({}),
) -> Translator:
  """Returns a translator with the evaluation settings of a config.

  Args:
    config: config of the run.
    task: the task.
    model: the model.
    params: parameters of the model.
    decode_options: fields of `DecodeOptions` that override the config.

  Raises:
    ConfigError: if a field of `decode_options` does not exist.
  """
  if unknown := decode_options.keys() - {*DecodeOptions._fields}:
    raise ConfigError(
      f"decode_options must have fields among {', '.join(DecodeOptions._fields)}, got {', '.join(unknown)}"
    )
  defaults = {
    "max_length": config.evaluation.max_decode_length,
    "beam_size": config.evaluation.beam_size,
    "length_penalty": config.evaluation.length_penalty,
  }
  return Translator(
    task,
    model,
    optax.tree.cast(params, config.model.dtype),
    batch_size=config.evaluation.batch_size,
    decode_options=DecodeOptions(**{**defaults, **decode_options}),
    train_eos=config.train.train_eos,
  )


def _unstack(hypotheses: SearchResult) -> list[SearchResult]:
  """Returns the hypotheses of one sentence from fields [N ...]."""
  return [jax.tree.map(lambda array, n=n: array[n], hypotheses) for n in range(len(hypotheses.scores))]
