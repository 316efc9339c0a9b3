"""Deep kernels: the program, networks of every library, training in phases, and predictions that know no batch."""

import re
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI

from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.likelihoods import RobustMax
from gpzoo.models.deep_kernel import deep_kernel_gp, feature_range, network_classifier
from gpzoo.models.modules import network_of, shifted_and_mirrored
from gpzoo.models.train_deep_kernel import BOUNDS, features_of, fit_deep_kernel, fit_network
from gpzoo.reproductions import datasets
from tests.programs import KEY

nnx = pytest.importorskip("flax.nnx")

pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.fixture(scope="module")
def digits():
    data = datasets.load("digits")
    flat = [x.reshape(len(x), -1) for x in (data.X_train, data.X_test)]
    return flat[0], data.y_train, flat[1], data.y_test


def connected(num_inputs=64, num_features=10, widths=(40,), seed=0):
    from gpzoo.models.networks import FullyConnected

    return FullyConnected(num_inputs, num_features, widths, rngs=nnx.Rngs(seed))


# -- training ----------------------------------------------------------------------------------------------------------


OPTIONS = {"learning_rates": (1e-2, 2e-2, 1e-3), "batch_size": 200, "progress": False}
#: Of rows, features and minibatches every training has as many, so that they share programs.
STEPS = (150, 50, 50)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture(scope="module")
def trained(digits, checkpoint):
    X, y, *_ = digits
    with jax.numpy_dtype_promotion("standard"):
        network = network_of(connected())
        return network, fit_deep_kernel(
            KEY, X, y, network=network, num_steps=STEPS, checkpoint=checkpoint / "all", **OPTIONS
        )


@pytest.mark.slow
def test_phases_train_what_they_should(trained, digits):
    network, result = trained
    X_test, y_test = digits[2:]
    same = lambda a, b: all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))  # noqa: E731
    before, gps, after = (r.params["network$params"] for r in (result.network, result.features, result.joint))
    assert same(before, gps) and not same(gps, after)
    assert not same(result.features.params["mixing"], np.eye(10))
    assert result.joint.losses[-20:].mean() < result.features.losses[-20:].mean()
    shares = []
    for phase in (result.features, result.joint):
        found = phase.predict(KEY, X_test, test_data={"y": y_test})["y"]
        shares.append((float(np.mean(found.probs.argmax(-1) != y_test)), float(-found.log_density.mean())))
    h = features_of(network, result.network.params, X_test)
    alone = float(np.mean(h.argmax(-1) != y_test))
    # One in ten would be right by chance; a GP on the features is about as good as the network.
    assert alone < 0.1 and all(error < alone + 0.03 and nlp < 0.4 for error, nlp in shares)


