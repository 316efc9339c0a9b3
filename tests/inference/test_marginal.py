"""Programs whose GP sites are integrated out: densities against dense NumPy, bounds, Laplace, draws, refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.inspect import get_model_relations
from numpyro.infer.util import log_density
from scipy.stats import multivariate_normal

from gpzoo import (
    GaussianProcess,
    InducingBasis,
    InducingBlocks,
    InducingFourier,
    InducingGrid,
    InducingHarmonics,
    InducingPatches,
    InducingPoints,
    draws,
    kmeans,
    likelihoods,
)
from gpzoo.errors import FactorisationError
from gpzoo.inference import (
    CollapsedELBO,
    GaussianProcessELBO,
    InducingGuide,
    Trained,
    check_laplace,
    diagnose,
    fit,
    load,
    marginal,
    nuts,
    predict,
    report,
    whitened,
)
from gpzoo.kernels import RBF, Convolutional, HilbertSpace, Matern52, White
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.models import deep_gp, gp_regression, invariant_gp, linear_layers, rotation
from tests.programs import KEY, sine
from tests.reference import collapsed_bound, pairs, rbf

X, y = sine(12)


def density(program, *args, params=None):
    return log_density(program, args, {}, params or {})[0]


def value(program, *args, params=None):
    return float(jax.jit(lambda params: density(program, *args, params=params))(params or {}))


# -- exactly, against dense NumPy --------------------------------------------------------------------------------------


def random_case(seed):
    """A program of one to three GP sites, of arrays ``log_variances``, ``log_lengthscales``, ``log_noise`` and data."""
    rng = np.random.default_rng(seed)
    N, K = int(rng.integers(3, 8)), int(rng.choice([0, 0, 1, 2, 3]))
    X = rng.standard_normal((N, 2))
    sites = []
    for _ in range(rng.integers(1, 4)):
        J = 0 if K == 0 else int(rng.choice([0, K, K + 1]))
        kind = "scale" if J in (0, K) and rng.random() < 0.6 else "map"
        shape = {
            "scale": [(), (N,), (1,)] if K == 0 else [(), (N, 1), (K,), (N, K) if J == K else ()],
            "map": [(max(J, 1), max(K, 1))],
        }[kind]
        shape = shape[rng.integers(len(shape))]
        sites.append((J, kind, rng.standard_normal(shape), rng.standard_normal((N, J) if J else N)))
    data = []
    for number in range(rng.integers(1, 3)):
        rows = None if number == 0 else rng.integers(0, N, int(rng.integers(2, 5)))
        n = N if rows is None else len(rows)
        whole = (n, K) if K else (n,)
        noise = np.exp(rng.standard_normal([(), whole, (K,) if K else ()][rng.integers(3)]))
        mask = [None, rng.random(n) < 0.7, rng.random(whole) < 0.7][rng.integers(3)]
        y = rng.standard_normal(whole)
        missing = rng.random() < 0.3
        y = np.where(rng.random(whole) < 0.3, np.nan, y) if missing else y
        data.append((rows, noise, mask, y, missing, float(rng.standard_normal())))
    return X, K, sites, data, 0.5 * rng.standard_normal((2, len(sites)))


def program_of(X, K, sites, data, logs):
    def program(logs, log_noise):
        total = 0.3
        for i, (J, kind, weights, mean) in enumerate(sites):
            kernel = RBF(jnp.exp(logs[0, i]), jnp.exp(logs[1, i]))
            g = numpyro.sample(f"g{i}", GaussianProcess(kernel, X, mean=mean, num_outputs=J or None))
            if kind == "scale":
                g = (g[:, None] if J == 0 else g) @ jnp.ones((max(J, 1), K)) if K and J != K else g
                total = total + g * jnp.asarray(weights) if i % 2 else total - (-jnp.asarray(weights)) * g
            else:
                total = total + (g if J else g[:, None]) @ (weights if K else weights[:, 0])
        for i, (rows, noise, mask, y, missing, scale) in enumerate(data):
            f = total if rows is None else scale * total[rows]
            fn = Gaussian(f, noise * jnp.exp(log_noise), missing="mask" if missing else None)
            with handlers.mask(mask=True if mask is None else mask):
                numpyro.sample(f"y{i}", fn, obs=y)

    return program


def dense_density(X, K, sites, data, logs, log_noise):
    """The log density and its derivatives with respect to ``logs`` and ``log_noise``, entry by entry."""
    N = len(X)
    maps, means, noises, values = [], [], [], []  # of every entry that was observed
    for rows, noise, mask, y, _, scale in data:
        seen = ~np.isnan(y) if mask is None else ~np.isnan(y) & (mask if mask.shape == y.shape else mask[:, None])
        for at in np.ndindex(y.shape):
            if not seen[at]:
                continue
            row, k = (at[0] if rows is None else rows[at[0]]), at[1] if K else 0
            factor = 1.0 if rows is None else scale
            each, mean = [], 0.3
            for J, kind, weights, m in sites:
                W = np.zeros((N, max(J, 1)))
                if kind == "map":
                    W[row] = weights[:, k]
                else:
                    W[row, k if J else 0] = np.broadcast_to(weights, (N, K) if K else (N,))[(row, k) if K else row]
                each.append(factor * W)
                mean += np.sum(W * m.reshape(N, -1))
            maps.append(each)
            means.append(factor * mean)
            noises.append(np.broadcast_to(noise, y.shape)[at] * np.exp(log_noise))
            values.append(y[at])
    if not values:
        return 0.0, np.zeros((2, len(sites))), 0.0
    parts, slopes = [], []
    square = np.sum((X[:, None] - X) ** 2, axis=-1)
    for i in range(len(sites)):
        variance, lengthscale = np.exp(logs[:, i])
        gram = variance * np.exp(-square / lengthscale**2 / 2)
        W = np.stack([each[i] for each in maps])
        through = lambda G, W=W: np.einsum("anj,nm,bmj->ab", W, G, W)  # noqa: E731
        parts.append(through(gram))
        slopes += [(through(gram), through(gram * square / lengthscale**2))]
    C = sum(parts) + np.diag(noises)
    residual = np.array(values) - np.array(means)
    inverse = np.linalg.inv(C)
    a = inverse @ residual
    along = lambda dC: (a @ dC @ a - np.sum(inverse * dC)) / 2  # noqa: E731
    value = multivariate_normal(np.zeros(len(a)), C, allow_singular=False).logpdf(residual)
    return value, np.array([[along(pair[i]) for pair in slopes] for i in range(2)]), along(np.diag(noises))


@pytest.mark.slow_but(seed=list(range(4)))
@pytest.mark.parametrize("seed", range(200))
def test_the_density_of_random_programs_is_that_of_dense_matrices(seed):
    case = random_case(seed)
    program = marginal(program_of(*case))
    found, slopes = jax.jit(jax.value_and_grad(partial(density, program), (0, 1)))(case[-1], 0.2)
    expected, of_logs, of_noise = dense_density(*case, 0.2)
    assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-10)
    np.testing.assert_allclose(slopes[0], of_logs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(slopes[1], of_noise, rtol=1e-10, atol=1e-10)


def shared(X, y=None, scale=1.0):
    """Three outputs of one kernel, which no data see together."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.3, 0.8 * scale), X, num_outputs=3))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.2), obs=y)


