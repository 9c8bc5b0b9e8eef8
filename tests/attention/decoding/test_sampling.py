"""Greedy search and sampling with any step function."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import decoding

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

DIMS = chex.Dimensions(B=5, T=7, S=11, V=13)
START, END, PAD = 1, 2, 0
random = np.random.default_rng(0)
# Logits after each token, in each of 17 states; next states; attention weights in each state.
LOGITS = (2 * random.normal(size=(17, DIMS.V, DIMS.V))).astype(np.float32)
LOGITS[:, :, END] += 1.0
NEXT = random.integers(17, size=(17, DIMS.V))
WEIGHTS = random.dirichlet(np.ones(DIMS.S), size=17).astype(np.float32)
STATES = np.array([3, 8, 0, 15, 11])
FIRST = np.array([4, 1, 9, 4, 12])


def step(state, tokens):
  return jnp.asarray(NEXT)[state, tokens], jnp.asarray(LOGITS)[state, tokens], jnp.asarray(WEIGHTS)[state]


def search(function, *rng, step=step, states=STATES, **options):
  options = {"max_length": DIMS.T, "bos_id": START, "eos_id": END, "pad_id": PAD} | options
  return function(step, jnp.asarray(states), *rng, batch_size=len(states), **options)


greedy = functools.partial(search, decoding.greedy)
sample = functools.partial(search, decoding.sample)


def by_loops(state, bos_id, max_length=DIMS.T, eos_id=END, pad_id=PAD):
  """Returns tokens [T], score and weights [T S] of one sequence."""
  tokens, token = np.full(max_length, pad_id), bos_id
  score, weights = 0.0, np.zeros((max_length, DIMS.S))
  for t in range(max_length):
    logits = np.float64(LOGITS[state, token])
    weights[t] = WEIGHTS[state]
    state = NEXT[state, token]
    token = tokens[t] = np.argmax(logits)
    score += logits[token] - np.log(np.sum(np.exp(logits)))
    if token == eos_id:
      break
  return tokens, score, weights


def assert_found(result, bos_id=START, **options):
  first = np.broadcast_to(bos_id, DIMS.B)
  desired = [by_loops(*pair, **options) for pair in zip(STATES, first, strict=True)]
  tokens, scores, weights = (np.stack(parts) for parts in zip(*desired, strict=True))
  np.testing.assert_array_equal(result.tokens, tokens)
  np.testing.assert_allclose(result.scores, scores, **CLOSE)
  np.testing.assert_array_equal(result.weights, weights)


@pytest.mark.parametrize(
  "options",
  [
    {"max_length": 29, "bos_id": END},
    {"max_length": 3, "eos_id": -1},
    {"max_length": 1, "bos_id": FIRST},
    {"bos_id": FIRST, "eos_id": 5, "pad_id": 12},
  ],
  ids=str,
)
def test_greedy_matches_loops(options):
  assert_found(jax.jit(lambda states: greedy(states=states, **options))(STATES), **options)


def test_sequences_end_at_different_steps():
  result = greedy()
  assert_found(result)
  # One of them does not end.
  assert len({int(np.argmax(row == END)) if END in row else None for row in result.tokens}) >= 4


def test_score_matches_hand_value():
  # Probabilities 3/4, then 9/10 for the end: ln(3/4) + ln(9/10) = ln(27/40) = -0.393042588.
  table = jnp.log(jnp.asarray([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]]))

  def step(state, tokens):
    return state + 1, table[state], None

  result = greedy(step=step, states=[1], max_length=5, bos_id=0, eos_id=0, pad_id=7)
  np.testing.assert_array_equal(result.tokens, [[1, 0, 7, 7, 7]])
  np.testing.assert_allclose(result.scores, [-0.393042588], **CLOSE)
  assert result.weights is None


def test_search_stops_at_last_end():
  # Only the sequences that end; they do not wait for the others.
  found = {state: by_loops(state, START)[0].tolist() for state in STATES}
  steps = {state: tokens.index(END) + 1 for state, tokens in found.items() if END in tokens}
  calls = []

  def counted(state, tokens):
    jax.debug.callback(lambda: calls.append(1))
    return step(state, tokens)

  jax.block_until_ready(greedy(step=counted, states=[*steps], max_length=1009))
  jax.effects_barrier()
  assert len(calls) == max(steps.values())


def test_half_precision_logits_sum_in_float32():
  def rounded(state, tokens, dtype):
    state, logits, weights = step(state, tokens)
    return state, logits.astype(jnp.bfloat16).astype(dtype), weights

  half, exact = (
    greedy(step=functools.partial(rounded, dtype=dtype)) for dtype in (jnp.bfloat16, jnp.float32)
  )
  assert half.scores.dtype == jnp.float32
  chex.assert_trees_all_equal(half, exact)


def test_empty_batches_return_empty_results():
  result = greedy(states=np.zeros(0, int))
  assert result.tokens.shape == (0, DIMS.T)
  assert result.weights.shape == (0, DIMS.T, DIMS.S)


@pytest.mark.parametrize(
  ("options", "probabilities"),
  [
    ({}, [0.1, 0.2, 0.3, 0.4]),
    ({"temperature": 0.5}, [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
    ({"top_p": 0.75}, [0, 2 / 9, 3 / 9, 4 / 9]),
    # At this temperature, the likeliest of the three has 16/29 = 0.552; of all, 16/30 = 0.533.
    ({"temperature": 0.5, "top_k": 3, "top_p": 0.54}, [0, 0, 0, 1]),
  ],
  ids=str,
)
def test_token_probabilities_match_hand_values(options, probabilities):
  logits, count = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32)), 10_007

  def step(state, tokens):
    return state, jnp.broadcast_to(jnp.asarray(logits), (count, 4)), None

  run = jax.jit(
    lambda rng: sample(rng, step=step, states=np.zeros(count, int), max_length=2, eos_id=-1, **options)
  )
  tokens, scores, _ = run(jax.random.key(0))
  first, second = np.asarray(tokens).T
  shares = np.bincount(4 * first + second, minlength=16).reshape(4, 4) / count
  desired = np.outer(probabilities, probabilities)  # the two tokens are independent
  np.testing.assert_array_equal(shares == 0, desired == 0)
  np.testing.assert_allclose(shares, desired, atol=0.02)
  # Scores are the model's log-probabilities, whatever the limits.
  np.testing.assert_allclose(scores, logits[first] + logits[second], **CLOSE)


@pytest.mark.parametrize(
  ("function", "limit", "kept"),
  [
    (decoding.mask_top_k, 1, ["00100", "10000", "01000"]),
    (decoding.mask_top_k, 3, ["01110", "11100", "11010"]),
    (decoding.mask_top_k, 9, ["11111", "11111", "11111"]),
    (decoding.mask_top_p, 1e-300, ["00100", "10000", "01000"]),
    (decoding.mask_top_p, 0.3, ["00100", "11000", "01000"]),
    (decoding.mask_top_p, 0.6, ["01100", "11100", "01000"]),
    (decoding.mask_top_p, 1.0, ["11111", "11111", "01000"]),
  ],
)
def test_largest_logits_are_kept(function, limit, kept):
  logits = jnp.array([np.log([0.1, 0.2, 0.4, 0.2, 0.1]), [0.0] * 5, [0.0, np.inf, -np.inf, 1.0, 0.0]])
  is_kept = np.array([[*row] for row in kept]) == "1"
  np.testing.assert_array_equal(function(logits, limit), np.where(is_kept, logits, -np.inf))


def test_low_temperatures_are_greedy():
  @jax.jit
  def run(rng, tiny):
    return sample(rng, temperature=1e-4), *(
      sample(rng, temperature=t, top_k=2, top_p=0.9) for t in (tiny, 1e-38)
    )

  for result in run(jax.random.key(0), 1e-38):
    assert_found(result)


def test_high_temperature_respects_forbidden_tokens():
  def forbids(state, tokens):
    return state, jnp.broadcast_to(jnp.asarray([-jnp.inf, 0.0, -jnp.inf, 1.0]), (2, 4)), None

  run = jax.jit(
    lambda rng: sample(rng, step=forbids, states=[0, 0], max_length=50, eos_id=-1, temperature=3e38)
  )
  assert set(np.ravel(run(jax.random.key(0)).tokens).tolist()) == {1, 3}


def test_draws_depend_on_keys_only():
  @jax.jit
  def run(rng, rngs):
    whole, separate = sample(rng), sample(rngs)
    return (
      (whole, sample(jax.random.key_data(rng))),
      (separate, sample(jax.random.key_data(rngs))),
      (jax.tree.map(lambda array: array[:2], whole), sample(rng, states=STATES[:2])),
      (jax.tree.map(lambda array: array[::-1], separate), sample(rngs[::-1], states=STATES[::-1])),
    )

  rng, other = jax.random.split(jax.random.key(1))
  pairs = run(rng, jax.random.split(rng, DIMS.B))
  for actual, desired in pairs:
    chex.assert_trees_all_equal(actual, desired)
  chex.assert_trees_all_equal(sample(rng), pairs[0][0])
  assert not np.array_equal(sample(other).tokens, pairs[0][0].tokens)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"temperature": 0.0}, "temperature must be a number above 0, and finite, got 0.0"),
    ({"temperature": float("nan")}, "temperature must be a number above 0, and finite, got nan"),
    ({"temperature": 1e39}, "temperature must be a number above 0, and finite"),
    ({"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
    ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got 0.0"),
    ({"top_p": 1.5}, "top_p must be a number above 0 and at most 1, got 1.5"),
    ({"max_length": 0}, "max_length must be an integer of at least 1, got 0"),
    ({"rng": jnp.ones(2)}, "rng must be a PRNG key, or 5 keys, one per sequence, got Array"),
    ({"rng": None}, "rng must be a PRNG key, or 5 keys, one per sequence, got None"),
    ({"rng": jax.random.split(jax.random.key(0), 3)}, r"or 5 keys, .*, got Array\(\(3,\), dtype=key<fry>\)"),
  ],
  ids=str,
)
def test_invalid_limits_raise(options, message):
  with pytest.raises(ValueError, match=message):
    sample(**({"rng": jax.random.key(0)} | options))


def test_greedy_chooses_the_first_largest_logit(float64):
  logits = np.array(
    [[0.0, 0, 1, 1 + 1e-9], [0, 0, -np.nan, 2], [0, 0, 2, 2], [0, 1, np.inf, 0], [0, np.inf, np.nan, 0]]
  )
  result = greedy(step=lambda state, tokens: (state, jnp.asarray(logits), None), states=[0] * 5, max_length=1)
  np.testing.assert_array_equal(result.tokens[:, 0], np.argmax(logits, axis=-1))


def test_first_tokens_may_be_traced():
  desired = greedy(bos_id=FIRST.astype(np.uint8)).tokens
  traced = jax.jit(lambda tokens: greedy(bos_id=[*tokens]).tokens)(FIRST)  # a list of traced tokens
  np.testing.assert_array_equal(traced, desired)
  with pytest.raises(ValueError, match=r"bos_id must be a token, .*, with B=5, got shape \(2,\)"):
    greedy(bos_id=FIRST[:2])


PROMPTS = np.array([[4, 3, 5], [1, -1, -1], [9, 8, -1], [4, 4, 4], [12, 7, -1]])


def test_prompts_are_continued():
  # The last token of each prompt, and the state before it.
  lengths = np.sum(PROMPTS >= 0, axis=1)
  states = STATES.copy()
  for i in range(2):
    states = np.where(i < lengths - 1, NEXT[states, PROMPTS[:, i]], states)
  last = PROMPTS[np.arange(5), lengths - 1]

  @jax.jit
  def run():
    def results(**options):
      beam = search(decoding.beam_search, beam_size=3, **options)
      drawn = sample(jax.random.key(0), temperature=1e-4, **options)
      return greedy(**options), drawn, jax.tree.map(lambda array: array[:, 0], beam)

    return results(bos_id=PROMPTS, max_length=8), results(states=states, bos_id=last, max_length=6)

  for continued, desired in zip(*run(), strict=True):
    for b, prompt in enumerate(PROMPTS):
      begin = lengths[b] - 1
      np.testing.assert_array_equal(continued.tokens[b, :begin], prompt[1 : begin + 1])
      np.testing.assert_array_equal(continued.tokens[b, begin : begin + 6], desired.tokens[b])
    # The tokens of a prompt add nothing to its score. Prompts of three tokens have six more, as in `desired`.
    np.testing.assert_allclose(continued.scores[lengths == 3], desired.scores[lengths == 3], **CLOSE)
