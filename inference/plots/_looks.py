"""What does a picture need of a trained model? Its GP sites, its data, and draws through the whole program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Unit

from gpzoo import _checks as checks
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.asking.predict import identity_of
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.guides.reparam import as_they_stand
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.gp_sites import BatchRows, Marginals, Representation, draw_per_input
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.runs import Runs, Trace, run, unmasked
from gpzoo.inference.training._sources import split_arrays
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess


class Observed(NamedTuple):
    """A data site.

    Attributes:
        name: of the site.
        values: its data, ``[N, ...]``; ``None`` where they are not given, or computed by the program.
        binary: whether its values are 0 and 1.
    """

    name: str
    values: np.ndarray | None
    binary: bool


class Seen(NamedTuple):
    """A trained model at some arguments.

    Attributes:
        inputs: the positional arguments of predictions: those up to the first that has a default.
        names: of the inputs, as the program's author wrote them.
        processes: names of the latent GP sites, in the order of the program.
        inner: those of them on which other GP sites depend.
        data: the data sites, in the order of the program.
    """

    inputs: tuple
    names: tuple[str, ...]
    processes: tuple[str, ...]
    inner: frozenset[str]
    data: tuple[Observed, ...]

    def site(self, name: str | None) -> str:
        """A GP site: the named one, or the only one that is no inner layer.

        Raises:
            ValueError: if there is no such site, or the name is needed.
        """
        outer = [site for site in self.processes if site not in self.inner]
        if name is None and len(outer) == 1:
            return outer[0]
        if name not in self.processes:
            said = "the program has several" if name is None else f"got {name!r}"
            raise ValueError(f"site must name a latent GP site of the program, one of {list(self.processes)}; {said}.")
        return name

    @property
    def observed(self) -> Observed:
        """The first data site.

        Raises:
            ValueError: if there is none.
        """
        if not self.data:
            raise ValueError("The program has no data site.")
        return self.data[0]

    def inputs_of(self, columns: int, picture: str) -> np.ndarray:
        """The only input, ``[N, columns]``.

        Raises:
            ValueError: if there are other inputs, or other columns.
        """
        X = np.asarray(self.inputs[0]) if len(self.inputs) == 1 and hasattr(self.inputs[0], "shape") else None
        if X is None or X.ndim != 2 or X.shape[1] != columns:
            found = [f"{name} {list(np.shape(x))}" for name, x in zip(self.names, self.inputs, strict=True)]
            raise ValueError(f"{picture} needs a program with one input, [N, {columns}]; its inputs are {found}.")
        return X


def seen(trained: Trained, args: tuple, model_kwargs: Mapping[str, Any] | None) -> Seen:
    """What is at these arguments; the program is traced, and nothing is computed.

    Raises:
        TypeError: for anything but a trained model.
        ValueError: for a program without latent GP sites.
    """
    if not isinstance(trained, Trained):
        raise TypeError(
            f"trained must be what fit returns, after the random key where the picture takes one; got {type(trained)}."
        )
    guide = trained._usable_guide()
    args, kwargs = arguments(guide.model, args, model_kwargs, new=True)
    sites = guide.sites_for(args, kwargs)
    processes: list[str] = []
    data: list[Observed] = []

    def once(params: dict[str, Any]) -> None:
        found = run(
            random.key(0),
            args,
            kwargs,
            guide=guide,
            model=guide.model,
            values=params,
            representation=Marginals(),
        )
        processes.extend(name for name in found.guide if name in sites.processes)
        data.extend(
            _observed(name, found.model[name]) for name in data_sites(found.model, sites.latents | sites.enumerated)
        )

    # As an argument: a network would write the state of this run into the model's own.
    jax.eval_shape(once, dict(trained.params))
    if not processes:
        raise ValueError("The program has no latent GP site to draw.")
    names, optional = checks.positional(guide.model, len(args))
    count = next((i for i, name in enumerate(names) if name in optional), len(names))
    return Seen(args[:count], tuple(names[:count]), tuple(processes), sites.inner & sites.processes, tuple(data))


def seen_by_mcmc(
    model: Callable, args: tuple, kwargs: dict[str, Any], values: Mapping[str, Any]
) -> tuple[Seen, tuple, dict[str, Any]]:
    """What is at the arguments of a program without a guide, and the checked arguments; nothing is computed.

    Args:
        model: the program, whitened or not.
        args: its positional arguments, data included.
        kwargs: its keyword arguments.
        values: of parameters and latent sites.
    """
    args, kwargs = arguments(model, args, kwargs)
    with as_they_stand():
        trace = look(model, args, kwargs, values, arrays=True).trace
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    latent = [name for name, site in sites.items() if not site["is_observed"]]
    processes = tuple(name for name in latent if isinstance(unmasked(sites[name]["fn"]), GaussianProcess))
    given = [name for name, site in sites.items() if site["is_observed"] and not site["infer"].get("is_auxiliary")]
    names, optional = checks.positional(model, len(args))
    count = next((i for i, name in enumerate(names) if name in optional), len(names))
    data = tuple(_observed(name, sites[name]) for name in given)
    return Seen(args[:count], tuple(names[:count]), processes, frozenset(), data), args, kwargs


def data_sites(trace: Trace, latents: frozenset[str]) -> list[str]:
    """Names of the sites of a program whose values are, or would be, data."""
    return [
        name
        for name, site in trace.items()
        if site["type"] == "sample"
        and name not in latents
        and not site["infer"].get("is_auxiliary")
        and not isinstance(unmasked(site["fn"]), Unit | GaussianProcess)
    ]


def _observed(name: str, site: dict[str, Any]) -> Observed:
    known = site["is_observed"] and checks.is_concrete(site["value"])
    fn: Any = unmasked(site["fn"])
    while isinstance(support := getattr(fn, "support", None), constraints.independent):
        fn = _Supported(support.base_constraint)
    return Observed(name, np.asarray(site["value"]) if known else None, support is constraints.boolean)


class _Supported(NamedTuple):
    support: Any


def posterior_at(
    key: Array, trained: Trained, args: tuple, model_kwargs: Mapping[str, Any] | None, site: str | None
) -> InducingPosterior:
    """The posterior of one GP site, see :meth:`Seen.site`."""
    name = seen(trained, args, model_kwargs).site(site)
    return trained.posterior(key, *args, model_kwargs=model_kwargs)[name]


def points_among(posterior: Any, X: np.ndarray) -> np.ndarray | None:
    """The inducing inputs ``[M, d]`` of a site that has the program's inputs, else ``None``."""
    own = np.asarray(posterior.prior.X)
    if own.shape != X.shape or not np.array_equal(own, X):
        return None
    return _points(posterior.inducing)


