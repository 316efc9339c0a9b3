"""A diagnosis says of a fit with one fault that one and at most one other, of a good one nothing; and its tables."""

import re
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.stats
from jax import random
from numpyro import handlers
from numpyro.infer import SVI

from gpzoo import GaussianProcess, InducingPoints, kmeans
from gpzoo import _checks as checks
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.inference.diagnosis import approximation, chains, khat
from gpzoo.inference.diagnosis.diagnose import diagnose
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding, Section
from gpzoo.inference.diagnosis.measure import Measured, Outcomes, Process, measure
from gpzoo.inference.diagnosis.outcomes import judge
from gpzoo.inference.fitted.psis import pareto
from gpzoo.inference.fitted.summaries import SitePrediction
from gpzoo.inference.guides.draws import DrawsGuide
from gpzoo.inference.training.sources import described_arguments
from gpzoo.kernels import RBF, White
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian
from gpzoo.models import categories, gp_regression, network_of
from tests.inference.diagnosis.planted_fits import FAULTS, ROWS, SETS, deep_fits, sparse, sparse_fits, waves
from tests.programs import (
    KEY,
    adam,
    around_constant,
    at_start,
    bayesian_regression,
    constant,
    positive,
    regression,
    sine,
)
from tests.zoo import PROGRAMS

#: Not among those that thresholds were chosen on.
SEED = 303


def names(found):
    return [finding.name for finding in found.findings]


def table(found, title):
    (section,) = (section for section in found.sections if section.title == title)
    return [dict(zip(section.columns, row, strict=True)) for row in section.rows]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_called_by_its_name(fault):
    trained, new, kwargs, data = fault(SEED)
    found = names(diagnose(KEY, trained, *new, train_args=data, model_kwargs=kwargs))
    assert FAULTS[fault] in found
    assert len(found) <= 2


def test_a_site_of_one_number_has_no_rows():
    def anchored(X, y=None, *, num_data=None):
        lengthscale = positive("lengthscale", 1.0)
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
        numpyro.sample("anchor", dist.Normal(lengthscale, 0.1), obs=1.1)
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    X, y = sine(20)
    found = diagnose(KEY, at_start(anchored, kmeans(4), X, y), X, y)
    assert any("y" in str(section.rows) for section in found.sections)


GOOD = [(sparse_fits, name) for name in SETS] + [(deep_fits, name) for name in SETS if SETS[name][1] == 1]


@pytest.mark.slow
@pytest.mark.parametrize("fits, name", GOOD, ids=[f"{fits.__name__}-{name}" for fits, name in GOOD])
def test_good_fits_raise_nothing(fits, name):
    trained, new, kwargs = fits(SEED)[name]
    assert names(diagnose(KEY, trained, *new, model_kwargs=kwargs)) == []


