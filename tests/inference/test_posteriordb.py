"""Posteriors of hyperparameters against posteriordb's reference posteriors, which Stan drew."""

import json
import os
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import gelman_rubin
from numpyro.infer.util import log_density

from gpzoo import GaussianProcess, InducingBasis
from gpzoo.inference import Trained, check_laplace, marginal, nuts, whitened
from gpzoo.kernels import RBF, HilbertSpace
from gpzoo.likelihoods import Expected, Gaussian
from tests.programs import KEY
from tests.statistics import errors_apart

pytestmark = pytest.mark.slow

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "posteriordb.json").read_text(encoding="utf-8"))
X, y, k = (np.array(GOLDEN["data"][name]) for name in ("x", "y", "k"))
X = X[:, None].astype(float)


def by_name(program):
    """The summaries of a reference posterior, by the name of the scalar."""
    found = dict(GOLDEN["posteriors"][program])
    names = found.pop("names")
    return {name: {what: values[i] for what, values in found.items()} for i, name in enumerate(names)}


def scalars(draws, chains=4):
    """Draws ``[S, ...]`` by site as draws ``[chains, S / chains]`` of every entry, named as Stan names it."""
    found = {}
    for name, values in draws.items():
        values = np.asarray(values).reshape(chains, -1, *np.shape(values)[1:])
        for at in np.ndindex(values.shape[2:]):
            numbers = ",".join(str(i + 1) for i in at)
            found[f"{name}[{numbers}]" if at else name] = values[(..., *at)]
    return found


def assert_met(draws, program, errors=4):
    """Means, and second moments about the reference mean, are within so many errors; R-hat is below 1.01."""
    expected = by_name(program)
    assert set(draws) == set(expected)
    for name, values in draws.items():
        one = expected[name]
        assert gelman_rubin(values) < 1.01, name
        assert errors_apart(values, one["mean"], one["mcse_mean"]) < errors, name
        assert errors_apart(values**2, one["mean_square"], one["mcse_mean_square"]) < errors, name
        if "sd" in one:
            square = (values - values.mean()) ** 2
            assert errors_apart(square, one["sd"] ** 2, 2 * one["sd"] * one["mcse_sd"]) < errors, name


def kernel():
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    return RBF(alpha**2, rho)


def gp_regr(X, y=None):
    """Stan's ``sigma`` is the variance of the noise."""
    f = numpyro.sample("f", GaussianProcess(kernel(), X))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", Gaussian(f, sigma), obs=y)


def gp_pois_regr(X, k=None):
    f = numpyro.sample("f", GaussianProcess(kernel(), X, jitter=1e-10))
    numpyro.sample("k", Expected(lambda f: dist.Poisson(jnp.exp(f)), f), obs=k)


def test_regression():
    mcmc = nuts(KEY, marginal(gp_regr), X, y, num_warmup=500, num_samples=2000, progress=False)
    assert_met(scalars(mcmc.get_samples()), "gp_pois_regr-gp_regr")


def test_counts_by_draws_of_the_function():
    """Without an approximation: what follows is judged against the same reference posterior."""
    options = {"num_warmup": 500, "num_samples": 3000, "target_accept_prob": 0.99}  # at 0.8 a chain can stick
    mcmc = nuts(KEY, whitened(gp_pois_regr), X, k, **options)
    draws = {name: values for name, values in mcmc.get_samples().items() if name != "f_base"}
    assert_met(scalars(draws), "gp_pois_regr-gp_pois_regr")


@cache
def laplace():
    program = marginal(gp_pois_regr)
    return program, nuts(KEY, program, X, k, num_warmup=500, num_samples=1500, progress=False)


def biases(draws):
    """How far means are from the reference, in its standard deviations."""
    expected = by_name("gp_pois_regr-gp_pois_regr")
    return {name: (x.mean() - expected[name]["mean"]) / expected[name]["sd"] for name, x in draws.items()}


