"""Beam search compared with exhaustive search, greedy search, and values computed by hand."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import decoding

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

DIMS = chex.Dimensions(B=5, T=4, S=7, V=5)
PAD, START, END = 0, 1, 2
random = np.random.default_rng(3)
# Logits after each token, in each of 17 states; next states; attention weights in each state.
LOGITS = (1.5 * random.normal(size=(17, DIMS.V, DIMS.V))).astype(np.float32)
NEXT = random.integers(17, size=(17, DIMS.V))
WEIGHTS = random.dirichlet(np.ones(DIMS.S), size=17).astype(np.float32)
STATES = np.array([3, 8, 0, 15, 11])
ALL = 3 * DIMS.V ** (DIMS.T - 1)  # beams for all prefixes


def step(state, tokens):
  return jnp.asarray(NEXT)[state, tokens], jnp.asarray(LOGITS)[state, tokens], jnp.asarray(WEIGHTS)[state]


def find(beam_size, *, states=STATES, step=step, max_length=DIMS.T, **options):
  """Returns the result of a compiled search."""
  options = {"max_length": max_length, "bos_id": START, "eos_id": END, "pad_id": PAD} | options
  states = jnp.asarray(states)
  return jax.jit(
    lambda states: decoding.beam_search(step, states, batch_size=len(states), beam_size=beam_size, **options)
  )(states)


def follow(state, tokens, logits=LOGITS):
  """Returns the log-probability of tokens, and the attention weights of each."""
  score, weights, last = 0.0, [], START
  for token in tokens:
    own = np.float64(logits[state, last])
    score += own[token] - np.log(np.sum(np.exp(own)))
    weights.append(WEIGHTS[state])
    state, last = NEXT[state, last], token
  return score, np.stack(weights)


def all_that_end(state, length_penalty=0.0):
  """Returns all sequences of at most T tokens that end, with scores, best first."""
  others = [token for token in range(DIMS.V) if token != END]
  result = []
  for length in range(DIMS.T):
    for words in itertools.product(others, repeat=length):
      tokens = (*words, END)
      penalty = ((5 + len(tokens)) / 6) ** length_penalty
      result.append((follow(state, tokens)[0] / penalty, tokens))
  return sorted(result, reverse=True)


def by_lists(state, beam_size, max_length, length_penalty, n_best, logits):
  """Returns the tokens and scores of one sequence's best hypotheses, by a search over lists."""

  def penalised(score, length):
    return score / ((5 + length) / 6) ** length_penalty

  alive, ended, is_exhaustive = [((), 0.0)], [], True
  for t in range(max_length):
    best_alive = max((score for _, score in alive), default=-np.inf)
    if len(ended) >= n_best and ended[n_best - 1][1] >= penalised(best_alive, max_length):
      break
    longer = [(*tokens, token) for tokens, _ in alive for token in range(DIMS.V)]
    longer = sorted(
      ((tokens, follow(state, tokens, logits)[0]) for tokens in longer), key=lambda pair: -pair[1]
    )
    continuations = [pair for pair in longer if pair[0][-1] != END]
    is_exhaustive &= t == max_length - 1 or len(continuations) <= beam_size
    least = -np.inf if is_exhaustive else continuations[:beam_size][-1][1]
    new = [
      (tokens, penalised(score, len(tokens)))
      for tokens, score in longer
      if tokens[-1] == END and score >= least
    ]
    ended = sorted(ended + new, key=lambda pair: -pair[1])[:beam_size]
    alive = continuations[:beam_size]
  cut = [(tokens, penalised(score, max_length)) for tokens, score in alive]
  return (ended + cut)[:n_best]


@pytest.mark.parametrize(
  ("beam_size", "max_length", "length_penalty", "n_best"), [(2, 9, 2.0, 2), (4, 7, 1.0, 4), (5, 6, 0.0, 3)]
)
@pytest.mark.parametrize("of_end", [0, 2])  # makes the end more likely
def test_beam_search_matches_lists(beam_size, max_length, length_penalty, n_best, of_end):
  logits = LOGITS + of_end * (np.arange(DIMS.V) == END).astype(np.float32)

  def step(state, tokens):
    return jnp.asarray(NEXT)[state, tokens], jnp.asarray(logits)[state, tokens], None

  result = find(
    beam_size,
    states=range(17),
    step=step,
    max_length=max_length,
    length_penalty=length_penalty,
    n_best=n_best,
  )
  for b, state in enumerate(range(17)):
    desired = by_lists(state, beam_size, max_length, length_penalty, n_best, logits)
    rows = [tokens_before_end(row) for row in np.asarray(result.tokens[b])]
    assert rows == [tokens for tokens, _ in desired]
    np.testing.assert_allclose(result.scores[b], [score for _, score in desired], **CLOSE)


def tokens_before_end(row):
  """Returns the tokens of a row up to its end."""
  row = row.tolist()
  return tuple(row[: row.index(END) + 1]) if END in row else tuple(row)


