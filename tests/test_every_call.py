"""Every call after every route to a trained model, and of every kind of program, with the numbers of the plain one.

Routes differ in what a trained model knows of its data and training, programs in what the calls make of their sites.
"""

import threading
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jax import random
from numpyro.infer import SVI, Predictive

from gpzoo import InducingPoints, draws
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, diagnose, fit, load, report
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import categories
from gpzoo.processes.process import GaussianProcess
from gpzoo.tables import ArrayTable, ParquetTable
from tests.programs import KEY, adam, positive

pytestmark = pytest.mark.filterwarnings("ignore:Step .* still raised the bound")

N = 12
X = np.stack([np.linspace(-2, 2, N), np.arange(N) % 3], axis=1)
Y = np.sin(2 * X[:, 0]) + 0.1 * np.cos(7 * X[:, 0])
X_OF_OTHERS = X[::3]
MISSING = np.where(np.arange(N) == 3, np.nan, Y)


# -- programs ----------------------------------------------------------------------------------------------------------


def process(name, X, **options):
    kernel = RBF(positive(f"{name}_variance", 1.0), positive(f"{name}_lengthscale", 1.0), active_dims=(0,))
    return numpyro.sample(name, GaussianProcess(kernel, X, **options))


def plain(X, y=None, *, num_data=None):
    f = process("f", X)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def missing(X, y=None, *, num_data=None):
    f = process("f", X)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1), missing="mask"), obs=y)


def nested_plates(X, y=None):
    f = process("f", X, num_outputs=2)
    with numpyro.plate("outputs", 2, dim=-1), numpyro.plate("data", len(X), dim=-2):
        numpyro.sample("y", dist.Normal(draws(f), positive("noise", 0.3)), obs=y)


def two_plates(X, y=None):
    """Beside the rows of ``X`` there are four of a second plate."""
    f, g = process("f", X), process("g", 1 + X_OF_OTHERS)
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)
    with numpyro.plate("others", 4):
        numpyro.sample("w", Gaussian(g, 0.2), obs=None if y is None else -Y[::3])


def of_categories(X, y=None):
    kernel = RBF(1.0, positive("lengthscale", 1.0), active_dims=(0,)) * categories("f", X, 3)
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def dropout(X, y=None):
    from flax import nnx
    from numpyro.contrib.module import nnx_module

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(2, 2, rngs=rngs, param_dtype=X.dtype)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.linear(x))

    network = nnx_module("network", Network(nnx.Rngs(0)))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), network(X)))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


#: Of each program the data, and the inducing inputs.
PROGRAMS = {
    "plain": (plain, Y),
    "missing": (missing, MISSING),
    "nested plates": (nested_plates, np.stack([Y, -Y], axis=1)),
    "two plates": (two_plates, Y),
    "categories": (of_categories, Y),
    "dropout": (dropout, Y),
}


def guide_of(program):
    return InducingGuide(program, InducingPoints(X[::4]))


def fitted(program, y, *, key=KEY, steps=3, data=None, **options):
    svi = SVI(program, guide_of(program), adam(0.05), GaussianProcessELBO())
    return fit(key, svi, steps, *((X, y) if data is None else data), progress=False, **options)


# -- calls -------------------------------------------------------------------------------------------------------------


def described(found):
    """The numbers of a diagnosis."""
    return {
        f"{s.title}: {row[0]}, {s.columns[i]}": x for s in found.sections for row in s.rows for i, x in enumerate(row)
    }


def groups(found):
    return {f"{group}/{name}": np.asarray(x) for group in found.groups() for name, x in found[group].data_vars.items()}


#: What each call gives, as numbers by name.
CALLS = {
    "predict": lambda t, y: t.predict(KEY, X, num_draws=2, quantiles=(0.1, 0.9), test_data=None),
    "functions": lambda t, y: t.functions(KEY, X, num_draws=2, num_features=8),
    "posterior": lambda t, y: {n: fn.moments() for n, fn in t.posterior(KEY, X).items()},
    "to_arviz": lambda t, y: groups(t.to_arviz(KEY, X, y, num_draws=3)),
    "diagnose": lambda t, y: described(diagnose(KEY, t, X, y)),
    "condition": lambda t, y: dict(t.condition(KEY, X[:5], y[:5], num_steps=2, num_draws=2).params),
    "add_inducing": lambda t, y: dict(t.add_inducing(KEY, InducingPoints(X[1:3]), X).params),
}

