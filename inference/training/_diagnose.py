"""What a training says of itself: how its expectations are computed, and, when it fails, where and why."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, random
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from gpzoo import _checks as checks
from gpzoo._numpyro import Messenger
from gpzoo.errors import FactorisationError, NonFiniteError
from gpzoo.inference._runs import unmasked
from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.representation import representing
from gpzoo.inference.training.result import FitResult
from gpzoo.likelihoods import Expected, Likelihood
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess

#: Data beyond this are named as the cause of a training that fails, rather than its learning rate.
EXTREME = 1e6


def _run_once(svi: SVI, state: SVIState, batch: tuple, arrays: dict, static: dict, moved: Any = None) -> tuple:
    """Traces of guide and model as the objective's next step would run them, the guide under the handler ``moved``."""
    params = svi.constrain_fn(svi.optim.get_params(state.optim_state)) | (state.mutable_state or {})
    key = random.split(random.split(state.rng_key)[1])
    with handlers.block():
        with representing("bound") if isinstance(svi.loss, GaussianProcessELBO) else nullcontext():
            guide = handlers.substitute(handlers.seed(svi.guide, key[1]), data=params)
            with moved or nullcontext():
                guide_trace = handlers.trace(guide).get_trace(*batch, **arrays, **static, **svi.static_kwargs)
        model = handlers.substitute(handlers.replay(handlers.seed(svi.model, key[0]), guide_trace), data=params)
        return guide_trace, handlers.trace(model).get_trace(*batch, **arrays, **static, **svi.static_kwargs)


def expectations(svi: SVI, state: SVIState, data: tuple, arrays: dict, static: dict) -> dict[str, str]:
    """How each data site's expectation is computed, by name; see :class:`FitResult`.

    The data are checked by the likelihoods on the way.
    """
    found: dict[str, str] = {}
    drawn: dict[str, jax.ShapeDtypeStruct] = {}

    def look(state: SVIState) -> None:
        # The data are constants here, so that likelihoods check their numbers; nothing is computed.
        guide_trace, model_trace = _run_once(svi, state, data, arrays, static)
        marginal = any(
            isinstance(s.get("fn"), InducingPosterior) and s["fn"].value_as in ("marginals", "estimates")
            for s in guide_trace.values()
        )
        for name, site in guide_trace.items():
            if _is_drawn(site):
                drawn[name] = jax.ShapeDtypeStruct(site["value"].shape, site["value"].dtype)
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
    integrated = [name for name, way in found.items() if way != "draw"]
    if not drawn or not integrated:
        return found

    def terms(moves: dict[str, Array], state: SVIState) -> list[Array]:
        model_trace = _run_once(svi, state, data, arrays, static, _Moved(moves))[1]
        return [model_trace[name]["fn"].log_prob(model_trace[name]["value"]) for name in integrated]

    moves = {name: jnp.zeros(x.shape, x.dtype) for name, x in drawn.items()}
    program = jax.make_jaxpr(terms)(moves, state)
    # Dictionaries are flattened in the order of their names.
    inputs = [{name} for name in sorted(moves)] + [set()] * len(jax.tree.leaves(state))
    for name, given in zip(integrated, _reached(program.jaxpr, inputs), strict=True):
        if given:
            found[name] += f" given draws of {', '.join(name for name in drawn if name in given)}"
    return found


def _is_drawn(site: dict[str, Any]) -> bool:
    """Whether the value of a guide's site is a draw: no parameter, and no marginals."""
    if site["type"] != "sample" or site["is_observed"] or isinstance(unmasked(site["fn"]), dist.Delta):
        return False
    return isinstance(site["value"], Array) and jnp.issubdtype(site["value"].dtype, jnp.floating)


class _Moved(Messenger):
    """Adds a number to each draw, for what depends on the numbers to be seen."""

    def __init__(self, moves: dict[str, Array]) -> None:
        super().__init__(None)
        self.moves = moves

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.moves:
            msg["value"] = msg["value"] + self.moves[msg["name"]]