SCHEDULES = {
    "constant": lambda steps: 0.02,
    "cosine": lambda steps: optax.cosine_decay_schedule(0.02, steps),
    "exponential": lambda steps: optax.exponential_decay(0.02, steps, 0.1),
    "linear": lambda steps: optax.linear_schedule(0.02, 0.0, steps),
    "piecewise": lambda steps: optax.piecewise_constant_schedule(0.02, {steps // 2: 0.1, 3 * steps // 4: 0.1}),
}


@pytest.mark.slow
def test_an_argument_may_be_none(standard_promotion):
    def program(X, exposure=None, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1 if exposure is None else exposure), obs=y)

    X = np.linspace(0, 3, 30)[:, None]
    svi = SVI(program, InducingGuide(program, kmeans(5)), optax.adam(0.05), GaussianProcessELBO())
    trained = fit(KEY, svi, 50, X, None, np.sin(X[:, 0]), progress=False)
    assert table(diagnose(KEY, trained, X, None, np.sin(X[:, 0])), "Leave-one-out")


def waves_of_one_column(rows):
    X = np.linspace(0, 10, rows)[:, None]
    return X, np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(rows).standard_normal(rows)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rows, batch_size", [(60, None), (120, 40)])
def test_a_training_that_a_falling_rate_stopped_is_not_finished(schedule, rows, batch_size):
    X, y = waves_of_one_column(rows)
    said = {}
    for steps in (100, 2000):
        svi = SVI(
            regression, InducingGuide(regression, kmeans(15)), adam(SCHEDULES[schedule](steps)), GaussianProcessELBO()
        )
        trained = fit(KEY, svi, steps, X, y, batch_size=batch_size, progress=False)
        found = [diagnose(KEY, trained, X, y), diagnose(KEY, trained, X[:20], y[:20], train_args=(X, y))]
        said[steps] = ["training not finished" in names(each) for each in found]
    assert said == {100: [True, True], 2000: [False, False]}


@pytest.mark.slow
def test_running_means_that_lag_are_a_finding(standard_promotion):
    nnx = pytest.importorskip("flax.nnx")

    class Features(nnx.Module):
        def __init__(self, momentum, rngs):
            self.first, self.norm = nnx.Linear(2, 10, rngs=rngs), nnx.BatchNorm(10, momentum=momentum, rngs=rngs)
            self.last = nnx.Linear(10, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.relu(self.norm(self.first(x))))

    rng = np.random.default_rng(SEED)
    X = (10 + 2 * rng.standard_normal((100, 2))).astype(np.float32)
    y = (X[:, 0] - 10 - np.sin(X[:, 1]) + 0.1 * rng.standard_normal(100)).astype(np.float32)
    said = {}
    for momentum, steps in ((0.99, 100), (0.9, 1000)):
        network = network_of(Features(momentum, nnx.Rngs(0)))

        def program(X, y=None, *, training=False, num_data=None, network=network):
            regression(network(X, training), y, num_data=num_data)

        rate = optax.cosine_decay_schedule(0.03, steps)
        svi = SVI(program, InducingGuide(program, kmeans(10)), adam(rate), GaussianProcessELBO())
        trained = fit(KEY, svi, steps, X, y, batch_size=50, model_kwargs={"training": True}, progress=False)
        found = [diagnose(KEY, trained, X, y), diagnose(KEY, trained, X[:20], y[:20], train_args=(X, y))]
        said[steps] = ["evaluation far from training" in names(each) for each in found]
    assert said == {100: [True, True], 1000: [False, False]}


TAILS = {
    "tails too light": lambda rng: np.where(rng.uniform(size=1000) < 0.05, 60.0, 1.0) * rng.standard_normal(1000),
    "intervals too wide": lambda rng: rng.standard_normal(1000) / 3,
    "nothing": lambda rng: rng.standard_t(8, 1000),
}


@pytest.mark.parametrize("name", TAILS)
def test_outliers_are_told_from_a_noise_that_is_too_large(name):
    y = TAILS[name](np.random.default_rng(SEED))
    sd = 1.0 if name == "intervals too wide" else np.std(y)
    predicted = SitePrediction(
        mean=np.zeros(1000),
        variance=np.full(1000, sd**2),
        log_density=scipy.stats.norm.logpdf(y, 0, sd),
        cdf=scipy.stats.norm.cdf(y, 0, sd),
    )
    outcomes = Outcomes(y, np.full(1000, True), "numbers", "Gaussian", sd**2)
    found = set(names(judge("y", outcomes, predicted, np.full(1000, True)))) - {"no better than a constant"}
    assert found == {name} - {"nothing"}


def names_of_residuals(residuals, sd=1.0):
    size = len(residuals)
    predicted = SitePrediction(
        mean=np.zeros(size),
        variance=np.full(size, sd**2),
        log_density=scipy.stats.norm.logpdf(residuals, 0, sd),
        cdf=scipy.stats.norm.cdf(residuals, 0, sd),
    )
    outcomes = Outcomes(residuals, np.full(size, True), "numbers", "Gaussian", sd**2)
    return set(names(judge("y", outcomes, predicted, np.full(size, True)))) - {"no better than a constant"}


@pytest.mark.parametrize("size", [60, 1000])
@pytest.mark.parametrize("shift", [0.7, -1.5, 3.0, -8.0])
def test_a_shift_of_any_size_is_no_noise(size, shift):
    """Intervals that miss at one end only are off to one side; those that miss at both ends are too narrow."""
    noise = np.random.default_rng(SEED).standard_normal(size)
    assert names_of_residuals(noise + shift) == {"outcomes off to one side"}
    assert names_of_residuals(noise * (1 + abs(shift))) == {"intervals too narrow"}


LAWS = {
    "poisson": lambda rng, mu: rng.poisson(mu),
    "dispersed": lambda rng, mu: rng.negative_binomial(6, 6 / (6 + mu)),
}


@pytest.mark.parametrize("size", [60, 400])
@pytest.mark.parametrize("level", [15, 200])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("amplitude, shuffled", [(0.5, False), (0.5, True), (0.0, False)])
def test_a_law_that_is_too_narrow_is_told_from_inputs_that_say_nothing(size, level, law, amplitude, shuffled):
    rng = np.random.default_rng(SEED)
    mu = level * np.exp(amplitude * np.sin(np.linspace(0, 9, size)))
    y = LAWS[law](rng, mu)
    y = rng.permutation(y) if shuffled else y
    log_density, draws = scipy.stats.poisson.logpmf(y, mu), rng.poisson(mu, (400, size))
    predicted = SitePrediction(mean=mu, variance=mu, log_density=log_density, draws=draws)
    outcomes = Outcomes(y, np.full(size, True), "integers", "Expected", None)
    found = names(judge("y", outcomes, predicted, np.full(size, True)))
    if law == "dispersed" and not shuffled:
        # Without a signal nothing is known of the inputs, so both are said, the law first.
        assert found[:1] == ["intervals too narrow"] and (len(found) == 1 or not amplitude)
    elif shuffled:
        assert "no better than a constant" in found and (law == "dispersed" or found[0] == "no better than a constant")
    else:
        assert set(found) <= {"no better than a constant"} and (not found or not amplitude)


# -- what is measured --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numbers_are_those_of_their_definitions():
    trained, (X, y), kwargs = sparse_fits(SEED)["a sine"]
    found = diagnose(KEY, trained, X, y, model_kwargs=kwargs)
    test = trained.predict(KEY, X, test_data={"y": y}, num_draws=200, model_kwargs=kwargs)
    (row,) = table(found, "Log densities")
    assert row["nlpp"] == pytest.approx(-test["y"].log_density.mean())
    assert row["of a constant"] == pytest.approx(-dist.Normal(y.mean(), y.std()).log_prob(y).mean())
    (row,) = table(found, "Residuals")
    assert row["mean square"] == pytest.approx(np.mean((y - test["y"].mean) ** 2))
    assert row["predicted"] == pytest.approx(test["y"].variance.mean())
    assert row["noise"] == pytest.approx(trained.params["noise"])
    bound = GaussianProcessELBO().loss(KEY, trained.params, sparse, trained.guide, X, y)
    assert sum(row["nats"] for row in table(found, "The bound by site")) == pytest.approx(-bound)
    exact = scipy.stats.norm.cdf(y, test["y"].mean, np.sqrt(test["y"].variance))
    np.testing.assert_allclose(found.arrays["y_pit"], exact, atol=1e-12)
    S = trained.params["f_scale"]
    S = np.tril(S) @ np.tril(S).T
    np.testing.assert_allclose(found.arrays["f_eigenvalues"][0], np.linalg.eigvalsh(S), atol=1e-10)
    (row,) = table(found, "Inducing variables")
    assert row["determined"] == pytest.approx(np.sum(1 - np.minimum(np.linalg.eigvalsh(S), 1)))


@pytest.mark.slow
def test_the_program_runs_at_most_five_times_and_each_array_is_looked_at_once(monkeypatch):
    """Runs of the guide, each with one of the program after it: what is measured, predicted, weighed and left out."""
    runs, looked, called, compiled = [], [], [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    call, extremes = InducingGuide.__call__, checks._extremes_of
    monkeypatch.setattr(InducingGuide, "__call__", lambda self, *a, **k: (runs.append(1), call(self, *a, **k))[1])
    monkeypatch.setattr(checks, "_extremes_of", lambda array: (looked.append(array), extremes(array))[1])

    def program(X, y=None):
        called.append(1)
        return bayesian_regression(X, y)

    (X, y), new = sine(30), sine(40, 1)
    trained = at_start(program, kmeans(8), X, y, losses=np.geomspace(200.0, 50.0, 60), hyperparameters="normal")
    for array in (runs, looked, called):
        array.clear()
    found = diagnose(KEY, trained, *new, train_args=(X, y))
    # Each run of the guide calls the program; the rows of the training are others, whose sites are looked at anew.
    assert len(runs) <= 5 and len(called) <= 13 and compiled
    assert all(found_in(found, title) for title in ("Hyperparameters against their posterior", "Leave-one-out"))
    given = [X, y, *new, *trained.params.values()]
    assert [sum(each is array for each in looked) for array in given] == [1] * len(given)
    again = random.key(1)
    for array in (runs, called, compiled):
        array.clear()
    diagnose(again, trained, *new, train_args=(X, y))
    assert not compiled and not runs and len(called) <= 2  # once at the rows, once at those of the training


def found_in(found, title):
    """Whether a diagnosis has numbers under a title."""
    return any(section.title == title and len(section.columns) > 1 for section in found.sections)


@pytest.mark.slow
def test_masked_rows_are_left_out():
    trained, (X, y), kwargs = sparse_fits(SEED)["a sine"]
    seen = np.arange(len(y)) % 4 > 0
    whole = diagnose(KEY, trained, X, y, model_kwargs=kwargs)
    part = diagnose(KEY, Trained(_masked_data, _guide_of(_masked_data, X, y, seen), trained.params), X, y, seen)
    np.testing.assert_allclose(part.arrays["y_log_density"], whole.arrays["y_log_density"][seen])
    assert len(part.arrays["y_pit"]) == seen.sum()


def _masked_data(X, y=None, seen=None):
    f = numpyro.sample("f", GaussianProcess(RBF(_param("variance"), _param("lengthscale")), X))
    with numpyro.plate("data", len(X)), numpyro.handlers.mask(mask=True if seen is None else seen):
        numpyro.sample("y", Gaussian(f, _param("noise")), obs=y)


def _param(name):
    return numpyro.param(name, jnp.asarray(1.0), constraint=dist.constraints.positive)


def _guide_of(program, *args):
    guide = InducingGuide(program, kmeans(20))
    guide.setup(*args)
    return guide


@pytest.mark.slow
def test_labels_are_judged_by_their_probabilities():
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2, 2, (ROWS, 1))
    y = (rng.uniform(size=ROWS) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(float)

    def sure(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(_param("variance"), _param("lengthscale")), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Bernoulli(100.0 * f), obs=y)

    found = diagnose(KEY, at_start(sure, kmeans(10), X, y), X, y)
    assert found.arrays["y_probs"].shape == (ROWS, 2) and found.arrays["y_labels"].dtype.kind == "i"
    (row,) = table(found, "Classes")
    top = found.arrays["y_probs"].argmax(axis=1)
    assert row["accuracy"] == pytest.approx(np.mean(top == y))
    # Parameters are those of the start.
    assert "parameter at its start" in names(found)


@pytest.mark.slow
def test_a_diagnosis_prints_in_eighty_columns_and_survives_netcdf(tmp_path):
    trained, (X, y), kwargs = deep_fits(SEED)["a sine"]
    found = diagnose(KEY, trained, X, y, model_kwargs=kwargs)
    found = Diagnosis((Finding("a fault", "f", "It is " + "very " * 40 + "bad."),), found.sections, found.arrays)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80 and "a fault (f)" in text and "Inner layers" in text
    data = found.to_xarray()
    data.to_netcdf(tmp_path / "found.nc", engine="h5netcdf")
    import xarray

    with xarray.open_dataset(tmp_path / "found.nc", engine="h5netcdf") as read:
        np.testing.assert_array_equal(read["y_pit"], found.arrays["y_pit"])
        assert list(read["finding"].values) == ["a fault"]
        assert set(read.variables) == set(data.variables)


def test_pairs_of_inducing_variables_are_counted_and_many_on_one_spot_named():
    def found(Z):
        covariance = np.asarray(RBF(1.0, 1.0)(np.asarray(Z, float)[:, None]))
        site = Process(*np.ones((5, 3)), None, len(Z), covariance, None, 0)
        return approximation.inducing(Measured({}, {"f": site}, {}, {}), set())

    pairs, crowd = found([*range(0, 40, 5), 5, 10, 15]), found([*range(0, 40, 5), 5, 5, 5])
    for whole in (pairs, crowd):
        assert table(whole, "Inducing variables")[0]["doubles"] == 3
    assert "inducing variables repeat each other" not in names(pairs)
    assert "inducing variables repeat each other" in names(crowd)
    assert "inducing variables repeat each other" in names(found([0, 0, 5, 5, 10, 10, 15, 15]))


def categories_in(X, column):
    return handlers.seed(categories, KEY)("f", X, 6, column=column)


KERNELS = {
    "another column": (lambda X: RBF(1.0, 1.0, active_dims=(0,)), 0),
    "numbers": (lambda X: RBF(1.0, 1.0), 0),
    "hardly used numbers": (lambda X: RBF(1.0, np.array([1.0, 1e4, 1e4])), 0),
    "categories": (lambda X: RBF(1.0, 1.0, active_dims=(0,)) * categories_in(X, 2), 1),
    "categories and numbers": (lambda X: RBF(1.0, 3.0, active_dims=(0, 1)) + categories_in(X, -1), 1),
    "categories alone": (lambda X: categories_in(X, 2), 1),
}


@pytest.mark.slow_but(size=[30], kernel=["another column", "hardly used numbers", "categories and numbers"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size, far, dtype", [(30, 0.0, np.float32), (150, 1e3, np.float64)])
def test_a_column_is_of_categories_if_the_kernel_rounds_it(kernel, size, far, dtype):
    """Columns: real numbers, ages and categories. Means of rows lie between whole numbers of the last two."""
    rng = np.random.default_rng(SEED)
    X = np.column_stack([rng.normal(size=size), rng.integers(20, 80, size), rng.integers(0, 6, size)]).astype(dtype)
    Z = np.concatenate([(X[:10] + X[10:20] + X[20:30]) / 3, X[:3]]).astype(dtype)
    made, found = KERNELS[kernel]

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(made(X), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    X = X + np.array([far, far, 0], dtype)
    trained = at_start(program, InducingPoints(Z), X, X[:, 0])
    between = measure(KEY, trained._bind((X, X[:, 0]), None)).processes["f"].between
    assert between == found * np.sum(Z[:, 2] != np.round(Z[:, 2]))


def test_tables_of_one_title_are_joined():
    one = Diagnosis(sections=(Section("t", ("a",), ((1,),)),), arrays={"x": np.zeros(1)})
    found = Diagnosis.joined([one, Diagnosis(findings=(Finding("n", None, "t"),)), one])
    assert found.sections == (Section("t", ("a",), ((1,), (1,))),) and names(found) == ["n"]
    assert str(Diagnosis()) == "Findings: none"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "channels", "deep kernel", "invariant"])
def test_programs_of_the_zoo_are_looked_at(name, standard_promotion):
    program, inputs, data, inducing, *options = PROGRAMS[name]()
    start = at_start(program, inducing, inputs, data, **(options[0] if options else {}))
    found = diagnose(KEY, start, inputs, data)
    assert names(found) == ["parameter at its start"]
    assert all(np.isfinite(x).all() for x in found.arrays.values())
    assert table(found, "Classes") and max(map(len, str(found).splitlines())) <= 80


# -- hyperparameters ---------------------------------------------------------------------------------------------------


def test_khat_is_that_of_a_normal_posterior():
    """Given ``q`` with a standard deviation ``s`` times the posterior's, weights have a tail of ``k = 1 - s^2``."""
    z = np.random.default_rng(0).standard_normal(4000)
    for s in (0.9, 0.5):
        _, k = pareto(-((s * z) ** 2) / 2 + z**2 / 2)
        assert k == pytest.approx(max(1 - s**2, 0), abs=0.2)
    assert pareto(np.ones(100))[1] == 0


def noisy_line(X, y=None):
    """A GP that is a constant slope, with one hyperparameter: its posterior is known by quadrature."""
    scale = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, scale**2), obs=y)


@pytest.fixture(scope="module")
def line():
    """Data, a training, and the mean and standard deviation of the posterior of the log noise, by quadrature."""
    X, y, *_ = waves(SEED, 40)
    guide = InducingGuide(noisy_line, kmeans(15), hyperparameters="normal")
    trained = fit(KEY, SVI(noisy_line, guide, adam(0.05), GaussianProcessELBO()), 600, X, y, progress=False)
    grid = np.linspace(-3.5, -1.0, 400)
    K = np.asarray(RBF(1.0, 1.0)(X))
    values, vectors = np.linalg.eigh(K)
    square, variance = np.square(vectors.T @ y), values + np.exp(2 * grid)[:, None]
    log_joint = -np.sum(square / variance + np.log(variance), axis=1) / 2 - (grid + 1) ** 2 / 2
    density = np.exp(log_joint - log_joint.max())
    density /= density.sum()
    mean = density @ grid
    return X, y, trained, mean, np.sqrt(density @ (grid - mean) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 0.4])
