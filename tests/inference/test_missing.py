"""Missing targets, ``missing="mask"``: against separate outputs with their own rows, and who may pass NaN."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import NUTS, SVI
from numpyro.infer.util import initialize_model, log_density
from scipy.stats import norm

from gpzoo import InducingPoints, draws
from gpzoo.inference import (
    CollapsedELBO,
    GaussianProcessELBO,
    InducingGuide,
    compare,
    diagnose,
    fit,
    marginal,
    predict,
)
from gpzoo.inference.diagnosis.measure import measure
from gpzoo.inference.diagnosis.outcomes import judge
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, positive
from tests.reference import collapsed_bound, pairs, rbf

N, D = 30, 3
rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-2, 2, (N, 1)), axis=0)
Z = np.linspace(-2, 2, 7)[:, None]
ALL = np.stack([np.sin((d + 1) * X[:, 0]) for d in range(D)], axis=1) + 0.1 * rng.standard_normal((N, D))
SEEN = rng.uniform(size=(N, D)) > 0.4
SEEN[3] = False
Y = np.where(SEEN, ALL, np.nan)
JITTER = 1e-6
NOISE = np.array([0.05, 0.1, 0.2])
poisson = lambda f: dist.Poisson(jnp.exp(f)).to_event(1)  # noqa: E731
LIKELIHOODS = {
    "Gaussian": lambda f, missing: Gaussian(f, positive("noise", jnp.asarray(NOISE, f.dtype)), missing=missing),
    "Expected": lambda f, missing: Expected(poisson, f, missing=missing),
}


def program(X, y=None, observed=None, *, likelihood=LIKELIHOODS["Gaussian"], missing="mask", num_data=None):
    f = numpyro.sample(
        "f", GaussianProcess(RBF(1.3, positive("lengthscale", X.dtype.type(0.6))), X, num_outputs=D, jitter=JITTER)
    )
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        with handlers.mask(mask=True if observed is None else observed):
            numpyro.sample("y", likelihood(f, missing), obs=y)


def one_by_one(X, y):
    """Each output is observed at a site of its own, of the rows where it was."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.3, positive("lengthscale", 0.6)), X, num_outputs=D, jitter=JITTER))
    noise = positive("noise", NOISE)
    for d in range(D):
        rows = np.flatnonzero(SEEN[:, d])
        numpyro.sample(f"y_{d}", Gaussian(f[rows][:, d : d + 1], noise[d]), obs=y[rows, d : d + 1])


def guide_of(model):
    return InducingGuide(model, InducingPoints(Z))


def value_and_gradient(objective, model, *args):
    guide = guide_of(model)
    params = guide.init_params(KEY, *args)
    params["f_mean"] = jnp.asarray(np.random.default_rng(1).standard_normal(params["f_mean"].shape))
    return jax.value_and_grad(lambda p: objective.loss(KEY, p, model, guide, *args))(params)


def equal(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8), ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [GaussianProcessELBO(), GaussianProcessELBO(tight=True), CollapsedELBO()])
def test_bounds_and_gradients_are_those_of_each_output_with_its_own_rows(objective):
    filled = np.where(SEEN, Y, 0.0)
    ours = value_and_gradient(objective, program, X, Y)
    equal(ours, value_and_gradient(objective, partial(program, missing=None), X, filled, jnp.asarray(SEEN)))
    if not isinstance(objective, CollapsedELBO):  # takes no rows of a site
        equal(ours, value_and_gradient(objective, one_by_one, X, filled))


