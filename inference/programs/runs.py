"""Runs of a guide and a program outside training, traced, with given values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.core import eval_jaxpr
from jaxtyping import Bool, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions import MaskedDistribution
from numpyro.distributions.distribution import Unit
from numpyro.infer import init_to_feasible
from numpyro.primitives import default_process_message

from gpzoo import _checks as checks
from gpzoo import _platform
from gpzoo._numpyro import Handler, mask_of
from gpzoo._pytree import KnowsRanks
from gpzoo.inference.programs.gp_sites import SiteMode, in_mode
from gpzoo.inference.programs.rows import number_of_rows
from gpzoo.likelihoods import Likelihood
from gpzoo.likelihoods.negative import refuse_negative
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess

#: The sites of a run by name, as :class:`numpyro.handlers.trace` records them.
Trace = dict[str, dict[str, Any]]


class Runs(NamedTuple):
    """The traces of a run.

    Attributes:
        guide: the guide's trace; empty without a guide.
        model: the program's trace; empty without a program.
        loose: names of ``numpyro.param`` sites without a given value, which took their initial value.
    """

    guide: Trace
    model: Trace
    loose: frozenset[str]


def run(
    key: PRNGKeyArray,
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    guide: Callable | None = None,
    model: Callable | None = None,
    values: Mapping[str, Any] | Callable[[dict[str, Any]], Any],
    mode: SiteMode | None = None,
    complete: bool = True,
) -> Runs:
    """Run a guide, a program, or a guide and then the program with the guide's values, hidden from outer handlers.

    Networks write their new mutable state into the dictionary that they get. So ``run`` copies the containers of all
    values, and records mutable state as it is before a network changes it.

    Args:
        key: random key, split between guide and program as in NumPyro's objectives.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        guide: an :class:`~gpzoo.inference.InducingGuide`, or any NumPyro guide.
        model: the program.
        values: values of parameters, mutable state and latent sites by name. Unknown names are ignored. Or a function
            from a site's message to its value or ``None``.
        mode: the values of the guide's GP sites; joint draws if ``None``.
        complete: whether every parameter must have a value.

    Raises:
        ValueError: naming parameters without a value, or a latent site whose value has a wrong shape.
    """
    model_key, guide_key = (key, key) if guide is None or model is None else random.split(key)
    given = values if callable(values) else partial(given_value, jax.tree.map(lambda x: x, dict(values)))
    guide_trace: OrderedDict[str, dict[str, Any]] = OrderedDict()
    model_trace: Trace = {}

    def trace(program: Callable, key: PRNGKeyArray) -> OrderedDict[str, dict[str, Any]]:
        seeded: Any = handlers.seed(program, key)
        with _Trace(feasible=not complete) as found, translate_errors(found, args):
            handlers.substitute(seeded, substitute_fn=given)(*args, **kwargs)
        return found

    with handlers.block(), SeenNames() as seen, in_mode(mode or SiteMode()):
        if guide is not None:
            guide_trace = trace(guide, guide_key)
        if model is not None:
            model_trace = trace(handlers.replay(model, guide_trace), model_key)
    if complete:
        known = set() if callable(values) else set(values)
        checks.names("params", known, needed=seen.loose("param", "mutable"), known=known)
    return Runs(guide_trace, model_trace, loose=frozenset(seen.loose("param")))


@contextmanager
def translate_errors(sites: Trace, args: tuple) -> Iterator[None]:
    """Raise typical errors of JAX and NumPyro in a program again, with a message that says what to do instead.

    Args:
        sites: the sites so far, plates among them.
        args: positional arguments of the program.
    """
    try:
        yield
    except ValueError as error:
        # JAX's primitives refuse marginals before they ask these for an array, and their message is about the protocol.
        if "Triggering __jax_array__()" in str(error):
            raise TypeError(
                "The program gives marginals of a GP site to a function of jax.lax, or takes them as an index. To "
                "compute with a random draw write draws(f), from gpzoo import draws."
            ) from error
        rows = number_of_rows(args)
        plates = {name: len(site["value"]) for name, site in sites.items() if site["type"] == "plate"}
        for name, size in plates.items():
            if "Incompatible shapes" in str(error) and f"({size},)" in str(error) and 0 < rows != size:
                raise ValueError(
                    f"Plate {name!r} has the size {size}, and the arguments have {rows} rows. A plate over rows must "
                    "follow their number, which differs for minibatches and new inputs: write "
                    f"numpyro.plate({name!r}, num_data or len(X), subsample_size=len(X)), and give the program an "
                    "argument num_data=None, which fit fills in."
                ) from error
        raise


def compiled_once(function: Callable[[], Any]) -> Any:
    """``function()`` as one compiled program, whose arguments are the arrays that the function closes over.

    Otherwise each operation would be compiled separately. Every call compiles anew, so use it for functions that are
    called once.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)()
    leaves = jax.jit(partial(eval_jaxpr, traced.jaxpr))(traced.consts)
    _platform.release_freed()
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def relaxed_promotion() -> AbstractContextManager:
    """The context in which data sites are drawn: NumPyro's Bernoulli mixes types, which strict promotion refuses."""
    return jax.numpy_dtype_promotion("standard")


