"""Candidates with a guide, optimiser or objective of their own are compared beside those of the default."""

import warnings
from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoNormal

from gpzoo import GaussianProcess, draws, kmeans
from gpzoo.inference import (
    Candidate,
    CollapsedELBO,
    Comparison,
    GaussianProcessELBO,
    InducingGuide,
    PredictiveLogLikelihood,
    Trained,
    compare,
    lbfgs,
)
from gpzoo.inference.training import comparison
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import gp_regression
from tests.programs import KEY, sine


@pytest.mark.slow
def test_candidates_may_have_objectives_of_their_own(standard_promotion):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 6, (40, 1)), axis=0)
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(40)
    guide = InducingGuide(gp_regression, kmeans(8))
    candidates = {
        "adam": (gp_regression, kmeans(8)),
        "collapsed": SVI(gp_regression, guide, lbfgs(), CollapsedELBO()),
    }
    found = compare(KEY, candidates, X, y, X, y, num_steps=20, progress=False)
    assert list(found) == ["collapsed", "adam"] and found["collapsed"].nlpp < found["adam"].nlpp - 0.2
    other = SVI(gp_regression, AutoNormal(gp_regression), optax.adam(0.01), GaussianProcessELBO())
    with pytest.raises(ValueError, match="guide of candidate 'normal' must be an InducingGuide"):
        compare(KEY, {"normal": other}, X, y, num_steps=2)


# -- by prediction -----------------------------------------------------------------------------------------------------


def of_kernel(kernel, X, y=None, *, num_data=None):
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 0.5))
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


@pytest.mark.slow
def test_candidates_are_compared_by_leaving_rows_out(standard_promotion):
    """By weights as ``az.compare``, by folds alike, and by folds where weights cannot be trusted."""
    X, y = sine(60)
    kernels = {"right": RBF(1.0, 0.8), "smooth": RBF(1.0, 3.0)}
    candidates = {name: (partial(of_kernel, kernel), kmeans(12)) for name, kernel in kernels.items()}
    options = {"num_steps": 800, "learning_rate": 0.05, "progress": False}
    loo = compare(KEY, candidates, X, y, elpd="loo", **options)
    folds = compare(KEY, candidates, X, y, elpd=6, **options)
    assert list(loo) == list(folds) == ["right", "smooth"]
    assert loo["right"].elpd_by.startswith("LOO") and folds["right"].elpd_by == "6 folds"
    assert "below best" in str(loo) and str(loo).splitlines()[1].startswith("right")
    below = [each["right"].elpd - each["smooth"].elpd for each in (loo, folds)]
    error = np.sqrt(60) * below[0].std()
    assert below[0].sum() > 2 * error
    assert abs(below[0].sum() - below[1].sum()) < error
    exports = {name: each.trained.to_arviz(KEY, X, y, num_draws=1000) for name, each in loo.items()}
    az = pytest.importorskip("arviz")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(shape parameter of Pareto|Pareto k|inplace keyword)")
        table = az.compare(exports)
    assert list(table.index) == ["right", "smooth"]
    assert np.abs(table["elpd_diff"].to_numpy(float)).max() == pytest.approx(below[0].sum(), abs=error / 2)


def with_plate_of_outputs(X, y=None):
    noise = numpyro.param("noise", 0.1)
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=3))
    with numpyro.plate("outputs", 3, dim=-1), numpyro.plate("data", len(X), dim=-2):
        numpyro.sample("y", dist.Normal(draws(f), jnp.sqrt(noise)), obs=y)


@pytest.mark.slow
def test_densities_are_of_rows_however_outputs_are_written(standard_promotion):
    X, y = sine(20)
    Y = np.stack([y, -y, y**2], axis=1)

    def with_one_site(X, y=None):
        noise = numpyro.param("noise", 0.1)
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=3))
        numpyro.sample("y", Gaussian(f, noise), obs=y)

    candidates = {"plates": (with_plate_of_outputs, kmeans(5)), "site": (with_one_site, kmeans(5))}
    found = compare(KEY, candidates, X, Y, X, Y, num_steps=30, progress=False)
    assert found["plates"].nlpp == pytest.approx(found["site"].nlpp, abs=0.3)
    density = found["plates"].trained.predict(KEY, X, test_data={"y": Y})["y"].log_density
    assert density.shape == (20,) and -density.mean() == pytest.approx(found["plates"].nlpp, abs=0.2)


@pytest.mark.slow_but(kind=["predictive"])
@pytest.mark.parametrize("kind", ["predictive", "diagonal", "mean field", "full"])
def test_the_closed_form_is_for_a_posterior_that_has_it(kind, standard_promotion, monkeypatch):
    """Else the rows would be left out of another model than the trained one."""
    X, y = sine(12)
    options = {"diagonal": {"covariance": "diagonal"}, "mean field": {"coupled": False}}.get(kind, {})
    objective = PredictiveLogLikelihood() if kind == "predictive" else GaussianProcessELBO()

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        if kind == "mean field":
            f = f + numpyro.sample("g", GaussianProcess(RBF(1.0, 3.0), X))
        numpyro.sample("y", Gaussian(f, numpyro.param("noise", 0.1)), obs=y)

    asked = []
    monkeypatch.setattr(Trained, "left_out", lambda *args, **kwargs: asked.append(kind) or {"y": np.zeros(12)})
    monkeypatch.setattr(comparison._Task, "_without", lambda self, svi, folds: np.zeros(sum(map(len, folds))))
    svi = SVI(program, InducingGuide(program, kmeans(4), **options), optax.adam(0.01), objective)
    by = compare(KEY, {"one": svi}, X, y, num_steps=2, elpd="loo", progress=False)["one"].elpd_by
    assert bool(asked) == (kind == "full") and (by == "LOO, closed form") == (kind == "full")
    assert kind != "predictive" or by == "10 folds"


