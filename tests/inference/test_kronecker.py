"""Data on a grid by the Kronecker structure of their covariance, against the dense density of the same programs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.util import log_density

from gpzoo import GaussianProcess, kmeans
from gpzoo.inference import Trained, marginal, nuts
from gpzoo.inference.bounds.grids import Cells, _along_one_axis
from gpzoo.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52, Periodic, Pointwise, White
from gpzoo.likelihoods import Bernoulli, Gaussian
from tests.programs import KEY


def between(x, z, tasks):
    return tasks[jnp.round(x[0]).astype(int), jnp.round(z[0]).astype(int)]


def of_tasks(a, column):
    """A covariance of three tasks."""
    W = np.array([[1.0, 0.2], [-0.5, 0.8], [0.3, 0.6]])
    return Pointwise(between, active_dims=(column,), axes={"tasks": 2}, tasks=a * (W @ W.T) + 0.1 * np.eye(3))


#: Kernels of hyperparameters a and b, and the groups of their columns; the columns of a group go together.
KERNELS = [
    (lambda a, b: RBF(a, jnp.stack([b, 2 * b])), [1, 1]),
    (lambda a, b: 1.5 * (Matern52(a, b, active_dims=[1, 2]) * RBF(0.7, b, active_dims=[0])), [1, 2]),
    (lambda a, b: Matern32(a, b, active_dims=[0]) * (2.0 * Periodic(1.0, b, 2.0, active_dims=[1])) * RBF(), [1, 1]),
    (lambda a, b: (Matern12(a, b, active_dims=[0]) + Linear(0.3, active_dims=[0])) * of_tasks(b, 1), [1, 0]),
    (lambda a, b: Matern52(a, b, active_dims=[0]) * RBF(1.0, b, active_dims=[1]) * of_tasks(a, 2), [1, 1, 0]),
    (lambda a, b: (RBF(a, b, active_dims=[1]) + Constant(0.2)) * Constant(b) * Matern32(active_dims=[0]), [1, 1]),
]


def program(X, y=None, *, kernel, weight=1.0, noise=0.1, by_row=None, mask=None, missing="mask"):
    """One site, seen with a weight, in noise."""
    a = numpyro.sample("a", dist.LogNormal(0.0, 0.5))
    b = numpyro.sample("b", dist.LogNormal(0.0, 0.5))
    f = numpyro.sample("f", GaussianProcess(kernel(a, b), X))
    noise = noise * b if by_row is None else noise * b * by_row
    likelihood = Gaussian(weight * f + 0.3, noise, missing=missing)
    numpyro.sample("y", likelihood if mask is None else likelihood.mask(mask), obs=y)


def case(seed):
    """Rows in any order on a grid of two or three axes, some of whose cells have none, and options of the program."""
    rng = np.random.default_rng(seed)
    kernel, groups = KERNELS[seed % len(KERNELS)]
    axes = [rng.uniform(-2, 2, (int(rng.integers(1, 6)), d)) if d else np.arange(3.0)[:, None] for d in groups]
    numbers = np.stack(np.meshgrid(*map(np.arange, map(len, axes)), indexing="ij"), -1).reshape(-1, len(axes))
    kept = rng.permutation(len(numbers))[: max(1, round(len(numbers) * rng.uniform(0.6, 1.0)))]
    numbers = numbers[kept]
    X = np.concatenate([axis[i] for axis, i in zip(axes, numbers.T, strict=True)], axis=1)
    y, options = rng.standard_normal(len(X)), {"kernel": kernel, "weight": rng.uniform(0.5, 2.0)}
    if seed % 4 == 1:
        by = seed // 4 % len(axes)
        options["by_row"] = rng.uniform(0.5, 2.0, len(axes[by]))[numbers[:, by]]
    if seed % 5 == 2:
        y[rng.uniform(size=len(y)) < 0.2] = np.nan
    if seed % 5 == 4:
        options["mask"] = rng.uniform(size=len(y)) < 0.8
    return X, y, options


#: Random cases, of which six in a row have all kernels.
SEEDS = [range(1), *(pytest.param(range(i, i + 9), marks=pytest.mark.slow) for i in range(1, 55, 9))]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_equals_the_dense_density(seeds):
    """Densities and gradients."""
    for seed in seeds:
        X, y, options = case(seed)
        values = {"a": jnp.asarray(0.8), "b": jnp.asarray(1.3)}

        def both(X=X, y=y, options=options, values=values, **how):
            model = marginal(program, **how)
            return jax.value_and_grad(lambda v: log_density(model, (X, y), options, v)[0])(values)

        (found, slopes), (expected, wanted) = both(kronecker=True), both()
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8, err_msg=str(seed))
        for name in values:
            np.testing.assert_allclose(slopes[name], wanted[name], rtol=1e-7, atol=1e-7, err_msg=f"{seed} {name}")


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_laws_are_the_dense_ones(seeds):
    """Means and variances of site and data at rows of any place, and rows left out."""
    for seed in seeds:
        X, y, options = case(seed)
        rng = np.random.default_rng(seed)
        own, new = {"kernel": options["kernel"], "weight": options["weight"]}, X[rng.integers(0, len(X), 15)]
        free = [i for i in range(X.shape[1]) if not np.array_equal(X[:, i], X[:, i].round())]
        new[5:, free] = rng.uniform(-3, 3, (10, len(free)))
        draws = {"a": np.array([0.8, 1.1]), "b": np.array([1.3, 0.9])}
        found, expected = (
            Trained.of_draws(KEY, draws, X, y, program=marginal(program, **how), model_kwargs=options)
            for how in ({"kronecker": True}, {})
        )
        for name, ours in found.predict(KEY, new, model_kwargs=own).items():
            theirs = expected.predict(KEY, new, model_kwargs=own)[name]
            np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-8, atol=1e-8, err_msg=f"{seed} {name}")
            np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-7, atol=1e-8, err_msg=f"{seed} {name}")
        left, others = (x.params["_left_out"]["y"]["density"] for x in (found, expected))
        np.testing.assert_allclose(left, others, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_draws_have_the_law(seed):
    """Many draws of the function at the rows, by their mean and covariance."""
    X, y, options = case(seed)
    draws = {"a": np.full(4000, 0.8), "b": np.full(4000, 1.3)}
    y, options["mask"] = np.where(np.isnan(y), 0.0, y), None
    of = marginal(program, kronecker=True).draws_of_sites(KEY, draws, (X, y), 1, model_kwargs=options)["values"]
    k, w = np.asarray(options["kernel"](0.8, 1.3)(X)), options["weight"]
    C = w**2 * k + np.diag(0.13 * np.broadcast_to(options.get("by_row", 1.0), len(X)))
    mean, covariance = w * k @ np.linalg.solve(C, y - 0.3), k - w**2 * k @ np.linalg.solve(C, k)
    drawn, scale = np.asarray(of["f_mean"]), np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((drawn.mean(0) - mean) / scale, 0, atol=0.09)
    np.testing.assert_allclose(np.cov(drawn.T) / scale / scale[:, None], covariance / scale / scale[:, None], atol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(12, 7), (40, 11)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_array_is_of_all_rows_squared(sizes, dtype):
    """Value and gradient; the inputs are told apart by their bits in either precision."""
    axes = [np.linspace(0, 3, size, dtype=dtype) for size in sizes]
    X = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)[:-3]
    y, values = np.sin(X.sum(1)), {"a": jnp.asarray(1.0, dtype), "b": jnp.asarray(1.0, dtype)}
    options = {"kernel": lambda a, b: RBF(a, b), "noise": np.asarray(0.1, dtype)}
    model = marginal(program, kronecker=True)
    slope = jax.value_and_grad(lambda v: log_density(model, (X, y), options, v)[0])
    shapes = [v.aval.size for eqn in jax.make_jaxpr(slope)(values).eqns for v in eqn.outvars]
    assert max(shapes) < len(X) * (4 + max(sizes))
    X, y, options, values = jax.tree.map(lambda x: np.float64(x) if hasattr(x, "dtype") else x, (X, y, options, values))
    expected = log_density(marginal(program), (X, y), options, values)[0]
    np.testing.assert_allclose(slope(values)[0], expected, rtol=1e-8 if dtype == np.float64 else 1e-2)


@pytest.mark.slow
def test_trains_by_gradients_and_by_nuts(standard_promotion):
    X, y, _ = case(4)
    y, options = np.sin(X[:, 0]) + 0.1 * y, {"kernel": KERNELS[4][0]}
    found = []
    for how in ({"kronecker": True}, {}):
        model = marginal(program, **how)
        svi = SVI(model, AutoDelta(model), optax.adam(0.05), Trace_ELBO())
        found.append(svi.run(KEY, 20, X, y, progress_bar=False, **options).losses)
    np.testing.assert_allclose(*found, rtol=1e-8)
    model = marginal(program, kronecker=True)
    mcmc = MCMC(NUTS(model), num_warmup=20, num_samples=20, progress_bar=False)
    mcmc.run(KEY, X, y, **options)
    ours = nuts(KEY, model, X, y, num_warmup=20, num_samples=20, progress=False, model_kwargs=options)
    assert all(np.isfinite(run.get_samples()["a"]).all() for run in (mcmc, ours))


@pytest.mark.parametrize("by", [None, 0, 1, 2])
def test_noise_of_many_rows_is_along_one_axis(by):
    """A mean of many equal numbers of float32 is another number."""
    numbers = np.indices((40, 35, 45)).reshape(3, -1)
    cells = Cells.of(((0,), (1,), (2,)), numbers.T.astype(np.float32), np.ones(numbers.shape[1], bool), "y")
    for of_points in np.random.default_rng(0).uniform(0.01, 3, (20, 45)).astype(np.float32):
        noise = np.broadcast_to(of_points[0 if by is None else numbers[by]], numbers.shape[1])
        scales, fits = _along_one_axis(jnp.asarray(noise), cells)
        assert fits
        each = [np.asarray(scale)[own] for scale, own in zip(scales, numbers, strict=True)]
        np.testing.assert_array_equal(np.prod(each, axis=0), noise)


OPTIONS = {"kernel": lambda a, b: RBF(a, b)}


@pytest.mark.slow
def test_other_rows_and_noise_have_no_density_under_jit():
    """Where the door does not see them: other inputs than were looked at, and noise that differs along two axes."""
    X = np.stack(np.meshgrid(np.arange(3.0), np.arange(4.0), indexing="ij"), -1).reshape(-1, 2)
    y, model, values = np.sin(X.sum(1)), marginal(program, kronecker=True), {"a": 1.0, "b": 1.0}

    def density(X, by_row):
        return log_density(model, (X, y), OPTIONS | {"by_row": by_row}, values)[0]

    same = np.ones(len(X))
    expected = density(X, same)
    later = jax.jit(density)
    np.testing.assert_allclose(later(X, same), expected, rtol=1e-12)
    assert np.isfinite(later(X, 1 + X[:, 0])) and np.isfinite(later(X, 1 + X[:, 1]))
    moved = X.copy()
    moved[4, 1] += 0.1
    for other, by_row in [(moved, same), (X[[1, 0, *range(2, 12)]], same), (X, 1 + X[:, 0] + X[:, 1])]:
        assert np.isnan(later(other, by_row))
    np.testing.assert_allclose(later(2 * X, same), log_density(marginal(program), (2 * X, y), OPTIONS, values)[0])


@pytest.mark.slow
def test_second_derivatives_are_refused():
    X, y, options = case(0)
    model = marginal(program, kronecker=True)
    with pytest.raises(TypeError, match="first derivatives only"):
        jax.hessian(lambda a: log_density(model, (X, y), options, {"a": a, "b": 1.3})[0])(0.8)


GRID = np.stack(np.meshgrid(np.arange(3.0), np.arange(2.0), indexing="ij"), -1).reshape(-1, 2)


def one(kernel, X, likelihood=Gaussian, mean=0.0, use=lambda f: f, twice=False):
    y = np.zeros(len(X)) if likelihood is Gaussian else np.zeros(len(X), int)
    f = use(numpyro.sample("f", GaussianProcess(kernel, X)))
    numpyro.sample("y", likelihood(f, 0.1) if likelihood is Gaussian else likelihood(f), obs=y)
    if twice:
        numpyro.sample("z", Gaussian(f, 0.1), obs=y)


def two(kernel, X):
    f, g = (numpyro.sample(name, GaussianProcess(kernel, X)) for name in "fg")
    numpyro.sample("y", Gaussian(f + g, 0.1), obs=np.zeros(len(X)))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda m: m(one)(Matern52(), GRID), "Matern52 of site 'f' is not known to be one over 2 column"),
        (lambda m: m(one)(RBF(), GRID[:, :1]), "over 1 column"),
        (lambda m: m(one)(RBF() + Linear(), GRID), "Sum of site 'f'"),
        (lambda m: m(one)(RBF() * White(), GRID), "white noise"),
        (lambda m: m(one)(RBF(np.ones(2)), GRID, use=lambda f: f[:, 0]), "outputs 2"),
        (lambda m: m(one)(RBF(), np.concatenate([GRID, GRID[:1]])), "2 rows in one cell"),
        (lambda m: m(one)(RBF(), np.random.default_rng(0).standard_normal((9, 2))), "fill 9 of 9 x 9 cells"),
        (lambda m: m(one)(RBF(), GRID, Bernoulli), "data site 'y' is Bernoulli"),
        (lambda m: m(one)(RBF(), GRID, use=lambda f: f * np.arange(1.0, 7)), "with one weight"),
        (lambda m: m(one)(RBF(), GRID, use=lambda f: f[::-1]), "every row of one GP site"),
        (lambda m: m(one)(RBF(), GRID, twice=True), "'z' is of another kind"),
        (lambda m: m(two)(RBF(), GRID), "one GP site"),
    ],
)
def test_other_programs_are_refused_by_name(run, message):
    with pytest.raises(ValueError, match=message), handlers.seed(rng_seed=0):
        run(lambda fn: marginal(fn, kronecker=True))


def test_inputs_that_are_never_known_are_refused():
    X, y, options = case(0)
    model = marginal(program, kronecker=True)
    with pytest.raises(TypeError, match="run the program once outside"):
        jax.jit(lambda X: log_density(model, (X, y), options, {"a": 1.0, "b": 1.0})[0])(X)


@pytest.mark.parametrize("how", [{"inducing": kmeans(3)}, {"state_space": True}, {"leave_out": True}])
def test_not_with_another_way(how):
    with pytest.raises(ValueError, match="kronecker"):
        marginal(one, kronecker=True, **how)


@pytest.mark.slow
def test_noise_along_two_axes_is_refused_where_it_is_known():
    """Inside ``jit`` there is no density then."""
    with pytest.raises(ValueError, match=r"noise .* data site 'y' differs along several"), handlers.seed(rng_seed=0):
        marginal(program, kronecker=True)(GRID, np.zeros(6), kernel=lambda a, b: RBF(a, b), by_row=np.arange(1.0, 7))
