"""Prediction against textbook formulas and brute force: any batching, mixtures over draws, MCMC, exact regression."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive
from numpyro.optim import Adam
from scipy.special import logsumexp
from scipy.stats import norm

from gpzoo import draws, kmeans, linalg
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit, load, predict
from gpzoo.inference.fitted import predict as prediction
from gpzoo.inference.programs.gp_sites import BatchRows, Marginals, in_mode
from gpzoo.inference.programs.keys import named_key
from gpzoo.kernels import RBF, Periodic, White
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, Softmax
from gpzoo.models import gp_regression
from gpzoo.processes.process import GaussianProcess
from tests.programs import at_start, deep, positive, program_of, regression, sine
from tests.reference import conditional, pairs, rbf

KEY = random.key(0)
X, y = sine(10)
NEW = np.linspace(-2.5, 2.5, 7)[:, None]
TARGETS = np.sin(2 * NEW[:, 0])


def exact_moments(variance, lengthscale, noise, values):
    """Mean and variance of the function at ``NEW``, given noisy values at ``X``."""
    k = partial(rbf, variance=variance, lengthscale=lengthscale)
    noisy = k(*pairs(X, X)) + noise * np.eye(len(X))
    mean, covariance = conditional(noisy, k(*pairs(X, NEW)), k(*pairs(NEW, NEW)), values)
    return mean, np.diag(covariance)


def prepared(model, *args, seed=1, **kwargs):
    """A guide with made-up parameters: prediction does not care how they were found."""
    guide = InducingGuide(model, InducingPoints(X[::3]), **kwargs)
    params = guide.init_params(KEY, *args)
    rng = np.random.default_rng(seed)
    for name in sorted(params):
        shape = params[name].shape
        if name.endswith("_mean"):
            params[name] = jnp.asarray(rng.standard_normal(shape))
        elif name.endswith("_scale"):
            params[name] = jnp.asarray(0.3 * np.eye(shape[-1]) + 0.1 * np.tril(rng.standard_normal(shape)))
    return guide, params


def softmax(X, y=None):
    h = numpyro.sample("h", GaussianProcess(RBF(1.0, 1.0), X, mean=X, num_outputs=1))
    f = numpyro.sample("f", GaussianProcess(RBF(2.0, 1.0), h, num_outputs=2))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Softmax(f @ jnp.array([[1.0, 0.0, -1.0], [0.5, 1.0, 0.0]]), num_predictive_draws=5), obs=y)


@pytest.mark.parametrize("width", [0.3, 1.0, 1.4], ids=["narrow", "as wide as the prior", "wide"])
def test_many_inputs_at_once_are_those_of_small_batches(width):
    """Where inputs are many for the inducing ones, and ``q(u)`` narrower than the prior, there is another root."""
    inputs, where = np.linspace(-3, 3, 2600)[:, None], np.linspace(-3, 3, 128)[:, None]
    guide = InducingGuide(regression, InducingPoints(where))
    params = guide.init_params(KEY, X, y)
    rng = np.random.default_rng(0)
    scale = width * np.eye(128) + 0.02 * (width < 1) * np.tril(rng.standard_normal((128, 128)))
    trained = Trained(regression, guide, params | {"f_mean": rng.standard_normal(128), "f_scale": jnp.asarray(scale)})
    one, several = (trained.predict(KEY, inputs, batch_size=size)["f"] for size in (2600, 130))
    np.testing.assert_allclose(one.mean, several.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(one.variance, several.variance, rtol=1e-7)
    for shape, size in (((1000, 8), 1000), ((30_000, 8), 20_000), ((30_000, 784), 1000)):
        assert prediction._rows_at_a_time(SimpleNamespace(args=(np.zeros(shape, bool),))) == size


def test_one_layer_is_exact():
    guide, params = prepared(regression, X, y)
    found = Trained(regression, guide, params).predict(KEY, NEW, test_data={"y": TARGETS}, batch_size=4)
    # u = L v, f | u, in the textbook's order.
    Z, hyperparameters = params["f_inducing"], (float(params["variance"]), float(params["lengthscale"]))
    Kuu, Kuf, Kff = (rbf(*pairs(a, b), *hyperparameters) for a, b in ((Z, Z), (Z, NEW), (NEW, NEW)))
    Kuu = Kuu + 1e-9 * np.eye(len(Z))
    L = np.linalg.cholesky(Kuu)
    LS = L @ np.tril(params["f_scale"])
    mean, covariance = conditional(Kuu, Kuf, Kff, L @ np.asarray(params["f_mean"]), LS @ LS.T)
    variance = np.diag(covariance)
    noisy = variance + float(params["noise"])
    np.testing.assert_allclose(found["f"].mean, mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found["f"].variance, variance, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found["y"].mean, mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found["y"].variance, noisy, rtol=1e-8)
    density = -0.5 * (np.log(2 * np.pi * noisy) + (np.asarray(TARGETS) - mean) ** 2 / noisy)
    np.testing.assert_allclose(found["y"].log_density, density, rtol=1e-8)
    assert isinstance(found["y"].mean, np.ndarray)


@pytest.mark.slow
def test_draws_of_inner_layers_make_a_mixture():
    guide, params = prepared(deep, X, y, initial_scale=0.5)
    S = 64
    found = Trained(deep, guide, params).predict(KEY, NEW, test_data={"y": TARGETS}, num_draws=S)

    def one(key):
        with handlers.block(), in_mode(Marginals(BatchRows(jnp.arange(7), 7, {}))):
            run = handlers.substitute(handlers.seed(guide, random.split(key)[1]), data=params)
            trace = handlers.trace(run).get_trace(NEW)
        return trace["f"]["fn"].marginals()

    many = jax.jit(jax.vmap(one))
    means, variances = (np.asarray(x) for x in many(random.split(named_key(KEY, "draws"), S)))
    assert means.std(0).min() > 0.01
    noise = float(params["noise"])
    spread = variances.mean(0) + means.var(0)  # the law of total variance
    np.testing.assert_allclose(found["f"].mean, means.mean(0), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found["f"].variance, spread, rtol=1e-8)
    np.testing.assert_allclose(found["y"].variance, spread + noise, rtol=1e-8)
    logs = norm.logpdf(TARGETS, means, np.sqrt(variances + noise))
    np.testing.assert_allclose(found["y"].log_density, logsumexp(logs, axis=0) - np.log(S), rtol=1e-8)
    # Brute force with draws of whole functions by NumPyro itself.
    predictive = Predictive(deep, guide=guide, params=params, num_samples=4000)
    draws = np.asarray(jax.jit(lambda key: predictive(key, NEW)["y"])(random.key(5)))
    means, variances = (
        np.concatenate(parts) for parts in zip(*(many(k) for k in random.split(KEY, (20, S))), strict=True)
    )
    spread = variances.mean(0) + means.var(0) + noise
    assert (np.abs(draws.mean(0) - means.mean(0)) < 5 * np.sqrt(spread * (1 / 4000 + 1 / len(means)))).all()
    np.testing.assert_allclose(draws.var(0), spread, rtol=0.25)


PRIORS = {name: dist.LogNormal(0.0, 0.5) for name in ("variance", "lengthscale", "noise")}


@pytest.fixture(scope="module")
def samples():
    model = handlers.lift(regression, prior=PRIORS)
    mcmc = MCMC(NUTS(model), num_warmup=30, num_samples=20, progress_bar=False)
    with jax.numpy_dtype_promotion("standard"):
        mcmc.run(KEY, X, y)
    return {name: np.asarray(value) for name, value in mcmc.get_samples().items()}


@pytest.mark.slow
def test_mcmc_conditions_on_draws(samples):
    lifted = handlers.lift(regression, prior=PRIORS)
    go = partial(predict, KEY, lifted, train_args=(X, y))
    same = go(X, posterior_samples=samples)["f"]
    np.testing.assert_allclose(same.mean, samples["f"].mean(0), atol=1e-3)
    np.testing.assert_allclose(same.variance, samples["f"].var(0), atol=1e-3)
    # At new inputs, one draw: the conditional Gaussian; the noise is the draw's own.
    draw = {name: value[3:4] for name, value in samples.items()}
    found = go(NEW, posterior_samples=draw, batch_size=4)
    hyperparameters = float(draw["variance"][0]), float(draw["lengthscale"][0])
    mean, variance = exact_moments(*hyperparameters, 1e-9 * hyperparameters[0], np.asarray(draw["f"][0]))
    np.testing.assert_allclose(found["f"].mean, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["f"].variance, variance, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["y"].variance - found["f"].variance, np.full(7, draw["noise"][0]), rtol=1e-6)
    # Several draws: their mixture, whatever the batches.
    first = go(NEW, posterior_samples={name: value[:1] for name, value in samples.items()})["f"]
    pair = go(NEW, posterior_samples={name: value[[0, 3]] for name, value in samples.items()}, batch_size=2)["f"]
    np.testing.assert_allclose(pair.mean, (first.mean + found["f"].mean) / 2, rtol=1e-8, atol=1e-10)


def exact(X, y=None):
    kernel = RBF(positive("variance", 1.3), positive("lengthscale", 0.8)) + White(positive("noise", 0.1))
    numpyro.sample("y", GaussianProcess(kernel, X, mean=0.5 * X[:, 0]), obs=y)


def test_the_training_has_the_keyword_arguments_of_the_prediction():
    """Unless it has its own; both sides would otherwise be of different kernels."""

    def periodic(X, y=None, *, period=1.0):
        numpyro.sample("y", GaussianProcess(Periodic(1.0, 1.0, period) + White(0.01), X), obs=y)

    def moments(model, **options):
        found = predict(KEY, model, NEW, train_args=(X, y), **options)["y"]
        return np.stack([found.mean, found.variance])

    expected = moments(partial(periodic, period=3.0))
    np.testing.assert_array_equal(moments(periodic, model_kwargs={"period": 3.0}), expected)
    both = {"model_kwargs": {"period": 3.0}, "train_kwargs": {"period": 3.0}}
    np.testing.assert_array_equal(moments(periodic, **both), expected)
    assert not np.allclose(moments(periodic), expected)


def test_exact_regression_is_the_textbooks():
    params = {"variance": jnp.array(1.1), "lengthscale": jnp.array(0.7), "noise": jnp.array(0.2)}
    found = predict(KEY, exact, NEW, params=params, train_args=(X, y), batch_size=4)["y"]
    mean, variance = exact_moments(1.1, 0.7, 0.2, np.asarray(y - 0.5 * X[:, 0]))
    np.testing.assert_allclose(found.mean, 0.5 * NEW[:, 0] + mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.variance, variance + 0.2, rtol=1e-4)


@pytest.mark.slow
def test_training_inputs_are_factorised_once_for_all_batches(samples, monkeypatch):
    sizes = []
    factor = linalg.cholesky_and_inverse

    def seen(K, *args, **kwargs):
        sizes.append(K.shape[-1])
        return factor(K, *args, **kwargs)

    monkeypatch.setattr(linalg, "cholesky_and_inverse", seen)
    lifted = handlers.lift(regression, prior=PRIORS)
    given = {"posterior_samples": {name: value[:3] for name, value in samples.items()}}
    params = {"variance": jnp.array(1.1), "lengthscale": jnp.array(0.7), "noise": jnp.array(0.2)}
    for model, options, site in ((lifted, given, "f"), (exact, {"params": params}, "y")):
        found = []
        for most in (2**30, 0):
            monkeypatch.setattr(prediction, "_MOST_KEPT", most)
            sizes.clear()
            found.append(predict(KEY, model, NEW, train_args=(X, y), batch_size=3, **options)[site])
            # Traced before the batches, and again in their program only where nothing may be kept.
            assert sizes.count(10) == (1 if most else 2)
        np.testing.assert_allclose(found[0].mean, found[1].mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[0].variance, found[1].variance, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("law", ["exact", "Poisson", "Normal"])
def test_test_data_of_another_shape_are_refused(law):
    """They would broadcast, and the density of a row would be a sum over all rows."""

    def program(X, y=None):
        if law == "exact":
            numpyro.sample("y", GaussianProcess(RBF(1.0, 1.0) + White(0.1), X), obs=y)
        else:
            f = draws(numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X)))
            numpyro.sample("y", dist.Poisson(jnp.exp(f)) if law == "Poisson" else dist.Normal(f, 0.5), obs=y)

    x, y = np.linspace(0, 1, 6)[:, None], np.arange(6.0)
    if law == "exact":
        asked = partial(predict, KEY, program, x, train_args=(x, y), posterior_samples=None, params={})
    else:
        asked = partial(at_start(program, kmeans(3), x, y).predict, KEY, x)
    assert asked(test_data={"y": y})["y"].log_density.shape == (6,)
    for other in (y[:, None], np.stack([y, y], axis=1)):
        with pytest.raises(ValueError, match=r"test_data\['y'\] has shape \[6, [12]\], but site 'y' has \[6\]"):
            asked(test_data={"y": other})


@pytest.mark.slow
def test_arguments_that_do_not_go_together_are_refused(samples):
    guide, params = prepared(regression, X, y)
    with pytest.raises(ValueError, match=r"Give predict posterior_samples= .*call Trained\(model, guide, params\)"):
        predict(KEY, regression, NEW)
    with pytest.raises(TypeError, match="predict has no argument 'posterior_samples'"):
        Trained(regression, guide, params).predict(KEY, NEW, train_args=(X, y), posterior_samples=samples)
    with pytest.raises(ValueError, match=r"lives at the training inputs.*train_args=\(X, y\)"):
        predict(KEY, regression, NEW, posterior_samples=samples)
    with pytest.raises(ValueError, match=r"test_data\['y'\] has 5 rows, but site 'y' has 7 at these 7 inputs"):
        Trained(regression, guide, params).predict(KEY, NEW, test_data={"y": TARGETS[:5]})
    with pytest.raises(ValueError, match=r"X is empty: its shape is \(0, 1\)"):
        Trained(regression, guide, params).predict(KEY, NEW[:0])
    with pytest.raises(ValueError, match=r"test_data names \['z'\], but the sites are \['f', 'y'\]"):
        Trained(regression, guide, params).predict(KEY, NEW, test_data={"z": TARGETS})


@pytest.mark.slow
def test_numpyros_predictive_draws_functions():
    guide, params = prepared(regression, X, y)
    near = np.array([[0.0], [0.02], [0.5], [2.0]])
    S = 6000
    predictive = Predictive(guide, params=params, num_samples=S, parallel=True)

    # The model after it: y is drawn at new inputs, with data or without.
    @jax.jit
    def everything(params):
        ys = [
            Predictive(regression, guide=guide, params=params, num_samples=5, parallel=True)(KEY, *args)["y"]
            for args in ((near,), (near, jnp.zeros(4)))
        ]
        q = Trained(guide.model, guide, params).posterior(KEY, near)["f"]
        return predictive(KEY, near)["f"], q.moments(), ys

    draws, (mean, covariance), ys = jax.tree.map(np.asarray, everything(params))
    scale = np.sqrt(np.outer(np.diagonal(covariance), np.diagonal(covariance)))
    assert np.abs((np.cov(draws.T) - covariance) / scale).max() < 5 * np.sqrt(2 / S)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * np.sqrt(np.diagonal(covariance).max() / S))
    assert np.corrcoef(draws[:, 0], draws[:, 1])[0, 1] > 0.99
    for values, drawn in zip(ys, (True, False), strict=True):
        assert values.shape == (5, 4) and (np.ptp(values, axis=0) > 0).all() == drawn


# -- every name in, every name out -----------------------------------------------------------------------------------


def exact_with_prior(X, y=None):
    """Exact GP regression with a latent lengthscale."""
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.1))
    numpyro.sample("y", GaussianProcess(RBF(1.0, lengthscale) + White(0.01), X), obs=y)


def test_a_guide_and_an_observed_gp_site():
    guide = InducingGuide(exact_with_prior, InducingPoints(X[:2]))
    params = guide.init_params(KEY, X, y)
    with pytest.raises(ValueError, match=r"GP site 'y' is observed in training.*train_args"):
        Trained(exact_with_prior, guide, params).predict(KEY, NEW)
    arguments = {"train_args": (X, y), "test_data": {"y": TARGETS}}
    found = Trained(exact_with_prior, guide, params).predict(KEY, NEW, **arguments)["y"]
    mean, variance = exact_moments(1.0, float(params["lengthscale_loc"]), 0.01, np.asarray(y))
    np.testing.assert_allclose(found.mean, mean, atol=1e-4)
    np.testing.assert_allclose(found.variance, variance + 0.01, atol=1e-4)
    expected = norm.logpdf(TARGETS, mean, np.sqrt(variance + 0.01))
    np.testing.assert_allclose(found.log_density, expected, atol=1e-3)


def test_sites_without_values_are_refused():
    samples = {"variance": jnp.ones(3), "lengthscale": jnp.ones(3), "noise": jnp.ones(3)}
    lifted = handlers.lift(regression, prior={name: dist.LogNormal(0.0, 1.0) for name in samples})
    with pytest.raises(ValueError, match="no draws of the latent site 'f'"):
        predict(KEY, lifted, NEW, posterior_samples=samples, train_args=(X, y))


def test_a_guide_that_saw_no_data_is_refused():
    _, params = prepared(regression, X, y)
    with pytest.raises(ValueError, match=r"call guide\.setup\(X, y\)"):
        Trained(regression, InducingGuide(regression, InducingPoints(X[::3])), params).predict(KEY, NEW)


def test_joint_sites_take_one_batch():
    centred = program_of(lambda f: dist.Normal(draws(f) - jnp.mean(draws(f)), 0.1))

    guide, params = prepared(centred, X, y, joint={"f"})
    with pytest.raises(ValueError, match="depends on its batch: pass batch_size=7 or more"):
        Trained(centred, guide, params).predict(KEY, NEW, batch_size=3)
    assert Trained(centred, guide, params).predict(KEY, NEW, num_draws=3)["y"].mean.shape == (7,)


def test_any_categorical_likelihood_has_class_probabilities():
    classes = program_of(lambda f: Expected(three_classes, f))

    guide, params = prepared(classes, X, np.arange(10) % 3)
    found = Trained(classes, guide, params).predict(KEY, NEW)["y"]
    assert found.mean is None and found.probs.shape == (7, 3)
    np.testing.assert_allclose(found.probs.sum(axis=1), 1.0, rtol=1e-6)


def three_classes(f):
    return dist.Categorical(logits=jnp.stack([f, -f, jnp.zeros_like(f)], axis=-1))


def test_labels_per_datum_are_not_classes():
    labels = program_of(Bernoulli, num_outputs=3)

    guide, params = prepared(labels, X, np.ones((10, 3)))
    found = Trained(labels, guide, params).predict(KEY, NEW)["y"]
    assert found.probs is None and found.mean.shape == (7, 3)


@pytest.mark.slow
def test_draws_and_quantiles_of_numpyros_bernoulli():
    """NumPyro draws it with types that strict promotion, which all tests have, refuses to mix."""
    labels = program_of(lambda f: dist.Bernoulli(probs=jax.nn.sigmoid(draws(f))))
    guide, params = prepared(labels, X, (y > 0).astype(int))
    found = Trained(labels, guide, params).predict(KEY, NEW, num_draws=200, keep_draws=True, quantiles=(0.4, 0.6))["y"]
    assert found.draws.shape == (200, 7) and set(np.unique(found.draws)) == {0, 1}
    # A quantile of zeros and ones is one where more ones were drawn than its probability leaves to zeros.
    np.testing.assert_array_equal(found.quantiles, [found.draws.mean(0) > 0.6, found.draws.mean(0) > 0.4])
    assert np.ptp(found.quantiles) == 1
    np.testing.assert_allclose(found.draws.mean(0), found.mean, atol=0.12)


@pytest.mark.slow_but(model=[regression], whiten=[True])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("model", [regression, deep, softmax])
def test_means_alone_are_the_same_means(model, whiten):
    data = y if model is not softmax else np.arange(10) % 3
    guide, params = prepared(model, X, data, whiten=whiten)
    trained = Trained(model, guide, params)
    whole, means = (trained.predict(KEY, NEW, num_draws=3, mean_only=only) for only in (False, True))
    assert whole.keys() == means.keys()
    for name, site in means.items():
        of_site = whole[name].probs if site.mean is None else whole[name].mean
        np.testing.assert_allclose(site.probs if site.mean is None else site.mean, of_site, rtol=1e-9, atol=1e-10)
        assert site.variance is None and site.draws is None and site.log_density is None


def test_means_of_one_kernel_per_output():
    model = program_of(lambda f: Gaussian(f, 0.1), RBF(jnp.array([1.0, 2.0]), jnp.array([[0.5], [1.0]])), num_outputs=2)

    guide, params = prepared(model, X, np.stack([y, -y], 1))
    whole, means = (Trained(model, guide, params).predict(KEY, NEW, mean_only=only)["f"] for only in (False, True))
    np.testing.assert_allclose(means.mean, whole.mean, rtol=1e-9, atol=1e-10)


def test_variances_cannot_be_left_out_and_used():
    guide, params = prepared(regression, X, y)
    with pytest.raises(ValueError, match="mean_only"):
        Trained(regression, guide, params).predict(
            KEY, NEW, mean_only=True, quantiles=(0.5,), keep_draws=True, test_data={"y": TARGETS}
        )


def test_a_trained_model_compiles_once():
    traced = []

    def program(X, y=None, *, shift=0.0):
        traced.append(len(X))
        f = numpyro.sample("f", GaussianProcess(RBF(), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f + (5.0 if shift is True else float(shift)), 0.1), obs=y)

    guide, params = prepared(program, X, y)
    one = Trained(program, guide, params)
    first = one.predict(KEY, X, test_data={"y": y})["y"]
    wanted = Trained(program, guide, params).predict(KEY, X, test_data={"y": y})["y"]
    np.testing.assert_array_equal(first.log_density, wanted.log_density)
    runs = len(traced)
    second = one.with_params({**params, "f_mean": params["f_mean"] + 1}).predict(KEY, X, test_data={"y": y})["y"]
    assert len(traced) == runs and np.abs(second.mean - first.mean).max() > 0.1
    for shift, wanted in ((1, 1.0), (True, 5.0), (2.0, 2.0)):  # 1 equals True, but the programs differ
        shifted = one.predict(KEY, X, model_kwargs={"shift": shift})["y"].mean
        np.testing.assert_allclose(shifted - first.mean, wanted, atol=1e-9)
    assert len(traced) > runs


def test_a_new_one_sees_what_a_program_reads_from_outside():
    outside = {"mean": 0.0}

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(), X, mean=jnp.full(len(X), outside["mean"])))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    guide, params = prepared(program, X, y)
    first = Trained(program, guide, params).predict(KEY, X)["y"].mean
    outside["mean"] = 2.0
    np.testing.assert_allclose(Trained(program, guide, params).predict(KEY, X)["y"].mean - first, 2.0)


def poisson(f):
    return dist.Poisson(jnp.exp(f))


def of_two_tables(X, y=None, *, others=None, counts=None):
    """One function at the rows of two tables of different lengths."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.7), jnp.concatenate([X, others])))
    with numpyro.plate("a", len(X)):
        numpyro.sample("y", Gaussian(f[: len(X)], 0.04), obs=y)
    with numpyro.plate("b", len(others)):
        numpyro.sample("counts", Expected(poisson, f[len(X) :]), obs=counts)


