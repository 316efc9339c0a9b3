"""What is said of a program and its parameters? Every site, and every trained value, in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from gpzoo import _checks as checks
from gpzoo._pytree import Fields
from gpzoo.inference.asking.map_batches import BoundModel
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.diagnosis.findings import Section, shown
from gpzoo.inference.guides.draws import DrawsGuide
from gpzoo.inference.programs import files
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.labelled import columns_of_inputs
from gpzoo.inference.programs.program import Look, named
from gpzoo.inference.programs.runs import unmasked
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess

#: Entries of a parameter that are written out.
_WRITTEN = 4

#: Draws of a hyperparameter behind its interval.
_DRAWS = 1000


def sites_of(program: Callable, seen: Look) -> Section:
    """Every site of the program, in its order."""
    rows, sizes = [], {name: site["args"][0] for name, site in seen.trace.items() if site["type"] == "plate"}
    for name, site in seen.trace.items():
        if site["type"] not in ("sample", "param", "mutable", "deterministic"):
            continue
        shape = list(np.shape(site["value"])) if hasattr(site["value"], "shape") else None
        kind, what = _kind(site)
        if name in seen.lines:
            kind += f", drawn ({' and '.join(seen.lines[name])})"
        if site["type"] == "sample":
            shape = list(site["fn"].shape())
        frames = [(frame.name, frame.size, sizes.get(frame.name)) for frame in site.get("cond_indep_stack") or ()]
        plates = ", ".join(f"{at} ({n}{'' if of in (n, None) else f' of {of}'})" for at, n, of in reversed(frames))
        needs = ", ".join(sorted(seen.needs.get(name, ())))
        rows.append((name, kind, what, str(shape) if shape is not None else None, plates or None, needs or None))
    note = "Depends on: the latent sites that it depends on, directly or indirectly. Shapes are at these rows."
    title = f"Sites of {named(program)}"
    return Section(title, ("site", "kind", "prior or distribution", "shape", "plates", "depends on"), tuple(rows), note)


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
    limits = {"lower_bound": "above", "upper_bound": "below"}
    said = [
        f"{word} {shown(float(getattr(constraint, at)))}"
        for at, word in limits.items()
        if np.ndim(getattr(constraint, at, [])) == 0
    ]
    return ", ".join(said) or words


def described(fn: Any) -> str:
    """A distribution, kernel or view in one line: its kind, with what it is made of."""
    if isinstance(fn, GaussianProcess):
        mean = "" if fn.loc is None or (checks.is_concrete(fn.loc) and not np.any(fn.loc)) else ", with a mean function"
        return f"GP, kernel {described(fn.kernel)}{mean}"
    fields = fn.data_fields + fn.static_fields if isinstance(fn, Fields) else getattr(fn, "arg_constraints", None) or ()
    said = [_argument(name, getattr(fn, name, None)) for name in fields]
    base = getattr(fn, "base_dist", None)
    said += [described(base)] if base is not None and not fields else []
    return f"{type(fn).__name__}({', '.join(filter(None, said))})"


def _argument(name: str, value: Any) -> str:
    """An argument of a distribution, kernel or view; nothing for what is not set."""
    if value is None or value is False:
        return ""
    if isinstance(value, GaussianMarginals):
        return " and ".join(sorted(value.sites))
    if isinstance(value, Fields):
        return described(value)
    if isinstance(value, Mapping):
        return ", ".join(filter(None, (_argument(str(of), each) for of, each in value.items())))
    if isinstance(value, tuple | list) and any(isinstance(each, Fields) or hasattr(each, "shape") for each in value):
        return ", ".join(filter(None, (_argument(name, each) for each in value)))
    shape: Any = getattr(value, "shape", None)
    if shape is None:
        return f"{name}={shown(value) if isinstance(value, float) else getattr(value, '__name__', str(value)[:40])}"
    if shape:
        return f"{name} {list(shape)}"
    number: Any = value
    return f"{name}={shown(float(number))}" if checks.is_concrete(number) else name


# -- parameters --------------------------------------------------------------------------------------------------------


def parameters_of(key: Array, trained: Trained, subject: BoundModel, seen: Look) -> Section:
    """Hyperparameters first, with their priors and posteriors; then inducing variables, ``q(u)`` and networks."""
    guide = subject.guide
    others = guide.sites.latents - guide.sites.processes
    posteriors = trained.posterior(key, *subject.args, model_kwargs=subject.kwargs) if others else {}
    rows = []
    for name in (site for site in seen.trace if site in others):
        if isinstance(guide, DrawsGuide):
            draws = np.concatenate(np.asarray(subject.params[f"{name}_loc"], np.float64))
        else:
            draws = np.asarray(posteriors[name].sample(named_key(key, name), (_DRAWS,)), np.float64)
        ends = np.quantile(draws.reshape(len(draws), -1).mean(axis=1), (0.05, 0.5, 0.95))
        low, middle, high = (shown(float(x)) for x in ends)
        value = middle if ends[0] == ends[2] else f"{middle} ({low} to {high})"
        rows.append((name, str(list(draws.shape[1:])), value, described(unmasked(seen.trace[name]["fn"]))))
    _, columns = columns_of_inputs(trained.model, trained.data)
    variational, hidden = guide.variational_parameters(), {f"{n}_{part}" for n in others for part in ("loc", "scale")}
    limits = {name: site for name, site in seen.trace.items() if site["type"] == "param"}
    own = [name for name in trained.params if name not in variational | hidden]
    for name in [*sorted(own, key=lambda n: n not in limits), *sorted(variational & trained.params.keys() - hidden)]:
        what = "parameter of q(u)" if name in variational else "inducing variables"
        if name in limits:
            what = _kind(limits[name])[1] or "no prior"
        elif name in seen.trace:
            what = "state"
        rows += [(*row, what) for row in _leaves(name, trained.params[name], columns if "lengthscale" in name else [])]
    note = "Of a posterior: its median, and in brackets its central 90 %. Of many numbers: the least to the greatest."
    return Section("Trained values", ("parameter", "shape", "value", "prior or role"), tuple(rows), note)


def values(trained: Trained) -> Section:
    """Every parameter of a model whose program is not known."""
    rows = [row for name, value in trained.params.items() for row in _leaves(name, value)]
    note = "Of many numbers: the least to the greatest."
    return Section("Trained values", ("parameter", "shape", "value"), tuple(rows), note)


def _leaves(name: str, value: Any, columns: Sequence[str] = ()) -> Iterator[tuple[str, str, str]]:
    """The arrays of a parameter, with their names, shapes and values; of as many numbers as columns by their names."""
    for at, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        yield name + jax.tree_util.keystr(at), str(list(np.shape(leaf))), _value(leaf, columns)


def _value(leaf: Any, columns: Sequence[str]) -> str:
    if files.is_key(leaf):
        return "a random key"
    values = np.ravel(np.asarray(leaf)).astype(np.float64)
    if len(columns) == values.size:
        return ", ".join(f"{column} {shown(float(x))}" for column, x in zip(columns, values, strict=True))
    if values.size <= _WRITTEN:
        return ", ".join(shown(float(x)) for x in values)
    return f"{shown(float(values.min()))} to {shown(float(values.max()))}"
