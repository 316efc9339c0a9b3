"""The collapsed bound and its q(u): against exact regression, Titsias's formula in NumPy, and the uncollapsed bound."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from jax import random
from numpyro.infer import SVI
from scipy.stats import multivariate_normal

from gpzoo import (
    FactorisationError,
    InducingGrid,
    InducingPoints,
    NonFiniteError,
    PrecisionWarning,
    blocks,
    draws,
    kmeans,
    unique_patches,
)
from gpzoo.inference import (
    CollapsedELBO,
    GaussianProcessELBO,
    InducingGuide,
    NaturalGradients,
    Trained,
    fit,
    lbfgs,
)
from gpzoo.inference.bounds import collapsed
from gpzoo.inference.training.failures import warn_if_fallen
from gpzoo.kernels import RBF, Invariant
from gpzoo.likelihoods import Bernoulli, Gaussian
from gpzoo.models import gp_regression
from gpzoo.processes.process import GaussianProcess
from gpzoo.reproductions import deep as paper
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Run
from gpzoo.reproductions.training import Setting
from gpzoo.views import Rotation
from tests.programs import KEY, bayesian_regression, bound, deep, positive, regression, relaxed, sine
from tests.reference import collapsed_bound, conditional, pairs, rbf

COLLAPSED = CollapsedELBO()
VARIANCE, LENGTHSCALE, NOISE = 1.3, 0.6, 0.05
ROTATION = np.linalg.qr(np.random.default_rng(3).standard_normal((2, 2)))[0]

rng = np.random.default_rng(0)
X = np.linspace(-3, 3, 25)[:, None]
Y = np.stack([np.sin(2 * X[:, 0]), np.cos(X[:, 0])], axis=1) + 0.2 * rng.standard_normal((25, 2))
Z = np.linspace(-2.7, 2.8, 6)[:, None]
FACTOR, OFFSET = rng.uniform(0.5, 2, 25), rng.standard_normal(25)
KNOWN, EACH = rng.uniform(size=25) > 0.3, rng.uniform(0.02, 0.2, 25)


def program(X, y=None, *, likelihood, num_outputs=None, mean=None, jitter=None, noise=NOISE):
    """Hyperparameters are fixed; the likelihood is a data site's distribution of ``f``."""
    kernel = RBF(VARIANCE, LENGTHSCALE)
    f = numpyro.sample("f", GaussianProcess(kernel, X, mean, num_outputs=num_outputs, jitter=jitter))
    likelihood(f, y, noise)


def plain(f, y, noise):
    with numpyro.plate("data", f.shape[0]):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


