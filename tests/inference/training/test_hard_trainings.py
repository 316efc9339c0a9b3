"""Trainings that must go wrong, or nearly: they end finite and better, or in an error that has what was computed."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from jax import random
from numpyro.distributions import constraints
from numpyro.infer import SVI

from gpzoo import linalg
from gpzoo.errors import FactorisationError, GPZooError
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, NonFiniteError, Trained, compare, fit
from gpzoo.inference.training import comparison
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import train_deep_kernel
from gpzoo.processes.process import GaussianProcess
from tests.programs import around_constant, constant, program_of, relaxed, sine

KEY = random.key(0)
#: Three distinct inputs, each twenty times, a hair apart.
NEAR = np.repeat([[-1.0], [0.0], [1.0]], 20, axis=0) + 1e-7 * np.arange(60)[:, None]


def regression(X, y=None):
    def positive(name, value):
        return numpyro.param(
            name, jnp.asarray(value, X.dtype), constraint=numpyro.distributions.constraints.softplus_positive
        )

    f = numpyro.sample("f", GaussianProcess(RBF(positive("variance", 1.0), positive("lengthscale", 1.0)), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


def quiet(X, y=None):
    """The same with noise far below the rounding of the targets."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, jnp.asarray(1e-30, X.dtype)), obs=y)


def make(model=regression, inducing=None, rate=0.02):
    guide = InducingGuide(model, kmeans(4) if inducing is None else inducing)
    return SVI(model, guide, relaxed(optax.adam(rate)), GaussianProcessELBO())


def loss_of(svi, params, X, y):
    return float(jax.jit(lambda params: svi.loss.loss(KEY, params, svi.model, svi.guide, X, y))(params))


def points(Z, dtype):
    return InducingPoints(jnp.asarray(Z, dtype))


CASES = {
    "a rate of 1e4": lambda X, y: (make(rate=1e4), X, y),
    "noise of 1e-30": lambda X, y: (make(quiet), X, y),
    "inputs of 1e30": lambda X, y: (make(), X * 1e30, y),
    "targets of 1e30": lambda X, y: (make(), X, y * 1e30),
    "constant targets": lambda X, y: (make(), X, jnp.ones_like(y)),
    "constant inputs": lambda X, y: (make(inducing=points([[-1], [0], [1], [2]], X.dtype)), jnp.ones_like(X), y),
    "near duplicates": lambda X, y: (make(inducing=points(NEAR, X.dtype)), X, y),
}
#: What must train, in either precision.
TRAINS = {"constant targets", "constant inputs", "near duplicates"}


@cache
def ended(case, dtype):
    """What a training was of, and its result or the error that ended it."""
    svi, X, y = CASES[case](*sine(12, dtype=dtype))
    try:
        return svi, X, y, fit(KEY, svi, 15, X, y, progress=False)
    except GPZooError as error:
        return svi, X, y, error


#: Of these float64 is the same training with more room.
ROOMY = {"inputs of 1e30", "noise of 1e-30", "constant targets"}


@pytest.mark.slow_but(case=["constant inputs"], dtype=[np.float32])
@pytest.mark.parametrize(
    "case, dtype", [(c, d) for c in CASES for d in (np.float32, np.float64) if d is np.float32 or c not in ROOMY]
)
def test_a_hard_training_improves_or_keeps_what_was_good(case, dtype):
    *_, result = ended(case, dtype)
    if isinstance(result, GPZooError):
        assert case not in TRAINS
        result, message = result.result, str(result)
        assert isinstance(result, Trained) and ".result" in message
        assert ("standardise" in message) == ("of 1e30" in case)
        assert "learning rate" in message or "rate" not in case
    else:
        assert result.losses[-1] < result.losses[0]
    assert np.isfinite(result.losses).all()
    for name, value in result.params.items():
        assert np.isfinite(value).all(), name


@pytest.mark.slow
def test_where_a_hyperparameter_underflows_the_parameters_before_it_are_kept():
    svi, X, y, error = ended("a rate of 1e4", np.float64)
    assert isinstance(error, GPZooError) and not hasattr(error, "__notes__")
    assert re.search(r"the update is not finite, or out of the range .*Lower the learning", str(error))
    assert np.isfinite(loss_of(svi, error.result.params, X, y))


def test_inputs_all_the_same_are_refused_by_the_sites_initialiser():
    X, y = sine(12)
    with pytest.raises(ValueError, match=r"^GP site 'f': kmeans\(4\) .* only 1 distinct row\."):
        fit(KEY, make(), 3, jnp.ones_like(X), y, progress=False)