def test_khat_of_hyperparameters_sees_a_posterior_that_is_too_narrow(line, factor):
    X, y, trained, mean, spread = line
    params = dict(trained.params) | {"noise_loc": jnp.asarray(mean), "noise_scale": jnp.asarray(factor * spread)}
    found = diagnose(KEY, trained.with_params(params), X, y, train_args=(X, y))
    whole, noise = table(found, "Hyperparameters against their posterior")
    assert ("hyperparameters not trusted" in names(found)) == (factor < 1)
    if factor < 1:
        assert whole["k-hat"] > 0.7 and whole["effective"] < 0.5
        assert f" standard deviation of noise {noise['spread']:.2g} times as large, at least: " in str(found.findings)
    else:
        assert whole["effective"] > 0.8
        assert noise["shift"] < 0.15 and noise["spread"] == pytest.approx(1, abs=0.1)


def test_weights_do_not_depend_on_the_name_of_a_hyperparameter():
    """``f_log_weight`` is the weight of ``u``, and a user's site may end like it."""
    X, y, found = jnp.linspace(0, 3, 12)[:, None], jnp.sin(jnp.linspace(0, 3, 12)), []
    for name in ("scale", "scale_log_weight"):

        def program(X, y=None, name=name):
            scale = numpyro.sample(name, dist.LogNormal(-1.0, 1.0))
            f = numpyro.sample("f", GaussianProcess(RBF(), X))
            with numpyro.plate("data", len(X)):
                numpyro.sample("y", Expected(student, f, scale), obs=y)

        guide = InducingGuide(program, kmeans(4), hyperparameters="normal")
        at = Trained(program, guide, guide.init_params(KEY, X, y))._bind((X, y), None).batch()
        found.append(khat._joint(program, guide, KEY, {name: jnp.asarray(-0.7)}, at))
    np.testing.assert_allclose(*found)


