"""Failures in a training: failed replicates go back to their last good state, and an error says what failed."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Bool, Float, Integer, PRNGKeyArray
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from gpzoo import _checks as checks
from gpzoo.errors import FactorisationError, NonFiniteError, PrecisionWarning
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.enumeration import scored
from gpzoo.inference.programs.runs import run
from gpzoo.inference.training.protocol import of_objective, of_optimizer
from gpzoo.inference.training.state import TrainState
from gpzoo.inference.training.step import Steps, finite_numbers


def keep_finite(steps: Steps, state: TrainState, count: int, taken: tuple) -> TrainState:
    """The state after some steps: every replicate keeps its steps up to its last good state.

    Args:
        steps: steps of the training.
        state: the state before the steps.
        count: how many steps each replicate was to take.
        taken: the result of :meth:`Steps.take`.
    """
    numpyro_state, losses, begun = taken
    losses, begun = np.asarray(losses).reshape(len(state.losses), -1), np.asarray(begun).reshape(-1)
    finite = np.isfinite(losses) & (np.arange(losses.shape[1]) < begun[:, None])
    kept = finite.sum(axis=1)
    bad = (kept < begun) | ~steps.finite(numpyro_state)
    bad[list(state.failed)] = False
    if bad.any():
        good, good_steps = _last_good(steps, state, begun, bad)
        numpyro_state, kept = steps.replicates.where(bad, good, numpyro_state), np.where(bad, good_steps, kept)
    return state.after(numpyro_state, losses, kept, count)


def _last_good(
    steps: Steps, state: TrainState, begun: Integer[np.ndarray, " K"], bad: Bool[np.ndarray, " K"]
) -> tuple[SVIState, Integer[np.ndarray, " K"]]:
    """The last good states of failed replicates, and how many steps after ``state`` they are.

    A state is good if it is finite, and if the bound at this state is finite. So an update that leads to a bound that
    is not finite is undone too. This update may be the last one before ``state``. Therefore, the steps are taken again,
    one at a time, from one visit of the host earlier. They give the same numbers.
    """
    good, first = state.before or (state.numpyro_state, state.step)
    now, going = good, bad
    kept = np.full(len(bad), first - state.step)
    for start, end in ((first, state.step), (state.step, state.step + int(begun[bad].max()))):
        feed = steps.source.make_feed(start, end - start) if end > start else None
        for i in range(end - start):
            after, losses, _ = steps.take(now, feed, np.where(going, i + 1, i), first=i)
            bounded = going & np.isfinite(np.asarray(losses).reshape(len(bad), -1)[:, i])
            good = steps.replicates.where(bounded, now, good)
            kept = np.where(bounded, start + i - state.step, kept)
            going = bounded & steps.finite(after)
            now = after
    return good, kept


def raise_failure(steps: Steps, state: TrainState, num_steps: int) -> None:
    """Raise the error of the first replicate that failed."""
    setup, replicates = steps.setup, steps.replicates
    found = {k: _failed_step(steps, state, k) for k in sorted(state.failed)}
    k = min(found)
    failed, kept = found[k], state.failed[k]
    which = "The initial parameters" if kept == 0 else f"The last good parameters, after step {kept},"
    where = "Training"
    if replicates.several:
        at = ", ".join(f"{other} at step {each.number + 1}" for other, each in found.items())
        rest = "" if state.all_failed else f"; the others are at step {state.step} of {num_steps}"
        where = f"{len(found)} of {replicates.count} trainings failed, {at}{rest}. Member {k}"
    explain_failure(
        failed,
        setup.result(state),
        where=f"{where} stopped at step {failed.number + 1}",
        kept=f"{which} are in this error's .result{_of_all(steps)}.",
    )


def _failed_step(steps: Steps, state: TrainState, k: int) -> FailedStep:
    """The step of a failed replicate that is not finite, one or two after its last good state."""
    setup, replicates, source = steps.setup, steps.replicates, steps.source
    only = (np.arange(replicates.count) == k).astype(int)
    before, number = state.numpyro_state, state.failed[k]
    after, losses, _ = steps.take(before, source.make_feed(number, 1), only)
    if np.isfinite(_first(losses, k)) and steps.finite(after)[k]:
        before, number = after, number + 1
        _, losses, _ = steps.take(before, source.make_feed(number, 1), only)
    before, batch = replicates.of(k, setup.placement.here(before)), source.batch(k, number)
    return FailedStep(setup.svi, number, before, _first(losses, k), batch, setup.kwargs_of(k))


def _first(losses: Any, k: int) -> float:
    return float(np.atleast_2d(losses)[k, 0])


def refuse_coinciding(steps: Steps, state: TrainState) -> None:
    """Refuse a site without whitening if more than half of its inducing variables coincide with earlier ones.

    Raises:
        FactorisationError: naming the first such site, with the initial parameters.
    """
    setup, replicates = steps.setup, steps.replicates
    guide = setup.svi.guide
    if not isinstance(guide, InducingGuide) or guide.whitens_all:
        return
    params = setup.params(state.numpyro_state)
    for k, key in enumerate(replicates.keys):
        batch = setup.source.batch(k, 0)
        found = guide.coinciding(key, replicates.of(k, params), batch, setup.kwargs_of(k))
        for site, (count, size) in found.items():
            # A few such variables do little harm. With 300 in 4 dimensions, 150 steps take the loss from 4263 to 355 if
            # all are distinct, and to 1320 if 100 coincide. If 297 coincide, the loss rises to 3e6 and ends at 4963.
            if 2 * count > size:
                raise FactorisationError(
                    f"Training{f' {k} of {replicates.count}' if replicates.several else ''} cannot begin: {count} of "
                    f"the {size} inducing variables of site {site!r} coincide with another up to the jitter. Use "
                    "whiten=True, fewer or distinct inducing inputs, a shorter initial lengthscale, or a larger "
                    f"GaussianProcess(jitter=...). The initial parameters are in this error's .result{_of_all(steps)}.",
                    setup.result(state),
                )


def _of_all(steps: Steps) -> str:
    return ", of all members" if steps.replicates.several else ""


def warn_if_fallen(losses: Float[np.ndarray, "*K steps"], num_rows: int) -> None:
    """Warn if a collapsed bound ended more than a nat per row below its best, because of rounding or too long steps.

    Args:
        losses: negative bounds of each step.
        num_rows: number of rows of the data.
    """
    fallen = np.max(losses[..., -1:] - np.min(losses, axis=-1, keepdims=True, initial=np.inf), initial=0.0)
    if fallen > num_rows:
        warnings.warn(
            f"The collapsed bound ended {fallen:,.0f} nats below the best that it had. Train in float64 "
            "(numpyro.enable_x64()), give the noise variance a prior that keeps it from zero, or lower the learning "
            "rate, if there is one.",
            PrecisionWarning,
            stacklevel=5,
        )


#: If a training fails and its data exceed this number, the message blames the data, not the learning rate.
EXTREME = 1e6


class FailedStep(NamedTuple):
    """A step that failed.

    Attributes:
        svi: NumPyro's object.
        number: number of the step.
        before: NumPyro's state before the step.
        loss: loss of the step.
        batch: minibatch of the step.
        kwargs: the program's keyword arguments.
    """

    svi: SVI
    number: int
    before: SVIState
    loss: float
    batch: tuple
    kwargs: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        """Unconstrained parameters before the step."""
        return self.svi.optim.get_params(self.before.optim_state)

    @property
    def key(self) -> PRNGKeyArray:
        """The key of the objective."""
        return random.split(self.before.rng_key)[1]

    def values(self, params: dict[str, Any]) -> dict[str, Any]:
        """Constrained parameters, and mutable state."""
        return cast(Any, self.svi).constrain_fn(params) | (self.before.mutable_state or {})

    def objective(self, loss: Any, params: dict[str, Any]) -> Any:
        """An objective's value in this step, at unconstrained parameters."""
        svi, options = self.svi, self.kwargs
        return loss.loss(self.key, self.values(params), svi.model, svi.guide, *self.batch, **options)

    def run(self) -> None:
        """Run guide and model as in the objective, outside ``jit``.

        No densities are computed, because densities check their numbers.
        """
        svi, options, values = self.svi, self.kwargs, self.values(self.params)
        model = scored(svi.model, svi.guide.sites) if isinstance(svi.guide, InducingGuide) else svi.model
        mode = of_objective(svi.loss).mode
        run(self.key, self.batch, options, guide=svi.guide, model=model, values=values, mode=mode)


