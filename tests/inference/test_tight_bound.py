"""The tighter bounds: between the old bound and the exact evidence, by independent linear algebra and quadrature."""

import os
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax, random
from jax.test_util import check_grads
from numpyro.infer import SVI

import gpzoo
from gpzoo import GaussianProcess, InducingGrid, InducingPatches, InducingPoints, Orbit, Subsampled
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit, load
from gpzoo.kernels import RBF, Invariant
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, PolyaGamma
from gpzoo.processes.marginals import GaussianMarginals, VarianceParts
from tests.programs import KEY, adam, deep, poisson, randomised, sine, trained
from tests.reference import normal_quadrature
from tests.statistics import standard_error

STRESS = bool(os.environ.get("GPZOO_STRESS"))
OLD, TIGHT = GaussianProcessELBO(), GaussianProcessELBO(tight=True)
N, M, JITTER = 6, 3, 1e-8


def elbo(objective, model, guide, params, *args, **kwargs):
    return -objective.loss(KEY, params, model, guide, *args, **kwargs)


# -- Gaussian noise, against exact evidence ----------------------------------------------------------------------------


def gp(name, X, hyper, num_outputs=None):
    return numpyro.sample(name, GaussianProcess(RBF(*hyper[name]), X, num_outputs=num_outputs, jitter=JITTER))


def rows(X, y, hyper, more):
    """A scale, a noise and a mask for every row."""
    f = gp("f", X, hyper)
    with numpyro.plate("data", len(X)), numpyro.handlers.mask(mask=more["observed"]):
        numpyro.sample("y", Gaussian(f * more["c"] + 0.3, more["noise"]), obs=y)


def loadings(X, y, hyper, more):
    """Outputs that are mixed and scaled, with a noise of each entry."""
    f = gp("f", X, hyper, 2)
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian((f * more["c"][:, None]) @ more["A"] * more["row"] + 0.3, more["noise"]), obs=y)


def sums(X, y, hyper, more):
    """Two sites, one of them mixed; and of both one output on its own, the rows in another order."""
    f, g = gp("f", X, hyper, 2), gp("g", X, hyper, 2)
    h = f - g @ more["A"] / 2.0
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(h + 0.3, more["noise"]), obs=y)
        numpyro.sample("z", Gaussian(h[::-1][:, 0] * more["c"], 0.3), obs=y[:, 0])


def problem(case, key):
    """Arguments of a program, the outputs of its sites, and of each data site what :func:`exact` must know."""
    keys = iter(random.split(key, 20))
    normal = lambda *shape: random.normal(next(keys), shape)  # noqa: E731
    positive = lambda *shape: jnp.exp(normal(*shape))  # noqa: E731
    X, hyper = 2 * normal(N, 2), {"f": positive(2), "g": positive(2)}
    c, A, row, everything, all_rows = normal(N), normal(2, 2), normal(2), jnp.ones((N, 1)), slice(None)
    # Data less their constant, sources, weights [source, row, output], precisions, and the order of the rows.
    if case is rows:
        y, noise, observed = normal(N), positive(N) / 3, jnp.arange(N) != 2
        more, sites = {"c": c, "noise": noise, "observed": observed}, {"f": None}
        precision = jnp.where(observed, 1 / noise, 0)[:, None]
        data = [(y[:, None] - 0.3, [("f", 0)], c[None, :, None], precision, all_rows)]
    elif case is loadings:
        y, noise = normal(N, 2), positive(N, 2) / 3
        more, sites = {"c": c, "A": A, "row": row, "noise": noise}, {"f": 2}
        data = [(y - 0.3, [("f", 0), ("f", 1)], c[:, None] * (A * row)[:, None], 1 / noise, all_rows)]
    else:
        y, noise = normal(N, 2), positive(2) / 3
        more, sites = {"c": c, "A": A, "noise": noise}, {"f": 2, "g": 2}
        sources = [("f", 0), ("f", 1), ("g", 0), ("g", 1)]
        weights = jnp.concatenate([jnp.eye(2), -A / 2])[:, None] * everything
        data = [(y - 0.3, sources, weights, everything / noise, all_rows)]
        data += [(y[:, :1], sources, weights[:, :, :1] * c[:, None], everything / 0.3, slice(None, None, -1))]
    return (X, y, hyper, more), sites, data, next(keys)


