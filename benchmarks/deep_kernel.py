"""Training steps of deep kernels, beside GPyTorch's SVDKL layer.

The network is d-1000-1000-500-50-c with c = 2 for 8 columns and 10 for 784, one GP on a grid of 64 points for each of
its features, softmax with ten draws, minibatches of 1,000. The models differ in a few parameters (GPyTorch's has a
constant mean, and scales features by those of the minibatch), so that no bounds are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from peer import Timed, main, work
from steps import by_fit, by_torch, set_up_torch

ROWS, BATCH, GRID, DRAWS, DTYPE = 10_000, 1000, 64, 10, "float32"
CASES = {
    f"d {columns}, float32": {"columns": columns, "classes": classes, "peers": ["gpytorch"], "other": True}
    for columns, classes in ((8, 2), (784, 10))
}


def data(case: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and classes that nothing explains."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, case["columns"])).astype(DTYPE)
    return X, rng.integers(case["classes"], size=ROWS)


def gpytorch_steps(case: Mapping[str, Any]) -> Timed:
    """GPyTorch."""
    import gpytorch
    import torch

    set_up_torch(DTYPE)
    X, y = data(case)
    c, layers = case["classes"], []
    for n, m in pairwise([case["columns"], 1000, 1000, 500, 50, c]):
        layers += [torch.nn.Linear(n, m), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])

    class Layer(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(GRID, batch_shape=torch.Size([c]))
            inner = gpytorch.variational.GridInterpolationVariationalStrategy(
                self, grid_size=GRID, grid_bounds=[(-1.0, 1.0)], variational_distribution=q
            )
            super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(inner, num_tasks=c))
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.mean_module = gpytorch.means.ConstantMean()

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Model(gpytorch.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.gp = net, Layer()
            self.scale = gpytorch.utils.grid.ScaleToBounds(-1.0, 1.0)

        def forward(self, x: torch.Tensor) -> Any:
            return self.gp(self.scale(self.net(x)).transpose(-1, -2).unsqueeze(-1))

    model = Model()
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_features=c, num_classes=c)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model.gp, num_data=len(X))
    parameters = [*model.parameters(), *likelihood.parameters()]
    gpytorch.settings.num_likelihood_samples(DRAWS).__enter__()
    return by_torch(lambda X, y: bound(model(X), y), parameters, X, y, batch=BATCH, rate=1e-3)._replace(bound=None)


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Ours."""
    import jax
    import optax
    from flax import nnx
    from numpyro.infer import SVI

    from gpzoo.inducing.grid import InducingGrid
    from gpzoo.inference import GaussianProcessELBO, InducingGuide
    from gpzoo.likelihoods import Softmax
    from gpzoo.models.deep_kernel import deep_kernel_gp
    from gpzoo.models.modules import network_of
    from gpzoo.models.networks import FullyConnected
    from gpzoo.models.train_deep_kernel import BOUNDS

    X, y = data(case)
    network = network_of(FullyConnected(case["columns"], case["classes"], rngs=nnx.Rngs(0)))
    model = partial(deep_kernel_gp, network=network, likelihood=partial(Softmax, num_draws=DRAWS))
    guide = InducingGuide(model, InducingGrid(GRID, BOUNDS))
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
    options = {"training": True}
    params = guide.init_params(jax.random.key(0), X[:BATCH], y[:BATCH], model_kwargs=options)
    return by_fit(svi, params, X, y, batch=BATCH, block=8, **options)


STEPS = {"gpzoo": gpzoo_steps, "gpytorch": gpytorch_steps}

if __name__ == "__main__":
    work(STEPS) or main(__doc__, {"deep_kernel": CASES}, __file__)
