"""NUTS on hyperparameters with functions integrated out: ours beside the same model elsewhere and by hand.

Four chains of 500 + 500 draws: 200 rows exactly, 2,000 rows with 100 inducing inputs, and 1,000 counts by Laplace's
approximation with 100, which no other library has. Beside it: by hand, the program that NumPyro's own documentation
teaches, a multivariate normal density, with NumPyro's own starting values and four chains in sequence; GPJax's
marginal likelihood under BlackJAX with its window adaptation; PyMC's ``gp.Marginal`` and ``gp.MarginalApprox`` (VFE),
which is in float64 and runs chains in two processes. Each run is a process of its own, compilation and start
included. Seconds are those of an effective draw, of the hyperparameter that has the fewest.

In one more case f is drawn, by chains of 150 + 150 draws: ours is ``whitened``, by hand ``f = L v`` with a standard
normal ``v``. Its seconds are those of a draw, because effective ones of so few are told too roughly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from peer import main, work

INDUCING, CHAINS, DRAWS = 100, 4, 500


def _case(kind: str, rows: int, dtype: str, *peers: str) -> dict[str, Any]:
    return {"whole": True, "kind": kind, "rows": rows, "dtype": dtype, "peers": list(peers), "pairs": 1}


CASES = {
    "exact, 200 rows, float64": _case("exact", 200, "float64", "numpyro", "blackjax", "pymc"),
    "collapsed, 2,000 rows, float64": _case("collapsed", 2000, "float64", "blackjax", "pymc"),
    "Laplace, 1,000 rows, float32": _case("laplace", 1000, "float32"),
    "f drawn, 100 rows, float64": _case("drawn", 100, "float64", "numpyro") | {"draws": 150},
}

#: Means of the logarithms of the hyperparameters under their priors, whose standard deviations are 1.
PRIORS = {"variance": 0.0, "lengthscale": 0.0, "noise": -2.0}


def run(library: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """Four chains, and what they are worth."""
    import numpy as np

    rng, kind, dtype = np.random.default_rng(0), case["kind"], case["dtype"]
    X = np.sort(rng.uniform(0, 12, (case["rows"], 1)), axis=0)
    truth = np.sin(X[:, 0])
    y = truth + 0.3 * rng.standard_normal(len(X)) if kind != "laplace" else rng.poisson(np.exp(truth))
    X, y = X.astype(dtype), y.astype(dtype) if kind != "laplace" else y
    draws = case.get("draws", DRAWS)
    samples, diverging = SIDES[library](kind, X, y, draws, dtype)
    logs = {name: np.log(np.asarray(samples[name], float)) for name in PRIORS if name in samples}
    if library == "pymc":
        import arviz as az

        ess, r_hat = ([float(getattr(az, name)(x)) for x in logs.values()] for name in ("ess", "rhat"))
    else:
        from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

        ess = [float(effective_sample_size(x)) for x in logs.values()]
        r_hat = [float(split_gelman_rubin(x)) for x in logs.values()]
    said = {
        "per": CHAINS * draws if kind == "drawn" else min(ess),
        "fewest_effective": min(ess),
        "largest_r_hat": max(r_hat),
        "divergences": int(np.sum(np.asarray(diverging))),
    }
    return said | {"means_of_logs": {name: float(x.mean()) for name, x in logs.items()}}


def with_gpzoo(case: str, X: Any, y: Any, draws: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """Ours."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from gpzoo import GaussianProcess, kernels, kmeans
    from gpzoo.inference import marginal, nuts, whitened
    from gpzoo.likelihoods import Expected, Gaussian

    numpyro.enable_x64(dtype == "float64")

    def program(X: Any, y: Any) -> None:
        h = {name: numpyro.sample(name, dist.LogNormal(m, 1.0)) for name, m in list(PRIORS.items())[:2]}
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(**h), X))
        if case == "laplace":
            numpyro.sample("y", Expected(lambda f: dist.Poisson(jnp.exp(f)), f), obs=y)
        else:
            numpyro.sample("y", Gaussian(f, numpyro.sample("noise", dist.LogNormal(PRIORS["noise"], 1.0))), obs=y)

    counts = {"num_warmup": draws, "num_samples": draws, "num_chains": CHAINS}
    of = whitened(program) if case == "drawn" else marginal(program, None if case == "exact" else kmeans(INDUCING))
    mcmc = nuts(jax.random.key(0), of, X, y, **counts)
    return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()["diverging"]


