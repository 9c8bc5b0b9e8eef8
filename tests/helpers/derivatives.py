"""All derivatives of attention compared with `vectorized_reference`, at sizes at which compilers fuse.

Results that are correct for 3 queries and 5 keys can be wrong for more: with jaxlib 0.10.2, many batched
derivatives of "blockwise" were off by up to 350%, while all tests of small arrays passed.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attention
from attention import masks
from helpers import vectorized_reference
from helpers.fixtures import SCORES, Inputs
from helpers.vectorized_reference import Outputs

# Relative to the largest number. Gradients of a single parameter are sums of half a million terms with
# cancellation: errors of 4e-5 were seen. Compiler errors were larger than 0.5.
TOLERANCE = 1e-4


class Size(NamedTuple):
  """Sizes of the inputs, the number of directions, and which directions to check.

  With `block_sizes`, the last blocks of queries and keys should extend beyond the end.
  """

  examples: int
  T: int
  S: int
  H: int
  D: int
  directions: int
  looked_at: tuple[int, ...]
  block_sizes: tuple[int, int]


class Case(NamedTuple):
  """The inputs and directions of a derivative.

  Attributes:
    inputs: with a leading axis for examples, except for parameters.
    directions: one per number in `steps`, each like the inputs.
    of_outputs: factors of the outputs, one set per number that is read.
  """

  inputs: Inputs
  directions: Inputs
  of_outputs: Outputs


def draw(kind: str, size: Size) -> Case:
  """Returns random numbers in float32."""
  rng = np.random.default_rng(0)
  widths = {"H": size.H, "K": size.H}

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  def inputs(*stack):
    return Inputs(
      queries=normal(*stack, size.examples, size.T, size.H),
      keys=normal(*stack, size.examples, size.S, size.H),
      values=normal(*stack, size.examples, size.S, size.D),
      parameters={
        name: normal(*stack, *(widths[axis] for axis in axes))
        for name, axes in SCORES[kind].parameters.items()
      },
    )

  at = inputs()
  # Small, so that scores are of order one.
  at = at._replace(parameters={name: 0.3 * np.abs(array) for name, array in at.parameters.items()})
  rows = size.directions, size.examples, size.T
  return Case(at, inputs(size.directions), Outputs(normal(*rows, size.D), normal(*rows)))


# Window size of each mask. "in windows" does not compute keys before the window.
REACH = {"dense": None, "blockwise": None, "in blocks": None, "in windows": 40}


def run(kind: str, engine: str, size: Size, inputs: Inputs) -> Outputs:
  """Returns the library's outputs; the first query is fully masked."""
  mask = masks.causal(offset=-1)
  context, _, logsumexp = attention.attend(
    SCORES[kind].score(**inputs.parameters),
    *inputs[:3],
    mask=mask if REACH[engine] is None else mask & masks.sliding_window(REACH[engine], 0),
    return_logsumexp=True,
    implementation="dense" if engine == "dense" else "blockwise",
    block_sizes=size.block_sizes if engine == "in blocks" else None,
  )
  return Outputs(context, jnp.where(logsumexp > -jnp.inf, logsumexp, 0))


def move(tree: Any, directions: Any, steps: jax.Array) -> Any:
  """Returns a tree moved along each direction by a number of steps."""
  return jax.tree.map(lambda leaf, of: leaf + jnp.einsum("i,i...->...", steps, of), tree, directions)


def read(of_outputs: Outputs, outputs: Outputs) -> jax.Array:
  """Returns a number per set of factors, linear in the outputs."""
  return sum(jnp.einsum("i...,...->i", *pair) for pair in zip(of_outputs, outputs, strict=True))


def loss(of_outputs: Outputs, outputs: Outputs) -> jax.Array:
  """Returns a nonlinear function of the context."""
  return read(of_outputs, outputs._replace(context=outputs.context**2 / 2))[0]


def take(tree: Any, index: Any, axis: int = 0) -> Any:
  return jax.tree.map(lambda leaf: leaf[(slice(None),) * (axis % leaf.ndim) + (index,)], tree)


