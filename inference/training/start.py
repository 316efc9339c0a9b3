"""The start of a training: the initial state of every replicate, after checks of its data and its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import PRNGKeyArray
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.svi import SVIState
from numpyro.infer.util import transform_fn

from gpzoo import _checks as checks
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.same_program import refuse_other_program
from gpzoo.inference.programs.arguments import refuse_unknown
from gpzoo.inference.programs.gp_sites import in_mode
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.precision import warn_of_rounding
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.row_order import refuse_in_minibatches
from gpzoo.inference.programs.runs import Trace, values_of
from gpzoo.inference.training.lbfgs import refuse_line_search
from gpzoo.inference.training.protocol import of_objective, refuse_no_parameters
from gpzoo.inference.training.setup import Setup
from gpzoo.inference.training.state import TrainState
from gpzoo.inference.training.step import Steps
from gpzoo.inference.training.step_trace import expectations, refuse_scales


def start(setup: Setup, init_params: Mapping[str, Any] | None) -> tuple[Steps, TrainState]:
    """The steps of a training, traced and not yet compiled, and its state before them.

    Args:
        setup: set-up of the training.
        init_params: see :func:`~gpzoo.inference.fit`.

    Raises:
        ValueError: for programs and data that cannot be trained, see :func:`~gpzoo.inference.fit`.
    """
    replicates, svi = setup.replicates, setup.svi
    if init_params is not None:
        replicates.check("init_params", init_params)
    begin: Any = _OfInducingGuide(setup) if isinstance(svi.guide, InducingGuide) else _OfOtherGuide(setup)
    states = []
    for k, key in enumerate(replicates.keys):
        try:
            states.append(begin(k, key, replicates.of(k, init_params)))
            if setup.finish is not None:  # raises here if the objective does not fit the program
                setup.finished(k, svi.get_params(states[k]) | (states[k].mutable_state or {}))
        except Exception as error:
            if replicates.several:
                error.add_note(f"This is member {k} of {replicates.count} trainings.")
            raise
    refuse_line_search(svi.optim, states[0].optim_state)
    state = setup.placement.put_whole(replicates.stacked(states))
    steps = Steps(setup, state)
    refuse_scales(steps.trace, setup.source.size, setup.source.num_rows)
    refuse_no_parameters(svi.optim.get_params(states[0].optim_state))
    setup.expectations |= expectations(steps.trace, begin.needs)
    return steps, TrainState(state, 0, np.zeros((replicates.count, 0)))


class _OfInducingGuide:
    """``begin(k, key, given)``: the initial state of a replicate whose guide is an :class:`InducingGuide`.

    Attributes:
        needs: which sites each data site depends on, after there is a state.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.needs = setup, {}
        self.init: Callable | None = None
        self.supports: dict[str, Any] = {}
        self.alike = not any(jax.tree.leaves((setup.source.axes, setup.array_axes)))

    def __call__(self, k: int, key: PRNGKeyArray, given: Mapping[str, Any] | None) -> SVIState:
        svi, source, guide = self.setup.svi, self.setup.source, self.setup.svi.guide
        first, whole, kwargs = source.batch(k, 0), source.all_rows(k), self.setup.kwargs_of(k)
        known = k > 0 and self.alike
        # The data are constants here, so that likelihoods check their numbers. Only `needs` is kept from the look,
        # because the look holds the data themselves.
        looked = None if known else look(guide.model, whole, kwargs, refuse_data=True)
        if looked is not None:
            self.needs = looked.needs
        # With all rows at once, the program may not fit in memory, such as a network on images.
        guide.sites_for(first if source.size > 1 else whole, kwargs, looked)
        refuse_other_program(svi.model, guide)
        seen = whole if guide.looks_at_inputs(given) else first
        sites = guide.starting_sites(key, seen, kwargs, given, "init_params")
        if not source.full and not known:
            learns_state = any(site["type"] == "mutable" for site in sites.values())
            rows = first if source.size > 1 else whole  # a single row has no order
            refuse_in_minibatches(guide.model, rows, kwargs, values_of(sites), order_alone=learns_state)
        if looked is not None:
            warn_of_rounding(guide.model, guide, seen, kwargs, values_of(sites), looked)
        self._refuse_other_supports(sites)
        self.init = self.init or initial(svi, sites)
        return self.init(key, values_of(sites))

    def _refuse_other_supports(self, sites: Trace) -> None:
        # One compiled step serves all replicates, with the transforms of the first one.
        if self.alike:
            return
        for name, site in sites.items():
            own = jax.tree.leaves(site["kwargs"].get("constraint", constraints.real))
            first = self.supports.setdefault(name, own)
            checks.refuse(
                len(own) != len(first) or not all(map(np.array_equal, own, first)),
                f"The support of {name!r} depends on the data, and differs between the trainings of this call. Give it "
                "a support that does not, or train one by one.",
            )


class _OfOtherGuide:
    """``begin(k, key, given)`` for guides of another kind, which may have parameters without a start.

    Attributes:
        needs: see :class:`_OfInducingGuide`.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.needs = setup, {}
        self.init = jax.jit(self._init)

    def __call__(self, k: int, key: PRNGKeyArray, given: Mapping[str, Any] | None) -> SVIState:
        svi, source = self.setup.svi, self.setup.source
        # NumPyro's guides keep what their first run computes. Under jit, these would be tracers.
        alone = isinstance(svi.guide, AutoGuide) and svi.guide.prototype_trace is None
        init: Callable = self._init if alone else self.init
        state = init(key, given, source.batch(k, 0), self.setup.arrays_of(k))
        kwargs, values = self.setup.kwargs_of(k), svi.get_params(state)
        seen = look(svi.model, source.all_rows(k), kwargs, values, arrays=True, refuse_data=True)
        refuse_unknown("init_params", given or {}, values.keys() | seen.trace.keys(), "parameters")
        self.needs = seen.needs
        warn_of_rounding(svi.model, svi.guide, source.all_rows(k), kwargs, values, seen)
        return state

    def _init(self, key: PRNGKeyArray, params: dict | None, batch: tuple, arrays: dict) -> SVIState:
        svi, static = self.setup.svi, self.setup.static
        mode = of_objective(svi.loss).mode
        with nullcontext() if mode is None else in_mode(mode):
            return svi.init(named_key(key, "training"), *batch, init_params=params, **arrays, **static)


def initial(svi: SVI, sites: Trace) -> Callable:
    """``init(key, values)``: the result of ``svi.init``, from ``sites`` and without a run of guide and program.

    Args:
        svi: NumPyro's object, which gets the sites' constraints.
        sites: sites of parameters and mutable state, by name.
    """
    transforms = {}
    for name, site in sites.items():
        if site["type"] == "param":
            transforms[name] = biject_to(site["kwargs"].get("constraint", constraints.real))
    svi.constrain_fn = partial(transform_fn, transforms)

    def init(key: PRNGKeyArray, values: dict[str, Any]) -> SVIState:
        found = {name: transform.inv(values[name]) for name, transform in transforms.items()}
        # Without weak types, because an update loses them: the step would be compiled twice.
        found = jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), values | found)
        params = {name: found.pop(name) for name in transforms}
        rng_key = random.split(named_key(key, "training"), 3)[0]  # as in svi.init, which also seeds model and guide
        return SVIState(svi.optim.init(params), found or None, rng_key)

    return jax.jit(init)
