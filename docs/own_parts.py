r"""Parts of one's own for the laboratory: attention, normalizer, encoder, decoder, task, metric, in any file.

    python -m experiments.train --workdir=runs/mine --config.data.task=docs/own_parts.py:Backwards \
        --config.model.attention=docs/own_parts.py:gaussian --config.model.encoder=docs/own_parts.py:bag \
        --config.evaluation.metrics=docs/own_parts.py:length_ratio --config.train.steps=300

A decoder takes the attention's place: --config.model.decoder=docs/own_parts.py:looking_around. A normalizer
makes the weights of an attention that has a name here: --config.model.normalizer=docs/own_parts.py:linear

The run records the file; `experiments.evaluate` and `experiments.translate` find it again.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import attention
from attention.layers.single_head import ProjectedAttention
from experiments.tasks import Example
from experiments.text.batches import make_batch
from experiments.text.languages import Language
from experiments.text.tokenizers import Words
from experiments.text.vocabularies import Vocabulary


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class NegativeDistance(attention.Score):
  sharpness: jax.Array

  def tile(self, queries, keys):  # [... T A], [... S A] -> [... T S]
    difference = queries[..., :, None, :] - keys[..., None, :, :]
    return -self.sharpness * jnp.mean(difference**2, axis=-1)


class Gaussian(ProjectedAttention):
  """An attention: a layer that `attention.RecurrentDecoder` can use. Its base projects to `width`."""

  @nn.compact
  def score(self, queries, keys):
    return NegativeDistance(self.param("sharpness", nn.initializers.ones, ()))


def gaussian(config):
  """Makes the layer; `config` is `config.model`."""
  return Gaussian(width=config.width)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Linear(attention.Normalizer):
  """A normalizer: weights are the scores, divided by the number of words; below 0 or above 1, too."""

  def weights(self, rows):  # rows.scores are 0 where rows.used is False
    count = jnp.sum(jnp.broadcast_to(rows.used, rows.scores.shape), axis=-1, keepdims=True)
    return rows.scores / jnp.maximum(count, 1).astype(rows.scores.dtype)


def linear(config):
  """Makes the normalizer; `config` is `config.model`."""
  return Linear()


class Bag(nn.Module):
  """An encoder: it takes tokens [B S] and lengths [B], and returns the memory [B S D] and a summary [B D]."""

  vocabulary_size: int
  width: int

  @nn.compact
  def __call__(self, tokens, lengths, *, deterministic=True):
    places = self.param("places", nn.initializers.normal(0.1), (64, self.width))
    words = nn.Embed(self.vocabulary_size, self.width)(tokens)
    memory = words + places[: tokens.shape[1]]
    is_word = jnp.arange(tokens.shape[1]) < lengths[:, None]
    summary = jnp.sum(memory * is_word[..., None], axis=1) / lengths[:, None].astype(memory.dtype)
    return attention.Encoded(memory, summary)


def bag(config, vocabulary_size):
  """Makes the encoder. Fields of a Flax module must have a hash, which `config.model` has not."""
  return Bag(vocabulary_size, config.width)


class LookingAround(nn.Module):
  """A decoder whose attention remembers where it looked: the state is the GRU's [B H] and its weights [B S].

  The scores are additive in what was attended to just before, around each position (Chorowski et al. 2015,
  arXiv:1506.07503). `attention.models.Decoder` tells of the methods.
  """

  vocabulary_size: int
  width: int

  def setup(self):
    self.words = nn.Embed(self.vocabulary_size, self.width)
    self.cell, self.readout = nn.GRUCell(self.width), nn.Dense(self.width)
    self.first, self.of_state = nn.Dense(self.width), nn.Dense(self.width)
    self.of_memory = nn.Dense(self.width)
    self.of_place, self.score = nn.Conv(self.width, kernel_size=(5,)), nn.Dense(1)
    self.kernel = self.param("kernel", nn.initializers.lecun_normal(), (self.width, self.vocabulary_size))
    self.bias = self.param("bias", nn.initializers.zeros, (self.vocabulary_size,))

  def prepare(self, encoded, lengths, max_length):
    is_word = jnp.arange(encoded.memory.shape[1]) < lengths[:, None]
    left = jnp.zeros_like(encoded.memory[..., 0]).at[:, 0].set(1)  # where it begins
    return (jnp.tanh(self.first(encoded.summary)), left), (encoded.memory, is_word)

  def step(self, state, tokens, memory):
    state, features, weights = self._advance(state, tokens, memory)
    return state, features @ self.kernel + self.bias, weights

  def features(self, state, targets, memory, *, deterministic=True):
    found = []
    for tokens in targets.T:  # a few words: no loop of XLA's
      state, features, weights = self._advance(state, tokens, memory)
      found.append((features, weights))
    return tuple(jnp.stack(each, axis=1) for each in zip(*found, strict=True))

  def __call__(self, state, targets, memory, *, deterministic=True):
    features, weights = self.features(state, targets, memory, deterministic=deterministic)
    return features @ self.kernel + self.bias, weights

  def output_weights(self):
    return self.kernel, self.bias

  def _advance(self, state, tokens, memory):
    (hidden, last), (vectors, is_word) = state, memory
    around = self.of_place(last[..., None])
    sums = self.of_state(hidden)[:, None] + self.of_memory(vectors) + around
    scores = self.score(jnp.tanh(sums))[..., 0]
    weights = attention.masked_softmax(scores[:, None], is_word[:, None])[:, 0]  # a row may have no words
    context = jnp.einsum("BS,BSD->BD", weights, vectors)
    hidden, _ = self.cell(hidden, jnp.concatenate([self.words(tokens), context], axis=-1))
    return (hidden, weights), jnp.tanh(self.readout(jnp.concatenate([hidden, context], axis=-1))), weights


def looking_around(config, vocabulary_size):
  """Makes the decoder."""
  return LookingAround(vocabulary_size, config.width)


class Backwards:
  """A task: letters are written backwards. A batch depends on the config and the step alone."""

  splits = ("test",)
  watched = "test"

  def __init__(self, config, languages=None):
    self._config = config
    letters = Language(Words(), Vocabulary(tuple("abcdefgh")), lowercase=True)
    self.source = self.target = letters

  def __str__(self):
    return "letters backwards"

  def training_batch(self, step):
    words = [self._words(1 + step, row) for row in range(self._config.train.batch_size)]
    encode = self.source.vocabulary.encode
    sides = [encode(each) for each in words], [encode(each[::-1]) for each in words]
    return make_batch(*sides, source_length=8, target_length=8)

  def examples(self, split, count):
    found = (self._words(0, row) for row in range(count or 100))
    return [Example(each, each[::-1], None, " ".join(each), " ".join(each[::-1])) for each in found]

  def _words(self, *seed):
    rng = np.random.default_rng((self._config.seed, *seed))
    return tuple(rng.choice(self.source.vocabulary.words, rng.integers(1, 8)).tolist())


def length_ratio(translations, examples, scored):
  """A metric: how long translations are, compared with the true ones."""
  return sum(len(each.tokens) for each in translations) / sum(len(each.target) for each in examples)