def student(f, scale):
    return dist.StudentT(4.0, f, scale)


@pytest.mark.parametrize(
    ("shift", "wider", "words", "others"),
    [
        (0.8, 1.01, "the mean of noise by 0.8", "times as large"),
        (0.17, 2.345, "noise 2.3 times as large", "the mean of"),
        (0.17, 0.25, "noise 0.25 times as large", "the mean of"),
        (0.8, 2.0, "noise by 0.8 of its standard deviations and .* 2 times as large", "shape"),
        (0.17, 1.0, "shape", "times as large"),
    ],
)
def test_weights_are_said_to_change_what_they_change_and_nothing_else(shift, wider, words, others):
    text = khat._finding([("noise", 1, None, None, None, shift, wider)], 0.5, None, 0.1).text
    assert re.search(words, text) and others not in text


def exact_line(X, y=None):
    scale = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0) + White(scale**2), X), obs=y)


@pytest.mark.slow
def test_khat_of_exact_regression_has_the_exact_evidence():
    X, y, *_ = waves(SEED, 40)
    guide = InducingGuide(exact_line, kmeans(5), hyperparameters="normal")
    guide.setup(X, y)
    params = {"noise_loc": jnp.asarray(-2.35), "noise_scale": jnp.asarray(0.13)}
    found = diagnose(KEY, Trained(exact_line, guide, params), X, y, train_args=(X, y))
    whole, noise = table(found, "Hyperparameters against their posterior")
    (section,) = (section for section in found.sections if section.title.startswith("Hyperparameters"))
    assert "L is exact" in section.note and whole["effective"] > 0.8
    assert noise["shift"] < 0.5 and noise["spread"] == pytest.approx(1, abs=0.15)
    assert not found.findings


