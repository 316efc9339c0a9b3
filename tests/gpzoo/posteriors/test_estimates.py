"""Estimated moments under sampled views: the authors' numbers, and exact sums over orbits that are small enough."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.distributions.kl import kl_divergence
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO

from gpzoo import (
    GaussianProcess,
    InducingBlocks,
    InducingPatches,
    InducingPoints,
    InducingPosterior,
    Orbit,
    SampledView,
    Subsampled,
    kmeans,
    random_subset,
    unique_patches,
)
from gpzoo._pytree import static
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.inference.programs import gp_sites
from gpzoo.kernels import RBF, Invariant, White
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, PolyaGamma, RobustMax, Softmax, StickBreaking
from gpzoo.posteriors import Projection, forms
from gpzoo.posteriors.sampled_views import PairWeights, view_variances
from gpzoo.processes.marginals import EstimatedMarginals, GaussianMarginals
from tests.programs import KEY, adam, trained
from tests.statistics import off


class Given(SampledView):
    """Views that are given, ``[N, S, size]``."""

    views: jax.Array

    def __init__(self, views):
        super().__init__(views.shape[2:], views.shape[1], 4)
        self.views = views

    def sample(self, key, X):
        return self.views


class WithReplacement(SampledView):
    """Views of an orbit drawn independently: a density, whose mean is that over the orbit."""

    orbit: Orbit = static()

    def __init__(self, orbit, num_views):
        super().__init__(orbit.input_shape, num_views, 50)
        self.orbit = orbit

    def noise(self, key, num_views):
        return jax.random.randint(key, (num_views,), 0, self.orbit.num_views)

    def transform(self, x, noise):
        return self.orbit.view(x[None])[0, noise]


# -- golden ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_golden_estimates(golden, dtype):
    arrays, _ = golden("invgp_03_stochastic_infinite_orbit")
    given = {name[3:]: jnp.asarray(value, dtype) for name, value in arrays.items() if name.startswith("in_")}
    rtol = 1e-4 if dtype == jnp.float32 else 1e-8
    close = partial(np.testing.assert_allclose, rtol=rtol, atol=rtol)
    jitter = float(given["jitter"])

    @jax.jit
    def everything(given):
        base = RBF(given["variance"], given["lengthscales"])
        prior = GaussianProcess(Invariant(base, Given(given["Xorbit"])), given["X"], num_outputs=2, jitter=jitter)
        at = Projection(prior, InducingPatches(given["Z"]))
        q = InducingPosterior(at, given["q_mu"], forms.Full(given["q_sqrt"]), value=gp_sites.estimates)
        f = q.sample(KEY)
        pairs = PairWeights.of(prior.kernel.view)
        expectation = Gaussian(f, given["noise_variance"]).log_prob(given["Y"])
        divergence = kl_divergence(q, prior)
        return {
            "est_mean": f.mean,
            "est_second": f.variance,
            "Kdiag_est": view_variances(prior.kernel, prior.X, given["Xorbit"], pairs),
            "var_exp": expectation,
            "KL": divergence,
            "elbo": given["num_data"] / len(given["X"]) * expectation.sum() - divergence,
        }

    for name, value in everything(given).items():
        wanted = arrays[f"out_{name}"]
        close(value, wanted.sum(1) if name == "var_exp" else wanted, err_msg=name)


def test_golden_orbit(golden):
    arrays, _ = golden("invgp_01_switchxy_gaussian")
    given = {name[3:]: jnp.asarray(value) for name, value in arrays.items() if name.startswith("in_")}
    close = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)
    swap = Orbit([(0, 1), (1, 0)])

    def posterior(X, **parameters):
        p = given | parameters
        prior = GaussianProcess(
            Invariant(RBF(p["variance"], p["lengthscales"]), swap), X, num_outputs=1, jitter=float(given["jitter"])
        )
        at = Projection(prior, InducingPatches(p["Z"]))
        return InducingPosterior(at, p["q_mu"], forms.Full(p["q_sqrt"]), value=gp_sites.marginals)

    @jax.jit
    def everything():
        kernel = posterior(given["X"]).prior.kernel
        found = {
            "Xorbit": swap.view(given["X"]),
            "Kxx": kernel(given["X"]),
            "Kx_test": kernel(given["X"], given["X_test"]),
            "Kdiag": kernel.diag(given["X"]),
            "Kuu": kernel.base(given["Z"]),
            "Kuf": kernel.cross_view(given["X"], given["Z"]).T,
            "fcov_test": posterior(given["X_test"]).as_joint().moments()[1],
        }
        for X, end in ((given["X"], ""), (given["X_test"], "_test")):
            found[f"fmean{end}"], found[f"fvar{end}"] = posterior(X).marginals()
        return found

    for name, value in everything().items():
        close(value, arrays[f"out_{name}"], err_msg=name)

    def elbo(parameters):
        q = posterior(given["X"], **parameters)
        terms = Gaussian(q.sample(KEY), given["noise_variance"]).log_prob(given["Y"])
        return given["num_data"] / len(given["X"]) * terms.sum() - kl_divergence(q, q.prior)

    names = ("Z", "q_mu", "variance", "lengthscales")
    value, gradients = jax.jit(jax.value_and_grad(elbo))({name: given[name] for name in names})
    close(value, arrays["out_elbo"])
    for name in names:
        np.testing.assert_allclose(gradients[name], arrays[f"out_grad_{name}"], rtol=1e-6, atol=1e-7)


# -- unbiased ----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(4)
ORBIT = Orbit([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
X = jnp.asarray(RNG.normal(size=(2, 3)))
Z = jnp.asarray(RNG.normal(size=(4, 3)))
SCALE = jnp.asarray(np.tril(RNG.normal(size=(2, 4, 4))) * 0.4 + np.eye(4))
MEAN = jnp.asarray(RNG.normal(size=(4, 2)))
FULL = forms.Full(SCALE)


def posterior(kernel, mean=MEAN, form=FULL, inducing=None, whiten=True):
    inducing = InducingPatches(Z) if inducing is None else inducing
    at = Projection(GaussianProcess(kernel, X, num_outputs=2), inducing, whiten=whiten)
    return InducingPosterior(at, mean, form)


def estimated(kernel, pairs_of, key, **options):
    """Estimates of the mean, its square, the variance and ``k_ff``, from the same views."""
    q = posterior(kernel, **options)
    mean, second = q.estimates(key)
    second = second + jnp.square(mean)
    _, variance = posterior(kernel, mean=jnp.zeros_like(MEAN), **options).estimates(key)
    views = pairs_of.view.sample(key, X)
    return {
        "mean": mean,
        "mean square": second - variance,
        "variance": variance,
        "kff": view_variances(kernel, X, views, PairWeights.of(pairs_of.view)),
    }


VIEWS = {
    "with replacement": WithReplacement(ORBIT, 3),
    "two views": WithReplacement(ORBIT, 2),
    "without replacement": Subsampled(ORBIT, 3),
}
FORMS = {
    "whitened": {},
    "not whitened": {"whiten": False},
    "diagonal": {"form": forms.Diagonal(jnp.abs(MEAN) + 0.1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_estimates_are_unbiased_and_the_plug_in_is_not(view):
    base = RBF(1.3, 0.8)
    kernel, exact = Invariant(base, VIEWS[view]), Invariant(base, ORBIT)

    @jax.jit
    @jax.vmap
    def draw(key):
        naive = jax.vmap(lambda v: jnp.mean(base(v)))(kernel.view.sample(key, X))
        return {form: estimated(kernel, kernel, key, **FORMS[form]) for form in FORMS}, naive

    @jax.jit
    def exactly():
        return {form: posterior(exact, **FORMS[form]).marginals() for form in FORMS}, exact.diag(X)

    of_forms, naive = jax.tree.map(np.asarray, draw(jax.random.split(jax.random.key(7), 20_000)))
    moments, kff = jax.tree.map(np.asarray, exactly())

    for form, draws in of_forms.items():
        mean, variance = moments[form]
        wanted = {"mean": mean, "mean square": mean**2, "variance": variance, "kff": kff}
        for name, values in draws.items():
            assert off(values, wanted[name]).max() < 5, (form, name)
        # The square of an estimate is no estimate of the square: the same test sees its bias.
        assert off(np.square(draws["mean"]), np.square(mean)).max() > 5, form
    assert off(naive, kff).max() > 5


def test_all_views_of_an_orbit_give_the_sum_itself():
    some, exact = (Invariant(RBF(1.3, 0.8), view) for view in (Subsampled(ORBIT, 6), ORBIT))

    @jax.jit
    def both():
        return {
            form: (posterior(some, **options).estimates(KEY), posterior(exact, **options).marginals())
            for form, options in FORMS.items()
        }

    for form, ((mean, second), wanted) in both().items():
        np.testing.assert_allclose(mean, wanted[0], rtol=1e-9, err_msg=form)
        np.testing.assert_allclose(second, wanted[1], rtol=1e-8, err_msg=form)


def test_sums_scales_and_blocks_of_kernels_are_unbiased():
    part, rest = Invariant(RBF(1.3, 0.8), WithReplacement(ORBIT, 3)), RBF(0.5, 1.5)
    exact = 0.7 * Invariant(RBF(1.3, 0.8), ORBIT) + rest + White(0.1)
    two = InducingBlocks(InducingPatches(Z), InducingPoints(Z + 0.1))
    scale, mean = np.tril(RNG.normal(size=(2, 8, 8))) * 0.3 + np.eye(8), RNG.normal(size=(8, 2))
    options = {"mean": mean, "form": forms.Full(scale), "inducing": two}

    @jax.jit
    def everything(keys):
        q = posterior(0.7 * part + rest + White(0.1), **options)
        # Shared inducing variables: white noise is a part of u, and of no covariance with f.
        one = posterior(Invariant(RBF(1.3, 0.8), Subsampled(ORBIT, 6)) + White(0.1)).estimates(KEY)[1]
        other = posterior(Invariant(RBF(1.3, 0.8), ORBIT) + White(0.1)).marginals()[1]
        return posterior(exact, **options).marginals(), jax.vmap(q.estimates)(keys), (one, other)

    found = jax.tree.map(np.asarray, everything(jax.random.split(jax.random.key(3), 20_000)))
    (wanted_mean, wanted_variance), (means, seconds), white = found
    for draws, wanted in ((means, wanted_mean), (seconds + means**2, wanted_variance + wanted_mean**2)):
        assert off(draws, wanted).max() < 5
    np.testing.assert_allclose(*white, rtol=1e-8)


@pytest.mark.slow
def test_blocks_may_differ_in_their_numbers():
    inducing = InducingBlocks(InducingPatches(Z), InducingPoints(Z[:1] + 0.1))
    options = {"mean": jnp.ones((5, 2)), "form": forms.Full(jnp.eye(5) + jnp.zeros((2, 5, 5))), "inducing": inducing}
    some, exact = (Invariant(RBF(1.3, 0.8), view) + RBF(0.5, 1.5) for view in (Subsampled(ORBIT, 6), ORBIT))
    mean, variance = posterior(some, **options).estimates(KEY)
    wanted = posterior(exact, **options).marginals()
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-9)
    np.testing.assert_allclose(variance, wanted[1], rtol=1e-8)


@pytest.mark.slow
def test_the_bound_of_a_program_is_unbiased():
    y = jnp.asarray([[0.3, -0.2], [1.0, 0.4]])

    def program(X, y, view):
        f = numpyro.sample("f", GaussianProcess(Invariant(RBF(1.3, 0.8), view), X, num_outputs=2))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.5), obs=y)

    def loss_of(view):
        model = partial(program, view=view)
        guide = InducingGuide(model, InducingPatches(Z))
        params = guide.init_params(KEY, X, y) | {"f_mean": MEAN, "f_scale": SCALE}
        loss = GaussianProcessELBO()
        return lambda key: loss.loss(key, params, model, guide, X, y)

    exact = jax.jit(loss_of(ORBIT))(KEY)
    draws = np.asarray(jax.jit(jax.vmap(loss_of(VIEWS["with replacement"])))(jax.random.split(KEY, 20_000)))
    assert off(draws, exact) < 5
    assert draws.std() > 0.1
    np.testing.assert_allclose(jax.jit(loss_of(Subsampled(ORBIT, 6)))(KEY), exact, rtol=1e-9)


# -- what they are for -------------------------------------------------------------------------------------------------


def estimates(columns=2):
    rng = np.random.default_rng(0)
    shape = (3,) if columns is None else (3, columns)
    mean, variance = rng.normal(size=shape), rng.normal(size=shape)
    return EstimatedMarginals(jnp.asarray(mean), jnp.asarray(variance), sites=frozenset({"f"}))


def test_operations_that_are_exact_keep_the_estimates():
    @jax.jit
    def everything(f):
        scaled = [(f * 2 + 1, 2, 1), (1 - f / 2, -0.5, 1), (-f, -1, 0)]
        assert all(type(g) is EstimatedMarginals for g, _, _ in scaled)
        some = f[jnp.asarray([2, 0])]
        assert type(f[:, 1]) is type(some) is EstimatedMarginals
        other = EstimatedMarginals(f.mean + 1, f.variance, sites=frozenset({"g"}))
        plain = GaussianMarginals(f.mean, jnp.ones((3, 2)), sites=frozenset({"h"}))
        assert all(type(total) is EstimatedMarginals for total in (f + other, f + plain, plain - f))
        return [(g.mean, g.variance, factor, shift) for g, factor, shift in scaled], some.variance, plain - f

    f = estimates()
    mean, variance = np.asarray(f.mean), np.asarray(f.variance)
    scaled, some, difference = everything(f)
    for of_mean, of_variance, factor, shift in scaled:
        np.testing.assert_allclose(of_mean, factor * mean + shift)
        np.testing.assert_allclose(of_variance, factor**2 * variance)
    np.testing.assert_allclose(some, variance[[2, 0]])
    assert type(difference) is EstimatedMarginals  # as a pytree
    np.testing.assert_allclose(difference.variance, 1 + variance)


@pytest.mark.parametrize(
    "use",
    [
        lambda f: jnp.exp(f),
        lambda f: f @ jnp.ones((2, 2)),
        lambda f: f * f,
        lambda f: f.draws(1),
        lambda f: f.noise(1),
        lambda f: np.asarray(f),
        lambda f: GaussianProcess(RBF(1.0, 1.0), f),
    ],
)
def test_there_is_no_draw_of_estimates(use):
    with pytest.raises(TypeError, match="'f' samples views"):
        use(estimates())


REFUSING = {
    "bernoulli": lambda f: Bernoulli(f),
    "robust-max": lambda f: RobustMax(f),
    "softmax": lambda f: Softmax(f),
    "expected": lambda f: Expected(lambda f: numpyro.distributions.Poisson(jnp.exp(f)), f[:, 0]),
    "polya-gamma without c": lambda f: PolyaGamma(f),
    "sticks without c": lambda f: StickBreaking(f),
}


@pytest.mark.parametrize("name", REFUSING)
def test_likelihoods_that_are_not_quadratic_refuse(name):
    with pytest.raises(TypeError, match=r"sample.? views") as raised:
        REFUSING[name](estimates())
    assert "Gaussian, PolyaGamma" in str(raised.value) or "needs c" in str(raised.value)


def test_estimates_predict_nothing():
    f = estimates()
    sticks, gaussian = StickBreaking(f, 1.0), Gaussian(f, 0.1)
    uses = [
        lambda: gaussian.variance,
        lambda: gaussian.predictive_log_prob(jnp.zeros((3, 2))),
        lambda: gaussian.sample(KEY),
        lambda: PolyaGamma(f, 1.0).probs,
        lambda: sticks.probs,
        lambda: sticks.predictive_log_prob(jnp.zeros(3, int)),
    ]
    for use in uses:
        with pytest.raises(TypeError, match="no predictive distribution"):
            use()


@pytest.mark.parametrize("name", ["bernoulli", "robust-max", "softmax", "expected"])
def test_a_program_with_one_is_refused_when_training_starts(name):
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(Invariant(RBF(1.0, 1.0), VIEWS["two views"]), X, num_outputs=2))
        numpyro.sample("y", REFUSING[name](f), obs=y)

    guide = InducingGuide(program, unique_patches(3))
    with pytest.raises(TypeError, match="Use Gaussian, PolyaGamma"):
        guide.init_params(KEY, X, jnp.zeros(2, int))


def test_another_gp_above_is_refused_by_name():
    def program(X, y=None):
        h = numpyro.sample("inner", GaussianProcess(Invariant(RBF(1.0, 1.0), VIEWS["two views"]), X, num_outputs=2))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), h))
        numpyro.sample("y", Gaussian(f, 0.1).to_event(1), obs=y)

    with pytest.raises(TypeError, match=r"site 'inner' samples views.*Enumerate"):
        InducingGuide(program, unique_patches(3)).init_params(KEY, X, jnp.zeros(2))


def test_two_sampled_views_in_one_kernel_and_products_are_refused():
    part = Invariant(RBF(1.0, 1.0), VIEWS["two views"])
    with pytest.raises(ValueError, match="one GaussianProcess site for each"):
        posterior(part + part).estimates(KEY)
    with pytest.raises(TypeError, match="InducingPatches, Product"):
        posterior(part * RBF(1.0, 1.0))


@pytest.mark.slow
def test_one_kernel_and_one_set_of_inducing_inputs_serve_all_outputs():
    part = Invariant(RBF(1.0, 1.0), VIEWS["two views"])
    with pytest.raises(ValueError, match="all outputs have one kernel"):
        posterior(jnp.asarray([1.0, 2.0]) * part).estimates(KEY)
    with pytest.raises(ValueError, match="all outputs share Z"):
        posterior(part, inducing=InducingPatches(jnp.stack([Z, Z]))).estimates(KEY)


# -- in programs -------------------------------------------------------------------------------------------------------


def data(N=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 3))
    return jnp.asarray(X), jnp.asarray(np.sin(X.sum(1)) + 0.1 * rng.normal(size=N))


def regression(X, y=None, *, num_views=3, num_data=None):
    base = RBF(numpyro.param("variance", jnp.ones((), X.dtype)), 1.5)
    f = numpyro.sample("f", GaussianProcess(Invariant(base, WithReplacement(ORBIT, num_views)), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, 0.05), obs=y)


@pytest.mark.slow
def test_a_program_is_trained_and_predicts_invariant_functions():
    X, y = data()
    guide = InducingGuide(regression, unique_patches(20))
    svi = SVI(regression, guide, adam(0.02), GaussianProcessELBO())
    result = fit(KEY, svi, 400, X, y, batch_size=30, progress=False, model_kwargs={"num_data": 60})
    X_test, y_test = data(seed=1)
    options = {"test_data": {"y": y_test}}
    test = result.predict(KEY, X_test, **options)
    assert np.sqrt(np.mean((test["y"].mean - y_test) ** 2)) < 0.25  # that of zero is 0.7
    # The same key gives the same views, whatever the batch.
    again = result.predict(KEY, X_test, batch_size=7, **options)
    np.testing.assert_allclose(again["f"].mean, test["f"].mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(again["y"].log_density, test["y"].log_density, rtol=1e-7, atol=1e-9)
    assert (test["f"].variance > 0).all()
    other = result.predict(jax.random.key(5), X_test, **options)
    assert not np.allclose(other["f"].mean, test["f"].mean, rtol=1e-6)


@pytest.fixture(scope="module")
def short():
    """A short training on 20 rows, and those rows."""
    X, y = data(20)
    svi = SVI(regression, InducingGuide(regression, unique_patches(8)), adam(0.02), GaussianProcessELBO())
    return fit(KEY, svi, 20, X, y, progress=False), X, y


@pytest.mark.slow
def test_numpyros_own_predictive_draws_functions(short):
    result, X, y = short
    draws = Predictive(result.guide, params=result.params, num_samples=50)(KEY, X, y)["f"]
    assert draws.shape == (50, 20) and np.isfinite(draws).all()
    prior = Predictive(regression, params=result.params, num_samples=3)(KEY, X)
    assert prior["y"].shape == (3, 20)


@pytest.mark.slow
def test_exact_inference_is_refused_with_a_way_out():
    X, y = data(10)
    with pytest.raises(TypeError, match="with_fixed_views"):
        MCMC(NUTS(numpyro.handlers.substitute(regression, {"variance": 1.0})), num_warmup=1, num_samples=1).run(
            KEY, X, y
        )
    guide = InducingGuide(regression, unique_patches(5))
    with pytest.raises(TypeError, match="with_fixed_views"):
        SVI(regression, guide, adam(0.1), Trace_ELBO()).run(KEY, 1, X, y, progress_bar=False)


def test_inducing_points_of_f_are_refused_with_a_way_out():
    X, y = data(10)
    for start in (kmeans(4), random_subset(4)):
        with pytest.raises(TypeError, match="unique_patches"):
            InducingGuide(regression, start).init_params(KEY, X, y)


@pytest.mark.slow
def test_every_estimate_of_the_posterior_uses_the_views_of_its_key(short):
    result, X, y = short
    test = result.predict(KEY, X)["f"]
    posterior = lambda params: result.with_params(params).posterior(KEY, X, y)["f"]  # noqa: E731
    mean = jax.jit(lambda params: posterior(params).mean)(result.params)
    np.testing.assert_allclose(mean, test.mean, rtol=1e-7, atol=1e-9)
    # Draws of one posterior: their spread is that of its variance.
    idata = result.to_arviz(KEY, X, y, num_draws=400)
    np.testing.assert_allclose(np.asarray(idata["posterior"]["f"])[0].mean(0), test.mean, atol=0.1)


def test_a_site_cannot_be_joint():
    X, y = data(10)
    guide = InducingGuide(regression, unique_patches(5), joint={"f"})
    with pytest.raises(ValueError, match=r"joint=...\) names \['f'\], whose kernel samples views"):
        guide.init_params(KEY, X, y)


@pytest.mark.slow
def test_what_fit_reports_is_what_it_trains(short):
    assert short[0].expectations == {"y": "closed form"}


@pytest.mark.slow
def test_several_trainings_scope_and_particles(short, standard_promotion):
    result, X, y = short
    guide = InducingGuide(regression, unique_patches(5))
    svi = SVI(regression, guide, adam(0.02), GaussianProcessELBO())
    keys = jax.random.split(KEY, 2)
    both = fit(keys, svi, 5, X, y, in_axes=None, progress=False)
    alone = fit(keys[1], svi, 5, X, y, progress=False)
    np.testing.assert_allclose(both.losses[1], alone.losses, rtol=1e-8)
    assert not np.allclose(both.losses[0], both.losses[1], rtol=1e-3)
    scoped = numpyro.handlers.scope(regression, prefix="left")
    assert "left/f_mean" in trained(scoped, InducingGuide(scoped, unique_patches(5)), X, y, steps=1)

    @jax.jit
    @jax.vmap
    def losses(key):
        several = GaussianProcessELBO(1), GaussianProcessELBO(8)
        return [elbo.loss(key, result.params, regression, result.guide, X, y) for elbo in several]

    spread = [np.std(values) for values in losses(jax.random.split(KEY, 40))]
    assert spread[1] < 0.6 * spread[0]


@pytest.mark.slow
def test_beside_another_site():
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(Invariant(RBF(1.0, 1.5), WithReplacement(ORBIT, 3)), X))
        g = numpyro.sample("g", GaussianProcess(RBF(0.5, 0.5), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f + g, 0.05), obs=y)

    X, y = data(30)
    guide = InducingGuide(program, {"f": unique_patches(8), "g": kmeans(8)})
    result = fit(KEY, SVI(program, guide, adam(0.02), GaussianProcessELBO()), 150, X, y, progress=False)
    assert result.losses[:10].mean() > result.losses[-10:].mean() + 10
    assert result.predict(KEY, X)["f"].mean.shape == (30,)
