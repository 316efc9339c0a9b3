"""Posteriors of latent sites beside GPs: NumPyro's guides, and guides of the user's own with a latent for each row."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from scipy.stats import multivariate_normal, norm, spearmanr

from gpzoo import GaussianProcess, InducingPoints, kmeans
from gpzoo.inference import (
    Amortised,
    GaussianProcessELBO,
    InducingGuide,
    PerRow,
    Trained,
    diagnose,
    fit,
    infer_rows,
    load,
    vsbc,
)
from gpzoo.kernels import RBF, White
from gpzoo.likelihoods import Gaussian
from gpzoo.models import gplvm, latent_variable_deep_gp, principal_components
from tests.programs import KEY, adam, bayesian_regression, bound, sine
from tests.reference import pairs, rbf

X, y = sine(8)
Z = InducingPoints(jnp.linspace(-2.0, 2.0, 3)[:, None])


def line(X, y=None):
    """A Gaussian posterior of two coupled numbers: the columns of ``DESIGN`` are nearly the same."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", GaussianProcess(RBF(1.0, 1.0) + White(0.1), X, mean=a + b * DESIGN[:, 1]), obs=y)


DESIGN = np.stack([np.ones(8), 1 + 0.1 * np.asarray(X[:, 0])], axis=1)


@pytest.mark.slow
def test_a_normal_with_correlations_reaches_the_evidence():
    """Every draw of the exact posterior gives the evidence, which an independent normal cannot."""
    K = rbf(*pairs(X, X)) + 0.1 * np.eye(8)
    evidence = multivariate_normal(np.zeros(8), K + DESIGN @ DESIGN.T).logpdf(y)
    S = np.linalg.inv(np.eye(2) + DESIGN.T @ np.linalg.solve(K, DESIGN))
    mean = S @ DESIGN.T @ np.linalg.solve(K, y)
    assert abs(S[0, 1]) / np.sqrt(S[0, 0] * S[1, 1]) > 0.7
    guide = InducingGuide(line, Z, hyperparameters=AutoMultivariateNormal)
    params = {"auto_loc": jnp.asarray(mean), "auto_scale_tril": jnp.asarray(np.linalg.cholesky(S))}
    assert set(guide.init_params(KEY, X, y)) == set(params)
    np.testing.assert_allclose(bound(line, guide, params, X, y), evidence, rtol=1e-5)


@pytest.mark.parametrize(
    ("support", "shape"),
    [(constraints.positive, ()), pytest.param(constraints.interval(0.1, 2.0), (8,), marks=pytest.mark.slow)],
)
def test_a_prior_without_draws_adds_nothing_to_the_bound(support, shape):
    """NumPyro's improper priors train and export as a parameter does; only draws from the prior are missing."""

    def improper(X, y=None, sample=True):
        prior = dist.ImproperUniform(support, shape, ())
        noise = numpyro.sample("noise", prior) if sample else numpyro.param("noise", jnp.full(shape, 0.4))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Gaussian(f, noise), obs=y)

    def known(X, y=None):
        improper(X, y, sample=False)

    guides = InducingGuide(improper, Z), InducingGuide(known, Z)
    starts = [guide.init_params(KEY, X, y) for guide in guides]
    starts[0]["noise_loc"] = starts[1]["noise"]
    found, wanted = (bound(*each, X, y) for each in zip((improper, known), guides, starts, strict=True))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.warns(UserWarning, match="no draws from the prior. Site 'noise' cannot be drawn"):
        groups = Trained(improper, guides[0], starts[0]).to_arviz(KEY, X, y, num_draws=5)
    assert "posterior" in groups and "prior" not in groups
    svi = SVI(improper, guides[0], adam(0.01), GaussianProcessELBO())
    with pytest.raises(ValueError, match="vsbc draws every site from the program, and one has no draws"):
        vsbc(KEY, svi, 1, X, y, num_simulations=2)


