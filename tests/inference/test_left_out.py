"""Densities of data given all others, by draws of hyperparameters: those of leaving them out by brute force."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from numpyro.infer.util import log_density
from scipy.stats import multivariate_normal, norm
from scipy.stats import poisson as counts_of

from gpzoo import GaussianProcess, InducingPoints, kmeans
from gpzoo.inference import InducingGuide, Trained, marginal
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Expected, Gaussian, Softmax
from tests.programs import KEY
from tests.reference import pairs, rbf

RNG = np.random.default_rng(0)
N = 12
X = np.sort(RNG.uniform(0, 4, (N, 1)), axis=0)
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.standard_normal(N)
BOTH = np.stack([Y, np.where(np.arange(N) % 3 == 1, np.nan, -Y)], axis=1)
COUNTS = RNG.poisson(np.exp(Y))
LABELS = RNG.integers(0, 3, N)
Z = np.linspace(0, 4, 5)[:, None]
K = rbf(*pairs(X, X))
GROUPS = np.arange(N) // 4
FUTURES = [np.arange(6, N), np.arange(9, N)]


def one(X, y=None, *, noise=None, outputs=None, mixed=None, missing=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=outputs))
    f = f if mixed is None else f @ mixed
    numpyro.sample("y", Gaussian(f, 0.1, missing=missing) if noise is None else noise(f), obs=y)


def two(X, y=None):
    """Two sites and two data sites, of which one sees half of the rows."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    g = numpyro.sample("g", GaussianProcess(RBF(0.5, 3.0), X))
    numpyro.sample("z", Gaussian(2.0 * f[: N // 2], 0.2), obs=Y[: N // 2])
    numpyro.sample("y", Gaussian(f + g, 0.1), obs=y)


def poisson(f):
    return Expected(lambda f: dist.Poisson(jnp.exp(f)), f)


def found(program, y, inducing=None, leave_out=None, sparse="vfe"):
    model = marginal(program, inducing, sparse=sparse)
    trained = Trained.of_draws(KEY, {}, X, y, program=model, num_draws=1, leave_out=leave_out)
    return {name: x["density"][0, 0] for name, x in trained.params["_left_out"].items()}


def given_others(mean, covariance, y, block):
    """The log density of some entries of a normal vector given all others."""
    rest = np.setdiff1d(np.arange(len(y)), block)
    W = np.linalg.solve(covariance[np.ix_(rest, rest)], covariance[np.ix_(rest, block)])
    own = covariance[np.ix_(block, block)] - covariance[np.ix_(block, rest)] @ W
    return multivariate_normal(mean[block] + W.T @ (y - mean)[rest], own).logpdf(y[block])


def of_rows(covariance, y, blocks):
    return [given_others(np.zeros(len(y)), covariance, y, np.atleast_1d(b)) for b in blocks]


BLOCKS = {"rows": (None, range(N)), "groups": (GROUPS, np.split(np.arange(N), 3)), "futures": (FUTURES, FUTURES)}


@pytest.mark.slow_but(kind=["groups"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_gaussian_data_given_others_are_those_of_the_dense_normal(kind):
    leave_out, blocks = BLOCKS[kind]
    np.testing.assert_allclose(
        found(one, Y, leave_out=leave_out)["y"], of_rows(K + 0.1 * np.eye(N), Y, blocks), atol=1e-9
    )


@pytest.mark.slow
def test_data_sites_know_each_other():
    half = K[:, : N // 2]
    both = np.block([[K + rbf(*pairs(X, X), 0.5, 3.0) + 0.1 * np.eye(N), 2 * half], [2 * half.T, 4 * half[: N // 2]]])
    both[N:, N:] += 0.2 * np.eye(N // 2)
    expected = of_rows(both, np.concatenate([Y, Y[: N // 2]]), range(N + N // 2))
    left = found(two, Y)
    np.testing.assert_allclose(np.concatenate([left["y"], left["z"]]), expected, atol=1e-9)
    sparse = found(two, Y, InducingPoints(X))
    np.testing.assert_allclose(np.concatenate([sparse["y"], sparse["z"]]), expected, atol=1e-4)


def test_as_many_blocks_as_rows_are_blocks():
    """Blocks are in the order of their labels, which need not be the order of the rows."""
    labels = np.random.default_rng(0).permutation(N)
    trained = Trained.of_draws(KEY, {}, X, Y, program=marginal(one), num_draws=1, leave_out=labels)
    exported = trained.to_arviz(KEY, X, Y, num_draws=1).log_likelihood["y"]
    assert exported.dims[-1] == "y_block"
    rows = of_rows(K + 0.1 * np.eye(N), Y, np.argsort(labels))
    np.testing.assert_allclose(exported.values.ravel(), rows, atol=1e-9)


@pytest.mark.slow_but(inducing=[None])
@pytest.mark.parametrize("inducing", [None, InducingPoints(X)], ids=["exact", "sparse"])
@pytest.mark.parametrize("kind", ["apart", "mixed"])
def test_several_outputs_are_left_out_together(kind, inducing):
    A = np.array([[1.0, 0.3], [-0.5, 1.0]]) if kind == "mixed" else np.eye(2)
    covariance = np.einsum("nm,jk,jl->nkml", K, A, A).reshape(2 * N, 2 * N) + 0.1 * np.eye(2 * N)
    seen = np.flatnonzero(~np.isnan(BOTH.ravel()))
    blocks = [np.flatnonzero(seen // 2 == n) for n in range(N)]
    expected = of_rows(covariance[np.ix_(seen, seen)], BOTH.ravel()[seen], blocks)
    mixed = jnp.asarray(A) if kind == "mixed" else None
    left = found(partial(one, outputs=2, mixed=mixed, missing="mask"), BOTH, inducing)
    np.testing.assert_allclose(left["y"], expected, atol=1e-9 if inducing is None else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", ["vfe", "fitc"])
def test_collapsed_bounds_leave_out_what_they_would_without_the_row(sparse):
    expected = []
    Kuu, Kuf = rbf(*pairs(Z, Z)), rbf(*pairs(Z, X))
    left = 1 - np.sum(Kuf * np.linalg.solve(Kuu, Kuf), axis=0)
    noise = 0.1 + (left if sparse == "fitc" else 0) * np.ones(N)
    for n in range(N):
        rest = np.delete(np.arange(N), n)
        A = Kuf[:, rest] / noise[rest]
        precision = Kuu + A @ Kuf[:, rest].T
        mean = Kuf[:, n] @ np.linalg.solve(precision, A @ Y[rest])
        variance = Kuf[:, n] @ np.linalg.solve(precision, Kuf[:, n]) + left[n] + 0.1
        expected.append(norm(mean, np.sqrt(variance)).logpdf(Y[n]))
    np.testing.assert_allclose(found(one, Y, InducingPoints(Z), sparse=sparse)["y"], expected, atol=1e-4)


def laplace(rows):
    """Mode and covariance of ``f`` at all inputs, from some of the counts."""
    f, own = np.zeros(len(rows)), K[np.ix_(rows, rows)]
    for _ in range(60):
        W = np.exp(f)
        f = own @ np.linalg.solve(np.diag(1 / W) + own, f + (COUNTS[rows] - W) / W)
    cross = K[rows]
    return cross.T @ (COUNTS[rows] - np.exp(f)), K - cross.T @ np.linalg.solve(own + np.diag(np.exp(-f)), cross)


def predicted(mean, variance, count):
    f = mean + np.sqrt(variance) * np.linspace(-9, 9, 4001)
    return np.log(np.trapezoid(counts_of.pmf(count, np.exp(f)) * norm.pdf(f, mean, np.sqrt(variance)), f))


@pytest.mark.slow
@pytest.mark.parametrize("inducing", [None, InducingPoints(X)], ids=["exact", "sparse"])
def test_laplace_takes_the_terms_off(inducing):
    f, V = laplace(np.arange(N))
    slope, W, v = COUNTS - np.exp(f), np.exp(f), np.diagonal(V)
    variance = v / (1 - W * v)
    expected = [predicted(*of) for of in zip(f - variance * slope, variance, COUNTS, strict=True)]
    left = found(partial(one, noise=poisson), COUNTS, inducing)["y"]
    np.testing.assert_allclose(left, expected, atol=1e-3)
    brute = []
    for n in range(N):
        mean, covariance = laplace(np.delete(np.arange(N), n))
        brute.append(predicted(mean[n], covariance[n, n], COUNTS[n]))
    assert abs(np.sum(left) - np.sum(brute)) < 0.2
    blocks = []
    for rows in np.split(np.arange(N), 3):
        mean, covariance = laplace(np.setdiff1d(np.arange(N), rows))
        blocks.append(sum(predicted(mean[n], covariance[n, n], COUNTS[n]) for n in rows))
    grouped = found(partial(one, noise=poisson), COUNTS, inducing, leave_out=GROUPS)["y"]
    np.testing.assert_allclose(grouped, blocks, atol=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["rows", "blocks"])
@pytest.mark.parametrize("inducing", [None, InducingPoints(X)], ids=["exact", "sparse"])
@pytest.mark.parametrize("kind", ["counts", "classes"])
def test_what_stands_in_masked_rows_does_not_count(kind, inducing, by):
    noise, outputs, y = (poisson, None, COUNTS) if kind == "counts" else (Softmax, 3, LABELS)
    seen = np.arange(N) % 3 != 1

    def masked(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=outputs))
        with numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", noise(f), obs=y)

    wanted = np.zeros(N)
    for placeholder in (y, np.where(seen, y, -7), np.where(seen, y, np.nan)):
        left = found(masked, placeholder, inducing, None if by == "rows" else np.arange(N))["y"]
        if placeholder is y:
            wanted[seen] = left[seen]
        np.testing.assert_allclose(left, wanted, atol=1e-9)
    if inducing is None and by == "rows":
        rest = Trained.of_draws(
            KEY, {}, X[seen], y[seen], program=marginal(partial(one, noise=noise, outputs=outputs)), num_draws=1
        )
        alone = rest.params["_left_out"]["y"]["density"][0, 0]
        np.testing.assert_allclose(wanted[seen], alone, atol=1e-6 if kind == "counts" else 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["rows", "blocks"])
@pytest.mark.parametrize("outlier", [1.0, 1.5])
def test_no_density_where_noise_leaves_no_law(outlier, by):
    """Without row 0, Laplace's approximation at the outlier beside it, row 1, has a negative variance."""
    x, y = np.array([[0.0], [0.01], [3.0]]), np.array([0.0, outlier, 0.3])
    leave_out = None if by == "rows" else [np.array([0, 2]), np.array([1])]
    student = partial(one, noise=lambda f: Expected(lambda f: dist.StudentT(3.0, f, 0.1), f))
    model = Trained.of_draws(KEY, {}, x, y, program=marginal(student), num_draws=1, leave_out=leave_out)
    density = model.params["_left_out"]["y"]["density"][0, 0]
    assert np.isnan(density[0]) and np.isfinite(density[1])
    objective = marginal(student, leave_out=True if leave_out is None else leave_out)
    assert log_density(objective, (x, y), {}, {})[0] == -np.inf


@pytest.mark.slow
def test_classes_are_seen_together():
    program = partial(one, outputs=3, noise=Softmax)
    left = found(program, LABELS)["y"]
    brute = []
    for n in range(N):
        rest = np.delete(np.arange(N), n)
        trained = Trained.of_draws(KEY, {}, X[rest], LABELS[rest], program=marginal(program), num_draws=4000)
        probs = trained.predict(KEY, X[n : n + 1], num_draws=4000)["y"].probs[0]
        brute.append(np.log(probs[LABELS[n]]))
    np.testing.assert_allclose(left, brute, atol=0.25)
    assert abs(np.sum(left) - np.sum(brute)) < 0.5


def regression(X, y=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.5))
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 0.5))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


MORE = np.linspace(0, 6, 25)[:, None]
OF_MORE = np.sin(2 * MORE[:, 0]) + 0.3 * np.random.default_rng(1).standard_normal(25)


def posterior_draws(count):
    """Draws of the exact posterior on a grid, and the log density of the data there without each row."""
    grid = np.stack(np.meshgrid(np.linspace(-1.2, 1.2, 60), np.linspace(-4, 0, 60)), -1).reshape(-1, 2)
    prior = norm(0, 0.5).logpdf(grid[:, 0]) + norm(-2, 0.5).logpdf(grid[:, 1])
    all_rows, without = [], []
    for lengthscale, noise in np.exp(grid):
        C = rbf(*pairs(MORE, MORE), 1.0, lengthscale) + noise * np.eye(25)
        all_rows.append(multivariate_normal(np.zeros(25), C).logpdf(OF_MORE))
        without.append(all_rows[-1] - np.array(of_rows(C, OF_MORE, range(25))))
    weights = np.exp(prior + all_rows - np.max(prior + all_rows))
    weights_without = np.exp(prior[:, None] + without - np.max(prior[:, None] + without, axis=0))
    elpd = np.log(
        np.sum(weights_without * np.exp(np.array(all_rows)[:, None] - without), axis=0) / weights_without.sum(0)
    )
    chosen = RNG.choice(len(grid), (4, count // 4), p=weights / weights.sum())
    return {"lengthscale": np.exp(grid[chosen, 0]), "noise": np.exp(grid[chosen, 1])}, elpd


@pytest.mark.slow
def test_exports_at_other_arguments_are_not_of_the_left_out_data():
    """Densities of the data given all others belong to the arguments of the draws."""

    def program(X, y=None, *, noise=0.1, scale=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Gaussian(f, noise if scale is None else noise * scale), obs=y)

    scale = np.full(N, 2.0)
    options = [{}, {"noise": 0.5}, {"scale": scale}, {"noise": 0.5, "scale": scale}, {"scale": 3 * scale}]
    for i, own in enumerate(options[:4]):
        model = Trained.of_draws(KEY, {}, X, Y, program=marginal(program), num_draws=1, model_kwargs=own)
        variance = own.get("noise", 0.1) * (2 if "scale" in own else 1)
        exported = model.to_arviz(KEY, X, Y, num_draws=1, model_kwargs=own)
        wanted = of_rows(K + variance * np.eye(N), Y, range(N))
        np.testing.assert_allclose(exported.log_likelihood["y"].values.ravel(), wanted, atol=1e-8)
        for other in options[:i] + options[i + 1 :]:
            elsewhere = model.to_arviz(KEY, X, Y, num_draws=1, model_kwargs=other)
            assert "y_left_out" not in elsewhere.posterior_predictive
    assert "f" in model.to_arviz(KEY, X, model_kwargs=own).posterior  # without data


@pytest.mark.slow
def test_arviz_leaves_out_as_brute_force_does():
    import arviz as az

    draws, elpd = posterior_draws(2000)
    trained = Trained.of_draws(KEY, draws, MORE, OF_MORE, program=marginal(regression))
    data = trained.to_arviz(KEY, MORE, OF_MORE)
    left = az.loo(data, pointwise=True)
    assert abs(float(left.elpd_loo if hasattr(left, "elpd_loo") else left.elpd) - elpd.sum()) < 0.1
    assert not left.warning
    assert "y_-n" in data["log_likelihood"].attrs["y"]
    np.testing.assert_array_equal(data["posterior"]["f"], trained.params["f_mean"])
    plain = Trained.of_draws(KEY, draws, MORE, OF_MORE, program=marginal(regression), leave_out=False)
    assert "f_n" in plain.to_arviz(KEY, MORE, OF_MORE, num_draws=20)["log_likelihood"].attrs["y"]
    fewer = trained.to_arviz(KEY, X[:5], Y[:5], num_draws=20)["log_likelihood"]
    assert fewer["y"].shape == (4, 5, 5) and "f_n" in fewer.attrs["y"]
    grouped = Trained.of_draws(KEY, draws, MORE, OF_MORE, program=marginal(regression), leave_out=np.arange(25) // 9)
    terms = grouped.to_arviz(KEY, MORE, OF_MORE, num_draws=20)["log_likelihood"]["y"]
    assert terms.dims[-1] == "y_block" and terms.shape == (4, 5, 3)


@pytest.mark.slow
def test_points_are_left_out_at_the_inducing_variables_of_a_guide():
    guide = InducingGuide(regression, kmeans(5))
    trained = Trained(regression, guide, guide.init_params(KEY, X, Y))
    lengthscale, noise = (float(trained.params[f"{name}_loc"]) for name in ("lengthscale", "noise"))
    at = np.asarray(trained.params["f_inducing"])
    Kuu, Kuf = rbf(*pairs(at, at), 1.0, lengthscale), rbf(*pairs(at, X), 1.0, lengthscale)
    expected = []
    for n in range(N):
        A = np.delete(Kuf, n, axis=1)
        precision = Kuu + A @ A.T / noise
        mean = Kuf[:, n] @ np.linalg.solve(precision, A @ np.delete(Y, n)) / noise
        left = 1 - Kuf[:, n] @ (np.linalg.solve(Kuu, Kuf[:, n]) - np.linalg.solve(precision, Kuf[:, n]))
        expected.append(norm(mean, np.sqrt(left + noise)).logpdf(Y[n]))
    np.testing.assert_allclose(trained.left_out(X, Y)["y"], expected, atol=1e-4)
    assert trained.left_out(X, Y, leave_out=GROUPS)["y"].shape == (3,)
    normal = InducingGuide(regression, kmeans(5), hyperparameters="normal")
    with pytest.raises(ValueError, match="of_draws"):
        Trained(regression, normal, normal.init_params(KEY, X, Y)).left_out(X, Y)


@pytest.mark.slow_but(by=["series"])
@pytest.mark.parametrize("by", ["series", "dataset"])
def test_labels_of_blocks_go_by_the_labels_of_rows(by):
    """As test data do: a Series of groups may have the rows in any order."""
    order, of = np.random.default_rng(0).permutation(N), X[:, 0]
    groups, data = pd.Series(GROUPS, of).iloc[order], (pd.DataFrame(X, of), pd.Series(Y, of))
    if by == "dataset":
        groups, data = groups.rename_axis("at").to_xarray(), (xr.Dataset({"y": ("at", Y)}, {"at": of}),)
    guide = InducingGuide(regression, InducingPoints(X))
    trained = Trained(regression, guide, guide.init_params(KEY, *data))
    wanted = trained.left_out(*data, leave_out=GROUPS)["y"]
    assert np.ptp(wanted) > 0
    np.testing.assert_array_equal(trained.left_out(*data, leave_out=groups)["y"], wanted)
    drawn = {name: np.full(3, float(trained.params[f"{name}_loc"])) for name in ("lengthscale", "noise")}
    found = Trained.of_draws(KEY, drawn, *data, program=marginal(regression), leave_out=groups).to_arviz(KEY, *data)
    np.testing.assert_allclose(found.log_likelihood["y"][0, 0], wanted, rtol=1e-6)
    other = groups.iloc[1:] if by == "series" else groups.isel(at=slice(1, None))
    with pytest.raises(ValueError, match=r"rows of leave_out|labels of 'at' of leave_out"):
        trained.left_out(*data, leave_out=other)
    with pytest.raises(ValueError, match="sees no labels of rows"):
        marginal(regression, leave_out=groups)


NO_GROUP = np.where(np.arange(N) < 10, GROUPS, np.nan)


@pytest.mark.parametrize(
    "leave_out",
    [np.zeros(3), [np.array([N])], [np.array([1, 1])], [], NO_GROUP, NO_GROUP.astype(object), [*"aaaabbbbccc", None]],
)
def test_blocks_are_of_rows_that_are_there(leave_out):
    with pytest.raises(ValueError, match="leave_out"):
        found(one, Y, leave_out=leave_out)


@pytest.mark.slow
@pytest.mark.parametrize("inducing", [None, InducingPoints(X)], ids=["exact", "sparse"])
def test_data_are_drawn_given_others(inducing):
    P = np.linalg.inv(K + 0.1 * np.eye(N))
    trained = Trained.of_draws(KEY, {}, X, Y, program=marginal(one, inducing), num_draws=10000)
    drawn, variance = trained.params["_left_out"]["y"]["drawn"][0], 1 / np.diagonal(P)
    np.testing.assert_allclose(drawn.mean(0), Y - variance * (P @ Y), atol=5 * np.sqrt(variance.max() / 10000))
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.08)


# -- as an objective ---------------------------------------------------------------------------------------------------


def of_lengthscale(X, y=None, *, noise=None, missing=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    numpyro.sample("y", Gaussian(f, 0.1, missing=missing) if noise is None else noise(f), obs=y)


def objective(lengthscale, y, inducing=None, **options):
    model = marginal(of_lengthscale, inducing, leave_out=options.pop("leave_out", True))
    prior = dist.LogNormal(0.0, 1.0).log_prob(lengthscale)
    return log_density(model, (X, y), options, {"lengthscale": lengthscale})[0] - prior


@pytest.mark.slow_but(kind=["futures"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_the_objective_is_the_sum_over_what_is_left_out(kind):
    leave_out, blocks = BLOCKS[kind]
    expected = sum(of_rows(rbf(*pairs(X, X), 1.0, 0.7) + 0.1 * np.eye(N), Y, blocks))
    found = objective(jnp.asarray(0.7), Y, leave_out=True if leave_out is None else leave_out)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "of",
    [
        lambda s: objective(s, Y),
        lambda s: objective(s, np.where(np.arange(N) % 4 == 1, np.nan, Y), missing="mask"),
        lambda s: objective(s, Y, InducingPoints(Z)),
        lambda s: objective(s, COUNTS, noise=poisson),
        lambda s: objective(s, COUNTS, InducingPoints(Z), noise=poisson),
        lambda s: log_density(
            marginal(partial(one, outputs=3, noise=lambda f: Softmax(s * f)), leave_out=True), (X, LABELS), {}, {}
        )[0],
    ],
    ids=["exact", "missing", "inducing", "counts", "counts, inducing", "scaled classes"],
)
def test_the_objective_has_the_slope_of_finite_differences(of):
    of, h = jax.jit(of), 1e-4
    slope = jax.grad(of)(0.7)
    np.testing.assert_allclose(slope, (of(0.7 + h) - of(0.7 - h)) / (2 * h), rtol=1e-4, atol=1e-4)


def test_the_objective_takes_one_data_site():
    with pytest.raises(ValueError, match="one data site of GP sites, and 'y' is another"):
        log_density(marginal(two, leave_out=True), (X, Y), {}, {})
