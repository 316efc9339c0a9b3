"""Rows of sites: on other inputs than the batch, patches, tasks, in batches of any size; and what needs several."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI
from scipy.stats import norm

from gpzoo import GaussianProcess, InducingPoints, draws, kernels, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, diagnose, fit
from gpzoo.inference.programs.gp_sites import DrawnWithin
from gpzoo.inference.programs.row_order import _same, rows_of_sites
from gpzoo.inference.programs.rows import Layout
from gpzoo.models import gaussian, network_of

KEY = random.key(0)
RNG = np.random.default_rng(0)


# -- through programs --------------------------------------------------------------------------------------------------


def two_plates(X, y=None, Z=None, w=None):
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.3, 0.7), X))
    g = numpyro.sample("g", GaussianProcess(kernels.RBF(0.8, 1.1), Z))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)
    with numpyro.plate("others", len(Z)):
        numpyro.sample("w", gaussian(g, 0.2), obs=w)


def three_tasks(X, y=None, inputs=(), targets=(None, None)):
    for task, (x, values) in enumerate(zip((X, *inputs), (y, *targets), strict=True)):
        f = numpyro.sample(f"f{task}", GaussianProcess(kernels.RBF(1.0 + task, 0.7), x))
        with numpyro.plate(f"rows{task}", len(x)):
            numpyro.sample(f"y{task}", gaussian(f, 0.1 + task), obs=values)


def patches(X, y=None):
    """Inputs ``[N, P, d]``, each patch of which has a datum."""
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.3, 0.7), X.reshape(-1, X.shape[-1])))
    with numpyro.plate("patches", len(f)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


def apart(X, y=None):
    """The same, first all first patches, then all second ones."""
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.3, 0.7), jnp.moveaxis(X, 1, 0).reshape(-1, X.shape[-1])))
    with numpyro.plate("patches", len(f)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


X, Z = RNG.standard_normal((9, 1)), RNG.standard_normal((4, 1))
INPUTS = RNG.standard_normal((5, 1)), RNG.standard_normal((9, 1))
PATCHES = RNG.standard_normal((9, 2, 1))
U = RNG.standard_normal((3, 1))

PROGRAMS = {
    "two plates": (two_plates, X, {"Z": Z}, {"f": (X, 1.3, 0.7), "g": (Z, 0.8, 1.1)}),
    "three tasks": (
        three_tasks,
        X,
        {"inputs": INPUTS},
        {f"f{i}": (x, 1.0 + i, 0.7) for i, x in enumerate((X, *INPUTS))},
    ),
    "patches": (patches, PATCHES, {}, {"f": (PATCHES.reshape(-1, 1), 1.3, 0.7)}),
    "patches apart": (apart, PATCHES, {}, {"f": (np.moveaxis(PATCHES, 1, 0).reshape(-1, 1), 1.3, 0.7)}),
}


def trained_on(program, inputs, kwargs):
    guide = InducingGuide(program, InducingPoints(U))
    data = (
        {"w": np.zeros(4)} if "Z" in kwargs else {"targets": (np.zeros(5), np.zeros(9))} if "inputs" in kwargs else {}
    )
    rows = inputs.size if inputs.ndim == 3 else len(inputs)
    params = guide.init_params(KEY, inputs, np.zeros(rows), model_kwargs=kwargs | data)
    params |= {k: RNG.standard_normal(np.shape(v)) for k, v in params.items() if k.endswith("_mean")}
    own = np.random.default_rng(1)
    params |= {k: own.standard_normal(np.shape(v)) for k, v in params.items() if k.endswith("_scale")}
    return Trained(program, guide, params)


#: Where each of these has its data.
DATA = {"f": "y", "g": "w"} | {f"f{task}": f"y{task}" for task in range(3)}


def dense(params, site, x, variance, lengthscale):
    """Mean and variance of ``f`` for ``u = L v`` with the library's jitter, by NumPy in double precision."""
    of = lambda a, b: variance * np.exp(-np.square(a - b.T) / (2 * lengthscale**2))  # noqa: E731
    L = np.linalg.cholesky(of(U, U) + 1e-9 * variance * np.eye(3))
    A, S = np.linalg.solve(L, of(U, x)), np.tril(params[f"{site}_scale"])
    mean = A.T @ params[f"{site}_mean"]
    assert mean.dtype == np.float64
    return mean, variance - np.sum(A**2, axis=0) + np.sum((S.T @ A) ** 2, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_batches_of_any_size_predict_the_same_and_what_a_dense_computation_gives(name):
    program, inputs, kwargs, sites = PROGRAMS[name]
    trained = trained_on(program, inputs, kwargs)
    found = {}
    for size in (1, 2, 7, 100):
        options = {"batch_size": size, "model_kwargs": kwargs}
        at = trained.predict(KEY, inputs, quantiles=(0.1, 0.9), keep_draws=True, num_draws=3, **options)
        drawn = trained.functions(KEY, inputs, num_draws=3, num_features=16, **options)
        found[size] = at, drawn
    whole, drawn = found[100]
    for site, (x, *kernel) in sites.items():
        mean, variance = dense(trained.params, site, x, *kernel)
        data, noise = DATA[site], float(trained.params["noise_variance"])
        for at, functions in found.values():
            np.testing.assert_allclose(at[site].mean, mean, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(at[site].variance, variance, rtol=1e-10)
            np.testing.assert_allclose(at[data].mean, mean, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(at[data].variance, variance + noise, rtol=1e-10)
            ends = mean + np.sqrt(variance) * norm.ppf([[0.1], [0.9]])
            np.testing.assert_allclose(at[site].quantiles, ends, rtol=1e-10, atol=1e-10)
            assert functions[site].shape == (3, len(x))
    for other, functions in found.values():
        for site, prediction in whole.items():
            for ours, theirs in zip(prediction, other[site], strict=True):
                if ours is not None:
                    np.testing.assert_allclose(theirs, ours, rtol=1e-10, atol=1e-10)
        for site, values in drawn.items():
            np.testing.assert_allclose(functions[site], values, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two plates", "patches apart"])
def test_exports_in_batches_are_those_of_all_rows(name):
    program, inputs, kwargs, _ = PROGRAMS[name]
    trained = trained_on(program, inputs, kwargs)
    targets = RNG.standard_normal(18 if inputs.ndim == 3 else 9)
    data = kwargs | ({"w": np.ones(4)} if "Z" in kwargs else {})
    of = lambda size: trained.to_arviz(KEY, inputs, targets, num_draws=4, batch_size=size, model_kwargs=data)  # noqa: E731
    whole, parts = of(100), of(4)
    for group in ("posterior", "log_likelihood", "observed_data", "posterior_predictive"):
        for site, values in whole[group].data_vars.items():
            assert parts[group][site].shape == values.shape
            assert np.isfinite(parts[group][site].values).all()
            if site in ("g", "w", "g_u", "f_u") or group == "observed_data":  # the same in all batches
                np.testing.assert_allclose(parts[group][site].values, values.values, rtol=1e-12)


def test_rows_of_a_site_are_counted_as_they_lie():
    """Of six rows of data with three rows of a site each, those of the second and the fifth."""
    rows = np.array([1, 4])
    np.testing.assert_array_equal(Layout(3).rows(rows, 6), [3, 4, 5, 12, 13, 14])
    np.testing.assert_array_equal(Layout(3, strided=True).rows(rows, 6), [1, 4, 7, 10, 13, 16])


def test_test_data_go_with_the_rows_of_their_site():
    program, inputs, kwargs, _ = PROGRAMS["two plates"]
    trained = trained_on(program, inputs, kwargs)
    tests = {"y": RNG.standard_normal(9), "w": RNG.standard_normal(4)}
    whole, parts = (
        trained.predict(KEY, inputs, test_data=tests, batch_size=size, model_kwargs=kwargs) for size in (50, 2)
    )
    for site in ("y", "w"):
        np.testing.assert_allclose(parts[site].log_density, whole[site].log_density, rtol=1e-10)
    with pytest.raises(ValueError, match=r"test_data\['w'\] has 9 rows, but site 'w' has 4"):
        trained.predict(KEY, inputs, test_data={"w": tests["y"]}, model_kwargs=kwargs)


def test_data_that_every_batch_would_count_are_refused():
    program, inputs, kwargs, _ = PROGRAMS["two plates"]
    trained, data = trained_on(program, inputs, kwargs), kwargs | {"w": np.ones(4)}
    with pytest.raises(ValueError, match="data of site 'w' are the same in every batch"):
        trained.condition(KEY, inputs, np.ones(9), batch_size=3, model_kwargs=data)
    assert np.isfinite(trained.condition(KEY, inputs, np.ones(9), model_kwargs=data).losses).all()


def reversed_rows(X, y=None):
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(), X[::-1]))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


def centred(X, y=None):
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(), X - X.mean(0)))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