def _points(inducing: InducingVariable) -> np.ndarray | None:
    """Inducing inputs ``[M, d]``, or ``None`` where they are no points in the space of vectors."""
    points = inducing.points()
    return np.asarray(points) if points is not None and points.ndim == 2 else None


# -- draws along a line ------------------------------------------------------------------------------------------------

#: Inputs along a line; joint draws factorise a covariance of as many rows.
ALONG = 200

#: Joint draws behind a band that has no formula.
BAND_DRAWS = 400


def beyond(x: np.ndarray, share: float) -> np.ndarray:
    """Evenly spaced numbers from a little below to a little above the data."""
    low, high = float(np.min(x)), float(np.max(x))
    margin = share * (high - low) / 2 or 1.0
    return np.linspace(low - margin, high + margin, ALONG)


def columns(values: np.ndarray, leading: int = 0) -> np.ndarray:
    """``[..., N]`` or ``[..., N, D]`` with an axis of outputs, after ``leading`` axes."""
    return values if values.ndim > leading + 1 else values[..., None]


class Draws(NamedTuple):
    """Draws through the whole program, joint over the inputs.

    Attributes:
        functions: of each GP site, ``[S, N]`` or ``[S, N, D]``.
        expected: of each data site the mean given the functions, ``[S, N, ...]``, or the probabilities of its classes,
            ``[S, N, K]``; a site without a mean is left out.
    """

    # JAX arrays while they are computed.
    functions: dict[str, Any]
    expected: dict[str, Any]


