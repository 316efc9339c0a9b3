"""Grids of inducing variables: interpolation, their posterior and its KL against dense formulas and golden numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import random
from numpyro import handlers
from numpyro.distributions.kl import kl_divergence
from numpyro.infer import SVI, Predictive, Trace_ELBO
from scipy.stats import multivariate_normal

from gpzoo import linalg
from gpzoo.errors import FactorisationError
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.kernels import RBF, Linear, Matern32, Matern52, Periodic, White
from gpzoo.likelihoods import Gaussian, Softmax
from gpzoo.linalg.operators import KroneckerProduct
from gpzoo.posteriors import InducingPosterior, Interpolation, forms
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, positive
from tests.reference import divergence, pairs, rbf
from tests.statistics import assert_gaussian_moments, off


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def uniform(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def close(a, b, tolerance=1e-10):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# -- golden numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float64, 1e-8), (jnp.float32, 1e-4)])
def test_golden_layer(golden, dtype, tolerance):
    arrays, _ = golden("svdkl_01_grid_gp_layer")
    given = {k[3:]: jnp.asarray(v, dtype if v.dtype.kind == "f" else None) for k, v in arrays.items() if k[:3] == "in_"}
    wanted = {k[4:]: v for k, v in arrays.items() if k.startswith("out_")}
    points = arrays["in_grid"]
    # Ours is given by where inputs lie, theirs by its outer points, one spacing beyond.
    grid = InducingGrid(16, (points[1], points[-2]))
    close(grid.axes()[0][:, 0], points, 1e-12)

    @jax.jit
    def ours(given):
        X = given["features_scaled"].T[..., None]
        kernel = RBF(given["outputscale"], given["lengthscale"])
        constant = given["mean_constant"]
        prior = GaussianProcess(kernel + White(given["prior_jitter"]), X, constant, num_outputs=3, jitter=0.0)
        mean = given["q_mu"].T - constant
        q = InducingPosterior(Interpolation(prior, grid, whiten=False), mean, forms.Full(given["q_sqrt"]))
        mean, variance = q.marginals()
        draws = mean + jnp.sqrt(variance) * given["eps"]
        logits = draws @ given["mixing_weights"].T
        scores = jax.vmap(lambda f: Softmax(f).log_prob(given["Y"]))(logits).mean(0)
        covariance = kernel(grid.axes(dtype)[0])
        return grid.dense_weights(X), covariance, mean, variance, kl_divergence(q, prior), logits, scores

    weights, covariance, mean, variance, kl, logits, scores = ours(given)
    close(weights, wanted["W"], tolerance)
    close(covariance, wanted["Kuu"], tolerance)
    close(mean, wanted["fmean"], tolerance)
    close(variance, wanted["fvar"], tolerance)
    # Their matrix has a condition number of 1e4, and a KL of thousands.
    np.testing.assert_allclose(kl, wanted["KL"], rtol=10 * tolerance)
    close(logits, wanted["logits"], 10 * tolerance)
    close(scores, wanted["exp_log_prob"], 10 * tolerance)
    elbo = given["num_data"].astype(dtype) / 10 * scores.sum() - kl
    np.testing.assert_allclose(elbo, wanted["elbo"], rtol=10 * tolerance)


# -- interpolation -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.sampled_from([4, 5, 30]), st.tuples(*[st.floats(-2, 2)] * 3), st.floats(-5, 4), st.floats(0.1, 9))
def test_cubic_interpolation_reproduces_quadratics(size, coefficients, lower, width):
    grid = InducingGrid(size, (lower, lower + width))
    x = lower + width * np.linspace(0, 1, 33)
    W, points = jax.jit(lambda x: (grid.dense_weights(x), grid.points()[:, 0]))(x[:, None])
    W, points, parabola = np.asarray(W), np.asarray(points), partial(np.polyval, coefficients)
    np.testing.assert_allclose(W @ parabola(points), parabola(x), atol=1e-10 * (1 + width**2) * 50)
    np.testing.assert_allclose(W.sum(1), 1, atol=1e-12)
    assert (np.count_nonzero(W, axis=1) <= 4).all()


def test_linear_interpolation_reproduces_lines():
    grid = InducingGrid(7, (0.0, 3.0), interpolation="linear")
    x, points = np.linspace(0, 3, 40), np.linspace(0, 3, 7)
    axis, W = map(np.asarray, jax.jit(lambda x: (grid.axes()[0][:, 0], grid.dense_weights(x)))(x[:, None]))
    close(axis, points)
    close(W @ (2 * points - 1), 2 * x - 1)
    assert (np.count_nonzero(W, axis=1) <= 2).all()


def test_points_have_the_default_precision():
    """Without JAX's warning that float64 is off, which pictures of models in float32 would print."""
    with jax.enable_x64(False):
        assert InducingGrid(4, (0.0, 1.0)).points().dtype == np.float32


