"""Functions drawn whole from posteriors: pathwise draws against exact moments and against prediction, deep GPs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from helpers import randomised
from jax import random
from numpyro.infer import Predictive

from gpzoo.distributions import GaussianProcess
from gpzoo.inducing import Blocks, InducingPatches, InducingPoints
from gpzoo.inference import InducingGuide, draw_functions, predict
from gpzoo.inference.guides import representing
from gpzoo.kernels import (
    RBF,
    ArcCosine,
    Constant,
    Convolutional,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    White,
)
from gpzoo.likelihoods import Gaussian
from gpzoo.models import deep_gp, linear_layers

KEY = random.key(0)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((20, 2)))
NEW = jnp.asarray(RNG.standard_normal((6, 2)))
SCALES = jnp.array([0.6, 1.3])


def check_covariance(values, mean, covariance, sigmas=5):
    """Moments of draws ``[S, N]`` within standard errors of those of a Gaussian; kurtosis of draws allowed for."""
    S, values, covariance = len(values), np.asarray(values), np.asarray(covariance)
    deviation = values - mean
    assert (np.abs(deviation.mean(0)) < sigmas * np.sqrt(np.diagonal(covariance) / S)).all()
    products = deviation[:, :, None] * deviation[:, None, :]
    error = products.std(0) / np.sqrt(S)
    assert (np.abs(products.mean(0) - covariance) < sigmas * error + 1e-12).all()


# -- posteriors --------------------------------------------------------------------------------------------------------

D2 = {"num_outputs": 2}
POINTS = InducingPoints(X[::3])
CASES = {
    "whitened": (RBF(1.3, jnp.array([0.6, 1.3])), POINTS, {}, {}),
    "not whitened": (Matern32(), POINTS, D2, {"whiten": False}),
    "diagonal": (RBF() + Linear(0.3) + Constant(0.7), POINTS, D2, {"covariance": "diagonal"}),
    "white": (RBF(1.0, 1.0) + 2.0 * White(0.2), POINTS, D2, {}),
    "one kernel per output": (
        RBF(jnp.array([1.0, 4.0]), jnp.array([0.5, 2.0])) + Constant(0.3) + White(jnp.array([0.1, 0.5])),
        POINTS,
        {},
        {},
    ),
    "inducing points per output": (
        RBF(1.0, 1.0) + Constant(0.3),
        InducingPoints(jnp.stack([X[::3], X[1::3]])),
        D2,
        {"whiten": False},
    ),
    "blocks": (
        RBF(1.0, 1.0) + 0.5 * Matern52(1.0, 0.5) + White(0.1),
        Blocks(POINTS, InducingPoints(X[1::4])),
        D2,
        {"covariance": "block_diagonal"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_moments_of_the_posterior(name):
    kernel, inducing, outputs, options = CASES[name]

    def program(X, y=None):
        f = numpyro.sample(
            "f",
            GaussianProcess(kernel, X, mean=X[:, 1:], **outputs)
            if outputs or kernel.batched
            else GaussianProcess(kernel, X),
        )
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    y = jnp.zeros((20, 2)) if outputs or kernel.batched else jnp.zeros(20)
    guide = InducingGuide(program, inducing, initial_scale=0.4, **options)
    params = guide.init_params(KEY, X, y)
    params["f_mean"] = params["f_mean"] + jnp.asarray(RNG.standard_normal(params["f_mean"].shape))
    S = 3000
    found = draw_functions(random.key(1), guide, params, NEW, num_draws=S, num_features=16)["f"]
    posterior = guide.posterior(params, NEW, rng_key=KEY)["f"]
    mean, covariance = jax.jit(posterior.moments)()
    assert found.shape == (S, *mean.shape)
    if mean.ndim == 1:
        mean, covariance, found = mean[:, None], covariance[None], found[..., None]
    covariance = np.broadcast_to(covariance, (mean.shape[1], 6, 6))
    for d in range(mean.shape[1]):
        check_covariance(found[..., d], mean[:, d], covariance[d])
    if mean.shape[1] > 1:
        one, two = np.moveaxis(found - mean, -1, 0)
        scale = np.sqrt(np.outer(np.diagonal(covariance[0]), np.diagonal(covariance[1])))
        assert (np.abs(one.T @ two / S) < 5 * scale / np.sqrt(S)).all()


# -- deep GPs ----------------------------------------------------------------------------------------------------------

FUNCTIONS = partial(deep_gp, layers=linear_layers(X, [2, 1]), layer_noise=None)


def three_layers(program, dtype=np.float64):
    Z = X.astype(dtype)
    inducing = {"layer_0": Z[::4], "layer_1": Z[::4], "f": Z[::4, :1]}
    guide = InducingGuide(program, {n: InducingPoints(z) for n, z in inducing.items()}, initial_scale=0.4)
    params = randomised(guide.init_params(KEY, Z, Z[:, 0]))
    return guide, {name: value.astype(dtype) for name, value in params.items()}


@pytest.fixture(scope="module")
def three():
    guide, params = three_layers(FUNCTIONS)
    return guide, params, predict(KEY, FUNCTIONS, NEW, guide=guide, params=params, num_draws=2000, keep_draws=True)


def agrees_with_predict(values, found):
    """Moments of draws at each input against the mixture that ``predict`` reports, which has errors of its own."""
    for name, site in found.items():
        if name in values:
            draws, paths = values[name], site.draws
            both = np.sqrt(draws.var(0) / len(draws) + paths.var(0) / len(paths))
            assert (np.abs(draws.mean(0) - paths.mean(0)) < 5 * both).all(), name
            squares = [(d - site.mean) ** 2 for d in (draws, paths)]
            both = np.sqrt(sum(s.var(0) / len(s) for s in squares))
            assert (np.abs(squares[0].mean(0) - squares[1].mean(0)) < 5 * both).all(), name


def test_predictive_draws_functions_through_all_layers(three):
    guide, params, found = three
    S, twice = 2000, jnp.concatenate([NEW, NEW[::-1]])
    predictive = Predictive(guide, params=params, num_samples=S, parallel=True)
    values = jax.jit(lambda key: predictive(key, twice))(KEY)
    assert set(values) == {"layer_0", "layer_1", "f"} and values["layer_0"].shape == (S, 12, 2)
    for name, draws in values.items():
        draws = np.asarray(draws)
        # The joint covariance is factorised with a jitter of 1e-6, which layers amplify by their slope.
        same, other = np.abs(draws[:, :6] - draws[:, :5:-1]), np.abs(draws[:, 1:6] - draws[:, :5])
        assert np.median(same) < 5e-3 and np.median(other) > 0.1, name
    agrees_with_predict({n: np.asarray(v)[:, :6] for n, v in values.items()}, found)


def test_drawn_functions_of_three_layers(three):
    guide, params, found = three
    S = 2000
    go = partial(draw_functions, random.key(2), guide, params, num_draws=S, num_features=64)
    twice = jnp.concatenate([NEW, NEW[::-1]])
    values = go(twice, batch_size=5)
    assert set(values) == {"layer_0", "layer_1", "f"}
    assert (
        values["layer_0"].shape == (S, 12, 2) and values["layer_1"].shape == (S, 12, 1) and values["f"].shape == (S, 12)
    )
    whole = go(NEW)
    for name in values:
        np.testing.assert_allclose(values[name][:, :6], whole[name], rtol=0, atol=1e-6)
        np.testing.assert_allclose(values[name][:, :5:-1], whole[name], rtol=0, atol=1e-6)
        assert np.median(np.abs(whole[name][:, 1:] - whole[name][:, :-1])) > 0.1
    agrees_with_predict(whole, found)


def rough(name, X):
    return Matern12(jnp.asarray(1.0, X.dtype), jnp.asarray(0.5, X.dtype))


def test_float32_with_noise_between_layers():
    program = partial(deep_gp, layers=linear_layers(X.astype(np.float32), [2, 1]), kernel=rough, layer_noise=0.01)
    guide, params = three_layers(program, np.float32)
    inputs = np.concatenate([np.linspace(-100, 100, 22), np.zeros(8)]).astype(np.float32)[:, None] * np.ones(2, "f4")
    one, other = (draw_functions(KEY, guide, params, inputs, num_draws=100, batch_size=size) for size in (30, 11))
    for name, draws in one.items():
        assert draws.dtype == np.float32 and np.isfinite(draws).all(), name
    # The noise belongs to a row's number: equal inputs in other rows differ by it, the same rows do not.
    np.testing.assert_allclose(one["layer_0"][:, -8:], other["layer_0"][:, -8:], atol=1e-4)
    within = one["layer_0"][:, -8:].var(axis=1, ddof=1)
    noise = float(params["layer_0_noise_variance"])
    assert abs(within.mean() / noise - 1) < 5 * np.sqrt(2 / 7 / within.size)


# -- refusals ----------------------------------------------------------------------------------------------------------


def fitted(kernel, inducing, inputs=X, **options):
    def program(X, y=None, *, scale=1.0):
        f = numpyro.sample("f", GaussianProcess(kernel, X))
        noise = numpyro.param("noise", jnp.asarray(0.1))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, noise * scale), obs=y)

    guide = InducingGuide(program, inducing, **options)
    return guide, guide.init_params(KEY, inputs, jnp.zeros(len(inputs)))


def test_kernels_without_a_spectral_density_are_refused_by_name():
    for kernel, name in {
        ArcCosine(): "ArcCosine",
        RBF() + 2.0 * ArcCosine(): "ArcCosine",
        RBF() * White(): "White",
    }.items():
        guide, params = fitted(kernel, POINTS)
        with pytest.raises(TypeError, match=rf"{name} has no known spectral density.*Predictive.*fewer inputs"):
            draw_functions(KEY, guide, params, NEW)
    images = jnp.asarray(RNG.standard_normal((5, 4, 4, 1)))
    patches = InducingPatches(jnp.asarray(RNG.standard_normal((3, 4))))
    guide, params = fitted(Convolutional(RBF(), (4, 4), (2, 2)), patches, images)
    with pytest.raises(TypeError, match="DoubleSum has no known spectral density"):
        draw_functions(KEY, guide, params, images)


def test_arguments_that_do_not_work_are_refused():
    guide, params = fitted(RBF(), POINTS)
    for name in ("num_draws", "num_features", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be 1 or more, got 0"):
            draw_functions(KEY, guide, params, NEW, **{name: 0})
    with pytest.raises(ValueError, match=r"same, positive number of rows; got shapes \[\(6, 2\), \(5,\)\]"):
        draw_functions(KEY, guide, params, NEW, jnp.zeros(5))
    with pytest.raises(ValueError, match=r"no value for the site\(s\) \['noise'\]"):
        draw_functions(KEY, guide, {n: v for n, v in params.items() if n != "noise"}, NEW)
    with pytest.raises(ValueError, match=r"call guide\.setup\(X, y\)"):
        draw_functions(KEY, InducingGuide(guide.model, POINTS), params, NEW)
    joint, params = fitted(RBF(), POINTS, joint={"f"})
    with pytest.raises(ValueError, match="depends on its batch: pass batch_size=6 or more"):
        draw_functions(KEY, joint, params, NEW, batch_size=3)
    assert draw_functions(KEY, joint, params, NEW, scale=2.0, num_draws=3)["f"].shape == (3, 6)


def test_a_value_of_the_callers_own():
    """A representation may be a function of the posterior: here its mean."""
    guide, params = fitted(RBF(), POINTS)
    with representing(lambda posterior, key: posterior.mean):
        values = numpyro.handlers.substitute(numpyro.handlers.seed(guide, KEY), data=params)(NEW)
    np.testing.assert_allclose(values["f"], guide.posterior(params, NEW, rng_key=KEY)["f"].mean, atol=1e-12)
