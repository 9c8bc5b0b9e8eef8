"""Writes references.npz: weights, inputs and outputs of layers of PyTorch and models of Transformers.

test_convert.py reads it. This script needs `pip install torch transformers`. The file was written with torch
2.14.1 and transformers 5.24.0, by `python tests/data/make_references.py`.
"""

import json
import pathlib

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.t5.modeling_t5 import T5Attention

B, T, S, D, N, F = 2, 7, 5, 12, 3, 20
EAGER = {"attn_implementation": "eager"}
arrays = {}


def draw(*shape):
  return torch.randn(*shape, generator=torch.Generator().manual_seed(len(arrays)))


def store(name, module, inputs, outputs):
  """Stores the state of a module, its inputs and its outputs, in float32 or as small integers."""
  for key, value in [*module.state_dict().items(), *inputs.items(), ("outputs", outputs)]:
    array = value.detach().numpy()
    arrays[f"{name}/{key}"] = array.astype(np.float32 if array.dtype.kind == "f" else np.int8)


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

# Whole models. Windows are shorter than the sentences, and in some models H is not D / N.
V, LONG = 11, 13
SIZES = {
  "hidden_size": 8,
  "num_attention_heads": 2,
  "num_hidden_layers": 2,
  "intermediate_size": 6,
  "vocab_size": V,
  "max_position_embeddings": 32,
}
GROUPED = {**SIZES, "num_key_value_heads": 1}
LENGTHS = torch.tensor([LONG, 5])
tokens = torch.randint(V, (B, LONG), generator=torch.Generator().manual_seed(2))
is_token = torch.arange(LONG) < LENGTHS[:, None]


def rope(kind, **options):
  return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **options}}


def drawn_model(name, model):
  """Returns the model in evaluation mode, with parameters that are all random; stores its config."""
  generator = torch.Generator().manual_seed(1)
  for key, parameter in model.named_parameters():
    is_scale = "norm" in key.lower() and key.endswith("weight") and "gemma" not in name
    parameter.data = torch.randn(parameter.shape, generator=generator) / 3 + is_scale
  arrays[f"{name}/config"] = np.array(json.dumps(model.config.to_dict(), default=str))
  return model.eval()


def store_model(name, model, **inputs):
  """Stores a model, its inputs, and its logits."""
  with torch.no_grad():
    outputs = drawn_model(name, model)(**inputs)
  store(name, model, inputs, outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state)


def store_greedy(name, model, prompt, count, key="input_ids", **inputs):
  """Stores the tokens that follow a prompt in greedy search without a cache."""
  for _ in range(count):
    with torch.no_grad():
      logits = model(**inputs, **{key: prompt}).logits
    prompt = torch.cat([prompt, logits[:, -1:].argmax(-1)], dim=1)
  arrays[f"{name}/greedy"] = prompt[:, -count:].numpy()


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=8)
TURNS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
for name, (kind, options) in {
  "llama": ("Llama", {**GROUPED, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.1}),
  "llama_biases": (
    "Llama",
    {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
  ),
  "llama_3": (
    "Llama",
    {**SIZES, **rope("llama3", factor=8.0, original_max_position_embeddings=8, **TURNS)},
  ),
  "llama_yarn": ("Llama", {**SIZES, **YARN}),
  "llama_linear": ("Llama", {**SIZES, **rope("linear", factor=4.0)}),
  "mistral": ("Mistral", {**GROUPED, "sliding_window": 4, "head_dim": 6}),
  "qwen2": ("Qwen2", {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
  "qwen3": ("Qwen3", {**GROUPED, "head_dim": 6}),
  "gemma": ("Gemma", {**GROUPED, "head_dim": 6}),
  "gemma2": (
    "Gemma2",
    {
      **GROUPED,
      "head_dim": 6,
      "sliding_window": 4,
      "query_pre_attn_scalar": 5,
      "attn_logit_softcapping": 0.5,
      "final_logit_softcapping": 2.0,
    },
  ),
  "stablelm": ("StableLm", {**SIZES, "hidden_size": 16, "num_key_value_heads": 1, "use_qkv_bias": True}),
  "gpt2": (
    "GPT2",
    {"n_embd": 8, "n_head": 2, "n_layer": 2, "n_inner": 6, "vocab_size": V, "n_positions": 32},
  ),
}.items():
  config = getattr(transformers, f"{kind}Config")(**options, **EAGER)
  suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
  model = getattr(transformers, f"{kind}{suffix}")(config)
  store_model(name, model, input_ids=tokens)
  store_greedy(name, model, tokens[:, :7], 9)

config = transformers.GptOssConfig(
  **GROUPED,
  head_dim=6,
  num_local_experts=2,
  num_experts_per_tok=1,
  sliding_window=4,
  **rope("yarn", factor=4.0, original_max_position_embeddings=8, truncate=False, attention_factor=1.5),
  **EAGER,
)
model, inputs = drawn_model("gpt_oss", transformers.GptOssForCausalLM(config)), draw(B, LONG, 8)
rotary = model.model.rotary_emb(inputs, torch.arange(LONG)[None])
t, s = torch.arange(LONG)[:, None], torch.arange(LONG)
for layer, window in enumerate((4, LONG)):
  mask = torch.where((s <= t) & (t - s < window), 0.0, -1e30)[None, None]
  outputs = model.model.layers[layer].self_attn(inputs, position_embeddings=rotary, attention_mask=mask)[0]
  arrays[f"gpt_oss/outputs_{layer}"] = outputs.detach().numpy()
store("gpt_oss", model, {"inputs": inputs}, outputs)

for name, kind in {"bert": "Model", "bert_masked": "ForMaskedLM"}.items():
  model = getattr(transformers, f"Bert{kind}")(transformers.BertConfig(**SIZES, **EAGER))
  types = torch.arange(LONG).expand(B, -1) // 3 % 2
  store_model(name, model, input_ids=tokens, token_type_ids=types, attention_mask=is_token)

for name, options in {
  "t5": {"feed_forward_proj": "relu", "num_decoder_layers": 1},
  "t5_gated": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}.items():
  config = transformers.T5Config(
    vocab_size=V,
    d_model=8,
    d_kv=5,
    d_ff=6,
    num_layers=2,
    num_heads=2,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=10,
    **options,
    **EAGER,
  )
  inputs = {"input_ids": tokens, "attention_mask": is_token.long()}
  model = transformers.T5ForConditionalGeneration(config)
  store_model(name, model, **inputs, decoder_input_ids=tokens.flip(0)[:, :9])
  store_greedy(name, model, torch.zeros(B, 1, dtype=torch.long), 9, "decoder_input_ids", **inputs)

for buckets, max_distance in ((8, 800), (32, 128)):
  distances = torch.arange(-1000, 1000)
  arrays[f"t5_buckets/{buckets}_{max_distance}"] = np.stack(
    [
      T5Attention._relative_position_bucket(distances, bidirectional, buckets, max_distance).numpy()
      for bidirectional in (False, True)
    ]
  ).astype(np.uint8)

np.savez_compressed(pathlib.Path(__file__).with_name("references.npz"), **arrays)