def first_three(X, y=None):
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(), X[:3]))
    with numpyro.plate("rows", 3):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


@pytest.mark.slow_but(program=[reversed_rows])
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (reversed_rows, "the same row at another place"),
        (centred, "the same row at another place"),
        (first_three, "the same row at another place"),
    ],
)
def test_batches_that_cannot_be_told_are_refused_by_name(program, reason):
    guide = InducingGuide(program, InducingPoints(U))
    data = np.zeros(9 if program is not first_three else 3)
    trained = Trained(program, guide, guide.init_params(KEY, X, model_kwargs={"y": data}))
    with pytest.raises(ValueError, match=f"Site 'f' does not come in batches of 4 rows: {reason}.*batch_size=9"):
        trained.predict(KEY, X, batch_size=4)
    with pytest.raises(ValueError, match="Site 'f' does not come in batches"):
        trained.functions(KEY, X, batch_size=4)
    assert np.isfinite(trained.predict(KEY, X)["f"].mean).all()


@pytest.mark.parametrize("program", [centred, reversed_rows])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_minibatches_of_any_size_are_refused_by_name(program, size):
    """A single row has no order, so all rows are compared."""

    def scaled(X, y=None, *, num_data=None):
        with handlers.scale(scale=(num_data or len(X)) / len(X)):
            program(X, y)

    svi = SVI(scaled, InducingGuide(scaled, InducingPoints(U)), optax.adam(0.02), GaussianProcessELBO())
    with pytest.raises(ValueError, match="Site 'f' does not come in minibatches"):
        fit(KEY, svi, 1, X, np.zeros(len(X)), batch_size=size, progress=False)


