"""Flax: multi-head attention with parameters; the layer calls the pure functions of this package."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype, Initializer

from attention.arrays.checks import as_array, check_size
from attention.engines.bias import BiasLike
from attention.engines.softmax import Normalizer
from attention.grouped_heads import attend_heads
from attention.layers import cache as caches
from attention.layers.cache import KeyValueCache
from attention.layers.projections import HeadLinear, LayerNorm, is_deterministic, kernel_init, promoted
from attention.linear import project
from attention.masks import Array, Mask
from attention.scores.score import Score


class MultiHeadAttention(nn.Module):
  """Multi-head attention: what `multi_head_attention` computes, with parameters.

  The parameters have the names and shapes of `flax.linen.MultiHeadDotProductAttention` (query, key and
  value kernels [D N H], out [N H D], scales query_ln and key_ln [H]), so either can use the other's. Dtypes,
  initialisers and the normalisation are those of Flax.

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; the normalisation: Henry et al. 2020,
  arXiv:2010.04245, and in this form Dehghani et al. 2023, arXiv:2302.05442, section 2.1.

  Attributes:
    num_heads: N.
    width: N H, of all heads together; a multiple of num_heads. None for that of the queries (in `prepare`,
      that of the sources).
    num_key_value_heads: a divisor of num_heads, for grouped-query attention; None for num_heads.
    use_bias: whether the projections have biases.
    dropout_rate: probability that a weight is dropped.
    implementation, normalizer: as in `attend`.
    out_features: D of the result; None for N H (where Flax takes the width of the queries).
    score: how well a key fits a query; None for `ScaledDotProduct()`. A score with parameters to train comes
      from a Flax module, or any function, of the projected queries [... N T H] and keys [... N S H].
    rotate: a function of vectors [... N T H], and of their positions, integers that broadcast to [... N T].
      It is applied to the projected queries and to the projected keys, as `positions.rotary` is.
    normalize_qk: whether projected queries and keys are normalised, each head by itself, before `rotate`.
    dtype: what is computed in. None for the dtype that inputs and parameters promote to: bfloat16 inputs and
      float32 parameters give float32.
    param_dtype: of new parameters.
    kernel_init: initialiser of the kernels, which is given them as matrices, [D (N H)].
    bias_init: initialiser of the biases.
    out_kernel_init: initialiser of out's kernel, as a matrix [(N H) D]; None for kernel_init.
    out_bias_init: initialiser of out's bias; None for bias_init.
    deterministic: whether to leave the dropout out; None to say so at each call. Under `nn.remat` and
      `nn.scan`, which trace a call's arguments, it is given here.

  Raises:
    ValueError: if the width is no multiple of num_heads, or num_heads none of num_key_value_heads; or if a
      cache does not fit.

  A cache of keys and values is for decoding. The first call reads the prompt, each of the others one token
  or more. All are given the mask of the whole sequence:

  >>> from attention import masks, positions
  >>> layer = MultiHeadAttention(num_heads=4, num_key_value_heads=2, rotate=positions.rotary)
  >>> tokens = jax.random.normal(jax.random.key(0), (3, 7, 16))  # batch, positions, width
  >>> parameters = layer.init(jax.random.key(1), tokens)
  >>> mask = masks.causal() & masks.sliding_window(before=4, after=0)
  >>> whole = layer.apply(parameters, tokens, mask=mask)
  >>> cache = layer.apply(parameters, tokens, 11, method="init_cache")  # with room for 11 tokens
  >>> prompt, cache = layer.apply(parameters, tokens[:, :5], mask=mask, cache=cache)
  >>> sixth, cache = layer.apply(parameters, tokens[:, 5:6], mask=mask, cache=cache)
  >>> seventh, cache = layer.apply(parameters, tokens[:, 6:], mask=mask, cache=cache)
  >>> bool(jnp.allclose(jnp.concatenate([prompt, sixth, seventh], axis=1), whole, atol=1e-5))
  True
  >>> cache.length.tolist()
  [7, 7, 7]
  """

  num_heads: int
  width: int | None = None
  num_key_value_heads: int | None = None
  use_bias: bool = True
  dropout_rate: float = 0.0
  implementation: str = "auto"
  normalizer: Normalizer | None = None
  out_features: int | None = None
  score: Score | Callable[[jax.Array, jax.Array], Score] | None = None
  rotate: Callable[[jax.Array, jax.Array], jax.Array] | None = None
  normalize_qk: bool = False
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  kernel_init: Initializer = kernel_init
  bias_init: Initializer = nn.initializers.zeros
  out_kernel_init: Initializer | None = None
  out_bias_init: Initializer | None = None
  deterministic: bool | None = None

  def setup(self):
    check_size("num_heads", self.num_heads)
    dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
    self.query, self.key, self.value = (
      HeadLinear(self.use_bias, self.kernel_init, self.bias_init, **dtypes) for _ in range(3)
    )
    self.out = HeadLinear(
      self.use_bias, self.out_kernel_init or self.kernel_init, self.out_bias_init or self.bias_init, **dtypes
    )
    self.query_ln = LayerNorm(use_bias=False, **dtypes) if self.normalize_qk else None
    self.key_ln = LayerNorm(use_bias=False, **dtypes) if self.normalize_qk else None

  def __call__(
    self,
    queries: jax.Array,
    sources: jax.Array | None = None,
    values: jax.Array | None = None,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    cache: KeyValueCache | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Returns what the queries [... T D] find in the sources [... S D], [... T D].

    As Flax's layer it may be called with three arrays, `layer(queries, keys, values)`.

    With a cache the queries may also attend to the tokens that came before them. Masks and biases that are
    rules, such as `masks.causal()`, count positions from the first token in the cache, so they are the same
    at every call. Those that are arrays are of the T queries and the S slots of the cache. Nothing is causal
    by itself: without a mask, tokens that come together may attend to each other.

    Too many tokens for the cache are an error where the lengths are known, as outside of `jax.jit`. Where
    they are not, the results of that sequence are NaN.

    Args:
      queries: [... T D].
      sources: [... S D], projected to keys; None for the queries themselves.
      values: [... S E], projected to values; None for the sources.
      mask: broadcastable to [... N T S]: for lengths [B] pass `lengths[:, None]`.
      bias: broadcastable to [... N T S].
      cache: from `init_cache` or an earlier call; the queries are added to it. Excludes sources and values.
      deterministic: whether to leave the dropout out; otherwise it draws from the rng "dropout". None for the
        layer's own, True where that is None too.
      return_weights: whether to return the weights [... N T S] too.

    Returns:
      The result; or a tuple of it, then, if asked for, the weights, then, if there is one, the new cache.
    """
    queries = as_array("queries", queries)
    options: dict[str, Any] = {"deterministic": deterministic, "return_weights": return_weights}
    if cache is None:
      sources = queries if sources is None else sources
      prepared = self.prepare(sources, values, width=queries.shape[-1])
      return self.attend_prepared(queries, prepared, mask=mask, bias=bias, **options)
    if sources is not None or values is not None:
      raise ValueError("sources and values must be None with a cache; `attend_prepared` is for others")
    before = KeyValueCache(*map(jnp.asarray, cache))
    positions = caches.next_positions(before, queries)
    after = caches.write(before, *self.prepare(queries, positions=positions), positions)
    found = self.attend_prepared(
      queries,
      (after.keys, after.values),
      positions=positions,
      mask=caches.mask_after(before, after, mask),
      bias=caches.bias_after(before, bias),
      **options,
    )
    results = found if return_weights else (found,)
    return (*(caches.nan_if_full(after, result) for result in results), after)

  def init_cache(self, inputs: jax.Array, max_length: int) -> KeyValueCache:
    """Returns a cache without tokens, with max_length slots, for inputs like these, [... T D]."""
    return caches.empty_cache(*self.prepare(inputs[..., :1, :]), max_length)

  def prepare(
    self,
    sources: jax.Array,
    values: jax.Array | None = None,
    *,
    positions: jax.Array | None = None,
    width: int | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Returns keys and values [... N S H] of the sources: what does not depend on the queries.

    Args:
      sources: [... S D].
      values: [... S E]; None for the sources.
      positions: of the sources, integers [... S], for `rotate`; None for 0 to S - 1.
      width: N H, for a layer that has none of its own; None for D.
    """
    sources = as_array("sources", sources)
    values = sources if values is None else as_array("values", values)
    width = next(size for size in (self.width, width, sources.shape[-1]) if size is not None)
    N, K = self.num_heads, self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads
    if check_size("width", width) % N or N % check_size("num_key_value_heads", K):
      raise ValueError(
        "num_heads must divide width and be a multiple of num_key_value_heads, "
        f"got width={width}, num_heads={N}, num_key_value_heads={K}"
      )
    keys, values = self.key.project(sources, K, width // N), self.value.project(values, K, width // N)
    return self._placed(keys, self.key_ln, positions), values

  def attend_prepared(
    self,
    queries: jax.Array,
    prepared: tuple[jax.Array, jax.Array],
    *,
    positions: jax.Array | None = None,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Does what `__call__` does, for sources that `prepare` has seen.

    The positions of the queries, integers [... T], are those for `rotate`; None for 0 to T - 1.
    """
    keys, values = prepared
    queries = self.query.project(as_array("queries", queries), self.num_heads, keys.shape[-1])
    queries = self._placed(queries, self.query_ln, positions)
    queries, keys, values = promoted(queries, keys, values, dtype=self.dtype)
    score: Any = self.score
    if callable(score) and not isinstance(score, (Score, type)):
      score = score(queries, keys)
    rate = 0.0 if is_deterministic(self, deterministic) else self.dropout_rate
    found: Any = attend_heads(
      queries,
      keys,
      values,
      score=score,
      mask=mask,
      bias=bias,
      dropout_rate=rate,
      dropout_rng=self.make_rng("dropout") if rate else None,
      normalizer=self.normalizer,
      return_weights=return_weights,
      implementation=self.implementation,
    )
    context = found.context if return_weights else found
    width = self.num_heads * values.shape[-1] if self.out_features is None else self.out_features
    result = self.out.merge(context, check_size("out_features", width))
    return (result, found.weights) if return_weights else result

  def _placed(self, vectors: jax.Array, norm: LayerNorm | None, positions: jax.Array | None) -> jax.Array:
    """Returns projected queries or keys [... N T H] normalised and rotated, as far as that is asked for."""
    if norm is not None:
      vectors = project(norm, vectors)  # which keeps NaN in padding from the gradient of the norm's scale
    if self.rotate is None:
      return vectors
    positions = jnp.arange(vectors.shape[-2]) if positions is None else positions
    return self.rotate(vectors, positions[..., None, :])