def rows_of_latents(rows, y=None):
    """A GP of a latent input for each row: 8 rows of data, some of which are given, by number."""
    with numpyro.plate("data", 8, subsample_size=len(rows)):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), x[:, None]))
    with numpyro.plate("data", 8, subsample_size=len(rows)):
        numpyro.sample("y", Gaussian(f, 0.3), obs=y)


def levels_of_groups(X, group, y=None):
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f + level[group], 0.1), obs=y)


@pytest.mark.slow
def test_latents_of_another_plate_are_one_draw_for_all_batches():
    """Latents of groups are not of rows: another draw for each batch would make no function."""
    group = np.arange(8) % 3
    guide = InducingGuide(levels_of_groups, Z, hyperparameters=AutoNormal)
    trained = Trained(levels_of_groups, guide, guide.init_params(KEY, X, group, y))
    at_once, in_two = (trained.predict(KEY, X, group, num_draws=3, batch_size=size)["y"].mean for size in (8, 4))
    np.testing.assert_allclose(in_two, at_once, rtol=1e-9)


def held_per_row(program):
    def guide(rows, y=None):
        loc = numpyro.param("x_locs", jnp.linspace(-2.0, 2.0, 8))
        scale = numpyro.param("x_scales", jnp.full(8, 1e-7), constraint=constraints.positive)
        with numpyro.plate("data", 8, subsample_size=len(rows)):
            numpyro.sample("x", dist.Normal(loc[rows], scale[rows]))

    return guide


@pytest.mark.slow
def test_latents_of_rows_train_in_batches():
    """The mean over batches that part the rows is the bound of all rows: priors of rows count as their data do."""
    guide = InducingGuide(rows_of_latents, Z, hyperparameters=held_per_row)
    rows = jnp.arange(8)
    params = guide.init_params(KEY, rows, y)
    assert params["x_locs"].shape == (8,)
    whole = bound(rows_of_latents, guide, params, rows, y)
    parts = [bound(rows_of_latents, guide, params, part, y[part]) for part in (rows[:4], rows[4:])]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-4)
    svi = SVI(rows_of_latents, guide, adam(0.05), GaussianProcessELBO())
    trained = fit(KEY, svi, 40, rows, y, batch_size=4, progress=False)
    assert trained.losses[-10:].mean() < trained.losses[:10].mean() - 5
    assert trained.posterior(KEY, rows[:2])["x"].batch_shape == (2,)


@pytest.mark.slow
def test_a_guide_takes_the_rows_of_the_program():
    """Where NumPyro's plate chooses the rows, one choice is the program's, the guide's and the data's."""

    def program(X, y):
        with numpyro.plate("data", 8, subsample_size=3) as rows:
            shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
        numpyro.sample("y", GaussianProcess(RBF(1.0, 1.0) + White(0.1), X[rows], mean=shift), obs=y[rows])

    def make(program):
        def guide(X, y=None):
            level = numpyro.sample("level", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
            with numpyro.plate("data", 8, subsample_size=3) as rows:
                numpyro.sample("shift", dist.Normal(rows.astype(float) + 100 * level, 1e-9))

        return guide

    guide = InducingGuide(program, Z, hyperparameters=make)
    params = guide.init_params(KEY, X, y)
    for key in random.split(KEY, 3):
        run = handlers.trace(handlers.seed(handlers.substitute(guide, params), key)).get_trace(X, y)
        rows, level = np.asarray(run["data"]["value"]), np.asarray(run["level"]["value"])
        np.testing.assert_allclose(run["shift"]["value"], rows + 100 * level, rtol=1e-6)


@pytest.mark.slow
def test_several_trainings_and_saved_models_have_guides_of_their_own(tmp_path):
    guide = InducingGuide(bayesian_regression, Z, hyperparameters=AutoLowRankMultivariateNormal)
    svi = SVI(bayesian_regression, guide, adam(0.01), GaussianProcessELBO())
    trained = fit(random.split(KEY, 2), svi, 5, X, y, in_axes=None, progress=False)
    best = trained.member(0)
    best.save(tmp_path / "model.gpzoo")
    loaded = load(tmp_path / "model.gpzoo", bayesian_regression)
    expected = best.predict(KEY, X, num_draws=3)["y"].mean
    np.testing.assert_array_equal(loaded.predict(KEY, X, num_draws=3)["y"].mean, expected)


def sampling(name, fn=None):
    return lambda program: lambda X, y=None: numpyro.sample(name, dist.Normal(0.0, 1.0) if fn is None else fn)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (sampling("a"), ValueError, r"samples \['a'\], but the latent sites that are not GPs are \['a', 'b'\]"),
        (lambda program: 3, TypeError, "must make a guide of a program"),
        ("mvn", ValueError, "hyperparameters"),
    ],
)
def test_guides_of_other_sites_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        InducingGuide(line, Z, hyperparameters=make).setup(X, y)