def test_an_initial_covariance_that_fails_names_the_site_and_blames_no_learning_rate():
    X, y = sine(12)
    smooth = program_of(lambda f: Gaussian(f, 0.1), RBF(1.0, 1e9), jitter=0.0)
    with pytest.raises(GPZooError, match="Kuu of site 'f' failed") as caught:
        fit(KEY, make(smooth), 3, X, y, progress=False)
    assert "learning rate" not in str(caught.value)


# -- errors of others ------------------------------------------------------------------------------------------------


class Own(Exception):
    result = "of its own"


class Sealed(Exception):
    @property
    def result(self):
        return None


def stopped(error):
    """The error that ends a training of 8 steps when a callback raises it after step 4, and the training's number."""
    X, y = sine(12)

    def callback(step, seconds, params):
        if step == 4:
            raise error

    svi = SVI(constant, around_constant, relaxed(optax.adam(0.02)), GaussianProcessELBO())
    with pytest.raises(type(error)) as caught:
        fit(KEY, svi, 8, X, y, callback=callback, callback_steps=2, progress=False)
    assert caught.value is error
    return error


@pytest.mark.slow_but(kind=[GPZooError])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, GPZooError])
def test_a_callback_that_raises_loses_nothing(kind):
    error = stopped(kind("mine"))
    assert error.result.losses.shape == (4,) and np.isfinite(error.result.losses).all()
    assert error.__notes__ == ["Training ended after step 4 of 8. What it computed is in this error's .result."]


def test_an_error_that_takes_no_result_says_so():
    assert "is not kept: this Own has a .result of its own." in stopped(Own()).__notes__[0]
    assert "is not kept in this Sealed: property 'result'" in stopped(Sealed()).__notes__[0]


def test_what_fails_inside_the_compiled_step_gives_the_state_before_it():
    X, y = sine(12)
    calls = []

    def refuse(x):
        calls.append(1)
        if len(calls) > 5:
            raise OSError("the device is gone")
        return x

    def model(X, y=None):
        regression(X, y)
        value = jax.lax.stop_gradient(numpyro.param("other", jnp.zeros(())))
        numpyro.factor("other_factor", jax.pure_callback(refuse, jax.ShapeDtypeStruct((), X.dtype), value))

    with pytest.raises(Exception, match="device is gone") as caught:
        fit(KEY, make(model, inducing=points(X[:4], X.dtype)), 30, X, y, progress=False)
    result = caught.value.result
    assert all(np.isfinite(value).all() for value in result.params.values())
    # The steps of the chunk that it ends are lost.
    assert len(result.losses) < 5 and np.isfinite(result.losses).all()


def only_the_first_trains(module, monkeypatch, params, calls=1):
    """``fit``, as the module calls it, gives these parameters in so many calls and fails then."""
    results = iter([Trained(None, None, params, np.zeros(2))] * calls)

    def failing(*args, **kwargs):
        for result in results:
            return result
        raise GPZooError("failed", Trained(None, None, {}))

    monkeypatch.setattr(module, "fit", failing)


def test_a_comparison_that_fails_keeps_the_candidates_before(monkeypatch):
    X, y = sine(12)
    only_the_first_trains(comparison, monkeypatch, {}, calls=3)  # both begin
    one, other = ((regression, points(X[:M], X.dtype)) for M in (4, 5))
    with jax.numpy_dtype_promotion("standard"), pytest.raises(GPZooError, match="failed") as caught:
        compare(KEY, {"one": one, "other": other}, X, y, num_steps=3, progress=False)
    assert list(caught.value.finished) == ["one"] and caught.value.finished["one"].trained.losses.shape == (2,)
    assert isinstance(caught.value.result, Trained)
    assert caught.value.__notes__ == ["Candidate 'other' failed. What it computed is in this error's .finished."]


def test_a_deep_kernel_that_fails_keeps_the_phases_before(monkeypatch):
    X, y = jnp.ones((6, 2)) * jnp.arange(6.0)[:, None], jnp.arange(6) % 2
    only_the_first_trains(train_deep_kernel, monkeypatch, {"weights": jnp.eye(2)})

    def network(X, training):
        return X @ numpyro.param("weights", jnp.eye(2))

    def failing(*args):
        raise MemoryError("failed")

    monkeypatch.setattr(train_deep_kernel, "features_of", failing)
    with pytest.raises(MemoryError, match="failed") as caught:
        train_deep_kernel.fit_deep_kernel(KEY, X, y, network=network, num_steps=(2, 1, 1), progress=False)
    assert list(caught.value.finished) == ["network"] and caught.value.finished["network"].losses.shape == (2,)


