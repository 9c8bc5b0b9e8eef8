"""The options that attention functions share, explained in `attend`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypedDict, TypeVar

import jax

from attention.engines.inputs import BiasLike
from attention.engines.normalizers import Normalizer
from attention.masks import Array, Mask

T = TypeVar("T")
P = ParamSpec("P")


class Options(TypedDict, total=False):
  """The types of the options of `attend` that do not change what is returned."""

  mask: Mask | Array | None
  bias: BiasLike | None
  dropout_rate: jax.Array | float
  dropout_rng: jax.Array | None
  normalizer: Normalizer | None
  implementation: str
  block_sizes: tuple[int, int] | None


class FullOptions(Options, total=False):
  """The types of all options of `attend`, of which one asks for more than the context."""

  return_weights: bool
  return_logsumexp: bool


# Options of `jax.nn.dot_product_attention` and of PyTorch's, and what is meant by them here.
ELSEWHERE = {
  "is_causal": "True is mask=masks.causal()",
  "causal": "True is mask=masks.causal()",
  "key_padding_mask": "it is mask=, True = may attend: masks.lengths(source=...) or array[:, None, None]",
  "attn_mask": "it is mask=, True = may attend, or bias= for what is added to the scores",
  "dropout_p": "it is dropout_rate=, with dropout_rng=",
  "enable_gqa": "heads are grouped by their numbers in attend_heads and multi_head_attention",
  "query_seq_lengths": "they are mask=masks.lengths(target=...)",
  "key_value_seq_lengths": "they are mask=masks.lengths(source=...)",
  "local_window_size": "it is mask=masks.sliding_window(before, after)",
}


def names_options(function: Callable[P, T]) -> Callable[P, T]:
  """Makes a function say which options it has, and what those of other libraries are called here."""
  parameters = inspect.signature(function).parameters

  @functools.wraps(function)
  def named(*args: P.args, **options: P.kwargs) -> T:
    for option in options:
      if option in ELSEWHERE and option not in parameters:
        raise TypeError(f"{function.__name__} has no option {option!r}: {ELSEWHERE[option]}")
      if option not in parameters:
        allowed = ", ".join(name for name, each in parameters.items() if each.kind == each.KEYWORD_ONLY)
        raise TypeError(
          f"{function.__name__}() got an unexpected keyword argument {option!r}; options are {allowed}"
        )
    return function(*args, **options)

  return named


def forwards_to(target: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
  """Returns a decorator of functions whose **options go to another, by whose names `help` shows them."""

  def decorate(function: Callable[P, T]) -> Callable[P, T]:
    own = [each for each in inspect.signature(function).parameters.values() if each.kind != each.VAR_KEYWORD]
    names = {each.name for each in own}
    options = [
      each
      for each in inspect.signature(target).parameters.values()
      if each.kind == each.KEYWORD_ONLY and each.name not in names
    ]
    signature = inspect.signature(function).replace(parameters=[*own, *options])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return names_options(function)

  return decorate
