"""Runs of a guide or a program with given values, and a watch on values that nobody gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpyro import handlers
from numpyro.distributions import MaskedDistribution

from gpzoo import _checks as checks
from gpzoo._numpyro import Messenger
from gpzoo.processes.process import GaussianProcess


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

    def check(self, name: str, given: set[str]) -> None:
        """Refuse a run in which a parameter has no value.

        Raises:
            ValueError: naming the parameters.
        """
        checks.names(name, given, needed=self.loose("param", "mutable"), known=given)


def shapes_of(tree: Any) -> Any:
    """The shapes of a pytree's arrays, by their place in it."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): tuple(np.shape(leaf)) for path, leaf in leaves}


def with_values(run: Callable, values: Mapping[str, Any], *, processes: bool = True) -> Callable:
    """``run`` with the values of its sites by name; deterministic sites, which MCMC records too, compute their own.

    Args:
        run: a program or guide.
        values: by name; those of sites that ``run`` does not have are ignored.
        processes: whether GP sites take theirs.

    Raises:
        ValueError: when run, for a value that has not the shape of its sample site.
    """

    def value_of(site: dict[str, Any]) -> Any:
        if site["type"] == "deterministic" or (not processes and isinstance(site.get("fn"), GaussianProcess)):
            return None
        value = values.get(site["name"])
        if value is not None and site["type"] == "sample" and not site["is_observed"]:
            check_value(site["name"], value, tuple(site["fn"].shape()))
        return value

    return handlers.substitute(run, substitute_fn=value_of)


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
