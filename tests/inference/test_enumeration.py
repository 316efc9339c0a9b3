"""Discrete latents beside GP sites are summed out: the same bound as that of programs which do it by hand."""

from contextlib import nullcontext
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.contrib.funsor import config_enumerate
from numpyro.infer import MCMC, NUTS, SVI
from scipy.special import logsumexp
from scipy.stats import norm

from gpzoo import GaussianProcess, InducingPoints, draws, likelihoods
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, fit, nuts, predict
from gpzoo.inference.programs.gp_sites import Bound, in_mode
from gpzoo.kernels import RBF, White
from tests.programs import KEY, adam

RNG = np.random.default_rng(0)
X = np.linspace(-1, 1, 6)[:, None]
Y = RNG.standard_normal(6)
SEEN = np.arange(6) != 2
Z = InducingPoints(jnp.linspace(-1, 1, 3)[:, None])
WEIGHTS = jnp.array([0.3, 0.7])
MOVES = np.array([[0.9, 0.1], [0.2, 0.8]])
PARALLEL = {"enumerate": "parallel"}


def functions(X, count=2):
    return numpyro.sample("f", GaussianProcess(RBF(1.0, 0.5), X, num_outputs=count, jitter=1e-10))


def plate(X, num_data=None):
    return numpyro.plate("data", num_data or len(X), subsample_size=len(X))


def mixture(X, y=None, *, by_hand=False, seen=True, num_data=None):
    f = functions(X)
    with plate(X, num_data), handlers.mask(mask=jnp.broadcast_to(seen, len(X))):
        if by_hand:
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(WEIGHTS), dist.Normal(draws(f), 0.3)), obs=y)
        else:
            z = numpyro.sample("z", dist.Categorical(WEIGHTS), infer=PARALLEL)
            numpyro.sample("y", dist.Normal(draws(f)[jnp.arange(len(X)), z], 0.3), obs=y)


def outliers(X, y=None, *, by_hand=False, num_data=None):
    f = draws(functions(X, None))
    with plate(X, num_data):
        if by_hand:
            parts = [jnp.log(0.9) + dist.Normal(f, 0.3).log_prob(y), jnp.log(0.1) + dist.Normal(0.0, 5.0).log_prob(y)]
            numpyro.factor("y", jnp.logaddexp(*parts))
        else:
            wrong = numpyro.sample("wrong", dist.Bernoulli(0.1))
            numpyro.sample("y", dist.Normal(jnp.where(wrong, 0.0, f), jnp.where(wrong, 5.0, 0.3)), obs=y)


def chain(X, y=None, *, num_chains=None):
    """A hidden Markov model, or several with the same emissions, ``y [T, S]``."""
    f = draws(functions(X))
    several = 0 if y is None else y.ndim - 1

    def step(z, at):
        f, y = at
        with numpyro.plate("chains", num_chains, subsample_size=len(y)) if several else nullcontext():
            z = numpyro.sample("z", dist.Categorical(jnp.asarray(MOVES)[z]), infer=PARALLEL)
            return z, numpyro.sample("y", dist.Normal(f[z], 0.3), obs=y)

    scan(step, jnp.zeros(y.shape[1], int) if several else 0, (f, y), length=len(X))


def shared(X, y=None, w=None):
    """A variable that all rows share, one for each row that depends on it, and two sites of data."""
    f = draws(functions(X))
    c = numpyro.sample("c", dist.Bernoulli(0.3), infer=PARALLEL)
    with plate(X):
        z = numpyro.sample("z", dist.Categorical(jnp.array([[0.5, 0.5], [0.1, 0.9]])[c]), infer=PARALLEL)
        numpyro.sample("y", dist.Normal(f[jnp.arange(len(X)), z], 0.3), obs=y)
        numpyro.sample("w", dist.Normal(jnp.where(c, 1.0, 0.0), 1.0), obs=w)


def bound(program, params, elbo, **kwargs):
    guide = InducingGuide(program, Z)
    guide.setup(X, Y, model_kwargs=kwargs)
    return jax.jit(jax.value_and_grad(lambda p: elbo.loss(KEY, p, program, guide, X, Y, **kwargs)))(params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "outputs", "kwargs", "particles"),
    [(mixture, 2, {"seen": SEEN, "num_data": 18}, 2), (config_enumerate(outliers), None, {"num_data": 18}, 1)],
)
def test_the_bound_is_that_of_the_program_summed_out_by_hand(program, outputs, kwargs, particles):
    shape = () if outputs is None else (outputs,)
    params = {
        "f_inducing": np.asarray(Z.Z),
        "f_mean": RNG.standard_normal((3, *shape)),
        "f_scale": 0.5 * np.broadcast_to(np.eye(3), (*shape, 3, 3)),
    }
    elbo = GaussianProcessELBO(particles)
    found, slope = bound(program, params, elbo, **kwargs)
    by_hand, slope_by_hand = bound(partial(program, by_hand=True), params, elbo, **kwargs)
    np.testing.assert_allclose(found, by_hand, rtol=1e-10)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10), slope, slope_by_hand)