def with_inputs(inputs, value=lambda f, X: f):
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(), inputs(X)))
        with numpyro.plate("rows", len(X)):
            numpyro.sample("y", gaussian(value(f, X), 0.1), obs=y)

    return program


def predicted(program, batch_size):
    guide = InducingGuide(program, InducingPoints(U))
    trained = Trained(program, guide, guide.init_params(KEY, X, np.zeros(9)))
    return trained.predict(KEY, X, batch_size=batch_size)


@pytest.mark.slow_but(what=["a parameter of 'y'"])
@pytest.mark.parametrize(
    ("program", "what"),
    [
        (with_inputs(lambda X: X + jnp.arange(float(len(X)))[:, None]), "the inputs of 'f'"),
        (with_inputs(lambda X: X * len(X)), "the inputs of 'f'"),
        (with_inputs(lambda X: X + random.normal(KEY, X.shape)), "the inputs of 'f'"),
        (with_inputs(lambda X: X - X.mean(0) if len(X) > 5 else X), "the inputs of 'f'"),
        (with_inputs(lambda X: X, lambda f, X: f * jnp.arange(float(len(X)))), "a parameter of 'y'"),
    ],
    ids=["place", "number", "a key of its own", "a branch by the number", "the place in a likelihood"],
)
def test_programs_that_compute_with_places_or_numbers_of_rows_are_refused_in_batches(program, what):
    reason = f"does not come in batches of 2 rows: the same row at another place, .* gives other numbers in {what}"
    with pytest.raises(ValueError, match=reason):
        predicted(program, 2)


def shifted_by_a_random_start(X, y=None):
    w = numpyro.param("w", lambda key: random.normal(key, (1,)))
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(), (X + jnp.arange(float(len(X)))[:, None]) * w))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


GROUPS = np.repeat([0, 1], [5, 4])


@pytest.mark.parametrize(
    "program",
    [
        with_inputs(lambda X: X, lambda f, X: f + jnp.array([0.0, 5.0])[GROUPS[: len(X)]]),
        with_inputs(lambda X: jnp.where((jnp.arange(len(X)) < 5)[:, None], X, X + 1)),
        shifted_by_a_random_start,
    ],
    ids=["sorted groups", "the first rows", "a parameter that starts at random"],
)
def test_places_are_compared_over_all_rows_and_at_the_parameters(program):
    with pytest.raises(ValueError, match="the same row at another place"):
        predicted(program, 2)


def test_a_large_column_does_not_hide_the_place_in_a_small_one():
    whole = np.column_stack([[1e8, 2e8, 3e8], [0.1, 0.2, 0.3]])
    nearly = whole * (1 + 1e-15)
    assert _same(whole * (1 + 1e-15), whole, nearly)
    assert not _same(whole + np.array([0, 1e-6]), whole, nearly)


