"""Predictions at new inputs: moments, densities, quantiles and draws, the same in any batches."""

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
from gpzoo.inference.asking.given import warn_if_lost
from gpzoo.inference.asking.map_batches import Batch, BatchFunction, BoundModel, count_rows, map_batches
from gpzoo.inference.asking.paths import AtTraining, Paths
from gpzoo.inference.asking.quantiles import checked_quantiles
from gpzoo.inference.asking.summaries import ROW_AXES, Asked, SitePrediction, by_field, of_paths
from gpzoo.inference.bounds.marginal import refuse_marginal
from gpzoo.inference.guides.reparam import as_they_stand, inducing_variables
from gpzoo.inference.programs.arguments import arguments, refuse_no_tuple, refuse_unknown, test_arrays
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.finite import LOG_DENSITIES, is_finite
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.labelled import columns_of, rows_of_test_data
from gpzoo.inference.programs.program import find_sites, look, parameters_of
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
        return predictions(BoundModel(model, None, given, args, kwargs, values=values), rng_key, options, samples)


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
        if self.quantiles is not None:
            checked_quantiles(self.quantiles)
        asked = {"quantiles": self.quantiles is not None, "keep_draws": self.keep_draws}
        asked |= {"test_data": self.test_data is not None}
        needing = ", ".join(name for name, given in asked.items() if given)
        said = f"mean_only leaves out the variances that {needing} would need: leave one or the other out."
        checks.refuse(self.mean_only and needing, said)
        refuse_no_tuple("train_args", "(X, y)", self.train_args)


def predictions(
    model: BoundModel, rng_key: PRNGKeyArray, options: Predicting, samples: Mapping[str, Array] | None = None
) -> dict[str, SitePrediction]:
    """Predictions of a model with a guide; without a guide, at draws of its latent sites.

    Args:
        model: at new inputs.
        rng_key: key of the draws.
        options: of the prediction.
        samples: draws by site name, ``[S, ...]``.
    """
    test_data = test_arrays(model.model, model.args, model.kwargs, options.test_data)
    training = _training(model, options)
    batch_size = options.batch_size or _rows_at_a_time(model)
    num_rows = count_rows(model, batch_size)
    if batch_size < num_rows:
        _check_rows(test_data, model, num_rows)
    fn, draws = _paths(model, rng_key, options, training, dict(samples or {}))
    paths: Paths = fn.of_draw
    views = named_key(rng_key, "views")
    others = at_training = None
    if training is not None:
        others = training.batch(views=views)
        at_training = _at_training(model, fn, draws, others)
    given = {name: np.asarray(x) for name, x in test_data.items()}
    result = map_batches(
        fn,
        model,
        (*draws, at_training),
        batch_size,
        of_sites=given,
        # Data are drawn row by row, and discrete latent sites too.
        with_layouts=options.keep_draws or options.quantiles is not None or bool(paths.sites.enumerated),
        views=views,
        others=others,
    )
    arrays = result.arrays
    names = sorted(set().union(*arrays.values()))
    refuse_unknown("test_data", test_data, names, "sites")
    lacking = {name for field in _MOMENTS for name, x in arrays[field].items() if not is_finite(x)}
    lacking = _lacking_moments(lacking - paths.sites.processes, arrays, model, rng_key, options, samples)
    cdf = {name: np.where(np.isnan(given[name]), 0, x) for name, x in arrays["cdf"].items()}
    checked = {field: {n: x for n, x in arrays[field].items() if n not in lacking} for field in _MOMENTS}
    try:
        # Outside jit, training inputs are factorised again.
        result = result._replace(arrays=arrays | checked | {"cdf": cdf}, draws=(*draws, None))
        result.refuse_not_finite(_WORDS, paths.sites.processes)
    except GPZooError:
        # A program may refuse inputs, whose numbers it sees outside jit alone.
        parameters_of(model.model, model.args, model.kwargs)
        raise
    for field in _MOMENTS:  # None where no row has one
        for name in lacking & arrays[field].keys():
            if not np.isfinite(arrays[field][name]).any():
                del arrays[field][name]
    return {name: SitePrediction(*(arrays[field].get(name) for field in SitePrediction._fields)) for name in names}


def _training(model: BoundModel, options: Predicting) -> BoundModel | None:
    """The model at the arguments of its training."""
    if options.train_args is None:
        return None
    args, kwargs = arguments(model.model, options.train_args, options.train_kwargs)
    return replace(model, args=args, kwargs=kwargs)


