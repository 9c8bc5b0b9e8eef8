"""The config of a published model: options of its layers, masks and rotary embeddings."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn

from attention import masks, positions
from attention.arrays.checks import check_size
from attention.convert.state import check_mapping
from attention.layers.projections import relu
from attention.masks import Mask

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "relu": relu,
  "silu": nn.silu,
  "swish": nn.silu,
  "gelu": functools.partial(nn.gelu, approximate=False),
  "gelu_new": nn.gelu,
  "gelu_pytorch_tanh": nn.gelu,
}

# Other names of options, in some models.
_OTHER_NAMES = {
  "hidden_size": ("n_embd", "d_model"),
  "num_hidden_layers": ("n_layer", "num_layers"),
  "num_attention_heads": ("n_head", "num_heads"),
  "intermediate_size": ("n_inner", "d_ff"),
  "head_dim": ("d_kv",),
  "hidden_act": ("activation_function",),
  "max_position_embeddings": ("n_positions",),
  "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
}


class Config:
  """A config: a mapping in which names of older models have those of newer ones.

  Attributes:
    model_type: the name of the architecture.

  Args:
    config: the content of a config.json.
    *model_types: architectures that the caller supports.

  Raises:
    ValueError: if it is not a mapping, or of another architecture.
  """

  def __init__(self, config: Mapping[str, Any], *model_types: str):
    check_mapping("config", config, ", such as the content of config.json or model.config.to_dict()")
    self._config = config
    self.model_type: Any = config.get("model_type")
    if self.model_type not in model_types:
      raise ValueError(f"model_type in config must be {' or '.join(model_types)}, got {self.model_type!r}")

  def __getitem__(self, name: str) -> Any:
    value = self.get(name)
    if value is None:
      raise ValueError(f"config must have {name!r}, got {', '.join(map(str, self._config))}")
    return value

  def get(self, name: str, default: Any = None) -> Any:
    """Returns an option, or the default if it is missing or None."""
    values = (self._config.get(each) for each in (name, *_OTHER_NAMES.get(name, ())))
    return next((value for value in values if value is not None), default)

  def given(self, name: str) -> Any:
    """Returns an option that may be None, but not missing."""
    if name not in self._config:
      raise ValueError(f"config must have {name!r}, which may be None, got {', '.join(self._config)}")
    return self._config[name]

  def check(self, **supported: Any) -> None:
    """Raises ValueError if an option is given and differs from the only value that is supported."""
    for name, value in supported.items():
      if self.get(name, value) != value:
        raise ValueError(f"{name} in config must be {value}, got {self[name]!r}")

  def causal_masks(self) -> tuple[Mask, ...]:
    """Returns the mask of each layer of a decoder: causal, in some models with a sliding window."""
    L = self["num_hidden_layers"]
    local = {"mistral": range(L), "gemma2": range(0, L, 2), "gpt_oss": range(0, L, 2)}  # layers with a window
    if self.get("use_sliding_window"):
      local["qwen2"] = local["qwen3"] = range(self["max_window_layers"], L)
    if self.model_type not in local or (window := self.given("sliding_window")) is None:
      return (masks.causal(),) * L
    of_kind = {
      "full_attention": masks.causal(),
      "sliding_attention": masks.sliding_window(check_size("sliding_window", window) - 1, 0),
    }
    default = ["sliding_attention" if i in local[self.model_type] else "full_attention" for i in range(L)]
    kinds = self.get("layer_types", default)
    if len(kinds) != L:
      raise ValueError(f"layer_types in config must have {L} entries, got {kinds}")
    return tuple(one_of("layer_types", kind, of_kind) for kind in kinds)

  def rotary(self, head_width: int) -> Callable[..., jax.Array]:
    """Returns `positions.rotary` with the frequencies and the scale of the model."""
    given = self.get("rope_parameters") or self.get("rope_scaling") or {}
    rope = {_ROPE_NAMES.get(name, name): given[name] for name in given if given[name] is not None}
    kind, scale = rope.pop("rope_type", "default"), 1.0
    base = rope.pop("rope_theta", None) or self.get("rope_theta")
    base = base or (self["rope_theta"] if self.model_type == "gpt_oss" else 10_000.0)
    width = head_width
    if self.model_type == "stablelm":
      width = int(width * rope.pop("partial_rotary_factor", self.get("partial_rotary_factor", 0.25)))
    else:
      self.check(partial_rotary_factor=1.0)
    make, required = one_of("rope_type", kind, _FREQUENCIES)
    if kind in ("llama3", "yarn") and "original_length" not in rope:
      rope["original_length"] = (
        self.get("original_max_position_embeddings") or self["max_position_embeddings"]
      )
    if kind == "yarn":
      rope.setdefault("factor", self.get("max_position_embeddings", 0) / rope["original_length"])
      scale = rope.pop("attention_factor", None) or positions.yarn_scale(rope["factor"])
    if not required <= rope.keys() or rope.keys() - inspect.signature(make).parameters.keys():
      raise ValueError(f"options of rotary embeddings in config are missing or not supported: {given}")
    return functools.partial(positions.rotary, frequencies=make(width, base=base, **rope), scale=scale)


# The function of each type of rotary embedding, and the options without a default.
_FREQUENCIES: dict[str, tuple[Callable[..., jax.Array], set[str]]] = {
  "default": (positions.rotary_frequencies, set()),
  "linear": (
    lambda width, *, base, factor: positions.rotary_frequencies(width, base=base) / factor,
    {"factor"},
  ),
  "llama3": (positions.llama3_frequencies, {"factor", "low_freq_factor", "high_freq_factor"}),
  "yarn": (positions.yarn_frequencies, {"factor"}),
}
_ROPE_NAMES = {"type": "rope_type", "original_max_position_embeddings": "original_length"}


def one_of(name: str, value: Any, allowed: Mapping[str, Any]) -> Any:
  """Returns what an option of the config stands for, or raises ValueError if it is not supported."""
  if value not in allowed:
    raise ValueError(f"{name} in config must be one of {', '.join(allowed)}, got {value!r}")
  return allowed[value]
