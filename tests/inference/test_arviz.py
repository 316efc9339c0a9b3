"""The export to ArviZ: groups, shapes, densities that use the trained parameters, and files that can be read again."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import scope
from scipy.stats import norm

from gpzoo import GaussianProcess, InducingPoints, draws
from gpzoo.inference import InducingGuide, Trained
from gpzoo.inference.fitted import container as export
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Expected, Gaussian
from tests.programs import bayesian_regression, regression, sine
from tests.statistics import assert_gaussian_moments

az = pytest.importorskip("arviz")

KEY = random.key(0)
X, y = sine(8)
S = 2000


def prepared(model, **kwargs):
    guide = InducingGuide(model, InducingPoints(X[::3]), **kwargs)
    params = guide.init_params(KEY, X, y)
    rng = np.random.default_rng(1)
    params["f_mean"] = jnp.asarray(rng.standard_normal(3))
    params["f_scale"] = jnp.asarray(0.3 * np.eye(3) + 0.1 * np.tril(rng.standard_normal((3, 3))))
    return guide, params


def group(data, name):
    """A group's variables, in either generation of ArviZ."""
    return data[name]


def names(data):
    return {name.strip("/") for name in (data.groups() if callable(data.groups) else data.groups)} - {""}


@pytest.fixture(scope="module")
def exported():
    guide, params = prepared(regression)
    params |= {"variance": jnp.array(1.7), "lengthscale": jnp.array(0.6), "noise": jnp.array(10.0)}
    return (
        guide,
        params,
        Trained(regression, guide, params, losses=np.array([5.0, 4.0])).to_arviz(KEY, X, y, num_draws=S),
    )


def test_groups_and_shapes(exported):
    _, _, data = exported
    assert names(data) == {
        *("posterior", "posterior_predictive", "prior", "prior_predictive", "log_likelihood"),  # and no hyperparameters
        *("sample_stats", "observed_data", "constant_data"),
    }
    posterior = group(data, "posterior")
    assert set(posterior.data_vars) == {"f", "f_u"}
    assert posterior["f"].shape == (1, S, 8) and posterior["f_u"].shape == (1, S, 3)
    assert posterior["f"].dims[:2] == ("chain", "draw")
    assert posterior.attrs["inference_library"] == "numpyro" and "gpzoo_version" in posterior.attrs
    for name in ("posterior_predictive", "log_likelihood"):
        assert group(data, name)["y"].dims == ("chain", "draw", "data")
    np.testing.assert_array_equal(group(data, "observed_data")["y"], y)


def test_log_likelihood_uses_the_trained_noise(exported):
    _, params, data = exported
    f = np.asarray(group(data, "posterior")["f"])
    expected = norm(f, np.sqrt(params["noise"])).logpdf(y)
    np.testing.assert_allclose(group(data, "log_likelihood")["y"], expected, rtol=1e-10)
    residual = np.asarray(group(data, "posterior_predictive")["y"]) - f
    np.testing.assert_allclose(residual.var(), params["noise"], rtol=5 * np.sqrt(2 / residual.size))
    assert abs(np.corrcoef(residual[0, :, 0], residual[0, :, 1])[0, 1]) < 5 / np.sqrt(S)


def test_draws_have_the_posteriors_moments(exported):
    guide, params, data = exported

    def moments(params):
        q = Trained(guide.model, guide, params).posterior(KEY, X)["f"]
        return q.inducing_moments(), q.moments(), q.conditional.L

    (u, Su), (f, Sf), _ = jax.jit(moments)(params)
    for name, mean, covariance in (("f_u", u, Su), ("f", f, Sf)):
        draws = np.asarray(group(data, "posterior")[name])[0]
        assert_gaussian_moments(draws, np.asarray(mean), covariance)


def test_f_belongs_to_its_u(exported):
    # At an inducing input f is u.
    _, _, data = exported
    posterior = group(data, "posterior")
    np.testing.assert_allclose(posterior["f"][..., ::3], posterior["f_u"], atol=0.02)