def hessian_of_differences(function, x, size=1e-4):
    slope = jax.grad(function)
    return (slope(x + size) - slope(x - size)) / (2 * size)


@pytest.mark.slow
def test_outputs_that_no_data_see_together_share_one_factor_and_second_derivatives_are_right():
    Y = np.random.default_rng(0).standard_normal((12, 3))
    one = lambda scale: density(marginal(shared), X, Y, scale)  # noqa: E731
    expected = sum(multivariate_normal(np.zeros(12), rbf(*pairs(X, X), 1.3, 0.8) + 0.2 * np.eye(12)).logpdf(Y.T))
    assert one(1.0) == pytest.approx(expected, rel=1e-12)
    shapes = [x.aval.shape for x in jax.make_jaxpr(one)(1.0).eqns for x in x.outvars]
    assert (12, 12) in shapes or (1, 12, 12) in shapes
    assert not {(3, 12, 12), (36, 36), (1, 36, 36)} & set(shapes)
    assert jax.hessian(one)(1.0) == pytest.approx(float(hessian_of_differences(one, 1.0)), rel=1e-5)


def test_data_that_nothing_connects_are_independent():
    def apart(X, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        g = numpyro.sample("g", GaussianProcess(RBF(2.0, 0.5), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)
        numpyro.sample("z", Gaussian(g, 0.2), obs=-y)

    _, trace = log_density(marginal(apart), (X, y), {}, {})
    for name, variance, lengthscale, noise in (("y", 1.0, 1.0, 0.1), ("z", 2.0, 0.5, 0.2)):
        law = multivariate_normal(np.zeros(12), rbf(*pairs(X, X), variance, lengthscale) + noise * np.eye(12))
        assert trace[name]["fn"].log_prob(trace[name]["value"]) == pytest.approx(law.logpdf(trace[name]["value"]))
        assert len(trace[name]["fn"].sites) == 1


# -- inducing variables ------------------------------------------------------------------------------------------------


def with_jitter(X, y=None, noise=0.1, jitter=1e-12, link=1.0):
    f = numpyro.sample("f", GaussianProcess(Matern52(1.5, 0.9), X, mean=0.2, jitter=jitter))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(link * f, noise), obs=y)


Z = np.linspace(-3, 3, 5)[:, None]


@pytest.mark.parametrize("sparse", ["vfe", "tight", "fitc"])
def test_inducing_points_at_all_inputs_leave_nothing_out(sparse):
    exact = value(marginal(with_jitter), X, y)
    assert value(marginal(with_jitter, InducingPoints(X), sparse=sparse), X, y) == pytest.approx(exact, abs=1e-8)


def low_rank(kernel, X, Z):
    """``Kuu``, ``Kuf`` and the covariance that inducing inputs leave out."""
    Kuu, Kuf = np.asarray(kernel(Z)), np.asarray(kernel(Z, X))
    return Kuu, Kuf, np.asarray(kernel(X)) - Kuf.T @ np.linalg.solve(Kuu, Kuf)


def test_bounds_are_those_of_the_papers():
    kernel, noise = Matern52(1.5, 0.9), np.linspace(0.1, 0.4, 12)
    Kuu, Kuf, left = low_rank(kernel, X, Z)
    residual, Q = np.asarray(y) - 0.4, 4 * Kuf.T @ np.linalg.solve(Kuu, Kuf)
    d = 4 * np.diagonal(left)
    law = lambda C: multivariate_normal(np.zeros(12), C).logpdf(residual)  # noqa: E731
    of_papers = {
        "vfe": collapsed_bound(Kuu, 2 * Kuf, np.full(12, 4 * 1.5), residual, noise),
        "tight": law(Q + np.diag(noise)) - np.sum(np.log1p(d / noise)) / 2,
        "fitc": law(Q + np.diag(d + noise)),
    }
    exact = value(marginal(with_jitter), X, y, noise, 1e-12, 2.0)
    found = {}
    for sparse, expected in of_papers.items():
        program = marginal(with_jitter, InducingPoints(Z), sparse=sparse)
        found[sparse] = value(program, X, y, noise, 1e-12, 2.0)
        assert found[sparse] == pytest.approx(expected, rel=1e-8)
    assert found["vfe"] < found["tight"] < exact


@pytest.mark.slow
def test_blocks_of_rows_tighten_the_bound():
    """By the papers' formula with a block-diagonal matrix; between the tighter bound and the evidence."""
    kernel, noise = Matern52(1.5, 0.9), np.linspace(0.1, 0.4, 12)
    Kuu, Kuf, left = low_rank(kernel, X, Z)
    residual, Q = np.asarray(y) - 0.4, 4 * Kuf.T @ np.linalg.solve(Kuu, Kuf)
    law = multivariate_normal(np.zeros(12), Q + np.diag(noise)).logpdf(residual)
    found = {}
    for block in (2, 5, 12):
        T = 4 * left / np.sqrt(noise[:, None] * noise)
        parts = [T[i : i + block, i : i + block] for i in range(0, 12, block)]
        expected = law - sum(np.linalg.slogdet(np.eye(len(part)) + part)[1] for part in parts) / 2
        program = marginal(with_jitter, InducingPoints(Z), sparse="tight", block=block)
        found[block] = value(program, X, y, noise, 1e-12, 2.0)
        assert found[block] == pytest.approx(expected, rel=1e-8)
    tight = value(marginal(with_jitter, InducingPoints(Z), sparse="tight"), X, y, noise, 1e-12, 2.0)
    assert tight < found[2] < found[12] < value(marginal(with_jitter), X, y, noise, 1e-12, 2.0)
    draws = Predictive(program, num_samples=2)(KEY, X)["y"]
    assert draws.shape == (2, 12) and np.isfinite(draws).all()


def of_rows(X, y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, jitter=1e-12))
    g = numpyro.sample("g", GaussianProcess(Matern52(1.5, 0.9), X, jitter=1e-12))
    numpyro.sample("y", Gaussian((f - 2 * g)[jnp.arange(12)[::-1]], 0.3, missing="mask"), obs=y)