def test_the_interpolated_kernel_converges_with_the_third_power():
    X, kernel = uniform(60, 1), RBF(1.0, 0.5)

    @jax.jit
    def errors_of(X):
        Ws = [(grid.dense_weights(X), kernel(grid.points())) for grid in grids]
        return [jnp.abs(W @ K @ W.T - kernel(X)).max() for W, K in Ws]

    grids = [InducingGrid(size) for size in (23, 43, 83)]
    spacing = [grid.spacings[0] for grid in grids]
    errors = [float(error) for error in errors_of(X)]
    orders = np.diff(np.log(errors)) / np.diff(np.log(spacing))
    assert (orders > 2.8).all() and errors[-1] < 1e-4


def test_borders():
    grid = InducingGrid([9, 6], [(-1, 1), (0, 2)])
    corners = np.asarray([[-1.0, 0.0], [1.0, 2.0], [-1.0, 2.0]])
    weights = jax.jit(grid.dense_weights)
    values = np.sin(3 * np.asarray(grid.points())).sum(1)
    close(weights(corners) @ values, np.sin(3 * corners).sum(1))
    outside = np.asarray([[-1.5, 0.3], [0.2, 7.0], [1.0, 2.0], [3.0, -1.0]])
    close(weights(outside), weights(np.clip(outside, [-1.0, 0.0], [1.0, 2.0])))
    counted = jax.jit(grid.outside)
    assert counted(outside) == 3
    assert counted(np.nextafter(corners, 9.0)) == 0  # rounding is not outside
    slope = jax.jit(jax.grad(lambda x: (grid.dense_weights(x[None]) @ values)[0]))(outside[1])
    assert slope[1] == 0 and slope[0] != 0


def test_weights_follow_the_inputs():
    grid = InducingGrid([8, 7])
    X, u = uniform(12, 2), numbers(56)
    f = jax.jit(lambda X: grid.dense_weights(X) @ u)
    tangent = jax.jit(lambda X, move: jax.jvp(f, (X,), (move,))[1])
    step = 1e-6
    for d in range(2):
        move = np.tile(np.eye(2)[d], (12, 1))
        wanted = (f(X + step * move) - f(X - step * move)) / (2 * step)
        np.testing.assert_allclose(tangent(X, move), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        (3, {}, "at least 4 points for cubic"),
        ((8, 1), {"interpolation": "linear"}, "at least 2 points for linear"),
        (8, {"interpolation": "spline"}, "'cubic' or 'linear', got 'spline'"),
        (8, {"bounds": (1, -1)}, "lower below the upper"),
        (8, {"bounds": (0, np.inf)}, "must be finite"),
        ((8, 8), {"bounds": (0, 1, 2)}, "one such pair for each of 2 axes"),
        ((), {}, r"at least 4 points .* got sizes \(\)"),
    ],
)
def test_grids_that_make_no_sense_are_refused(sizes, options, message):
    with pytest.raises(ValueError, match=message):
        InducingGrid(sizes, **options)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"grid with 2 axes takes inputs \[N, 2\].*got shape \(5, 3\)"):
        InducingGrid((8, 8)).weights(numbers(5, 3))
    with pytest.raises(ValueError, match=r"sizes\[0\] must be an integer of at least 1, got 8\.5"):
        InducingGrid(8.5)


# -- the posterior -----------------------------------------------------------------------------------------------------

D, N = 2, 9
SHARED, EACH = RBF(1.3, 0.6), RBF(jnp.asarray([1.3, 0.4]), jnp.asarray([[0.6], [0.9]]))
PLANE = RBF(jnp.asarray([1.3, 0.4]), jnp.asarray([[0.6, 0.8], [0.9, 0.5]]))