def test_constant_data_are_points_not_q(exported):
    _, params, data = exported
    constants = group(data, "constant_data")
    assert {"variance", "lengthscale", "noise", "f_inducing", "X", "y", "elbo"} == set(constants.data_vars)
    np.testing.assert_allclose(constants["noise"], 10.0)
    np.testing.assert_array_equal(constants["f_inducing"], params["f_inducing"])
    np.testing.assert_array_equal(constants["elbo"], [-5.0, -4.0])


@pytest.mark.slow
def test_normal_hyperparameters_are_in_the_posterior():
    guide, params = prepared(bayesian_regression, hyperparameters="normal")
    data = Trained(bayesian_regression, guide, params).to_arviz(KEY, X, y, num_draws=200)
    posterior = group(data, "posterior")
    assert set(posterior.data_vars) == {"f", "f_u", "lengthscale", "noise"}
    assert set(group(data, "constant_data").data_vars) == {"f_inducing", "X", "y"}
    logs = np.log(np.asarray(posterior["noise"])[0])
    np.testing.assert_allclose(logs.mean(), params["noise_loc"], atol=5 * 0.1 / np.sqrt(200))
    np.testing.assert_allclose(logs.std(), 0.1, rtol=0.3)
    f, noise = np.asarray(posterior["f"]), np.asarray(posterior["noise"])
    expected = norm(f, np.sqrt(noise)[..., None]).logpdf(y)
    np.testing.assert_allclose(group(data, "log_likelihood")["y"], expected, rtol=1e-10)


def test_files_can_be_read_again(exported, tmp_path):
    _, _, data = exported
    path = str(tmp_path / "posterior.nc")
    data.to_netcdf(path, engine="h5netcdf")
    if "InferenceData" in vars(az):
        again = az.from_netcdf(path, engine="h5netcdf")
    else:
        import xarray

        again = xarray.open_datatree(path, engine="h5netcdf")
    assert names(again) == names(data)
    for name in names(data):
        for variable, values in group(data, name).data_vars.items():
            np.testing.assert_array_equal(group(again, name)[variable], values)
    assert group(again, "posterior").attrs["inference_library"] == "numpyro"
    again.close()


def test_summary_and_loo(exported):
    _, _, data = exported
    table = az.summary(data, kind="stats", var_names=["f_u"])
    mean = np.asarray(group(data, "posterior")["f_u"]).mean((0, 1))
    np.testing.assert_allclose(table["mean"].astype(float), mean, atol=0.01)
    found = az.loo(data, reff=1.0)
    value = found.elpd_loo if hasattr(found, "elpd_loo") else found.elpd
    logs = np.asarray(group(data, "log_likelihood")["y"])[0]
    # Importance sampling by hand: p(y_n | y_-n) = 1 / E[1 / p(y_n | f_n)].
    expected = -np.log(np.mean(np.exp(-logs), axis=0)).sum()
    np.testing.assert_allclose(float(value), expected, atol=0.2)


