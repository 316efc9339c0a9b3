"""The training loop: NumPyro's own numbers, minibatches, what is compiled, what stops it and what is said."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

from gpzoo import draws
from gpzoo.errors import FactorisationError
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, NonFiniteError, fit, predict
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.training.sources import Resident, indices
from gpzoo.inference.training.step import make_loop, make_step, make_step_from_feed
from gpzoo.kernels import RBF, White
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, RobustMax, Softmax
from gpzoo.processes.process import GaussianProcess
from tests.programs import (
    adam,
    around_constant,
    constant,
    deep,
    positive,
    program_of,
    regression,
    relaxed,
    sine,
    with_model_kwargs,
)

KEY = random.key(0)


def make(model=regression, inducing=None, optimiser=None, **kwargs):
    guide = InducingGuide(model, inducing or kmeans(4), **kwargs)
    return SVI(model, guide, optimiser or adam(0.02), GaussianProcessELBO())


def train(svi, steps, *args, key=KEY, **kwargs):
    return fit(key, svi, steps, *args, progress=False, **with_model_kwargs(kwargs))


# -- the same as NumPyro -------------------------------------------------------------------------------------------


def test_training_is_numpyros_own():
    X, y = sine(12)
    svi = make()
    start = svi.guide.init_params(KEY, X, y)
    result = train(svi, 20, X, y, init_params=start)

    def plain(params):
        state = svi.init(named_key(KEY, "training"), X, y, init_params=params)
        return jax.lax.scan(lambda state, _: svi.update(state, X, y), state, length=20)

    state, losses = jax.jit(plain)(start)
    np.testing.assert_allclose(result.losses, losses, rtol=1e-12)
    for name, value in svi.get_params(state).items():
        np.testing.assert_allclose(result.params[name], value, rtol=1e-12, atol=1e-12, err_msg=name)
    assert result.losses[-1] < result.losses[0] and result.seconds > 0
    jax.tree.map(np.asarray, start)  # the starting values are still the caller's


def test_given_starting_values_are_used_and_others_found():
    X, y = sine(12)
    result = train(make(optimiser=relaxed(optax.sgd(0.0))), 1, X, y, init_params={"lengthscale": jnp.array(0.3)})
    np.testing.assert_allclose(result.params["lengthscale"], 0.3, rtol=1e-12)
    assert np.ptp(result.params["f_inducing"]) > 2  # k-means of the data


@pytest.mark.slow
def test_other_guides_and_objectives_train_too():
    X, y = sine(4)
    svi = SVI(regression, AutoNormal(regression), adam(0.05), Trace_ELBO())
    with jax.numpy_dtype_promotion("standard"):
        result = train(svi, 3, X, y)
    assert np.isfinite(result.losses).all() and result.expectations == {"y": "draw of f"}
    assert result.params["f_auto_loc"].shape == (4,)


@pytest.mark.slow_but(batch_size=[5])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_keyword_arguments_of_numpyros_object_are_the_programs(batch_size):
    """They decide on shapes of parameters, and may have the number of data; those of the call come first."""
    X, y = sine(12)
    X = np.concatenate([X, X[::-1]], axis=1)

    def program(X, y=None, *, ard, num_data=None):
        lengthscale = positive("lengthscale", np.ones(2) if ard else 1.0)
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    def made(**own):
        return SVI(program, InducingGuide(program, kmeans(4)), adam(0.02), GaussianProcessELBO(), **own)

    options = {"batch_size": batch_size}
    expected = train(made(), 3, X, y, ard=True, **options)
    for own, given in (({"ard": True}, {}), ({"ard": True, "num_data": 12}, {}), ({"ard": False}, {"ard": True})):
        found = train(made(**own), 3, X, y, **given, **options)
        assert found.params["lengthscale"].shape == (2,)
        np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-10)


@pytest.mark.slow_but(hyperparameters=["normal"])
@pytest.mark.parametrize("hyperparameters", ["point", "normal", AutoNormal])
def test_sites_may_have_a_sample_shape(hyperparameters):
    """As NumPyro's programs may; it is the same as a prior of this shape."""
    X, y = sine(12)
    X, found = np.concatenate([X, X[::-1]], axis=1), []
    for prior, shape in ((dist.LogNormal(0.0, 1.0), (2,)), (dist.LogNormal(0.0, 1.0).expand([2]), ())):

        def program(X, y=None, *, num_data=None, prior=prior, shape=shape):
            lengthscale = numpyro.sample("lengthscale", prior, sample_shape=shape)
            f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
            with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
                numpyro.sample("y", Gaussian(f, 0.1), obs=y)

        trained = train(make(program, hyperparameters=hyperparameters), 3, X, y)
        draws = {"lengthscale": np.array([[0.5, 2.0], [1.0, 1.0]]), "f": np.zeros((2, 12))}
        at = [
            trained.predict(KEY, X)["f"].mean,
            predict(KEY, program, X, train_args=(X, y), posterior_samples=draws)["f"].variance,
        ]
        found.append((trained.losses, trained.params, at))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), *found)


