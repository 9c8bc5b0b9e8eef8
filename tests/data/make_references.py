"""Writes references.npz: weights, inputs and outputs of layers in PyTorch and Transformers.

test_convert.py reads it. This script needs `pip install torch transformers`. The file was written with torch
2.14.1 and transformers 5.24.0, by `python tests/data/make_references.py`.
"""

import importlib
import pathlib

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

B, T, S, D, N, F = 2, 7, 5, 12, 3, 20
EAGER = {"attn_implementation": "eager"}
arrays = {}


def draw(*shape):
  return torch.randn(*shape, generator=torch.Generator().manual_seed(len(arrays)))


def store(name, module, inputs, outputs):
  """Stores the state of a module, its inputs and its outputs, in float32."""
  for key, value in [*module.state_dict().items(), *inputs.items(), ("outputs", outputs)]:
    arrays[f"{name}/{key}"] = value.detach().numpy().astype(np.float32)


def drawn(module):
  """Returns the module in evaluation mode, with parameters that are all random."""
  generator = torch.Generator().manual_seed(1)
  for parameter in module.parameters():
    parameter.data = torch.randn(parameter.shape, generator=generator) / 3
  return module.eval()


queries, keys, values = draw(B, T, D), draw(B, S, 8), draw(B, S, 6)
module = drawn(torch.nn.MultiheadAttention(D, N, batch_first=True))
store("mha", module, {"queries": queries}, module(queries, queries, queries)[0])
module = drawn(torch.nn.MultiheadAttention(D, N, kdim=8, vdim=6, bias=False, batch_first=True))
inputs = {"queries": queries, "keys": keys, "values": values}
store("cross", module, inputs, module(queries, keys, values)[0])

for name, options in {"post": {}, "pre": {"norm_first": True, "activation": "gelu"}}.items():
  module = drawn(torch.nn.TransformerEncoderLayer(D, N, F, batch_first=True, **options))
  store(f"encoder_{name}", module, {"inputs": queries}, module(queries))

module = drawn(torch.nn.GRU(D, 5, bidirectional=True, batch_first=True))
store("gru", module, {"inputs": queries}, module(queries)[0])

config = transformers.BertConfig(hidden_size=D, num_attention_heads=N, intermediate_size=F, **EAGER)
module = drawn(BertLayer(config))
store("bert", module, {"inputs": queries}, module(queries))

config = transformers.GPT2Config(n_embd=D, n_head=N, n_inner=F, **EAGER)
module = drawn(GPT2Block(config, layer_idx=0))
causal = torch.full((1, 1, T, T), -1e30).triu(1)
outputs = module(queries, attention_mask=causal)
store("gpt2", module, {"inputs": queries}, outputs[0] if isinstance(outputs, tuple) else outputs)

config = transformers.T5Config(
  d_model=D,
  d_kv=5,
  num_heads=N,
  relative_attention_num_buckets=8,
  relative_attention_max_distance=16,
  **EAGER,
)
module = drawn(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
store("t5", module, {"inputs": queries}, module(queries)[0])

config = transformers.LlamaConfig(
  hidden_size=24, num_attention_heads=4, num_key_value_heads=2, intermediate_size=F, **EAGER
)
module = drawn(LlamaDecoderLayer(config, 0))
inputs, positions = draw(B, T, 24), torch.arange(T)[None]
rotary = LlamaRotaryEmbedding(config)(inputs, positions)
outputs = module(inputs, attention_mask=causal, position_ids=positions, position_embeddings=rotary)
store("llama", module, {"inputs": inputs}, outputs[0] if isinstance(outputs, tuple) else outputs)

for name, options in {
  "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
  "yarn": {"factor": 4.0},
}.items():
  rope = {"rope_type": name, "rope_theta": 5e4, "original_max_position_embeddings": 512, **options}
  config = transformers.LlamaConfig(
    hidden_size=64,
    num_attention_heads=2,
    rope_parameters=rope,
    max_position_embeddings=int(512 * options["factor"]),
  )
  frequencies, scale = ROPE_INIT_FUNCTIONS[name](config, device="cpu")
  arrays[f"rope/{name}"], arrays[f"rope/{name}_scale"] = frequencies.numpy(), np.float32(scale)

config = transformers.LlamaConfig(
  hidden_size=64,
  num_attention_heads=2,
  max_position_embeddings=2048,
  rope_parameters={
    "rope_type": "yarn",
    "rope_theta": 5e4,
    "original_max_position_embeddings": 512,
    "factor": 4.0,
    "truncate": False,
  },
)
frequencies, scale = ROPE_INIT_FUNCTIONS["yarn"](config, device="cpu")
arrays["rope/yarn_without_truncation"] = frequencies.numpy()

module = drawn(torch.nn.MultiheadAttention(D, N, add_zero_attn=True, batch_first=True))
store("zero_attn", module, {"queries": queries}, module(queries, queries, queries)[0])

# Models with the parameter names of Llama. `head_dim` is not hidden_size / num_attention_heads.
for name, (kind, options) in {
  "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
  "qwen2": ("Qwen2", {}),
  "qwen3": ("Qwen3", {"head_dim": 6}),
  "gemma": ("Gemma", {"head_dim": 6}),
}.items():
  config = getattr(transformers, f"{kind}Config")(
    hidden_size=D, num_attention_heads=2, num_key_value_heads=1, intermediate_size=F, **options, **EAGER
  )
  models = importlib.import_module(f"transformers.models.{kind.lower()}.modeling_{kind.lower()}")
  module = drawn(getattr(models, f"{kind}DecoderLayer")(config, 0))
  rotary = getattr(models, f"{kind}RotaryEmbedding")(config)(queries, positions)
  outputs = module(queries, attention_mask=causal, position_ids=positions, position_embeddings=rotary)
  store(name, module, {"inputs": queries}, outputs[0] if isinstance(outputs, tuple) else outputs)

for buckets, max_distance in ((8, 800), (32, 128)):
  distances = torch.arange(-1000, 1000)
  arrays[f"t5_buckets/{buckets}_{max_distance}"] = np.stack(
    [
      T5Attention._relative_position_bucket(distances, bidirectional, buckets, max_distance).numpy()
      for bidirectional in (False, True)
    ]
  ).astype(np.uint8)

np.savez_compressed(pathlib.Path(__file__).with_name("references.npz"), **arrays)
