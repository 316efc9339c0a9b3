"""Runs of a guide and a program with given values: the one way in which they are run and traced outside training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, random
from jax.core import eval_jaxpr
from numpyro import handlers
from numpyro.distributions import MaskedDistribution

from gpzoo import _checks as checks
from gpzoo._numpyro import Messenger
from gpzoo.inference.gp_sites import Representation, representing

#: The sites of a run by name, as :class:`numpyro.handlers.trace` records them.
Trace = dict[str, dict[str, Any]]


class Runs(NamedTuple):
    """What a run was.

    Attributes:
        guide: the guide's trace; empty if there was none.
        model: the program's trace; empty if there was none.
        loose: names of ``numpyro.param`` sites that had no value, so that they took their start.
    """

    guide: Trace
    model: Trace
    loose: frozenset[str]


def run(
    key: Array,
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    guide: Callable | None = None,
    model: Callable | None = None,
    values: Mapping[str, Any] | Callable[[dict[str, Any]], Any],
    representation: Representation | None = None,
    complete: bool = True,
) -> Runs:
    """Run a guide, a program, or first the one and then the other with its values; handlers outside see nothing.

    Mutable state is recorded as it is before the run: networks write their new state into the dictionary they get.

    Args:
        key: of the run; a guide and its program get the two that NumPyro's objectives split it into.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        guide: an :class:`~gpzoo.inference.InducingGuide`, or any of NumPyro's.
        model: the program.
        values: of parameters, mutable state and latent sites, by name, those of sites that are not there being ignored;
            or a function of a site's message that gives its value or ``None``.
        representation: what GP sites of the guide are; joint draws if ``None``.
        complete: whether every parameter must have a value.

    Raises:
        ValueError: naming parameters that have no value, or a latent site whose value has another shape.
    """
    model_key, guide_key = (key, key) if guide is None or model is None else random.split(key)
    given = values if callable(values) else partial(given_value, values)
    of_guide: OrderedDict[str, dict[str, Any]] = OrderedDict()
    of_model: Trace = {}

    def trace(program: Callable, key: Array) -> OrderedDict[str, dict[str, Any]]:
        seeded: Any = handlers.seed(program, key)
        with _Trace() as found:
            handlers.substitute(seeded, substitute_fn=given)(*args, **kwargs)
        return found

    with handlers.block(), ParameterNames() as seen, representing(representation or Representation()):
        if guide is not None:
            of_guide = trace(guide, guide_key)
        if model is not None:
            of_model = trace(handlers.replay(model, of_guide), model_key)
    if complete:
        known = set() if callable(values) else set(values)
        checks.names("params", known, needed=seen.loose("param", "mutable"), known=known)
    return Runs(of_guide, of_model, loose=frozenset(seen.loose("param")))


def at_once(function: Callable[[], Any]) -> Any:
    """``function()``, traced and computed by one compiled program, of which the arrays it closes over are arguments.

    Operation by operation every one of them is a program of its own. To be used where it is called once.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)()
    leaves = jax.jit(partial(eval_jaxpr, traced.jaxpr))(traced.consts)
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


class _Trace(handlers.trace):
    def postprocess_message(self, msg: dict[str, Any]) -> None:
        super().postprocess_message(msg)
        if msg["type"] == "mutable":
            self.trace[msg["name"]]["value"] = jax.tree.map(lambda x: x, msg["value"])


def given_value(values: Mapping[str, Any], site: dict[str, Any]) -> Any:
    """The value of a site; data keep theirs, and deterministic sites, which MCMC records too, compute their own."""
    sampled = site["type"] == "sample"
    if site["type"] == "deterministic" or (sampled and site["value"] is not None):
        return None
    value = values.get(site["name"])
    if value is not None and sampled:
        check_value(site["name"], value, tuple(site["fn"].shape()))
    return value


class ParameterNames(Messenger):
    """Outside all other handlers: sees the names of a run's parameters, and which of them nobody gives a value.

    Those would stay at their start without a word.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.names: set[str] = set()
        self._loose: dict[str, str] = {}

    def __enter__(self) -> ParameterNames:
        super().__enter__()
        return self

    def process_message(self, msg: dict[str, Any]) -> None:
        """Notes a site's name, after all handlers inside have had the chance to give it a value."""
        kind = msg["type"]
        if kind in ("param", "mutable") or (kind == "sample" and not msg["is_observed"]):
            self.names.add(msg["name"])
        if kind in ("param", "mutable") and msg["value"] is None:
            self._loose[msg["name"]] = kind

    def loose(self, *kinds: str) -> set[str]:
        """Names of the sites of these kinds, ``"param"`` and ``"mutable"``, without a value."""
        return {name for name, kind in self._loose.items() if kind in kinds}


def shapes_of(tree: Any) -> Any:
    """The shapes of a pytree's arrays, by their place in it."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): tuple(np.shape(leaf)) for path, leaf in leaves}


def check_value(name: str, value: Any, wanted: tuple[int, ...]) -> None:
    """Refuse a value that would broadcast.

    Raises:
        ValueError: naming the shapes.
    """
    shape = tuple(np.shape(value))
    if shape == wanted:
        return
    per_row = " Values per row belong to the rows that they were found for." if shape[1:] == wanted[1:] else ""
    raise ValueError(f"The value given for {name!r} has shape {shape}, but the site has shape {wanted} here.{per_row}")


def unmasked(fn: Any) -> Any:
    """The distribution inside ``handlers.mask``."""
    while isinstance(fn, MaskedDistribution):
        fn = fn.base_dist
    return fn
