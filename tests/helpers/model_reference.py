"""Layers and models in float64 NumPy, from the parameters of Flax modules, one sentence at a time.

Sentences have no padding. Attention itself is in reference.py.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from helpers import reference

# Float32 models are chains of some tens of operations, each accurate to about 32 roundings.
MODEL = 1000 * float(np.finfo(np.float32).eps)

MULTI_HEAD_NAMES = ("query", "key", "value", "out")


def random_parameters(module, *args, method=None, seed=0):
  """Returns random parameters of a module, including biases, since zero biases would hide errors."""
  variables = jax.eval_shape(lambda rng: module.init(rng, *args, method=method), jax.random.key(0))
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(scale=0.4, size=leaf.shape), leaf.dtype), variables)


@functools.cache
def compiled(module, method=None, **options):
  """Returns the jitted `apply` of a module, compiled once per module and options."""
  return jax.jit(functools.partial(module.apply, method=method, **options))


def float64(parameters):
  return jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), parameters)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def dense(parameters, inputs):
  return inputs @ parameters["kernel"] + parameters.get("bias", 0.0)


def layer_norm(parameters, inputs):
  centred = inputs - inputs.mean(axis=-1, keepdims=True)
  deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
  return centred / deviation * parameters["scale"] + parameters["bias"]


def feed_forward(parameters, inputs):
  hidden = dense(parameters["hidden"], inputs)
  return dense(parameters["out"], np.where(hidden > 0, hidden, 0.0))


def multi_head_fields(parameters):
  """Returns the kernels and biases (None if missing) of a layer, in the order of MultiHeadWeights."""
  return tuple(parameters[name].get(field) for field in ("kernel", "bias") for name in MULTI_HEAD_NAMES)


def self_attention(parameters, inputs, **options):
  return reference.multi_head_attention(inputs, inputs, multi_head_fields(parameters), **options).context


def rotated(vectors):
  """Returns [T H] rotated by positions 0 to T - 1; the halves of the width are real and imaginary parts."""
  T, H = vectors.shape
  turned = np.zeros_like(vectors)
  for t, i in np.ndindex(T, H // 2):
    number = complex(vectors[t, i], vectors[t, i + H // 2]) * np.exp(1j * t * 10000 ** (-2 * i / H))
    turned[t, i], turned[t, i + H // 2] = number.real, number.imag
  return turned


def one_head(parameters, name, n, inputs, rotates=False):
  """Returns the projection of inputs [T D] for head n, [T H], normalized if there is a scale."""
  projection = parameters[name]
  vectors = inputs @ projection["kernel"][:, n] + projection.get("bias", np.zeros(n + 1))[n]
  if f"{name}_ln" in parameters:
    vectors = layer_norm({"scale": parameters[f"{name}_ln"]["scale"], "bias": 0.0}, vectors)
  return rotated(vectors) if rotates else vectors


def multi_head(
  parameters, queries, sources, rotates=False, pair_score=reference.dot_product, mask=True, bias=0.0, **scores
):
  """Returns the context [T D] and the weights [N T S] of queries [T D] and sources [S D].

  `scores` are the parameters of the score per head, [N ...]; mask and bias are for [N T S].
  """
  N, K = parameters["query"]["kernel"].shape[1], parameters["key"]["kernel"].shape[1]
  pairs = N, len(queries), len(sources)
  mask, bias = np.broadcast_to(mask, pairs), np.broadcast_to(bias, pairs)
  if pair_score is reference.dot_product and not scores:
    scores = {"scale": np.full(N, parameters["query"]["kernel"].shape[-1] ** -0.5)}
  heads = [
    reference.attend(
      pair_score,
      one_head(parameters, "query", n, queries, rotates),
      one_head(parameters, "key", n // (N // K), sources, rotates),
      one_head(parameters, "value", n // (N // K), sources),
      mask=mask[n],
      bias=bias[n],
      **{name: values[n] for name, values in scores.items()},
    )
    for n in range(N)
  ]
  out = parameters["out"]
  context = sum(head.context @ out["kernel"][n] for n, head in enumerate(heads)) + out.get("bias", 0.0)
  return context, np.stack([head.weights for head in heads])


def head_positions(kind, parameters, T, S, bidirectional):
  """Returns the bias [N T S] of relative positions (Raffel et al. 2020, their code), or 0."""
  if kind != "relative":
    return 0.0
  table = parameters["relative"]["table"]
  bias = np.zeros((len(table), T, S))
  for t, s in np.ndindex(T, S):
    distance, half = s - t, table.shape[1] // (2 if bidirectional else 1)
    first = half if bidirectional and distance > 0 else 0
    distance = abs(distance) if bidirectional else max(-distance, 0)
    assert distance < half // 2  # larger distances share a bucket; see test_positions
    bias[:, t, s] = table[:, first + distance]
  return bias


def placed_attention(kind, parameters, T, causal=False):
  """Returns the self-attention of a transformer, a function of parameters and inputs [T D]."""
  bias = head_positions(kind, parameters, T, T, not causal)
  mask = np.tril(np.ones((T, T), bool)) if causal else True

  def attend(parameters, inputs):
    return multi_head(parameters, inputs, inputs, rotates=kind == "rotary", mask=mask, bias=bias)[0]

  return attend


def encoder_layer(parameters, inputs, norm, attend=None, **options):
  """Returns the output [S D] of inputs [S D]; the options are the mask and bias of the attention.

  `attend` computes the attention from its parameters and inputs. Default: `self_attention`.
  """
  attend = self_attention if attend is None else attend
  attention, network = parameters["attention"], parameters["feed_forward"]
  first, second = parameters["attention_norm"], parameters["feed_forward_norm"]
  if norm == "post":
    middle = layer_norm(first, inputs + attend(attention, inputs, **options))
    return layer_norm(second, middle + feed_forward(network, middle))
  middle = inputs + attend(attention, layer_norm(first, inputs), **options)
  return middle + feed_forward(network, layer_norm(second, middle))


def gru_step(parameters, state, inputs):
  """Returns the state [H] after an input [D], gate by gate."""
  H = state.shape[-1]
  W_r, W_z, W = (parameters["input"][:, i * H : (i + 1) * H] for i in range(3))
  U_r, U_z, U = (parameters["recurrent"][:, i * H : (i + 1) * H] for i in range(3))
  b_r, b_z, b = (parameters["bias"][i * H : (i + 1) * H] for i in range(3))
  reset = sigmoid(inputs @ W_r + state @ U_r + b_r)
  update = sigmoid(inputs @ W_z + state @ U_z + b_z)
  candidate = np.tanh(inputs @ W + b + reset * (state @ U + parameters["recurrent_bias"]))
  return (1 - update) * candidate + update * state


def gru(parameters, state, inputs):
  """Returns the states [T H] after each of the inputs [T D]."""
  states = []
  for step_inputs in inputs:
    state = gru_step(parameters, state, step_inputs)
    states.append(state)
  return np.reshape(states, (len(inputs), *state.shape))


def layer_output(parameters, i, states, inputs, residual):
  """Returns the output of layer i: its states, plus its inputs if residual, normalized if there is a norm."""
  outputs = states + inputs if residual and i > 0 else states
  return layer_norm(parameters[f"norm_{i}"], outputs) if f"norm_{i}" in parameters else outputs


def recurrent_encoder(parameters, tokens, residual=False):
  """Returns the memory [S D] and the final state [D] of a sentence."""
  layer = parameters["embedding"]["embedding"][tokens]
  for i in range(sum(name.startswith("forward_") for name in parameters)):
    forward, backward = parameters[f"forward_{i}"], parameters[f"backward_{i}"]
    start = np.zeros(forward["recurrent"].shape[0])
    ahead = gru(forward, start, layer)
    behind = gru(backward, start, layer[::-1])[::-1]
    layer = layer_output(parameters, i, np.concatenate([ahead, behind], axis=-1), layer, residual)
  return layer, np.concatenate([ahead[-1], behind[0]])


def sinusoidal(length, width):
  encodings = np.zeros((length, width))
  for t, d in np.ndindex(length, width):
    angle = t / 10000 ** ((d - d % 2) / width)
    encodings[t, d] = np.cos(angle) if d % 2 else np.sin(angle)
  return encodings


def placed_words(parameters, tokens, places):
  """Returns the input of the first layer of a transformer, [T D]."""
  embedding = parameters["embedding"]["embedding"]
  width = embedding.shape[-1]
  return embedding[tokens] * np.sqrt(width) + (places == "sinusoidal") * sinusoidal(len(tokens), width)


def transformer_encoder(parameters, tokens, norm, places="sinusoidal"):
  """Returns the memory [S D] and the final state [D] of a sentence."""
  layer = placed_words(parameters, tokens, places)
  attend = placed_attention(places, parameters, len(tokens))
  for i in range(sum(name.startswith("layer_") for name in parameters)):
    layer = encoder_layer(parameters[f"layer_{i}"], layer, norm, attend)
  if norm == "pre":
    layer = layer_norm(parameters["norm"], layer)
  return layer, layer.mean(axis=0)


def decoder_layer(parameters, inputs, sources, norm, attend, source_mask=True):
  """Returns the output [T D] for inputs [T D] and sources [S E], and the weights [N T S]."""
  names = "attention", "cross_attention", "feed_forward"
  own, source, network = (parameters[name] for name in names)
  first, second, third = (parameters[f"{name}_norm"] for name in names)
  if norm == "post":
    inputs = layer_norm(first, inputs + attend(own, inputs))
    output, weights = multi_head(source, inputs, sources, mask=source_mask)
    inputs = layer_norm(second, inputs + output)
    return layer_norm(third, inputs + feed_forward(network, inputs)), weights
  inputs = inputs + attend(own, layer_norm(first, inputs))
  output, weights = multi_head(source, layer_norm(second, inputs), sources, mask=source_mask)
  inputs = inputs + output
  return inputs + feed_forward(network, layer_norm(third, inputs)), weights


def transformer_decoder(parameters, memory, targets, norm="pre", places="sinusoidal"):
  """Returns logits [T V] and weights [L N T S] for targets [T] and a memory [S D]."""
  layer, heads = placed_words(parameters, targets, places), []
  attend = placed_attention(places, parameters, len(targets), causal=True)
  for i in range(sum(name.startswith("layer_") for name in parameters)):
    layer, weights = decoder_layer(parameters[f"layer_{i}"], layer, memory, norm, attend)
    heads.append(weights)
  if norm == "pre":
    layer = layer_norm(parameters["norm"], layer)
  if "logits" in parameters:
    return dense(parameters["logits"], layer), np.stack(heads)
  return layer @ parameters["embedding"]["embedding"].T + parameters["logits_bias"], np.stack(heads)


class Look(NamedTuple):
  context: np.ndarray  # [D]
  weights: np.ndarray  # [S]


def locations(filters, weights):
  """Returns the location features [S C] (Chorowski et al. 2015, eq. 8)."""
  (R, C), S = filters.shape, len(weights)
  seen = np.zeros((S, C))
  for s, r in np.ndindex(S, R):
    if 0 <= s + r - R // 2 < S:
      seen[s] += filters[r] * weights[s + r - R // 2]
  return seen


def attend(kind, parameters, state, memory, summary, looked):
  """Returns the attention of a decoder's state [H] to the memory [S D], given all previous weights [S]."""
  if kind == "none":
    return Look(summary, None)
  queries, parameters = state[None], parameters["attention_layer"]
  if kind == "multi_head":
    result = reference.multi_head_attention(queries, memory, multi_head_fields(parameters))
    return Look(result.context[0], result.weights.mean(axis=0)[0])
  if kind == "local":  # Luong et al. 2015, eq. 9 and 10
    hidden = np.tanh(dense(parameters["position"], state))
    center = len(memory) * sigmoid(np.sum(parameters["position_vector"] * hidden))
    result = reference.attend(
      reference.bilinear,
      queries,
      memory,
      memory,
      mask=np.abs(np.arange(len(memory)) - center) <= 5.0,
      normalize=reference.local({(0,): center}, 2.5),
      matrix=parameters["matrix"],
    )
  elif kind == "bilinear":
    result = reference.attend(reference.bilinear, queries, memory, memory, matrix=parameters["matrix"])
  else:
    queries, keys = dense(parameters["query"], queries), dense(parameters["key"], memory)
    if kind == "additive":
      result = reference.attend(
        reference.additive, queries, keys, memory, score_vector=parameters["score_vector"]
      )
    elif kind in ("location_aware", "coverage"):
      nowhere = np.zeros(len(memory))
      before = sum(looked, nowhere) if kind == "coverage" else [nowhere, *looked][-1]
      keys = keys + locations(parameters["filters"], before) @ parameters["location_kernel"]
      result = reference.attend(
        reference.additive, queries, keys, memory, score_vector=parameters["score_vector"]
      )
    elif kind == "monotonic":  # Raffel et al. 2017, eq. 16
      first = np.eye(len(memory))[0]
      vector = parameters["score_vector"]
      result = reference.attend(
        reference.additive,
        queries,
        keys,
        memory,
        bias=parameters["offset"],
        normalize=reference.monotonic({(0,): [first, *looked][-1]}),
        score_vector=parameters["gain"] * vector / np.sqrt(np.sum(vector**2)),
      )
    elif kind == "dot_product":
      result = reference.attend(reference.dot_product, queries, keys, memory, scale=1.0)
    elif kind == "cosine":
      result = reference.attend(reference.cosine, queries, keys, memory, scale=parameters["scale"])
    else:
      scale = 1 / np.sqrt(queries.shape[-1])
      result = reference.attend(reference.dot_product, queries, keys, memory, scale=scale)
  return Look(result.context[0], result.weights[0])