class _Trace(handlers.trace):
    """A trace; with ``feasible``, latent sites without draws, such as NumPyro's improper priors, get some value."""

    def __init__(self, *, feasible: bool) -> None:
        super().__init__()
        self.feasible = feasible

    def process_message(self, msg: dict[str, Any]) -> None:
        refuse_mapped(msg)
        if msg["type"] == "sample" and not isinstance(msg["fn"], GaussianProcess | InducingPosterior):
            msg["fn"] = refuse_negative(msg["fn"])
            with relaxed_promotion():
                self._draw(msg)

        if msg["type"] == "plate":
            sizes = [self.trace.get(msg["name"], msg)["args"][0], msg["args"][0]]
            checks.refuse(
                len(set(sizes)) > 1,
                f"The plates named {msg['name']!r} have the sizes {sizes[0]} and {sizes[1]}: a plate of another size "
                "needs another name, in the guide too.",
            )

    def _draw(self, msg: dict[str, Any]) -> None:
        try:
            default_process_message(msg)
        except NotImplementedError as error:
            value = init_to_feasible(msg) if self.feasible else None
            if value is None:
                raise NotImplementedError(f"Site {msg['name']!r} cannot be drawn. {error}".strip()) from error
            msg["value"] = value

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        super().postprocess_message(msg)
        if msg["type"] == "mutable":
            self.trace[msg["name"]]["value"] = jax.tree.map(lambda x: x, msg["value"])


def given_value(values: Mapping[str, Any], site: dict[str, Any]) -> Any:
    """The given value of a site, or ``None`` for data and for deterministic sites, which MCMC records too."""
    sampled = site["type"] == "sample"
    if site["type"] == "deterministic" or (sampled and site["value"] is not None):
        return None
    value = values.get(site["name"])
    if value is not None and sampled:
        check_value(site["name"], value, shape_of(site))
    return value


