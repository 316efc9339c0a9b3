"""Gaussian marginals of a process at a set of inputs: what a GP site is under the evidence lower bound."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random


class DrawLog:
    """Notes which GP sites a program asked an array of, or refuses to give one.

    Args:
        refuse: raise when asked, instead of noting it.
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


@jax.tree_util.register_pytree_node_class
class GaussianMarginals:
    """Marginals ``N(mean_n, variance_n)`` of one or more GP sites at ``N`` inputs, with a reparameterised draw.

    A value of a GP site under :class:`~gpzoo.inference.GaussianProcessELBO`. These operations are exact and give
    marginals again: ``f + c``, ``f - c``, ``-f``, ``f * c``, ``f / c`` with a number or an array that broadcasts to
    the shape of ``f``; ``f @ A`` (a map over outputs); ``f[rows]``, ``f[:, k]``; and ``f + g``, ``f - g`` where the
    two come from different sites. Everything else, any ``jnp`` function included, sees a draw. A JAX array on the left
    of an operator takes the draw too: write ``f * c``, not ``c * f``, where ``c`` is one.

    After ``f @ A`` the outputs of a row are correlated: ``mean`` has ``K`` columns while ``source_variance`` keeps the
    ``J`` independent sources, and ``Cov[f_n] = loading^T diag(source_variance_n) loading``. Likelihoods use the
    diagonal (``variance``) where one output at a time is all they need, and draw jointly where it is not.

    Args:
        mean: ``[N]`` or ``[N, K]``.
        source_variance: ``[N]`` or ``[N, J]``.
        key: the site's random key, from which its draws are made; ``None`` if it is never drawn.
        loading: ``[J, K]``, or ``None`` for independent outputs (``J = K``).
        sites: names of the GP sites these marginals come from.
        log: notes, or refuses, that an array is taken.
        rows: ``[N]`` integers that identify the rows; given, a row's draws do not depend on the batch it is in.
    """

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
    ) -> None:
        self.mean, self.source_variance, self.key, self.loading = mean, source_variance, key, loading
        self.sites, self.log, self.rows = frozenset(sites), log, rows

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """Leaves and static parts, for JAX."""
        return (self.mean, self.source_variance, self.key, self.loading, self.rows), (self.sites, self.log)

    @classmethod
    def tree_unflatten(cls, aux: tuple, leaves: tuple) -> GaussianMarginals:
        """Rebuild from :meth:`tree_flatten`."""
        return cls(*leaves[:4], sites=aux[0], log=aux[1], rows=leaves[4])

    def __repr__(self) -> str:
        names = ", ".join(sorted(self.sites))
        return f"GaussianMarginals(shape={self.shape}, dtype={self.dtype}, sites={{{names}}})"

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
    def variance(self) -> Array:
        """Marginal variance of every entry, the shape of ``mean``."""
        if self.loading is None:
            return self.source_variance
        return self.source_variance @ jnp.square(self.loading)

    @property
    def independent(self) -> bool:
        """Whether the outputs of a row are independent of each other."""
        return self.loading is None

    def draws(self, num_draws: int) -> Array:
        """Reparameterised draws, independent over rows, joint over the outputs of a row.

        Args:
            num_draws: how many, ``S``.

        Returns:
            ``[S, N]`` or ``[S, N, K]``. The same marginals give the same draws.

        Raises:
            ValueError: if the marginals carry no key.
        """
        if self.key is None:
            raise ValueError("These marginals carry no random key and cannot be drawn: use their mean and variance.")
        shape = jnp.shape(self.source_variance)
        if self.rows is None:
            noise = random.normal(self.key, (num_draws, *shape), self.dtype)
        else:
            keys = jax.vmap(lambda row: random.fold_in(self.key, row))(self.rows)
            noise = jax.vmap(lambda key: random.normal(key, (num_draws, *shape[1:]), self.dtype), out_axes=1)(keys)
        deviation = jnp.sqrt(self.source_variance) * noise
        if self.loading is not None:
            deviation = deviation @ self.loading
        return self.mean + deviation

    def __jax_array__(self) -> Array:
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

    def _with(self, mean: Array, source_variance: Array, loading: Array | None) -> GaussianMarginals:
        return GaussianMarginals(mean, source_variance, self.key, loading, self.sites, self.log, self.rows)

    def _at(self, rows: Any) -> GaussianMarginals:
        own = None if self.rows is None else self.rows[rows]
        return GaussianMarginals(
            self.mean, self.source_variance, self.key, self.loading, self.sites, self.log, own
        )

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
        return jnp.add(jnp.asarray(self), other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, GaussianMarginals):
            return self._plus(other, -1)
        if self._fits(other):
            return self._with(self.mean - other, self.source_variance, self.loading)
        return jnp.subtract(jnp.asarray(self), other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> GaussianMarginals:
        return self._scale(-1)

    def __mul__(self, other: Any) -> Any:
        if self._fits(other):
            scaled = self._scale(other)
            if scaled is not None:
                return scaled
        return jnp.multiply(jnp.asarray(self), jnp.asarray(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if self._fits(other):
            return self * (1 / other)
        return jnp.divide(jnp.asarray(self), jnp.asarray(other))

    def _scale(self, c: Any) -> GaussianMarginals | None:
        rows = jnp.ndim(c) == 2 and jnp.shape(c)[0] != 1
        columns = jnp.ndim(c) > 0 and jnp.shape(c)[-1] != 1
        if self.loading is None:
            return self._with(self.mean * c, self.source_variance * (c * c), None)
        if rows and columns:
            return None  # every row would need a loading of its own
        if columns:
            return self._with(self.mean * c, self.source_variance, self.loading * jnp.reshape(c, (1, -1)))
        return self._with(self.mean * c, self.source_variance * (c * c), self.loading)

    def __matmul__(self, A: Any) -> Any:
        A = jnp.asarray(A)
        if self.ndim != 2 or A.ndim not in (1, 2):
            return jnp.matmul(jnp.asarray(self), A)
        loading = A if self.loading is None else self.loading @ A
        if A.ndim == 1:
            return self._with(self.mean @ A, self.source_variance @ jnp.square(loading), None)
        return self._with(self.mean @ A, self.source_variance, loading)

    def __getitem__(self, index: Any) -> Any:
        rows, columns = self._rows_and_columns(index)
        if rows is None:
            return jnp.asarray(self)[index]
        mean = self.mean[rows] if columns is None else self.mean[:, columns]
        if columns is None:
            return self._at(rows)._with(mean, self.source_variance[rows], self.loading)
        if self.loading is None:
            return self._with(mean, self.source_variance[:, columns], None)
        loading = self.loading[:, columns]
        if loading.ndim == 1:
            return self._with(mean, self.source_variance @ jnp.square(loading), None)
        return self._with(mean, self.source_variance, loading)

    def _rows_and_columns(self, index: Any) -> tuple[Any, Any]:
        """The parts of ``f[rows]`` and ``f[:, columns]``; no rows if the index is of another form."""
        if not isinstance(index, tuple):
            return (index, None) if _keeps_axis(index) else (None, None)
        if self.ndim == 2 and len(index) == 2 and (index[0] is Ellipsis or _is_full(index[0])):
            if isinstance(index[1], int | np.integer) or _keeps_axis(index[1]):
                return slice(None), index[1]
        return None, None

    def _plus(self, other: GaussianMarginals, sign: int) -> Any:
        if self.shape != other.shape or self.sites & other.sites or (self.key is None) != (other.key is None):
            return jnp.asarray(self) + sign * jnp.asarray(other)
        key = None if self.key is None else _combine(self.key, other.key)
        sites, log = self.sites | other.sites, self.log
        mean = self.mean + sign * other.mean
        if self.loading is None and other.loading is None:
            return GaussianMarginals(mean, self.source_variance + other.source_variance, key, None, sites, log, self.rows)
        eye = jnp.eye(self.shape[-1], dtype=self.dtype)
        loading = jnp.concatenate([eye if m.loading is None else m.loading for m in (self, other)])
        variance = jnp.concatenate([self.source_variance, other.source_variance], axis=-1)
        return GaussianMarginals(mean, variance, key, loading, sites, log, self.rows)


def _keeps_axis(index: Any) -> bool:
    if isinstance(index, slice):
        return True
    return not isinstance(index, int | np.integer | tuple) and index is not None and jnp.ndim(index) == 1


def _is_full(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _combine(first: Array, second: Array) -> Array:
    return random.fold_in(first, random.bits(second, (), jnp.uint32))


def _drawn(operation: Any, reflected: bool = False) -> Any:
    if reflected:
        return lambda self, other: operation(jnp.asarray(other), jnp.asarray(self))
    return lambda self, *others: operation(jnp.asarray(self), *others)


# Operators that are not exact on marginals see a draw, as a jnp function would.
for _name, _operation in {
    "__abs__": jnp.abs,
    "__pow__": jnp.power,
    "__mod__": jnp.mod,
    "__floordiv__": jnp.floor_divide,
    "__lt__": jnp.less,
    "__le__": jnp.less_equal,
    "__gt__": jnp.greater,
    "__ge__": jnp.greater_equal,
    "__eq__": jnp.equal,
    "__ne__": jnp.not_equal,
}.items():
    setattr(GaussianMarginals, _name, _drawn(_operation))
for _name, _operation in {
    "__rtruediv__": jnp.divide,
    "__rpow__": jnp.power,
    "__rmatmul__": jnp.matmul,
    "__rmod__": jnp.mod,
    "__rfloordiv__": jnp.floor_divide,
}.items():
    setattr(GaussianMarginals, _name, _drawn(_operation, reflected=True))