def numbered(parameters, name):
  """Returns the parameters named name, name_1, name_2 and so on."""
  numbers = sum(other.startswith(f"{name}_") for other in parameters)
  return [parameters[name], *(parameters[f"{name}_{i + 1}"] for i in range(numbers))]


def decoder_start(parameters, summary):
  return [np.tanh(dense(initial, summary)) for initial in numbered(parameters, "initial")]


def decoder_step(
  kind, parameters, states, token, memory, summary, looked, fed, residual=False, attend_order="before"
):
  """Returns each layer's next state [H], features, logits [V] and weights [S].

  Bahdanau et al. 2015, A.2.2; attention after the step and input feeding: Luong et al. 2015, sections 3 and
  3.3.
  """
  embedding = parameters["embedding"]["embedding"]
  context, weights = attend(kind, parameters, states[0], memory, summary, looked)
  read = [embedding[token], context, fed] if attend_order == "before" else [embedding[token], fed]
  layer, after = np.concatenate(read), []
  for i, cell in enumerate(numbered(parameters, "cell")):
    after.append(gru_step(cell, states[i], layer))
    layer = layer_output(parameters, i, after[i], layer, residual)
  if attend_order == "after":
    context, weights = attend(kind, parameters, layer, memory, summary, looked)
  features = np.tanh(dense(parameters["readout"], np.concatenate([layer, context, embedding[token]])))
  if "logits" in parameters:
    return after, features, dense(parameters["logits"], features), weights
  return after, features, features @ embedding.T + parameters["logits_bias"], weights


def decoder(
  kind, parameters, memory, summary, targets, residual=False, attend_order="before", input_feeding=False
):
  """Returns logits [T V] and weights [T S] (None without attention) for targets [T]."""
  states = decoder_start(parameters, summary)
  logits, weights = [], []
  fed = np.zeros(parameters["readout"]["bias"].shape if input_feeding else 0)
  for token in targets:
    looked = memory, summary, weights
    states, features, *output = decoder_step(
      kind, parameters, states, token, *looked, fed, residual, attend_order
    )
    fed = features if input_feeding else fed
    logits.append(output[0])
    weights.append(output[1])
  return np.stack(logits), None if kind == "none" else np.stack(weights)