def test_counts_by_laplace():
    """The error of a mean is 0.02 standard deviations; long chains found biases of 0.01 (rho) and 0.004 (alpha)."""
    _, mcmc = laplace()
    draws = scalars(mcmc.get_samples())
    assert all(gelman_rubin(x) < 1.01 for x in draws.values())
    found = biases(draws)
    assert abs(found["rho"]) < 0.1 and abs(found["alpha"]) < 0.1
    expected = by_name("gp_pois_regr-gp_pois_regr")
    spreads = {name: x.std() / expected[name]["sd"] for name, x in draws.items()}
    assert all(0.9 < spread < 1.1 for spread in spreads.values()), spreads


def test_functions_of_counts_by_laplace():
    """Given hyperparameters ``f`` is drawn around its mode: its mean is up to 0.11 standard deviations off."""
    posterior = Trained.of_draws(KEY, laplace()[1], X, k)
    found = biases(scalars({"f": np.concatenate(posterior.params["f_mean"])}))
    assert len(found) == 11
    assert all(-0.04 < bias < 0.16 for bias in found.values()), found


def test_laplace_is_trusted_for_counts():
    program, mcmc = laplace()
    found = check_laplace(KEY, program, X, k, posterior_samples=mcmc.get_samples())
    assert not found.findings
    assert found.arrays["k"].max() < 0.67
    assert abs(found.arrays["log_ratio"].mean()) < 0.03 and found.arrays["log_ratio"].std() < 0.03


# -- two functions, of which one is integrated out ---------------------------------------------------------------------


def basis(size):
    """Basis functions of a Hilbert-space GP on ``[-1.5, 1.5]``, as brms makes them, and their frequencies."""
    times = np.array(GOLDEN["mcycle"]["times"])
    x = (times - times.min()) / np.ptp(times)
    frequencies = np.arange(1, size + 1) * np.pi / 3
    return np.sin(np.outer(x - x.mean() + 1.5, frequencies)) / np.sqrt(1.5), frequencies


def weights(of, frequencies):
    """Prior standard deviations of the coefficients, from the spectral density of the RBF kernel."""
    sd = numpyro.sample(f"sdgp{of}_1", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0)))
    scale = numpyro.sample(f"lscale{of}_1", dist.InverseGamma(1.124909, 0.0177))
    return sd * jnp.sqrt(np.sqrt(2 * np.pi) * scale) * jnp.exp(-jnp.square(scale * frequencies) / 4)


