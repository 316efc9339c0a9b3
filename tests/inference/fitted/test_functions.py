"""Functions drawn whole from posteriors: pathwise draws against exact moments, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random

from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints
from gpzoo.inference import InducingGuide, Trained
from gpzoo.inference.programs.gp_sites import Pathwise, in_mode
from gpzoo.kernels import RBF, ArcCosine, Constant, Convolutional, Linear, Matern32, Matern52, White
from gpzoo.likelihoods import Gaussian
from gpzoo.processes.process import GaussianProcess
from tests.statistics import assert_moments

KEY = random.key(0)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((20, 2)))
NEW = jnp.asarray(RNG.standard_normal((6, 2)))


# -- posteriors --------------------------------------------------------------------------------------------------------

D2 = {"num_outputs": 2}
POINTS = InducingPoints(X[::3])
CASES = {
    "diagonal": (RBF() + Linear(0.3) + Constant(0.7) + 2.0 * White(0.2), POINTS, D2, {"covariance": "diagonal"}),
    "noise that depends on the input": (
        RBF(1.3, jnp.array([0.6, 1.3])) + Linear(0.3) * White(0.2),
        POINTS,
        {},
        {},
    ),
    "nothing but noise": (RBF(1.3, 1.0) * White(0.2), POINTS, D2, {}),
    "one kernel per output": (
        RBF(jnp.array([1.0, 4.0]), jnp.array([0.5, 2.0])) + Constant(0.3) + White(jnp.array([0.1, 0.5])),
        POINTS,
        {},
        {},
    ),
    "inducing points per output": (
        Matern32() + Constant(0.3),
        InducingPoints(jnp.stack([X[::3], X[1::3]])),
        D2,
        {"whiten": False},
    ),
    "blocks": (
        RBF(1.0, 1.0) + 0.5 * Matern52(1.0, 0.5) + White(0.1),
        InducingBlocks(POINTS, InducingPoints(X[1::4])),
        D2,
        {"covariance": "block_diagonal"},
    ),
}


@pytest.mark.slow_but(name=["noise that depends on the input"])
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
    params["f_mean"] = jnp.asarray(RNG.standard_normal(params["f_mean"].shape))
    S = 3000
    found = Trained(guide.model, guide, params).functions(random.key(1), NEW, num_draws=S, num_features=16)["f"]
    moments = jax.jit(lambda params: Trained(guide.model, guide, params).posterior(KEY, NEW)["f"].moments())
    found, (mean, covariance) = jax.tree.map(np.asarray, (found, moments(params)))
    assert found.shape == (S, *mean.shape)
    if mean.ndim == 1:
        mean, covariance, found = mean[:, None], covariance[None], found[..., None]
    covariance = np.broadcast_to(covariance, (mean.shape[1], 6, 6))
    for d in range(mean.shape[1]):
        assert_moments(found[..., d], mean[:, d], covariance[d])
    if mean.shape[1] > 1:
        one, two = np.moveaxis(found - mean, -1, 0)
        scale = np.sqrt(np.outer(np.diagonal(covariance[0]), np.diagonal(covariance[1])))
        assert (np.abs(one.T @ two / S) < 5 * scale / np.sqrt(S)).all()


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
    }.items():
        guide, params = fitted(kernel, POINTS)
        with pytest.raises(TypeError, match=rf"{name} has no known spectral density.*at your inputs.*Predictive"):
            Trained(guide.model, guide, params).functions(KEY, NEW)
    images = jnp.asarray(RNG.standard_normal((5, 4, 4, 1)))
    patches = InducingPatches(jnp.asarray(RNG.standard_normal((3, 4))))
    guide, params = fitted(Convolutional(RBF(), (4, 4), (2, 2)), patches, images)
    with pytest.raises(TypeError, match="DoubleSum has no known spectral density"):
        Trained(guide.model, guide, params).functions(KEY, images)


def test_arguments_that_do_not_work_are_refused():
    guide, params = fitted(RBF(), POINTS)
    for name in ("num_draws", "num_features", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
            Trained(guide.model, guide, params).functions(KEY, NEW, **{name: 0})
    with pytest.raises(ValueError, match=r"same, positive number of rows; got shapes \[\(6, 2\), \(5,\)\]"):
        Trained(guide.model, guide, params).functions(KEY, NEW, jnp.zeros(5))
    with pytest.raises(ValueError, match=r"no value for \['noise'\]"):
        Trained(guide.model, guide, {n: v for n, v in params.items() if n != "noise"}).functions(KEY, NEW)
    with pytest.raises(ValueError, match=r"call guide\.setup\(X, y\)"):
        Trained(guide.model, InducingGuide(guide.model, POINTS), params).functions(KEY, NEW)
    joint, params = fitted(RBF(), POINTS, joint={"f"})
    with pytest.raises(ValueError, match="depends on its batch: pass batch_size=6 or more"):
        Trained(joint.model, joint, params).functions(KEY, NEW, batch_size=3)
    found = Trained(joint.model, joint, params).functions(KEY, NEW, num_draws=3, model_kwargs={"scale": 2.0})
    assert found["f"].shape == (3, 6)


@pytest.mark.slow
def test_one_draw_is_a_function_of_jax_with_a_gradient():
    """The same draw as among many, at any inputs; its gradient against finite differences."""
    guide, params = fitted(RBF(1.3, jnp.array([0.6, 1.3])), POINTS)
    trained = Trained(guide.model, guide, params)
    function = trained.function(KEY, 2)
    drawn = trained.functions(KEY, NEW, num_draws=3)["f"][2]
    np.testing.assert_allclose(function(NEW)["f"], drawn, atol=1e-10)
    at = lambda x: function(x[None])["f"][0]  # noqa: E731
    np.testing.assert_allclose(jax.vmap(at)(NEW), drawn, atol=1e-10)
    gradient = jax.jit(jax.grad(at))(NEW[0])
    for axis, step in enumerate(1e-5 * jnp.eye(2)):
        np.testing.assert_allclose(gradient[axis], (at(NEW[0] + step) - at(NEW[0] - step)) / 2e-5, rtol=1e-6)
    assert not np.allclose(trained.function(KEY)(NEW)["f"], drawn)
    with pytest.raises(ValueError, match="draw must be an integer of at least 0, got -1"):
        trained.function(KEY, -1)
    with pytest.raises(ValueError, match="num_features must be an integer of at least 1, got 0"):
        trained.function(KEY, num_features=0)
    with pytest.raises(ValueError, match=r"same, positive number of rows; got shapes \[\(6, 2\), \(5,\)\]"):
        function(NEW, jnp.zeros(5))


@pytest.mark.slow
def test_a_value_of_the_callers_own():
    """A mode may be a function of the posterior: here its mean."""
    guide, params = fitted(RBF(), POINTS)
    with in_mode(Pathwise(value=lambda posterior, key, rows: posterior.mean)):
        values = numpyro.handlers.substitute(numpyro.handlers.seed(guide, KEY), data=params)(NEW)
    np.testing.assert_allclose(
        values["f"], Trained(guide.model, guide, params).posterior(KEY, NEW)["f"].mean, atol=1e-12
    )
