"""The distribution of a Gaussian process given inducing variables, and its KL divergence from the prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float
from numpyro.distributions.kl import kl_divergence

from gpzoo import _checks as checks
from gpzoo import _platform
from gpzoo.inducing.variables import InducingVariable
from gpzoo.kernels.base import Scaled, addends, has_sum
from gpzoo.posteriors.base import Conditional, Form
from gpzoo.posteriors.conditional import Narrowed, Projection
from gpzoo.posteriors.coupled import Coupled, covariance
from gpzoo.posteriors.earlier import Earlier
from gpzoo.posteriors.forms import Diagonal, Full
from gpzoo.posteriors.sampled_views import estimates
from gpzoo.processes.process import GaussianProcess, ProcessAtInputs
from gpzoo.processes.shared import SharedNoise


class InducingPosterior(ProcessAtInputs):
    """The posterior of a GP site given inducing variables ``u ~ q(u)``: ``q(f) = int p(f | u) q(u) du``.

    The conditional contains ``u`` and defines the distribution of ``f`` given ``u``. ``q(u)`` is given by its mean and
    covariance. :func:`numpyro.distributions.kl.kl_divergence` computes the KL divergence from the prior,
    ``KL[q(f) || p(f)] = KL[q(u) || p(u)]`` (Matthews et al. 2016).

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(5))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, X[:, 0]))
        >>> q = start.posterior(jax.random.key(1), X[:3])["f"]
        >>> type(q).__name__, q.mean, q.sample(jax.random.key(2)).shape
        ('InducingPosterior', Array([0., 0., 0.], dtype=float32), (3,))

    Args:
        conditional: :class:`~gpzoo.posteriors.Projection` or :class:`~gpzoo.posteriors.Interpolation`, with the site's
            prior and inducing variables.
        u_mean: mean ``m`` of ``q(u)``, ``[M]`` for a site ``[N]``, ``[M, D]`` for a site ``[N, D]``.
        form: covariance ``S`` of ``q(u)``, such as ``forms.Full(scale)``.
        value: function ``value(posterior, key)`` that makes the site's value in place of a joint draw over all inputs.
            If it is given, ``log_prob`` raises an error. Make it a :class:`jax.tree_util.Partial` if the posterior
            passes through ``jit``.
        earlier: the distribution of ``u`` given earlier data. The KL divergence from the prior then has a term for it.
        drawn: a draw of ``u``, of the shape of ``u_mean``, if other sites already depend on it. All values then follow
            from this draw, but moments and KL divergence still belong to ``q(u)``.

    Raises:
        TypeError: if ``form`` is not a form, or has no values.
        ValueError: for shapes that do not fit each other, or a form that does not fit the inducing variables.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("conditional", "u_mean", "form", "value", "earlier", "drawn")
    pytree_aux_fields = ("num_outputs", "in_row")

    def __init__(
        self,
        conditional: Conditional,
        u_mean: Array,
        form: Form,
        *,
        value: Callable[[InducingPosterior, Array], Any] | None = None,
        earlier: Earlier | None = None,
        drawn: Array | None = None,
    ) -> None:
        site = conditional.site
        checks.refuse(
            not isinstance(form, Form) or not form.has_values,
            f"The form of q(u) of site {site!r} must be a covariance such as forms.Full(scale) or "
            f"forms.BlockDiagonal(blocks) of gpzoo.posteriors, with its values; got {type(form).__name__}.",
            TypeError,
        )
        wanted = (conditional.num_inducing, *conditional.outputs)
        expected = f"expected {wanted} for {wanted[0]} inducing variables."
        of_shape = f"The mean of q(u) of site {site!r} has shape {u_mean.shape}, {expected}"
        checks.refuse(u_mean.shape != wanted, of_shape)
        form.check(conditional)
        form.check_values(conditional)
        self.conditional, self.u_mean, self.form, self.value = conditional, u_mean, form, value
        self.earlier, self.drawn = earlier, drawn
        self._init_events(self.prior.num_inputs, self.prior.num_outputs, self.prior.in_row)

    @property
    def prior(self) -> GaussianProcess:
        """The site's prior."""
        return self.conditional.prior

    @property
    def inducing(self) -> InducingVariable:
        """The inducing variable ``u``."""
        return self.conditional.inducing

    @property
    def whiten(self) -> bool:
        """Whether ``u_mean`` and ``form`` belong to whitened variables."""
        return self.conditional.whiten

    @property
    def site(self) -> str:
        """Name of the site."""
        return self.conditional.site

    @property
    def jitter(self) -> Any:
        """The prior's jitter."""
        return self.prior.jitter

    def _prior_variance(self) -> Float[Array, "*D N"]:
        return self.prior.kernel.diag(self.prior.X)

    @property
    def covariance_jitter(self) -> float | Array:
        """The prior's jitter; with it, the parts of ``f`` without information from ``u`` cancel in ``log q - log p``.

        If inputs are close and the data have made the covariance small, the covariance can be smaller than this jitter.
        Without the jitter, it would have no factor in float32. Draws contain no jitter. So ``log q(f)`` of draws is on
        average at least as large as with jitter in the draws.
        """
        return self.prior.covariance_jitter

    def _covariance_name(self) -> str:
        return f"the joint posterior covariance of site {self.site!r} at {self.num_inputs} inputs"

    def _q(self) -> tuple[Float[Array, "M D"], Form]:
        """Mean and covariance of ``q(u)`` with an axis of outputs."""
        m = self.u_mean if self.num_outputs is not None else self.u_mean[:, None]
        return m, self.form.by_output(m.shape[0], self.num_outputs)

    def marginals(self) -> tuple[Float[Array, "*event"], Float[Array, "*event"]]:
        """Mean and variance at every input."""
        mean, variance = self.conditional.marginals(*self._q())
        return self._with_loc(mean), self._in_shape(variance)

    def for_many_inputs(self) -> InducingPosterior:
        """The same process, with fewer matrix products for marginals at many inputs, if ``q(u)`` allows it.

        If the kernel is a sum, the result is this posterior itself, because fewer products would lose too many digits.
        """
        known, M = self.conditional, self.conditional.num_inducing
        simple = (
            type(known) is Projection and known.whiten and type(self.form) is Full and self.num_outputs in (None, 1)
        )
        if not simple or known.inducing.independent or not isinstance(known.L, Array) or known.L.ndim != 2:
            return self
        if has_sum(known.prior.kernel) or not _platform.narrows(self.num_inputs, M):
            return self
        return InducingPosterior(Narrowed(cast(Projection, known), self._q()[1]), self.u_mean, self.form)

    def marginal_parts(self) -> tuple[Float[Array, "*event"], Float[Array, "*event"], Float[Array, "*event"]]:
        """Mean, variance due to ``q(u)``, and residual variance (the variance given ``u``), at every input.

        Raises:
            ValueError: if ``f`` is a function of ``u`` alone.
        """
        checks.refuse(
            self.conditional.deterministic,
            f"GP site {self.site!r} is interpolated from a grid: nothing is left of it given the grid's variables, "
            "so there is no tighter bound. Leave GaussianProcessELBO(tight=True) out, or use inducing points.",
        )
        mean, inducing, residual = self.conditional.marginal_parts(*self._q())
        return self._with_loc(mean), self._in_shape(inducing), self._in_shape(residual)

    @property
    def shares(self) -> bool:
        """Whether ``u`` shares noise with the ``u`` of other sites."""
        return isinstance(self.form, Coupled) and bool(self.form.group)

    def with_shared_noise(self) -> tuple[Float[Array, "*event"], Float[Array, "*event"], SharedNoise]:
        """Mean, own variance and shared noise of a site that shares one ``q`` with other sites."""
        mean, residual, factors = self._factors()
        form = cast(Coupled, self.form)
        shared = SharedNoise.of(factors, len(mean) > 1 and not form.together, form.taken)
        return self._with_loc(mean), self._in_shape(residual), shared

    def _factors(self) -> tuple[Float[Array, "D N"], Float[Array, "D N"], dict[str, Float[Array, "D _ N"]]]:
        return cast(Any, self.conditional).factors(*self._q())

    def covariance_with(self, other: InducingPosterior) -> Float[Array, "*D N L"]:
        """The covariance of this site's values with another site's values: ``[N, L]`` or ``[D, N, L]``.

        Each site has its own inputs. The covariance is zero unless the sites share one ``q``.

        Args:
            other: posterior of another site of the same guide (for one site, see :meth:`moments`). If the sites have
                the same number of outputs, output ``d`` of one site is paired with output ``d`` of the other site. A
                single output is paired with each output of the other site.

        Raises:
            ValueError: if both posteriors are of one site; if both sites have several outputs, but different numbers of
                them; if this posterior has no joint distribution, because it is given a time series or data on a grid.
        """
        same = f"Both posteriors are of site {self.site!r}: take the moments() of one posterior at the inputs of both."
        checks.refuse(self.site == other.site, same)
        if self.conditional.row_by_row:
            self.moments()  # raises an error that says why there is no covariance
        outputs = {self.num_outputs or 1, other.num_outputs or 1}
        checks.refuse(len(outputs - {1}) > 1, f"Sites {self.site!r} and {other.site!r} have {sorted(outputs)} outputs.")
        own, theirs = ({} if not isinstance(q.form, Coupled) else q._factors()[2] for q in (self, other))
        found = covariance(own, theirs)
        if found is None:
            found = jnp.zeros((max(outputs), self.num_inputs, other.num_inputs), self.u_mean.dtype)
        return found[0] if self.num_outputs is other.num_outputs is None else found

    def parts(self) -> list[InducingPosterior]:
        """The posterior of each term of ``f``, one for each term of the kernel, without white noise.

        With a kernel ``k = k_1 + k_2``, a function is a sum of independent functions, ``f = f_1 + f_2``. The covariance
        of a term with ``u`` follows from the kernel of this term. The prior's mean does not belong to any term.

        Raises:
            ValueError: if ``f`` is interpolated from a grid.
        """
        found = []
        for i, (factor, kernel) in enumerate(addends(self.prior.kernel.split_noise()[0])):
            conditional = self.conditional.of_part(i, kernel if factor is None else Scaled(kernel, factor))
            found.append(self._replace(conditional=conditional))
        return found

    def draws_of_parts(self, key: Array) -> tuple[Float[Array, "*event"], list[Float[Array, "*event"]]]:
        """A joint draw of ``f`` and of its terms over all inputs, for a ``q`` that is concentrated on one ``u``.

        ``f`` is the sum of all terms, plus the prior's mean and white noise.

        Raises:
            ValueError: see :meth:`parts`.
        """
        of_parts, of_noise = random.split(key)
        known = [cast(Projection, part.conditional) for part in self.parts()]
        drawn = cast(Projection, self.conditional).draws_of_parts(self._q()[0], known, of_parts)
        noise = jnp.sqrt(self.prior.kernel.noise_diag(self.prior.X))
        f = sum(drawn) + noise * random.normal(of_noise, drawn[0].shape, drawn[0].dtype)
        return self._with_loc(f), [self._in_shape(x) for x in drawn]

    def estimates(self, key: Array) -> tuple[Float[Array, "*event"], Float[Array, "*event"]]:
        """Unbiased estimates under sampled views (van der Wilk et al. 2018, eq. 16-21).

        Args:
            key: random key of the views.

        Returns:
            The estimate of the mean ``mu``; and the estimate of ``mu ** 2 + sigma ** 2`` minus the square of the
            estimated mean.

        Raises:
            TypeError: for inducing variables that do not belong to the base process.
            ValueError: if the kernel has several sampled views.
        """
        mean, second = estimates(cast(Any, self.conditional), *self._q(), key)
        return self._with_loc(mean), self._in_shape(second - jnp.square(mean))

    def _with_loc(self, per_output: Float[Array, "D N"]) -> Float[Array, "*event"]:
        """Means in the event's shape, plus the prior's mean."""
        mean = self._in_shape(per_output)
        return mean if self.prior.loc is None else mean + self.prior.loc

    def _in_shape(self, per_output: Float[Array, "D N"]) -> Float[Array, "*event"]:
        """An array ``[D, N]`` in the event's shape."""
        return (per_output[0] if self.num_outputs is None else per_output.T).reshape(self.event_shape)

    def moments(self) -> tuple[Float[Array, "*event"], Float[Array, "... N N"]]:
        """Mean and joint covariance ``[N, N]`` or ``[D, N, N]`` over the inputs."""
        mean, covariance = self.conditional.moments(*self._q())
        return self._with_loc(mean), covariance[0] if self.num_outputs is None else covariance

    @property
    def mean(self) -> Float[Array, "*event"]:
        """Posterior mean."""
        return self._with_loc(self.conditional.mean(self._q()[0]))

    @property
    def variance(self) -> Float[Array, "*event"]:
        """Posterior variance at every input."""
        return self.marginals()[1]

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Any:
        """A value of the site: a joint draw over all inputs, or the result of ``value``.

        Raises:
            ValueError: if a ``sample_shape`` is given and ``value`` makes the values.
        """
        if self.drawn is not None:
            return self.given(self.drawn).sample(key, sample_shape)
        if self.value is None:
            return self._joint_draw(key, sample_shape)
        one = f"Site {self.site!r} gives one value at a time, which is no joint draw: vmap over keys."
        checks.refuse(sample_shape, one)
        return self.value(self, key)

    def _joint_draw(self, key: Array, sample_shape: tuple[int, ...]) -> Float[Array, "..."]:
        conditional, q = self.conditional, self._q()

        def one(key: Array) -> Array:
            if conditional.deterministic:
                return self.given(self.draw_inducing(key)).mean
            return self._with_loc(conditional.draws_in_groups(*q, self.num_inputs, key[None], rows=False)[:, 0])

        if sample_shape == ():
            return one(key)
        draws = jax.vmap(one)(random.split(key, math.prod(sample_shape)))
        return draws.reshape(*sample_shape, *self.event_shape)

    def log_prob(self, value: Array, intermediates: Any = None) -> Float[Array, "*S"]:
        """Joint log density of ``value`` under ``q(f)``.

        Raises:
            TypeError: if values are not joint draws, if ``f`` is a function of ``u`` alone, or if several sites share
                one ``q``.
        """
        checks.refuse(
            self.conditional.deterministic,
            f"GP site {self.site!r} is interpolated from a grid: its values have no joint density. Use "
            "GaussianProcessELBO() as the objective, whose KL is that of the grid's variables.",
            TypeError,
        )
        checks.refuse(
            self.value is not None,
            f"GP site {self.site!r} is represented by its marginals under GaussianProcessELBO and has no joint "
            "log_prob there: its KL is analytic. Use GaussianProcessELBO() as the only objective in this call.",
            TypeError,
        )
        checks.refuse(
            isinstance(self.form, Coupled),
            f"GP site {self.site!r} has one q with other sites, so that its values have no density by themselves: use "
            "GaussianProcessELBO() as the objective, or InducingGuide(coupled=False).",
            TypeError,
        )
        return super().log_prob(value)

    def inducing_moments(self) -> tuple[Float[Array, "M *D"], Any]:
        """Mean and covariance (``[M, M]`` or ``[D, M, M]``) of ``u``, never of the whitened ``v``.

        On a grid of several axes, the covariance is a :class:`~gpzoo.linalg.KroneckerProduct`.
        """
        mean, covariance = self.conditional.inducing_moments(*self._q())
        if self.num_outputs is None:
            covariance = jax.tree.map(lambda K: K[0], covariance)
        return mean[0] if self.num_outputs is None else mean.T, covariance

    def given_noise(self, noise: dict[str, Float[Array, "_ *_"]]) -> InducingPosterior:
        """This posterior given the noise of the earlier sites, with a draw of ``u`` from the site's own noise.

        Args:
            noise: ``e`` of the earlier sites and of this site, by name; see :mod:`gpzoo.posteriors.coupled`.
        """
        mean, form = cast(Coupled, self.form).given(self.u_mean, noise)
        alone = self._replace(u_mean=mean, form=form)
        m, own = alone._q()
        drawn = m + form.spread_noise(own.root(), noise[self.site])
        return alone._replace(drawn=drawn.reshape(mean.shape))

    def draw_inducing(self, key: Array) -> Float[Array, "M *D"]:
        """A draw from ``q``, with the shape of ``u_mean``.

        If variables are whitened and not on a grid, it is a draw of ``v``, else of ``u``.
        """
        draw = self.conditional.draw(*self._q(), key) if self.drawn is None else self.drawn
        return draw.reshape(self.u_mean.shape)

    def log_density_of(self, draw: Float[Array, "M *D"]) -> Float[Array, ""]:
        """``log q(u)`` of a result of :meth:`draw_inducing`, summed over outputs, in nats.

        It is the density of ``u``, even if the draw is a draw of ``v``.
        """
        return self.conditional.log_density(*self._q(), draw[None] if self.num_outputs is None else draw.T)

    def log_prior_of_inducing(self) -> Float[Array, ""]:
        """``log p(u)`` for a posterior that :meth:`given` has concentrated on one ``u``, summed over outputs."""
        return self.conditional.log_prior(self._q()[0].T)

    def given(self, u: Float[Array, "M *D"]) -> InducingPosterior:
        """``p(f | u)``: this posterior with ``q`` concentrated on ``u``, a result of :meth:`draw_inducing`."""
        form = Diagonal(jnp.zeros_like(u))
        return self._replace(conditional=self.conditional.given_draw(), u_mean=u, form=form, drawn=None)

    def as_joint(self) -> InducingPosterior:
        """This posterior with values that are joint draws over all inputs."""
        return self._replace(value=None)

    def valued(self, value: Callable[[InducingPosterior, Array], Any]) -> InducingPosterior:
        """This posterior with this ``value``, the function that makes the site's values."""
        return self._replace(value=value)

    def after(self, earlier: Earlier | None) -> InducingPosterior:
        """This posterior after earlier data; see the argument ``earlier`` of the class."""
        return self._replace(earlier=earlier)