def exact(args, sites, data, key):
    """Log evidence; what the tighter bound gains; and parameters: the best independent ``q(u)``, and others."""
    X, _, hyper, _ = args
    key, *keys = random.split(key, 4)
    Z = {site: 2 * random.normal(own, (M, 2)) for site, own in zip(sites, keys, strict=False)}
    K = {site: RBF(*hyper[site]) for site in sites}
    L = {site: jnp.linalg.cholesky(K[site](Z[site]) + JITTER * jnp.eye(M)) for site in sites}
    A = {site: jax.scipy.linalg.solve_triangular(L[site], K[site](Z[site], X), lower=True) for site in sites}
    d = {site: K[site].diag(X) - jnp.sum(A[site] ** 2, axis=0) for site in sites}
    sources, gain = data[0][1], 0.0
    #: Of each source the linear maps from u and from all values of it to all data.
    of_u, of_values = [[] for _ in sources], [[] for _ in sources]
    for _, _, weights, precision, order in data:
        for i, (site, _) in enumerate(sources):
            w = weights[i][:, :, None]
            of_u[i].append((w * A[site].T[order][:, None]).reshape(-1, M))
            of_values[i].append((w * jnp.eye(N)[order][:, None]).reshape(-1, N))
            beta_d = jnp.sum(weights[i] ** 2 * precision, axis=1) * d[site][order]
            gain += jnp.sum(beta_d - jnp.log1p(beta_d)) / 2
    of_u, of_values = (jnp.stack([jnp.concatenate(maps) for maps in x]) for x in (of_u, of_values))
    y, precision = (jnp.concatenate([jnp.ravel(site[i]) for site in data]) for i in (0, 3))
    prior = sum(F @ K[site](X) @ F.T for F, (site, _) in zip(of_values, sources, strict=True))
    # What is not observed has no precision.
    root = jnp.sqrt(precision)
    inner = jnp.eye(len(y)) + root[:, None] * prior * root
    constant = jnp.where(precision > 0, jnp.log(jnp.where(precision > 0, precision, 1) / (2 * jnp.pi)), 0)
    evidence = (jnp.sum(constant) - (y * root) @ jnp.linalg.solve(inner, y * root) - jnp.linalg.slogdet(inner)[1]) / 2
    # Means of independent posteriors are those of the joint one, their precisions its diagonal blocks.
    whole = jnp.concatenate(list(of_u), axis=1)
    gram = jnp.eye(whole.shape[1]) + whole.T @ (precision[:, None] * whole)
    mean = jnp.linalg.solve(gram, whole.T @ (precision * y)).reshape(len(sources), M)
    own = jnp.stack([jnp.eye(M) + F.T @ (precision[:, None] * F) for F in of_u])
    scale = jnp.linalg.cholesky(jnp.linalg.inv(own))
    best, other = {}, {}
    for site, columns in sites.items():
        which = np.array([i for i, (name, _) in enumerate(sources) if name == site])
        m, S = (mean[which].T, scale[which]) if columns else (mean[0], scale[0])
        key, one, two = random.split(key, 3)
        away = S @ (jnp.eye(M) + jnp.tril(random.normal(one, S.shape)) / 2)
        best |= {f"{site}_inducing": Z[site], f"{site}_mean": m, f"{site}_scale": S}
        other |= {f"{site}_inducing": Z[site], f"{site}_mean": m + random.normal(two, m.shape), f"{site}_scale": away}
    return evidence, gain, jax.tree.map(lambda *x: jnp.stack(x), best, other)


