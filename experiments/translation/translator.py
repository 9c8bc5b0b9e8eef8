"""Translations by a trained model."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attention
from attention.search import Hypotheses, beam, greedy, sample
from configs import base
from experiments.commands.fields import ConfigError
from experiments.commands.mistakes import DataError, Diverged
from experiments.tasks import Task
from experiments.text.batches import Batch, make_batch, round_up, without_ends
from experiments.text.tokenizers import Subwords
from experiments.text.visible import is_blank
from experiments.text.vocabularies import END, PAD, START, UNKNOWN
from experiments.translation.loss import linear_losses
from experiments.translation.step import cast

# Padded lengths are multiples of this: few shapes, few compilations.
_LENGTH_MULTIPLE = 16

_IMPOSSIBLE = -1e30  # a logit; finite, for a mean is taken of them

_NOT_FINITE = "the model's {} is not finite; try a smaller config.train.learning_rate"


class Search(NamedTuple):
  """How translations are looked for.

  Attributes:
    max_length: tokens, the end of the sentence included, after which a translation is cut.
    beam_size: of beam search; 1 for the greedy search.
    length_penalty: as in `attention.search.beam`.
    num_best: how many translations of each sentence, at most beam_size; of those that are drawn there is one.
    temperature: tokens are drawn at this temperature, as by `attention.search.sample`; 0 to draw none.
    top_k: so many of the likeliest tokens can be drawn; 0 for all.
    top_p: the likeliest tokens that have this probability together can be drawn; 1 for all.
    seed: of the drawing.
    ends: whether translations may end; otherwise all have the greatest length.
  """

  max_length: int
  beam_size: int = 1
  length_penalty: float = 1.0
  num_best: int = 1
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0
  ends: bool = True


class Translation(NamedTuple):
  """A translation that a model found.

  Attributes:
    text: plain text.
    tokens: what the text is made of, without the end of the sentence.
    score: its log-probability among translations without PAD and START, in nats; in beam search divided by
      the length penalty.
    attention: [T S], float32; rows are the tokens and, unless it was cut, the end of the sentence, columns
      the tokens of the source and its end. The mean of the heads, if there are several; None without
      attention.
    is_cut: whether it had not ended at the greatest length.
  """

  text: str
  tokens: tuple[str, ...]
  score: float
  attention: np.ndarray | None
  is_cut: bool = False


class Scored(NamedTuple):
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


class Translator:
  """A model with its parameters and its task.

  Attributes:
    task: its languages, and the sentences that it is scored on.
    model: a Flax module.
    params: its parameters.
    search: how translations are looked for.
    batch_size: sentences that are translated at once.
    learns_end: whether the model has learnt where sentences end; otherwise the end has no part in scores.

  Sentences are translated in batches of one size, alike in length, padded to few distinct lengths: one
  compilation for each length.
  """

  def __init__(
    self,
    task: Task,
    model: attention.Seq2Seq | attention.Ensemble,
    params: Any,
    *,
    batch_size: int,
    search: Search,
    learns_end: bool = True,
  ):
    self.task = task
    self.learns_end = learns_end
    self.search = search
    self.model = model
    self.params = params
    self.batch_size = batch_size

  def with_search(self, **changed: Any) -> "Translator":
    """Returns a translator that looks for translations in another way: with other fields of `search`."""
    return Translator(
      self.task,
      self.model,
      self.params,
      batch_size=self.batch_size,
      search=self.search._replace(**changed),
      learns_end=self.learns_end,
    )

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

  def score(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
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
      Diverged: if a weight is not finite.
    """
    return self.heads_of_tokens(self.pair_tokens(pairs))

  def heads_of_tokens(self, tokens: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Heads]:
    """Does what `heads` does, for pairs of sentences of tokens."""
    self._check_is_one()
    found: dict[int, Heads] = {}
    for chosen, batch in self._batches(tokens):
      weights = jax.tree.map(np.asarray, _weights(self.params, batch, model=self.model))
      for row, i in enumerate(chosen):
        S, T = (len(side) + 1 for side in tokens[i])
        encoder, decoder = (None if array is None else array[row] for array in weights)
        found[i] = Heads(
          source=tuple(tokens[i][0]),
          target=tuple(tokens[i][1]),
          encoder=None if encoder is None else _copied(encoder[..., :S, :S]),
          decoder=None if decoder is None else _copied(decoder[..., :T, :S]),
        )
        if not all(np.isfinite(side).all() for side in found[i][2:] if side is not None):
          raise Diverged(_NOT_FINITE.format("attention"))
    return [found[i] for i in range(len(tokens))]

  def n_best(
    self,
    sources: Sequence[Sequence[str]],
    *,
    with_attention: bool = True,
    numbers: Sequence[int] | None = None,
  ) -> list[list[Translation]]:
    """Returns the translations of each source, the best first; at least one, at most `search.num_best`.

    What has no tokens is not translated: it has one translation, without tokens.

    Args:
      sources: sentences of tokens.
      with_attention: whether to keep it, which for many sentences is much.
      numbers: of the sentences, on which it depends what is drawn for each; None to count from 0.

    Raises:
      Diverged: if the model's scores are not finite.
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
      hypotheses = _decode(
        *arguments, model=self.model, search=search, with_weights=with_attention, never=never
      )
      hypotheses = jax.tree.map(np.asarray, hypotheses)
      for row, i in enumerate(chosen):
        own = jax.tree.map(lambda array, row=row: array[row], hypotheses)
        found[i] = [
          self._translation(each, len(sources[i])) for each in _one_by_one(own) if np.isfinite(each.scores)
        ]
        if not found[i]:
          raise Diverged(_NOT_FINITE.format("score of a translation"))
    return [found[i] for i in range(len(sources))]

  def score_tokens(
    self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]], *, with_attention: bool = True
  ) -> list[Scored]:
    """Does what `score` does, for pairs of sentences of tokens.

    Args:
      pairs: (source, translation).
      with_attention: whether to keep it, which for many sentences is much.

    Raises:
      ValueError: if the model is an ensemble.
      Diverged: if a probability or the attention is not finite.
    """
    self._check_is_one()
    scored: dict[int, Scored] = {}
    for chosen, batch in self._batches(pairs):
      scored_batch = batch if self.learns_end else without_ends(batch)
      never = self._never(ends=self.search.ends)
      losses, weights = _score(self.params, scored_batch, model=self.model, never=never)
      losses = np.asarray(losses)
      weights = None if weights is None else np.asarray(weights)
      for row, i in enumerate(chosen):
        width, length = (len(side) + 1 for side in pairs[i])
        cut = None if weights is None else _copied(weights[row, :length, :width])
        if not np.isfinite(losses[row]) or (cut is not None and not np.isfinite(cut).all()):
          raise Diverged(_NOT_FINITE.format("loss or attention"))
        count = length if self.learns_end else length - 1
        scored[i] = Scored(-float(losses[row]), count, cut if with_attention else None)
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
    if are_tokens and isinstance(target.tokenizer, Subwords):
      unknown = target.vocabulary.unknown(piece for _, text in pairs for piece in text.split())
      if unknown:
        raise DataError(f"tokens must be those of translate --tokens, got {unknown[0]!r:.60}")
    return [(source.tokenize(text), tuple(cut(given))) for text, given in pairs]

  def _never(self, *, ends: bool) -> tuple[int, ...]:
    """Returns the ids that no translation has: those that stand for no token."""
    has_all = isinstance(self.task.target.tokenizer, Subwords)  # what has no piece is written as bytes
    return (PAD, START, *([] if ends else [END]), *([UNKNOWN] if has_all else []))

  def _check_is_one(self) -> None:
    if isinstance(self.model, attention.Ensemble):
      raise ValueError("given translations are read by one model, not by an ensemble")

  def _translation(self, found: Hypotheses, source_length: int) -> Translation:
    """Cuts one hypothesis to the sentence's own lengths."""
    ids = found.tokens.tolist()
    length = ids.index(END) + 1 if END in ids else len(ids)
    cut = None if found.weights is None else _copied(found.weights[:length, : source_length + 1])
    target = self.task.target
    tokens = target.vocabulary.decode(ids)
    return Translation(target.detokenize(tokens), tokens, float(found.scores), cut, is_cut=END not in ids)

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
  """Returns a translator with the config's settings for evaluation, and some others of its `Search`.

  Raises:
    ConfigError: if one of these is impossible.
  """
  if unknown := search.keys() - {*Search._fields}:
    raise ConfigError(f"search must have the fields {', '.join(Search._fields)}, got {', '.join(unknown)}")
  settings = {
    "max_length": config.evaluation.max_target_length,
    "beam_size": config.evaluation.beam_size,
    "length_penalty": config.evaluation.length_penalty,
  }
  return Translator(
    task,
    model,
    cast(params, config.model.dtype),
    batch_size=config.evaluation.batch_size,
    search=Search(**{**settings, **search}),
    learns_end=config.train.learns_end,
  )


