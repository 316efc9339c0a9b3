"""Calls as users write them: the key first, keywords of the program apart, options."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer import SVI

import gpzoo
from gpzoo import kmeans, likelihoods, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, compare, fit, predict
from gpzoo.models import (
    convolutional_gp,
    fit_deep_kernel,
    fit_network,
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

#: Calls that make no sense, and what the refusal names.
CALLS = {
    "the key in another place": (lambda: fit(SVI_OF, KEY, 5, X, y), "fit takes the key first.*got SVI"),
    "the key by name": (lambda: fit(SVI_OF, rng_key=KEY, num_steps=5), "fit takes the key first.*got SVI"),
    "a method": (lambda: ONE.predict(X, jax.random.PRNGKey(0)), "predict takes the key first.*got ArrayImpl"),
    "fit": (lambda: fit(KEY, SVI_OF, 5, X, y, layers=X, num_data=12), "fit .*'layers' and 'num_data'.*model_kwargs="),
    "predict": (lambda: predict(KEY, regression, X, train_args=(X, y), depth=2), "predict .*'depth'.*model_kwargs="),
    "another name": (lambda: ONE.predict(KEY, X, batchsize=2), "'batchsize', but 'batch_size'"),
    "trained.predict": (lambda: ONE.predict(KEY, X, quantiles=(0.1, 0.9), depth=2), "'depth'.*model_kwargs="),
    "guide.setup": (lambda: GUIDE.setup(X, y, depth=2), "setup .*'depth'.*model_kwargs="),
    "no keywords of a program": (lambda: fit_network(KEY, X, y, network=None, depth=2), "fit_network .*'depth'.$"),
}


def functions_with_a_key():
    """All functions and methods that take a key first."""
    found = {}
    for owner in (gpzoo.inference, gpzoo.inference.plots, gpzoo.models, Trained, InducingGuide):
        for name in filter(lambda name: not name.startswith("_"), dir(owner)):
            function = getattr(owner, name)
            if "The first such call of a process" in (getattr(function, "__doc__", None) or ""):  # an entry point
                words = list(inspect.signature(function).parameters)
                if "rng_key" in words[:2]:
                    found[name] = partial(function, *[None] * words.index("rng_key"))
    return found


WITH_A_KEY = functions_with_a_key()


@pytest.mark.parametrize("name", WITH_A_KEY)
def test_a_key_that_is_not_first_or_lacks_is_named(name):
    assert len(WITH_A_KEY) > 20
    for first, kind in ((SVI_OF, "SVI"), (ONE, "Trained"), (X, "ArrayImpl"), (0, "int 0"), (None, "NoneType")):
        for rest in ((), (200, X, y), (jax.random.PRNGKey(0),)):
            with pytest.raises(TypeError, match=rf"{name} takes the key first, {name}\(jax.random.key.*, got {kind}"):
                WITH_A_KEY[name](first, *rest)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_makes_no_sense_is_refused_with_the_right_words(name):
    call, named = CALLS[name]
    with pytest.raises(TypeError, match=named):
        call()


#: Functions and methods that take the program's keywords.
TAKING = {
    **{f"Trained.{name}": getattr(Trained, name) for name in ("functions", "posterior", "to_arviz", "condition")},
    "InducingGuide.init_params": InducingGuide.init_params,
    "compare": compare,
    "fit_deep_kernel": fit_deep_kernel,
}


@pytest.mark.parametrize("name", TAKING)
def test_keywords_of_a_program_are_refused_by_all_calls(name):
    with pytest.raises(TypeError, match=r"has no argument 'b'.*model_kwargs="):
        TAKING[name](KEY, b=2)


@pytest.mark.slow
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


def test_a_plate_of_a_fixed_size_is_named_where_there_are_other_rows():
    def program(X, y=None):
        f = numpyro.sample("f", gpzoo.GaussianProcess(gpzoo.kernels.RBF(), X))
        with numpyro.plate("rows", 12):
            numpyro.sample("y", likelihoods.Gaussian(f, 0.1), obs=y)

    guide = InducingGuide(program, kmeans(3))
    svi = SVI(program, guide, adam(0.01), GaussianProcessELBO())
    with pytest.raises(ValueError, match="Plate 'rows' has the size 12, and the arguments have 4 rows"):
        fit(KEY, svi, 1, X, y, progress=False, batch_size=4)
    trained = Trained(program, guide, guide.init_params(KEY, X, y))
    with pytest.raises(ValueError, match="Plate 'rows' has the size 12, and the arguments have 5 rows"):
        trained.predict(KEY, X[:5])


@pytest.mark.slow
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


@pytest.mark.slow
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
