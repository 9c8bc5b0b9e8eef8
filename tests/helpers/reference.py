"""Attention in float64 NumPy, one pair at a time: the reference for all engines.

It does not use JAX. Each function is the formula of its paper for a single query and key; `attend` loops over
all pairs and omits masked keys instead of hiding them.
"""

from typing import NamedTuple

import numpy as np

# Axes of a score's parameters that are not numbers; any axes before these are leading axes.
PARAMETER_RANKS = {"score_vector": 1, "matrix": 2}


def dot_product(query, key, scale=1.0):
  """scale * q . k (Luong et al. 2015, "dot"; Vaswani et al. 2017, eq. 1, with scale = 1 / sqrt(H))."""
  return scale * np.sum(query * key)


def additive(query, key, score_vector):
  """v . tanh(q + k) (Bahdanau et al. 2015, A.1.2)."""
  return np.sum(score_vector * np.tanh(query + key))


def bilinear(query, key, matrix):
  """q^T M k (Luong et al. 2015, "general")."""
  return np.sum(query[:, None] * matrix * key[None, :])


def cosine(query, key, scale=1.0):
  """scale * q . k / (|q| |k|) (Graves et al. 2014, eq. 6); 0 if either vector is zero."""
  norms = np.sqrt(np.sum(query**2)) * np.sqrt(np.sum(key**2))
  return 0.0 if norms == 0 else scale * np.sum(query * key) / norms


def negative_distance(query, key, temperature):
  """-temperature * |q - k|^2: the user-defined score."""
  return -temperature * np.sum((query - key) ** 2)


class Result(NamedTuple):
  context: np.ndarray  # [... T D]
  weights: np.ndarray  # [... T S], before dropout
  logsumexp: np.ndarray  # [... T]


def scores(pair_score, queries, keys, **parameters):
  """Returns [... T S]: `pair_score` of every query with every key."""
  queries, keys = _float64(queries), _float64(keys)
  parameters = {name: _float64(parameter) for name, parameter in parameters.items()}
  leading = _leading(queries, keys, parameters)
  queries, keys = _expand(queries, leading, 2), _expand(keys, leading, 2)
  parameters = {
    name: _expand(parameter, leading, PARAMETER_RANKS.get(name, 0)) for name, parameter in parameters.items()
  }
  result = np.zeros((*leading, queries.shape[-2], keys.shape[-2]))
  for index in np.ndindex(*leading):
    own = {name: parameter[index] for name, parameter in parameters.items()}
    for t, query in enumerate(queries[index]):
      for s, key in enumerate(keys[index]):
        result[(*index, t, s)] = pair_score(query, key, **own)
  return result


def softmax(logits, attended, row):
  """exp(z) / sum of exp(z)."""
  exponentials = np.exp(logits - logits.max())
  return exponentials / exponentials.sum()


def softmax_with_sink(sink):
  """exp(z) / (exp(sink) + sum of exp(z)) (Xiao et al. 2023); one sink for each index of the leading axes."""

  def normalize(logits, attended, row):
    return softmax(np.append(logits, sink[row[:-1]]), attended, row)[:-1]

  return normalize


def softpick(logits, attended, row):
  """relu(exp(z) - 1) / (sum of |exp(z) - 1| + 1e-6), times exp(-shift) (Zuhri et al. 2025, eq. 5)."""
  shift = max(logits.max(), 0)
  rectified = np.exp(logits - shift) - np.exp(-shift)
  return np.maximum(rectified, 0) / (np.abs(rectified).sum() + 1e-6 * np.exp(-shift))


def stick_breaking(logits, attended, row):
  """sigmoid(z) times the product of 1 - sigmoid(z) of the later keys (Tan et al. 2024, eq. 1)."""
  weights, left = [], 1.0
  for share in sigmoid(logits, attended, row)[::-1]:
    weights.append(share * left)
    left *= 1 - share
  return np.array(weights[::-1])


