"""T5, with a cache in the decoder.

    python -m examples.t5 --model=folder --tokens=13959,1566,12,2968,1 --num_tokens=20 --weights=weights.npz

decodes greedily, and writes the weights of the cross-attention; see `language_model`.
"""

import jax.numpy as jnp

from attention import convert, decoding, masks
from examples.files import NUM_TOKENS, read_model, read_tokens, write_weights
from experiments.cli import flags as cli


def encode(encoder, sources, lengths):
  """Returns the memory [B S D] of sources [B S] with lengths [B]."""
  params = encoder.params
  vectors, mask = params["embedding"][sources], masks.lengths(source=lengths[:, None])
  for variables in params["layers"]:
    vectors = encoder.layer.apply(variables, vectors, mask=mask, bias=params["bias"])
  return encoder.norm.apply(params["norm"], vectors)


def init_state(decoder, memory, length):
  """Returns a cache, and the projected keys and values of the memory, for each layer of the decoder."""
  apply, layers = decoder.layer.apply, decoder.params["layers"]
  caches = [apply(variables, memory[:, :1], length, method="init_cache") for variables in layers]
  return caches, [apply(variables, memory, method="project_kv") for variables in layers]


def decode(decoder, targets, caches, keys_values, lengths):
  """Returns logits [B T V], the new caches and weights [L B N T S], for the next targets [B T]."""
  params, new_caches, weights = decoder.params, [], []
  vectors, mask = params["embedding"][targets], masks.lengths(source=lengths[:, None])
  for variables, cache, keys_and_values in zip(params["layers"], caches, keys_values, strict=True):
    options = {"source_mask": mask, "bias": params["bias"], "cache": cache, "return_weights": True}
    vectors, layer_weights, cache = decoder.layer.apply(
      variables, vectors, keys_and_values, **options, method="attend_with_kv"
    )
    new_caches.append(cache)
    weights.append(layer_weights)
  logits = decoder.norm.apply(params["norm"], vectors) @ params["head"].T
  return logits, new_caches, jnp.stack(weights)


def translate(encoder, decoder, sources, lengths, max_length, bos_id=0, eos_id=1):
  """Returns targets [B max_length], with padding after the end, and weights [L B N T S]."""
  memory = encode(encoder, sources, lengths)
  caches, keys_values = init_state(decoder, memory, max_length)

  def step(caches, tokens):
    logits, caches, _ = decode(decoder, tokens[:, None], caches, keys_values, lengths)
    return caches, logits[:, 0], None

  options = {"batch_size": len(sources), "max_length": max_length, "bos_id": bos_id, "eos_id": eos_id}
  tokens = decoding.greedy(step, caches, **options).tokens
  inputs = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)
  return tokens, decode(decoder, inputs, caches, keys_values, lengths)[2]


def main():
  encoder, decoder = convert.t5(*read_model())
  sources = read_tokens(len(encoder.params["embedding"]))
  (tokens,), weights = translate(encoder, decoder, sources, jnp.array([sources.shape[1]]), NUM_TOKENS.value)
  count = [*tokens.tolist(), 1].index(1) + 1  # including the end
  print(*tokens[:count].tolist(), sep=",")
  write_weights(weights[:, 0, :, :count], source=sources[0], target=tokens[:count])


if __name__ == "__main__":
  cli.run(main)
