"""Arguments of a program and their checks; NaN is allowed only as data that a program leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import eval_jaxpr
from jaxtyping import Bool
from numpyro.distributions import MaskedDistribution

from gpzoo import _checks as checks
from gpzoo._numpyro import mask_of
from gpzoo.inference.programs.labelled import unlabelled
from gpzoo.inference.programs.program import look, reached
from gpzoo.inference.programs.runs import sampled, unmasked
from gpzoo.inference.programs.standins import parts_of, run_of_marginals
from gpzoo.likelihoods import Likelihood
from gpzoo.processes.process import GaussianProcess


def arguments(
    program: Callable,
    args: tuple,
    kwargs: Mapping[str, Any] | None = None,
    *,
    new: bool = False,
    described: Mapping[str, Any] | None = None,
) -> tuple[tuple, dict[str, Any]]:
    """Checked arguments of a program. Only data that the program leaves out may be NaN.

    A Dataset in place of all positional arguments becomes arrays by row, with columns in the order of the ``described``
    names, see :func:`unlabelled`.

    Raises:
        TypeError, ValueError: see :func:`gpzoo._checks.arguments`.
    """
    absent: checks.Absent = []
    args, kwargs = checks.arguments(program, unlabelled(program, args, described), kwargs, new=new, absent=absent)
    refuse_absent(program, args, kwargs, absent)
    return args, kwargs


def refuse_other_columns(
    program: Callable, args: tuple, kwargs: dict[str, Any], described: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Refuse a matrix with another number of columns than in training, if the program then fails at trained ``values``.

    Raises:
        ValueError: naming the argument, its shape and the number of columns.
    """
    for name, x in zip(checks.positional(program, len(args))[0], args, strict=True):
        before = re.search(r"\[\d+, (\d+)\]$", described.get(f"argument {name}", ""))
        if before and hasattr(x, "shape") and x.shape[1:] != (int(before[1]),):
            try:
                look(program, args, kwargs, values)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{name} has the shape {list(x.shape)}, but had {before[1]} columns in training: pass the same "
                    f"columns in the same order, [N, {before[1]}]."
                ) from error


def refuse_unknown(name: str, given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Refuse unknown names; ``kind`` is a word for the things that have names.

    Raises:
        ValueError: naming the argument, the unknown names and the known names.
    """
    unknown = sorted(set(given).difference(known))
    checks.refuse(unknown, f"{name} names {unknown}, but the {kind} are {sorted(known)}.")


def refuse_no_tuple(name: str, example: str, args: Any) -> None:
    """Refuse positional arguments of a program that are not in a tuple.

    Raises:
        TypeError: naming the argument.
    """
    message = f"{name} must be a tuple such as {example}, got {type(args).__name__}."
    checks.refuse(not isinstance(args, tuple | None), message, TypeError)


def test_arrays(program: Callable, args: tuple, kwargs: dict[str, Any], values: Any) -> dict[str, Any]:
    """Checked test data. Only test data of sites with ``missing="mask"`` may hold NaN.

    Raises:
        TypeError, ValueError: see :func:`gpzoo._checks.named`.
    """
    absent: checks.Absent = []
    values = checks.named("test_data", values, absent=absent)
    if absent:
        trace = run_of_marginals(program, args, kwargs)
        allowed = [values[n] for n in values if n in trace and _takes_missing(trace[n].get("fn"))]
        for array, error in absent:
            if not any(array is x for x in allowed):
                raise error
    return values


def _takes_missing(fn: Any) -> bool:
    inner = unmasked(fn)
    return isinstance(inner, Likelihood) and (inner.missing is not None or getattr(fn, "entries", None) is not None)


def refuse_absent(
    program: Callable, args: tuple, kwargs: dict[str, Any], absent: checks.Absent, example: tuple | None = None
) -> None:
    """Refuse arguments with NaN, unless the program leaves these entries out of its data.

    It leaves them out by ``missing="mask"`` or by a mask of its own. Only if an argument has NaN, this function traces
    the program and computes the entries that the program leaves out.

    Args:
        program: a program.
        args: its positional arguments.
        kwargs: its keyword arguments.
        absent: arrays among these arguments that hold NaN, each with the error to raise.
        example: ``(args, kwargs)`` to trace the program with, if ``args`` and ``kwargs`` are for several trainings.

    Raises:
        ValueError: for an array with NaN in three cases: it is not the data of a site, it enters the prior of a GP
            site, or it has NaN in an entry that its site counts.
    """
    if not absent:
        return
    leaves = jax.tree.leaves((args, kwargs))
    errors = {i: error for i, x in enumerate(leaves) for array, error in absent if x is array}
    given, structure = jax.tree.flatten((args, kwargs) if example is None else example)

    def once(held: list[Array]) -> tuple[dict[str, Any], dict[tuple[str, str], Any], dict[str, Any]]:
        args, kwargs = jax.tree.unflatten(
            structure, [dict(zip(errors, held, strict=True)).get(i, x) for i, x in enumerate(given)]
        )
        data, inputs, wrong = {}, {}, {}
        for name, site in sampled(run_of_marginals(program, args, kwargs)).items():
            fn = unmasked(site["fn"])
            if isinstance(fn, GaussianProcess):
                inputs |= {(name, part): x for part, x in parts_of(fn).items()}
            if site["is_observed"]:
                data[name] = jnp.asarray(site["value"])
                # The site of a marginal program holds the distribution of its data inside.
                law = getattr(fn, "fn", None) if hasattr(fn, "likelihood") else site["fn"]
                wrong[name] = _counts_nan(law, data[name])
        return data, inputs, wrong

    held = [given[i] for i in errors]
    try:
        traced, (data, inputs, wrong) = jax.make_jaxpr(once, return_shape=True)(held)
    except jax.errors.JAXTypeError as error:  # the program looks at numbers, and only concrete arrays have them
        raise next(iter(errors.values())) from error
    ends = traced.jaxpr.outvars
    found = iter(reached(traced.jaxpr, ends, zip(traced.jaxpr.invars, map(str, errors), strict=True)))
    of_data = {name: next(found) for name in sorted(data)}
    of_inputs = frozenset().union(*(next(found) for _ in inputs))
    counted = jax.jit(partial(eval_jaxpr, traced.jaxpr))(traced.consts, *held)[len(ends) - len(wrong) :]
    bad = {name for name, is_wrong in zip(sorted(wrong), counted, strict=True) if is_wrong}
    for i, error in errors.items():
        if str(i) in of_inputs:
            said = str(error).partition(" Remove or impute")[0]
            raise ValueError(
                f"{said} A GP's inputs, mean and kernel must be known numbers: remove or impute those rows, or sample "
                "what is missing in the program, as latent variables with a prior."
            )
        sites = {name for name, arrays in of_data.items() if str(i) in arrays}
        if not sites or sites & bad:
            raise error


def _counts_nan(fn: Any, value: Array) -> Bool[Array, ""]:
    """Whether a data site counts an entry that is NaN, or counts all entries, so that a number has replaced NaN."""
    counted = jnp.ones(value.shape, bool)
    while isinstance(fn, MaskedDistribution):
        seen = getattr(fn, "entries", None)
        if seen is None:
            seen = jnp.reshape(mask_of(fn), (*jnp.shape(mask_of(fn)), *[1] * len(fn.event_shape)))
        counted, fn = counted & seen, fn.base_dist
    nan = jnp.isnan(value) if jnp.issubdtype(value.dtype, jnp.floating) else jnp.zeros(value.shape, bool)
    return (jnp.any(nan & counted) | jnp.all(counted)) & (getattr(fn, "missing", None) is None)