def first(tree: Any) -> Any:
  return take(tree, 0)


def stack(trees: Any) -> Any:
  return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


# Each takes a function from inputs to outputs, and a Case.
DERIVATIVES: dict[str, Callable[[Callable[[Inputs], Outputs], Case], Any]] = {
  "grad": lambda f, c: jax.grad(lambda inputs: loss(c.of_outputs, f(inputs)))(c.inputs),
  "jvp": lambda f, c: jax.jvp(f, (c.inputs,), (first(c.directions),))[1],
  "vjp": lambda f, c: jax.vjp(f, c.inputs)[1](first(c.of_outputs))[0],
  "jacfwd": lambda f, c: jax.jacfwd(lambda steps: f(move(c.inputs, c.directions, steps)))(zeros(c)),
  "jacfwd of a shift": lambda f, c: jax.jacfwd(
    lambda steps: f(c.inputs._replace(queries=shifted(c, steps))).context
  )(zeros(c)),
  "jacrev": lambda f, c: jax.jacrev(lambda inputs: read(c.of_outputs, f(inputs)))(c.inputs),
  "hessian": lambda f, c: jax.hessian(
    lambda steps: loss(c.of_outputs, f(move(c.inputs, c.directions, steps)))
  )(zeros(c)),
  "Hessian-vector": lambda f, c: hessian_vector(f, c, first(c.directions)),
  "vmap of jvp": lambda f, c: jax.vmap(lambda d: jax.jvp(f, (c.inputs,), (d,))[1])(c.directions),
  "vmap of vjp": lambda f, c: jax.vmap(lambda of: jax.vjp(f, c.inputs)[1](of)[0])(c.of_outputs),
  "vmap of Hessian-vector": lambda f, c: jax.vmap(lambda d: hessian_vector(f, c, d))(c.directions),
}


def shifts(directions: Inputs) -> jax.Array:
  """Returns a vector per direction, [N H], by which all queries are moved."""
  queries = directions.queries
  return queries.reshape(len(queries), -1, queries.shape[-1])[:, 0]


def shifted(case: Case, steps: jax.Array) -> jax.Array:
  """Returns the queries, moved by each direction."""
  queries, shift = case.inputs.queries, steps @ shifts(case.directions)
  return queries + shift.reshape([1] * (queries.ndim - 1) + [-1])


def zeros(case: Case) -> jax.Array:
  return jnp.zeros(len(case.of_outputs.context), jnp.float32)


def hessian_vector(f, case: Case, direction: Inputs) -> Inputs:
  return jax.jvp(jax.grad(lambda inputs: loss(case.of_outputs, f(inputs))), (case.inputs,), (direction,))[1]


def expected(case: Case, looked_at: tuple[int, ...], kind: str, reach: int | None, name: str) -> Any:
  """Returns the expected derivative; its first axis are the checked directions."""
  inputs, directions, of_outputs = jax.tree.map(lambda leaf: leaf.astype(np.float64), case)
  pairs = inputs.queries.shape[-2], inputs.keys.shape[-2]
  allowed = np.tri(*pairs, -1, dtype=bool)
  if reach is not None:
    allowed &= ~np.tri(*pairs, -reach - 1, dtype=bool)
  attend = functools.partial(vectorized_reference.attend, kind, allowed=allowed)
  gradients = functools.partial(vectorized_reference.gradients, kind, allowed=allowed)

  def gradient_of_loss(inputs):
    of = first(of_outputs)
    return gradients(inputs, of=of._replace(context=of.context * attend(inputs).context))

  def in_directions(function, at=looked_at, directions=directions):
    return stack([vectorized_reference.derivative(function, inputs, take(directions, i)) for i in at])

  def vjps(at=looked_at):
    return stack([gradients(inputs, of=take(of_outputs, i)) for i in at])

  def of_shift():
    others = jax.tree.map(np.zeros_like, directions._replace(queries=None))
    shift = shifts(directions).reshape(len(directions.queries), *[1] * (inputs.queries.ndim - 1), -1)
    return in_directions(attend, directions=others._replace(queries=shift)).context

  def hessian():
    hvps = in_directions(gradient_of_loss)
    return np.array(
      [[dot(take(hvps, i), take(directions, j)) for j in looked_at] for i in range(len(looked_at))]
    )

  def dot(one, other):
    return sum(np.sum(a * b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))

  return {
    "grad": lambda: gradient_of_loss(inputs),
    "jvp": lambda: first(in_directions(attend, at=(0,))),
    "vjp": lambda: first(vjps(at=(0,))),
    "jacfwd": lambda: in_directions(attend),
    "jacfwd of a shift": of_shift,
    "jacrev": vjps,
    "hessian": hessian,
    "Hessian-vector": lambda: first(in_directions(gradient_of_loss, at=(0,))),
    "vmap of jvp": lambda: in_directions(attend),
    "vmap of vjp": vjps,
    "vmap of Hessian-vector": lambda: in_directions(gradient_of_loss),
  }[name]()