def test_candidates_that_are_not_finished_come_last_and_have_no_difference():
    a, b = np.array([-1.0, -2.0]), np.array([-0.5, -0.5])
    trained = SimpleNamespace(seconds=1.0)
    done, cut = (
        Candidate(-2.0, None, None, trained, a, "LOO"),
        Candidate(-1.0, None, None, trained, b, "LOO", "stopped"),
    )
    found = Comparison({"cut": cut, "done": done})
    assert list(found) == ["done", "cut"]
    head, *rows = str(found).splitlines()
    assert "below best" in head and "not finished" not in rows[0]
    assert rows[1].split()[-5:] == ["-", "-", "LOO", "not", "finished"]


@pytest.mark.slow
def test_a_training_that_its_falling_rate_stopped_is_not_ranked(standard_promotion):
    """A cosine of 150 steps leaves the better kernel behind the worse one, which has little to learn."""
    X, y = sine(60)
    candidates = {}
    for name, steps in (("stopped", 150), ("finished", 2000)):
        program = partial(of_kernel, RBF(1.0, 0.8 if name == "stopped" else 3.0))
        candidates[name] = program, optax.cosine_decay_schedule(0.02, steps)
    found = {}
    for name, (program, rate) in candidates.items():
        steps = 150 if name == "stopped" else 2000
        found |= compare(KEY, {name: (program, kmeans(12))}, X, y, num_steps=steps, learning_rate=rate, progress=False)
    assert [found[name].unfinished for name in ("stopped", "finished")] == ["stopped", ""]
    assert list(Comparison(found)) == ["finished", "stopped"]


@pytest.mark.parametrize("folds", [1, 9, "waic", 2.5, 3.0, True, np.float64(2), float("nan"), [2, 3]])
def test_folds_that_cannot_be_are_refused(folds):
    X, y = sine(8)
    with pytest.raises(ValueError, match=r"elpd, where it is not 'loo', must be an integer from 2 to 8"):
        compare(KEY, {"one": (partial(of_kernel, RBF()), kmeans(3))}, X, y, elpd=folds, num_steps=1)


def options_that_fail_later():
    """Calls that only a later candidate, a fold or the test data cannot take, and the words of their refusals."""
    X, y = sine(12)
    good, rows = (partial(of_kernel, RBF()), kmeans(3)), "number of rows"
    for elpd, size, left in ((2, 7, 6), ("loo", 11, 10)):
        yield {"one": good}, X, y, {"elpd": elpd, "batch_size": size}, f"{rows}, {left}; got {size}"
    for M, distinct, elpd in ((4, 4, 3), (3, 3, "loo")):
        few = np.concatenate([X[:distinct], np.repeat(X[:1], 12 - distinct, axis=0)])
        yield {"one": (good[0], kmeans(M))}, few, y, {"elpd": elpd}, rf"kmeans\({M}\) .* only has|X has only"
    yield {"one": good, "two": (good[0], kmeans(13))}, X, y, {}, "X has only 12 distinct rows"
    whole = SVI(of_kernel, InducingGuide(good[0], kmeans(3)), lbfgs(), GaussianProcessELBO())
    yield {"one": good, "two": whole}, X, y, {"batch_size": 5}, "lbfgs"
    yield {"one": good}, X, y, {"X_test": X, "y_test": y[:-1]}, "rows"
    yield {"one": good}, X, y, {"X_test": np.ones((3, 2)), "y_test": y[:3]}, "X_test"
    yield {"one": good}, X, y, {"X_test": X, "y_test": y, "score": lambda test, y: {}["spread"]}, "spread"
    yield {"one": good, "a": good, "./a": good}, X, y, {"checkpoint": "unused"}, "names of their own"
    yield {"one": good, "a\0": good}, X, y, {"checkpoint": "unused"}, "checkpoint of candidate"


@pytest.mark.parametrize(("candidates", "X", "y", "options", "words"), list(options_that_fail_later()))
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    candidates, X, y, options, words, monkeypatch, tmp_path, standard_promotion
):
    monkeypatch.chdir(tmp_path)
    begin = comparison.fit
    trains = lambda key, svi, steps, *data, **given: begin(key, svi, steps and pytest.fail("it trains"), *data, **given)  # noqa: E731
    monkeypatch.setattr(comparison, "fit", trains)
    with pytest.raises((ValueError, TypeError, KeyError), match=words):
        compare(KEY, candidates, X, y, num_steps=3, progress=False, **options)
    assert not list(tmp_path.iterdir())