@pytest.mark.slow
def test_parameters_that_overflow_only_where_they_are_constrained_are_taken_back():
    def wide(X, y=None):
        # exp(100) overflows float32, while the bound of a constant function is finite.
        lengthscale = numpyro.param("lengthscale", jnp.float32(1.0), constraint=constraints.positive)
        f = numpyro.sample("f", GaussianProcess(RBF(jnp.float32(1.0), lengthscale), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, jnp.float32(1.0)), obs=y)

    X = np.linspace(0, 1, 8, dtype=np.float32)[:, None]
    rules = {"far": optax.adam(200.0), "not": optax.set_to_zero()}
    far = optax.multi_transform(rules, lambda params: {n: "far" if n == "lengthscale" else "not" for n in params})
    svi = SVI(wide, InducingGuide(wide, InducingPoints(X[:2])), relaxed(far), GaussianProcessELBO())
    start = {"f_mean": jnp.array([1.0, -1.0], jnp.float32)}
    with jax.numpy_dtype_promotion("standard"):
        with pytest.raises(NonFiniteError, match="the update is not finite, or out of the range") as caught:
            fit(KEY, svi, 20, X, np.ones(8, np.float32), progress=False, init_params=start)
        params = caught.value.result.params
        assert params["lengthscale"] == 1.0
        Trained(wide, svi.guide, params).predict(KEY, X)


# -- inducing variables that coincide, not whitened --------------------------------------------------------------------


def crowded(count, distinct, dtype, whiten=False, **process):
    """A training of ``count`` inducing points that lie a hair apart at ``distinct`` places, and its data."""

    def model(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, **process))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    Z = np.resize(np.linspace(-3, 3, distinct), count)[:, None] + 1e-7 * np.arange(count)[:, None]
    guide = InducingGuide(model, points(Z, dtype), whiten=whiten)
    return SVI(model, guide, relaxed(optax.adam(0.01)), GaussianProcessELBO()), *sine(12, dtype=dtype)


@pytest.mark.slow_but(dtype=[np.float64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_training_of_crowded_inducing_variables_that_are_not_whitened_cannot_begin(dtype):
    svi, X, y = crowded(60, 5, dtype)
    with pytest.raises(
        FactorisationError, match=r"55 of the 60 inducing variables of site 'f' coincide.*whiten=True.*\.result\.$"
    ) as caught:
        fit(KEY, svi, 150, X, y, progress=False)
    result = caught.value.result
    assert isinstance(result, Trained) and result.losses.shape == (0,) and not hasattr(caught.value, "__notes__")
    assert np.isfinite(loss_of(svi, result.params, X, y))


@pytest.mark.slow
def test_of_several_crowded_trainings_the_member_is_named():
    svi, X, y = crowded(9, 3, np.float64)
    with pytest.raises(
        FactorisationError, match=r"Training 0 of 2 cannot begin: 6 of the 9 .*of all members"
    ) as caught:
        fit(random.split(KEY, 2), svi, 3, X, y, in_axes=None, progress=False)
    assert caught.value.result.losses.shape == (2, 0) and caught.value.result.params["f_mean"].shape == (2, 9)


#: Not whitened either, but these get better, as do crowded ones that are whitened or have more jitter.
CROWDED = {
    "whitened": lambda: crowded(60, 5, np.float64, whiten=True),
    "more jitter": lambda: crowded(60, 5, np.float64, jitter=1e-2),
    "one pair": lambda: crowded(11, 10, np.float64),
    "half of them": lambda: crowded(12, 6, np.float64),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CROWDED)
def test_a_training_of_crowded_inducing_variables_with_a_way_out_gets_better(case):
    svi, X, y = CROWDED[case]()
    losses = fit(KEY, svi, 150, X, y, progress=False).losses
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.mark.slow
def test_forty_points_of_a_smooth_function_do_not_coincide():
    X, y = sine(200, dtype=np.float32)
    guide = InducingGuide(regression, InducingPoints(X[::5]), whiten=False)
    svi = SVI(regression, guide, relaxed(optax.adam(0.01)), GaussianProcessELBO())
    losses = fit(KEY, svi, 150, X, y, progress=False).losses
    assert losses[-1] < losses[0] / 2


def test_what_coincides_is_counted_by_block_and_output():
    def covariance(Z):
        return RBF(2.0, 1.0)(jnp.asarray(Z)[:, None])

    one, other = covariance([0.0, 1.0, 1e-5, 2.0]), covariance([0.0, 1e-5, -1e-5, 1.0])
    assert [linalg.coinciding(K) for K in (one, other)] == [1, 2]
    assert (
        linalg.coinciding(jnp.stack([one, other])) == 2
        and linalg.coinciding(linalg.BlockDiagonalMatrix(one, other)) == 3
    )
    # A chain is no crowd: each is near its neighbours, two steps are far.
    chain = covariance(3.8e-5 * np.arange(6))
    assert linalg.coinciding(chain) == 3 and linalg.coinciding(chain, jitter=1e-4) == 0
    assert linalg.coinciding(chain + 0.01 * jnp.eye(6)) == 0
