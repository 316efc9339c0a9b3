"""The bound of deep GPs: against single GPs, composed means, quadrature, sums by hand and differences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from numpyro import handlers

from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained
from gpzoo.kernels import RBF
from gpzoo.linalg.factorise import cholesky
from gpzoo.models import deep_gp, gp_regression, inner_scales, linear_layers
from tests.programs import KEY, randomised, terms
from tests.reference import normal_quadrature
from tests.statistics import standard_error

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 3)) * np.array([2.0, 1.0, 0.5])
y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(12)
NEW = RNG.standard_normal((5, 3))
LAYERS = [np.asarray(W) for W in linear_layers(X, [3, 2])]
THREE = partial(deep_gp, layers=LAYERS)
SOME = X[::3] + 0.1


def points(*Z):
    """Inducing inputs of each layer, the last one ``f``."""
    names = [*(f"layer_{i}" for i in range(len(Z) - 1)), "f"]
    return {name: InducingPoints(z) for name, z in zip(names, Z, strict=True)}


def prepared(model, *args, inducing):
    """A guide, and parameters away from their start."""
    guide = InducingGuide(model, inducing, initial_scale=0.3)
    return guide, randomised(jax.jit(lambda: guide.init_params(KEY, *args))())


def make_bound(model, guide, *args, **kwargs):
    objective = GaussianProcessELBO(**kwargs)
    return lambda params, key=KEY: -objective.loss(key, params, model, guide, *args)


INDUCING = points(SOME, SOME, SOME @ LAYERS[1])


@pytest.fixture(scope="module")
def three():
    guide, params = prepared(THREE, X, y, inducing=INDUCING)
    return guide, params | {"layer_0_noise_variance": jnp.array(0.02), "layer_1_noise_variance": jnp.array(0.03)}


@pytest.fixture(scope="module")
def gradient(three):
    """The bound of three layers and its gradients, for one draw, compiled."""
    return jax.jit(jax.value_and_grad(make_bound(THREE, three[0], X, y)))


@pytest.fixture(scope="module")
def of_sites(three):
    """What every site adds to that bound."""
    return terms(THREE, *three, X, y)


# -- against single processes ------------------------------------------------------------------------------------------


def test_without_inner_layers_it_is_sparse_regression():
    found = []
    for model in (deep_gp, gp_regression):
        guide, params = prepared(model, X, y, inducing=InducingPoints(SOME))
        params |= {"noise_variance": jnp.array(0.2)}
        value = jax.jit(jax.value_and_grad(make_bound(model, guide, X, y)))(params)
        prediction = Trained(model, guide, params).predict(KEY, NEW, test_data={"y": y[:5]})
        found.append((params, value, prediction["y"][:3], prediction["f"][:2]))
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(), LAYERS], ids=["one layer", "three layers"])
def test_without_inner_variance_it_is_one_process_at_the_composed_means(layers):
    model = partial(deep_gp, layers=layers, layer_noise=None)
    H = X
    for W in layers:
        H = H @ W
    Z = points(*(X[:4] if i == 0 else X[:4] @ LAYERS[0] for i in range(len(layers))), H[:4])
    guide, params = prepared(model, X, y, inducing=Z)
    params |= {f"{name}_variance": jnp.array(1e-20) for name in inner_scales(layers)}
    alone, rest = prepared(gp_regression, H, y, inducing=InducingPoints(H[:4]))
    rest |= {name: value for name, value in params.items() if name in rest}
    deep, single = terms(model, guide, params, X, y), terms(gp_regression, alone, rest, H, y)
    np.testing.assert_allclose([deep["f"], deep["y"]], [single["f"], single["y"]], rtol=1e-7)


# -- the terms of the bound --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_bound_is_expectations_less_the_kl_of_every_layer(three, gradient, of_sites):
    (_, params), found = three, of_sites
    assert set(found) == {"layer_0", "layer_1", "f", "y"}
    np.testing.assert_allclose(gradient(params)[0], sum(found.values()), rtol=1e-12)
    for name, width in {"layer_0": 3, "layer_1": 2, "f": 1}.items():
        m, S = (np.asarray(params[f"{name}_{part}"]) for part in ("mean", "scale"))
        S = np.tril(S.reshape(width, 4, 4))
        logs = np.log(np.square(np.diagonal(S, axis1=1, axis2=2))).sum()
        np.testing.assert_allclose(-found[name], ((m**2).sum() + (S**2).sum() - m.size - logs) / 2, rtol=1e-12)


@pytest.mark.slow
def test_whitened_or_not_the_bound_is_the_same(three, of_sites):
    _, params = three
    plain = InducingGuide(THREE, INDUCING, whiten=False)
    plain.setup(X, y)
    corresponding = dict(params)

    @jax.jit
    def of_layer(kernel, Z, noise, mean, scale):
        L = cholesky(kernel(Z) + noise * jnp.eye(4))
        return L @ mean, L @ jnp.tril(scale)

    for name in ("layer_0", "layer_1", "f"):
        kernel = RBF(params[f"{name}_variance"], params[f"{name}_lengthscale"])
        own = [params.get(f"{name}_{part}", 0.0) for part in ("inducing", "noise_variance", "mean", "scale")]
        corresponding[f"{name}_mean"], corresponding[f"{name}_scale"] = of_layer(kernel, *own)
    theirs = terms(THREE, plain, corresponding, X, y)
    for name, value in of_sites.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-9)


# -- an unbiased estimator ---------------------------------------------------------------------------------------------

NARROW = partial(deep_gp, layers=[jnp.ones((1, 1))], layer_noise=0.05)
x, targets = X[:4, :1], y[:4]


def by_quadrature(params):
    """Eq. 17 for two layers with an inner width of one: the inner value of each datum is integrated over."""

    def conditional(name, h, noise):
        Z, m, S = params[f"{name}_inducing"], params[f"{name}_mean"].ravel(), params[f"{name}_scale"].reshape(3, 3)
        variance, lengthscale = params[f"{name}_variance"], params[f"{name}_lengthscale"]
        k = lambda a, b: variance * jnp.exp(-jnp.square(a - b.T) / lengthscale**2 / 2)  # noqa: E731
        L = jnp.linalg.cholesky(k(Z, Z) + jnp.maximum(noise, jax.lax.stop_gradient(1e-9 * variance)) * jnp.eye(3))
        A = jnp.linalg.solve(L, k(Z, h[:, None]))
        S = jnp.tril(S)
        kl = (jnp.sum(S**2) + m @ m - 3 - jnp.sum(jnp.log(jnp.diagonal(S) ** 2))) / 2
        return A.T @ m, variance + noise - jnp.sum(A**2, axis=0) + jnp.sum((S.T @ A) ** 2, axis=0), kl

    t, w = normal_quadrature(80)
    mean, variance, kl = conditional("layer_0", x[:, 0], params["layer_0_noise_variance"])
    h = x[:, 0] + mean + jnp.sqrt(variance) * jnp.asarray(t)[:, None]
    mean, variance, last = conditional("f", h.ravel(), 0.0)
    s = params["noise_variance"]
    expected = -(jnp.log(2 * np.pi * s) + ((jnp.tile(targets, 80) - mean) ** 2 + variance) / s) / 2
    return jnp.sum(jnp.asarray(w)[:, None] * expected.reshape(80, 4)) - kl - last


@pytest.mark.slow
def test_the_estimator_and_its_gradient_are_unbiased():
    guide, params = prepared(NARROW, x, targets, inducing=points(x[:3] + 0.1, x[:3] + 0.1))
    params |= {"noise_variance": jnp.array(0.3), "layer_0_variance": jnp.array(0.7), "f_lengthscale": jnp.array([0.8])}
    moving = {name: params[name] for name in ("layer_0_mean", "layer_0_variance", "layer_0_scale")}
    bound = make_bound(NARROW, guide, x, targets)
    one = jax.value_and_grad(lambda some, key: bound(params | some, key))
    draws = jax.jit(jax.vmap(partial(one, moving)))(random.split(KEY, 20_000))
    exact = jax.jit(jax.value_and_grad(lambda some: by_quadrature(params | some)))(moving)

    def compare(draws, exact):
        error = standard_error(draws)
        assert (np.abs(draws.mean(0) - exact) <= 4 * error + 1e-9 * np.abs(exact)).all()
        assert (error < 0.05 * (np.abs(exact) + 1)).all()

    jax.tree.map(compare, draws, exact)
    assert draws[0].std() > 0.1


# -- several draws -----------------------------------------------------------------------------------------------------


def equations(jaxpr, name):
    """Every equation of a primitive in a jaxpr and in those inside it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                yield from equations(getattr(inner, "jaxpr", inner), name)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["bound", "gradient"])