@cache
def prepared(case):
    """The guide, and a function of a key that holds both bounds of a problem against its evidence."""
    guide = InducingGuide(case, InducingPoints(jnp.zeros((M, 2))), coupled=False)
    args, *_ = problem(case, KEY)
    guide.setup(*args)

    def compared(key):
        args, *known = problem(case, key)
        evidence, gain, params = exact(args, *known)
        old, tight = (jax.vmap(lambda p, o=o: elbo(o, case, guide, p, *args))(params) for o in (OLD, TIGHT))
        return old, tight, evidence[None], gain[None]

    return guide, jax.jit(jax.vmap(compared))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [200, pytest.param(1000, marks=[pytest.mark.stress, pytest.mark.skipif(not STRESS, reason="GPZOO_STRESS")])],
)
@pytest.mark.parametrize("case", [rows, loadings, sums])
def test_between_the_old_bound_and_the_evidence(case, number):
    old, tight, evidence, gain = (np.asarray(x) for x in prepared(case)[1](random.split(random.key(3), number)))
    slack = 1e-8 * np.maximum(1, np.abs(evidence))
    assert old.shape == (number, 2)
    assert (tight >= old - slack).all() and (tight <= evidence + slack).all()
    np.testing.assert_allclose(tight - old, np.broadcast_to(gain, old.shape), rtol=1e-6, atol=1e-7)
    # At the best q(u), column 0, most of what the old bound lacks.
    assert np.median((evidence - tight)[:, 0] / (evidence - old)[:, 0]) < 0.7
    assert (tight[:, 0] > tight[:, 1]).all()


@cache
def example(case):
    """Arguments and parameters of one problem."""

    def made(key):
        args, *known = problem(case, key)
        return args, jax.tree.map(lambda x: x[1], exact(args, *known)[2])

    return jax.jit(made)(random.key(5))


@pytest.mark.slow
def test_gradients():
    guide, _ = prepared(sums)
    (X, y, hyper, more), params = example(sums)

    @jax.jit
    def value(params, hyper, more):
        return elbo(TIGHT, sums, guide, params, X, y, hyper, more)

    check_grads(value, (params, hyper, more), order=1, modes=["rev"], eps=1e-6, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_finite_in_single_precision_at_a_noise_far_below_the_residual():
    guide, _ = prepared(rows)
    (*args, more), params = example(rows)
    args = (*args, more | {"noise": jnp.full(N, 1e-9)})

    value = jax.jit(lambda params, args: elbo(TIGHT, rows, guide, params, *args))
    single = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, (params, args))
    found, gradient = jax.jit(jax.value_and_grad(value))(*single)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    np.testing.assert_allclose(found, value(params, args), rtol=1e-4)


# -- other likelihoods, against quadrature -----------------------------------------------------------------------------


LIKELIHOODS = {
    "logit": lambda f: Bernoulli(f, "logit", num_points=40),
    "poisson": lambda f: Expected(poisson, f, num_points=40),
    "polya-gamma": lambda f: PolyaGamma(f),
    "gaussian": lambda f: Gaussian(f, 0.2),
}


def labels(X, y, hyper, *, likelihood, num_data=None, observed=True):
    f = numpyro.sample("f", GaussianProcess(RBF(*hyper), X, jitter=JITTER))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)), numpyro.handlers.mask(mask=observed):
        numpyro.sample("y", LIKELIHOODS[likelihood](f), obs=y)


