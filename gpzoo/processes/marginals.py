"""Gaussian marginals, with exact affine operations: the value of a GP site under the evidence lower bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._checks import is_concrete
from gpzoo._pytree import Fields, static
from gpzoo._types import ArrayLike
from gpzoo.linalg.operators import einsum, matmul
from gpzoo.processes.affine import AffineMap
from gpzoo.processes.shared import SharedNoise


class DrawLog:
    """A log of the GP sites that a program draws.

    Args:
        refuse: whether to raise an error at a draw instead.
    """

    def __init__(self, refuse: bool = False) -> None:
        self.refuse = refuse
        #: Names of the sites that were drawn.
        self.sites: set[str] = set()
        #: Names of the sites of each sum (``sums``), and names of sites whose outputs were mixed or chosen (``mixed``).
        self.sums: dict[frozenset[str], None] = {}
        self.mixed: set[str] = set()

    def asked(self, sites: frozenset[str]) -> None:
        """Note, or refuse, a draw of marginals of ``sites``; every such draw calls this method."""
        if self.refuse:
            raise RuntimeError(
                f"The program draws {_named(sites)}, which it did not do when its guide was set up, so that the value "
                "is marginals here. A program must draw the same sites whatever its arguments are: take draws(f) in "
                "every call, build a new guide for this one, or name the site in InducingGuide(joint=...)."
            )
        self.sites |= sites


def draws(f: ArrayLike | GaussianMarginals) -> Any:
    """A random draw of a GP site's value, for programs that need an array; it has one number for each entry of ``f``.

    Under :class:`~gpzoo.inference.GaussianProcessELBO`, the value of a GP site is :class:`~gpzoo.GaussianMarginals`.
    The likelihoods of gpzoo and affine operations use marginals exactly. All other operations need numbers, for example
    ``jnp.exp(draws(f))``. The bound is then a mean over draws, which has more noise than a closed form. This holds for
    all data sites, because all of them use the draw. If the value of a site is already an array, as under MCMC,
    ``draws`` returns this array.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from gpzoo import GaussianMarginals, draws
        >>> f = GaussianMarginals(np.zeros(3, np.float32), np.ones(3, np.float32), jax.random.key(0))
        >>> jnp.exp(draws(f)).shape
        (3,)
        >>> draws(np.ones(2))
        array([1., 1.])

    Args:
        f: marginals ``[N]`` or ``[N, K]``, or an array.

    Returns:
        An array of the shape of ``f``: the array itself, or a reparameterised draw that is independent over rows. The
        same marginals give the same draw. An operation on ``f`` makes new marginals, and their draw is not the draw of
        ``f``. So draw ``f`` first, and then combine.

    Raises:
        TypeError: for :class:`~gpzoo.EstimatedMarginals`, which have no draw.
        ValueError: for marginals without a key.
        RuntimeError: if the program did not draw the site when its guide was set up.
    """
    if not isinstance(f, GaussianMarginals):
        return f
    if f.log is not None:
        f.log.asked(f.sites)
    return f.draws(1)[0]


def through(loading: Float[Array, "*N J K"], sources: Float[Array, "*S N J"]) -> Float[Array, "*S N K"]:
    """The outputs ``loading_n^T g_n`` for independent functions ``g``; see :meth:`GaussianMarginals.sources`."""
    return matmul(sources, loading) if loading.ndim == 2 else einsum("njk,...nj->...nk", loading, sources)


def standard_deviation(variance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Square root of a variance, with a finite gradient even if rounding made the variance zero or negative.

    Args:
        variance: variances; the square of the machine epsilon replaces smaller values.
    """
    return jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).eps ** 2))