def test_a_program_of_one_number_of_rows_is_refused_by_name_in_batches():
    def fixed(X, y=None):
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(), X))
        with numpyro.plate("rows", 9):
            numpyro.sample("y", gaussian(f, 0.1), obs=y)

    with pytest.raises(ValueError, match="Plate 'rows' has the size 9"):
        predicted(fixed, 2)


@pytest.mark.slow_but(columns=[3000], batch_size=[2])
@pytest.mark.parametrize("batch_size", [2, 99])
@pytest.mark.parametrize("columns", [1, 30, 784, 3000])
def test_rounding_over_many_columns_is_no_place(columns, batch_size):
    """In float32 a sum over thousands of columns has other roundings in batches of another size."""
    inputs = np.float32(np.random.default_rng(columns).uniform(size=(120, columns)) > 0.5)
    scales = np.linspace(0.5, 2, columns, dtype=np.float32)

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, scales), X))
        numpyro.sample("y", gaussian(f * 3.0, 0.1), obs=y)

    assert not rows_of_sites(program, (inputs,), {}, batch_size=batch_size).untold


@pytest.mark.slow_but(rows=[9])
@pytest.mark.parametrize("rows", [2, 9])
def test_draws_of_what_goes_by_the_number_of_rows_are_those_of_all_rows(rows):
    """Draws of data run a program on single rows, but where these are others."""
    program = with_inputs(lambda X: X, lambda f, X: f * len(X))
    guide = InducingGuide(program, InducingPoints(U))
    trained = Trained(program, guide, guide.init_params(KEY, X[:rows], np.zeros(rows)))
    found = trained.predict(KEY, X[:rows], keep_draws=True, num_draws=4000)["y"]
    np.testing.assert_allclose(found.draws.std(0), np.sqrt(found.variance), rtol=0.1)


def thinned(X, y=None):
    kept = random.bernoulli(numpyro.prng_key(), 0.5, X.shape)
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(), jnp.where(kept, X, 0)))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


@pytest.mark.parametrize(
    "program",
    [with_inputs(lambda X: jnp.asarray(X)[jnp.arange(len(X))] @ jnp.eye(X.shape[1])), thinned],
    ids=["places that pick rows", "a random key of the run"],
)
def test_programs_whose_rows_are_the_same_at_any_place_are_not_refused(program):
    assert np.isfinite(predicted(program, 2)["f"].mean).all()


# -- several rows of a site --------------------------------------------------------------------------------------------


def patchwise(X, y=None, strided=False):
    """Two layers: every row of the second layer's inputs has the values at three patches of a row."""
    each = [X[:, i : i + 2] for i in range(3)]
    windows = jnp.concatenate(each) if strided else jnp.stack(each, 1).reshape(-1, 2)
    h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(1.0, 2.0), windows, mean=windows[:, 0])))
    rows = h.reshape(3, -1).T if strided else h.reshape(-1, 3)
    f = numpyro.sample("f", GaussianProcess(kernels.Linear(1.0), rows))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


IMAGES, TARGETS = RNG.standard_normal((6, 4)), RNG.standard_normal(6)


FAR = np.full((1, 2), 10.0)
PARTICLES = 20_000


def bounds(program, change=lambda guide: None, **options):
    """Of many draws."""
    guide = InducingGuide(program, {"h": InducingPoints(FAR), "f": InducingPoints(np.ones((1, 3)))}, **options)
    params = guide.init_params(KEY, IMAGES, TARGETS)
    params |= {"f_mean": jnp.array([2.0]), "f_scale": 1e-3 * params["f_scale"]}
    change(guide)
    loss = jax.vmap(lambda key: GaussianProcessELBO().loss(key, params, program, guide, IMAGES, TARGETS))
    found = np.asarray(jax.jit(loss)(random.split(random.key(1), PARTICLES)))
    return found.mean(), found.std() / np.sqrt(PARTICLES)


@pytest.mark.slow
@pytest.mark.parametrize("strided", [False, True])
def test_the_bound_of_patches_under_a_second_layer_is_that_of_joint_draws(strided):
    def program(X, y=None):
        patchwise(X, y, strided)

    (within, error), (joint, other) = bounds(program), bounds(program, joint={"h"})
    assert abs(within - joint) < 3 * np.hypot(error, other)
    alone, _ = bounds(program, lambda guide: guide.sites.within.clear())  # as if one row of ``h`` sufficed
    assert abs(alone - joint) > 30 * np.hypot(error, other)