def _reached(program: Any, inputs: list[set[str]]) -> list[set[str]]:
    """For each output of a traced program the names of the inputs that it depends on."""
    known = dict(zip(program.invars, inputs, strict=True))
    of = lambda x: known.get(x, set()) if not hasattr(x, "val") else set()  # noqa: E731
    for equation in program.eqns:
        named = [of(x) for x in equation.invars]
        inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
        # Of a loop or a function with a derivative of its own all outputs are taken to depend on all inputs.
        outputs = _reached(inner.jaxpr, named) if inner is not None else [set().union(*named)] * len(equation.outvars)
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return [of(x) for x in program.outvars]


def check_scales(svi: SVI, state: SVIState, batch: tuple, arrays: dict, static: dict, num_rows: int) -> None:
    """Refuse a bound whose data terms are not those of the whole data.

    Raises:
        ValueError: if a plate over the rows has another size than the data have rows; with minibatches, if no observed
            site is scaled from the minibatch to all rows, or a GP site is observed.
    """
    scales: dict[str, Any] = {}
    plates: dict[str, tuple[int, int]] = {}
    rows = jax.tree.leaves(batch)[0].shape[0]

    def look(state: SVIState, batch: tuple, arrays: dict) -> None:
        for name, site in _run_once(svi, state, batch, arrays, static)[1].items():
            if site["type"] == "plate":
                plates[name] = site["args"]
            elif site["type"] == "sample" and site["is_observed"]:
                if isinstance(site["fn"], GaussianProcess) and rows < num_rows:
                    raise ValueError(
                        f"GP site {name!r} is observed: its density is joint over all rows and no minibatch estimates "
                        "it. Train without batch_size."
                    )
                scales[name] = site["scale"]

    jax.eval_shape(look, state, batch, arrays)
    for name, (size, taken) in plates.items():
        if taken == rows and size not in (rows, num_rows):
            raise ValueError(
                f"Plate {name!r} has size {size}, but there are {num_rows} rows: each would count "
                f"{size / num_rows:.4g} times. Pass num_data={num_rows} to fit"
                f"{' or leave it out' if rows == num_rows else ''}."
            )
    factor = num_rows / rows
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
    state: SVIState,
    batch: tuple,
    arrays: dict,
    static: dict,
    loss: float,
    *,
    after: SVIState,
    where: str,
    kept: str,
    initial: bool,
) -> None:
    """Raise the error that says why a step was not taken.

    Args:
        svi: NumPyro's object.
        result: what the error shall have.
        state: of the training that failed, before the step.
        batch: the step's minibatch.
        arrays: the model's keyword arguments that are arrays.
        static: its other keyword arguments.
        loss: of the step.
        after: the state after the step.
        where: beginning of the message.
        kept: end of the message.
        initial: whether no step was taken before.
    """
    kind, cause = NonFiniteError, None
    try:
        what, far = _diagnosis(svi, state, batch, arrays, static, loss, after)
        initial = initial and not far
    except Exception as error:
        # What compiles to NaN says why where its numbers can be looked at: a factorisation, a kernel's check.
        what, cause = str(error), error
        if isinstance(error, FactorisationError) and result.losses.ndim == 1:
            kind = FactorisationError
    raise kind(f"{where}: {what} {_way_out(svi, state, batch, arrays, initial)} {kept}", result) from cause


