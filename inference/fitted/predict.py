"""Predictions at new inputs: moments, densities, quantiles and draws, which do not depend on the batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.errors import GPZooError, NonFiniteError
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.bounds.marginal import refuse_marginal
from gpzoo.inference.fitted.given import warn_if_lost
from gpzoo.inference.fitted.map_batches import Arrays, Batch, BatchFunction, BoundModel, map_batches, refuse_batches
from gpzoo.inference.fitted.parts import checked_parts, refuse_other_parts
from gpzoo.inference.fitted.paths import AtTraining, Paths, refuse_other_rows
from gpzoo.inference.fitted.quantiles import checked_quantiles
from gpzoo.inference.fitted.summaries import ROW_AXES, Asked, SitePrediction
from gpzoo.inference.guides.reparam import as_they_stand, inducing_variables
from gpzoo.inference.programs.arguments import arguments, refuse_no_tuple, refuse_unknown, test_arrays
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.finite import LOG_DENSITIES, is_finite
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
    num_draws: int | None = None,
    quantiles: Sequence[float] | None = None,
    keep_draws: bool = False,
    mean_only: bool = False,
    parts: Mapping[str, Sequence[str]] | None = None,
    batch_size: int | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, SitePrediction]:
    """Predict at new inputs without a guide: from MCMC draws, or by exact GP regression.

    A trained model has its own method, :meth:`gpzoo.inference.Trained.predict`. Its documentation explains the results
    and the other arguments. ``predict`` conditions GP sites on their draws, or on their data, at the training inputs.

    If the factors of all draws take less than 1 GiB, the covariance of the training inputs is factorised once for each
    draw. Otherwise it is factorised again for every batch, so use large batches. A :func:`~gpzoo.inference.whitened`
    program is conditioned on its draws of ``f``, or of ``u`` if it is sparse. For draws of a
    :class:`~gpzoo.inference.marginal` program, use :meth:`gpzoo.inference.Trained.of_draws`.

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
        posterior_samples: MCMC draws by site name, ``[S, ...]``, as from ``mcmc.get_samples()``.
        params: values of the ``numpyro.param`` (and mutable) sites.
        train_args: the positional arguments of training, such as ``(X, y)``.
        train_kwargs: the keyword arguments of training; ``model_kwargs`` unless given.
        test_data: observed values by site name, ``[N, ...]``, for ``log_density``.
        num_draws: number of draws, 100 if ``None``, if there are no ``posterior_samples``.
        quantiles: probabilities, such as ``(0.05, 0.5, 0.95)``.
        keep_draws: whether to return the draws themselves.
        mean_only: whether to leave out variances.
        parts: see :meth:`gpzoo.inference.Trained.predict`.
        batch_size: rows at a time. It changes only rounding and the draws of latent variables of rows. ``None``:
            1,000. If there are more than 20,000 rows, and no row has more than 100 numbers: 20,000, or 2,000 for
            quantiles without ``num_draws`` and ``keep_draws``.
        model_kwargs: the model's keyword arguments, by name.

    Returns:
        A :class:`SitePrediction` for each GP site and each data site, by name.

    Raises:
        TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a marginal program.
        ValueError: for data that are not finite; no ``train_args``; arguments with different numbers of rows; unknown
            names in ``test_data``; sites of the program without a value; ``quantiles`` that are not between 0 and 1.
        FactorisationError: naming the GP site whose covariance does not factorise at these parameters.
        NonFiniteError: naming a site whose prediction is not finite for another reason.
    """
    options = Predicting(
        train_args=train_args,
        train_kwargs=train_kwargs,
        test_data=test_data,
        num_draws=num_draws,
        quantiles=quantiles,
        keep_draws=keep_draws,
        mean_only=mean_only,
        parts=parts,
        batch_size=batch_size,
    )
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
    """Options of :meth:`gpzoo.inference.Trained.predict`, as the user gives them.

    A new option is an argument of :func:`predict` and of :meth:`~gpzoo.inference.Trained.predict`, and a field here.
    Both functions pass it on by name. If it changes the compiled program, it is a field of :class:`Asked` too.

    Raises:
        TypeError, ValueError: for invalid options, see :func:`predict`.
    """

    train_args: tuple[Argument, ...] | None = None
    train_kwargs: Mapping[str, Any] | None = None
    test_data: Mapping[str, ArrayLike] | None = None
    num_draws: int | None = None
    quantiles: Sequence[float] | None = None
    keep_draws: bool = False
    mean_only: bool = False
    parts: Mapping[str, Sequence[str]] | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.num_draws is not None:
            checks.positive_int("num_draws", self.num_draws)
        if self.batch_size is not None:
            checks.positive_int("batch_size", self.batch_size)
        if self.mean_only and (self.quantiles is not None or self.keep_draws or self.test_data is not None):
            raise ValueError("mean_only leaves out the variances that quantiles, keep_draws and test_data need.")
        refuse_no_tuple("train_args", "(X, y)", self.train_args)

    @property
    def draws_rows(self) -> bool:
        """Whether data are drawn, row by row."""
        return self.keep_draws or self.quantiles is not None

    @property
    def more_draws(self) -> bool:
        """Whether quantiles of data may take more draws than the result has paths."""
        return self.quantiles is not None and self.num_draws is None and not self.keep_draws

    def asked(self, draws_per_path: int) -> Asked:
        """The parts to compute for each path."""
        quantiles = None if self.quantiles is None else checked_quantiles(self.quantiles)
        parts = tuple((site, tuple(names)) for site, names in checked_parts(self.parts).items())
        return Asked(quantiles, self.keep_draws, draws_per_path, bool(self.mean_only), parts)


def predictions(
    model: BoundModel, rng_key: PRNGKeyArray, options: Predicting, samples: Mapping[str, Array] | None = None
) -> dict[str, SitePrediction]:
    """Predictions at new inputs. Values of the latent sites come from the guide or, without a guide, from ``samples``.

    Args:
        model: the program at new inputs.
        rng_key: key of the draws.
        options: options of the prediction.
        samples: draws of the latent sites by name, ``[S, ...]``, for a model without a guide.
    """
    test_data = test_arrays(model.model, model.args, model.kwargs, options.test_data)
    batch_size = options.batch_size or _rows_at_a_time(model, options.more_draws)
    refuse_batches(model, batch_size)
    if batch_size < model.num_rows:
        for name, values in test_data.items():  # before they are split into rows
            size = model.site_rows_in_batches(batch_size).sizes.get(name, len(values))
            refuse_other_rows(name, values, (size,), model.num_rows)
    train_model = None
    if options.train_args is not None:
        given = model.kwargs if options.train_kwargs is None else options.train_kwargs
        args, kwargs = arguments(model.model, options.train_args, given)
        train_model = replace(model, args=args, kwargs=kwargs)
    paths, samples = _paths(model, options, train_model, dict(samples or {}))
    if paths.asked.parts:
        refuse_other_parts(dict(paths.asked.parts), (train_model or model).look.trace)
    given = rng_key, samples, None
    train_batch = None if train_model is None else train_model.batch()
    known_at_training = None if train_batch is None else _at_training(model, paths, given, train_batch)
    own, whole = (paths.asked, paths.num_draws), None
    if batch_size >= model.num_rows and (options.draws_rows or paths.sites.enumerated):
        whole = model.site_rows_in_batches(1)  # to draw data, the program runs on single rows
    result = map_batches(
        BatchFunction("predict", paths, own, _TOGETHER, paths.summary, ROW_AXES, paths.prepare),
        model,
        (rng_key, samples, known_at_training),
        batch_size,
        of_sites={name: np.asarray(x) for name, x in test_data.items()},
        whole=whole,
        addends={name: site for site, names in paths.asked.parts for name in names},
        others=train_batch,
    )
    arrays = result.arrays
    names = sorted(set().union(*arrays.values()))
    refuse_unknown("test_data", test_data, names, "sites")
    lacking = _lacking_moments(arrays, paths.sites.processes, model, rng_key, options, samples)
    try:
        # Compute numbers that are not finite again outside jit, from the training data on: the cause may lie there.
        result = result._replace(arrays=_to_check(arrays, lacking, test_data), given=given)
        result.refuse_not_finite(_WORDS, paths.sites.processes)
    except GPZooError:
        # A program may refuse inputs, and sees their values only outside jit.
        parameters_of(model.model, model.args, model.kwargs)
        raise
    for field in _MOMENTS:  # None if no row has the moment
        for name in lacking & arrays[field].keys():
            if not np.isfinite(arrays[field][name]).any():
                del arrays[field][name]
    return {name: SitePrediction(*(arrays[field].get(name) for field in SitePrediction._fields)) for name in names}


def _paths(
    model: BoundModel, options: Predicting, train_model: BoundModel | None, samples: dict[str, Array]
) -> tuple[Paths, dict[str, Array]]:
    """The function of one draw, and the samples of latent sites of all draws."""
    guide = model.guide
    if guide is None:
        sites, inducing = _looked_at(model, train_model, samples)
        several = bool(sites.enumerated) and not samples
    else:
        sites, inducing, several = guide.sites, {}, guide.draws_anything
        samples = guide.numbers(model.params, options.num_draws)
    asked_for = options.num_draws or 100
    num_draws = len(next(iter(samples.values()))) if samples else asked_for if several else 1
    each = 1 if samples or several else asked_for
    if options.more_draws:
        each = max(each, -(-_FOR_QUANTILES // num_draws))
    asked = options.asked(each)
    of = {"model": model.model, "guide": guide, "inducing": inducing, "sites": sites}
    return Paths(**of, asked=asked, num_draws=num_draws), samples


def _to_check(arrays: Mapping[str, dict[str, np.ndarray]], lacking: set[str], test_data: Mapping[str, Any]) -> Arrays:
    """The arrays that must be finite. Undefined moments and values at missing test data are left out."""
    found = dict(arrays)
    for field in _MOMENTS:
        found[field] = {name: x for name, x in arrays[field].items() if name not in lacking}
    found["cdf"] = {name: np.where(np.isnan(test_data[name]), 0, x) for name, x in arrays["cdf"].items()}
    return found


def _at_training(model: BoundModel, paths: Paths, given: Any, train_batch: Batch) -> AtTraining | None:
    """The GP sites of all draws at the training inputs, unless they take too much memory."""
    own = paths.asked, paths.num_draws
    fn = BatchFunction("at training", paths.at_training, own, _TOGETHER, prepare=paths.prepare)
    compiled = model.compiled_for(fn)
    shapes = jax.tree.leaves(jax.eval_shape(compiled, given, train_batch))
    if sum(x.size * x.dtype.itemsize for x in shapes) > _MOST_KEPT:
        return None
    found = compiled(given, train_batch)
    warn_if_lost(found[0])
    return found


def _rows_at_a_time(model: BoundModel, more_draws: bool = False) -> int:
    """Default number of rows in a batch. It is large if rows are small, so that there are few factorisations."""
    many = _MANY // 10 if more_draws else _MANY  # ten times as many draws take as much memory
    arrays = [x for x in jax.tree.leaves(model.args) if np.ndim(x)]
    small = all(np.size(x) <= _SMALL * len(x) for x in arrays)
    return many if small and max(map(len, arrays), default=0) > _MANY else 1000


#: Number of rows in a large batch, and the most numbers of one of its rows.
_MANY, _SMALL = 20_000, 100

#: Fewest draws of data for quantiles without a formula. If draws are independent, the standard error of the probability
#: is 0.7 % at 5 %. Draws on one path have the same functions, so the error is between this and the error of the paths.
_FOR_QUANTILES = 1000

#: Draws that are computed together.
_TOGETHER = 10

#: Most bytes of all draws at the training inputs that are kept. Larger ones are computed again for every batch.
_MOST_KEPT = 2**30

#: The arrays of each field of a prediction.
_WORDS = {name: f"entries of {name}" for name in SitePrediction._fields} | {"log_density": LOG_DENSITIES}

#: Fields that are not finite if the distribution of ``y`` does not have this moment.
_MOMENTS = "mean", "variance"


def _looked_at(
    model: BoundModel, train_model: BoundModel | None, samples: Mapping[str, Array]
) -> tuple[Sites, dict[str, InducingVariable]]:
    """The sites of a program without a guide, and the inducing variables of sites whose samples are values of ``u``."""
    if train_model is None:
        raise ValueError(
            "Give predict posterior_samples= (for MCMC, whose f lives at the training inputs) or params= (for "
            "exact regression), and train_args=(X, y). With a guide call Trained(model, guide, "
            "params).predict(key, X)."
        )
    of = train_model.model, train_model.args, train_model.kwargs
    seen, where = look(*of, model.values), "train_args, such as (X, y)"
    sites = find_sites(seen, *of, frozenset(), values=model.values, where=where)
    return sites, inducing_variables(seen.trace, samples)


def _lacking_moments(
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    processes: frozenset[str],
    model: BoundModel,
    rng_key: PRNGKeyArray,
    options: Predicting,
    samples: Mapping[str, Array] | None,
) -> set[str]:
    """Names of the data sites without finite moments by definition. The draws of these sites are finite.

    If moments overflow, or a parameter is NaN, draws are not finite either. Draws of counts do not tell the difference,
    because they are whole numbers in any case.
    """
    names = {name for field in _MOMENTS for name, x in arrays[field].items() if not is_finite(x)} - processes
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
        odd = [~np.isfinite(arrays[field][name]) for field in _MOMENTS if name in arrays[field]]
        draws = drawn[name][:, np.logical_or.reduce(odd)]
        if draws.dtype.kind == "f" and np.isfinite(draws).mean() > 0.5:
            found.add(name)
    return found
