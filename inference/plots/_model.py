"""Numbers of a model for pictures: its GP sites, its data, predictions, and draws through the whole program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo.inference.diagnosis.measure import places_of_data
from gpzoo.inference.fitted.map_batches import Batch, BatchFunction, BoundModel
from gpzoo.inference.fitted.predict import predict
from gpzoo.inference.fitted.summaries import SitePrediction
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.guides.reparam import as_they_stand
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.gp_sites import BatchRows, Marginals, SiteMode, draw_per_input
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.runs import Runs, Trace, run, sampled, terms_per_datum, unmasked
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess

#: Number of inputs along a line. Joint draws factorise a covariance with this number of rows.
ALONG = 200

#: Number of joint draws behind a band that has no formula.
BAND_DRAWS = 400


class Draws(NamedTuple):
    """Draws through the whole program, joint over the inputs.

    Attributes:
        functions: values of each GP site, ``[S, N]`` or ``[S, N, D]``.
        expected: for each data site, the mean given the functions, ``[S, N, ...]``, or the probabilities of its ``K``
            classes, ``[S, N, K]``. Sites without a mean are left out.
    """

    # These are JAX arrays while they are computed.
    functions: dict[str, Any]
    expected: dict[str, Any]


class ModelAt(NamedTuple):
    """A model at some arguments.

    Attributes:
        inputs: the positional arguments of predictions: all arguments before the first one with a default.
        names: names of the inputs, as the program's author wrote them.
        processes: names of the latent GP sites, in the order of the program.
        data: the data sites, in the order of the program.
        predict: ``(key, *inputs, quantiles=...)``, see :func:`~gpzoo.inference.predict`.
        inner: the GP sites on which other GP sites depend.
        subject: the model at all arguments; ``None`` for a program without a guide.
        posteriors: a function from a key to the posteriors of the GP sites at the arguments; ``None`` for a program
            without a guide.
        given: all positional arguments, with ``None`` in place of data; empty for a program without a guide.
    """

    inputs: tuple
    names: tuple[str, ...]
    processes: tuple[str, ...]
    data: Trace
    predict: Callable[..., dict[str, SitePrediction]]
    inner: frozenset[str] = frozenset()
    subject: BoundModel | None = None
    posteriors: Callable[[Array], dict[str, Any]] | None = None
    given: tuple = ()

    def site(self, name: str | None) -> str:
        """A GP site: the site of this name, or the only site that is not an inner layer.

        Raises:
            ValueError: if there is no such site, or if a name is needed.
        """
        outer = [site for site in self.processes if site not in self.inner]
        if name is None and len(outer) == 1:
            return outer[0]
        if name not in self.processes:
            raise ValueError(f"site must name a latent GP site of the program, {list(self.processes)}; got {name!r}.")
        return name

    def observed(self, name: str | None) -> Observed:
        """A data site: the site of this name, or the first one.

        Raises:
            ValueError: if there is no data site, or no data site of this name.
        """
        if not self.data:
            raise ValueError("The program has no data site.")
        name = next(iter(self.data)) if name is None else name
        if name not in self.data:
            raise ValueError(f"data must name a data site of the program, one of {list(self.data)}; got {name!r}.")
        site = self.data[name]
        known = site["is_observed"] and checks.is_concrete(site["value"])
        values = np.asarray(site["value"]) if known else None
        return Observed(name, values, as_predictive(unmasked(site["fn"])).kind == "binary")

    def inputs_of(self, columns: int, picture: str) -> np.ndarray:
        """The only input of the program, ``[N, columns]``.

        Raises:
            ValueError: if there are several inputs, or the input does not have this shape.
        """
        X = np.asarray(self.inputs[0]) if len(self.inputs) == 1 and hasattr(self.inputs[0], "shape") else None
        if X is None or X.ndim != 2 or X.shape[1] != columns:
            shapes = dict(zip(self.names, map(np.shape, self.inputs), strict=True))
            raise ValueError(f"{picture} needs a program with one input, [N, {columns}]; its inputs are {shapes}.")
        if any(np.ndim(x) for x in self.given[1:] if hasattr(x, "shape")):
            raise ValueError(
                f"{picture} draws between the rows, where a further argument of the program has no values. Leave this "
                "argument out, or use plots.forecast or plots.groups, which draw at the rows."
            )
        return X

    def points(self, key: Array, site: str | None, X: np.ndarray) -> np.ndarray | None:
        """The inducing inputs ``[M, d]`` of a site; ``None`` if the inputs of the site are not the program's ``X``."""
        if self.posteriors is None or site is None:
            return None
        posterior = self.posteriors(key)[site]
        own, points = np.asarray(posterior.prior.X), posterior.inducing.points()
        fits = points is not None and points.ndim == 2 and own.shape == X.shape and np.array_equal(own, X)
        return np.asarray(points) if fits else None