def best_of_all(logits, V, T, length_penalty):
  """Returns the best sequence that ends, and its score, by enumeration; logits [T V V] of (step, last)."""
  log_p = np.float64(logits) - np.log(np.sum(np.exp(np.float64(logits)), axis=-1, keepdims=True))
  others = [token for token in range(V) if token != END]
  best = -np.inf, ()
  for length in range(T):
    prefixes = np.array([*itertools.product(others, repeat=length)], int).reshape((V - 1) ** length, length)
    words = np.concatenate(
      [np.full((len(prefixes), 1), START), prefixes, np.full((len(prefixes), 1), END)], axis=1
    )
    scores = sum(log_p[t, words[:, t], words[:, t + 1]] for t in range(length + 1))
    scores = scores / ((6 + length) / 6) ** length_penalty
    best = max(best, (scores.max(), tuple(words[scores.argmax(), 1:].tolist())))
  return best


@pytest.mark.parametrize(("V", "T", "length_penalty"), [(3, 7, 0.0), (5, 4, 0.6)])
def test_wide_beams_find_the_best_sequence(V, T, length_penalty):
  B = 25
  logits = 3 * np.random.default_rng(V).normal(size=(B, T, V, V)).astype(np.float32)
  logits[::2, ..., END] -= 9  # so that nearly all continuations are more likely

  def by_table(state, tokens):
    t, b = state
    return (t + 1, b), jnp.asarray(logits)[b, jnp.minimum(t, T - 1), tokens], None

  state = jnp.zeros(B, int), jnp.arange(B)
  options = {"batch_size": B, "max_length": T, "bos_id": START, "eos_id": END, "pad_id": PAD}
  for num_prefixes in ((V - 1) ** (T - 1), V ** (T - 1)):
    result = decoding.beam_search(
      by_table, state, beam_size=num_prefixes, length_penalty=length_penalty, **options
    )
    for b in range(B):
      score, tokens = best_of_all(logits[b], V, T, length_penalty)
      assert tokens_before_end(np.asarray(result.tokens[b, 0])) == tokens
      np.testing.assert_allclose(result.scores[b, 0], score, **CLOSE)


def test_search_waits_for_better_hypotheses():
  # Greedy: "2" 0.7, "3" 0.8, then probability 1 to the end: 0.56. One word alone has 0.3, two have 0.14.
  table = np.full((7, 7), -np.inf, np.float32)
  table[START, [END, 3]] = np.log([0.3, 0.7])
  table[3, [END, 4]] = np.log([0.2, 0.8])
  for before, after in [(4, 5), (5, 6), (6, END)]:
    table[before, after] = 0.0

  def by_table(state, tokens):
    return state, jnp.asarray(table)[tokens], None

  for beam_size in (1, 2, 3, 4):
    result = find(beam_size, states=[0], step=by_table, max_length=8)
    np.testing.assert_allclose(result.scores, [[np.log(0.56)]], **CLOSE)
    assert tokens_before_end(np.asarray(result.tokens[0, 0])) == (3, 4, 5, 6, END)


def test_wide_beam_finds_the_best():
  result = find(ALL, length_penalty=0.6, n_best=6)
  for b, state in enumerate(STATES):
    desired = all_that_end(state, 0.6)[:6]
    assert [tokens_before_end(row) for row in np.asarray(result.tokens[b])] == [
      tokens for _, tokens in desired
    ]
    np.testing.assert_allclose(result.scores[b], [score for score, _ in desired], **CLOSE)


@pytest.mark.parametrize("max_length", [2, 3, 13])
def test_one_beam_is_greedy(max_length):
  options = {"max_length": max_length, "bos_id": START, "eos_id": END, "pad_id": PAD}
  desired = decoding.greedy(step, jnp.asarray(STATES), batch_size=len(STATES), **options)
  result = find(1, max_length=max_length)
  for one, other in zip(result, desired, strict=True):
    np.testing.assert_allclose(one[:, 0], other, **CLOSE)


def test_two_beams_beat_greedy():
  # First "a" 0.6 or "b" 0.4; after "a" four words of 0.25, after "b" the end with probability 1: 0.4 > 0.15.
  a, b = 3, 4
  table = np.full((5, 5), -np.inf, np.float32)
  table[START, [a, b]] = np.log([0.6, 0.4])
  table[a] = np.log([0.25, 1e-9, 0.25, 0.25, 0.25])
  table[b, END] = 0.0

  def by_table(state, tokens):
    return state, jnp.asarray(table)[tokens], None

  result = find(2, states=[0], step=by_table, max_length=2)
  np.testing.assert_array_equal(result.tokens, [[[b, END]]])
  np.testing.assert_allclose(result.scores, np.log([[0.4]]), **CLOSE)
  assert result.weights is None


