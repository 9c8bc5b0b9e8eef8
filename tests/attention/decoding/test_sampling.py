"""Greedy search and sampling with any step function."""

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


def step(state, tokens):
  return jnp.asarray(NEXT)[state, tokens], jnp.asarray(LOGITS)[state, tokens], jnp.asarray(WEIGHTS)[state]


def step_without_weights(state, tokens):
  return *step(state, tokens)[:2], None


def search_greedily(step=step, states=STATES, max_length=DIMS.T, bos_id=START, eos_id=END, pad_id=PAD):
  return decoding.greedy(
    step,
    jnp.asarray(states),
    batch_size=len(states),
    max_length=max_length,
    bos_id=bos_id,
    eos_id=eos_id,
    pad_id=pad_id,
  )


def by_loops(state, max_length=DIMS.T, bos_id=START, eos_id=END, pad_id=PAD):
  """Returns tokens [T], score and weights [T S] of one sequence."""
  tokens = np.full(max_length, pad_id)
  score, weights = 0.0, np.zeros((max_length, DIMS.S))
  token = bos_id
  for t in range(max_length):
    logits = np.float64(LOGITS[state, token])
    weights[t] = WEIGHTS[state]
    state = NEXT[state, token]
    token = tokens[t] = np.argmax(logits)
    score += logits[token] - np.log(np.sum(np.exp(logits)))
    if token == eos_id:
      break
  return tokens, score, weights


def assert_found(result, states=STATES, **options):
  desired = [by_loops(state, **options) for state in states]
  tokens, scores, weights = (np.stack(parts) for parts in zip(*desired, strict=True))
  np.testing.assert_array_equal(result.tokens, tokens)
  np.testing.assert_allclose(result.scores, scores, **CLOSE)
  np.testing.assert_array_equal(result.weights, weights)


def test_greedy_matches_loops():
  result = search_greedily()
  assert_found(result)
  # Sequences end at different steps, and one does not end.
  assert len({int(np.argmax(row == END)) if END in row else None for row in result.tokens}) >= 4
  assert_found(jax.jit(lambda states: search_greedily(states=states))(STATES))


@pytest.mark.parametrize(
  "options",
  [
    {"pad_id": 12},
    {"eos_id": 5},
    {"bos_id": 4},
    {"bos_id": END},
    {"max_length": 1},
    {"max_length": 3},
    {"max_length": 29},
  ],
  ids=str,
)
def test_symbols_and_max_length_are_respected(options):
  assert_found(search_greedily(**options), **options)


def test_score_matches_hand_value():
  # Probabilities 3/4, then 9/10 for the end: ln(3/4) + ln(9/10) = ln(27/40) = -0.393042588.
  table = jnp.log(jnp.asarray([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]]))

  def step(state, tokens):
    return state + 1, table[state], None

  result = decoding.greedy(step, jnp.asarray([1]), batch_size=1, max_length=5, bos_id=0, eos_id=0, pad_id=7)
  np.testing.assert_array_equal(result.tokens, [[1, 0, 7, 7, 7]])
  np.testing.assert_allclose(result.scores, [-0.393042588], **CLOSE)


def test_steps_without_weights():
  result, desired = search_greedily(step_without_weights), search_greedily()
  assert result.weights is None
  np.testing.assert_array_equal(result.tokens, desired.tokens)
  np.testing.assert_array_equal(result.scores, desired.scores)


def test_search_stops_at_last_end():
  # Only the sequences that end; they do not wait for the others.
  states = [state for state in STATES if END in by_loops(state)[0]]
  longest = max(int(np.argmax(by_loops(state)[0] == END)) + 1 for state in states)
  calls = []

  def counted(state, tokens):
    jax.debug.callback(lambda: calls.append(1))
    return step(state, tokens)

  result = search_greedily(counted, states=np.array(states), max_length=1009)
  jax.block_until_ready(result)
  jax.effects_barrier()
  assert len(calls) == longest


def test_infinite_logits_are_chosen():
  def step(state, tokens):
    return state, jnp.array([[0.0, 1.0, jnp.inf, 0.0]]), None

  result = decoding.greedy(step, None, batch_size=1, max_length=3, bos_id=1, eos_id=2)
  assert result.tokens.tolist() == [[2, 0, 0]]


