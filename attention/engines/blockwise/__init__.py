"""The same attention in memory that grows with T + S, in every derivative: one tile of pairs at a time.

A block of queries meets one block of keys after the other. What a query has found so far is a weighted sum,
the sum of the weights, and the largest score, by which all exponentials are shifted (Milakov and Gimelshein
2018, arXiv:1805.02867). Nothing of a tile is kept: derivatives calculate it again from the logsumexp (Rabe
and Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135). There is one rule of differentiation,
that of forward mode; JAX transposes it for gradients and differentiates it for second derivatives:

    d logsumexp[t] = sum over s of weights[t, s] d scores[t, s]
    d context[t] = sum over s of weights[t, s] (d scores[t, s] values[s] + d values[s])
                   - context[t] d logsumexp[t]

The engine knows a score by its features and its `tile`, a mask by its `tile` and `outline`, a bias by the
tile that it gives. Along which axes it may cut their arrays, they say themselves (`HasAxes`).

    plan        what attention is made of, and how it is cut
    tile        the scores of one tile, and who may attend
    walk        the order in which tiles are met
    ring        keys that are spread over several devices
    core        context and logsumexp, and the rule above
    not_finite  who attends to NaN and infinity
"""

import jax
import jax.numpy as jnp

from attention.arrays.devices import are_spread_by_type, varying_like
from attention.engines import dropout
from attention.engines.blockwise.core import attention_core
from attention.engines.blockwise.not_finite import which_attend_to_bad
from attention.engines.blockwise.plan import Operands, bias_operand, function_operand, mask_operand, plan_for
from attention.engines.dense import Attended, BiasLike, dense, scores_and_allowed
from attention.engines.finite import features_of
from attention.engines.marks import is_empty, nan_where, shift_of
from attention.masks import Mask
from attention.scores.score import Score


def blockwise(
  score: Score,
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  mask: Mask | None,
  bias: BiasLike | None,
  dropout_rate: float,
  dropout_rng: jax.Array | None,
  block_sizes: tuple[int, int] | None = None,
  ring: str | None = None,
) -> Attended:
  """Returns what `dense` returns, without the weights.

  Weighted sums are divided by their total at the end, so values near the largest number may overflow.

  Args:
    score: how well a key fits a query.
    queries: [... T H], float32 or float64, as are keys and values.
    keys: [... S H].
    values: [... S D].
    mask: who may attend to whom; None for everyone to everyone.
    bias: added to the scores; None for none.
    dropout_rate: probability of dropping a weight.
    dropout_rng: needed where the rate is not 0.
    block_sizes: how many queries and keys a tile has at the most; None for what is fast.
    ring: the axis of a device mesh along which queries and keys are spread; None if all are here.

  Raises:
    ValueError: if the arrays cannot be cut.
  """
  if are_spread_by_type(queries, keys, values):
    raise ValueError(
      "arrays that are spread over a mesh of AxisType.Explicit cannot be cut by `blockwise`: "
      "call it inside jax.shard_map, or make the mesh with AxisType.Auto"
    )
  features = features_of(score, queries, keys, values)
  pairs = jax.eval_shape(lambda: scores_and_allowed(score, features, mask, bias))[0].shape
  T, S = pairs[-2:]
  if 0 in pairs or (values.shape[-1] == 0 and ring is None):
    attended = dense(
      score, queries, keys, values, mask=mask, bias=bias, dropout_rate=dropout_rate, dropout_rng=dropout_rng
    )
    return attended._replace(weights=None)
  devices, device = (1, 0) if ring is None else (jax.lax.axis_size(ring), jax.lax.axis_index(ring))
  operands = Operands(
    score=score,
    query_features=features.queries,
    key_features=features.keys,
    values=values,
    mask=mask,
    bias=bias_operand(bias),
    query_positions=device * T + jnp.arange(T),
    key_positions=device * S + jnp.arange(S),
  )
  plan = plan_for(pairs, operands, block_sizes, ring, dropout_rate)
  operands = operands._replace(
    mask=mask_operand(mask, S, plan.keys),
    bias=function_operand(
      operands.bias,
      plan.queries,
      plan.keys,
      lengths=(devices * T, devices * S),
      like=operands._replace(bias=None),
    ),
  )
  rules = operands._replace(score=None, query_features=None, key_features=None, values=None)
  spoil = [nan_where(bad, values.dtype) for bad in which_attend_to_bad(plan, rules, features)]
  if dropout_rng is not None and dropout_rate > 0.0:
    operands = operands._replace(
      rows=dropout.rows(plan.leading, devices * T, operands.query_positions), seeds=dropout.seeds(dropout_rng)
    )
  plan, arrays = plan.of(operands)
  # Inside shard_map, what is the same on all devices gets its gradients by a sum over them. That must not
  # happen within a loop, of which each device may take other turns.
  arrays, spoil = varying_like((arrays, spoil), (arrays, spoil))
  context, largest, log_total = attention_core(plan, arrays, spoil)
  return Attended(context, None, shift_of(largest) + log_total, is_empty(largest))
