"""Is a guide that of this program? It runs the one that it was made of: both must compute the same, not be the same.

Both programs are traced in one go, with the same arguments, parameters and latent values. What each makes of them, the
inputs, mean and kernel of every GP site, the density of every other one and the constraint of every parameter, must be
the same operations on the same numbers. Nothing is computed for it, so that it works inside ``jit`` too, and only a
program that is another object than the guide's is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.distributions import biject_to, constraints

from gpzoo._checks import is_concrete
from gpzoo._numpyro import Messenger
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.runs import Trace, given_value, run, unmasked
from gpzoo.inference.programs.standins import parts_of, unit_value
from gpzoo.processes.process import GaussianProcess

#: The arrays of a site by part, such as its mean, each with its place in it.
_Parts = dict[str, dict[str, Any]]


def refuse_other_program(
    model: Callable, guide: Any, args: tuple, kwargs: Mapping[str, Any], values: Mapping[str, Any] | None = None
) -> None:
    """Refuse a model that is not the program of its guide.

    Args:
        model: the program.
        guide: an :class:`~gpzoo.inference.InducingGuide`, inside handlers such as ``scope`` or not; of any other
            guide nothing is asked.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        values: values of parameters by name, as far as they are known.

    Raises:
        ValueError: naming the first site that differs, and how.
    """
    inner, around = guide, []
    while isinstance(inner, Messenger):
        around.append(inner)
        inner = inner.fn
    if not isinstance(inner, InducingGuide) or inner.model is model:
        return
    if inner.compared is not None and inner.compared[0] is model and inner.compared[1] is guide:
        return
    own = inner.model
    for handler in reversed(around):
        outer = copy(handler)
        outer.fn = own
        own = outer
    if found := _difference(model, own, args, kwargs, values or {}):
        raise ValueError(
            f"The guide was made of another program than the model: {found}. A guide runs its own program, and their "
            "bound would be that of neither. Make it of this very model, InducingGuide(model, ...), and again whenever "
            "the model is defined anew."
        )
    inner.compared = model, guide


def _difference(
    model: Callable, own: Callable, args: tuple, kwargs: Mapping[str, Any], values: Mapping[str, Any]
) -> str:
    """The first difference between a model and the program of its guide, in words; empty if there is none."""
    traces: list[Trace] = []

    def once() -> list[dict[str, _Parts]]:
        traces[:] = [_run(own, args, kwargs, values, {})]
        traces.append(_run(model, args, kwargs, values, traces[0]))
        both = [name for name in traces[1] if _kind(traces[0].get(name)) == _kind(traces[1][name]) != ""]
        pairs = {name: _parts(*(trace[name] for trace in traces)) for name in both}
        return [{name: pair[i] for name, pair in pairs.items()} for i in range(2)]

    program, shapes = jax.make_jaxpr(once, return_shape=True)()
    numbers = _Numbers().of(program.jaxpr, program.consts, [])
    theirs, ours = jax.tree.unflatten(jax.tree.structure(shapes), numbers)
    of_guide, of_model = traces
    for name in [*of_model, *(name for name in of_guide if name not in of_model)]:
        kind, there = _kind(of_model.get(name)), _kind(of_guide.get(name))
        if kind != there:
            alone = f"only the {'model' if kind else 'program of the guide'} has the {kind or there} {name!r}"
            return f"{name!r} is a {kind} in the model, in the guide a {there}" if kind and there else alone
        if not kind:
            continue
        a, b = (unmasked(trace[name].get("fn")) for trace in (of_model, of_guide))
        for part in dict.fromkeys([*ours[name], *theirs[name]]):
            mine, other = ours[name].get(part, {}), theirs[name].get(part, {})
            if mine == other:
                continue
            if part in ("kernel", "constraint"):
                made, of_own = (_called(_object(trace[name])) for trace in (of_model, of_guide))
                if made != of_own:
                    return f"{kind} {name!r} has the {part} {made} in the model, in the guide {of_own}"
            if type(a).__name__ != type(b).__name__:
                return f"{kind} {name!r} is {_called(a)} in the model, in the guide {_called(b)}"
            shape, old = (tuple(x.shape()) if hasattr(x, "shape") else () for x in (a, b))
            where = ", ".join(place for place in mine if place and mine[place] != other.get(place))
            if shape != old:
                return f"{kind} {name!r} has shape {shape} in the model, in the guide {old}"
            return f"{kind} {name!r} has another {where or part} in the model than in the guide"
    return ""


def _called(x: Any) -> str:
    return type(x).__name__.lstrip("_")


def _object(site: Mapping[str, Any]) -> Any:
    """The kernel of a GP site, the constraint of a parameter."""
    return _constraint(site) if site["type"] == "param" else unmasked(site["fn"]).kernel


def _constraint(site: Mapping[str, Any]) -> constraints.Constraint:
    return site["kwargs"].get("constraint", constraints.real)


def _kind(site: Mapping[str, Any] | None) -> str:
    """What a site is, in words; empty for one of which nothing is asked."""
    if site is None or site["type"] not in ("sample", "param", "mutable"):
        return ""
    if site["type"] != "sample":
        return {"param": "parameter", "mutable": "mutable state"}[site["type"]]
    of = "GP site" if isinstance(unmasked(site["fn"]), GaussianProcess) else "site"
    return f"data of {of}" if site["is_observed"] else of


def _run(model: Callable, args: tuple, kwargs: Mapping[str, Any], values: Mapping[str, Any], like: Trace) -> Trace:
    """A run with the values of another one, ``like``, as far as it has sites of these names and shapes."""
    number = 0

    def value_of(site: dict[str, Any]) -> Any:
        nonlocal number
        fn: Any = site.get("fn")
        before = like.get(site["name"])
        if site["type"] in ("param", "mutable"):
            return given_value(values, site) if before is None else before["value"]
        if site["type"] != "sample" or site["value"] is not None:
            return None
        if before is not None and _kind(before) == _kind(site) and tuple(before["fn"].shape()) == tuple(fn.shape()):
            return before["value"]
        if not isinstance(fn, GaussianProcess):
            return None
        number += 1  # no two sites are the same numbers
        return unit_value(site["name"], fn, None) + jnp.asarray(number, fn.X.dtype)

    values = jax.tree.map(lambda x: x, dict(values))  # networks write into the state that they are handed
    return run(random.key(0), args, kwargs, model=model, values=value_of, complete=False).model


def _parts(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[_Parts, _Parts]:
    """What two programs make of a site."""
    if first["type"] == "param":
        # SVI trains a parameter in the unconstrained space of one program, and the other one would not know of it.
        unconstrained = [biject_to(_constraint(site)).inv(site["value"]) for site in (first, second)]
        leaves = [jax.tree_util.tree_leaves_with_path(value) for value in unconstrained]
        of_first, of_second = ({jax.tree_util.keystr(at): jnp.asarray(x) for at, x in each} for each in leaves)
        return {"constraint": of_first}, {"constraint": of_second}
    if first["type"] != "sample":
        return {}, {}
    fns = [unmasked(site["fn"]) for site in (first, second)]
    found: list[_Parts] = [{}, {}]
    for parts, site, fn in zip(found, (first, second), fns, strict=True):
        if site["is_observed"]:
            parts["data"] = {"": jnp.asarray(site["value"])}
        if isinstance(fn, GaussianProcess):
            parts["kernel"] = {}
            given = {name: x for name, x in parts_of(fn).items() if not name.startswith("kernel")}
            given |= {} if fn.jitter is None else {"jitter": fn.jitter}
            parts |= {name: {"": jnp.asarray(x)} for name, x in given.items()}
        elif tuple(fns[0].shape()) == tuple(fns[1].shape()) or site is first:
            parts["distribution"] = {"": jnp.asarray(fn.log_prob(site["value"]))}
    if all(isinstance(fn, GaussianProcess) for fn in fns):
        for parts, kernel in zip(found, _kernels(*fns), strict=True):
            parts["kernel"] = kernel
    return found[0], found[1]


def _kernels(first: GaussianProcess, second: GaussianProcess) -> list[dict[str, Any]]:
    """The hyperparameters of two kernels of one structure, by name; else the covariances that they compute."""
    priors = [first, second]
    if jax.tree.structure(first.kernel) == jax.tree.structure(second.kernel):
        leaves = [jax.tree_util.tree_leaves_with_path(prior.kernel) for prior in priors]
        return [{jax.tree_util.keystr(at).lstrip("."): jnp.asarray(x) for at, x in each} for each in leaves]
    # A class or a function that is defined anew is another one, though it may do the same.
    if any(prior.samples_views for prior in priors):
        priors = [prior.with_fixed_views(random.key(0)) for prior in priors]
    return [{"": prior.kernel(first.X)} for prior in priors]


class _Numbers:
    """Numbers of the values in a traced program: the same for the same operations on the same numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.constants: list[tuple[Any, int]] = []
        self.results: dict[tuple, list[tuple[Mapping[str, Any], list[int]]]] = {}

    def new(self, count: int) -> list[int]:
        """Numbers of values of which nothing is known."""
        self.count += count
        return list(range(self.count - count, self.count))

    def of(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        """The numbers of a traced program's results.

        Args:
            jaxpr: the program.
            constants: values of its constants.
            inputs: numbers of its arguments.
        """
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= {x: self._constant(value) for x, value in zip(jaxpr.constvars, constants, strict=True)}

        def number(x: Any) -> int:
            return self._constant(x.val) if hasattr(x, "val") else known[x]

        for equation in jaxpr.eqns:
            key = equation.primitive.name, tuple(map(number, equation.invars)), len(equation.outvars)
            before = self.results.setdefault(key, [])
            same = next((outs for params, outs in before if _alike(params, equation.params)), None)
            if same is None:
                same = self.new(len(equation.outvars))
                before.append((equation.params, same))
            known |= dict(zip(equation.outvars, same, strict=True))
        return [number(x) for x in jaxpr.outvars]

    def _constant(self, value: Any) -> int:
        for other, number in self.constants:
            if other is value or (is_concrete(other) and is_concrete(value) and _equal(other, value)):
                return number
        (number,) = self.new(1)
        self.constants.append((value, number))
        return number


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if np.shape(a) != np.shape(b) or jnp.result_type(a) != jnp.result_type(b):
        return False
    # Also inside jit, where JAX's functions trace numbers.
    with jax.ensure_compile_time_eval():
        if jnp.issubdtype(jnp.result_type(a), jax.dtypes.prng_key):
            a, b = random.key_data(a), random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
    return a.tobytes() == b.tobytes()


def _alike(a: Any, b: Any) -> bool:
    """Whether two options of an operation are the same, programs among them. What cannot be compared says nothing."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a if key != "name")
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if hasattr(a, "eqns"):
        closed = hasattr(a, "consts")
        a, b = ((x.jaxpr, x.consts) if closed else (x, ()) for x in (a, b))
        if len(a[0].invars) != len(b[0].invars):
            return False
        numbers = _Numbers()
        inputs = numbers.new(len(a[0].invars))
        return numbers.of(a[0], a[1], inputs) == numbers.of(b[0], b[1], inputs)
    if isinstance(a, np.ndarray | jax.Array):
        return _equal(a, b)
    # A rule of differentiation is that of an operation whose program is compared.
    if callable(a) or hasattr(a, "call_wrapped") or type(a).__eq__ is object.__eq__:
        return True
    return bool(a == b)
