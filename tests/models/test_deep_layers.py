"""Layers of deep GPs: their mean maps, where their inducing variables start, and what three of them are good for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI
from scipy.optimize import linprog

from gpzoo.inducing.initialisers import kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.kernels import RBF
from gpzoo.linalg.factorise import cholesky
from gpzoo.models import deep_gp, gp_regression, inner_scales, linear_layers
from tests.programs import KEY, adam

RNG = np.random.default_rng(0)
MIXING = RNG.standard_normal((4, 4)) * np.array([3.0, 2.0, 1.0, 0.3])[:, None]
X = RNG.standard_normal((30, 4)) @ MIXING + 0.5
y = RNG.standard_normal(30)


def maps_of(data, widths):
    return [np.asarray(W) for W in linear_layers(data, widths)]


# -- mean maps ---------------------------------------------------------------------------------------------------------


def same_up_to_signs(ours, theirs):
    np.testing.assert_allclose(np.abs(np.sum(ours * theirs, axis=0)), 1.0, rtol=1e-10)


def directions(data, width):
    return np.linalg.svd(data, full_matrices=False)[2][:width].T


def test_maps_of_a_stack():
    maps = maps_of(X, [4, 6, 6, 3, 2])
    np.testing.assert_array_equal(maps[0], np.eye(4))
    np.testing.assert_array_equal(maps[1], np.eye(4, 6))
    np.testing.assert_array_equal(maps[2], np.eye(6))
    # A narrower layer takes the principal directions of the data as they arrive, not centred.
    np.testing.assert_allclose(maps[3].T @ maps[3], np.eye(3), atol=1e-12)
    same_up_to_signs(maps[3][:4], directions(X, 3))
    np.testing.assert_allclose(maps[3][4:], 0, atol=1e-12)
    data = X @ maps[1] @ maps[3]
    same_up_to_signs(maps[4], directions(data, 2))
    kept = np.sum(np.square(data @ maps[4])) / np.sum(np.square(X))
    best = np.linalg.svd(X, compute_uv=False) ** 2
    np.testing.assert_allclose(kept, best[:2].sum() / best.sum(), rtol=1e-10)
    assert kept > 0.8
    assert linear_layers(X, []) == ()


def test_maps_have_signs_of_their_own():
    (W,) = maps_of(X, [3])
    largest = np.take_along_axis(W, np.abs(W).argmax(0)[None], 0)
    assert (largest > 0).all()
    for other in (-X, X[::-1], 2 * X):
        np.testing.assert_allclose(linear_layers(other, [3])[0], W, atol=1e-10)


def test_maps_follow_the_precision_and_the_number_of_rows():
    many = np.tile(X, (2200, 1)).astype(np.float32)  # more rows than are summed at a time
    assert len(many) > 2**16
    for data in (X.astype(np.float32), many):
        single = linear_layers(data, [3, 3, 5])
        assert [W.dtype for W in single] == ["float32"] * 3
        np.testing.assert_allclose(single[0], linear_layers(X, [3])[0], atol=1e-5)
    assert linear_layers(np.arange(6).reshape(3, 2), [1])[0].dtype == jnp.float64


@pytest.mark.parametrize(
    ("data", "widths", "message"),
    [
        (X[:, 0], [1], r"X must be \[N, d\], got shape \(30,\)"),
        (X[None], [1], r"X must be \[N, d\], got shape \(1, 30, 4\)"),
        (X[:0], [1], "X is empty"),
        (
            np.where(np.arange(120).reshape(30, 4) == 13, np.nan, X),
            [1],
            r"X has 1 entries that are not finite, the first at index \(3, 1\)",
        ),
        (X, [4, 0], r"widths\[1\] must be an integer of at least 1, got 0"),
        (X, [2.5], r"widths\[0\] must be .* got 2\.5"),
        (X, [True], r"widths\[0\] must be .* got True"),
    ],
    ids=["vector", "rank", "empty", "nan", "zero", "fraction", "bool"],
)
def test_maps_are_refused_bad_input(data, widths, message):
    with pytest.raises(ValueError, match=message):
        linear_layers(data, widths)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([np.eye(2)], r"layers\[0\] has shape \(2, 2\), but the layer below it has width 4.*linear_layers"),
        ([2, np.eye(4)], r"layers\[1\] has shape \(4, 4\), but the layer below it has width 2"),
        ([np.ones(4)], r"layers\[0\] has shape \(4,\).* a matrix \[4, width\]"),
        (np.eye(4), r"layers\[0\] has shape \(4,\)"),
        ([3, 0], r"layers\[1\] must be an integer of at least 1, got 0"),
        ([2.0], r"layers\[0\] must be .* got 2\.0"),
    ],
    ids=["width", "second", "vector", "no list", "zero", "fraction"],
)
def test_layers_that_do_not_fit_are_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        handlers.seed(deep_gp, KEY)(X, layers=layers)


# -- where the guide starts --------------------------------------------------------------------------------------------


def in_hull(point, rows):
    found = linprog(np.zeros(len(rows)), A_eq=np.vstack([rows.T, np.ones(len(rows))]), b_eq=np.append(point, 1.0))
    return found.status == 0


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [True, False])
def test_a_guide_starts_with_the_means_alone(whiten):
    layers = maps_of(X, [4, 2])
    model = partial(deep_gp, layers=layers)
    guide = InducingGuide(model, kmeans(6), whiten=whiten, initial_scale=inner_scales(layers))
    params = {name: np.asarray(value) for name, value in guide.init_params(KEY, X, y).items()}
    root_of = jax.jit(lambda Z, noise: cholesky(RBF(1.0, 1.0)(Z) + noise * jnp.eye(6)))
    inputs = {"layer_0": X, "layer_1": X, "f": X @ layers[1]}
    for name, rows in inputs.items():
        rows, Z = np.asarray(rows), np.asarray(params[f"{name}_inducing"])
        assert all(in_hull(z, rows) for z in Z)
        # The means of clusters: what k-means comes to rest at.
        nearest = np.argmin(np.sum((rows[:, None] - Z) ** 2, axis=-1), axis=1)
        np.testing.assert_allclose(Z, [rows[nearest == m].mean(0) for m in range(6)], atol=1e-6)
        np.testing.assert_array_equal(params[f"{name}_mean"], 0)
        root = np.eye(6)
        if not whiten:
            noise = 0.0 if name == "f" else 1e-5
            root = root_of(Z, noise)
        factor = 1.0 if name == "f" else 1e-5
        scale = params[f"{name}_scale"]
        np.testing.assert_allclose(scale, factor * np.broadcast_to(root, scale.shape), rtol=1e-9, atol=1e-16)
    means, variances = jax.jit(
        lambda p: Trained(guide.model, guide, p).posterior(KEY, params["layer_0_inducing"])["layer_0"].marginals()
    )(params)
    np.testing.assert_array_equal(means, params["layer_0_inducing"])
    assert (variances < 1e-4).all()


@pytest.mark.slow
def test_inner_scales_name_the_inner_layers():
    assert inner_scales([3, 2]) == {"layer_0": 1e-5, "layer_1": 1e-5}
    assert inner_scales(linear_layers(X, [2]), 0.1) == {"layer_0": 0.1}


# -- a function with a step --------------------------------------------------------------------------------------------


def step(num, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, num)
    return x[:, None], np.sign(x) + 0.05 * rng.standard_normal(num)


@pytest.mark.slow
def test_a_step_is_better_explained_by_three_layers_than_by_one():
    X, y = step(60, 0)
    X_test, y_test = step(200, 1)
    layers, bounds, densities = linear_layers(X, [1, 1]), [], []
    for model, scales in ((gp_regression, 1.0), (partial(deep_gp, layers=layers), inner_scales(layers))):
        guide = InducingGuide(model, kmeans(8), initial_scale=scales)
        svi = SVI(model, guide, adam(0.02), GaussianProcessELBO())
        # Of three starts the one with the best bound: some come to rest at one smooth function.
        several = fit(random.split(random.key(0), 3), svi, 2000, X, y, in_axes=None, progress=False)
        best = several.losses[:, -200:].mean(axis=1).argmin()
        found = several.member(best).predict(KEY, X_test, test_data={"y": y_test}, num_draws=50)
        bounds.append(-several.losses[best, -200:].mean())
        densities.append(found["y"].log_density.mean())
    assert bounds[1] > bounds[0] + 20
    assert densities[1] > densities[0] + 0.6