def test_schedules_work():
    X, y = sine(12)
    steps = train(make(optimiser=relaxed(optax.sgd(optax.piecewise_constant_schedule(1e-3, {2: 0.0})))), 5, X, y).losses
    assert steps[0] != steps[1] != steps[2] and steps[3] == steps[4]


# -- minibatches ---------------------------------------------------------------------------------------------------


def test_an_epoch_visits_every_row_once():
    rows = indices(7, 0, 9, 12, 4)
    assert rows.shape == (9, 4)
    for epoch in range(3):
        assert sorted(rows[3 * epoch : 3 * epoch + 3].ravel()) == list(range(12))
    assert not np.array_equal(rows[:3], rows[3:6])
    # A function of the seed and the step alone, whatever was asked for before.
    np.testing.assert_array_equal(indices(7, 4, 5, 12, 4), rows[4:])
    assert not np.array_equal(indices(8, 0, 9, 12, 4), rows)
    # Rows left over wait for an epoch of their own order.
    uneven = indices(7, 0, 40, 10, 3)
    assert all(len(set(uneven[i : i + 3].ravel())) == 9 for i in range(0, 39, 3))
    assert set(uneven.ravel()) == set(range(10))


@pytest.mark.slow
def test_minibatches_lower_the_bound_of_the_whole():
    X, y = sine(40)
    svi = make(inducing=kmeans(8))
    result = train(svi, 200, X, y, batch_size=10, num_data=40)
    whole = jax.jit(lambda params: svi.loss.loss(KEY, params, svi.model, svi.guide, X, y))
    start = svi.guide.init_params(KEY, X, y)
    assert len(result.losses) == 200 and whole(result.params) < whole(start) - 10
    # Without learning, the losses of one epoch average to that of all rows.
    still = train(make(inducing=kmeans(8), optimiser=relaxed(optax.sgd(0.0))), 4, X, y, batch_size=10, num_data=40)
    np.testing.assert_allclose(still.losses.mean(), whole(start), rtol=1e-10)
    assert np.ptp(still.losses) > 1


# -- what is compiled ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_data_are_arguments_of_the_compiled_step():
    def size(n):
        X, y = sine(n)
        svi = make(inducing=InducingPoints(jnp.linspace(-1, 1, 4)[:, None]))
        params = svi.guide.init_params(KEY, X, y)
        state = jax.eval_shape(lambda: svi.init(KEY, X, y, init_params=params))
        source = Resident((X, y), None, [0], None)
        run = jax.jit(make_loop(make_step_from_feed(make_step(svi, {}), source), source.chunk))
        return len(run.lower(state, source.on_devices, {}, source.make_feed(0, 3), 0, 3).as_text())

    assert abs(size(8000) - size(2000)) < 0.01 * size(2000)