def masked_regression(X, y=None, *, mask=True):
    """Two outputs of which entries are missing, and one without."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.7), X, num_outputs=2))
    with numpyro.plate("data", len(X)):
        with numpyro.handlers.mask(mask=mask[:, 0] & mask[:, 1]):
            numpyro.sample("rows", Gaussian(f, 10.0), obs=y)
        numpyro.sample("whole", Gaussian(f[:, 0], 0.1), obs=y[:, 0])
    # The order of plates is that of their axes, whichever is entered first.
    with numpyro.plate("row", len(X), dim=-2), numpyro.plate("output", 2, dim=-1), numpyro.handlers.mask(mask=mask):
        numpyro.sample("entries", dist.Normal(draws(f), 0.3), obs=y)


@pytest.mark.slow
def test_masked_data_are_left_out():
    values = np.stack([y, -y], axis=1)
    mask = np.ones((8, 2), bool)
    mask[2, 0] = mask[5, 1] = mask[6, 1] = False
    values[~mask] = 1e6  # placeholders
    guide = InducingGuide(masked_regression, InducingPoints(X[::3]))
    params = guide.init_params(KEY, X, values, model_kwargs={"mask": mask})
    new = {"new_args": (X[:3], values[:3]), "new_kwargs": {"mask": mask[:3]}}
    data = Trained(masked_regression, guide, params).to_arviz(
        KEY, X, values, num_draws=500, model_kwargs={"mask": mask}, **new
    )
    assert data["predictions"]["entries"].dims[2:] == ("row", "output")  # of new data none is masked
    assert data["predictions"]["rows"].shape == (1, 500, 3, 2)
    logs, kept = group(data, "log_likelihood"), [0, 1, 3, 4, 7]
    assert logs["rows"].dims[2:] == ("rows_observed",) and logs["whole"].dims[2:] == ("data",)
    np.testing.assert_array_equal(logs["rows"]["rows_observed"], kept)
    np.testing.assert_array_equal(logs["entries"]["entries_observed"], np.flatnonzero(mask))
    assert group(data, "constant_data")["entries_mask"].dims == ("row", "output")
    f = np.asarray(group(data, "posterior")["f"])
    by_hand = norm(f, np.sqrt(10.0)).logpdf(values).sum(-1)[..., kept]
    np.testing.assert_allclose(logs["rows"], by_hand, rtol=1e-8)
    np.testing.assert_allclose(logs["entries"], norm(f, 0.3).logpdf(values)[..., mask], rtol=1e-8)
    np.testing.assert_array_equal(group(data, "observed_data")["rows"], values[kept])
    np.testing.assert_array_equal(group(data, "observed_data")["entries"], values[mask])
    np.testing.assert_array_equal(group(data, "constant_data")["entries_mask"], mask)
    assert group(data, "posterior_predictive")["rows"].shape == (1, 500, 5, 2)
    assert np.abs(group(data, "posterior_predictive")["entries"]).max() < 1e3
    found = az.loo(data, var_name="rows", reff=1.0)
    assert found.n_data_points == 5


def counted(X, counts=None, *, mask=True):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.7), X))
    with numpyro.plate("data", len(X)), numpyro.handlers.mask(mask=mask):
        numpyro.sample("counts", dist.Poisson(jnp.exp(draws(f))), obs=counts)


@pytest.mark.slow
def test_an_argument_may_be_named_like_its_masked_site():
    counts, mask = np.arange(8), np.arange(8) % 3 > 0
    guide = InducingGuide(counted, InducingPoints(X[::3]))
    params = guide.init_params(KEY, X, counts, model_kwargs={"mask": mask})
    data = Trained(counted, guide, params).to_arviz(KEY, X, counts, num_draws=5, model_kwargs={"mask": mask})
    np.testing.assert_array_equal(group(data, "observed_data")["counts"], counts[mask])
    assert set(group(data, "constant_data").data_vars) == {"X", "mask", "counts_mask", "f_inducing"}
    assert group(data, "log_likelihood")["counts"].dtype == np.float64


@pytest.mark.slow
def test_names_with_slashes_can_be_written(tmp_path):
    inner = scope(regression, prefix="a")
    guide = InducingGuide(inner, InducingPoints(X[::3]))
    data = Trained(inner, guide, guide.init_params(KEY, X, y)).to_arviz(KEY, X, y, num_draws=3)
    data.to_netcdf(str(tmp_path / "posterior.nc"), engine="h5netcdf")
    assert set(group(data, "posterior").data_vars) == {"a.f", "a.f_u"}
    assert "a.noise" in group(data, "constant_data")


def test_only_the_announcement_of_arviz_is_not_shown(monkeypatch, tmp_path):
    (tmp_path / "arviz.py").write_text(
        "import warnings\n"
        "warnings.warn('\\nArviZ is undergoing a major refactor to improve flexibility', FutureWarning)\n"
        "warnings.warn('this will be removed', FutureWarning)\n"
    )
    monkeypatch.setitem(sys.modules, "arviz", None)
    del sys.modules["arviz"]
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(FutureWarning) as shown:
        export.import_arviz()
    assert [str(warning.message) for warning in shown] == ["this will be removed"]


# -- several trainings, and parameters without a posterior -------------------------------------------------------------


def several(spread):
    """Two trainings, whose ``q(u)`` have means that differ by ``spread``."""
    guide, params = prepared(regression)
    params |= {"variance": jnp.array(1.7), "lengthscale": jnp.array(0.6), "noise": jnp.array(0.1)}
    both = {name: jnp.stack([x, x]) for name, x in params.items()}
    both["f_mean"] = both["f_mean"].at[1].add(spread)
    both["noise"] = both["noise"].at[1].set(0.2)
    return Trained(regression, guide, both, losses=np.array([[5.0, 4.0], [5.0, 3.0]]))


@pytest.mark.slow
def test_trainings_are_chains():
    found = several(0.0).to_arviz(KEY, X, y, num_draws=200)
    apart = several(3.0).to_arviz(KEY, X, y, num_draws=200)
    assert found["posterior"]["f"].shape == (2, 200, 8)
    assert float(az.rhat(found["posterior"])["f"].max()) < 1.05 < 1.5 < float(az.rhat(apart["posterior"])["f"].max())
    assert "one optimum" in found["posterior"].attrs["chains"]
    np.testing.assert_array_equal(found["constant_data"]["noise"], [0.1, 0.2])
    np.testing.assert_array_equal(found["constant_data"]["elbo"], [[-5.0, -4.0], [-5.0, -3.0]])
    assert found["constant_data"]["variance"].shape == () and found["constant_data"]["X"].shape == (8, 1)
    residual = (found["posterior_predictive"]["y"] - found["posterior"]["f"]).values
    np.testing.assert_allclose(residual.var(axis=(1, 2)), [0.1, 0.2], rtol=0.2)
    one = several(0.0).member(1).to_arviz(KEY, X, y, num_draws=200)
    assert one["posterior"]["f"].shape == (1, 200, 8) and "chains" not in one["posterior"].attrs


def test_a_training_that_failed_is_no_chain():
    both = several(0.0)
    failed = Trained(both.model, both.guide, both.params, losses=np.array([[5.0, 4.0], [5.0, np.nan]]))
    with pytest.raises(ValueError, match=r"Trainings \[1\] failed"):
        failed.to_arviz(KEY, X, y)


@pytest.mark.slow
def test_parameters_without_a_posterior_are_in_it_where_asked_for():
    found = several(0.0).to_arviz(KEY, X, y, num_draws=20, params=True)["posterior"]
    np.testing.assert_array_equal(found["noise"], np.repeat([[0.1], [0.2]], 20, axis=1))
    assert "lengthscale, noise, variance are trained values" in found.attrs["points"]
    assert "noise" not in several(0.0).to_arviz(KEY, X, y, num_draws=20)["posterior"]


def rates(X, y=None):
    relevance = numpyro.sample("relevance", dist.LogNormal(0.0, 0.1).expand([1]).to_event(1))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, relevance), X))
    numpyro.deterministic("rate", 2.0 + f)
    with numpyro.plate("day", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)


@pytest.mark.slow
def test_vectors_and_recorded_functions_have_named_axes():
    """Of a vector's one density there are no axes to name; what is recorded of rows is predicted too."""
    guide, params = prepared(rates, hyperparameters="normal")
    export = partial(Trained(rates, guide, params).to_arviz, KEY, X, y, num_draws=20, new_args=(X[:3],))
    found = export(dims={"relevance": ["column"]}, coords={"column": ["age"]})
    assert found["posterior"]["relevance"].dims == ("chain", "draw", "column")
    assert found["log_prior"]["relevance"].dims == ("chain", "draw")
    assert found["posterior"]["rate"].dims == ("chain", "draw", "day")
    np.testing.assert_allclose(found["predictions"]["rate"], 2.0 + found["predictions"]["f"], rtol=1e-6)


