"""Sums over discrete latent variables: factors replace these variables and the data that depend on them.

NumPyro's handlers enumerate a site with ``infer={"enumerate": "parallel"}``: the program runs once with all values of
the site along an axis left of all plates. Funsor then sums over the values. The factor of data ``y`` is
``log sum_z p(z) p(y | z, f)``, with an entry for each element of the plates that hold both ``z`` and ``y``. The average
of this factor over draws of ``f`` is the data term of the bound with ``q(f) p(z | y, f)``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random
from jax.core import Tracer
from jaxtyping import Float, PRNGKeyArray
from numpyro.distributions import ExpandedDistribution, MaskedDistribution, Unit

from gpzoo._numpyro import PREVIOUS, TIME, Handler, enumerated_axes, in_chain, markov_factors
from gpzoo.inference.programs.gp_sites import BatchRows
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import Trace, relaxed_promotion, unmasked
from gpzoo.inference.programs.sites import Sites
from gpzoo.processes.process import GaussianProcess


def is_enumerated(site: Mapping[str, Any]) -> bool:
    """Whether a site is to be summed out."""
    return site["type"] == "sample" and not site["is_observed"] and (site["infer"] or {}).get("enumerate") == "parallel"


def scored(model: Callable, sites: Sites | None) -> Callable:
    """The program; if it has discrete latent sites, they are summed out, see :func:`summed_out`."""
    return summed_out(model, sites.plate_depth) if sites is not None and sites.enumerated else model


def check_mark(site: Mapping[str, Any], where: str) -> None:
    """Refuse an unobserved discrete site without ``infer={"enumerate": "parallel"}``, or with an axis outside plates.

    Raises:
        ValueError: naming the site; ``where`` is the place in which data can be passed, for the message.
    """
    if is_enumerated(site):
        if not in_chain(site):
            _refuse_bare(site["name"], site["fn"].batch_shape, site["cond_indep_stack"])
        return
    name, fn, mark = site["name"], type(unmasked(site["fn"])).__name__, (site["infer"] or {}).get("enumerate")
    if mark is not None:
        raise ValueError(
            f"Site {name!r} ({fn}) has infer={{'enumerate': {mark!r}}}: discrete latent variables are summed out over "
            "all their values at once, infer={'enumerate': 'parallel'}."
        )
    raise ValueError(
        f"Site {name!r} ({fn}) is a discrete latent variable, which InducingGuide does not support by itself: a bound "
        "has no gradient for it. Have it summed out, numpyro.sample(..., infer={'enumerate': 'parallel'}), or use "
        f"numpyro.infer.DiscreteHMCGibbs(NUTS(model)). If it is data, give it obs=y, and pass them in {where}."
    )


def plate_depth(trace: Trace) -> int:
    """The number of axes that plates take, to the right of the axes of enumerated values."""
    depth = 0
    for site in trace.values():
        for frame in site.get("cond_indep_stack") or ():
            depth = max(depth, -frame.dim)
    return depth


def summed_out(model: Callable, depth: int) -> Callable:
    """The program with a factor, named after the data, in place of enumerated sites and the data that depend on them.

    Args:
        model: the program.
        depth: see :func:`plate_depth`.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        from numpyro.contrib.funsor import enum, plate_to_enum_plate

        with _Held(depth) as held, plate_to_enum_plate(), enum(first_available_dim=-depth - 1):
            try:
                value = model(*args, **kwargs)
            except _Refused:
                raise
            except (TypeError, ValueError, IndexError) as error:
                error.add_note(
                    "The program ran with all values of its enumerated sites at once. Their axis is left of its "
                    f"{depth} "
                    "plate(s): [K, 1] in one. Index rows explicitly, draws(f)[jnp.arange(len(X)), z], and give values "
                    "that depend on these sites to distributions of NumPyro: those of gpzoo take one row per datum."
                )
                raise
        for group in _connected(held.sites):
            data = sorted({_plain(site.name) for site in group if not site.summed})
            if data:  # the probabilities of a variable on which nothing depends sum to one
                _sample("+".join(data), group)
        return value

    return run


class _Refused(ValueError):
    """A refusal whose message is complete."""


class _Site(NamedTuple):
    """A site that is held back.

    Attributes:
        name: name of the site.
        fn: its distribution.
        value: its value; all its values if it is enumerated.
        summed: whether it is enumerated.
        names: names of the axes, from the right: of plates, enumerated sites, and steps of a chain.
        frames: the plates around it.
        scale: scale of its log density.
    """

    name: str
    fn: Any
    value: Any
    summed: bool
    names: dict[int, str]
    frames: tuple[Any, ...]
    scale: Any

    @property
    def plates(self) -> dict[str, int]:
        return {frame.name: frame.dim for frame in self.frames}

    @property
    def others(self) -> set[str]:
        """The names of axes that are not plates."""
        return set(self.names.values()) - set(self.plates)


