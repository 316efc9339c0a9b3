"""What does a model predict at new inputs? Moments, densities, quantiles, draws: the same in any batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.errors import GPZooError, NonFiniteError
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.asking.ask import At, Question, Subject, ask, count_rows, identity_of
from gpzoo.inference.asking.given import warn_if_lost
from gpzoo.inference.asking.paths import Paths
from gpzoo.inference.asking.quantiles import checked_quantiles
from gpzoo.inference.asking.summaries import ROW_AXES, Asked, SitePrediction, by_field, of_paths
from gpzoo.inference.bounds.marginal import refuse_marginal
from gpzoo.inference.guides.reparam import as_they_stand, inducing_variables
from gpzoo.inference.programs.arguments import arguments, refuse_no_tuple, refuse_unknown, test_arrays
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.finite import LOG_DENSITIES, is_finite
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.labelled import columns_of, rows_of_test_data
from gpzoo.inference.programs.program import find_sites, look, parameters_of
from gpzoo.inference.programs.rows import SiteRows
from gpzoo.inference.programs.sites import Sites


@entry_point
def predict(
    rng_key: Array,
    model: Callable,
    *new: Argument,
    posterior_samples: Mapping[str, ArrayLike] | None = None,
    params: Mapping[str, Any] | None = None,
    train_args: tuple[Argument, ...] | None = None,
    train_kwargs: Mapping[str, Any] | None = None,
    test_data: Mapping[str, ArrayLike] | None = None,
    num_draws: int = 100,
    quantiles: Sequence[float] | None = None,
    keep_draws: bool = False,
    mean_only: bool = False,
    batch_size: int | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, SitePrediction]:
    """Predict at new inputs without a guide: from MCMC draws, or by exact GP regression.

    A trained model predicts by itself, :meth:`gpzoo.inference.Trained.predict`, where results and the other arguments
    are explained. GP sites are conditioned on their draws, or their data, at the training inputs, whose
    covariance is factorised once for each draw, as long as the factors of all draws take less than 1 GiB; else for
    every batch: take large ones. A program that is
    :func:`~gpzoo.inference.whitened` is conditioned on its draws of ``f``, or of ``u`` where it is sparse. Draws of a
    program that is :class:`~gpzoo.inference.marginal` predict by :meth:`gpzoo.inference.Trained.of_draws`.

    Example:
        >>> import jax, numpy as np, numpyro
        >>> from gpzoo import GaussianProcess, kernels
        >>> from gpzoo.inference import predict
        >>> def exact(X, y=None):
        ...     numpyro.sample("y", GaussianProcess(kernels.RBF() + kernels.White(0.01), X), obs=y)
        >>> X = np.linspace(0, 6, 20, dtype=np.float32)[:, None]
        >>> found = predict(jax.random.key(0), exact, np.array([[1.5]], np.float32), train_args=(X, np.sin(X[:, 0])))
        >>> found["y"].mean.round(1), found["y"].variance.shape
        (array([1.], dtype=float32), (1,))

    Args:
        rng_key: key of the draws.
        model: the program.
        *new: the model's positional arguments at the new inputs, one row per input.
        posterior_samples: MCMC draws by site name, ``[S, ...]``, as ``mcmc.get_samples()`` has them.
        params: values of the ``numpyro.param`` (and mutable) sites.
        train_args: the positional arguments of training, such as ``(X, y)``.
        train_kwargs: the keyword arguments of training.
        test_data: observed values by site name, ``[N, ...]``, for ``log_density``.
        num_draws: number of draws to keep where the program itself has none.
        quantiles: probabilities, such as ``(0.05, 0.5, 0.95)``.
        keep_draws: whether to return the draws themselves.
        mean_only: whether to leave out variances.
        batch_size: rows at a time, which changes nothing but rounding and draws of latent variables of rows; ``None``
            for 1,000, or 20,000 where there are more, of at most 100 numbers each.
        model_kwargs: the model's keyword arguments, by name.

    Returns:
        A :class:`SitePrediction` for each GP site and each data site, by name.

    Raises:
        TypeError: for data that are no real numbers, an ``rng_key`` that is no key, or a marginal program.
        ValueError: for data that are not finite; no ``train_args``; rows that disagree; unknown names in
            ``test_data``; sites of the program without a value; ``quantiles`` that are not between 0 and 1.
        FactorisationError: naming the GP site whose covariance does not factorise at these parameters.
        NonFiniteError: naming any other site whose prediction is not finite.
    """
    options = Predicting(train_args, train_kwargs, test_data, num_draws, quantiles, keep_draws, mean_only, batch_size)
    rng_key = checks.rng_key(rng_key)
    posterior_samples = checks.named("posterior_samples", posterior_samples)
    given = checks.parameters("params", {} if params is None else params)
    refuse_marginal(model)
    described = columns_of(model, options.train_args or ())
    options = replace(options, test_data=rows_of_test_data(model, new, test_data, described))
    with as_they_stand():
        args, kwargs = arguments(model, new, model_kwargs, new=True, described=described)
        samples = {name: jnp.asarray(value) for name, value in posterior_samples.items()}
        counts = {name: len(value) for name, value in samples.items()}
        checks.refuse(len(set(counts.values())) > 1, f"posterior_samples must have one number of draws, got {counts}.")
        values = {name: value[0] for name, value in samples.items()} | given
        return predictions(Subject(model, None, given, args, kwargs, values=values), rng_key, options, samples)


@dataclass(frozen=True)
class Predicting:
    """Options of :meth:`gpzoo.inference.Trained.predict`."""

    train_args: tuple[Argument, ...] | None = None
    train_kwargs: Mapping[str, Any] | None = None
    test_data: Mapping[str, ArrayLike] | None = None
    num_draws: int = 100
    quantiles: Sequence[float] | None = None
    keep_draws: bool = False
    mean_only: bool = False
    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse options that make no sense.

        Raises:
            TypeError, ValueError: see :func:`predict`.
        """
        checks.positive_int("num_draws", self.num_draws)
        if self.batch_size is not None:
            checks.positive_int("batch_size", self.batch_size)
        checked_quantiles(self.quantiles)
        asked = {"quantiles": self.quantiles is not None, "keep_draws": self.keep_draws}
        asked |= {"test_data": self.test_data is not None}
        needing = ", ".join(name for name, given in asked.items() if given)
        said = f"mean_only leaves out the variances that {needing} would need: leave one or the other out."
        checks.refuse(self.mean_only and needing, said)
        refuse_no_tuple("train_args", "(X, y)", self.train_args)


