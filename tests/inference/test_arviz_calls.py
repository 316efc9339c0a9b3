"""What ArviZ's users type, on exports of six programs by SVI and by NUTS: numbers against hand computations."""

import warnings
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import gelman_rubin, hpdi
from numpyro.infer import SVI
from scipy.special import logsumexp

from gpzoo import GaussianProcess, InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit, marginal, nuts
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian
from tests.programs import KEY, adam, sine

az, xarray = pytest.importorskip("arviz"), pytest.importorskip("xarray")
pytestmark = pytest.mark.slow

OLD = "InferenceData" in vars(az)
X, y = sine(24)
Z = InducingPoints(X[::3])
RATES = np.random.default_rng(0).poisson(np.exp(1 + np.sin(2 * X[:, 0])))


PRIOR = dist.LogNormal(0.0, 0.5)


def of_noise(noise, X, y=None, *, outputs=None, prior=PRIOR):
    lengthscale = numpyro.sample("lengthscale", prior)
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X, num_outputs=outputs))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", noise(f), obs=y)


def gaussian(X, y=None, *, prior=PRIOR):
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 0.5))
    of_noise(lambda f: Gaussian(f, noise), X, y, prior=prior)


def counts(X, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    of_noise(lambda f: Expected(lambda f: dist.Poisson(jnp.exp(f)), f + level), X, y)


PROGRAMS = {
    "gaussian": (gaussian, y),
    "counts": (counts, RATES),
    "student": (partial(of_noise, lambda f: Expected(lambda f: dist.StudentT(4.0, f, 0.3), f)), y),
    "classes": (partial(of_noise, Bernoulli), (y > 0).astype(float)),
    "outputs": (partial(of_noise, lambda f: Gaussian(f, 0.1), outputs=2), jnp.stack([y, -y], axis=1)),
    "scaled": (partial(of_noise, lambda f: Gaussian(2.0 * f + 1.0, 0.2)), 2 * y + 1),
}
CASES = [(name, by) for name in PROGRAMS for by in ("SVI", "NUTS")]


def by_svi(program, data, steps=400):
    svi = SVI(program, InducingGuide(program, Z, hyperparameters="normal"), adam(0.03), GaussianProcessELBO())
    return fit(KEY, svi, steps, X, data, progress=False)


@cache
def exported(name, by):
    program, data = PROGRAMS[name]
    if by == "SVI":
        return by_svi(program, data).to_arviz(KEY, X, data, num_draws=400)
    mcmc = nuts(KEY, marginal(program, Z), X, data, num_warmup=200, num_samples=200, num_chains=2)
    extra = mcmc.get_extra_fields(group_by_chain=True)
    return Trained.of_draws(KEY, mcmc, X, data).to_arviz(KEY, X, data, sample_stats=extra)


def array(data, group, name):
    return np.asarray(data[group][name])


def column(table, *names):
    return next(np.asarray(table[name], float) for name in names if name in table)


@pytest.mark.parametrize(("name", "by"), CASES)
def test_summaries(name, by):
    """Of ``summary``, ``hdi``, ``rhat``, ``ess``, ``mcse`` and ``extract``."""
    data = exported(name, by)
    draws = array(data, "posterior", "lengthscale")
    table = az.summary(data, var_names=["lengthscale"], kind="stats", round_to=8 if OLD else "none")
    np.testing.assert_allclose(column(table, "mean"), draws.mean(), rtol=1e-6)
    np.testing.assert_allclose(column(table, "sd"), draws.std(ddof=1), rtol=1e-2)
    interval = np.ravel(az.hdi(data["posterior"] if not OLD else data, var_names=["lengthscale"], **HDI)["lengthscale"])
    np.testing.assert_allclose(interval, hpdi(draws.ravel(), 0.9), atol=0.05 * np.ptp(draws))
    if by == "NUTS":
        rhat = float(az.rhat(data["posterior"], method="split")["lengthscale"])
        assert rhat == pytest.approx(float(gelman_rubin(np.concatenate(np.split(draws, 2, axis=1)))), abs=0.01)
        assert float(az.ess(data["posterior"])["lengthscale"]) < 2 * draws.size
    by_hand = draws.std(ddof=1) / np.sqrt(float(az.ess(data["posterior"], method="mean")["lengthscale"]))
    np.testing.assert_allclose(float(az.mcse(data["posterior"])["lengthscale"]), by_hand, rtol=0.01)
    assert az.extract(data)["lengthscale"].size == draws.size


HDI = {"hdi_prob": 0.9} if OLD else {"prob": 0.9}


@pytest.mark.parametrize(("name", "by"), CASES)
def test_leave_one_out(name, by):
    """Of ``loo``, its pointwise values and its Pareto k, and of ``loo_pit``."""
    data = exported(name, by)
    terms = array(data, "log_likelihood", "y").reshape(-1, len(X))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*shape parameter of Pareto")  # the k are looked at
        found = az.loo(data, pointwise=True)
    raw = -logsumexp(-terms, axis=0) + np.log(len(terms))  # importance sampling without smoothing
    elpd, k = np.asarray(found.loo_i if OLD else found.elpd_i).ravel(), np.asarray(found.pareto_k).ravel()
    good = k < 0.5
    np.testing.assert_allclose(elpd[good], raw[good], atol=0.15)
    whole = float(found.elpd_loo if OLD else found.elpd)
    assert whole == pytest.approx(elpd.sum(), rel=1e-6)
    lpd = (logsumexp(terms, axis=0) - np.log(len(terms))).sum()
    assert float(found.p_loo if OLD else found.p) == pytest.approx(lpd - whole, rel=1e-4, abs=1e-4)
    if name not in ("outputs", "classes", "counts"):
        pit = np.ravel(az.loo_pit(data, y="y") if OLD else az.loo_pit(data)["y"])
        weights = np.exp(-terms - (-terms).max(axis=0))
        below = array(data, "posterior_predictive", "y").reshape(-1, len(X)) <= array(data, "observed_data", "y")
        by_hand = (weights * below).sum(axis=0) / weights.sum(axis=0)
        np.testing.assert_allclose(pit[good], by_hand[good], atol=0.15)


#: What ArviZ 1.x asks for of data that are whole numbers.
PREDICTIVE = {"counts": "plot_ppc_rootogram", "classes": "plot_ppc_pava"}


@pytest.mark.parametrize(("name", "by"), CASES)
def test_pictures_and_files(name, by, tmp_path):
    """Of eight pictures, netCDF and Zarr."""
    import matplotlib.pyplot as plt

    data, var_names = exported(name, by), ["lengthscale"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*shape parameter of Pareto")
        loo = az.loo(data, pointwise=True)
    drawn = {
        "plot_forest": ((data,), {"var_names": var_names}),
        "plot_trace": ((data,), {"var_names": var_names}),
        "plot_khat": ((loo,), {}),
        "plot_posterior" if OLD else "plot_dist": ((data,), {"var_names": var_names}),
        "plot_ppc" if OLD else PREDICTIVE.get(name, "plot_ppc_dist"): ((data,), {}),
        "plot_dist_comparison" if OLD else "plot_prior_posterior": ((data,), {"var_names": var_names}),
        "plot_autocorr": ((data,), {"var_names": var_names}),
    }
    if by == "NUTS":  # draws of one training have no chains whose ranks could differ
        drawn["plot_rank"] = (data,), {"var_names": var_names}
    for call, (args, options) in drawn.items():
        with warnings.catch_warnings():
            # ArviZ 0.23 gives Matplotlib 3.11 what that will not take from 3.13 on.
            warnings.filterwarnings("ignore", message="Passing a dict or None as alias_mapping")
            assert getattr(az, call)(*args, **options) is not None, call
        plt.close("all")
    data.to_netcdf(str(tmp_path / "data.nc"))
    back = az.from_netcdf(str(tmp_path / "data.nc"))
    np.testing.assert_array_equal(array(back, "posterior", "f"), array(data, "posterior", "f"))
    (data.to_datatree() if OLD else data).to_zarr(
        str(tmp_path / "data.zarr"), consolidated=False
    )  # 0.23 writes no format 3 by itself
    back = xarray.open_datatree(str(tmp_path / "data.zarr"), engine="zarr", consolidated=False)
    np.testing.assert_array_equal(array(back, "log_likelihood", "y"), array(data, "log_likelihood", "y"))


@pytest.mark.parametrize("by", ["SVI", "NUTS"])
def test_comparison_prefers_the_program_of_the_data(by):
    """Of ``compare``: its differences are those of ``loo``."""
    both = {name: exported(name, by) for name in ("gaussian", "student")}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(shape parameter of Pareto|Pareto k|inplace keyword)")
        table = az.compare(both)
        each = {name: az.loo(data) for name, data in both.items()}
    elpd = {name: float(x.elpd_loo if OLD else x.elpd) for name, x in each.items()}
    assert next(iter(table.index)) == max(elpd, key=elpd.get)
    difference = abs(elpd["gaussian"] - elpd["student"])
    np.testing.assert_allclose(np.abs(column(table, "elpd_diff")).max(), difference, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("name", ["gaussian", "counts"])
def test_leaving_out_by_weights_is_leaving_out(name):
    """The sum over twenty rows is that of twenty trainings without one of them, within its own standard error."""
    program, data = PROGRAMS[name]
    rows = np.arange(20)
    kept = np.stack([np.delete(np.arange(len(X)), row) for row in rows])
    guide = InducingGuide(program, Z, hyperparameters="normal")
    svi = SVI(program, guide, adam(0.03), GaussianProcessELBO())
    refits = fit(jax.random.split(KEY, 20), svi, 400, X[kept], data[kept], progress=False)
    left = [
        refits.member(k).predict(KEY, X[k : k + 1], test_data={"y": data[k : k + 1]}, num_draws=400)["y"].log_density[0]
        for k in rows
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*shape parameter of Pareto")
        found = az.loo(exported(name, "SVI"), pointwise=True)
    elpd = np.asarray(found.loo_i if OLD else found.elpd_i).ravel()[rows]
    error = np.sqrt(20) * elpd.std(ddof=1)
    assert abs(elpd.sum() - np.sum(left)) < error
    assert np.corrcoef(elpd, left)[0, 1] > 0.8


# -- power-scaling of the prior ----------------------------------------------------------------------------------------


def sensitivity(data):
    """How much the posterior of the lengthscale changes when the priors are scaled."""
    if OLD:
        return float(az.psens(data, component="prior")["lengthscale"])
    return float(az.psense_summary(data, var_names=["lengthscale"], round_to=8)["prior"].iloc[0])


@pytest.mark.parametrize("by", ["SVI", "NUTS"])
def test_a_prior_against_the_data_is_seen(by):
    """At default names, which scale the priors of hyperparameters and nothing else; 0.05 is ArviZ's own limit."""
    against = partial(gaussian, prior=dist.LogNormal(3.0, 0.3))
    if by == "SVI":
        found, usual = by_svi(against, y).to_arviz(KEY, X, y, num_draws=1000), exported("gaussian", by)
    else:
        found, usual = many_draws(against), many_draws(gaussian)
    assert sensitivity(found) > 0.05
    assert sensitivity(usual) < sensitivity(found) / 2


def many_draws(program):
    mcmc = nuts(KEY, marginal(program, Z), X, y, num_warmup=300, num_samples=1000, num_chains=2)
    return Trained.of_draws(KEY, mcmc, X, y).to_arviz(KEY, X, y)