def with_numpyro(case: str, X: Any, y: Any, draws: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """By hand, exactly."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64(dtype == "float64")

    def program(X: Any, y: Any) -> None:
        variance, lengthscale, noise = (numpyro.sample(n, dist.LogNormal(m, 1.0)) for n, m in PRIORS.items())
        square = jnp.square((X - X.T) / lengthscale)
        K = variance * jnp.exp(-square / 2)
        if case == "drawn":
            v = numpyro.sample("v", dist.Normal(0, 1).expand([len(X)]).to_event(1))
            f = jnp.linalg.cholesky(K + 1e-9 * variance * jnp.eye(len(X))) @ v
            numpyro.sample("y", dist.Normal(f, jnp.sqrt(noise)).to_event(1), obs=y)
        else:
            numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(X)), K + noise * jnp.eye(len(X))), obs=y)

    counts = {"num_warmup": draws, "num_samples": draws, "num_chains": CHAINS}
    mcmc = MCMC(NUTS(program), **counts, chain_method="sequential", progress_bar=False)
    mcmc.run(jax.random.key(0), jnp.asarray(X), jnp.asarray(y))
    return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()["diverging"]


def with_gpjax(case: str, X: Any, y: Any, draws: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """GPJax and BlackJAX: chains after each other in one program."""
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    import blackjax
    import gpjax
    import jax.numpy as jnp

    rows, Z = gpjax.Dataset(X=jnp.asarray(X), y=jnp.asarray(y)[:, None]), jnp.asarray(inducing(X))

    def log_density(logs: dict[str, Any]) -> Any:
        kernel = gpjax.kernels.RBF(lengthscale=jnp.exp(logs["lengthscale"]), variance=jnp.exp(logs["variance"]))
        prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel, jitter=1e-6)
        posterior = prior * gpjax.likelihoods.Gaussian(obs_stddev=jnp.exp(logs["noise"] / 2))
        if case == "exact":
            density = gpjax.objectives.conjugate_mll(posterior, rows)
        else:
            q = gpjax.variational_families.CollapsedVariationalGaussian(model=posterior, inducing_inputs=Z)
            density = gpjax.objectives.collapsed_elbo(q, rows)
        return density - sum((logs[name] - m) ** 2 / 2 for name, m in PRIORS.items())

    start = {name: jnp.asarray(m, dtype) for name, m in PRIORS.items()}
    adapt = blackjax.window_adaptation(blackjax.nuts, log_density)

    def chain(key: Any) -> Any:
        first, second = jax.random.split(key)
        (state, parameters), _ = adapt.run(first, start, num_steps=draws)
        step = blackjax.nuts(log_density, **parameters).step

        def one(state: Any, key: Any) -> Any:
            state, info = step(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(one, state, jax.random.split(second, draws))[1]

    keys = jax.random.split(jax.random.key(0), CHAINS)
    position, diverging = jax.device_get(jax.jit(lambda keys: jax.lax.map(chain, keys))(keys))
    return {name: jnp.exp(x) for name, x in position.items()}, diverging


def with_pymc(case: str, X: Any, y: Any, draws: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """PyMC, with its own sampler."""
    import numpy as np
    import pymc as pm

    with pm.Model():
        variance, lengthscale, noise = (pm.LogNormal(name, m, 1.0) for name, m in PRIORS.items())
        kernel = variance * pm.gp.cov.ExpQuad(1, ls=lengthscale)
        if case == "exact":
            pm.gp.Marginal(cov_func=kernel).marginal_likelihood("y", X=X, y=y, sigma=pm.math.sqrt(noise))
        else:
            gp = pm.gp.MarginalApprox(cov_func=kernel, approx="VFE")
            gp.marginal_likelihood("y", X=X, Xu=inducing(X), y=y, sigma=pm.math.sqrt(noise))
        counts = {"draws": draws, "tune": draws, "chains": CHAINS, "cores": os.cpu_count()}
        found = pm.sample(**counts, random_seed=0, progressbar=False, compute_convergence_checks=False)
    return {name: np.asarray(found["posterior"][name]) for name in PRIORS}, found["sample_stats"]["diverging"]


SIDES: dict[str, Callable] = {"gpzoo": with_gpzoo, "numpyro": with_numpyro, "blackjax": with_gpjax, "pymc": with_pymc}


def inducing(X: Any) -> Any:
    """Evenly spaced inducing inputs, where k-means++ of one column of rows would put them nearly."""
    import numpy as np

    return np.linspace(X.min(), X.max(), INDUCING, dtype=X.dtype)[:, None]


if __name__ == "__main__":
    work({library: partial(run, library) for library in SIDES}) or main(__doc__, {"marginal": CASES}, __file__)