def look_at(name: str, result: Any, looked_at: tuple[int, ...]) -> Any:
  """Returns the entries of `expected` from a derivative of the library in all directions."""
  directions = list(looked_at)
  if name == "hessian":
    return result[directions][:, directions]
  if name.startswith("jacfwd"):  # JAX puts the axes of inputs after those of outputs.
    return jax.tree.map(lambda leaf: np.moveaxis(leaf[..., directions], -1, 0), result)
  return take(result, directions) if name.startswith(("jacrev", "vmap")) else result


def assert_right(actual: Any, desired: Any, name: str) -> None:
  for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
    np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * np.max(np.abs(other)), err_msg=name)


def check(kinds: Iterable[str], size: Size, engine: str, name: str) -> None:
  """Asserts that a derivative is correct for each score, compiled with default options.

  All scores are compiled as one program, in a third of the time of separate programs. They share no arrays,
  so each is compiled as it would be alone.
  """
  cases = {kind: draw(kind, size) for kind in kinds}

  functions = {kind: functools.partial(run, kind, engine, size) for kind in cases}

  @jax.jit
  def differentiate(cases):
    return {kind: DERIVATIVES[name](functions[kind], case) for kind, case in cases.items()}

  actual = jax.tree.map(np.asarray, differentiate(cases))
  for kind, case in cases.items():
    desired = expected(case, size.looked_at, kind, REACH[engine], name)
    assert_right(look_at(name, actual[kind], size.looked_at), desired, kind)


def check_of_each_example(kinds: Iterable[str], size: Size, engine: str, name: str) -> None:
  """Like `check`, for each example under `jax.vmap`; examples share the parameters."""
  of_own = Case(Inputs(0, 0, 0, None), Inputs(1, 1, 1, None), Outputs(1, 1))
  cases = {kind: draw(kind, size) for kind in kinds}

  functions = {kind: functools.partial(run, kind, engine, size) for kind in cases}

  @jax.jit
  def differentiate(cases):
    item = {kind: functools.partial(DERIVATIVES[name], function) for kind, function in functions.items()}
    return {kind: jax.vmap(item[kind], in_axes=(of_own,))(case) for kind, case in cases.items()}

  actual = jax.tree.map(np.asarray, differentiate(cases))
  for kind in cases:
    for i, one in enumerate(examples(kind, size)):
      desired = expected(one, size.looked_at, kind, None, name)
      assert_right(look_at(name, take(actual[kind], i), size.looked_at), desired, f"{kind}, example {i}")


def examples(kind: str, size: Size) -> list[Case]:
  """Returns a case for each example."""
  case = draw(kind, size)
  (inputs, directions, of_outputs), parameters = case, case.inputs.parameters
  return [
    Case(
      take(inputs._replace(parameters=None), i)._replace(parameters=parameters),
      take(directions._replace(parameters=None), i, axis=1)._replace(parameters=directions.parameters),
      take(of_outputs, i, axis=1),
    )
    for i in range(size.examples)
  ]