def test_half_precision_logits_sum_in_float32():
  def half(state, tokens):
    state, logits, weights = step(state, tokens)
    return state, logits.astype(jnp.bfloat16), weights

  def rounded(state, tokens):
    state, logits, weights = half(state, tokens)
    return state, logits.astype(jnp.float32), weights

  result, desired = search_greedily(half), search_greedily(rounded)
  assert result.scores.dtype == jnp.float32
  np.testing.assert_array_equal(result.tokens, desired.tokens)
  np.testing.assert_array_equal(result.scores, desired.scores)


def test_empty_batches_return_empty_results():
  result = search_greedily(states=np.zeros(0, int))
  assert result.tokens.shape == (0, DIMS.T)
  assert result.weights.shape == (0, DIMS.T, DIMS.S)


def draw(rng=0, states=STATES, step=step, max_length=DIMS.T, **options):
  return decoding.sample(
    step,
    jnp.asarray(states),
    jax.random.key(rng) if isinstance(rng, int) else rng,
    batch_size=len(states),
    max_length=max_length,
    bos_id=START,
    eos_id=END,
    pad_id=PAD,
    **options,
  )


def test_tokens_are_drawn_by_their_probabilities():
  states = np.full(20_011, STATES[0])
  first = np.asarray(draw(states=states, max_length=1).tokens)[:, 0]
  desired = np.asarray(jax.nn.softmax(LOGITS[STATES[0], START]))
  result = np.bincount(first, minlength=DIMS.V) / len(states)
  # Four standard deviations of a fraction.
  assert np.all(np.abs(result - desired) < 4 * np.sqrt(desired * (1 - desired) / len(states)))


