"""SCAN: all 20,910 commands of the grammar, their actions, and the splits.

References:
  Lake and Baroni 2018, "Generalization without systematicity", arXiv:1711.00350, section 2 and figures 6 and
  7.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np

Tokens = tuple[str, ...]


class Command(NamedTuple):
  """A command and its actions."""

  words: Tokens
  actions: Tokens


# Number of training and test commands of each split, as published.
SPLITS = {
  "simple": (16_728, 4_182),
  "length": (16_990, 3_920),
  "add_jump": (14_670, 7_706),
  "add_turn_left": (21_890, 1_208),
}

# Maximum number of training actions of the split "length". The longest commands have 48 actions.
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
  all_commands = list(sequences)
  for first, second in itertools.product(sequences, repeat=2):
    all_commands.append(Command((*first.words, "and", *second.words), first.actions + second.actions))
    all_commands.append(Command((*first.words, "after", *second.words), second.actions + first.actions))
  return tuple(all_commands)


def meaning(command: str) -> str:
  """Returns the actions of a command.

  Raises:
    ValueError: if the command is not in the grammar.

  >>> meaning("jump opposite left after walk twice")
  'I_WALK I_WALK I_TURN_LEFT I_TURN_LEFT I_JUMP'
  """
  actions = _meanings().get(tuple(command.split()))
  if actions is None:
    raise ValueError(f"command must be a command of the grammar, got {command!r}")
  return " ".join(actions)


@functools.cache
def split(name: str, seed: int = 0, cutoff: int = CUTOFF) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
  """Returns the training and the test commands of a split.

  * simple: a random fifth of the commands is the test set. The published random split is different.
  * length: commands with more actions than `cutoff` are the test set.
  * add_jump: commands with "jump" are the test set, except "jump" itself. It is repeated until it is a tenth
    of the training commands, as published.
  * add_turn_left: the same with "turn left".

  Args:
    name: name of the split.
    seed: random seed for the split "simple".
    cutoff: maximum number of training actions of the split "length". The published one is 22.

  Raises:
    ValueError: if `name` is unknown, or `cutoff` leaves no training or test commands.
  """
  if name not in SPLITS:
    raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
  num_training, _ = SPLITS[name]
  if name == "simple":
    order = np.random.default_rng(seed).permutation(len(commands()))
    shuffled = [commands()[i] for i in order]
    return tuple(shuffled[:num_training]), tuple(shuffled[num_training:])
  if name == "length":
    parts = _partition(lambda command: len(command.actions) <= cutoff)
    if not all(parts):
      raise ValueError(f"cutoff must be in [1, 47], got {cutoff}")
    return parts
  primitive = ("jump",) if name == "add_jump" else ("turn", "left")
  training, test = _partition(
    lambda command: command.words == primitive or not _contains(command.words, primitive)
  )
  primitive_command = Command(primitive, _meanings()[primitive])
  return training + (primitive_command,) * (num_training - len(training)), test


def _verbs() -> list[Command]:
  """Returns the commands with one verb: each action alone and with each direction."""
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
def _meanings() -> dict[Tokens, Tokens]:
  return dict(commands())


def _partition(is_for_training) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
  training = tuple(command for command in commands() if is_for_training(command))
  return training, tuple(command for command in commands() if not is_for_training(command))


def _contains(words: Tokens, part: Tokens) -> bool:
  """Returns whether `part` is a contiguous part of `words`."""
  return any(words[i : i + len(part)] == part for i in range(len(words)))