@pytest.mark.parametrize(("beam_size", "length_penalty"), [(2, 1.0), (5, 0.0)])
def test_scores_and_weights_match_tokens(beam_size, length_penalty):
  result = find(beam_size, max_length=6, length_penalty=length_penalty, n_best=beam_size)
  for b, n in np.ndindex(len(STATES), beam_size):
    tokens = tokens_before_end(np.asarray(result.tokens[b, n]))
    score, weights = follow(STATES[b], tokens)
    np.testing.assert_allclose(
      result.scores[b, n], score / ((5 + len(tokens)) / 6) ** length_penalty, **CLOSE
    )
    np.testing.assert_allclose(result.weights[b, n, : len(tokens)], weights, **CLOSE)
    np.testing.assert_array_equal(result.weights[b, n, len(tokens) :], 0.0)
    np.testing.assert_array_equal(result.tokens[b, n, len(tokens) :], PAD)


def test_hypotheses_are_distinct_and_ordered():
  result = find(5, max_length=3, n_best=5)
  for b in range(len(STATES)):
    rows = [tokens_before_end(row) for row in np.asarray(result.tokens[b])]
    assert len(set(rows)) == 5
    ended = [END in row for row in rows]
    assert ended == sorted(ended, reverse=True)
    for group in (True, False):
      scores = [score for score, own in zip(result.scores[b], ended, strict=True) if own == group]
      assert scores == sorted(scores, reverse=True)


def test_single_sequence_matches_batch():
  options = {"max_length": 7, "length_penalty": 0.6, "n_best": 2}
  whole = find(3, **options)
  alone = find(3, states=STATES[1:2], **options)
  chex.assert_trees_all_close(alone, jax.tree.map(lambda array: array[1:2], whole), **CLOSE)


def test_missing_hypotheses_score_minus_infinity():
  # After the start only the end, or one other word, which is followed by the end.
  table = np.full((4, 4), -np.inf, np.float32)
  table[START, [END, 3]] = np.log([0.3, 0.7])
  table[3, END] = 0.0

  def by_table(state, tokens):
    return state, jnp.asarray(table)[tokens], jnp.ones((len(tokens), 3))

  result = find(4, states=[0], step=by_table, max_length=5, n_best=4)
  np.testing.assert_array_equal(
    result.tokens[0], [[3, END, PAD, PAD, PAD], [END, PAD, PAD, PAD, PAD], [PAD] * 5, [PAD] * 5]
  )
  np.testing.assert_allclose(result.scores[0], [np.log(0.7), np.log(0.3), -np.inf, -np.inf], **CLOSE)
  np.testing.assert_array_equal(result.weights[0].sum(axis=(1, 2)), [6, 3, 0, 0])


def test_search_stops_early():
  steps = []
  table = np.full((4, 4), -5.0, np.float32)
  table[:, END] = 5.0

  def by_table(state, tokens):
    jax.debug.callback(lambda: steps.append(1))
    return state, jnp.asarray(table)[tokens], None

  jax.block_until_ready(find(2, step=by_table, max_length=50))
  jax.effects_barrier()
  assert len(steps) == 1


def test_closed_over_memory_is_not_repeated():
  memory = jnp.asarray(random.normal(size=(len(STATES), DIMS.V)), jnp.float32)

  def with_memory(memory):
    def with_row(state, tokens):
      assert state.shape == tokens.shape == memory.shape[:1]
      state, logits, weights = step(state, tokens)
      return state, logits + memory, weights

    return with_row

  result = find(3, step=with_memory(memory), max_length=6)
  for b in (0, 3):
    alone = find(3, step=with_memory(memory[b : b + 1]), states=STATES[b : b + 1], max_length=6)
    np.testing.assert_array_equal(alone.tokens[0], result.tokens[b])


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"beam_size": 0}, "beam_size must be an integer of at least 1, got 0"),
    ({"beam_size": 2, "max_length": 0}, "max_length must be an integer of at least 1, got 0"),
    ({"beam_size": 2, "n_best": 3}, "n_best must be at most beam_size=2, got 3"),
    ({"beam_size": 2, "n_best": 0}, "n_best must be an integer of at least 1, got 0"),
    ({"beam_size": 2, "length_penalty": -0.5}, "length_penalty must be 0 or above, .*, got -0.5"),
    ({"beam_size": 2, "length_penalty": 1e3}, "finite in float32, got 1000.0"),
  ],
  ids=str,
)
def test_invalid_arguments_raise(options, message):
  with pytest.raises(ValueError, match=message):
    find(**options)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_large_logits_lose_no_digits(beam_size):
  logits = np.round(LOGITS * 256) / 256  # exact in float32, with and without the offset

  def scores(offset):
    def offset_step(state, tokens):
      return jnp.asarray(NEXT)[state, tokens], jnp.asarray(logits + offset)[state, tokens], None

    options = {"batch_size": len(STATES), "max_length": DIMS.T, "bos_id": START, "eos_id": END}
    if beam_size == 1:
      return decoding.greedy(offset_step, jnp.asarray(STATES), **options).scores
    return decoding.beam_search(offset_step, jnp.asarray(STATES), beam_size=beam_size, **options).scores

  np.testing.assert_allclose(scores(np.float32(2**14)), scores(np.float32(0)), rtol=1e-5, atol=1e-5)
