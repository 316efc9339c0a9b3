"""Check of Laplace's approximation in a marginal program against the exact density."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.inference.bounds.marginal import marginal
from gpzoo.inference.diagnosis.findings import Diagnosis, finding, table
from gpzoo.inference.fitted.psis import largest_k, pareto
from gpzoo.inference.programs.calls import entry_point

#: Number of draws of hyperparameters at which the check is made.
_AT = 20

TITLE = "Laplace's approximation"


@entry_point
def check_laplace(
    rng_key: Array,
    program: marginal,
    *args: Argument,
    posterior_samples: Mapping[str, ArrayLike],
    num_draws: int = 1000,
    params: Mapping[str, Any] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Check Laplace's approximation, with which :class:`~gpzoo.inference.marginal` integrates functions out.

    The functions are made from white noise ``v``. For some draws of the hyperparameters, the check samples ``v`` from
    the approximation ``q(v)``. Each sample has the weight ``p(y, v) / (q(v) Z)``, where ``Z`` is the approximation of
    ``p(y)``. The expected weight is ``p(y) / Z``. The k-hat of the weights says whether their mean is a good estimate.
    The logarithm of this mean is the number of nats that are missing in ``log Z``. Missing nats affect the posterior of
    the hyperparameters only if their number *changes* with the hyperparameters. With inducing variables, ``p(y | v)``
    is ``E_p(f|u) log p(y | f)``, as in the program.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
        >>> from gpzoo import GaussianProcess, kernels
        >>> from gpzoo.inference import check_laplace, marginal
        >>> from gpzoo.likelihoods import Expected
        >>> def counts(X, y=None):
        ...     lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        ...     f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, lengthscale), X))
        ...     numpyro.sample("y", Expected(lambda f: dist.Poisson(jnp.exp(f)), f), obs=y)
        >>> X, y = np.linspace(0, 3, 8, dtype=np.float32)[:, None], np.array([1, 0, 2, 4, 7, 5, 3, 6])
        >>> draws = {"lengthscale": np.array([0.5, 1.0, 2.0], np.float32)}
        >>> found = check_laplace(jax.random.key(0), marginal(counts), X, y, posterior_samples=draws)
        >>> found.findings, bool(np.all(np.abs(found.arrays["log_ratio"]) < 0.1))
        ((), True)

    Args:
        rng_key: key of the draws.
        program: the marginal program.
        *args: the positional arguments of the program, data included.
        posterior_samples: draws of hyperparameters by site name, ``[S, ...]``.
        num_draws: number of draws of ``v`` at each draw of hyperparameters.
        params: values of the ``numpyro.param`` sites, if there are any.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        A diagnosis. Its table has the largest and the median k-hat, and the mean and the standard deviation of the
        missing nats over the draws of hyperparameters. ``arrays["log_ratio"]`` has the missing nats of every draw, and
        ``arrays["k"]`` has every k-hat.

    Raises:
        TypeError: for a program that is not marginal.
        ValueError: for draws that are missing, or counts below one.
    """
    program = checks.instance("program", program, marginal, "marginal(program)")
    samples = {name: jnp.asarray(value) for name, value in checks.named("posterior_samples", posterior_samples).items()}
    chosen = np.unique(np.linspace(0, min(map(len, samples.values()), default=1) - 1, _AT).astype(int))
    samples = jax.tree.map(lambda x: x[chosen], samples)
    num_draws = checks.positive_int("num_draws", num_draws)
    weights = np.asarray(program.log_weights(rng_key, samples, args, num_draws, params, model_kwargs), np.float64)
    k = np.array([pareto(each)[1] if np.all(np.isfinite(each)) else np.inf for each in weights])
    ratio = np.asarray(logsumexp(jnp.asarray(weights), axis=1)) - np.log(num_draws)
    most = largest_k(num_draws)
    rows = ((len(k), float(k.max()), float(np.median(k)), float(ratio.mean()), float(ratio.std())),)
    findings = (finding("laplace not trusted", None, k=float(k.max()), most=most),) if k.max() > most else ()
    return Diagnosis(findings, table(TITLE, rows, draws=num_draws, most=most), {"log_ratio": ratio, "k": k})
