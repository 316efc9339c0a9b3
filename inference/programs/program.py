"""Abstract runs of a program before its guide runs: its latent sites, and how it uses their values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.distributions import ExpandedDistribution, Independent, MaskedDistribution

from gpzoo import _checks as checks
from gpzoo._pytree import Fields
from gpzoo.inference.programs.check_rows import RowDependence, dependence_on_rows
from gpzoo.inference.programs.domain import impossible_rows, needed_part, refuse_impossible
from gpzoo.inference.programs.enumeration import check_mark, plate_depth, summed_out
from gpzoo.inference.programs.runs import Runs, Trace, data_of, sampled, shapes_of, unmasked
from gpzoo.inference.programs.sites import Sites
from gpzoo.inference.programs.standins import arrays_of, parts_of, run_with, unit_value
from gpzoo.likelihoods import Expected, Likelihood
from gpzoo.processes.marginals import DrawLog, GaussianMarginals
from gpzoo.processes.process import GaussianProcess


@dataclass(frozen=True)
class Look:
    """The result of one abstract run of a program with marginals at every latent GP site.

    Attributes:
        trace: the sites by name; their values are tracers, which only have shapes.
        parameters: see :class:`Sites`.
        arrays: names of the GP sites whose value the program uses as an array.
        needs: for each GP site and each data site, the latent sites on which it depends, directly or indirectly.
        sums: for each data site whose distribution has a sum of several GP sites, the names of these GP sites.
        added: for each sum of GP sites that is exact on marginals, the names of these sites.
        mixed: names of the GP sites whose outputs the program mixes or chooses.
    """

    trace: Trace
    parameters: Mapping[str, Any]
    arrays: frozenset[str]
    needs: Mapping[str, frozenset[str]]
    sums: Mapping[str, frozenset[str]]
    added: tuple[frozenset[str], ...] = ()
    mixed: frozenset[str] = frozenset()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the values of sample and deterministic sites, by name."""
        return {name: np.shape(value) for name, value in arrays_of(self.trace).items()}


def look(
    model: Callable,
    args: tuple,
    kwargs: dict,
    values: Mapping[str, Any] | None = None,
    *,
    arrays: bool = False,
    refuse_data: bool = False,
) -> Look:
    """Trace a program once without computing. Data are constants in the trace, so likelihoods can check them.

    Args:
        model: the program.
        args: its positional arguments, data included.
        kwargs: its keyword arguments.
        values: given values of parameters and of latent sites that are not GPs, by name.
        arrays: whether GP sites are arrays, as under MCMC and guides that are not an InducingGuide.
        refuse_data: whether to refuse impossible data. A row of data is impossible if no tried value of the latent
            functions gives it a finite log density. Trainings set this option.

    Raises:
        TypeError: naming a GP site whose marginals the program uses as an array without drawing them.
        ValueError: if a likelihood refuses its data, or if ``refuse_data`` is true and data are impossible.
    """
    log, runs = DrawLog(), Runs({}, {}, frozenset())

    def once(shift: Array) -> tuple[dict, dict, dict, dict]:
        nonlocal runs

        def value_of(name: str, fn: GaussianProcess) -> Any:
            moved = shift.astype(fn.X.dtype)
            return moved + jnp.ones(fn.event_shape, fn.X.dtype) if arrays else unit_value(name, fn, log, mean=moved)

        key = random.fold_in(random.key(0), shift.astype(int))
        runs = run_with(value_of, model, args, kwargs, values, key)
        latent = {n: s["value"] for n, s in sampled(runs.model).items() if not s["is_observed"]}
        means = {n: v.mean if isinstance(v, GaussianMarginals) else v for n, v in latent.items()}
        return means, _terms(runs.model), _laws(runs.model), impossible_rows(runs.model) if refuse_data else {}

    program, (latent, terms, laws, bad) = jax.make_jaxpr(once, return_shape=True)(0.0)
    # Dictionaries are flattened in the order of their names.
    parts = np.cumsum([len(latent), len(terms), len(laws)])
    sources, ends, of_laws, bad_rows = np.split(np.array(program.jaxpr.outvars, object), parts)
    if bad:
        asked = program.replace(jaxpr=program.jaxpr.replace(outvars=list(bad_rows)))
        named_args = dict(zip(checks.positional(model, len(args))[0], args, strict=True)) | kwargs
        refuse_impossible(asked, sorted(bad), runs.model, named_args, descriptions_of(runs.model))
    into = reached(program.jaxpr, ends, zip(sources, sorted(latent), strict=True))
    needs: dict[str, frozenset[str]] = {}
    for (site, part), names in zip(sorted(terms), into, strict=True):
        if part != "prior":  # posteriors of latent sites that are not GPs depend on nothing
            needs[site] = needs.get(site, frozenset()) | (names - {site})
    for site in filter(needs.__contains__, runs.model):  # in the order of the program
        needs[site] = needs[site].union(*(needs[name] for name in needs[site] if name in needs))
    processes = {name for name in latent if isinstance(unmasked(runs.model[name]["fn"]), GaussianProcess)}
    of_sites = [(value, name) for value, name in zip(sources, sorted(latent), strict=True) if name in processes]
    sums: dict[str, frozenset[str]] = {}
    for (site, _), end in zip(sorted(laws), of_laws, strict=True):
        if added := summed(program.jaxpr.replace(outvars=[end]), of_sites):
            sums[site] = sums.get(site, frozenset()) | added
    drawn = frozenset(log.sites), needs, sums
    return Look(runs.model, _parameters(runs), *drawn, tuple(log.sums), frozenset(log.mixed))


