"""Rules that keep the bound of a program correct, each with a test that fails when it is broken."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.special
from jax import random
from numpyro import handlers
from numpyro.infer import SVI, Predictive, Trace_ELBO
from scipy.stats import norm

from gpzoo import draws
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import (
    CollapsedELBO,
    GaussianProcessELBO,
    InducingGuide,
    NaturalGradients,
    Trained,
    fit,
    lbfgs,
    load,
)
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import run
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian, Softmax
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, bound, deep, marginals, randomised, regression, sine, terms, trained
from tests.reference import normal_quadrature
from tests.statistics import off, standard_error

# -- rule 1: drawn anywhere is drawn everywhere ----------------------------------------------------------------------


def squashed(X, y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    numpyro.deterministic("p", jnp.tanh(draws(f)))  # once
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)
        numpyro.sample("z", dist.Normal(jnp.exp(draws(f)), 1.0), obs=y)  # twice


def test_which_sites_are_drawn():
    X, y = sine(6)
    assert InducingGuide(regression, kmeans(3)).setup(X, y).drawn == frozenset()
    assert InducingGuide(squashed, kmeans(3)).setup(X, y).drawn == {"f"}
    sites = InducingGuide(deep, kmeans(3)).setup(X, y)
    assert sites.drawn == {"h"} and sites.processes == {"h", "f"}


def test_drawn_anywhere_is_drawn_everywhere():
    # The exact part of a program in which another part draws must see the same draw, and so vary with the key.
    X, y = sine(6)
    guide = InducingGuide(squashed, kmeans(3))
    params = trained(squashed, guide, X, y)
    one, two = (terms(squashed, guide, params, X, y, key=random.key(k)) for k in (1, 2))
    assert one["y"] != two["y"] and one["z"] != two["z"] and one["f"] == two["f"]


def test_drawn_expectation_is_unbiased():
    X, y = sine(6)
    guide = InducingGuide(squashed, kmeans(3))
    params = randomised(trained(squashed, guide, X, y))
    draws = np.asarray(jax.vmap(lambda key: bound(squashed, guide, params, X, y, key=key))(random.split(KEY, 4000)))
    mean, variance = (np.asarray(x) for x in marginals(guide, params, X, y))
    points, weights = normal_quadrature(60)
    f = mean + np.sqrt(variance) * points[:, None]
    logs = norm.logpdf(y, f, np.sqrt(0.1)) + norm.logpdf(y, np.exp(f), 1.0)
    exact = weights @ logs.sum(-1) + float(terms(squashed, guide, params, X, y)["f"])
    assert off(draws, exact) < 4


def test_a_path_not_taken_at_set_up_is_refused():
    X, y = sine(6)

    def fickle(X, y=None, *, draw=False):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(jnp.sin(draws(f)) if draw else f, 0.1), obs=y)

    guide = InducingGuide(fickle, kmeans(3))
    params = trained(fickle, guide, X, y)
    with pytest.raises(RuntimeError, match=r"site 'f', which it did not do when its guide was set up"):
        bound(fickle, guide, params, X, y, draw=True)


# -- rules 2 and 3: exact operations, and maps over outputs ----------------------------------------------------------


def two_sites(X, y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    g = numpyro.sample("g", GaussianProcess(RBF(0.5, 0.3), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(2.0 * f + g - 1.0, 0.1), obs=y)


MORE_SITES = {
    "gp": lambda X: numpyro.sample("more", GaussianProcess(RBF(1.0, 1.0), X)),
    "latent": lambda X: numpyro.sample("more", dist.Normal(0.0, 1.0)),
    "discrete": lambda X: numpyro.sample("more", dist.Bernoulli(0.5), infer={"enumerate": "parallel"}).astype(X.dtype),
    "param": lambda X: numpyro.param("more", 1.0),
}


def with_more(X, y=None, more=None, on=False):
    shift = MORE_SITES[more](X) if more and on else 0.0
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    numpyro.sample("y", Gaussian(f + shift, 0.1), obs=y)


@pytest.mark.slow_but(more=["gp", "latent"])
@pytest.mark.parametrize("more", MORE_SITES)
def test_arguments_that_add_a_site_are_refused(more):
    """A new site has no posterior: predictions would draw it from its prior, and bounds would be another program's."""
    X, y = sine(6)
    guide, plain, added = InducingGuide(with_more, kmeans(3)), {"more": more}, {"more": more, "on": True}
    params = guide.init_params(KEY, X, y, model_kwargs=plain)
    model = Trained(with_more, guide, params)
    svi = SVI(with_more, guide, optax.adam(0.1), GaussianProcessELBO())
    calls = [
        lambda: model.predict(KEY, X, model_kwargs=added),
        lambda: model.to_arviz(KEY, X, y, model_kwargs=added),
        lambda: fit(KEY, svi, 1, X, y, model_kwargs=added, progress=False),
        lambda: svi.init(KEY, X, y, **added),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"the site\(s\) \['more'\], of which the guide knows nothing"):
            call()
    assert set(model.predict(KEY, X, model_kwargs=plain)) == {"f", "y"}