def terms_and_draw(program, *data, **kwargs):
    """The contributions to the bound, and the joint draw of ``f`` that they are given."""
    guide = InducingGuide(program, Z, joint={"f"})
    params = guide.init_params(KEY, X, *data, model_kwargs=kwargs)

    def both(params):
        with in_mode(Bound()):
            run = handlers.substitute(handlers.seed(guide, random.split(KEY)[1]), params)
            f = handlers.trace(run).get_trace(X, *data, **kwargs)["f"]["value"]
        return GaussianProcessELBO(sum_sites=False).loss(KEY, params, program, guide, X, *data, **kwargs), f

    return jax.tree.map(np.asarray, jax.jit(both)(params))


@pytest.mark.slow
@pytest.mark.parametrize("chains", [None, 2])
def test_a_hidden_markov_model_of_gps_is_summed_by_the_forward_algorithm(chains):
    y = Y if chains is None else RNG.standard_normal((6, chains))
    terms, f = terms_and_draw(chain, y, **({} if chains is None else {"num_chains": 3 * chains}))
    total = 0.0
    for own in y.reshape(6, -1).T:
        forward = np.log(MOVES[0]) + norm.logpdf(own[0], f[0], 0.3)
        for t in range(1, 6):
            forward = logsumexp(forward[:, None] + np.log(MOVES), axis=0) + norm.logpdf(own[t], f[t], 0.3)
        total += logsumexp(forward)
    np.testing.assert_allclose(-terms["y"], total if chains is None else 3 * total, rtol=1e-10)
    assert set(terms) == {"f", "y"}


def test_variables_that_depend_on_each_other_are_summed_together():
    w = RNG.standard_normal(6)
    terms, f = terms_and_draw(shared, Y, w)
    given = [
        np.log(p_c) + np.sum(logsumexp(np.log(p_z) + norm.logpdf(Y[:, None], f, 0.3), axis=1) + norm.logpdf(w, c, 1.0))
        for c, p_c, p_z in ((0, 0.7, [0.5, 0.5]), (1, 0.3, [0.1, 0.9]))
    ]
    np.testing.assert_allclose(-terms["w+y"], logsumexp(given), rtol=1e-10)


# -- refusals ----------------------------------------------------------------------------------------------------------


def with_site(sampled, data=None, **infer):
    """A program with a discrete site, outside the plate of the data."""

    def program(X, y=None, *, num_data=None):
        z = numpyro.sample("z", sampled, infer=infer)
        f = functions(X)
        with plate(X, num_data):
            numpyro.sample(
                "y", (data or (lambda f, z: dist.Normal(draws(f)[:, 0] + z, 0.3)))(f, z.astype(X.dtype)), obs=y
            )

    return program


def without_plate(X, y=None):
    f = draws(functions(X))
    z = numpyro.sample("z", dist.Categorical(jnp.broadcast_to(WEIGHTS, (len(X), 2))), infer=PARALLEL)
    numpyro.sample("y", dist.Normal(f[jnp.arange(len(X)), z], 0.3), obs=y)


def kernel_by_site(X, y=None):
    z = numpyro.sample("z", dist.Bernoulli(0.5), infer=PARALLEL)
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, jnp.array([0.5, 1.0])[z]), X))
    with plate(X):
        numpyro.sample("y", dist.Normal(draws(f), 0.3), obs=y)


