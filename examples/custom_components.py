r"""Examples of custom components: a metric, task, attention, normalizer, encoder and decoder.

The components are independent. Copy the one that you need.

    python -m experiments.train --workdir=runs/custom --config.train.num_train_steps=300 \
        --config.data.task=examples.custom_components:Reversal \
        --config.model.attention=examples.custom_components:gaussian \
        --config.model.encoder=examples.custom_components:bag_of_words \
        --config.evaluation.custom_metrics=examples.custom_components:length_ratio

A custom decoder replaces the attention: --config.model.decoder=examples.custom_components:feedback_decoder. A
custom normalizer applies to a built-in attention: --config.model.normalizer=examples.custom_components:linear
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import attention
from experiments.data.batches import make_batch
from experiments.data.task import Example, Task
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary

# A metric is a function of three lists of the same length that returns a number.


def length_ratio(translations, examples, scored):
  """Returns the mean length of the translations divided by that of the references.

  Args:
    translations: decoded translations, `experiments.inference.translator.Translation`. Their `tokens` may
      be empty, and they have no attention weights.
    examples: sentences and references, `experiments.data.task.Example`.
    scored: references with log-probabilities and attention weights,
      `experiments.inference.translator.PairScore`.
  """
  target_length = sum(len(example.target) for example in examples)
  return sum(len(translation.tokens) for translation in translations) / target_length


# A task is a subclass of `experiments.data.task.Task`.


class Reversal(Task):
  """Letters, written in reverse order."""

  splits: tuple[str, ...] = ("test",)  # evaluated at the end of training, and by experiments.evaluate
  validation_split = "test"  # evaluated during training
  has_alignments = True  # batches have links, for config.train.alignment_loss_weight

  def __init__(self, config, languages=None):
    """Takes the whole config, and the languages of an existing run. They are equal to those made here."""
    self._config = config
    letters = TextProcessor(WordTokenizer(), Vocabulary(tuple("abcdefgh")), lowercase=True)
    self.source = self.target = letters

  def __str__(self):
    return "reversal of letters"  # printed when training begins

  def training_batch(self, step):
    """Returns the batch of a step. It depends only on the config and the step, so that runs can resume."""
    letters = [self._letters(1 + step, row) for row in range(self._config.train.batch_size)]
    encode = self.source.vocabulary.encode
    sources, targets = [encode(word) for word in letters], [encode(word[::-1]) for word in letters]
    links = [_links(word) for word in letters]
    # 7 letters and the end symbol.
    return make_batch(sources, targets, source_length=8, target_length=8, alignments=links)

  def examples(self, split, count):
    """Returns the first `count` sentences of a split, or all if it is 0."""
    letters = [self._letters(0, row) for row in range(count or 100)]  # seed 0 is never used in training
    return [
      Example(
        source=word,
        target=word[::-1],
        alignment=_links(word),  # None if unknown
        source_text=" ".join(word),
        target_text=" ".join(word[::-1]),
      )
      for word in letters
    ]

  def _letters(self, *seed):
    rng = np.random.default_rng((self._config.seed, *seed))
    return tuple(rng.choice(self.source.vocabulary.words, rng.integers(1, 8)).tolist())


def _links(letters):
  """Returns the true alignment: pairs (target position, source position), without the end symbol."""
  return frozenset((t, len(letters) - 1 - t) for t in range(len(letters)))


# Attention is a function of `config.model` that returns a layer for `attention.RecurrentDecoder`. The base
# class projects queries and keys to `features`, and a subclass defines the score.


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class NegativeDistance(attention.Score):
  sharpness: jax.Array

  def scores(self, queries, keys):  # [... T A], [... S A] -> [... T S]
    difference = queries[..., :, None, :] - keys[..., None, :, :]
    return -self.sharpness * jnp.mean(difference**2, axis=-1)


class GaussianAttention(attention.ProjectedAttention):
  @nn.compact
  def score(self, queries, keys):
    return NegativeDistance(self.param("sharpness", nn.initializers.ones, ()))


def gaussian(config):
  return GaussianAttention(features=config.features)


# A normalizer is a function of `config.model` that returns an `attention.Normalizer`.


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Linear(attention.Normalizer):
  """Weights are the scores divided by the number of keys. They may be negative, or greater than 1."""

  def row_state(self, rows):
    return jnp.maximum(rows.sum(lambda tile: 1), 1)

  def weights(self, tile, count):
    return tile.scores / count


def linear(config):
  return Linear()


# An encoder is a function of `config.model` and the source vocabulary size that returns a Flax module.


class BagOfWords(nn.Module):
  """Embeddings of words and positions; the final state is their mean."""

  vocabulary_size: int  # fields of a Flax module must be hashable, and `config.model` is not
  features: int

  @nn.compact
  def __call__(self, tokens, lengths, *, deterministic=True):  # [B S], [B] -> [B S D], [B D]
    positions = self.param("positions", nn.initializers.normal(0.1), (64, self.features))
    memory = nn.Embed(self.vocabulary_size, self.features)(tokens) + positions[: tokens.shape[1]]
    is_word = jnp.arange(tokens.shape[1]) < lengths[:, None]
    counts = jnp.maximum(lengths, 1)[:, None]  # rows that pad a batch have length 0
    final_state = jnp.sum(memory * is_word[..., None], axis=1) / counts.astype(memory.dtype)
    return attention.Encoded(memory, final_state)


def bag_of_words(config, vocabulary_size):
  return BagOfWords(vocabulary_size, config.features)


# A decoder is a function of `config.model` and the target vocabulary size that returns a Flax module with the
# methods of `attention.models.Decoder`: prepare, step, output_features, __call__ and output_projection.


class FeedbackDecoder(nn.Module):
  """A GRU decoder whose attention depends on its weights of the previous step.

  The scores are additive in a convolution of those weights (Chorowski et al. 2015, arXiv:1506.07503). The
  state consists of the GRU's state, [B H], and the weights, [B S].
  """

  vocabulary_size: int
  features: int

  def setup(self):
    self.embedding = nn.Embed(self.vocabulary_size, self.features)
    self.initial_state = nn.Dense(self.features)
    self.cell = nn.GRUCell(self.features)
    self.readout = nn.Dense(self.features)
    self.project_state, self.project_memory = nn.Dense(self.features), nn.Dense(self.features)
    self.convolution = nn.Conv(self.features, kernel_size=(5,))
    self.score = nn.Dense(1)
    self.kernel = self.param("kernel", nn.initializers.lecun_normal(), (self.features, self.vocabulary_size))
    self.bias = self.param("bias", nn.initializers.zeros, (self.vocabulary_size,))

  def prepare(self, encoded, lengths, max_length):
    """Returns the initial state, and the memory for all steps."""
    is_word = jnp.arange(encoded.memory.shape[1]) < lengths[:, None]
    first_word = jnp.zeros_like(encoded.memory[..., 0]).at[:, 0].set(1)
    return (jnp.tanh(self.initial_state(encoded.final_state)), first_word), (encoded.memory, is_word)

  def step(self, state, tokens, memory):
    """Returns the next state, logits and weights after the previous tokens, [B]."""
    state, features, weights = self._step(state, tokens, memory)
    return state, features @ self.kernel + self.bias, weights

  def output_features(self, state, targets, memory, *, deterministic=True):
    """Returns features and weights at all positions; `targets` [B T] begin with the start symbol."""
    steps = []
    for tokens in targets.T:
      state, features, weights = self._step(state, tokens, memory)
      steps.append((features, weights))
    return tuple(jnp.stack(arrays, axis=1) for arrays in zip(*steps, strict=True))

  def __call__(self, state, targets, memory, *, deterministic=True):
    """Returns logits and weights at all positions."""
    features, weights = self.output_features(state, targets, memory, deterministic=deterministic)
    return features @ self.kernel + self.bias, weights

  def output_projection(self):
    """Returns the kernel and bias of the logits, which the loss computes in chunks."""
    return self.kernel, self.bias

  def _step(self, state, tokens, memory):
    (hidden, previous), (vectors, is_word) = state, memory
    sums = self.project_state(hidden)[:, None] + self.project_memory(vectors)
    scores = self.score(jnp.tanh(sums + self.convolution(previous[..., None])))[..., 0]
    weights = attention.masked_softmax(scores[:, None], is_word[:, None])[:, 0]
    context = jnp.einsum("BS,BSD->BD", weights, vectors)
    hidden, _ = self.cell(hidden, jnp.concatenate([self.embedding(tokens), context], axis=-1))
    features = jnp.tanh(self.readout(jnp.concatenate([hidden, context], axis=-1)))
    return (hidden, weights), features, weights


def feedback_decoder(config, vocabulary_size):
  return FeedbackDecoder(vocabulary_size, config.features)
