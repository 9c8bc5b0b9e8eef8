"""Runs the attention tests of Flax with `flax_attention_fn` as the default `attention_fn` of its layers.

    git clone https://github.com/google/flax
    PYTHONPATH=. python tests/helpers/run_flax_tests.py flax/tests/linen/linen_attention_test.py
    PYTHONPATH=. python tests/helpers/run_flax_tests.py flax/tests/nnx/nn/attention_test.py

Five tests fail: `test_dtype_infer` of linen has complex inputs, and the four of `test_invalid_shapes` of NNX
compare the text of Flax's errors, or expect an error for shapes that broadcast here.
"""

import importlib.util
import sys

from absl.testing import absltest
from flax import linen as nn
from flax import nnx

from attention import flax_attention_fn


def replace_default(layer, function):
  """Makes a function the default of `attention_fn` in a layer class."""
  original = layer.__init__

  def init(self, *args, **kwargs):
    original(self, *args, **{"attention_fn": function, **kwargs})

  layer.__init__ = init


if __name__ == "__main__":
  function = flax_attention_fn(decode=True)
  for layer in (nn.MultiHeadDotProductAttention, nn.MultiHeadAttention, nnx.MultiHeadAttention):
    replace_default(layer, function)
  nn.dot_product_attention = nnx.dot_product_attention = function
  spec = importlib.util.spec_from_file_location("flax_tests", sys.argv.pop(1))
  sys.modules["flax_tests"] = module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  absltest.main(module=module)