#: Calls that a program has not, each with words of the refusal.
REFUSED = {
    ("categories", "functions"): (TypeError, "Product has no known spectral density|no known spectral density"),
}


def same(found, wanted, tolerance=1e-10):
    found, wanted = (jax.tree_util.tree_leaves_with_path(x) for x in (found, wanted))
    assert [path for path, _ in found] == [path for path, _ in wanted]
    for (path, a), (_, b) in zip(found, wanted, strict=True):
        if isinstance(a, str) or a is None:
            assert a == b, path
        elif jnp.issubdtype(jnp.result_type(a), jax.dtypes.prng_key):
            same(random.key_data(a), random.key_data(b))
        else:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=str(path))


@pytest.fixture(scope="module")
def models():
    """The trained model of each program, by name; each is trained once."""
    found = {}

    def of(name):
        if name not in found:
            found[name] = fitted(*PROGRAMS[name])
        return found[name]

    return of


@pytest.fixture(scope="module")
def answers(models):
    """What each call gives of each program's model, by names; each is asked once."""
    found = {}

    def of(name, call):
        if (name, call) not in found:
            found[name, call] = CALLS[call](models(name), PROGRAMS[name][1])
        return found[name, call]

    return of


# -- every call of every program ---------------------------------------------------------------------------------------


