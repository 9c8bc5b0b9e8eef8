"""Tests of experiments/data/scan/scan_grammar.py."""

import collections
import re

import pytest

from experiments.data.scan import scan_grammar

# Examples from figure 1 and section 2 of the paper, and examples that follow from the rules in figure 7.
MEANINGS = {
  "jump": "I_JUMP",
  "jump left": "I_TURN_LEFT I_JUMP",
  "jump around right": "I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP",
  "turn left twice": "I_TURN_LEFT I_TURN_LEFT",
  "jump thrice": "I_JUMP I_JUMP I_JUMP",
  "jump opposite left and walk thrice": "I_TURN_LEFT I_TURN_LEFT I_JUMP I_WALK I_WALK I_WALK",
  "jump opposite left after walk around left": (
    "I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK "
    "I_TURN_LEFT I_TURN_LEFT I_JUMP"
  ),
  "turn opposite right": "I_TURN_RIGHT I_TURN_RIGHT",
  "turn around left twice": " ".join(["I_TURN_LEFT"] * 8),
  "run left after look": "I_LOOK I_TURN_LEFT I_RUN",
}


def interpret(words):
  """Returns the actions of a command by the rewriting rules of figure 7 of the paper."""
  text = " ".join(words)
  for joiner in (" after ", " and "):
    if joiner in text:
      first, second = (interpret(part.split()) for part in text.split(joiner))
      return second + first if joiner == " after " else first + second
  match = re.fullmatch(r"(.*) (twice|thrice)", text)
  if match:
    return interpret(match[1].split()) * {"twice": 2, "thrice": 3}[match[2]]
  match = re.fullmatch(r"(\w+)(?: (opposite|around))?(?: (left|right))?", text)
  verb, manner, direction = match.groups()
  act = [] if verb == "turn" else [f"I_{verb.upper()}"]
  turn = [] if direction is None else [f"I_TURN_{direction.upper()}"]
  if manner == "around":
    return (turn + act) * 4
  return turn * (2 if manner == "opposite" else 1) + act


def texts(commands):
  return [" ".join(command.words) for command in commands]


def test_number_of_commands_matches_paper():
  assert len(scan_grammar.commands()) == len(set(texts(scan_grammar.commands()))) == 20_910


@pytest.mark.parametrize("command", MEANINGS)
def test_meanings_match_examples(command):
  assert scan_grammar.meaning(command) == MEANINGS[command]


def test_meanings_match_rewriting_rules():
  for command in scan_grammar.commands():
    assert list(command.actions) == interpret(command.words), command


def test_lengths_match_the_paper():
  assert {len(command.words) for command in scan_grammar.commands()} == set(range(1, 10))
  assert max(len(command.actions) for command in scan_grammar.commands()) == 48
  assert len({word for command in scan_grammar.commands() for word in command.words}) == 13
  assert len({word for command in scan_grammar.commands() for word in command.actions}) == 6


@pytest.mark.parametrize(
  ("name", "sizes"),
  [
    ("simple", (16_728, 4_182)),
    ("length", (16_990, 3_920)),
    ("add_jump", (14_670, 7_706)),
    ("add_turn_left", (21_890, 1_208)),
  ],
)
def test_splits_have_the_published_sizes(name, sizes):
  training, test = scan_grammar.split(name)
  assert (len(training), len(test)) == sizes
  assert not set(training) & set(test)
  assert set(training) | set(test) == set(scan_grammar.commands())


def test_cutoff_can_be_changed():
  training, test = scan_grammar.split("length", cutoff=30)
  assert len(training) + len(test) == 20_910 and len(training) > 16_990
  assert (
    max(len(command.actions) for command in training) <= 30 < min(len(command.actions) for command in test)
  )
  for cutoff in (0, 48):
    with pytest.raises(ValueError, match=rf"cutoff must be in \[1, 47\], got {cutoff}"):
      scan_grammar.split("length", cutoff=cutoff)


@pytest.mark.parametrize(("name", "primitive"), [("add_jump", "jump"), ("add_turn_left", "turn left")])
def test_primitives_are_trained_alone(name, primitive):
  training, test = scan_grammar.split(name)
  counts = collections.Counter(texts(training))
  assert [text for text in counts if primitive in text] == [primitive]
  assert all(primitive in text for text in texts(test))
  assert {text: count for text, count in counts.items() if count > 1} == {primitive: counts[primitive]}
  assert counts[primitive] / len(training) == pytest.approx(0.1, abs=1e-3)


def test_unknown_names_are_errors():
  with pytest.raises(ValueError, match=r"command must be a command of the grammar, got 'jump turn'"):
    scan_grammar.meaning("jump turn")
  with pytest.raises(
    ValueError, match=r"split must be one of simple, length, add_jump, add_turn_left, got 'new'"
  ):
    scan_grammar.split("new")