def _diagnosis(
    svi: SVI, state: SVIState, batch: tuple, arrays: dict, static: dict, loss: float, after: SVIState
) -> tuple[str, bool]:
    """What is not finite in a step, and whether it went too far; raises what the program raises outside ``jit``."""
    model_trace = _run_once(svi, state, batch, arrays, static)[1]
    key, static = random.split(state.rng_key)[1], static | svi.static_kwargs
    mutable, params = state.mutable_state or {}, svi.optim.get_params(state.optim_state)
    if np.isfinite(loss):

        def objective(params: dict) -> Array:
            return svi.loss.loss(
                key, svi.constrain_fn(params) | mutable, svi.model, svi.guide, *batch, **arrays, **static
            )

        gradients = jax.jit(jax.grad(objective))(params)
        bad = [n for n, g in gradients.items() if not all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(g))]
        if bad:
            return f"the ELBO is {-loss:.6g} but the gradient of {', '.join(bad)} is not finite.", False
        sizes = {name: max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(g)) for name, g in gradients.items()}
        largest = max(sizes, key=sizes.get)
        # Optimisers square gradients.
        steep = sizes[largest] > float(jnp.finfo(jnp.result_type(*jax.tree.leaves(gradients))).max) ** 0.5
        update = "is not finite" if steep or not (lost := _lost(svi, after)) else f"takes {lost}"
        return (
            f"the ELBO is {-loss:.6g} but the update {update}, with a gradient of {largest} of up to "
            f"{sizes[largest]:.3g}.",
            not steep,
        )
    if not isinstance(svi.loss, GaussianProcessELBO):
        return f"the ELBO is {-loss}.", False
    terms = GaussianProcessELBO(svi.loss.num_particles, svi.loss.vectorize_particles, sum_sites=False)

    def by_site(params: dict) -> dict:
        return terms.loss(key, params, svi.model, svi.guide, *batch, **arrays, **static)

    values = jax.jit(by_site)(svi.constrain_fn(params) | mutable)
    sites = {name: -float(value) for name, value in values.items() if not np.isfinite(float(value))}
    if not sites:
        return f"the ELBO is {-loss}: each site's term is finite, their sum is not.", False
    said = ", ".join(f"{name!r} ({value:.6g})" for name, value in sites.items())
    rows = [_rows(name, model_trace[name]) for name in sites if name in model_trace]
    return " ".join([f"the ELBO is {-loss}, from site(s) {said}.", *filter(None, rows)]), False


def _rows(name: str, site: dict[str, Any]) -> str:
    """The first rows of a data site whose terms are not finite, with their ``y`` and ``f``."""
    if site["type"] != "sample" or not site["is_observed"] or isinstance(site["fn"], GaussianProcess):
        return ""
    fn, y = unmasked(site["fn"]), np.asarray(site["value"])
    # Traced, so that what is masked is not looked at.
    terms = np.asarray(jax.jit(site["fn"].log_prob)(site["value"]))
    if terms.ndim == 0 or y.shape[:1] != terms.shape[:1]:
        return ""
    bad = np.flatnonzero(~np.isfinite(terms.reshape(len(terms), -1)).all(axis=1))
    if not bad.size:
        return f"Every row of {name!r} is finite, their sum is not."
    points = None
    if isinstance(fn, Expected) and fn.is_marginal:
        points, densities = map(np.asarray, jax.jit(fn.integrand)(site["value"]))

    def of_row(row: int) -> str:
        text = f"row {row} with y = {_short(y[row])}"
        if points is not None and not np.isfinite(densities[:, row]).all():
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


def _way_out(svi: SVI, state: SVIState, batch: tuple, arrays: dict, initial: bool) -> str:
    """What to try: the data if they are extreme, then the initial values, then the learning rate."""
    if said := extreme_data(svi.model, batch, arrays):
        return said
    if initial:
        return "No step was taken before: look at the initial values (init_params) and at fixed hyperparameters."
    return "Lower the learning rate."


def _lost(svi: SVI, state: SVIState) -> str:
    """Parameters that left the range of their numbers, with their values; empty if none did."""
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
    """That an argument of a program holds numbers too large to train on, and what to do; empty if none does."""
    large = {}
    for name, value in [*zip(checks.positional(model, len(args))[0], args, strict=True), *kwargs.items()]:
        sizes = [float(np.max(np.abs(np.asarray(x)))) for x in jax.tree.leaves(value) if _is_real(x) and x.size]
        if max(sizes, default=0.0) > EXTREME:
            large[name] = f"{name} holds numbers of up to {max(sizes):.3g}"
    if not large:
        return ""
    return f"{', '.join(large.values())}: standardise {' and '.join(large)} (mean 0, standard deviation 1)."


def _is_real(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)
