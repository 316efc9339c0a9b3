"""Gaussian processes as NumPyro distributions."""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._pytree import KnowsRanks
from gpzoo._types import ArrayLike
from gpzoo.kernels import Kernel
from gpzoo.kernels.double_sum import has_sampled_views, with_fixed_views
from gpzoo.linalg.gaussian import log_normal
from gpzoo.linalg.operators import LOG_2PI
from gpzoo.processes.marginals import GaussianMarginals, draws


class ProcessAtInputs(dist.Distribution):
    """A Gaussian distribution of ``num_outputs`` independent functions at ``N`` inputs: ``[N]`` or ``[N, D]``.

    With ``P`` inputs for each of ``N`` rows, the values are ``[N, P]`` or ``[N, P, D]``. Internally, there are then
    ``N P`` inputs. Subclasses define :meth:`moments`. Internal arrays have a leading axis of outputs. In the results of
    public methods, the outputs are the last axis.
    """

    jitter: float | Array | None

    def _init_events(self, num_inputs: int, num_outputs: int | None, in_row: int | None = None) -> None:
        self.num_outputs, self.in_row = num_outputs, in_row
        inputs = (num_inputs,) if in_row is None else (num_inputs // in_row, in_row)
        dist.Distribution.__init__(self, event_shape=inputs if num_outputs is None else (*inputs, num_outputs))

    @property
    def num_inputs(self) -> int:
        """Number of inputs of all rows."""
        return self.event_shape[0] * (self.in_row or 1)

    @property
    def support(self) -> constraints.Constraint:
        """All real arrays of the event's shape."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def _replace(self, **changes: Any) -> Self:
        data, static = self.tree_flatten()
        copy: Any = self.tree_unflatten(static, data)
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    def moments(self) -> tuple[Float[Array, "*event"], Float[Array, "... N N"]]:
        """Mean and joint covariance, ``[N, N]`` or ``[D, N, N]`` (outputs are independent)."""
        checks.unwritten(self, "moments()")

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Joint draws over all inputs, ``sample_shape + [N]`` or ``sample_shape + [N, D]``.

        The draws are finite if the moments are finite.

        Raises:
            FactorisationError: outside ``jit``, if the covariance holds NaN or infinity.
        """
        mean, covariance = self.moments()
        noise = random.normal(key, sample_shape + self.event_shape, mean.dtype)
        # All draws are columns of one product. With one kernel, so are all outputs. Both orders are their own inverses.
        own = covariance.ndim == 3
        order = (2, 1, 0) if own else (1, 0, 2)
        columns = noise.reshape(-1, self.num_inputs, self.num_outputs or 1).transpose(order)
        times = columns if own else columns.reshape(len(columns), -1)
        of, name = self._prior_variance(), self._covariance_name()
        drawn = linalg.root(covariance, name, self.covariance_jitter, out_of=of, times=times).reshape(columns.shape)
        return mean + drawn.transpose(order).reshape(noise.shape)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S"]:
        """Joint log density of ``value``, ``[..., N]`` or ``[..., N, D]``, in nats: shape ``[...]``.

        Under ``jit``, the log density is minus infinity if the covariance is not positive definite. NUTS counts this
        case as a divergence.

        Raises:
            ValueError: if the last axes of ``value`` do not have the shape of the site.
            FactorisationError: outside ``jit``, if the covariance is not positive definite.
        """
        self._check_value(value)
        mean, covariance = self.moments()
        residual, own = jnp.asarray(value) - mean, covariance.ndim == 3
        columns = jnp.reshape(residual, (-1, self.num_inputs, self.num_outputs or 1))
        # With one kernel, all draws and outputs are columns of one matrix.
        columns = columns.transpose(2, 1, 0) if own else columns.transpose(1, 0, 2).reshape(1, self.num_inputs, -1)
        jittered = linalg.add_jitter(covariance if own else covariance[None], self.covariance_jitter)
        each = log_normal(columns, jittered)
        if checks.is_concrete(each) and not bool(jnp.isfinite(each).all()):
            linalg.cholesky(
                covariance, self._covariance_name(), self.covariance_jitter
            )  # raises, if there is no factor
        each = each if own else each.reshape(-1, self.num_outputs or 1).T
        draws = residual.shape[: residual.ndim - len(self.event_shape)]
        count = self.num_inputs * (self.num_outputs or 1)
        return jnp.reshape(jnp.sum(each, axis=0), draws) - count * LOG_2PI / 2

    def _prior_variance(self) -> Float[Array, "*D N"]:
        """Variances of the prior; they set the scale of rounding errors in all covariances computed from them."""
        checks.unwritten(self, "_prior_variance()")

    @property
    def covariance_jitter(self) -> float | Array:
        """The absolute jitter on the covariance of all inputs."""
        checks.unwritten(self, "covariance_jitter")

    def _check_value(self, value: Any) -> None:
        shape, events = tuple(jnp.shape(value)), self.event_shape
        hint = ": drop the last axis of the value, y[:, 0]" if shape == (*events, 1) else ""
        wrong = shape[max(len(shape) - len(events), 0) :] != events
        checks.refuse(wrong, f"A value of shape {shape} was given to a GP site of shape {events}{hint}.")

    def _covariance_name(self) -> str:
        return f"the covariance of {type(self).__name__} at {self.num_inputs} inputs"

    # -- no plates, no masks -----------------------------------------------------------------------------------------

    def expand(self, batch_shape: tuple[int, ...]) -> dist.Distribution:
        """Refuse a plate, because a GP site must be outside every plate.

        Raises:
            ValueError: if ``batch_shape`` is not empty.
        """
        checks.refuse(
            tuple(batch_shape),
            f"A GaussianProcess site (event shape {self.event_shape}) cannot be inside a plate or be expanded to "
            f"{tuple(batch_shape)}: its KL would be scaled by the minibatch. Sample it before "
            "`with numpyro.plate(...)` and use its value inside; for several functions use num_outputs.",
        )
        return self

    def mask(self, mask: Any) -> dist.Distribution:
        """Refuse all masks except ``True`` and ``False``. NumPyro uses ``False`` for a density that it does not need.

        Raises:
            ValueError: for a mask that is not a single bool, because a joint density over inputs has no terms to mask.
        """
        checks.refuse(
            not isinstance(mask, bool),
            "A GaussianProcess site cannot be masked: its density is joint over all inputs. Put handlers.mask around "
            "the likelihood site only.",
        )
        return self if mask else super().mask(cast(Any, mask))


class GaussianProcess(KnowsRanks, ProcessAtInputs):
    """The values of a Gaussian process at inputs ``X``: ``f ~ N(mean, K(X, X))``.

    An unobserved site, ``numpyro.sample("f", GaussianProcess(kernel, X))``, is a latent function. NumPyro can draw it
    from the prior. The site has an exact density, so NUTS can run a small model, best with
    :func:`~gpzoo.inference.whitened`. :class:`~gpzoo.inference.InducingGuide` approximates the posterior of the site.
    An observed site (``obs=y``) is exact GP regression: the noise is in the kernel (``+ White(noise_variance)``), and
    ``log_prob`` is the log marginal likelihood.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import GaussianProcess, kernels
        >>> X = np.linspace(0, 1, 3, dtype=np.float32)[:, None]
        >>> prior = GaussianProcess(kernels.RBF(1.0, 0.5), X)
        >>> prior.sample(jax.random.key(0), (4,)).shape
        (4, 3)
        >>> np.asarray(prior.kernel(X)).round(2)
        array([[1.  , 0.61, 0.14],
               [0.61, 1.  , 0.61],
               [0.14, 0.61, 1.  ]], dtype=float32)

    Args:
        kernel: covariance function; with a leading axis ``D`` on its leaves, one kernel per output.
        X: inputs ``[N, ...]``, or ``[D, N, ...]`` for one set of inputs per output. If ``X`` is the value of another GP
            site, as in a deep GP, gpzoo first draws this value (:func:`~gpzoo.draws`).
        mean: prior mean at ``X``, an array that broadcasts to the shape of the site; zero if ``None``. The mean is
            given only at ``X``, so inducing variables always belong to the zero-mean part of the process. If ``mean``
            is the value of another GP site, gpzoo first draws this value. To add two sites exactly, add their values,
            ``f + g``.
        num_outputs: number ``D`` of independent functions. ``None`` gives a site ``[N]``, a number gives ``[N, D]``.
        jitter: absolute jitter on covariance diagonals; ``None`` means the jitter that factorisations need
            (:func:`gpzoo.linalg.factorise.needed_jitter`).
        per_row: whether a row of the data has several inputs, such as an image's patches. Inputs are then
            ``[N, P, ...]`` and values ``[N, P]`` or ``[N, P, D]``. A guide always draws these values, jointly within a
            row.

    Raises:
        ValueError: if inputs have the wrong rank, are empty or not finite; if the mean does not broadcast; if
            ``num_outputs`` is not a positive integer or contradicts the kernel; under MCMC, if ``numpyro.param`` sites
            are not lifted.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("kernel", "X", "loc", "jitter")
    pytree_aux_fields = ("num_outputs", "in_row")

    def __init__(
        self,
        kernel: Kernel,
        X: ArrayLike | GaussianMarginals,
        mean: ArrayLike | GaussianMarginals | None = None,
        *,
        num_outputs: int | None = None,
        jitter: float | Array | None = None,
        per_row: bool = False,
    ) -> None:
        checks.refuse_params_under_mcmc()
        if num_outputs is not None:
            num_outputs = checks.positive_int("num_outputs", num_outputs)
        self.kernel, self.jitter = checks.instance("kernel", kernel, Kernel, "a gpzoo kernel"), jitter
        given: Any = draws(X)
        in_row = None
        if per_row:
            shape = jnp.shape(given)
            checks.must(len(shape) > 2, "X", "be [N, P, ...] with per_row=True", f"shape {shape}")
            sampled = "With sampled views a row has one input: leave per_row out, or enumerate the views (an Orbit)."
            checks.refuse(has_sampled_views(kernel), sampled)
            checks.not_empty("X", given)
            given, in_row = jnp.reshape(given, (-1, *shape[2:])), shape[1]
        self.X = kernel.check_inputs(given)
        own_axis = kernel.has_outputs(self.X)
        inputs = self.X[0] if own_axis else self.X
        checks.not_empty("X", inputs)
        checks.finite("X", self.X)
        each = "With sampled views all outputs have one kernel, but this"
        own_each = kernel.batched and self.samples_views
        checks.refuse(own_each, f"{each} {type(kernel).__name__} carries one per output.")
        distinct = self._num_distinct(kernel, own_axis)
        function, noise = kernel.split_noise()
        of_rows = num_outputs is None and distinct == inputs.shape[0] > 1 and noise is not None and noise.batched
        checks.refuse(
            of_rows and (function is None or not function.batched),
            f"White(variance) has {distinct} variances for {distinct} rows of X, but takes one number, or one for each "
            "output. A known noise for each row goes into the likelihood, Gaussian(f, noise_variance) with "
            f"noise_variance [{distinct}]; if these are {distinct} outputs, say num_outputs={distinct}.",
        )
        if distinct is not None:
            given = f"num_outputs is {num_outputs}, but the kernel or X carries {distinct} outputs."
            checks.refuse(num_outputs not in (None, distinct), given)
            num_outputs = distinct
        own_of_each = "With per_row=True all outputs see the same inputs, but X has a set for each."
        checks.refuse(per_row and own_axis, own_of_each)
        self._init_events(inputs.shape[0], num_outputs, in_row)
        self.loc = None
        if mean is not None:
            self.loc = checks.floating("mean", draws(mean))
            checks.finite("mean", self.loc)
            checks.broadcasts("mean", self.loc, self.event_shape, "the site's")

    def _num_distinct(self, kernel: Kernel, own_axis: bool) -> int | None:
        if own_axis:
            return self.X.shape[0]
        if not kernel.batched:
            return None
        return jax.eval_shape(lambda k, x: k.diag(x), kernel, self.X).shape[0]

    @property
    def mean(self) -> Float[Array, "*event"]:
        """Prior mean."""
        if self.loc is None:
            return jnp.zeros(self.event_shape, self.X.dtype)
        return jnp.broadcast_to(self.loc, self.event_shape)

    @property
    def variance(self) -> Float[Array, "*event"]:
        """Prior variance."""
        flat = (self.num_inputs,) if self.num_outputs is None else (self.num_inputs, self.num_outputs)
        return to_event_shape(self.kernel.diag(self.X), flat).reshape(self.event_shape)

    def moments(self) -> tuple[Float[Array, "*event"], Float[Array, "... N N"]]:
        """Prior mean and covariance of ``f(X)``; see :class:`GaussianProcess`."""
        self.refuse_mapped()
        return self.mean, self.kernel(self.X)

    @property
    def rows_of_inputs(self) -> Float[Array, "N ..."]:
        """The inputs: ``[N, P, ...]`` with several inputs per row, ``[D, N, ...]`` with a set of inputs per output."""
        return self.X if self.in_row is None else self.X.reshape(-1, self.in_row, *self.X.shape[1:])

    def _prior_variance(self) -> Float[Array, "*D N"]:
        return self.kernel.diag(self.X)

    @property
    def covariance_jitter(self) -> float | Array:
        """The absolute jitter on the covariance of all inputs: ``jitter``, or the amount that the covariance needs."""
        return self.kernel.jitter(self.X) if self.jitter is None else self.jitter

    @property
    def samples_views(self) -> bool:
        """Whether the kernel contains sampled views; its moments can then only be estimated."""
        return has_sampled_views(self.kernel)

    def with_fixed_views(self, key: PRNGKeyArray) -> GaussianProcess:
        """This process with views that are sampled once, and are then the same for all inputs."""
        return self._replace(kernel=with_fixed_views(self.kernel, key), _ranks=None)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Joint draws over all inputs. If the kernel samples views, all draws use the same views."""
        if self.samples_views:
            key, key_views = random.split(key)
            return self.with_fixed_views(key_views).sample(key, sample_shape)
        return super().sample(key, sample_shape)


def to_event_shape(per_output: Float[Array, "... N"], event_shape: tuple[int, ...]) -> Float[Array, "N *D"]:
    """An array ``[N]`` or ``[D, N]`` in the event's shape, ``[N]`` or ``[N, D]``."""
    if per_output.ndim == 2:
        return per_output.T
    return jnp.broadcast_to(per_output if len(event_shape) == 1 else per_output[:, None], event_shape)