@pytest.mark.slow_but(likelihood=["gaussian"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_any_factor_is_below_the_evidence_and_the_best_is_above_the_old_bound(likelihood):
    """Two data, one inducing point; the evidence by quadrature over both values of ``f``."""
    y = jnp.array([1, 0])
    guide = InducingGuide(labels, InducingPoints(jnp.zeros((1, 1))), residual={"f"})
    guide.setup(jnp.ones((2, 1)), y, jnp.ones(2), model_kwargs={"likelihood": likelihood})
    nodes, weights = map(jnp.asarray, normal_quadrature(60))
    grid = jnp.stack(jnp.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    factors = jnp.concatenate([jnp.array([1.0]), jnp.exp(jnp.linspace(-2, 1, 13))])

    def compared(key):
        one, two, three = random.split(key, 3)
        X, hyper = random.normal(one, (2, 1)), jnp.exp(random.normal(two, (2,)) / 2)
        Z, m, s = random.normal(three, (3,))
        f = grid @ jnp.linalg.cholesky(RBF(*hyper)(X) + 1e-10 * jnp.eye(2)).T
        densities = LIKELIHOODS[likelihood](f.ravel()).log_prob(jnp.tile(y, len(f))).reshape(f.shape).sum(-1)
        evidence = jnp.log(jnp.sum(jnp.outer(weights, weights).ravel() * jnp.exp(densities)))
        params = {"f_inducing": Z[None, None], "f_mean": m[None], "f_scale": jnp.exp(s / 2)[None, None]}

        def bound(objective, v):
            return elbo(objective, labels, guide, params | {"f_residual": v}, X, y, hyper, likelihood=likelihood)

        old, tight = bound(OLD, jnp.array(0.5)), jax.vmap(partial(bound, TIGHT))(factors)
        return old, tight, evidence

    old, tight, evidence = (np.asarray(x) for x in jax.jit(jax.vmap(compared))(random.split(random.key(1), 200)))
    np.testing.assert_allclose(tight[:, 0], old, rtol=1e-10, atol=1e-10)
    assert (tight.max(1) <= evidence + 1e-8 * np.maximum(1, np.abs(evidence))).all()
    assert np.mean(tight.max(1) > old + 1e-3) > 0.2  # it gains where the residual is large


@pytest.mark.slow_but(residual=[()])
@pytest.mark.parametrize(("likelihood", "residual"), [("logit", {"f"}), ("gaussian", {"f"}), ("gaussian", ())])
def test_minibatches_and_masks_weigh_what_is_gained_like_the_data(likelihood, residual):
    X, _ = sine(6)
    y = jnp.array([0, 1, 1, 0, 1, 0])
    guide = InducingGuide(labels, InducingPoints(X[:2]), residual=residual)
    guide.setup(X, y, jnp.ones(2), model_kwargs={"likelihood": likelihood})
    params = {"f_inducing": X[:2] + 1, "f_mean": jnp.array([0.3, -0.5]), "f_scale": jnp.eye(2) / 2}
    params |= {"f_residual": jnp.array(0.7)} if residual else {}

    @jax.jit
    def values(X, y):
        of = partial(elbo, TIGHT, labels, guide, params, hyper=jnp.ones(2), likelihood=likelihood)
        halves = (of(X[:3], y[:3], num_data=6) + of(X[3:], y[3:], num_data=6)) / 2
        return of(X, y), halves, of(X[2:], y[2:]), of(X, y, observed=jnp.arange(6) > 1)

    whole, halves, some, masked = values(X, y)
    np.testing.assert_allclose(halves, whole, rtol=1e-12)
    np.testing.assert_allclose(masked, some, rtol=1e-12)


# -- in programs -------------------------------------------------------------------------------------------------------

A = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))
OPERATIONS = [
    lambda f, c: f + c[:, None],
    lambda f, c: -f * c[:, None] / 3.0,
    lambda f, c: f * (c[:, None] + jnp.arange(3.0)),
    lambda f, c: f * jnp.arange(1.0, 4.0),
    lambda f, c: f @ A * jnp.arange(1.0, 3.0),
    lambda f, c: (f @ A * c[:, None])[:, 1][2:],
    lambda f, c: (f @ A)[:, ::-1] @ A[:2, 0] * c,
    lambda f, c: (f @ A[:, 0])[jnp.array([3, 1])] * 2,
    lambda f, c: f[:, jnp.array([2, 0])] * c[:1, None],
    lambda f, c: f[..., 1] * c,
]
SUMS = [lambda f, g: f + g, lambda f, g: f @ A - (g @ A)[:, ::-1], lambda f, g: f @ A[:, 0] + g[:, 1]]


@pytest.fixture(scope="module")
def mapped():
    """All operations on marginals in their parts, by one program, and the whole variance by their own account."""
    variance, residual = np.random.default_rng(1).gamma(2.0, size=(2, N, 3))
    parts = VarianceParts(jnp.asarray(variance), jnp.asarray(residual), jnp.arange(3.0))
    f = GaussianMarginals(parts.inducing, parts.inducing + parts.residual, sites=frozenset("f"), parts=(parts,))
    g = GaussianMarginals(f.mean, f.source_variance, sites=frozenset("g"), parts=f.parts)

    @jax.jit
    def of(f, g, c):
        return [operation(f, c) for operation in OPERATIONS] + [operation(f, g) for operation in SUMS]

    return of(f, g, jnp.linspace(-1, 2, N))


@pytest.mark.parametrize("number", range(len(OPERATIONS) + len(SUMS)))
def test_parts_follow_every_exact_operation(mapped, number):
    f = mapped[number]
    of_part = lambda p: p.inducing + p.residual if p.loading is None else (p.inducing + p.residual) @ p.loading**2  # noqa: E731
    assert len(f.parts) == (1 if number < len(OPERATIONS) else 2)
    np.testing.assert_allclose(sum(map(of_part, f.parts)).reshape(f.shape), f.variance, rtol=1e-12)
    assert all(p.inducing.shape[1] == len(p.divergence) for p in f.parts)


@pytest.mark.slow
def test_last_layer_of_a_deep_gp():
    X, y = sine(10)
    guide = InducingGuide(deep, InducingPoints(X[::4]))
    params = randomised(trained(deep, guide, X, y))

    @jax.jit
    def by_site(params):
        return [objective.by_site().loss(KEY, params, deep, guide, X, y) for objective in (OLD, TIGHT)]

    old, tight = by_site(params)
    assert old.keys() == tight.keys() == {"h", "f", "y"}
    assert tight["y"] < old["y"] - 0.1 and tight["f"] == old["f"] and tight["h"] == old["h"]


def classes(X, y=None, *, num_data=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=2))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Bernoulli(f, "logit"), obs=y)


