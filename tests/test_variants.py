"""Variants that users write, each from a program of a few lines: trained, used for predictions, and exported.

Programs of the zoo have theirs beside them: ordered labels, noise that changes and counts in
``models/test_observations.py``, outputs with missing entries in ``models/test_coregionalised.py``, mixtures in
``models/test_mixture.py``, latents of rows in ``inference/test_other_latents.py``.
"""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import Array, random
from numpyro.distributions import constraints
from numpyro.infer import SVI

from gpzoo import GaussianProcess, InducingPoints, kmeans, unique_patches
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, PerRow, fit, infer_rows
from gpzoo.kernels import RBF, Elementary, Invariant, Pointwise
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.reproductions import datasets
from gpzoo.views import SampledView
from tests.programs import KEY, adam, positive

pytestmark = pytest.mark.slow


def trained(program, inducing, steps, *args, objective=None, rate=0.05, batch_size=None, **options):
    svi = SVI(program, InducingGuide(program, inducing, **options), adam(rate), objective or GaussianProcessELBO())
    return fit(KEY, svi, steps, *args, batch_size=batch_size, progress=False)


def assert_exported(trained, *args):
    exported = trained.to_arviz(KEY, *args, num_draws=5)
    for group in ("posterior", "log_likelihood", "posterior_predictive"):
        assert exported[group].data_vars and all(np.isfinite(x).all() for x in exported[group].data_vars.values())


# -- lengthscales that depend on the input -----------------------------------------------------------------------------


def gibbs(x, z, variance, level, slope):
    """Gibbs 1997, of one input whose logarithmic lengthscale is a line."""
    a, b = jnp.exp(level + slope * x[0]), jnp.exp(level + slope * z[0])
    squares = a**2 + b**2
    return variance * jnp.sqrt(2 * a * b / squares) * jnp.exp(-((x[0] - z[0]) ** 2) / squares)


def changing(X, y=None):
    level, slope = numpyro.param("level", jnp.array(0.0)), numpyro.param("slope", jnp.array(0.0))
    kernel = Pointwise(gibbs, variance=positive("variance", 1.0), level=level, slope=slope)
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def stationary(X, y=None):
    kernel = RBF(positive("variance", 1.0), positive("lengthscale", 1.0))
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def test_lengthscales_that_change_are_found():
    """A kernel of the user's, positive semi-definite, on waves whose frequency grows from left to right."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.uniform(-2, 2, (160, 1)))
    y = jnp.sin(0.8 * jnp.exp(1.2 * x[:, 0])) + 0.1 * jnp.asarray(rng.standard_normal(160))
    K = np.asarray(Pointwise(gibbs, variance=1.3, level=-0.3, slope=-1.5)(x[:60]))
    np.testing.assert_allclose(np.diagonal(K), 1.3)
    np.testing.assert_allclose(K, K.T)
    assert np.linalg.eigvalsh(K).min() > -1e-10
    found = {}
    for program in (changing, stationary):
        fitted = trained(program, kmeans(25), 150, x[:50], y[:50], objective=CollapsedELBO(), rate=0.1)
        test = fitted.predict(KEY, x[50:], test_data={"y": y[50:]})["y"]
        found[program] = test.log_density.mean(), -fitted.losses[-1]
        assert_exported(fitted, x[:6], y[:6])
        if program is changing:
            assert -2.5 < fitted.params["slope"] < -0.5
    assert found[changing][0] > found[stationary][0] + 0.1 and found[changing][1] > found[stationary][1] + 10


# -- derivatives -------------------------------------------------------------------------------------------------------


def value_or_slope(x, z, variance, lengthscale):
    """Covariances of a function's values and slopes: the last column says which of both, 0 or 1."""

    def k(s, t):
        return variance * jnp.exp(-(((s - t) / lengthscale) ** 2) / 2)

    orders = [[k, jax.grad(k, 1)], [jax.grad(k, 0), jax.grad(jax.grad(k, 0), 1)]]
    of_both = jnp.stack([jnp.stack([order(x[0], z[0]) for order in row]) for row in orders])
    return of_both[jnp.round(x[1]).astype(int), jnp.round(z[1]).astype(int)]