class VarianceParts(Fields):
    """The variance of marginals in parts, for ``GaussianProcessELBO(tight=True)`` and similar bounds.

    The marginals belong to ``f_n = loading^T g_n`` plus a constant. The sources ``g_j`` are independent functions. Let
    ``S`` be the covariance of ``q(u)`` for the inducing variables ``u``. Then ``Var[g_j(x_n)] = a_n^T S a_n + d_nj``,
    where ``a_n^T u`` is the mean of ``g_j(x_n)`` given ``u``. The first part is due to ``q(u)``. The second part is the
    residual variance, the variance of ``g_j(x_n)`` given ``u``. Tight bounds multiply the residual variance by a
    factor, because they use a ``q(f | u)`` in place of ``p(f | u)``.

    Attributes:
        inducing: ``[N, J]``, the variance due to ``q(u)``; the whole variance if there is no ``residual``.
        residual: ``[N, J]``, the residual variance if a likelihood may still choose its factor; otherwise ``None``.
        divergence: ``[J]``, in nats and per row, the KL divergence of ``q(g | u)`` from ``p(g | u)``; ``None`` if they
            are equal.
        loading: ``[J, K]``, or ``None`` if the outputs are the sources.
    """

    inducing: Float[Array, "N J"]
    residual: Float[Array, "N J"] | None = None
    divergence: Float[Array, " J"] | None = None
    loading: Float[Array, "J K"] | None = None

    def scaled(self, c: Array) -> VarianceParts:
        """The parts of ``f * c``; ``c`` is a number or has rank two (with a loading, one of its axes has length 1)."""
        if self.loading is not None and jnp.ndim(c) == 2 and jnp.shape(c)[1] != 1:
            return self._with_fields(loading=self.loading * c)
        return self._of_sources(lambda variance: variance * (c * c))

    def mixed(self, A: Float[Array, "_ _"]) -> VarianceParts:
        """The parts of ``f @ A``."""
        return self._with_fields(loading=A if self.loading is None else matmul(self.loading, A))

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
    """Marginals ``N(mean_n, variance_n)`` of one or more GP sites at ``N`` inputs, with reparameterised draws.

    Marginals are the value of a GP site under :class:`~gpzoo.inference.GaussianProcessELBO`. The following operations
    are exact and give marginals again:

    * ``f + c``, ``f - c``, ``f * c``, ``f / c`` and ``-f``; also ``c + f``, ``c - f`` and ``c * f``. Here ``c`` is a
      number, or an array of NumPy or JAX that broadcasts with ``f`` to the rows of ``f``;
    * ``f @ A``, ``f.dot(A)`` and ``f.sum(axis=-1)`` (maps over outputs);
    * ``f[rows]``, ``f[:, k]`` and ``f[:, None]``;
    * ``f + g`` and ``f - g``, if ``f`` and ``g`` come from different sites.

    All other operations, including every function of ``jnp``, raise a ``TypeError``. Draw the marginals before these
    operations, for example ``jnp.exp(draws(f))`` (:func:`~gpzoo.draws`). Marginals without site names may come from any
    site, so gpzoo refuses to add them.

    Draws of ``f`` and of ``2 * f`` each have the right distribution, but not the right joint distribution. To combine
    several parts of a site, draw the site first, ``f = draws(f)``.

    After ``f @ A``, the outputs of a row are correlated. They are weighted sums of ``J`` independent functions, the
    sources. Then ``mean`` has ``K`` columns, one per output, and ``source_variance`` has the variances of the ``J``
    sources. The covariance of the outputs of a row is ``Cov[f_n] = loading^T diag(source_variance_n) loading``.
    Likelihoods that need one output at a time use the diagonal (``variance``). Other likelihoods draw all outputs
    jointly.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from gpzoo import GaussianMarginals
        >>> f = GaussianMarginals(np.zeros(3, np.float32), np.ones(3, np.float32), jax.random.key(0))
        >>> g = 1.0 + jnp.float32(2.0) * f
        >>> type(g).__name__, np.asarray(g.mean), np.asarray(g.variance)
        ('GaussianMarginals', array([1., 1., 1.], dtype=float32), array([4., 4., 4.], dtype=float32))
        >>> try:
        ...     jnp.exp(g)
        ... except TypeError as error:
        ...     print("write draws(f)" in str(error))
        True

    Args:
        mean: ``[N]`` or ``[N, K]``, stored as ``loc``. If the site is integrated out, this is the prior mean.
        source_variance: ``[N]`` or ``[N, J]``, without the variance that ``shared`` adds.
        key: the site's random key for its draws; ``None`` if the site is never drawn.
        loading: ``[J, K]``, the weights of the sources in the outputs; ``None`` if outputs are independent (``J = K``).
        sites: names of the GP sites of these marginals.
        log: the log that notes, or refuses, draws.
        rows: ``[N]`` integers that identify the rows. With these integers, the draws of a row do not depend on the
            other rows of its minibatch.
        parts: one entry for each site. Under ``GaussianProcessELBO(tight=True)`` and similar bounds, an entry is
            :class:`VarianceParts`. For programs whose sites are integrated out, an entry is the map from the site's
            outputs. Otherwise there are no entries.
        shared: noise that these marginals have in common with marginals of other sites, if these sites have one ``q``.
    """

    loc: Float[Array, "N *K"]
    source_variance: Float[Array, "N *J"]
    key: PRNGKeyArray | None
    loading: Float[Array, "J K"] | None
    rows: Integer[Array, " N"] | None
    parts: tuple[Any, ...]
    shared: SharedNoise | None
    sites: frozenset[str] = static()
    log: DrawLog | None = static()

    def __init__(
        self,
        mean: Array,
        source_variance: Array,
        key: Array | None = None,
        loading: Array | None = None,
        sites: frozenset[str] = frozenset(),
        log: DrawLog | None = None,
        rows: Array | None = None,
        parts: tuple[Any, ...] = (),
        shared: SharedNoise | None = None,
    ) -> None:
        self.loc, self.source_variance, self.key, self.loading = mean, source_variance, key, loading
        self.sites, self.log, self.rows, self.parts, self.shared = frozenset(sites), log, rows, parts, shared

    def __repr__(self) -> str:
        names = ", ".join(sorted(self.sites))
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, sites={{{names}}})"

    # -- shape and precision -----------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a draw: ``(N,)`` or ``(N, K)``."""
        return jnp.shape(self.loc)

    @property
    def ndim(self) -> int:
        """Rank of a draw."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """Precision of a draw."""
        return jnp.result_type(self.loc)

    @property
    def size(self) -> int:
        """Number of entries of a draw."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def mean(self) -> Float[Array, "N *K"]:
        """Mean of every entry.

        Raises:
            TypeError: if the site is integrated out, as in :class:`~gpzoo.inference.marginal`.
        """
        self._refuse_integrated_out("mean")
        return self.loc

    @property
    def variance(self) -> Float[Array, "N *K"]:
        """Marginal variance of every entry, with the shape of ``mean``.

        Raises:
            TypeError: if the site is integrated out, as in :class:`~gpzoo.inference.marginal`.
        """
        self._refuse_integrated_out("variance")
        own = self.source_variance if self.loading is None else matmul(self.source_variance, jnp.square(self.loading))
        return own if self.shared is None else self.shared.beside(own)

    @property
    def covariance(self) -> Float[Array, "N K K"]:
        """Covariance of the outputs of every row, for a site ``[N, K]``; see :attr:`variance`."""
        loading = jnp.eye(self.shape[-1], dtype=self.dtype) if self.loading is None else self.loading
        own = einsum("jk,nj,jl->nkl", loading, self.source_variance, loading)
        return own if self.shared is None else own + self.shared.covariance()

    @property
    def independent(self) -> bool:
        """Whether the outputs of a row are independent of each other."""
        apart = self.loading is None and (self.shared is None or self.shared.apart)
        return apart or self.ndim == 1 or self.shape[-1] == 1

    def sources(self) -> tuple[Float[Array, "N *J"], Float[Array, "*N J K"] | None]:
        """Variances of the sources, and the loading; each output is a weighted sum of these independent functions.

        The loading is ``[N, J, K]`` if rows have different loadings, and ``None`` if the outputs are the sources.
        """
        if self.independent:
            return self.variance, None
        if self.shared is None:
            return self.source_variance, self.loading
        covariance = self.covariance
        eye = jnp.eye(self.shape[-1], dtype=self.dtype)
        # If several outputs are the same function, their covariance is singular.
        jitter = 4 * jnp.finfo(self.dtype).eps * jnp.trace(covariance, axis1=-2, axis2=-1)
        return jnp.ones_like(self.loc), jnp.linalg.cholesky(covariance + jitter[:, None, None] * eye).mT

    def noise(self, num_draws: int) -> Float[Array, "{num_draws} N *J"]:
        """Standard normal random numbers for the sources; :meth:`draws` scales and adds them.

        Args:
            num_draws: number of draws.

        Raises:
            ValueError: if the marginals have no key.
        """
        no_key = "These marginals carry no random key and cannot be drawn: use their mean and variance."
        checks.refuse(self.key is None, no_key)
        shape, own = jnp.shape(self.sources()[0]), cast(Any, self.key)
        if self.rows is None:
            return random.normal(own, (num_draws, *shape), self.dtype)
        keys = jax.vmap(lambda row: random.fold_in(own, row))(self.rows)
        return jax.vmap(lambda key: random.normal(key, (num_draws, *shape[1:]), self.dtype), out_axes=1)(keys)

    def draws(self, num_draws: int) -> Float[Array, "{num_draws} N *K"]:
        """Reparameterised draws, independent over rows and joint over the outputs of a row.

        Args:
            num_draws: number of draws.

        Returns:
            The draws. The same marginals give the same draws.

        Raises:
            ValueError: if the marginals have no key.
        """
        variance, loading = self.sources()
        deviation = standard_deviation(variance) * self.noise(num_draws)
        return self.loc + (deviation if loading is None else through(loading, deviation))

    def _refuse_integrated_out(self, moment: str) -> None:
        if any(isinstance(part, AffineMap) for part in self.parts):
            raise TypeError(
                f"The {moment} of {_named(self.sites)} is known once the data are, and here the "
                "site is integrated out. Terms of it, such as numpyro.factor, are for InducingGuide with fit."
            )

    # -- no arrays by themselves -------------------------------------------------------------------------------------

    def _refuse(self, what: str, way: str = "") -> NoReturn:
        """Refuse an operation that needs the numbers of a draw."""
        raise TypeError(
            f"{what} has no exact result for the marginals of {_named(self.sites)}, which are "
            f"its value here. {way}For data, use likelihoods.Gaussian(f, noise_variance) in place of "
            "dist.Normal(f, scale), and likelihoods.Expected(lambda f: dist.Poisson(jnp.exp(f)), f) for any other "
            "distribution. f + c, f * c, f / c, f @ A, f[rows], f[:, k] and sums of different sites stay exact. To "
            "compute with a random draw write draws(f), from gpzoo import draws, as in jnp.exp(draws(f))."
        )

    def __jax_array__(self) -> Any:
        return _NoArray(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        self._refuse("A NumPy function")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # NumPy's operators call this method. Their names differ from the names of Python's methods.
        name = _OF_NUMPY.get(ufunc)
        in_place = len(options) == 1 and options.get("out", (None,))[0] is inputs[0]  # total += f
        if name is None or method != "__call__" or (options and not in_place):
            self._refuse(f"numpy.{ufunc.__name__}")
        left, right = inputs
        if isinstance(left, GaussianMarginals):
            return getattr(left, f"__{name}__")(right)
        return getattr(right, f"__r{name}__")(left)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Array, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._refuse(f"f.{name}")

    # -- operations that keep them exact -----------------------------------------------------------------------------

    def _with(
        self,
        mean: Array,
        source_variance: Array,
        loading: Array | None,
        change: Callable[[Any], Any] = lambda part: part,
    ) -> GaussianMarginals:
        parts = tuple(map(change, self.parts))
        shared = None if self.shared is None else change(self.shared)
        return self._with_fields(loc=mean, source_variance=source_variance, loading=loading, parts=parts, shared=shared)

    def _with_constant(self, other: Any, change: Callable[[GaussianMarginals], Any], symbol: str) -> Any:
        """``change`` of these marginals; if the constant has more columns, they are first repeated over columns."""
        if isinstance(other, GaussianMarginals):
            self._refuse(f"f {symbol} g, of {_named(self.sites)} and {_named(other.sites)},")
        if not isinstance(other, (int, float, np.ndarray, np.generic, Array)):
            return NotImplemented
        if not _is_real(other):
            self._refuse(f"f {symbol} c, where c is {_kind(other)},", "c must be real numbers. ")
        shape = jnp.shape(other)
        try:
            wanted = jnp.broadcast_shapes(shape, self.shape)
        except ValueError:
            wanted = None
        if wanted is None or wanted[:-1] != self.shape[:-1] or (self.ndim == 1 and wanted != self.shape):
            self._refuse(
                f"f {symbol} c, where f has shape {self.shape} and c {shape},",
                "c must have a number for each row of f, or for each output, or be one number. ",
            )
        return change(self._repeated(wanted))

    def _repeated(self, shape: tuple[int, ...]) -> GaussianMarginals:
        """These marginals, with their only output repeated to the number of outputs of ``shape``."""
        return self if self.shape == shape else self @ jnp.ones((1, shape[1]), self.dtype)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, GaussianMarginals):
            return self._plus(other, 1)
        return self._with_constant(other, lambda f: f._with_fields(loc=f.loc + other), "+")

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, GaussianMarginals):
            return self._plus(other, -1)
        return self._with_constant(other, lambda f: f._with_fields(loc=f.loc - other), "-")

    def __rsub__(self, other: Any) -> Any:
        return self._with_constant(other, lambda f: -f + other, "-")

    def __neg__(self) -> GaussianMarginals:
        return self._scaled(-1)

    def __pos__(self) -> GaussianMarginals:
        return self

    def __mul__(self, other: Any) -> Any:
        return self._with_constant(other, lambda f: f._scaled(other), "*")

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._with_constant(other, lambda f: f._scaled(jnp.ones((), f.dtype) / other), "/")

    def _scaled(self, c: Any) -> GaussianMarginals:
        c = self._floating(c)
        rows = jnp.ndim(c) == 2 and jnp.shape(c)[0] != 1
        columns = jnp.ndim(c) > 0 and jnp.shape(c)[-1] != 1
        shape = (-1, 1) if self.ndim == 1 else (-1, jnp.shape(c)[-1]) if jnp.ndim(c) else ()
        scaled = lambda part: part.scaled(jnp.reshape(c, shape) if jnp.ndim(c) else c)  # noqa: E731
        if self.loading is None:
            return self._with(self.loc * c, self.source_variance * (c * c), None, scaled)
        if rows and columns:
            self._refuse("(f @ A) * c, with a number in c for each row and output,")
        if columns:
            return self._with(self.loc * c, self.source_variance, self.loading * jnp.reshape(c, (1, -1)), scaled)
        return self._with(self.loc * c, self.source_variance * (c * c), self.loading, scaled)

    def __matmul__(self, A: Any) -> Any:
        if not isinstance(A, GaussianMarginals | np.ndarray | Array):
            return NotImplemented
        if isinstance(A, GaussianMarginals) or not _is_real(A) or self.ndim != 2 or jnp.ndim(A) not in (1, 2):
            self._refuse("f @ A", "A must be a matrix or a vector of numbers, and f have a column per output. ")
        A = self._floating(jnp.asarray(A))
        self._log_mixed()
        loading = A if self.loading is None else matmul(self.loading, A)
        mixed = lambda part: part.mixed(A if A.ndim == 2 else A[:, None])  # noqa: E731
        if A.ndim == 1:
            return self._with(matmul(self.loc, A), matmul(self.source_variance, jnp.square(loading)), None, mixed)
        return self._with(matmul(self.loc, A), self.source_variance, loading, mixed)

    def _floating(self, c: Any) -> Any:
        """Constants as floating numbers, because squares of small integers wrap around."""
        whole = isinstance(c, np.ndarray | np.generic | Array) and not jnp.issubdtype(c.dtype, jnp.floating)
        return jnp.asarray(c, self.dtype) if whole else c

    def _log_mixed(self) -> None:
        if self.log is not None:
            self.log.mixed |= self.sites

    def __rmatmul__(self, A: Any) -> NoReturn:
        self._refuse("A @ f", "It mixes the rows of f, whose covariances marginals do not have. ")

    def dot(self, A: Any) -> Any:
        """``f @ A``, a map over outputs.

        Args:
            A: ``[K, L]`` or ``[K]``.
        """
        return self @ A

    def sum(self, axis: int | None = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The sum over outputs, ``f.sum(axis=-1)``, which is ``f @ ones``.

        Args:
            axis: ``-1`` or ``1``; a sum over rows is refused.
            dtype: as in NumPy; refused.
            out: as in NumPy; refused.
            keepdims: whether the axis stays.
        """
        if self.ndim != 2 or axis not in (-1, 1) or dtype is not None or out is not None:
            self._refuse(f"f.sum(axis={axis})", "Over outputs it is f.sum(axis=-1). ")
        total = self @ jnp.ones(self.shape[1], self.dtype)
        return total[:, None] if keepdims else total

    def __getitem__(self, index: Any) -> Any:
        if self.ndim == 1 and isinstance(index, tuple) and len(index) == 2 and _is_full(index[0]) and index[1] is None:
            return self._with(self.loc[:, None], self.source_variance[:, None], None)
        rows, columns = self._rows_and_columns(index)
        if rows is None:
            one = "(f * jax.nn.one_hot(k, f.shape[1])).sum(axis=-1)"
            way = f"Rows are a slice or a vector of numbers; one output for each row is {one}. "
            self._refuse("f[index], whose index is none of these,", way)
        if columns is None:
            self._refuse_missing(rows, 0)
            # JAX would take the last row for a row that does not exist.
            numbers = not isinstance(rows, slice) and rows.dtype != bool
            loc = jnp.asarray(self.loc).at[rows].get(mode="fill", fill_value=jnp.nan) if numbers else self.loc[rows]
            found = self._with(loc, self.source_variance[rows], self.loading, lambda part: part.rows(rows))
            return found if self.rows is None else found._with_fields(rows=self.rows[rows])
        self._log_mixed()
        traced = not is_concrete(columns) and columns.dtype != bool
        mean = self.loc.at[:, columns].get(mode="fill", fill_value=jnp.nan) if traced else self.loc[:, columns]
        kept = jnp.reshape(columns, (1,)) if _is_integer(columns) else columns
        chosen = lambda part: part.columns(kept)  # noqa: E731
        if self.loading is None:
            return self._with(mean, self.source_variance[:, columns], None, chosen)
        loading = self.loading[:, columns]
        if loading.ndim == 1:
            return self._with(mean, matmul(self.source_variance, jnp.square(loading)), None, chosen)
        return self._with(mean, self.source_variance, loading, chosen)

    def _rows_and_columns(self, index: Any) -> tuple[Any, Any]:
        """The rows and columns of ``f[rows]`` or ``f[:, columns]``; the rows are ``None`` for any other index."""
        if not isinstance(index, tuple):
            return (index, None) if _keeps_axis(index) else (None, None)
        if self.ndim == 2 and len(index) == 2 and (index[0] is Ellipsis or _is_full(index[0])):
            if _is_integer(index[1]) or _keeps_axis(index[1]):
                self._refuse_missing(index[1], 1)
                return slice(None), index[1]
        return None, None

    def _refuse_missing(self, index: Any, axis: int) -> None:
        """Refuse known numbers of rows or columns that do not exist, because JAX would take the last one instead."""
        if isinstance(index, slice) or not is_concrete(index):
            return
        given, count = np.asarray(index), self.shape[axis]
        if given.dtype != bool and (missing := given[(given < -count) | (given >= count)]).size:
            raise IndexError(
                f"f[{':, ' * axis}{missing.flat[0]}]: the marginals of {_named(self.sites)} have {count} "
                f"{('row', 'column')[axis]}{'s' if count > 1 else ''} here."
            )

    def _plus(self, other: GaussianMarginals, sign: int) -> GaussianMarginals:
        symbol = "f + g" if sign == 1 else "f - g"
        if not self.sites or not other.sites or self.sites & other.sites:
            self._refuse(
                f"{symbol}, of {_named(self.sites)} and {_named(other.sites)},",
                "Two pieces of one site depend on each other: draw the site first, f = draws(f), or map its outputs, "
                "f @ A. ",
            )
        columns = {f.shape[-1] for f in (self, other)}
        if self.shape[:-1] != other.shape[:-1] or (len(columns) > 1 and (self.ndim == 1 or 1 not in columns)):
            self._refuse(f"{symbol}, of shapes {self.shape} and {other.shape},")
        if len(columns) > 1:
            self, other = (f._repeated((*f.shape[:-1], max(columns))) for f in (self, other))
        if self.log is not None:
            self.log.sums[self.sites | other.sites] = None
        mean = self.loc + sign * other.loc
        if self.loading is None and other.loading is None:
            variance, loading = self.source_variance + other.source_variance, None
        else:
            eye = jnp.eye(self.shape[-1], dtype=self.dtype)
            loading = jnp.concatenate([eye if m.loading is None else m.loading for m in (self, other)])
            variance = jnp.concatenate([self.source_variance, other.source_variance], axis=-1)
        estimated = isinstance(self, EstimatedMarginals) or isinstance(other, EstimatedMarginals)
        kind = EstimatedMarginals if estimated else GaussianMarginals
        own, theirs = cast(Any, self.key), cast(Any, other.key)
        key = None if own is None or theirs is None else random.fold_in(own, random.bits(theirs, (), jnp.uint32))
        return kind(
            mean,
            variance,
            key,
            loading,
            self.sites | other.sites,
            other.log if self.log is None else self.log,
            other.rows if self.rows is None else self.rows,
            self.parts + tuple(part.scaled(sign) for part in other.parts),
            self._shared_with(other, sign),
        )

    def _shared_with(self, other: GaussianMarginals, sign: int) -> SharedNoise | None:
        """The shared noise of ``f + g`` or ``f - g``."""
        theirs = None if other.shared is None else other.shared.scaled(sign)
        return theirs if self.shared is None else self.shared if theirs is None else self.shared.plus(theirs)


class EstimatedMarginals(GaussianMarginals):
    """Unbiased estimates of marginals: the value of a GP site in training if its kernel samples views of the inputs.

    Views are transformed inputs (:class:`~gpzoo.SampledView`). ``mean`` estimates the mean, and
    ``mean ** 2 + variance`` estimates the mean square. Over the views, ``E[mean] = E[f]`` and
    ``E[mean ** 2 + variance] = E[f ** 2]`` (van der Wilk et al. 2018, eq. 16-21). ``variance`` alone is therefore not
    the estimate of a variance. It can be negative, and operations that need the distribution of ``f`` cannot use it.
    Terms that are quadratic in ``f`` are unbiased. The likelihoods :class:`~gpzoo.likelihoods.Gaussian`,
    :class:`~gpzoo.likelihoods.PolyaGamma` and :class:`~gpzoo.likelihoods.StickBreaking` have quadratic terms. All other
    likelihoods refuse estimates.

    Operations with constants, choices of rows and columns, and sums of different sites are exact, as for
    :class:`GaussianMarginals`. All other operations raise ``TypeError``, because they need draws or covariances of
    ``f``.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from gpzoo import EstimatedMarginals
        >>> f = EstimatedMarginals(np.array([1.0], np.float32), np.array([-0.1], np.float32))
        >>> (f * 2.0 + 1.0).mean
        array([3.], dtype=float32)
        >>> try:
        ...     jnp.exp(f)
        ... except TypeError as error:
        ...     print(str(error)[:49])
        The kernel of GP site without a name samples view
    """

    def noise(self, num_draws: int) -> Array:
        """Raise an error, because estimated marginals have no draws.

        Raises:
            TypeError: always.
        """
        self._refuse_estimates("drawn, as another GP, a likelihood or an operation of the program asks")

    def __matmul__(self, A: Any) -> Any:
        self._refuse_estimates("mixed by a matrix, which needs covariances of its outputs")

    def _refuse_estimates(self, what: str) -> NoReturn:
        raise TypeError(
            f"The kernel of {_named(self.sites)} samples views of its inputs, so that its moments are estimates in "
            f"training (the variance may be negative): it cannot be {what}. Enumerate the views (an Orbit), or keep "
            "the site's value to f + c, f * c, and the likelihoods Gaussian, PolyaGamma and StickBreaking."
        )

    def _refuse(self, what: str, way: str = "") -> NoReturn:
        self._refuse_estimates(f"used in {what}")


class _NoArray:
    """The object that marginals return when JAX asks them for an array; it is not an array.

    JAX's operators then leave the operation to the marginals. JAX's functions ask this object for its type, or write it
    into an error message. In both cases, the marginals raise their own error.
    """

    def __init__(self, marginals: GaussianMarginals) -> None:
        self._marginals = marginals

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_marginals":  # not set yet, in a copy
            raise AttributeError(name)
        self._marginals._refuse("A function of JAX, or a distribution of NumPyro,")

    def __repr__(self) -> str:
        self._marginals._refuse("A function of JAX, or a distribution of NumPyro,")


def _named(sites: frozenset[str]) -> str:
    if not sites:
        return "GP site without a name"
    return f"GP site{'s' if len(sites) > 1 else ''} {', '.join(map(repr, sorted(sites)))}"


def _keeps_axis(index: Any) -> bool:
    """Whether an index is a slice or a vector of integers or booleans, so that the indexed axis stays."""
    return isinstance(index, slice) or (isinstance(index, np.ndarray | Array) and index.ndim == 1)


def _is_integer(index: Any) -> bool:
    if isinstance(index, np.ndarray | Array):
        return index.ndim == 0 and jnp.issubdtype(index.dtype, jnp.integer)
    return isinstance(index, int | np.integer) and not isinstance(index, bool)


def _is_real(x: Any) -> bool:
    """Whether numbers are real and not masked, and JAX has their type."""
    if isinstance(x, int | float):
        return True
    real = any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
    return real and x.dtype.itemsize <= 8 and not isinstance(x, np.ma.MaskedArray)


def _kind(x: Any) -> str:
    return "a masked array" if isinstance(x, np.ma.MaskedArray) else f"of type {x.dtype}"


def _is_full(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _refusing(what: str) -> Callable[..., NoReturn]:
    def operation(self: GaussianMarginals, *others: Any) -> NoReturn:
        self._refuse(what)

    return operation


#: Python's other operators, with their names in error messages.
_OTHERS = {"abs": "abs(f)", "pow": "f ** c", "mod": "f % c", "floordiv": "f // c", "divmod": "divmod(f, c)"}
_OTHERS |= {"rtruediv": "c / f", "rpow": "c ** f", "rmod": "c % f", "rfloordiv": "c // f", "rdivmod": "divmod(c, f)"}
_COMPARED = {"lt": "f < c", "le": "f <= c", "gt": "f > c", "ge": "f >= c", "eq": "f == c", "ne": "f != c"}
_OTHERS |= {name: f"A distribution of NumPyro, or {what}," for name, what in _COMPARED.items()}
_OTHERS |= {"bool": "A condition on f", "iter": "A loop over f", "contains": "c in f"}
_OTHERS |= {"float": "float(f)", "int": "int(f)"}
for _name, _what in _OTHERS.items():
    setattr(GaussianMarginals, f"__{_name}__", _refusing(_what))

#: The names of Python's methods for NumPy's operators.
_OF_NUMPY = {np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "truediv", np.matmul: "matmul"}
_OF_NUMPY |= {np.power: "pow", np.remainder: "mod", np.floor_divide: "floordiv", np.divmod: "divmod"}