def latent_by_site(X, y=None):
    f = functions(X)
    with plate(X):
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer=PARALLEL)
        a = numpyro.sample("a", dist.Normal(jnp.where(z, 1.0, 0.0), 1.0))
        numpyro.sample("y", dist.Normal(draws(f)[:, 0] + a, 0.3), obs=y)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (with_site(dist.Bernoulli(0.5)), r"Site 'z' .* is a discrete latent .*'enumerate': 'parallel'.*DiscreteHMC"),
        (with_site(dist.Bernoulli(0.5), enumerate="sequential"), r"Site 'z' .*'sequential'.* all their values at once"),
        (with_site(dist.Bernoulli(0.5), **PARALLEL), r"the log density of y depends on several rows of GP site 'f'"),
        (with_site(dist.DiscreteUniform(1, 2), **PARALLEL), r"values of site 'z' are \[1, 2\].* from 0 on"),
        (with_site(dist.Poisson(2.0), **PARALLEL), r"Site 'z' \(Poisson\) is not enumerated here"),
        (without_plate, r"Site 'z' has shape \(6,\) with an axis that belongs to no plate"),
        (kernel_by_site, r"mean or kernel of GP site 'f' depend on the discrete site\(s\) \['z'\]"),
        (latent_by_site, r"Latent site 'a' depends on a discrete latent variable"),
        pytest.param(
            chain,
            r"the log density of y depends on several rows of GP site 'f'.*joint=",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_summed_out_is_refused(program, message):
    with pytest.raises(ValueError, match=message):
        InducingGuide(program, Z).setup(X, Y)


PARTS = {
    "inputs": lambda z, X: GaussianProcess(RBF(1.0, 0.5) + White(0.1), X * jnp.array([0.5, 1.0])[z]),
    "mean": lambda z, X: GaussianProcess(RBF(1.0, 0.5) + White(0.1), X, mean=jnp.array([0.0, 1.0])[z] * X[:, 0]),
    "lengthscale": lambda z, X: GaussianProcess(RBF(1.0, jnp.array([0.5, 1.0])[z]) + White(0.1), X),
    "noise": lambda z, X: GaussianProcess(RBF(1.0, 0.5) + White(jnp.array([0.1, 1.0])[z]), X),
}


@pytest.mark.slow_but(call=["setup", "predict"], columns=[1])
@pytest.mark.parametrize(
    ("call", "part", "columns"),
    [*product(["setup", "predict"], PARTS, [1, 2]), ("nuts", "lengthscale", 2)],
)
def test_an_observed_gp_whose_prior_depends_on_a_discrete_site_is_refused(call, part, columns):
    def program(X, y=None):
        numpyro.sample("a", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Categorical(WEIGHTS), infer=PARALLEL)
        numpyro.sample("y", PARTS[part](z, X), obs=y)

    inputs = np.concatenate([X, X**2], axis=1)[:, :columns]
    calls = {
        "setup": lambda: InducingGuide(program, Z).setup(inputs, Y),
        "predict": lambda: predict(KEY, program, inputs, posterior_samples={"a": Y}, train_args=(inputs, Y)),
        "nuts": lambda: nuts(KEY, program, inputs, Y, num_warmup=1, num_samples=1),
    }
    with pytest.raises(ValueError, match=r"mean or kernel of GP site 'y' depend on the discrete site\(s\) \['z'\]"):
        calls[call]()


def test_a_minibatch_estimates_no_sum_over_what_rows_share():
    of_all = with_site(dist.Bernoulli(0.5), **PARALLEL)
    with pytest.raises(ValueError, match=r"\['z'\] and the data 'y' .* different scales.*without batch_size"):
        InducingGuide(of_all, Z, joint={"f"}).setup(X, Y, model_kwargs={"num_data": 18})
    svi = SVI(chain, InducingGuide(chain, Z, joint={"f"}), adam(0.1), GaussianProcessELBO())
    with pytest.raises(ValueError, match=r"data 'y' of different rows depend on each other .*\['z'\].*batch_size"):
        fit(KEY, svi, 1, X, Y, batch_size=3, progress=False)


def test_a_likelihood_of_marginals_for_each_value_is_refused_with_the_way_out():
    program = with_site(dist.Bernoulli(0.5), lambda f, z: likelihoods.Gaussian(f[:, 0], 0.1 + z), **PARALLEL)
    with pytest.raises(ValueError, match="noise_variance has shape") as error:
        InducingGuide(program, Z).setup(X, Y)
    assert "give values that depend on these sites to distributions of NumPyro" in error.value.__notes__[0]


def test_other_guides_and_objectives_are_refused(standard_promotion):
    def guide(X, y=None):
        numpyro.sample("z", dist.Bernoulli(0.5))

    def program(X, y=None, marked=PARALLEL):
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer=marked)
        with plate(X):
            numpyro.sample("y", dist.Normal(jnp.zeros(len(X)) + z.astype(float), 1.0), obs=y)

    with pytest.raises(ValueError, match="Discrete site 'z' is summed out only beside an InducingGuide"):
        GaussianProcessELBO().loss(KEY, {}, program, lambda X, y: None, X, Y)
    with pytest.raises(ValueError, match="The guide has the discrete site 'z'"):
        GaussianProcessELBO().loss(KEY, {}, partial(program, marked={}), guide, X, Y)
    gaussian = with_site(dist.Bernoulli(0.5), lambda f, z: likelihoods.Gaussian(f[:, 0], 0.1), **PARALLEL)
    sites = InducingGuide(gaussian, Z)
    with pytest.raises(ValueError, match=r"site\(s\) 'z' are discrete latent variables"):
        CollapsedELBO().loss(KEY, sites.init_params(KEY, X, Y), gaussian, sites, X, Y)


# -- NumPyro's own inference -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nuts_sums_out_by_itself_and_predictions_draw_from_the_prior(standard_promotion):
    mcmc = MCMC(NUTS(mixture, max_tree_depth=2), num_warmup=2, num_samples=3, progress_bar=False)
    mcmc.run(KEY, X, Y)
    samples = mcmc.get_samples()
    assert set(samples) == {"f"}
    found = predict(KEY, mixture, X[:2], posterior_samples=samples, train_args=(X, Y), test_data={"y": Y[:2]})
    np.testing.assert_allclose(found["z"].probs, np.broadcast_to(WEIGHTS, (2, 2)))
    # At a training input f is known: the density is the average over draws, in which z is summed out.
    each = logsumexp(norm.logpdf(Y[:2, None], samples["f"][:, :2], 0.3) + np.log(WEIGHTS), axis=-1)
    np.testing.assert_allclose(found["y"].log_density, logsumexp(each, axis=0) - np.log(3), rtol=1e-5)  # of the jitter
