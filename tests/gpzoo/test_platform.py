"""Programs with convolutions are stepped from the host on CPU, with the numbers of the loop on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from jax import lax, random
from numpyro.infer import SVI, Trace_ELBO

from gpzoo import _platform
from gpzoo._platform import compiled_for_one_run, steps_on_host
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, NonFiniteError, fit
from gpzoo.inference.training.step import Steps
from tests.programs import adam, around_constant, constant, regression, relaxed, sine

KEY = random.key(0)
X, Y = sine(12)


def convolution(x):
    return lax.conv(x[None, None], jnp.ones((1, 1, 3)), (1,), "SAME")[0, 0]


@jax.custom_vjp
def own_derivative(x):
    return convolution(x)


own_derivative.defvjp(lambda x: (own_derivative(x), None), lambda _, g: (convolution(g),))


@pytest.mark.parametrize(
    "program",
    [
        convolution,
        jax.jit(convolution),
        own_derivative,
        jax.grad(lambda x: convolution(x).sum()),
        lambda x: lax.scan(lambda c, _: (convolution(c), 0.0), x, length=2)[0],
        lambda x: lax.cond(x[0] > 0, lambda x: x, convolution, x),
    ],
)
def test_convolutions_are_found_at_any_depth(program):
    traced = jax.jit(program).trace(jnp.ones(4))
    assert steps_on_host(traced.jaxpr)


def test_products_are_no_convolutions():
    assert not steps_on_host(
        jax.jit(lambda x: lax.scan(lambda c, _: (c @ x, 0.0), x, length=2)).trace(jnp.eye(3)).jaxpr
    )


def on_the_device(monkeypatch):
    monkeypatch.setattr("gpzoo._platform.steps_on_host", lambda program: False)


def from_the_host(monkeypatch):
    monkeypatch.setattr("gpzoo._platform.steps_on_host", lambda program: True)


@pytest.fixture
def both(monkeypatch):
    """What a training gives in either way, or the error that ends it."""

    def run(train):
        found = []
        for choose in (on_the_device, from_the_host):
            with monkeypatch.context() as patch:
                choose(patch)
                try:
                    found.append(train(choose.__name__))
                except NonFiniteError as error:
                    found.append(error)
        return found

    return run


def assert_close(one, two):
    def plain(x):
        return random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    np.testing.assert_allclose(one.losses, two.losses, rtol=1e-10)
    ours, theirs = (jax.tree.map(plain, (each.params, each.state)) for each in (one, two))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), ours, theirs)


def make(model=constant, optimiser=None):
    return SVI(model, around_constant, optimiser or adam(0.02), GaussianProcessELBO())


def sparse():
    guide = InducingGuide(regression, InducingPoints(X[::3]))
    return SVI(regression, guide, adam(0.02), GaussianProcessELBO())


@pytest.mark.slow
def test_either_way_gives_the_same_training(both, tmp_path):
    options = {"batch_size": 5, "model_kwargs": {"num_data": 12}, "progress": False}
    seen = []

    def train(way):
        fit(KEY, sparse(), 7, X, Y, checkpoint=tmp_path / way, **options)  # to be taken up
        callback = lambda step, seconds, params: seen.append((way, step))  # noqa: E731
        return fit(KEY, sparse(), 23, X, Y, checkpoint=tmp_path / way, callback=callback, callback_steps=10, **options)

    one, two = both(train)
    assert one.losses.shape == (23,)
    assert_close(one, two)
    assert [step for way, step in seen if way == "from_the_host"] == [10, 20, 23]


@pytest.mark.slow
def test_either_way_gives_the_same_members(both):
    keys = random.split(KEY, 3)
    options = {"batch_size": 5, "model_kwargs": {"num_data": 12}, "in_axes": None, "progress": False}
    one, two = both(lambda way: fit(keys, make(), 9, X, Y, **options))
    assert two.losses.shape == (3, 9)
    assert_close(one, two)
    own = [np.stack([x, 2 * x, -x]) for x in (X, Y)]
    one, two = both(lambda way: fit(keys, make(), 9, *own, **options | {"in_axes": 0}))
    assert_close(one, two)
    assert not np.allclose(two.losses[0], two.losses[1])


@pytest.mark.slow
def test_either_way_the_other_members_go_on(both):
    def failing(X, y=None, *, edge, num_data=None):
        constant(X, y)
        drift = numpyro.param("drift", jnp.array(0.0))
        numpyro.factor("edge", jnp.where(drift > edge, jnp.nan, 0.0) + drift)

    only = optax.masked(optax.set_to_zero(), lambda params: {name: name != "drift" for name in params})
    svi = make(failing, relaxed(optax.chain(optax.sgd(0.1), only)))
    options = {"in_axes": None, "member_kwargs": ["edge"], "progress": False}
    options["model_kwargs"] = {"edge": jnp.array([9.0, 0.35])}
    one, two = both(lambda way: fit(random.split(KEY, 2), svi, 12, X, Y, **options))
    assert str(one) == str(two) and "Member 1 stopped at step 5" in str(two)
    assert_close(one.result, two.result)


@pytest.mark.slow
def test_either_way_stops_at_the_same_step(both):
    def failing(X, y=None):
        constant(X, y)
        drift = numpyro.param("drift", jnp.array(0.0))
        numpyro.factor("edge", jnp.where(drift > 0.95, jnp.nan, 0.0) + drift)

    only = optax.masked(optax.set_to_zero(), lambda params: {name: name != "drift" for name in params})
    svi = make(failing, relaxed(optax.chain(optax.sgd(0.1), only)))
    one, two = both(lambda way: fit(KEY, svi, 50, X, Y, progress=False))
    assert "stopped at step 11" in str(one) and str(one) == str(two)
    assert_close(one.result, two.result)


def test_a_program_with_a_convolution_is_stepped(monkeypatch):
    images = np.random.default_rng(0).standard_normal((20, 6, 6, 1))

    def classifier(X, y=None):
        w = numpyro.param("w", jnp.full((3, 3, 1, 2), 0.1))
        h = lax.conv_general_dilated(X, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        with numpyro.plate("data", 20, subsample_size=len(X)):
            numpyro.sample("y", numpyro.distributions.Normal(h.sum((1, 2, 3)), 1.0), obs=y)

    y = images.sum((1, 2, 3))
    stepped = []
    inner = Steps._from_host
    monkeypatch.setattr(Steps, "_from_host", lambda self, *a: stepped.append(1) or inner(self, *a))
    svi = SVI(classifier, lambda X, y=None: None, adam(0.01), Trace_ELBO())
    result = fit(KEY, svi, 30, images, y, batch_size=10, progress=False)
    assert stepped and result.losses[-5:].mean() < result.losses[:5].mean()
    stepped.clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    fit(KEY, svi, 3, images, y, batch_size=10, progress=False)
    assert not stepped


def test_optimisations_are_left_out_for_one_run_only():
    before = jax.config.read("jax_disable_most_optimizations")
    with pytest.raises(ZeroDivisionError), compiled_for_one_run():
        assert jax.config.read("jax_disable_most_optimizations")
        raise ZeroDivisionError
    assert jax.config.read("jax_disable_most_optimizations") == before


@pytest.mark.parametrize("name, known", [("xla_cpu_enable_fast_math", True), ("xla_no_such_option", False)])
def test_options_that_the_compiler_does_not_know_are_left_out(monkeypatch, name, known):
    monkeypatch.setattr(_platform, "_ONE_RUN", {name: False})
    monkeypatch.setattr(_platform, "options_for_one_run", _platform.options_for_one_run.__wrapped__)
    assert bool(_platform.options_for_one_run()) == known