def lower(*shape, seed=0):
    return 0.3 * numbers(*shape, seed=seed) + np.eye(shape[-1])


# name -> grid, kernel, inputs, scale of q(u), outputs
CASES = {
    "one axis": (8, SHARED, (D, N, 1), forms.Full(lower(D, 8, 8)), D),
    "one axis, one output": (8, SHARED, (N, 1), forms.Full(lower(8, 8)), None),
    "one axis, a kernel each": (8, EACH, (D, N, 1), forms.Full(lower(D, 8, 8)), D),
    "one axis, shared inputs": (8, EACH, (N, 1), forms.Full(lower(D, 8, 8)), D),
    "deviations": (8, EACH, (D, N, 1), forms.Diagonal(0.2 + np.abs(numbers(8, D))), D),
    "low rank": (8, SHARED, (N, 1), forms.LowRank(0.2 + np.abs(numbers(8)), numbers(8, 3)), None),
    "low rank, a kernel each": (8, EACH, (D, N, 1), forms.LowRank(0.2 + np.abs(numbers(8, D)), numbers(D, 8, 3)), D),
    "two axes": ((6, 5), PLANE, (D, N, 2), forms.Kronecker((lower(D, 6, 6), lower(D, 5, 5, seed=1))), D),
    "three axes": (
        (4, 5, 4),
        SHARED,
        (N, 3),
        forms.Kronecker((lower(4, 4), lower(5, 5, seed=1), lower(4, 4, seed=2))),
        None,
    ),
    "linear": (InducingGrid(8, interpolation="linear"), EACH, (D, N, 1), forms.Full(lower(D, 8, 8)), D),
}


def q_of(prior, grid, mean, form, whiten=True, **options):
    at = Interpolation(prior, grid, whiten=whiten, toeplitz=form.has_diagonal and grid.num_axes == 1)
    return InducingPosterior(at, mean, form, **options)


def posterior(case, whiten, **options):
    grid, kernel, shape, scale, outputs = CASES[case]
    grid = grid if isinstance(grid, InducingGrid) else InducingGrid(grid)
    prior = GaussianProcess(kernel, uniform(*shape, seed=4), 0.7, num_outputs=outputs)
    mean = numbers(*(grid.num_inducing, *(() if outputs is None else (outputs,))), seed=5)
    return q_of(prior, grid, mean, scale, whiten=whiten, **options), prior


def dense_covariances(q, prior):
    """Kuu with the jitter of the posterior, ``[D, M, M]``, and covariance of ``u`` from its own moments."""
    outputs = prior.num_outputs or 1
    L = q.conditional.L
    if L is None:
        K = Kuu(q.inducing, prior.kernel)
        K = linalg.add_jitter(K, linalg.TOEPLITZ_JITTER["float64"] * K[..., 0, 0])
    else:
        K = L.dense()
        K = K @ jnp.swapaxes(K, -1, -2)
    return jnp.broadcast_to(K, (outputs, *K.shape[-2:]))


@pytest.mark.slow_but(case=["one axis, a kernel each", "two axes"])
@pytest.mark.parametrize("case", CASES)
def test_posterior_is_that_of_dense_matrices(case):
    @jax.jit
    def evaluated():
        found = []
        for whiten in (True, False):
            q, prior = posterior(case, whiten)
            m, S = q.inducing_moments()
            S = S.dense() if isinstance(S, KroneckerProduct) else S
            m, S = (m[:, None], S[None]) if prior.num_outputs is None else (m, S)
            dense = dense_covariances(q, prior), m, S, q.inducing.dense_weights(prior.X)
            found.append((dense, q.marginals(), q.moments(), q.mean, kl_divergence(q, prior)))
        return found

    for (K, m, S, W), (mean, variance), ours, own_mean, kl in jax.tree.map(np.asarray, evaluated()):
        W = np.broadcast_to(W, (len(S), N, S.shape[-1]))
        wanted = 0.7 + np.einsum("dnm,md->nd", W, m)
        joint = W @ S @ np.swapaxes(W, -1, -2)
        close(mean.reshape(N, -1), wanted)
        close(variance.reshape(N, -1), np.diagonal(joint, axis1=1, axis2=2).T)
        close(ours[0].reshape(N, -1), wanted)
        close(ours[1].reshape(joint.shape), joint)
        close(own_mean, mean)
        np.testing.assert_allclose(kl, divergence(m.T, S, K), rtol=1e-8)


