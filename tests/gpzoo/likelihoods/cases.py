"""Every likelihood with every kind of ``f``, for the test files that try them all."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, PolyaGamma, RobustMax, Softmax, StickBreaking
from gpzoo.processes.marginals import GaussianMarginals
from tests.programs import poisson

N, K = 5, 3
KEY = jax.random.key(11)
# Compiles several times faster, but draws other numbers under vmap.
FAST_KEY = jax.random.key(12, impl="unsafe_rbg")
A = np.random.default_rng(5).normal(size=(K, K))


def scaled_normal(f, scale):
    return dist.Normal(f[..., 0], scale * jnp.exp(0.3 * f[..., 1]))


def categorical(f):
    return dist.Categorical(logits=f)


def latent(kind, columns, dtype=jnp.float64, key=KEY):
    """An array, marginals with independent outputs, or marginals with correlated ones."""
    rng = np.random.default_rng(0)
    shape = (N,) if columns is None else (N, columns)
    mean = jnp.asarray(rng.normal(size=shape), dtype)
    if kind == "array":
        return mean
    f = GaussianMarginals(mean, jnp.asarray(rng.gamma(2.0, 0.5, size=shape), dtype), key, sites=frozenset({"f"}))
    return f @ jnp.asarray(A[:columns, :columns], dtype) if kind == "correlated" else f


LABELS, BINARY, COUNTS = np.array([0, 2, 1, 1, 2]), np.array([0, 1, 1, 0, 1]), np.array([0, 3, 1, 2, 0])
REAL = np.linspace(-1, 1, N)
# Numbers of single precision, so that they may be given in either.
REALS = np.random.default_rng(1).normal(size=(N, K)).astype(np.float32).astype(np.float64)
BINARIES = np.random.default_rng(2).integers(0, 2, (N, K))
NOISES, SCALES = np.array([0.1, 0.2, 0.3]), np.linspace(0.5, 2, N)

# name: (make from f, columns of f, y)
CASES = {
    "gaussian": (lambda f: Gaussian(f, 0.3), None, REAL),
    "gaussian outputs": (lambda f: Gaussian(f, NOISES), K, REALS),
    "probit": (lambda f: Bernoulli(f), None, BINARY),
    "logit": (lambda f: Bernoulli(f, "logit"), None, BINARY),
    "logit outputs": (lambda f: Bernoulli(f, "logit"), K, BINARIES),
    "softmax": (lambda f: Softmax(f, num_draws=4), K, LABELS),
    "robustmax": (lambda f: RobustMax(f), K, LABELS),
    "polya-gamma": (lambda f: PolyaGamma(f, jnp.linspace(0, 2, f.shape[0])), None, BINARY),
    "polya-gamma outputs": (lambda f: PolyaGamma(f), K, BINARIES),
    "sticks": (lambda f: StickBreaking(f, jnp.linspace(0, 2, f.shape[0])[:, None]), K - 1, LABELS),
    "poisson": (lambda f: Expected(poisson, f), None, COUNTS),
    "normal": (lambda f: Expected(scaled_normal, f, SCALES, num_draws=4), 2, REAL),
    "categorical": (lambda f: Expected(categorical, f, num_draws=4), K, LABELS),
}
# One output has nothing to be correlated with.
every_kind_of_case = pytest.mark.parametrize(
    ("case", "kind"),
    [(c, k) for c in CASES for k in ("array", "independent", "correlated") if CASES[c][1] or k != "correlated"],
)
both = pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])


def build(case, kind, dtype=jnp.float64, key=KEY):
    make, columns, y = CASES[case]
    return make(latent(kind, columns, dtype, key)), y


@jax.jit
def log_probs(likelihood, y):
    return likelihood.log_prob(y), likelihood.predictive_log_prob(y)
