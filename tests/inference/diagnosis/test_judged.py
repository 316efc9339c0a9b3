"""Diagnoses of fits to data that no threshold was chosen on: half of them of real data."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpyro.infer import SVI
from optax import adam, cosine_decay_schedule

from gpzoo import InducingPoints, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, diagnose, fit
from gpzoo.models import deep_gp, gp_regression, inner_scales, linear_layers
from tests.inference.diagnosis.planted_fits import FAULTS
from tests.inference.test_whitened import ELEVEN, PUBLISHED
from tests.programs import KEY, relaxed

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(not os.environ.get("GPZOO_STRESS"), reason="minutes; make stress runs it"),
]

#: Not looked at before; neither were these data.
SEED = 707

#: Functions of inputs, their numbers and standard deviations of noise.
FUNCTIONS = {
    "a chirp": (lambda X: np.sin(X[:, 0] ** 2 / 2), 1, 0.2),
    "a bump on a slope": (lambda X: 0.5 * X[:, 0] + 2 * np.exp(-4 * X[:, 0] ** 2), 1, 0.4),
    "a product": (lambda X: X[:, 0] * np.sin(X[:, 1]), 2, 0.5),
}


def function(name, seed, rows):
    of, dims, noise = FUNCTIONS[name]
    rng = np.random.default_rng([seed, dims])
    X = rng.uniform(-3, 3, (rows, dims))
    return X, of(X) + noise * rng.standard_normal(rows)


def real(name, seed, rows):
    folder = Path(os.environ.get("GPZOO_DATA", ""))
    if not (folder / f"uci_{name}.npz").is_file():
        pytest.skip(f"the {name} data are not in GPZOO_DATA={folder}")
    with np.load(folder / f"uci_{name}.npz") as found:
        X, y = found["X"].astype(float), found["y"].astype(float)
    some = np.random.default_rng(seed).permutation(len(y))[:rows]
    return X[some], y[some]


def standardised(X, y, train):
    X, y = X[:, X.std(axis=0) > 0], y
    mean, spread = X[:train].mean(axis=0), X[:train].std(axis=0)
    X, y = (X - mean) / spread, (y - y[:train].mean()) / y[:train].std()
    return X[:train], y[:train], X[train:], y[train:]


def good_fit(program, data):
    X, y, *new = data
    kwargs = {"layers": linear_layers(X, [X.shape[1]])} if program is deep_gp else {}
    scales = {"initial_scale": inner_scales(kwargs["layers"], 1e-2)} if kwargs else {}
    guide = InducingGuide(program, kmeans(30), **scales)
    svi = SVI(program, guide, relaxed(adam(cosine_decay_schedule(0.05, 1500))), GaussianProcessELBO())
    return fit(KEY, svi, 1500, X, y, progress=False, model_kwargs=kwargs), new, kwargs


@pytest.mark.parametrize("program", [gp_regression, deep_gp])
@pytest.mark.parametrize("name", [*FUNCTIONS, "power", "concrete"])
def test_good_fits_raise_nothing(program, name):
    source = function if name in FUNCTIONS else real
    trained, new, kwargs = good_fit(program, standardised(*source(name, SEED, 500), 300))
    assert [finding.name for finding in diagnose(KEY, trained, *new, model_kwargs=kwargs).findings] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_called_by_its_name(fault):
    trained, new, kwargs, data = fault(SEED)
    found = diagnose(KEY, trained, *new, train_args=data, model_kwargs=kwargs).findings
    assert FAULTS[fault] in {finding.name for finding in found} and len(found) <= 2


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_posteriors_are_told_from_those_of_svi(name, standard_promotion):
    """Of regression mean field is near them; of counts it is off by many of its own standard deviations."""
    program, data, published = PUBLISHED[name]
    X, y = ELEVEN["x"], ELEVEN[data]
    guide = InducingGuide(program, InducingPoints(X), hyperparameters="normal")
    svi = SVI(program, guide, adam(0.02), GaussianProcessELBO(num_particles=5))
    trained = fit(KEY, svi, 3000, X, y, progress=False)
    found = diagnose(KEY, trained, X, y)
    off = {
        site: abs(np.log(published[site][0]) - trained.params[f"{site}_loc"]) / trained.params[f"{site}_scale"]
        for site in ("rho", "alpha")
    }
    if name == "regression":
        assert not found.findings and max(off.values()) < 0.5
    else:
        assert min(off.values()) > 0.7 and max(off.values()) > 3
        (finding,) = found.findings
        assert finding.name == "hyperparameters not trusted" and "NUTS" in finding.text
        (section,) = (section for section in found.sections if section.title == "Leave-one-out")
        assert section.rows[0][3] == "not reliable"