def reached(
    program: Any, ends: Iterable[Any], named: Iterable[tuple[Any, str]], added: set[frozenset[str]] | None = None
) -> list[frozenset[str]]:
    """For each of the variables ``ends`` of a traced program, the names of the ``named`` variables it depends on.

    Dependence through another named variable does not count. The set ``added`` gets the names in every sum or
    difference of two numbers that depend on different variables.
    """
    added = set() if added is None else added
    known: dict[Any, frozenset[str]] = {}
    of = lambda x: frozenset() if hasattr(x, "val") else known.get(x, frozenset())  # noqa: E731
    for variable, name in named:
        if not hasattr(variable, "val"):
            known[variable] = of(variable) | {name}
    for equation in program.eqns:
        given = [of(x) for x in equation.invars]
        # All outputs of a loop, or of a function with a custom derivative, count as dependent on all inputs.
        outputs = [frozenset().union(*given)] * len(equation.outvars)
        if equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"].jaxpr
            inputs = [(x, str(i)) for i, x in enumerate(inner.invars)]
            of_inner: set[frozenset[str]] = set()
            each = reached(inner, inner.outvars, inputs, of_inner)
            added |= {frozenset().union(*(given[int(i)] for i in numbers)) for numbers in of_inner}
            outputs = [frozenset().union(*(given[int(i)] for i in numbers)) for numbers in each]
        if equation.primitive.name in ("add", "sub") and all(given) and not given[0] & given[1]:
            added.add(given[0] | given[1])
        for variable, found in zip(equation.outvars, outputs, strict=True):
            known.setdefault(variable, found)
    return [of(x) for x in ends]


def summed(program: Any, named: Iterable[tuple[Any, str]]) -> frozenset[str]:
    """The names of the variables of a traced program that enter its results in sums of different variables."""
    added: set[frozenset[str]] = set()
    program = needed_part(program)
    reached(program, program.outvars, named, added)
    return frozenset().union(*added)


def _laws(trace: Trace) -> dict[tuple[str, str], Array]:
    """The numbers of the distributions of data sites, by site and place."""
    found = {}
    for name, site in data_of(trace).items():
        if not isinstance(unmasked(site["fn"]), GaussianProcess):
            for i, leaf in enumerate(jax.tree.leaves(site["fn"])):
                if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                    found[name, f"{i:03}"] = jnp.asarray(leaf)
    return found


