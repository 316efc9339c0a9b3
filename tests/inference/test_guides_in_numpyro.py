"""Guides among NumPyro's own tools: MCMC, names and scopes, particles, vmap, lift, exact regression, initial values."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.distributions.transforms import OrderedTransform
from numpyro.infer import HMC, MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from scipy.stats import multivariate_normal

from gpzoo.inducing.initialisers import kmeans, random_subset
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.processes.process import GaussianProcess
from tests.programs import (
    KEY,
    adam,
    bayesian_regression,
    bound,
    deep,
    positive,
    program_of,
    randomised,
    regression,
    sine,
    trained,
)
from tests.reference import pairs, rbf
from tests.statistics import off

# -- rule 9: MCMC ----------------------------------------------------------------------------------------------------

PRIORS = {name: dist.LogNormal(0.0, 1.0) for name in ("variance", "lengthscale", "noise")}


# No tree has to be compiled.
ONE_STEP = partial(HMC, num_steps=1, trajectory_length=None)


def run_mcmc(model, *args, kernel=NUTS):
    mcmc = MCMC(kernel(model), num_warmup=30, num_samples=20, progress_bar=False)
    with jax.numpy_dtype_promotion("standard"):
        mcmc.run(KEY, *args)
    return mcmc.get_samples()


@pytest.mark.slow
def test_params_under_mcmc_must_be_lifted():
    X, y = sine(8)
    with pytest.raises(ValueError, match=r"site\(s\) variance, lengthscale are not sampled by MCMC"):
        run_mcmc(regression, X, y)
    lifted = handlers.lift(regression, prior=PRIORS)
    assert set(run_mcmc(lifted, X, y, kernel=ONE_STEP)) == {"f", *PRIORS}
    fixed = handlers.substitute(regression, data={"variance": 1.0, "lengthscale": 0.8, "noise": 0.1})
    assert set(run_mcmc(fixed, X, y, kernel=ONE_STEP)) == {"f"}


@pytest.mark.slow
def test_automatic_guides_may_train_params():
    X, y = sine(8)
    with jax.numpy_dtype_promotion("standard"):
        svi = SVI(regression, AutoNormal(regression), adam(0.01), Trace_ELBO())
        state = svi.init(KEY, X, y)
    assert "lengthscale" in svi.get_params(state)


# -- the methods of NumPyro's automatic guides -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["point", "normal", AutoMultivariateNormal], ids=str)
def test_guides_answer_as_automatic_ones(kind):
    """Quantiles, medians and draws of hyperparameters are those of the distributions that the parameters say."""
    X, y = sine(8)
    guide = InducingGuide(bayesian_regression, kmeans(3), hyperparameters=kind)
    with pytest.raises(ValueError, match="has not seen data"):
        guide.median({})
    params = trained(bayesian_regression, guide, X, y)
    low, middle, high = ({name: x[i] for name, x in guide.quantiles(params, [0.1, 0.5, 0.9]).items()} for i in range(3))
    assert set(middle) == {"lengthscale", "noise"}
    draws = guide.sample_posterior(KEY, params, X, sample_shape=(2, 1000))
    assert draws["f"].shape == (2, 1000, 8)
    for name, median in guide.median(params).items():
        np.testing.assert_allclose(middle[name], median, rtol=1e-6)
        assert np.mean(draws[name] < median) == pytest.approx(0 if kind == "point" else 0.5, abs=0.05)
        inside = np.mean((draws[name] >= low[name]) & (draws[name] <= high[name]))
        assert inside == pytest.approx(1 if kind == "point" else 0.8, abs=0.05)
    f = Trained(bayesian_regression, guide, params).predict(KEY, X, num_draws=2000)["f"]
    np.testing.assert_allclose(draws["f"].mean((0, 1)), f.mean, atol=5 * np.sqrt(f.variance.max() / 2000) + 0.02)
    if kind == "normal":
        fn = guide.get_posterior(params)["noise"]
        np.testing.assert_allclose(fn.sample(KEY, (4000,)).mean(), draws["noise"].mean(), rtol=0.1)
    assert guide.sample_posterior(KEY, params, X)["f"].shape == (8,)


SUPPORTS = {
    "negative": dist.TruncatedNormal(0.0, 1.0, high=0.0),
    "below": dist.TruncatedNormal(jnp.zeros(2), 1.0, high=3.0),
    "interval": dist.Uniform(-1.0, jnp.ones(2)),
    "vector": dist.LogNormal(jnp.zeros(2), 1.0).to_event(1),
    "correlated": dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
    "probabilities": dist.Dirichlet(jnp.ones(3)),
    "ordered": dist.TransformedDistribution(dist.Normal(0, 1).expand([3]).to_event(1), OrderedTransform()),
}


@pytest.mark.slow_but(kind=["negative"])
@pytest.mark.parametrize("kind", SUPPORTS)
def test_quantiles_are_those_of_draws_on_every_support(kind):
    """Transforms to other supports may be decreasing, or mix entries."""

    def program(X, y=None):
        numpyro.sample("theta", SUPPORTS[kind])
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    X, y = sine(6)
    guide = InducingGuide(program, kmeans(3), hyperparameters="normal")
    params = guide.init_params(KEY, X, y)
    params["theta_scale"] = jnp.ones_like(params["theta_scale"])
    levels = [0.9, 0.1, 0.5]
    fn = guide.get_posterior(params)["theta"]
    draws = np.asarray(fn.sample(random.key(7), (4000,)))
    for level, found in zip(levels, guide.quantiles(params, levels)["theta"], strict=True):
        np.testing.assert_allclose((draws < found).mean(0), np.full(draws.shape[1:], level), atol=0.05)
    np.testing.assert_array_equal(guide.median(params)["theta"], guide.quantiles(params, [0.5])["theta"][0])


# -- rule 10: names --------------------------------------------------------------------------------------------------


def test_parameter_names_follow_the_trace():
    X, y = sine(8)
    guide = InducingGuide(bayesian_regression, kmeans(3))
    names = set(trained(bayesian_regression, guide, X, y))
    assert names == {"f_inducing", "f_mean", "f_scale", "lengthscale_loc", "noise_loc"}
    scoped = handlers.scope(bayesian_regression, prefix="a")
    guide = InducingGuide(scoped, {"a/f": kmeans(3)})
    assert set(trained(scoped, guide, X, y)) == {f"a/{name}" for name in names}


def test_scope_changes_nothing_else():
    X, y = sine(8)
    plain, scoped = regression, handlers.scope(regression, prefix="a", divider=".")
    params = randomised(trained(plain, InducingGuide(plain, kmeans(3)), X, y))
    renamed = {f"a.{name}": value for name, value in params.items()}
    expected = bound(plain, InducingGuide(plain, kmeans(3)), params, X, y)
    np.testing.assert_allclose(bound(scoped, InducingGuide(scoped, kmeans(3)), renamed, X, y), expected, rtol=1e-12)


@pytest.mark.slow
def test_handlers_inside_a_program_leave_the_guides_sites_alone():
    X, y = sine(8)

    def lifted(X, y):
        with handlers.lift(prior=dist.LogNormal(0.0, 1.0)), handlers.seed(rng_seed=0), handlers.scale(scale=1.0):
            return regression(X, y)

    guide = InducingGuide(lifted, kmeans(3), hyperparameters="normal")
    sites = handlers.trace(handlers.seed(guide, 0)).get_trace(X, y)
    kinds = {name: site["type"] for name, site in sites.items()}
    assert {name for name, kind in kinds.items() if kind == "sample"} == {"f", *PRIORS}
    assert {name for name in kinds if name.startswith("f_")} == {"f_inducing", "f_mean", "f_scale"}
    # Not the same draw whatever the key is, as a seed inside the program would have it.
    again = handlers.trace(handlers.seed(guide, 1)).get_trace(X, y)
    assert not np.allclose(sites["f"]["value"], again["f"]["value"])

    def hidden(X, y):
        with handlers.block(expose=["f", "y"]):
            return regression(X, y)

    with pytest.raises(ValueError, match=r"'f_inducing'.*handlers.block"):
        handlers.seed(InducingGuide(hidden, kmeans(3)), 0)(X, y)


@pytest.mark.parametrize("argument", ["inducing", "whiten", "covariance", "initial_scale", "joint"])
def test_unknown_site_names_raise(argument):
    X, y = sine(8)
    values = {"inducing": kmeans(3), "whiten": True, "covariance": "full", "initial_scale": 1.0}
    entry = {"g"} if argument == "joint" else {"f": values[argument], "g": values[argument]}
    arguments = {"inducing": kmeans(3)} | {argument: entry}
    with pytest.raises(ValueError, match=rf"InducingGuide\({argument}=...\) names \['g'\].*\['f'\]"):
        InducingGuide(regression, **arguments).setup(X, y)


def test_a_site_without_initialiser_raises():
    X, y = sine(8)
    with pytest.raises(ValueError, match=r"no entry for the GP site\(s\) \['f'\]"):
        InducingGuide(deep, {"h": kmeans(3)}).setup(X, y)


# -- the objective never falls back ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_losing_the_analytic_kl_raises():
    X, y = sine(8)
    guide = AutoNormal(regression)
    with jax.numpy_dtype_promotion("standard"), pytest.raises(ValueError, match="'f' would lose its analytic KL"):
        svi = SVI(regression, guide, adam(0.01), GaussianProcessELBO())
        svi.update(svi.init(KEY, X, y), X, y)


# -- NumPyro's tools -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_several_particles_average():
    X, y = sine(8)
    guide = InducingGuide(deep, InducingPoints(X[::3]), initial_scale=0.5)
    params = guide.init_params(KEY, X, y)
    many = GaussianProcessELBO(num_particles=2000)
    keys = random.split(random.key(5), 2000)
    singles = np.asarray(jax.vmap(lambda k: bound(deep, guide, params, X, y, key=k))(keys))
    average = float(bound(deep, guide, params, X, y, loss=many))
    assert off(singles, average) < 4 * np.sqrt(2)  # both are means of 2,000


@pytest.mark.slow
def test_vmap_over_seeds_equals_each_alone():
    X, y = sine(8)
    guide = InducingGuide(deep, random_subset(3))
    svi = SVI(deep, guide, adam(0.02), GaussianProcessELBO())
    starts = [guide.init_params(random.key(s), X, y) for s in range(3)]

    def train(key, params):
        state = svi.init(key, X, y, init_params=params)
        return jax.lax.scan(lambda s, _: svi.update(s, X, y), state, length=20)[1]

    keys = random.split(KEY, 3)
    together = jax.jit(jax.vmap(train))(keys, jax.tree.map(lambda *xs: np.stack(xs), *starts))
    alone = jax.jit(train)
    for key, start, losses in zip(keys, starts, together, strict=True):
        np.testing.assert_allclose(alone(key, start), losses, rtol=1e-8)


def test_lift_trains_hyperparameters_with_priors():
    X, y = sine(8)
    lifted = handlers.lift(regression, prior=PRIORS)
    guide = InducingGuide(lifted, kmeans(3), hyperparameters="normal")
    params = guide.init_params(KEY, X, y)
    assert {"variance_loc", "variance_scale", "noise_loc", "f_mean"} <= set(params)
    assert np.isfinite(bound(lifted, guide, params, X, y))
    q = Trained(guide.model, guide, params).posterior(KEY, X, y)["lengthscale"]
    sampled = np.asarray(jax.jit(lambda key: q.sample(key, (1000,)))(KEY))
    assert (sampled > 0).all() and sampled.std() > 0


def test_point_hyperparameters_add_their_prior():
    X, y = sine(8)
    guide = InducingGuide(bayesian_regression, InducingPoints(X[::3]))
    params = trained(bayesian_regression, guide, X, y)
    fixed = partial(
        handlers.condition(bayesian_regression, data={k: params[f"{k}_loc"] for k in ("lengthscale", "noise")})
    )
    other = InducingGuide(fixed, InducingPoints(X[::3]))
    rest = {name: value for name, value in params.items() if name.startswith("f_")}
    expected = bound(fixed, other, rest, X, y)
    np.testing.assert_allclose(bound(bayesian_regression, guide, params, X, y), expected, rtol=1e-10)


def test_observed_gp_site_is_exact_regression():
    X, y = sine(8)

    def exact(X, y=None):
        kernel = RBF(positive("variance", 1.0), positive("lengthscale", 1.0))
        from gpzoo.kernels import White

        numpyro.sample("y", GaussianProcess(kernel + White(0.1), X), obs=y)

    guide = InducingGuide(exact, kmeans(3))
    params = guide.init_params(KEY, X, y)
    assert set(params) == {"variance", "lengthscale"}
    K = rbf(*pairs(X, X)) + 0.1 * np.eye(8)
    expected = multivariate_normal(np.zeros(8), K).logpdf(y)
    np.testing.assert_allclose(bound(exact, guide, params, X, y), expected, rtol=1e-4)


def test_initial_values_come_from_each_sites_own_inputs():
    rng = np.random.default_rng(0)
    X, y, W = rng.standard_normal((8, 3)), rng.standard_normal(8), rng.standard_normal((3, 2))

    def program(X, y=None):
        h = numpyro.sample("h", GaussianProcess(RBF(1.0, 1.0), X, mean=X @ W, num_outputs=2))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), h))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    params = InducingGuide(program, random_subset(3)).init_params(KEY, X, y)
    rows = {tuple(row) for row in np.asarray(X @ W).round(10).tolist()}
    assert params["h_inducing"].shape == (3, 3)
    assert all(tuple(row) in rows for row in np.asarray(params["f_inducing"]).round(10).tolist())


@pytest.mark.slow
def test_plain_svi_init_uses_the_same_initialisers():
    X, y = sine(8)
    svi = SVI(regression, InducingGuide(regression, kmeans(3)), adam(0.01), GaussianProcessELBO())
    with jax.numpy_dtype_promotion("standard"):
        Z = svi.get_params(svi.init(KEY, X, y))["f_inducing"]
    assert Z.shape == (3, 1) and np.ptp(Z) > 3


def test_initialisers_refuse_jit():
    X, y = sine(8)
    guide = InducingGuide(regression, kmeans(3))
    with pytest.raises(TypeError, match="initialisers run outside jit"):
        jax.jit(lambda key: guide.init_params(key, X, y))(KEY)


def test_inducing_must_be_an_initialiser_or_variable():
    with pytest.raises(TypeError, match=r"kmeans\(100\)"):
        InducingGuide(regression, np.zeros((3, 1)))


def test_parameter_names_may_not_be_the_models():
    X, y = sine(8)

    def program(X, y=None):
        level = numpyro.param("f_mean", jnp.zeros(()))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, mean=level))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    with pytest.raises(ValueError, match=r"would be named \['f_mean'\]"):
        InducingGuide(program, kmeans(3)).setup(X, y)


def test_unknown_initial_values_are_refused():
    X, y = sine(8)
    with pytest.raises(ValueError, match=r"given names \['lenghtscale'\], but the parameters are"):
        InducingGuide(regression, kmeans(3)).init_params(KEY, X, y, given={"lenghtscale": jnp.ones(())})


@pytest.mark.slow
def test_noise_after_the_process_is_noticed_under_mcmc():
    X, y = sine(8)

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        noise = positive("noise", 0.1)
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, noise), obs=y)

    with pytest.raises(ValueError, match=r"site\(s\) noise are not sampled by MCMC"):
        run_mcmc(program, X, y)


@pytest.mark.slow
def test_unwhitened_diagonal_starts_at_the_priors_scale():
    X, y = sine(8)
    program = program_of(lambda f: Gaussian(f, 0.1), RBF(25.0, 1.0), num_outputs=2)
    guide = InducingGuide(program, kmeans(3), whiten=False, covariance="diagonal", initial_scale=0.5)
    scale = guide.init_params(KEY, X, jnp.stack([y, y], axis=1))["f_scale"]
    np.testing.assert_allclose(scale, 2.5 * np.ones((3, 2)))


@pytest.mark.slow_but(hyperparameters=["point"], changed=["both"])
@pytest.mark.parametrize("hyperparameters", ["point", "normal"])
@pytest.mark.parametrize("changed", ["m", "f", "both"])
def test_interventions_are_what_the_data_see(changed, hyperparameters):
    """``handlers.do`` cuts a site off from the data, a GP site or another: the guide has it, and its prior, alone."""
    values = {"m": jnp.array(2.0), "f": jnp.linspace(0.0, 1.0, 6)}
    values = values if changed == "both" else {changed: values[changed]}
    X, y = np.linspace(0, 1, 6)[:, None], np.linspace(1.0, 3.0, 6)

    def program(X, y=None, *, m=None, f=None):
        of_m, of_f = numpyro.sample("m", dist.Normal()), numpyro.sample("f", GaussianProcess(RBF(), X))
        of_g = numpyro.sample("g", GaussianProcess(RBF(0.5), X))
        mean = of_g + (of_f if f is None else f) + (of_m if m is None else m)
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(mean, 0.1), obs=y)

    bounds, objective = [], GaussianProcessELBO()
    for model in (handlers.do(program, values), partial(program, **values)):
        guide = InducingGuide(model, kmeans(3), hyperparameters=hyperparameters, coupled=False)
        params = guide.init_params(KEY, X, y)
        bounds.append(float(objective.loss(KEY, params, model, guide, X, y)))
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)