@pytest.mark.slow
def test_a_guide_for_other_rows_is_refused():
    guide = InducingGuide(rows_of_latents, Z, hyperparameters=AutoNormal)
    params = guide.init_params(KEY, jnp.arange(8), y)
    with pytest.raises(ValueError, match="takes 8 rows of plate 'data', where the program takes 4"):
        bound(rows_of_latents, guide, params, jnp.arange(4), y[:4])


# -- latents of rows, by the library's own guides ----------------------------------------------------------------------


def test_latents_per_row_are_found_by_their_numbers():
    start = jnp.linspace(-2.0, 2.0, 8)
    guide = InducingGuide(rows_of_latents, Z, hyperparameters=PerRow({"x": start}, scale=0.2))
    params = guide.init_params(KEY, jnp.arange(8), y)
    np.testing.assert_allclose(params["x_scale"], 0.2)
    q = Trained(rows_of_latents, guide, params).posterior(KEY, jnp.array([6, 1, 1]))["x"]
    np.testing.assert_allclose(q.mean, start[np.array([6, 1, 1])])
    with pytest.raises(ValueError, match="holds 8 rows of site 'x', from 0, and is given rows 3 to 8"):
        Trained(rows_of_latents, guide, params).predict(KEY, jnp.array([3, 8]), num_draws=2)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (jnp.arange(1, 9), ValueError, "holds 8 rows of site 'x', from 0, and is given rows 1 to 8"),
        (jnp.linspace(0, 1, 8), TypeError, "must be integers"),
    ],
)
def test_numbers_of_rows_are_refused(rows, error, message):
    guide = InducingGuide(rows_of_latents, Z, hyperparameters=PerRow({"x": jnp.zeros(8)}))
    with pytest.raises(error, match=message):
        guide.setup(rows, jnp.zeros(len(rows)))


@pytest.mark.slow
def test_starts_and_networks_are_refused():
    for start, error in [
        ({}, TypeError),
        (jnp.zeros(8), TypeError),
        ({"x": [np.nan]}, ValueError),
        ({"x": []}, ValueError),
    ]:
        with pytest.raises(error, match="start"):
            PerRow(start)
    with pytest.raises(ValueError, match="infer_rows takes a model trained with"):
        infer_rows(KEY, Trained(line, InducingGuide(line, Z), {}), {"x": jnp.zeros((3, 1))}, X, y)
    with pytest.raises(TypeError, match="a network"):
        Amortised("w", None)
    guide = InducingGuide(latent_variable_deep_gp, kmeans(3), hyperparameters=Amortised("w", lambda X, y=None: X))
    with pytest.raises(ValueError, match=r"must return \[N, 2 Q\].*returned \[8, 1\]"):
        guide.setup(X, y)


