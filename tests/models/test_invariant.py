"""The programs with learned invariances: trained, predicted with, exported, and refused where they cannot work."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import SVI

from gpzoo import InducingPoints, Orbit, Patches, Rotation, Subsampled, random_subset, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, SitePrediction, compare, error_rate, fit, rmse
from gpzoo.kernels import RBF, Invariant
from gpzoo.likelihoods import Bernoulli, Gaussian, PolyaGamma, RobustMax
from gpzoo.models import (
    affine,
    averaged,
    deep_kernel_gp,
    deformation,
    invariant_classifier,
    invariant_convolutional_gp,
    invariant_deep_gp,
    invariant_gp,
    network_of,
    recognition,
    rotation,
)
from gpzoo.processes.process import GaussianProcess
from gpzoo.reproductions import datasets
from tests.programs import KEY, adam, bound

RNG = np.random.default_rng(0)
IMAGES = jnp.asarray(RNG.uniform(size=(9, 5, 5, 1)))
NUMBERS = jnp.asarray(RNG.standard_normal(9))
LABELS = jnp.arange(9) % 3
few = {"num_views": 3, "num_fixed": 5}


def quarter_turns(X):
    return Orbit.of_images(X.shape[1:], rotations=True)


AFFINE = {"affine_below", "affine_above"}
RBF_PARAMS = {"f_variance", "f_lengthscale"}
# name -> program, data, parameters of the program
PROGRAMS = {
    "rotation": (partial(invariant_gp, view=rotation(**few)), NUMBERS, RBF_PARAMS | {"noise_variance", "angle"}),
    "fixed rotation": (
        partial(invariant_gp, view=rotation(90.0, learn=False, **few)),
        NUMBERS,
        RBF_PARAMS | {"noise_variance"},
    ),
    "affine, one-hot": (
        partial(invariant_gp, view=affine(**few), num_outputs=3),
        jax.nn.one_hot(LABELS, 3),
        RBF_PARAMS | AFFINE | {"noise_variance"},
    ),
    "deformation": (
        partial(invariant_gp, view=deformation(**few)),
        NUMBERS,
        RBF_PARAMS | AFFINE | {"noise_variance", "amplitude", "smoothness"},
    ),
    "some of an orbit": (
        partial(invariant_gp, view=lambda X: Subsampled(quarter_turns(X), 2)),
        NUMBERS,
        RBF_PARAMS | {"noise_variance"},
    ),
    "two classes": (
        partial(invariant_classifier, view=rotation(**few)),
        LABELS == 1,
        RBF_PARAMS | {"angle", "recognition$params"},
    ),
    "three classes, single precision": (
        partial(invariant_classifier, view=deformation(**few), num_classes=3),
        LABELS,
        RBF_PARAMS | AFFINE | {"amplitude", "smoothness", "recognition$params"},
    ),
    "convolution, exact": (
        partial(invariant_convolutional_gp, view=quarter_turns, patch_shape=(3, 3)),
        NUMBERS,
        {"variance", "lengthscale", "weights", "noise_variance"},
    ),
    "convolution, sampled": (
        partial(invariant_convolutional_gp, view=rotation(**few), patch_shape=(3, 3)),
        NUMBERS,
        {"variance", "lengthscale", "weights", "noise_variance", "angle"},
    ),
}


#: The rotation is trained where it is learned, the deformation where there are three classes.
ONLY_STARTED = ("fixed rotation", "deformation")
#: The others are exported by test_zoo_exports, or differ from these in what an export does not see.
EXPORTED = ("affine, one-hot", "three classes, single precision")


@pytest.mark.slow
@pytest.mark.parametrize("name", ONLY_STARTED)
def test_a_program_has_the_parameters_of_its_view(name):
    program, y, params = PROGRAMS[name]
    start = InducingGuide(program, unique_patches(4)).init_params(KEY, IMAGES, y)
    assert set(start) == params | {"f_inducing", "f_mean", "f_scale"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ONLY_STARTED])
def test_a_program_is_trained_predicted_with_and_exported(name, standard_promotion):
    program, y, params = PROGRAMS[name]
    X = IMAGES.astype(jnp.float32) if "single precision" in name else IMAGES
    guide = InducingGuide(program, unique_patches(4))
    start = guide.init_params(KEY, X, y)
    assert set(start) == params | {"f_inducing", "f_mean", "f_scale"}
    svi = SVI(program, guide, adam(0.05), GaussianProcessELBO())
    result = fit(KEY, svi, 5, X, y, progress=False)
    assert np.isfinite(result.losses).all()
    assert "single precision" not in name or all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(result.params))
    learned = {"angle", "affine_below", "affine_above", "amplitude", "smoothness"} & params
    for parameter in learned | {"f_inducing"}:
        assert np.abs(result.params[parameter] - start[parameter]).max() > 0, parameter
    test = result.predict(KEY, X[:4], test_data={"y": y[:4]})
    assert np.isfinite(test["y"].log_density).all() and (test["f"].variance > 0).all()
    if name not in EXPORTED:
        return
    idata = result.to_arviz(KEY, X, y, num_draws=3)
    assert learned <= set(idata["constant_data"])
    if "affine_below" in learned:  # bounds are exported as bounds
        low, high = (np.asarray(idata["posterior"][name])[0, 0] for name in ("affine_low", "affine_high"))
        np.testing.assert_allclose(low, np.array([0, 1, 1, 0, 0, 0]) - np.asarray(result.params["affine_below"]))
        assert (low < high).all()


def drawn_from(program):
    """The values of the sites of a draw from the prior."""

    @jax.jit
    def draw():
        trace = handlers.trace(handlers.seed(program, 0)).get_trace(IMAGES)
        return {name: trace[name]["value"] for name in ("f", "y")}

    return draw()


@pytest.mark.slow
def test_a_program_draws_from_its_prior(standard_promotion):
    assert np.isfinite(drawn_from(PROGRAMS["rotation"][0])["f"]).all()
    for name in ("rotation", "two classes", "convolution, exact"):
        program, y, _ = PROGRAMS[name]
        values = jax.eval_shape(partial(drawn_from, program))
        assert values["y"].shape == y.shape and values["f"].shape[0] == 9


def test_without_a_view_it_is_the_sparse_gp():
    program = partial(invariant_gp, view=None)
    guide = InducingGuide(program, random_subset(4))
    identity = partial(invariant_gp, view=lambda X: Orbit.of_images(X.shape[1:]))
    params = guide.init_params(KEY, IMAGES, NUMBERS)
    of_views = InducingGuide(identity, unique_patches(4))
    of_views.setup(IMAGES, NUMBERS)
    flat = params | {"f_inducing": params["f_inducing"].reshape(4, -1)}
    bounds = bound(program, guide, params, IMAGES, NUMBERS), bound(identity, of_views, flat, IMAGES, NUMBERS)
    np.testing.assert_allclose(*bounds, rtol=1e-9)


@pytest.mark.slow
def test_the_learned_angle_can_have_a_posterior(standard_promotion):
    def program(X, y=None):
        angle = numpyro.sample("angle", dist.LogNormal(3.0, 0.5))
        kernel = Invariant(RBF(1.0, 1.0), Rotation(X.shape[1:], angle, **few))
        f = numpyro.sample("f", GaussianProcess(kernel, X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    guide = InducingGuide(program, unique_patches(4), hyperparameters="normal")
    svi = SVI(program, guide, adam(0.02), GaussianProcessELBO())
    idata = fit(KEY, svi, 5, IMAGES, NUMBERS, progress=False).to_arviz(KEY, IMAGES, NUMBERS, num_draws=20)
    angles = np.asarray(idata["posterior"]["angle"])
    assert angles.shape == (1, 20) and angles.std() > 0


@pytest.mark.slow
def test_a_deep_gp_on_invariant_features():
    program = partial(invariant_deep_gp, view=quarter_turns, width=2, likelihood=RobustMax, num_outputs=3)
    upper = InducingPoints(jnp.asarray(RNG.standard_normal((4, 2))))  # features are all zero at the start
    guide = InducingGuide(program, {"features": unique_patches(4), "f": upper})
    X = jnp.concatenate([IMAGES, jnp.rot90(IMAGES, axes=(1, 2))])
    y = jnp.concatenate([LABELS, LABELS])
    result = fit(KEY, SVI(program, guide, adam(0.02), GaussianProcessELBO()), 3, X, y, progress=False)
    test = result.predict(KEY, X, num_draws=3)
    # Turned images have the same features.
    np.testing.assert_allclose(test["features"].mean[:9], test["features"].mean[9:], rtol=1e-6, atol=1e-9)
    sampled = partial(invariant_deep_gp, view=rotation(**few), width=2)
    with pytest.raises(TypeError, match=r"'features' samples views.*Enumerate the views"):
        InducingGuide(sampled, unique_patches(4)).init_params(KEY, IMAGES, NUMBERS)


def test_other_likelihoods_refuse_in_a_users_program():
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(Invariant(RBF(1.0, 1.0), Rotation(X.shape[1:], 30.0, **few)), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Bernoulli(f), obs=y)

    with pytest.raises(TypeError, match="Use Gaussian, PolyaGamma"):
        InducingGuide(program, unique_patches(4)).init_params(KEY, IMAGES, LABELS % 2)


@pytest.mark.slow
def test_the_recognition_network_learns_the_best_c(standard_promotion):
    rng = np.random.default_rng(1)
    X = jnp.asarray(rng.normal(size=(200, 2)))
    y = jnp.asarray((np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=200) > 0).astype(int))

    def program(X, y=None, *, network):
        f = numpyro.sample("f", GaussianProcess(RBF(4.0, 1.0), X))
        c = recognition("recognition", X, y) if network and y is not None else None
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", PolyaGamma(f, c), obs=y)

    found = {}
    for network in (True, False):
        model = partial(program, network=network)
        guide = InducingGuide(model, random_subset(20))
        result = fit(KEY, SVI(model, guide, adam(0.02), GaussianProcessELBO()), 800, X, y, progress=False)
        found[network] = -result.losses[-1]
    # No network is better than the closed form, and a trained one comes near it.
    assert found[False] - 4 < found[True] < found[False] + 1e-3


@pytest.mark.slow
def test_real_digits_prefer_rotations_when_they_are_rotated(standard_promotion):
    data = datasets.load("digits").classes(0, 1)
    rng = np.random.default_rng(0)
    turned = [
        jnp.asarray(np.stack([np.rot90(x, k) for x, k in zip(X, rng.integers(0, 4, len(X)), strict=True)]))
        for X in (data.X_train, data.X_test)
    ]
    y = [2.0 * labels.astype(np.float32) - 1 for labels in (data.y_train, data.y_test)]
    candidates = {
        "none": (partial(invariant_gp, view=None, lengthscale=2.0), random_subset(20)),
        "turns": (partial(invariant_gp, view=quarter_turns, lengthscale=2.0), unique_patches(20)),
        "some turns": (
            partial(invariant_gp, view=lambda X: Subsampled(quarter_turns(X), 2), lengthscale=2.0),
            unique_patches(20),
        ),
    }
    data = (turned[0], y[0], turned[1], y[1])
    options = {"batch_size": 50, "learning_rate": 0.02, "progress": False}
    found = compare(KEY, candidates, *data, num_steps=200, score=rmse, **options)
    assert next(iter(found)) in ("turns", "some turns") and list(found)[-1] == "none"
    assert found["turns"].bound > found["none"].bound + 0.2
    assert found["turns"].score < 0.8 * found["none"].score
    lines = repr(found).splitlines()
    assert lines[0].split() == ["bound", "per", "row", "test", "nlpp", "rmse", "seconds"] and len(lines) == 4


@pytest.mark.slow
def test_comparisons_without_test_data_or_a_name_of_the_score(standard_promotion, capsys):
    candidate, X, y = (partial(invariant_gp, view=None), random_subset(4)), IMAGES, NUMBERS
    unnamed = compare(KEY, {"a": candidate}, X, y, X, y, num_steps=2, score=partial(rmse), progress=True)
    assert capsys.readouterr().out.startswith("Training 'a' on the CPU;")
    assert "score" in repr(unnamed).splitlines()[0].split()
    without = compare(KEY, {"none": candidate}, X, y, num_steps=2, progress=False)
    assert without["none"].nlpp is None and "-" in repr(without).splitlines()[1].split()


def test_comparisons_without_sense_are_refused():
    with pytest.raises(ValueError, match="needs candidates"):
        compare(KEY, {}, IMAGES, NUMBERS, num_steps=1)
    pair = (partial(invariant_gp, view=None), random_subset(2))
    with pytest.raises(ValueError, match="both X_test and y_test"):
        compare(KEY, {"a": pair}, IMAGES, NUMBERS, IMAGES, num_steps=1)
    with pytest.raises(ValueError, match="num_steps"):
        compare(KEY, {"a": pair}, IMAGES, NUMBERS, num_steps=0)
    with pytest.raises(ValueError, match="'b' must be a pair"):
        compare(KEY, {"a": pair, "b": pair[0]}, IMAGES, NUMBERS, num_steps=1)


def test_scores_of_predictions():
    y = np.array([0, 1, 1])
    probs = SitePrediction(None, None, None, np.array([[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]]))
    assert error_rate(probs, y) == pytest.approx(1 / 3)
    binary = SitePrediction(np.array([0.2, 0.6, 0.4]), np.ones(3), np.zeros(3))
    for labels in (y, y.astype(bool), y.astype(float)):
        assert error_rate(binary, labels) == pytest.approx(1 / 3)
    one_hot = SitePrediction(np.array([[2.0, 1], [0, 1], [1, 0]]), np.ones((3, 2)), np.zeros(3))
    assert error_rate(one_hot, np.eye(2)[y]) == pytest.approx(1 / 3)
    observed, unseen = np.eye(2)[[1, 0, 1]], np.array([[0, 1], [np.nan, np.nan], [1, 0]])
    assert error_rate(SitePrediction(observed, None, None), unseen) == 0.5
    column = SitePrediction(binary.mean[:, None], np.ones((3, 1)), None)
    assert error_rate(column, y[:, None]) == error_rate(binary, y) == pytest.approx(1 / 3)
    for score in (error_rate, rmse):
        for found, labels in ((binary, y[:, None]), (column, y)):
            with pytest.raises(ValueError, match="y of a score has shape"):
                score(found, labels)
    with pytest.raises(ValueError, match="y of a score has shape"):
        error_rate(probs, y[:, None])
    assert rmse(binary, y) == pytest.approx(np.sqrt((0.04 + 0.16 + 0.36) / 3))


REFUSED = {
    "flat images": (partial(invariant_gp, view=rotation()), IMAGES.reshape(9, -1), r"reshape\(-1, H, W, C\)"),
    "one class": (partial(invariant_classifier, view=None, num_classes=1), IMAGES, "num_classes must be 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_programs_refuse_nonsense(case):
    program, X, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        handlers.seed(program, 0)(X, NUMBERS)


@pytest.mark.slow
def test_features_are_averaged_over_views():
    """Over an orbit exactly; over sampled views, new ones for each input in training, else those of every call."""

    def network(X, training):
        return X.reshape(len(X), -1)[:, :7] ** 2

    orbit = Orbit.of_images((5, 5), rotations=True)
    found = averaged(network, orbit)(IMAGES, False)
    turned = [network(np.rot90(IMAGES, k, (1, 2)), False) for k in range(4)]
    np.testing.assert_allclose(found, np.mean(turned, axis=0), rtol=1e-12)
    np.testing.assert_allclose(averaged(network, orbit)(jnp.rot90(IMAGES, 1, (1, 2)), True), found, rtol=1e-12)
    sampled = averaged(network, rotation(90.0, **few))
    still = sampled(IMAGES, False)
    np.testing.assert_allclose(sampled(IMAGES[3:5], False), still[3:5], rtol=1e-12)
    moving = [handlers.seed(sampled, seed)(jnp.broadcast_to(IMAGES[0], IMAGES.shape), True) for seed in (0, 1)]
    assert np.ptp(moving[0], axis=0).max() > 0.1 and np.abs(moving[0] - moving[1]).max() > 0.1
    with pytest.raises(TypeError, match="view must be a view, or a function of X"):
        averaged(network, 3)(IMAGES, False)
    with pytest.raises(ValueError, match="Views must have the 25 numbers of an input, got 9"):
        averaged(network, Patches((5, 5), (3, 3)))(IMAGES, False)


@pytest.mark.slow
def test_a_deep_kernel_learns_its_views():
    weights = RNG.standard_normal((25, 3))
    module = (lambda key, shape: (None, weights)), (lambda params, X: jnp.tanh(X.reshape(len(X), -1) @ params))
    program = partial(deep_kernel_gp, network=averaged(network_of(module), affine(**few)))
    guide = InducingGuide(program, random_subset(4))
    svi = SVI(program, guide, adam(0.05), GaussianProcessELBO())
    result = fit(KEY, svi, 5, IMAGES, LABELS, model_kwargs={"training": True}, progress=False)
    start = guide.init_params(KEY, IMAGES, LABELS)
    assert all(np.abs(result.params[name] - start[name]).min() > 0 for name in AFFINE)
    whole, parts = (result.predict(KEY, IMAGES, batch_size=size)["y"].probs for size in (9, 4))
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    idata = result.to_arviz(KEY, IMAGES, LABELS, num_draws=3)
    assert {"affine_low", "affine_high", "f"} <= set(idata["posterior"].data_vars)


@pytest.mark.slow
def test_views_as_they_stand_and_with_names_of_their_own(standard_promotion):
    orbit = Orbit.of_images((5, 5), rotations=True)
    first, second = (partial(invariant_gp, view=view) for view in (orbit, quarter_turns))
    np.testing.assert_array_equal(*(drawn_from(program)["f"] for program in (first, second)))
    plain = partial(invariant_convolutional_gp, view=None, patch_shape=(3, 3))
    assert jax.eval_shape(partial(drawn_from, plain))["f"].shape == (9,)

    def two(X, y=None):
        views = [rotation(5.0, prefix="left_", **few), rotation(80.0, prefix="right_", **few)]
        sites = [
            numpyro.sample(name, GaussianProcess(Invariant(RBF(1.0, 1.0), view(X)), X))
            for name, view in zip(("f", "g"), views, strict=True)
        ]
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(sites[0] + sites[1], 0.1), obs=y)

    params = InducingGuide(two, unique_patches(3)).init_params(KEY, IMAGES, NUMBERS)
    assert params["left_angle"] == 5 and params["right_angle"] == 80