@pytest.mark.slow
def test_expectations_by_draws_leave_out_single_entries():
    y = np.where(SEEN, np.round(np.exp(ALL)), np.nan)
    counts = partial(program, likelihood=LIKELIHOODS["Expected"])
    ours = value_and_gradient(GaussianProcessELBO(), counts, X, y)
    masked = partial(counts, missing=None)
    equal(ours, value_and_gradient(GaussianProcessELBO(), masked, X, np.where(SEEN, y, -1.0), jnp.asarray(SEEN)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(ours))


@pytest.mark.slow
def test_the_collapsed_bound_is_that_of_the_formula_by_output():
    ours, _ = value_and_gradient(CollapsedELBO(), program, X, Y)
    k = lambda a, b: rbf(*pairs(a, b), 1.3, 0.6)  # noqa: E731
    bound = 0.0
    for d in range(D):
        rows = SEEN[:, d]
        bound += collapsed_bound(
            k(Z, Z) + JITTER * np.eye(len(Z)), k(Z, X[rows]), np.full(rows.sum(), 1.3), Y[rows, d], NOISE[d]
        )
    np.testing.assert_allclose(-ours, bound, rtol=1e-8)


@pytest.mark.slow
def test_nuts_and_plain_numpyro_have_no_term_for_what_is_missing():
    def model(y, missing):
        f = numpyro.sample("f", dist.Normal(jnp.zeros((N, D)), 1.0).to_event(2))
        numpyro.sample("y", Gaussian(f, 0.1, missing=missing), obs=y)

    found = initialize_model(KEY, model, model_args=(Y, "mask"), dynamic_args=False)
    f = {"f": jnp.asarray(rng.standard_normal((N, D)))}
    value, gradient = jax.value_and_grad(found.potential_fn)(f)
    terms = dist.Normal(f["f"], jnp.sqrt(0.1)).log_prob(np.where(SEEN, Y, 0.0))
    prior = dist.Normal(0.0, 1.0).log_prob(f["f"]).sum()
    np.testing.assert_allclose(value, -prior - jnp.where(SEEN, terms, 0).sum(), rtol=1e-10)
    np.testing.assert_allclose(gradient["f"][~SEEN], f["f"][~SEEN])
    assert isinstance(NUTS(model), NUTS)


@pytest.fixture(scope="module")
def trained():
    guide = InducingGuide(program, InducingPoints(Z.astype(np.float32)))
    svi = SVI(program, guide, adam(0.05), GaussianProcessELBO())
    data = [x.astype(np.float32) for x in (X, Y)]
    return fit(KEY, svi, 150, *data, batch_size=15, progress=False)


@pytest.mark.slow
def test_float32_trains_and_predicts_what_was_missing(trained):
    assert trained.params["noise"].dtype == np.float32 and np.isfinite(trained.losses).all()
    found = trained.predict(KEY, X.astype(np.float32), test_data={"y": Y.astype(np.float32)})["y"]
    truth = np.stack([np.sin((d + 1) * X[:, 0]) for d in range(D)], axis=1)
    assert np.sqrt(np.mean((found.mean - truth)[~SEEN] ** 2)) < 0.4
    terms = norm.logpdf(np.where(SEEN, Y, 0.0), found.mean, np.sqrt(found.variance))
    np.testing.assert_allclose(found.log_density, np.where(SEEN, terms, 0).sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.isnan(found.cdf), ~SEEN)


@pytest.mark.slow
def test_exports_hold_what_was_observed(trained):
    data = X.astype(np.float32), Y.astype(np.float32)
    found = trained.to_arviz(KEY, *data, num_draws=20)
    rows = SEEN.any(axis=1)
    terms = found["log_likelihood"]["y"].values
    assert terms.shape == (1, 20, rows.sum()) and np.isfinite(terms).all()
    np.testing.assert_array_equal(found["observed_data"]["y"].values, data[1][rows])
    np.testing.assert_array_equal(found["constant_data"]["y_mask"].values, rows)


@pytest.mark.slow
def test_diagnoses_count_what_was_observed(trained):
    args = X.astype(np.float32), Y.astype(np.float32)
    outcomes = measure(KEY, trained._bind(args, None)).outcomes["y"]
    np.testing.assert_array_equal(outcomes.observed, SEEN.any(axis=1))
    predicted = trained.predict(KEY, args[0], test_data={"y": args[1]})["y"]
    sections = judge("y", outcomes, predicted, np.ones(N, bool)).sections
    numbers = [x for table in sections for row in table.rows for x in row if isinstance(x, float)]
    assert len(numbers) > 8 and np.isfinite(numbers).all()
    residuals = next(table for table in sections if table.title == "Residuals").rows[0]
    np.testing.assert_allclose(residuals[1], np.mean((args[1] - predicted.mean)[SEEN] ** 2), rtol=1e-5)


# -- the door ----------------------------------------------------------------------------------------------------------


def both(X, y=None, more=None, *, missing="mask"):
    """``y`` is the data of two sites, the first of one column of it; ``more`` has no likelihood that leaves NaN out."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), jnp.log(jnp.exp(X)), num_outputs=D))
    numpyro.sample("first", Gaussian(f[:, 0], 0.1, missing=missing), obs=None if y is None else y[:, 0] * 2)
    numpyro.sample("y", Gaussian(f, 0.1, missing=missing), obs=y)
    numpyro.sample("more", Gaussian(f, 0.1), obs=more)


def regressed(X, y=None):
    """An observed GP site has no term for each entry."""
    numpyro.sample("y", GaussianProcess(RBF(1.0, 1.0), X), obs=y)


HOLED = np.where(np.arange(N)[:, None] == 2, np.nan, X)
CALLS = {
    "init_params": lambda model, *args: guide_of(model).init_params(KEY, *args),
    "fit": lambda model, *args: fit(
        KEY, SVI(model, guide_of(model), adam(0.1), GaussianProcessELBO()), 1, *args, progress=False
    ),
    "members": lambda model, *args: fit(
        random.split(KEY, 2),
        SVI(model, guide_of(model), adam(0.1), GaussianProcessELBO()),
        1,
        *(np.stack([x, x]) for x in args),
        progress=False,
    ),
}


@pytest.mark.slow_but(call=["init_params"])
@pytest.mark.parametrize("call", CALLS)
def test_nan_pass_as_missing_data_and_are_refused_as_anything_else(call):
    run = CALLS[call]
    with pytest.raises(ValueError, match=r"^X has \d entries that are not finite, the first at index"):
        run(both, HOLED, Y, ALL)
    with pytest.raises(ValueError, match=r"^more has \d+ entries that are not finite"):
        run(both, X, Y, Y)
    with pytest.raises(ValueError, match=r"^y has \d+ entries that are not finite"):
        run(partial(both, missing=None), X, Y, ALL)
    with pytest.raises(ValueError, match=r"^y has \d+ entries that are not finite.*inf"):
        run(both, X, np.where(SEEN, ALL, np.inf), ALL)
    assert run(both, X, Y, ALL)


@pytest.mark.slow
def test_nan_among_test_data_and_an_observed_gp(trained):
    with pytest.raises(ValueError, match=r"^test_data\['y'\] has \d+ entries that are not finite"):
        predict(KEY, regressed, X, params={}, train_args=(X, ALL[:, 0]), test_data={"y": Y[:, 0]})
    with pytest.raises(ValueError, match=r"^y has \d+ entries that are not finite"):
        predict(KEY, regressed, X, params={}, train_args=(X, Y[:, 0]))
    with pytest.raises(ValueError, match=r"^X has 1 entries that are not finite"):
        trained.predict(KEY, HOLED)


@pytest.mark.slow
def test_comparisons_score_what_was_observed():
    with pytest.raises(ValueError, match=r"^y has \d+ entries"):
        compare(KEY, {"refuses": (partial(program, missing=None), InducingPoints(Z))}, X, Y, num_steps=1)


# -- masks of the program's own ----------------------------------------------------------------------------------------

ROWS = SEEN.all(axis=1)
HOLES = {"rows": (Y[:, 0], SEEN[:, 0]), "rows of outputs": (Y, ROWS), "entries": (Y, SEEN)}
MASKS = {
    "given": lambda y, seen: (y, seen),
    "of isnan": lambda y, seen: (y, ~jnp.isnan(y).any(axis=1) if y.ndim > seen.ndim else ~jnp.isnan(y)),
    "filled": lambda y, seen: (jnp.nan_to_num(y), seen),
}


def own_mask(X, seen, y=None, *, how, likelihood=Gaussian, num_data=None):
    scale = positive("scale", X.dtype.type(1.3))
    outputs = D if y is None or y.ndim == 2 else None
    f = numpyro.sample("f", GaussianProcess(RBF(scale, 0.6), X, num_outputs=outputs, jitter=JITTER))
    y, seen = (y, seen) if y is None else MASKS[how](y, seen)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)), handlers.mask(mask=seen):
        numpyro.sample("y", likelihood(f, 0.1), obs=y)


def of_numpyro(f, noise):
    return dist.Normal(draws(f), noise)


@pytest.mark.slow
@pytest.mark.parametrize("how", MASKS)
@pytest.mark.parametrize("holes", HOLES)
@pytest.mark.parametrize("objective", [GaussianProcessELBO(), CollapsedELBO()])
def test_nan_that_the_program_masks_by_itself_have_no_term(objective, how, holes):
    y, seen = HOLES[holes]
    ours = value_and_gradient(objective, partial(own_mask, how=how), X, seen, y)
    equal(ours, value_and_gradient(objective, partial(own_mask, how="given"), X, seen, np.nan_to_num(y)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(ours))


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Gaussian, of_numpyro])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_trainings_and_diagnoses_of_own_masks_are_those_of_filled_data(likelihood, batch_size):
    y, seen = HOLES["rows"]
    found = []
    for how, data in (("given", y), ("of isnan", y), ("given", np.nan_to_num(y))):
        model = partial(own_mask, how=how, likelihood=likelihood)
        svi = SVI(model, guide_of(model), adam(0.05), GaussianProcessELBO())
        trained = fit(KEY, svi, 5, X, seen, data, batch_size=batch_size, progress=False)
        terms = trained.to_arviz(KEY, X, seen, data, num_draws=2)["log_likelihood"]["y"].values
        said = diagnose(KEY, trained, X, seen, data)
        found.append((trained.losses, terms, [table.rows for table in said.sections if table.title == "Log densities"]))
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)
    assert np.isfinite(found[0][0]).all() and np.isfinite(found[0][1]).all()


@pytest.mark.slow_but(inducing=[None], likelihood=[Gaussian], holes=["entries"])
@pytest.mark.parametrize("inducing", [None, InducingPoints(Z)])
@pytest.mark.parametrize("likelihood", [Gaussian, lambda f, noise: Expected(poisson, f)])
@pytest.mark.parametrize("holes", ["rows of outputs", "entries"])
def test_marginal_densities_leave_out_what_the_program_masks(holes, likelihood, inducing):
    y, seen = HOLES[holes]
    y = np.floor(np.exp(y))

    def value(how, y):
        model = marginal(partial(own_mask, how=how, likelihood=likelihood), inducing)
        return lambda scale: log_density(model, (X, seen, y), {}, {"scale": scale})[0]

    ours = jax.value_and_grad(value("of isnan", y))(1.3)
    equal(ours, jax.value_and_grad(value("given", np.nan_to_num(y)))(1.3))
    assert np.isfinite(ours).all()


@pytest.mark.parametrize("holes", HOLES)
@pytest.mark.parametrize("at", [0, -1])
def test_nan_that_a_mask_counts_are_refused(holes, at):
    y, seen = (x.copy() for x in HOLES[holes])
    seen[tuple(np.argwhere(~seen)[at])] = True
    model = partial(own_mask, how="given")
    with pytest.raises(ValueError, match=r"^y has \d+ entries that are not finite"):
        guide_of(model).init_params(KEY, X, seen, y)
    both = [np.stack([a, b]) for a, b in ((X, X), (HOLES[holes][1], seen), (y, y))]
    svi = SVI(model, guide_of(model), adam(0.1), GaussianProcessELBO())
    with pytest.raises(ValueError, match=r"^y has \d+ entries that are not finite"):
        fit(random.split(KEY, 2), svi, 1, *both, progress=False)


@pytest.mark.parametrize("derived", [jnp.nan_to_num, lambda y: (y > 0).astype(y.dtype), lambda y: y.astype(int)])
def test_other_numbers_in_place_of_nan_do_not_pass_for_data(derived):
    def model(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=None if y is None else derived(y))

    with pytest.raises(ValueError, match=r"^y has \d+ entries that are not finite"):
        guide_of(model).init_params(KEY, X, Y[:, 0])
