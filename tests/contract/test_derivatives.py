"""First and second derivatives of "dense", which are the oracle of other tests.

They are compared with finite differences in float64.
"""

import jax
import numpy as np
import pytest
from cases import DIMS, SCORES, attend_fully, draw
from jax.test_util import check_grads

import attention

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64")]

B, T, S = DIMS["BTS"]
# Row 0 is empty.
ALLOWED = np.array([[0, 0, 0, 0, 0], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], bool)


def check(function, inputs, modes):
  check_grads(jax.jit(function), (inputs,), order=2, modes=modes, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", SCORES)
def test_derivatives_of_scores(kind):
  def results(inputs):
    context, weights, logsumexp = attend_fully(inputs, mask=ALLOWED, implementation="dense")
    return context, weights, logsumexp[1:]

  check(results, draw(kind, "TH", "SH", "SD", dtype=np.float64), ["fwd", "rev"])


RANDOM = np.random.default_rng(7)
NORMALIZERS = {
  "sink": (lambda sink: attention.Softmax(sink), RANDOM.normal(size=B)),
  "sparsemax": (lambda _: attention.Sparsemax(), 0.0),
  "entmax15": (lambda _: attention.Entmax15(), 0.0),
  "sigmoid": (lambda _: attention.Sigmoid(), 0.0),
  "sigmoid_less_log_keys": (lambda _: attention.Sigmoid(subtract_log_length=True), 0.0),
  "softpick": (lambda _: attention.Softpick(), 0.0),
  "stick_breaking": (lambda _: attention.StickBreaking(), 0.0),
  "monotonic": (lambda before: attention.Monotonic(before), RANDOM.dirichlet(np.ones(S), size=(B, T))),
  "local": (lambda centers: attention.GaussianWindow(centers, 1.5), RANDOM.uniform(0, S - 1, size=(B, T))),
}


@pytest.mark.parametrize(("make", "array"), NORMALIZERS.values(), ids=NORMALIZERS)
def test_derivatives_of_normalizers(make, array):
  inputs = draw("scaled_dot_product", bias="BTS", dtype=np.float64)
  inputs = inputs._replace(bias=2 * inputs.bias)  # scores that differ by units, so that some weights are 0

  def results(inputs_and_array):
    score, queries, keys, values, bias = inputs_and_array[0]
    output = attention.attend(
      score,
      queries,
      keys,
      values,
      bias=bias,
      mask=ALLOWED,
      normalizer=make(inputs_and_array[1]),
      return_weights=True,
      implementation="dense",
    )
    return output.context, output.weights

  check(results, (inputs, np.asarray(array)), ["rev"])
