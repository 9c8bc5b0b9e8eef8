"""Derivatives of attention with 512 queries and keys, with default compiler options."""

import pytest
from helpers.derivatives import Size, check, check_of_each_example
from helpers.fixtures import ENGINES, SCORES, always

# Derivatives that compile to different programs; test_compiled_many.py has all of them.
NAMES = ("grad", "jvp", "jacrev", "vmap of jvp", "Hessian-vector")
SIZE = Size(examples=2, T=512, S=512, H=16, D=8, directions=32, looked_at=(0, 17, 31), block_sizes=(128, 192))


@pytest.mark.parametrize(
  ("kind", "implementation", "name"),
  always(
    *((kind, "blockwise", "grad") for kind in ("scaled_dot_product", "additive")),
    *(("scaled_dot_product", "blockwise", "vmap of jvp"), ("bilinear", "blockwise", "jacrev")),
    *(("cosine", "dense", "Hessian-vector"), ("user_defined", "blockwise", "jvp")),
    of=[(kind, engine, name) for kind in SCORES for engine in ENGINES for name in NAMES],
  ),
)
def test_derivatives_are_right(kind, implementation, name):
  check([kind], SIZE, implementation, name)


@pytest.mark.parametrize(
  ("kind", "engine", "name"),
  always(
    ("scaled_dot_product", "in windows", "grad"),
    of=[
      (kind, engine, name)
      for kind in ("scaled_dot_product", "additive")
      for engine in ("in blocks", "in windows")
      for name in NAMES
    ],
  ),
)
def test_derivatives_of_many_tiles_are_right(kind, engine, name):
  check([kind], SIZE, engine, name)


@pytest.mark.parametrize(
  ("kind", "implementation"),
  always(("scaled_dot_product", "blockwise"), of=[(kind, engine) for kind in SCORES for engine in ENGINES]),
)
def test_gradients_of_each_example_are_right(kind, implementation):
  check_of_each_example([kind], SIZE, implementation, "grad")