@pytest.mark.slow
def test_factors_are_trained_kept_and_left_out_of_predictions(tmp_path):
    X, y = sine(20)
    y = jnp.stack([y > 0, X[:, 0] > 0], 1)
    guide = InducingGuide(classes, InducingPoints(X[::7]), residual="f")
    svi = SVI(classes, guide, adam(0.1), TIGHT)
    found = fit(KEY, svi, 4, X, y, batch_size=10, progress=False)
    v = found.params["f_residual"]
    assert v.shape == (2,) and (v < 1).all() and (v > 0).all()
    assert found.expectations == {"y": "quadrature"}
    other = found.with_params(found.params | {"f_residual": jnp.array([3.0, 0.1])})
    found.save(tmp_path / "kept")
    kept = load(tmp_path / "kept", classes)
    assert kept.guide.residual == {"f"}
    for site, prediction in found.predict(KEY, X).items():
        for again in (other.predict(KEY, X), kept.predict(KEY, X)):
            np.testing.assert_array_equal(again[site].mean, prediction.mean)
            np.testing.assert_array_equal(again[site].variance, prediction.variance)
    with pytest.raises(ValueError, match="f_residual"):
        found.with_params(found.params | {"f_residual": jnp.array([3.0, -0.1])}).predict(KEY, X)
    state = svi.init(KEY, X, y, init_params=guide.init_params(KEY, X, y))
    np.testing.assert_allclose(svi.get_params(state)["f_residual"], 1)
    assert (svi.get_params(jax.jit(svi.update)(state, X, y)[0])["f_residual"] < 1).all()


