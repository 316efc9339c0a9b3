"""Guide for a program's latent sites that are not GPs, from NumPyro or from the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import PRNGKeyArray
from numpyro import handlers
from numpyro.infer.autoguide import AutoGuide

from gpzoo._checks import is_concrete
from gpzoo._numpyro import Handler
from gpzoo.inference.programs.enumeration import is_enumerated
from gpzoo.inference.programs.runs import Trace, of_types, plates_of, sampled
from gpzoo.inference.programs.standins import concrete
from gpzoo.likelihoods import Likelihood

#: Kinds of sites that :func:`alone` hides, except for the sites that it keeps.
_KINDS = ("sample", "param", "mutable", "deterministic", "control_flow")


class HyperparameterGuide:
    """A guide for latent sites that are not GPs, which runs inside :class:`~gpzoo.inference.InducingGuide`.

    Args:
        make: a class of NumPyro's guides, or a function that makes a guide from a program.
        model: the program.
        names: names of the latent sites that are not GPs.
        init_loc_fn: NumPyro initialisation strategy, given to NumPyro's own classes.
        args: the program's positional arguments, from which the guide is set up.
        kwargs: its keyword arguments.

    Attributes:
        parameters: the guide's ``numpyro.param`` sites by name, with their constraints.
        of_rows: names of the latent sites in a plate of data. Sites that are only in a plate without data, such as a
            plate of groups, are left out.
        sizes: number of entries of each latent site, in the run that set the guide up.

    Raises:
        TypeError: if ``make`` returns something that cannot be called.
        ValueError: if the guide's latent sites are not the program's latent sites.
    """

    def __init__(
        self, make: Callable, model: Callable, names: frozenset[str], init_loc_fn: Callable, args: tuple, kwargs: dict
    ) -> None:
        automatic = isinstance(make, type) and issubclass(make, AutoGuide)
        options: dict[str, Any] = {"init_loc_fn": init_loc_fn} if automatic else {}
        program = alone(model, names)
        self.guide = make(program, **options)
        self.names = names
        #: Refuses arguments of the program, outside ``jit``; for guides whose maker has a method of this name.
        self.check: Callable[..., None] = getattr(make, "check", lambda *args: None)
        if not callable(self.guide):
            raise TypeError(
                f"InducingGuide(hyperparameters=...) must make a guide of a program, such as AutoMultivariateNormal; "
                f"{_name(make)} returned {type(self.guide).__name__}."
            )
        # NumPyro's guides keep values that they see at their first call, so these values must be numbers.
        if all(map(is_concrete, jax.tree.leaves(args))):
            self.check(*args)
        args, kwargs = concrete((args, kwargs))
        with jax.ensure_compile_time_eval(), handlers.block(), handlers.seed(rng_seed=0):
            priors = handlers.trace(alone(model, names, with_data := set())).get_trace(*args, **kwargs)
            found = handlers.trace(self.guide).get_trace(*args, **kwargs)
        self.of_rows = frozenset(name for name in names if plates_of(priors[name]) & with_data)
        self.sizes = {name: int(np.prod(priors[name]["fn"].shape())) for name in names}
        own = {name for name, site in sampled(found).items() if not _is_auxiliary(site)}
        if own != names:
            raise ValueError(
                f"The guide that InducingGuide(hyperparameters={_name(make)}) makes samples {sorted(own)}, but the "
                f"latent sites that are not GPs are {sorted(names)}. Mark what only it has by "
                'infer={"is_auxiliary": True}.'
            )
        self.parameters: dict[str, Any] = {}
        for name, site in of_types(found, "param").items():
            self.parameters[name] = site["kwargs"].get("constraint")

    def __call__(
        self, args: tuple, kwargs: dict, plates: Trace, keys: Mapping[str, PRNGKeyArray]
    ) -> tuple[Trace, Trace]:
        """Run the guide. The handlers outside see its parameters and auxiliary sites.

        Args:
            args: the program's positional arguments.
            kwargs: its keyword arguments.
            plates: the program's plates so far; the guide takes the same rows.
            keys: keys of latent sites that have a key of their own, by name.

        Returns:
            The latent sites, which the program has yet to sample, and the guide's plates.
        """
        with handlers.block(hide=[*self.names, *plates]), handlers.trace() as found:
            with _Rows(plates, keys):
                self.guide(*args, **kwargs)
        taken = {name: site for name, site in found.items() if site["type"] == "plate"}
        return {name: found[name] for name in self.names}, taken


class _Rows(Handler):
    """Gives plates the rows that plates of the same name have taken, and latent sites their own keys."""

    def __init__(self, plates: Trace, keys: Mapping[str, PRNGKeyArray]) -> None:
        super().__init__()
        self.plates, self.keys = plates, keys

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.keys:
            msg["kwargs"]["rng_key"] = self.keys[msg["name"]]
        if msg["type"] != "plate" or msg["name"] not in self.plates:
            return
        rows, wanted = self.plates[msg["name"]]["value"], msg["args"][1]
        if wanted is not None and len(rows) != wanted:
            raise ValueError(
                f"The guide of InducingGuide(hyperparameters=...) takes {wanted} rows of plate {msg['name']!r}, where "
                f"the program takes {len(rows)}. NumPyro's own guides take as many as at their first call: use a guide "
                "of yours for latent sites in this plate, or batches of one size."
            )
        msg["value"] = rows


def alone(model: Callable, names: frozenset[str], with_data: set[str] | None = None) -> Callable:
    """A program with only the latent sites ``names`` of ``model``: their priors and plates, and nothing else.

    Args:
        model: the program.
        names: names of the sites.
        with_data: a set to which a run adds the names of the plates in which it samples data.
    """

    def program(*args: Any, **kwargs: Any) -> None:
        hidden = lambda site: site["type"] in _KINDS and site["name"] not in names  # noqa: E731
        with handlers.block(hide_fn=hidden), _Fixed(names, set() if with_data is None else with_data):
            model(*args, **kwargs)

    return program


class _Fixed(Handler):
    """Zeros at every other site, and one key for everything else that is drawn: the named priors do not need more."""

    def __init__(self, names: frozenset[str], with_data: set[str]) -> None:
        super().__init__()
        self.names, self.with_data = names, with_data

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] not in self.names and not is_enumerated(msg):
            self.with_data |= plates_of(msg)
        if msg["type"] == "prng_key":
            msg["value"] = random.key(0)
        elif msg["type"] == "sample" and msg["name"] not in self.names and msg["value"] is None:
            prior = msg["fn"]
            discrete = not isinstance(prior, Likelihood) and prior.support is not None and prior.support.is_discrete
            dtype = int if discrete else getattr(getattr(prior, "X", None), "dtype", float)
            msg["value"] = jnp.zeros(tuple(prior.shape()), dtype)


def _is_auxiliary(site: Mapping[str, Any]) -> bool:
    return site["is_observed"] or bool((site["infer"] or {}).get("is_auxiliary"))


def _name(make: Any) -> str:
    return getattr(make, "__name__", type(make).__name__)