class _Held(Handler):
    """Holds back enumerated sites, and the data that depend on them, from the handlers outside."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.sites: list[_Site] = []

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample":
            return
        name, fn, value = msg["name"], msg["fn"], msg["value"]
        if isinstance(fn, GaussianProcess):
            return
        summed, chained = is_enumerated(msg), in_chain(msg) or name.startswith(PREVIOUS)
        if summed:
            self._check_enumerated(msg)
        shape = fn.batch_shape
        if value is not None:
            shape = np.broadcast_shapes(shape, jnp.shape(value)[: jnp.ndim(value) - fn.event_dim])
        if not summed and not chained and all(size == 1 for size in shape[: max(len(shape) - self.depth, 0)]):
            return
        if not summed and not msg["is_observed"]:
            raise _Refused(
                f"Latent site {name!r} depends on a discrete latent variable that is summed out, or is in its chain. "
                "Only data may: sample it before, one for each value of the variable."
            )
        frames = tuple(msg["cond_indep_stack"])
        names = enumerated_axes(shape) | {frame.dim: frame.name for frame in frames}
        names = {dim: axis for dim, axis in names.items() if len(shape) >= -dim and shape[dim] > 1}
        _refuse_bare(name, shape[max(len(shape) - self.depth, 0) :], frames)
        self.sites.append(_Site(name, fn, value, summed, names, frames, msg["scale"]))
        msg["stop"] = True

    def _check_enumerated(self, msg: dict[str, Any]) -> None:
        name, fn = msg["name"], msg["fn"]
        if not msg.get("done"):
            raise _Refused(
                f"Site {name!r} ({type(unmasked(fn)).__name__}) is not enumerated here: its support has no known, "
                "finite number of values, or it is in a scan with history=0."
            )
        with jax.ensure_compile_time_eval():
            support = fn.enumerate_support(expand=False)
        # NumPyro numbers the values from zero.
        if not isinstance(support, Tracer) and not np.array_equal(np.ravel(support), np.arange(np.size(support))):
            raise _Refused(
                f"The values of site {name!r} are {np.ravel(support).tolist()}, but only those from 0 on can be summed "
                "out: sample a Categorical and look its value up in an array of these."
            )


class DrawnByRow(Handler):
    """Draws discrete latent sites from their prior, each row by its own key, so that draws do not depend on batches.

    Args:
        names: names of the sites.
        rows: the rows of the data in the run.
        key: key of the draws.
    """

    def __init__(self, names: frozenset[str], rows: BatchRows, key: PRNGKeyArray) -> None:
        super().__init__()
        self.names, self.rows, self.key = names, rows, key

    def process_message(self, msg: dict[str, Any]) -> None:
        """Give a site its value, inside its plates.

        Raises:
            ValueError: if the site does not have a value for each row.
        """
        if msg["type"] != "sample" or msg["name"] not in self.names or msg["value"] is not None:
            return  # a chain was drawn where it ran
        name, fn = msg["name"], unmasked(msg["fn"])
        if name not in self.rows.layouts:
            raise ValueError(
                f"Discrete site {name!r} has one value for all rows, and training does not keep its posterior, so it "
                "cannot be predicted. Put it into the plate of the data, or make it continuous."
            )
        axis, rows = -len(fn.batch_shape), self.rows.of(name, fn.batch_shape[0])
        support = fn.enumerate_support(expand=False)
        with relaxed_promotion():
            logits = jnp.moveaxis(fn.log_prob(support), axis, -1)
        key = named_key(self.key, name)
        draw = jax.vmap(
            lambda row: random.gumbel(random.fold_in(key, row), logits.shape[:-1], logits.dtype), out_axes=-1
        )
        msg["value"] = jnp.ravel(support)[jnp.moveaxis(jnp.argmax(logits + draw(rows), axis=0), -1, axis)]


def _refuse_bare(name: str, shape: tuple[int, ...], frames: Iterable[Any]) -> None:
    """Refuse a site with an axis that is not a plate."""
    known = {frame.dim for frame in frames}
    if any(size > 1 and i - len(shape) not in known for i, size in enumerate(shape)):
        raise _Refused(
            f"Site {name!r} has shape {tuple(shape)} with an axis that belongs to no plate: put discrete latent "
            "variables and their data into numpyro.plate('data', num_data, subsample_size=len(X))."
        )


class _At(Handler):
    """Puts a site into plates that are not entered again."""

    def __init__(self, frames: Iterable[Any], scale: Any) -> None:
        super().__init__()
        self.frames, self.scale = list(frames), scale

    def process_message(self, msg: dict[str, Any]) -> None:
        msg["cond_indep_stack"], msg["scale"] = self.frames, self.scale


def _plain(name: str) -> str:
    return name.replace(PREVIOUS, "")


def _connected(sites: Iterable[_Site]) -> list[list[_Site]]:
    """Sites in groups that have no enumerated site in common."""
    groups: list[tuple[set[str], list[_Site]]] = []
    for site in sites:
        names = {_plain(site.name)} | {_plain(name) for name in site.others if not name.startswith(TIME)}
        apart = [group for group in groups if not group[0] & names]
        joined = [group for group in groups if group[0] & names]
        together = [other for _, others in joined for other in others]
        groups = [*apart, (names.union(*(known for known, _ in joined)), [*together, site])]
    return [group for _, group in groups]


def _sample(name: str, group: list[_Site]) -> None:
    """Sample the factor of a group of sites, in the plates around all of them."""
    scales = [1.0 if site.scale is None else site.scale for site in group]
    over = sorted({_plain(site.name) for site in group if site.summed})
    if not all(_scaled_alike(scale, scales[0]) for scale in scales):
        raise ValueError(
            f"Discrete site(s) {over} and the data {name!r} that depend on them have different scales: a variable that "
            "several rows share cannot be summed out over a part of the rows. Train without batch_size, on all rows; "
            "apply handlers.scale to all of these sites or to none."
        )
    around = set.intersection(*(set(site.plates) for site in group))
    frames = [frame for frame in group[0].frames if frame.name in around]
    with relaxed_promotion():
        factor = _factor(group, {frame.name: frame.dim for frame in frames})
        factor = jnp.broadcast_to(factor, _shape(frames))
    with _At(frames, group[0].scale):
        fn = Unit(factor)
        numpyro.sample(name, fn, obs=fn.sample(None), infer={"is_auxiliary": True, "summed_out": over})


def _scaled_alike(a: Any, b: Any) -> bool:
    """Whether two scales are equal; an annealed scale differs from every known scale."""
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return isinstance(a, Tracer) and isinstance(b, Tracer)  # annealed: values cannot be looked at here
    return bool(a == b)


def _shape(frames: Iterable[Any]) -> tuple[int, ...]:
    sizes = {frame.dim: frame.size for frame in frames}
    return tuple(sizes.get(dim, 1) for dim in range(min(sizes, default=0), 0))


def _factor(group: list[_Site], around: dict[str, int]) -> Float[Array, "*batch"]:
    """``log sum_z p(z) p(y | z)`` by variable elimination (Obermeyer et al. 2019, *Tensor variable elimination*).

    Chains are eliminated in parallel (Särkkä and García-Fernández 2021, *Temporal parallelization of Bayesian
    smoothers*).
    """
    import funsor
    import funsor.optimizer

    summed = {site.name for site in group if site.summed}
    plates = set().union(*(site.plates for site in group))
    # A chain's steps depend on the step before; without that, they are a plate.
    previous = {axis for site in group for axis in site.others if axis.startswith(PREVIOUS)}
    plates |= set() if previous else {axis for site in group for axis in site.others if axis.startswith(TIME)}
    factors, steps = [], {}
    for site in group:
        factor = funsor.to_funsor(_log_prob(site), output=funsor.Real, dim_to_name=OrderedDict(site.names))
        time = next((axis for axis in site.others - plates if axis.startswith(TIME)), None)
        steps.setdefault(time, []).append(factor) if time else factors.append(factor)
    logsumexp, add = funsor.ops.logaddexp, funsor.ops.add
    for time, links in steps.items():
        own = {axis for site in group if time in site.others for axis in site.others if axis.startswith(PREVIOUS)}
        states = {_plain(axis) for axis in own}
        current = [site for site in group if site.name in states and own & site.others]
        kept = frozenset().union(*(site.names.values() for site in current))
        variable = funsor.Variable(time, links[0].inputs[time])
        factors += markov_factors(variable, links, frozenset(own), kept, frozenset(summed), frozenset(plates))
    known = frozenset().union(*(factor.inputs for factor in factors))
    with funsor.interpretations.lazy:
        away = frozenset(known & (summed | plates) - set(around))
        total = funsor.sum_product.sum_product(logsumexp, add, factors, eliminate=away, plates=known & plates)
    total: Any = funsor.optimizer.apply_optimizer(total)
    return jnp.asarray(funsor.to_data(total, name_to_dim={name: around[name] for name in total.inputs}))


def _log_prob(site: _Site) -> Array:
    """A site's log density. A site that is summed out loses its masks, so that its probabilities sum to one."""
    fn = site.fn
    if site.summed:
        while isinstance(fn, MaskedDistribution | ExpandedDistribution):
            fn = fn.base_dist
        fn = fn.expand(site.fn.batch_shape)
    return jnp.asarray(fn.log_prob(site.value))