def program_of(likelihood, kernel=RBF(1.0, 1.0)):  # noqa: B008
    def program(X, y):
        f = numpyro.sample("f", GaussianProcess(kernel, X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", likelihood(f), obs=y)

    return program


VIEWS = Subsampled(Orbit(np.array([[0, 1], [1, 0]])), 2)
REFUSED = {
    "estimates": (program_of(lambda f: Gaussian(f, 0.1), Invariant(RBF(1.0, 1.0), VIEWS)), "samples views", TypeError),
    "grid": (program_of(lambda f: Gaussian(f, 0.1)), "interpolated from a grid", ValueError),
    "draws": (
        program_of(lambda f: Gaussian(jnp.exp(gpzoo.draws(f)), 0.1)),
        r"given an array, and the program draws \['f'\]",
        ValueError,
    ),
    "draws in NumPyro's": (
        program_of(lambda f: dist.Normal(gpzoo.draws(f), 0.1)),
        r"given an array, and the program",
        ValueError,
    ),
    "no factor": (program_of(lambda f: Expected(poisson, f)), r"residual=\['f'\]", ValueError),
}


@pytest.mark.slow_but(case=["grid", "draws"])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    program, said, kind = REFUSED[case]
    X, y = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2))), jnp.ones(5)
    inducing = {"estimates": InducingPatches(X[:3]), "grid": InducingGrid(5, (-3.0, 3.0))}.get(
        case, InducingPoints(X[:3])
    )
    X = X[:, :1] if case == "grid" else X
    guide = InducingGuide(program, inducing)
    params = jax.eval_shape(lambda: guide.init_params(KEY, X, y))
    jax.eval_shape(lambda params: OLD.loss(KEY, params, program, guide, X, y), params)
    with pytest.raises(kind, match=said):
        jax.eval_shape(lambda params: TIGHT.loss(KEY, params, program, guide, X, y), params)


def test_a_factor_of_draws_is_refused():
    X, y = sine(5)
    program = REFUSED["draws"][0]
    with pytest.raises(ValueError, match=r"residual=...\) names \['f'\], which are drawn"):
        InducingGuide(program, InducingPoints(X), residual={"f"}).setup(X, y)
    with pytest.raises(ValueError, match=r"residual=...\) names \['g'\]"):
        InducingGuide(program, InducingPoints(X), residual={"g"}).setup(X, y)


def two_layers(X, y):
    h = numpyro.sample("h", GaussianProcess(RBF(0.02, 1.0), X, mean=X, num_outputs=1))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.8), h))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.05), obs=y)


@pytest.mark.stress
@pytest.mark.skipif(not STRESS, reason="2 million draws; make stress runs it")
def test_two_layers_are_below_the_evidence():
    """The evidence by draws of the inner layer from its prior, given which that of ``y`` is exact."""
    X = jnp.linspace(-1.5, 1.5, 8)[:, None]
    y = jnp.sin(3 * X[:, 0])
    root = jnp.linalg.cholesky(RBF(0.02, 1.0)(X) + JITTER * jnp.eye(8))

    def density(key):
        h = X + root @ random.normal(key, (8, 1))
        return dist.MultivariateNormal(jnp.zeros(8), RBF(1.0, 0.8)(h) + 0.05 * jnp.eye(8)).log_prob(y)

    densities = np.asarray(
        jax.jit(lambda keys: lax.map(density, keys, batch_size=10_000))(random.split(KEY, 2_000_000))
    )
    top = densities.max()
    weights = np.exp(densities - top)
    error = standard_error(weights)
    low, high = (top + np.log(weights.mean() + sign * 2.576 * error) for sign in (-1, 1))
    # Converged: many draws count, halves agree, and the interval is far smaller than what is measured by it.
    assert weights.sum() ** 2 / (weights**2).sum() > 10_000 and high - low < 0.03
    halves = top + np.log(weights.reshape(2, -1).mean(1))
    assert abs(halves[0] - halves[1]) < 0.05

    guide = InducingGuide(two_layers, {"h": InducingPoints(X), "f": InducingPoints(X[::2])})
    found = {}
    for name, objective in ("old", OLD), ("tight", TIGHT):
        svi = SVI(two_layers, guide, adam(0.01), objective)
        params = fit(KEY, svi, 4000, X, y, progress=False).params
        draws = jax.jit(
            lambda keys, p, o=objective: jax.vmap(lambda key: -o.loss(key, p, two_layers, guide, X, y))(keys)
        )
        values = np.asarray(draws(random.split(KEY, 20_000), params))
        found[name] = values.mean()
        assert standard_error(values) < 0.02
    assert found["old"] + 0.1 < found["tight"] < high
    assert found["tight"] > low - 3
