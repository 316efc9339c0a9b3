"""GP sites under NUTS as white noise: densities, exact regression, prediction, priors for the zoo, refusals."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.util import log_density

import gpzoo
from gpzoo import GaussianProcess, InducingGrid, InducingPoints, Orbit, blocks, kmeans, likelihoods, unique_patches
from gpzoo.inference import WhitenReparam, draws_to_arviz, predict, whitened
from gpzoo.kernels import RBF, White
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.models import (
    colour_patch_gp,
    convolutional_gp,
    convolutional_plus_rbf_gp,
    deep_gp,
    deep_kernel_gp,
    gp_classification,
    gp_regression,
    invariant_classifier,
    invariant_convolutional_gp,
    invariant_deep_gp,
    invariant_gp,
    linear_layers,
    multi_channel_gp,
    rotation,
)
from tests.programs import KEY, poisson, program_of, regression, sine
from tests.reference import conditional, pairs, rbf

X, y = sine(8)
NEW = np.linspace(-2.5, 2.5, 5)[:, None]
PRIORS = {name: dist.LogNormal(0.0, 0.5) for name in ("variance", "lengthscale", "noise")}
RNG = np.random.default_rng(0)


# -- densities ---------------------------------------------------------------------------------------------------------


def several(X, y=None):
    """A mean, one kernel for two outputs, a kernel for each, and a GP on them all."""
    parts = [
        numpyro.sample("one", GaussianProcess(RBF(1.3, 0.8), X, mean=jnp.sin(X[:, 0])))[:, None],
        numpyro.sample("two", GaussianProcess(RBF(0.7, 1.1), X, num_outputs=2, jitter=1e-4)),
        numpyro.sample("each", GaussianProcess(RBF(jnp.array([0.5, 2.0]), jnp.array([[1.0], [0.6]])), X)),
    ]
    h = jnp.concatenate(parts, axis=1)
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 2.0) + White(0.1), h))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)


def test_whitening_changes_variables_and_nothing_else():
    shapes = {"one": (8,), "two": (8, 2), "each": (8, 2), "f": (8,)}
    base = {f"{name}_base": RNG.standard_normal(shape) for name, shape in shapes.items()}

    @jax.jit
    def both(base):
        white, trace = log_density(whitened(several), (X, y), {}, base)
        values = {name: trace[name]["value"] for name in shapes}
        assert {trace[name]["type"] for name in shapes} == {"deterministic"}
        centred, trace = log_density(several, (X, y), {}, values)
        covariances = {name: trace[name]["fn"].moments()[1] for name in shapes}
        return white, centred, covariances

    white, centred, covariances = jax.tree.map(np.asarray, both(base))
    log_det = 0.0
    for name, K in covariances.items():
        diagonal = np.diagonal(K, axis1=-2, axis2=-1).mean(-1)[..., None, None]
        jitter = {"two": 1e-4, "f": 0.0}.get(name, 1e-9 * diagonal)  # f has noise of its own
        copies = 2 if name == "two" else 1
        log_det += copies * np.linalg.slogdet(K + jitter * np.eye(8))[1].sum() / 2
    np.testing.assert_allclose(white, centred + log_det, rtol=0, atol=1e-10)


def test_a_sparse_density_is_that_of_the_paper():
    """``E_p(f|u) log p(y | f) + log p(u)`` (Hensman et al. 2015), term by term in NumPy."""
    Z, v = X[::3], RNG.standard_normal(3)
    values = {"f_base": v, "variance": 1.4, "lengthscale": 0.9, "noise": 0.2}
    program = whitened(handlers.lift(regression, prior=PRIORS), InducingPoints(Z))

    @jax.jit
    def density(values):
        found, trace = log_density(program, (X, y), {}, values)
        assert "f" not in trace  # marginals are no numbers, which MCMC would record
        return found, trace["f_u"]["value"]

    found, u = density(values)
    L = np.linalg.cholesky(rbf(*pairs(Z, Z), 1.4, 0.9) + 1.4e-9 * np.eye(3))
    A = np.linalg.solve(L, rbf(*pairs(Z, X), 1.4, 0.9))
    variance = 1.4 - np.square(A).sum(0)
    terms = -0.5 * (np.log(2 * np.pi * 0.2) + (np.square(y - A.T @ v) + variance) / 0.2)
    expected = terms.sum() - 0.5 * np.sum(v**2 + np.log(2 * np.pi))
    expected += sum(float(PRIORS[name].log_prob(values[name])) for name in PRIORS)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(u, L @ v, rtol=1e-10)


@pytest.mark.slow
def test_no_factor_is_no_density():
    """Minus infinity, which is a divergence for NUTS, in float32 too; a NaN nowhere."""
    twice = jnp.asarray(np.repeat(X, 2, axis=0), jnp.float32)
    targets = jnp.asarray(np.repeat(y, 2), jnp.float32)

    def program(X, y, lengthscale, inducing=None):
        f = numpyro.sample("f", GaussianProcess(RBF(jnp.float32(1), lengthscale), X, jitter=0.0))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, jnp.float32(0.1)), obs=y)

    @jax.jit
    def both(lengthscale):
        def density(lengthscale, inducing):
            base = {"f_base": jnp.ones(16, jnp.float32)}
            return log_density(whitened(program, inducing), (twice, targets, lengthscale), {}, base)[0]

        return [jax.value_and_grad(density)(lengthscale, of) for of in (None, InducingPoints(twice))]

    for lengthscale in (1.0, 0.0, np.nan):
        for density, gradient in both(jnp.float32(lengthscale)):
            assert density == -np.inf and density.dtype == jnp.float32
            assert np.isfinite(gradient) or lengthscale != 1.0
    # Outside jit, where NumPyro looks for a start, a draw of the prior is one all the same.
    with handlers.seed(rng_seed=0):
        f = np.asarray(WhitenReparam()("f", GaussianProcess(RBF(1.0, 1.0), twice, jitter=0.0), None)[1])
    np.testing.assert_allclose(f[::2], f[1::2], atol=1e-2)
    assert np.isfinite(f).all() and np.ptp(f) > 0.1


# -- exact regression --------------------------------------------------------------------------------------------------


def two_of_a_kind(X, y=None):
    """The same regression twice, of which one half may be exact and the other sparse."""
    for name in ("f", "g"):
        site = numpyro.sample(name, GaussianProcess(RBF(1.0, 0.8), X, mean=0.3 * X[:, 0], jitter=1e-8))
        with numpyro.plate(f"data_{name}", len(X)):
            numpyro.sample(f"y_{name}", Gaussian(site, 0.1), obs=y)


HALF_SPARSE = whitened(two_of_a_kind, {"g": InducingPoints(X)})


@pytest.fixture(scope="module")
def draws():
    @jax.jit
    def run(key):
        mcmc = MCMC(NUTS(HALF_SPARSE, max_tree_depth=4), num_warmup=200, num_samples=2000, progress_bar=False)
        mcmc.run(key, X, y)
        return mcmc.get_samples()

    with jax.numpy_dtype_promotion("standard"):
        return jax.tree.map(np.asarray, run(KEY))


def posterior(at, noise=0.1):
    """Mean and covariance of exact regression."""
    K, cross, prior = (rbf(*pairs(a, b), 1.0, 0.8) for a, b in ((X, X), (X, at), (at, at)))
    mean, covariance = conditional(K + noise * np.eye(len(X)), cross, prior, np.asarray(y - 0.3 * X[:, 0]))
    return 0.3 * at[:, 0] + mean, covariance


def close(found, exact):
    """Within four Monte Carlo standard errors of it; ``found`` ``[S, ...]``."""
    error = found.std(0) / np.sqrt(effective_sample_size(found[None]))
    assert (np.abs(found.mean(0) - exact) < 4 * error + 1e-6).all()
    assert (error < 0.1).all()


@pytest.mark.slow
def test_nuts_agrees_with_exact_regression(draws):
    assert set(draws) == {"f", "f_base", "g_u", "g_base"}
    mean, covariance = posterior(np.asarray(X))
    for values in (draws["f"], draws["g_u"] + 0.3 * np.asarray(X)[:, 0]):
        close(values, mean)
        close(np.square(values - mean), np.diagonal(covariance))


@pytest.mark.slow
def test_predictions_agree_with_exact_regression(draws):
    found = predict(KEY, HALF_SPARSE, NEW, posterior_samples=draws, train_args=(X, y), keep_draws=True)
    mean, covariance = posterior(NEW)
    K, cross = rbf(*pairs(X, X), 1.0, 0.8), rbf(*pairs(X, NEW), 1.0, 0.8)
    W = np.linalg.solve(K + 1e-8 * np.eye(len(X)), cross).T
    left = 1 - np.sum(W.T * cross, axis=0)
    for site, u in (("f", draws["f"] - 0.3 * np.asarray(X)[:, 0]), ("g", draws["g_u"])):
        # The mixture over these draws, in the textbook's words; and the posterior, up to their number.
        each = 0.3 * NEW[:, 0] + u @ W.T
        np.testing.assert_allclose(found[site].mean, each.mean(0), atol=1e-6)
        np.testing.assert_allclose(found[site].variance, each.var(0) + left, atol=1e-5)
        np.testing.assert_allclose(found[f"y_{site}"].variance, found[site].variance + 0.1, rtol=1e-10)
        close(each, mean)
        close(np.square(each - mean) + left, np.diagonal(covariance))
    # The program as it stands takes the draws of the exact site as well.
    plain = handlers.block(two_of_a_kind, hide=["g", "y_g"])
    again = predict(KEY, handlers.substitute(plain, {"g": np.zeros(8)}), X, posterior_samples=draws, train_args=(X, y))
    np.testing.assert_allclose(again["f"].mean, draws["f"].mean(0), atol=1e-4)


@pytest.mark.slow
def test_numpyros_predictive_takes_its_draws(draws):
    few = {name: value[:3] for name, value in draws.items()}
    found = Predictive(HALF_SPARSE, few)(KEY, X)
    np.testing.assert_allclose(found["f"], few["f"], atol=1e-8)
    assert found["y_f"].shape == found["y_g"].shape == (3, 8) and "g" not in found
    with pytest.raises(ValueError, match=r"f_base has shape \(8,\), but the site has shape \(5,\) here.*predict\("):
        Predictive(HALF_SPARSE, few)(KEY, NEW)


@pytest.mark.slow
def test_names_follow_the_trace():
    few = {"a/f_base": np.zeros((1, 8)), "a/f": np.zeros((1, 8)), "a/g_u": np.ones((1, 8))}
    inner, outer = handlers.scope(two_of_a_kind, prefix="a"), handlers.scope(HALF_SPARSE, prefix="a")
    for program in (outer, whitened(inner, {"a/g": InducingPoints(X)})):
        found = set(shapes(program, X, y))
        assert found >= {"a/f", "a/f_base", "a/g_base", "a/g_u", "a/y_g"} and "a/g" not in found
        predicted = predict(KEY, program, X, posterior_samples=few, train_args=(X, y))
        np.testing.assert_allclose(predicted["a/g"].mean, 1 + 0.3 * np.asarray(X)[:, 0], atol=1e-4)


# -- the zoo -----------------------------------------------------------------------------------------------------------

# Arrays of JAX, which initialisers can look at inside jit as well.
INPUTS, NUMBERS = jnp.asarray(RNG.standard_normal((6, 2))), jnp.asarray(RNG.standard_normal(6))
IMAGES, COLOUR = (jnp.asarray(RNG.uniform(size=(6, 4, 4, channels))) for channels in (1, 2))
LABELS = np.arange(6) % 3
patches = {"patch_shape": (3, 3)}


def mirrored(X):
    return Orbit.of_images(X.shape[1:], flips=True)


def features(X, training):
    return jnp.tanh(X @ numpyro.param("network", jnp.eye(2)))


# name -> program, inputs, data, inducing variables of the sparse form
ZOO = {
    "regression": (gp_regression, INPUTS, NUMBERS, kmeans(3)),
    "classes": (partial(gp_classification, num_classes=3), INPUTS, LABELS, kmeans(3)),
    "convolution": (partial(convolutional_gp, **patches), IMAGES, LABELS % 2, unique_patches(3)),
    "convolution plus rbf": (
        partial(convolutional_plus_rbf_gp, **patches),
        IMAGES,
        LABELS % 2,
        blocks(unique_patches(3), kmeans(3)),
    ),
    "colours": (partial(colour_patch_gp, additive=True, **patches), COLOUR, LABELS % 2, unique_patches(3)),
    "channels": (partial(multi_channel_gp, num_classes=3, **patches), COLOUR, LABELS, blocks(unique_patches(3))),
    "deep": (partial(deep_gp, layers=linear_layers(INPUTS, [2])), INPUTS, NUMBERS, {"f": InducingPoints(INPUTS[:3])}),
    "invariant": (partial(invariant_gp, view=mirrored), IMAGES, NUMBERS, unique_patches(3)),
    "invariant classes": (
        partial(invariant_classifier, view=mirrored, num_classes=3),
        IMAGES,
        LABELS,
        unique_patches(3),
    ),
    "invariant convolution": (
        partial(invariant_convolutional_gp, view=mirrored, **patches),
        IMAGES,
        NUMBERS,
        unique_patches(3),
    ),
    "deep on invariant features": (
        partial(invariant_deep_gp, view=mirrored, width=2),
        IMAGES,
        NUMBERS,
        {"f": InducingPoints(INPUTS[:3])},
    ),
    "deep kernel": (
        partial(deep_kernel_gp, network=features, num_outputs=3),
        INPUTS,
        LABELS,
        InducingPoints(INPUTS[:3].T[:, :, None]),
    ),
}


def priors(program, *args):
    """A prior for every parameter of a program, by its constraint."""
    found = {}
    run = handlers.trace(handlers.seed(program, 0))
    jax.eval_shape(lambda: found.update(run.get_trace(*args)))

    def prior(site):
        positive = site["kwargs"].get("constraint") in (constraints.positive, constraints.softplus_positive)
        shape = jnp.shape(site["value"])
        return (dist.LogNormal if positive else dist.Normal)(jnp.zeros(shape), 0.3 * jnp.ones(shape)).to_event()

    return {name: prior(site) for name, site in found.items() if site["type"] == "param"}


#: Whose densities are computed; the others are run without numbers.
COMPUTED = {"regression", "convolution plus rbf", "channels", "deep", "invariant classes", "deep kernel"}


@pytest.mark.slow_but(name=["classes", "invariant"])
@pytest.mark.parametrize("name", ZOO)
def test_params_become_priors_in_every_program_of_the_zoo(name):
    program, inputs, data, inducing = ZOO[name]
    prior = priors(program, inputs, data)
    lifted = handlers.lift(program, prior=prior)
    forms = {"exact": whitened(lifted), "sparse": whitened(lifted, inducing)}
    latent = {}

    def terms(form, key):
        trace = handlers.trace(handlers.seed(forms[form], key)).get_trace(inputs, data)
        assert not any(site["type"] == "param" for site in trace.values())
        found = {n: site for n, site in trace.items() if site["type"] == "sample"}
        latent[form] = {n for n, site in found.items() if not site["is_observed"]}
        return {n: site["fn"].log_prob(site["value"]) for n, site in found.items()}

    with jax.numpy_dtype_promotion("standard"):
        centred = {n for n, site in shapes(lifted, inputs, data).items() if isinstance(site.get("fn"), GaussianProcess)}
        every = lambda key: {form: terms(form, key) for form in forms}  # noqa: E731
        every = jax.jit(every)(KEY) if name in COMPUTED else jax.eval_shape(every, KEY)
    for form, found in every.items():
        assert latent[form] == set(prior) | {f"{n}_base" for n in centred} and "f" in centred
        assert name not in COMPUTED or all(np.isfinite(term).all() for term in found.values()), form


# -- refusals ----------------------------------------------------------------------------------------------------------


exponential = program_of(lambda f: dist.Poisson(jnp.exp(gpzoo.draws(f))))


counts = program_of(lambda f: Expected(poisson, f))


def shapes(program, *args):
    """The sites of a program, in which nothing is computed."""
    found = {}
    jax.eval_shape(lambda: found.update(handlers.trace(handlers.seed(program, 0)).get_trace(*args)))
    return found


REFUSED = {
    "unknown site": (lambda: shapes(whitened(counts, {"g": kmeans(3)}), X), ValueError, "'g'"),
    "grid": (lambda: whitened(counts, InducingGrid(8)), TypeError, "Under MCMC a site has no grid"),
    "no inducing variable": (lambda: whitened(counts, 40), TypeError, r"initialiser such as kmeans\(40\).*got int"),
    "sampled views": (lambda: shapes(whitened(partial(invariant_gp, view=rotation())), IMAGES), TypeError, "views"),
    "no GP": (lambda: shapes(handlers.reparam(counts, {"y": WhitenReparam()}), X), TypeError, "'y'"),
    "observed": (
        lambda: WhitenReparam()("f", GaussianProcess(RBF(1.0, 1.0), X), y),
        ValueError,
        "GP site 'f' has a value",
    ),
    "array of a sparse site": (
        lambda: shapes(whitened(exponential, InducingPoints(X[:3])), X, np.arange(8)),
        TypeError,
        "'f'",
    ),
    "inner layer": (
        lambda: shapes(whitened(ZOO["deep"][0], InducingPoints(INPUTS[:3])), INPUTS),
        TypeError,
        "'layer_0'",
    ),
    "initialiser under jit": (
        lambda: jax.eval_shape(lambda X: shapes(whitened(counts, kmeans(3)), X)["f_u"]["value"], X),
        TypeError,
        "kmeans.*'f'",
    ),
    "draws of another program": (
        lambda: predict(
            KEY, whitened(counts, kmeans(3)), NEW, posterior_samples={"f": np.zeros((2, 8))}, train_args=(X, y * 0)
        ),
        ValueError,
        r"no draws of \['f_u'\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_sentence(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message), jax.numpy_dtype_promotion("standard"):
        call()


def test_numpyros_own_handler_whitens_some_sites():
    program = handlers.reparam(several, {"two": WhitenReparam()})
    found = shapes(program, X, y)
    assert found["two"]["type"] == "deterministic" and found["two_base"]["value"].shape == (8, 2)
    assert {"one", "each", "f"} == {n for n, site in found.items() if isinstance(site.get("fn"), GaussianProcess)}
    # An observed site and one whose value is given are left as they are.
    fixed = whitened(handlers.substitute(counts, {"f": np.zeros(8)}))
    assert "f_base" not in shapes(fixed, X)


@pytest.mark.slow
def test_initialisers_look_once():
    looked = []

    class noted(kmeans):
        def initialise(self, key, X, kernel):
            looked.append(X.shape)
            return super().initialise(key, X, kernel)

    program = whitened(counts, noted(3))
    shapes(program, np.asarray(X), np.arange(8))  # NumPy's arrays can be looked at inside jit
    assert looked == [(8, 1)]
    shapes(program, NEW)
    predict(KEY, program, NEW, posterior_samples={"f_u": np.zeros((2, 3))}, train_args=(X, np.arange(8)))
    assert looked == [(8, 1)]


def test_likelihoods_that_draw_have_the_same_noise_at_every_step():
    program = whitened(partial(gp_classification, num_classes=3, likelihood=likelihoods.Softmax), kmeans(3))
    fixed = handlers.substitute(program, {"f_variance": 1.0, "f_lengthscale": jnp.ones(2), "f_base": jnp.ones((3, 3))})

    @jax.jit
    def terms(key):
        site = handlers.trace(handlers.seed(fixed, key)).get_trace(INPUTS, LABELS)["y"]
        return site["fn"].log_prob(site["value"])

    np.testing.assert_array_equal(*(terms(key) for key in jax.random.split(KEY)))


# -- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_draws_are_exported(draws):
    az = pytest.importorskip("arviz")
    chains = {name: value[:60].reshape(2, 30, *value.shape[1:]) for name, value in draws.items()}
    stats = {"diverging": np.zeros((2, 30), bool)}
    data = draws_to_arviz(KEY, HALF_SPARSE, X, y, posterior_samples=chains, sample_stats=stats)
    posterior, logs = data["posterior"], data["log_likelihood"]
    assert set(posterior.data_vars) == {"f", "g", "g_u"} and "approximation" not in posterior.attrs
    np.testing.assert_array_equal(posterior["f"], chains["f"])
    np.testing.assert_array_equal(posterior["g_u"], chains["g_u"])
    # At its own inputs, f given u is u, and the mean, which u has not.
    np.testing.assert_allclose(posterior["g"], chains["g_u"] + 0.3 * np.asarray(X)[:, 0], atol=2e-3)
    for site in ("f", "g"):
        by_hand = -0.5 * (np.square(np.asarray(y) - np.asarray(posterior[site])) / 0.1 + np.log(2 * np.pi * 0.1))
        np.testing.assert_allclose(logs[f"y_{site}"], by_hand, rtol=1e-8)
        assert data["posterior_predictive"][f"y_{site}"].dims == ("chain", "draw", f"data_{site}")
    np.testing.assert_array_equal(data["constant_data"]["g_inducing"], X)
    np.testing.assert_array_equal(data["observed_data"]["y_f"], y)
    assert not data["sample_stats"]["diverging"].any() and az.rhat(data)["f"].shape == (8,)
    # The centred program has the same export.
    names = {"f": chains["f"], "g": chains["f"]}
    plain = draws_to_arviz(KEY, two_of_a_kind, X, y, posterior_samples=names)
    np.testing.assert_allclose(plain["log_likelihood"]["y_f"], logs["y_f"], rtol=1e-10)
    with pytest.raises(ValueError, match=r"posterior_samples must be \[chains, draws, ...\]"):
        draws_to_arviz(KEY, HALF_SPARSE, X, y, posterior_samples={"f": chains["f"], "g_u": draws["g_u"]})
    with pytest.raises(ValueError, match=r"no draws of the latent sites \['g'\]"):
        draws_to_arviz(KEY, two_of_a_kind, X, y, posterior_samples=chains)


# -- published posteriors ----------------------------------------------------------------------------------------------

ELEVEN = {
    "x": np.arange(-10.0, 11.0, 2.0)[:, None],
    "y": np.array([4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588, 0.802364, 3.92136]),
    "k": np.array([40, 37, 29, 12, 4, 3, 9, 19, 77, 82, 33]),
}


def covariance():
    rho, alpha = numpyro.sample("rho", dist.Gamma(25.0, 4.0)), numpyro.sample("alpha", dist.HalfNormal(2.0))
    return RBF(alpha**2, rho)


def marginal(X, y):
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", GaussianProcess(covariance() + White(sigma), X, jitter=0.0), obs=y)


def log_rates(X, k):
    f = numpyro.sample("f", GaussianProcess(covariance(), X, jitter=1e-10))
    with numpyro.plate("data", len(X)):
        numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


def numbers(text):
    return np.array(text.split(), float)


# program, data; the published means and their Monte Carlo standard errors (posteriordb, gp_pois_regr)
PUBLISHED = {
    "regression": (
        marginal,
        "y",
        {
            "rho": (6.87434817782581, 0.0127649184133038),
            "alpha": (2.4423998398757, 0.00775729060630055),
            "sigma": (1.82873106572797, 0.00502769102294288),
        },
    ),
    "counts": (
        log_rates,
        "k",
        {
            "rho": (5.66652941021132, 0.00677167972009557),
            "alpha": (2.92134418379513, 0.00791888007451612),
            "f": (
                numbers(
                    "3.63574060402204 3.6886122237674 3.25466563615865 2.40916833234055 1.56153312269637 "
                    "1.2952616184373 1.93120329718491 3.17960664748282 4.25292132252809 4.41509940077751 "
                    "3.50681694306204"
                ),
                numbers(
                    "0.00150229816230368 0.00126760954603922 0.00143599713293088 0.00196152704219273 "
                    "0.00243566943170736 0.00266499729292379 0.0022509184375259 0.0014386174057155 "
                    "0.000968650468626025 0.000925373446504814 0.00163396388346658"
                ),
            ),
        },
    ),
}


@pytest.mark.stress
@pytest.mark.skipif(not os.environ.get("GPZOO_STRESS"), reason="a minute; make stress runs it")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_posteriors(name):
    program, data, published = PUBLISHED[name]

    @jax.jit
    def run(key):
        mcmc = MCMC(NUTS(whitened(program)), num_warmup=500, num_samples=2000, progress_bar=False)
        mcmc.run(key, ELEVEN["x"], ELEVEN[data])
        return mcmc.get_samples()

    with jax.numpy_dtype_promotion("standard"):
        found = jax.tree.map(np.asarray, run(KEY))
    for site, (mean, error) in published.items():
        own = found[site].std(0) / np.sqrt(effective_sample_size(found[site][None]))
        assert (own < 0.05).all(), site
        assert (np.abs(found[site].mean(0) - mean) < 4 * np.sqrt(own**2 + np.square(error))).all(), site
