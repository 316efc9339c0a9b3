"""What is a GP site under the evidence lower bound? Gaussian marginals, which affine operations keep exact."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, Integer, PRNGKeyArray

from gpzoo._pytree import Fields, static


class DrawLog:
    """Notes the GP sites whose array a program asks for, or refuses to give it.

    Args:
        refuse: whether to raise instead.
    """

    def __init__(self, refuse: bool = False) -> None:
        self.refuse = refuse
        self.sites: set[str] = set()

    def asked(self, sites: frozenset[str]) -> None:
        """Called whenever marginals of ``sites`` are turned into an array."""
        if self.refuse:
            names = ", ".join(sorted(sites))
            raise RuntimeError(
                f"The program took an array of GP site(s) {names}, which it did not do when its guide was set up, so "
                "they are marginals here. A program's use of a site must not depend on its arguments: build a new "
                "guide for this call, or name the site in InducingGuide(joint=...)."
            )
        self.sites |= sites


def standard_deviation(variance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Square root of a variance whose gradient is finite where rounding left it zero or below.

    Args:
        variance: values under the square of the machine epsilon count as that square.
    """
    return jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).eps ** 2))


class VarianceParts(Fields):
    """The variance of independent sources ``g_j`` in parts, for bounds that change how ``f`` follows from ``u``.

    A source has ``Var[g_j(x_n)] = a_n^T S a_n + d_nj``: one part due to ``q(u)``, and the residual
    ``d_nj = k(x_n, x_n) - q(x_n, x_n)``, which remains given ``u``. The marginals are those of ``f_n = loading^T g_n``
    plus a constant.

    Attributes:
        inducing: ``[N, J]``, due to ``q(u)``; all of the variance where there is no ``residual``.
        residual: ``[N, J]``, whose factor a likelihood may choose; ``None`` where it is chosen already.
        divergence: ``[J]``, in nats and per row, of ``q(g | u)`` from ``p(g | u)``; ``None`` where they are equal.
        loading: ``[J, K]``, or ``None`` where the outputs are the sources.
    """

    inducing: Float[Array, "N J"]
    residual: Float[Array, "N J"] | None = None
    divergence: Float[Array, " J"] | None = None
    loading: Float[Array, "J K"] | None = None

    def scaled(self, c: Array) -> VarianceParts:
        """The parts of ``f * c``, of a number or rank two; with a loading ``c`` varies by rows or by columns only."""
        if self.loading is not None and jnp.ndim(c) == 2 and jnp.shape(c)[1] != 1:
            return self._with_fields(loading=self.loading * c)
        return self._of_sources(lambda variance: variance * (c * c))

    def mixed(self, A: Float[Array, "_ _"]) -> VarianceParts:
        """The parts of ``f @ A``."""
        return self._with_fields(loading=A if self.loading is None else self.loading @ A)

    def rows(self, index: Any) -> VarianceParts:
        """The parts of ``f[index]``."""
        return self._of_sources(lambda variance: variance[index])

    def columns(self, index: Any) -> VarianceParts:
        """The parts of ``f[:, index]``, with an index that keeps the axis."""
        if self.loading is not None:
            return self._with_fields(loading=self.loading[:, index])
        divergence = None if self.divergence is None else self.divergence[index]
        return self._of_sources(lambda variance: variance[:, index])._with_fields(divergence=divergence)

    def _of_sources(self, change: Callable[[Array], Array]) -> VarianceParts:
        residual = None if self.residual is None else change(self.residual)
        return self._with_fields(inducing=change(self.inducing), residual=residual)