def with_slopes(X, y=None):
    hyper = {"variance": positive("variance", 1.0), "lengthscale": positive("lengthscale", 1.0)}
    f = numpyro.sample("f", GaussianProcess(Pointwise(value_or_slope, **hyper), X, jitter=1e-9))
    noise = positive("noise", jnp.array([0.01, 0.02]))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, noise[X[:, 1].astype(int)]), obs=y)


def covariance_with_slopes(A, B, variance, lengthscale):
    d, square = (A[:, :1] - B[:, 0]) / lengthscale, 1 / lengthscale
    k = variance * np.exp(-(d**2) / 2)
    of, at = A[:, 1:] == 1, B[:, 1] == 1
    either = np.where(of, -d * square * k, d * square * k)
    return np.where(of & at, (1 - d**2) * square**2 * k, np.where(of ^ at, either, k))


def test_slopes_are_observed_beside_values():
    """Against the exact GP of both, whose covariances are derivatives by hand: a sine from few values and slopes."""
    rng = np.random.default_rng(0)
    at, which = rng.uniform(-3, 3, 16), np.arange(16) % 2
    y = np.where(which == 1, np.cos(at), np.sin(at)) + 0.1 * rng.standard_normal(16)
    X, new = np.stack([at, which], axis=1).astype(float), np.array([[0.5, 0], [0.5, 1], [-2.0, 0], [-2.0, 1]])
    fitted = trained(with_slopes, InducingPoints(jnp.asarray(X)), 60, X, y, objective=CollapsedELBO())
    hyper = [float(fitted.params[name]) for name in ("variance", "lengthscale")]
    K = covariance_with_slopes(X, X, *hyper) + np.diag(np.asarray(fitted.params["noise"])[which])
    cross = covariance_with_slopes(new, X, *hyper)
    covariance = covariance_with_slopes(new, new, *hyper) - cross @ np.linalg.solve(K, cross.T)
    mean, joint = fitted.posterior(KEY, new)["f"].moments()
    np.testing.assert_allclose(mean, cross @ np.linalg.solve(K, y), atol=1e-6)
    np.testing.assert_allclose(joint, covariance, atol=1e-6)
    np.testing.assert_allclose(mean, [np.sin(0.5), np.cos(0.5), np.sin(-2), np.cos(-2)], atol=0.2)
    assert_exported(fitted, X, y)


# -- augmentations of one's own ----------------------------------------------------------------------------------------


class Turned(SampledView):
    """Points in the plane, turned by angles up to ``widest`` radians either way."""

    widest: Array

    def __init__(self, widest):
        super().__init__((2,), num_views=8, num_fixed=32)
        self.widest = widest

    def noise(self, key, num_views):
        return random.uniform(key, (num_views,), minval=-1.0, maxval=1.0)

    def transform(self, x, noise):
        c, s = jnp.cos(self.widest * noise), jnp.sin(self.widest * noise)
        return jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1]])


def around_the_centre(X, y=None):
    kernel = Invariant(RBF(positive("variance", 1.0), positive("lengthscale", 1.0)), Turned(positive("widest", 2.0)))
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def test_an_augmentation_of_ones_own_generalises():
    """What is seen at some angles is known at the others: a function of the radius, from a third of the plane."""
    rng = np.random.default_rng(0)
    radius, angle = rng.uniform(0.5, 3, 120), np.where(np.arange(120) < 60, 0.0, 1.6) + rng.uniform(-0.8, 0.8, 120)
    X = jnp.asarray(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))
    y = jnp.asarray(np.sin(2 * radius) + 0.1 * rng.standard_normal(120))
    fitted = trained(around_the_centre, unique_patches(20), 250, X[:60], y[:60])
    assert fitted.params["widest"] > 1.0
    plain = trained(stationary, kmeans(20), 100, X[:60], y[:60])
    errors = [np.square(t.predict(KEY, X[60:])["y"].mean - y[60:]).mean() for t in (fitted, plain)]
    assert errors[0] < 0.5 * errors[1]
    assert_exported(fitted, X[:6], y[:6])


