"""Things that a package outside gpzoo adds (``extensions/``), trained and predicted with; numbers of built-in ones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import SVI

from gpzoo import InducingPatches, InducingPoints, Kuf, Kuu, SampledView, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.kernels import RBF, Convolutional, DoubleSum, Invariant, Pointwise, White
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.posteriors import InducingPosterior, Projection, forms
from gpzoo.processes import GaussianMarginals, GaussianProcess
from tests.extensions.inducing import Increments, increments
from tests.extensions.initialiser import first_rows
from tests.extensions.kernel import SquaredExponential, squared_exponential
from tests.extensions.likelihood import Counts
from tests.extensions.model import trend
from tests.extensions.view import Windows
from tests.programs import KEY, adam, poisson, positive

RNG = np.random.default_rng(0)
X = jnp.asarray(np.sort(RNG.uniform(-2, 2, (12, 1)), axis=0))
NEW = np.linspace(-2, 2, 5)[:, None]
Y = jnp.asarray(np.sin(2 * np.asarray(X)[:, 0]))
SERIES = jnp.asarray(RNG.normal(size=(6, 8)))
COUNTS = jnp.asarray(RNG.poisson(2.0, 12))
POINTS = X[::3]


def with_parameters(kernel):
    return lambda: kernel(positive("variance", 1.3), positive("lengthscale", 0.7))


def normal(f):
    return Gaussian(f, 0.1)


def outcome(kernel, inducing, X=X, y=Y, likelihood=normal, new=NEW, functions=True):
    """Losses of five steps, predictive moments, and functions drawn."""
    model = partial(trend, kernel=with_parameters(kernel), likelihood=likelihood)
    guide = InducingGuide(model, inducing)
    svi = SVI(model, guide, adam(0.05), GaussianProcessELBO())
    result = fit(KEY, svi, 5, X, y, progress=False)
    predicted = result.predict(KEY, new, num_draws=1)["y"]
    drawn = result.functions(KEY, new, num_draws=2, num_features=64)["f"] if functions else 0
    return np.asarray(result.losses), predicted.mean, predicted.variance, drawn


def started(kernel, inducing):
    """What a training begins with."""
    model = partial(trend, kernel=with_parameters(kernel), likelihood=normal)
    guide = InducingGuide(model, inducing)
    return Trained(model, guide, guide.init_params(KEY, X, Y))


def same(found, wanted, rtol=1e-9):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)


@pytest.fixture(scope="module")
def built_in():
    return outcome(RBF, InducingPoints(POINTS))


@pytest.mark.slow
def test_kernel_as_a_class(built_in):
    same(outcome(SquaredExponential, InducingPoints(POINTS)), built_in)


@pytest.mark.slow
def test_kernel_as_a_function(built_in):
    def kernel(variance, lengthscale):
        return Pointwise(squared_exponential, variance=variance, lengthscale=lengthscale)

    same(outcome(kernel, InducingPoints(POINTS), functions=False)[:3], built_in[:3])


@pytest.mark.slow
def test_inducing_variable(built_in):
    # A triangular map of inducing points: the factor of Kuu is mapped alike, and so whitened q(u) are the same.
    same(outcome(RBF, Increments(POINTS)), built_in, rtol=1e-5)
    sum_of_kernels = 2.0 * (RBF(1.3, 0.7) + RBF(0.5, 2.0)) + White(0.1)

    @jax.jit
    def covariances(kernel):
        function = Kuu(InducingPoints(POINTS), kernel.split_noise()[0])
        pairs = Kuu(Increments(POINTS), kernel), Kuf(Increments(POINTS), kernel, X)
        return pairs, (increments(increments(function).T), increments(kernel(POINTS, X)))

    for found, wanted in zip(*covariances(sum_of_kernels), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_initialiser(built_in):
    # Functions are drawn by the guide that training ends with, wherever it began.
    ours = outcome(RBF, first_rows(4), functions=False)
    assert np.max(np.abs(ours[1] - built_in[1])) > 1e-3
    begun, wanted = (started(RBF, inducing).params for inducing in (first_rows(4), InducingPoints(X[:4])))
    assert set(begun) == set(wanted)
    same(begun.values(), [wanted[name] for name in begun])


@pytest.mark.slow
def test_view():
    def of_views(variance, lengthscale, *, kernel):
        return kernel(RBF(variance, lengthscale))

    windows = partial(of_views, kernel=lambda base: DoubleSum(base, Windows(8, 3)))
    patches = partial(of_views, kernel=lambda base: Convolutional(base, (8, 1), (3, 1)))
    y = np.sum(np.sin(SERIES), axis=1)
    ours = outcome(windows, unique_patches(4), SERIES, y, new=SERIES[:2], functions=False)
    images = SERIES[:, :, None, None]
    same(ours, outcome(patches, unique_patches(4), images, y, new=images[:2], functions=False))


@pytest.mark.slow
def test_likelihood():
    quadrature = partial(Expected, poisson, num_points=40)
    ours, wanted = (
        outcome(RBF, InducingPoints(POINTS), y=COUNTS, likelihood=likelihood, functions=False)
        for likelihood in (Counts, quadrature)
    )
    same(ours, wanted, rtol=1e-6)
    f = GaussianMarginals(jnp.asarray(np.linspace(-1, 1, 12)), jnp.full(12, 0.3))

    @jax.jit
    def densities(f, y):
        return [(site.predictive_log_prob(y), site.log_prob(y)) for site in (Counts(f), quadrature(f))]

    for ours, wanted in zip(*densities(f, COUNTS), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)
    with pytest.raises(ValueError, match="Counts: y holds -1"):
        Counts(f).log_prob(-np.ones_like(COUNTS))


class Turns(SampledView):
    """Signs of a series."""

    def __init__(self):
        super().__init__((3,), 4)

    def noise(self, key, num_views):
        return jnp.asarray([1.0, -1.0, 1.0, -1.0])

    def transform(self, x, noise):
        return x * noise


def test_inducing_variable_under_sampled_views():
    Z, X = SERIES[:4, :3], SERIES[:, 3:6]
    mean, scale = jnp.arange(4.0), jnp.linspace(0.5, 1.0, 4)

    @jax.jit
    def estimates():
        kernel = Invariant(RBF(1.3, 0.7), Turns()) + White(0.1)
        process = GaussianProcess(kernel, X, jitter=1e-12)
        # Without noise in u, which the two kinds of inducing variables do not share.
        alone = process._replace(kernel=kernel.parts[0])
        return [
            InducingPosterior(Projection(alone, u), mean, forms.Diagonal(scale)).estimates(KEY)
            for u in (InducingPatches(Z), Increments(Z))
        ]

    same(*estimates(), rtol=1e-8)


def test_what_an_extension_lacks_is_named():
    class Mute(Increments):
        def of(self, f):
            return super(Increments, self).of(f)

    with pytest.raises(TypeError, match=r"values of Mute for functions.*method of\(f\).*Predictive"):
        started(RBF, Mute(POINTS)).functions(KEY, NEW, num_draws=2)
    with pytest.raises(TypeError, match=r"Pointwise has no known spectral density.*`frequencies`"):
        started(
            lambda v, s: Pointwise(squared_exponential, variance=v, lengthscale=s), InducingPoints(POINTS)
        ).functions(KEY, NEW, num_draws=2)