@kl_divergence.register(InducingPosterior, GaussianProcess)
def _kl_inducing(q: InducingPosterior, p: GaussianProcess) -> Float[Array, ""]:
    """``KL[q(u) || p(u)]`` summed over outputs, in nats, where ``p(u)`` is from the prior in ``q`` (eq. C.26).

    After earlier data, the result is smaller by :meth:`~gpzoo.posteriors.earlier.Earlier.expected`.
    """
    shapes = f"Site {q.site!r} has shape {q.event_shape} in the guide and {p.event_shape} in the model."
    checks.refuse(q.event_shape != p.event_shape, shapes)
    ours, theirs = type(p.kernel), type(q.prior.kernel)
    # If a user defines a kernel class again, as in a notebook, the class is another one with the same name.
    alike = ours.__name__ == theirs.__name__ or issubclass(ours, theirs) or issubclass(theirs, ours)
    checks.refuse(
        not alike and not p.samples_views,
        f"The guide was made of another program than the model: GP site {q.site!r} has the kernel {ours.__name__} "
        f"in the model, in the guide {theirs.__name__}. Make it of this very model, InducingGuide(model, ...).",
    )
    divergence = q.conditional.kl(*q._q())
    return divergence if q.earlier is None else divergence - q.earlier.expected(q.conditional, *q._q())
