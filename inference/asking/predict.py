"""What does a model predict at new inputs? Moments, densities, quantiles, draws: the same in any batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Integer, PRNGKeyArray, Shaped

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.errors import GPZooError
from gpzoo.inference.asking.paths import Runner
from gpzoo.inference.asking.summaries import (
    ROW_AXES,
    Asked,
    Path,
    SitePrediction,
    checked_quantiles,
    of_one_path,
    of_paths,
    without_variance,
)
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.reparam import as_they_stand, inducing_variables
from gpzoo.inference.programs.arguments import arguments, test_arrays
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.batches import batches, joined
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.finite import refuse_not_finite
from gpzoo.inference.programs.gp_sites import BatchRows
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import find_sites, look, parameters_of, rows_of_sites
from gpzoo.inference.programs.rows import Layout, SiteRows


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
    batch_size: int = 1000,
    model_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, SitePrediction]:
    """Predict at new inputs without a guide: from MCMC draws, or by exact GP regression.

    A trained model predicts by itself, :meth:`gpzoo.inference.Trained.predict`, where results and the other arguments
    are explained. GP sites are conditioned on their draws, or their data, at the training inputs, whose
    covariance is factorised once for each draw, as long as the factors of all draws take less than 1 GiB; else for
    every batch: take large ones. A program that is
    :func:`~gpzoo.inference.whitened` is conditioned on its draws of ``f``, or of ``u`` where it is sparse.

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
        batch_size: rows at a time, which changes nothing but rounding and draws of latent variables of rows.
        model_kwargs: the model's keyword arguments, by name.

    Returns:
        A :class:`SitePrediction` for each GP site and each data site, by name.

    Raises:
        TypeError: for data that are no real numbers, or an ``rng_key`` that is no key.
        ValueError: for data that are not finite; no ``train_args``; rows that disagree; unknown names in
            ``test_data``; sites of the program without a value; ``quantiles`` that are not between 0 and 1.
        FactorisationError: naming the GP site whose covariance does not factorise at these parameters.
        NonFiniteError: naming any other site whose prediction is not finite.
    """
    with as_they_stand():
        return predictions(
            {},
            rng_key,
            model,
            new,
            model_kwargs,
            params={} if params is None else params,
            posterior_samples=posterior_samples,
            train_args=train_args,
            train_kwargs=train_kwargs,
            test_data=test_data,
            num_draws=num_draws,
            quantiles=quantiles,
            keep_draws=keep_draws,
            mean_only=mean_only,
            batch_size=batch_size,
        )


def predictions(
    compiled: dict[tuple, Any],
    rng_key: Array,
    model: Callable,
    args: tuple,
    model_kwargs: Mapping[str, Any] | None,
    *,
    params: Mapping[str, Any],
    train_args: tuple[Argument, ...] | None,
    train_kwargs: Mapping[str, Any] | None,
    test_data: Mapping[str, ArrayLike] | None,
    num_draws: int,
    quantiles: Sequence[float] | None,
    keep_draws: bool,
    mean_only: bool,
    batch_size: int,
    guide: InducingGuide | None = None,
    posterior_samples: Mapping[str, ArrayLike] | None = None,
) -> dict[str, SitePrediction]:
    """Predictions with or without a guide; ``compiled`` keeps the compiled programs, of earlier calls too."""
    check_run(guide, num_draws=num_draws, batch_size=batch_size)
    quantiles, rng_key = checked_quantiles(quantiles), checks.rng_key(rng_key)
    needing = {"quantiles": quantiles is not None, "keep_draws": keep_draws, "test_data": test_data is not None}
    if mean_only and any(needing.values()):
        raise ValueError(
            f"mean_only leaves out the variances that {', '.join(n for n, asked in needing.items() if asked)} would "
            "need: leave one or the other out."
        )
    args, kwargs = arguments(model, args, model_kwargs, new=True)
    posterior_samples = checks.named("posterior_samples", posterior_samples)
    test_data = test_arrays(model, args, kwargs, test_data)
    if not isinstance(train_args, tuple | None):
        raise TypeError(f"train_args must be a tuple such as (X, y), got {type(train_args).__name__}.")
    train = None if train_args is None else arguments(model, train_args, train_kwargs)
    num_rows = count_rows(args, guide, batch_size)
    batch_size = min(batch_size, num_rows)
    params = checks.parameters("params", params) if guide is None else guide.checked_params(params, args, kwargs)
    samples = {name: jnp.asarray(value) for name, value in posterior_samples.items()}
    if len(set((counts := {name: len(value) for name, value in samples.items()}).values())) > 1:
        raise ValueError(f"posterior_samples must have one number of draws, got {counts}.")
    draws = len(next(iter(samples.values()))) if samples else 1
    arrays, static = split_arrays(kwargs)
    train_arrays, train_static = split_arrays({} if train is None else train[1])
    inducing: dict[str, Any] = {}
    if guide is not None:
        sites, several = guide.sites, guide.draws_anything
    else:
        if train is None:
            raise ValueError(
                "Give predict posterior_samples= (for MCMC, whose f lives at the training inputs) or params= (for "
                "exact regression), and train_args=(X, y). With a guide call Trained(model, guide, "
                "params).predict(key, X)."
            )
        given = {name: value[0] for name, value in samples.items()} | params
        where = "train_args, such as (X, y)"
        seen = look(model, *train, given)
        sites = find_sites(seen, model, *train, frozenset(), values=given, where=where)
        several = bool(sites.enumerated) and not samples
        inducing = inducing_variables(seen.trace, samples)
    if several:
        draws = num_draws
    asked = Asked(quantiles, keep_draws, 1 if samples or several else num_draws, bool(mean_only))
    values = None if guide is not None else {name: value[0] for name, value in samples.items()} | params
    follow = followed(compiled, model, args, kwargs, values)
    tests = _test_rows(test_data, follow, num_rows)
    run = Runner(model, guide, sites, static, train_static, asked, inducing, follow.layouts)
    key = ("predict", identity_of(static), identity_of(train_static), asked, draws, identity_of(follow.layouts))
    at_training, one_batch, fixed = compiled[key] = compiled.get(key) or _compile(run, draws)
    keys = random.split(named_key(rng_key, "draws"), draws)
    rest = (params, None if train is None else (train[0], train_arrays), named_key(rng_key, "views"))
    parts: dict[str, list[SitePrediction]] = {}
    training, which, rows, batch, test = None, "all", np.arange(num_rows), args, test_data
    if batch_size < num_rows:
        which = "of rows"
        if train is not None and _bytes(at_training, keys, samples, rest) <= _MOST_KEPT:
            training = at_training(keys, samples, rest)
    for rows, (batch, test) in batches((args, {}), num_rows, batch_size):
        test = {n: x if layout is None else x[layout.rows(rows, num_rows)] for n, (x, layout) in tests.items()}
        given = keys, samples, training, (rows, num_rows), batch, test, arrays, rest
        part = one_batch(which, *given)
        if not parts and which != "all":
            follow.refuse_untold(fixed, batch_size)
            part |= one_batch("fixed", *given) if fixed else {}
        for name, site in part.items():
            parts.setdefault(name, []).append(jax.tree.map(np.asarray, site))
    if unknown := sorted(set(test_data) - set(parts)):
        raise ValueError(f"test_data names {unknown}, but the sites are {sorted(parts)}.")
    found = {name: _joined(each, follow.layouts.get(name), num_rows) for name, each in parts.items()}

    def explain() -> None:
        key, sample = jax.tree.map(lambda x: x[0], (keys, samples))
        run(key, sample, None, BatchRows(rows, num_rows, follow.layouts), batch, test, arrays, *rest)

    try:
        return {n: _finite(n, site, test_data.get(n), sites.processes, explain) for n, site in found.items()}
    except GPZooError:
        parameters_of(model, args, kwargs)  # a program may refuse inputs, whose numbers it sees outside jit alone
        raise


def _finite(name: str, site: SitePrediction, test: Any, processes: frozenset[str], explain: Callable) -> SitePrediction:
    """The site's prediction, without moments that its distribution does not have at any row (a Cauchy's).

    Raises:
        FactorisationError, NonFiniteError: see :func:`predict`.
    """
    lacking = []
    if name not in processes and site.mean is not None:
        # An overflow gives infinity, or does not happen at every row.
        lacking += ["mean"] if np.isnan(site.mean).all() else []
        lacking += [] if site.variance is None or np.isfinite(site.variance).any() else ["variance"]
    if site.log_density is not None:
        impossible = site.log_density == -np.inf
        refuse_not_finite(name, "log densities", np.where(impossible, 0, site.log_density), processes, explain)
    for field, values in site._asdict().items():
        if values is not None and field not in (*lacking, "log_density"):
            known = np.where(np.isnan(np.asarray(test)), 0, values) if field == "cdf" else values
            refuse_not_finite(name, f"entries of {field}", known, processes, explain)
    return site._replace(**dict.fromkeys(lacking))


def count_rows(args: Any, guide: InducingGuide | None, batch_size: int) -> int:
    """The number of rows that all inputs share, if the guide can take them ``batch_size`` at a time.

    Raises:
        ValueError: if they do not share one, or the guide draws sites jointly and there is more than one batch.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(args)]
    rows = {shape[0] if shape else 0 for shape in shapes}
    if len(rows) != 1 or 0 in rows:
        raise ValueError(
            f"The new inputs must be arrays with the same, positive number of rows; got shapes {shapes}. Pass inputs "
            "that have rows of their own in model_kwargs."
        )
    num_rows = rows.pop()
    if guide is not None and guide.joint and batch_size < num_rows:
        raise ValueError(
            f"The guide draws {sorted(guide.joint)} jointly over the inputs, so that a prediction depends on its "
            f"batch: pass batch_size={num_rows} or more."
        )
    return num_rows