def test_draws_share_factorisations(three, transform):
    guide, params = three
    shapes = []
    for num_particles in (1, 5):
        bound = transform(make_bound(THREE, guide, X, y, num_particles=num_particles))
        jaxpr = jax.make_jaxpr(bound)(params).jaxpr
        shapes.append(sorted(equation.invars[0].aval.shape for equation in equations(jaxpr, "cholesky")))
        # The covariance of inner inputs and inducing inputs does depend on the draw.
        drawn = [e.outvars[0].aval.shape[0] == 5 for e in equations(jaxpr, "exp") if e.outvars[0].aval.ndim == 3]
        assert any(drawn) == (num_particles == 5)
    assert shapes[0] == shapes[1] == [(4, 4)] * 3


@pytest.mark.slow
def test_the_gradient_of_several_draws_is_their_mean():
    guide, params = prepared(NARROW, x, targets, inducing=points(x[:3] + 0.1, x[:3] + 0.1))
    several, one = (
        jax.jit(jax.grad(make_bound(NARROW, guide, x, targets, num_particles=num_particles)))
        for num_particles in (5, 1)
    )
    each = [jax.tree.map(np.asarray, one(params, key)) for key in random.split(KEY, 5)]
    for name, ours in several(params).items():
        parts = np.stack([part[name] for part in each])
        np.testing.assert_allclose(ours, parts.mean(0), rtol=1e-9, atol=1e-9 * np.abs(parts).max())
        # What enters the first layer's draw differs between draws.
        assert parts.std(0).max() > 1e-3


