"""The groups of an export: predictions, the prior, rows in batches, names of axes, files, exact regression."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from scipy.stats import lognorm, multivariate_normal, norm

import gpzoo
from gpzoo import GaussianProcess, InducingPoints
from gpzoo.inference import InducingGuide, Trained, draws_to_arviz, predict
from gpzoo.inference.fitted.container import Group, container
from gpzoo.kernels import RBF, White
from gpzoo.likelihoods import Gaussian, RobustMax
from gpzoo.models import gp_regression
from tests.programs import KEY, sine

az = pytest.importorskip("arviz")
OLD = "InferenceData" in vars(az)

X, numbers = sine(12)
LABELS = np.arange(12) % 3
Y = np.stack([numbers, -np.asarray(numbers)], axis=1)
Z = X[::4]
NEW = np.concatenate([Z, np.linspace(-3, 3, 4)[:, None]])
S = 300
YEARS = np.arange(2000, 2012)


def program(X, y=None, labels=None):
    """Classes and numbers, and hyperparameters in a plate."""
    with numpyro.plate("feature", 1):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.2))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, scale), X, num_outputs=3))
    g = numpyro.sample("g", GaussianProcess(RBF(numpyro.param("variance", 2.0), 1.0), X, num_outputs=2))
    numpyro.deterministic("noise", jnp.full(2, 0.1))
    with numpyro.plate("data", len(X)):
        numpyro.sample("labels", RobustMax(f), obs=labels)
        numpyro.sample("y", Gaussian(g, 0.1), obs=y)


@pytest.fixture(scope="module")
def trained():
    guide = InducingGuide(program, InducingPoints(Z), hyperparameters="normal")
    params = guide.init_params(KEY, X, Y, LABELS)
    rng = np.random.default_rng(0)
    params |= {f"{name}_mean": jnp.asarray(rng.standard_normal(params[f"{name}_mean"].shape)) for name in "fg"}
    return Trained(program, guide, params | {"g_scale": 0.3 * params["g_scale"]}, losses=np.array([3.0, 2.0]))


@pytest.fixture(scope="module")
def exported(trained):
    options = {"coords": {"data": YEARS, "feature": ["age"]}, "dims": {"noise": ["side"]}}
    return trained.to_arviz(KEY, X, Y, LABELS, num_draws=S, new_args=(NEW,), **options)


def names(data):
    return {name.strip("/") for name in (data.groups() if callable(data.groups) else data.groups)} - {""}


def draws(data, group, name):
    return np.asarray(data[group][name])[0]


@pytest.mark.slow
def test_axes_have_names(exported):
    posterior, both = exported["posterior"], ("chain", "draw")
    assert posterior["f"].dims == (*both, "data", "f_class") and posterior["g"].dims == (*both, "data", "g_output")
    assert posterior["f_u"].dims == (*both, "f_inducing_row", "f_class")
    assert posterior["scale"].dims == (*both, "feature") and posterior["noise"].dims == (*both, "side")
    assert exported["observed_data"]["y"].dims == ("data", "g_output")
    assert exported["predictions"]["y"].dims == (*both, "data", "g_output")
    constants = exported["constant_data"]
    assert constants["f_inducing"].dims[0] == "f_inducing_row" and constants["X"].dims == ("data", "X_dim_1")
    assert constants["elbo"].dims == ("step",) and list(constants["elbo"]) == [-3, -2]
    for group in ("posterior", "log_likelihood", "prior", "observed_data", "constant_data"):
        np.testing.assert_array_equal(exported[group]["data"], YEARS)
    # New rows are not those of the data.
    np.testing.assert_array_equal(exported["predictions"]["data"], np.arange(7))
    np.testing.assert_array_equal(exported["predictions_constant_data"]["X"], NEW)
    assert list(posterior["feature"].values) == ["age"]


@pytest.mark.slow
def test_predictions_are_those_of_the_same_draws(trained, exported):
    # At an inducing input f is u, and what is predicted is what Trained.predict says.
    for name in "fg":
        np.testing.assert_allclose(
            draws(exported, "predictions", name)[:, :3], draws(exported, "posterior", f"{name}_u"), atol=0.02
        )
    found = trained.predict(KEY, NEW, num_draws=50)
    values = draws(exported, "predictions", "g")
    error = np.sqrt(np.asarray(found["g"].variance) / S)
    assert (np.abs(values.mean(0) - found["g"].mean) < 5 * error + 1e-3).all()
    np.testing.assert_allclose((draws(exported, "predictions", "y") - values).var(), 0.1, rtol=0.1)
    assert set(exported["predictions"].data_vars) == {"f", "g", "labels", "y"}
    # What is left of f given u is drawn anew.
    old, new = draws(exported, "posterior", "f")[:, 1:3, 0], values[:, 3:5, 0]
    assert (np.abs(np.corrcoef(old - old.mean(0), new - new.mean(0), rowvar=False)[:2, 2:]) < 0.9).all()


@pytest.mark.slow
def test_the_prior_is_that_of_the_program(exported):
    prior = exported["prior"]
    assert set(prior.data_vars) == {"f", "g", "scale", "noise"}
    assert prior.attrs["parameters"] == "drawn at the trained values of variance"
    np.testing.assert_allclose(np.log(draws(exported, "prior", "scale")).std(), 0.2, rtol=0.2)
    for name, variance in (("f", 1.0), ("g", 2.0)):
        np.testing.assert_allclose(draws(exported, "prior", name).var(0).mean(), variance, rtol=0.2)
    residual = draws(exported, "prior_predictive", "y") - draws(exported, "prior", "g")
    np.testing.assert_allclose(residual.var(), 0.1, rtol=0.1)
    assert draws(exported, "prior_predictive", "labels").shape == (S, 12)


@pytest.mark.slow
def test_rows_in_batches_have_the_same_draws_of_u(trained, exported):
    data = trained.to_arviz(KEY, X, Y, LABELS, num_draws=S, batch_size=5)
    for group, name in (
        ("posterior", "f_u"),
        ("posterior", "scale"),
        ("sample_stats", "log_q"),
        ("sample_stats", "log_p_g_u"),
    ):
        np.testing.assert_allclose(data[group][name], exported[group][name], rtol=1e-10)
    np.testing.assert_array_equal(data["observed_data"]["y"], Y)
    assert data["posterior"]["noise"].shape == (1, S, 2) and data["posterior"]["f"].shape == (1, S, 12, 3)
    for name in "fg":
        np.testing.assert_allclose(data["posterior"][name][:, :, ::4], data["posterior"][f"{name}_u"], atol=0.02)
    g = draws(data, "posterior", "g")
    by_hand = norm(g, np.sqrt(0.1)).logpdf(Y).sum(-1)
    np.testing.assert_allclose(draws(data, "log_likelihood", "y"), by_hand, rtol=1e-8)
    total = sum(draws(data, "log_likelihood", name).sum(-1) for name in ("y", "labels"))
    total = total + sum(draws(data, "sample_stats", f"log_p_{name}_u") for name in "fg")
    total = total + draws(data, "log_prior", "scale")
    np.testing.assert_allclose(draws(data, "sample_stats", "log_p"), total, rtol=1e-10)
    # The noise of one batch is not that of another.
    left = g - draws(exported, "posterior", "g")
    assert np.abs(np.corrcoef(left[:, 1, 0], left[:, 5, 0])[0, 1]) < 5 / np.sqrt(S)
    assert data["prior"].attrs["rows"] == "the first 5 of 12" and data["prior"]["f"].shape == (1, S, 5, 3)


def test_names_that_do_not_fit_are_refused():
    groups = {
        "posterior": Group({"f": np.zeros((1, 2, 12, 3)), "g": np.zeros((1, 2, 12, 2))}, {"f": ["data", "class"]})
    }
    for coords, dims, error, words in (
        (None, {"f": ["row"]}, ValueError, r"dims\['f'\] must be 2 names, for the axes \[12, 3\]; got \['row'\]"),
        (None, {"f": "xy"}, ValueError, r"dims\['f'\] must be 2 names, for the axes \[12, 3\]; got 'xy'"),
        (None, {"h": ["row"]}, ValueError, r"dims names \['h'\], but there are \['f', 'g'\]"),
        (None, {"g": ["data", "class"]}, ValueError, "Axis 'class' of group 'posterior' has length 3, and of 'g' 2"),
        ({"data": [1, 2]}, None, ValueError, r"coords\['data'\]"),
        ({"rows": [1, 2]}, None, ValueError, r"coords names \['rows'\], but there are \['chain', 'class', 'data'"),
        ([1, 2], None, TypeError, "coords must map names to sequences, got list"),
    ):
        with pytest.raises(error, match=words):
            container(groups, {"data": None}, {}, coords, dims)


def test_options_are_checked_first(trained):
    for options, error, words in (
        ({"new_args": NEW}, TypeError, r"new_args must be a tuple such as \(X_new,\), got ndarray"),
        ({"new_args": ("a",)}, TypeError, "X must be an array"),
        ({"batch_size": 0}, ValueError, "batch_size must be"),
    ):
        with pytest.raises(error, match=words):
            trained.to_arviz(KEY, X, Y, LABELS, **options)


@pytest.mark.slow
def test_a_density_of_all_rows_does_not_come_in_batches():
    def summed(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.factor("level", -jnp.square(jnp.sum(gpzoo.draws(f))))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    guide = InducingGuide(summed, InducingPoints(Z), joint={"f"})
    trained = Trained(summed, guide, guide.init_params(KEY, X, numbers))
    with pytest.raises(ValueError, match=r"\['f', 'level'\] is one joint density of all 12 rows.*pass batch_size=12"):
        trained.to_arviz(KEY, X, numbers, num_draws=2, batch_size=6)
    other = InducingGuide(gp_regression, InducingPoints(Z), joint={"f"})
    together = Trained(gp_regression, other, other.init_params(KEY, X, numbers))
    with pytest.raises(ValueError, match=r"site\(s\) \['f'\] is one joint density of all 12 rows.*pass batch_size=12"):
        together.to_arviz(KEY, X, numbers, num_draws=2, batch_size=6)
    data = trained.to_arviz(KEY, X, numbers, num_draws=2)
    total = draws(data, "log_likelihood", "y").sum(-1) + draws(data, "sample_stats", "log_p_f_u")
    total = total - draws(data, "posterior", "f").sum(-1) ** 2
    np.testing.assert_allclose(draws(data, "sample_stats", "log_p"), total, rtol=1e-8)


@pytest.mark.slow
def test_a_prior_that_overflows_gives_a_warning():
    def wide(X, y=None):
        scale = numpyro.sample("scale", dist.LogNormal(400.0, 400.0))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", dist.Normal(gpzoo.draws(f), scale), obs=y)

    guide = InducingGuide(wide, InducingPoints(Z))
    params = guide.init_params(KEY, X, numbers) | {"scale_loc": jnp.array(1.0)}
    with pytest.warns(UserWarning, match=r"draws from the prior are not finite: those of \['scale', 'y'\]"):
        Trained(wide, guide, params).to_arviz(KEY, X, numbers, num_draws=20)


# -- exact regression --------------------------------------------------------------------------------------------------


def exact(X, y=None):
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
    numpyro.sample("y", GaussianProcess(RBF(1.0, 0.7) + White(noise), X), obs=y)


@pytest.mark.slow
def test_exact_regression_has_what_means_something():
    samples = {"noise": np.random.default_rng(0).uniform(0.05, 0.2, (2, 150))}
    data = draws_to_arviz(KEY, exact, X, numbers, posterior_samples=samples, new_args=(NEW,))
    assert data["observed_data"]["y"].dims == ("row",)
    noise = samples["noise"].ravel()
    K = np.exp(-((X - X.T) ** 2) / (2 * 0.7**2))
    of = [multivariate_normal(np.zeros(12), K + v * np.eye(12)) for v in noise]
    log_p = [law.logpdf(numbers) for law in of] + lognorm(1.0, scale=np.exp(-2.0)).logpdf(noise)
    np.testing.assert_allclose(np.ravel(data["sample_stats"]["log_p"]), log_p, rtol=1e-6)
    # Of each datum given all others.
    others = [
        law.logpdf(numbers) - multivariate_normal(np.zeros(11), law.cov[1:, 1:]).logpdf(numbers[1:]) for law in of
    ]
    np.testing.assert_allclose(np.ravel(data["log_likelihood"]["y"][..., 0]), others, rtol=1e-6)
    found = predict(KEY, exact, NEW, posterior_samples={"noise": noise}, train_args=(X, numbers))["y"]
    for group, rows in (("predictions", slice(None)), ("posterior_predictive", slice(0, None, 4))):
        values = np.asarray(data[group]["y"]).reshape(300, -1)[:, rows]
        mean, variance = found.mean[: values.shape[1]], found.variance[: values.shape[1]]
        assert (np.abs(values.mean(0) - mean) < 5 * np.sqrt(variance / 300)).all()
        np.testing.assert_allclose(values.var(0), variance, rtol=6 * np.sqrt(2 / 300))
    assert data["prior_predictive"]["y"].shape == (1, 150, 12)
    assert az.loo(data, reff=1.0).n_data_points == 12


# -- files -------------------------------------------------------------------------------------------------------------


def equal(data, again):
    assert names(again) == names(data)
    for name in names(data):
        # Also names of axes, coordinates, types and attributes.
        one, other = (x[name].to_dataset() if hasattr(x[name], "to_dataset") else x[name] for x in (data, again))
        assert one.identical(other.load()), name


@pytest.mark.slow
def test_netcdf_is_what_was_written(exported, tmp_path):
    path = str(tmp_path / "posterior.nc")
    exported.to_netcdf(path, engine="h5netcdf")
    again = (az.from_netcdf if OLD else xarray.open_datatree)(path, engine="h5netcdf")
    equal(exported, again)
    again.close()


@pytest.mark.slow
def test_zarr_is_what_was_written(exported, tmp_path):
    pytest.importorskip("zarr")
    path = str(tmp_path / "posterior.zarr")
    tree = exported.to_datatree() if OLD else exported
    with warnings.catch_warnings():
        # Zarr's own, of texts in its third format; of which class depends on its version.
        warnings.filterwarnings("ignore", message=".*Zarr (format 3|V3)")
        tree.to_zarr(path)
        again = xarray.open_datatree(path, engine="zarr")
    equal(tree, again)
