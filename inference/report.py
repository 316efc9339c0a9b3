"""What a training says of itself: how its expectations are computed, and, when it fails, where and why."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from gpzoo.distributions import GaussianProcess
from gpzoo.errors import FactorisationError, GPZooError
from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.guides import representing
from gpzoo.inference.setup import unmasked
from gpzoo.likelihoods import Likelihood
from gpzoo.posterior import InducingPosterior


class FitResult(NamedTuple):
    """What a training leaves.

    Attributes:
        params: trained values (constrained) of every ``numpyro.param`` site, by name.
        losses: negative ELBO of every step, ``[num_steps]``, in nats; minibatch estimates where there are minibatches.
        state: NumPyro's state, from which ``svi.update`` can go on.
        seconds: wall time of the steps, compilation included, over all resumptions.
        expectations: how each likelihood site's expectation was computed: ``"closed form"``, ``"quadrature"`` or
            ``"draw"``.

    Of several trainings (see :func:`fit`), ``params``, ``losses`` and ``state`` have a leading axis; the losses of one
    that failed are NaN from the step on that it did not take.
    """

    params: dict[str, Any]
    losses: np.ndarray
    state: SVIState
    seconds: float
    expectations: dict[str, str]

    def member(self, k: int) -> FitResult:
        """The result of training ``k`` of several; ``seconds`` are those of all.

        Raises:
            ValueError: if this is the result of one training.
            IndexError: if there are not so many.
        """
        if self.losses.ndim < 2:
            raise ValueError("This is the result of one training, which has no members.")
        losses = self.losses[k]  # arrays on the device would take the last member where k is too large
        params, state = jax.tree.map(lambda x: x[k], (self.params, self.state))
        return self._replace(params=params, losses=losses, state=state)


class NonFiniteError(GPZooError, FloatingPointError):
    """Training met a bound or gradient that is not finite; ``result`` holds the last good state."""


def _run_once(svi: SVI, state: SVIState, batch: tuple, arrays: dict, static: dict) -> tuple[dict, dict]:
    """Traces of guide and model as the objective's next step would run them."""
    params = svi.constrain_fn(svi.optim.get_params(state.optim_state)) | (state.mutable_state or {})
    key = random.split(random.split(state.rng_key)[1])
    with handlers.block():
        with representing("bound") if isinstance(svi.loss, GaussianProcessELBO) else nullcontext():
            guide = handlers.substitute(handlers.seed(svi.guide, key[1]), data=params)
            guide_trace = handlers.trace(guide).get_trace(*batch, **arrays, **static, **svi.static_kwargs)
        model = handlers.substitute(handlers.replay(handlers.seed(svi.model, key[0]), guide_trace), data=params)
        return guide_trace, handlers.trace(model).get_trace(*batch, **arrays, **static, **svi.static_kwargs)


def expectations(svi: SVI, state: SVIState, data: tuple, arrays: dict, static: dict) -> dict[str, str]:
    """How each data site's expectation is computed: ``"closed form"``, ``"quadrature"`` or ``"draw"``, by name.

    The data are checked by the likelihoods on the way.
    """
    found: dict[str, str] = {}

    def look(state: SVIState) -> None:
        # The data are constants here, so that likelihoods check their numbers; nothing is computed.
        guide_trace, model_trace = _run_once(svi, state, data, arrays, static)
        marginal = any(
            isinstance(s.get("fn"), InducingPosterior) and s["fn"].value_as in ("marginals", "estimates")
            for s in guide_trace.values()
        )
        for name, site in model_trace.items():
            if site["type"] == "sample" and site["is_observed"]:
                fn = unmasked(site["fn"])
                found[name] = "draw"
                if isinstance(fn, GaussianProcess):
                    found[name] = "closed form"
                elif marginal and isinstance(fn, Likelihood):
                    found[name] = fn.expectation
                site["fn"].log_prob(site["value"])

    jax.eval_shape(look, state)
    return found


