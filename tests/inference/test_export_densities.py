"""The densities of an export against NumPy: of data, of the prior, of the posterior, for every kind of draw."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import MCMC, NUTS
from numpyro.infer.autoguide import AutoMultivariateNormal
from scipy.stats import lognorm, multivariate_normal, norm

from gpzoo import GaussianProcess, InducingBlocks, InducingGrid, InducingPoints, InducingPosterior
from gpzoo.inference import InducingGuide, Trained, draws_to_arviz, whitened
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.posteriors import forms
from gpzoo.posteriors.conditional import conditional_of
from tests.programs import KEY, bayesian_regression, randomised, sine

X, y = sine(9)
Z = np.linspace(-2.5, 2.5, 4)[:, None]
JITTER = 1e-9
#: Relative and absolute, of every density.
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def rbf(A, B, lengthscale=1.0, variance=1.0):
    """The kernel ``[N, M]`` in NumPy."""
    return variance * np.exp(-((np.asarray(A) - np.asarray(B).T) ** 2) / (2 * lengthscale**2))


def gram(Z, *parameters):
    """Its covariance, with the jitter that is documented."""
    K = rbf(Z, Z, *parameters)
    return K + JITTER * np.mean(np.diag(K)) * np.eye(len(K))


def normal(x, mean, covariance):
    return multivariate_normal(np.asarray(mean), np.asarray(covariance)).logpdf(np.asarray(x))


def draws_of(data, group, *names):
    """Arrays of a group with one axis of draws."""
    found = [np.asarray(data[group][name]) for name in names]
    return [x.reshape(-1, *x.shape[2:]) for x in found]


def prepared(program, *args, inducing=None, seed=1, **options):
    guide = InducingGuide(program, inducing or InducingPoints(Z), **options)
    params = guide.init_params(KEY, *args)
    q = {name: x for name, x in params.items() if name.startswith("f_")}
    return guide, params | randomised(q, seed)


def check_data(data, log_likelihood):
    np.testing.assert_allclose(draws_of(data, "log_likelihood", "y")[0], log_likelihood, **CLOSE)


def check_priors(data, priors, process):
    """Tools that scale the prior, such as ``az.psense_summary``, weight draws by ``sum(log_prior)`` to a power."""
    theta = {name: values for name, values in priors.items() if name != process}
    assert set(data["log_prior"].data_vars) == set(theta)
    for name, found in zip(theta, draws_of(data, "log_prior", *theta), strict=True):
        np.testing.assert_allclose(found, theta[name], **CLOSE)
    np.testing.assert_allclose(draws_of(data, "sample_stats", f"log_p_{process}")[0], priors[process], **CLOSE)
    az = pytest.importorskip("arviz")
    if hasattr(az, "psense_summary"):  # ArviZ 1
        assert set(az.psense_summary(data, var_names=list(theta)).index) == set(theta)


# -- hyperparameters ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("hyperparameters", ["point", "normal", AutoMultivariateNormal])
def test_regression_with_priors_is_what_numpy_makes_of_it(hyperparameters):
    guide, params = prepared(bayesian_regression, X, y, hyperparameters=hyperparameters)
    joint = hyperparameters is AutoMultivariateNormal
    C = jnp.array([[0.3, 0.0], [0.2, 0.1]])
    of_joint = {"auto_loc": jnp.array([0.8, 0.3]), "auto_scale_tril": C}
    params |= of_joint if joint else {"lengthscale_loc": jnp.array(0.8), "noise_loc": jnp.array(0.3)}
    data = Trained(bayesian_regression, guide, params).to_arviz(KEY, X, y, num_draws=20)
    f, u, scale, noise = draws_of(data, "posterior", "f", "f_u", "lengthscale", "noise")
    likelihood = norm(f, np.sqrt(noise)[:, None]).logpdf(y)
    check_data(data, likelihood)
    priors = {"lengthscale": lognorm(1.0).logpdf(scale), "noise": lognorm(1.0, scale=np.exp(-2.0)).logpdf(noise)}
    priors["f_u"] = np.array([normal(v, np.zeros(4), gram(Z, s)) for v, s in zip(u, scale, strict=True)])
    check_priors(data, priors, "f_u")
    S = params["f_scale"] @ params["f_scale"].T
    L = [np.linalg.cholesky(gram(Z, s)) for s in scale]
    q = np.array([normal(v, R @ params["f_mean"], R @ S @ R.T) for v, R in zip(u, L, strict=True)])
    if hyperparameters == "normal":  # of points there is no density
        for name, values in (("lengthscale", scale), ("noise", noise)):
            loc, width = params[f"{name}_loc"], params[f"{name}_scale"]
            q = q + norm(loc, width).logpdf(np.log(values)) - np.log(values)
    elif joint:
        logs = np.log(np.stack([scale, noise], axis=1))
        q = q + multivariate_normal([0.8, 0.3], C @ C.T).logpdf(logs) - logs.sum(1)
    log_p, log_q = draws_of(data, "sample_stats", "log_p", "log_q")
    np.testing.assert_allclose(log_p, likelihood.sum(1) + sum(priors.values()), **CLOSE)
    np.testing.assert_allclose(log_q, q, **CLOSE)
    assert (np.ptp(scale) > 0) == (hyperparameters != "point")


@pytest.fixture(scope="module")
def chains():
    """Draws of NUTS, of the program as it stands and of the sparse one."""
    found = {}
    for name, program in (("centred", bayesian_regression), ("sparse", SPARSE)):
        mcmc = MCMC(NUTS(program, max_tree_depth=4), num_warmup=20, num_samples=20, progress_bar=False)
        with jax.numpy_dtype_promotion("standard"):
            mcmc.run(KEY, X, y)
        found[name] = mcmc.get_samples(group_by_chain=True)
    return found


SPARSE = whitened(bayesian_regression, InducingPoints(Z))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["centred", "sparse"])
def test_draws_of_nuts_are_what_numpy_makes_of_them(kind, chains):
    program, samples = (SPARSE if kind == "sparse" else bayesian_regression), chains[kind]
    data = draws_to_arviz(KEY, program, X, y, posterior_samples=samples)
    f, scale, noise = draws_of(data, "posterior", "f", "lengthscale", "noise")
    likelihood = norm(f, np.sqrt(noise)[:, None]).logpdf(y)
    check_data(data, likelihood)
    at, name = (Z, "f_u") if kind == "sparse" else (X, "f")
    (values,) = draws_of(data, "posterior", name)
    np.testing.assert_allclose(values, np.asarray(samples[name])[0])
    priors = {"lengthscale": lognorm(1.0).logpdf(scale), "noise": lognorm(1.0, scale=np.exp(-2.0)).logpdf(noise)}
    priors[name] = np.array([normal(v, np.zeros(len(at)), gram(at, s)) for v, s in zip(values, scale, strict=True)])
    check_priors(data, priors, name)
    assert set(data["sample_stats"].data_vars) == {"log_p", f"log_p_{name}"}
    (log_p,) = draws_of(data, "sample_stats", "log_p")
    np.testing.assert_allclose(log_p, likelihood.sum(1) + sum(priors.values()), **CLOSE)


# -- forms of q(u) -----------------------------------------------------------------------------------------------------


def outputs(X, y=None, *, kernel):
    """Two functions, under trained parameters."""
    variance = numpyro.param("variance", jnp.array(1.0))
    f = numpyro.sample("f", GaussianProcess(kernel(variance), X, num_outputs=2))
    with numpyro.plate("data", 50, subsample_size=len(X)):  # densities do not count rows that are not there
        numpyro.sample("y", Gaussian(f, 0.2), obs=y)


TWO = np.stack([y, -2 * np.asarray(y)], axis=1)
ONE = lambda variance: RBF(variance, 0.7)  # noqa: E731
EACH = lambda variance: RBF(variance * jnp.array([1.0, 2.0]), jnp.array([0.7, 1.2]))  # noqa: E731
NODES = np.linspace(-3.0, 3.0, 6)[:, None]
#: Kernels, inducing variables, options of the guide, and covariances of ``u`` by output.
CASES = {
    "full": (ONE, InducingPoints(Z), {}, lambda v: [gram(Z, 0.7, v)] * 2),
    "not whitened": (ONE, InducingPoints(Z), {"whiten": False}, lambda v: [gram(Z, 0.7, v)] * 2),
    "each": (EACH, InducingPoints(Z), {}, lambda v: [gram(Z, 0.7, v), gram(Z, 1.2, 2 * v)]),
    "diagonal": (EACH, InducingPoints(Z), {"covariance": "diagonal"}, lambda v: [gram(Z, 0.7, v), gram(Z, 1.2, 2 * v)]),
}


@pytest.mark.slow
@pytest.mark.slow_but(name=["full"])
@pytest.mark.parametrize("name", CASES)
def test_every_form_is_what_numpy_makes_of_it(name):
    kernel, inducing, options, covariances = CASES[name]
    program = partial(outputs, kernel=kernel)
    guide, params = prepared(program, X, TWO, inducing=inducing, **options)
    params |= {"variance": jnp.array(1.7)}
    trained = Trained(program, guide, params)
    data = trained.to_arviz(KEY, X, TWO, num_draws=5)
    f, u = draws_of(data, "posterior", "f", "f_u")
    likelihood = norm(f, np.sqrt(0.2)).logpdf(TWO).sum(-1)
    check_data(data, likelihood)
    mean, covariance = trained.posterior(KEY, X, TWO)["f"].inducing_moments()
    mean, covariance = np.asarray(mean), np.asarray(covariance)
    prior, q = np.zeros(5), np.zeros(5)
    for d, K in enumerate(covariances(1.7)):
        prior += [normal(v, np.zeros(len(v)), K) for v in u[:, :, d]]
        q += [normal(v, mean[:, d], covariance[d]) for v in u[:, :, d]]
    log_p, log_q = draws_of(data, "sample_stats", "log_p", "log_q")
    np.testing.assert_allclose(draws_of(data, "sample_stats", "log_p_f_u")[0], prior, **CLOSE)
    np.testing.assert_allclose(log_q, q, **CLOSE)
    np.testing.assert_allclose(log_p, likelihood.sum(1) + prior, **CLOSE)


# -- posteriors whose covariances have structure -----------------------------------------------------------------------

RNG = np.random.default_rng(0)


def lower(*shape):
    return jnp.asarray(np.tril(RNG.standard_normal(shape)) + 2 * np.eye(shape[-1]))


def positive(*shape):
    return jnp.asarray(RNG.uniform(0.5, 1.5, shape))


POINTS, LINE, PLANE = InducingPoints(Z), InducingGrid(5, (-3.0, 3.0)), InducingGrid((4, 5), (-1.0, 1.0))
BLOCKS = InducingBlocks(POINTS, POINTS)
AT = {POINTS: X[:3], BLOCKS: X[:3], LINE: X[:3], PLANE: X[:3] * jnp.array([0.1, 0.3])}
#: Inducing variables, number of outputs, and the form.
STRUCTURED = {
    "one": (POINTS, None, lambda: forms.Full(lower(4, 4))),
    "blocks": (BLOCKS, 2, lambda: forms.BlockDiagonal((lower(2, 4, 4), lower(2, 4, 4)))),
    "full over blocks": (BLOCKS, 2, lambda: forms.Full(lower(2, 8, 8))),
    "line": (LINE, 2, lambda: forms.Full(lower(2, 5, 5))),
    "line, diagonal": (LINE, 2, lambda: forms.Diagonal(positive(5, 2))),
    "line, low rank": (LINE, None, lambda: forms.LowRank(positive(5), jnp.asarray(RNG.standard_normal((5, 2))))),
    "plane": (PLANE, 2, lambda: forms.Kronecker((lower(2, 4, 4), lower(2, 5, 5)))),
}


@pytest.mark.slow_but(whiten=[True], name=["plane", "blocks", "line, low rank"])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("name", STRUCTURED)
def test_densities_of_structured_covariances_are_those_of_dense_ones(name, whiten):
    inducing, outputs, form = STRUCTURED[name]
    prior = GaussianProcess(
        RBF(1.3, 0.8) + RBF(0.5, 2.0) if inducing is BLOCKS else RBF(1.3, 0.8), AT[inducing], num_outputs=outputs
    )

    @jax.jit
    def found(mean, form):
        at = conditional_of(prior, inducing, form, whiten=whiten, site="f")
        q = InducingPosterior(at, mean, form)
        draw = q.draw_inducing(KEY)
        given = q.given(draw)
        dense = jax.tree.map(
            lambda x: x.dense() if hasattr(x, "dense") else x,
            (q.inducing_moments(), at.L),
            is_leaf=lambda x: hasattr(x, "dense"),
        )
        return given.log_prior_of_inducing(), q.log_density_of(draw), given.inducing_moments()[0], *dense

    M = {POINTS: 4, BLOCKS: 8, LINE: LINE.num_inducing, PLANE: PLANE.num_inducing}[inducing]
    mean = jnp.asarray(RNG.standard_normal((M,) if outputs is None else (M, outputs)))
    log_p, log_q, u, (mean, covariance), L = found(mean, form())
    K = gram(LINE.points(), 0.8, 1.3) if L is None else np.asarray(L) @ np.asarray(L).T
    u, mean, covariance = np.reshape(u, (M, -1)), np.reshape(mean, (M, -1)), np.reshape(covariance, (-1, M, M))
    columns = range(u.shape[1])
    np.testing.assert_allclose(log_p, sum(normal(u[:, d], np.zeros(M), K) for d in columns), **CLOSE)
    np.testing.assert_allclose(log_q, sum(normal(u[:, d], mean[:, d], covariance[d]) for d in columns), **CLOSE)