@pytest.mark.parametrize(
  ("options", "probabilities"),
  [
    ({}, [0.1, 0.2, 0.3, 0.4]),
    ({"temperature": 0.5}, [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
    ({"top_k": 2}, [0, 0, 3 / 7, 4 / 7]),
    ({"top_p": 0.65}, [0, 0, 3 / 7, 4 / 7]),
    ({"top_p": 0.75}, [0, 2 / 9, 3 / 9, 4 / 9]),
    ({"top_k": 3, "top_p": 0.5}, [0, 0, 3 / 7, 4 / 7]),
    ({"temperature": 0.5, "top_p": 0.53}, [0, 0, 0, 1]),
  ],
  ids=str,
)
def test_token_probabilities_match_hand_values(options, probabilities):
  logits = jnp.log(jnp.asarray([0.1, 0.2, 0.3, 0.4]))
  count = 10_007

  def step(state, tokens):
    return state, jnp.broadcast_to(logits, (count, 4)), None

  result = draw(states=np.zeros(count, int), step=step, max_length=1, **options)
  shares = np.bincount(np.asarray(result.tokens)[:, 0], minlength=4) / count
  np.testing.assert_array_equal(shares == 0, np.asarray(probabilities) == 0)
  assert np.max(np.abs(shares - probabilities)) < 0.02
  # Scores are the model's log-probabilities, whatever the limits.
  np.testing.assert_allclose(result.scores, logits[result.tokens[:, 0]], **CLOSE)


@pytest.mark.parametrize(
  ("function", "limit", "kept"),
  [
    (decoding.mask_top_k, 1, [0, 0, 1, 0, 0]),
    (decoding.mask_top_k, 3, [0, 1, 1, 1, 0]),
    (decoding.mask_top_k, 9, [1, 1, 1, 1, 1]),
    (decoding.mask_top_p, 0.3, [0, 0, 1, 0, 0]),
    (decoding.mask_top_p, 0.6, [0, 1, 1, 0, 0]),
    (decoding.mask_top_p, 1.0, [1, 1, 1, 1, 1]),
  ],
)
def test_ties_do_not_exceed_top_k(function, limit, kept):
  logits = jnp.log(jnp.array([[0.1, 0.2, 0.4, 0.2, 0.1], [0.2] * 5]))
  result = function(logits, limit)
  np.testing.assert_array_equal(result[0], jnp.where(jnp.array(kept), logits[0], -jnp.inf))
  count = limit if isinstance(limit, int) else round(5 * limit + 0.49)
  assert np.isfinite(result[1]).sum() == min(count, 5)
  assert np.isfinite(result[1, : min(count, 5)]).all()


def test_lowest_temperature_is_greedy():
  for result in (draw(temperature=1e-4), draw(top_k=1), draw(top_p=1e-6)):
    np.testing.assert_array_equal(result.tokens, search_greedily().tokens)
    np.testing.assert_allclose(result.scores, search_greedily().scores, **CLOSE)


@pytest.mark.parametrize("temperature", [1e-10, 1e-38])
def test_tiny_temperatures_are_greedy(temperature):
  options = {"top_k": 2, "top_p": 0.9}
  desired = search_greedily().tokens
  result = jax.jit(lambda temperature: draw(temperature=temperature, **options))(temperature)
  np.testing.assert_array_equal(result.tokens, desired)
  np.testing.assert_array_equal(jax.jit(lambda: draw(temperature=temperature, **options))().tokens, desired)


def test_top_p_keeps_infinite_logits():
  kept = decoding.mask_top_p(jnp.array([0.0, jnp.inf, -jnp.inf, 1.0]), 0.9)
  np.testing.assert_array_equal(kept, [-jnp.inf, jnp.inf, -jnp.inf, -jnp.inf])


def test_raw_and_typed_keys_agree():
  np.testing.assert_array_equal(draw(jax.random.PRNGKey(5)).tokens, draw(jax.random.key(5)).tokens)
  typed = jax.random.split(jax.random.key(7), len(STATES))
  np.testing.assert_array_equal(draw(jax.random.key_data(typed)).tokens, draw(typed).tokens)


def test_draws_depend_on_key_only():
  whole, again, other = draw(rng=1), draw(rng=1), draw(rng=2)
  jax.tree.map(np.testing.assert_array_equal, whole, again)
  assert not np.array_equal(whole.tokens, other.tokens)
  first_two = draw(rng=1, states=STATES[:2])
  np.testing.assert_array_equal(first_two.tokens, whole.tokens[:2])
  compiled = jax.jit(lambda temperature: draw(rng=1, temperature=temperature))(1.0)
  np.testing.assert_array_equal(compiled.tokens, whole.tokens)


def test_sequences_may_have_separate_keys():
  keys = jax.random.split(jax.random.key(7), len(STATES))
  whole, turned = draw(keys), draw(keys[::-1], states=STATES[::-1])
  np.testing.assert_array_equal(turned.tokens[::-1], whole.tokens)


def test_sequences_of_one_state_differ():
  tokens = np.asarray(draw(states=np.full(29, 3)).tokens)
  assert len({tuple(row) for row in tokens}) > 20


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"temperature": 0.0}, "temperature must be a number above 0, and finite, got 0.0"),
    ({"temperature": float("nan")}, "temperature must be a number above 0, and finite, got nan"),
    ({"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
    ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got 0.0"),
    ({"top_p": 1.5}, "top_p must be a number above 0 and at most 1, got 1.5"),
    ({"max_length": 0}, "max_length must be an integer of at least 1, got 0"),
    ({"rng": jnp.ones(2)}, "rng must be a PRNG key, or 5 keys, one per sequence, got Array"),
    ({"rng": None}, "rng must be a PRNG key, or 5 keys, one per sequence, got None"),
    (
      {"rng": jax.random.split(jax.random.key(0), 3)},
      r"or 5 keys, one per sequence, got Array\(\(3,\), dtype=key<fry>\)",
    ),
  ],
  ids=str,
)
def test_invalid_limits_raise(options, message):
  with pytest.raises(ValueError, match=message):
    draw(**options)


def test_high_temperature_respects_forbidden_tokens():
  def forbids(state, tokens):
    return state, jnp.broadcast_to(jnp.asarray([-jnp.inf, 0.0, -jnp.inf, 1.0]), (2, 4)), None

  for temperature in (1e38, 3e38):
    result = jax.jit(
      lambda rng, temperature=temperature: decoding.sample(
        forbids, jnp.zeros(2), rng, batch_size=2, max_length=50, bos_id=1, eos_id=-1, temperature=temperature
      )
    )(jax.random.key(0))
    assert set(np.ravel(result.tokens).tolist()) == {1, 3}
  with pytest.raises(ValueError, match="temperature must be a number above 0, and finite"):
    decoding.sample(
      forbids,
      jnp.zeros(2),
      jax.random.key(0),
      batch_size=2,
      max_length=5,
      bos_id=1,
      eos_id=-1,
      temperature=1e39,
    )


