"""Beam search compared with exhaustive search, greedy search, and values computed by hand."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import decoding

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

DIMS = chex.Dimensions(S=7, V=5)
PAD, START, END = 0, 1, 2
random = np.random.default_rng(3)
# Logits after each token, in each of 17 states; next states; attention weights in each state. All states
# are repeated with likely ends, and with unlikely ends.
LOGITS = (1.5 * random.normal(size=(17, DIMS.V, DIMS.V))).astype(np.float32)
LOGITS = np.concatenate([LOGITS + np.float32(gain) * (np.arange(DIMS.V) == END) for gain in (0, 2, -9)])
LOGITS = LOGITS.astype(np.float32)
NEXT = random.integers(17, size=(17, DIMS.V))
NEXT = np.concatenate([NEXT, NEXT + 17, NEXT + 34])
WEIGHTS = random.dirichlet(np.ones(DIMS.S), size=51).astype(np.float32)
STATES = np.arange(51)


def step(state, tokens):
  return jnp.asarray(NEXT)[state, tokens], jnp.asarray(LOGITS)[state, tokens], jnp.asarray(WEIGHTS)[state]


def find(beam_size, *, states=STATES, step=step, **options):
  """Returns the result of a compiled search."""
  options = {"max_length": 4, "bos_id": START, "eos_id": END, "pad_id": PAD, "beam_size": beam_size} | options
  return jax.jit(lambda states: decoding.beam_search(step, states, batch_size=len(states), **options))(
    jnp.asarray(states)
  )


def follow(state, tokens):
  """Returns the log-probability of tokens, and the attention weights of each."""
  score, weights, last = 0.0, [], START
  for token in tokens:
    logits = np.float64(LOGITS[state, last])
    score += logits[token] - np.log(np.sum(np.exp(logits)))
    weights.append(WEIGHTS[state])
    state, last = NEXT[state, last], token
  return score, np.stack(weights)


def penalized(score, length, length_penalty):
  return score / ((5 + length) / 6) ** length_penalty


def by_enumeration(state, max_length, length_penalty):
  """Returns the tokens and scores of all sequences that end, best first."""
  others = [token for token in range(DIMS.V) if token != END]
  words = itertools.chain(*(itertools.product(others, repeat=length) for length in range(max_length)))
  found = [(*word, END) for word in words]
  scores = [penalized(follow(state, tokens)[0], len(tokens), length_penalty) for tokens in found]
  return sorted(zip(found, scores, strict=True), key=lambda pair: -pair[1])


def by_lists(state, beam_size, max_length, length_penalty, n_best):
  """Returns the tokens and scores of one sequence's best hypotheses, by a search over lists."""
  alive, ended, is_exhaustive = [((), 0.0)], [], True
  for t in range(max_length):
    best_alive = max((score for _, score in alive), default=-np.inf)
    if len(ended) >= n_best and ended[n_best - 1][1] >= penalized(best_alive, max_length, length_penalty):
      break
    longer = [(*tokens, token) for tokens, _ in alive for token in range(DIMS.V)]
    longer = sorted(((tokens, follow(state, tokens)[0]) for tokens in longer), key=lambda pair: -pair[1])
    continuations = [pair for pair in longer if pair[0][-1] != END]
    is_exhaustive &= t == max_length - 1 or len(continuations) <= beam_size
    alive = continuations[:beam_size]
    least = -np.inf if is_exhaustive else alive[-1][1]
    ends = [pair for pair in longer if pair[0][-1] == END and pair[1] >= least]
    ended += [(tokens, penalized(score, t + 1, length_penalty)) for tokens, score in ends]
    ended = sorted(ended, key=lambda pair: -pair[1])[:beam_size]
  return ended + [(tokens, penalized(score, max_length, length_penalty)) for tokens, score in alive]


def assert_found(result, hypotheses):
  """Compares a result with the tokens and scores of the best hypotheses, of each state."""
  for state, n in np.ndindex(result.scores.shape):
    tokens, score = hypotheses[state][n]
    padding = result.tokens.shape[-1] - len(tokens)
    assert result.tokens[state, n].tolist() == [*tokens, *[PAD] * padding]
    np.testing.assert_allclose(result.scores[state, n], score, **CLOSE)
    weights = np.pad(follow(state, tokens)[1], ((0, padding), (0, 0)))
    np.testing.assert_array_equal(result.weights[state, n], weights)


@pytest.mark.parametrize(
  ("beam_size", "max_length", "length_penalty", "n_best"), [(2, 9, 2.0, 2), (5, 6, 0.0, 3), (4, 3, 1.0, 4)]
)
def test_beam_search_matches_lists(beam_size, max_length, length_penalty, n_best):
  options = {"max_length": max_length, "length_penalty": length_penalty, "n_best": n_best}
  result = jax.device_get(find(beam_size, **options))
  assert_found(result, [by_lists(state, beam_size, **options) for state in STATES])


@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
def test_wide_beams_find_the_best(length_penalty):
  num_prefixes = (DIMS.V - 1) ** 3
  result = jax.device_get(find(num_prefixes, length_penalty=length_penalty, n_best=6))
  assert_found(result, [by_enumeration(state, 4, length_penalty) for state in STATES])


