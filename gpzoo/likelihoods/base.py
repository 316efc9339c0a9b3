"""The base class of likelihoods: shapes, checks of ``y``, missing entries, plates and masks."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from inspect import getattr_static
from typing import Any, ClassVar, cast

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Bool, Float, Int32, PRNGKeyArray, Shaped
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.distribution import MaskedDistribution

from gpzoo import _checks as checks
from gpzoo._numpyro import mask_of
from gpzoo._pytree import KnowsRanks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.answers import Answers
from gpzoo.processes.marginals import EstimatedMarginals, GaussianMarginals

#: NumPyro's ``dependent_property``; its own annotations allow no argument.
dependent_property: Any = constraints.dependent_property


class Likelihood(Answers, KnowsRanks, Distribution):
    """A distribution ``p(y | f)`` of ``N`` rows of data; ``f`` is an array or the Gaussian marginals ``q(f)``.

    With an array, every method has the same meaning as in NumPyro. With :class:`~gpzoo.GaussianMarginals`,
    ``log_prob(y)`` is the variational expectation ``E_q(f)[log p(y | f)]`` (the data term of the evidence lower
    bound, Hensman, Matthews and Ghahramani 2015). Then ``mean``, ``variance``, ``predictive_log_prob`` and ``sample``
    refer to the predictive distribution ``integral p(y | f) q(f) df``.

    For a likelihood of your own, use :class:`~gpzoo.likelihoods.Expected` with any NumPyro distribution, or write a
    subclass. A subclass must define:

    * :meth:`log_prob` and :meth:`predictive_log_prob`, which compute densities of ``self.checked(y)``;
    * :meth:`sample_given`, :meth:`marginal_expectation` and ``support``;
    * ``mean`` and ``variance``; or, if ``y`` is a label, ``num_classes`` and ``probs``. If ``f`` has one column per
      class, the subclass derives from :class:`~gpzoo.likelihoods.classes.ClassLikelihood`. With a different number of
      columns, such as one column for ordered classes, the subclass derives from this class.

    A subclass sets its arguments before ``super().__init__(f)``, and declares them in one of three attributes:

    * ``arg_constraints``: parameters that have a constraint, such as positive parameters;
    * ``pytree_data_fields``: arrays without a constraint, such as limits of censored data. NumPyro does not check them;
    * ``pytree_aux_fields``: arguments that are not arrays and belong to the compiled program.

    A subclass may declare these properties if they hold:

    * ``quadratic``: :meth:`log_prob` of marginals is quadratic in ``f``. Then the bound stays unbiased if ``f`` is
      :class:`~gpzoo.EstimatedMarginals`;
    * ``takes_residual``: under ``GaussianProcessELBO(tight=True)``, :meth:`log_prob` multiplies each residual variance
      by the factor that is best for the bound. A residual variance is a variance given the inducing variables;
    * ``by_entry``: ``p(y | f)`` is a product over the entries of each row of ``y``. Then single entries may be missing;
    * ``own_columns``: each entry of ``y`` depends only on its own column of ``f``.

    A subclass may define :meth:`check_values` if some ``y`` are impossible. Predictions, diagnoses and exports use the
    members of :class:`~gpzoo.likelihoods.answers.Answers`, such as ``noise``, ``cdf`` and ``exact``. A subclass
    overrides a member if its default is wrong. Methods other than :meth:`log_prob` must call :meth:`refuse_estimates`
    before they use the distribution of ``f``. To support ``missing`` and masks of single outputs, methods that return
    densities end with ``self.counted(terms, y)``, where ``terms`` has one term for each entry of ``y``.

    Example:
        >>> import numpy as np
        >>> from gpzoo import GaussianMarginals
        >>> from gpzoo.likelihoods import Gaussian, Likelihood
        >>> f, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
        >>> known, uncertain = Gaussian(f, 1.0), Gaussian(GaussianMarginals(f, np.ones(1, np.float32)), 1.0)
        >>> isinstance(known, Likelihood), known.log_prob(y).round(3), uncertain.log_prob(y).round(3)
        (True, Array([-0.919], dtype=float32), Array([-1.419], dtype=float32))
        >>> uncertain.variance, uncertain.predictive_log_prob(y).round(3)
        (Array([2.], dtype=float32), Array([-1.266], dtype=float32))

    Args:
        f: ``[N]``, or ``[N, K]`` for ``K`` latent functions; array or marginals.
        event_shape: shape of one row of ``y``.
        ndims: the ranks that ``f`` may have.
        missing: ``"mask"`` if NaN in ``y`` marks entries that were not observed. These entries have no term. ``None``
            refuses NaN.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``f`` has a rank that is not in ``ndims``, or no rows; if ``missing`` is ``"mask"``, but the
            outputs of a row have one joint density.
        TypeError: if a subclass does not define one of the required members; if ``f`` is
            :class:`~gpzoo.EstimatedMarginals` and the expectation is not quadratic in ``f``.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {"f": constraints.dependent}

    #: Whether :meth:`log_prob` chooses the best factors of residual variances, for ``GaussianProcessELBO(tight=True)``
    #: and similar bounds.
    takes_residual: ClassVar[bool] = False

    #: Whether ``p(y | f)`` is a product over the entries of each row of ``y``, each entry with its own term.
    by_entry: Any = False

    #: Which entries of ``y`` count, ``[N, D]``; ``None`` if all entries count. See :class:`MaskedLikelihood`.
    entries: Any = None

    pytree_aux_fields = ("missing",)

    #: An array, or marginals if :attr:`is_marginal` is true. A type checker cannot follow this.
    f: Any

    #: Numbers of quadrature points and of draws, in the subclasses that set them by :meth:`set_counts`.
    num_points: int
    num_draws: int
    num_predictive_draws: int

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        event_shape: tuple[int, ...] = (),
        *,
        ndims: tuple[int, ...] = (1, 2),
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        checks.refuse_params_under_mcmc()
        lacking = [name for name in _WRITTEN if _is_inherited(type(self), name)]
        checks.refuse(
            lacking,
            f"{type(self).__name__} does not define {', '.join(lacking)}, which predictions need as well as "
            "training: see gpzoo.likelihoods.Likelihood, or use Expected, which needs a distribution alone.",
            TypeError,
        )
        self.f = self._latent(f, ndims)
        self.missing = checks.one_of("missing", missing, (None, "mask"))
        super().__init__(tuple(self.f.shape[:1]), tuple(event_shape), validate_args=validate_args)
        checks.refuse(
            missing and event_shape and not self.by_entry,
            f"{type(self).__name__}: missing='mask' leaves out entries of y one by one, but here a datum's "
            f"outputs, {tuple(event_shape)}, have one density together.",
        )

    @classmethod
    def _latent(cls, f: Any, ndims: tuple[int, ...] = (1, 2)) -> Array | GaussianMarginals:
        """``f`` as a floating array, or unchanged if it is marginals; refuses an ``f`` of the wrong shape."""
        if isinstance(f, EstimatedMarginals) and not cls.quadratic:
            raise TypeError(
                f"{cls.__name__} cannot take estimated moments of site(s) {', '.join(sorted(f.sites))}, whose kernel "
                "samples views of its inputs: its expectation is not quadratic in f, so the bound would be biased. Use "
                "Gaussian, PolyaGamma (two classes) or StickBreaking (more)."
            )
        f = f if isinstance(f, GaussianMarginals) else checks.floating("f", f)
        wanted = " or ".join("[N]" if n == 1 else "[N, K]" for n in ndims)
        of_shape = f"{cls.__name__} takes f of shape {wanted} (one row per datum), got {tuple(f.shape)}."
        checks.refuse(f.ndim not in ndims, of_shape)
        checks.not_empty("f", f)
        return f

    def set_counts(self, **counts: int) -> None:
        """Set numbers of points and draws.

        Raises:
            ValueError: if a number is not an integer of at least one.
        """
        for name, value in counts.items():
            setattr(self, name, checks.positive_int(name, value))

    # -- f -----------------------------------------------------------------------------------------------------------

    @property
    def is_marginal(self) -> bool:
        """Whether ``f`` is marginals, so that ``log_prob`` is an expectation."""
        return isinstance(self.f, GaussianMarginals)

    def refuse_estimates(self) -> None:
        """Refuse estimated moments, because they have no predictive distribution.

        Raises:
            TypeError: if ``f`` is estimated moments; the message names the site.
        """
        if isinstance(self.f, EstimatedMarginals):
            raise TypeError(
                f"Estimated moments of site(s) {', '.join(sorted(self.f.sites))} have no predictive distribution: "
                "they are for the bound alone. gpzoo.inference.predict draws the views first."
            )

    @property
    def expectation(self) -> str:
        """How ``log_prob`` treats ``f``: ``"closed form"``, ``"quadrature"`` or ``"draw"``.

        For an array ``f``, the answer is ``"draw"``: there is no integral, only the log density at the given ``f``.
        """
        return self.marginal_expectation() if self.is_marginal else "draw"

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates: ``"closed form"``, ``"quadrature"`` or ``"draw"``."""
        checks.unwritten(self, "marginal_expectation()")

    def _centre(self) -> Float[Array, "N *K"]:
        return self.f.loc if self.is_marginal else self.f

    # -- y -----------------------------------------------------------------------------------------------------------

    def checked(self, y: Any) -> Shaped[Array, "..."]:
        """``y`` as an array, after checks of its shape and, outside ``jit``, of its values.

        Entries that were not observed are replaced by a value of the support. Densities and their derivatives are
        finite at this value.

        Raises:
            ValueError: for a wrong shape or a bad value; the message names the shapes, or the value and its index.
        """
        self._check_shape(y)
        known = self.entries is None or checks.is_concrete(self.entries)
        if checks.is_concrete(y) and known and getattr(y, "is_fully_addressable", True):
            # NumPy, not JAX: y may be concrete while f is traced, and JAX would then trace operations on y too.
            values = np.asarray(y)
            if np.issubdtype(values.dtype, np.floating) and self.missing:
                values = _filled(values, ~np.isnan(values))
            if self.entries is not None:
                values = _filled(values, np.asarray(self.entries))
            if np.issubdtype(values.dtype, np.floating):
                by_itself = "missing='mask' or " if self.by_entry or not self.event_shape else ""
                left_out = f"leave them out of the bound with {by_itself}numpyro.handlers.mask(mask=observed)"
                dropped = f"drop the data that were not observed, or {left_out} around the site"
                self.refuse_values(values, np.isnan(values), dropped)
                self.refuse_values(values, np.isinf(values), "data must be finite")
            self.check_values(values)
        y, seen, support = jnp.asarray(y), self.seen(y), cast(constraints.Constraint, self.support)
        return y if seen is None else jnp.where(seen, y, support.feasible_like(y).astype(y.dtype))

    def seen(self, y: Any) -> Bool[Array, "..."] | None:
        """A mask of the observed entries of ``y``, of the shape of ``y``; ``None`` if all entries were observed."""
        seen = self.entries
        if self.missing and jnp.issubdtype(jnp.result_type(y), jnp.floating):
            seen = ~jnp.isnan(y) if seen is None else seen & ~jnp.isnan(y)
        return seen if seen is None else jnp.broadcast_to(seen, jnp.shape(y))

    def counted(self, terms: Float[Array, "..."], y: Any, good: Any = None) -> Float[Array, "*S N"]:
        """Log densities of the rows, as sums of the terms of the observed entries of ``y``."""
        terms, seen = terms if good is None else jnp.where(good, terms, jnp.nan), self.seen(y)
        terms = terms if seen is None else jnp.where(seen, terms, 0)
        return terms.sum(tuple(range(-self.event_dim, 0))) if self.event_dim and self.by_entry else terms

    def seen_rows(self, y: Any) -> Bool[Array, "*S N"] | None:
        """A mask of the rows with at least one observed entry; ``None`` if all entries were observed."""
        seen = self.seen(y)
        return seen.any(tuple(range(-self.event_dim, 0))) if seen is not None and self.event_dim else seen

    def _check_shape(self, y: Any) -> None:
        self.refuse_mapped()
        shape, wanted = tuple(np.shape(y)), self.batch_shape + self.event_shape
        hint = "y must have one row per row of f"
        if shape == (*wanted, 1):
            hint = "drop y's last axis: y[:, 0]"
        elif (*shape, 1) == wanted:
            hint = "drop the last axis of f (f[:, 0]), or give y one: y[:, None]"
        elif len(shape) == 2 and len(wanted) == 1 and shape[0] == wanted[0]:
            hint = "if y holds one-hot labels, pass y.argmax(-1)"
        checks.refuse(
            shape[max(len(shape) - len(wanted), 0) :] != wanted,
            f"{type(self).__name__}: y has shape {shape}, but f of shape {tuple(self.f.shape)} "
            f"needs y of shape {wanted}: {hint}.",
        )

    def check_values(self, values: np.ndarray) -> None:
        """Refuse ``y`` with values outside the support (only outside ``jit``); the default accepts every value."""

    def labels(self, y: Any, num_classes: int) -> tuple[Int32[Array, "..."], Bool[Array, "..."]]:
        """Labels as integers, after the checks of :meth:`checked`, and a mask of the labels in range.

        A label that is out of range becomes 0.
        """
        y = self.checked(y)
        # In a type with fewer bits, the number of classes may wrap around.
        y = y if jnp.issubdtype(y.dtype, jnp.floating) or y.dtype.itemsize > 2 else y.astype(jnp.int32)
        good = (y >= 0) & (y < num_classes) & (jnp.floor(y) == y if jnp.issubdtype(y.dtype, jnp.floating) else True)
        return jnp.where(good, y, jnp.zeros_like(y)).astype(jnp.int32), good

    def refuse_values(self, values: np.ndarray, bad: np.ndarray, hint: str) -> None:
        """Refuse values of ``y`` that are bad.

        Raises:
            ValueError: if a value is bad; the message names the first one.
        """
        if bad.any():
            where = checks.first_of(bad)
            raise ValueError(
                f"{type(self).__name__}: y holds {values[where].item()!r} at index {where} "
                f"({int(bad.sum())} such entries of {bad.size}): {hint}."
            )

    # -- calls of NumPyro --------------------------------------------------------------------------------------------

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """``log p(y | f)``, or ``E_q(f)[log p(y | f)]`` if ``f`` is marginals.

        Args:
            value: ``y``, ``[N]`` or ``[N, D]`` (leading sample axes are allowed).
            intermediates: not used.

        Returns:
            ``[N]``, after the sample axes of ``y``. A label that is out of range under ``jit`` gives NaN.

        Raises:
            ValueError: if the shape of ``y`` does not fit ``f``, or ``y`` holds NaN or values outside the support
                (checked only outside ``jit``).
        """
        checks.unwritten(self, "log_prob(value, intermediates)")

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "*S N"]:
        """``log integral p(y | f) q(f) df`` for every row; equal to :meth:`log_prob` for an array ``f``.

        Args:
            value: ``y``, ``[N]`` or ``[N, D]`` (leading sample axes are allowed).

        Returns:
            ``[N]``, after the sample axes of ``y``.

        Raises:
            ValueError: as :meth:`log_prob` does.
        """
        checks.unwritten(self, "predictive_log_prob(value)")

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Shaped[Array, "..."]:
        """Draws of ``y``. If ``f`` is an array, all draws use it; if ``f`` is marginals, each draw has its own ``f``.

        Args:
            key: random key. The key of the marginals is not used.
            sample_shape: leading axes of the result.

        Returns:
            ``sample_shape + [N]`` or ``sample_shape + [N, D]``.
        """
        self.refuse_mapped()
        self.refuse_estimates()
        key_f, key_y = random.split(key)
        size = int(np.prod(sample_shape))
        if self.is_marginal:
            f = self.f._with_fields(key=key_f, rows=None).draws(size)
        else:
            f = jnp.broadcast_to(self.f, (size, *self.f.shape))
        y = self.sample_given(key_y, f)
        return jnp.reshape(y, tuple(sample_shape) + self.batch_shape + self.event_shape)

    def sample_given(self, key: PRNGKeyArray, f: Float[Array, "S N ..."]) -> Shaped[Array, "S N ..."]:
        """Draws of ``y``, one for each array in ``f``, whose first axis is the axis of draws."""
        checks.unwritten(self, "sample_given(key, f)")

    def expand(self, batch_shape: Sequence[int]) -> Likelihood:
        """The likelihood itself; NumPyro's plates call this method.

        Raises:
            ValueError: if the plate does not have the likelihood's batch shape.
        """
        refuse_expanded(self, batch_shape)
        return self

    def mask(self, mask: Any) -> Distribution:
        """The likelihood without the terms of some rows; see NumPyro's ``handlers.mask``.

        Args:
            mask: array whose shape broadcasts to ``[N]``, or to ``[N, D]`` if the density is a product over outputs.

        Raises:
            ValueError: if the mask does not broadcast to one of these shapes; for a mask of single outputs, if the
                outputs of a row have one joint density.
        """
        shape, rows = tuple(np.shape(mask)), self.batch_shape
        if mask is True:
            return self
        by_entry, name = bool(self.event_shape and self.by_entry), type(self).__name__
        whole = rows + self.event_shape if by_entry else rows
        way_out = (
            f"y of shape {whole}: it must be [{rows[0]}], by datum, or of the shape of y."
            if by_entry
            else f"{rows[0]} data, whose outputs have one term together. To mask outputs one by one, observe each at a "
            "site of its own: for output d, `with numpyro.handlers.mask(mask=observed[:, d]): "
            f"numpyro.sample(f'y_{{d}}', {name}(f[:, d], ...), obs=y[:, d])`."
        )
        fits = checks.fits_into(shape, rows) or checks.fits_into(shape, whole)
        checks.refuse(not fits, f"{name}: a mask of shape {shape} does not go with {way_out}")
        return MaskedLikelihood(self, mask)


#: Methods and properties that every likelihood must define; likelihoods of labels have ``probs`` in place of moments.
_WRITTEN = "log_prob", "predictive_log_prob", "sample_given", "marginal_expectation", "support", "mean", "variance"


def _is_inherited(cls: type[Likelihood], name: str) -> bool:
    """Whether a subclass does not define this member."""
    if name in ("mean", "variance") and hasattr(cls, "probs"):
        return False
    return getattr_static(cls, name) is getattr_static(Likelihood, name)


class MaskedLikelihood(MaskedDistribution):
    """A likelihood that leaves out the terms of masked rows, even if their ``y`` is NaN. It refuses to be expanded.

    Args:
        base: the likelihood.
        mask: whether each row, or each entry of ``y``, counts; see :meth:`Likelihood.mask`.
    """

    pytree_data_fields = ("entries",)
    base_dist: Any

    def __init__(self, base: Likelihood, mask: Any) -> None:
        self.entries = None
        if not checks.fits_into(np.shape(mask), base.batch_shape):
            self.entries = jnp.broadcast_to(jnp.asarray(mask, bool), base.batch_shape + base.event_shape)
            mask = self.entries.any(tuple(range(-base.event_dim, 0)))
        super().__init__(base, mask)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Any:
        """As :meth:`Likelihood.log_prob`, but zero for masked rows, even if their ``y`` is NaN or out of range."""
        self.base_dist._check_shape(value)  # before a mask of shape [N] broadcasts a y of shape [N, 1] to [N, N]
        return super().log_prob(jnp.asarray(value)) if self.entries is None else self.of_entries().log_prob(value)

    def of_entries(self) -> Likelihood:
        """The likelihood of the entries of ``y`` that count, if the mask is a mask of entries."""
        found = copy(self.base_dist)
        found.entries = self.entries
        return found

    def expand(self, batch_shape: Sequence[int]) -> MaskedLikelihood:
        """As :meth:`Likelihood.expand`."""
        refuse_expanded(self.base_dist, batch_shape)
        return self

    def mask(self, mask: Any) -> Any:
        """As :meth:`Likelihood.mask`, in addition to the mask that this likelihood already has."""
        rows = checks.fits_into(np.shape(mask), self.batch_shape)
        seen = mask_of(self)
        if isinstance(mask, bool) or isinstance(seen, bool) or (rows and self.entries is None):
            return super().mask(cast(Any, mask))
        own = seen[:, None] if self.entries is None else self.entries
        return self.base_dist.mask(own & (jnp.broadcast_to(mask, self.batch_shape)[:, None] if rows else mask))


def _filled(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Values to check, in which an observed value replaces every value that was not observed."""
    seen = np.broadcast_to(seen, values.shape)
    return np.where(seen, values, values[seen][0]) if seen.any() else values[:0]


def refuse_expanded(likelihood: Likelihood, batch_shape: Sequence[int]) -> None:
    """Refuse a plate whose size is not the number of rows.

    Raises:
        ValueError: if the sizes differ; the message names both.
    """
    checks.refuse(
        tuple(batch_shape) != likelihood.batch_shape,
        f"{type(likelihood).__name__} likelihood has batch shape {likelihood.batch_shape} (f has shape "
        f"{tuple(likelihood.f.shape)}), the plate asks for {tuple(batch_shape)}: f must have one row per datum of the "
        "plate. Index f or the inputs of its GP with the plate's indices if the plate subsamples.",
    )


def check_labels(likelihood: Likelihood, values: np.ndarray, num_classes: int, hint: str = "") -> None:
    """Refuse labels that are not whole numbers in ``0..num_classes - 1``.

    Raises:
        ValueError: if there is such a label; the message names the first one and the number of classes.
    """
    if values.dtype != bool:
        good = (values == np.floor(values)) & (values >= 0) & (values < num_classes)
        wanted = f"labels of {num_classes} classes must be whole numbers from 0 to {num_classes - 1}"
        likelihood.refuse_values(values, ~good, wanted + hint)