def test_the_number_of_steps_does_not_retrace():
    X, y = sine(12)
    counts = []
    for steps in (3, 40):
        calls = []

        def counted(X, y=None, *, num_data=None):
            calls.append(None)  # noqa: B023
            return regression(X, y, num_data=num_data)

        train(make(counted, inducing=InducingPoints(X[:4])), steps, X, y, batch_size=5, num_data=12)
        counts.append(len(calls))
    # A look at its sites, starting values, whether rows of a minibatch go by place, at two numbers of them, and guide
    # and model in the one step that is compiled.
    assert counts == [6, 6]


@pytest.mark.slow
def test_a_program_that_draws_runs_twice_more():
    calls = []

    def counted(X, y=None):
        calls.append(None)
        return deep(X, y)

    result = train(make(counted), 1, *sine(12))
    # Whether a term depends on several rows of a draw is checked on numbers, once the shapes of draws are known.
    assert len(calls) == 6 and result.expectations == {"y": "closed form given draws of h"}


# -- what is said --------------------------------------------------------------------------------------------------


def several(X, y=None, labels=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    g = numpyro.sample("g", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=3))
    numpyro.sample("evidence", GaussianProcess(RBF(1.0, 1.0) + White(0.1), X), obs=y)
    with numpyro.plate("data", len(X)):
        numpyro.sample("gaussian", Gaussian(f, 0.1), obs=y)
        numpyro.sample("bernoulli", Bernoulli(f), obs=None if labels is None else (labels > 0).astype(int))
        numpyro.sample("softmax", Softmax(g), obs=labels)
        with handlers.mask(mask=jnp.arange(len(X)) < 3):
            numpyro.sample("robustmax", RobustMax(g), obs=labels)


plain = program_of(lambda f: dist.StudentT(4.0, draws(f), 0.1))


def apart(X, y=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    g = numpyro.sample("g", GaussianProcess(RBF(1.0, lengthscale), X))
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)
        numpyro.sample("z", Expected(student, g, rate), obs=y)


def student(f, rate):
    return dist.StudentT(4.0, f, rate)