def of_mixtures(X, y=None):
    f = numpyro.sample("f", GaussianProcess(Matern52(jnp.array([1.0, 2.0]), 0.9), X, jitter=1e-12))
    numpyro.sample("y", Gaussian(f @ jnp.array([[1.0, 0.5, 0.0], [0.3, -1.0, 2.0]]), 0.3), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("program", [of_rows, of_mixtures])
def test_blocks_of_sums_and_mixtures_lie_between(program):
    data = y.at[3].set(jnp.nan) if program is of_rows else jnp.stack([y, -y, y * y], axis=1)
    bounds = [value(marginal(program, InducingPoints(Z), sparse="tight", block=block), X, data) for block in (1, 3, 12)]
    exact = value(marginal(program), X, data)
    assert bounds[0] < bounds[1] < bounds[2] < exact
    assert exact - bounds[2] < 0.8 * (exact - bounds[0])


@pytest.mark.slow
def test_it_is_the_bound_that_the_collapsed_objective_trains():
    Y = jnp.stack([y, -y, y * y], axis=1)
    guide = InducingGuide(shared, InducingPoints(Z))
    svi = SVI(shared, guide, numpyro.optim.Adam(0.1), CollapsedELBO())
    bound = -float(svi.evaluate(svi.init(KEY, X, Y), X, Y))
    assert value(marginal(shared, InducingPoints(Z)), X, Y) == pytest.approx(bound, rel=1e-6)


def test_sites_with_and_without_inducing_variables_add_up():
    def two(X, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, jitter=1e-12))
        g = numpyro.sample("g", GaussianProcess(Matern52(1.5, 0.9), X, jitter=1e-12))
        numpyro.sample("y", Gaussian(f - 2 * g, 0.3), obs=y)

    Kuu, Kuf, left = low_rank(Matern52(1.5, 0.9), X, Z)
    C = rbf(*pairs(X, X)) + 4 * Kuf.T @ np.linalg.solve(Kuu, Kuf) + 0.3 * np.eye(12)
    expected = multivariate_normal(np.zeros(12), C).logpdf(y) - 4 * np.trace(left) / 0.6
    assert value(marginal(two, {"g": InducingPoints(Z)}), X, y) == pytest.approx(expected, rel=1e-8)


# -- Laplace -----------------------------------------------------------------------------------------------------------


def student(f):
    return dist.StudentT(3.0, f, 0.2)


COUNTS = np.random.default_rng(1).poisson(np.exp(np.asarray(y) + 1))
LABELS = np.random.default_rng(2).integers(0, 3, 12)
NOISES = {
    "logit": (lambda f: likelihoods.Bernoulli(f, "logit"), (np.asarray(y) > 0).astype(int), None),
    "probit": (likelihoods.Bernoulli, (np.asarray(y) > 0).astype(int), None),
    "counts": (lambda f: Expected(lambda f: dist.Poisson(jnp.exp(f)), f), COUNTS, None),
    "outliers": (lambda f: Expected(student, f), np.asarray(y).copy(), None),
    "classes": (likelihoods.Softmax, LABELS, 3),
    "labels": (likelihoods.Bernoulli, np.stack([LABELS > 0, LABELS > 1], axis=1).astype(int), 2),
    "ordinal": (lambda f: likelihoods.Ordinal(f, jnp.array([-0.5, 0.5])), LABELS, None),
}
NOISES["outliers"][1][3] = 8.0


def latent(X, y=None, variance=1.0, lengthscale=1.0, *, noise, num_outputs):
    f = numpyro.sample("f", GaussianProcess(RBF(variance, lengthscale), X, num_outputs=num_outputs, jitter=1e-10))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", noise(f), obs=y)


NOISES["columns mixed"] = (
    lambda f: Expected(lambda f: dist.Poisson(jnp.exp(f @ jnp.array([[1.0, 0.5], [0.0, 1.0]]))).to_event(1), f),
    np.stack([COUNTS, LABELS], axis=1),
    2,
)


def of_noise(name):
    noise, data, outputs = NOISES[name]
    return partial(latent, noise=noise, num_outputs=outputs), data


@pytest.mark.slow
def test_laplace_is_that_of_scikit_learn():
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF as Theirs
    from sklearn.gaussian_process.kernels import ConstantKernel

    program, data = of_noise("logit")
    theirs = GaussianProcessClassifier(ConstantKernel(1.7) * Theirs(0.8), optimizer=None).fit(X, data)
    evidence, slope = theirs.log_marginal_likelihood(np.log([1.7, 0.8]), eval_gradient=True)
    ours = lambda logs: density(marginal(program), X, data, *jnp.exp(logs))  # noqa: E731
    found, slopes = jax.value_and_grad(ours)(jnp.log(jnp.array([1.7, 0.8])))
    assert float(found) == pytest.approx(evidence, abs=1e-6)
    np.testing.assert_allclose(slopes, slope, atol=1e-5)


def dense_laplace(log_density, K, size):
    """Laplace's approximation in the values of ``f`` ``[N]`` or ``[N, C]``, by Newton's steps with halving."""
    D = size // len(K)
    prior = np.kron(K, np.eye(D))
    f = np.zeros(size)
    objective = lambda f: float(log_density(f)) - f @ np.linalg.solve(prior, f) / 2  # noqa: E731
    slope, curvature = jax.jit(jax.grad(log_density)), jax.jit(jax.hessian(log_density))
    for _ in range(200):
        W = -np.asarray(curvature(f))
        positive = W if np.linalg.eigvalsh(np.linalg.inv(prior) + W).min() > 0 else 0 * W
        move = np.linalg.solve(np.eye(size) + prior @ positive, prior @ np.asarray(slope(f)) - f)
        while objective(f + move) < objective(f) - 1e-12 and np.abs(move).max() > 1e-14:
            move = move / 2
        f = f + move
    return objective(f) - np.linalg.slogdet(np.eye(size) - prior @ np.asarray(curvature(f)))[1] / 2


