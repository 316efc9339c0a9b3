"""Data that have no density are refused by name at every door, wherever they are, and no others are."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI

from gpzoo import GaussianProcess, draws, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, check, fit
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Expected, Gaussian, Ordinal
from gpzoo.models import log_gaussian_cox
from tests.programs import KEY, bound

RNG = np.random.default_rng(0)


def of(law, *, drawn=False, prior=False):
    """A program whose data site has a law of ``(f, extra)``, of marginals or of a draw."""

    def program(X, y, extra):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0)) if prior else 1.0
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", law(draws(f), extra * scale) if drawn else Expected(law, f, extra * scale), obs=y)

    return program


def beta(f, extra):
    return dist.Beta(extra * jax.nn.sigmoid(f), extra * jax.nn.sigmoid(-f))


def poisson(f, extra):
    return dist.Poisson(extra * jnp.exp(f))


def binomial(f, extra):
    return dist.Binomial(extra, logits=f)


def student(f, extra):
    return dist.StudentT(extra, f, 0.5, validate_args=False)


#: A law, good data and a good extra argument, and what a bad row has of both.
BAD = {
    "exposure 0": (poisson, 2, 1.5, 3, 0.0),
    "negative exposure": (poisson, 2, 1.5, 0, -1.5),
    "share 0": (beta, 0.3, 5.0, 0.0, 5.0),
    "share 1": (beta, 0.3, 5.0, 1.0, 5.0),
    "more than all": (binomial, 2.0, 4.0, 5.0, 4.0),
    "degrees of freedom": (student, 0.3, 3.0, 0.3, -3.0),
}


def doors(program, *args):
    svi = SVI(program, InducingGuide(program, kmeans(3)), optax.adam(0.01), GaussianProcessELBO())
    yield lambda: fit(KEY, svi, 2, *args, progress=False)
    yield lambda: svi.init(KEY, *args)


@pytest.mark.slow_but(name=["exposure 0", "degrees of freedom"], size=[9, 30])
@pytest.mark.filterwarnings("ignore:Out-of-support")  # by NumPyro
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize(
    "drawn, prior, size, bad", [(False, False, 9, [8]), (True, False, 30, [3, 17]), (False, True, 4, [0])]
)
def test_rows_without_a_density_are_refused_by_name(name, drawn, prior, size, bad):
    law, y, extra, bad_y, bad_extra = BAD[name]
    y, extra = np.full(size, y), np.full(size, extra)
    y[bad], extra[bad] = bad_y, bad_extra
    prior = prior and law is not binomial  # whose trials a prior may make more
    program, X = of(law, drawn=drawn, prior=prior), RNG.uniform(size=(size, 2))
    said = f"'y'.* {len(bad)} of {size} rows .* row {bad[0]}, y = {bad_y}, extra = {bad_extra}"
    if law is student and drawn:  # a parameter out of range that depends on no latent function
        said = f"{said}|df of StudentT must not be negative, got {bad_extra} at index .{bad[0]}"
    for door in doors(program, X, y, extra):
        with pytest.raises(ValueError, match=said):
            door()
    found = {finding.name: finding.text for finding in check(program, X, y, extra)}
    assert re.search(said, found["refused"])


def test_data_that_the_program_computes_are_looked_at_too():
    def program(X, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("shares", Expected(beta, f, 5.0), obs=jnp.asarray(y) / 10)

    (found,) = check(program, X := RNG.uniform(size=(7, 1)), np.where(X[:, 0] == X[4, 0], 10.0, 2.0 + X[:, 0]))
    assert re.search("'shares'.* 1 of 7 rows .* row 4, y = 10.0", found.text)


def uniform(f, extra):
    return dist.Uniform(0.0, extra + jax.nn.sigmoid(f), validate_args=False)


def certain(f, extra):
    return dist.Beta(extra, jnp.exp(f))


GOOD = {
    "no count": (poisson, 0, 1.5),
    "many": (poisson, 900, 1.5),
    "nearly 0": (beta, 1e-9, 5.0),
    "all": (binomial, 4.0, 4.0),
    "far": (student, 1e4, 3.0),
    "outside as yet": (uniform, 70.0, 1.0),
    "density at the end": (certain, 0.0, 1.0),
}


@pytest.mark.slow_but(name=["no count", "all", "outside as yet", "density at the end"])
@pytest.mark.parametrize("name", GOOD)
def test_rows_that_training_can_reach_pass(name):
    law, y, extra = GOOD[name]
    for drawn in (False, True):
        args = RNG.uniform(size=(6, 1)), np.full(6, y), np.full(6, extra)
        found = {each.name: each.text for each in check(of(law, drawn=drawn), *args)}
        assert "refused" not in found, found


@pytest.mark.slow_but(dtype=[np.uint8, np.float32])
@pytest.mark.parametrize("dtype", [int, np.uint8, float, np.float32])
@pytest.mark.parametrize("missing", [False, True])
def test_labels_of_any_dtype_are_looked_at(dtype, missing):
    y, cuts, X = (np.arange(6) % 3).astype(dtype), np.array([-0.5, 0.5]), RNG.uniform(size=(6, 1))
    if missing and np.issubdtype(dtype, np.floating):
        y[2] = np.nan

    def program(X, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Ordinal(f, cuts, missing="mask" if missing else None), obs=y)

    assert "refused" not in {each.name for each in check(program, X, y)}
    y[4] = 3
    (found,) = check(program, X, y)
    assert re.search("Ordinal.* 3", found.text)


def test_masked_and_missing_rows_have_no_domain():
    y, X, extra = np.full(5, 0.3), RNG.uniform(size=(5, 1)), np.full(5, 5.0)
    y[2] = 0.0

    def masked(X, y, extra):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.handlers.mask(mask=y > 0):
            numpyro.sample("y", Expected(beta, f, extra), obs=y)

    assert "refused" not in [finding.name for finding in check(masked, X, y, extra)]


@pytest.mark.slow_but(counted=[[3, 5], []])
@pytest.mark.parametrize("of_numpyro", [False, True])
@pytest.mark.parametrize("counted", [[0, 1], [3, 5], [0, 1, 2, 3, 4, 5], []])
def test_rows_of_another_likelihood_are_not_looked_at(counted, of_numpyro):
    """Numbers and counts in one column, each with its likelihood in a mask; a number among the counts is refused."""
    X, y = RNG.uniform(size=(6, 1)), RNG.uniform(-1.0, -0.5, 6)
    y[counted] = RNG.poisson(2.0, len(counted))
    of_counts = np.isin(np.arange(6), counted)

    def program(X, kind, y):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.handlers.mask(mask=kind == 0):
            numpyro.sample("number", Gaussian(f, 0.1), obs=y)
        with numpyro.handlers.mask(mask=kind == 1):
            counts = dist.Poisson(jnp.exp(draws(f))) if of_numpyro else Expected(poisson_of, f)
            numpyro.sample("count", counts, obs=y)

    assert "refused" not in [finding.name for finding in check(program, X, of_counts.astype(int), y)]
    if len(counted) < 6:
        wrong = of_counts.copy()
        wrong[np.flatnonzero(~of_counts)[-1]] = True
        (found,) = [finding for finding in check(program, X, wrong.astype(int), y) if finding.name == "refused"]
        assert "count" in found.text


def poisson_of(f):
    return dist.Poisson(jnp.exp(f))


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [[0], [2, 11]])
def test_cells_without_exposure_say_nothing(zeros):
    X, y, exposure = RNG.uniform(size=(12, 1)), RNG.poisson(2.0, 12), RNG.uniform(1, 2, 12)
    y[zeros], exposure[zeros] = 0, 0.0
    assert not check(log_gaussian_cox, X, y, exposure)
    guide = InducingGuide(log_gaussian_cox, kmeans(3))
    params = guide.init_params(KEY, X, y, exposure)

    def of_rows(rows):
        value = lambda params: bound(log_gaussian_cox, guide, params, X[rows], y[rows], exposure[rows])  # noqa: E731
        return jax.value_and_grad(value)(params)

    some = np.setdiff1d(np.arange(12), zeros)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), of_rows(np.arange(12)), of_rows(some)
    )