@pytest.mark.slow
def test_one_draw_of_u_serves_all_rows(trained, digits):
    """The paper's scheme trains as well, and predicts by marginals as ever; in a step alike rows have one function."""
    network, _ = trained
    X, y, X_test, y_test = digits
    found = fit_deep_kernel(KEY, X, y, network=network, num_steps=STEPS, one_draw=True, **OPTIONS).joint
    whole, parts = (found.predict(KEY, X_test, batch_size=b)["y"].probs for b in (360, 37))
    np.testing.assert_allclose(whole, parts, atol=1e-5)
    assert float(np.mean(whole.argmax(-1) != y_test)) < 0.1
    drawn = InducingGuide(found.model, found.guide.inducing, joint=("f",))
    drawn.setup(X[:4], y[:4], model_kwargs={"num_data": len(X)})
    with handlers.seed(rng_seed=0), handlers.substitute(data=found.params):
        f = drawn(np.concatenate([X[:2], X[:2]]), np.concatenate([y[:2], y[:2]]))["f"]
    np.testing.assert_allclose(f[:2], f[2:], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_features_and_where_they_start(trained, digits):
    network, result = trained
    X = digits[0]
    h = features_of(network, result.network.params, X)
    np.testing.assert_allclose(h, features_of(network, result.network.params, X, batch_size=100), rtol=1e-5, atol=1e-5)
    start = feature_range(h)
    squashed = np.tanh((h - start["feature_shift"]) / start["feature_scale"])
    assert np.abs(squashed.mean(0)).max() < 0.2 and 0.3 < squashed.std(0).min()
    assert (np.abs(squashed) <= BOUNDS[1]).all()
    constant = feature_range(np.ones((5, 2), np.float32))
    assert np.isfinite(constant["feature_scale"]).all() and (np.asarray(constant["feature_scale"]) > 0).all()


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_batch(trained, digits):
    _, result = trained
    X_test, y_test = digits[2:]
    predict = partial(result.joint.predict, KEY)
    whole, parts = (predict(X_test, test_data={"y": y_test}, batch_size=b) for b in (360, 37))
    np.testing.assert_allclose(whole["f"].mean, parts["f"].mean, atol=2e-5)
    np.testing.assert_allclose(whole["y"].probs, parts["y"].probs, atol=1e-5)
    extreme = np.concatenate([X_test[:5], 100 * X_test[:5]])
    alone, beside = predict(X_test[:5]), predict(extreme)
    np.testing.assert_allclose(alone["f"].mean, beside["f"].mean[:5], atol=2e-5)


@pytest.mark.slow
def test_a_stopped_training_goes_on(trained, digits, checkpoint):
    X, y, *_ = digits
    network, whole = trained
    shutil.copytree(checkpoint / "all", checkpoint / "stopped")
    shutil.rmtree(checkpoint / "stopped" / "joint")
    folder = checkpoint / "stopped"
    again = fit_deep_kernel(KEY, X, y, network=network, num_steps=STEPS, checkpoint=folder, **OPTIONS)
    jax.tree.map(np.testing.assert_array_equal, whole.joint.params, again.joint.params)


@pytest.mark.slow
@pytest.mark.parametrize("inducing", [kmeans(6), InducingGrid(300, BOUNDS)])
def test_kernels_and_inducing_variables_of_ones_own(trained, digits, inducing):
    from gpzoo.kernels import Matern52

    X, y, *_ = digits
    network, before = trained
    result = fit_deep_kernel(
        KEY,
        X,
        y,
        network=network,
        inducing=inducing,
        pretrained=before.network.params,
        num_steps=(5, 2, 2),
        model_kwargs={"kernel": lambda name, X: Matern52(1.0, 0.5)},
        **OPTIONS,
    )
    assert np.isfinite(result.joint.losses).all() and "f_variance" not in result.joint.params
    if not isinstance(inducing, InducingGrid):
        assert result.joint.params["f_inducing"].shape == (10, 6, 1)
    # A network that is given is not trained again.
    assert result.network.losses.size == 0 and result.joint.losses.shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(64,), (30, 12), (9, 14), (6, 8, 7)], ids=str)
def test_the_program_starts_as_the_network(trained, digits, sizes):
    """On a grid of any number of axes, of different sizes: every GP is the first of the features that it sees."""
    network, result = trained
    X, y = digits[0], digits[1]
    subsets = [[(k + axis) % 10 for axis in range(len(sizes))] for k in range(10)]
    given = {"network": network, "pretrained": result.network.params, "inducing": InducingGrid(sizes, BOUNDS)}
    given |= {"num_steps": (0, 0, 0), "progress": False, "model_kwargs": {"subsets": subsets}}
    start = fit_deep_kernel(KEY, X, y, **given).features
    found = start.predict(KEY, X[:200])["f"].mean
    h = features_of(network, result.network.params, X[:200])
    assert np.corrcoef(found.ravel(), h.ravel())[0, 1] > 0.98
    assert np.mean(found.argmax(-1) == h.argmax(-1)) > 0.95


# -- the program -------------------------------------------------------------------------------------------------------


def small(network, **arguments):
    return partial(deep_kernel_gp, network=network, **arguments)


@pytest.mark.slow
def test_subsets_mixing_and_other_likelihoods(digits):
    X, y = digits[0][:200], digits[1][:200] % 3
    subsets = [(0, 1), (2, 3), (1, 2)]
    model = small(network_of(connected()), subsets=subsets, num_outputs=3, likelihood=RobustMax)
    guide = InducingGuide(model, InducingGrid((8, 9), BOUNDS))
    svi = SVI(model, guide, optax.adam(0.01), GaussianProcessELBO())
    # The matrix correlates the functions, which robust-max has no closed form for.
    result = fit(KEY, svi, 2, X, y, progress=False, model_kwargs={"training": True})
    assert result.params["f_mean"].shape == (72, 3) and result.params["f_lengthscale"].shape == (3, 2)
    assert result.params["mixing"].shape == (3, 3) and np.isfinite(result.losses).all()