@pytest.mark.slow_but(name=["classes"])
@pytest.mark.parametrize("name", NOISES)
def test_laplace_and_its_derivatives_are_those_of_dense_matrices(name):
    program, data = of_noise(name)
    noise, _, outputs = NOISES[name]
    K = rbf(*pairs(X, X), 1.7, 0.8) + 1e-10 * np.eye(12)

    def log_density(f):
        return jnp.sum(noise(f.reshape(12, outputs) if outputs else f).log_prob(data))

    ours = jax.jit(lambda logs: density(marginal(program), X, data, *jnp.exp(logs)))
    logs = jnp.log(jnp.array([1.7, 0.8]))
    assert float(ours(logs)) == pytest.approx(dense_laplace(log_density, K, 12 * (outputs or 1)), rel=1e-6, abs=1e-6)
    for i, found in enumerate(jax.grad(ours)(logs)):
        move = 1e-4 * jnp.eye(2)[i]
        four = [ours(logs + k * move) for k in (-2, -1, 1, 2)]
        difference = float(four[0] - 8 * four[1] + 8 * four[2] - four[3]) / 12e-4
        assert float(found) == pytest.approx(difference, rel=1e-6, abs=1e-6)


def test_hyperparameters_in_the_closure_of_a_likelihood_have_derivatives():
    def closed(scale):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Expected(lambda f: dist.StudentT(3.0, f, scale), f), obs=y)

    ours = jax.jit(lambda scale: density(marginal(closed), scale))
    difference = (8 * (ours(0.301) - ours(0.299)) - ours(0.302) + ours(0.298)) / 0.012
    assert float(jax.grad(ours)(0.3)) == pytest.approx(float(difference), rel=1e-6)


def test_large_counts_have_a_mode():
    """Terms of a million, whose sum is a few hundred nats."""
    many = np.linspace(0, 6, 60)[:, None]
    counts = np.random.default_rng(0).poisson(np.exp(np.sin(2 * many[:, 0]) + 7))
    program = marginal(of_noise("counts")[0])
    each = jax.jit(jax.vmap(lambda scale: density(program, many, counts, 10.0, scale)))(jnp.linspace(0.2, 1.5, 20))
    assert np.all(np.isfinite(each))


@pytest.mark.slow
def test_second_derivatives_of_laplace_are_right():
    program, data = of_noise("counts")
    ours = lambda log: density(marginal(program), X, data, 1.7, jnp.exp(log))  # noqa: E731
    assert float(jax.hessian(ours)(0.1)) == pytest.approx(float(hessian_of_differences(ours, 0.1)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["counts", "labels"])
def test_laplace_with_inducing_points_at_all_inputs_is_that_without(name):
    program, data = of_noise(name)
    exact = value(marginal(program), X, data)
    assert value(marginal(program, InducingPoints(X)), X, data) == pytest.approx(exact, abs=1e-5)


def test_laplace_of_gaussian_noise_is_exact():
    """A normal distribution that is not known to be one."""

    def hidden(X, y):
        f = numpyro.sample("f", GaussianProcess(Matern52(1.5, 0.9), X, mean=0.2, jitter=1e-12))
        numpyro.sample("y", Expected(lambda f: dist.Normal(f, np.sqrt(0.1)), f), obs=y)

    for inducing in (None, InducingPoints(Z)):
        found = value(marginal(hidden, inducing), X, y)
        assert found == pytest.approx(value(marginal(with_jitter, inducing), X, y), rel=1e-9)


# -- as NumPyro's programs ---------------------------------------------------------------------------------------------


def regression(X, y=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.5))
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 0.5))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


def grid_posterior(X, y):
    """Mean and standard deviation of log lengthscale and log noise by sums over a grid."""
    a, b = np.linspace(-2.5, 2.0, 90), np.linspace(-4.5, 0.5, 90)
    logs = np.array(
        [[np.sum(dist.Normal(0.0, 0.5).log_prob(i) + dist.Normal(-2.0, 0.5).log_prob(j)) for j in b] for i in a]
    )
    for i, j in np.ndindex(logs.shape):
        C = rbf(*pairs(X, X), 1.0, np.exp(a[i])) + np.exp(b[j]) * np.eye(len(X))
        logs[i, j] += multivariate_normal(np.zeros(len(X)), C).logpdf(y)
    p = np.exp(logs - logs.max())
    p /= p.sum()
    moments = []
    for values, weights in ((a, p.sum(1)), (b, p.sum(0))):
        mean = np.sum(values * weights)
        moments.append((mean, np.sqrt(np.sum(values**2 * weights) - mean**2)))
    return moments


@pytest.mark.slow
def test_nuts_finds_the_posterior_of_a_grid():
    mcmc = nuts(KEY, marginal(regression), X, y, num_warmup=300, num_samples=1000, num_chains=4, progress=False)
    samples = mcmc.get_samples()
    for name, (mean, deviation) in zip(("lengthscale", "noise"), grid_posterior(X, y), strict=True):
        logs = np.log(samples[name])
        assert logs.mean() == pytest.approx(mean, abs=0.1 * deviation)
        assert logs.std() == pytest.approx(deviation, rel=0.1)


@pytest.mark.slow
def test_a_trained_model_gives_the_posterior_of_a_grid():
    guide = InducingGuide(regression, kmeans(12), hyperparameters="normal")
    svi = SVI(regression, guide, numpyro.optim.Adam(0.05), GaussianProcessELBO())
    trained = fit(KEY, svi, 300, X, y, progress=False)
    mcmc = trained.hyperparameters(KEY, X, y, num_warmup=300, num_samples=1000, progress=False)
    samples, of_guide = mcmc.get_samples(), trained.to_arviz(KEY, X, y)["posterior"]
    for name, (mean, deviation) in zip(("lengthscale", "noise"), grid_posterior(X, y), strict=True):
        logs = np.log(samples[name])
        assert logs.mean() == pytest.approx(mean, abs=0.15 * deviation)
        assert logs.std() == pytest.approx(deviation, rel=0.15)
        assert np.log(np.ravel(of_guide[name])).std() < logs.std()
    found = Trained.of_draws(KEY, mcmc, X, y).predict(KEY, X[:2], num_draws=1000)["f"]
    np.testing.assert_allclose(found.mean, trained.predict(KEY, X[:2])["f"].mean, atol=0.1)
    without = Trained(gp_regression, InducingGuide(gp_regression, kmeans(3)), {})
    without.guide.setup(X, y)
    with pytest.raises(ValueError, match="no latent sites but GP sites"):
        without.hyperparameters(KEY, X, y)


