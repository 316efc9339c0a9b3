"""Calls in a fork, under a transformation, and in another precision than the training's."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from numpyro.infer import SVI

from gpzoo import kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, check, diagnose, fit, load, report
from gpzoo.models import gp_regression
from tests.programs import KEY, adam

X = np.linspace(0, 6, 30)[:, None]
y = np.sin(X[:, 0])


def trained(dtype):
    with jax.enable_x64(dtype is np.float64):
        svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(5)), adam(0.05), GaussianProcessELBO())
        return fit(KEY, svi, 20, X.astype(dtype), y.astype(dtype), progress=False)


@pytest.fixture(scope="module")
def models():
    return {dtype: trained(dtype) for dtype in (np.float32, np.float64)}


#: What can be asked of a model at inputs and targets; each gives numbers.
CALLS = {
    "predict": lambda model, X, y: model.predict(KEY, X, num_draws=4)["y"].mean,
    "functions": lambda model, X, y: model.functions(KEY, X, num_draws=4, num_features=16)["f"],
    "function": lambda model, X, y: model.function(KEY, num_features=16)(X)["f"],
    "posterior": lambda model, X, y: model.posterior(KEY, X)["f"].mean,
    "add_inducing": lambda model, X, y: model.add_inducing(KEY, kmeans(2), X + 9).params["f_mean"],
    "condition": lambda model, X, y: model.condition(KEY, X, y, num_steps=3).params["f_mean"],
    "to_arviz": lambda model, X, y: model.to_arviz(KEY, X, y, num_draws=4)["posterior"]["f"].values,
    "diagnose": lambda model, X, y: len(str(diagnose(KEY, model, X, y))) * 0,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_model_of_float64_is_refused_where_that_is_not_enabled(models, call):
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"params\['f_inducing'\] is float64.*enable_x64"):
        call(models[np.float64], X, y)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_model_of_float32_works_where_float64_is_enabled(models, call):
    """On float64 data as without on float32 data, up to its precision."""
    model = models[np.float32]
    with jax.enable_x64(False):
        expected = call(model, X.astype(np.float32), y.astype(np.float32))
    with jax.numpy_dtype_promotion("standard"):
        found = call(model, X, y)
    assert np.shape(found) == np.shape(expected)
    if call not in (CALLS["functions"], CALLS["function"], CALLS["to_arviz"], CALLS["diagnose"]):  # other random bits
        np.testing.assert_allclose(found, expected, atol=1e-2)


def test_a_float32_model_is_saved_and_loaded_where_float64_is_enabled(models, tmp_path):
    models[np.float32].save(tmp_path / "model")
    again = load(tmp_path / "model", gp_regression)
    assert again.params["f_mean"].dtype == np.float32


UNDER = {
    "diagnose": lambda model, X: diagnose(KEY, model, X, y),
    "report": lambda model, X: report(KEY, model, X, y, path="nowhere/report.html"),
    "check": lambda model, X: check(KEY, gp_regression, X, y),
    "to_arviz": lambda model, X: model.to_arviz(KEY, X, y),
    "predict": lambda model, X: model.predict(KEY, X),
    "functions": lambda model, X: model.functions(KEY, X),
    "condition": lambda model, X: model.condition(KEY, X, y),
    "add_inducing": lambda model, X: model.add_inducing(KEY, kmeans(2), X),
}


@pytest.mark.parametrize("of", ["its arguments", "a constant"])
@pytest.mark.parametrize("name", UNDER)
def test_calls_that_look_at_numbers_are_refused_under_jit(models, name, of):
    run = jax.jit(lambda x: UNDER[name](models[np.float64], x if of == "its arguments" else X))
    with pytest.raises(TypeError, match=rf"^{name} looks at numbers.*call it outside"):
        run(X)


@pytest.mark.slow
def test_functions_and_posteriors_run_under_jit(models):
    model = models[np.float64]
    for name in ("function", "posterior"):
        np.testing.assert_allclose(
            jax.jit(lambda x, name=name: CALLS[name](model, x, None))(X), CALLS[name](model, X, None), rtol=1e-8
        )


def test_rank_promotion_may_be_refused_elsewhere():
    """A vector against a matrix is refused in the user's own JAX, not in the library."""
    with jax.numpy_rank_promotion("raise"):
        model = trained(np.float64)
        found = CALLS["predict"](model, X, y)
    np.testing.assert_allclose(found, CALLS["predict"](model, X, y), rtol=1e-8)


FORK = """
import os, signal, sys, jax, numpy as np
from gpzoo import kmeans
from gpzoo.inference import InducingGuide, Trained, load
from gpzoo.models import gp_regression

X = np.linspace(0, 6, 20)[:, None].astype("float32")

def predicted(path=None):
    if path is not None:
        return load(path, gp_regression)
    guide = InducingGuide(gp_regression, kmeans(5))
    model = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, X[:, 0]))
    return model.predict(jax.random.key(0), X, mean_only=True)["y"].mean

if "before" in sys.argv:
    predicted()
if os.fork():
    print(os.waitstatus_to_exitcode(os.wait()[1]))
else:
    signal.alarm(100)  # ends a child that waits for ever
    try:
        print(len(predicted()), flush=True)
    except RuntimeError as error:
        print(error, flush=True)
        try:
            predicted("nowhere")
        except RuntimeError as error:
            print(error, flush=True)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on Windows")
@pytest.mark.parametrize("ran", ["before", "only in the fork"])
def test_a_fork_is_refused_if_jax_ran_before_it_and_works_otherwise(ran):
    done = subprocess.run(
        [sys.executable, "-c", FORK, ran], capture_output=True, text=True, timeout=150, check=True
    ).stdout.splitlines()
    assert done[-1] == "0"
    if ran == "before":
        for line, name in zip(done[:-1], ("init_params", "load"), strict=True):
            assert line.startswith(f"{name} was called in a process that was forked after JAX had run")
            assert "get_context('spawn') or 'forkserver'" in line
    else:
        assert done[:-1] == ["20"]