def explain_failure(step: FailedStep, result: Trained, *, where: str, kept: str) -> None:
    """Raise the error that explains a failed step.

    Args:
        step: the step.
        result: the trained model that becomes the ``result`` of the error.
        where: beginning of the message.
        kept: end of the message.
    """
    kind, cause = NonFiniteError, None
    try:
        what = _of_update(step) if np.isfinite(step.loss) else _of_bound(step)
    except Exception as error:
        # Compiled code gives NaN. With concrete numbers, a factorisation or a kernel's check raises an error that says
        # why.
        what, cause = str(error), error
        if isinstance(error, FactorisationError) and result.losses.ndim == 1:
            kind = FactorisationError
    raise kind(f"{where}: {what} {way_out(step)} {kept}", result) from cause


def _of_bound(step: FailedStep) -> str:
    """Names of the sites whose terms of the bound are not finite.

    Raises as the program does outside ``jit``.
    """
    loss, bound = step.svi.loss, f"the ELBO is {-step.loss}"
    if (by_site := of_objective(loss).by_site) is None:
        step.objective(loss, step.params)
        return f"{bound}."
    step.run()
    values = jax.jit(partial(step.objective, by_site()))(step.params)
    sites = [f"{name!r} ({-float(value):.6g})" for name, value in values.items() if not np.isfinite(value)]
    if not sites:
        return f"{bound}: each site's term is finite, their sum is not."
    return f"{bound}, from site(s) {', '.join(sites)}."


