"""Values and gradients of regression without minibatches, in float64: exact, and collapsed.

Exact: the log marginal likelihood of 1,000 and 2,000 rows, of a program whose GP site is the data, beside tinygp,
GPJax, GPyTorch (by Cholesky) and GPflow; and of ``marginal(program)``, whose GP site is latent, beside the same.
Collapsed: the bound of 10,000 rows and 200 inducing inputs beside GPflow, GPJax and GPyTorch. An RBF with a
lengthscale for each of 8 inputs; derivatives by the variance, lengthscales and noise, collapsed by inducing inputs
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from data import JITTER, regression
from peer import Timed, main, work
from steps import (
    posterior_of_gpjax,
    rbf_of_torch,
    set_up_tensorflow,
    set_up_torch,
    values_by_jax,
    values_by_tensorflow,
    values_by_torch,
    versions_of,
)

COLUMNS, NOISE, DTYPE = 8, 0.1, "float64"


def _case(rows: int, inducing: int = 0, integrated: bool = False) -> dict[str, Any]:
    peers = ["gpflow", "gpjax", "gpytorch"] + ([] if inducing else ["tinygp"])
    return {"rows": rows, "M": inducing, "integrated": integrated, "dtype": DTYPE, "peers": peers}


CASES = {
    "1,000 rows": _case(1000),
    "2,000 rows": _case(2000),
    "1,000 rows, marginal": _case(1000, integrated=True),
    "collapsed, 10,000 rows, M 200": _case(10_000, 200),
}


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Ours, by NumPyro's ``log_density`` or by ``CollapsedELBO``."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer.util import log_density

    from gpzoo import GaussianProcess, InducingPoints, kernels
    from gpzoo.inference import CollapsedELBO, InducingGuide, marginal
    from gpzoo.likelihoods import Gaussian
    from gpzoo.models import gp_regression

    numpyro.enable_x64(True)
    X, y = regression(case["rows"], DTYPE)
    logs = {"variance": np.zeros(()), "lengthscale": np.zeros(COLUMNS), "noise_variance": np.log(NOISE)}
    if case["M"]:
        guide = InducingGuide(gp_regression, InducingPoints(X[: case["M"]]))
        options = {"noise_variance": NOISE, "jitter": JITTER[DTYPE]}
        params = guide.init_params(jax.random.key(0), X, y, model_kwargs=options)
        q, trained = {name: params[name] for name in ("f_mean", "f_scale")}, params.keys() - {"f_mean", "f_scale"}
        logs = {name: params[name] if name == "f_inducing" else jnp.log(params[name]) for name in trained}

        def collapsed(logs: Mapping[str, Any], X: Any, y: Any) -> Any:
            params = {name: x if name == "f_inducing" else jnp.exp(x) for name, x in logs.items()} | q
            return -CollapsedELBO().loss(jax.random.key(0), params, gp_regression, guide, X, y, **options)

        return values_by_jax(collapsed, logs, X, y, versions=versions_of("jax", "numpyro"))

    def program(X: Any, y: Any) -> None:
        variance, lengthscale, noise = (numpyro.param(name, None) for name in logs)
        kernel = kernels.RBF(variance, lengthscale)
        if case["integrated"]:
            f = numpyro.sample("f", GaussianProcess(kernel + kernels.White(JITTER[DTYPE]), X, jitter=0.0))
            numpyro.sample("y", Gaussian(f, noise), obs=y)
        else:
            numpyro.sample("y", GaussianProcess(kernel + kernels.White(noise), X, jitter=JITTER[DTYPE]), obs=y)

    density = marginal(program) if case["integrated"] else program

    def value(logs: Mapping[str, Any], X: Any, y: Any) -> Any:
        return log_density(density, (X, y), {}, {name: jnp.exp(x) for name, x in logs.items()})[0]

    return values_by_jax(value, logs, X, y, versions=versions_of("jax", "numpyro"))


def tinygp_steps(case: Mapping[str, Any]) -> Timed:
    """See :func:`gpzoo_steps`."""
    import jax
    import jax.numpy as jnp
    import tinygp

    jax.config.update("jax_enable_x64", True)

    def value(logs: Mapping[str, Any], X: Any, y: Any) -> Any:
        scaled = tinygp.transforms.Linear(jnp.exp(-logs["lengthscale"]), tinygp.kernels.ExpSquared())
        kernel, noise = jnp.exp(logs["variance"]) * scaled, jnp.exp(logs["noise"]) + JITTER[DTYPE]
        return tinygp.GaussianProcess(kernel, X, diag=noise).log_probability(y)

    logs = {"variance": jnp.zeros(()), "lengthscale": jnp.zeros(COLUMNS), "noise": jnp.log(NOISE)}
    return values_by_jax(value, logs, *regression(case["rows"], DTYPE), versions=versions_of("tinygp", "jax"))


def gpjax_steps(case: Mapping[str, Any]) -> Timed:
    """GPJax."""
    import equinox as eqx
    import gpjax

    model = posterior_of_gpjax(COLUMNS, DTYPE, NOISE)
    X, y = regression(case["rows"], DTYPE)
    if case["M"]:
        model = gpjax.variational_families.CollapsedVariationalGaussian(model=model, inducing_inputs=X[: case["M"]])
    objective = gpjax.objectives.collapsed_elbo if case["M"] else gpjax.objectives.conjugate_mll
    params, static = eqx.partition(model, eqx.is_array)

    def value(params: Any, X: Any, y: Any) -> Any:
        return objective(eqx.combine(params, static), gpjax.Dataset(X=X, y=y))

    return values_by_jax(value, params, X, y[:, None], versions=versions_of("gpjax", "jax"))


def gpflow_steps(case: Mapping[str, Any]) -> Timed:
    """GPflow."""
    import gpflow

    set_up_tensorflow(DTYPE, JITTER[DTYPE])
    X, y = regression(case["rows"], DTYPE)
    rows, kernel = (X, y[:, None]), gpflow.kernels.SquaredExponential(lengthscales=np.ones(COLUMNS))
    if case["M"]:
        model = gpflow.models.SGPR(rows, kernel, X[: case["M"]].copy(), noise_variance=NOISE)
    else:
        model = gpflow.models.GPR(rows, kernel, noise_variance=NOISE + JITTER[DTYPE])
    value = model.elbo if case["M"] else model.log_marginal_likelihood
    return values_by_tensorflow(value, model.trainable_variables, DTYPE, versions_of("gpflow", "tensorflow"))


def gpytorch_steps(case: Mapping[str, Any]) -> Timed:
    """GPyTorch."""
    import gpytorch
    import torch

    set_up_torch(DTYPE)
    gpytorch.settings.max_cholesky_size(100_000).__enter__()
    X, y = map(torch.tensor, regression(case["rows"], DTYPE))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE + (0 if case["M"] else JITTER[DTYPE])

    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), rbf_of_torch(COLUMNS)
            if case["M"]:
                Z = X[: case["M"]].clone()
                self.covar_module = gpytorch.kernels.InducingPointKernel(self.covar_module, Z, likelihood)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Model()
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return values_by_torch(lambda: bound(model(X), y), model, len(X))


STEPS = {
    "gpzoo": gpzoo_steps,
    "tinygp": tinygp_steps,
    "gpjax": gpjax_steps,
    "gpflow": gpflow_steps,
    "gpytorch": gpytorch_steps,
}

if __name__ == "__main__":
    work(STEPS) or main(__doc__, {"exact": CASES}, __file__)