@pytest.mark.slow
def test_how_expectations_are_taken_is_reported():
    X, y = sine(9)
    result = fit(KEY, make(several), 0, X, y, jnp.arange(9) % 3, progress=False)
    assert result.expectations == {
        "evidence": "closed form",
        "gaussian": "closed form",
        "bernoulli": "quadrature",
        "softmax": "draw",
        "robustmax": "quadrature",
    }
    assert train(make(plain), 0, X, y).expectations == {"y": "draw of f"}
    # What a likelihood depends on beside the f that it integrates over.
    assert train(make(deep), 0, X, y).expectations == {"y": "closed form given draws of h"}
    assert train(make(apart), 0, X, y).expectations == {"y": "closed form", "z": "quadrature"}
    drawn = train(make(apart, hyperparameters="normal"), 0, X, y).expectations
    assert drawn == {"y": "closed form", "z": "quadrature given draws of lengthscale, rate"}
    assert train(make(apart, hyperparameters=AutoMultivariateNormal), 0, X, y).expectations == drawn


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_term_of_several_rows_is_refused_for_any_batch_size(batch_size):
    def mixing(X, y=None, num_data=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", dist.Normal(jnp.tanh(draws(f)).mean() * jnp.ones(len(X)), 1.0), obs=y)

    X, y = sine(12)
    with pytest.raises(ValueError, match="the log density of y depends on several rows of GP site 'f'"):
        train(make(mixing), 2, X, y, batch_size=batch_size, num_data=12)


# -- what stops it -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_infinite_bound_names_the_site_and_keeps_what_was_good():
    X, y = sine(12)

    def overflowing(X, y=None):
        regression(X, y)
        numpyro.factor("z", -jnp.square(1e200 * y).sum())

    message = r"stopped at step 1: the ELBO is -inf, from site\(s\) 'z' \(-inf\)"
    with pytest.raises(NonFiniteError, match=message) as caught:
        train(make(overflowing), 5, X, y)
    assert caught.value.result.losses.shape == (0,)


def test_what_was_computed_before_a_failure_is_kept(tmp_path):
    X, y = sine(12)

    def failing(X, y=None):
        constant(X, y)
        drift = numpyro.param("drift", jnp.array(0.0))
        # The gradient is one: ten steps of gradient ascent reach the edge.
        numpyro.factor("edge", jnp.where(drift > 0.95, jnp.nan, 0.0) + drift)

    only = optax.masked(optax.set_to_zero(), lambda params: {name: name != "drift" for name in params})
    svi = SVI(failing, around_constant, relaxed(optax.chain(optax.sgd(0.1), only)), GaussianProcessELBO())
    with pytest.raises(NonFiniteError, match=r"stopped at step 11: .* from site\(s\) 'edge' \(nan\)") as caught:
        train(svi, 50, X, y)
    result = caught.value.result
    # The tenth step led to where the bound is not finite: it is taken back.
    assert result.losses.shape == (9,) and np.isfinite(result.losses).all()
    assert all(np.isfinite(value).all() for value in result.params.values())
    np.testing.assert_allclose(result.params["drift"], 0.9, rtol=1e-12)
    assert "The last good parameters, after step 9, are in this error's .result." in str(caught.value)
    assert isinstance(caught.value, FloatingPointError)
    # The same where the host looks in between, right after the step that is taken back; so is what is kept.
    for _ in range(2):
        watched = {"callback": lambda *now: None, "callback_steps": 5, "checkpoint": tmp_path, "checkpoint_seconds": 0}
        with pytest.raises(NonFiniteError) as again:
            train(svi, 50, X, y, **watched)
        np.testing.assert_array_equal(again.value.result.losses, result.losses)
        np.testing.assert_array_equal(again.value.result.params["drift"], result.params["drift"])
        assert str(again.value) == str(caught.value)
    assert train(svi, 9, X, y, **watched).params["drift"] == result.params["drift"]


def test_an_infinite_gradient_names_the_parameter():
    X, y = sine(12)

    def cusp(X, y=None):
        regression(X, y)
        numpyro.factor("cusp", jnp.sqrt(numpyro.param("corner", jnp.array(0.0))))

    with pytest.raises(NonFiniteError, match="the gradient of corner is not finite"):
        train(make(cusp), 5, X, y)


def test_a_factorisation_that_fails_names_the_site():
    X, y = sine(12)

    def longer(X, y=None):
        # A step of gradient ascent makes all inputs the same.
        scale = numpyro.param("scale", jnp.array(1.0))
        numpyro.factor("push", scale)
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, jnp.exp(scale)), X, jitter=0.0))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    only = optax.masked(optax.set_to_zero(), lambda params: {name: name != "scale" for name in params})
    optimiser = relaxed(optax.chain(optax.scale_by_sign(), optax.scale(-30.0), only))
    svi = make(longer, inducing=kmeans(6), optimiser=optimiser)
    with pytest.raises(FactorisationError, match=r"stopped at step 2: .*Kuu of site 'f' failed \(6 x 6") as caught:
        train(svi, 5, X, y)
    result = caught.value.result
    assert result.losses.shape == (0,) and result.params["scale"] == 1


