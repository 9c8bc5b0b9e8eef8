"""Derivatives of attention in 300 directions at once, compiled as users do."""

import pytest
from helpers.derivatives import DERIVATIVES, Size, check, check_of_each_example
from helpers.fixtures import engines, kinds

SIZE = Size(
  examples=4, T=16, S=16, H=8, D=8, directions=300, looked_at=(0, 1, 131, 298, 299), block_sizes=(7, 6)
)


@kinds
@engines
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_right(kind, implementation, name):
  check(kind, SIZE, implementation, name)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_many_tiles_are_right(kind, name):
  check(kind, SIZE, "in blocks", name)


@kinds
@engines
@pytest.mark.parametrize("name", [name for name in DERIVATIVES if not name.startswith("vmap")])
def test_derivatives_of_each_example_are_right(kind, implementation, name):
  check_of_each_example(kind, SIZE, implementation, name)