def levels(X, y=None):
    numpyro.deterministic("levels", jnp.arange(8.0))  # as many as there are rows, and none of them
    rates(X, y)


@pytest.mark.slow
def test_what_is_not_of_rows_is_not_predicted():
    guide, params = prepared(levels, hyperparameters="normal")
    found = Trained(levels, guide, params).to_arviz(KEY, X, y, num_draws=5, new_args=(X[:3],))
    assert set(found["predictions"].data_vars) == {"f", "y", "rate"}
    assert found["posterior"]["levels"].dims == ("chain", "draw", "levels_dim_0")


def yearly(year, y=None, *, missing=None):
    """An argument has the name of a plate, as those who come from PyMC name things."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.7), year))
    with numpyro.plate("year", len(year)):
        numpyro.sample("y", Gaussian(f, 0.1, missing=missing), obs=y)


@pytest.mark.slow
def test_labels_of_rows_do_not_depend_on_earlier_exports():
    """Nor do an argument and a plate of one name clash, nor have new rows the numbers of old ones."""
    guide, _ = prepared(yearly)
    trained, years = Trained(yearly, guide, guide.init_params(KEY, X, y)), np.arange(1990, 1998)
    assert trained.to_arviz(KEY, X, num_draws=5)["posterior"]["f"].dims[2:] == ("year",)
    options = {"num_draws": 5, "coords": {"year": years}, "new_args": (X[:3],)}
    for _ in range(2):
        found = trained.to_arviz(KEY, X, y, **options)
        for name in ("posterior", "prior", "posterior_predictive"):
            variable = "y" if name == "posterior_predictive" else "f"
            assert found[name][variable].dims[2:] == ("year",) and list(found[name].year.values) == list(years)
        assert found["predictions"]["f"].dims[2:] == ("year",) and "year" not in found["predictions"].coords
        assert found["constant_data"]["year_given"].dims[0] == "year"
        trained.to_arviz(KEY, X, num_draws=5)


@pytest.mark.slow
def test_rows_with_data_keep_the_labels_of_all_rows():
    guide, _ = prepared(partial(yearly, missing="mask"))
    seen = np.where(np.arange(8) == 2, np.nan, y)
    trained = Trained(guide.model, guide, guide.init_params(KEY, X, seen))
    found = trained.to_arviz(KEY, X, seen, num_draws=5, coords={"year": 1990 + np.arange(8)})
    assert found["log_likelihood"]["y"].coords["year"].values.tolist() == [1990, 1991, *range(1993, 1998)]


def two_regions(f, level):
    return dist.Poisson(jnp.exp(f + level)).to_event(1)


def by_region(X, deaths=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.7), X, num_outputs=2))
    with numpyro.plate("year", len(X)):
        numpyro.sample("deaths", Expected(two_regions, f, jnp.zeros(2)), obs=deaths)


@pytest.mark.slow
def test_dims_of_a_vector_of_data():
    """Its log likelihood has one axis less."""
    deaths = np.arange(16).reshape(8, 2)
    guide = InducingGuide(by_region, InducingPoints(X[::3]))
    trained = Trained(by_region, guide, guide.init_params(KEY, X, deaths))
    names = {"dims": {"deaths": ["year", "region"]}, "coords": {"region": ["north", "south"]}}
    found = trained.to_arviz(KEY, X, deaths, num_draws=5, **names)
    assert found["posterior_predictive"]["deaths"].dims[2:] == ("year", "region")
    assert found["observed_data"]["deaths"].dims == ("year", "region")
    assert found["log_likelihood"]["deaths"].dims[2:] == ("year",)