def _copied(view: Any) -> np.ndarray:
  """Returns a copy of a part of an array; the part itself would keep all of the array."""
  return np.array(view)


def _one_by_one(found: Hypotheses) -> list[Hypotheses]:
  """Returns the hypotheses [N ...] of one sentence."""
  return [jax.tree.map(lambda array, n=n: array[n], found) for n in range(len(found.scores))]


@functools.partial(jax.jit, static_argnames=("model", "search", "with_weights"))
def _decode(
  params: Any,
  sources: jax.Array,
  source_lengths: jax.Array,
  numbers: jax.Array,
  seed: jax.Array,
  *,
  model: attention.Seq2Seq | attention.Ensemble,
  search: Search,
  with_weights: bool,
  never: tuple[int, ...],
) -> Hypotheses:
  """Returns translations of a batch of sentences with their numbers, with an axis for the best N."""
  variables = {"params": params}
  state, memory = model.apply(variables, sources, source_lengths, search.max_length, method="encode")

  def step(state: Any, tokens: jax.Array) -> Any:
    outputs: Any = model.apply(variables, state, tokens, memory, method="step")
    state, logits, weights = outputs
    logits = logits.at[:, jnp.array(never)].set(-jnp.inf)
    return state, logits, _float32(weights) if with_weights else None

  arguments: Any = {"batch_size": sources.shape[0], "max_length": search.max_length}
  arguments |= {"start": START, "end": END, "pad": PAD}
  if search.temperature:
    options: Any = {"temperature": search.temperature, "top_k": search.top_k or None, "top_p": search.top_p}
    rngs = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers)
    found = sample(step, state, rngs, **arguments, **options)
  elif search.beam_size > 1:
    options = {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
    return beam(step, state, **arguments, **options, num_best=search.num_best)
  else:
    found = greedy(step, state, **arguments)
  return jax.tree.map(lambda array: array[:, None], found)


@functools.partial(jax.jit, static_argnames=("model", "never"))
def _score(
  params: Any, batch: Batch, *, model: attention.Seq2Seq, never: tuple[int, ...]
) -> tuple[jax.Array, jax.Array | None]:
  """Returns the summed loss of each sentence [B], and the attention [B T S]."""
  features: Any = model.apply(
    {"params": params}, batch.sources, batch.source_lengths, batch.inputs, method="features"
  )
  B, T = batch.targets.shape
  vectors, targets = features.vectors.reshape(B * T, -1), jnp.reshape(batch.targets, -1)
  bias = features.bias.at[jnp.array(never)].set(_IMPOSSIBLE)
  losses = linear_losses(vectors, features.kernel, bias, targets)
  return jnp.sum(losses.reshape(B, T), axis=-1), _float32(features.weights)


@functools.partial(jax.jit, static_argnames="model")
def _weights(params: Any, batch: Batch, *, model: attention.Seq2Seq) -> Any:
  """Returns the weights of each layer and head."""
  arguments = batch.sources, batch.source_lengths, batch.inputs
  return _float32(model.apply({"params": params}, *arguments, method="attention_weights"))


def _float32(tree: Any) -> Any:
  """Returns what a model computed, in float32 whatever it computes in."""
  return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