@pytest.mark.slow
def test_the_check_of_laplace_knows_what_is_missing():
    """One row, whose evidence is a sum over a grid; and a density with a tail that no normal has."""

    def one(y, *, fn, variance):
        f = numpyro.sample("f", GaussianProcess(RBF(variance, 1.0), np.zeros((1, 1)), jitter=0.0))
        numpyro.sample("y", Expected(fn, f), obs=y)

    def poisson(f):
        return dist.Poisson(jnp.exp(f))

    def cauchy(f):
        return dist.Cauchy(f, 0.05)

    grid = np.linspace(-40, 40, 400001)
    for fn, data, variance, k in ((poisson, np.array([3]), 1.0, 0.5), (cauchy, np.array([10.0]), 36.0, np.inf)):
        program = marginal(partial(one, fn=fn, variance=variance))
        found = check_laplace(KEY, program, data, posterior_samples={}, num_draws=4000)
        logs = np.asarray(fn(grid).log_prob(data)) - grid**2 / (2 * variance) - np.log(2 * np.pi * variance) / 2
        missing = np.log(np.sum(np.exp(logs)) * (grid[1] - grid[0])) - value(program, data)
        assert found.arrays["k"][0] < k
        if np.isfinite(k):
            assert found.findings == () and found.arrays["log_ratio"][0] == pytest.approx(missing, abs=0.01)
        else:
            assert missing > 0.3 and found.arrays["k"][0] > 0.5


@pytest.mark.slow
def test_it_works_with_mcmc_guides_and_predictive():
    program = marginal(regression)
    with jax.numpy_dtype_promotion("standard"):  # of NumPyro's own steps
        mcmc = MCMC(NUTS(program), num_warmup=20, num_samples=20, progress_bar=False)
        mcmc.run(KEY, X, y)
        svi = SVI(program, AutoNormal(program), numpyro.optim.Adam(0.05), Trace_ELBO())
        losses = svi.run(KEY, 60, X, y, progress_bar=False).losses
    samples = mcmc.get_samples()
    assert set(samples) == {"lengthscale", "noise"}
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    found = Predictive(program, samples)(KEY, X)
    assert found["y"].shape == (20, 12) and set(found) == {"y"}
    relations = get_model_relations(program, (X, y))
    assert relations["observed"] == ["y"] and set(relations["sample_sample"]["y"]) == {"lengthscale", "noise"}


@pytest.mark.slow
def test_data_are_drawn_from_their_law():
    def several(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=2))
        numpyro.sample("y", Gaussian(f @ jnp.array([[1.0], [0.5]]), 0.1), obs=y)
        numpyro.sample("z", Gaussian(f[:, 0], 0.2))

    few = X[:3]
    found = Predictive(marginal(several), num_samples=20000)(KEY, few)
    both = np.concatenate([found["y"][:, :, 0], found["z"]], axis=1)
    K = rbf(*pairs(few, few))
    blocks = np.block([[1.25 * K, K], [K, K]]) + np.diag([0.1] * 3 + [0.2] * 3)
    np.testing.assert_allclose(np.cov(both.T), blocks, atol=0.05)
    given = Predictive(marginal(several), num_samples=20000)(KEY, few, np.ones((3, 1)))["z"]
    weights = np.linalg.solve(blocks[:3, :3], blocks[:3, 3:])
    np.testing.assert_allclose(given.mean(0), weights.sum(0), atol=0.03)
    np.testing.assert_allclose(np.cov(given.T), blocks[3:, 3:] - blocks[3:, :3] @ weights, atol=0.03)


# -- draws of the sites ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("inducing", [None, InducingPoints(Z)], ids=["exact", "sparse"])
def test_functions_given_hyperparameters_are_those_of_regression(inducing):
    S, new = 4000, np.array([[0.3], [5.0]])
    samples = {"lengthscale": np.full((1, S), 0.8), "noise": np.full((1, S), 0.1)}
    posterior = Trained.of_draws(KEY, samples, X, y, program=marginal(regression, inducing))
    at, K = (X, rbf(*pairs(X, X), 1.0, 0.8)) if inducing is None else (Z, rbf(*pairs(Z, Z), 1.0, 0.8))
    cross, own = rbf(*pairs(at, new), 1.0, 0.8), rbf(*pairs(new, new), 1.0, 0.8)
    if inducing is None:
        weights = np.linalg.solve(K + 0.1 * np.eye(12), cross)
        mean, variance = weights.T @ np.asarray(y), np.diagonal(own - cross.T @ weights)
    else:
        across = rbf(*pairs(Z, X), 1.0, 0.8)
        precision = K + across @ across.T / 0.1
        mean = cross.T @ np.linalg.solve(precision, across @ np.asarray(y)) / 0.1
        variance = np.diagonal(own - cross.T @ (np.linalg.solve(K, cross) - np.linalg.solve(precision, cross)))
    functions = posterior.functions(KEY, new, num_draws=S)["f"]
    np.testing.assert_allclose(functions.mean(0), mean, atol=5 * np.sqrt(variance.max() / S))
    np.testing.assert_allclose(functions.var(0), variance, rtol=0.1)


@pytest.mark.slow
def test_draws_of_counts_are_those_of_laplace():
    program, data = of_noise("counts")
    S = 4000
    drawn = Trained.of_draws(KEY, {}, X, data, program=marginal(program), num_draws=S).params["f_mean"][0]
    assert drawn.shape == (S, 12)
    K = rbf(*pairs(X, X)) + 1e-10 * np.eye(12)
    f = np.zeros(12)
    for _ in range(50):
        W = np.diag(np.exp(f))
        f = np.linalg.solve(np.eye(12) + K @ W, K @ (W @ f + data - np.exp(f)))
    law = K - K @ np.linalg.solve(K + np.diag(np.exp(-f)), K)
    np.testing.assert_allclose(drawn.mean(0), f, atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), law, atol=0.03)


@pytest.fixture(scope="module", params=["exact", "sparse"])
def of_chains(request):
    program = marginal(regression, None if request.param == "exact" else kmeans(4))
    mcmc = nuts(KEY, program, X, y, num_warmup=100, num_samples=100, num_chains=2, progress=False)
    return mcmc, Trained.of_draws(KEY, mcmc, X, y)