@pytest.mark.slow
@pytest.mark.parametrize(("inducing", "looks"), [(InducingGrid(64, BOUNDS), False), (kmeans(6), True)])
def test_a_network_sees_all_rows_at_once_only_for_initialisers_that_look(digits, inducing, looks):
    X, y, *_ = digits
    inner, ran = network_of(connected()), []

    def network(X, training):
        jax.debug.callback(ran.append, len(X))
        return inner(X, training)

    model = small(network)
    svi = SVI(model, InducingGuide(model, inducing), optax.adam(0.01), GaussianProcessELBO())
    options = {"batch_size": 200, "model_kwargs": {"num_data": len(X)}, "progress": False}
    result = fit(KEY, svi, 1, X, y, **options)
    jax.effects_barrier()
    assert max(ran) == (len(X) if looks else 200)
    if looks:
        ran.clear()
        fit(KEY, svi, 1, X, y, init_params=dict(result.params), **options)
        jax.effects_barrier()
        assert max(ran) == 200


def test_images_that_are_not_finite_are_refused_wherever_they_are(digits):
    X, y = digits[0][:100].copy(), digits[1][:100]
    X[97, 3] = np.nan
    network = network_of(connected())
    with pytest.raises(ValueError, match=r"X has 1 entries that are not finite, the first at index \(97, 3\)"):
        fit_deep_kernel(KEY, X, y, network=network, num_steps=(1, 1, 1), batch_size=20, progress=False)
    model = small(network)
    svi = SVI(model, InducingGuide(model, InducingGrid(8, BOUNDS)), optax.adam(0.01), GaussianProcessELBO())
    with pytest.raises(ValueError, match="X has 1 entries that are not finite"):
        fit(KEY, svi, 1, X, y, batch_size=20, progress=False, model_kwargs={"num_data": 100})


def test_no_images_are_refused(digits):
    X, y = digits[0][:0], digits[1][:0]
    for train in (fit_network, fit_deep_kernel):
        with pytest.raises(ValueError, match=r"X is empty: its shape is \(0, 64\), at least one row is needed"):
            train(KEY, X, y, network=network_of(connected()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: np.where(np.arange(100) == 93, 10, y), r"labels of 10 classes must be whole numbers from 0 to 9"),
        (lambda y: np.where(np.arange(100) == 93, -1, y), r"labels of 10 classes must be whole numbers from 0 to 9"),
        (lambda y: y + 0.5, r"labels of 10 classes must be whole numbers from 0 to 9"),
        (lambda y: y[:-1], r"y must have one row per row of f"),
    ],
)
def test_labels_that_are_none_are_refused_before_training(digits, change, message):
    X, y = digits[0][:100], change(digits[1][:100])
    network = network_of(connected())
    options = {"num_steps": (1, 1, 1), "batch_size": 20, "progress": False}
    for train in (fit_deep_kernel, partial(fit_network, num_steps=1)):
        with pytest.raises(ValueError, match=message):
            train(KEY, X, y, network=network, **(options if train is fit_deep_kernel else {"progress": False}))


@pytest.mark.slow
def test_weight_decay_shrinks_the_network_and_nothing_else(trained, digits):
    X, y, *_ = digits
    network, free = trained

    def size(result):
        weights = jax.tree.leaves(result.params["network$params"])
        return sum(float(np.sum(np.square(w))) for w in weights) ** 0.5

    own = {"num_steps": STEPS[0], "learning_rate": 1e-2, "batch_size": 200, "progress": False}
    decayed = fit_network(random.split(KEY, 3)[0], X, y, network=network, weight_decay=2.0, **own)
    assert size(decayed) < 0.9 * size(free.network)
    # Decay of the joint phase alone, from where both begin alike.
    options = {"network": network, "num_steps": STEPS, "pretrained": free.network.params} | OPTIONS
    decayed = fit_deep_kernel(KEY, X, y, **options, weight_decay=2.0)
    np.testing.assert_array_equal(free.features.losses, decayed.features.losses)
    assert size(decayed.joint) < 0.99 * size(free.joint)
    np.testing.assert_allclose(decayed.joint.params["mixing"], free.joint.params["mixing"], atol=0.1)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"weight_decay must be a finite number of 0 or more, got {wrong}"):
            fit_deep_kernel(KEY, X, y, **options, weight_decay=wrong)


@pytest.mark.parametrize("steps", [10, (1, 2)])
def test_phases_are_three(digits, steps):
    with pytest.raises(ValueError, match="num_steps must be three numbers, for the network"):
        fit_deep_kernel(KEY, *digits[:2], network=network_of(connected()), num_steps=steps)


