"""Derivatives that compile to different programs; test_every_derivative_at_size.py has all of them."""

import pytest
from derivatives import LONG, MANY, check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  ("kind", "engine", "name"),
  [
    ("scaled_dot_product", "blockwise", "grad"),
    ("additive", "blockwise", "grad"),
    ("scaled_dot_product", "blockwise", "vmap of jvp"),
    ("bilinear", "blockwise", "Hessian-vector"),
    ("additive", "blockwise", "Hessian-vector"),
    ("cosine", "dense", "Hessian-vector"),
    ("additive", "dense", "jvp"),
    ("scaled_dot_product", "blocks", "grad"),
    ("additive", "blocks", "grad"),
    ("scaled_dot_product", "windows", "grad"),
    ("scaled_dot_product", "blockwise", "grad of each example"),
  ],
)
def test_many_queries_and_keys(kind, engine, name):
  check(kind, engine, name, LONG)


@pytest.mark.parametrize(
  ("kind", "engine", "name"),
  [
    ("scaled_dot_product", "blockwise", "hessian"),
    ("additive", "blockwise", "vmap of Hessian-vector"),
    ("bilinear", "dense", "vmap of Hessian-vector"),
    ("scaled_dot_product", "blocks", "vmap of vjp"),
    ("cosine", "blockwise", "jacfwd"),
  ],
)
def test_many_directions(kind, engine, name):
  check(kind, engine, name, MANY)
