"""The suites of the benchmark: cases that are measured together, and their baselines."""

from experiments.benchmarks.baselines import BASELINES
from experiments.benchmarks.cases import NORMALIZERS, Case

# Baselines that do not store all scores.
MEMORY_EFFICIENT = ("attention", "torch", "tokamax xla_chunked")

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

# Baselines and cases of each suite.
SUITES = {
  "dot_product": (
    BASELINES,
    [
      Case("dot_product", 32, 50, 8, 32),
      *(
        Case("dot_product", *sizes, padded=True)
        for sizes in ((128, 16, 4, 32), (32, 20, 8, 64), (32, 50, 8, 32))
      ),
      *(Case("dot_product", 8, 512, 8, 64, causal=causal) for causal in (False, True)),
      *(Case("dot_product", 1, 4096, 8, 64, causal=causal) for causal in (False, True)),
    ],
  ),
  "additive": (
    BASELINES,
    [
      Case("additive", 32, 50, 1, 256),
      Case("additive", 2, 512, 1, 256),
      Case("additive", 2, 512, 4, 64),
      Case("additive", 1, 2048, 1, 128),
      Case("dot_product", 1, 2048, 1, 128),
    ],
  ),
  "length": (
    ("attention", "einsum", "jax.nn", "torch"),
    [Case(score, 1, length, 1, 64) for score in ("dot_product", "additive") for length in _LENGTHS],
  ),
  "window": (
    MEMORY_EFFICIENT,
    [
      Case("dot_product", 1, 32768, 1, 64, causal=True),
      Case("dot_product", 1, 32768, 1, 64, causal=True, window=512),
    ],
  ),
  "normalizers": (
    ("attention",),
    [
      Case("dot_product", *sizes, normalizer=normalizer)
      for sizes in ((8, 512, 8, 64), (1, 4096, 8, 64), (1, 16384, 1, 64))
      for normalizer in NORMALIZERS
    ],
  ),
  "gpu": (
    BASELINES,
    [
      *(
        Case("dot_product", 2**15 // length, length, 16, width, causal, dtype="bfloat16")
        for width in (64, 128)
        for causal in (False, True)
        for length in (2048, 4096, 8192, 16384)
      ),
      *(Case("additive", 8, length, 1, 256, dtype="bfloat16") for length in (512, 2048)),
    ],
  ),
}