def find_sites(
    seen: Look,
    model: Callable,
    args: tuple,
    kwargs: dict,
    joint: frozenset[str],
    *,
    values: Mapping[str, Any] | None = None,
    where: str = "the guide's first call (init_params, svi.init or fit)",
) -> Sites:
    """Find a program's latent sites, and the GP sites that it uses as arrays.

    If a site is drawn for one use, it is an array for all uses. In training, draws are independent over inputs, with
    one exception. The inputs of one row of the data are drawn together, if a term of the program, or a row of a later
    GP site's inputs, depends on several of them. Dependence on the inputs of several rows is refused.

    Args:
        seen: the result of :func:`look`, at these arguments or at more rows.
        model: the program.
        args: its positional arguments, data included, for the check of rows.
        kwargs: its keyword arguments.
        joint: names of GP sites that are drawn jointly.
        values: the ``values`` that :func:`look` got.
        where: the name of the function that the user called, for messages.

    Raises:
        ValueError: see :class:`~gpzoo.inference.InducingGuide`.
    """
    sites = sites_of(seen, model, args, kwargs, joint, where)
    if not seen.arrays - joint:
        return sites
    dependence = dependence_on_rows(model, args, kwargs, sites, joint, values)
    _refuse_across(dependence)
    return replace(sites, within=dependence.within)


def sites_of(
    seen: Look, model: Callable, args: tuple, kwargs: dict, joint: frozenset[str], where: str = "training"
) -> Sites:
    """The result of :func:`find_sites` without its check of rows, which would compute the program.

    Raises:
        ValueError: see :class:`~gpzoo.inference.InducingGuide`.
    """
    found = seen.trace
    latents, enumerated = _latent_sites(model, found, where)
    processes = {name for name in latents if isinstance(unmasked(found[name]["fn"]), GaussianProcess)}
    estimated = sorted(name for name in joint & processes if unmasked(found[name]["fn"]).samples_views)
    message = (
        f"InducingGuide(joint=...) names {estimated}, whose kernel samples views of its inputs: in training there "
        "are estimated moments and no draws. Enumerate the views (an Orbit), or leave the site out of joint."
    )
    checks.refuse(estimated, message)
    drawn, depth = seen.arrays, plate_depth(found)
    shapes = drawn - joint
    if enumerated:
        refuse_enumerated_priors(seen, enumerated)
        if not shapes:
            parameters_of(summed_out(model, depth), args, kwargs)  # raises if the program is refused
    limits = {name: unmasked(found[name]["fn"]).support for name in latents - processes}
    limits |= {n: s["kwargs"].get("constraint") for n, s in found.items() if s["type"] == "param"}
    limits = {
        name: x for name, x in limits.items() if x is not None and all(map(checks.is_concrete, jax.tree.leaves(x)))
    }
    inner = frozenset().union(*(seen.needs.get(name, ()) for name in processes)) & processes
    known = frozenset(latents), frozenset(processes), drawn, inner, names_of(found), seen.parameters, limits
    return Sites(*known, frozenset(enumerated), depth, descriptions=descriptions_of(found))


def refuse_enumerated_priors(seen: Look, enumerated: Collection[str]) -> None:
    """Refuse GP sites, latent or observed, whose prior depends on discrete sites that are summed out.

    This prior would take all values of the discrete sites at once as columns or outputs of one kernel.

    Args:
        seen: the result of :func:`look` for the program.
        enumerated: names of the discrete sites.

    Raises:
        ValueError: naming the sites.
    """
    for name, site in sampled(seen.trace).items():
        others = sorted(seen.needs.get(name, frozenset()).intersection(enumerated))
        if others and isinstance(unmasked(site["fn"]), GaussianProcess):
            raise ValueError(
                f"The inputs, mean or kernel of GP site {name!r} depend on the discrete site(s) {others}. Sample one "
                "latent GP for each of their values, and choose between these where the data are: f[rows, z]."
            )


def names_of(trace: Trace) -> frozenset[str]:
    """Names of all sample and param sites."""
    return frozenset(name for name, site in trace.items() if site["type"] in ("sample", "param"))