def masked(f, y, noise):
    y = None if y is None else jnp.where(KNOWN, y, jnp.nan)
    with numpyro.handlers.mask(mask=jnp.asarray(KNOWN)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


def affine(f, y, noise):
    plain(f * jnp.asarray(FACTOR) + jnp.asarray(OFFSET), y, noise)


def rotated(f, y, noise):
    plain(f @ jnp.asarray(ROTATION), y, noise)


def columns(f, y, noise):
    """The same in two data sites, each of which mixes the sources; together they do not."""
    for k in range(2):
        numpyro.sample(f"y_{k}", Gaussian((f @ jnp.asarray(ROTATION))[:, k], noise), obs=None if y is None else y[:, k])


def kernel_matrix(a, b):
    return rbf(*pairs(a, b), VARIANCE, LENGTHSCALE)


def titsias(y, noise=NOISE, factor=1.0, rows=slice(None), mean=0.0):
    """``log N(y | c m, c Q c + S) - sum c^2 (k - q) / (2 s)`` for one output, default jitter on ``Kuu``."""
    c, s = (np.broadcast_to(x, len(X))[rows] for x in (factor, noise))
    Kuu, Kuf = kernel_matrix(Z, Z) + 1e-9 * VARIANCE * np.eye(len(Z)), kernel_matrix(Z, X[rows])
    return collapsed_bound(Kuu, Kuf * c, VARIANCE * c**2, y[rows] - c * mean, s)


TWO = {"num_outputs": 2}
CASES = {
    "plain": (plain, {}, Y[:, 0], titsias(Y[:, 0])),
    "mean": (plain, {"mean": 0.7}, Y[:, 0], titsias(Y[:, 0], mean=0.7)),
    "masked": (masked, {}, Y[:, 0], titsias(Y[:, 0], rows=KNOWN)),
    "noise per row": (plain, {"noise": jnp.asarray(EACH)}, Y[:, 0], titsias(Y[:, 0], EACH)),
    "f * c + b": (affine, {}, Y[:, 0], titsias(Y[:, 0] - OFFSET, factor=FACTOR)),
    "outputs": (
        plain,
        TWO | {"noise": jnp.array([0.05, 0.2])},
        Y,
        titsias(Y[:, 0], 0.05) + titsias(Y[:, 1], 0.2),
    ),
    "f @ Q": (rotated, TWO, Y, sum(titsias(y) for y in (Y @ ROTATION.T).T)),
    "f @ Q, sites": (columns, TWO, Y, sum(titsias(y) for y in (Y @ ROTATION.T).T)),
}


@pytest.mark.slow_but(case=["plain", "masked"])
@pytest.mark.parametrize("case, whiten", [*((case, True) for case in CASES), ("plain", False), ("outputs", False)])
def test_bound_and_optimum(case, whiten):
    """The bound is Titsias's, and that of GaussianProcessELBO at the q(u) that is said to be optimal."""
    likelihood, options, y, wanted = CASES[case]
    model = partial(program, likelihood=likelihood, **options)
    guide = InducingGuide(model, InducingPoints(jnp.asarray(Z)), whiten=whiten)
    params = guide.init_params(KEY, X, y)
    found = float(bound(model, guide, params, X, y, loss=COLLAPSED))
    np.testing.assert_allclose(found, wanted, rtol=1e-8)
    best = COLLAPSED.optimal(params, guide, X, y)
    assert {name: x.shape for name, x in best.items()} == {name: x.shape for name, x in params.items()}
    np.testing.assert_allclose(bound(model, guide, best, X, y), found, rtol=1e-8)
    # It does not depend on the q(u) that it is given, and no other is better.
    assert float(bound(model, guide, best, X, y, loss=COLLAPSED)) == found
    for name in ("f_mean", "f_scale"):
        moved = best | {name: best[name] + 1e-2}
        assert float(bound(model, guide, moved, X, y)) < found


def summed(X, y=None):
    """Blocks of inducing variables, one for each part of the kernel."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.5) + RBF(0.5, 2.0), X))
    plain(f, y, NOISE)


def own_kernels(X, y=None):
    """A kernel and inputs of its own for each output."""
    kernel = RBF(jnp.array([1.0, 0.5]), jnp.array([0.5, 1.0]))
    f = numpyro.sample("f", GaussianProcess(kernel, jnp.stack([X, -X])))
    plain(f, y, NOISE)


@pytest.mark.slow
@pytest.mark.slow_but(model=[summed])
@pytest.mark.parametrize(
    "model, inducing, whiten, y",
    [(summed, blocks(kmeans(3), kmeans(4)), False, Y[:, 0]), (own_kernels, kmeans(4), True, Y)],
)
def test_structured(model, inducing, whiten, y, monkeypatch):
    """Blocks of Kuu, and a factor for each output, rows in chunks: the two bounds agree at the optimum."""
    monkeypatch.setattr(collapsed, "_MOST_ROWS", 9)
    guide = InducingGuide(model, inducing, whiten=whiten)
    params = guide.init_params(KEY, X, y)
    best = COLLAPSED.optimal(params, guide, X, y)
    wanted = bound(model, guide, params, X, y, loss=COLLAPSED)
    np.testing.assert_allclose(bound(model, guide, best, X, y), wanted, rtol=1e-8)


def test_in_float32_the_bound_at_all_inputs_is_not_above_the_evidence():
    """Variances given all inputs are zero up to rounding; where they rounded to less, the bound was 4 nats above."""
    X = np.sort(np.random.default_rng(0).uniform(-3, 3, (150, 1)), axis=0)
    y = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(1).standard_normal(150)
    own, values = {"f_variance": 16.0, "noise_variance": 0.01}, {}
    for dtype in (np.float64, np.float32):
        data = X.astype(dtype), y.astype(dtype)
        guide = InducingGuide(gp_regression, InducingPoints(data[0]))
        params = guide.init_params(KEY, *data) | {name: jnp.asarray(value, dtype) for name, value in own.items()}
        values[dtype] = bound(gp_regression, guide, params, *data, loss=COLLAPSED)
    assert -3 < float(values[np.float32]) - float(values[np.float64]) < 0.1


def test_exact_at_all_inputs():
    """With inducing inputs at all data and no jitter it is exact regression: evidence and predictions."""
    X, y = np.linspace(-3, 3, 12)[:, None], Y[:12, 0]
    K, new = kernel_matrix(X, X), np.linspace(-3.5, 3.5, 9)[:, None]
    assert np.linalg.cond(K) < 1e6
    model = partial(program, likelihood=plain, jitter=0.0)
    guide = InducingGuide(model, InducingPoints(jnp.asarray(X)))
    params = guide.init_params(KEY, X, y)
    noisy = K + NOISE * np.eye(12)
    evidence = multivariate_normal.logpdf(y, cov=noisy)
    np.testing.assert_allclose(bound(model, guide, params, X, y, loss=COLLAPSED), evidence, rtol=1e-8)
    trained = Trained(model, guide, COLLAPSED.optimal(params, guide, X, y))
    found = trained.predict(KEY, new)["f"]
    mean, covariance = conditional(noisy, kernel_matrix(X, new), kernel_matrix(new, new), y)
    np.testing.assert_allclose(found.mean, mean, atol=1e-8)
    np.testing.assert_allclose(found.variance, np.diag(covariance), atol=1e-8)


def test_gradient_and_chunks(monkeypatch):
    """The derivative is that of finite differences, and rows in chunks give the same."""
    X, y = sine(23)

    def model(X, y=None):
        # The default jitter grows with the variance, and is a constant in derivatives.
        kernel = RBF(positive("variance", 1.0), positive("lengthscale", 1.0))
        plain(numpyro.sample("f", GaussianProcess(kernel, X, jitter=1e-6)), y, positive("noise", 0.1))

    guide = InducingGuide(model, kmeans(5))
    params = guide.init_params(KEY, X, y)
    rng = np.random.default_rng(1)
    direction = {name: jnp.asarray(0.1 * rng.standard_normal(x.shape)) for name, x in params.items()}

    def along(step):
        moved = jax.tree.map(lambda x, d: x + step * d, params, direction)
        return COLLAPSED.loss(KEY, moved, model, guide, X, y)

    value, slope = jax.jit(jax.value_and_grad(along))(0.0)
    along_jit = jax.jit(along)
    np.testing.assert_allclose(slope, (along_jit(1e-5) - along_jit(-1e-5)) / 2e-5, rtol=1e-6)
    monkeypatch.setattr(collapsed, "_MOST_ROWS", 7)
    in_chunks = jax.jit(jax.value_and_grad(lambda step: along(step)))(0.0)
    np.testing.assert_allclose(in_chunks, (value, slope), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("held", [{"f_inducing"}, ["noise", "variance"]])
def test_lbfgs_holds_parameters(held):
    X, y = sine(12)
    guide = InducingGuide(regression, kmeans(4))
    start = guide.init_params(KEY, X, y)
    trained = fit(KEY, SVI(regression, guide, lbfgs(held=held), COLLAPSED), 3, X, y, progress=False)
    names = {"f_inducing", "noise", "variance", "lengthscale"}
    moved = {name for name in names if not np.allclose(trained.params[name], start[name], rtol=1e-9)}
    assert moved == names.difference(held)


HELD = {"hold": optax.set_to_zero(), "train": optax.lbfgs()}


@pytest.mark.parametrize(
    "optimiser, error, said",
    [
        (optax.lbfgs(), TypeError, r"lbfgs\(\) alone"),
        (
            optax.partition(HELD, lambda params: {n: "hold" if n == "noise" else "train" for n in params}),
            TypeError,
            "held=",
        ),
        (optax.chain(optax.clip(1.0), optax.scale_by_backtracking_linesearch(5)), TypeError, r"lbfgs\(\) alone"),
        (lbfgs(held={"inducing"}), ValueError, r"held.*\['inducing'\]"),
    ],
)
def test_a_line_search_that_cannot_take_part_is_refused(optimiser, error, said):
    X, y = sine(12)
    svi = SVI(regression, InducingGuide(regression, kmeans(4)), optimiser, COLLAPSED)
    with pytest.raises(error, match=said):
        fit(KEY, svi, 3, X, y, progress=False)


@pytest.mark.slow
def test_lbfgs_ends_with_an_ordinary_trained(tmp_path):
    """It is where Adam is not yet after many steps; stopped and taken up again it ends with the same bits."""
    X, y = sine()
    guide = InducingGuide(regression, kmeans(8))
    svi = SVI(regression, guide, lbfgs(), COLLAPSED)
    trained = fit(KEY, svi, 25, X, y, progress=False)
    adam = SVI(regression, guide, relaxed(optax.adam(0.01)), COLLAPSED)
    slow = fit(KEY, adam, 100, X, y, progress=False)
    assert trained.losses[-1] < slow.losses[-1] - 0.1 < slow.losses[0] - 10
    assert trained.expectations == {"y": "closed form"}
    # The bound of the parameters at the end is the ordinary bound of them.
    last = bound(regression, guide, trained.params, X, y)
    np.testing.assert_allclose(last, bound(regression, guide, trained.params, X, y, loss=COLLAPSED), rtol=1e-8)
    assert -last <= trained.losses[-1]
    found = trained.predict(KEY, X, test_data={"y": y})["y"]
    assert np.mean(np.abs(np.asarray(found.mean) - np.sin(2 * np.asarray(X)[:, 0]))) < 0.1
    fit(KEY, svi, 9, X, y, progress=False, checkpoint=tmp_path)
    resumed = fit(KEY, svi, 25, X, y, progress=False, checkpoint=tmp_path)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, trained.params)
    np.testing.assert_array_equal(resumed.losses, trained.losses)


@pytest.mark.slow
def test_several_trainings():
    """Each member ends with the q(u) of its own data."""
    X, y = sine(20)
    ys = jnp.stack([y, -2 * y])
    guide = InducingGuide(regression, kmeans(4))
    svi = SVI(regression, guide, lbfgs(), COLLAPSED)
    both = fit(random.split(KEY), svi, 4, X, ys, in_axes=(None, 0), progress=False)
    for k in range(2):
        member = both.member(k)
        wanted = bound(regression, guide, member.params, X, ys[k], loss=COLLAPSED)
        np.testing.assert_allclose(bound(regression, guide, member.params, X, ys[k]), wanted, rtol=1e-8)


@pytest.mark.slow
def test_in_plain_numpyro():
    """NumPyro's own loop trains it, and priors of points stay in the bound."""
    X, y = sine()
    guide = InducingGuide(bayesian_regression, kmeans(8))
    svi = SVI(bayesian_regression, guide, lbfgs(), COLLAPSED)
    options = {"progress_bar": False, "init_params": guide.init_params(KEY, X, y)}
    found = svi.run(KEY, 20, X, y, stable_update=True, **options)
    assert found.losses[-1] < found.losses[0] - 10
    params = COLLAPSED.optimal(found.params, guide, X, y)
    at_optimum = bound(bayesian_regression, guide, params, X, y)
    np.testing.assert_allclose(at_optimum, bound(bayesian_regression, guide, params, X, y, loss=COLLAPSED), rtol=1e-8)
    np.testing.assert_allclose(at_optimum, -found.losses[-1], atol=0.1)


# -- refusals ----------------------------------------------------------------------------------------------------------


def classified(f, y, noise):
    numpyro.sample("y", Bernoulli(f), obs=None if y is None else (y > 0).astype(jnp.int32))


def one_label(f, y, noise, *, label=0):
    """A label between precise data: of all slopes, it has the smallest."""
    precise = np.delete(np.arange(len(y)), label)
    numpyro.sample("z", Bernoulli(f[label : label + 1]), obs=jnp.ones(1, int))
    numpyro.sample("y", Gaussian(f[precise], 1e-5), obs=y[precise])


def drawn(f, y, noise):
    numpyro.sample("y", Gaussian(jnp.exp(draws(f)), noise), obs=y)


def mixed(f, y, noise):
    plain(f @ jnp.array([[1.0, 0.5], [0.0, 1.0]]), y, noise)


def weighted(X, y=None):
    with numpyro.handlers.scale(scale=0.5):
        regression(X, y)


def two_sites(X, y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    g = numpyro.sample("g", GaussianProcess(RBF(1.0, 1.0), X))
    plain(f + g, y, NOISE)


def two_of_their_own(X, y=None):
    plain(numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X)), y, NOISE)
    g = numpyro.sample("g", GaussianProcess(RBF(1.0, 1.0), X))
    numpyro.sample("z", Gaussian(g, NOISE), obs=y)


