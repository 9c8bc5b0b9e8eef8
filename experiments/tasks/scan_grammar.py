"""SCAN: commands in a small English, and the actions that they ask for.

All 20,910 commands of the grammar, with the meaning of each, and the splits that ask what a model makes of
commands that it has not met.

Source: Lake and Baroni 2018, "Generalization without systematicity", arXiv:1711.00350, section 2 and
figures 6 and 7.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np

WordTokenizer = tuple[str, ...]


class Command(NamedTuple):
  """A command and the actions that it asks for."""

  words: WordTokenizer
  actions: WordTokenizer


# training and test sentences of each split, as published
SPLITS = {
  "simple": (16_728, 4_182),
  "length": (16_990, 3_920),
  "add_jump": (14_670, 7_706),
  "add_turn_left": (21_890, 1_208),
}

# The split by length has no more actions than this in training. The longest commands have 48.
CUTOFF = 22

_PRIMITIVES = ("walk", "look", "run", "jump")
_DIRECTIONS = ("left", "right")
_REPEATS = {"twice": 2, "thrice": 3}


@functools.cache
def commands() -> tuple[Command, ...]:
  """Returns all commands of the grammar.

      command  ->  sequence | sequence and sequence | sequence after sequence
      sequence ->  verb | verb twice | verb thrice
      verb     ->  action | action direction | action opposite direction | action around direction
      action   ->  walk | look | run | jump | turn          (turn only with a direction)

  >>> len(commands())
  20910
  """
  sequences = [sequence for verb in _verbs() for sequence in (verb, *_repeated(verb))]
  found = list(sequences)
  for first, second in itertools.product(sequences, repeat=2):
    found.append(Command((*first.words, "and", *second.words), first.actions + second.actions))
    found.append(Command((*first.words, "after", *second.words), second.actions + first.actions))
  return tuple(found)


def meaning(command: str) -> str:
  """Returns the actions that a command asks for.

  Raises:
    ValueError: if the grammar has no such command.

  >>> meaning("jump opposite left after walk twice")
  'I_WALK I_WALK I_TURN_LEFT I_TURN_LEFT I_JUMP'
  """
  found = _meanings().get(tuple(command.split()))
  if found is None:
    raise ValueError(f"command must be one of the grammar's, got {command!r}")
  return " ".join(found)


@functools.cache
def split(name: str, seed: int = 0, cutoff: int = CUTOFF) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
  """Returns the training and the test commands of a split.

  * simple: one in five commands, drawn at random, is for the test. It is another draw than the published one.
  * length: those of more actions than the cut-off are for the test, with the published one of more than 22.
  * add_jump: those with "jump" are for the test, but for the command "jump" itself. That is repeated until it
    is a tenth of the training commands, as published.
  * add_turn_left: the same with "turn left".

  Args:
    name: of the split.
    seed: draws the split "simple".
    cutoff: of the split "length".

  Raises:
    ValueError: if there is no such split, or nothing on one side of the cut-off.
  """
  if name not in SPLITS:
    raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
  num_training, _ = SPLITS[name]
  if name == "simple":
    order = np.random.default_rng(seed).permutation(len(commands()))
    shuffled = [commands()[i] for i in order]
    return tuple(shuffled[:num_training]), tuple(shuffled[num_training:])
  if name == "length":
    parts = _parted(lambda command: len(command.actions) <= cutoff)
    if not all(parts):
      raise ValueError(f"cutoff must leave commands for training and test, 1 to 47, got {cutoff}")
    return parts
  primitive = ("jump",) if name == "add_jump" else ("turn", "left")
  training, test = _parted(lambda command: command.words == primitive or not _holds(command.words, primitive))
  own = Command(primitive, _meanings()[primitive])
  return training + (own,) * (num_training - len(training)), test


def _verbs() -> list[Command]:
  """Returns the actions in all directions."""
  verbs = [Command((primitive,), (f"I_{primitive.upper()}",)) for primitive in _PRIMITIVES]
  for action, direction in itertools.product((*_PRIMITIVES, "turn"), _DIRECTIONS):
    turn, act = f"I_TURN_{direction.upper()}", () if action == "turn" else (f"I_{action.upper()}",)
    verbs.append(Command((action, direction), (turn, *act)))
    verbs.append(Command((action, "opposite", direction), (turn, turn, *act)))
    verbs.append(Command((action, "around", direction), (turn, *act) * 4))
  return verbs


def _repeated(verb: Command) -> list[Command]:
  return [Command((*verb.words, word), verb.actions * times) for word, times in _REPEATS.items()]


@functools.cache
def _meanings() -> dict[WordTokenizer, WordTokenizer]:
  return dict(commands())


def _parted(is_for_training) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
  training = tuple(command for command in commands() if is_for_training(command))
  return training, tuple(command for command in commands() if not is_for_training(command))


def _holds(words: WordTokenizer, part: WordTokenizer) -> bool:
  """Returns whether words hold a part, side by side."""
  return any(words[i : i + len(part)] == part for i in range(len(words)))