# -- one kernel for each output ----------------------------------------------------------------------------------------


class Wave(Elementary):
    """A periodic kernel of the user's; fields may be ``[D]``."""

    variance: Array
    period: Array

    def evaluate(self, x, z):
        return self.variance * jnp.exp(-2 * jnp.sin(jnp.pi * (x[0] - z[0]) / self.period) ** 2)


def waves(X, y=None):
    kernel = Wave(positive("variance", np.ones(2)), period=positive("period", np.array([1.05, 1.95])))
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def test_a_kernel_of_ones_own_has_fields_for_each_output():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 6, (80, 1)), axis=0)
    both = lambda x: np.stack([np.sin(2 * np.pi * x / period) for period in (1.0, 2.0)], axis=1)[..., 0]  # noqa: E731
    fitted = trained(waves, kmeans(15), 250, x, both(x) + 0.1 * rng.standard_normal((80, 2)), rate=0.02)
    np.testing.assert_allclose(fitted.params["period"], [1.0, 2.0], rtol=0.03)
    new = np.linspace(6, 8, 20)[:, None]
    assert np.abs(fitted.predict(KEY, new)["y"].mean - both(new)).mean() < 0.15
    assert_exported(fitted, x[:6], both(x[:6]))


# -- latents of rows, in minibatches and at new rows -------------------------------------------------------------------


def circle(rows, y=None, *, num_data=None):
    """Angles that nobody has seen."""
    with numpyro.plate("data", num_data or len(rows), subsample_size=len(rows)):
        angle = numpyro.sample("angle", dist.Normal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(2.0, 1.0), angle[:, None], num_outputs=2))
    with numpyro.plate("data", num_data or len(rows), subsample_size=len(rows)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def test_latents_of_new_rows_are_found_and_exported():
    angle = np.random.default_rng(0).uniform(-1.5, 1.5, 60)
    y = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    start = PerRow({"angle": y[:40, 1]})
    fitted = trained(circle, kmeans(10), 400, np.arange(40), y[:40], batch_size=20, hyperparameters=start)
    found = infer_rows(KEY, fitted, {"angle": y[40:, 1]}, np.arange(20), y[40:], num_steps=200, optimizer=adam(0.05))
    np.testing.assert_allclose(found.predict(KEY, np.arange(20))["y"].mean, y[40:], atol=0.3)
    assert_exported(found, np.arange(20), y[40:])


# -- NumPyro's own likelihoods -----------------------------------------------------------------------------------------


def ordered_logit(f, cutpoints):
    return dist.OrderedLogistic(f, cutpoints)


def grades(X, y=None, *, num_data=None):
    lengthscale = numpyro.param("lengthscale", jnp.ones(11, X.dtype), constraint=constraints.positive)
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    start = jnp.linspace(-2.0, 2.0, 5, dtype=X.dtype)
    cutpoints = numpyro.param("cutpoints", start, constraint=constraints.ordered_vector)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Expected(ordered_logit, f, cutpoints), obs=y)


_WINE = Path(os.environ.get("GPZOO_DATA", ".")) / "uci_wine_red.npz"


@pytest.mark.skipif(not _WINE.is_file(), reason="the wines are not in $GPZOO_DATA")
def test_numpyros_ordered_logit_starts_on_the_grades_of_wines():
    """Also for the rarest grades no density is zero, in float32."""
    data = datasets.load("uci/wine_red", split=0)
    y, y_new = (np.rint(y - data.y_train.min()).astype(np.int32) for y in (data.y_train, data.y_test))
    scaled = data.standardised()
    X, new = scaled.X_train.astype(np.float32), scaled.X_test.astype(np.float32)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        fitted = trained(grades, kmeans(20), 150, X, y, batch_size=400)
        test = fitted.predict(KEY, new, test_data={"y": y_new})["y"]
        assert_exported(fitted, X[:6], y[:6])
    shares = np.bincount(y, minlength=6) / len(y)
    assert np.isfinite(fitted.losses).all()
    assert test.log_density.mean() > np.log(shares[y_new]).mean() + 0.15