def entmax(alpha):
  """[(alpha - 1) z - threshold]_+ ^ (1 / (alpha - 1)) (Peters et al. 2019, eq. 4), which sums to 1.

  The threshold is found by bisection; alpha = 2 is the sparsemax of Martins and Astudillo 2016.
  """

  def normalize(logits, attended, row):
    scaled = (alpha - 1) * logits
    low, high = scaled.max() - 1, scaled.max()
    for _ in range(100):
      middle = (low + high) / 2
      is_low = np.sum(np.maximum(scaled - middle, 0) ** (1 / (alpha - 1))) > 1
      low, high = (middle, high) if is_low else (low, middle)
    return np.maximum(scaled - (low + high) / 2, 0) ** (1 / (alpha - 1))

  return normalize


def sigmoid(logits, attended, row):
  """1 / (1 + exp(-z)), without overflow."""
  return (1 + np.tanh(logits / 2)) / 2


def sigmoid_less_log_keys(logits, attended, row):
  """The sigmoid of the logits minus the log of their number."""
  return sigmoid(logits - np.log(len(attended)), attended, row)


def monotonic(before):
  """All paths from the keys with weights `before` [... T S], key by key (Raffel et al. 2017, eq. 8)."""

  def normalize(logits, attended, row):
    stops = dict(zip(attended, sigmoid(logits, attended, row), strict=True))
    weights = dict.fromkeys(attended, 0.0)
    for start, chance in enumerate(before[row]):
      for s in range(start, len(before[row])):
        weights[s] = weights.get(s, 0.0) + chance * stops.get(s, 0.0)
        chance *= 1 - stops.get(s, 0.0)
    return np.array([weights[s] for s in attended])

  return normalize


def local(centers, deviation):
  """The softmax times exp(-(s - p)^2 / (2 sigma^2)) (Luong et al. 2015, eq. 10)."""

  def normalize(logits, attended, row):
    distances = np.asarray(attended) - centers[row]
    return softmax(logits, attended, row) * np.exp(-(distances**2) / (2 * deviation**2))

  return normalize


def attend(
  pair_score, queries, keys, values, *, mask=True, bias=0.0, factors=1.0, normalize=softmax, **parameters
):
  """Returns the Result of attention; `factors` [... T S] multiply the weights, as dropout does.

  `normalize` computes weights from the logits of the allowed keys, their positions, and the row (..., t).
  """
  values = _float64(values)
  raw = scores(pair_score, queries, keys, **parameters)
  leading = np.broadcast_shapes(raw.shape[:-2], values.shape[:-2])
  T, S = raw.shape[-2:]
  raw, values = _expand(raw, leading, 2), _expand(values, leading, 2)
  mask = np.broadcast_to(mask, (*leading, T, S))
  bias = np.broadcast_to(_float64(bias), (*leading, T, S))
  factors = np.broadcast_to(factors, (*leading, T, S))
  result = Result(
    context=np.zeros((*leading, T, values.shape[-1])),
    weights=np.zeros((*leading, T, S)),
    logsumexp=np.full((*leading, T), -np.inf),
  )
  for row in np.ndindex(*leading, T):
    attended = [s for s in range(S) if mask[row][s] and bias[row][s] != -np.inf]
    if not attended:
      continue
    logits = raw[row][attended] + bias[row][attended]
    result.logsumexp[row] = logits.max() + np.log(np.exp(logits - logits.max()).sum())
    result.weights[row][attended] = normalize(logits, attended, row)
    for s in attended:
      result.context[row] += result.weights[row][s] * factors[row][s] * values[row[:-1]][s]
  return result


def _float64(array):
  return np.asarray(array).astype(np.float64)


def _leading(queries, keys, parameters):
  shapes = [p.shape[: p.ndim - PARAMETER_RANKS.get(name, 0)] for name, p in parameters.items()]
  return np.broadcast_shapes(queries.shape[:-2], keys.shape[:-2], *shapes)


def _expand(array, leading, rank):
  """Broadcasts all but the last `rank` axes to `leading`."""
  return np.broadcast_to(array, (*leading, *array.shape[array.ndim - rank :]))
