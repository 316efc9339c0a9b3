"""Why did a step of a training fail, at which site, and what is there to try?"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer.svi import SVIState

from gpzoo import _checks as checks
from gpzoo.errors import FactorisationError, NonFiniteError
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.enumeration import scored
from gpzoo.inference.programs.runs import Runs, run, unmasked
from gpzoo.inference.training.protocol import of_objective, of_optimizer
from gpzoo.likelihoods import Likelihood
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.processes.process import GaussianProcess

#: If a training with data beyond this number fails, the data are blamed, and not the learning rate.
EXTREME = 1e6


class Failed(NamedTuple):
    """A step that failed.

    Attributes:
        svi: NumPyro's object.
        state: before the step.
        after: the state after it.
        loss: its loss.
        batch: its minibatch.
        arrays: the program's keyword arguments that are arrays.
        static: its other keyword arguments.
    """

    svi: Any
    state: SVIState
    after: SVIState
    loss: float
    batch: tuple
    arrays: dict[str, Any]
    static: dict[str, Any]

    def objective(self, loss: Any, params: dict[str, Any]) -> Any:
        """An objective's value in this step, at unconstrained parameters."""
        svi, key = self.svi, random.split(self.state.rng_key)[1]
        return loss.loss(key, self.values(params), svi.model, svi.guide, *self.batch, **self.kwargs)

    def values(self, params: dict[str, Any]) -> dict[str, Any]:
        """Constrained parameters, and mutable state."""
        return self.svi.constrain_fn(params) | (self.state.mutable_state or {})

    @property
    def kwargs(self) -> dict[str, Any]:
        """All keyword arguments of the program."""
        return self.arrays | self.static | self.svi.static_kwargs

    @property
    def params(self) -> dict[str, Any]:
        """Unconstrained parameters before the step."""
        return self.svi.optim.get_params(self.state.optim_state)

    def run(self) -> Runs:
        """Runs of guide and model as in the objective."""
        svi = self.svi
        model = scored(svi.model, svi.guide.sites) if isinstance(svi.guide, InducingGuide) else svi.model
        return run(
            random.split(self.state.rng_key)[1],
            self.batch,
            self.kwargs,
            guide=svi.guide,
            model=model,
            values=self.values(self.params),
            mode=of_objective(svi.loss).mode,
        )


def explain_failure(step: Failed, result: Trained, *, where: str, kept: str, initial: bool) -> None:
    """Raise the error that explains a failed step.

    Args:
        step: the step.
        result: the trained model that the error carries.
        where: beginning of the message.
        kept: end of the message.
        initial: whether it was the first step.
    """
    kind, cause, rough = NonFiniteError, None, False
    try:
        what, far = _diagnosis(step)
        initial = initial and not far
        rough = what.endswith("is not finite.") and np.isfinite(step.loss)
    except Exception as error:
        # Compiled code gives NaN; with concrete numbers, a factorisation or a kernel's check raises the reason.
        what, cause = str(error), error
        if isinstance(error, FactorisationError) and result.losses.ndim == 1:
            kind = FactorisationError
    way_out = _ROUGH if rough else _way_out(step.svi, step.batch, step.arrays, initial)
    raise kind(f"{where}: {what} {way_out} {kept}", result) from cause


#: The way out where the bound is finite and a derivative is not.
_ROUGH = (
    "A function of the program has no derivative there: a kernel, mean or likelihood of your own with sqrt at 0, "
    "arccos at 1, or jnp.where around what is not finite. Keep its argument away from there, inside jnp.where too. If "
    "all are gpzoo's, lower the learning rate."
)


def _diagnosis(step: Failed) -> tuple[str, bool]:
    """A sentence on the numbers that are not finite in a step, and whether the step was too long.

    Raises as the program does outside ``jit``.
    """
    model_trace, loss, bound = step.run().model, step.svi.loss, f"the ELBO is {-step.loss}"
    if np.isfinite(step.loss):
        return _of_update(step)
    if (by_site := of_objective(loss).by_site) is None:
        step.objective(loss, step.params)  # outside jit it raises the error that says what does not factorise
        return f"{bound}.", False
    values = jax.jit(partial(step.objective, by_site()))(step.params)
    sites = {name: -float(value) for name, value in values.items() if not np.isfinite(float(value))}
    if not sites:
        return f"{bound}: each site's term is finite, their sum is not.", False
    said = ", ".join(f"{name!r} ({value:.6g})" for name, value in sites.items())
    rows = [_rows(name, model_trace[name]) for name in sites if name in model_trace]
    return " ".join([f"{bound}, from site(s) {said}.", *filter(None, rows)]), False