def two_branches(n, seed):
    """Data around two curves, either of which a row may belong to."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    return jnp.asarray(X), jnp.asarray(rng.choice([-1, 1], n) * (1 + 0.3 * X[:, 0]) + 0.1 * rng.standard_normal(n))


def of_row_and_datum(X, y=None, **kwargs):
    """Means and scales from a layer of 20 units; the prior where there is no datum."""
    if y is None:
        return None
    seen, rng = jnp.concatenate([X, y[:, None]], axis=1), np.random.default_rng(0)
    hidden = jnp.tanh(seen @ numpyro.param("first", jnp.asarray(rng.standard_normal((2, 20)))))
    return hidden @ numpyro.param("second", jnp.asarray(0.1 * rng.standard_normal((20, 2))))


@pytest.fixture(scope="module")
def branches():
    """A trained GP of inputs and a latent variable of each row, its latents amortised."""
    guide = InducingGuide(
        latent_variable_deep_gp, kmeans(15), hyperparameters=Amortised("w", of_row_and_datum), initial_scale=0.1
    )
    svi = SVI(latent_variable_deep_gp, guide, adam(0.03), GaussianProcessELBO())
    return fit(KEY, svi, 400, *two_branches(120, 0), progress=False)


@pytest.mark.slow
def test_a_latent_of_each_row_gives_two_modes(branches):
    """Held-out densities beat the best normal for each row, where the two curves are 2 apart."""
    X, y = two_branches(200, 1)
    found = branches.predict(KEY, X, test_data={"y": y}, num_draws=200)["y"].log_density.mean()
    both = 1 + 0.3 * np.asarray(X[:, 0])  # the right mean and variance of every row
    assert found > norm(0, np.sqrt(both**2 + 0.01)).logpdf(y).mean() + 0.2


@pytest.mark.slow
def test_latents_of_rows_are_drawn_for_each_row(branches):
    """Also by rows of several batches; draws of one row have both signs."""
    X = jnp.linspace(-1.0, 1.0, 6)[:, None]
    for size in (6, 3):
        draws = np.asarray(branches.predict(KEY, X, num_draws=40, keep_draws=True, batch_size=size)["y"].draws)
        assert draws.shape == (40, 6)
        assert (draws.min(0) < -0.3).all() and (draws.max(0) > 0.3).all()
        assert np.abs(np.corrcoef(draws.T) - np.eye(6)).max() < 0.6


@pytest.mark.slow
def test_diagnoses_do_not_show_the_data_to_a_guide_that_reads_them(branches):
    """With the latents of each row inferred from its datum, any curve fits: the rest of its density is then noise."""
    X, y = two_branches(60, 2)
    predicted = branches.predict(KEY, X, test_data={"y": y}, num_draws=200)["y"].log_density.mean()
    shown = branches.predict(KEY, X, y, test_data={"y": y}, num_draws=200)["y"].log_density.mean()
    found = diagnose(KEY, branches, X, y).arrays["y_log_density"].mean()
    assert abs(found - predicted) < 0.1 < shown - predicted - 0.1


@pytest.mark.slow
def test_a_latent_variable_model_embeds_new_rows():
    """Rows near a curve in three dimensions: the embedding orders rows that were never seen along the curve."""
    at = np.random.default_rng(0).uniform(-1.5, 1.5, 60)
    Y = jnp.asarray(np.stack([at, np.sin(2 * at), at**2], axis=1)) + 0.05 * random.normal(KEY, (60, 3))
    options = {"num_outputs": 3, "num_latents": 1}
    guide = InducingGuide(gplvm, kmeans(10), hyperparameters=PerRow({"x": principal_components(Y[:40], 1)}))
    svi = SVI(gplvm, guide, adam(0.03), GaussianProcessELBO())
    trained = fit(KEY, svi, 200, jnp.arange(40), Y[:40], batch_size=20, model_kwargs=options, progress=False)
    held = trained.params
    found = infer_rows(
        KEY,
        trained,
        {"x": jnp.zeros((20, 1))},
        jnp.arange(20),
        Y[40:],
        num_steps=100,
        optimizer=adam(0.1),
        model_kwargs=options,
    )
    np.testing.assert_array_equal(found.params["f_mean"], held["f_mean"])
    assert abs(spearmanr(found.params["x_loc"][:, 0], at[40:]).statistic) > 0.95
