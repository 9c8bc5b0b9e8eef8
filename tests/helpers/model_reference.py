"""Layers and models as float64 NumPy formulas, given the parameters of their Flax modules.

Models process one sentence without padding: vectors are [T D]. Layers also accept leading axes.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def random_parameters(module, *args, method=None, seed=0):
  """Returns random parameters of a module, including biases, since zero biases would hide errors."""
  shapes = jax.eval_shape(lambda rng: module.init(rng, *args, method=method), jax.random.key(0))
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(scale=0.4, size=leaf.shape), leaf.dtype), shapes)


@functools.cache
def compiled(module, method=None, **options):
  """Returns the jitted `apply` of a module, compiled once per module and options."""
  return jax.jit(functools.partial(module.apply, method=method, **options))


def float64(tree):
  return jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), tree)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def softmax(x):
  exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
  return exponentials / exponentials.sum(axis=-1, keepdims=True)


def linear(params, inputs):
  return inputs @ params["kernel"] + params.get("bias", 0)


def layer_norm(params, inputs):
  centered = inputs - inputs.mean(axis=-1, keepdims=True)
  deviation = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-6)
  return centered / deviation * params["scale"] + params.get("bias", 0)


def feed_forward(params, inputs):
  return linear(params["out"], np.maximum(linear(params["hidden"], inputs), 0))


def rotate(vectors):
  """Rotates [... T H] by positions 0 to T - 1; the halves of H are real and imaginary parts."""
  T, H = vectors.shape[-2:]
  numbers = vectors[..., : H // 2] + 1j * vectors[..., H // 2 :]
  angles = np.arange(T)[:, None] * 10000.0 ** (-np.arange(H // 2) / (H // 2))
  numbers = numbers * np.exp(1j * angles)
  return np.concatenate([numbers.real, numbers.imag], axis=-1)


def project_heads(params, name, inputs, rotates=False):
  """Returns the queries, keys or values of all heads, [... N T H]."""
  projection = params[name]
  heads = np.einsum("...TD,DNH->...NTH", inputs, projection["kernel"])
  heads = heads + projection["bias"][:, None] if "bias" in projection else heads
  heads = layer_norm(params[f"{name}_ln"], heads) if f"{name}_ln" in params else heads
  return rotate(heads) if rotates else heads


def dot_product(queries, keys):
  return np.einsum("...TH,...SH->...TS", queries, keys) / np.sqrt(queries.shape[-1])


def multi_head(params, queries, sources, *, mask=True, bias=0.0, rotates=False, scores=dot_product):
  """Returns the output [... T D] and the weights [... N T S]; each row must have an allowed key."""
  q, k = (project_heads(params, *item, rotates) for item in (("query", queries), ("key", sources)))
  v = project_heads(params, "value", sources)
  k, v = (np.repeat(heads, q.shape[-3] // heads.shape[-3], axis=-3) for heads in (k, v))
  weights = softmax(np.where(mask, scores(q, k) + bias, -np.inf))
  out = params["out"]
  return np.einsum("...NTH,NHD->...TD", weights @ v, out["kernel"]) + out.get("bias", 0), weights


def sublayer(params, name, norm_position, inputs, function):
  """Returns a sublayer's output, with a residual connection and a norm, and its other results."""
  module, norm = params[name], params[f"{name}_norm"]
  if norm_position in ("pre", "both"):
    update, *others = function(module, layer_norm(norm, inputs))
    update = layer_norm(params[f"{name}_out_norm"], update) if norm_position == "both" else update
    return inputs + update, *others
  update, *others = function(module, inputs)
  return layer_norm(norm, inputs + update), *others


def encoder_layer(params, inputs, norm, **options):
  """Returns the output [... S D]; `norm` is "pre", "post" or "both"; see also `multi_head`."""
  hidden, _ = sublayer(params, "attention", norm, inputs, lambda p, x: multi_head(p, x, x, **options))
  return sublayer(params, "feed_forward", norm, hidden, lambda p, x: [feed_forward(p, x)])[0]