def _of_update(step: Failed) -> tuple[str, bool]:
    """:func:`_diagnosis` where the bound is finite."""
    gradients = jax.jit(jax.grad(partial(step.objective, step.svi.loss)))(step.params)
    sizes = {name: float(np.max([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(g)])) for name, g in gradients.items()}
    if bad := [name for name, size in sizes.items() if not np.isfinite(size)]:
        return f"the ELBO is {-step.loss:.6g} but the gradient of {', '.join(bad)} is not finite.", False
    largest = max(sizes, key=sizes.__getitem__)
    # Optimisers square gradients.
    steep = sizes[largest] > float(jnp.finfo(jnp.result_type(*jax.tree.leaves(gradients))).max) ** 0.5
    update = "is not finite" if steep or not (lost := _lost(step.svi, step.after)) else f"takes {lost}"
    return (
        f"the ELBO is {-step.loss:.6g} but the update {update}, with a gradient of {largest} of up to "
        f"{sizes[largest]:.3g}.",
        not steep,
    )


def _rows(name: str, site: dict[str, Any]) -> str:
    """The first rows of a data site whose terms are not finite, with their ``y`` and ``f``."""
    if site["type"] != "sample" or not site["is_observed"] or isinstance(site["fn"], GaussianProcess):
        return ""
    fn, y = unmasked(site["fn"]), np.asarray(site["value"])
    # Traced, so that the likelihood does not check masked values.
    terms = np.asarray(jax.jit(site["fn"].log_prob)(site["value"]))
    if terms.ndim == 0 or y.shape[:1] != terms.shape[:1]:
        return ""
    bad = np.flatnonzero(~np.isfinite(terms.reshape(len(terms), -1)).all(axis=1))
    if not bad.size:
        return f"Every row of {name!r} is finite, their sum is not."
    points = densities = None
    if (integrand := jax.jit(as_predictive(fn).integrand)(site["value"])) is not None:
        points, densities = map(np.asarray, integrand)

    def of_row(row: int) -> str:
        text = f"row {row}" + (f" with y = {_short(y[row])}" if y[row].size else "")  # a factor has no value
        if points is not None and densities is not None and not np.isfinite(densities[:, row]).all():
            at = int(np.argmin(np.isfinite(densities[:, row])))
            return f"{text} ({_short(densities[at, row])} at f = {_short(points[at, row])})"
        if isinstance(fn, Likelihood):
            f = f"mean {_short(fn.f.mean[row])} and variance {_short(fn.f.variance[row])}" if fn.is_marginal else ""
            text += f" and f of {f}" if f else f" and f = {_short(fn.f[row])}"
        return f"{text} ({_short(terms[row])})"

    more = f", and {bad.size - 3} more" if bad.size > 3 else ""
    return f"In {name!r}, of the {len(terms)} rows of this step: {'; '.join(map(of_row, bad[:3]))}{more}."


def _short(x: Any) -> str:
    return np.array2string(np.asarray(x), precision=4, threshold=6, edgeitems=2)


def _way_out(svi: Any, batch: tuple, arrays: dict, initial: bool) -> str:
    """Advice: about the data if they are extreme, else the initial values, else the steps."""
    if said := extreme_data(svi.model, batch, arrays):
        return said
    if initial:
        return "No step was taken before: check the initial values (init_params) and fixed hyperparameters."
    return of_optimizer(svi.optim).way_out or "Lower the learning rate."


def _lost(svi: Any, state: SVIState) -> str:
    """Parameters that left the range of their dtype, with their values; empty if none did."""
    unconstrained = svi.optim.get_params(state.optim_state)
    lost = []
    for name, value in svi.constrain_fn(unconstrained).items():
        for x, raw in zip(jax.tree.leaves(value), jax.tree.leaves(unconstrained[name]), strict=False):
            x, raw = np.asarray(x), np.asarray(raw)
            gone = ~np.isfinite(x) | ((x == 0) & (raw != 0) if x.shape == raw.shape else False)
            if gone.any():
                lost.append(f"{name} to {float(x[gone][0])!r}")
                break
    return f"{', '.join(lost)}, out of the range of {x.dtype} numbers" if lost else ""


def extreme_data(model: Any, args: tuple, kwargs: dict) -> str:
    """A message about arguments of a program with numbers too large to train on; empty if there are none."""
    large = {}
    for name, value in [*zip(checks.positional(model, len(args))[0], args, strict=True), *kwargs.items()]:
        sizes = [
            float(np.nanmax(np.abs(np.asarray(x)), initial=0)) for x in jax.tree.leaves(value) if _is_real(x) and x.size
        ]
        if max(sizes, default=0.0) > EXTREME:
            large[name] = f"{name} holds numbers of up to {max(sizes):.3g}"
    if not large:
        return ""
    return f"{', '.join(large.values())}: standardise {' and '.join(large)} (mean 0, standard deviation 1)."


def _is_real(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)