@pytest.mark.slow
def test_exports_have_the_sites_and_the_chains(of_chains):
    mcmc, posterior = of_chains
    diverging = mcmc.get_extra_fields(group_by_chain=True)
    found = posterior.to_arviz(KEY, X, y, new_args=(X[:3],), sample_stats=diverging)
    assert found["posterior"]["f"].shape == (2, 100, 12)
    assert found["predictions"]["f"].shape == (2, 100, 3)
    assert found["log_likelihood"]["y"].shape == (2, 100, 12)
    stats = found["sample_stats"]
    assert {"diverging", "log_p", "energy", "n_steps"} <= set(stats.data_vars) and "log_q" not in stats
    np.testing.assert_allclose(found["posterior"]["noise"], mcmc.get_samples(group_by_chain=True)["noise"])
    if found["posterior"]["f_u"].shape[-1] == 12:  # of a draw, new inputs that are old ones have its values
        known, again = found["posterior"]["f"].values[..., :3], found["predictions"]["f"].values
        np.testing.assert_allclose(known, again, atol=0.02)
    few = posterior.to_arviz(KEY, X, y, num_draws=10, sample_stats=diverging)
    kept = [int(np.flatnonzero(found["posterior"]["noise"][0] == noise)[0]) for noise in few["posterior"]["noise"][0]]
    np.testing.assert_array_equal(few["sample_stats"]["energy"][0], diverging["energy"][0, np.array(kept)])


@pytest.mark.slow
def test_what_is_said_of_draws(of_chains, tmp_path):
    """Chains and predictions are judged; there is no bound, and no posterior that a guide would have."""
    _, posterior = of_chains
    new = X[:-1] + 0.1
    found = diagnose(KEY, posterior, new, np.sin(2 * new[:, 0]), train_args=(X, y))
    said = {table.title: table for table in found.sections}
    assert {row[0] for row in said["Chains"].rows} == {"lengthscale", "noise"}
    assert "The bound by site" not in said and "see Chains" in said["Hyperparameters against their posterior"].note
    assert said["Leave-one-out"].rows[0][2] is None and "draws of chains" in said["Leave-one-out"].note
    path = report(KEY, posterior, X, y, path=tmp_path / "report.html")
    assert "lengthscale" in path.read_text()


@pytest.mark.slow
def test_chains_that_have_not_met_are_found():
    draws = {"lengthscale": np.linspace(0.7, 0.9, 100).reshape(2, 50), "noise": np.full((2, 50), 0.1)}
    draws["noise"] = draws["noise"] + np.random.default_rng(0).uniform(0, 0.1, (2, 50))
    posterior = Trained.of_draws(KEY, draws, X, y, program=marginal(regression))
    (found,) = [f for f in diagnose(KEY, posterior, X, y).findings if f.name == "chains not mixed"]
    assert found.site == "lengthscale" and "2 chains of 50" in found.text


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 15])
def test_few_draws_of_chains_are_few(count):
    """Of two draws of a chain there is no R-hat; more draws than there are would be the same ones again."""
    draws = {"lengthscale": np.full((2, count), 0.8), "noise": np.full((2, count), 0.1)}
    posterior = Trained.of_draws(KEY, draws, X, y, program=marginal(regression))
    found = diagnose(KEY, posterior, X, y)
    assert "chains not mixed" in [each.name for each in found.findings]
    (loo,) = [each for each in found.sections if each.title == "Leave-one-out"]
    if count == 2:
        assert "4 draws of chains are fewer than 20" in loo.note
    else:
        assert loo.rows[0][2] is None and "Of 30 draws of chains" in loo.note


RNG = np.random.default_rng(1)
SPHERE, IMAGES = RNG.standard_normal((12, 3)), RNG.standard_normal((12, 4, 4, 1))
SPHERE /= np.linalg.norm(SPHERE, axis=1, keepdims=True)
BOX = {"sizes": 24, "bounds": (-6.0, 9.0)}
PATCHES = np.lib.stride_tricks.sliding_window_view(IMAGES[..., 0], (3, 3), axis=(1, 2)).reshape(-1, 9)
#: The kernel of a lengthscale, the inputs, and what is induced.
INDUCED = {
    "none": (lambda s: RBF(1.0, s), X, None),
    "points": (lambda s: RBF(1.0, s), X, InducingPoints(X[1:])),
    "centres": (lambda s: RBF(1.0, s), X, kmeans(8)),
    "blocks": (
        lambda s: RBF(1.0, s) + Matern52(0.5, s),
        X,
        InducingBlocks(InducingPoints(X[::2]), InducingPoints(X[1::2])),
    ),
    "patches": (lambda s: Convolutional(RBF(1.0, 3 * s), (4, 4), (3, 3)), IMAGES, InducingPatches(PATCHES)),
    "basis": (lambda s: HilbertSpace(RBF(1.0, s), **BOX), X, InducingBasis(**BOX)),
    "waves": (lambda s: Matern52(1.0, s), X, InducingFourier(16, (-6.0, 9.0))),
    "harmonics": (lambda s: RBF(1.0, s), SPHERE, InducingHarmonics(6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", INDUCED)
def test_every_inducing_variable_predicts_and_exports_from_draws(kind, tmp_path):
    kernel, inputs, inducing = INDUCED[kind]

    def program(inputs, y=None):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.5))
        f = numpyro.sample("f", GaussianProcess(kernel(lengthscale), inputs))
        with numpyro.plate("data", len(inputs)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    lengthscales = {"lengthscale": np.full((2, 60), 0.9)}
    posterior = Trained.of_draws(KEY, lengthscales, inputs, y, program=marginal(program, inducing))
    found = posterior.predict(KEY, inputs, num_draws=120)["f"].mean
    K = np.asarray(kernel(0.9)(inputs))
    np.testing.assert_allclose(found, K @ np.linalg.solve(K + 0.1 * np.eye(12), y), atol=0.15)
    assert posterior.to_arviz(KEY, inputs, y, num_draws=4)["posterior"]["f"].shape == (2, 2, 12)
    posterior.save(tmp_path / "draws")
    np.testing.assert_array_equal(
        load(tmp_path / "draws", program).predict(KEY, inputs, num_draws=120)["f"].mean, found
    )


def with_deterministic(X, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 0.5))
    twice = numpyro.deterministic("twice", 2 * jnp.exp(weights))
    numpyro.deterministic("not a number", noise * jnp.nan)
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, twice[0]), X))
    numpyro.deterministic("sum", weights.sum() + noise)
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


