"""The five lessons as text: the idea, the formula, and the numbers that the systems return."""

import pathlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from experiments.introduction import systems
from experiments.translation import figures, png


def lessons(rng: jax.Array, folder: pathlib.Path) -> Iterator[str]:
  """Yields the five lessons in the order of the texts, and draws their heat-maps.

  Args:
    rng: for the numbers.
    folder: where the heat-maps are written.

  Raises:
    OSError: if a heat-map cannot be written; nothing of its lesson is yielded.
  """
  self_rng, heads_rng, shape_rng, mask_rng, parts_rng = jax.random.split(rng, 5)
  yield "\n".join(self_attention(self_rng, folder))
  yield "\n".join(heads_from_config(heads_rng))
  yield "\n".join(soft_look_up(shape_rng))
  yield "\n".join(masked_attention(mask_rng, folder))
  yield "\n".join(translator_parts(parts_rng))


def self_attention(rng: jax.Array, folder: pathlib.Path) -> Iterator[str]:
  """Tells text 0: one head on five words, then four."""
  head_rng, heads_rng = jax.random.split(rng)
  one = jax.jit(systems.one_head)(head_rng)
  words = systems.WORDS
  yield _title("0. Each word looks at all words")
  yield "A word's query asks, every word's key answers, and the answers weigh the values."
  yield _formulas("a_1j = softmax(q_1 . k_j / sqrt(16), over j)", "z_1 = a_11 v_1 + ... + a_15 v_5")
  yield f'"{" ".join(words)}" is {list(systems.TOKENS)}; embedded: {one.inputs.shape}'
  yield _array("query of token 1", one.queries[0])
  yield _array("key of token 1", one.keys[0])
  yield _array("value of token 1", one.values[0])
  yield "weights of token 1:"
  yield from (f"  {a:.3f}  {word}" for a, word in zip(one.weights[0], words, strict=True))
  terms = " + ".join(f"{a:.3f} v_{j}" for j, a in enumerate(one.weights[0], 1))
  yield _array(f"z_1 = {terms}", one.z_1)
  yield _heat_map(folder / "self_attention.png", one.weights, words, words)

  four = jax.jit(systems.four_heads)(heads_rng, one.inputs)
  yield ""
  yield "Four heads look at once, each from its own angle; W_O mixes what they find."
  yield _formulas("result = [head_1 head_2 head_3 head_4] W_O")
  yield f"stacked query kernels [N D H]: {four.query_kernel.shape}"
  yield f"weights, a map for each head:  {four.weights.shape}"
  yield f"what the heads found:          {four.contexts.shape}"
  yield f"side by side:                  {four.concatenated.shape}"
  yield f"times W_O:                     {four.result.shape}"
  yield _array("result for token 1", four.result[0])


def heads_from_config(rng: jax.Array) -> Iterator[str]:
  """Tells text 1: heads one by one, and stacked."""
  text, config = "time flies like an arrow", systems.HeadsConfig()
  run = jax.jit(systems.heads_from_config, static_argnums=(1, 2))(rng, config, len(text.split()))
  yield _title("1. Many heads are one head with one more axis")
  yield "A config gives the hidden size and the number of heads; their width follows."
  yield _formulas("head_n = softmax(x W_Q[n] (x W_K[n])^T / sqrt(H)) x W_V[n],  H = D / N")
  yield f"D = {config.hidden_size}, N = {config.num_attention_heads}: H = {config.head_width}"
  yield f'"{text}", a random vector for each word: {run.inputs.shape}'
  yield f"head by head, concatenated, projected: {run.one_by_one.shape}"
  yield f"all heads stacked, in one call:        {run.stacked.shape}"
  yield f"largest difference: {np.abs(run.one_by_one - run.stacked).max():.0e}"