def descriptions_of(trace: Trace) -> dict[str, str]:
    """Descriptions of sample sites: the class and, for GPs, the kernel with its options and the axes of its numbers."""

    def words(x: Any) -> str:
        if isinstance(x, Fields):
            values = {name: getattr(x, name) for name in (*x.data_fields, *x.static_fields)}
            parts = [f"{name}={words(value)}" for name, value in values.items() if value is not None]
            return f"{type(x).__name__}({', '.join(parts)})"
        if isinstance(x, Mapping):
            return words([f"{name}={words(value)}" for name, value in x.items()])
        if isinstance(x, list | tuple):
            return f"[{', '.join(map(words, x))}]"
        if isinstance(x, Array | np.ndarray):  # the number of rows may differ between calls
            return f"array[{', '.join(':' * x.ndim)}]" if x.ndim else "number"
        return str(x) if isinstance(x, int | float | str) else getattr(x, "__name__", type(x).__name__)

    def said(fn: Any) -> str:
        while isinstance(fn, MaskedDistribution | ExpandedDistribution | Independent):
            fn = fn.base_dist
        if isinstance(fn, GaussianProcess | Expected):
            return f"{type(fn).__name__} of {words(fn.kernel) if isinstance(fn, GaussianProcess) else fn.law}"
        return type(fn).__name__

    return {name: said(site["fn"]) for name, site in sampled(trace).items()}


def named(program: Callable) -> str:
    """The name of a program, without arguments that are bound to it."""
    while isinstance(program, partial):
        program = program.func
    return getattr(program, "__name__", type(program).__name__)


def _latent_sites(model: Callable, found: Trace, where: str) -> tuple[set[str], set[str]]:
    """Names of a program's latent sites, and of its discrete sites that are to be summed out.

    Raises:
        ValueError: for a program without sites, and a site that cannot be a latent variable.
    """
    message = (
        f"The program {getattr(model, '__name__', type(model).__name__)!r} has no numpyro.sample site, so that "
        "there is nothing to infer: sample its GP, numpyro.sample('f', GaussianProcess(kernel, X)), and its data, "
        "numpyro.sample('y', likelihoods.Gaussian(f, noise), obs=y)."
    )
    checks.refuse(not sampled(found), message)
    latents, enumerated = set(), set()
    for name in [name for name in sampled(found) if name not in data_of(found)]:
        site, fn, plain = found[name], unmasked(found[name]["fn"]), name.removesuffix("_unobserved")
        discrete = not isinstance(fn, Likelihood) and fn.support is not None and fn.support.is_discrete
        message = (
            f"Site {plain!r} uses obs_mask, which turns missing data into latent variables. Use `with "
            "numpyro.handlers.mask(mask=...)` around the site instead: masked data then leave the bound."
        )
        checks.refuse(plain != name and f"{plain}_observed" in found, message)
        if discrete and data_of(found):
            check_mark(site, where)
            enumerated.add(name)
            continue
        message = f"Site {name!r} ({type(fn).__name__}) has no data, and it cannot be a latent variable."
        none = isinstance(fn, Likelihood) or fn.support is None or discrete
        checks.refuse(none, f"{message} Give it obs=y in the program, and pass the data in {where}.")
        latents.add(name)
    return latents, enumerated


def refuse_without_data(found: Trace) -> None:
    """Refuse a program that observes nothing, because no bound could learn from it.

    Raises:
        ValueError: naming both causes.
    """
    where = "the guide's first call (init_params, svi.init or fit)"
    message = f"The program has no data: give a site obs=y in the program, and pass the data in {where}."
    checks.refuse(not data_of(found), message)


def _refuse_across(found: RowDependence) -> None:
    """Refuse terms that depend on a drawn GP site at several rows of the data.

    Raises:
        ValueError: naming the site.
    """
    for name, term in sorted(found.across.items()):
        raise ValueError(
            f"In this program {term}, but in training a GP site is drawn row by row. Draw it jointly, "
            f"InducingGuide(..., joint={{{name!r}}}), or, if these are several inputs of one row of the data, write "
            "them as GaussianProcess(kernel, X, per_row=True) with X of shape [N, P, ...]."
        )