@pytest.mark.parametrize(
  "options", [{"max_length": 2}, {"max_length": 13}, {"max_length": 4, "eos_id": -1}], ids=str
)
def test_one_beam_is_greedy(options):
  symbols = {"batch_size": 51, "bos_id": START, "eos_id": END, "pad_id": PAD} | options
  desired = jax.jit(lambda states: decoding.greedy(step, states, **symbols))(STATES)
  chex.assert_trees_all_close(jax.tree.map(lambda array: array[:, 0], find(1, **options)), desired, **CLOSE)


def by_table(logits, weights=None):
  """Returns a step function with the logits after each token, and its states."""
  return {"step": lambda state, tokens: (state, jnp.asarray(logits)[tokens], weights), "states": [0]}


def test_two_beams_beat_greedy():
  # First "a" 0.6 or "b" 0.4; after "a" four words of 0.25, after "b" the end with probability 1: 0.4 > 0.15.
  a, b = 3, 4
  table = np.full((5, 5), -np.inf, np.float32)
  table[START, [a, b]] = np.log([0.6, 0.4])
  table[a] = np.log([0.25, 1e-9, 0.25, 0.25, 0.25])
  table[b, END] = 0.0
  result = find(2, max_length=2, **by_table(table))
  np.testing.assert_array_equal(result.tokens, [[[b, END]]])
  np.testing.assert_allclose(result.scores, np.log([[0.4]]), **CLOSE)
  assert result.weights is None


def test_search_waits_for_better_hypotheses():
  # The end has 0.51; the other sequence has 0.49, but 5 tokens: ln(0.49) / (10 / 6) > ln(0.51).
  table = np.full((7, 7), -np.inf, np.float32)
  table[START, [END, 3]] = np.log([0.51, 0.49])
  table[[3, 4, 5, 6], [4, 5, 6, END]] = 0.0
  result = find(2, max_length=8, length_penalty=1.0, **by_table(table))
  np.testing.assert_array_equal(result.tokens, [[[3, 4, 5, 6, END, PAD, PAD, PAD]]])
  np.testing.assert_allclose(result.scores, [[np.log(0.49) * 6 / 10]], **CLOSE)


def test_ends_may_be_equally_likely():
  # After the start, the end is as likely as a word that never ends: not less likely than the best of one.
  table = np.full((4, 4), -9.0, np.float32)
  table[START, [END, 3]] = 1.0
  table[3, 3] = 1.0
  np.testing.assert_array_equal(find(1, max_length=3, **by_table(table)).tokens, [[[END, PAD, PAD]]])


def test_missing_hypotheses_score_minus_infinity():
  # After the start only the end, or one other word, which is followed by the end.
  table = np.full((4, 4), -np.inf, np.float32)
  table[START, [END, 3]] = np.log([0.7, 0.3])
  table[3, END] = 0.0
  result = find(4, max_length=3, n_best=4, **by_table(table, jnp.ones((1, 3))))
  np.testing.assert_array_equal(result.tokens[0], [[END, PAD, PAD], [3, END, PAD], [PAD] * 3, [PAD] * 3])
  np.testing.assert_allclose(result.scores[0], [np.log(0.7), np.log(0.3), -np.inf, -np.inf], **CLOSE)
  np.testing.assert_array_equal(result.weights[0].sum(axis=(1, 2)), [3, 6, 0, 0])


def test_search_stops_early():
  steps = []

  def ends(state, tokens):
    jax.debug.callback(lambda: steps.append(1))
    return state, jnp.full((51, 4), -5.0).at[:, END].set(5.0), None

  jax.block_until_ready(find(2, step=ends, max_length=50))
  jax.effects_barrier()
  assert len(steps) == 1


def test_closed_over_memory_is_not_repeated():
  memory = jnp.asarray(LOGITS)

  def of_memory(state, tokens):
    assert state.shape == tokens.shape == memory.shape[:1]
    return state, memory[jnp.arange(51), tokens], None

  def of_state(state, tokens):
    return state, memory[state, tokens], None

  chex.assert_trees_all_equal(find(3, step=of_memory), find(3, step=of_state))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"beam_size": 0}, "beam_size must be an integer of at least 1, got 0"),
    ({"max_length": 0}, "max_length must be an integer of at least 1, got 0"),
    ({"n_best": 3}, "n_best must be at most beam_size=2, got 3"),
    ({"n_best": 0}, "n_best must be an integer of at least 1, got 0"),
    ({"length_penalty": -0.5}, "length_penalty must be 0 or above, .*, got -0.5"),
    ({"length_penalty": 1e3}, "finite in float32, got 1000.0"),
  ],
  ids=str,
)
def test_invalid_arguments_raise(options, message):
  with pytest.raises(ValueError, match=message):
    find(**({"beam_size": 2} | options))


@pytest.mark.parametrize("search", [decoding.greedy, functools.partial(decoding.beam_search, beam_size=3)])
def test_large_logits_lose_no_digits(search):
  logits = np.round(LOGITS * 256) / 256  # exact in float32, with and without the offset

  @jax.jit
  def scores(offset):
    def offset_step(state, tokens):
      return jnp.asarray(NEXT)[state, tokens], jnp.asarray(logits)[state, tokens] + offset, None

    return search(offset_step, STATES, batch_size=51, max_length=4, bos_id=START, eos_id=END).scores

  np.testing.assert_allclose(scores(np.float32(2**14)), scores(np.float32(0)), rtol=1e-5, atol=1e-5)