def followed(
    compiled: dict[tuple, Any], model: Callable, args: tuple, kwargs: dict[str, Any], values: Mapping[str, Any] | None
) -> SiteRows:
    """How the program's sites follow the rows of its inputs; ``compiled`` keeps it for other inputs of these shapes."""
    shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), (args, split_arrays(kwargs)[0]))
    key = ("rows", identity_of(split_arrays(kwargs)[1]), identity_of({"shapes": shapes}))
    if key not in compiled:
        compiled[key] = rows_of_sites(model, args, kwargs, values)
    return compiled[key]


def _test_rows(
    test_data: Mapping[str, Array], follow: SiteRows, num_rows: int
) -> dict[str, tuple[np.ndarray, Layout | None]]:
    """Test data, and which of their rows are those of a batch.

    Raises:
        ValueError: naming data of another number of rows than their site has.
    """
    for name, values in test_data.items():
        size = follow.sizes.get(name, len(values))
        if len(values) != size:
            raise ValueError(
                f"test_data[{name!r}] has {len(values)} rows, but site {name!r} has {size} at these {num_rows} inputs: "
                "pass the same number of rows."
            )
    return {name: (np.asarray(values), follow.layouts.get(name)) for name, values in test_data.items()}


def _joined(parts: Sequence[SitePrediction], layout: Layout | None, num_rows: int) -> SitePrediction:
    axes: Any = ROW_AXES
    fields = zip(zip(*parts, strict=True), axes, strict=True)
    return SitePrediction(*(None if x[0] is None else joined(x, layout, axis, num_rows) for x, axis in fields))


