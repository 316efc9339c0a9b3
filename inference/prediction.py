"""Prediction at new inputs: moments and densities, batch by batch, the same for any batching."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.primitives import Messenger

from gpzoo.distributions import GaussianProcess, InducingPosterior
from gpzoo.inducing import InducingPoints
from gpzoo.inference.guides import InducingGuide, representing
from gpzoo.inference.setup import find_sites, unmasked
from gpzoo.inference.training import _one_blas_thread
from gpzoo.likelihoods import Likelihood
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
        params: values of the ``numpyro.param`` sites.
        posterior_samples: MCMC draws by site name, ``[S, ...]``, in place of a guide; ``f`` at the new inputs is then
            conditioned on the draws at the training inputs, given in ``train_args``.
        train_args: the positional arguments of training; needed with ``posterior_samples`` and for observed GP sites
            (exact GP regression), which are conditioned on their data.
        train_kwargs: the keyword arguments of training, with ``train_args``.
        test_data: observed values by site name, ``[N, ...]``, for ``log_density``.
        num_draws: draws of the sites that must be drawn; programs without any need one pass.
        batch_size: rows at a time.
        **kwargs: the model's keyword arguments.

    Returns:
        A :class:`SitePrediction` for each GP site and each data site, by name.

    Raises:
        ValueError: for arguments that do not go together, rows that disagree, or unknown names in ``test_data``.
    """
    if (guide is None) == (posterior_samples is None) and not (guide is None and train_args is not None):
        raise ValueError("Give predict either guide= and params=, or posterior_samples= with train_args=.")
    if posterior_samples is not None and train_args is None:
        raise ValueError(
            "A latent f drawn by MCMC lives at the training inputs: give predict those, train_args=(X, y)."
        )
    for name, value in (("num_draws", num_draws), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}.")
    test_data = {name: jnp.asarray(value) for name, value in (test_data or {}).items()}
    rows = {np.shape(leaf)[0] for leaf in jax.tree.leaves((args, test_data)) if np.ndim(leaf)}
    if len(rows) != 1 or 0 in rows:
        raise ValueError(
            f"The new inputs and test data must have the same, positive number of rows; got {sorted(rows)}."
        )
    num_rows = rows.pop()
    batch_size = min(batch_size, num_rows)
    params = dict(params or {})
    if guide is not None:
        guide.setup(*args, **kwargs)
        source = _FromGuide(guide, params)
        draws = num_draws if guide.draws_anything else 1
        draw_args: Any = random.split(rng_key, draws)
    else:
        source = _FromTraining(model, params, train_args, dict(train_kwargs or {}))
        samples = {k: jnp.asarray(v) for k, v in (posterior_samples or {}).items()}
        draws = len(next(iter(samples.values()))) if samples else 1
        draw_args = (random.split(rng_key, draws), samples)

    def one_draw(draw: Any, rows: Array, batch: tuple, tests: dict, params: dict) -> dict[str, SitePrediction]:
        processes, trace = source.run(model, draw, rows, batch, kwargs, params)
        return processes | _data_sites(trace, tests)

    @jax.jit
    def one_batch(draw_args: Any, rows: Array, batch: tuple, tests: dict, params: dict) -> dict[str, SitePrediction]:
        if draws == 1:
            single = jax.tree.map(lambda x: x[0], draw_args)
            return one_draw(single, rows, batch, tests, params)
        each = jax.lax.map(lambda d: one_draw(d, rows, batch, tests, params), draw_args, batch_size=min(10, draws))
        return {name: _mixture(prediction) for name, prediction in each.items()}

    parts = []
    with _one_blas_thread():
        for start in range(0, num_rows, batch_size):
            # The last batch is filled up, so that all have one shape and one compiled program.
            rows = np.minimum(np.arange(start, start + batch_size), num_rows - 1)
            batch, tests = jax.tree.map(lambda x: jnp.asarray(x)[rows], (args, test_data))  # noqa: B023
            part = one_batch(draw_args, jnp.asarray(rows), batch, tests, params)
            keep = min(batch_size, num_rows - start)
            parts.append(jax.tree.map(lambda x: np.asarray(x)[:keep], part))  # noqa: B023
    result = jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
    if unknown := sorted(set(test_data) - set(result)):
        raise ValueError(f"test_data names {unknown}, but the sites are {sorted(result)}.")
    return result