def test_sums_of_sites_stay_exact():
    X, y = sine(6)
    guide = InducingGuide(two_sites, kmeans(3))
    params = randomised(trained(two_sites, guide, X, y))
    (mf, vf), (mg, vg) = (np.asarray(marginals(guide, params, X, y, site=s)) for s in "fg")
    mean, variance = 2 * mf + mg - 1, 4 * vf + vg
    expected = np.sum(norm.logpdf(y, mean, np.sqrt(0.1)) - variance / 0.2)
    np.testing.assert_allclose(terms(two_sites, guide, params, X, y)["y"], expected, rtol=1e-10)


def test_a_map_over_outputs_is_drawn_jointly():
    X, _ = sine(6)
    labels, A = np.array([0, 1, 2, 0, 1, 2]), np.array([[1.0, 2.0, -1.0], [0.5, -1.5, 2.0]])

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(2.0, 1.0), X, num_outputs=2))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Softmax(f @ jnp.asarray(A), num_draws=4000), obs=y)

    guide = InducingGuide(program, kmeans(3))
    params = randomised(trained(program, guide, X, labels))
    ours = terms(program, guide, params, X, labels)["y"]
    mean, variance = (np.asarray(x) for x in marginals(guide, params, X, labels))
    noise = np.random.default_rng(0).standard_normal((40_000, *mean.shape))

    def softmax(scores):
        logs = scipy.special.log_softmax(scores, axis=-1)
        return np.mean(np.take_along_axis(logs, labels[None, :, None], -1).sum((1, 2)))

    joint = softmax((mean + np.sqrt(variance) * noise) @ A)
    noise = np.random.default_rng(1).standard_normal((40_000, len(X), 3))
    separate = softmax(mean @ A + np.sqrt(variance @ A**2) * noise)
    assert abs(ours - joint) < 0.02 * abs(joint) < abs(separate - joint)


# -- rule 4: one row per term ----------------------------------------------------------------------------------------


def pairs(X, y=None):
    f = draws(numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X)))
    with numpyro.plate("data", len(X) - 1):
        numpyro.sample("y", dist.Normal(f[1:] * f[:-1], 0.1), obs=None if y is None else y[1:])


def test_terms_of_several_rows_are_refused():
    X, y = sine(6)
    with pytest.raises(ValueError, match=r"the log density of y depends on several rows of GP site 'f'.*joint=\{'f'\}"):
        InducingGuide(pairs, kmeans(3)).setup(X, y)


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (lambda X, h: GaussianProcess(RBF(1.0, 1.0), h - jnp.mean(h, axis=0)), "inputs of f depend"),
        (lambda X, h: GaussianProcess(RBF(1.0, 1.0), X, mean=jnp.cumsum(h[:, 0])), "mean of f depends"),
        (lambda X, h: GaussianProcess(RBF(1.0, jnp.exp(jnp.mean(h))), X), "kernel of f depends"),
    ],
    ids=["inputs", "mean", "kernel"],
)
def test_inner_sites_of_several_rows_are_refused(later, words):
    X, y = sine(6)

    def layers(X, y=None):
        h = draws(numpyro.sample("h", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=1)))
        f = numpyro.sample("f", later(X, h))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    with pytest.raises(ValueError, match=f"the {words} on several rows of GP site 'h'"):
        InducingGuide(layers, kmeans(3)).setup(X, y)


