r"""Is attention an explanation?

    python -m experiments.sweep --config=experiments/studies/alignment.py --workdir=runs/alignment \
        --num_parallel=2
    python -m experiments.write_findings --study=explanation --workdir=runs/alignment

Some of the translators of the study `alignment` read 200 test sentences along their true translations. At
each word the weights alone are changed, the state before stays, and it is measured how far the distribution
of the next word moves: by the total variation distance (TVD), 0 to 1. Weights are shuffled, made all alike,
and taken from, or left to, the source words that the target word truly translates, which only a language with
known alignments can tell; what is left of them keeps their sum. Adversaries are looked for among 64 shuffles
and all weights that look at one word: of those that move the distribution by less than 0.05, the ones that
are farthest from the model's own weights (Jensen-Shannon divergence, JSD, 0 to 0.69). An adversary is found
where that is above 0.5; there may be more than are found so. The runs are those of `alignment`; to measure
them takes a minute.

Answer: of the words that translate something, it is; of the others, it is not. Jain and Wallace (2019,
arXiv:1902.10186) found in classifiers of texts that shuffled weights often changed little, and that other
weights gave the same answer; Wiegreffe and Pinter (2019, arXiv:1908.04626) answered that this depends on the
task and on what other weights are allowed. In this translator it does not repeat for words with a true
alignment: where weights compete, shuffling them moves 0.78 to 0.85 of the next word's probability, and other
weights that leave it be are found for one word in nine to one in 26. The truth says why: the weights on the
source words that are truly translated are the ones that matter; alone they give the same word, and without
them it is mostly lost. The better the weights align (the guided loss), the fewer adversaries are found. For
articles that translate nothing, and the ends of sentences, it does repeat: shuffles move little, and an
adversary is found for 0.71 to 0.88 of them: the decoder knows them without looking. The weights of a sigmoid
are no pointer (see the study `alignment`), and move less of either.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from configs import base
from experiments.studies import alignment, analysis
from experiments.studies.analysis import NOTE, Runs, StudyReport
from experiments.text.batches import Batch, make_batch
from experiments.text.vocabularies import PAD
from experiments.translation import compare, figures
from experiments.translation.translator import Translator

VARIANTS = "additive", "looks after", "guided", "looks after, guided", "entmax15", "sigmoid"
SHUFFLES = 64
UNMOVED = 0.05  # a distribution that has moved by less is the same
METRICS = {
  "shuffled": "tvd/shuffled",
  "all alike": "tvd/alike",
  "without the true words": "tvd/without",
  "the true words alone": "tvd/alone",
  "adversarial JSD": "jsd/adversarial",
  "an adversary is found": "share/adversarial",
}
METRICS_ELSEWHERE = {
  title: f"{METRICS[title]} elsewhere"
  for title in ("shuffled", "all alike", "adversarial JSD", "an adversary is found")
}

CHANCES = {"as it is": "p/own", "without the true words": "p/without", "the true words alone": "p/alone"}


def get_config() -> base.Config:
  return alignment.get_config()


def get_sweep() -> dict[str, dict[str, list[Any]]]:
  return {name: choices for name, choices in alignment.get_sweep().items() if name in VARIANTS}


class Given(nn.Module):
  """Attention with weights that are given, in the place of keys."""

  def attend_with_kv(self, states, keys_values, *, mask=None, return_weights=True):
    """Returns the contexts [B T D] of the weights [B S] and values [B S D], and the weights [B T S]."""
    weights, values = keys_values
    weights = jnp.broadcast_to(weights[:, None], (*states.shape[:2], weights.shape[-1]))
    return jnp.einsum("BTS,BSD->BTD", weights, values), weights


def measure(translator: Translator) -> dict[str, float]:
  """Returns how far changed weights move the next word's distribution.

  Of words that have a true alignment; and, called "elsewhere", of the others and the ends of sentences, whose
  share among all is "share/elsewhere".
  """
  examples = translator.task.examples("test", 200)
  source, target = translator.task.source.vocabulary, translator.task.target.vocabulary
  batch = make_batch(
    [source.encode(example.source) for example in examples],
    [target.encode(example.target) for example in examples],
    source_length=max(len(example.source) for example in examples) + 1,
    target_length=max(len(example.target) for example in examples) + 1,
    alignments=[example.alignment or () for example in examples],
  )
  found = jax.device_get(_measured(translator.params, batch, jax.random.key(0), model=translator.model))
  found["share/adversarial"] = found["jsd/adversarial"] > 0.5
  is_linked = np.asarray(batch.links).any(axis=-1)
  elsewhere = np.asarray(batch.targets != PAD) & ~is_linked
  values = {name: float(np.mean(array[is_linked])) for name, array in found.items()}
  for metric in METRICS_ELSEWHERE.values():
    name = metric.removesuffix(" elsewhere")
    values[metric] = float(np.mean(found[name][elsewhere]))
  return values | {"share/elsewhere": float(elsewhere.sum() / (elsewhere.sum() + is_linked.sum()))}


def write(runs: Runs) -> StudyReport:
  groups = {name: runs.of(group=name) for name in VARIANTS}
  share = compare.mean(groups[VARIANTS[0]].values("share/elsewhere")[:1])
  text = (
    "How far the distribution of the next word moves (TVD; of shuffles their mean), and the adversaries, of "
    f"words with a true alignment:\n\n{analysis.table(groups, METRICS)}\n\n"
    f"The same of words without a true alignment and of the ends of sentences, {share} of all:\n\n"
    f"{analysis.table(groups, METRICS_ELSEWHERE)}\n\n"
    "The probability of the right word, of words with a true alignment:\n\n"
    f"{analysis.table(groups, CHANCES)}\n\n"
    f"{NOTE.format('the first line')}"
  )
  return StudyReport(text, {"distances": figures.spread(compare.panels(groups, METRICS))})


@functools.partial(jax.jit, static_argnames="model")
def _measured(params: Any, batch: Batch, rng: jax.Array, *, model: Any) -> dict[str, jax.Array]:
  """Returns the measures of each target word, [B T]."""
  variables = {"params": params}
  state, memory = model.apply(variables, batch.sources, batch.source_lengths, method="encode")
  given = model.decoder.clone(attention=Given(), normalizer=None, parent=None)
  is_real = jnp.arange(batch.sources.shape[1])[None] < jnp.asarray(batch.source_lengths)[:, None]

  def step(state: Any, inputs: Any) -> Any:
    tokens, targets, links, rng = inputs
    after, logits, own = model.apply(variables, state, tokens, memory, method="step")
    expected = jax.nn.softmax(logits)

    def probabilities(weights: jax.Array) -> jax.Array:
      changed = memory._replace(keys_values=(weights, memory.keys_values[1]))
      own_params = {"params": params["decoder"]}
      return jax.nn.softmax(given.apply(own_params, state, tokens, changed, method="step")[1])

    def right(found: jax.Array) -> jax.Array:
      return jnp.take_along_axis(found, targets[:, None], axis=-1)[:, 0]

    shuffles = jax.vmap(lambda rng: _shuffled(own, is_real, rng))(jax.random.split(rng, SHUFFLES))
    single = jax.nn.one_hot(jnp.arange(own.shape[1]), own.shape[1], dtype=own.dtype)
    total = jnp.sum(own, axis=-1, keepdims=True)  # whatever is changed, the sum stays
    singles = jnp.where(is_real.T[:, :, None], single[:, None] * total[None], own[None])
    candidates = jnp.concatenate([shuffles, singles])
    moved = jax.lax.map(lambda weights: _distance(expected, probabilities(weights)), candidates)
    divergences = jax.vmap(lambda weights: _divergence(own, weights))(candidates)
    real = is_real.astype(own.dtype)
    alike = total * real / jnp.sum(real, axis=-1, keepdims=True)
    without, alone = (probabilities(_left(own, is_left & is_real)) for is_left in (~links, links))
    return after, {
      "tvd/shuffled": jnp.mean(moved[:SHUFFLES], axis=0),
      "tvd/alike": _distance(expected, probabilities(alike)),
      "tvd/without": _distance(expected, without),
      "tvd/alone": _distance(expected, alone),
      "jsd/adversarial": jnp.max(jnp.where(moved < UNMOVED, divergences, 0), axis=0),
      "p/own": right(expected),
      "p/without": right(without),
      "p/alone": right(alone),
    }

  T = batch.targets.shape[1]
  links = jnp.swapaxes(jnp.asarray(batch.links), 0, 1)
  inputs = jnp.asarray(batch.inputs).T, jnp.asarray(batch.targets).T, links, jax.random.split(rng, T)
  found = jax.lax.scan(step, state, inputs)[1]
  return jax.tree.map(lambda array: array.T, found)


def _shuffled(weights: jax.Array, is_real: jax.Array, rng: jax.Array) -> jax.Array:
  """Returns weights [B S] of which the real ones have changed places."""
  order = jnp.argsort(jnp.where(is_real, jax.random.uniform(rng, weights.shape), 2.0), axis=-1)
  return jnp.take_along_axis(weights, order, axis=-1)


def _left(weights: jax.Array, is_left: jax.Array) -> jax.Array:
  """Returns weights [B S] of which only some are left, with their sum; where all were zero, all alike."""
  left = jnp.where(is_left, jnp.maximum(weights, 1e-9), 0)
  total = jnp.sum(left, axis=-1, keepdims=True)
  return left * jnp.sum(weights, axis=-1, keepdims=True) / jnp.where(total > 0, total, 1)


def _distance(one: jax.Array, other: jax.Array) -> jax.Array:
  """Returns the total variation distance of distributions [B V], [B]."""
  return jnp.sum(jnp.abs(one - other), axis=-1) / 2


def _divergence(one: jax.Array, other: jax.Array) -> jax.Array:
  """Returns the Jensen-Shannon divergence of weights [B S], each taken as a distribution, in nats, [B]."""

  def entropy(weights: jax.Array) -> jax.Array:
    return -jnp.sum(weights * jnp.log(jnp.maximum(weights, 1e-12)), axis=-1)

  one, other = (each / jnp.maximum(jnp.sum(each, axis=-1, keepdims=True), 1e-9) for each in (one, other))
  return entropy((one + other) / 2) - (entropy(one) + entropy(other)) / 2
