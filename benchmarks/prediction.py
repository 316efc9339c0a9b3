"""Mean and variance of 100,000 new rows: sparse regression with 500 inducing inputs, and a deep GP with two draws.

A "step" is all rows. Ours is one call of ``predict``, with its own batches. GPflow's ``posterior()`` and GPJax's
``condition``, which are part of it, compute once what does not depend on the rows; then these and GPflux take batches
of 5,000 in a compiled function, GPyTorch without gradients. The bounds that are compared are the sums of the means of
both moments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import deep
import numpy as np
from data import JITTER, regression, wave
from peer import Timed, main, work
from steps import posterior_of_gpjax, rbf_of_torch, set_up_tensorflow, set_up_torch, versions_of

ROWS, BATCH, COLUMNS, M, NOISE, DTYPE = 100_000, 5000, 8, 500, 0.1, "float32"
#: Of a deep GP: draws for each row, and the scale of the inner ``q(u)``.
DRAWS, SCALE = 2, 0.5
CASES = {
    "sparse, M 500": {"L": 1, "dtype": DTYPE, "peers": ["gpflow", "gpjax", "gpytorch"]},
    "2 layers, M 100, 2 draws": {"L": 2, "dtype": DTYPE, "peers": ["gpflux", "gpytorch"]},
}


def _in_batches(made: Callable[[], Callable[[np.ndarray], tuple[Any, Any]]], versions: str) -> Timed:
    new = regression(ROWS, DTYPE, seed=1)[0]

    def predict() -> float:
        one = made()
        parts = [one(new[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
        mean, variance = (np.concatenate([np.asarray(part[k]) for part in parts]) for k in (0, 1))
        return float(mean.mean() + variance.mean())

    return Timed.of(predict, versions, predict())


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Ours."""
    import jax

    from gpzoo import InducingPoints
    from gpzoo.inference import InducingGuide, Trained
    from gpzoo.models import gp_regression

    (X, y), new = regression(10_000, DTYPE), regression(ROWS, DTYPE, seed=1)[0]
    if case["L"] > 1:
        model, guide, params, options = deep.gpzoo_model(case, X, y, SCALE)
    else:
        model, guide = gp_regression, InducingGuide(gp_regression, InducingPoints(X[:M]))
        options = {"noise_variance": NOISE, "jitter": JITTER[DTYPE]}
        params = guide.init_params(jax.random.key(0), X, y, model_kwargs=options) | {"f_mean": wave(M, DTYPE)}
    trained = Trained(model, guide, params)

    def predict() -> float:
        found = trained.predict(jax.random.key(1), new, num_draws=DRAWS, model_kwargs=options)["y"]
        return float(found.mean.mean() + found.variance.mean())

    return Timed.of(predict, versions_of("jax", "numpyro"), predict())


def gpjax_steps(case: Mapping[str, Any]) -> Timed:
    """GPJax."""
    import equinox as eqx
    import gpjax
    import jax.numpy as jnp

    X = jnp.asarray(regression(10_000, DTYPE)[0])
    q = gpjax.variational_families.WhitenedVariationalGaussian(
        model=posterior_of_gpjax(COLUMNS, DTYPE, NOISE),
        inducing_inputs=X[:M],
        variational_mean=jnp.asarray(wave(M, DTYPE))[:, None],
    )
    condition = eqx.filter_jit(lambda q: q.condition(None))

    @eqx.filter_jit
    def one(posterior: Any, x: Any) -> tuple[Any, Any]:
        found = posterior(x, covariance="diagonal")
        return found.mean, found.variance + NOISE

    return _in_batches(lambda: partial(one, condition(q)), versions_of("gpjax", "jax"))


def gpflow_steps(case: Mapping[str, Any]) -> Timed:
    """GPflow."""
    import gpflow
    import tensorflow as tf

    set_up_tensorflow(DTYPE, JITTER[DTYPE])
    X = regression(10_000, DTYPE)[0]
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(COLUMNS, DTYPE))
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(NOISE), X[:M], num_data=len(X))
    model.q_mu.assign(wave(M, DTYPE)[:, None])
    posterior = model.posterior()
    one = tf.function(lambda x: model.likelihood.predict_mean_and_var(x, *posterior.predict_f(x)))

    def made() -> Callable[[np.ndarray], tuple[Any, Any]]:
        posterior.update_cache()
        return lambda x: one(tf.constant(x))

    return _in_batches(made, versions_of("gpflow", "tensorflow"))


def gpflux_steps(case: Mapping[str, Any]) -> Timed:
    """GPflux."""
    import tensorflow as tf

    model = deep.gpflux_model(case, regression(10_000, DTYPE)[0], SCALE)

    @tf.function
    def one(x: Any) -> tuple[Any, Any]:
        means, variances = zip(*(model.predict_f(x) for _ in range(DRAWS)), strict=True)
        spread = tf.math.reduce_variance(tf.stack(means), 0)
        return tf.reduce_mean(tf.stack(means), 0), tf.reduce_mean(tf.stack(variances), 0) + spread + deep.NOISE

    return _in_batches(lambda: lambda x: one(tf.constant(x)), versions_of("gpflux", "tensorflow"))


def gpytorch_steps(case: Mapping[str, Any]) -> Timed:
    """GPyTorch, whose draws are a batch."""
    import gpytorch
    import torch

    X = regression(10_000, DTYPE)[0]
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    if case["L"] > 1:
        model = deep.gpytorch_model(case, X, SCALE)
        likelihood = model.likelihood
    else:
        set_up_torch(DTYPE)

        class Model(gpytorch.models.ApproximateGP):
            def __init__(self) -> None:
                q = gpytorch.variational.CholeskyVariationalDistribution(M)
                strategy = gpytorch.variational.VariationalStrategy(
                    self, torch.tensor(X[:M]), q, jitter_val=JITTER[DTYPE]
                )
                super().__init__(strategy)
                self.variational_strategy.variational_params_initialized.fill_(1)
                q.variational_mean.data.copy_(torch.tensor(wave(M, DTYPE)))
                self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), rbf_of_torch(COLUMNS)

            def forward(self, x: Any) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        model = Model()
        likelihood.noise = NOISE
    model.eval(), likelihood.eval()
    gpytorch.settings.num_likelihood_samples(DRAWS).__enter__()

    @torch.no_grad()
    def one(x: np.ndarray) -> tuple[Any, Any]:
        found = likelihood(model(torch.tensor(x)))
        if case["L"] == 1:
            return found.mean, found.variance
        return found.mean.mean(0), found.variance.mean(0) + found.mean.var(0, correction=0)

    return _in_batches(lambda: one, versions_of("gpytorch", "torch"))


STEPS = {
    "gpzoo": gpzoo_steps,
    "gpjax": gpjax_steps,
    "gpflow": gpflow_steps,
    "gpflux": gpflux_steps,
    "gpytorch": gpytorch_steps,
}

if __name__ == "__main__":
    work(STEPS) or main(__doc__, {"prediction": CASES}, __file__)