def test_smallest_top_p_keeps_the_likeliest():
  np.testing.assert_array_equal(
    decoding.mask_top_p(jnp.asarray([0.0, 2.0, 1.0]), 1e-300), [-np.inf, 2, -np.inf]
  )


def test_sequences_without_end_never_end():
  options = {"batch_size": len(STATES), "max_length": 4, "bos_id": START, "eos_id": -1}
  greedy = decoding.greedy(step, STATES, **options)
  result = decoding.beam_search(step, STATES, beam_size=1, **options)
  np.testing.assert_array_equal(result.tokens[:, 0], greedy.tokens)


@pytest.mark.parametrize(
  "logits", [[0.0, 0.0, 1.0, 1.0 + 1e-9], [0.0, 0.0, -np.nan, 2.0], [0.0, 0.0, 2.0, 2.0]]
)
def test_greedy_chooses_the_first_largest_logit(logits, float64):
  logits = np.array([logits])
  result = decoding.greedy(
    lambda state, tokens: (state, jnp.asarray(logits), None),
    jnp.zeros((1, 1)),
    batch_size=1,
    max_length=2,
    bos_id=0,
    eos_id=1,
  )
  assert result.tokens[0].tolist() == [int(np.argmax(logits))] * 2


FIRST = np.array([4, 1, 9, 4, 12])


def test_sequences_may_have_first_tokens():
  result = search_greedily(bos_id=FIRST)
  desired = [by_loops(state, bos_id=token)[0] for state, token in zip(STATES, FIRST, strict=True)]
  np.testing.assert_array_equal(search_greedily(bos_id=FIRST.astype(np.uint8)).tokens, desired)
  np.testing.assert_array_equal(result.tokens, desired)
  traced = jax.jit(lambda tokens: search_greedily(bos_id=[*tokens]).tokens)(FIRST)  # a list of traced tokens
  np.testing.assert_array_equal(traced, desired)
  with pytest.raises(ValueError, match=r"bos_id must be a token, .*, with B=5, got shape \(2,\)"):
    search_greedily(bos_id=FIRST[:2])


PROMPTS = np.array([[4, 3, 5], [1, -1, -1], [9, 8, -1], [4, 4, 4], [12, 7, -1]])


def searches(states, max_length, **options):
  """Returns the tokens of each search, [B T]."""
  options |= {"batch_size": len(states), "max_length": max_length, "eos_id": END, "pad_id": PAD}
  beam = decoding.beam_search(step, states, beam_size=3, **options)
  return {
    "greedy": decoding.greedy(step, states, **options).tokens,
    "sample": decoding.sample(step, states, jax.random.key(0), temperature=1e-4, **options).tokens,
    "beam": beam.tokens[:, 0],
  }


def test_prompts_are_continued():
  # The last token of each prompt, and the state before it.
  lengths = np.sum(PROMPTS >= 0, axis=1)
  states = STATES.copy()
  for i in range(2):
    states = np.where(i < lengths - 1, NEXT[states, PROMPTS[:, i]], states)
  last = PROMPTS[np.arange(5), lengths - 1]
  continued = searches(STATES, 8, bos_id=PROMPTS)
  for name, desired in searches(states, 6, bos_id=last).items():
    for row, prompt, length, expected in zip(continued[name], PROMPTS, lengths, desired, strict=True):
      np.testing.assert_array_equal(row[: length - 1], prompt[1:length])
      np.testing.assert_array_equal(row[length - 1 : length + 5], expected)


def test_scores_exclude_prompts():
  result = search_greedily(bos_id=PROMPTS[[0]], states=STATES[:1], max_length=4)
  state = NEXT[NEXT[STATES[0], 4], 3]
  _, score, _ = by_loops(state, max_length=2, bos_id=5)
  np.testing.assert_allclose(result.scores[0], score, **CLOSE)