class Observed(NamedTuple):
    """A data site.

    Attributes:
        name: name of the site.
        values: data of the site, ``[N, ...]``; ``None`` if they are not given, or if the program computes them.
        binary: whether the values are 0 and 1.
    """

    name: str
    values: np.ndarray | None
    binary: bool


def model_at(trained: Trained, args: tuple, model_kwargs: Mapping[str, Any] | None) -> ModelAt:
    """The model at these arguments. The program is traced, and nothing is computed.

    Raises:
        TypeError: for an argument that is not a trained model.
        ValueError: for a program without latent GP sites.
    """
    if not isinstance(trained, Trained):
        raise TypeError(
            f"trained must be what fit returns, after the random key where the picture takes one; got {type(trained)}."
        )
    subject = trained._bind(args, model_kwargs, seen=False)
    sites, trace = subject.guide.sites, {}

    def once(params: dict[str, Any]) -> None:
        of = {"guide": subject.guide, "model": subject.model, "values": params, "mode": Marginals()}
        trace.update(run(random.key(0), subject.args, subject.kwargs, **of).model)

    # As an argument, because otherwise a network would write the state of this run into the state of the model.
    jax.eval_shape(once, subject.params)
    if not sites.processes:
        raise ValueError("The program has no latent GP site to draw.")
    return ModelAt(
        *_inputs(subject.model, subject.args),
        tuple(name for name in trace if name in sites.processes),
        terms_per_datum(trace, sites.latents | sites.enumerated),
        partial(trained.predict, num_draws=BAND_DRAWS, model_kwargs=model_kwargs),
        sites.inner & sites.processes,
        subject,
        lambda key: trained.posterior(key, *args, model_kwargs=model_kwargs),
        _without_data(trace, subject.args),
    )


def model_of_mcmc(
    model: Callable,
    args: tuple,
    model_kwargs: Mapping[str, Any] | None,
    samples: Mapping[str, Any],
    params: Mapping[str, Any],
) -> ModelAt:
    """A program without a guide, at its arguments. Predictions are conditioned on these arguments.

    Args:
        model: the program, whitened or not.
        args: the program's positional arguments, data included.
        model_kwargs: the program's keyword arguments.
        samples: draws of latent sites, by name.
        params: values of parameters, by name.
    """
    args, kwargs = arguments(model, args, model_kwargs)
    first = {name: np.asarray(value)[0] for name, value in checks.named("posterior_samples", samples).items()}
    with as_they_stand():
        trace = look(model, args, kwargs, first | dict(params), arrays=True).trace
    data, latent = {}, []
    for name, site in sampled(trace).items():
        if site["is_observed"] and not site["infer"].get("is_auxiliary"):
            data[name] = site
        elif isinstance(unmasked(site["fn"]), GaussianProcess):
            latent.append(name)
    options = {"posterior_samples": samples, "params": params, "train_args": args, "train_kwargs": kwargs}

    def predicted(key: Array, *inputs: Any, **asked: Any) -> dict[str, SitePrediction]:
        return predict(key, model, *inputs, model_kwargs=kwargs, **options, **asked)

    # In exact regression, the observed site is drawn.
    return ModelAt(*_inputs(model, args), tuple(latent or data)[: len(latent) or 1], data, predicted)


def _inputs(model: Callable, args: tuple) -> tuple[tuple, tuple[str, ...]]:
    """The positional arguments of predictions, and their names."""
    names, optional = checks.positional(model, len(args))
    count = next((i for i, name in enumerate(names) if name in optional), len(names))
    return args[:count], tuple(names[:count])


def _without_data(trace: Trace, args: tuple) -> tuple:
    """The positional arguments, with ``None`` in place of data."""
    places = places_of_data(trace, args).values()
    return tuple(None if i in places else argument for i, argument in enumerate(args))


def posterior_at(
    key: Array, trained: Trained, args: tuple, model_kwargs: Mapping[str, Any] | None, site: str | None
) -> InducingPosterior:
    """The posterior of one GP site, see :meth:`ModelAt.site`."""
    name = model_at(trained, args, model_kwargs).site(site)
    return trained.posterior(key, *args, model_kwargs=model_kwargs)[name]


# -- draws along a line ------------------------------------------------------------------------------------------------