@pytest.mark.slow_but(name=["plain"], call=["diagnose", "to_arviz", "predict", "condition"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_call_of_every_program(name, call, models, answers):
    if (name, call) in REFUSED:
        kind, words = REFUSED[name, call]
        with pytest.raises(kind, match=words):
            answers(name, call)
        return
    found = answers(name, call)
    numbers = [x for x in jax.tree.leaves(found) if isinstance(x, float) or getattr(x, "dtype", None) == X.dtype]
    assert numbers
    if call not in ("to_arviz", "diagnose"):  # these have NaN for what was not observed, or is not known
        assert all(np.isfinite(x).all() for x in numbers)


@pytest.mark.slow_but(name=["plain", "missing"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_saved_models_are_the_same(name, models, answers, tmp_path):
    trained = models(name)
    trained.save(tmp_path / "model")
    loaded = load(tmp_path / "model", trained.model, guide_of(trained.model))
    same(dict(loaded.params), dict(trained.params))
    same(CALLS["predict"](loaded, PROGRAMS[name][1]), answers(name, "predict"))


def test_missing_data_are_rows_that_are_not_there(models):
    trained, there = models("missing"), ~np.isnan(MISSING)
    found = trained.condition(KEY, X, MISSING, num_steps=3)
    wanted = trained.condition(KEY, X[there], MISSING[there], num_steps=3)
    same({n: x for n, x in found.params.items()}, {n: x for n, x in wanted.params.items()}, 1e-8)


@pytest.mark.slow
def test_one_plate_of_outputs_is_two_sites():
    """Numbers of a diagnosis of nested plates, by hand."""
    program, y = PROGRAMS["nested plates"]
    trained = fitted(program, y)
    found = described(diagnose(KEY, trained, X, y))
    predicted = trained.predict(KEY, X, test_data={"y": y}, num_draws=200)["y"]
    np.testing.assert_allclose(found["Log densities: y, nlpp"], -predicted.log_density.sum() / N, rtol=0.2)


# -- every call after every route --------------------------------------------------------------------------------------


def parquet(folder):
    path = folder / "data.parquet"
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": Y}), path)
    return ParquetTable(path, columns=["a", "b"], target="y", dtype=np.float64)


def by_numpyro(folder):
    guide = guide_of(plain)
    svi = SVI(plain, guide, adam(0.05), GaussianProcessELBO())
    return Trained(
        plain, guide, svi.run(KEY, 3, X, Y, progress_bar=False, init_params=guide.init_params(KEY, X, Y)).params
    )


def reloaded(folder):
    fitted(plain, Y).save(folder / "plain")
    return load(folder / "plain", plain)


def ignored(step, seconds, params):
    """A callback."""


ROUTES = {
    "arrays": lambda folder: fitted(plain, Y),
    "JAX arrays": lambda folder: fitted(plain, Y, data=(jnp.asarray(X), jnp.asarray(Y))),
    "minibatches": lambda folder: fitted(plain, Y, batch_size=4),
    "table": lambda folder: fitted(plain, Y, data=(ArrayTable(X, Y),), batch_size=4),
    "Parquet": lambda folder: fitted(plain, Y, data=(parquet(folder),), batch_size=4),
    "member": lambda folder: fitted(plain, Y, key=random.split(KEY, 2), in_axes=None).member(1),
    "member of data": lambda folder: fitted(
        plain, Y, key=random.split(KEY, 2), data=(np.stack([X, X]), np.stack([Y, Y]))
    ).member(0),
    "mesh": lambda folder: fitted(plain, Y, batch_size=4, mesh=jax.make_mesh((1,), ("data",))),
    "callback": lambda folder: fitted(plain, Y, callback=ignored, callback_steps=2),
    "checkpoint": lambda folder: fitted(plain, Y, checkpoint=folder / "checkpoints"),
    "svi.run": by_numpyro,
    "loaded": reloaded,
    "table, loaded": lambda folder: saved_and_loaded(ROUTES["table"](folder), folder),
}


def saved_and_loaded(trained, folder):
    trained.save(folder / "saved")
    return load(folder / "saved", trained.model)


PAIRS = [(route, call) for route in ROUTES for call in CALLS]


@pytest.fixture(scope="module")
def arrivals(tmp_path_factory, models):
    """The trained model of each route, by its name; each is trained once."""
    found = {}

    def of(route):
        if route not in found:
            trained = ROUTES[route](tmp_path_factory.mktemp("route"))
            # Programs that were compiled for one model serve all.
            found[route] = replace(trained, _compiled=models("plain")._compiled)
        return found[route]

    return of


@pytest.mark.slow_but(route=["table", "member"])
@pytest.mark.parametrize(("route", "call"), PAIRS)
def test_every_call_after_every_route(route, call, arrivals, models):
    trained = arrivals(route)
    found = CALLS[call](trained, Y)
    expected = CALLS[call](models("plain").with_params(trained.params), Y)
    if call == "diagnose":  # the course of the training, and what is asked of its data alone
        own = ("Training", "Bounds of the evidence", "Hyperparameters against their posterior", "Leave-one-out")
        found, expected = ({n: x for n, x in each.items() if not n.startswith(own)} for each in (found, expected))
    if call == "to_arviz":
        found.pop("constant_data/elbo", None)
    same(found, expected)


@pytest.mark.slow
def test_reports_after_tables(tmp_path, models):
    trained = replace(ROUTES["table, loaded"](tmp_path), _compiled=models("plain")._compiled)
    report(KEY, trained, X, Y, path=tmp_path / "report.html")
    assert "The bound by site" in (tmp_path / "report.html").read_text(encoding="utf-8")


# -- the same in other ways --------------------------------------------------------------------------------------------


@pytest.mark.slow_but(name=["plain", "missing"])
@pytest.mark.parametrize("name", ["plain", "missing", "nested plates", "two plates", "categories"])
def test_batches_are_the_whole(name, models, answers):
    trained = models(name)
    batched = partial(trained.predict, KEY, X, num_draws=2, quantiles=(0.1, 0.9), batch_size=5)
    same(batched(), answers(name, "predict"), 1e-9)
    if (name, "functions") not in REFUSED:
        same(trained.functions(KEY, X, num_draws=2, num_features=8, batch_size=5), answers(name, "functions"), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["predict", "functions", "posterior"])
def test_threads_give_the_same(call, models, answers):
    found = []
    thread = threading.Thread(target=lambda: found.append(CALLS[call](models("plain"), Y)))
    thread.start()
    thread.join()
    same(found[0], answers("plain", call))


@pytest.mark.slow
def test_numpyro_predicts_the_same(models):
    trained = models("plain")
    draws = Predictive(trained.guide, params=dict(trained.params), num_samples=4000)(KEY, X)["f"]
    mean, covariance = trained.posterior(KEY, X)["f"].moments()
    error = np.sqrt(np.diagonal(covariance) / len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 4.5 * error + 1e-6)