@pytest.mark.slow
@pytest.mark.parametrize("strided", [False, True])
def test_patches_under_a_second_layer_predict_and_export_in_batches(strided):
    def program(X, y=None):
        patchwise(X, y, strided)

    guide = InducingGuide(program, {"h": InducingPoints(FAR), "f": InducingPoints(np.ones((1, 3)))})
    trained = Trained(program, guide, guide.init_params(KEY, IMAGES, TARGETS))
    whole, parts = (
        trained.predict(KEY, IMAGES, num_draws=5, keep_draws=True, batch_size=size, test_data={"y": TARGETS})
        for size in (6, 4)
    )
    for site, prediction in whole.items():
        for ours, theirs in zip(prediction, parts[site], strict=True):
            if ours is not None:
                np.testing.assert_allclose(theirs, ours, rtol=1e-10, atol=1e-10)
    assert trained.to_arviz(KEY, IMAGES, TARGETS, num_draws=2, batch_size=4)["posterior"]["h"].shape == (1, 2, 18)


@pytest.mark.slow
def test_draws_within_a_row_have_their_joint_law():
    guide = InducingGuide(patchwise, {"h": InducingPoints(RNG.standard_normal((2, 2))), "f": InducingPoints(np.eye(3))})
    params = guide.init_params(KEY, IMAGES, TARGETS)
    trained = Trained(patchwise, guide, params)
    posterior = trained.posterior(KEY, IMAGES[:2])["h"]
    _, covariance = posterior.moments()
    keys = random.split(KEY, 40_000)
    drawn = np.asarray(jax.vmap(lambda key: DrawnWithin(Layout(3))(posterior, key))(keys))
    seen = np.cov(drawn.T)
    block = np.kron(np.eye(2), np.ones((3, 3))) > 0
    np.testing.assert_allclose(seen[block], np.asarray(covariance)[block], atol=0.03)
    assert np.abs(seen[~block]).max() < 0.03 < np.abs(np.asarray(covariance)[~block]).max()


def summed_over_rows(X, y=None):
    h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(), X)))
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(), jnp.stack([h, jnp.roll(h, 1)], 1)))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


def largest_of_neighbours(X, y=None):
    h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(), X)))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", gaussian(jnp.maximum(h, jnp.roll(h, 1)), 0.1), obs=y)


def kernel_of_all(X, y=None):
    h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(), X)))
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(jnp.exp(h.mean())), X))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


@pytest.mark.parametrize("program", [summed_over_rows, largest_of_neighbours, kernel_of_all])
def test_what_needs_several_rows_of_the_data_is_refused(program):
    guide = InducingGuide(program, InducingPoints(U))
    with pytest.raises(ValueError, match=r"depends? on several rows of GP site 'h'.*joint=\{'h'\}"):
        guide.setup(X, np.zeros(9))


def of_patches(X, y=None, *, several=True):
    """A second layer on the values at all patches of a row, or at the first one."""
    h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(), X.reshape(-1, 1)))).reshape(len(X), -1)
    f = numpyro.sample("f", GaussianProcess(kernels.Linear(1.0), h if several else h[:, :1] * jnp.ones(4)))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", gaussian(f, 0.1), obs=y)


@pytest.mark.slow
def test_options_under_which_rows_are_needed_together_are_refused_by_a_guide_that_draws_them_apart():
    points = {"h": InducingPoints(U), "f": InducingPoints(np.eye(4))}
    apart, together = (InducingGuide(of_patches, points) for _ in range(2))
    params = apart.init_params(KEY, IMAGES, TARGETS, model_kwargs={"several": False})
    together.setup(IMAGES, TARGETS)
    message = r"unlike those with which the guide was set up, .* several rows of GP site\(s\) \['h'\] together"
    with pytest.raises(ValueError, match=message):
        GaussianProcessELBO().loss(KEY, params, of_patches, apart, IMAGES, TARGETS)
    with pytest.raises(ValueError, match=message):
        Trained(of_patches, apart, params).predict(KEY, IMAGES)
    options = {"several": False}
    for guide in (apart, together):  # drawn together is right for both
        assert np.isfinite(GaussianProcessELBO().loss(KEY, params, of_patches, guide, IMAGES, TARGETS, **options))
        assert np.isfinite(
            Trained(of_patches, guide, params).predict(KEY, IMAGES, model_kwargs=options)["f"].mean
        ).all()