def check_run(guide: InducingGuide | None, **counts: int) -> None:
    """Refuse a guide that has not seen data, and counts below one.

    Raises:
        ValueError: naming the count.
    """
    if guide is not None and guide.sites is None:
        raise ValueError(
            "This guide has not seen data, which fix what is latent: call guide.setup(X, y) with training data first."
        )
    for name, value in counts.items():
        checks.positive_int(name, value)


def identity_of(static: Mapping[str, Any]) -> tuple:
    """The identity of static arguments: their values where these can be compared, else the objects themselves.

    Unlike a ``repr``, it never takes two of them for one. It keeps the objects alive.
    """
    leaves, structure = jax.tree.flatten(dict(static))
    return structure, tuple(map(_identity, leaves))


def _identity(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return "array", leaf.shape, leaf.dtype.str, leaf.tobytes()
    try:
        hash(leaf)
    except TypeError:
        return _Itself(leaf)
    return type(leaf), leaf  # 1 and True and 1.0 are equal


class _Itself:
    """An object without a hash, equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


#: Parameters; arguments of training and their arrays, if any; the key of the views.
_Rest: TypeAlias = tuple[dict[str, Any], Any, PRNGKeyArray]


#: Bytes of what is kept of all draws at the training inputs; what is larger is computed again for every batch.
_MOST_KEPT = 2**30


def _bytes(function: Callable, *args: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(function, *args)))


def _compile(run: Runner, draws: int) -> tuple[Callable, Callable, set[str]]:
    """What the draws say at the training inputs, what follows for a batch of new inputs, and sites without batches.

    These are known after the first batch ``"of rows"``.
    """
    fixed: set[str] = set()

    @jax.jit
    def at_training(keys: Shaped[Array, "S ..."], samples: dict, rest: _Rest) -> Any:
        params, train, views = rest

        def one_draw(draw: tuple[Any, Any]) -> Any:
            return run.at_training(*draw, params, train, views)

        return jax.lax.map(one_draw, (keys, samples), batch_size=min(10, draws))

    @partial(jax.jit, static_argnums=0)
    def one_batch(
        which: str,
        keys: Shaped[Array, "S ..."],
        samples: dict,
        training: Any,
        rows: tuple[Integer[Array, " N"], Integer[Array, ""]],
        batch: tuple,
        tests: dict,
        arrays: dict,
        rest: _Rest,
    ) -> Any:
        def one_draw(draw: tuple[Any, Any, Any]) -> dict[str, Path]:
            paths = run(*draw, BatchRows(*rows, run.layouts), batch, tests, arrays, *rest)
            if which != "all":
                fixed.update(name for name in paths if name not in run.layouts)
                # What is left out here is not computed.
                paths = {name: path for name, path in paths.items() if (name in fixed) == (which == "fixed")}
            return {name: without_variance(path) for name, path in paths.items()} if run.asked.mean_only else paths

        if draws == 1:
            path = one_draw(jax.tree.map(lambda x: x[0], (keys, samples, training)))
            return {name: of_one_path(site, run.asked) for name, site in path.items()}
        each = jax.lax.map(one_draw, (keys, samples, training), batch_size=min(10, draws))
        return {name: of_paths(site, run.asked) for name, site in each.items()}

    return at_training, one_batch, fixed