def soft_look_up(rng: jax.Array) -> Iterator[str]:
  """Tells text 2: a look-up that blends, and a block that keeps the shape."""
  yield _title("2. A look-up by likeness")
  yield "The better a key fits the query, the more of its value comes back. Here without the scale:"
  yield _formulas("weights = softmax(query . keys)")
  for name, query in (("dog", [1.0, 10.0, 1.0]), ("bird", [1.0, 1.0, 10.0])):
    _, weights = jax.jit(systems.soft_look_up)(query)
    yield f"looking for {name}, {query}, in {list(systems.CONCEPTS)}: {np.round(weights, 2)}"
  run = jax.jit(systems.same_shape)(rng)
  yield ""
  yield "Multi-head attention returns the shape it was given, so that layers can stand on layers:"
  yield f"4 heads: {run.inputs.shape} -> {run.outputs.shape}"


def masked_attention(rng: jax.Array, folder: pathlib.Path) -> Iterator[str]:
  """Tells text 3: values wider than keys, and a hidden key."""
  run = jax.jit(systems.masked_attention)(rng)
  labels = [f"key {s}" for s in range(4)], [f"query {t}" for t in range(3)]
  yield _title("3. Keys that must not be seen")
  yield "Keys of width 8, values of width 16. A hidden key leaves its share to the others."
  yield _formulas("context = softmax(Q K^T / sqrt(d_k), over the keys that the mask allows) V")
  for name, context, weights in (
    ("every key seen", run.context, run.weights),
    ("last key hidden", run.masked_context, run.masked_weights),
  ):
    yield _array(f"{name}: context {context.shape}, weights {weights.shape}", weights[0])
    yield f"sums of the rows: {np.round(weights[0].sum(axis=-1), 6)}"
    yield _heat_map(folder / f"{name.replace(' ', '_')}.png", weights[0], *labels)
  yield f"the mask, {run.mask.shape}: {run.mask}"


def translator_parts(rng: jax.Array) -> Iterator[str]:
  """Tells text 4: encoder layer, decoder step and multi-head attention at real sizes."""
  encoder_rng, decoder_rng, heads_rng = jax.random.split(rng, 3)
  encoder = jax.jit(systems.encoder_layer)(encoder_rng)
  step = jax.jit(systems.decoder_step)(decoder_rng)
  heads = jax.jit(systems.eight_heads)(heads_rng)
  yield _title("4. The parts of a translator")
  yield "An encoder layer: self-attention, then a small network at each position."
  yield _formulas("y = norm(x + multi_head_attention(x))", "z = norm(y + W_2 relu(W_1 y))")
  yield f"{encoder.inputs.shape} -> {encoder.outputs.shape}"
  yield ""
  yield "A decoder step: the state asks, additive attention answers, the GRU says a word."
  yield _formulas(
    "a_j = softmax(v_a . tanh(W_a state + U_a memory_j), over j)",
    "state = GRU(state, [word before; a_1 memory_1 + ... + a_50 memory_50])",
  )
  yield f"memory {step.memory.shape}, vocabulary {step.logits.shape[-1]}"
  yield f"-> logits {step.logits.shape}, state {step.state.shape}, weights {step.weights.shape}"
  yield ""
  yield f"Multi-head attention alone, 8 heads: {heads.inputs.shape} -> {heads.outputs.shape}"


def _title(text: str) -> str:
  return f"\n{text}\n{'=' * len(text)}\n"


def _formulas(*formulas: str) -> str:
  return "\n" + "".join(f"    {formula}\n" for formula in formulas)


def _array(name: str, array: jax.Array) -> str:
  """Returns a name and, below it, the numbers."""
  numbers = np.array2string(np.asarray(array), precision=3, floatmode="fixed", prefix="  ")
  return f"{name}\n  {numbers}"


def _heat_map(
  path: pathlib.Path,
  weights: jax.Array,
  source_words: Sequence[str],
  target_words: Sequence[str],
) -> str:
  """Writes a heat-map and says where."""
  figure = figures.attention_map(np.asarray(weights), source_words, target_words)
  png.save(figure, path)
  return f"heat-map: {path}"