@pytest.mark.slow_but(batch_size=[4])
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_rows_are_told_by_the_program_and_not_by_their_number(batch_size):
    found = rows_of_sites(three_tasks, (X,), {"inputs": INPUTS, "targets": (None, None)}, batch_size=batch_size)
    assert found.layouts == {"f0": Layout(), "y0": Layout()}
    assert not found.untold
    assert found.sizes == {"f0": 9, "y0": 9, "f1": 5, "y1": 5, "f2": 9, "y2": 9}
    for program, layout in (apart, Layout(2, strided=True)), (patches, Layout(2)):
        assert rows_of_sites(program, (PATCHES,), {}, batch_size=batch_size).layouts["f"] == layout


@pytest.mark.slow
def test_a_second_call_at_the_same_shapes_compiles_nothing():
    program, inputs, kwargs, _ = PROGRAMS["two plates"]
    trained, data = trained_on(program, inputs, kwargs), kwargs | {"w": np.ones(4)}
    calls = [
        lambda key: trained.to_arviz(key, inputs, np.ones(9), num_draws=2, new_args=(inputs,), model_kwargs=data),
        lambda key: trained.functions(key, inputs, num_draws=2, num_features=8, model_kwargs=kwargs),
        lambda key: trained.posterior(key, inputs, model_kwargs=kwargs),
        lambda key: trained.predict(key, inputs, model_kwargs=kwargs),
        lambda key: diagnose(key, trained, inputs, np.ones(9), model_kwargs=data),
    ]
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    for call in calls:
        call(KEY)
        count = len(compiled)
        assert count
        call(random.key(1))
        assert len(compiled) == count


@pytest.mark.slow_but(size=[7], of=["a mean"])
@pytest.mark.parametrize("size", [4, 7])
@pytest.mark.parametrize("of", ["a mean", "a place", "their number"])
def test_rows_of_a_minibatch_that_go_by_others_are_refused(of, size, standard_promotion):
    inputs = {
        "a mean": lambda X: X - X.mean(0),
        "a place": lambda X: X + 1e-4 * jnp.arange(len(X), dtype=X.dtype)[:, None],
        "their number": lambda X: X * len(X),
    }[of]

    def program(X, y=None, *, num_data=None):
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(numpyro.param("v", jnp.ones(()))), inputs(X)))
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", gaussian(f, 0.1), obs=y)

    rows = np.linspace(0, 1, 12)[:, None]
    svi = SVI(program, InducingGuide(program, InducingPoints(U)), optax.adam(0.1), GaussianProcessELBO())
    with pytest.raises(ValueError, match=r"'[yf]' does not come in minibatches"):
        fit(KEY, svi, 1, rows, rows[:, 0], batch_size=size, progress=False)
    assert fit(KEY, svi, 1, rows, rows[:, 0], progress=False).losses.shape == (1,)


def dropping_nnx():
    nnx = pytest.importorskip("flax.nnx")
    layers = nnx.Linear(1, 4, rngs=nnx.Rngs(0)), nnx.Dropout(0.4, rngs=nnx.Rngs(1)), nnx.Linear(4, 2, rngs=nnx.Rngs(2))
    return nnx.Sequential(*layers)


def dropping_linen():
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, training):
            return linen.Dense(2)(linen.Dropout(0.4, deterministic=not training)(linen.Dense(4)(x)))

    return Net()


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 7, 12])
@pytest.mark.parametrize("module", [dropping_nnx, dropping_linen])
def test_dropout_trains_in_minibatches(module, size, standard_promotion):
    """The key is the network's own (nnx), which another key of the program does not change, or the program's."""
    network = network_of(module())
    equal = np.ones((40, 1), np.float32)
    kept, dropped = (handlers.seed(network, 0)(equal, training) for training in (False, True))
    assert np.ptp(kept, axis=0).max() == 0 < np.ptp(dropped, axis=0).min()  # each row loses units of its own

    def program(X, y=None, *, training=False, num_data=12):
        h = network(X, training)
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, 1.0), h))
        with numpyro.plate("data", num_data, subsample_size=len(X)):
            numpyro.sample("y", gaussian(f), obs=y)

    X = np.linspace(-1, 1, 12, dtype=np.float32)[:, None]
    svi = SVI(program, InducingGuide(program, kmeans(4)), optax.adam(0.01), GaussianProcessELBO())
    options = {"batch_size": size, "progress": False, "model_kwargs": {"training": True}}
    trained = fit(KEY, svi, 4, X, np.sin(X[:, 0]), **options)
    assert np.isfinite(trained.losses).all()
    again = trained.predict(KEY, X, batch_size=5)["f"].mean
    np.testing.assert_allclose(again, trained.predict(random.key(1), X)["f"].mean, atol=1e-5)
