"""Training steps of sparse regression, beside GPflow, GPJax and GPyTorch.

An RBF with a lengthscale for each of 8 inputs, a full whitened ``q(u)``, Gaussian noise. Adam for everything, or
natural gradients for ``q(u)`` and Adam for the rest, beside GPflow, whose natural step is given the one gradient that
there is. "Dispatch" has 200 rows and 20 inducing inputs, all rows in each step; elsewhere there are 10,000 rows in
minibatches. Of a sum of two functions ours has a site each, and theirs one kernel that is a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from data import JITTER, regression, wave
from limit import layer
from peer import Timed, main, work
from steps import (
    by_fit,
    by_jax,
    by_tensorflow,
    by_torch,
    posterior_of_gpjax,
    rbf_of_torch,
    set_up_tensorflow,
    set_up_torch,
    versions_of,
)

COLUMNS, NOISE = 8, 0.1


def _case(
    inducing: int, dtype: str, block: int, rows: int = 10_000, batch: int = 256, way: str = "adam"
) -> dict[str, Any]:
    peers = ["gpflow"] if way == "natural" else ["gpflow", "gpjax", "gpytorch"]
    case = {"M": inducing, "dtype": dtype, "block": block, "rows": rows, "batch": batch, "way": way, "peers": peers}
    return case | {"layers": [layer(inducing, batch, COLUMNS)]}


CASES = {
    "M 20, dispatch, float32": _case(20, "float32", 2000, 200, 200),
    "M 100, float32": _case(100, "float32", 500),
    "M 500, float32": _case(500, "float32", 40),
    "M 100, float64": _case(100, "float64", 300),
    "M 500, float64": _case(500, "float64", 20),
    "M 100, natural, float64": _case(100, "float64", 300, way="natural"),
    "M 500, natural, float64": _case(500, "float64", 20, way="natural"),
    # Not the same q: ours has 100 variables for each function, theirs 200 for the sum.
    "two functions, M 100 each, float32": _case(100, "float32", 200)
    | {"sum": True, "peers": ["gpflow"], "other": True},
}


def gpzoo_model(inducing: int, X: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    """The program, its guide, its parameters and its keyword arguments."""
    import jax

    from gpzoo import InducingPoints
    from gpzoo.inference import InducingGuide
    from gpzoo.models import gp_regression

    guide = InducingGuide(gp_regression, InducingPoints(X[:inducing]))
    options = {"noise_variance": NOISE, "jitter": JITTER[str(X.dtype)]}
    params = guide.init_params(jax.random.key(0), X, y, model_kwargs=options)
    return gp_regression, guide, params | {"f_mean": wave(inducing, str(X.dtype))}, options


def gpzoo_sum(inducing: int, X: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    """:func:`gpzoo_model` of the sum of two functions, whose variables have one ``q``."""
    import jax
    import numpyro

    from gpzoo import GaussianProcess, InducingPoints
    from gpzoo.inference import InducingGuide
    from gpzoo.likelihoods import Gaussian
    from gpzoo.models import positive, rbf

    def program(X: Any, y: Any = None, *, num_data: int, jitter: float) -> None:
        f, g = (numpyro.sample(name, GaussianProcess(rbf(name, X), X, jitter=jitter)) for name in "fg")
        with numpyro.plate("data", num_data, subsample_size=len(X)):
            numpyro.sample("y", Gaussian(f + g, positive("noise", NOISE, X)), obs=y)

    guide = InducingGuide(program, InducingPoints(X[:inducing]))
    options = {"jitter": JITTER[str(X.dtype)]}
    params = guide.init_params(jax.random.key(0), X, y, model_kwargs=options | {"num_data": len(X)})
    return program, guide, params, options


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Ours."""
    import numpyro
    import optax
    from numpyro.infer import SVI

    from gpzoo.inference import GaussianProcessELBO

    numpyro.enable_x64(case["dtype"] == "float64")
    X, y = regression(case["rows"], case["dtype"])
    model, guide, params, options = (gpzoo_sum if case.get("sum") else gpzoo_model)(case["M"], X, y)
    svi, natural = SVI(model, guide, optax.adam(0.01), GaussianProcessELBO()), 0.1 if case["way"] == "natural" else None
    return by_fit(svi, params, X, y, batch=case["batch"], block=case["block"], natural=natural, **options)