@pytest.mark.slow
@pytest.mark.slow_but(shape=[(2, 6)], thinned=[3], grouped=[False])
@pytest.mark.parametrize("thinned", [1, 3])
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("shape", [(2, 6), (1, 2), (3, 3)])
def test_samples_of_mcmc_are_draws_with_their_deterministic_sites_and_without(shape, grouped, thinned):
    model = marginal(with_deterministic)
    lead = shape if grouped else (shape[0] * shape[1],)
    samples = {"weights": RNG.standard_normal((*lead, 2)) / 4, "noise": RNG.uniform(0.1, 0.2, lead)}
    samples = {name: x[:, ::thinned] if grouped else x[::thinned] for name, x in samples.items()}
    twice = 2 * np.exp(samples["weights"])
    more = {"twice": twice, "sum": twice.sum(-1), "not a number": np.nan * samples["noise"]}
    alone, found = (Trained.of_draws(KEY, own, X, y, program=model) for own in (samples, samples | more))
    assert found.params["noise_loc"].shape == (() if grouped else (1,)) + samples["noise"].shape
    assert found.params.keys() == alone.params.keys()
    np.testing.assert_array_equal(found.params["f_mean"], alone.params["f_mean"])
    with pytest.raises(ValueError, match=r"draws names \[.thrice"):
        Trained.of_draws(KEY, samples | {"thrice": twice}, X, y, program=model)


@pytest.mark.slow
def test_points_of_parameters_predict():
    params = {"f_variance": 1.0, "f_lengthscale": np.array([0.8]), "noise_variance": 0.1}
    posterior = Trained.of_draws(KEY, {}, X, y, program=marginal(gp_regression), params=params)
    assert posterior.predict(KEY, X[:3])["f"].mean.shape == (3,)


# -- refusals ----------------------------------------------------------------------------------------------------------


def minibatch(X, y):
    f = numpyro.sample("f", GaussianProcess(RBF(), X))
    with handlers.seed(rng_seed=0), numpyro.plate("data", 100, subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)


def drawn(X, y):
    f = numpyro.sample("f", GaussianProcess(RBF(), X))
    numpyro.sample("y", dist.Poisson(jnp.exp(draws(f))), obs=y)


def undrawn(X, y):
    f = numpyro.sample("f", GaussianProcess(RBF(), X))
    numpyro.sample("y", dist.Normal(f, 0.1), obs=y)


def mixture(X, y):
    f = numpyro.sample("f", GaussianProcess(RBF(), X))
    numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    k = numpyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    numpyro.sample("y", Gaussian(f * (1.0 + k), 0.1), obs=y)


def of_draws(program, draws, *args, **options):
    return Trained.of_draws(KEY, draws, *args, program=program, **options)


VALUES = {"lengthscale": 0.8, "noise": 0.1}


def weighed(program, *data, params=None):
    return lambda: density(program, *data, params=params)


def drawn_by(draws, *data, program=regression, **options):
    draws = {name: np.ones(shape) for name, shape in draws.items()}
    return lambda: of_draws(marginal(program), draws, *(data or (X, y)), **options)


DEEP, VIEWS = partial(deep_gp, layers=linear_layers(X, (2,))), partial(invariant_gp, view=rotation())
ROBUST = partial(latent, noise=likelihoods.RobustMax, num_outputs=3)