@pytest.mark.slow_but(case=["one axis"])
@pytest.mark.parametrize("case", ["one axis", "low rank, a kernel each", "two axes"])
def test_draws_have_the_moments(case):
    *_, outputs = CASES[case]

    @jax.jit
    def drawn():
        q, prior = posterior(case, True)
        given = q.given(q.draw_inducing(KEY))
        assert q.event_shape == prior.event_shape
        return q.sample(KEY, (4000,)), q.moments(), q.sample(KEY), given.marginals()[1], given.mean

    draws, (mean, covariance), one, spread, known = drawn()
    draws = np.asarray(draws).reshape(4000, N, -1)
    covariance = np.asarray(covariance).reshape(outputs, N, N)
    for d in range(outputs):
        assert_gaussian_moments(draws[..., d], np.asarray(mean).reshape(N, -1)[:, d], covariance[d])
    assert one.shape == (N, outputs)
    close(spread, 0.0)
    close(known, one)


def test_marginals_that_outputs_share_and_their_gradients():
    """Gradients through tables and gathers equal those through dense weights."""
    grid, X = InducingGrid(9), uniform(D, N, 1)

    def fast(variance, X, m, S):
        prior = GaussianProcess(RBF(variance, jnp.asarray([[0.6], [0.9]])), X, num_outputs=D)
        mean, spread = q_of(prior, grid, m, forms.Full(S)).marginals()
        return jnp.sum(jnp.sin(mean)) + jnp.sum(jnp.cos(spread))

    def slow(variance, X, m, S):
        prior = GaussianProcess(RBF(variance, jnp.asarray([[0.6], [0.9]])), X, num_outputs=D)
        mean, joint = q_of(prior, grid, m, forms.Full(S)).moments()
        return jnp.sum(jnp.sin(mean)) + jnp.sum(jnp.cos(jnp.diagonal(joint, axis1=1, axis2=2)))

    at = np.asarray([1.3, 0.4]), X, numbers(9, D), lower(D, 9, 9)
    ours, wanted = (jax.jit(jax.grad(f, (0, 1, 2, 3)))(*at) for f in (fast, slow))
    for a, b in zip(ours, wanted, strict=True):
        close(a, b, 1e-8)


def test_covariances_are_interpolated():
    plane, line, X = InducingGrid((6, 5)), InducingGrid(8), uniform(7, 2)

    @jax.jit
    def evaluated(X):
        found = Kuu(plane, SHARED).dense(), Kuf(plane, SHARED, X), Kuu(line, Linear(1.0)), Kuf(line, EACH, X[:, :1])
        points = SHARED(plane.points()), Linear(1.0)(line.points()), EACH(line.points())
        return found, points, plane.dense_weights(X), line.dense_weights(X[:, :1])

    found, (of_plane, linear, each), W, w = jax.tree.map(np.asarray, evaluated(X))
    for ours, wanted in zip(found, (of_plane, of_plane @ W.T, linear, each @ w.T), strict=True):
        close(ours, wanted)


@pytest.mark.parametrize(
    "kernel", [Periodic(1.2, 0.7, 2.0), 2.0 * Matern52(1.5, 0.4, active_dims=[0]) * Matern32(0.5, 0.8, active_dims=[1])]
)
def test_products_of_kernels_are_kronecker(kernel):
    grid = InducingGrid((5, 6), [(-1, 1), (0, 3)])
    close(*jax.jit(lambda kernel: (Kuu(grid, kernel).dense(), kernel(grid.points())))(kernel))


@pytest.mark.parametrize("kernel", [Matern32(1.0, 0.5), SHARED + White(0.1), Linear(1.0), SHARED + SHARED])
def test_kernels_that_are_no_product_are_refused(kernel):
    with pytest.raises(ValueError, match=r"2 axes needs a kernel that is a product.*active_dims=\[0\]"):
        Kuu(InducingGrid((5, 6)), kernel)