def gpjax_model(inducing: int, X: np.ndarray) -> Any:
    """The same model of GPJax."""
    import gpjax
    import jax.numpy as jnp

    posterior = posterior_of_gpjax(COLUMNS, str(X.dtype), NOISE)
    mean = jnp.asarray(wave(inducing, str(X.dtype)))[:, None]
    settings = {"inducing_inputs": jnp.asarray(X[:inducing]), "variational_mean": mean}
    return gpjax.variational_families.WhitenedVariationalGaussian(model=posterior, **settings)


def gpjax_steps(case: Mapping[str, Any]) -> Timed:
    """GPJax, whose ``fit`` compiles at every call: its steps are in a loop that is compiled once."""
    import equinox as eqx
    import gpjax

    X, y = regression(case["rows"], case["dtype"])
    params, static = eqx.partition(gpjax_model(case["M"], X), eqx.is_array)

    def loss(params: Any, X: Any, y: Any) -> Any:
        return -gpjax.objectives.elbo(eqx.combine(params, static), gpjax.Dataset(X=X, y=y, n_total=case["rows"]))

    return by_jax(loss, params, X, y[:, None], batch=case["batch"], versions=versions_of("gpjax", "jax"))


def gpflow_model(inducing: int, X: np.ndarray, functions: int = 1) -> Any:
    """The same model of GPflow."""
    import gpflow

    dtype = str(X.dtype)
    set_up_tensorflow(dtype, JITTER[dtype])
    kernels = [gpflow.kernels.SquaredExponential(lengthscales=np.ones(COLUMNS, dtype)) for _ in range(functions)]
    kernel = gpflow.kernels.Sum(kernels) if functions > 1 else kernels[0]
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(NOISE), X[:inducing], num_data=len(X))
    model.q_mu.assign(wave(inducing, dtype)[:, None])
    return model


def gpflow_steps(case: Mapping[str, Any]) -> Timed:
    """GPflow."""
    import gpflow
    import tensorflow as tf

    X, y = regression(case["rows"], case["dtype"])
    model = gpflow_model(2 * case["M"], X, 2) if case.get("sum") else gpflow_model(case["M"], X)
    q = model.q_mu, model.q_sqrt
    settings: dict[str, Any] = {"batch": case["batch"], "versions": versions_of("gpflow", "tensorflow")}
    variables = lambda: model.trainable_variables  # noqa: E731
    if case["way"] == "natural":
        adam, natural = tf.keras.optimizers.Adam(0.01), gpflow.optimizers.NaturalGradient(0.1)
        own = [each.unconstrained_variable for each in q]
        others = [each for each in model.trainable_variables if all(each is not one for one in own)]
        variables = lambda: [*own, *others]  # noqa: E731

        def apply(gradients: Any, _: Any) -> None:
            natural._natgrad_apply_gradients(*gradients[:2], *q)
            adam.apply_gradients(zip(gradients[2:], others, strict=True))

        settings["apply"] = apply
    return by_tensorflow(model.training_loss, variables, X, y[:, None], **settings)


def gpytorch_model(inducing: int, X: np.ndarray) -> tuple[Any, Any]:
    """The same model of GPyTorch, and its likelihood."""
    import gpytorch
    import torch

    dtype = str(X.dtype)
    set_up_torch(dtype)

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(inducing)
            Z = torch.tensor(X[:inducing])
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q, jitter_val=JITTER[dtype]))
            # Otherwise the first call puts the prior in place of what is set here.
            self.variational_strategy.variational_params_initialized.fill_(1)
            q.variational_mean.data.copy_(torch.tensor(wave(inducing, dtype)))
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), rbf_of_torch(COLUMNS)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE
    return Model(), likelihood


def gpytorch_steps(case: Mapping[str, Any]) -> Timed:
    """GPyTorch."""
    import gpytorch

    X, y = regression(case["rows"], case["dtype"])
    model, likelihood = gpytorch_model(case["M"], X)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    parameters = [*model.parameters(), *likelihood.parameters()]
    return by_torch(lambda X, y: bound(model(X), y), parameters, X, y, batch=case["batch"])


STEPS = {"gpzoo": gpzoo_steps, "gpjax": gpjax_steps, "gpflow": gpflow_steps, "gpytorch": gpytorch_steps}

if __name__ == "__main__":
    work(STEPS) or main(__doc__, {"sparse": CASES}, __file__)
