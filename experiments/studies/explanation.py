r"""Do attention weights explain the output?

**Yes for words that translate a source word, no for the others**: with the weights on the true source words
alone, additive attention predicts the right word with probability 0.982 instead of 0.984. Without these
weights, the probability falls to 0.306. For articles and sentence ends, other weights often give the same
output.

* For aligned words, shuffled weights move 0.78 to 0.85 of the probability of the next word, except for
  sigmoid weights (0.48). Adversarial weights exist for 3.8% to 11.4% of the words (sigmoid: 12.1%).
* The better the weights align, the fewer adversaries exist: 11.4% for additive attention and 5.0% with the
  guided alignment loss.
* For articles, which have no true link, and for sentence ends, shuffling changes little, and adversaries
  exist for 70.6% to 87.9% of the positions (sigmoid: 26.5%). The decoder predicts these without attention.

**Setup.** Six models of the study `alignment` process 200 test sentences with their true translations. At
each target word only the attention weights change; the decoder state before it stays. The effect is the total
variation distance (TVD, 0 to 1) between the distributions of the next word. Weights are shuffled, made
uniform, removed from the true source words, or restricted to them, with their sum kept. Adversaries are
searched among 64 shuffles and all one-hot weights: they change the distribution by a TVD below 0.05, and
differ most from the model's weights (Jensen-Shannon divergence, JSD, 0 to 0.69). A word has an adversary if
the JSD exceeds 0.5. The measurement takes one minute.

**Limitations.** The language is artificial, and only a known alignment shows which source words are true. The
search may miss adversaries.

**Related results.** Jain and Wallace 2019 (arXiv:1902.10186) found in text classifiers that shuffled weights
often change little, and that different weights give the same output. Wiegreffe and Pinter 2019
(arXiv:1908.04626) answered that this depends on the task and on which weights are allowed. Here, the first
result holds for words without a true link only.

**Reproduce.**

    python -m experiments.sweep --config=experiments/studies/alignment.py --workdir=runs/alignment \
        --num_parallel=2
    python -m experiments.write_findings --study=explanation --workdir=runs/alignment
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from configs import base
from experiments.comparison import compare
from experiments.data.batches import Batch, make_batch
from experiments.data.vocabularies import PAD_ID
from experiments.figures import figures
from experiments.inference.translator import Translator
from experiments.studies import alignment, analysis
from experiments.studies.analysis import Runs, StudyReport, significance_note

VARIANTS = "additive", "attends after", "guided", "attends after, guided", "entmax15", "sigmoid"
NUM_SHUFFLES = 64
MAX_ADVERSARIAL_TVD = 0.05  # adversaries change the distribution by less
MIN_ADVERSARIAL_JSD = 0.5
METRICS = {
  "shuffled": "tvd/shuffled",
  "uniform": "tvd/uniform",
  "true words removed": "tvd/without",
  "true words alone": "tvd/alone",
  "adversarial JSD": "jsd/adversarial",
  "adversary found": "share/adversarial",
}
UNALIGNED_METRICS = {
  title: f"{METRICS[title]}/unaligned"
  for title in ("shuffled", "uniform", "adversarial JSD", "adversary found")
}

PROBABILITIES = {
  "model's weights": "p/model",
  "true words removed": "p/without",
  "true words alone": "p/alone",
}


def get_config() -> base.Config:
  return alignment.get_config()


def get_sweep() -> dict[str, dict[str, list[Any]]]:
  return {name: choices for name, choices in alignment.get_sweep().items() if name in VARIANTS}


class FixedWeights(nn.Module):
  """Attention with fixed weights, passed in place of the keys."""

  def attend_with_kv(self, states, keys_values, *, mask=None, return_weights=True):
    """Returns the contexts [B T D] and weights [B T S] of weights [B S] and values [B S D]."""
    weights, values = keys_values
    weights = jnp.broadcast_to(weights[:, None], (*states.shape[:2], weights.shape[-1]))
    return jnp.einsum("BTS,BSD->BTD", weights, values), weights


def measure(translator: Translator) -> dict[str, float]:
  """Returns how much changed weights change the distribution of the next word.

  Means are over words with a true link. Metrics that end in "unaligned" are over words without one and
  sentence ends. "share/unaligned" is the proportion of these.
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
  measures = jax.device_get(
    _measure_batch(translator.params, batch, jax.random.key(0), model=translator.model)
  )
  measures["share/adversarial"] = measures["jsd/adversarial"] > MIN_ADVERSARIAL_JSD
  is_linked = np.asarray(batch.links).any(axis=-1)
  is_unlinked = np.asarray(batch.targets != PAD_ID) & ~is_linked
  values = {name: float(np.mean(array[is_linked])) for name, array in measures.items()}
  for metric in UNALIGNED_METRICS.values():
    name = metric.removesuffix("/unaligned")
    values[metric] = float(np.mean(measures[name][is_unlinked]))
  return values | {"share/unaligned": float(is_unlinked.sum() / (is_unlinked.sum() + is_linked.sum()))}


