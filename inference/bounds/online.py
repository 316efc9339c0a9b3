"""Bounds of new data given earlier data that are no longer there: ``q(u)`` of the earlier training replaces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool

from gpzoo import _checks as checks
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.guides.more_inducing import check_forms, rows_axis
from gpzoo.inference.guides.same_program import refuse_other_program
from gpzoo.inference.programs.gp_sites import AtPriorMean, Bound
from gpzoo.inference.programs.runs import run
from gpzoo.posteriors.earlier import Earlier
from gpzoo.posteriors.posterior import InducingPosterior


class AfterEarlier(GaussianProcessELBO):
    """The bound of :class:`OnlineELBO`. Each GP site has a factor that stands for the earlier data."""

    def __init__(self, earlier: Mapping[str, Earlier], *options: Any) -> None:
        super().__init__(*options)
        self.earlier = earlier

    @property
    def mode(self) -> Bound:
        """How the guide runs: whether GP sites give marginals or draws."""
        return Bound(earlier=self.earlier)


class OnlineELBO(GaussianProcessELBO):
    """Evidence lower bound of new data given the data of an earlier training, which are no longer needed.

    Let ``a`` be the inducing variables of the earlier training, with the prior ``p_old`` and the posterior ``q_old``.
    The inducing variables ``u`` of the new training begin with ``a``. The bound is

    ``E_q[log p(y_new | f)] - KL[q(u) || p(u)] + KL[q(a) || p_old(a)] - KL[q(a) || q_old(a)]``

    (Bui, Nguyen and Turner 2017, *Streaming sparse Gaussian process approximations*, arXiv 1705.07131, section 3). If
    ``q_old`` is the exact posterior, this is a lower bound of ``log p(y_new | y_old)``. The new training changes the
    hyperparameters, but not ``q_old`` and ``p_old``. ``q_old`` and ``p_old`` describe ``f`` minus the prior's mean, so
    the prior's mean should not change. The new training holds the inducing variables of the earlier training fixed. It
    trains the inducing variables that :meth:`Trained.add_inducing` adds::

        more = trained.add_inducing(key, kmeans(20), X_new)
        svi = SVI(model, guide, optax.adam(0.01), OnlineELBO(trained))
        online = fit(key, svi, 1000, X_new, y_new, init_params=more.params)

    NumPyro's own ``svi.run(..., init_params=more.params)`` works in the same way. The size of a plate (``num_data``) is
    the number of new rows. If you hold all hyperparameters fixed, :meth:`Trained.condition` is faster, and it needs no
    learning rate.

    Example:
        >>> import jax, numpy as np, optax
        >>> from numpyro.infer import SVI
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, OnlineELBO, Trained, fit
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(5))
        >>> earlier = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X[:25], np.sin(X[:25, 0])))
        >>> more = earlier.add_inducing(jax.random.key(1), kmeans(3), X[25:])
        >>> svi = SVI(gp_regression, guide, optax.adam(0.01), OnlineELBO(earlier))
        >>> new = X[25:], np.sin(X[25:, 0])
        >>> online = fit(jax.random.key(2), svi, 5, *new, init_params=more.params, progress=False)
        >>> online.params["f_mean"].shape
        (8,)

    Args:
        trained: the earlier :class:`Trained`.
        num_particles: see :class:`GaussianProcessELBO`.
        vectorize_particles: see :class:`numpyro.infer.ELBO`.
        sum_sites: ``False`` gives the contribution of every site, by name, in place of their sum.

    Raises:
        TypeError: if ``trained`` is not a trained model with an :class:`InducingGuide`.
        ValueError: for several trainings at once, for a ``q(u)`` whose covariance is not full, and for hyperparameters
            with a posterior in place of one value. Also at a call, if the inducing variables do not begin with the
            inducing variables of the earlier training. Inside ``jit``, the bound is NaN in this case.
    """

    trains_posterior = False  # the data of the training are a part of all data

    def __init__(
        self, trained: Any, num_particles: int = 1, vectorize_particles: bool = True, sum_sites: bool = True
    ) -> None:
        super().__init__(checks.positive_int("num_particles", num_particles), vectorize_particles, sum_sites)
        usable = getattr(trained, "_guide_with_sites", None)
        if usable is None:
            raise TypeError(
                "OnlineELBO takes the trained model of an InducingGuide, such as fit returns, got "
                f"{type(trained).__name__}."
            )
        guide = usable()
        check_forms(guide, guide.sites.processes)
        others = sorted(guide.sites.latents - guide.sites.processes)
        if others and guide.hyperparameters != "point":
            raise ValueError(
                f"OnlineELBO needs point values of hyperparameters, but latent site(s) {', '.join(others)} have a "
                "posterior: use trained.condition(key, X_new, y_new), which keeps this posterior fixed."
            )
        self.guide, self.params = guide, dict(trained.params)

    def loss_with_mutable_state(
        self, rng_key: Array, param_map: dict[str, Any], model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Any:
        """Negative bound, in nats, and the mutable state; see :meth:`numpyro.infer.ELBO.loss_with_mutable_state`."""
        refuse_other_program(model, self.guide)
        trace = run(rng_key, args, kwargs, guide=self.guide, values=self.params, mode=AtPriorMean()).guide
        own, same, earlier = dict(param_map), jnp.array(True), {}
        for site in sorted(self.guide.sites.processes):
            posterior: InducingPosterior = trace[site]["fn"]
            earlier[site] = Earlier(posterior.u_mean, posterior.form, posterior.conditional.L)
            name = f"{site}_inducing"
            if name in own:
                own[name], kept = _held(site, posterior, self.params[name], own[name])
                same &= kept
        if checks.is_concrete(same) and not same:
            raise ValueError(
                "The first inducing variables are not those of the earlier training, whose q(u) is about them: begin "
                "from its parameters, init_params=trained.params, or from those of trained.add_inducing(...)."
            )
        now = AfterEarlier(earlier, self.num_particles, self.vectorize_particles, self.sum_sites)
        bound = now.loss_with_mutable_state(rng_key, own, model, guide, *args, **kwargs)
        return bound | {"loss": jax.tree.map(lambda x: jnp.where(same, x, jnp.nan), bound["loss"])}


def _held(site: str, posterior: InducingPosterior, old: Any, new: Any) -> tuple[Any, Bool[Array, ""]]:
    """The new inducing variables, changed to begin with the old ones, and whether they did so before the change."""
    held, first = old, new
    if list(map(np.shape, jax.tree.leaves(old))) != list(map(np.shape, jax.tree.leaves(new))):
        axis, count = rows_axis(posterior), posterior.conditional.num_inducing
        first = lax.slice_in_dim(new, 0, min(count, new.shape[axis]), axis=axis)
        if first.shape != np.shape(old):
            raise ValueError(
                f"Site {site!r} had inducing variables {list(np.shape(old))} and has {list(np.shape(new))} now: add "
                "some by trained.add_inducing(...), and remove none."
            )
        added = lax.slice_in_dim(new, count, None, axis=axis)
        held = jnp.concatenate([old, added], axis=axis)
    same = jax.tree.map(lambda a, b: jnp.all(a == b), old, first)
    return held, jnp.all(jnp.stack(jax.tree.leaves(same)))
