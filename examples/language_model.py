"""A published language model: Llama, Mistral, Qwen 2 or 3, Gemma 1 or 2, StableLM or GPT-2.

    python -m examples.language_model --model=folder --tokens=1,5,9 --num_tokens=20 --weights=weights.npz

continues the tokens greedily, and writes the attention weights, which
`experiments.explore --weights=weights.npz` shows. The folder has config.json and model.safetensors
(`pip install safetensors`).
"""

import jax.numpy as jnp

from attention import convert, decoding
from examples.files import NUM_TOKENS, read_model, read_tokens, write_weights
from experiments.cli import flags as cli


def forward(model, tokens, caches):
  """Returns logits [B T V], the new caches, and the attention weights [L B N T S], for tokens [B T]."""
  params, new_caches, weights = model.params, [], []
  vectors = params["embedding"][tokens]
  if "positions" in params:  # GPT-2
    vectors += params["positions"][caches[0].length[:, None] + jnp.arange(tokens.shape[1])[None]]
  for variables, mask, cache in zip(params["layers"], model.masks, caches, strict=True):
    options = {"mask": mask, "cache": cache, "return_weights": True}
    vectors, layer_weights, cache = model.layer.apply(variables, vectors, **options)
    new_caches.append(cache)
    weights.append(layer_weights)
  logits = model.norm.apply(params["norm"], vectors) @ params["head"].T
  if model.logit_cap is not None:  # Gemma 2
    logits = model.logit_cap * jnp.tanh(logits / model.logit_cap)
  return logits, new_caches, jnp.stack(weights)


def init_caches(model, batch_size, length):
  """Returns an empty cache for each layer, with room for `length` tokens."""
  params = model.params
  if length > len(params.get("positions", range(length))):
    raise cli.UsageError(
      f"length must be at most {len(params['positions'])}, the number of positions, got {length}"
    )
  vectors = jnp.zeros((batch_size, 1, params["embedding"].shape[1]), params["embedding"].dtype)
  return [model.layer.apply(layer, vectors, length, method="init_cache") for layer in params["layers"]]


def continue_greedily(model, prompt, num_tokens):
  """Returns the next tokens [B num_tokens] of a prompt [B T]."""
  B, T = prompt.shape
  _, caches, _ = forward(model, prompt[:, :-1], init_caches(model, B, T + num_tokens))

  def step(caches, tokens):
    logits, caches, _ = forward(model, tokens[:, None], caches)
    return caches, logits[:, 0], None

  options = {"batch_size": B, "max_length": num_tokens, "eos_id": -1}
  return decoding.greedy(step, caches, bos_id=prompt[:, -1], **options).tokens


def main():
  config, state = read_model()
  model = (convert.gpt2 if config["model_type"] == "gpt2" else convert.llama)(config, state)
  prompt = read_tokens(len(model.params["embedding"]))
  tokens = jnp.concatenate([prompt, continue_greedily(model, prompt, NUM_TOKENS.value)], axis=1)
  print(*tokens[0].tolist(), sep=",")
  _, _, weights = forward(model, tokens, init_caches(model, *tokens.shape))
  write_weights(weights[:, 0], tokens=tokens[0])


if __name__ == "__main__":
  cli.run(main)
