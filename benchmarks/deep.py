"""Training steps, and predictions, of doubly stochastic deep GPs, beside GPflux and GPyTorch.

RBF kernels with a lengthscale for each of 8 dimensions, one kernel and one set of inducing inputs for all outputs of a
layer, identity means and no noise in the inner layers, a full whitened posterior, a Gaussian likelihood, one draw.
GPyTorch shares a layer's kernel in its parameters only, not in its arithmetic. The bounds at the start are means of
draws: inner layers start with so little variance that these hardly move them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from data import JITTER, regression, wave
from limit import layer
from peer import Timed, main, work
from steps import by_fit, by_tensorflow, by_torch, rbf_of_torch, set_up_tensorflow, set_up_torch, versions_of

WIDTH, M, NOISE, LENGTHSCALE = 8, 100, 0.05, 2.0
#: Where training starts: the variance of inner kernels, and the scale of their ``q(u)``.
INNER_VARIANCE, INNER_SCALE = 1e-2, 1e-5


def _case(layers: int, block: int, dtype: str = "float32", batch: int = 1000) -> dict[str, Any]:
    own = [layer(M, batch, WIDTH, 1 if i == layers - 1 else WIDTH, drawn=i > 0) for i in range(layers)]
    return {"L": layers, "batch": batch, "block": block, "dtype": dtype, "peers": ["gpflux", "gpytorch"], "layers": own}


CASES = {
    "2 layers, B 1000, float32": _case(2, 80),
    "3 layers, B 1000, float32": _case(3, 40),
    "5 layers, B 1000, float32": _case(5, 25),
    "2 layers, B 1000, float64": _case(2, 40, "float64"),
}


def gpzoo_model(case: Mapping[str, Any], X: np.ndarray, y: np.ndarray, scale: float = INNER_SCALE) -> tuple:
    """The program, its guide, its parameters and its keyword arguments."""
    import jax

    from gpzoo import InducingPoints
    from gpzoo.inference import InducingGuide
    from gpzoo.models import deep_gp, gaussian, inner_scales, linear_layers, rbf

    layers = linear_layers(X, [WIDTH] * (case["L"] - 1))

    def kernel(name: str, h: Any) -> Any:
        return rbf(name, h, variance=1.0 if name == "f" else INNER_VARIANCE, lengthscale=LENGTHSCALE)

    options = {"layers": layers, "kernel": kernel, "likelihood": partial(gaussian, noise_variance=NOISE)}
    options |= {"layer_noise": None}
    guide = InducingGuide(deep_gp, InducingPoints(X[:M]), initial_scale=inner_scales(layers, scale))
    params = guide.init_params(jax.random.key(0), X[:1000], y[:1000], model_kwargs=options)
    return deep_gp, guide, params | {"f_mean": wave(M, case["dtype"])}, options


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Ours."""
    import numpyro
    import optax
    from numpyro.infer import SVI

    from gpzoo.inference import GaussianProcessELBO

    numpyro.enable_x64(case["dtype"] == "float64")
    X, y = regression(10_000, case["dtype"])
    model, guide, params, options = gpzoo_model(case, X, y)
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
    return by_fit(svi, params, X, y, batch=case["batch"], block=case["block"], draws=20, **options)


def gpflux_model(case: Mapping[str, Any], X: np.ndarray, scale: float = INNER_SCALE) -> Any:
    """The same model of GPflux, whose jitter is absolute: relative to the inner variances here."""
    import gpflow
    import gpflux

    dtype, layers = case["dtype"], []
    set_up_tensorflow(dtype, JITTER[dtype] * INNER_VARIANCE)
    for i in range(case["L"]):
        last = i == case["L"] - 1
        base = gpflow.kernels.SquaredExponential(1.0 if last else INNER_VARIANCE, np.full(WIDTH, LENGTHSCALE, dtype))
        kernel = gpflow.kernels.SharedIndependent(base, 1 if last else WIDTH)
        points = gpflow.inducing_variables.InducingPoints(X[:M])
        inducing = gpflow.inducing_variables.SharedIndependentInducingVariables(points)
        mean = gpflow.mean_functions.Zero() if last else gpflow.mean_functions.Identity()
        layers.append(gpflux.layers.GPLayer(kernel, inducing, len(X), mean, name=f"layer_{i}"))
        layers[-1].q_sqrt.assign((1.0 if last else scale) * layers[-1].q_sqrt)
    layers[-1].q_mu.assign(wave(M, dtype)[:, None])
    return gpflux.models.DeepGP(layers, gpflow.likelihoods.Gaussian(NOISE))


def gpflux_steps(case: Mapping[str, Any]) -> Timed:
    """GPflux."""
    X, y = regression(10_000, case["dtype"])
    model = gpflux_model(case, X)
    settings = {"batch": case["batch"], "rate": 1e-3, "draws": 20, "versions": versions_of("gpflux", "tensorflow")}
    variables = lambda: model.trainable_variables  # noqa: E731
    return by_tensorflow(lambda batch: -model.elbo(batch), variables, X, y[:, None], **settings)


def gpytorch_model(case: Mapping[str, Any], X: np.ndarray, scale: float = INNER_SCALE) -> Any:
    """The same model of GPyTorch."""
    import gpytorch
    import torch
    from gpytorch.models.deep_gps import DeepGP, DeepGPLayer

    dtype = case["dtype"]
    set_up_torch(dtype)

    class Layer(DeepGPLayer):
        def __init__(self, last: bool) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(M, torch.Size([] if last else [WIDTH]))
            variance = 1.0 if last else INNER_VARIANCE
            strategy = gpytorch.variational.VariationalStrategy(
                self, torch.tensor(X[:M]), q, jitter_val=JITTER[dtype] * variance
            )
            super().__init__(strategy, input_dims=WIDTH, output_dims=None if last else WIDTH)
            # Otherwise the first call puts the prior in place of what is set here.
            self.variational_strategy.variational_params_initialized.fill_(1)
            self.covar_module = rbf_of_torch(WIDTH, variance, LENGTHSCALE)
            if last:
                q.variational_mean.data.copy_(torch.tensor(wave(M, dtype)))
            else:
                q.variational_mean.data.zero_()
                q.chol_variational_covar.data.mul_(scale)

        def forward(self, h: Any) -> Any:
            if self.output_dims is None:
                mean = h.new_zeros(h.shape[:-1])
            else:  # inputs are repeated for every output, of which output d of the identity reads dimension d
                mean = torch.diagonal(h, dim1=-3, dim2=-1).mT if h.ndim > 2 else h.mT
            return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(h))

    class Deep(DeepGP):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(Layer(i == case["L"] - 1) for i in range(case["L"])))
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
            self.likelihood.noise = NOISE

        def forward(self, X: Any) -> Any:
            return self.layers(X)

    return Deep()


def gpytorch_steps(case: Mapping[str, Any]) -> Timed:
    """GPyTorch."""
    import gpytorch

    X, y = regression(10_000, case["dtype"])
    model = gpytorch_model(case, X)
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(X))
    objective = gpytorch.mlls.DeepApproximateMLL(bound)
    gpytorch.settings.num_likelihood_samples(1).__enter__()
    settings = {"batch": case["batch"], "rate": 1e-3, "draws": 20}
    return by_torch(lambda X, y: objective(model(X), y), model.parameters(), X, y, **settings)


STEPS: dict[str, Callable] = {"gpzoo": gpzoo_steps, "gpflux": gpflux_steps, "gpytorch": gpytorch_steps}

if __name__ == "__main__":
    work(STEPS) or main(__doc__, {"deep": CASES}, __file__)