def joint_draws(
    key: Array, trained: Trained, inputs: tuple, model_kwargs: Mapping[str, Any] | None, num_draws: int
) -> Draws:
    """Draws of functions with any kernel, at up to a few hundred inputs: their covariances are formed."""
    sites = trained.guide.sites
    latents, processes = sites.latents | sites.enumerated, sites.processes

    def what(found: Runs) -> Draws:
        of_guide = {name: found.guide[name] for name in processes}
        expected = {name: _mean(unmasked(found.model[name]["fn"])) for name in data_sites(found.model, latents)}
        return Draws(
            {name: jnp.asarray(site["value"]) for name, site in of_guide.items()},
            {name: mean for name, mean in expected.items() if mean is not None},
        )

    model = trained.guide.model
    return many(key, trained, inputs, model_kwargs, num_draws, what, Representation, model=model, name="joint draws")


def draws_at_each(
    key: Array, trained: Trained, inputs: tuple, model_kwargs: Mapping[str, Any] | None, num_draws: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Draws of each GP site with the right law at each input alone, and prior means given the layers below.

    The noise of a draw is the same at all inputs, so that quantiles over draws are smooth along a line. No covariance
    between inputs is formed, which for a deep GP takes most of the time of :func:`joint_draws`.

    Returns:
        By site a pair of ``[S, N]`` or ``[S, N, D]``.
    """
    processes = trained.guide.sites.processes

    def what(found: Runs) -> dict[str, tuple[Array, Array]]:
        values = {}
        for name in processes:
            posterior, value = unmasked(found.guide[name]["fn"]), found.guide[name]["value"]
            if isinstance(value, GaussianMarginals) and value.key is not None:
                value = draw_per_input(posterior, value.key, jnp.zeros(posterior.event_shape[0], int))
            values[name] = value, posterior.prior.mean
        return values

    shown = partial(Marginals, rows=_OneRow(jnp.zeros(1, int), 1, {}))
    return many(key, trained, inputs, model_kwargs, num_draws, what, shown, name="draws at each input")


class _OneRow(BatchRows):
    """All inputs have the number of one row."""

    def of(self, site: str, size: int) -> Array:
        """See :meth:`gpzoo.inference.programs.gp_sites.BatchRows.of`."""
        return jnp.zeros(size, int)


def many(
    key: Array,
    trained: Trained,
    args: tuple,
    model_kwargs: Mapping[str, Any] | None,
    num_draws: int,
    what: Callable[[Runs], Any],
    shown: Callable[..., Representation],
    model: Callable | None = None,
    name: str | None = None,
) -> Any:
    """``what`` of each of several runs of the guide, and of the program after it, as NumPy arrays ``[S, ...]``.

    Args:
        key: of the runs.
        trained: the model.
        args: the program's positional arguments.
        model_kwargs: its keyword arguments.
        num_draws: number of runs ``S``.
        what: takes the traces of a run and returns a pytree of arrays.
        shown: makes what the values of GP sites are, of the key ``views``.
        model: the program, if it runs too.
        name: under which the compiled program is kept for other calls, if ``what`` is the same in all of them.
    """
    guide = trained.guide
    args, kwargs = arguments(guide.model, args, model_kwargs, new=True)
    params = guide.checked_params(trained.params, args, kwargs)
    arrays, static = split_arrays(kwargs)

    @jax.jit
    def each(keys: Array, views: Array, args: tuple, arrays: dict, params: dict) -> Any:
        values = shown(views=views)

        def one(key: Array) -> Any:
            return what(run(key, args, arrays | static, guide=guide, model=model, values=params, representation=values))

        return jax.lax.map(one, keys)

    program = each if name is None else trained._compiled.setdefault((name, identity_of(static)), each)
    keys = random.split(named_key(key, "draws"), num_draws)
    return jax.tree.map(np.asarray, program(keys, named_key(key, "views"), args, arrays, params))


def _mean(fn: Any) -> Array | None:
    """Of ``y`` given ``f``; of class labels their probabilities; ``None`` for a distribution without either."""
    for name in ("probs", "mean"):
        try:
            return getattr(fn, name)
        except (AttributeError, NotImplementedError):
            continue
    return None