def test_joint_draws_give_the_right_expectation():
    X, y = sine(6)
    guide = InducingGuide(pairs, kmeans(3), joint={"f"})
    params = randomised(trained(pairs, guide, X, y))
    draws = np.asarray(jax.vmap(lambda key: bound(pairs, guide, params, X, y, key=key))(random.split(KEY, 4000)))
    mean, covariance = marginals(guide, params, X, y, joint=True)
    f = np.random.default_rng(0).multivariate_normal(mean, covariance, 40_000)
    logs = norm.logpdf(np.asarray(y)[1:], f[:, 1:] * f[:, :-1], 0.1).sum(1)
    error = np.hypot(standard_error(draws), standard_error(logs))
    assert abs(draws.mean() - (logs.mean() + float(terms(pairs, guide, params, X, y)["f"]))) < 4 * error


# -- rule 5: joint everywhere else -----------------------------------------------------------------------------------


def test_plain_objectives_agree_in_the_mean():
    # The same guide under NumPyro's own estimator: joint draws, joint densities.
    X, y = sine(6)
    guide = InducingGuide(regression, InducingPoints(X[::2]))
    params = randomised(trained(regression, guide, X, y))
    exact = bound(regression, guide, params, X, y)
    estimate = Trace_ELBO(num_particles=1)
    one = jax.jit(jax.vmap(lambda k: -estimate.loss(k, params, regression, guide, X, y)))
    draws = np.asarray(one(random.split(KEY, 3000)))
    assert draws.std() > 0
    assert off(draws, exact) < 4


def test_log_prob_of_marginals_raises():
    X, y = sine(6)
    guide = InducingGuide(regression, InducingPoints(X[::2]))
    params = trained(regression, guide, X, y)
    seen = {}

    class Keep(numpyro.primitives.Messenger):
        def postprocess_message(self, msg):
            if msg["type"] == "sample" and isinstance(msg["fn"], InducingPosterior):
                seen[msg["name"]] = msg["fn"], msg["value"]

    def spying(*args, **kwargs):
        with Keep():
            return guide(*args, **kwargs)

    bound(regression, spying, params, X, y)
    posterior, value = seen["f"]
    assert isinstance(value, GaussianMarginals)
    with pytest.raises(TypeError, match="GP site 'f' is represented by its marginals"):
        posterior.log_prob(jnp.zeros(6))


# -- rule 6: plates and scales ---------------------------------------------------------------------------------------


def test_the_model_sees_the_guides_minibatch():
    X, y = sine(6)

    def program(X, y):
        with numpyro.plate("data", len(X), subsample_size=3) as rows:
            batch, targets = X[rows], y[rows]
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), batch))
        with numpyro.plate("again", len(X), subsample_size=3):
            numpyro.sample("y", Gaussian(f, 0.1), obs=targets)

    guide = InducingGuide(program, InducingPoints(X[::2]))
    params = randomised(trained(program, guide, X, y))

    # Were the model to draw rows of its own, its targets would not be those of the guide's f.
    @jax.jit
    def replayed(params):
        with handlers.block():
            run = handlers.trace(handlers.substitute(handlers.seed(guide, 3), data=params)).get_trace(X, y)
            again = handlers.trace(handlers.replay(handlers.seed(program, 4), run)).get_trace(X, y)
            alone = handlers.trace(handlers.seed(program, 4)).get_trace(X, y)
        return run["data"]["value"], again["data"]["value"], again["y"]["value"], alone["data"]["value"]

    rows, same, targets, own = (np.asarray(x) for x in replayed(params))
    np.testing.assert_array_equal(rows, same)
    np.testing.assert_array_equal(targets, np.asarray(y)[rows])
    assert (rows != own).any()