@pytest.mark.slow
def test_draws_of_data_where_rows_of_a_function_are_those_of_two_tables():
    guide = InducingGuide(of_two_tables, InducingPoints(X[::3]))
    params = guide.init_params(KEY, X, y, model_kwargs={"others": X[:4] + 0.1, "counts": np.arange(4)})
    trained, options = Trained(of_two_tables, guide, params), {"model_kwargs": {"others": X[:4] + 0.1}}
    found = trained.predict(KEY, NEW, num_draws=2000, keep_draws=True, **options)
    assert found["y"].draws.shape == (2000, 7) and found["counts"].draws.shape == (2000, 4)
    np.testing.assert_allclose(found["y"].draws.var(axis=0), found["y"].variance, rtol=0.2)


# -- numbers out of range ----------------------------------------------------------------------------------------------

OUT_OF_RANGE = {
    "noise": (lambda f, s: Gaussian(f, s), r"noise_variance must be positive and finite, got -0.5 at index"),
    "scale": (
        lambda f, s: Expected(lambda f, s: dist.StudentT(5.0, f, s), f, s),
        "Site 'y': scale of StudentT must not be negative, got -0.5",
    ),
    "exposure": (
        lambda f, s: Expected(lambda f, s: dist.Poisson(s * jnp.exp(f)), f, s),
        "Site 'y': rate of Poisson must not be",
    ),
    "drawn": (lambda f, s: dist.Normal(draws(f), s), "scale of Normal must not be negative"),
    # Numbers that the class does not keep under their names.
    "overdispersed": (
        lambda f, s: Expected(lambda f, s: dist.NegativeBinomial2(s * jnp.exp(f), 3.0), f, s),
        "Site 'y': rate of Gamma must not be negative",
    ),
    "zero-inflated": (
        lambda f, s: Expected(lambda f, s: dist.ZeroInflatedNegativeBinomial2(s * jnp.exp(f), 3.0, gate=0.1), f, s),
        "Site 'y': rate of Gamma must not be negative",
    ),
    "total count": (
        lambda f, s: Expected(lambda f, s: dist.NegativeBinomialLogits(s, f), f, s),
        "Site 'y': concentration of Gamma must not be negative",
    ),
}