@pytest.mark.slow
def test_gradients_against_differences(three, gradient):
    _, params = three
    _, gradients = gradient(params)
    layers = [f"layer_{i}_{part}" for i in range(2) for part in ("variance", "lengthscale", "noise_variance")]
    own = {f"{name}_{part}" for name in ("layer_0", "layer_1", "f") for part in ("inducing", "mean", "scale")}
    assert set(params) == own | {*layers, "f_variance", "f_lengthscale", "noise_variance"}
    for name, value in params.items():
        entry = np.unravel_index(np.argmax(np.abs(gradients[name])), value.shape)
        step = 1e-5 * max(1.0, float(np.abs(value[entry])))
        move = np.zeros(value.shape)
        move[entry] = step
        plus, minus = (gradient(params | {name: jnp.asarray(np.asarray(value) + sign * move)})[0] for sign in (1, -1))
        assert np.abs(gradients[name][entry]) > 1e-3
        np.testing.assert_allclose(gradients[name][entry], (plus - minus) / (2 * step), rtol=2e-5, err_msg=name)


# -- what the layers see -----------------------------------------------------------------------------------------------


def traced(model, *args):
    return handlers.trace(handlers.seed(model, KEY)).get_trace(*args)


@pytest.mark.slow
@pytest.mark.parametrize("propagate", [False, True])
def test_layers_see_the_layer_below_and_the_inputs(propagate):
    model = partial(deep_gp, layers=[2, 4], propagate_inputs=propagate)
    seen = {}

    def kernel(name, h):
        seen[name] = h.shape
        return RBF(1.0, jnp.ones(h.shape[1]))

    def run():
        trace = traced(partial(model, kernel=kernel), X)
        values = {name: trace[name]["value"] for name in ("layer_0", "layer_1", "f")}
        return values, {name: trace[name]["fn"].X for name in values}, trace["layer_1"]["fn"].mean

    values, inputs, mean = jax.jit(run)()
    more = 3 if propagate else 0
    assert {name: value.shape for name, value in values.items()} == {"layer_0": (12, 2), "layer_1": (12, 4), "f": (12,)}
    assert seen == {"layer_0": (12, 3), "layer_1": (12, 2 + more), "f": (12, 4 + more)}
    np.testing.assert_array_equal(mean, 0)
    for name, below in {"layer_1": "layer_0", "f": "layer_1"}.items():
        np.testing.assert_array_equal(inputs[name][:, more:], values[below])
        if propagate:
            np.testing.assert_array_equal(inputs[name][:, :3], X)
    # At the posterior mean a layer of zero mean is one and the same number: k-means has nothing to cluster.
    columns = {name: shape[1] for name, shape in seen.items()}
    Z = {name: InducingPoints(RNG.standard_normal((4, width))) for name, width in columns.items()}
    guide, params = prepared(model, X, y, inducing=Z)
    for name, width in columns.items():
        assert params[f"{name}_lengthscale"].shape == (width,)
    assert np.isfinite(jax.jit(make_bound(model, guide, X, y))(params))


