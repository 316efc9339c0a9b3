"""Natural gradients of ``q(u)`` beside any optimiser for the rest: an optimiser for :class:`numpyro.infer.SVI`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
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
from gpzoo._numpyro import Optimizer
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inference._handler import for_site
from gpzoo.inference.guide import InducingGuide
from gpzoo.posteriors.forms import Form

#: A step length, or a schedule of optax that gives it by the number of the step.
Rate: TypeAlias = float | Callable[[Any], Any]


class NaturalGradients(Optimizer):
    """Steps ``q(u)`` of GP sites along natural gradients, and every other parameter by an optimiser.

    ``SVI(model, guide, NaturalGradients(optax.adam(0.01), guide, 0.1), GaussianProcessELBO())``, or
    ``fit(..., natural=0.1)`` for the same. The step belongs to the form of ``q(u)``
    (:meth:`gpzoo.posteriors.Form.natural_step`); it does not depend on ``whiten``. A step of 1 is exact where all else
    is fixed, the likelihood Gaussian, every row in the step and the covariance full. Of blocks and independent
    variables each is stepped as if the others were fixed, and so are the factors of a Kronecker product, one at each
    step.

    Where it helps: Gaussian and log-concave likelihoods, and the last layers of deep GPs, in tens of steps instead of
    thousands. Where it was seen to hurt: the robust-max likelihood in small minibatches; lower the rate there, or let
    it grow from 1e-4 to 0.1 over the first steps.

    A step that leads to no covariance is shortened in the directions in which it does: there variances grow fourfold.
    :attr:`gpzoo.inference.Trained.backed_off` counts such steps of each site.

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
        optimizer: of all other parameters: a transformation of optax, or one of NumPyro's.
        guide: the program's :class:`~gpzoo.inference.InducingGuide`.
        rate: step length, or a schedule, for the GP sites on which no other depends; or by site name, inner layers
            among them.

    Raises:
        TypeError: for a guide of another kind, or rates that are none.
        ValueError: for rates that are not positive; an optimiser that evaluates the bound by itself, such as
            ``Minimize``; and once the program has been seen: unknown sites, or a form or grid without natural
            gradients.
    """

    def __init__(self, optimizer: Any, guide: InducingGuide, rate: Rate | Mapping[str, Rate]) -> None:
        if not isinstance(guide, InducingGuide):
            raise TypeError(f"Natural gradients need an InducingGuide, got {type(guide).__name__}.")
        if isinstance(optimizer, NaturalGradients):
            raise ValueError("The optimizer has natural gradients already: give their rates in one place.")
        self.others: Any = optimizer if isinstance(optimizer, Optimizer) else optax_to_numpyro(optimizer)
        if type(self.others).eval_and_update is not Optimizer.eval_and_update:
            raise ValueError(
                f"{type(self.others).__name__} evaluates the bound by itself, so that no natural step goes with it: "
                "use an optimiser that takes gradients, such as optax.adam(0.01)."
            )
        for each in rate.values() if isinstance(rate, Mapping) else [rate]:
            if not callable(each):
                checks.positive_number("natural", each)
        self.guide, self.rate = guide, rate

    def init(self, params: dict[str, Any]) -> tuple[Integer[Array, ""], Any]:
        """The state of unconstrained parameters, once the guide has seen the program."""
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
        # Not jnp.array(0), whose weak type an update loses: the step would be compiled twice.
        return jnp.array(0), (self.others.init(others), mine, {site: jnp.zeros((), jnp.int32) for site in rates})

    def get_params(self, state: Any) -> dict[str, Any]:
        """The unconstrained parameters."""
        others, mine, _ = state[1]
        return self.others.get_params(others) | mine

    def update(self, g: dict[str, Any], state: Any, value: Any = None) -> Any:
        """The state after a step.

        Args:
            g: derivatives of the loss by the unconstrained parameters.
            state: the state before.
            value: the loss, for optimisers that look at it.
        """
        step, (others, mine, counts) = state
        others = self.others.update({name: x for name, x in g.items() if name not in mine}, others, value=value)
        mine, counts = dict(mine), dict(counts)
        for site, rate in self._rates().items():
            form, mean = self.guide.form_at(site), f"{site}_mean"
            names = {field: f"{site}_{field}" for field in form.data_fields}
            transforms = {field: biject_to(form.constraints.get(field, constraints.real)) for field in names}
            values = {field: jax.tree.map(transforms[field], mine[name]) for field, name in names.items()}
            slopes = {field: _by_value(transforms[field], mine[name], g[name]) for field, name in names.items()}
            length = jnp.asarray(rate(step) if callable(rate) else rate, mine[mean].dtype)
            mine[mean], after, shortened = form.with_values(**values).natural_step(
                mine[mean], g[mean], form.with_values(**slopes), length, step
            )
            for field, name in names.items():
                leaves = map(transforms[field].inv, jax.tree.leaves(getattr(after, field)))
                mine[name] = jax.tree.unflatten(jax.tree.structure(mine[name]), leaves)
            counts[site] = counts[site] + shortened.astype(counts[site].dtype)
        return step + 1, (others, mine, counts)

    def backed_off(self, state: Any) -> dict[str, Integer[np.ndarray, "*K"]]:
        """How many steps of each site led to no covariance and were shortened."""
        return {site: np.asarray(count) for site, count in state[1][2].items()}

    def _rates(self) -> dict[str, Rate]:
        """The rate of each site that has natural gradients."""
        sites, rate = self.guide.sites, self.rate
        if isinstance(rate, Mapping):
            checks.names("natural", set(rate), needed=set(), known=set(sites.processes))
        found: dict[str, Any] = {site: rate for site in sites.processes - sites.inner}
        found = dict(sorted((rate if isinstance(rate, Mapping) else found).items()))
        for site in found:
            form, inducing = self.guide.form_at(site), for_site(self.guide.inducing, site)
            grid = isinstance(inducing, InducingGrid) and inducing.num_axes == 1 and form.has_diagonal
            if grid or type(form).natural_step is Form.natural_step:
                raise ValueError(
                    f"Site {site!r} has no natural gradients: {type(form).__name__}{' on a grid' if grid else ''} has "
                    "no step of its own. Leave the site out of natural, or choose another covariance of the guide: "
                    "'full', 'diagonal' or 'block_diagonal', on a grid 'full' or 'kronecker'."
                )
        return found


def _by_value(transform: Any, unconstrained: Any, slope: Any) -> Any:
    """A loss's derivative by values, given that by the unconstrained numbers that each is made of."""

    def of_one(x: Float[Array, "*shape"], g: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return g / jax.jvp(transform, (x,), (jnp.ones_like(x),))[1]

    return jax.tree.map(of_one, unconstrained, slope)