#: A call, the error that it raises, and what this names.
REFUSED = {
    "minibatches": (weighed(marginal(minibatch), X, y), ValueError, "'y'"),
    "draws": (weighed(marginal(drawn), X, COUNTS), TypeError, "'f'"),
    "a distribution of NumPyro": (weighed(marginal(undrawn), X, y), TypeError, "likelihoods.Gaussian"),
    "deep": (weighed(marginal(DEEP), X, y), TypeError, "'layer_0'"),
    "discrete": (lambda: nuts(KEY, marginal(mixture), X, y), TypeError, "'k'"),
    "sampled views": (weighed(marginal(VIEWS), np.zeros((2, 8, 8, 1)), np.zeros(2)), TypeError, "'f'.*views"),
    "a grid": (lambda: marginal(regression, InducingGrid(8)), TypeError, "grid"),
    "another bound": (lambda: marginal(regression, sparse="dtc"), ValueError, "sparse"),
    "blocks": (lambda: marginal(regression, InducingPoints(Z), block=4), ValueError, "Blocks"),
    "robust-max": (weighed(marginal(ROBUST), X, LABELS), ValueError, "'y'.*RobustMax"),
    "a value from outside": (
        weighed(handlers.condition(marginal(regression), {"f": np.zeros(12)}), X, y, params=VALUES),
        ValueError,
        "'f'",
    ),
    "nothing to move": (lambda: nuts(KEY, marginal(shared), X, np.zeros((12, 3))), ValueError, "latent sites"),
    "draws by chain": (drawn_by({"noise": (3,), "lengthscale": (1, 3)}), ValueError, "draws"),
    "draws of two lengths": (drawn_by({"noise": (1, 3), "lengthscale": (1, 2)}), ValueError, "draws"),
    "missing draws": (drawn_by({"noise": (1, 3)}), ValueError, "lengthscale"),
    "draws of unknown sites": (drawn_by(dict.fromkeys(("noise", "lengthscale", "typo"), (1, 3))), ValueError, "typo"),
    "no law": (
        drawn_by({}, np.zeros((3, 1)), y[:3], program=with_jitter, num_draws=2, model_kwargs={"noise": 1e-30}),
        FactorisationError,
        "2 of 2 draws .numbers 0, 1, counted",
    ),
    "names": (weighed(marginal(regression, {"g": kmeans(3)}), X, y, params=VALUES), ValueError, "'g'"),
    "fitc of counts": (
        weighed(marginal(of_noise("counts")[0], kmeans(3), sparse="fitc"), X, COUNTS),
        ValueError,
        "sparse='fitc'.*'y'",
    ),
    "scale": (weighed(marginal(handlers.scale(regression, scale=2.0)), X, y, params=VALUES), ValueError, "'f'.*scale"),
    "mask around it": (
        weighed(handlers.mask(marginal(regression), mask=np.ones(12, bool)), X, y, params=VALUES),
        ValueError,
        "mask",
    ),
    "another program": (lambda: of_draws(regression, {}, X, y), TypeError, "program"),
    "draws of hyperparameters alone": (
        lambda: predict(KEY, marginal(regression), X, posterior_samples={"noise": np.ones(3)}, train_args=(X, y)),
        TypeError,
        "Trained.of_draws",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_integrated_out_is_refused_by_name(case):
    call, error, named = REFUSED[case]
    with pytest.raises(error, match=named):
        call()


def test_a_covariance_without_a_factor_has_no_density():
    """Noise so small that two equal inputs are one: a divergence for NUTS, and no NaN in silence."""
    at = lambda noise: density(marginal(with_jitter), np.zeros((3, 1)), np.arange(3.0), noise, 0.0)  # noqa: E731
    assert jax.jit(at)(1e-30) == -np.inf
    assert np.isfinite(jax.jit(at)(0.1)) and np.isfinite(jax.jit(jax.grad(at))(0.1))


@pytest.mark.slow_but(kind=["gaussian"])
@pytest.mark.parametrize("kind", ["gaussian", "counts"])
def test_nonsense_has_no_density_outside_jit_either(kind):
    """Where NumPyro looks for a start: a covariance that overflows raises nothing there."""

    def program(X, y, variance):
        f = numpyro.sample("f", GaussianProcess(RBF(variance, 1.0) + RBF(variance, 1.0), X))
        fn = Gaussian(f, 0.1) if kind == "gaussian" else Expected(lambda f: dist.Poisson(jnp.exp(f)), f)
        numpyro.sample("y", fn, obs=y)

    at = lambda x: density(marginal(program), X, y if kind == "gaussian" else COUNTS, x)  # noqa: E731
    assert at(jnp.asarray(1e308)) == -np.inf and np.isfinite(at(jnp.asarray(1.0)))


def test_two_data_sites_without_a_density_have_none_together():
    def twice(noise):
        f = numpyro.sample("f", GaussianProcess(RBF(), np.zeros((3, 1)), jitter=0.0))
        numpyro.sample("y", Gaussian(f, noise), obs=np.arange(3.0))
        numpyro.deterministic("twice", 2 * f)
        numpyro.sample("z", Gaussian(f, noise), obs=np.arange(3.0))

    assert density(marginal(twice), 1e-30) == -np.inf


def test_a_kernel_with_white_noise_is_noise_of_the_site():
    def white(X, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0) + White(0.3), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    law = multivariate_normal(np.zeros(12), rbf(*pairs(X, X)) + 0.4 * np.eye(12))
    assert density(marginal(white), X, y) == pytest.approx(law.logpdf(y), rel=1e-10)


@pytest.mark.slow
def test_float32_is_float32():
    few, targets = X.astype(np.float32), y.astype(np.float32)
    for program, data in ((regression, targets), (of_noise("counts")[0], COUNTS)):
        for inducing in (None, InducingPoints(Z.astype(np.float32))):
            values = {"lengthscale": jnp.float32(0.8), "noise": jnp.float32(0.1)}
            found = jax.grad(lambda v, p=program, i=inducing, d=data: density(marginal(p, i), few, d, params=v))(values)
            assert {x.dtype.name for x in jax.tree.leaves(found)} == {"float32"}
            assert np.all(np.isfinite(found["lengthscale"]))


# -- what draws are asked like any other guide -------------------------------------------------------------------------


@pytest.mark.slow
def test_missing_data_may_be_given_to_every_call():
    """NaN of data that the program has as missing, as ``fit`` takes them."""

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))), X))
        numpyro.sample("y", Gaussian(f, 0.1, missing="mask"), obs=y)

    some = np.array(y)
    some[3] = np.nan
    kept = np.arange(12) != 3
    options = {"num_warmup": 5, "num_samples": 5, "num_chains": 1}
    nuts(KEY, marginal(program), X, some, **options)
    given = {"lengthscale": np.full((1, 2000), 0.8)}
    found = [
        Trained.of_draws(KEY, given, *data, program=marginal(program)).predict(KEY, X, num_draws=2000)["f"].mean
        for data in ((X, some), (X[kept], some[kept]))
    ]
    np.testing.assert_allclose(*found, atol=0.05)


@pytest.mark.slow
def test_draws_work_with_numpyro(of_chains):
    _, posterior = of_chains
    guide, params = posterior.guide, posterior.params
    assert guide.sample_posterior(KEY, params, X, sample_shape=(3,))["f"].shape == (3, 12)
    found = Predictive(regression, guide=guide, params=params, num_samples=4)(KEY, X)
    assert found["y"].shape == (4, 12)
    noise = np.ravel(params["noise_loc"])
    np.testing.assert_allclose(guide.median(params)["noise"], np.median(noise))
    for wrong in ([0.0, 0.5], [1.5], 0.5):
        with pytest.raises(ValueError, match="quantiles must be numbers between 0 and 1"):
            guide.quantiles(params, wrong)


@pytest.mark.slow_but(inducing=[None])
@pytest.mark.parametrize("inducing", [None, InducingPoints(np.linspace(-1, 1, 4)[:, None])])
@pytest.mark.parametrize("moment", ["mean", "variance"])
@pytest.mark.parametrize("of", [lambda f: f, lambda f: 2.0 * f + 1.0, lambda f: f[:3]], ids=["f", "scaled", "rows"])
def test_moments_of_sites_that_are_integrated_out_are_refused(of, inducing, moment):
    X = np.linspace(-1, 1, 6)[:, None]

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.factor("z", -jnp.sum(getattr(of(f), moment)))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    with pytest.raises(TypeError, match=rf"{moment}.*'f'"):
        log_density(marginal(program, inducing), (X, X[:, 0]), {}, {})


@pytest.mark.slow
@pytest.mark.parametrize("around", [marginal, whitened, lambda program: program], ids=["marginal", "whitened", "plain"])
def test_nuts_refuses_data_without_a_density_as_fit_does(around):
    X, exposure = np.linspace(-1, 1, 9)[:, None], np.ones(9)
    exposure[4] = 0.0

    def program(X, exposure, counts):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.5))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
        law = lambda f, exposure: dist.Poisson(exposure * jnp.exp(f))  # noqa: E731
        numpyro.sample("counts", Expected(law, f, exposure), obs=counts)

    with pytest.raises(ValueError, match=r"'counts'.* 1 of 9 rows .* row 4, .*exposure = 0.0"):
        nuts(KEY, around(program), X, exposure, np.ones(9), num_warmup=2, num_samples=2, num_chains=1)
