"""Every kernel with every likelihood, and either with every form of ``q(u)``: predicted with, exported, drawn from."""

import os

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

from gpzoo import GaussianProcess, InducingBlocks, InducingGrid, InducingPatches, InducingPoints, kernels, likelihoods
from gpzoo.inducing.grid import stationary
from gpzoo.inference import InducingGuide, Trained
from gpzoo.views import Patches
from tests.programs import KEY, poisson

RNG = np.random.default_rng(0)
# Every row twice.
VECTORS = np.repeat(RNG.uniform(-1, 1, (4, 2)), 2, axis=0)
IMAGES = np.repeat(RNG.uniform(size=(4, 3, 3, 1)), 2, axis=0)
BINARY, LABELS, REALS = np.array([0, 0, 1, 1] * 2), np.array([0, 2, 1, 1, 2, 0, 0, 1]), np.linspace(-1, 1, 8)
PATCHES = Patches((3, 3, 1), (2, 2))


def squared_distance(x, z):
    return jnp.exp(-jnp.sum(jnp.square(x - z)))


#: Of each kernel whether functions can be drawn from it anywhere: it has a spectral density, or is linear.
KERNELS = {
    "RBF": (kernels.RBF(1.0, 0.7), True),
    "Matern12": (kernels.Matern12(1.0, 0.7), True),
    "Matern32": (kernels.Matern32(1.0, 0.7), True),
    "Matern52": (kernels.Matern52(1.0, 0.7), True),
    "RationalQuadratic": (kernels.RationalQuadratic(1.0, 0.7, 2.0), True),
    "Periodic": (kernels.Periodic(1.0, 0.7, 3.0), True),
    "Linear": (kernels.Linear(1.0), True),
    "Polynomial": (kernels.Polynomial(degree=2), False),
    "ArcCosine": (kernels.ArcCosine(), False),
    "Pointwise": (kernels.Pointwise(squared_distance), False),
    "Sum": (kernels.RBF(1.0, 0.7) + kernels.Constant(0.5), True),
    "Product": (kernels.RBF(1.0, 0.7) * kernels.Linear(1.0), False),
    "Scaled": (2.0 * kernels.RBF(1.0, 0.7), True),
    "White": (kernels.RBF(1.0, 0.7) + kernels.White(0.1), True),
    "DoubleSum": (kernels.DoubleSum(kernels.RBF(1.0, 0.7), PATCHES), False),
}
#: Of each likelihood the outputs of ``f`` and data.
LIKELIHOODS = {
    "Gaussian": (lambda f: likelihoods.Gaussian(f, 0.3), None, REALS),
    "Bernoulli": (lambda f: likelihoods.Bernoulli(f), None, BINARY),
    "PolyaGamma": (lambda f: likelihoods.PolyaGamma(f, jnp.full(f.shape[0], 0.5)), None, BINARY),
    "Softmax": (lambda f: likelihoods.Softmax(f), 3, LABELS),
    "RobustMax": (lambda f: likelihoods.RobustMax(f), 3, LABELS),
    "StickBreaking": (lambda f: likelihoods.StickBreaking(f, jnp.full((f.shape[0], 1), 0.5)), 2, LABELS),
    "Expected": (lambda f: likelihoods.Expected(poisson, f), None, LABELS),
}
FORMS = ("full", "diagonal", "block_diagonal", "low_rank", "kronecker")


def inducing_for(form, kernel):
    if form == "low_rank":
        return InducingGrid(6, bounds=(-1.0, 1.0))
    if form == "kronecker":
        return InducingGrid((4, 4), bounds=(-1.0, 1.0))
    points = InducingPoints(VECTORS[::2] + 0.1)
    if form == "block_diagonal":
        return InducingBlocks(*[points] * (3 if kernel == "Sum" else 2))
    return InducingPatches(RNG.uniform(size=(4, 4))) if kernel == "DoubleSum" else points


COMBINATIONS = [(k, y, FORMS[(i + j) % len(FORMS)]) for i, k in enumerate(KERNELS) for j, y in enumerate(LIKELIHOODS)]
#: Each kernel, likelihood and form at least once.
SOME = {(k, list(LIKELIHOODS)[i % 7], FORMS[(i + i % 7) % 5]) for i, k in enumerate(KERNELS)}
SOME |= {("RBF", "RobustMax", "kronecker")}


@pytest.mark.slow_but(kernel=["Matern32", "Pointwise"])
@pytest.mark.parametrize(
    ("kernel", "likelihood", "form"),
    [c if c in SOME else pytest.param(*c, marks=pytest.mark.stress) for c in COMBINATIONS],
)
def test_a_combination_is_predicted_with_exported_and_drawn_from(kernel, likelihood, form, standard_promotion):
    if (kernel, likelihood, form) not in SOME and not os.environ.get("GPZOO_STRESS"):
        pytest.skip("make stress runs it")
    (covariance, drawable), (make, outputs, data) = KERNELS[kernel], LIKELIHOODS[likelihood]
    images = kernel == "DoubleSum"
    if images and form not in ("full", "diagonal"):
        pytest.skip("views go with patches")
    if form == "block_diagonal":
        covariance = covariance + kernels.RBF(0.5, 2.0)
    X = IMAGES if images else VECTORS[:, :1] if form == "low_rank" else VECTORS

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(covariance, X, num_outputs=outputs))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", make(f), obs=y)

    guide = InducingGuide(program, inducing_for(form, kernel), covariance=form)
    refused = None
    if form == "kronecker" and kernel not in ("RBF", "Periodic", "Scaled"):
        refused = "A grid with 2 axes needs a kernel that is a product"
    if form == "low_rank" and not stationary(covariance):
        refused = "Toeplitz structure needs one axis and a stationary kernel"
    if refused:
        with pytest.raises(ValueError, match=refused):
            guide.init_params(KEY, X, data)
        return
    trained = Trained(program, guide, guide.init_params(KEY, X, data))
    shape = (8,) if outputs is None else (8, outputs)
    noisy = kernel == "White"

    found = trained.predict(KEY, X, test_data={"y": data})
    assert found["f"].mean.shape == shape and (found["f"].variance > 0).all()
    np.testing.assert_allclose(found["f"].variance[::2], found["f"].variance[1::2], rtol=1e-6)
    assert np.isfinite(found["y"].log_density).all()

    export = trained.to_arviz(KEY, X, data, num_draws=4)
    f = np.asarray(export["posterior"]["f"])
    assert f.shape == (1, 4, *shape) and np.isfinite(f).all()
    assert np.isfinite(np.asarray(export["log_likelihood"]["y"])).all()
    if not noisy:
        np.testing.assert_allclose(f[:, :, ::2], f[:, :, 1::2], atol=0.05)

    if not drawable and form not in ("low_rank", "kronecker"):
        with pytest.raises(TypeError, match="spectral density"):
            trained.functions(KEY, X, num_draws=2)
        return
    values = trained.functions(KEY, X, num_draws=2, num_features=64)["f"]
    assert values.shape == (2, *shape) and np.isfinite(values).all()
    if not noisy:
        np.testing.assert_allclose(values[:, ::2], values[:, 1::2], atol=1e-6)
