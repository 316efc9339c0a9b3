"""Tables of a program and its parameters: one line for every site, and one line for every trained value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from gpzoo import _checks as checks
from gpzoo._pytree import Fields
from gpzoo.inference.diagnosis.findings import Section, shown
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.guides.draws import DrawsGuide
from gpzoo.inference.programs import files
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.labelled import columns_of_inputs
from gpzoo.inference.programs.program import Look, named
from gpzoo.inference.programs.runs import unmasked
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess

#: Largest number of entries of a parameter that are all written out.
_WRITTEN = 4

#: Number of draws of a hyperparameter from which its interval is computed.
_DRAWS = 1000


def sites_of(program: Callable, seen: Look) -> Section:
    """Every site of the program, in the order of the program."""
    rows = []
    for name, site in seen.trace.items():
        if site["type"] not in ("sample", "param", "mutable", "deterministic"):
            continue
        shape = str(list(np.shape(site["value"]))) if hasattr(site["value"], "shape") else None
        kind, what = _kind(site)
        if name in seen.arrays:
            kind += ", drawn"
        if site["type"] == "sample":
            shape = str(list(site["fn"].shape()))
        needs = ", ".join(sorted(seen.needs.get(name, ())))
        rows.append((name, kind, what, shape, _plates(site, seen.trace) or None, needs or None))
    note = "Depends on: the latent sites that it depends on, directly or indirectly. Shapes are at these rows."
    title = f"Sites of {named(program)}"
    return Section(title, ("site", "kind", "prior or distribution", "shape", "plates", "depends on"), tuple(rows), note)


def _plates(site: Mapping[str, Any], trace: Mapping[str, Any]) -> str:
    """The plates around a site, with their numbers of rows."""
    plates = []
    for frame in reversed(site.get("cond_indep_stack") or ()):
        whole = trace[frame.name]["args"][0] if frame.name in trace else frame.size
        part = "" if whole in (frame.size, None) else f" of {whole}"
        plates.append(f"{frame.name} ({frame.size}{part})")
    return ", ".join(plates)


def _kind(site: Mapping[str, Any]) -> tuple[str, str | None]:
    if site["type"] == "sample":
        fn = unmasked(site["fn"])
        kind = "data" if site["is_observed"] else "GP" if isinstance(fn, GaussianProcess) else "latent"
        return kind, described(fn)
    if site["type"] == "param":
        constraint = site["kwargs"].get("constraint")
        return "parameter", "no prior" + (f", {_constraint(constraint)}" if constraint is not None else "")
    return ("state" if site["type"] == "mutable" else "deterministic"), None


def _constraint(constraint: Any) -> str:
    name = type(constraint).__name__.strip("_")
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in name).replace("_", " ").strip()
    limits = []
    for attribute, word in (("lower_bound", "above"), ("upper_bound", "below")):
        limit = getattr(constraint, attribute, None)
        if limit is not None and np.ndim(limit) == 0:
            limits.append(f"{word} {shown(float(limit))}")
    return ", ".join(limits) or words


def described(fn: Any) -> str:
    """A distribution, kernel or view in one line, with its kind and its parts."""
    if isinstance(fn, GaussianProcess):
        mean = "" if fn.loc is None or (checks.is_concrete(fn.loc) and not np.any(fn.loc)) else ", with a mean function"
        return f"GP, kernel {described(fn.kernel)}{mean}"
    fields = fn.data_fields + fn.static_fields if isinstance(fn, Fields) else getattr(fn, "arg_constraints", None) or ()
    inside = [_argument(name, getattr(fn, name, None)) for name in fields]
    base = getattr(fn, "base_dist", None)
    if base is not None and not fields:
        inside = [described(base)]
    return f"{type(fn).__name__}({', '.join(filter(None, inside))})"


def _argument(name: str, value: Any) -> str:
    """An argument of a distribution, kernel or view; empty if the argument is not set."""
    if value is None or value is False:
        return ""
    if isinstance(value, GaussianMarginals):
        return " and ".join(sorted(value.sites))
    if isinstance(value, Fields):
        return described(value)
    if isinstance(value, Mapping):
        return ", ".join(filter(None, map(_argument, map(str, value), value.values())))
    if isinstance(value, tuple | list) and any(isinstance(each, Fields) or hasattr(each, "shape") for each in value):
        return ", ".join(filter(None, map(partial(_argument, name), value)))
    shape: Any = getattr(value, "shape", None)
    if shape is None:
        return f"{name}={shown(value) if isinstance(value, float) else getattr(value, '__name__', str(value)[:40])}"
    if shape:
        return f"{name} {list(shape)}"
    number: Any = value
    return f"{name}={shown(float(number))}" if checks.is_concrete(number) else name


# -- parameters --------------------------------------------------------------------------------------------------------


def parameters_of(key: Array, trained: Trained, subject: BoundModel, seen: Look) -> Section:
    """A table of hyperparameters with priors and posteriors, followed by inducing variables, ``q(u)`` and networks."""
    guide, trace = subject.guide, seen.trace
    others = guide.sites.latents - guide.sites.processes
    posteriors = trained.posterior(key, *subject.args, model_kwargs=subject.kwargs) if others else {}
    rows, hidden = [], set()
    for name in filter(others.__contains__, trace):
        hidden |= {f"{name}_loc", f"{name}_scale"}
        if isinstance(guide, DrawsGuide):
            draws = np.concatenate(np.asarray(subject.params[f"{name}_loc"], np.float64))
        else:
            draws = np.asarray(posteriors[name].sample(named_key(key, name), (_DRAWS,)), np.float64)
        rows.append((name, str(list(draws.shape[1:])), _interval(draws), described(unmasked(trace[name]["fn"]))))
    _, columns = columns_of_inputs(trained.model, trained.data)
    roles = {}
    for name in trained.params.keys() - hidden:
        roles[name] = _role(trace.get(name), name in guide.variational_parameters())
    for name in sorted(roles, key=partial(_place, tuple(trained.params), trace, guide.variational_parameters())):
        for row in _leaves(name, trained.params[name], columns if "lengthscale" in name else []):
            rows.append((*row, roles[name]))
    note = "Of a posterior: its median, and in brackets its central 90 %. Of many numbers: the least to the greatest."
    return Section("Trained values", ("parameter", "shape", "value", "prior or role"), tuple(rows), note)


def _interval(draws: np.ndarray) -> str:
    """The median and the central 90 % of draws. If there are several entries, their mean is taken first."""
    ends = np.quantile(draws.reshape(len(draws), -1).mean(axis=1), (0.05, 0.5, 0.95))
    low, middle, high = map(shown, ends.tolist())
    return middle if ends[0] == ends[2] else f"{middle} ({low} to {high})"


def _role(site: Mapping[str, Any] | None, variational: bool) -> str:
    """The role of a parameter, from its site if the program has one for it."""
    if site is None:
        return "parameter of q(u)" if variational else "inducing variables"
    return _kind(site)[1] or "no prior" if site["type"] == "param" else "state"


def _place(names: Sequence[str], trace: Mapping[str, Any], variational: Collection[str], name: str) -> tuple:
    """The place of a parameter: parameters of the program come first, then others, then parameters of ``q(u)``."""
    if name in variational:
        return 2, 0, name
    of_program = name in trace and trace[name]["type"] == "param"
    return int(not of_program), names.index(name), name


def values(trained: Trained) -> Section:
    """A table of all parameters, for a model whose program is not available."""
    rows: list[tuple[str, str, str]] = []
    for name, value in trained.params.items():
        rows += _leaves(name, value)
    note = "Of many numbers: the least to the greatest."
    return Section("Trained values", ("parameter", "shape", "value"), tuple(rows), note)


def _leaves(name: str, value: Any, columns: Sequence[str] = ()) -> Iterator[tuple[str, str, str]]:
    """The arrays of a parameter, with names, shapes and values. One number per column comes with the column names."""
    for at, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        yield name + jax.tree_util.keystr(at), str(list(np.shape(leaf))), _value(leaf, columns)


def _value(leaf: Any, columns: Sequence[str]) -> str:
    if files.is_key(leaf):
        return "a random key"
    values = np.ravel(np.asarray(leaf)).astype(np.float64)
    if len(columns) == values.size:
        return ", ".join(map(" ".join, zip(columns, map(shown, values.tolist()), strict=True)))
    if values.size <= _WRITTEN:
        return ", ".join(map(shown, values.tolist()))
    return f"{shown(float(values.min()))} to {shown(float(values.max()))}"