def test_minibatch_bounds_average_to_the_whole():
    X, y = sine(6)
    guide = InducingGuide(regression, InducingPoints(X[::2]))
    params = randomised(trained(regression, guide, X, y))
    whole = bound(regression, guide, params, X, y)
    X, y = np.asarray(X), np.asarray(y)
    parts = [bound(regression, guide, params, X[i : i + 2], y[i : i + 2], num_data=6) for i in range(0, 6, 2)]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-10)


def test_different_scales_raise():
    X, y = sine(6)
    guide = InducingGuide(regression, kmeans(3))
    params = trained(regression, guide, X, y)
    with pytest.raises(ValueError, match=r"scale 1\.0 in the guide and 0\.5 in the model"):
        bound(handlers.scale(regression, 0.5), lambda *args, **kwargs: guide(*args, **kwargs), params, X, y)
    both = InducingGuide(handlers.scale(regression, 0.5), kmeans(3))
    halved = bound(handlers.scale(regression, 0.5), both, params, X, y)
    np.testing.assert_allclose(halved, float(bound(regression, guide, params, X, y)) / 2, rtol=1e-10)


def test_gp_sites_refuse_plates_and_masks():
    X, y = sine(6)

    def inside(X, y):
        with numpyro.plate("data", len(X)):
            numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))

    def masked(X, y):
        with handlers.mask(mask=jnp.ones(len(X), bool)):
            numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))

    with pytest.raises(ValueError, match="cannot be inside a plate"):
        InducingGuide(inside, kmeans(3)).setup(X, y)
    with pytest.raises(ValueError, match="cannot be masked"):
        InducingGuide(masked, kmeans(3)).setup(X, y)


# -- rule 7: which sites are latent ----------------------------------------------------------------------------------


def test_prediction_draws_y_from_the_model():
    X, y = sine(6)
    guide = InducingGuide(regression, kmeans(3))
    params = randomised(trained(regression, guide, X, y))
    new = X + 0.05

    @jax.jit
    def drawn(key):
        of_model = Predictive(regression, guide=guide, params=params, num_samples=200, parallel=True)(key, new)
        return of_model["y"], Predictive(guide, params=params, num_samples=3, parallel=True)(key, X, y)

    draws, with_data = drawn(KEY)
    assert draws.shape == (200, 6)
    exact = Trained(regression, guide, params).predict(KEY, new)["y"]
    np.testing.assert_allclose(np.asarray(draws).mean(0), exact.mean, atol=5 * np.sqrt(exact.variance.max() / 200))
    assert set(with_data) == {"f"}


def test_first_call_without_data_is_refused():
    X, _ = sine(6)
    with pytest.raises(ValueError, match=r"Site 'y' .*has no data.* in the guide's first call"):
        InducingGuide(regression, kmeans(3)).setup(X)


def test_a_discrete_latent_is_told_what_it_is():
    X, y = sine(6)

    def program(X, y=None):
        state = numpyro.sample("state", dist.Categorical(jnp.array([0.5, 0.5])))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, jnp.array([0.1, 1.0])[state]), obs=y)

    with pytest.raises(ValueError, match=r"Site 'state' \(Categorical\w*\) is a discrete latent .*DiscreteHMCGibbs"):
        InducingGuide(program, kmeans(3)).setup(X, y)


def test_an_initialiser_names_its_site_and_the_layers_that_start_constant():
    X, y = sine(6)

    def program(X, y=None):
        g = numpyro.sample("g", GaussianProcess(RBF(1.0, 1.0), X, mean=X[:, 0]))
        h = numpyro.sample("h", GaussianProcess(RBF(1.0, 1.0), g[:, None], num_outputs=2))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), h))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    message = r"^GP site 'f': kmeans\(3\) .* only 1 distinct row\. .* before it, 'h', start constant: give them a mean"
    with pytest.raises(ValueError, match=message):
        InducingGuide(program, kmeans(3)).init_params(KEY, X, y)


