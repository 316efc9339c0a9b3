"""GP sites at several inputs of each row: as the same program whose inputs are one after the other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import SVI, Predictive
from numpyro.infer.util import log_density
from scipy.stats import multivariate_normal

from gpzoo import GaussianProcess, InducingGrid, Rotation, draws, kmeans
from gpzoo.inference import (
    GaussianProcessELBO,
    GlobalInducingGuide,
    InducingGuide,
    diagnose,
    draws_to_arviz,
    fit,
    load,
    marginal,
    predict,
    whitened,
)
from gpzoo.kernels import RBF, Invariant, White
from tests.programs import KEY, adam

RNG = np.random.default_rng(0)
N, P = 20, 3
X = RNG.uniform(-2, 2, (N, P, 1))
Y = np.sin(2 * X[..., 0]).sum(axis=1) + 0.1 * RNG.standard_normal(N)


def sums(X, y=None, *, num_data=None, outputs=None, flat=False, white=0.0):
    """Data that are sums over the inputs of a row."""
    kernel = RBF(numpyro.param("variance", 1.0), 0.7)
    kernel = kernel + White(white) if white else kernel
    if flat:
        f = draws(numpyro.sample("f", GaussianProcess(kernel, X.reshape(-1, 1), num_outputs=outputs)))
        f = f.reshape(*X.shape[:2], *f.shape[1:])
    else:
        f = numpyro.sample("f", GaussianProcess(kernel, X, num_outputs=outputs, per_row=True))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", dist.Normal(f.reshape(len(X), -1).sum(axis=1), 0.3), obs=y)


def trained(program, guide=None, **options):
    svi = SVI(program, guide or InducingGuide(program, kmeans(6)), adam(0.05), GaussianProcessELBO())
    return fit(KEY, svi, 20, X, Y, progress=False, **options)


@pytest.fixture(scope="module")
def both():
    return trained(sums), trained(partial(sums, flat=True))


@pytest.mark.slow
def test_the_prior_is_that_of_all_inputs():
    prior = GaussianProcess(RBF(1.3, 0.7), X, X[..., 0], jitter=1.3e-6, per_row=True)
    value = RNG.standard_normal((4, N, P))
    K = np.asarray(RBF(1.3, 0.7)(X.reshape(-1, 1))) + 1.3e-6 * np.eye(N * P)
    law = multivariate_normal(X.ravel(), K)
    np.testing.assert_allclose(prior.log_prob(value), law.logpdf(value.reshape(4, -1)), rtol=1e-6)
    assert prior.sample(KEY, (5,)).shape == (5, N, P) and prior.variance.shape == (N, P)


@pytest.mark.slow
def test_training_and_functions_are_those_of_the_flat_program(both):
    rows, flat = both
    np.testing.assert_allclose(rows.losses, flat.losses, rtol=1e-10)
    functions = [one.functions(KEY, X, num_draws=4, batch_size=size)["f"] for one in both for size in (7, 100)]
    for found in functions:
        np.testing.assert_allclose(found.reshape(4, N, P), functions[0], rtol=1e-8, atol=1e-10)
    assert functions[0].shape == (4, N, P)


@pytest.mark.slow
def test_predictions_come_by_row_in_any_batches(both):
    rows, flat = (one.predict(KEY, X, num_draws=200) for one in both)
    assert rows["f"].mean.shape == rows["f"].variance.shape == (N, P)
    np.testing.assert_allclose(rows["f"].mean.ravel(), flat["f"].mean, rtol=1e-10)
    np.testing.assert_allclose(rows["y"].mean, flat["y"].mean, atol=0.3)
    options = {"num_draws": 3, "keep_draws": True, "quantiles": (0.1, 0.9)}
    whole, parts = (both[0].predict(KEY, X, batch_size=size, **options) for size in (100, 7))
    assert whole["f"].draws.shape == (3, N, P) and whole["f"].quantiles.shape == (2, N, P)
    for site in ("f", "y"):
        np.testing.assert_allclose(parts[site].draws, whole[site].draws, rtol=1e-10)


@pytest.mark.slow
def test_they_are_exported_diagnosed_and_saved(both, tmp_path):
    one = both[0]
    idata = one.to_arviz(KEY, X, Y, num_draws=3, new_args=(X[:5],), batch_size=4)
    assert idata["posterior"]["f"].dims == ("chain", "draw", "data", "f_input")
    assert idata["predictions"]["f"].shape == (1, 3, 5, P) and idata["log_likelihood"]["y"].shape == (1, 3, N)
    assert one.posterior(KEY, X)["f"].sample(KEY, (2,)).shape == (2, N, P)
    assert "nan" not in str(diagnose(KEY, one, X, Y))
    one.save(tmp_path / "rows.gpzoo")
    again = load(tmp_path / "rows.gpzoo", sums).predict(KEY, X, batch_size=7)["f"].mean
    np.testing.assert_array_equal(again, one.predict(KEY, X, batch_size=7)["f"].mean)
    assert Predictive(one.guide, num_samples=2, params=one.params)(KEY, X)["f"].shape == (2, N, P)


@pytest.mark.slow
def test_other_guides_outputs_and_white_noise():
    two = partial(sums, outputs=2, white=0.1)
    found = [trained(program, batch_size=8) for program in (two, partial(two, flat=True))]
    np.testing.assert_allclose(found[0].losses, found[1].losses, rtol=1e-8)
    assert found[0].predict(KEY, X, batch_size=6)["f"].variance.shape == (N, P, 2)
    functions = [found[0].functions(KEY, X, num_draws=2, batch_size=size)["f"] for size in (6, 100)]
    np.testing.assert_allclose(*functions, rtol=1e-8, atol=1e-10)
    dims = found[0].to_arviz(KEY, X, Y, num_draws=2)["posterior"]["f"].dims
    assert dims == ("chain", "draw", "data", "f_input", "f_output")
    for guide in (GlobalInducingGuide(sums, X[:6]), InducingGuide(sums, InducingGrid(9, (-2.0, 2.0)))):
        assert np.isfinite(trained(sums, guide).losses).all()
    single = fit(KEY, SVI(sums, InducingGuide(sums, kmeans(4)), adam(0.05), GaussianProcessELBO()), 2, X[:, :1], Y)
    assert single.predict(KEY, X[:, :1])["f"].mean.shape == (N, 1)


@pytest.mark.slow
def test_markov_chains_move_them_whitened():
    values = {"f_base": RNG.standard_normal((N, P)), "variance": 1.3}
    programs = [whitened(handlers.lift(partial(sums, flat=flat), dist.LogNormal(0.0, 1.0))) for flat in (False, True)]
    density, trace = log_density(programs[0], (X, Y), {}, values)
    flat, other = log_density(programs[1], (X, Y), {}, values | {"f_base": values["f_base"].ravel()})
    assert density == pytest.approx(float(flat), rel=1e-10)
    np.testing.assert_allclose(trace["f"]["value"].ravel(), other["f"]["value"], rtol=1e-10)
    samples = {"variance": np.full(6, 1.3), "f": np.tile(trace["f"]["value"], (6, 1, 1))}
    found = predict(KEY, programs[0], X[:4], posterior_samples=samples, train_args=(X, Y))["f"].mean
    np.testing.assert_allclose(found, trace["f"]["value"][:4], atol=0.02)
    chains = {name: np.stack([x[:3], x[3:]]) for name, x in samples.items()}
    idata = draws_to_arviz(KEY, programs[0], X, Y, posterior_samples=chains)
    assert idata["posterior"]["f"].dims == ("chain", "draw", "data", "f_input")


REFUSED = [
    (lambda: GaussianProcess(RBF(), X[:, 0], per_row=True), ValueError, "per_row"),
    (lambda: GaussianProcess(RBF(), X[:, :0], per_row=True), ValueError, "X is empty"),
    (lambda: GaussianProcess(RBF(), X, X[:, :2, 0], per_row=True), ValueError, "mean"),
    (
        lambda: GaussianProcess(Invariant(RBF(), Rotation((2, 2, 1), 9.0)), np.ones((4, 3, 2, 2, 1)), per_row=True),
        ValueError,
        "a row has one input",
    ),
    (lambda: GaussianProcess(RBF(), np.ones((2, N, P, 1)), per_row=True), ValueError, "a set for each"),
    (lambda: log_density(marginal(sums), (X, Y), {}, {}), TypeError, "several inputs in a row"),
    (lambda: log_density(whitened(sums, kmeans(4)), (X, Y), {}, {}), TypeError, "draws GP site 'f'"),
]


@pytest.mark.slow
@pytest.mark.parametrize("call, error, words", REFUSED)
def test_what_they_cannot_be_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.slow
def test_a_gradient_reaches_inputs_of_rows():
    guide = InducingGuide(sums, kmeans(4))
    params = guide.init_params(KEY, X, Y)
    loss = lambda X: GaussianProcessELBO().loss(KEY, params, sums, guide, X, Y)  # noqa: E731
    slope, step = jax.grad(loss)(jnp.asarray(X)), 1e-5 * RNG.standard_normal(X.shape)
    assert np.vdot(slope, step) == pytest.approx(float(loss(X + step) - loss(X - step)) / 2, rel=1e-5)
