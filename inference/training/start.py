"""Where does a training begin? At the initial state of every member, once its data and its program are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import jax
import numpyro
from jaxtyping import PRNGKeyArray
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState
from numpyro.primitives import mutable

from gpzoo.errors import FactorisationError
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.same_program import refuse_other_program
from gpzoo.inference.programs.batches import refuse_in_minibatches
from gpzoo.inference.programs.gp_sites import in_mode
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.runs import Trace, values_of
from gpzoo.inference.training._sources import Resident, Streamed
from gpzoo.inference.training.explain import extreme_data
from gpzoo.inference.training.protocol import of_objective


class InitialStates:
    """Initial states of the members of a training, one after the other.

    Args:
        svi: NumPyro's object.
        source: of the rows.
        static: keyword arguments of the program that are no arrays.

    Attributes:
        needs: which sites each data site depends on, once there is a state.
    """

    def __init__(self, svi: SVI, source: Resident | Streamed, static: dict[str, Any]) -> None:
        self.svi, self.source, self.static = svi, source, static
        self.needs: Mapping[str, frozenset[str]] = {}
        self._init: Callable | None = None

    def of(
        self, k: int, key: PRNGKeyArray, arrays: dict[str, Any], given: Mapping[str, Any] | None, *, known: bool
    ) -> SVIState:
        """The state of member ``k``.

        Args:
            k: its number.
            key: of its training.
            arrays: its keyword arguments that are arrays.
            given: its ``init_params``.
            known: whether its data are those of the member before.
        """
        svi, source = self.svi, self.source
        first, whole, kwargs = source.batch(k, 0), source.all_rows(k), arrays | self.static
        if not isinstance(svi.guide, InducingGuide):
            # A guide of another kind may set parameters that the program has no start for.
            self._init = self._init or jax.jit(self._by_guide)
            state = self._init(key, given, first, arrays)
            if not known:
                values = svi.get_params(state)
                self.needs = look(svi.model, whole, kwargs | svi.static_kwargs, values, arrays=True, first=True).needs
            return state
        guide = svi.guide
        # The data are constants here, so that likelihoods check their numbers. The look holds the data, which are many
        # rows of a table: nothing else of it is kept.
        looked = None if known else look(guide.model, whole, kwargs | svi.static_kwargs, first=True)
        if looked is not None:
            self.needs = looked.needs
        # On all rows at once the program may not fit in memory, such as a network on images.
        guide.sites_for(first if source.size > 1 else whole, kwargs, looked)
        refuse_other_program(svi.model, guide)
        seen = whole if guide.looks_at_inputs(given) else first
        try:
            sites = guide.starting_sites(key, seen, kwargs, given, "init_params")
        except FactorisationError as error:
            cause = extreme_data(svi.model, seen, arrays) or "Look at initial and fixed hyperparameters."
            raise FactorisationError(f"Training cannot begin: {error} {cause}") from error
        if not source.full and not known:
            options, values = kwargs | svi.static_kwargs, values_of(sites)
            learns_state = any(site["type"] == "mutable" for site in sites.values())
            refuse_in_minibatches(guide.model, first, options, values, order_alone=learns_state)
        self._init = self._init or initial(svi, sites)
        return self._init(key, values_of(sites))

    def _by_guide(self, key: PRNGKeyArray, params: dict | None, batch: tuple, arrays: dict) -> SVIState:
        shown = of_objective(self.svi.loss).mode
        with nullcontext() if shown is None else in_mode(shown):
            return self.svi.init(named_key(key, "training"), *batch, init_params=params, **arrays, **self.static)


def initial(svi: SVI, sites: Trace) -> Callable:
    """``init(key, values)``: the state of ``svi.init``, without running guide and program, whose sites are known.

    Args:
        svi: NumPyro's object, which is given the sites' constraints.
        sites: sites of parameters and mutable state, by name.
    """

    # Values are left out, because the training would keep them alive.
    known_sites = {name: (site["type"], site["kwargs"]) for name, site in sites.items()}

    def init(key: PRNGKeyArray, values: dict[str, Any]) -> SVIState:
        def declare() -> None:
            for name, value in values.items():
                kind, options = known_sites[name]
                if kind == "mutable":
                    mutable(name, value)
                else:
                    # A lambda, because an equinox module is callable: it would be called for its initial value.
                    numpyro.param(name, lambda key, value=value: value, **options)

        known = SVI(lambda: None, declare, svi.optim, svi.loss)
        state = known.init(named_key(key, "training"))
        svi.constrain_fn = known.constrain_fn
        return state

    return jax.jit(init)