def test_maps_fit_the_layer_below_with_its_inputs():
    maps = [jnp.ones((3, 2)), jnp.ones((5, 1))]

    def run():
        trace = traced(partial(deep_gp, layers=maps, propagate_inputs=True), X)
        return trace["layer_1"]["fn"].mean, trace["layer_0"]["value"]

    mean, below = jax.jit(run)()
    np.testing.assert_allclose(mean[:, 0], X.sum(1) + below.sum(1), rtol=1e-12)


def test_layer_noise_is_in_the_kernel():
    def site(noise):
        trace = traced(partial(deep_gp, layers=[2], layer_noise=noise), X)
        prior = trace["layer_0"]["fn"]
        return prior.moments()[1], prior.variance, trace["f"]["fn"].moments()[1]

    noisy, exact = jax.jit(lambda: site(0.25))(), jax.jit(lambda: site(None))()
    noisy, exact = (jax.tree.map(np.asarray, found) for found in (noisy, exact))
    np.testing.assert_allclose(noisy[0] - exact[0], 0.25 * np.eye(12), atol=1e-12)
    np.testing.assert_allclose(noisy[1] - exact[1], np.full((12, 2), 0.25), rtol=1e-12)
    # The last layer has none.
    np.testing.assert_allclose(np.diagonal(noisy[2]), 1.0, rtol=1e-12)
    names: set[str] = set()
    jax.eval_shape(lambda: names.update(name for name in traced(partial(deep_gp, layers=[2]), X) if "noise" in name))
    assert names == {"layer_0_noise_variance", "noise_variance"}
    # In q as well: far from all inducing inputs the variance of a draw is larger by the noise.
    model = partial(deep_gp, layers=LAYERS[:1])
    guide, params = prepared(model, X, y, inducing=points(SOME, SOME))
    far = jax.jit(lambda p: Trained(guide.model, guide, p).posterior(KEY, X + 100.0)["layer_0"].marginals()[1])
    with_noise = far(params | {"layer_0_noise_variance": jnp.array(0.25)})
    np.testing.assert_allclose(with_noise, params["layer_0_variance"] + 0.25, rtol=1e-9)


@pytest.mark.slow
def test_single_precision_stays_single():
    data = X.astype(np.float32), y.astype(np.float32)
    layers = [np.asarray(W) for W in linear_layers(data[0], [2])]
    model = partial(deep_gp, layers=layers)
    Z = SOME.astype(np.float32)
    guide = InducingGuide(model, points(Z, Z @ layers[0]), initial_scale=inner_scales([2]))
    params = jax.jit(lambda: guide.init_params(KEY, *data))()
    assert {value.dtype for value in params.values()} == {jnp.dtype("float32")}
    value, gradients = jax.jit(jax.value_and_grad(make_bound(model, guide, *data)))(params)
    assert {g.dtype for g in gradients.values()} == {value.dtype} == {jnp.dtype("float32")}
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in gradients.values())