def test_obs_mask_is_refused():
    X, y = sine(6)

    def program(X, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", dist.Normal(draws(f), 0.1), obs=y, obs_mask=jnp.arange(6) > 2)

    with pytest.raises(ValueError, match=r"'y' uses obs_mask.*handlers\.mask"):
        InducingGuide(program, kmeans(3)).setup(X, y)


def test_masked_data_leave_the_bound():
    X, y = sine(6)

    def masked(X, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X)), handlers.mask(mask=jnp.arange(len(X)) < 4):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    def short(X, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", 4):
            numpyro.sample("y", Gaussian(f[:4], 0.1), obs=y[:4])

    guides = [InducingGuide(program, InducingPoints(X[::2])) for program in (masked, short)]
    params = randomised(trained(masked, guides[0], X, y))
    values = [bound(p, g, params, X, y) for p, g in zip((masked, short), guides, strict=True)]
    np.testing.assert_allclose(*values, rtol=1e-12)


def test_latents_per_datum_in_a_minibatch_are_refused():
    X, y = sine(6)

    def program(X, y, *, num_data):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", num_data, subsample_size=len(X)):
            outlier = numpyro.sample("outlier", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(draws(f) + outlier, 0.1), obs=y)

    with pytest.raises(ValueError, match="'outlier' is inside the subsampled plate 'data'"):
        InducingGuide(program, kmeans(3)).init_params(KEY, X, y, model_kwargs={"num_data": 100})


# -- where the parameters start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("whiten", [True, False])
def test_starts_of_one_program_are_those_of_single_operations(whiten, monkeypatch):
    X, y = sine(6)
    guide = InducingGuide(regression, kmeans(3), whiten=whiten)
    guide.setup(X, y)
    started = partial(run, named_key(KEY, "initial values"), (X, y), {}, guide=guide, values={}, complete=False)
    at_once = guide._started_at_once(started, guide.looks_at_inputs())
    monkeypatch.setattr(InducingGuide, "_started_at_once", lambda *_: None)
    one_by_one = guide.init_params(KEY, X, y)
    assert list(at_once) == list(one_by_one)
    for name, value in one_by_one.items():
        np.testing.assert_allclose(at_once[name]["value"], value, rtol=1e-12, atol=1e-14, err_msg=name)


# -- inducing variables that stay ------------------------------------------------------------------------------------

OPTIMISERS = {
    "adam": lambda guide: (optax.adam(0.05), GaussianProcessELBO()),
    "lbfgs": lambda guide: (lbfgs(), GaussianProcessELBO()),
    "collapsed": lambda guide: (lbfgs(), CollapsedELBO()),
    "natural": lambda guide: (NaturalGradients(optax.adam(0.05), guide, 0.5), GaussianProcessELBO()),
    "momentum": lambda guide: (optax.sgd(1e-4, 0.9), GaussianProcessELBO(tight=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fixed_inducing_variables_stay(name, dtype, standard_promotion):
    X, y = sine(30, dtype=dtype)
    Z = np.linspace(-1, 1, 4, dtype=dtype)[:, None]
    for fixed in (True, False):
        guide = InducingGuide(regression, InducingPoints(Z), fixed=fixed)
        optimiser, objective = OPTIMISERS[name](guide)
        found = fit(KEY, SVI(regression, guide, optimiser, objective), 5, X, y, progress=False)
        assert np.array_equal(found.params["f_inducing"], Z) == fixed
        assert found.losses[-1] < found.losses[0]


@pytest.mark.slow
def test_fixed_inducing_variables_by_name_and_in_files(tmp_path, standard_promotion):
    X, y = sine(30)
    guide = InducingGuide(deep, kmeans(5), fixed={"h"})
    svi = SVI(deep, guide, optax.adam(0.05), GaussianProcessELBO())
    before, found = (fit(KEY, svi, steps, X, y, progress=False) for steps in (1, 3))
    assert np.array_equal(found.params["h_inducing"], before.params["h_inducing"])
    assert not np.allclose(found.params["f_inducing"], before.params["f_inducing"])
    found.save(tmp_path / "model")
    assert load(tmp_path / "model", deep).guide.fixed == {"h"}
    with pytest.raises(ValueError, match=r"fixed=.*'g'"):
        InducingGuide(deep, kmeans(5), fixed="g").setup(X, y)
    for wrong in (1, None, [2]):
        with pytest.raises(TypeError, match="fixed must be True, False or names"):
            InducingGuide(deep, kmeans(5), fixed=wrong)
