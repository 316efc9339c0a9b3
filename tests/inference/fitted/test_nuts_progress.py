"""What NUTS says of its progress, and that its draws are of one law with and without."""

import sys
from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from gpzoo import GaussianProcess
from gpzoo.inference import marginal, nuts
from gpzoo.inference.fitted._nuts_progress import told, wanted
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from tests.programs import KEY, sine


def program(X, y=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    numpyro.sample("y", Gaussian(f, 0.1), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
def test_nuts_speaks_and_draws_as_in_silence(chains, capfd, monkeypatch, standard_promotion):
    for name in ("CI", "PYTEST_XDIST_WORKER"):  # in which NumPyro shows no bar
        monkeypatch.delenv(name, raising=False)
    X, y = sine(10)
    options = {"num_warmup": 60, "num_samples": 40, "num_chains": chains}
    silent = nuts(KEY, marginal(program), X, y, **options)
    assert not capfd.readouterr().err  # which is no terminal
    spoken = nuts(KEY, marginal(program), X, y, progress=True, **options)
    first, *bars, last = capfd.readouterr().err.replace("\r", "\n").strip().splitlines()
    assert f"{chains} chain" in first and "60 + 40 steps, about" in first
    assert "100/100" in bars[-1] and "divergences, step size" in bars[-1]
    assert last.startswith("NUTS took") and "0 divergences, largest r_hat" in last
    samples = spoken.get_samples(group_by_chain=True)["lengthscale"]
    assert samples.shape == (chains, 40)
    np.testing.assert_allclose(samples.mean(), silent.get_samples()["lengthscale"].mean(), rtol=0.05)
    spoken.progress_bar = False
    spoken.run(KEY, X, y)  # as any MCMC
    assert not capfd.readouterr().err


def test_a_run_is_told_in_words(monkeypatch):
    draws = np.random.default_rng(0).standard_normal((2, 200, 3))
    draws[1, :, 2] += 5
    fields = {"diverging": np.arange(400) < 7}
    run = SimpleNamespace(get_extra_fields=lambda: fields, get_samples=lambda group_by_chain: {"a": draws})
    words = told(run)
    assert words.startswith("7 divergences, largest r_hat 3.") and words.endswith("run longer")
    draws[1, :, 2] -= 5
    assert int(told(run).split()[-1]) > 100
    assert told(SimpleNamespace(**vars(run) | {"get_samples": lambda group_by_chain: {}})) == "7 divergences"
    for terminal in (True, False):
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda terminal=terminal: terminal))
        assert wanted(None) is terminal and wanted(True) and not wanted(False)