@pytest.mark.slow
def test_wrong_forms_are_refused():
    prior = GaussianProcess(SHARED, uniform(N, 1), num_outputs=D)
    plane = GaussianProcess(SHARED, uniform(N, 2), num_outputs=D)
    grid, squares = InducingGrid(8), InducingGrid((4, 4))

    def traced(*arguments, use=lambda q: None, **options):
        """Nothing is computed: shapes are enough to refuse these."""
        return jax.eval_shape(lambda: use(q_of(*arguments, **options)))

    with pytest.raises(ValueError, match=r"mean of q\(u\) of site 'f' has shape \(7, 2\), expected \(8, 2\)"):
        traced(prior, grid, numbers(7, D), forms.Full(lower(D, 8, 8)))
    with pytest.raises(ValueError, match=r"scale of q\(u\).*\(8, 8\), expected \(2, 8, 8\)"):
        traced(prior, grid, numbers(8, D), forms.Full(lower(8, 8)))
    with pytest.raises(ValueError, match=r"'full'. does not go with a grid of 2 axes"):
        traced(plane, squares, numbers(16, D), forms.Full(lower(D, 16, 16)))
    linear = GaussianProcess(Linear(1.0), uniform(N, 1))
    with pytest.raises(ValueError, match=r"Toeplitz structure needs one axis and a stationary kernel"):
        traced(linear, grid, numbers(8), forms.Diagonal(np.ones(8)), use=lambda q: q.marginals())
    arguments = prior, grid, numbers(8, D), forms.Full(lower(D, 8, 8))
    with pytest.raises(TypeError, match="interpolated from a grid: its values have no joint density"):
        traced(*arguments, use=lambda q: q.log_prob(q.sample(KEY)))
    bad = GaussianProcess(SHARED, uniform(N, 1), jitter=-0.5)
    with pytest.raises(FactorisationError, match="Kuu of site 'f' along axis 0"):
        q_of(bad, grid, numbers(8), forms.Full(lower(8, 8)))
    with pytest.raises(FactorisationError, match=r"prior over the grid of site 'f' \(8 points, float64\)"):
        kl_divergence(q_of(bad, grid, numbers(8), forms.Diagonal(np.ones(8)), whiten=False), bad)


# -- in programs -------------------------------------------------------------------------------------------------------


def program(X, y=None, *, num_data=None):
    lengthscale = positive("lengthscale", jnp.full(X.shape[1], 0.5, X.dtype))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, 0.05), obs=y)


def waves(axes=1, n=300):
    X = uniform(n, axes, seed=1)
    y = np.sin(5 * X[:, 0]) * (X[:, -1] if axes > 1 else 1.0)
    return X, y + 0.1 * numbers(n, seed=2)