def predictions(
    subject: Subject, rng_key: PRNGKeyArray, options: Predicting, samples: Mapping[str, Array] | None = None
) -> dict[str, SitePrediction]:
    """Predictions of a model with a guide; without a guide, at draws of its latent sites.

    Args:
        subject: the model at new inputs.
        rng_key: key of the draws.
        options: of the prediction.
        samples: draws by site name, ``[S, ...]``.
    """
    model, guide = subject.model, subject.guide
    given: Any = samples if guide is None else guide.numbers(subject.params, options.num_draws)
    samples = dict(given or {})
    test_data = test_arrays(model, subject.args, subject.kwargs, options.test_data)
    train = None if options.train_args is None else arguments(model, options.train_args, options.train_kwargs)
    batch_size = options.batch_size or _rows_at_a_time(subject)
    num_rows = count_rows(subject, batch_size)
    train_arrays, train_static = split_arrays({} if train is None else train[1])
    sites, inducing = (guide.sites, {}) if guide is not None else _looked_at(subject, train, samples)
    several = guide.draws_anything if guide is not None else bool(sites.enumerated) and not samples
    draws = len(next(iter(samples.values()))) if samples else options.num_draws if several else 1
    per_path = 1 if samples or several else options.num_draws
    asked = Asked(checked_quantiles(options.quantiles), options.keep_draws, per_path, bool(options.mean_only))
    _check_rows(test_data, subject.site_rows, num_rows)
    paths = Paths.of(subject, inducing=inducing, sites=sites, asked=asked, train_static=train_static)
    of_training = (asked, identity_of(train_static), paths.untold)
    question = Question(
        "predict",
        paths,
        at_once=_AT_ONCE,
        summary=lambda found: by_field({name: of_paths(path, asked) for name, path in found["paths"].items()}),
        row_axis=ROW_AXES,
        options=of_training,
    )
    keys = random.split(named_key(rng_key, "draws"), draws)
    known = {"views": named_key(rng_key, "views"), "others": None if train is None else (train[0], train_arrays)}
    training = None
    if train is not None:
        before = Question("at training", paths.at_training, at_once=_AT_ONCE, options=of_training)
        at_training = subject.compiled_for(before, subject.site_rows.layouts)
        at = At((), {}, subject.params, (), 0, **known)
        if _bytes(at_training, (keys, samples), at) <= _MOST_KEPT:
            training = at_training((keys, samples), at)
            warn_if_lost(training[0])
    given = {name: np.asarray(x) for name, x in test_data.items()}
    answer = ask(question, subject, (keys, samples, training), batch_size=batch_size, of_sites=given, **known)
    found = answer.found
    names = sorted({name for sites in found.values() for name in sites})
    refuse_unknown("test_data", test_data, names, "sites")
    lacking = {name for field in _MOMENTS for name, x in found[field].items() if not is_finite(x)} - sites.processes
    if lacking:
        drawn = found["draws"] or _draws(subject, rng_key, options, samples)
        lacking = {name for name in lacking if _lacks_moments([found[f].get(name) for f in _MOMENTS], drawn.get(name))}
    checked = {field: {n: x for n, x in found[field].items() if n not in lacking} for field in _MOMENTS}
    checked["cdf"] = {n: np.where(np.isnan(given[n]), 0, x) for n, x in found["cdf"].items()}
    try:
        # Outside jit, training inputs are factorised again.
        replace(answer, found=found | checked, draws=(keys, samples, None)).refuse_not_finite(_WORDS, sites.processes)
    except GPZooError:
        # A program may refuse inputs, whose numbers it sees outside jit alone.
        parameters_of(model, subject.args, subject.kwargs)
        raise
    for field in _MOMENTS:  # None where no row has one
        found[field] = {n: x for n, x in found[field].items() if n not in lacking or np.isfinite(x).any()}
    return {name: SitePrediction(**{field: found[field].get(name) for field in found}) for name in names}