def test_bad_arguments_are_refused():
    X, y = sine(12)
    svi = make()
    for args, kwargs, message in [
        ((X, y[:5]), {}, r"different numbers of rows, \[5, 12\]"),
        (
            (X, 3.0),
            {},
            "y must be an array with one row per datum, got 3.0: pass what is not per datum in",
        ),
        ((), {}, "arrays with one row per datum"),
        ((X[:0], y[:0]), {}, r"X is empty: its shape is \(0, 1\)"),
        ((X, y), {"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ((X, y), {"batch_size": 13}, "batch_size must be .* 12; got 13"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(svi, 3, *args, **kwargs)
    with pytest.raises(ValueError, match=r"num_steps must be .* got -1"):
        train(svi, -1, X, y)
    with pytest.raises(ValueError, match="asks for 13 inducing variables, but X has only 12"):
        train(make(inducing=kmeans(13)), 3, X, y)


def test_bad_data_are_refused_at_once():
    X, y = sine(12)
    classes = program_of(RobustMax, num_outputs=3)
    labels = jnp.arange(12) % 3
    svi = make(classes)
    with pytest.raises(ValueError, match=r"y holds 7 at index \(5,\).*labels of 3 classes must be .* from 0 to 2"):
        train(svi, 3, X, labels.at[5].set(7))
    train(svi, 1, X, labels)
    # Also by a guide that is set up already, and in a row that is not of the first minibatch.
    with pytest.raises(ValueError, match=r"y holds 7 at index \(5,\).*labels of 3 classes"):
        train(svi, 3, X, labels.at[5].set(7), batch_size=1)
    for ours, targets in ((make(), y), (svi, labels)):
        with pytest.raises(ValueError, match=r"X has 1 entries that are not finite, the first at index \(4, 0\)"):
            train(ours, 3, X.at[4].set(jnp.nan), targets)
    with pytest.raises(ValueError, match=r"y has 1 entries .* first at index \(2,\).*handlers.mask"):
        train(make(), 3, X, y.at[2].set(jnp.nan))


# -- mutable state -------------------------------------------------------------------------------------------------


def network_program(width):
    """Features from a network with batch normalisation, whose statistics flax keeps in float32."""
    nnx = pytest.importorskip("flax.nnx")
    from numpyro.contrib.module import nnx_module

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(2, width, rngs=rngs)
            self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)

        def __call__(self, x):
            return self.norm(jnp.tanh(self.layer(x)))

    network = Network(nnx.Rngs(0))

    def program(X, y=None):
        h = nnx_module("net", network)(X)
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 3.0), h))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)

    rng = np.random.default_rng(0)
    X, y, Z = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((8, 2), 8, (3, width)))
    svi = make(program, inducing=InducingPoints(Z), optimiser=relaxed(optax.sgd(0.0)))
    return network, svi, X, y


def running_mean(state):
    leaves = jax.tree_util.tree_flatten_with_path(state.mutable_state)[0]
    (found,) = [np.asarray(leaf) for path, leaf in leaves if "mean" in jax.tree_util.keystr(path)]
    return found


