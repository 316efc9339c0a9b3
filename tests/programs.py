"""Small programs and data that several test files share."""

import inspect
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.distributions import constraints
from numpyro.infer import SVI

from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.processes.process import GaussianProcess

KEY = random.key(0)


def golden_case(name):
    """The arrays (``in_*``, ``out_*``) and the description of one golden case."""
    path = Path(__file__).parent / "golden" / name
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as archive:
        return dict(archive), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def relaxed(optimiser):
    """An optax transformation that may mix dtypes inside, as Adam does, while the rest of the step may not."""

    def update(*args, **kwargs):
        with jax.numpy_dtype_promotion("standard"):
            return optimiser.update(*args, **kwargs)

    return optax.GradientTransformation(optimiser.init, update)


def adam(rate):
    return relaxed(optax.adam(rate))


def sine(n=40, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-3, 3, (n, 1)), axis=0)
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(n)
    return jnp.asarray(X, dtype), jnp.asarray(y, dtype)


def positive(name, value):
    return numpyro.param(name, jnp.asarray(value), constraint=constraints.softplus_positive)


def at_start(model, inducing, *args, losses=(), data=None, **options):
    """A model that nobody trained, with the losses and the data of a training that it did not have."""
    guide = InducingGuide(model, inducing, **options)
    params = guide.init_params(KEY, *args)
    return Trained(model, guide, params, losses=np.asarray(losses, float), data=data or {})


def constant(X, y=None, *, num_data=None):
    """A constant with noise: the program of trainings that are about anything else, compiled in little time."""
    f = numpyro.sample("f", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", dist.Normal(f + jnp.zeros(len(X)), 0.3), obs=y)


def around_constant(X, y=None, **kwargs):
    """Its guide."""
    numpyro.sample("f", dist.Normal(numpyro.param("f_mean", jnp.array(0.0)), positive("f_scale", 0.3)))


def regression(X, y=None, *, num_data=None):
    """Sparse GP regression with trained hyperparameters."""
    kernel = RBF(positive("variance", 1.0), positive("lengthscale", 1.0))
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def program_of(law, kernel=None, **options):
    """A program of one GP site, in which ``y`` has a law of it."""

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(kernel or RBF(1.0, 1.0), X, **options))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", law(f), obs=y)

    return program


def bayesian_regression(X, y=None, *, num_data=None):
    """The same with priors on the hyperparameters."""
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


def deep(X, y=None, *, num_data=None):
    """Two layers: the inner site is drawn, the outer one is marginals."""
    h = numpyro.sample("h", GaussianProcess(RBF(1.0, 1.0), X, mean=X, num_outputs=X.shape[1]))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, positive("lengthscale", 1.0)), h))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def poisson(f):
    return dist.Poisson(jnp.exp(f))


def with_model_kwargs(kwargs, function=fit):
    """Keyword arguments of a function of the library, with those of the program in ``model_kwargs``."""
    own = {name: value for name, value in kwargs.items() if name in inspect.signature(function).parameters}
    return own | {"model_kwargs": {name: value for name, value in kwargs.items() if name not in own}}


def trained(model, guide, *args, steps=0, **kwargs):
    params = guide.init_params(KEY, *args, model_kwargs=kwargs)
    if not steps:
        return params
    svi = SVI(model, guide, adam(0.02), GaussianProcessELBO())
    return fit(KEY, svi, steps, *args, progress=False, model_kwargs=kwargs).params


@cache
def compiled_loss(objective, model, guide, kwargs):
    """The negative loss as one program, for all calls with these objects and arguments of equal shapes."""

    def value(key, params, args):
        found = objective.loss(key, params, model, guide, *args, **dict(kwargs))
        return jax.tree.map(jnp.negative, found)

    return jax.jit(value)


BOUND, TERMS = GaussianProcessELBO(), GaussianProcessELBO(sum_sites=False)


def bound(model, guide, params, *args, key=KEY, loss=BOUND, **kwargs):
    return compiled_loss(loss, model, guide, tuple(kwargs.items()))(key, params, args)


def terms(model, guide, params, *args, key=KEY):
    """The contribution of every site to the bound."""
    return compiled_loss(TERMS, model, guide, ())(key, params, args)


def marginals(guide, params, *args, site="f", joint=False):
    def of(params):
        posterior = Trained(guide.model, guide, params).posterior(KEY, *args)[site]
        return posterior.moments() if joint else posterior.marginals()

    return jax.jit(of)(params)


def randomised(params, seed=1):
    """Parameters away from their symmetric start, so that nothing holds by accident."""
    rng = np.random.default_rng(seed)

    def move(name, x):
        if name.endswith("_mean"):
            return x + rng.standard_normal(x.shape)
        if name.endswith("_scale"):
            return x + 0.1 * np.tril(rng.standard_normal(x.shape))
        return x

    return {name: jnp.asarray(move(name, np.asarray(x))) for name, x in params.items()}


def nothing_exported(*given, **options):
    """In place of a posterior's export, where that is seen in other tests: an empty file."""
    return SimpleNamespace(to_netcdf=lambda path, engine: Path(path).touch())