def _rows_at_a_time(subject: Subject) -> int:
    """Rows of a batch where nobody has said: many of few numbers, so that factorisations are few."""
    arrays = jax.tree.leaves(subject.args)
    rows = max((len(x) for x in arrays if np.ndim(x)), default=0)
    small = all(np.size(x) <= _SMALL * np.shape(x)[0] for x in arrays if np.ndim(x))
    return _MANY if small and rows > _MANY else 1000


#: Rows of a large batch, and the most numbers of one of them.
_MANY, _SMALL = 20_000, 100

#: Draws that are computed together.
_AT_ONCE = 10

#: Most bytes that are kept of all draws at the training inputs; more would be computed again for every batch.
_MOST_KEPT = 2**30

#: The numbers of each field of a prediction.
_WORDS = {name: f"entries of {name}" for name in SitePrediction._fields} | {"log_density": LOG_DENSITIES}


def _bytes(function: Callable, *args: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(function, *args)))


def _looked_at(
    subject: Subject, train: tuple[tuple, dict] | None, samples: Mapping[str, Array]
) -> tuple[Sites, dict[str, InducingVariable]]:
    """The sites of a program without a guide, and inducing variables of those whose samples are of ``u``."""
    if train is None:
        raise ValueError(
            "Give predict posterior_samples= (for MCMC, whose f lives at the training inputs) or params= (for "
            "exact regression), and train_args=(X, y). With a guide call Trained(model, guide, "
            "params).predict(key, X)."
        )
    seen = look(subject.model, *train, subject.values)
    where = "train_args, such as (X, y)"
    sites = find_sites(seen, subject.model, *train, frozenset(), values=subject.values, where=where)
    return sites, inducing_variables(seen.trace, samples)


def _check_rows(test_data: Mapping[str, Any], follow: SiteRows, num_rows: int) -> None:
    """Refuse test data of another number of rows than their site has.

    Raises:
        ValueError: naming them.
    """
    for name, values in test_data.items():
        size = follow.sizes.get(name, len(values))
        if len(values) != size:
            raise ValueError(
                f"test_data[{name!r}] has {len(values)} rows, but site {name!r} has {size} at these {num_rows} inputs: "
                "pass the same number of rows."
            )


#: Fields that are not finite where the distribution of ``y`` has no such moment.
_MOMENTS = "mean", "variance"


def _draws(
    subject: Subject, rng_key: PRNGKeyArray, options: Predicting, samples: Mapping[str, Array]
) -> dict[str, Any]:
    """Draws of the sites whose moments were asked for; none where these are not finite."""
    drawing = replace(options, keep_draws=True, mean_only=False, quantiles=None, test_data=None)
    try:
        return {name: site.draws for name, site in predictions(subject, rng_key, drawing, samples).items()}
    except NonFiniteError:
        return {}


def _lacks_moments(moments: list[np.ndarray | None], draws: np.ndarray | None) -> bool:
    """Whether moments are not finite by definition. Where they overflow, or a parameter is no number, so are draws.

    Draws of counts are whole numbers in any case, and tell nothing.
    """
    if draws is None or draws.dtype.kind != "f":
        return False
    odd = [~np.isfinite(x) for x in moments if x is not None]
    return bool(np.isfinite(draws[:, np.logical_or.reduce(odd)]).mean() > 0.5)