def _paths(
    model: BoundModel,
    rng_key: PRNGKeyArray,
    options: Predicting,
    training: BoundModel | None,
    samples: dict[str, Array],
) -> tuple[BatchFunction, tuple[Array, dict[str, Array]]]:
    """The function of one draw, and the draws: random keys with samples of latent sites."""
    guide = model.guide
    if guide is None:
        sites, inducing = _looked_at(model, training, samples)
        several = bool(sites.enumerated) and not samples
    else:
        sites, inducing, several = guide.sites, {}, guide.draws_anything
        samples = guide.numbers(model.params, options.num_draws)
    num_draws = len(next(iter(samples.values()))) if samples else options.num_draws if several else 1
    per_path = 1 if samples or several else options.num_draws
    asked = Asked(checked_quantiles(options.quantiles), options.keep_draws, per_path, bool(options.mean_only))
    paths = Paths(model=model.model, guide=guide, inducing=inducing, sites=sites, asked=asked)

    def summary(found: dict[str, Any]) -> dict[str, Any]:
        return by_field({name: of_paths(path, asked) for name, path in found["paths"].items()})

    fn = BatchFunction("predict", paths, asked, _AT_ONCE, summary, ROW_AXES)
    return fn, (random.split(named_key(rng_key, "draws"), num_draws), samples)


def _at_training(model: BoundModel, fn: BatchFunction, draws: Any, training: Batch) -> AtTraining | None:
    """The GP sites of all draws at the training inputs, unless they take too much memory."""
    compiled = model.compiled_for(BatchFunction("at training", fn.of_draw.at_training, fn.options, _AT_ONCE))
    shapes = jax.tree.leaves(jax.eval_shape(compiled, draws, training))
    if sum(x.size * x.dtype.itemsize for x in shapes) > _MOST_KEPT:
        return None
    found = compiled(draws, training)
    warn_if_lost(found[0])
    return found


def _rows_at_a_time(model: BoundModel) -> int:
    """Rows of a batch where nobody has said: many of few numbers, so that factorisations are few."""
    arrays = [x for x in jax.tree.leaves(model.args) if np.ndim(x)]
    small = all(np.size(x) <= _SMALL * len(x) for x in arrays)
    return _MANY if small and max(map(len, arrays), default=0) > _MANY else 1000


#: Rows of a large batch, and the most numbers of one of them.
_MANY, _SMALL = 20_000, 100

#: Draws that are computed together.
_AT_ONCE = 10

#: Most bytes that are kept of all draws at the training inputs; more would be computed again for every batch.
_MOST_KEPT = 2**30

#: The numbers of each field of a prediction.
_WORDS = {name: f"entries of {name}" for name in SitePrediction._fields} | {"log_density": LOG_DENSITIES}

#: Fields that are not finite where the distribution of ``y`` has no such moment.
_MOMENTS = "mean", "variance"


def _looked_at(
    model: BoundModel, training: BoundModel | None, samples: Mapping[str, Array]
) -> tuple[Sites, dict[str, InducingVariable]]:
    """The sites of a program without a guide, and inducing variables of those whose samples are of ``u``."""
    if training is None:
        raise ValueError(
            "Give predict posterior_samples= (for MCMC, whose f lives at the training inputs) or params= (for "
            "exact regression), and train_args=(X, y). With a guide call Trained(model, guide, "
            "params).predict(key, X)."
        )
    of = training.model, training.args, training.kwargs
    seen, where = look(*of, model.values), "train_args, such as (X, y)"
    sites = find_sites(seen, *of, frozenset(), values=model.values, where=where)
    return sites, inducing_variables(seen.trace, samples)


def _check_rows(test_data: Mapping[str, Any], model: BoundModel, num_rows: int) -> None:
    """Refuse test data of another number of rows than their site has, before they are taken apart.

    Raises:
        ValueError: naming them.
    """
    for name, values in test_data.items():
        size = model.site_rows.sizes.get(name, len(values))
        if len(values) != size:
            raise ValueError(
                f"test_data[{name!r}] has {len(values)} rows, but site {name!r} has {size} at these {num_rows} inputs: "
                "pass the same number of rows."
            )


def _lacking_moments(
    names: set[str],
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    model: BoundModel,
    rng_key: PRNGKeyArray,
    options: Predicting,
    samples: Mapping[str, Array] | None,
) -> set[str]:
    """Those of the sites whose moments are not finite by definition: their draws are finite.

    Where moments overflow, or a parameter is no number, so are draws. Of counts they tell nothing, whole numbers in any
    case.
    """
    if not names:
        return names
    drawn = arrays["draws"]
    if not drawn:
        drawing = replace(options, keep_draws=True, mean_only=False, quantiles=None, test_data=None)
        try:
            drawn = {name: site.draws for name, site in predictions(model, rng_key, drawing, samples).items()}
        except NonFiniteError:
            return set()
    found = set()
    for name in names & drawn.keys():
        if (draws := drawn[name]).dtype.kind == "f":
            odd = [~np.isfinite(arrays[field][name]) for field in _MOMENTS if name in arrays[field]]
            if np.isfinite(draws[:, np.logical_or.reduce(odd)]).mean() > 0.5:
                found.add(name)
    return found
