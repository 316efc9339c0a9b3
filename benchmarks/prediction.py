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
import sparse
from data import regression
from peer import Timed, main, work
from steps import versions_of

ROWS, BATCH, M, DTYPE = 100_000, 5000, 500, "float32"
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

    from gpzoo.inference import Trained

    (X, y), new = regression(10_000, DTYPE), regression(ROWS, DTYPE, seed=1)[0]
    made = deep.gpzoo_model(case, X, y, SCALE) if case["L"] > 1 else sparse.gpzoo_model(M, X, y)
    *of, options = made
    trained = Trained(*of)

    def predict() -> float:
        found = trained.predict(jax.random.key(1), new, num_draws=DRAWS, model_kwargs=options)["y"]
        return float(found.mean.mean() + found.variance.mean())

    return Timed.of(predict, versions_of("jax", "numpyro"), predict())


def gpjax_steps(case: Mapping[str, Any]) -> Timed:
    """GPJax."""
    import equinox as eqx

    q = sparse.gpjax_model(M, regression(10_000, DTYPE)[0])
    condition = eqx.filter_jit(lambda q: q.condition(None))

    @eqx.filter_jit
    def one(posterior: Any, x: Any) -> tuple[Any, Any]:
        found = posterior(x, covariance="diagonal")
        return found.mean, found.variance + sparse.NOISE

    return _in_batches(lambda: partial(one, condition(q)), versions_of("gpjax", "jax"))


def gpflow_steps(case: Mapping[str, Any]) -> Timed:
    """GPflow."""
    import tensorflow as tf

    model = sparse.gpflow_model(M, regression(10_000, DTYPE)[0])
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
    if case["L"] > 1:
        model = deep.gpytorch_model(case, X, SCALE)
        likelihood = model.likelihood
    else:
        model, likelihood = sparse.gpytorch_model(M, X)
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
