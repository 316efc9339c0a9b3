"""Natural gradients of ``q(u)`` beside any optimiser for the other parameters, for :class:`numpyro.infer.SVI`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Integer
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.optim import optax_to_numpyro

from gpzoo import _checks as checks
from gpzoo._numpyro import Optimizer, value_and_grad
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.options import for_site
from gpzoo.inference.programs.arguments import refuse_unknown
from gpzoo.inference.programs.runs import unmasked
from gpzoo.inference.training.step import finite_numbers
from gpzoo.inference.training.step_trace import StepTrace
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.posteriors.coupled import Coupled, joint_root, rows_of_root
from gpzoo.posteriors.forms import Form, Full

#: A step length, or an optax schedule that gives it by the number of the step.
Rate: TypeAlias = float | Callable[[Any], Any]

#: A step that is undone halves the length of the next steps. Each step that is kept multiplies it by this factor.
_LENGTHENED = 2**0.25

#: The shortest step, as a part of the rate asked for.
_SHORTEST = 2.0**-10

#: Roundings of the loss (or of 100 nats, if the loss is smaller) by which a step may raise it.
_ROUNDINGS = 100


class NaturalGradients(Optimizer):
    """An optimiser with natural gradients for ``q(u)`` of GP sites, and with any optimiser for all other parameters.

    Write ``SVI(model, guide, NaturalGradients(optax.adam(0.01), guide, 0.1), GaussianProcessELBO())``, or
    ``fit(..., natural=0.1)`` for the same. The form of ``q(u)`` defines the step
    (:meth:`gpzoo.posteriors.Form.natural_step`). The step does not depend on ``whiten``. A step of length 1 leads to
    the optimum if everything else is fixed, the likelihood is Gaussian, the step has all rows, and the covariance is
    full. Without a full covariance, each block or independent variable takes its step as if all others were fixed.
    The factors of a Kronecker product take steps in the same way, one factor in each step. Sites that share one ``q``
    take their step together.

    Natural gradients help with Gaussian and log-concave likelihoods, and in the last layers of deep GPs. They need tens
    of steps instead of thousands. Other likelihoods, such as Student-t, softmax by draws and robust-max, can be far
    from quadratic over the length of a step. With minibatches, each step goes towards the optimum of its own rows. For
    these likelihoods and for minibatches, use rates of 0.1 or less. If a kernel has sampled views
    (:class:`~gpzoo.SampledView`), the bound of a minibatch can have no maximum. Even short steps then end in infinite
    variances, so use Adam for the sites of these kernels.

    The optimiser shortens harmful steps. If a step would not lead to a covariance, the optimiser shortens it in the
    directions that cause this. The variances in these directions become four times as large. If a step lowers the bound
    (on the same rows, with the same draws), the optimiser undoes it, and the next steps are half as long. After each
    step that is kept, the next steps are longer by a fifth, up to the given rate.
    :attr:`gpzoo.inference.Trained.backed_off` counts the steps of each site that were shorter than the rate.

    To check the bound, the optimiser evaluates it once more in each step, but computes only the parts that depend on
    ``q(u)`` again. The check takes a third to a half of a step's time. There is no check if no step can lower the
    bound. This is so for a single site with a full ``covariance`` if all likelihoods are quadratic in ``f`` (Gaussian,
    Pólya-Gamma).

    Example:
        >>> import jax, numpy as np, optax
        >>> from numpyro.infer import SVI
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import GaussianProcessELBO, InducingGuide, NaturalGradients
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(8))
        >>> svi = SVI(gp_regression, guide, NaturalGradients(optax.sgd(1e-9), guide, 1.0), GaussianProcessELBO())
        >>> losses = svi.run(jax.random.key(0), 3, X, np.sin(X[:, 0]), progress_bar=False).losses
        >>> bool(losses[1] < losses[0]), bool(abs(losses[2] - losses[1]) < 1e-2)  # one step of 1 is exact
        (True, True)

    Args:
        optimizer: optimiser of all other parameters: an optax transformation, or an optimiser of NumPyro.
        guide: the program's :class:`~gpzoo.inference.InducingGuide`.
        rate: step length of at most 1, or a schedule of step lengths. One value is for all GP sites on which no other
            GP site depends. A mapping by site name is for the named sites, which may be inner layers. The first and the
            last number of a schedule may be 0. Between them, numbers above 1 count as 1.

    Raises:
        TypeError: for a guide that is not an ``InducingGuide``, or rates that are neither numbers nor schedules.
        ValueError: in these cases:

            * a rate is not positive, or is above 1;
            * the first number of a schedule is negative or above 1 (:func:`~gpzoo.inference.fit` also checks the last);
            * ``optimizer`` evaluates the bound by itself, as ``Minimize`` does, or has natural gradients already;
            * a site is unknown, or its form or grid has no natural gradients (checked after the guide has seen the
              program).
    """

    way_out = (
        "Lower the step length natural=..., or the learning rate; where a kernel samples views, leave natural out."
    )

    def __init__(self, optimizer: Any, guide: InducingGuide, rate: Rate | Mapping[str, Rate]) -> None:
        if not isinstance(guide, InducingGuide):
            raise TypeError(f"Natural gradients need an InducingGuide, got {type(guide).__name__}.")
        if isinstance(optimizer, NaturalGradients):
            raise ValueError("The optimizer has natural gradients already: give their rates in one place.")
        self.others: Any = optimizer if isinstance(optimizer, Optimizer) else optax_to_numpyro(optimizer)
        if type(self.others).eval_and_update is not Optimizer.eval_and_update:
            raise ValueError(
                f"{type(self.others).__name__} calls the objective itself, so it cannot be combined with natural "
                "gradients: use an optimiser that takes gradients, such as optax.adam(0.01)."
            )
        self.guide, self.rate = guide, rate
        for name, each in self._by_name():
            if not callable(each):
                _refuse_rate(name, checks.positive_number(name, each), "")
        self.refuse_at(0)

    def _by_name(self) -> list[tuple[str, Rate]]:
        """Each given rate, with its name in messages."""
        if not isinstance(self.rate, Mapping):
            return [("natural", self.rate)]
        return [(f"natural[{site!r}]", rate) for site, rate in self.rate.items()]

    def refuse_at(self, step: int) -> None:
        """Refuse schedules that do not give a step length at a step.

        Raises:
            ValueError: naming the schedule.
        """
        for name, rate in self._by_name():
            if callable(rate):
                with jax.ensure_compile_time_eval():
                    length = rate(jnp.array(step))
                checks.positive_number(f"{name} at step {step}", length, or_zero=True)
                _refuse_rate(name, length, f" at step {step}")

    def init(self, params: dict[str, Any]) -> tuple[Integer[Array, ""], Any]:
        """The state of unconstrained parameters, after the guide has seen the program."""
        checks.refuse(
            self.guide.sites is None,
            "NaturalGradients has a guide that has not seen the program: give it the guide of the SVI, "
            "NaturalGradients(optimizer, svi.guide, rate).",
        )
        rates = self._rates()
        if inner := sorted(rates.keys() & self.guide.sites.inner):
            warnings.warn(
                f"Natural gradients of {', '.join(inner)}, on which other GP sites depend: the bound is far from "
                "quadratic there, and steps that suit the last layer can be too long. Watch the losses.",
                UserWarning,
                stacklevel=2,
            )
        own = {f"{site}_{part}" for site in rates for part in ("mean", *self.guide.form_at(site).data_fields)}
        others = {name: value for name, value in params.items() if name not in own}
        mine = {name: value for name, value in params.items() if name in own}
        # Not jnp.array(0), because an update loses its weak type: the step would be compiled twice.
        counts = {site: jnp.zeros((), jnp.int32) for site in rates}
        return jnp.array(0), (self.others.init(others), mine, jnp.ones((), jnp.float32), counts)

    def get_params(self, state: Any) -> dict[str, Any]:
        """The unconstrained parameters."""
        others, mine, *_ = state[1]
        return self.others.get_params(others) | mine

    def eval_and_update(
        self, fn: Callable[[Any], tuple], state: Any, forward_mode_differentiation: bool = False
    ) -> tuple[tuple[Any, Any], Any]:
        """A step for an objective; a natural step that raises the loss is undone.

        Args:
            fn: the loss of unconstrained parameters, and its auxiliary result, for one minibatch and one set of draws.
            state: the state before.
            forward_mode_differentiation: see NumPyro's optimisers.

        Returns:
            The result of ``fn``, and the state after the step.
        """
        with (seen := StepTrace()):
            (loss, aux), g = value_and_grad(fn, self.get_params(state), forward_mode_differentiation)
        after = self.update(g, state, value=loss)
        if self._cannot_overshoot(seen):
            return (loss, aux), after
        (_, (_, held, _, counted)), (step, (others, mine, length, counts)) = state, after
        # The other parameters keep their values, so that the compiled program computes once what depends on them alone.
        found, _ = fn(self.get_params(state) | mine)
        lower = found <= loss + _ROUNDINGS * jnp.finfo(loss.dtype).eps * jnp.maximum(jnp.abs(loss), 100)
        mine = jax.tree.map(partial(jnp.where, lower), mine, held)
        counts = {site: jnp.where(lower, count, counted[site] + 1) for site, count in counts.items()}
        length = jnp.where(lower, jnp.minimum(length * _LENGTHENED, 1), jnp.maximum(length / 2, _SHORTEST))
        return (loss, aux), (step, (others, mine, length, counts))

    def eval_and_stable_update(
        self, fn: Callable[[Any], tuple], state: Any, forward_mode_differentiation: bool = False
    ) -> tuple[tuple[Any, Any], Any]:
        """:meth:`eval_and_update`; if anything is not finite, it takes no step and gives a loss of NaN."""
        (loss, aux), after = self.eval_and_update(fn, state, forward_mode_differentiation)
        fine = finite_numbers((loss, after), 0)
        return (jnp.where(fine, loss, jnp.nan), aux), jax.tree.map(partial(jnp.where, fine), after, state)

    def update(self, g: dict[str, Any], state: Any, value: Any = None) -> Any:
        """The state after one natural step; whether it lowers the bound is not checked here.

        Args:
            g: derivatives of the loss by the unconstrained parameters.
            state: the state before.
            value: the loss, for optimisers that look at it.
        """
        step, (others, mine, length, counts) = state
        others = self.others.update({name: x for name, x in g.items() if name not in mine}, others, value=value)
        mine, counts = dict(mine), dict(counts)
        for sites, rate in self._steps():
            asked = jnp.asarray(jnp.minimum(rate(step), 1) if callable(rate) else rate, mine[f"{sites[0]}_mean"].dtype)
            asked = asked * length.astype(asked.dtype)
            pairs = [self._with_slopes(site, mine, g) for site in sites]
            own, slopes = ([form for form, _ in pairs], [slope for _, slope in pairs])
            means, mean_slopes = ([x[f"{site}_mean"] for site in sites] for x in (mine, g))
            after, forms, shortened = natural_step(means, mean_slopes, own, slopes, asked, step)
            for site, mean, form in zip(sites, after, forms, strict=True):
                mine |= {f"{site}_mean": mean} | _unconstrained(site, form, mine)
                counts[site] = counts[site] + ((shortened > 0) | (length < 1)).astype(counts[site].dtype)
        return step + 1, (others, mine, length, counts)

    def _with_slopes(self, site: str, mine: dict[str, Any], g: dict[str, Any]) -> tuple[Form, Form]:
        """The form of a site's ``q(u)``, and the loss's derivatives by its values."""
        form, values, slopes = self.guide.form_at(site), {}, {}
        for field in form.data_fields:
            name, transform = f"{site}_{field}", _transform(form, field)
            values[field] = jax.tree.map(transform, mine[name])
            slopes[field] = _by_value(transform, mine[name], g[name])
        return form.with_values(**values), form.with_values(**slopes)

    def _steps(self) -> list[tuple[tuple[str, ...], Rate]]:
        """The sites that take a step together (one site, or all sites that share one ``q``), with their rate.

        Raises:
            ValueError: naming sites that share one ``q`` and have different rates.
        """
        rates, found = self._rates(), {}
        for site, rate in rates.items():
            group = self.guide.sites.group_of(site) or (site,)
            if any(rates.get(other) is not rate and rates.get(other) != rate for other in group):
                raise ValueError(f"Sites {sorted(group)} have one q: give natural the same number for each of them.")
            found[group] = rate
        return list(found.items())

    def backed_off(self, state: Any) -> dict[str, Integer[np.ndarray, "*K"]]:
        """How many steps of each site were shorter than asked for."""
        *_, counts = state[1]
        return {site: np.asarray(count) for site, count in counts.items()}

    def _cannot_overshoot(self, seen: StepTrace) -> bool:
        """Whether no step lowers the bound: the data are quadratic in ``f``, and ``q(u)`` of one site moves as a whole.

        The steps then lie between ``q(u)`` and the optimum, on a line along which the divergence from the optimum
        falls. If the kernel samples views, there may be no optimum, and the bound of the same views may not show this.
        """
        steps, data = self._steps(), [as_predictive(unmasked(site["fn"])) for site in seen.data.values()]
        whole = len(steps) == 1 and isinstance(self.guide.form_at(steps[0][0][0]), Full | Coupled)
        return whole and all(fn.is_marginal and fn.quadratic for fn in data)

    def _rates(self) -> dict[str, Rate]:
        """The rate of each site that has natural gradients."""
        sites, rate = self.guide.sites, self.rate
        if isinstance(rate, Mapping):
            refuse_unknown("natural", rate, sites.processes, "GP sites")
        found: dict[str, Any] = {site: rate for site in sites.processes - sites.inner}
        found = dict(sorted((rate if isinstance(rate, Mapping) else found).items()))
        for site in found:
            form, inducing = self.guide.form_at(site), for_site(self.guide.inducing, site)
            grid = getattr(inducing, "num_axes", 0) == 1 and form.has_diagonal
            if grid or (type(form).natural_step is Form.natural_step and not isinstance(form, Coupled)):
                raise ValueError(
                    f"Site {site!r} has no natural gradients: {type(form).__name__}{' on a grid' if grid else ''} has "
                    "no step of its own. Leave the site out of natural, or choose another covariance of the guide: "
                    "'full', 'diagonal' or 'block_diagonal', on a grid 'full' or 'kronecker'."
                )
        return found


def _refuse_rate(name: str, length: Any, at: str) -> None:
    # A schedule that ends at 1 may pass it by a rounding.
    if checks.is_concrete(length) and length > 1 + 1e-6:
        raise ValueError(f"{name} is a step length of at most 1, which is the whole step; got {length}{at}.")


def shortened(site: str, count: int, steps: int) -> str | None:
    """The warning that most natural steps of a site were shorter than asked for; ``None`` if they were not.

    Args:
        site: name of the site.
        count: how many steps were shorter.
        steps: number of all steps.
    """
    if 2 * count <= steps:
        return None
    return (
        f"{count} of {steps} natural steps of site {site!r} were shortened: at the length asked for they lowered the "
        "bound or led to no covariance. Lower natural=... to 0.1 or less, or raise it slowly with a schedule of optax."
    )


def natural_step(
    means: list[Array], mean_slopes: list[Array], forms: list[Any], slopes: list[Any], rate: Array, step: Array
) -> tuple[list[Array], list[Any], Array]:
    """:meth:`gpzoo.posteriors.Form.natural_step` of one site, or of the joint covariance of several."""
    if not isinstance(forms[0], Coupled):
        mean, form, shortened = forms[0].natural_step(means[0], mean_slopes[0], slopes[0], rate, step)
        return [mean], [form], shortened
    joint, slope = Full(joint_root(forms)), Full(joint_root(slopes))
    after: Any
    stacked, slopes_of_mean = (jnp.concatenate(list(map(_stacked, forms, x))) for x in (means, mean_slopes))
    mean, after, shortened = joint.natural_step(stacked, slopes_of_mean, slope, rate, step)
    each = jnp.split(mean, np.cumsum([form.scale.shape[-1] for form in forms])[:-1])
    # Rows of outputs that are together are ordered output by output.
    found = [x.reshape(m.T.shape).T if form.together else x for x, m, form in zip(each, means, forms, strict=True)]
    return found, rows_of_root(after.scale, forms), shortened


def _stacked(form: Coupled, mean: Float[Array, "M *_"]) -> Float[Array, "_ *_"]:
    return mean.T.ravel() if form.together else mean


def _transform(form: Form, field: str) -> Any:
    return biject_to(form.constraints.get(field, constraints.real))


def _unconstrained(site: str, form: Form, like: dict[str, Any]) -> dict[str, Any]:
    """The unconstrained parameters of a form, by name, in the containers that they had."""
    found = {}
    for field in form.data_fields:
        name, leaves = f"{site}_{field}", map(_transform(form, field).inv, jax.tree.leaves(getattr(form, field)))
        found[name] = jax.tree.unflatten(jax.tree.structure(like[name]), leaves)
    return found


def _by_value(transform: Any, unconstrained: Any, slope: Any) -> Any:
    """A loss's derivative by values, given the derivative by the unconstrained numbers that make each value."""

    def of_one(x: Float[Array, "*shape"], g: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return g / jax.jvp(transform, (x,), (jnp.ones_like(x),))[1]

    return jax.tree.map(of_one, unconstrained, slope)