def accel_gp(y=None):
    """The mean is integrated out: a GP of 40 coefficients at one input. The log of the noise stays with NUTS."""
    features, frequencies = basis(40)
    of_noise, slow = basis(20)
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, -13.0, 36.0))
    intercept_sigma = numpyro.sample("Intercept_sigma", dist.StudentT(3.0, 0.0, 10.0))
    z_sigma = numpyro.sample("zgp_sigma_1", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
    log_sigma = intercept_sigma + of_noise @ (weights("_sigma", slow) * z_sigma)
    one = GaussianProcess(RBF(1.0, 1.0), np.zeros((1, 1)), num_outputs=40, jitter=1e-12)
    z = numpyro.sample("zgp_1", one)
    f = (z[np.zeros(len(features), int)] * features) @ weights("", frequencies)[:, None]
    numpyro.sample("Y", Gaussian(f[:, 0] + intercept, jnp.exp(2 * log_sigma)), obs=y)


BOX = (-1.5, 1.5)
ACCEL = np.array(GOLDEN["mcycle"]["accel"])


def test_a_hilbert_space_gp_is_integrated_out():
    """The density is that of its coefficients' normal distribution."""
    values = {"Intercept": -10.0, "sdgp_1": 43.0, "lscale_1": 0.08, "Intercept_sigma": 2.4, "sdgp_sigma_1": 2.9}
    values |= {"lscale_sigma_1": 0.03, "zgp_sigma_1": np.linspace(-1, 1, 20)}
    _, trace = log_density(marginal(accel_gp), (), {"y": ACCEL}, values)
    features, frequencies = basis(40)
    spread = 43.0 * np.sqrt(np.sqrt(2 * np.pi) * 0.08) * np.exp(-((0.08 * frequencies) ** 2) / 4)
    of_noise, slow = basis(20)
    of_sigma = 2.9 * np.sqrt(np.sqrt(2 * np.pi) * 0.03) * np.exp(-((0.03 * slow) ** 2) / 4)
    sigma = np.exp(2.4 + of_noise @ (of_sigma * np.linspace(-1, 1, 20)))
    C = (features * spread**2) @ features.T + np.diag(sigma**2)
    residual = ACCEL + 10.0
    data = -(residual @ np.linalg.solve(C, residual) + np.linalg.slogdet(2 * np.pi * C)[1]) / 2
    assert float(trace["Y"]["fn"].log_prob(ACCEL)) == pytest.approx(data, rel=1e-9)

    def by_kernel(y=None):
        kernel = HilbertSpace(RBF(43.0**2, 0.08), 40, BOX)
        times = np.array(GOLDEN["mcycle"]["times"])
        x = (times - times.min()) / np.ptp(times)
        f = numpyro.sample("f", GaussianProcess(kernel, (x - x.mean())[:, None], jitter=1e-12))
        numpyro.sample("Y", Gaussian(f - 10.0, sigma**2), obs=y)

    for inducing in (None, InducingBasis(40, BOX)):
        _, trace = log_density(marginal(by_kernel, inducing), (), {"y": ACCEL}, {})
        assert float(trace["Y"]["fn"].log_prob(ACCEL)) == pytest.approx(data, rel=1e-8)


def on_basis(name, of, size, X):
    """A function of a box, and the priors of its hyperparameters."""
    sd = numpyro.sample(f"sdgp{of}_1", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0)))
    scale = numpyro.sample(f"lscale{of}_1", dist.InverseGamma(1.124909, 0.0177))
    kernel = HilbertSpace(RBF(sd**2, scale), size, BOX)
    return numpyro.sample(name, GaussianProcess(kernel, X, num_outputs=1, jitter=1e-14))


def accel_by_basis(X, y=None):
    """Both functions by the weights of a basis, which NUTS moves whitened."""
    f = on_basis("f", "", 40, X) + numpyro.sample("Intercept", dist.StudentT(3.0, -13.0, 36.0))
    g = on_basis("g", "_sigma", 20, X) + numpyro.sample("Intercept_sigma", dist.StudentT(3.0, 0.0, 10.0))
    both = f @ jnp.array([[1.0, 0.0]]) + g @ jnp.array([[0.0, 1.0]])
    normal = Expected(lambda h: dist.Normal(h[:, 0], jnp.exp(h[:, 1])), both, num_draws=1)  # nothing is left to draw
    numpyro.sample("Y", normal, obs=y)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("GPZOO_STRESS"), reason="a quarter of an hour; make stress runs it")
def test_a_heteroscedastic_program_by_basis_variables():
    """The means of all 66 were at most 2.0 errors off, mean squares 2.6, R-hat 1.003; 20 steps of 4,000 diverged."""
    times = np.array(GOLDEN["mcycle"]["times"])
    x = (times - times.min()) / np.ptp(times)
    program = whitened(accel_by_basis, {"f": InducingBasis(40, BOX), "g": InducingBasis(20, BOX)})
    options = {"num_warmup": 500, "num_samples": 1000, "target_accept_prob": 0.95, "progress": False}
    mcmc = nuts(KEY, program, (x - x.mean())[:, None], model_kwargs={"y": ACCEL}, **options)
    draws = mcmc.get_samples()
    own = {"zgp_1": draws.pop("f_base")[..., 0], "zgp_sigma_1": draws.pop("g_base")[..., 0]}
    own |= {name: values for name, values in draws.items() if not name.endswith("_u")}
    assert_met(scalars(own), "mcycle_gp-accel_gp", errors=3)
