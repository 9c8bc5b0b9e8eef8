"""All derivatives of all scores, at sizes at which compilers fuse."""

import pytest
from derivatives import DERIVATIVES, ENGINES, LONG, MANY, SCORES, check

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("name", ["grad", "jvp", "Hessian-vector", "vmap of jvp", "grad of each example"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", SCORES)
def test_many_queries_and_keys(kind, engine, name):
  check(kind, engine, name, LONG)


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("engine", ["dense", "blockwise", "blocks"])
@pytest.mark.parametrize("kind", SCORES)
def test_many_directions(kind, engine, name):
  check(kind, engine, name, MANY)
