"""Draws attention weights with their tokens, like the figures of runs.

    python -m examples.plot_weights --output=weights.png

For the weights of another model, call `attention_map` with an array [T S], S source and T target tokens.
"""

import jax
import jax.numpy as jnp

from attention import cosine_attention, masks
from experiments.cli import flags as cli
from experiments.cli.io import define_output, output_path
from experiments.figures.attention_maps import attention_map
from experiments.figures.figures import save

_OUTPUT = define_output("PNG file to write (required)")

TOKENS = ["the", "red", "cat", "sees", "the", "dog", "and", "the", "dog", "sees", "the", "cat"]


def self_attention(tokens):
  """Returns causal attention weights [T T] of random embeddings; equal tokens have equal embeddings."""
  vocabulary = sorted(set(tokens))
  embeddings = jax.random.normal(jax.random.key(0), (len(vocabulary), 16))
  vectors = embeddings[jnp.array([vocabulary.index(token) for token in tokens])]
  output = cosine_attention(vectors, vectors, vectors, scale=4.0, mask=masks.causal(), return_weights=True)
  return output.weights


def main():
  path = output_path(_OUTPUT)
  if path.suffix != ".png":
    raise cli.UsageError(f"--output must end in .png, got {str(path)!r}")
  save(attention_map(self_attention(TOKENS), TOKENS, TOKENS), path)


if __name__ == "__main__":
  cli.run(main)
