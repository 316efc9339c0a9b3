"""Time series by state-space forms against the dense density of the same programs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

from gpzoo import GaussianProcess, kmeans
from gpzoo.inference import Trained, marginal
from gpzoo.kernels import RBF, SHO, BrownianMotion, Cosine, Linear, Matern12, Matern32, Matern52, White
from gpzoo.likelihoods import Bernoulli, Gaussian
from tests.conftest import ROOT
from tests.programs import KEY

KERNELS = [
    lambda a, b: Matern12(a, b),
    lambda a, b: Matern32(a, b) + 0.3 * Cosine(b, a),
    lambda a, b: Matern52(a, b) * Linear(b),
    lambda a, b: SHO(a, b, 2.0),
    lambda a, b: BrownianMotion(a, -6.0),
]


def program(X, y=None, *, kernels, weights, noise, offset=0.0, mask=None, rows=None, missing="mask"):
    """A sum of sites, each seen with its own weights, in noise."""
    a = numpyro.sample("a", dist.LogNormal(0.0, 0.5))
    b = numpyro.sample("b", dist.LogNormal(0.0, 0.5))
    total = 0.0
    for i, kernel in enumerate(kernels):
        f = numpyro.sample(f"f{i}", GaussianProcess(kernel(a, b), X))
        f = f if rows is None else f[rows]
        total = f * weights[i] if i == 0 else total + f * weights[i]
    likelihood = Gaussian(total + offset, noise * b, missing=missing)
    numpyro.sample("y", likelihood if mask is None else likelihood.mask(mask), obs=y)


def case(seed):
    """Rows in no order and some of them twice, sums of one to three sites, and what a program may do to them."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 30))
    X = rng.uniform(-5, 5, (num, 1))
    X[num // 2] = X[0]
    size = 1 + seed % 3
    kernels = [KERNELS[i] for i in rng.choice(len(KERNELS), size, replace=False)]
    rows = rng.permutation(num)[: max(2, num // 2)] if seed % 4 == 3 else None
    count = num if rows is None else len(rows)
    weights = [rng.uniform(0.5, 2.0, count) if seed % 2 else float(rng.uniform(0.5, 2.0)) for _ in range(size)]
    y = rng.standard_normal(count)
    if seed % 5 == 2:
        y[rng.uniform(size=count) < 0.3] = np.nan
    mask = rng.uniform(size=count) < 0.8 if seed % 5 == 4 else None
    noise = rng.uniform(0.05, 0.5, count) if seed % 3 == 1 else 0.1
    options = {"kernels": kernels, "weights": weights, "noise": noise, "offset": 0.3, "mask": mask, "rows": rows}
    return X, y, options


#: Fifty random cases.
SEEDS = [range(1), *(pytest.param(range(i, i + 7), marks=pytest.mark.slow) for i in range(1, 50, 7))]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_equals_the_dense_density(seeds):
    """Fifty random cases, and their gradients."""
    for seed in seeds:
        X, y, options = case(seed)

        def density(values, X=X, y=y, options=options, **how):
            return log_density(marginal(program, **how), (X, y), options, values)[0]

        values = {"a": jnp.asarray(0.8), "b": jnp.asarray(1.3)}
        (found, slopes), (expected, wanted) = (
            jax.jit(jax.value_and_grad(lambda v, how=how: density(v, **how)))(values)
            for how in ({"state_space": True}, {})
        )
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8, err_msg=str(seed))
        for name in values:
            np.testing.assert_allclose(slopes[name], wanted[name], rtol=1e-7, atol=1e-7, err_msg=str(seed))


@pytest.mark.slow
def test_is_made_for_nuts_and_grows_with_rows_alone(standard_promotion):
    """A thousand rows sampled; no array of the program has more than a few numbers for each row."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 100, 1000))[:, None]
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(1000)

    def short(X, y=None):
        variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
        f = numpyro.sample("f", GaussianProcess(Matern32(variance, lengthscale), X))
        numpyro.sample("y", Gaussian(f, noise), obs=y)

    values = {"variance": 1.0, "lengthscale": 1.0, "noise": 0.1}
    slope = jax.grad(lambda v: log_density(marginal(short, state_space=True), (X, y), {}, v)[0])
    sizes = [v.aval.size for eqn in jax.make_jaxpr(slope)(values).eqns for v in eqn.outvars]
    assert max(sizes) < 100 * len(X)
    mcmc = MCMC(NUTS(marginal(short, state_space=True)), num_warmup=50, num_samples=50, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y)
    assert abs(np.mean(mcmc.get_samples()["noise"]) - 0.09) < 0.02


def one(kernel, X, y=None, likelihood=Gaussian, **options):
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    numpyro.sample("y", likelihood(f, 0.1) if likelihood is Gaussian else likelihood(f), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_laws_are_the_dense_ones(seeds):
    """Means and variances of sites and data at new times, before, between, at and behind the rows; rows left out."""
    compared = 0
    for seed in seeds:
        X, y, options = case(seed)
        if options["rows"] is not None or options["mask"] is not None or not isinstance(options["weights"][0], float):
            continue  # other rows are predicted than were seen
        noise = options["noise"] if np.ndim(options["noise"]) == 0 else 0.2
        options |= {"noise": noise}
        new = np.sort(np.concatenate([X[:3, 0], np.random.default_rng(seed).uniform(-7, 7, 20)]))[:, None]
        draws = {"a": np.array([0.8, 1.1]), "b": np.array([1.3, 0.9])}
        found, expected = (
            Trained.of_draws(KEY, draws, X, y, program=marginal(program, **how), model_kwargs=options)
            for how in ({"state_space": True}, {})
        )
        for name, ours in found.predict(KEY, new, model_kwargs=options).items():
            theirs = expected.predict(KEY, new, model_kwargs=options)[name]
            np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-8, atol=1e-8, err_msg=f"{seed} {name}")
            np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-7, atol=1e-8, err_msg=f"{seed} {name}")
        left, others = (x.params["_left_out"]["y"]["density"] for x in (found, expected))
        np.testing.assert_allclose(left, others, rtol=1e-8, atol=1e-8)
        compared += 1
    assert compared >= 1


@pytest.mark.slow
def test_draws_have_the_law():
    """Many draws of the functions at the rows, by their mean and covariance."""
    X, y, options = case(4)
    options |= {"mask": None, "noise": 0.3}
    draws = {"a": np.full(4000, 0.8), "b": np.full(4000, 1.3)}
    model = marginal(program, state_space=True)
    of = model.draws_of_sites(KEY, draws, (X, y), 1, model_kwargs=options)["values"]
    K = {
        f"f{i}": w * np.asarray(k(0.8, 1.3)(X)) * w
        for i, (k, w) in enumerate(zip(options["kernels"], options["weights"], strict=True))
    }
    C = sum(K.values()) + 0.39 * np.eye(len(X))
    for i, (name, k) in enumerate(K.items()):
        w = options["weights"][i]
        mean, covariance = k @ np.linalg.solve(C, y - 0.3) / w, (k - k @ np.linalg.solve(C, k)) / w**2
        drawn = np.asarray(of[f"{name}_mean"])
        scale = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose((drawn.mean(0) - mean) / scale, 0, atol=0.09)
        np.testing.assert_allclose(
            np.cov(drawn.T) / scale / scale[:, None], covariance / scale / scale[:, None], atol=0.12
        )


def of_rows(X, y=None, *, rows, a=0.8):
    f = numpyro.sample("f", GaussianProcess(Matern32(a, 1.3), X))
    numpyro.sample("y", Gaussian(f[rows], 0.2), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4, 9])
def test_data_of_some_rows_have_their_times(size):
    """Chosen in any order, of times in any order; some twice."""
    rng = np.random.default_rng(size)
    X, rows = rng.uniform(-5, 5, (9, 1)), rng.integers(0, 9, size)
    y, new = rng.standard_normal(size), np.linspace(-6, 6, 20)[:, None]
    model = marginal(of_rows, state_space=True)
    trained = Trained.of_draws(KEY, {}, X, y, program=model, num_draws=1, model_kwargs={"rows": rows})
    found = trained.predict(KEY, new, model_kwargs={"rows": np.arange(20)})["f"]
    kernel = Matern32(0.8, 1.3)
    K = np.asarray(kernel(X[rows], X[rows])) + 0.2 * np.eye(size)
    cross = np.asarray(kernel(new, X[rows]))
    np.testing.assert_allclose(found.mean, cross @ np.linalg.solve(K, y), atol=1e-9)
    variance = 0.8 - np.sum(cross * np.linalg.solve(K, cross.T).T, axis=1)
    np.testing.assert_allclose(found.variance, variance, atol=1e-9)


def test_times_in_different_orders_have_no_density_under_jit():
    """There the door does not see them; times that differ in the same order are right."""

    def density(X, Z, **how):
        def two(y=None):
            f = numpyro.sample("f", GaussianProcess(Matern32(1.0, 1.0), X))
            g = numpyro.sample("g", GaussianProcess(Matern12(1.0, 2.0), Z))
            numpyro.sample("y", Gaussian(f + g, 0.1), obs=jnp.arange(6.0))

        return log_density(marginal(two, **how), (), {}, {})[0]

    found = jax.jit(lambda X, Z: density(X, Z, state_space=True))
    assert np.isnan(found(X, X[::-1]))
    np.testing.assert_allclose(found(X, 2 * X + 1), density(X, 2 * X + 1), rtol=1e-10)


GOLDEN = {
    "exp": lambda: Matern12(1.44, 1.7),
    "matern32": lambda: Matern32(1.44, 1.7),
    "matern52": lambda: Matern52(1.44, 1.7),
    "cosine": lambda: Cosine(1.44, 0.2),
    "sho": lambda: SHO(1.44, 0.17, 3.0),
    "overdamped": lambda: SHO(1.44, 0.17, 0.3),
    "sum": lambda: Matern52(1.44, 4.0) + SHO(0.49, 0.17, 3.0),
    "product": lambda: Matern32(1.44, 4.0) * Cosine(1.0, 0.2),
}


@pytest.mark.slow_but(name=["sum"])
@pytest.mark.parametrize("name", GOLDEN)
def test_equals_tinygp(name):
    """Densities, and means and variances at new times, of its quasiseparable kernels."""
    golden = json.loads((ROOT / "tests" / "golden" / "time_series.json").read_text(encoding="utf-8"))
    t, y, noise, new = (np.array(golden[key]) for key in ("t", "y", "noise", "new"))

    def of_golden(X, y=None, noise=noise):
        f = numpyro.sample("f", GaussianProcess(GOLDEN[name](), X))
        numpyro.sample("y", Gaussian(f, noise), obs=y)

    series, expected = marginal(of_golden, state_space=True), golden["cases"][name]
    found = log_density(series, (t[:, None], y), {}, {})[0]
    np.testing.assert_allclose(found, expected["log_density"], rtol=1e-9)
    trained = Trained.of_draws(KEY, {}, t[:, None], y, program=series, num_draws=1)
    at = trained.predict(KEY, new[:, None], model_kwargs={"noise": 0.1})["f"]
    np.testing.assert_allclose(at.mean, expected["mean"], rtol=1e-7, atol=1e-8)
    # tinygp adds the root of the rounding error to them.
    variance = np.array(expected["variance"]) - np.finfo(float).eps ** 0.5
    np.testing.assert_allclose(at.variance, variance, rtol=1e-7, atol=1e-12)


X, Y = np.linspace(0, 1, 6)[:, None], np.zeros(6)


def two_times(kernel, X, y=None):
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    g = numpyro.sample("g", GaussianProcess(kernel, X[::-1]))
    numpyro.sample("y", Gaussian(f + g, 0.1), obs=y)


def two_data(kernel, X, y=None):
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    numpyro.sample("y", Gaussian(f, 0.1), obs=y)
    numpyro.sample("z", Gaussian(f, 0.1), obs=y)


def of_nights(kernel, X, y=None, *, rows):
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    numpyro.sample("y", Gaussian(f[rows], 0.1), obs=y)


@pytest.mark.parametrize("how", [{}, {"state_space": True}])
def test_data_of_rows_that_are_not_there_have_no_density(how):
    def density(rows):
        return log_density(marginal(of_rows, **how), (X, jnp.arange(3.0)), {"rows": rows}, {})[0]

    found = jax.jit(jax.vmap(density))(np.array([[0, 1, 5], [0, 1, 6], [0, 1, -1], [-7, 1, 2]]))
    assert list(np.isnan(found)) == [False, True, False, True] and found[0] == found[2]
    with pytest.raises(IndexError, match=r"f\[6\]: the marginals of GP site 'f' have 6 rows here"):
        density(np.array([0, 1, 6]))


@pytest.mark.parametrize("rows", [[0, 0, 1, 2, 3, 4], [5, 4, 3, 2, 1, 0], [0, 2, 4]])
def test_white_noise_of_a_site_is_not_shared_between_rows(rows):
    """Rows that are there once are as dense; others would share the noise of their time."""
    y, kernel = np.arange(float(len(rows))), Matern32(1.0, 0.5) + White(0.5)
    both = [
        lambda how=how: log_density(marginal(of_nights, **how), (kernel, X, y), {"rows": np.array(rows)}, {})[0]
        for how in ({}, {"state_space": True})
    ]
    if len(set(rows)) == len(rows):
        np.testing.assert_allclose(both[1](), both[0](), rtol=1e-10)
        return
    with pytest.raises(ValueError, match="white noise in the kernel of site 'f' to several rows of data site 'y'"):
        both[1]()


@pytest.mark.slow_but(kernel=[Matern32])
@pytest.mark.parametrize(
    "kernel", [Matern32, Matern52, lambda a, b: SHO(a, b, a), lambda a, b: Matern12(a, b) * Cosine(b, a)]
)
def test_times_in_float32_may_have_hyperparameters_in_float64(kernel, standard_promotion):
    times, y = X.astype(np.float32), np.arange(6.0, dtype=np.float32)

    def of_numbers(a, b, **how):
        model = marginal(lambda y=None: one(kernel(a, b), times, y), **how)
        return log_density(model, (y,), {}, {})[0]

    a, b = (jnp.asarray(x, jnp.float64) for x in (0.7, 1.3))
    found = jax.value_and_grad(lambda a: of_numbers(a, b, state_space=True))(a)
    np.testing.assert_allclose(found, jax.value_and_grad(lambda a: of_numbers(a, b))(a), rtol=2e-3)


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (lambda m: m(one)(RBF(), X, Y), TypeError, "GP site 'f': RBF has no state-space form"),
        (lambda m: m(one)(Matern12(), np.zeros((6, 2)), Y), ValueError, r"site 'f' has inputs \(6, 2\)"),
        (lambda m: m(one)(Matern12(np.ones(2)), X, np.zeros((6, 2))), ValueError, "outputs 2"),
        (lambda m: m(one)(Matern12(), X, Y.astype(int), Bernoulli), ValueError, "data site 'y' is Bernoulli"),
        (lambda m: m(two_data)(Matern12(), X, Y), ValueError, "one data site, and 'z' is the second"),
        (lambda m: m(two_times)(Matern12(), X, Y), ValueError, "'f' and 'g' of data site 'y'"),
    ],
)
def test_other_programs_are_refused_by_name(run, error, message):
    with pytest.raises(error, match=message), handlers.seed(rng_seed=0):
        run(lambda fn: marginal(fn, state_space=True))


@pytest.mark.slow
def test_not_with_inducing_variables():
    with pytest.raises(ValueError, match="state_space"):
        marginal(one, kmeans(3), state_space=True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["state_space", "kronecker"])
def test_exports_have_the_draws_at_the_rows_and_their_prior_density(how):
    """Of rows with data and without, in no order."""
    rng = np.random.default_rng(0)
    times = np.linspace(0, 4, 12)
    X = times[:, None] if how == "state_space" else np.stack(np.meshgrid(times[:4], times[:5]), -1).reshape(-1, 2)[:-2]
    X = X[rng.permutation(len(X))]
    kernel = Matern32(0.8, 1.3, active_dims=[0])
    kernel = kernel if how == "state_space" else kernel * Matern12(1.5, 0.7, active_dims=[1])
    y = np.where(rng.uniform(size=len(X)) < 0.3, np.nan, np.sin(X[:, 0]))

    def of_rows(X, y=None):
        f = numpyro.sample("f", GaussianProcess(kernel, X))
        numpyro.sample("y", Gaussian(f, 0.1, missing="mask"), obs=y)

    model = marginal(of_rows, **{how: True})
    trained = Trained.of_draws(KEY, {}, X, y, program=model, num_draws=7)
    found = trained.to_arviz(KEY, X, y)
    f = np.asarray(found["posterior"]["f"])[0]
    np.testing.assert_allclose(f, trained.params["f_mean"][0])
    K = np.asarray(kernel(X)) + float(kernel.jitter(X)) * np.eye(len(X))
    expected = [-(u @ np.linalg.solve(K, u) + np.linalg.slogdet(2 * np.pi * K)[1]) / 2 for u in f]
    np.testing.assert_allclose(np.asarray(found["sample_stats"]["log_p_f_u"])[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_functions_of_many_rows_are_drawn_and_exported_in_linear_memory():
    """60,000 rows, whose squared number would be 29 GB; draws at other rows are refused by name."""
    X = np.arange(60_000.0)[:, None]
    trained = Trained.of_draws(KEY, {}, X, np.sin(X[:, 0]), program=marginal(long, state_space=True), num_draws=2)
    assert np.asarray(trained.to_arviz(KEY, X, np.sin(X[:, 0]))["posterior"]["f"]).shape == (1, 2, 60_000)
    assert trained.predict(KEY, X[:50] + 0.5)["f"].mean.shape == (50,)
    with pytest.raises(ValueError, match=r"all 60000 rows .* GP site 'f'"):
        trained.functions(KEY, X[:50] + 0.5)


def long(X, y=None):
    f = numpyro.sample("f", GaussianProcess(Matern32(1.0, 3.0), X))
    numpyro.sample("y", Gaussian(f, 0.1), obs=y)


@pytest.mark.slow
def test_laws_that_take_too_much_memory_are_refused(monkeypatch):
    monkeypatch.setattr("gpzoo.inference.bounds.marginal.MOST_KEPT", 5000)
    with pytest.raises(ValueError, match=r"Take fewer draws of the hyperparameters, at most \d"):
        Trained.of_draws(KEY, {}, X, Y, program=marginal(long, state_space=True), num_draws=50)
