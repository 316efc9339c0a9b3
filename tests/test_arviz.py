"""The export to ArviZ: groups, shapes, densities that use the trained parameters, and files that can be read again."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from helpers import bayesian_regression, regression, sine
from jax import random

from gpzoo.inducing import InducingPoints
from gpzoo.inference import InducingGuide, to_arviz

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
    return guide, params, to_arviz(KEY, regression, guide, params, X, y, num_draws=S, losses=np.array([5.0, 4.0]))


def test_groups_and_shapes(exported):
    _, _, data = exported
    assert names(data) == {"posterior", "posterior_predictive", "log_likelihood", "observed_data", "constant_data"}
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
    expected = dist.Normal(f, np.sqrt(params["noise"])).log_prob(y)
    np.testing.assert_allclose(group(data, "log_likelihood")["y"], expected, rtol=1e-10)
    residual = np.asarray(group(data, "posterior_predictive")["y"]) - f
    np.testing.assert_allclose(residual.var(), params["noise"], rtol=5 * np.sqrt(2 / residual.size))
    assert abs(np.corrcoef(residual[0, :, 0], residual[0, :, 1])[0, 1]) < 5 / np.sqrt(S)


def test_draws_have_the_posteriors_moments(exported):
    guide, params, data = exported

    def moments(params):
        q = guide.posterior(params, X, rng_key=KEY)["f"]
        return q.inducing_moments(), q.moments(), q.L

    (u, Su), (f, Sf), _ = jax.jit(moments)(params)
    for name, mean, covariance in (("f_u", u, Su), ("f", f, Sf)):
        draws = np.asarray(group(data, "posterior")[name])[0]
        scale = np.sqrt(np.diagonal(covariance))
        assert np.abs((np.cov(draws.T) - covariance) / np.outer(scale, scale)).max() < 6 * np.sqrt(2 / S)
        assert (np.abs(draws.mean(0) - mean) < 5 * scale / np.sqrt(S)).all()


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


def test_normal_hyperparameters_are_in_the_posterior():
    guide, params = prepared(bayesian_regression, hyperparameters="normal")
    data = to_arviz(KEY, bayesian_regression, guide, params, X, y, num_draws=200)
    posterior = group(data, "posterior")
    assert set(posterior.data_vars) == {"f", "f_u", "lengthscale", "noise"}
    assert set(group(data, "constant_data").data_vars) == {"f_inducing", "X", "y"}
    logs = np.log(np.asarray(posterior["noise"])[0])
    np.testing.assert_allclose(logs.mean(), params["noise_loc"], atol=5 * 0.1 / np.sqrt(200))
    np.testing.assert_allclose(logs.std(), 0.1, rtol=0.3)
    f, noise = np.asarray(posterior["f"]), np.asarray(posterior["noise"])
    expected = dist.Normal(f, np.sqrt(noise)[..., None]).log_prob(y)
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