def shape_of(site: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of the value of a sample site."""
    return tuple(unmasked(site["fn"]).shape(tuple(site["kwargs"].get("sample_shape") or ())))


def values_of(trace: Trace) -> dict[str, Any]:
    """The values of sites, by name."""
    return {name: site["value"] for name, site in trace.items()}


def sampled(trace: Trace) -> Trace:
    """The sample sites of a run."""
    return of_types(trace, "sample")


def of_types(trace: Trace, *types: str) -> Trace:
    """The sites of a run of these types, such as ``"param"``."""
    found: Trace = {}
    for name, site in trace.items():
        if site["type"] in types:
            found[name] = site
    return found


def data_of(trace: Trace) -> Trace:
    """The observed sites of a run."""
    found: Trace = {}
    for name, site in trace.items():
        if site["type"] == "sample" and site["is_observed"]:
            found[name] = site
    return found


def terms_per_datum(trace: Trace, latents: Collection[str] | None = None) -> Trace:
    """The sites with their own data, without factors and GPs, whose densities do not have one term for each row.

    Args:
        trace: trace of a program.
        latents: names of its latent sites; all other sites then count, with or without data.
    """
    found: Trace = {}
    for name, site in sampled(trace).items():
        counts = site["is_observed"] if latents is None else name not in latents
        factor = site["infer"].get("is_auxiliary") or isinstance(unmasked(site["fn"]), Unit | GaussianProcess)
        if counts and not factor:
            found[name] = site
    return found


def parts_of_plates(trace: Trace) -> dict[str, tuple[int, int]]:
    """The sizes of subsampled plates, for all rows and for the rows of the run, by name."""
    found = {}
    for name, site in of_types(trace, "plate").items():
        size, taken = site["args"]
        if taken not in (None, size):
            found[name] = size, taken
    return found


def plates_of(site: Mapping[str, Any]) -> set[str]:
    """Names of the plates around a site."""
    return {frame.name for frame in site.get("cond_indep_stack") or ()}


class SeenNames(Handler):
    """An outermost handler that records the names of a run's parameters, and which of them have no given value.

    Parameters without a given value would silently keep their initial values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._loose: dict[str, str] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """Record a site's name, after all inner handlers could give it a value."""
        kind = msg["type"]
        if kind in ("param", "mutable") or (kind == "sample" and not msg["is_observed"]):
            self.names.add(msg["name"])
        if kind in ("param", "mutable") and msg["value"] is None:
            self._loose[msg["name"]] = kind

    def loose(self, *kinds: str) -> set[str]:
        """Names of the sites of these kinds (``"param"``, ``"mutable"``) without a value."""
        found = set()
        for name, kind in self._loose.items():
            if kind in kinds:
                found.add(name)
        return found


def shapes_of(tree: Any) -> Any:
    """The shapes of a pytree's arrays, by their paths."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        found[jax.tree_util.keystr(path)] = tuple(np.shape(leaf))
    return found


def check_value(name: str, value: Any, wanted: tuple[int, ...]) -> None:
    """Refuse a value that would broadcast.

    Raises:
        ValueError: naming the shapes.
    """
    shape = tuple(np.shape(value))
    if shape == wanted:
        return
    per_row = (
        " A value with one entry per row fits only the rows that it was found for: pass those rows, or leave the value "
        "out."
        if shape[1:] == wanted[1:]
        else ""
    )
    raise ValueError(f"The value given for {name!r} has shape {shape}, but the site has shape {wanted} here.{per_row}")


def observed(fn: Any, value: Any) -> Bool[Array, "..."]:
    """Which data of a site count (neither masked nor missing), in the shape of its log density."""
    found = jnp.ones(jax.eval_shape(fn.log_prob, value).shape, bool)
    while isinstance(fn, MaskedDistribution):
        found, fn = found & mask_of(fn), fn.base_dist
    seen = fn.seen_rows(value) if isinstance(fn, Likelihood) else None
    return found if seen is None else found & seen


def refuse_mapped(site: Mapping[str, Any]) -> None:
    """Refuse a site whose distribution ``jax.vmap`` made; see :class:`gpzoo._pytree.KnowsRanks`."""
    fn = unmasked(site["fn"]) if site["type"] == "sample" else None
    if isinstance(fn, KnowsRanks):
        fn.refuse_mapped(site["name"])


def entries_of(fn: Any, value: Any) -> Any:
    """A site's data, with NaN for single entries of a row that :meth:`Likelihood.mask` leaves out."""
    while isinstance(fn, MaskedDistribution):
        entries: Any = getattr(fn, "entries", None)
        if entries is not None and jnp.issubdtype(jnp.result_type(value), jnp.floating):
            value = jnp.where(entries, value, jnp.nan)
        fn = fn.base_dist
    return value


def unmasked(fn: Any) -> Any:
    """The distribution inside ``handlers.mask``."""
    while isinstance(fn, MaskedDistribution):
        fn = fn.base_dist
    return fn