@pytest.mark.slow
def test_arviz(digits, trained):
    _, result = trained
    data = result.joint.to_arviz(KEY, digits[0][:10], digits[1][:10], num_draws=5)
    assert data["posterior"]["f"].shape == (1, 5, 10, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subsets": [(0, 1), (2,)]}, "of one length"),
        ({"subsets": [(0,), (11,)]}, r"columns 0\.\.9 of the network's 10"),
        ({"subsets": [()]}, "of one length"),
        ({"num_outputs": 0}, "num_outputs must be an integer of at least 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(digits, arguments, message):
    model = small(network_of(connected()), **arguments)
    with pytest.raises(ValueError, match=message), handlers.seed(rng_seed=0):
        jax.eval_shape(model, digits[0][:5])


def test_features_of_another_shape_are_refused(digits):
    X = jnp.asarray(digits[0][:5])
    with pytest.raises(ValueError, match=r"features \[N, q\] = \[5, q\], got shape \(5,\)"), handlers.seed(rng_seed=0):
        deep_kernel_gp(X, network=lambda X, training: X[:, 0])


# -- networks of every library -----------------------------------------------------------------------------------------


def stax_pair():
    def init(key, shape):
        return (*shape[:-1], 10), {"w": random.normal(key, (shape[-1], 10), jnp.float32)}

    return init, lambda params, x: x @ params["w"]


def linen_module():
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(5)(x))
            return linen.Dense(10)(linen.relu(x))

    return Net()


def nnx_module():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.dense, self.norm = nnx.Linear(64, 10, rngs=rngs), nnx.BatchNorm(10, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.dense(x))

    return Net(nnx.Rngs(0))


def equinox_module():
    equinox = pytest.importorskip("equinox")
    return equinox.nn.MLP(64, 10, 5, 1, key=random.key(0), dtype=jnp.float32)


MODULES = {"pair": stax_pair, "linen": linen_module, "nnx": nnx_module, "equinox": equinox_module}


@pytest.mark.slow
@pytest.mark.parametrize("library", MODULES)
def test_networks_of_every_library(digits, library):
    X, y = digits[0][:200], digits[1][:200]
    network = network_of(MODULES[library]())
    if library in ("linen", "equinox"):
        model = small(network)
        svi = SVI(model, InducingGuide(model, InducingGrid(64, BOUNDS)), optax.adam(1e-2), GaussianProcessELBO())
        result = fit(KEY, svi, 3, X, y, progress=False, model_kwargs={"training": True})
    else:
        result = fit_network(KEY, X, y, network=network, num_steps=3, progress=False)
    assert "network$params" in result.params and np.isfinite(result.losses).all()
    assert features_of(network, result.params, X).shape == (200, 10)
    stateful = library in ("linen", "nnx")
    assert ("network$state" in result.params) == stateful
    if stateful:
        # In training the batch's own statistics count, elsewhere those that were kept; and those stay.
        @jax.jit
        def of(X, params):
            runs = {training: handlers.seed(lambda t=training: network(X, t), 0) for training in (False, True)}
            return [handlers.substitute(runs[training], data=params)() for training in (False, True)]

        (still, moving), (few_still, few_moving) = of(X, dict(result.params)), of(X[:10], dict(result.params))
        np.testing.assert_allclose(still[:10], few_still, rtol=1e-5, atol=1e-5)
        assert np.abs(moving[:10] - few_moving).max() > 1e-3


def test_images_move_in_training_and_only_there():
    X = 1 + np.random.default_rng(0).random((12, 5, 6, 2))
    network = shifted_and_mirrored(lambda X, training: X.reshape(len(X), -1), pixels=2)
    run = jax.jit(lambda key: handlers.seed(network, key)(jnp.asarray(X), True))
    np.testing.assert_array_equal(network(X, False), X.reshape(12, -1))
    moved, again = (np.asarray(run(random.key(seed))).reshape(X.shape) for seed in (0, 1))
    assert not np.array_equal(moved, again)
    padded = np.pad(X, [(0, 0), (2, 2), (2, 2), (0, 0)])
    seen = set()
    for image, whole in zip(moved, padded, strict=True):
        ways = [
            (down, across, mirrored)
            for down in range(5)
            for across in range(5)
            for mirrored in (False, True)
            if np.array_equal(image, (whole[:, ::-1] if mirrored else whole)[down : down + 5, across : across + 6])
        ]
        assert len(ways) == 1
        seen |= set(ways)
    assert len(seen) > 6 and len({mirrored for *_, mirrored in seen}) == 2
    with pytest.raises(ValueError, match="pixels must be an integer of at least 1, got 0"):
        shifted_and_mirrored(network, 0)
    for training in (False, True):
        with pytest.raises(ValueError, match=r"must be \[N, H, W, C\], got shape \(5, 5, 5\): reshape them"):
            handlers.seed(network, 0)(jnp.ones((5, 5, 5)), training)


@pytest.mark.slow
def test_a_network_whose_images_move_is_trained_and_predicts_without(trained, digits):
    X, y = digits[0].reshape(-1, 8, 8, 1), digits[1]
    network, (_, resting) = shifted_and_mirrored(network_of(connected()), 1), trained
    options = {"network": network, "batch_size": 200, "progress": False}
    own = {"num_steps": STEPS[0], "learning_rate": OPTIONS["learning_rates"][0]}
    alone, again = (fit_network(random.split(KEY, 3)[0], X, y, **options, **own) for _ in range(2))
    np.testing.assert_array_equal(alone.losses, again.losses)
    assert np.all(alone.losses != resting.network.losses)
    joint = fit_deep_kernel(KEY, X, y, num_steps=(5, 2, 4), pretrained=alone.params, **options).joint
    moving = joint.predict(KEY, X[:60])["y"]
    still = joint.predict(KEY, X[:60], batch_size=7)["y"]
    np.testing.assert_allclose(moving.probs, still.probs, atol=1e-6)


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match="flax or equinox module or a pair"):
        network_of(np.zeros(3))