def _terms(trace: Trace) -> dict[tuple[str, str], Array]:
    """All terms that a draw can enter, by site and part: log densities, and a GP site's inputs, mean and kernel."""
    terms: dict[tuple[str, str], Any] = {}
    for name, site in sampled(trace).items():
        fn = site["fn"]
        if isinstance(fn, GaussianProcess):
            terms |= {(name, part): value for part, value in parts_of(fn).items()}
        if site["is_observed"]:
            _check_observed(name, fn, site["value"], {frame.dim for frame in site["cond_indep_stack"]})
            try:
                terms[name, "log density"] = fn.log_prob(site["value"])
            except checks.OutOfRange as error:
                raise checks.OutOfRange(f"Site {name!r}: {error}") from error
        elif not isinstance(fn, GaussianProcess):
            terms[name, "prior"] = fn.log_prob(site["value"])
    return {key: jnp.asarray(term) for key, term in terms.items()}


def _check_observed(name: str, fn: Any, value: Any, plates: Collection[int]) -> None:
    """Refuse data that would broadcast their site's density, such as ``[N, 1]`` for a site ``[N]`` to ``[N, N]``.

    It also refuses data that count several times, along an axis of the site that is no plate's, and NumPyro's
    distributions around marginals. ``plates`` are the axes of plates, counted from the end.
    """
    if isinstance(unmasked(fn), Likelihood | GaussianProcess):
        return  # these check their own data
    given = jax.tree.leaves((fn, value), is_leaf=lambda x: isinstance(x, GaussianMarginals))
    checks.refuse(
        type(unmasked(fn)).__name__ == "Evidence",
        f"Data site {name!r} is of marginal(program), which has no GP sites left: fit, check and load take the program "
        "itself; marginal(program) is for nuts(key, marginal(program), X, y) and NumPyro's own svi.run.",
        TypeError,
    )
    if sites := sorted(frozenset().union(*(x.sites for x in given if isinstance(x, GaussianMarginals)))):
        raise TypeError(
            f"Data site {name!r} is a distribution of NumPyro ({type(unmasked(fn)).__name__}) that is given GP site(s) "
            f"{', '.join(sites)}, whose value is marginals in training. Give them to a likelihood, which takes the "
            "expectation over f: likelihoods.Gaussian(f, noise_variance), or likelihoods.Expected(fn, f) with "
            "fn(f) -> distribution. Or give the distribution a random draw: draws(f), from gpzoo import draws."
        )
    shape, wanted = tuple(np.shape(value)), tuple(fn.shape())
    try:
        fits = np.broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        fits = False
    if not fits:
        hint = f": drop its last axis, {name}[:, 0]" if shape == (*wanted, 1) else ""
        raise ValueError(f"The data of site {name!r} have shape {shape}, but the site has shape {wanted}{hint}.")
    ones, batch = (1,) * (len(wanted) - len(shape)) + shape, len(fn.batch_shape)
    repeated = [i - batch for i in range(batch) if ones[i] < wanted[i] and i - batch not in plates]
    checks.refuse(
        repeated,
        f"The data of site {name!r} have shape {shape}, but the site has shape {wanted}, so that each of them would "
        f"count {wanted[repeated[0]] if repeated else ''} times: this axis belongs to no plate. If a parameter has "
        "shape [N, 1], such as draws(f) of one output, drop its last axis, [:, 0]. A repetition that you want is a "
        "plate.",
    )


def parameters_of(model: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The program's own parameters with these arguments; see :class:`Sites`."""
    found: dict[str, Any] = {}

    def once() -> None:
        runs = run_with(unit_value, model, args, kwargs)
        found.update(_parameters(runs))

    jax.eval_shape(once)
    return found


def _parameters(runs: Runs) -> dict[str, Any]:
    own = {name: site["value"] for name, site in runs.model.items() if site["type"] in ("param", "mutable")}
    return {name: shapes_of(value) if name in runs.loose else None for name, value in own.items()}