class GaussianMarginals(Fields):
    """Marginals ``N(mean_n, variance_n)`` of one or more GP sites at ``N`` inputs, with a reparameterised draw.

    A value of a GP site under :class:`~gpzoo.inference.GaussianProcessELBO`. These operations are exact and give
    marginals again: ``f + c``, ``f - c``, ``-f``, ``f * c``, ``f / c`` with a number or an array that broadcasts to
    the shape of ``f``; ``f @ A`` (a map over outputs); ``f[rows]``, ``f[:, k]``; and ``f + g``, ``f - g`` where the
    two come from different sites. Everything else, any ``jnp`` function included, sees a draw. A JAX array on the left
    of an operator takes the draw too: write ``f * c``, not ``c * f``, where ``c`` is one. Marginals without site names
    may come from any site, so a sum of two of them is a draw.

    A draw of ``f`` and a draw of marginals made from ``f`` are each right, but not jointly. To combine several pieces
    of a site, take the draw of the site first.

    After ``f @ A`` the outputs of a row are correlated: ``mean`` has ``K`` columns while ``source_variance`` keeps the
    ``J`` independent sources, and ``Cov[f_n] = loading^T diag(source_variance_n) loading``. Likelihoods that
    need one output at a time use the diagonal (``variance``); others draw jointly.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from gpzoo import GaussianMarginals
        >>> f = GaussianMarginals(np.zeros(3, np.float32), np.ones(3, np.float32), jax.random.key(0))
        >>> g = f * 2.0 + 1.0
        >>> g.mean, g.variance
        (array([1., 1., 1.], dtype=float32), array([4., 4., 4.], dtype=float32))
        >>> type(g).__name__, type(jnp.exp(g)).__name__, jnp.exp(g).shape
        ('GaussianMarginals', 'ArrayImpl', (3,))

    Args:
        mean: ``[N]`` or ``[N, K]``.
        source_variance: ``[N]`` or ``[N, J]``.
        key: the site's random key, from which its draws are made; ``None`` if it is never drawn.
        loading: ``[J, K]``, or ``None`` for independent outputs (``J = K``).
        sites: names of the GP sites these marginals come from.
        log: notes, or refuses, that an array is taken.
        rows: ``[N]`` integers that identify the rows; given, a row's draws do not depend on the batch it is in.
        parts: parts of the variance, one entry for each site; only the tighter bounds have them.
    """

    mean: Float[Array, "N *K"]
    source_variance: Float[Array, "N *J"]
    key: PRNGKeyArray | None
    loading: Float[Array, "J K"] | None
    rows: Integer[Array, " N"] | None
    parts: tuple[VarianceParts, ...]
    sites: frozenset[str] = static()
    log: DrawLog | None = static()

    # NumPy arrays on the left of an operator then defer to the methods below.
    __array_ufunc__ = None

    def __init__(
        self,
        mean: Array,
        source_variance: Array,
        key: Array | None = None,
        loading: Array | None = None,
        sites: frozenset[str] = frozenset(),
        log: DrawLog | None = None,
        rows: Array | None = None,
        parts: tuple[VarianceParts, ...] = (),
    ) -> None:
        self.mean, self.source_variance, self.key, self.loading = mean, source_variance, key, loading
        self.sites, self.log, self.rows, self.parts = frozenset(sites), log, rows, parts

    def __repr__(self) -> str:
        names = ", ".join(sorted(self.sites))
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, sites={{{names}}})"

    # -- what they are -----------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a draw: ``(N,)`` or ``(N, K)``."""
        return jnp.shape(self.mean)

    @property
    def ndim(self) -> int:
        """Rank of a draw."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """Precision of a draw."""
        return jnp.result_type(self.mean)

    @property
    def size(self) -> int:
        """Number of entries of a draw."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def variance(self) -> Float[Array, "N *K"]:
        """Marginal variance of every entry, the shape of ``mean``."""
        if self.loading is None:
            return self.source_variance
        return self.source_variance @ jnp.square(self.loading)

    @property
    def independent(self) -> bool:
        """Whether the outputs of a row are independent of each other."""
        return self.loading is None or self.shape[-1] == 1

    def noise(self, num_draws: int) -> Float[Array, "{num_draws} N *J"]:
        """Standard-normal noise of the independent sources, from which :meth:`draws` are made.

        Args:
            num_draws: how many.

        Raises:
            ValueError: if the marginals carry no key.
        """
        if self.key is None:
            raise ValueError("These marginals carry no random key and cannot be drawn: use their mean and variance.")
        shape = jnp.shape(self.source_variance)
        if self.rows is None:
            return random.normal(self.key, (num_draws, *shape), self.dtype)
        own = self.key
        keys = jax.vmap(lambda row: random.fold_in(own, row))(self.rows)
        return jax.vmap(lambda key: random.normal(key, (num_draws, *shape[1:]), self.dtype), out_axes=1)(keys)

    def draws(self, num_draws: int) -> Float[Array, "{num_draws} N *K"]:
        """Reparameterised draws, independent over rows, joint over the outputs of a row.

        Args:
            num_draws: how many.

        Returns:
            The draws; the same marginals give the same ones.

        Raises:
            ValueError: if the marginals carry no key.
        """
        deviation = standard_deviation(self.source_variance) * self.noise(num_draws)
        if self.loading is not None:
            deviation = deviation @ self.loading
        return self.mean + deviation

    def __jax_array__(self) -> Float[Array, "N *K"]:
        if self.log is not None:
            self.log.asked(self.sites)
        return self.draws(1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.__jax_array__(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        # Array methods (f.reshape, f.sum, f.T) see a draw, like every operation that is not exact on marginals.
        if name.startswith("_") or not hasattr(Array, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(jnp.asarray(self), name)

    # -- operations that keep them exact -----------------------------------------------------------------------------

    def _with(
        self,
        mean: Array,
        source_variance: Array,
        loading: Array | None,
        change: Callable[[VarianceParts], VarianceParts] = lambda part: part,
    ) -> GaussianMarginals:
        parts = tuple(map(change, self.parts))
        return type(self)(mean, source_variance, self.key, loading, self.sites, self.log, self.rows, parts)

    def _fits(self, other: Any) -> bool:
        """Whether a constant broadcasts to the shape of these marginals without changing it."""
        if isinstance(other, GaussianMarginals) or not isinstance(other, (int, float, np.ndarray, np.generic, Array)):
            return False
        try:
            return jnp.broadcast_shapes(jnp.shape(other), self.shape) == self.shape
        except ValueError:
            return False

    def __add__(self, other: Any) -> Any:
        if isinstance(other, GaussianMarginals):
            return self._plus(other, 1)
        if self._fits(other):
            return self._with(self.mean + other, self.source_variance, self.loading)
        return jnp.asarray(self) + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, GaussianMarginals):
            return self._plus(other, -1)
        if self._fits(other):
            return self._with(self.mean - other, self.source_variance, self.loading)
        return jnp.asarray(self) - other

    def __rsub__(self, other: Any) -> Any:
        return -self + other if self._fits(other) else other - jnp.asarray(self)

    def __neg__(self) -> GaussianMarginals:
        return self._scale(-1)

    def __mul__(self, other: Any) -> Any:
        if self._fits(other):
            scaled = self._scale(other)
            if scaled is not None:
                return scaled
        return jnp.asarray(self) * other

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if self._fits(other):
            return self * (1 / other)
        return jnp.asarray(self) / other

    def _scale(self, c: Any) -> Any:
        rows = jnp.ndim(c) == 2 and jnp.shape(c)[0] != 1
        columns = jnp.ndim(c) > 0 and jnp.shape(c)[-1] != 1
        shape = (-1, 1) if self.ndim == 1 else (-1, jnp.shape(c)[-1]) if jnp.ndim(c) else ()
        scaled = lambda part: part.scaled(jnp.reshape(c, shape) if jnp.ndim(c) else c)  # noqa: E731
        if self.loading is None:
            return self._with(self.mean * c, self.source_variance * (c * c), None, scaled)
        if rows and columns:
            return None  # every row would need a loading of its own
        if columns:
            return self._with(self.mean * c, self.source_variance, self.loading * jnp.reshape(c, (1, -1)), scaled)
        return self._with(self.mean * c, self.source_variance * (c * c), self.loading, scaled)

    def __matmul__(self, A: Any) -> Any:
        A = jnp.asarray(A)
        if self.ndim != 2 or A.ndim not in (1, 2):
            return jnp.matmul(jnp.asarray(self), A)
        loading = A if self.loading is None else self.loading @ A
        mixed = lambda part: part.mixed(A if A.ndim == 2 else A[:, None])  # noqa: E731
        if A.ndim == 1:
            return self._with(self.mean @ A, self.source_variance @ jnp.square(loading), None, mixed)
        return self._with(self.mean @ A, self.source_variance, loading, mixed)

    def __iter__(self) -> Iterator[Array]:
        return iter(jnp.asarray(self))

    def __bool__(self) -> bool:
        return bool(jnp.asarray(self))

    def __getitem__(self, index: Any) -> Any:
        rows, columns = self._rows_and_columns(index)
        if rows is None:
            return jnp.asarray(self)[index]
        mean = self.mean[rows] if columns is None else self.mean[:, columns]
        if columns is None:
            own = None if self.rows is None else self.rows[rows]
            variance, parts = self.source_variance[rows], tuple(part.rows(rows) for part in self.parts)
            return type(self)(mean, variance, self.key, self.loading, self.sites, self.log, own, parts)
        kept = jnp.reshape(columns, (1,)) if _is_integer(columns) else columns
        chosen = lambda part: part.columns(kept)  # noqa: E731
        if self.loading is None:
            return self._with(mean, self.source_variance[:, columns], None, chosen)
        loading = self.loading[:, columns]
        if loading.ndim == 1:
            return self._with(mean, self.source_variance @ jnp.square(loading), None, chosen)
        return self._with(mean, self.source_variance, loading, chosen)

    def _rows_and_columns(self, index: Any) -> tuple[Any, Any]:
        """The parts of ``f[rows]`` and ``f[:, columns]``; no rows if the index is of another form."""
        if not isinstance(index, tuple):
            return (index, None) if _keeps_axis(index) else (None, None)
        if self.ndim == 2 and len(index) == 2 and (index[0] is Ellipsis or _is_full(index[0])):
            if _is_integer(index[1]) or _keeps_axis(index[1]):
                return slice(None), index[1]
        return None, None

    def _plus(self, other: GaussianMarginals, sign: int) -> Any:
        disjoint = self.sites and other.sites and not self.sites & other.sites
        kinds = {type(self), type(other)}
        same_keys = EstimatedMarginals in kinds or (self.key is None) == (other.key is None)
        if self.shape != other.shape or not disjoint or not same_keys:
            return jnp.asarray(self) + sign * jnp.asarray(other)
        mean = self.mean + sign * other.mean
        if self.loading is None and other.loading is None:
            variance, loading = self.source_variance + other.source_variance, None
        else:
            eye = jnp.eye(self.shape[-1], dtype=self.dtype)
            loading = jnp.concatenate([eye if m.loading is None else m.loading for m in (self, other)])
            variance = jnp.concatenate([self.source_variance, other.source_variance], axis=-1)
        kind = EstimatedMarginals if EstimatedMarginals in kinds else GaussianMarginals
        return kind(
            mean,
            variance,
            None if self.key is None or other.key is None else _combine(self.key, other.key),
            loading,
            self.sites | other.sites,
            other.log if self.log is None else self.log,
            other.rows if self.rows is None else self.rows,
            self.parts + other.parts,
        )


class EstimatedMarginals(GaussianMarginals):
    """Unbiased estimates of marginals: what a GP site is in training when its kernel samples views of the inputs.

    ``mean`` estimates the mean, and ``mean ** 2 + variance`` the mean square: ``E[mean] = E[f]`` and
    ``E[mean ** 2 + variance] = E[f ** 2]`` over the views (learning invariances, eq. 16-21). So ``variance`` alone is
    not the estimate of a variance: it can be negative, and nothing that needs the law of ``f`` can use it. Terms that
    are quadratic in ``f`` are unbiased. The likelihoods :class:`~gpzoo.likelihoods.Gaussian`,
    :class:`~gpzoo.likelihoods.PolyaGamma` and :class:`~gpzoo.likelihoods.StickBreaking` have such terms; others refuse.

    Constants, rows and columns, and sums of different sites are exact, as for :class:`GaussianMarginals`; anything else
    raises ``TypeError``: there is no draw.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from gpzoo import EstimatedMarginals
        >>> f = EstimatedMarginals(np.array([1.0], np.float32), np.array([-0.1], np.float32))
        >>> (f * 2.0 + 1.0).mean
        array([3.], dtype=float32)
        >>> try:
        ...     jnp.exp(f)
        ... except TypeError as error:
        ...     print(str(error)[:45])
        The kernel of site 'a GP' samples views of it
    """

    def noise(self, num_draws: int) -> Array:
        """Refused: estimates have no noise, and so no draw.

        Raises:
            TypeError: always.
        """
        raise self._refuse("drawn, as another GP, a likelihood or an operation of the program asks")

    def __matmul__(self, A: Any) -> Any:
        raise self._refuse("mixed by a matrix, which needs covariances of its outputs")

    def _refuse(self, what: str) -> TypeError:
        names = ", ".join(sorted(self.sites)) or "a GP"
        return TypeError(
            f"The kernel of site {names!r} samples views of its inputs, so that its moments are estimates in training "
            f"(the variance may be negative): it cannot be {what}. Enumerate the views (an Orbit), or keep the site's "
            "value to the likelihoods Gaussian, PolyaGamma and StickBreaking; with an array c, write f * c and f + c, "
            "not c * f and c + f."
        )


def _keeps_axis(index: Any) -> bool:
    """Whether an index is a slice or a vector of integers or booleans, so that the indexed axis stays."""
    return isinstance(index, slice) or (isinstance(index, np.ndarray | Array) and index.ndim == 1)


def _is_integer(index: Any) -> bool:
    if isinstance(index, np.ndarray | Array):
        return index.ndim == 0 and jnp.issubdtype(index.dtype, jnp.integer)
    return isinstance(index, int | np.integer) and not isinstance(index, bool)


def _is_full(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _combine(first: Array, second: Array) -> Array:
    return random.fold_in(first, random.bits(second, (), jnp.uint32))


def _drawn(operation: Any, reflected: bool = False) -> Any:
    if reflected:
        return lambda self, other: operation(other, jnp.asarray(self))
    return lambda self, *others: operation(jnp.asarray(self), *others)


# Operators that are not exact on marginals see a draw, as a jnp function would.
for _name in ("abs", "pow", "mod", "floordiv", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(GaussianMarginals, f"__{_name}__", _drawn(getattr(operator, f"__{_name}__")))
for _name in ("truediv", "pow", "matmul", "mod", "floordiv"):
    setattr(GaussianMarginals, f"__r{_name}__", _drawn(getattr(operator, f"__{_name}__"), reflected=True))