@pytest.mark.slow
def test_running_statistics_advance_once_a_step(standard_promotion):
    network, svi, X, y = network_program(7)
    before = np.asarray(network.norm.mean[...])
    weights, bias = (np.asarray(part[...]) for part in (network.layer.kernel, network.layer.bias))
    batch = np.tanh(np.asarray(X) @ weights + bias).mean(0)
    old, new = (running_mean(train(svi, steps, X, y).state) for steps in (0, 2))
    np.testing.assert_allclose(new, 0.9**2 * old + (1 - 0.9**2) * batch, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(network.norm.mean[...], before)  # the user's own network is left alone


@pytest.mark.slow
def test_a_network_is_evaluated_once_a_step(standard_promotion):
    _, svi, X, y = network_program(37)
    state = train(svi, 0, X, y).state
    text = jax.jit(lambda state: svi.evaluate(state, X, y)).lower(state).compile().as_text()
    # The only tanh of the program is the network's; guide and model each ask for it.
    assert len(re.findall(r"f32\[8,37\]\S* tanh\(", text)) == 1


def test_minibatches_must_be_scaled():
    X, y = sine(12)

    def unscaled(X, y=None):
        regression(X, y)

    with pytest.raises(ValueError, match=r"No data site of \['y'\] is scaled.*give the program an argument num_data"):
        train(make(unscaled), 3, X, y, batch_size=4)

    def half_scaled(X, y=None, *, num_data=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)
        numpyro.sample("z", Gaussian(f, 0.3), obs=y)

    with pytest.raises(ValueError, match=r"Data site 'z' has 4 rows, .* not scaled to all 12 rows, as \['y'\] are"):
        train(make(half_scaled), 3, X, y, batch_size=4)

    def tempered(X, y=None, *, num_data=None):
        numpyro.sample("anchor", dist.Normal(positive("level", 1.0), 0.1), obs=0.5)
        with handlers.scale(scale=0.5):
            regression(X, y, num_data=num_data)

    train(make(tempered), 3, X, y, batch_size=4)

    def exact(X, y=None):
        numpyro.sample("y", GaussianProcess(RBF(1.0, 1.0) + White(0.1), X), obs=y)

    with pytest.raises(ValueError, match="GP site 'y' is observed"):
        train(make(exact), 3, X, y, batch_size=4)


def test_mutable_state_is_among_the_results():
    X, y = sine(12)

    def counting(X, y=None):
        state = numpyro.primitives.mutable("steps", {"count": jnp.zeros(())})
        state["count"] = state["count"] + 1.0
        regression(X, y)

    # Once a step: starting values are found on a copy.
    assert float(train(make(counting), 5, X, y).params["steps"]["count"]) == 5.0


# -- evaluation while training -----------------------------------------------------------------------------------------


def watched(steps, every, seen, **kwargs):
    X, y = sine()
    svi = SVI(constant, around_constant, adam(0.02), GaussianProcessELBO())

    def note(step, seconds, params):
        seen.append((step, seconds, params))

    settings = {"batch_size": 20, "progress": False, "callback_steps": every}
    settings["model_kwargs"] = {"num_data": len(X)}
    return fit(KEY, svi, steps, X, y, **settings, **{"callback": note} | kwargs)


@pytest.fixture(scope="module")
def seen_by_step():
    """A training of 25 steps with a callback every 10, and what the callback was given."""
    seen = []
    return watched(25, 10, seen), seen


@pytest.mark.slow
def test_a_callback_sees_the_parameters_of_its_step_and_changes_nothing(seen_by_step, tmp_path):
    result, seen = seen_by_step
    assert [step for step, _, _ in seen] == [10, 20, 25]
    times = [seconds for _, seconds, _ in seen]
    assert 0 < times[0] < times[1] < times[2] <= result.seconds
    options = [{"callback": None}, {"checkpoint": tmp_path / "c"}, {"callback": None}]
    for (step, _, params), given in zip(seen, options, strict=True):
        alone = watched(step, 10, [], **given)
        jax.tree.map(np.testing.assert_array_equal, params, jax.tree.map(np.asarray, alone.params))
    np.testing.assert_array_equal(result.losses, alone.losses)
    # A finished training reports its end again.
    again = []
    watched(20, 10, again, checkpoint=tmp_path / "c")
    assert [step for step, _, _ in again] == [20]


@pytest.mark.slow
def test_a_callback_that_fails_loses_nothing(seen_by_step, tmp_path):
    def fail(step, seconds, params):
        raise RuntimeError(f"step {step}")

    with pytest.raises(RuntimeError, match="step 10"):
        watched(25, 10, [], callback=fail, checkpoint=tmp_path / "c")
    seen = []
    resumed = watched(25, 10, seen, checkpoint=tmp_path / "c")
    assert [step for step, _, _ in seen] == [10, 20, 25]
    np.testing.assert_array_equal(resumed.losses, seen_by_step[0].losses)


def test_platform_between_callbacks_are_checked():
    with pytest.raises(ValueError, match="callback_steps must be an integer of at least 1, got 0"):
        watched(5, 0, [])