def decoder_layer(params, inputs, sources, norm, source_mask=True, **options):
  """Returns the output [... T D] and the weights of the source, [... N T S]."""
  options["mask"] = np.tri(inputs.shape[-2], dtype=bool) & options.get("mask", True)
  hidden, _ = sublayer(params, "attention", norm, inputs, lambda p, x: multi_head(p, x, x, **options))
  attend = functools.partial(multi_head, sources=sources, mask=source_mask)
  hidden, weights = sublayer(params, "cross_attention", norm, hidden, attend)
  return sublayer(params, "feed_forward", norm, hidden, lambda p, x: [feed_forward(p, x)])[0], weights


def sinusoidal(length, width):
  angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
  return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def relative_bias(params, length, bidirectional):
  """Returns T5's bias [N T T], for distances so small that each has a bucket."""
  table = params["relative"]["table"]
  distance = np.arange(length) - np.arange(length)[:, None]
  if bidirectional:
    assert length <= 8
    return table[:, np.abs(distance) + np.where(distance > 0, table.shape[1] // 2, 0)]
  assert length <= 16
  return table[:, np.maximum(-distance, 0)]


def transformer_input(params, tokens, position_encoding, bidirectional):
  """Returns the input of the first layer [T D], and the options of all self-attentions."""
  table, T = params["embedding"]["embedding"], len(tokens)
  layer = table[tokens] * np.sqrt(table.shape[-1])
  if position_encoding == "sinusoidal":
    layer = layer + sinusoidal(T, table.shape[-1])
  bias = relative_bias(params, T, bidirectional) if position_encoding == "relative" else 0.0
  return layer, {"rotates": position_encoding == "rotary", "bias": bias}


def layers_of(params, prefix):
  """Returns the parameters named prefix, prefix_0, prefix_1 and so on."""
  return [params[name] for name in (prefix, *(f"{prefix}_{i}" for i in range(9))) if name in params]


def transformer_encoder(params, tokens, norm_position="pre", position_encoding="sinusoidal"):
  """Returns the memory [S D] and the final state [D]."""
  layer, options = transformer_input(params, tokens, position_encoding, bidirectional=True)
  for layer_params in layers_of(params, "layer"):
    layer = encoder_layer(layer_params, layer, norm_position, **options)
  layer = layer_norm(params["norm"], layer) if norm_position != "post" else layer
  return layer, layer.mean(axis=0)


def logits_of(params, features):
  if "logits" in params:
    return linear(params["logits"], features)
  return features @ params["embedding"]["embedding"].T + params["logits_bias"]


def transformer_decoder(params, memory, targets, norm_position="pre", position_encoding="sinusoidal"):
  """Returns logits [T V] and weights [L N T S]."""
  layer, options = transformer_input(params, targets, position_encoding, bidirectional=False)
  weights = []
  for layer_params in layers_of(params, "layer"):
    layer, layer_weights = decoder_layer(layer_params, layer, memory, norm_position, **options)
    weights.append(layer_weights)
  layer = layer_norm(params["norm"], layer) if norm_position != "post" else layer
  return logits_of(params, layer), np.stack(weights)


def gru_step(params, state, inputs):
  """Returns the state [H] after an input [D]."""
  projected = inputs @ params["input"] + params["bias"]
  reset, update, candidate = np.split(projected, 3, axis=-1)
  of_reset, of_update, of_candidate = np.split(state @ params["recurrent"], 3, axis=-1)
  reset, update = sigmoid(reset + of_reset), sigmoid(update + of_update)
  candidate = np.tanh(candidate + reset * (of_candidate + params["recurrent_bias"]))
  return (1 - update) * candidate + update * state


def gru(params, state, inputs):
  """Returns the states [T H] after each input [T D]."""
  states = np.zeros((len(inputs), *state.shape))
  for t, step_inputs in enumerate(inputs):
    states[t] = state = gru_step(params, state, step_inputs)
  return states


def layer_output(params, i, states, inputs, residual):
  """Returns the output of recurrent layer i, given its states and inputs."""
  outputs = states + inputs if residual and i > 0 else states
  return layer_norm(params[f"norm_{i}"], outputs) if f"norm_{i}" in params else outputs


def recurrent_encoder(params, tokens, residual=False):
  """Returns the memory [S 2H] and the final state [2H]."""
  layer = params["embedding"]["embedding"][tokens]
  pairs = zip(layers_of(params, "forward"), layers_of(params, "backward"), strict=True)
  for i, (forward, backward) in enumerate(pairs):
    start = np.zeros(len(forward["recurrent"]))
    ahead, behind = gru(forward, start, layer), gru(backward, start, layer[::-1])[::-1]
    layer = layer_output(params, i, np.concatenate([ahead, behind], axis=-1), layer, residual)
  return layer, np.concatenate([ahead[-1], behind[0]])


def locations(filters, weights):
  """Returns location features [S C] (Chorowski et al. 2015, eq. 8)."""
  padded = np.pad(weights, len(filters) // 2)
  return np.stack([padded[s : s + len(filters)] @ filters for s in range(len(weights))])


def stop_chances(energies, before):
  """Returns expected monotonic weights [S], given the previous ones (Raffel et al. 2017, eq. 8)."""
  weights, arriving = np.zeros(len(before)), 0.0
  for s, stops in enumerate(sigmoid(energies)):
    arriving += before[s]
    weights[s] = arriving * stops
    arriving *= 1 - stops
  return weights


def decoder_attention(kind, params, query, memory, summary, past):
  """Returns the context [D] and weights [S] of a state [H], given the list of previous weights."""
  S = len(memory)
  if kind == "none":
    return summary, np.zeros(S)
  if kind == "multi_head":
    output, weights = multi_head(params, query[None], memory)
    return output[0], weights.mean(axis=0)[0]
  if kind in ("bilinear", "local"):
    scores = memory @ (query @ params["matrix"])
  else:
    q, k = linear(params["query"], query), linear(params["key"], memory)
    if kind == "cosine":
      scores = params["scale"] * (k @ q) / (np.linalg.norm(k, axis=-1) * np.linalg.norm(q))
    elif kind in ("dot_product", "scaled_dot_product"):
      scores = k @ q / (1 if kind == "dot_product" else np.sqrt(len(q)))
    else:
      if kind in ("location_aware", "coverage"):
        before = sum(past, np.zeros(S)) if kind == "coverage" else [np.zeros(S), *past][-1]
        k = k + locations(params["filters"], before) @ params["location_kernel"]
      vector = params["score_vector"]
      if kind == "monotonic":  # Raffel et al. 2017, eq. 16
        vector = params["gain"] * vector / np.linalg.norm(vector)
      scores = np.tanh(q + k) @ vector
  if kind == "monotonic":
    weights = stop_chances(scores + params["offset"], [np.eye(S)[0], *past][-1])
  elif kind == "local":  # Luong et al. 2015, eq. 9 and 10, with windows of 5 to both sides
    center = S * sigmoid(np.tanh(linear(params["position"], query)) @ params["position_vector"])
    distance = np.arange(S) - center
    weights = softmax(np.where(np.abs(distance) <= 5, scores, -np.inf)) * np.exp(-(distance**2) / 12.5)
  else:
    weights = softmax(scores)
  return weights @ memory, weights


def recurrent_decoder(
  kind, params, memory, summary, targets, *, residual=False, attend_order="before", input_feeding=False
):
  """Returns logits [T V] and weights [T S].

  Bahdanau et al. 2015, A.2.2; attention after the step, and input feeding: Luong et al. 2015, sections 3 and
  3.3.
  """
  states = [np.tanh(linear(initial, summary)) for initial in layers_of(params, "initial")]
  fed = np.zeros(len(params["readout"]["bias"]) if input_feeding else 0)
  logits, past = [], []
  for token in targets:
    word = params["embedding"]["embedding"][token]
    attend = functools.partial(decoder_attention, kind, params.get("attention_layer"))
    if attend_order == "before":
      context, weights = attend(states[0], memory, summary, past)
      layer = np.concatenate([word, context, fed])
    else:
      layer = np.concatenate([word, fed])
    for i, cell in enumerate(layers_of(params, "cell")):
      states[i] = gru_step(cell, states[i], layer)
      layer = layer_output(params, i, states[i], layer, residual)
    if attend_order == "after":
      context, weights = attend(layer, memory, summary, past)
    features = np.tanh(linear(params["readout"], np.concatenate([layer, context, word])))
    fed = features if input_feeding else fed
    logits.append(logits_of(params, features))
    past.append(weights)
  return np.stack(logits), np.stack(past)
