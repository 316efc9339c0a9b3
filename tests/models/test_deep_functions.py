"""Functions drawn whole through the layers of deep GPs, by Predictive, to_arviz and pathwise, against prediction."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from numpyro.infer import Predictive

from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import InducingGuide, Trained
from gpzoo.kernels import Matern12
from gpzoo.models import deep_gp, linear_layers
from tests.programs import randomised

KEY = random.key(0)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 2))
NEW = RNG.standard_normal((6, 2))
FUNCTIONS = partial(deep_gp, layers=linear_layers(X, [2, 1]), layer_noise=None)


def three_layers(program, dtype=np.float64):
    Z = X.astype(dtype)
    inducing = {"layer_0": Z[::4], "layer_1": Z[::4], "f": Z[::4, :1]}
    guide = InducingGuide(program, {n: InducingPoints(z) for n, z in inducing.items()}, initial_scale=0.4)
    params = randomised(jax.jit(lambda: guide.init_params(KEY, Z, Z[:, 0]))())
    return guide, {name: np.asarray(value, dtype) for name, value in params.items()}


@pytest.fixture(scope="module")
def three():
    guide, params = three_layers(FUNCTIONS)
    return guide, params, Trained(FUNCTIONS, guide, params).predict(KEY, NEW, num_draws=2000, keep_draws=True)


def agrees_with_predict(values, found):
    """Moments of draws at each input against the mixture that ``predict`` reports, which has errors of its own."""
    for name, site in found.items():
        if name in values:
            draws, paths = values[name], site.draws
            both = np.sqrt(draws.var(0) / len(draws) + paths.var(0) / len(paths))
            assert (np.abs(draws.mean(0) - paths.mean(0)) < 5 * both).all(), name
            squares = [(d - site.mean) ** 2 for d in (draws, paths)]
            both = np.sqrt(sum(s.var(0) / len(s) for s in squares))
            assert (np.abs(squares[0].mean(0) - squares[1].mean(0)) < 5 * both).all(), name


@pytest.mark.slow
def test_predictive_draws_functions_through_all_layers(three):
    guide, params, found = three
    S, twice = 2000, np.concatenate([NEW, NEW[::-1]])
    predictive = Predictive(guide, params=params, num_samples=S, parallel=True)
    values = jax.jit(lambda key: predictive(key, twice))(KEY)
    assert set(values) == {"layer_0", "layer_1", "f"} and values["layer_0"].shape == (S, 12, 2)
    for name, draws in values.items():
        draws = np.asarray(draws)
        # The joint covariance is factorised with a jitter of 1e-6, which layers amplify by their slope.
        same, other = np.abs(draws[:, :6] - draws[:, :5:-1]), np.abs(draws[:, 1:6] - draws[:, :5])
        assert np.median(same) < 5e-3 and np.median(other) > 0.1, name
    agrees_with_predict({n: np.asarray(v)[:, :6] for n, v in values.items()}, found)


@pytest.mark.slow
def test_arvizs_draws_are_functions_through_all_layers(three):
    guide, params, found = three
    twice = np.concatenate([NEW, NEW[::-1]])
    posterior = Trained(FUNCTIONS, guide, params).to_arviz(KEY, twice, np.zeros(12), num_draws=1000).posterior
    values = {name: np.asarray(posterior[name])[0] for name in ("layer_0", "layer_1", "f")}
    for name, draws in values.items():
        assert np.median(np.abs(draws[:, :6] - draws[:, :5:-1])) < 5e-3, name
    agrees_with_predict({name: draws[:, :6] for name, draws in values.items()}, found)


@pytest.mark.slow
def test_drawn_functions_of_three_layers(three):
    guide, params, found = three
    S = 1000
    trained = Trained(guide.model, guide, params)
    go = partial(trained.functions, random.key(2), num_draws=S, num_features=64)
    twice = np.concatenate([NEW, NEW[::-1]])
    values = go(twice, batch_size=6)
    assert set(values) == {"layer_0", "layer_1", "f"}
    assert (
        values["layer_0"].shape == (S, 12, 2) and values["layer_1"].shape == (S, 12, 1) and values["f"].shape == (S, 12)
    )
    whole = go(NEW)
    for name in values:
        np.testing.assert_allclose(values[name][:, :6], whole[name], rtol=0, atol=1e-6)
        np.testing.assert_allclose(values[name][:, :5:-1], whole[name], rtol=0, atol=1e-6)
        assert np.median(np.abs(whole[name][:, 1:] - whole[name][:, :-1])) > 0.1
    agrees_with_predict(whole, found)


def rough(name, X):
    return Matern12(jnp.asarray(1.0, X.dtype), jnp.asarray(0.5, X.dtype))


@pytest.fixture(scope="module")
def noisy():
    """Three layers in float32, with noise between them."""
    program = partial(deep_gp, layers=linear_layers(X.astype(np.float32), [2, 1]), kernel=rough, layer_noise=0.01)
    guide, params = three_layers(program, np.float32)
    whole = Trained(program, guide, params)
    return whole, partial(whole.functions, KEY, num_features=64)


@pytest.mark.slow
def test_float32_with_noise_between_layers(noisy):
    whole, drawn = noisy
    inputs = np.concatenate([np.linspace(-100, 100, 22), np.zeros(8)]).astype(np.float32)[:, None] * np.ones(2, "f4")
    one, other = (drawn(inputs, num_draws=100, batch_size=size) for size in (30, 11))
    for name, draws in one.items():
        assert draws.dtype == np.float32 and np.isfinite(draws).all(), name
    # The noise belongs to a row's number: equal inputs in other rows differ by it, the same rows do not.
    np.testing.assert_allclose(one["layer_0"][:, -8:], other["layer_0"][:, -8:], atol=1e-4)
    within = one["layer_0"][:, -8:].var(axis=1, ddof=1)
    noise = float(whole.params["layer_0_noise_variance"])
    assert abs(within.mean() / noise - 1) < 5 * np.sqrt(2 / 7 / within.size)


@pytest.mark.slow
def test_the_same_call_gives_the_same_bits_and_other_batches_the_same_up_to_rounding(noisy):
    whole, drawn = noisy
    inputs = NEW.astype(np.float32)

    def predicted(inputs, **options):
        found = whole.predict(KEY, inputs, **options)
        return {(name, part): getattr(site, part) for name, site in found.items() for part in ("mean", "variance")}

    for call in (predicted, drawn):
        found, again, parts = (call(inputs, num_draws=4, batch_size=size) for size in (6, 6, 4))
        for name, values in found.items():
            assert values.dtype == np.float32 and np.ptp(values) > 0, name
            np.testing.assert_array_equal(values, again[name], err_msg=str(name))
            np.testing.assert_allclose(values, parts[name], rtol=0, atol=1e-5 * np.abs(values).max(), err_msg=str(name))


@pytest.mark.slow
def test_the_gradient_of_a_drawn_function_is_that_of_all_layers(three):
    """Against finite differences, among the data and far from them."""
    guide, params, _ = three
    trained = Trained(FUNCTIONS, guide, params)

    @jax.jit
    def slopes(x):
        value = lambda x: trained.function(KEY, 3, num_features=32)(x[None])["f"][0]  # noqa: E731
        at = jnp.stack([x + step for step in 1e-5 * jnp.concatenate([jnp.eye(2), -jnp.eye(2)])])
        values = jax.vmap(value)(at)
        return jax.grad(value)(x), (values[:2] - values[2:]) / 2e-5

    for x in (NEW[0], 10.0 * NEW[1]):
        np.testing.assert_allclose(*slopes(x), rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_climbing_a_drawn_function_ends_at_its_top():
    """Thompson sampling of ``docs/how_to/bayesian_optimisation.md``, against the largest value on a grid."""
    single = partial(deep_gp, layers=(), layer_noise=None)
    guide = InducingGuide(single, InducingPoints(X))
    params = randomised(guide.init_params(KEY, X, X[:, 0]))
    trained = Trained(single, guide, params)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 41), np.linspace(-1, 1, 41)), axis=-1).reshape(-1, 2)

    @jax.jit
    def climbed(params):
        function = trained.with_params(params).function(KEY, num_features=64)
        slope = jax.vmap(jax.grad(lambda x: function(x[None])["f"][0]))
        uphill = lambda _, x: jnp.clip(x + 0.02 * slope(x), -1, 1)  # noqa: E731
        ends = jax.lax.fori_loop(0, 100, uphill, jnp.asarray(grid[::40]))
        return function(ends)["f"].max()

    values = trained.functions(KEY, grid, num_draws=1, num_features=64)["f"][0]
    assert np.ptp(values) > 1 and values.max() - 1e-6 < climbed(params) < values.max() + 0.1
