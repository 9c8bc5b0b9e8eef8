"""Derivatives of attention in 300 directions at once, with default compiler options."""

import pytest
from helpers.derivatives import DERIVATIVES, Size, check, check_of_each_example
from helpers.fixtures import ENGINES, SCORES, always

SIZE = Size(
  examples=4, T=16, S=16, H=8, D=8, directions=300, looked_at=(0, 1, 131, 298, 299), block_sizes=(7, 6)
)


@pytest.mark.parametrize(
  ("implementation", "name"),
  always(
    *(("blockwise", name) for name in ("grad", "hessian")),
    ("dense", "Hessian-vector"),
    of=[(engine, name) for engine in ENGINES for name in DERIVATIVES],
  ),
)
def test_derivatives_are_right(implementation, name):
  check(SCORES, SIZE, implementation, name)


@pytest.mark.parametrize("name", always("grad", of=DERIVATIVES))
def test_derivatives_of_many_tiles_are_right(name):
  check(["scaled_dot_product", "additive"], SIZE, "in blocks", name)


@pytest.mark.parametrize(
  ("implementation", "name"),
  always(
    ("blockwise", "jvp"),
    of=[(engine, name) for engine in ENGINES for name in DERIVATIVES if not name.startswith("vmap")],
  ),
)
def test_derivatives_of_each_example_are_right(implementation, name):
  check_of_each_example(SCORES, SIZE, implementation, name)
