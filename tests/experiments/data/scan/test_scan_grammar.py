"""The commands, meanings and splits of SCAN."""

import collections
import re

import pytest

from experiments.data.scan import scan_grammar


def interpret(text):
  """Returns the actions of a command by the rewriting rules of figure 7 of the paper."""
  for joiner in (" after ", " and "):
    if joiner in text:
      first, second = map(interpret, text.split(joiner))
      return second + first if joiner == " after " else first + second
  if match := re.fullmatch(r"(.*) (twice|thrice)", text):
    return interpret(match[1]) * {"twice": 2, "thrice": 3}[match[2]]
  verb, manner, direction = re.fullmatch(r"(\w+)(?: (opposite|around))?(?: (left|right))?", text).groups()
  act = [] if verb == "turn" else [f"I_{verb.upper()}"]
  turn = [] if direction is None else [f"I_TURN_{direction.upper()}"]
  if manner == "around":
    return (turn + act) * 4
  return turn * (2 if manner == "opposite" else 1) + act


def test_commands_match_the_paper():
  meaning = scan_grammar.meaning("jump opposite left after walk twice")
  assert meaning == "I_WALK I_WALK I_TURN_LEFT I_TURN_LEFT I_JUMP"
  commands = scan_grammar.commands()
  assert len(commands) == len({command.words for command in commands}) == 20_910
  assert all(list(command.actions) == interpret(" ".join(command.words)) for command in commands)
  assert {len(command.words) for command in commands} == set(range(1, 10))
  assert max(len(command.actions) for command in commands) == 48
  assert len({word for command in commands for word in command.words}) == 13
  assert len({word for command in commands for word in command.actions}) == 6


SIZES = [
  ("simple", (16_728, 4_182)),
  ("length", (16_990, 3_920)),
  ("add_jump", (14_670, 7_706)),
  ("add_turn_left", (21_890, 1_208)),
]


@pytest.mark.parametrize(("name", "sizes"), SIZES)
def test_splits_have_the_published_sizes(name, sizes):
  training, test = scan_grammar.split(name)
  assert (len(training), len(test)) == sizes
  assert not set(training) & set(test)
  assert set(training) | set(test) == set(scan_grammar.commands())


def test_cutoff_can_be_changed():
  training, test = scan_grammar.split("length", cutoff=30)
  assert max(len(command.actions) for command in training) == 30
  assert min(len(command.actions) for command in test) == 32  # no command has 31


@pytest.mark.parametrize(("name", "primitive"), [("add_jump", "jump"), ("add_turn_left", "turn left")])
def test_primitives_are_trained_alone(name, primitive):
  training, test = ([" ".join(command.words) for command in part] for part in scan_grammar.split(name))
  counts = collections.Counter(training)
  assert [text for text in counts if primitive in text] == [primitive]
  assert all(primitive in text for text in test)
  assert {text: count for text, count in counts.items() if count > 1} == {primitive: counts[primitive]}
  assert counts[primitive] / len(training) == pytest.approx(0.1, abs=1e-3)


INVALID = [
  (lambda: scan_grammar.meaning("jump turn"), r"command must be .* of the grammar, got 'jump turn'"),
  (lambda: scan_grammar.split("new"), r"must be one of simple, length, add_jump, add_turn_left, got 'new'"),
  (lambda: scan_grammar.split("length", cutoff=0), r"cutoff must be in \[1, 47\], got 0"),
  (lambda: scan_grammar.split("length", cutoff=48), r"cutoff must be in \[1, 47\], got 48"),
]


@pytest.mark.parametrize(("call", "message"), INVALID)
def test_invalid_arguments_are_errors(call, message):
  with pytest.raises(ValueError, match=message):
    call()
