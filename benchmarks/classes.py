"""Training steps of classifiers of images, convolutions and kernels of all pixels: beside GPflow and GPyTorch.

Images of 28 x 28 in ten classes, or in two with few inducing patches of 3 x 3 as for the rectangles data; a full
whitened ``q(u)`` for every class. A convolution that is invariant has no weights, one of colours those of the patches
of every channel. The likelihood is the robust-max one, with 20 points of quadrature, or softmax with
ten draws; of two classes Bernoulli. Adam for everything, patches or inducing images included.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from data import JITTER, images, patches, wave
from limit import layer
from peer import Timed, main, work
from steps import by_fit, by_tensorflow, by_torch, rbf_of_torch, set_up_tensorflow, set_up_torch, versions_of

SIDE, LENGTHSCALE = 28, {True: 1.5, False: 5.0}


def _case(
    inducing: int,
    batch: int,
    block: int,
    patch: int = 0,
    classes: int = 10,
    dtype: str = "float32",
    softmax: bool = False,
    weighted: bool = True,
    channels: int = 1,
) -> dict[str, Any]:
    case = {"M": inducing, "batch": batch, "block": block, "patch": patch, "classes": classes, "dtype": dtype}
    case |= {"weighted": weighted, "channels": channels}
    outputs, places = classes if classes > 2 else 1, channels * (SIDE - patch + 1) ** 2 if patch else 1
    own = layer(inducing, batch, patch**2 or SIDE**2, outputs, patches=places, pairs=bool(patch))
    peers = ["gpflow", "gpytorch"] if softmax else ["gpflow"]
    return case | {"softmax": softmax, "peers": peers, "layers": [own]}


CASES = {
    "weighted convolution, M 16, B 100, two classes, float32": _case(16, 100, 10, 3, classes=2),
    "weighted convolution, M 750, B 32, float32": _case(750, 32, 6, 5),
    "weighted convolution, M 750, B 100, float32": _case(750, 100, 3, 5),
    "weighted convolution, M 750, B 200, float32": _case(750, 200, 2, 5),
    "weighted convolution, M 750, B 100, float64": _case(750, 100, 2, 5, dtype="float64"),
    "invariant convolution, M 750, B 100, float32": _case(750, 100, 3, 5, weighted=False),
    "colour convolution, M 500, B 32, float32": _case(500, 32, 3, 5, channels=3),
    "pixels, M 750, B 200, float32": _case(750, 200, 6),
    "pixels, M 750, B 200, softmax, float32": _case(750, 200, 6, softmax=True),
}


def data(case: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images, classes, inducing patches or images, and a mean of ``q(u)``."""
    X, y = images(2000, case["dtype"], case["classes"])
    if case["channels"] > 1:  # the same image in every channel, brighter or darker
        X = X[..., None] * np.linspace(0.5, 1, case["channels"], dtype=X.dtype)
        Z = patches(X[..., -1], case["M"], case["patch"])
        return X, y, Z, wave(case["M"], case["dtype"], case["classes"])
    Z = patches(X, case["M"], case["patch"]) if case["patch"] else X[: case["M"]].reshape(-1, SIDE**2)
    return X, y, Z, wave(case["M"], case["dtype"], case["classes"] if case["classes"] > 2 else None)


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Ours."""
    import jax
    import numpyro
    import optax
    from numpyro.infer import SVI

    from gpzoo import InducingPatches, InducingPoints
    from gpzoo.inference import GaussianProcessELBO, InducingGuide
    from gpzoo.likelihoods import Softmax
    from gpzoo.models import convolutional_gp, gp_classification, rbf

    numpyro.enable_x64(case["dtype"] == "float64")
    X, y, Z, mean = data(case)
    options: dict[str, Any] = {"num_classes": case["classes"], "jitter": JITTER[case["dtype"]]}
    scale = LENGTHSCALE[bool(case["patch"])]
    if case["patch"]:
        model, inducing, X = convolutional_gp, InducingPatches(Z), X.reshape(len(X), SIDE, SIDE, -1)
        options |= {"patch_shape": (case["patch"], case["patch"]), "lengthscale": scale, "white": 0.0}
        options |= {"weighted": case["weighted"]}
    else:
        model, inducing, X = gp_classification, InducingPoints(Z), X.reshape(len(X), -1)
        options |= {"kernel": partial(rbf, lengthscale=scale)}
    if case["softmax"]:
        options["likelihood"] = partial(Softmax, num_draws=10)
    guide = InducingGuide(model, inducing, initial_scale=0.5)
    svi, batch = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO()), case["batch"]
    params = guide.init_params(jax.random.key(0), X[:batch], y[:batch], model_kwargs=options) | {"f_mean": mean}
    draws = 20 if case["softmax"] else 1
    return by_fit(svi, params, X, y, batch=batch, block=case["block"], draws=draws, **options)


def gpflow_steps(case: Mapping[str, Any]) -> Timed:
    """GPflow."""
    import gpflow

    dtype, classes, patch = case["dtype"], case["classes"], case["patch"]
    set_up_tensorflow(dtype, JITTER[dtype])
    X, y, Z, mean = data(case)
    scale = LENGTHSCALE[bool(patch)]
    if patch:
        base = gpflow.kernels.SquaredExponential(lengthscales=scale)
        shapes = [SIDE, SIDE], [patch, patch]
        kernel = gpflow.kernels.Convolutional(base, *shapes, colour_channels=case["channels"])
        gpflow.set_trainable(kernel.weights, case["weighted"])
        inducing = gpflow.inducing_variables.InducingPatches(Z)
    else:
        kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(SIDE**2, scale, dtype))
        inducing = gpflow.inducing_variables.InducingPoints(Z)
    if case["softmax"]:
        likelihood = gpflow.likelihoods.Softmax(classes)
        likelihood.num_monte_carlo_points = 10
    else:
        likelihood = gpflow.likelihoods.MultiClass(classes) if classes > 2 else gpflow.likelihoods.Bernoulli()
    mean = mean if mean.ndim == 2 else mean[:, None]
    model = gpflow.models.SVGP(kernel, likelihood, inducing, num_latent_gps=mean.shape[1], num_data=len(X))
    model.q_mu.assign(mean)
    model.q_sqrt.assign(0.5 * model.q_sqrt)
    X, y = X.reshape(len(X), -1), y[:, None].astype(np.int64 if case["softmax"] else dtype)
    settings = {"batch": case["batch"], "rate": 1e-3, "versions": versions_of("gpflow", "tensorflow")}
    draws = 20 if case["softmax"] else 1
    return by_tensorflow(model.training_loss, lambda: model.trainable_variables, X, y, draws=draws, **settings)


def gpytorch_steps(case: Mapping[str, Any]) -> Timed:
    """GPyTorch: one kernel and one set of inducing images for all classes."""
    import gpytorch
    import torch

    dtype, classes = case["dtype"], case["classes"]
    set_up_torch(dtype)
    X, y, Z, mean = data(case)

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z), batch_shape=torch.Size([classes]))
            one = gpytorch.variational.VariationalStrategy(self, torch.tensor(Z), q, jitter_val=JITTER[dtype])
            super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(one, num_tasks=classes))
            one.variational_params_initialized.fill_(1)
            q.variational_mean.data.copy_(torch.tensor(mean.T))
            q.chol_variational_covar.data.mul_(0.5)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = rbf_of_torch(SIDE**2, lengthscale=LENGTHSCALE[False])

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Model()
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_features=classes, num_classes=classes, mixing_weights=False)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    gpytorch.settings.num_likelihood_samples(10).__enter__()
    X, y = X.reshape(len(X), -1), y.astype(np.int64)
    settings = {"batch": case["batch"], "rate": 1e-3, "draws": 20}
    return by_torch(lambda X, y: bound(model(X), y), model.parameters(), X, y, **settings)


STEPS = {"gpzoo": gpzoo_steps, "gpflow": gpflow_steps, "gpytorch": gpytorch_steps}

if __name__ == "__main__":
    work(STEPS) or main(__doc__, {"classes": CASES}, __file__)