def with_known(X, s, y=None, *, make):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0) + White(1e-3), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", make(f, s), obs=y)


ASKED = {
    "predict": lambda trained, at_new: trained.predict(KEY, NEW, at_new, num_draws=3),
    "batches": lambda trained, at_new: trained.predict(KEY, NEW, at_new, num_draws=3, batch_size=3),
    "draws": lambda trained, at_new: trained.predict(KEY, NEW, at_new, num_draws=3, keep_draws=True),
    "to_arviz": lambda trained, at_new: trained.to_arviz(
        KEY, X, np.ones(len(X)), np.round(np.abs(y)), new_args=(NEW, at_new), num_draws=2
    ),
    "samples": lambda trained, at_new: predict(
        KEY,
        trained.model,
        NEW,
        at_new,
        posterior_samples={"f": jnp.stack([y, -y])},
        train_args=(X, np.ones(len(X)), np.round(np.abs(y))),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("case", OUT_OF_RANGE)
@pytest.mark.parametrize("row", [0, 4])
def test_negative_noise_and_exposure_at_new_rows_are_refused(case, row, asked):
    make, message = OUT_OF_RANGE[case]
    program, known = partial(with_known, make=make), np.ones(len(X))
    guide, params = prepared(program, X, known, np.round(np.abs(y)))
    at_new = np.ones(len(NEW))
    at_new[row] = -0.5
    trained = Trained(program, guide, params)
    assert np.isfinite(trained.predict(KEY, NEW, np.abs(at_new), num_draws=3)["y"].variance).all()
    with pytest.raises(ValueError, match=message):
        ASKED[asked](trained, at_new)


@pytest.mark.slow
def test_a_negative_number_for_a_kernel_at_new_rows_is_refused():
    def program(X, level, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(level[0], 1.0), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    guide, params = prepared(program, X, np.ones(len(X)), y)
    with pytest.raises(ValueError, match="Site 'f': variance must be positive and finite, got -1"):
        Trained(program, guide, params).predict(KEY, NEW, -np.ones(len(NEW)))


@pytest.mark.slow_but(where=["trained"], columns=[5])
@pytest.mark.parametrize("columns", [1, 2, 5])
@pytest.mark.parametrize("where", ["trained", "loaded"])
def test_other_columns_than_in_training_are_refused_by_name(columns, where, tmp_path):
    """Otherwise the first parameter with one number per column is blamed, in words about priors."""
    rng = np.random.default_rng(columns)
    inputs, y = rng.uniform(-2, 2, (12, columns)), rng.standard_normal(12)
    guide = InducingGuide(gp_regression, InducingPoints(inputs[::3]))
    svi = SVI(gp_regression, guide, Adam(0.02), GaussianProcessELBO())
    trained = fit(KEY, svi, 2, inputs, y, progress=False)
    if where == "loaded":
        trained.save(tmp_path / "model")
        trained = load(tmp_path / "model", gp_regression, guide)
    asked = [
        lambda new: trained.predict(KEY, new),
        lambda new: trained.functions(KEY, new, num_draws=2),
        lambda new: trained.condition(KEY, new, np.zeros(len(new))),
    ]
    for other in {1, 2, 4, 7} - {columns}:
        for ask in asked:
            with pytest.raises(
                ValueError, match=rf"X has the shape \[6, {other}\], but had {columns} columns in training"
            ):
                ask(np.ones((6, other)))
    with pytest.raises(ValueError, match=rf"X has the shape \[6\], but had {columns} columns"):
        trained.predict(KEY, np.ones(6))
    assert trained.predict(KEY, np.ones((6, columns)))["f"].mean.shape == (6,)