class _FromGuide:
    """Runs a program with its guide in front of it."""

    def __init__(self, guide: InducingGuide, params: dict[str, Any]) -> None:
        self.guide = guide

    def run(
        self, model: Callable, key: Array, rows: Array, batch: tuple, kwargs: dict, params: dict
    ) -> tuple[dict[str, SitePrediction], dict]:
        guide_key, model_key = random.split(key)
        with handlers.block():
            with representing("marginals", rows):
                guide = handlers.substitute(handlers.seed(self.guide, guide_key), data=params)
                guide_trace = handlers.trace(guide).get_trace(*batch, **kwargs)
            run = handlers.substitute(handlers.replay(handlers.seed(model, model_key), guide_trace), data=params)
            trace = handlers.trace(run).get_trace(*batch, **kwargs)
        latent = {k: s for k, s in guide_trace.items() if isinstance(s.get("fn"), InducingPosterior)}
        hidden = {name for name, site in guide_trace.items() if site["type"] == "sample"}
        processes = {name: _process(site["fn"], site["value"]) for name, site in latent.items()}
        return processes, {name: site for name, site in trace.items() if name not in hidden}


class _FromTraining:
    """Runs a program with each GP site conditioned on its values at the training inputs."""

    def __init__(self, model: Callable, params: dict[str, Any], args: tuple, kwargs: dict) -> None:
        self.args, self.kwargs = args, kwargs
        sites = find_sites(handlers.substitute(model, data=params), args, kwargs, frozenset())
        self.drawn = sites.drawn

    def run(
        self, model: Callable, draw: tuple, rows: Array, batch: tuple, kwargs: dict, params: dict
    ) -> tuple[dict[str, SitePrediction], dict]:
        key, samples = draw
        known = params | samples
        with handlers.block():
            seeded = handlers.substitute(handlers.seed(model, key), data=known)
            train = handlers.trace(seeded).get_trace(*self.args, **self.kwargs)
            given = {
                name: (site["fn"], jnp.asarray(site["value"]))
                for name, site in train.items()
                if site["type"] == "sample" and isinstance(site["fn"], GaussianProcess)
            }
            others = {name: value for name, value in known.items() if name not in given}
            run = handlers.substitute(handlers.seed(_conditioned(model, given, self.drawn, rows), key), data=others)
            trace = handlers.trace(run).get_trace(*batch, **kwargs)
        conditioned = {n: s for n, s in trace.items() if isinstance(s.get("fn"), InducingPosterior)}
        processes = {name: _process(site["fn"], site["value"]) for name, site in conditioned.items()}
        hidden = set(conditioned) | set(samples)
        return processes, {name: site for name, site in trace.items() if name not in hidden}


def _conditioned(model: Callable, given: dict, drawn: frozenset[str], rows: Array) -> Callable:
    class Condition(Messenger):
        def process_message(self, msg: dict[str, Any]) -> None:
            if msg["type"] != "sample" or msg["name"] not in given:
                return
            name, (prior, value) = msg["name"], given[msg["name"]]
            centred = value - prior.mean
            mode = "draw" if name in drawn else "marginals"
            msg["fn"] = InducingPosterior(
                msg["fn"],
                InducingPoints(prior.X),
                centred,
                jnp.zeros_like(centred),
                whiten=False,
                value_as=mode,
                site=name,
                log=DrawLog(refuse=True) if mode == "marginals" else None,
                rows=rows,
            )
            msg["value"], msg["is_observed"] = None, False

    def run(*args: Any, **kwargs: Any) -> Any:
        with Condition():
            return model(*args, **kwargs)

    return run


def _process(posterior: InducingPosterior, value: Any) -> SitePrediction:
    if isinstance(value, GaussianMarginals):
        return SitePrediction(value.mean, value.variance)
    return SitePrediction(*posterior.marginals())


def _data_sites(trace: dict[str, Any], tests: dict[str, Array]) -> dict[str, SitePrediction]:
    found = {}
    for name, site in trace.items():
        if site["type"] != "sample" or type(site["fn"]).__name__ == "Unit":
            continue
        fn = unmasked(site["fn"])
        density = None
        if name in tests:
            score = fn.predictive_log_prob if isinstance(fn, Likelihood) else fn.log_prob
            density = score(tests[name])
        probs = getattr(fn, "probs", None) if fn.support.is_discrete else None
        mean = variance = None
        if probs is None or jnp.ndim(probs) != len(fn.batch_shape) + 1:
            probs, mean, variance = None, fn.mean, fn.variance
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