FORMS = {
    "full": (1, 30, {}),
    "diagonal": (1, 30, {"covariance": "diagonal"}),
    "low rank": (1, 30, {"covariance": "low_rank"}),
    "kronecker": (2, (12, 15), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_trained_in_a_program(form):
    axes, sizes, options = FORMS[form]
    X, y = waves(axes)
    guide = InducingGuide(program, InducingGrid(sizes), **options)
    svi = SVI(program, guide, adam(0.03), GaussianProcessELBO())
    result = fit(KEY, svi, 1500 if form == "kronecker" else 300, X, y, progress=False)
    names = {"f_mean", "f_scale", "lengthscale"} | ({"f_factor"} if form == "low rank" else set())
    assert set(result.params) == names
    # Exact inference at the same hyperparameters bounds it, and is nearly met.
    K = rbf(*pairs(X, X), 1.0, np.asarray(result.params["lengthscale"])) + 0.05 * np.eye(300)
    gap = multivariate_normal.logpdf(y, np.zeros(300), K) + float(result.losses[-1])
    assert -0.5 < gap < {"diagonal": 60, "low rank": 20}.get(form, 10)
    trained = Trained(program, guide, result.params)
    predicted = np.asarray(trained.predict(KEY, X)["y"].mean)
    assert np.sqrt(np.mean((predicted - y) ** 2)) < 0.12
    functions = partial(trained.functions, KEY, X[:20], num_draws=3)
    drawn = functions()["f"]
    assert drawn.shape == (3, 20)
    if form in ("full", "kronecker"):
        np.testing.assert_allclose(trained.predict(KEY, X, batch_size=70)["y"].mean, predicted, rtol=0, atol=1e-12)
        close(drawn, functions(batch_size=7)["f"])

    @jax.jit
    def joint(params):
        draws = Predictive(guide, params=params, num_samples=2)(KEY, X[:5])["f"]
        return draws, Trained(program, guide, params).posterior(KEY, X + 1)["f"].conditional.outside

    draws, outside = joint(result.params)
    assert draws.shape == (2, 5) and outside > 0


def test_the_form_follows_the_grid():
    X, y = waves(1, 20)
    for sizes, covariance, wanted in (
        (256, None, {"f_scale": (256, 256)}),
        (257, None, {"f_scale": (257,), "f_factor": (257, 16)}),
        (40, "low_rank", {"f_scale": (40,), "f_factor": (40, 16)}),
    ):
        guide = InducingGuide(program, InducingGrid(sizes), covariance=covariance)
        params = jax.eval_shape(lambda guide=guide: guide.init_params(KEY, X, y))
        assert {name: params[name].shape for name in wanted} == wanted
        assert "f_inducing" not in params


@pytest.mark.parametrize(
    ("sizes", "covariance", "message"),
    [
        (8, "kronecker", "does not go with a grid of 1 axes"),
        ((8, 8), "full", "does not go with a grid of 2 axes.*several 'kronecker'"),
        (8, "block_diagonal", "does not go with a grid"),
    ],
)
def test_forms_that_do_not_go_with_the_grid_are_refused(sizes, covariance, message):
    X, y = waves(np.ndim(sizes) + np.size(sizes) - 1 if np.ndim(sizes) else 1, 20)
    with pytest.raises(ValueError, match=message):
        InducingGuide(program, InducingGrid(sizes), covariance=covariance).init_params(KEY, X[:, : np.size(sizes)], y)


def test_plain_objectives_are_refused():
    X, y = waves(1, 20)
    svi = SVI(program, InducingGuide(program, InducingGrid(8)), optax.sgd(0.1), Trace_ELBO())
    with pytest.raises(TypeError, match=r"no joint density\. Use GaussianProcessELBO"):
        jax.eval_shape(lambda: svi.update(svi.init(KEY, X, y), X, y))


@pytest.mark.slow
def test_cost_per_input_and_memory_do_not_grow_with_the_grid():
    """A grid of 100 x 100: nothing of its square, or of inputs times its size, is ever formed."""
    X, y = waves(2, 50)
    guide = InducingGuide(program, InducingGrid((100, 100)))
    svi = SVI(program, guide, adam(0.01), GaussianProcessELBO())
    state = jax.eval_shape(lambda: svi.init(KEY, X, y, init_params=guide.init_params(KEY, X, y)))
    compiled = jax.jit(lambda state: svi.update(state, X, y)).lower(state).compile()
    M = 100 * 100
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * M * 50  # [N, M] alone would take as much
    assert "10000,10000" not in compiled.as_text()


@pytest.mark.slow
def test_large_grids_are_never_factorised():
    X, y = waves(1, 50)
    guide = InducingGuide(program, InducingGrid(1024))
    svi = SVI(program, guide, adam(0.01), GaussianProcessELBO())
    state = jax.eval_shape(lambda: svi.init(KEY, X, y, init_params=guide.init_params(KEY, X, y)))
    text = jax.jit(lambda state: svi.update(state, X, y)).lower(state).compile().as_text()
    assert "1024,1024" not in text and "potrf" not in text and "2048" in text


@pytest.mark.slow
def test_one_draw_of_u_serves_all_inputs():
    """``joint`` sites are one draw of ``u`` per step, the paper's sampler (eq. 8), which bounds less tightly."""
    X, y = waves(1, 40)
    marginal = InducingGuide(program, InducingGrid(12))
    drawn = InducingGuide(program, InducingGrid(12), joint={"f"})
    loss = GaussianProcessELBO()

    @jax.jit
    def evaluated():
        params = marginal.init_params(KEY, X, y)
        of_draw = jax.vmap(lambda key: loss.loss(key, params, program, drawn, X, y))
        with handlers.seed(rng_seed=0), handlers.substitute(data=params):
            assert drawn(X, y)["f"].shape == (40,)
        return loss.loss(KEY, params, program, marginal, X, y), of_draw(random.split(KEY, 2000))

    exact, draws = map(np.asarray, evaluated())
    assert off(draws, exact) < 5
    assert draws.std() > 0
