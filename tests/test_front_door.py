"""Calls as users write them: keywords of the program apart, calls of earlier versions told the new one, options."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer import SVI

import gpzoo.inference
from gpzoo import kmeans, likelihoods, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, compare, fit, predict
from gpzoo.models import (
    convolutional_gp,
    fit_deep_kernel,
    gaussian,
    gp_classification,
    gp_regression,
    invariant_classifier,
    multi_channel_gp,
    positive,
    rbf,
)
from tests.programs import KEY, adam, around_constant, bayesian_regression, constant, regression, sine

X, y = sine(12)
GUIDE = InducingGuide(regression, kmeans(3))
SVI_OF = SVI(regression, GUIDE, adam(0.01), GaussianProcessELBO())
ONE = Trained(regression, GUIDE, {})

#: Calls that are none, and the words of what is right.
CALLS = {
    "as before": (
        lambda: fit(SVI_OF, KEY, 5, X, y, batch_size=4, num_data=12),
        "fit takes the key first; .*Call fit(rng_key, svi, 5, X, y, batch_size=4, model_kwargs={'num_data': 12}).",
    ),
    "as before, without more": (lambda: fit(SVI_OF, KEY, 5, X), "Call fit(rng_key, svi, 5, X)."),
    "as before, by name": (
        lambda: fit(SVI_OF, rng_key=KEY, num_steps=5, data=3),
        "Call fit(rng_key, svi, num_steps=5, model_kwargs={'data': 3}).",
    ),
    "fit": (
        lambda: fit(KEY, SVI_OF, 5, X, y, model_kwargs={"a": 1}, layers=X, num_data=12),
        "fit has no argument 'layers' and 'num_data'; arguments of the program go into model_kwargs. "
        "Call fit(rng_key, svi, 5, X, y, model_kwargs={'a': 1, 'layers': ..., 'num_data': 12}).",
    ),
    "predict with a guide": (
        lambda: predict(KEY, regression, X, guide=GUIDE, params={}, num_draws=3, depth=2),
        "predict takes no guide; arguments of the program go into model_kwargs. "
        "Call Trained(model, guide, params).predict(key, X, num_draws=3, model_kwargs={'depth': 2}).",
    ),
    "predict": (
        lambda: predict(KEY, regression, X, train_args=(X, y), depth=2),
        "Call predict(rng_key, model, X, train_args=..., model_kwargs={'depth': 2}).",
    ),
    "trained.predict": (
        lambda: ONE.predict(KEY, X, quantiles=(0.1, 0.9), depth=2),
        "predict has no argument 'depth'; arguments of the program go into model_kwargs. "
        "Call trained.predict(rng_key, X, quantiles=(0.1, 0.9), model_kwargs={'depth': 2}).",
    ),
    "trained.functions": (lambda: ONE.functions(KEY, X, depth=2), "Call trained.functions(rng_key, X, model_kwargs="),
    "trained.posterior": (lambda: ONE.posterior(KEY, X, depth=2), "Call trained.posterior(rng_key, X, model_kwargs="),
    "trained.to_arviz": (lambda: ONE.to_arviz(KEY, X, y, b=2), "Call trained.to_arviz(rng_key, X, y, model_kwargs="),
    "trained.condition": (
        lambda: ONE.condition(KEY, X, y, batch_size=4, depth=2),
        "Call trained.condition(rng_key, X, y, batch_size=4, model_kwargs={'depth': 2}).",
    ),
    "guide.init_params": (
        lambda: GUIDE.init_params(KEY, X, y, num_data=12),
        "Call guide.init_params(rng_key, X, y, model_kwargs={'num_data': 12}).",
    ),
    "guide.setup": (lambda: GUIDE.setup(X, y, depth=2), "Call guide.setup(X, y, model_kwargs={'depth': 2})."),
    "compare": (
        lambda: compare(KEY, {}, X, y, num_steps=3, depth=2),
        "Call compare(rng_key, candidates, X, y, num_steps=3, model_kwargs={'depth': 2}).",
    ),
    "fit_deep_kernel": (
        lambda: fit_deep_kernel(KEY, X, y, network=None, num_outputs=2),
        "Call fit_deep_kernel(rng_key, X, y, network=None, model_kwargs={'num_outputs': 2}).",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_none_is_told_the_right_one(name):
    call, message = CALLS[name]
    with pytest.raises(TypeError) as caught:
        call()
    first, _, rest = message.partition(".*")
    assert first in str(caught.value) and rest in str(caught.value), str(caught.value)


def test_names_that_are_gone_say_what_does_their_work():
    for name, method in (("Predictor", "with_params"), ("draw_functions", "functions"), ("to_arviz", "to_arviz")):
        with pytest.raises(ImportError, match=rf"gpzoo.inference has no {name} since gpzoo 0.2: .*trained\.{method}\("):
            exec(f"from gpzoo.inference import {name}")
    with pytest.raises(ImportError, match=r"has no FitResult since gpzoo 0\.2: fit returns a Trained"):
        gpzoo.inference.FitResult  # noqa: B018
    with pytest.raises(AttributeError, match=r"InducingGuide has no posterior since .*trained\.posterior\(key, X\)"):
        GUIDE.posterior({}, X, rng_key=KEY)
    assert not hasattr(gpzoo.inference, "nothing") and not hasattr(GUIDE, "nothing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from gpzoo.inference import nothing")


def test_keywords_of_a_program_may_be_called_as_the_librarys():
    def program(X, y=None, *, batch_size=1.0, progress=0.0):
        numpyro.deterministic("seen", jnp.asarray([batch_size, progress]))
        regression(X, y)

    guide = InducingGuide(program, kmeans(3))
    svi = SVI(program, guide, adam(0.01), GaussianProcessELBO())
    own = {"batch_size": 3.0, "progress": 4.0}
    trained = fit(KEY, svi, 1, X, y, progress=False, model_kwargs=own)
    data = trained.to_arviz(KEY, X, y, num_draws=2, model_kwargs=own)
    np.testing.assert_array_equal(data["posterior"]["seen"][0, 0], [3, 4])
    for wrong in ("num_data", [("num_data", 1)], {3: 1}):
        with pytest.raises(TypeError, match="model_kwargs must map names of the program's arguments to values"):
            trained.predict(KEY, X, model_kwargs=wrong)


@pytest.mark.parametrize("given", [None, {"num_data": 12}])
def test_num_data_is_filled_in_where_it_is_open(given):
    seen = set()

    def program(X, y=None, *, num_data=None):
        seen.add(num_data)
        constant(X, y, num_data=num_data)

    def run(model, **options):
        seen.clear()
        svi = SVI(model, around_constant, adam(0.01), GaussianProcessELBO())
        fit(KEY, svi, 0, X, y, progress=False, **options)
        return set(seen)

    assert run(program, batch_size=4, model_kwargs=given) == {12}
    if given is None:
        assert run(handlers.seed(program, 0), batch_size=4) == {12}
        assert run(program) == {None}
        # What the program's author has said is not overruled.
        with pytest.raises(ValueError, match=r"Plate 'data' has size 24, .*Pass model_kwargs={'num_data': 12} to fit"):
            run(partial(program, num_data=24), batch_size=4)


def test_a_plain_training_of_numpyro_is_a_trained_model_too():
    guide = InducingGuide(bayesian_regression, kmeans(3), hyperparameters="normal")
    svi = SVI(bayesian_regression, guide, adam(0.01), GaussianProcessELBO())
    start = guide.init_params(KEY, X, y)
    result = svi.run(KEY, 2, X, y, progress_bar=False, init_params=start)
    trained = Trained(bayesian_regression, guide, result.params)
    assert trained.predict(KEY, X, num_draws=2)["y"].mean.shape == (12,)
    assert "elbo" not in trained.to_arviz(KEY, X, y, num_draws=2)["constant_data"]
    with pytest.raises(TypeError, match="guide must be the trained InducingGuide, got NoneType"):
        Trained(bayesian_regression, None, {}).predict(KEY, X)
    several = Trained(regression, GUIDE, {}, np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"These are 2 trainings: ask one of them, such as trained.member\(0\)"):
        several.functions(KEY, X)
    # Numbers in place of a program's.
    assert "params" not in repr(trained) and "losses" not in repr(trained)


# -- options of the zoo ------------------------------------------------------------------------------------------------

IMAGES = jnp.asarray(np.random.default_rng(0).uniform(size=(6, 4, 4, 2)))
LABELS = jnp.arange(6) % 2


def sites(program, *args, **kwargs):
    """The sites of a program, in which nothing is computed."""
    found = {}
    run = handlers.trace(handlers.seed(program, 0))
    jax.eval_shape(lambda: found.update(run.get_trace(*args, **kwargs)))
    return found


def test_no_white_noise_a_jitter_and_a_likelihood():
    for program in (convolutional_gp, multi_channel_gp):
        free, noisy = (sites(program, IMAGES, LABELS, patch_shape=(3, 3), white=v)["f"]["fn"] for v in (0, 0.5))
        assert "White" not in repr(free.kernel) and "White" in repr(noisy.kernel)
        with pytest.raises(ValueError, match="white must be a finite number of 0 or more, got -1"):
            sites(program, IMAGES, LABELS, patch_shape=(3, 3), white=-1)
        assert sites(program, IMAGES, LABELS, patch_shape=(3, 3), jitter=1e-3)["f"]["fn"].jitter == 1e-3
    classes = partial(gp_classification, num_classes=3, likelihood=likelihoods.Softmax)
    assert isinstance(sites(classes, X, jnp.arange(12) % 3)["y"]["fn"], likelihoods.Softmax)
    assert isinstance(sites(gp_classification, X, LABELS.repeat(2))["y"]["fn"], likelihoods.Bernoulli)
    probit = partial(invariant_classifier, view=None, num_classes=3, likelihood=likelihoods.RobustMax)
    found = sites(probit, IMAGES, jnp.arange(6) % 3)
    assert isinstance(found["y"]["fn"], likelihoods.RobustMax) and found["f"]["fn"].num_outputs == 3
    assert sites(gp_regression, X, y, jitter=1e-2)["f"]["fn"].jitter == 1e-2
    trained = partial(convolutional_gp, patch_shape=(3, 3), white=0, likelihood=likelihoods.Bernoulli)
    guide = InducingGuide(trained, unique_patches(3))
    assert set(guide.init_params(KEY, IMAGES, LABELS)) >= {"f_inducing", "variance", "weights"}


def test_a_program_of_ones_own_is_made_of_the_zoos_parts():
    def program(X, y=None):
        f = numpyro.sample("f", gpzoo.GaussianProcess(rbf("f", X, lengthscale=2.0), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(f, positive("unused", 1.0, X) * 0 + 0.1), obs=y)

    assert set(sites(program, X, y)) >= {"f_lengthscale", "f_variance", "noise_variance", "unused"}