def two_of_other_rows(X, y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    g = numpyro.sample("g", GaussianProcess(RBF(1.0, 1.0), X[:4]))
    plain(f + g[jnp.zeros(len(X), int)], y, NOISE)


def no_site(X, y=None):
    plain(X[:, 0] * positive("slope", 1.0), y, NOISE)


def rotated_images(X, y=None):
    images = X[:, :, None, None] * jnp.ones((1, 3, 3, 1))
    f = numpyro.sample("f", GaussianProcess(Invariant(RBF(1.0, 1.0), Rotation((3, 3), 0.5)), images))
    plain(f, y, NOISE)


OF_F = partial(partial, program)
REFUSED = {
    "no GP site": (no_site, {"inducing": kmeans(3)}, "has 0"),
    "two GP sites": (two_sites, {"coupled": False}, r"has 2 \('f', 'g'\)"),
    "two sites with data of their own": (two_of_their_own, {}, r"has 2 \('f', 'g'\)"),
    "two sites of other rows": (two_of_other_rows, {}, r"shapes"),
    "layers": (deep, {}, "has 2"),
    "drawn": (OF_F(likelihood=drawn), {}, "'f' is drawn"),
    "joint": (OF_F(likelihood=plain), {"joint": "f"}, "joint="),
    "drawn hyperparameters": (bayesian_regression, {"hyperparameters": "normal"}, "'lengthscale', 'noise'"),
    "form": (regression, {"covariance": "diagonal"}, "'f' is Diagonal"),
    "sampled views": (rotated_images, {"inducing": unique_patches(3)}, "views"),
    "grid": (regression, {"inducing": InducingGrid(9, (-3.5, 3.5)), "covariance": "full"}, "grid"),
    "scale": (weighted, {}, "handlers.scale"),
    "classes": (OF_F(likelihood=classified), {}, "quadratic in GP site 'f'"),
    "a first label": (OF_F(likelihood=one_label), {}, "quadratic in GP site 'f'"),
    "a last label": (OF_F(likelihood=partial(one_label, label=7)), {}, "quadratic in GP site 'f'"),
    "mixed outputs": (OF_F(likelihood=mixed, num_outputs=2), {}, "mix outputs of GP site 'f'"),
    "mixed by noise": (
        OF_F(likelihood=rotated, num_outputs=2, noise=jnp.array([0.1, 0.4])),
        {},
        "mix outputs of GP site 'f'",
    ),
}


@pytest.mark.slow_but(name=REFUSED.keys() - {"sampled views", "classes", "mixed outputs", "mixed by noise"})
@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_the_first_step(name):
    model, options, reason = REFUSED[name]
    X_small, y = X[:8], Y[:8] if "mixed" in name else Y[:8, 0]
    guide = InducingGuide(model, **({"inducing": kmeans(3)} | options))
    steps = []
    svi = SVI(model, guide, relaxed(optax.adam(0.1)), COLLAPSED)
    with pytest.raises(ValueError, match=f"CollapsedELBO.*{reason}"):
        fit(KEY, svi, 1, X_small, y, progress=False, callback=lambda *x: steps.append(x))
    assert not steps


def test_minibatches_and_other_guides_are_refused():
    X, y = sine(20)
    guide = InducingGuide(regression, kmeans(4))
    svi = SVI(regression, guide, lbfgs(), COLLAPSED)
    with pytest.raises(ValueError, match="batch_size"):
        fit(KEY, svi, 1, X, y, batch_size=10, progress=False)
    params = guide.init_params(KEY, X, y)
    with pytest.raises(ValueError, match="'data' has 20 of 50"):
        COLLAPSED.optimal(params, guide, X, y, model_kwargs={"num_data": 50})
    with pytest.raises(ValueError, match="InducingGuide"):
        COLLAPSED.loss(KEY, {}, regression, lambda *args: None, X, y)


def test_natural_gradients_are_refused():
    """Along q(u), which is optimal, there is no slope."""
    X, y = sine(20)
    guide = InducingGuide(regression, kmeans(4))
    natural = NaturalGradients(optax.adam(0.1), guide, 0.1)
    for optimizer, options in ((optax.adam(0.1), {"natural": 0.1}), (natural, {})):
        with pytest.raises(ValueError, match="natural"):
            fit(KEY, SVI(regression, guide, optimizer, COLLAPSED), 1, X, y, progress=False, **options)
    assert guide.sites is None  # nothing was run


def test_nan_where_it_cannot_be_said():
    """Inside jit a bound that is none is NaN."""
    model = partial(program, likelihood=classified)
    guide = InducingGuide(model, kmeans(3))
    params = guide.init_params(KEY, X, Y[:, 0])
    assert np.isnan(bound(model, guide, params, X, Y[:, 0], loss=COLLAPSED))


@pytest.mark.slow
def test_lbfgs_wants_one_function_and_compiles_once():
    def counted(X, y=None):
        state = numpyro.primitives.mutable("steps", {"count": jnp.zeros(())})
        state["count"] = state["count"] + 1.0
        regression(X, y)

    X, y = sine(10)
    svi = SVI(counted, InducingGuide(counted, kmeans(3)), lbfgs(), GaussianProcessELBO())
    with pytest.raises(ValueError, match="steps"):
        fit(KEY, svi, 1, X, y, progress=False)
    plain_svi = SVI(regression, InducingGuide(regression, kmeans(3)), lbfgs(), GaussianProcessELBO())
    state = plain_svi.init(KEY, X, y)
    # Of the same types, so that no step is compiled twice.
    later = jax.eval_shape(plain_svi.update, state, X, y)[0]
    types = [
        [(x.dtype, x.weak_type) for x in jax.tree.leaves(s.optim_state)] for s in (jax.eval_shape(lambda: state), later)
    ]
    assert types[0] == types[1]
    with pytest.raises(ValueError, match="forward_mode_differentiation"):
        plain_svi.update(state, X, y, forward_mode_differentiation=True)


@pytest.mark.slow
def test_lbfgs_finds_the_optimal_posterior_of_labels_on_all_rows():
    model, labels = partial(program, likelihood=classified), (Y[:, 0] > 0).astype(int)
    guide = InducingGuide(model, InducingPoints(X))
    by_lbfgs = fit(KEY, SVI(model, guide, lbfgs(), GaussianProcessELBO()), 60, X, labels, progress=False)
    only = SVI(model, guide, optax.set_to_zero(), GaussianProcessELBO())
    by_natural_steps = fit(KEY, only, 60, X, labels, natural=0.5, progress=False)
    assert by_lbfgs.losses[0] - by_lbfgs.losses[-1] > 1.0
    assert by_lbfgs.losses[-1] == pytest.approx(by_natural_steps.losses[-1], abs=1e-3)


def test_lbfgs_and_minibatches_exclude_each_other():
    svi = SVI(regression, InducingGuide(regression, kmeans(3)), lbfgs(), GaussianProcessELBO())
    with pytest.raises(ValueError, match="lbfgs"):
        fit(KEY, svi, 1, *sine(10), batch_size=5, progress=False)


def test_float64_is_asked_for():
    X, y = sine(60, dtype=np.float32)
    model = partial(program, likelihood=plain, noise=1e-7)
    guide = InducingGuide(model, kmeans(5))
    params = guide.init_params(KEY, X, y)
    with pytest.warns(PrecisionWarning, match=r"float32.*enable_x64"):
        COLLAPSED.optimal(params, guide, X, y)


def test_a_bound_that_fell_is_said():
    with pytest.warns(PrecisionWarning, match="90,211"):
        warn_if_fallen(np.array([3.0, -90055.0, 156.0]), 150)
    warn_if_fallen(np.array([[3.0, -5.0, 1.0], [2.0, 1.0, 0.0]]), 150)
    warn_if_fallen(np.zeros((2, 0)), 150)


@pytest.mark.slow
def test_what_does_not_factorise_is_named():
    X, y = sine(12)
    svi = SVI(regression, InducingGuide(regression, kmeans(3)), lbfgs(), COLLAPSED)
    with pytest.raises(FactorisationError, match="'f'"):
        fit(KEY, svi, 5, X, y, progress=False, init_params={"variance": jnp.array(1e200), "noise": jnp.array(1e-200)})


@pytest.mark.slow
def test_a_bound_that_is_not_finite_in_training_is_said():
    def update(gradients, state, params=None):
        # Noise of 1e-304: the parameter is in range, its inverse times the data is not.
        return {name: jnp.full_like(x, -700.0 if name == "noise" else 0.0) for name, x in gradients.items()}, state

    guide = InducingGuide(regression, InducingPoints(Z))
    svi = SVI(regression, guide, optax.GradientTransformation(lambda params: (), update), COLLAPSED)
    message = r"stopped at step 2: .*(ELBO is|precision of q)"
    with pytest.warns(PrecisionWarning), pytest.raises((NonFiniteError, FactorisationError), match=message):
        fit(KEY, svi, 3, X, Y[:, 0], progress=False)


@pytest.mark.slow
def test_mutable_state_advances_once():
    """The program runs several times for one bound."""

    def counted(X, y=None):
        state = numpyro.primitives.mutable("steps", {"count": jnp.zeros(())})
        state["count"] = state["count"] + 1.0
        regression(X, y)

    X, y = sine(10)
    guide = InducingGuide(counted, kmeans(3))
    svi = SVI(counted, guide, relaxed(optax.adam(0.01)), COLLAPSED)
    assert float(fit(KEY, svi, 3, X, y, progress=False).params["steps"]["count"]) == 3


@pytest.mark.slow
def test_the_experiment_trains_in_float64(tmp_path):
    """SGPR of the UCI experiment, whose folds are of float32."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 2)), rng.standard_normal(30)
    raw = [Dataset("tiny", X, k + y, X[:5], k + y[:5], "generated", {}) for k in range(2)]
    run, setting = Run("deep", "uci", "boston", "cpu", 0, tmp_path), Setting(2, None, collapsed=True)
    scores, result = paper._on_folds(run, paper.SGPR, setting, [part.standardised() for part in raw], {})
    assert result.params["f_mean"].dtype == np.float64 and result.params["f_mean"].shape == (2, 30)
    # The folds' targets are the same but for a shift, which standardising takes away.
    np.testing.assert_allclose(*scores["rmse"], rtol=1e-3)


# -- what more inducing variables could add ----------------------------------------------------------------------------


def at_most(y, noise, points):
    """``log N(y | 0, Q + S)`` with ``S (1 + t)`` in place of ``S`` in the square (Titsias 2014)."""
    s = np.broadcast_to(noise, len(X))
    Kuu, Kuf = kernel_matrix(points, points) + 1e-9 * VARIANCE * np.eye(len(points)), kernel_matrix(points, X)
    Q = Kuf.T @ np.linalg.solve(Kuu, Kuf)
    t = np.sum((VARIANCE - np.diag(Q)) / s)
    determinant = np.linalg.slogdet(Q + np.diag(s))[1]
    square = y @ np.linalg.solve(Q + (1 + t) * np.diag(s), y)
    return -(len(y) * np.log(2 * np.pi) + determinant + square) / 2


@pytest.mark.slow_but(count=[1, 13])
@pytest.mark.parametrize("noise", [NOISE, jnp.asarray(EACH)])
@pytest.mark.parametrize("count", [1, 6, 13])
def test_the_upper_bound_is_that_of_the_paper(noise, count):
    points = np.linspace(-3, 3, count)[:, None]
    model = partial(program, likelihood=plain, noise=noise)
    guide = InducingGuide(model, InducingPoints(jnp.asarray(points)))
    found = COLLAPSED.evidence(guide.init_params(KEY, X, Y[:, 0]), guide, X, Y[:, 0])
    np.testing.assert_allclose(found.most, at_most(Y[:, 0], np.asarray(noise), points), rtol=1e-8)


def added(X, y=None):
    """Two sites, one of them times a factor for each row."""
    a = numpyro.sample("a", GaussianProcess(RBF(VARIANCE, LENGTHSCALE), X))
    b = numpyro.sample("b", GaussianProcess(RBF(0.3, 2.0), X))
    plain(a + jnp.asarray(FACTOR) * b, y, NOISE)


def seen_twice(X, y=None):
    """Two data sites that see different combinations of two sites, which explain most of them."""
    a = numpyro.sample("a", GaussianProcess(RBF(VARIANCE, 0.1), X))
    b = numpyro.sample("b", GaussianProcess(RBF(VARIANCE, 0.2), X))
    numpyro.sample("both", Gaussian(a + b, NOISE), obs=y if y is None else y[:, 0])
    numpyro.sample("apart", Gaussian(a - jnp.asarray(FACTOR) * b, jnp.asarray(EACH)), obs=y if y is None else y[:, 1])


@pytest.mark.slow_but(case=["seen twice"])
@pytest.mark.parametrize("case", [*CASES, "added", "seen twice"])
def test_the_evidence_lies_between_its_bounds(case):
    if case in ("added", "seen twice"):
        model, y = (added, Y[:, 0]) if case == "added" else (seen_twice, Y)
    else:
        likelihood, options, y, _ = CASES[case]
        model = partial(program, likelihood=likelihood, **options)
    found = []
    for points in (Z, X[::2], X):
        guide = InducingGuide(model, InducingPoints(jnp.asarray(points)))
        params = guide.init_params(KEY, X, y)
        found.append(COLLAPSED.evidence(params, guide, X, y))
        np.testing.assert_allclose(found[-1].least, bound(model, guide, params, X, y, loss=COLLAPSED), rtol=1e-9)
    least, most = np.array(found).T
    evidence = least[-1]  # with inducing points at all rows
    assert np.all(least <= evidence + 1e-5) and np.all(most >= evidence - 1e-5)
    assert np.all(np.diff(most - least) < 0) and most[-1] - least[-1] < 1e-3


@pytest.mark.slow
def test_no_upper_bound_of_mixed_outputs_or_other_noise():
    def mixed(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(VARIANCE, LENGTHSCALE), X, num_outputs=2))
        plain(f[:, 0] + numpyro.sample("g", GaussianProcess(RBF(0.3, 2.0), X)), y, NOISE)

    guide = InducingGuide(mixed, InducingPoints(jnp.asarray(Z)))
    with pytest.raises(ValueError, match="mixes outputs"):
        COLLAPSED.evidence(guide.init_params(KEY, X, Y[:, 0]), guide, X, Y[:, 0])

    def classes(f, y, noise):
        numpyro.sample("y", Bernoulli(f), obs=y)

    labels, guides = (Y[:, 0] > 0).astype(int), []
    for likelihood, y, said in ((classes, labels, "not quadratic"), (plain, Y[:, 0], "Cholesky")):
        model = partial(program, likelihood=likelihood, jitter=0.0)
        guides.append(InducingGuide(model, InducingPoints(jnp.asarray(Z if y is labels else np.zeros((3, 1))))))
        with pytest.raises(ValueError if y is labels else FactorisationError, match=said):
            COLLAPSED.evidence(guides[-1].init_params(KEY, X, y), guides[-1], X, y)
