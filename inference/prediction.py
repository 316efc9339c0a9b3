"""Prediction at new inputs: moments and densities, batch by batch, the same for any batching."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, random
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.distributions.distribution import Unit
from numpyro.primitives import Messenger

from gpzoo.distributions import GaussianProcess, InducingPosterior
from gpzoo.inducing import InducingPoints
from gpzoo.inference.guides import InducingGuide, representing
from gpzoo.inference.setup import find_sites, unmasked
from gpzoo.inference.training import one_blas_thread, split_arrays
from gpzoo.likelihoods import Expected, Likelihood
from gpzoo.likelihoods.softmax import ClassLikelihood
from gpzoo.marginals import DrawLog, GaussianMarginals


class SitePrediction(NamedTuple):
    """Prediction of one site at ``N`` new inputs, as NumPy arrays.

    Attributes:
        mean: predictive mean, ``[N]`` or ``[N, D]``; ``None`` for labels, which have ``probs``.
        variance: predictive variance of every entry, the shape of ``mean``; of ``y`` it includes the noise.
        log_density: ``log p(y* | data)`` per datum, ``[N]``, in nats; ``None`` without test data, and for GP sites.
        probs: predictive class probabilities ``[N, K]``, where the likelihood has classes.
    """

    mean: np.ndarray | None
    variance: np.ndarray | None
    log_density: np.ndarray | None = None
    probs: np.ndarray | None = None


def predict(
    rng_key: Array,
    model: Callable,
    *args: Any,
    guide: InducingGuide | None = None,
    params: Mapping[str, Any] | None = None,
    posterior_samples: Mapping[str, Array] | None = None,
    train_args: tuple | None = None,
    train_kwargs: Mapping[str, Any] | None = None,
    test_data: Mapping[str, Any] | None = None,
    num_draws: int = 100,
    batch_size: int = 1000,
    **kwargs: Any,
) -> dict[str, SitePrediction]:
    """Predict every GP site and every data site of a program at new inputs.

    Likelihoods integrate over the marginals of ``f`` where the program allows it. Where it takes draws (inner layers of
    a deep GP, hyperparameters with a posterior, MCMC), the result is the mixture over draws: mean and variance by the
    law of total variance, densities averaged (deep GPs, eq. 18). A row's draws depend on ``rng_key`` and its position
    in the whole input, never on the batch.

    For draws of functions use :class:`numpyro.infer.Predictive` with the same guide: they are joint over the inputs.

    Args:
        rng_key: key of the draws.
        model: the program.
        *args: the model's positional arguments at the new inputs, one row per input.
        guide: trained :class:`~gpzoo.inference.InducingGuide`, with ``params``.
        params: values of the ``numpyro.param`` (and mutable) sites, such as a :class:`FitResult`'s.
        posterior_samples: MCMC draws by site name, ``[S, ...]``, in place of a guide; ``f`` at the new inputs is then
            conditioned on the draws at the training inputs, given in ``train_args``.
        train_args: the positional arguments of training; needed with ``posterior_samples`` and for observed GP sites
            (exact GP regression), which are conditioned on their data. The training covariance is factorised for every
            draw and batch: take large batches.
        train_kwargs: the keyword arguments of training, with ``train_args``.
        test_data: observed values by site name, ``[N, ...]``, for ``log_density``.
        num_draws: draws of the sites that must be drawn; programs without any need one pass.
        batch_size: rows at a time.
        **kwargs: the model's keyword arguments.

    Returns:
        A :class:`SitePrediction` for each GP site and each data site, by name.

    Raises:
        ValueError: for arguments that do not go together; rows that disagree; unknown names in ``test_data``; sites
            of the program that ``params`` or ``posterior_samples`` give no value; a guide that has not seen data; an
            observed GP site without ``train_args``; sites that the guide draws jointly, in several batches.
    """
    return _predict(
        _compile,
        rng_key,
        model,
        args,
        kwargs,
        guide=guide,
        params=params,
        posterior_samples=posterior_samples,
        train_args=train_args,
        train_kwargs=train_kwargs,
        test_data=test_data,
        num_draws=num_draws,
        batch_size=batch_size,
    )


class Predictor:
    """:func:`predict` with a trained guide, again and again: compiled once, for evaluations during training.

    ``predictor(rng_key, X, params=params, test_data={"y": y})["y"]``

    As under ``jax.jit``, what the program reads from anywhere but its arguments is fixed by the first call.

    Args:
        model: the program.
        guide: its guide, which has seen data.
        num_draws: draws of the sites that must be drawn.
        batch_size: rows at a time.
    """

    def __init__(self, model: Callable, guide: InducingGuide, *, num_draws: int = 100, batch_size: int = 1000) -> None:
        self.model, self.guide = model, guide
        self.settings = {"num_draws": num_draws, "batch_size": batch_size}
        self._compiled: dict[str, Callable] = {}

    def __call__(
        self,
        rng_key: Array,
        *args: Any,
        params: Mapping[str, Any],
        test_data: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, SitePrediction]:
        """Predict at new inputs with these parameters; see :func:`predict`."""
        settings = {"guide": self.guide, "params": params, "test_data": test_data, **self.settings}
        return _predict(self._compile, rng_key, self.model, args, kwargs, **settings)

    def _compile(self, run: _Runner, draws: int) -> Callable:
        key = repr(sorted(run.static.items()))
        if key not in self._compiled:
            self._compiled[key] = _compile(run, draws)
        return self._compiled[key]


def _predict(
    compile_run: Callable,
    rng_key: Array,
    model: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    *,
    guide: InducingGuide | None,
    params: Mapping[str, Any] | None,
    num_draws: int,
    batch_size: int,
    test_data: Mapping[str, Any] | None,
    posterior_samples: Mapping[str, Array] | None = None,
    train_args: tuple | None = None,
    train_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, SitePrediction]:
    _check_arguments(guide, posterior_samples, params, train_args, num_draws, batch_size)
    args, test_data = jax.tree.map(_array, (args, dict(test_data or {})))
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves((args, test_data))]
    rows = {shape[0] if shape else 0 for shape in shapes}
    if len(rows) != 1 or 0 in rows:
        raise ValueError(
            f"The new inputs and test data must be arrays with the same, positive number of rows; got shapes {shapes}."
        )
    num_rows = rows.pop()
    batch_size = min(batch_size, num_rows)
    if guide is not None and guide.joint and batch_size < num_rows:
        raise ValueError(
            f"The guide draws {sorted(guide.joint)} jointly over the inputs, so that a prediction depends on its "
            f"batch: pass batch_size={num_rows} or more."
        )
    samples = {name: jnp.asarray(value) for name, value in (posterior_samples or {}).items()}
    draws = len(next(iter(samples.values()))) if samples else 1
    if guide is not None and guide.draws_anything:
        draws = num_draws
    arrays, static = split_arrays(kwargs)
    train_arrays, train_static = split_arrays(dict(train_kwargs or {}))
    drawn = frozenset()
    if guide is None:
        given = {name: value[0] for name, value in samples.items()} | dict(params or {})
        drawn = find_sites(
            handlers.substitute(model, data=given), train_args, dict(train_kwargs or {}), frozenset()
        ).drawn
    one_batch = compile_run(_Runner(model, guide, drawn, static, train_static), draws)
    train = None if train_args is None else (train_args, train_arrays)
    keys = random.split(rng_key, draws)
    rest = (dict(params or {}), train)
    parts = []
    with one_blas_thread():
        for start in range(0, num_rows, batch_size):
            # The last batch is filled up, so that all have one shape and one compiled program.
            rows = np.minimum(np.arange(start, start + batch_size), num_rows - 1)
            batch, tests = jax.tree.map(lambda x: x[rows], (args, test_data))  # noqa: B023
            part = one_batch(keys, samples, rows, batch, tests, arrays, rest)
            if unknown := sorted(set(test_data) - set(part)):
                raise ValueError(f"test_data names {unknown}, but the sites are {sorted(part)}.")
            keep = min(batch_size, num_rows - start)
            parts.append(jax.tree.map(lambda x: np.asarray(x)[:keep], part))  # noqa: B023
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)


def _check_arguments(
    guide: Any, posterior_samples: Any, params: Any, train_args: Any, num_draws: int, batch_size: int
) -> None:
    if guide is not None and posterior_samples is not None:
        raise ValueError("Give predict either guide= and params=, or posterior_samples= with train_args=, not both.")
    if guide is None and train_args is None:
        raise ValueError(
            "Give predict guide= and params=; or, for MCMC (whose f lives at the training inputs) and exact "
            "regression, posterior_samples= or params= with train_args=(X, y)."
        )
    if guide is not None and params is None:
        raise ValueError("Give predict the trained params= of the guide.")
    if guide is not None and guide.sites is None:
        raise ValueError(
            "This guide has not seen data, which fix what is latent: call guide.setup(X, y) with training data first."
        )
    for name, value in (("num_draws", num_draws), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}.")


def _array(x: Any) -> Any:
    # Arrays of the host stay there until their rows are cut.
    return x if isinstance(x, jax.Array) else np.asarray(x)


class _Runner:
    """One draw at one batch: the guide or the samples give the latent sites, training data condition GP sites."""

    def __init__(
        self, model: Callable, guide: InducingGuide | None, drawn: frozenset[str], static: dict, train_static: dict
    ) -> None:
        self.model, self.guide, self.drawn = model, guide, drawn
        self.static, self.train_static = static, train_static

    def __call__(
        self,
        key: Array,
        samples: dict,
        rows: Array,
        batch: tuple,
        tests: dict,
        arrays: dict,
        params: dict,
        train: tuple | None,
    ) -> dict[str, SitePrediction]:
        known = params | samples
        given: dict[str, tuple[GaussianProcess, Array]] = {}
        seen: set[str] = set()
        if train is not None:
            args, train_arrays = train
            _, trace = self._traces(key, known, None, args, train_arrays | self.train_static, {})
            for name, site in trace.items():
                if site["type"] != "sample" or not isinstance(site["fn"], GaussianProcess):
                    continue
                if site["is_observed"] or self.guide is None:
                    given[name] = site["fn"], jnp.asarray(site["value"])
                if site["is_observed"]:
                    seen.add(name)
        others = {name: value for name, value in known.items() if name not in given}
        guide_trace, trace = self._traces(key, others, rows, batch, arrays | self.static, given)
        found = {}
        hidden = {name for name, site in guide_trace.items() if site["type"] == "sample"} | set(samples)
        for name, site in (trace | guide_trace).items():
            fn = site.get("fn")
            if isinstance(fn, InducingPosterior):
                found[name] = _process(fn, site["value"], tests.get(name) if name in seen else None)
        data = {name: site for name, site in trace.items() if name not in hidden | set(found)}
        return found | _data_sites(data, tests)

    def _traces(
        self, key: Array, known: dict, rows: Array | None, args: tuple, kwargs: dict, given: dict
    ) -> tuple[dict, dict]:
        guide_key, model_key = random.split(key)
        guide_trace: dict = {}
        with handlers.block():
            if self.guide is not None:
                with representing("marginals", rows):
                    guide = handlers.substitute(handlers.seed(self.guide, guide_key), data=known)
                    guide_trace = handlers.trace(guide).get_trace(*args, **kwargs)
            model = _conditioned(self.model, given, self.drawn, rows)
            model = handlers.substitute(handlers.replay(handlers.seed(model, model_key), guide_trace), data=known)
            trace = handlers.trace(model).get_trace(*args, **kwargs)
        drawn = {name for name, site in guide_trace.items() if site["type"] == "sample"}
        self._check_sites(guide_trace | trace, set(known), drawn, training=rows is None)
        return guide_trace, trace

    def _check_sites(self, trace: dict, known: set[str], drawn: set[str], training: bool) -> None:
        """Nothing may stay at its start, or at a draw of its prior, without a word."""
        loose = [n for n, site in trace.items() if site["type"] in ("param", "mutable") and n not in known]
        if loose:
            raise ValueError(f"params has no value for the site(s) {loose} of the program; it has {sorted(known)}.")
        for name, site in trace.items():
            if site["type"] != "sample" or site["is_observed"] or name in known | drawn:
                continue
            if self.guide is None and training:
                raise ValueError(f"posterior_samples has no draws of the latent site {name!r}.")
            if isinstance(site["fn"], GaussianProcess):
                raise ValueError(
                    f"GP site {name!r} is observed in training: give predict its data to condition on, "
                    "train_args=(X, y)."
                )


def _compile(run: _Runner, draws: int) -> Callable:
    @jax.jit
    def one_batch(keys: Array, samples: dict, rows: Array, batch: tuple, tests: dict, arrays: dict, rest: tuple) -> Any:
        def one_draw(draw: tuple) -> dict[str, SitePrediction]:
            return run(*draw, rows, batch, tests, arrays, *rest)

        if draws == 1:
            return one_draw(jax.tree.map(lambda x: x[0], (keys, samples)))
        each = jax.lax.map(one_draw, (keys, samples), batch_size=min(10, draws))
        return {name: _mixture(prediction) for name, prediction in each.items()}

    return one_batch


def _conditioned(model: Callable, given: dict, drawn: frozenset[str], rows: Array | None) -> Callable:
    """The program with GP sites conditioned on values at other inputs."""

    class Condition(Messenger):
        def process_message(self, msg: dict[str, Any]) -> None:
            if msg["type"] != "sample" or msg["name"] not in given:
                return
            name, (prior, value) = msg["name"], given[msg["name"]]
            centred = value - prior.mean
            how = "draw" if name in drawn else "marginals"
            msg["fn"] = InducingPosterior(
                msg["fn"],
                InducingPoints(prior.X),
                centred,
                jnp.zeros_like(centred),
                whiten=False,
                value_as=how,
                site=name,
                log=DrawLog(refuse=True) if how == "marginals" else None,
                rows=rows,
            )
            msg["value"], msg["is_observed"] = None, False

    def run(*args: Any, **kwargs: Any) -> Any:
        with Condition():
            return model(*args, **kwargs)

    return run


def _process(posterior: InducingPosterior, value: Any, test: Array | None) -> SitePrediction:
    marginal = isinstance(value, GaussianMarginals)
    mean, variance = (value.mean, value.variance) if marginal else posterior.marginals()
    density = None
    if test is not None:
        density = dist.Normal(mean, jnp.sqrt(variance)).log_prob(test)
        density = density if density.ndim == 1 else jnp.sum(density, axis=-1)
    return SitePrediction(mean, variance, density)


def _data_sites(trace: dict[str, Any], tests: dict[str, Array]) -> dict[str, SitePrediction]:
    found = {}
    for name, site in trace.items():
        if site["type"] != "sample" or isinstance(site["fn"], Unit):
            continue
        fn = unmasked(site["fn"])
        density = probs = mean = variance = None
        if name in tests:
            score = fn.predictive_log_prob if isinstance(fn, Likelihood) else fn.log_prob
            density = score(tests[name])
        classes = isinstance(fn, ClassLikelihood | dist.CategoricalProbs | dist.CategoricalLogits)
        if classes or (isinstance(fn, Expected) and fn.is_categorical):
            probs = fn.probs
        else:
            mean, variance = fn.mean, fn.variance
        found[name] = SitePrediction(mean, variance, density, probs)
    return found


def _mixture(each: SitePrediction) -> SitePrediction:
    """Moments and densities of the equal mixture over the leading axis."""
    mean = variance = density = probs = None
    if each.mean is not None:
        mean = jnp.mean(each.mean, axis=0)
        variance = jnp.mean(each.variance, axis=0) + jnp.var(each.mean, axis=0)
    if each.log_density is not None:
        density = logsumexp(each.log_density, axis=0) - jnp.log(len(each.log_density))
    if each.probs is not None:
        probs = jnp.mean(each.probs, axis=0)
    return SitePrediction(mean, variance, density, probs)