def write(runs: Runs) -> StudyReport:
  groups = {name: runs.filter(group=name) for name in VARIANTS}
  share = compare.format_mean(groups[VARIANTS[0]].values("share/unaligned")[:1])
  text = (
    "Words with a true link: TVD of the next word's distribution (mean over shuffles), and adversaries:\n\n"
    f"{analysis.table(groups, METRICS)}\n\n"
    f"Words without a true link, and sentence ends (a proportion of {share} of all):\n\n"
    f"{analysis.table(groups, UNALIGNED_METRICS)}\n\n"
    "Words with a true link: probability of the right word:\n\n"
    f"{analysis.table(groups, PROBABILITIES)}\n\n"
    f"{significance_note('additive attention')}"
  )
  return StudyReport(text, {"distances": figures.dot_plot(compare.metric_panels(groups, METRICS))})


@functools.partial(jax.jit, static_argnames="model")
def _measure_batch(params: Any, batch: Batch, rng: jax.Array, *, model: Any) -> dict[str, jax.Array]:
  """Returns the measures of each target word, [B T]."""
  variables = {"params": params}
  state, memory = model.apply(variables, batch.sources, batch.source_lengths, method="encode")
  decoder = model.decoder.clone(attention=FixedWeights(), normalizer=None, parent=None)
  is_valid = jnp.arange(batch.sources.shape[1])[None] < jnp.asarray(batch.source_lengths)[:, None]

  def step(state: Any, inputs: Any) -> Any:
    tokens, targets, links, rng = inputs
    next_state, logits, model_weights = model.apply(variables, state, tokens, memory, method="step")
    expected = jax.nn.softmax(logits)

    def probabilities(weights: jax.Array) -> jax.Array:
      changed = memory._replace(keys_values=(weights, memory.keys_values[1]))
      decoder_variables = {"params": params["decoder"]}
      return jax.nn.softmax(decoder.apply(decoder_variables, state, tokens, changed, method="step")[1])

    def target_probability(probs: jax.Array) -> jax.Array:
      return jnp.take_along_axis(probs, targets[:, None], axis=-1)[:, 0]

    shuffles = jax.vmap(lambda rng: shuffle(model_weights, is_valid, rng))(
      jax.random.split(rng, NUM_SHUFFLES)
    )
    S, dtype = model_weights.shape[1], model_weights.dtype
    one_hot = jax.nn.one_hot(jnp.arange(S), S, dtype=dtype)
    total = jnp.sum(model_weights, axis=-1, keepdims=True)  # all changed weights keep this sum
    one_hot = jnp.where(is_valid.T[:, :, None], one_hot[:, None] * total[None], model_weights[None])
    candidates = jnp.concatenate([shuffles, one_hot])
    distances = jax.lax.map(lambda weights: total_variation(expected, probabilities(weights)), candidates)
    divergences = jax.vmap(lambda weights: jensen_shannon(model_weights, weights))(candidates)
    real = is_valid.astype(dtype)
    uniform = total * real / jnp.sum(real, axis=-1, keepdims=True)
    without, alone = (probabilities(_restrict(model_weights, kept & is_valid)) for kept in (~links, links))
    return next_state, {
      "tvd/shuffled": jnp.mean(distances[:NUM_SHUFFLES], axis=0),
      "tvd/uniform": total_variation(expected, probabilities(uniform)),
      "tvd/without": total_variation(expected, without),
      "tvd/alone": total_variation(expected, alone),
      "jsd/adversarial": jnp.max(jnp.where(distances < MAX_ADVERSARIAL_TVD, divergences, 0), axis=0),
      "p/model": target_probability(expected),
      "p/without": target_probability(without),
      "p/alone": target_probability(alone),
    }

  T = batch.targets.shape[1]
  links = jnp.swapaxes(jnp.asarray(batch.links), 0, 1)
  inputs = jnp.asarray(batch.inputs).T, jnp.asarray(batch.targets).T, links, jax.random.split(rng, T)
  measures = jax.lax.scan(step, state, inputs)[1]
  return jax.tree.map(lambda array: array.T, measures)


def shuffle(weights: jax.Array, is_valid: jax.Array, rng: jax.Array) -> jax.Array:
  """Returns weights [B S], shuffled among the positions that are not padding."""
  order = jnp.argsort(jnp.where(is_valid, jax.random.uniform(rng, weights.shape), 2.0), axis=-1)
  return jnp.take_along_axis(weights, order, axis=-1)


def _restrict(weights: jax.Array, kept: jax.Array) -> jax.Array:
  """Returns weights [B S] restricted to some positions, with their sum kept. All zeros become uniform."""
  restricted = jnp.where(kept, jnp.maximum(weights, 1e-9), 0)
  total = jnp.sum(restricted, axis=-1, keepdims=True)
  return restricted * jnp.sum(weights, axis=-1, keepdims=True) / jnp.where(total > 0, total, 1)


def total_variation(p: jax.Array, q: jax.Array) -> jax.Array:
  """Returns the total variation distance of distributions [B V], [B]."""
  return jnp.sum(jnp.abs(p - q), axis=-1) / 2


def jensen_shannon(p: jax.Array, q: jax.Array) -> jax.Array:
  """Returns the Jensen-Shannon divergence in nats of weights [B S], normalized to sum to one, [B]."""

  def entropy(weights: jax.Array) -> jax.Array:
    return -jnp.sum(weights * jnp.log(jnp.maximum(weights, 1e-12)), axis=-1)

  p, q = (weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-9) for weights in (p, q))
  return entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