def _of_update(step: FailedStep) -> str:
    """Names of the gradients that are not finite, or else a text that the update is not finite."""
    bound = f"the ELBO is {-step.loss:.6g}"
    gradients = jax.jit(jax.grad(partial(step.objective, step.svi.loss)))(step.params)
    bad = [name for name, gradient in gradients.items() if not bool(finite_numbers(gradient, 0))]
    if bad:
        return (
            f"{bound} but the gradient of {', '.join(bad)} is not finite. Where a function of the program has no "
            "derivative (sqrt at 0, jnp.where around what is not finite), keep its argument away from there."
        )
    return f"{bound} but the update is not finite, or out of the range of the numbers' type."


def way_out(step: FailedStep) -> str:
    """Advice: about the data if they are extreme, else about the initial values, else about the steps."""
    names = checks.positional(step.svi.model, len(step.batch))[0]
    large = [name for name, x in [*zip(names, step.batch, strict=True), *step.kwargs.items()] if _largest(x) > EXTREME]
    if large:
        return f"{', '.join(large)} holds numbers beyond {EXTREME:g}: standardise (mean 0, standard deviation 1)."
    if step.number == 0 and not np.isfinite(step.loss):
        return "No step was taken before: check the initial values (init_params) and fixed hyperparameters."
    slower = of_optimizer(step.svi.optim).way_out or "Lower the learning rate."
    return f"Check the initial values (init_params). {slower}" if step.number == 0 else slower


def _largest(tree: Any) -> float:
    """The largest absolute number of an argument."""
    found = 0.0
    for x in jax.tree.leaves(tree):
        known = isinstance(x, int | float | np.ndarray | np.generic | jax.Array)
        if known and np.size(x) and jnp.issubdtype(getattr(x, "dtype", type(x)), jnp.number):
            found = max(found, float(np.nanmax(np.abs(np.asarray(x)), initial=0)))
    return found