def check_scales(svi: SVI, state: SVIState, batch: tuple, arrays: dict, static: dict, num_rows: int) -> None:
    """Refuse a bound whose data terms are not those of the whole data.

    Raises:
        ValueError: if no observed site is scaled from the minibatch to all rows, or a GP site is observed.
    """
    scales: dict[str, Any] = {}

    def look(state: SVIState, batch: tuple, arrays: dict) -> None:
        for name, site in _run_once(svi, state, batch, arrays, static)[1].items():
            if site["type"] == "sample" and site["is_observed"]:
                if isinstance(site["fn"], GaussianProcess):
                    raise ValueError(
                        f"GP site {name!r} is observed: its density is joint over all rows and no minibatch estimates "
                        "it. Train without batch_size."
                    )
                scales[name] = site["scale"]

    jax.eval_shape(look, state, batch, arrays)
    factor = num_rows / jax.tree.leaves(batch)[0].shape[0]
    known = [1.0 if scale is None else scale for scale in scales.values()]
    if factor == 1 or any(isinstance(scale, jax.core.Tracer) or np.isclose(scale, factor) for scale in known):
        return
    raise ValueError(
        f"No data site of {sorted(scales)} is scaled from the minibatch to all {num_rows} rows, so the KL would "
        "outweigh the data. Put the data sites into numpyro.plate('data', num_data, subsample_size=len(X)) and pass "
        f"num_data={num_rows} to fit."
    )


def explain_failure(
    svi: SVI,
    result: FitResult,
    own: FitResult,
    batch: tuple,
    arrays: dict,
    static: dict,
    where: str,
    loss: float,
) -> None:
    """Raise the error that says why the step with this minibatch and loss was not taken.

    Args:
        svi: NumPyro's object.
        result: of ``fit``, for the error.
        own: of the training that failed: ``result``, or a member of it.
        batch: the step's minibatch.
        arrays: the model's keyword arguments that are arrays.
        static: its other keyword arguments.
        where: beginning of the message.
        loss: of the step.
    """
    kept = f"The last good parameters are in this error's .result{'' if own is result else ', of all members'}."
    try:
        _run_once(svi, own.state, batch, arrays, static)
    except FactorisationError as error:
        if own is result:
            raise FactorisationError(f"{where}: {error}") from NonFiniteError(kept, result)
        raise NonFiniteError(f"{where}: {error} {kept}", result) from error
    key, static = random.split(own.state.rng_key)[1], static | svi.static_kwargs
    mutable = own.state.mutable_state or {}
    if np.isfinite(loss):
        params = svi.optim.get_params(own.state.optim_state)

        def objective(params: dict) -> Array:
            return svi.loss.loss(
                key, svi.constrain_fn(params) | mutable, svi.model, svi.guide, *batch, **arrays, **static
            )

        gradients = jax.jit(jax.grad(objective))(params)
        bad = [n for n, g in gradients.items() if not all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(g))]
        what = f"the gradient of {', '.join(bad)} is not finite" if bad else "the update is not finite"
        raise NonFiniteError(f"{where}: the ELBO is {-loss:.6g} but {what}. Lower the learning rate. {kept}", result)
    sites = "unknown sites"
    if isinstance(svi.loss, GaussianProcessELBO):
        terms = GaussianProcessELBO(svi.loss.num_particles, svi.loss.vectorize_particles, sum_sites=False)

        def by_site(params: dict) -> dict:
            return terms.loss(key, params, svi.model, svi.guide, *batch, **arrays, **static)

        values = jax.jit(by_site)(own.params | mutable)
        sites = ", ".join(f"{name!r} ({-float(v):.6g})" for name, v in values.items() if not np.isfinite(float(v)))
    raise NonFiniteError(
        f"{where}: the ELBO is {-loss}, from site(s) {sites}. Look for extreme data or hyperparameters, or lower the "
        f"learning rate. {kept}",
        result,
    )
