"""Fits with one fault each, and fits without: what a diagnosis is held against.

The thresholds of the library were chosen on seeds below 10; tests take others.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.infer import SVI

from gpzoo import GaussianProcess, InducingPoints, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian
from tests.programs import positive, relaxed

ROWS = 200


def sparse(X, y=None, *, noise=None, lengthscale=1.0, num_data=None):
    f = numpyro.sample("f", GaussianProcess(RBF(positive("variance", 1.0), positive("lengthscale", lengthscale)), X))
    noise = positive("noise", 0.1) if noise is None else noise
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


def deep(X, y=None, *, inner_variance=None, num_data=None):
    variance = positive("inner_variance", 1.0) if inner_variance is None else inner_variance
    kernel = RBF(variance, positive("inner_lengthscale", 1.0))
    h = numpyro.sample("h", GaussianProcess(kernel, X, mean=X, num_outputs=X.shape[1]))
    f = numpyro.sample("f", GaussianProcess(RBF(positive("variance", 1.0), positive("lengthscale", 1.0)), h))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def two_classes(X, y=None, *, num_data=None):
    f = numpyro.sample("f", GaussianProcess(RBF(positive("variance", 1.0), positive("lengthscale", 1.0)), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Bernoulli(f), obs=y)


def ordered_logistic(f, cutpoints, amplitude):
    return dist.OrderedLogistic(amplitude * f, cutpoints)


def ordinal(X, y=None, *, num_data=None):
    """Four ordered classes: cutpoints and amplitude have one scale in common, and normals of their own in the guide."""
    start = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
    cutpoints = numpyro.sample("cutpoints", dist.TransformedDistribution(start, dist.transforms.OrderedTransform()))
    amplitude = numpyro.sample("amplitude", dist.LogNormal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Expected(ordered_logistic, f, cutpoints, amplitude), obs=y)


def train(program, X, y, inducing=None, *, steps=600, decay=True, key=0, hyperparameters="point", scale=1.0, **kwargs):
    guide = InducingGuide(
        program, kmeans(20) if inducing is None else inducing, hyperparameters=hyperparameters, initial_scale=scale
    )
    rate = optax.cosine_decay_schedule(0.03, steps) if decay else 0.03
    svi = SVI(program, guide, relaxed(optax.adam(rate)), GaussianProcessELBO())
    key = random.key(key) if isinstance(key, int) else key
    return fit(key, svi, steps, X, y, progress=False, model_kwargs=kwargs)


def waves(seed, rows=ROWS, at=0.0):
    """Training and test data: a sine with noise of variance 0.01; test inputs shifted by ``at``."""
    rng = np.random.default_rng(seed)

    def some(at):
        X = rng.uniform(-3, 3, (rows, 1)) + at
        return X, np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(rows)

    return *some(0.0), *some(at)


def split(X, y):
    return X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:]


# -- one fault each: (trained, test data, keywords of the program, training data if k-hat is wanted) -------------------


def noise_too_small(seed):
    X, y, *new = waves(seed)
    kwargs = {"noise": jnp.asarray(0.001)}
    return train(sparse, X, y, **kwargs), new, kwargs, None


def noise_too_large(seed):
    X, y, *new = waves(seed)
    kwargs = {"noise": jnp.asarray(0.1)}
    return train(sparse, X, y, **kwargs), new, kwargs, None


def half_of_inducing_points_on_one_spot(seed):
    X, y, *new = waves(seed)
    Z = np.concatenate([np.linspace(-3, 3, 20), np.full(20, 0.5)])[:, None]
    return train(sparse, X, y, InducingPoints(jnp.asarray(Z))), new, {}, None


def stopped_at_a_tenth(seed):
    X, y, *new = waves(seed)
    return train(sparse, X, y, steps=60, decay=False), new, {}, None


def wrong_likelihood_for_counts(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (2 * ROWS, 1))
    y = rng.poisson(np.exp(0.3 + np.sin(2 * X[:, 0]))).astype(float)
    X, y, *new = split(X, y)
    return train(sparse, X, y), new, {}, None


def labels_shuffled(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (2 * ROWS, 2))
    y = (rng.uniform(size=2 * ROWS) < 1 / (1 + np.exp(-4 * np.sin(X[:, 0]) - 2 * X[:, 1]))).astype(float)
    X, y, *new = split(X, rng.permutation(y))
    return train(two_classes, X, y), new, {}, None


def inner_layer_collapsed(seed):
    X, y, *new = waves(seed)
    kwargs = {"inner_variance": jnp.asarray(1e-6)}
    return train(deep, X, y, scale={"h": 1e-2}, **kwargs), new, kwargs, None


def lengthscale_stuck(seed):
    X, y, *new = waves(seed)
    kwargs = {"lengthscale": 1e-4}
    return train(sparse, X, y, **kwargs), new, kwargs, None


def mean_field_of_coupled_cutpoints(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (2 * ROWS, 1))
    y = np.searchsorted([-3.0, 0.0, 3.0], 4 * np.sin(2 * X[:, 0]) + rng.logistic(size=2 * ROWS))
    X, y, *new = split(X, y.astype(np.int32))
    return train(ordinal, X, y, kmeans(10), hyperparameters="normal", steps=800), new, {}, (X, y)


def extrapolation(seed):
    X, y, *new = waves(seed, at=8.0)
    return train(sparse, X, y), new, {}, None


#: Faults, each with the name of its own finding.
FAULTS = {
    noise_too_small: "intervals too narrow",
    noise_too_large: "intervals too wide",
    half_of_inducing_points_on_one_spot: "inducing variables repeat each other",
    stopped_at_a_tenth: "training not finished",
    wrong_likelihood_for_counts: "whole numbers as real ones",
    labels_shuffled: "no better than a constant",
    inner_layer_collapsed: "layer collapsed to its mean",
    lengthscale_stuck: "lengthscale too short",
    mean_field_of_coupled_cutpoints: "hyperparameters not trusted",
    extrapolation: "beyond the inducing variables",
}


# -- no fault ----------------------------------------------------------------------------------------------------------

#: Functions of five sets, their numbers of inputs and standard deviations of noise.
SETS = {
    "a sine": (lambda X: np.sin(2 * X[:, 0]), 1, 0.1),
    "more noise than signal": (lambda X: 0.5 * np.sin(2 * X[:, 0]) + 0.2 * X[:, 0], 1, 0.7),
    "a step": (lambda X: np.tanh(4 * X[:, 0]), 1, 0.2),
    "hills": (lambda X: np.sin(1.5 * X[:, 0]) * np.cos(X[:, 1]), 2, 0.2),
    "a ridge": (lambda X: np.tanh(X[:, 0] + X[:, 1]), 2, 0.3),
}


def good_fits(program, dims, seed):
    """Fits of a program to all sets with ``dims`` inputs, in one compiled program, and their test data by name."""
    names = [name for name, (_, number, _) in SETS.items() if number == dims]
    data = []
    for i, name in enumerate(names):
        function, _, noise = SETS[name]
        rng = np.random.default_rng([seed, i])
        X = rng.uniform(-3, 3, (2 * ROWS, dims)) / dims**0.5
        data.append(split(X, function(X) + noise * rng.standard_normal(len(X))))
    X, y, *new = (np.stack(x) for x in zip(*data, strict=True))
    options = {"scale": {"h": 1e-2}, "steps": 1000} if program is deep else {}
    trained = train(program, X, y, key=random.split(random.key(seed), len(names)), **options)
    return {name: (trained.member(k), (new[0][k], new[1][k])) for k, name in enumerate(names)}
