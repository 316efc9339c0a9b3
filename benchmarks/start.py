"""From the start of Python to 100 steps of sparse regression: 500 rows, 2 inputs, 20 inducing inputs, no minibatches.

"Cold" compiles everything, "kept" has what an earlier process compiled, as ours keeps it by itself and GPJax by JAX's
settings; the others keep nothing. Whole processes, as a user writes them: GPJax by its ``fit``, GPflow by a compiled
step, GPyTorch eager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data import regression
from peer import main, work

M, COLUMNS, ROWS, STEPS_TAKEN = 20, 2, 500, 100
CASES = {
    "cold": {"whole": True, "peers": ["gpflow", "gpjax", "gpytorch"]},
    "kept": {"whole": True, "kept": True, "peers": ["gpflow", "gpjax", "gpytorch"]},
}


def with_gpzoo(case: Mapping[str, Any]) -> dict[str, Any]:
    """Ours."""
    import jax
    import optax
    from numpyro.infer import SVI

    from gpzoo import InducingPoints
    from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
    from gpzoo.models import gp_regression

    X, y = regression(ROWS, "float32", COLUMNS)
    guide = InducingGuide(gp_regression, InducingPoints(X[:M]))
    svi = SVI(gp_regression, guide, optax.adam(0.01), GaussianProcessELBO())
    return {"loss": float(fit(jax.random.key(0), svi, STEPS_TAKEN, X, y, progress=False).losses[-1])}


def with_gpjax(case: Mapping[str, Any]) -> dict[str, Any]:
    """GPJax."""
    import gpjax
    import jax.numpy as jnp
    import optax
    from steps import posterior_of_gpjax

    X, y = map(jnp.asarray, regression(ROWS, "float32", COLUMNS))
    model = posterior_of_gpjax(COLUMNS, "float32", 0.1)
    q = gpjax.variational_families.WhitenedVariationalGaussian(model=model, inducing_inputs=X[:M])
    loss = lambda q, rows: -gpjax.objectives.elbo(q, rows)  # noqa: E731
    rows, adam = gpjax.Dataset(X=X, y=y[:, None]), optax.adam(0.01)
    options = {"objective": loss, "train_data": rows, "optim": adam, "num_iters": STEPS_TAKEN, "verbose": False}
    return {"loss": float(gpjax.fit(model=q, **options)[1][-1])}


def with_gpflow(case: Mapping[str, Any]) -> dict[str, Any]:
    """GPflow."""
    import gpflow
    import tensorflow as tf
    from steps import set_up_tensorflow

    set_up_tensorflow("float32", 1e-5)
    X, y = regression(ROWS, "float32", COLUMNS)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0] * COLUMNS)
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(0.1), X[:M], num_data=len(X))
    adam = tf.keras.optimizers.Adam(0.01)
    loss = model.training_loss_closure((tf.constant(X), tf.constant(y[:, None])), compile=False)
    step = tf.function(lambda: adam.minimize(loss, model.trainable_variables))
    for _ in range(STEPS_TAKEN):
        step()
    return {"loss": float(loss())}


def with_gpytorch(case: Mapping[str, Any]) -> dict[str, Any]:
    """GPyTorch."""
    import gpytorch
    import torch
    from steps import rbf_of_torch

    X, y = map(torch.tensor, regression(ROWS, "float32", COLUMNS))

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(M, mean_init_std=0.0)
            super().__init__(gpytorch.variational.VariationalStrategy(self, X[:M].clone(), q))
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), rbf_of_torch(COLUMNS)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = Model(), gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 0.1
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    for _ in range(STEPS_TAKEN):
        adam.zero_grad()
        loss = -objective(model(X), y)
        loss.backward()
        adam.step()
    return {"loss": len(X) * loss.item()}


RUNS = {"gpzoo": with_gpzoo, "gpjax": with_gpjax, "gpflow": with_gpflow, "gpytorch": with_gpytorch}

if __name__ == "__main__":
    work(RUNS) or main(__doc__, {"start": CASES}, __file__)