def beyond(x: np.ndarray, share: float, count: int = ALONG) -> np.ndarray:
    """Evenly spaced numbers from slightly below the data to slightly above them."""
    low, high = float(np.min(x)), float(np.max(x))
    margin = share * (high - low) / 2 or 1.0
    return np.linspace(low - margin, high + margin, count)


def floats_like(X: np.ndarray) -> np.dtype:
    """The dtype of inputs between the rows of ``X``, which may be whole numbers."""
    return X.dtype if X.dtype.kind == "f" else np.dtype(jnp.result_type(float))


def columns(values: np.ndarray, leading: int = 0) -> np.ndarray:
    """``[..., N]`` or ``[..., N, D]`` with an axis of outputs. ``leading`` is the number of axes before ``N``."""
    return values if values.ndim > leading + 1 else values[..., None]


def joint_draws(key: Array, subject: BoundModel) -> Draws:
    """Joint draws of functions with any kernel, at up to a few hundred inputs, because their covariance is needed."""
    sites = subject.guide.sites

    def of_run(runs: Runs) -> Draws:
        draws = Draws({}, {})
        for name in sites.processes:
            draws.functions[name] = jnp.asarray(runs.guide[name]["value"])
        for name, site in terms_per_datum(runs.model, sites.latents | sites.enumerated).items():
            if (mean := _mean(unmasked(site["fn"]))) is not None:
                draws.expected[name] = mean
        return draws

    return of_runs("joint draws", key, subject, BAND_DRAWS, of_run, SiteMode, program=True)


def draws_at_each(key: Array, subject: BoundModel, num_draws: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Draws of each GP site with the right distribution at each single input, and prior means given the layers below.

    The noise of a draw is the same at all inputs, so that quantiles over draws are smooth along a line. Covariances
    between inputs are not computed. For a deep GP, they would take most of the time of :func:`joint_draws`.

    Returns:
        For each site, the draws and the prior means, each ``[S, N]`` or ``[S, N, D]``.
    """

    def of_run(runs: Runs) -> dict[str, tuple[Array, Array]]:
        values = {}
        for name in subject.guide.sites.processes:
            posterior, value = unmasked(runs.guide[name]["fn"]), runs.guide[name]["value"]
            if isinstance(value, GaussianMarginals) and value.key is not None:
                value = draw_per_input(posterior, value.key, jnp.zeros(posterior.event_shape[0], int))
            values[name] = value, posterior.prior.mean
        return values

    mode = partial(Marginals, rows=_OneRow(jnp.zeros(1, int), 1, {}))
    return of_runs("draws at each input", key, subject, num_draws, of_run, mode)


class _OneRow(BatchRows):
    """Rows for which all inputs count as the same row."""

    def of(self, site: str, size: int) -> Array:
        """See :meth:`gpzoo.inference.programs.gp_sites.BatchRows.of`."""
        return jnp.zeros(size, int)


def of_runs(
    name: str,
    key: Array,
    subject: BoundModel,
    num_draws: int,
    of_run: Callable[[Runs], Any],
    mode: Callable[..., SiteMode] = Marginals,
    *,
    program: bool = False,
) -> Any:
    """Numbers from each of several runs of the guide, as NumPy arrays ``[S, ...]``.

    Args:
        name: name of the numbers. Calls with the same name use the same compiled program.
        key: key of the runs.
        subject: the model at its arguments.
        num_draws: number of runs ``S``.
        of_run: a function from the traces of a run to a pytree of arrays; the same in all calls with one name.
        mode: a function of the key ``views`` that returns the mode, which determines the values of GP sites.
        program: whether the program runs after the guide.
    """
    guide, model = subject.guide, subject.model if program else None

    def of_draw(key: Array, at: Batch) -> Any:
        of = {"guide": guide, "model": model, "values": at.params, "mode": mode(views=at.views)}
        return of_run(run(key, at.args, at.kwargs, **of))

    compiled = subject.compiled_for(BatchFunction(name, of_draw, once=True))
    keys, views = random.split(named_key(key, "draws"), num_draws), named_key(key, "views")
    return jax.tree.map(np.asarray, compiled(keys, subject.batch(views=views)))


def _mean(fn: Any) -> Array | None:
    """The mean of ``y`` given ``f``, or the probabilities of class labels; ``None`` if neither exists."""
    labels = as_predictive(fn).kind in ("binary", "classes")
    for name in ("probs", "mean") if labels else ("mean",):
        try:
            return getattr(fn, name)
        except (AttributeError, NotImplementedError):
            continue
    return None