@pytest.mark.slow
def test_khat_says_why_it_is_not_available(line):
    trained, (X, y), kwargs = sparse_fits(SEED)["a sine"]
    found = diagnose(KEY, trained, X, y, model_kwargs=kwargs)
    (section,) = (section for section in found.sections if section.title.startswith("Hyperparameters"))
    assert section.rows == (("not available",),) and "numpyro.param values" in section.note
    X, y, trained, *_ = line
    found = diagnose(KEY, trained, X, y[::-1])
    for title in ("Hyperparameters against their posterior", "Leave-one-out"):
        (section,) = (section for section in found.sections if section.title == title)
        assert section.rows == (("not available",),) and "train_args" in section.note


# -- several trainings -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_restarts_are_held_against_each_other():
    same, new, kwargs = sparse_fits(SEED)["restarts"]
    found = diagnose(KEY, same, *new, model_kwargs=kwargs)
    assert "several optima" not in names(found)
    rows = table(found, "Restarts")
    assert len(rows) == 3 and rows[0]["bound"] >= rows[1]["bound"] >= rows[2]["bound"]
    other = dict(same.params) | {"f_mean": jnp.asarray(same.params["f_mean"]).at[1].multiply(-1.0)}
    found = diagnose(KEY, replace(same, params=other), *new, model_kwargs=kwargs)
    assert "several optima" in names(found)