@pytest.mark.slow
def test_statistics_advance_once_a_step_and_the_network_runs_once(digits):
    X, y = digits[0][:200], digits[1][:200]

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.dense, self.norm = nnx.Linear(64, 37, rngs=rngs), nnx.BatchNorm(37, rngs=rngs)
            self.last = nnx.Linear(37, 10, rngs=rngs)

        def __call__(self, x):
            return self.last(self.norm(jnp.sinh(self.dense(x))))

    module = Net(nnx.Rngs(0))
    model = small(network_of(module))
    svi = SVI(model, InducingGuide(model, InducingGrid(64, BOUNDS)), optax.sgd(0.0), GaussianProcessELBO())
    found = fit(KEY, svi, 2, X, y, progress=False, model_kwargs={"training": True})
    weights, bias = (np.asarray(part[...]) for part in (module.dense.kernel, module.dense.bias))
    batch = np.sinh(X @ weights + bias).mean(0)
    # They start at zero.
    mean = found.params["network$state"]["state"]["norm"]["mean"]
    np.testing.assert_allclose(mean, (1 - 0.99**2) * batch, rtol=1e-3, atol=1e-6)
    # Guide and model each ask for it.
    text = jax.jit(lambda state: svi.evaluate(state, X, y, training=True)).lower(found.state).compile().as_text()
    assert len(re.findall(r"f32\[200,37\]\S* dot\(", text)) == 1


@pytest.mark.slow
def test_state_of_a_network_trained_before_is_taken_over(digits):
    X, y, *_ = digits
    result = fit_deep_kernel(KEY, X, y, network=network_of(nnx_module()), num_steps=(5, 2, 1), **OPTIONS)
    states = [r.params["network$state"]["state"]["norm"]["mean"] for r in (result.network, result.features)]
    np.testing.assert_array_equal(*states)  # and it rests while only the GPs are trained
    assert not np.array_equal(result.joint.params["network$state"]["state"]["norm"]["mean"], states[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LeNet", "QuickCNN", "ResNet20"])
def test_example_networks(name):
    from gpzoo.models import networks

    shape = (28, 28, 1) if name == "LeNet" else (32, 32, 3)
    module = nnx.jit(lambda: getattr(networks, name)(7, rngs=nnx.Rngs(0)))()
    h = features_of(network_of(module), {}, np.random.default_rng(0).random((2, *shape), np.float32))
    assert h.shape == (2, 7) and np.isfinite(h).all() and np.abs(h[0] - h[1]).max() > 0
    count = sum(x.size for x in jax.tree.leaves(nnx.state(module, nnx.Param)))
    # Those of the published architectures, which end with ten features.
    published = {"LeNet": 431_080 - 3 * 501, "QuickCNN": 145_578 - 3 * 65, "ResNet20": 269_722 - 3 * 65}
    assert count == published[name]


@pytest.mark.slow
def test_the_network_alone_is_a_classifier(digits):
    X, y = jnp.asarray(digits[0][:6]), digits[1][:6]
    network = network_of(connected())

    @jax.jit
    def evaluated(X, y):
        trace = handlers.trace(handlers.seed(network_classifier, 0)).get_trace(X, y, network=network)
        return trace["network$params"]["value"], trace["y"]["fn"].log_prob(y)

    weights, found = evaluated(X, y)
    h = features_of(network, {"network$params": weights}, X)
    wanted = (h - np.log(np.exp(h).sum(1, keepdims=True)))[np.arange(6), y]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
