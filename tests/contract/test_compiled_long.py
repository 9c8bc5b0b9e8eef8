"""Derivatives of attention of 512 queries to 512 keys, compiled as users do."""

import pytest
from helpers.derivatives import Size, check, check_of_each_example
from helpers.fixtures import engines, kinds

# Those that are compiled to programs unlike each other; test_compiled_many.py has all of them.
NAMES = ("grad", "jvp", "jacrev", "vmap of jvp", "Hessian-vector")
SIZE = Size(examples=2, T=512, S=512, H=16, D=8, directions=32, looked_at=(0, 17, 31), block_sizes=(128, 192))


@kinds
@engines
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_right(kind, implementation, name):
  check(kind, SIZE, implementation, name)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
@pytest.mark.parametrize("engine", ["in blocks", "in windows"])
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_many_tiles_are_right(kind, engine, name):
  check(kind, SIZE, engine, name)


@kinds
@engines
def test_gradients_of_each_example_are_right(kind, implementation):
  check_of_each_example(kind, SIZE, implementation, "grad")