def test_other_guides_are_refused():
    X, y, *_ = waves(SEED, 20)
    trained = Trained(constant, around_constant, {"f_mean": jnp.zeros(()), "f_scale": jnp.ones(())})
    with pytest.raises(TypeError, match="InducingGuide"):
        diagnose(KEY, trained, X, y)


@pytest.mark.slow
def test_units_are_named_before_what_they_do():
    X, y = sine(40)
    found = names(diagnose(KEY, at_start(gp_regression, kmeans(8), X, 70 + 7 * y), X, 70 + 7 * y))
    assert found[0] == "unscaled targets" and "no better than a constant" in found


@pytest.mark.slow
@pytest.mark.parametrize("of_training", [True, False])
@pytest.mark.parametrize("rows", [30, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_units_of_a_test_are_not_judged(of_training, rows, dtype):
    """Targets of rows ahead may have another mean and another spread than those of the training."""
    (X, y), (X_new, y_new) = sine(40, dtype=dtype), sine(rows, 1, dtype=dtype)
    train, new = ((X, 5 + y / 2), (X_new, y_new)) if of_training else ((X, y), (X_new, 5 + y_new / 2))
    data = described_arguments(gp_regression, train, {})
    trained = at_start(gp_regression, kmeans(8), *train, data=data)
    for args, options in ((new, {}), (new, {"train_args": train}), (train, {})):
        found = diagnose(KEY, trained, *args, **options)
        named = {each.name for each in found.findings if each.name.startswith("unscaled")}
        judged = of_training and (args is train or bool(options))
        assert named == ({"unscaled targets"} if judged else set())


# -- chains ------------------------------------------------------------------------------------------------------------


class OfDraws(DrawsGuide):
    """Chains of hyperparameters alone."""

    def __init__(self, draws):
        self.draws = draws

    @property
    def sites(self):
        return SimpleNamespace(latents=self.draws.keys() | {"f"}, processes={"f"})

    def said(self):
        params = {f"{name}_loc": draws for name, draws in self.draws.items()}
        shape = next(iter(self.draws.values())).shape[:2]
        return chains.of_draws(SimpleNamespace(guide=self, params=params | {"f_mean": np.zeros((*shape, 3))})).findings


@pytest.mark.parametrize("count, size", [(4, 300), (2, 1000), (8, 500)])
@pytest.mark.parametrize("entries", [(), (2,)])
def test_chains_that_nearly_agree_are_told_from_those_that_have_not_met(count, size, entries):
    z = np.random.default_rng(0).standard_normal((count, size, *entries))
    k = np.linspace(0.0, 1.0, count).reshape(-1, 1, *[1] * len(entries))
    moves_slowly = np.cumsum(z, axis=1)
    nearly, other = (1 + 0.45 * k) * z, (1 + 4 * k) * z
    assert OfDraws({"a": z}).said() == OfDraws({"a": np.stack([z, np.ones_like(z)], axis=-1)}).said() == ()
    (found,) = OfDraws({"a": z, "b": nearly}).said()
    assert found.site == "b" and "slightly above" in found.text and "not met" not in found.text
    for bad in (other, z + 3 * k, moves_slowly, np.ones_like(z)):
        (found,) = OfDraws({"a": nearly, "b": bad}).said()
        assert found.site == "b" and "have not met, or hardly move" in found.text
