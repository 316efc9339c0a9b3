"""What pictures hold: the numbers in their artists, their labels, and what they refuse."""

import subprocess
import sys
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax import random
from matplotlib.figure import Figure
from numpyro.infer import SVI

from gpzoo import InducingPoints, draws, random_subset, unique_patches
from gpzoo.inducing.initialisers import blocks
from gpzoo.inference import Candidate, GaussianProcessELBO, InducingGuide, Trained, fit, plots
from gpzoo.inference.diagnosis.calibration import pit_band
from gpzoo.inference.plots import _axes as draw
from gpzoo.inference.plots.layers import _line_through
from gpzoo.kernels import RBF, Matern12, Pointwise, White
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.models import convolutional_gp, convolutional_plus_rbf_gp, gp_classification, gp_regression, multi_channel_gp
from gpzoo.models.invariant import invariant_gp
from gpzoo.models.observations import log_gaussian_cox
from gpzoo.models.views import rotation
from gpzoo.processes.process import GaussianProcess
from gpzoo.views.orbits import Orbit
from tests.programs import KEY, at_start, bayesian_regression, deep, program_of, regression, sine


def made_up(*args, **options):
    """A model with parameters that nobody trained, away from their start."""
    start = at_start(*args, **options)
    noise = np.random.default_rng(1)
    moved = {"mean": lambda x: x + noise.standard_normal(x.shape), "scale": lambda x: 0.5 * x}
    params = {n: jax.tree.map(moved.get(n.rpartition("_")[2], jnp.asarray), x) for n, x in start.params.items()}
    return start.with_params(params)


def words(ax):
    """The entries of a legend."""
    return [] if ax.get_legend() is None else [text.get_text() for text in ax.get_legend().get_texts()]


def line(ax, name):
    """The data of the line with this entry in the legend."""
    return next(each for each in ax.get_lines() if each.get_label() == name).get_xydata()


@cache
def of_one_input():
    X, y = sine(20)
    return made_up(regression, InducingPoints(jnp.linspace(-2, 2, 5)[:, None]), X, y), X, y


@cache
def of_three_columns():
    X = np.random.default_rng(0).normal(size=(20, 3)) * np.array([0.1, 5.0, 0.1])
    return made_up(gp_regression, random_subset(4), X, X[:, 0]), X


def on_circle(n=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    return X, X[:, 0] ** 2 + X[:, 1]


@cache
def of_images(channels=1):
    rng = np.random.default_rng(0)
    return rng.uniform(size=(7, 5, 5, channels)), np.arange(7) % 2


@cache
def of_patches():
    X, labels = of_images()
    return made_up(partial(convolutional_gp, patch_shape=(3, 3)), unique_patches(9), X, labels), X, labels


def as_drawn(trained, grid):
    """The prediction behind a fit, whose compiled program is used again."""
    return trained.predict(KEY, grid, quantiles=(0.05, 0.95), num_draws=400)


# -- fits --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fit_shows_the_data_the_prediction_and_the_inducing_points():
    trained, X, y = of_one_input()
    ax = plots.fit_1d(KEY, trained, X, y, draws=3)
    np.testing.assert_array_equal(line(ax, "data"), np.column_stack([X[:, 0], y]))
    np.testing.assert_array_equal(line(ax, "inducing points")[:, 0], np.linspace(-2, 2, 5))
    mean = line(ax, "mean of y")
    assert mean[0, 0] < X.min() and mean[-1, 0] > X.max()
    predicted = as_drawn(trained, mean[:, :1])
    np.testing.assert_allclose(mean[:, 1], predicted["y"].mean)
    for band, site in zip(ax.collections, ("y", "f"), strict=True):
        corners = band.get_paths()[0].vertices
        assert corners[:, 1].max() == pytest.approx(predicted[site].quantiles[1].max())
        assert corners[:, 1].min() == pytest.approx(predicted[site].quantiles[0].min())
    assert words(ax) == ["central 90 % of y", "central 90 % of f", "mean of y", "draws of f", "data", "inducing points"]
    assert sum(each.get_linewidth() == 0.5 for each in ax.get_lines()) == 3
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("X", "y")


@pytest.mark.slow
def test_a_fit_draws_into_given_axes_and_without_data_it_has_none():
    trained, X, _ = of_one_input()
    given = plots.blank(4, 3).subplots()
    ax = plots.fit_1d(KEY, trained, X, draws=0, ax=given)
    assert ax is given and "data" not in words(ax) and "draws of f" not in words(ax)


@pytest.mark.slow
def test_a_fit_of_waiting_times_is_on_the_scale_of_times():
    times = program_of(lambda f: Expected(lambda f: dist.Exponential(jnp.exp(f)), f))

    X, _ = sine(12)
    y = np.linspace(0.1, 2.0, 12)
    ax = plots.fit_1d(KEY, made_up(times, random_subset(4), X, y), X, y, draws=2)
    assert "central 90 % of E[y | f]" in words(ax) and "draws of E[y | f]" in words(ax)
    assert min(vertex[1] for vertex in ax.collections[1].get_paths()[0].vertices) > 0


@pytest.mark.slow
def test_counts_of_trials_are_on_the_scale_of_the_data():
    """Their law has probabilities, too, which are those of one trial."""

    def trials(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", dist.Binomial(20, logits=draws(f)), obs=y)

    X, _ = sine(12)
    y = np.full(12, 10)
    with jax.numpy_dtype_promotion("standard"):  # NumPyro's law mixes dtypes
        ax = plots.fit_1d(KEY, made_up(trials, random_subset(4), X, y), X, y)
    mean, drawn = line(ax, "mean of y")[:, 1], line(ax, "draws of E[y | f]")[:, 1]
    assert mean.mean() > 5 and drawn.mean() > 5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [int, np.uint8, float])
def test_pictures_are_fine_between_whole_numbers(dtype):
    X = np.stack(np.meshgrid(np.arange(4), np.arange(4)), axis=-1).reshape(-1, 2).astype(dtype)
    trained = made_up(gp_regression, random_subset(4), X, 1.0 * X[:, 0])
    (image,) = plots.field_2d(KEY, trained, X).images
    assert len(np.unique(np.asarray(image.get_array())[30])) > 50
    trained = made_up(gp_regression, random_subset(4), X[:, :1], 1.0 * X[:, 0])
    assert len(np.unique(line(plots.fit_1d(KEY, trained, X[:, :1]), "mean of y")[:, 0])) > 50


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1), np.random.default_rng(1).permutation(9000)])
def test_the_line_through_inputs_does_not_depend_on_the_order_of_rows(order):
    X = np.random.default_rng(0).standard_normal((9000, 2)) * [0.3, 1.0]
    _, through, _ = _line_through(X[np.argsort(X[:, 1])][order], "X")
    np.testing.assert_allclose(np.abs(through[-1] - through[0]), [0, 5], atol=0.2)


@pytest.mark.slow
def test_a_fit_of_data_without_a_mean_shows_that_of_the_function():
    outliers = program_of(lambda f: Expected(lambda f: dist.Cauchy(f, 0.1), f))

    X, y = sine(12)
    ax = plots.fit_1d(KEY, made_up(outliers, random_subset(4), X, y), X, y)
    assert words(ax)[:3] == ["central 90 % of y", "central 90 % of f", "mean of f"]
    assert np.isfinite(line(ax, "mean of f")).all()


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_a_fit_of_classes_shows_probabilities(classes):
    X, _ = sine(12)
    model, labels = partial(gp_classification, num_classes=classes), np.arange(12) % classes
    trained = made_up(model, random_subset(4), X, labels)
    ax = plots.fit_1d(KEY, trained, X, labels)
    shown = [1] if classes == 2 else [0, 1, 2]
    curves = [line(ax, f"P(y = {k})") for k in shown]
    found = as_drawn(trained, curves[0][:, :1])["y"]
    probs = found.mean[:, None] if classes == 2 else found.probs
    for curve, expected in zip(curves, probs.T, strict=True):
        np.testing.assert_allclose(curve[:, 1], expected, atol=1e-6)
    marks = [each for each in ax.get_lines() if each.get_marker() == "|" and each.get_label() != "inducing points"]
    assert sorted(np.concatenate([each.get_xdata() for each in marks])) == sorted(X[:, 0])
    assert ax.get_ylabel() == "probability"


@pytest.mark.slow
def test_several_outputs_have_their_colours():
    X, y = sine(12)
    model = partial(gp_regression, num_outputs=2)
    Y = np.stack([y, -y], axis=1)
    ax = plots.fit_1d(KEY, made_up(model, random_subset(4), X, Y), X, Y)
    assert {"mean of y 0", "mean of y 1"} <= set(words(ax)) and "draws of f" not in words(ax)


def exact(X, y=None):
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
    numpyro.sample("y", GaussianProcess(RBF(1.0, 0.7) + White(noise), X), obs=y)


def test_a_fit_of_exact_regression_is_conditioned_on_its_data():
    X, y = sine(12)
    samples = {"noise": np.array([0.05, 0.1, 0.2])}
    ax = plots.fit_1d(KEY, exact, X, y, posterior_samples=samples)
    assert words(ax) == ["central 90 % of y", "mean of y", "data"]
    (band,), mean = ax.collections, line(ax, "mean of y")
    by_hand = []
    for noise in samples["noise"]:
        K, cross = (np.exp(-np.square(at - np.asarray(X).T) / (2 * 0.7**2)) for at in (np.asarray(X), mean[:, :1]))
        by_hand.append(cross @ np.linalg.solve(K + (noise + 1e-6) * np.eye(12), y))
    np.testing.assert_allclose(mean[:, 1], np.mean(by_hand, axis=0), atol=1e-4)
    corners = band.get_paths()[0].vertices[:, 1]
    # Noise, and far from the data the prior's variance: 1.64 standard deviations to either side.
    assert 2 * 1.64 * 0.2 < np.ptp(corners) < 2 + 2 * 1.64 * 1.1


@pytest.mark.slow
def test_one_of_several_sites_is_named():
    def two(X, y=None):
        f, g = (numpyro.sample(name, GaussianProcess(RBF(1.0, 1.0), X)) for name in "fg")
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f + g, 0.1), obs=y)

    X, y = sine(12)
    trained = made_up(two, InducingPoints(X[:3]), X, y)
    with pytest.raises(ValueError, match="site"):
        plots.fit_1d(KEY, trained, X, y)
    assert "inducing points" in words(plots.fit_1d(KEY, trained, X, y, site="g"))


@pytest.mark.slow
def test_the_data_site_is_the_first_or_the_named_one():
    X, y = sine(12)

    def two(X, counts=None, levels=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("counts", Expected(lambda f: dist.Poisson(jnp.exp(f)), f), obs=counts)
            numpyro.sample("levels", Gaussian(f, 0.1), obs=levels)

    data = np.arange(12.0, dtype=np.float32) % 3, y
    trained = made_up(two, InducingPoints(X[:3]), X, *data)
    for name, values in zip((None, "levels"), data, strict=True):
        ax = plots.fit_1d(KEY, trained, X, *data, data=name)
        assert ax.get_ylabel() == (name or "counts")
        assert np.array_equal(line(ax, "data")[:, 1], values)


# -- fields and layers -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_field_shows_the_mean_and_the_data_in_its_colours():
    X, y = on_circle()
    trained = made_up(gp_regression, random_subset(5), X, y)
    ax = plots.field_2d(KEY, trained, X, y)
    (image,) = ax.get_images()
    shown = np.asarray(image.get_array())
    left, right, low, high = image.get_extent()
    corner = trained.predict(KEY, np.array([[left, low], [right, low], [left, high]]))["y"].mean
    np.testing.assert_allclose([shown[0, 0], shown[0, -1], shown[-1, 0]], corner, rtol=1e-6)
    dots = next(each for each in ax.collections if each.get_label() == "data")
    np.testing.assert_array_equal(dots.get_array(), y)
    assert dots.get_clim() == image.get_clim() and image.get_clim()[0] == -image.get_clim()[1]
    assert line(ax, "inducing points").shape == (5, 2)
    assert ax.get_xlabel() == "X, column 0" and "standard deviation of f" in words(ax)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_a_field_of_classes_marks_each_class(classes):
    X, y = on_circle()
    labels = np.digitize(y, [0.3] if classes == 2 else [0.0, 0.6])
    model = partial(gp_classification, num_classes=classes)
    ax = plots.field_2d(KEY, made_up(model, random_subset(5), X, labels), X, labels)
    for k in range(classes):
        np.testing.assert_array_equal(line(ax, f"data of class {k}"), X[labels == k])
    assert ("border of the likeliest class" if classes == 3 else "probability 1/2") in words(ax)


@pytest.mark.slow
@pytest.mark.parametrize("centred", [False, True])
def test_components_have_a_panel_each_with_the_band_of_their_functions(centred):
    X = np.linspace(0, 3, 12)[::-1, None]

    def program(X, y=None):
        f = numpyro.sample("second", GaussianProcess(RBF() + Matern12(0.5), X))
        f = f + numpyro.sample("first", GaussianProcess(RBF(2.0), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    model, parts = at_start(program, InducingPoints(X), X, X[:, 0]), {"second": ("slow", "quick")}
    panels = plots.components(KEY, model, X, parts=parts, centred=centred)
    names = ["second", "slow", "quick", "first"]
    assert [panel.get_ylabel() for panel in panels] == [f"{n}, centred" if centred else n for n in names]
    drawn, found = model.functions(KEY, X, num_draws=400, parts=parts), model.predict(KEY, X, parts=parts)
    for name, panel in zip(names, panels, strict=True):
        (line,) = panel.get_lines()
        mean = (drawn[name] - drawn[name].mean(1, keepdims=True)).mean(0) if centred else found[name].mean
        np.testing.assert_allclose(line.get_xdata(), X[::-1, 0])
        np.testing.assert_allclose(line.get_ydata(), mean[::-1], atol=1e-6)
    with pytest.raises(ValueError, match="column"):
        plots.components(KEY, model, X, column=1)


def test_components_need_no_spectral_density_unless_they_are_centred():
    X = np.column_stack([np.linspace(0, 3, 8), np.arange(8) % 2])

    def program(X, y=None):
        same = Pointwise(lambda a, b: jnp.where(a[0] == b[0], 1.0, 0.2), active_dims=[1])
        f = numpyro.sample("f", GaussianProcess(RBF(active_dims=[0]) * same, X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    model = at_start(program, InducingPoints(X), X, X[:, 0])
    (panel,) = plots.components(KEY, model, X)
    np.testing.assert_allclose(panel.get_lines()[0].get_ydata(), model.predict(KEY, X)["f"].mean)
    with pytest.raises(TypeError, match="spectral density"):
        plots.components(KEY, model, X, centred=True)


def test_components_of_a_dataset_are_along_its_coordinate():
    xarray = pytest.importorskip("xarray")
    t = np.array([0.0, 2.0, 1.0])
    data = xarray.Dataset({"y": ("t", t)}, {"t": t})

    def program(t, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(), t[:, None]))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    (panel,) = plots.components(KEY, at_start(program, InducingPoints(t[:, None]), t, t), data)
    np.testing.assert_array_equal(panel.get_lines()[0].get_xdata(), np.sort(t))


@pytest.mark.slow
def test_layers_have_a_panel_each_along_the_inputs():
    X, y = sine(12)
    trained = made_up(deep, random_subset(4), X, y)
    first, second = plots.layers(KEY, trained, X, y)
    assert (first.get_ylabel(), second.get_ylabel(), second.get_xlabel()) == ("h", "f", "X")
    prior = line(first, "prior mean")
    np.testing.assert_allclose(prior[:, 1], prior[:, 0])  # the mean of h is X
    with pytest.raises(ValueError, match="ax"):
        plots.layers(KEY, trained, X, y, ax=[first])


def test_layers_of_many_inputs_follow_the_direction_in_which_they_vary():
    (ax,) = plots.layers(KEY, *of_three_columns())
    assert "first principal direction" in ax.get_xlabel()
    assert np.ptp(line(ax, "mean")[:, 0]) == 5  # standard deviations


# -- training ----------------------------------------------------------------------------------------------------------


def test_the_bound_and_its_running_mean():
    trained, _, _ = of_one_input()
    losses = np.append([1e4, 1e3], np.linspace(100, 1, 198))
    ax = plots.elbo(Trained(trained.model, trained.guide, trained.params, losses=losses))
    bound, mean = (each.get_ydata() for each in ax.get_lines())
    np.testing.assert_array_equal(bound, -losses)
    np.testing.assert_allclose(mean[[0, 1, 50]], [-losses[0], -losses[:2].mean(), -losses[47:51].mean()])
    assert ax.get_ylabel() == "evidence lower bound (nats)" and words(ax)[1] == "mean of the last 4 values"
    assert -200 < ax.get_ylim()[0] < -99  # the first steps are left out


def test_several_trainings_are_told_apart():
    trained, _, _ = of_one_input()
    losses = np.stack([np.arange(100.0), np.arange(100.0)[::-1]])
    losses[1, 60:] = np.nan
    ax = plots.elbo(Trained(trained.model, trained.guide, trained.params, losses=losses))
    assert words(ax) == ["training 0", "training 1"] and len(line(ax, "training 1")) == 60


# -- kernels -----------------------------------------------------------------------------------------------------------


def test_lengthscales_by_column():
    trained, X = of_three_columns()
    trained = trained.with_params(dict(trained.params) | {"f_lengthscale": jnp.array([0.5, 2.0, 9.0])})
    ax = plots.lengthscales(trained, X, names=["age", "height", "mass"])
    assert [float(each.get_xdata()[0]) for each in ax.get_lines()[:3]] == [0.5, 2.0, 9.0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["age", "height", "mass"]
    np.testing.assert_allclose(line(ax, "spread of the column (s.d.)")[:, 0], X.std(axis=0))
    assert ax.get_xlabel() == "lengthscale (units of the inputs)" and ax.get_xscale() == "log"


def test_names_of_the_columns_that_a_kernel_sees():
    def some(X, y=None):
        scale = numpyro.param("scale", jnp.ones(2))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, scale, active_dims=(1, 3)), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    X = np.random.default_rng(0).normal(size=(12, 4))
    trained = made_up(some, random_subset(4), X, X[:, 0])
    for names, shown in ((["b", "d"], ["b", "d"]), (None, ["column 1", "column 3"])):
        ax = plots.lengthscales(trained, X, names=names)
        assert [text.get_text() for text in ax.get_yticklabels()] == shown


def test_lengthscales_with_a_posterior_have_intervals():
    X, y = sine(12)
    trained = made_up(bayesian_regression, random_subset(4), X, y, hyperparameters="normal")
    ax = plots.lengthscales(trained, X, y)
    (container,) = ax.containers
    assert container.has_xerr and words(ax)[-1] == "RBF of f"


@pytest.mark.slow
def test_one_lengthscale_serves_every_column_and_views_have_none():
    trained, X, labels = of_patches()
    ax = plots.lengthscales(trained, X, labels)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["every column"]


@pytest.mark.slow
def test_kernel_matrix_in_the_order_of_the_classes():
    X = np.arange(6.0)[:, None]
    labels = np.array([1, 0, 1, 0, 2, 2])
    trained = made_up(gp_regression, random_subset(3), X, X[:, 0])
    ax = plots.kernel_by_class(trained, X, labels=labels)
    order = [1, 3, 0, 2, 4, 5]
    prior = trained.posterior(KEY, X[order])["f"].prior
    np.testing.assert_allclose(ax.get_images()[0].get_array(), prior.kernel(prior.X))
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "1", "2"]
    assert [each.get_ydata()[0] for each in ax.get_lines()[::2]] == [1.5, 3.5]
    assert plots.kernel_by_class(trained, X, labels=labels, count=3).get_images()[0].get_array().shape == (3, 3)
    other = np.array([3, 0, 5, 1, 4, 2])
    by_row = plots.kernel_by_class(trained, pd.DataFrame(X), labels=pd.Series(labels)[other])
    np.testing.assert_array_equal(by_row.get_images()[0].get_array(), ax.get_images()[0].get_array())


@pytest.mark.slow
def test_kernel_matrix_of_columns_in_another_order():
    X = np.random.default_rng(0).normal(size=(6, 2))
    frame, labels = pd.DataFrame(X, columns=["a", "b"]), np.arange(6)

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, np.array([0.1, 10.0])), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    svi = SVI(program, InducingGuide(program, random_subset(3)), numpyro.optim.SGD(0.0), GaussianProcessELBO())
    trained = fit(KEY, svi, 1, frame, X[:, 0], progress=False)
    one, other = (plots.kernel_by_class(trained, x, labels=labels) for x in (frame, frame[["b", "a"]]))
    np.testing.assert_array_equal(one.get_images()[0].get_array(), other.get_images()[0].get_array())


# -- images ------------------------------------------------------------------------------------------------------------


def captions(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.slow
def test_inducing_patches_in_the_order_of_their_output():
    trained, X, labels = of_patches()
    ax = plots.inducing_images(trained, X[:1], labels[:1], count=4)
    mean = np.asarray(trained.posterior(KEY, X[:1])["f"].inducing_moments()[0])
    shown = np.argsort(mean)[[0, 3, 5, 8]]
    for image, k in zip(ax.get_images(), shown, strict=True):
        np.testing.assert_allclose(image.get_array(), trained.params["f_inducing"][k].reshape(3, 3))
    assert captions(ax) == [f"{mean[k]:.2g}" for k in shown]
    assert ax.get_title() == "4 of 9 inducing images, sorted by the posterior mean of u"


@pytest.mark.slow
def test_blocks_of_inducing_images_have_their_own_rows():
    X, _ = of_images()
    model, labels = partial(convolutional_plus_rbf_gp, patch_shape=(3, 3), num_classes=3), np.arange(7) % 3
    trained = made_up(model, blocks(unique_patches(4), random_subset(3)), X, labels)
    ax = plots.inducing_images(trained, X, labels, count=6)
    assert [np.shape(image.get_array()) for image in ax.get_images()] == [(3, 3)] * 3 + [(5, 5)] * 3
    assert "size of u (root mean square)" in ax.get_title()


def test_patch_weights_lie_at_their_places():
    trained, X, labels = of_patches()
    trained = trained.with_params(dict(trained.params) | {"weights": jnp.arange(9.0)})
    (image,) = plots.patch_weights(trained, X, labels).get_images()
    np.testing.assert_array_equal(image.get_array(), np.arange(9.0).reshape(3, 3))
    assert image.get_clim() == (-8, 8)


@pytest.mark.slow
def test_patch_weights_of_channels():
    X, labels = of_images(channels=2)
    trained = made_up(partial(multi_channel_gp, patch_shape=(4, 4)), blocks(unique_patches(4)), X, labels)
    trained = trained.with_params(dict(trained.params) | {"weights": jnp.arange(8.0)})
    ax = plots.patch_weights(trained, X, labels)
    assert captions(ax) == ["channel 0", "channel 1"]
    first, second = (np.asarray(image.get_array()) for image in ax.get_images())
    np.testing.assert_allclose(second / first.max(), np.arange(4.0, 8).reshape(2, 2) / 3)


@pytest.mark.slow
@pytest.mark.parametrize("learned", [True, False], ids=["sampled", "orbit"])
def test_augmentations_stand_beside_their_inputs(learned):
    X, _ = of_images()
    view = rotation(30.0, num_views=2, num_fixed=2) if learned else Orbit.of_images((5, 5), rotations=True)
    trained = made_up(partial(invariant_gp, view=view), unique_patches(4), X, X[:, 0, 0, 0])
    ax = plots.augmentations(KEY, trained, X[:2], count=3)
    shown = [np.asarray(image.get_array()) for image in ax.get_images()]
    assert len(shown) == 2 * (1 + 3)
    np.testing.assert_array_equal(shown[0], X[0, :, :, 0])
    np.testing.assert_array_equal(shown[4], X[1, :, :, 0])
    if not learned:
        np.testing.assert_allclose(shown[2], np.rot90(shown[0]))
    assert len(ax.patches) == 2  # frames


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_confusion_counts():
    probs = np.eye(3)[[0, 0, 1, 2, 2, 2]]
    ax = plots.confusion(probs, [0, 1, 1, 2, 2, 0])
    np.testing.assert_allclose(ax.get_images()[0].get_array(), [[1 / 2, 0, 1 / 2], [1 / 2, 1 / 2, 0], [0, 0, 1]])
    assert captions(ax) == ["1", "1", "1", "1", "2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted class", "true class")
    assert not plots.confusion(np.eye(20), np.arange(20)).texts  # too many to be read


def test_reliability_takes_the_probability_of_one_of_two_classes():
    sure, labels = np.linspace(0.01, 0.99, 200), np.arange(200) % 2
    one, both = (
        plots.reliability(p, labels).collections[-1].get_offsets() for p in (sure, np.stack([1 - sure, sure], 1))
    )
    np.testing.assert_array_equal(one, both)


def test_reliability_shows_bins_and_scores():
    probs = np.array([[0.9, 0.1]] * 10 + [[0.3, 0.7]] * 10)
    labels = np.array([0] * 10 + [1] * 5 + [0] * 5)
    ax = plots.reliability(probs, labels)
    dots = next(each for each in ax.collections if each.get_label() == "20 data in bins")
    np.testing.assert_allclose(sorted(map(tuple, dots.get_offsets())), [(0.7, 0.5), (0.9, 1.0)])
    assert "expected calibration error 0.150" in words(ax)


def test_pit_histogram_and_its_band():
    values = random.uniform(KEY, (200,))
    ax = plots.pit(values)
    np.testing.assert_array_equal([bar.get_height() for bar in ax.patches[:20]], np.histogram(values, 20, (0, 1))[0])
    band = ax.patches[20].get_bbox()
    assert (band.y0, band.y1) == pit_band(200, 20)


# -- containers --------------------------------------------------------------------------------------------------------


def container(**groups):
    """What either series of ArviZ gives: variables of a group by name."""
    xarray = pytest.importorskip("xarray")

    def dataset(variables):
        named = {n: (("chain", "draw", *[f"{n}_{i}" for i in range(x.ndim - 2)]), x) for n, x in variables.items()}
        return xarray.Dataset(named)

    return {group: dataset(variables) for group, variables in groups.items()}


def test_prior_against_posterior():
    rng = np.random.default_rng(0)
    draws = {"a": rng.normal(size=(1, 500, 2)), "b": np.full((1, 500), 0.5), "f": rng.normal(size=(1, 500, 30))}
    panels = plots.prior_posterior(
        container(prior={n: 3 + 0 * x + rng.normal(size=x.shape) for n, x in draws.items()}, posterior=draws)
    )
    assert [ax.get_xlabel() for ax in panels] == ["a[0]", "a[1]", "b"]
    assert words(panels[0]) == ["prior", "posterior"]
    (point,) = panels[2].get_lines()
    assert point.get_xdata()[0] == 0.5  # without a spread the posterior is a point
    only = plots.prior_posterior(
        container(prior=draws, posterior=draws), names=["a"], ax=plots.blank(4, 4).subplots(1, 2)
    )
    assert len(only) == 2


def test_against_nuts_in_its_own_units():
    rng = np.random.default_rng(0)
    nuts = {"a": 5 + 2 * rng.normal(size=(2, 2000)), "f": rng.normal(size=(2, 2000, 20))}
    svi = {"a": 7 + 1 * rng.normal(size=(1, 4000)), "f": rng.normal(size=(1, 4000, 20))}
    of_nuts = container(posterior=nuts)
    # Inducing variables may be at other inputs, and other in number.
    u = {"u": (("chain", "draw", "f_inducing_row"), np.zeros((1, 4000, 3)))}
    of_svi = {"posterior": container(posterior=svi)["posterior"][["f", "a"]].assign(u)}
    of_nuts["posterior"] = of_nuts["posterior"].assign(u=of_nuts["posterior"]["f"])
    ax = plots.against_nuts(of_svi, of_nuts)
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names[0] == "a" and names[1:] == [f"f[{i}]" for i in (0, 3, 5, 8, 11, 14, 16, 19)]
    ends, mean = line(ax, "SVI, central 90 %")[:, 0], line(ax, "SVI, mean")[0, 0]
    assert mean == pytest.approx(1, abs=0.1)  # shifted by one of its standard deviations
    assert np.ptp(ends) == pytest.approx(1.645, abs=0.1)  # and half as wide
    assert np.ptp(line(ax, "NUTS, central 90 %")[:, 0]) == pytest.approx(3.29, abs=0.2)


# -- surroundings ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pictures_leave_pyplot_alone_and_can_be_written(tmp_path):
    code = f"""
import sys
import numpy as np
from gpzoo.inference import plots
assert "matplotlib" not in sys.modules
plots.pit(np.linspace(0, 1, 50)).figure.savefig({str(tmp_path / "pit.png")!r})
import matplotlib
assert "matplotlib.pyplot" not in sys.modules
print(sorted(name for name in matplotlib.rcParams if matplotlib.rcParams[name] != matplotlib.rcParamsDefault[name]))
sys.modules["matplotlib"] = sys.modules["matplotlib.figure"] = None
try:
    plots.blank(1, 1)
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    settings, said = done.stdout.splitlines()
    assert set(eval(settings)) <= {"backend", "backend_fallback"}
    assert said == "Drawing needs matplotlib, which is not installed: pip install 'gpzoo[plots]'."
    assert (tmp_path / "pit.png").stat().st_size > 5000


def test_a_legend_covers_no_data_and_fits_the_figure():
    trained, X, y = of_one_input()
    ax = plots.fit_1d(KEY, trained, X, y)
    assert isinstance(ax.figure, Figure)
    ax.figure.draw_without_rendering()
    legend, frame, page = ax.get_legend().get_window_extent(), ax.get_window_extent(), ax.figure.bbox
    assert legend.y0 >= frame.y1
    assert page.x0 <= legend.x0 and legend.x1 <= page.x1 and legend.y1 <= page.y1


# -- refusals ----------------------------------------------------------------------------------------------------------


def of_line(draw, *key, **options):
    """A picture of the model of one input."""
    return lambda: draw(*key, *of_one_input(), **options)


def of_columns(draw, X, y):
    return lambda: draw(KEY, made_up(gp_regression, random_subset(4), X, y), X, y)


DRAWS, THREE = {"a": np.zeros((1, 5))}, np.zeros((3, 1))

#: A call, the error that it raises, and what this names.
REFUSED = [
    (of_line(plots.fit_1d, KEY, posterior_samples={"noise": np.ones(3)}), ValueError, "parameters"),
    (of_line(plots.fit_1d, KEY, site="g"), ValueError, "site"),
    (of_line(plots.fit_1d, KEY, data="g"), ValueError, "data"),
    (of_line(plots.fit_1d, KEY, num_draws=3), TypeError, "num_draws"),
    (of_line(plots.fit_1d, KEY, draws=-1), ValueError, "draws"),
    (of_columns(plots.fit_1d, *on_circle(12)), ValueError, r"fit_1d.*\(12, 2\)"),
    (of_columns(plots.field_2d, *sine(12)), ValueError, r"field_2d.*\(12, 1\)"),
    (lambda: plots.elbo(of_one_input()[0]), ValueError, "losses"),
    (lambda: plots.lengthscales(*of_three_columns(), names=["age"]), ValueError, "names"),
    (of_line(plots.kernel_by_class, labels=np.zeros(4)), ValueError, "labels"),
    (of_line(plots.kernel_by_class, labels=np.zeros(20), output=1), ValueError, "output"),
    (of_line(plots.inducing_images), ValueError, "'f'"),
    (of_line(plots.inducing_images, count=0), ValueError, "count"),
    (of_line(plots.patch_weights), ValueError, "'f'"),
    (of_line(plots.augmentations, KEY), ValueError, "'f'"),
    (lambda: plots.augmentations(KEY, THREE, THREE[:, 0]), TypeError, "trained"),
    (lambda: plots.reliability(np.eye(2), np.array([0, 2])), ValueError, "labels"),
    (lambda: plots.pit([]), ValueError, "values"),
    (lambda: plots.pit([0.5, 1.2]), ValueError, "values"),
    (lambda: plots.pit([np.nan]), ValueError, "values"),
    (lambda: plots.prior_posterior(container(posterior=DRAWS)), ValueError, "'prior'"),
    (lambda: plots.prior_posterior(container(prior=DRAWS, posterior=DRAWS), names=["b"]), ValueError, "names"),
    (lambda: plots.prior_posterior(container(prior=DRAWS, posterior={"b": np.zeros((1, 5))})), ValueError, "posterior"),
    (
        lambda: plots.against_nuts(container(posterior=DRAWS), container(posterior={"a": np.zeros((1, 5, 2))})),
        ValueError,
        "'a'",
    ),
    (lambda: plots.against_nuts(container(posterior=DRAWS), container(posterior=DRAWS)), ValueError, "NUTS"),
]


@pytest.mark.parametrize("call, kind, argument", REFUSED)
def test_what_cannot_be_drawn_is_refused(call, kind, argument):
    with pytest.raises(kind, match=argument):
        call()


# -- along a column ----------------------------------------------------------------------------------------------------


def test_a_forecast_has_the_quantiles_of_new_rows_and_the_data_of_both():
    trained, X, y = of_one_input()
    order, new = np.random.default_rng(0).permutation(20), (X[:7] + 8, y[:7])
    ax = plots.forecast(KEY, trained, X[order], y[order], new=new, last=5)
    expected = trained.predict(KEY, new[0], quantiles=(0.05, 0.25, 0.75, 0.95), num_draws=400)["y"]
    np.testing.assert_allclose(line(ax, "mean"), np.column_stack([new[0][:, 0], expected.mean]))
    np.testing.assert_allclose(line(ax, "data"), np.column_stack([X[:, 0], y])[-5:])
    np.testing.assert_allclose(line(ax, "data to come")[:, 1], y[:7])
    bands = {each.name: each.y for each in draw.drawn_in(ax)}
    np.testing.assert_allclose(bands["central 90 %"], expected.quantiles[[0, 3]])
    np.testing.assert_allclose(bands["central 50 %"], expected.quantiles[[1, 2]])


@pytest.mark.slow
def test_series_are_drawn_at_all_arguments():
    """An exposure after the data counts; between the rows there is none."""
    X, _ = sine(12)
    y, exposure = np.arange(12), np.full(12, 10.0)
    trained = made_up(log_gaussian_cox, random_subset(4), X, y, exposure)
    ax = plots.forecast(KEY, trained, X, y, exposure, new=(X + 3, None, exposure))
    expected = trained.predict(KEY, X + 3, None, exposure, quantiles=(0.05,), num_draws=400)["y"].mean
    np.testing.assert_allclose(line(ax, "mean")[:, 1], expected, rtol=0.02)
    with pytest.raises(ValueError, match="a further argument"):
        plots.fit_1d(KEY, trained, X, y, exposure)
    assert plots.fit_1d(KEY, trained, X, y).get_xlabel() == "X"


def test_groups_have_a_panel_each_with_their_own_rows():
    trained, X, y = of_one_input()
    by = np.where(np.arange(20) % 3, "b", "a")
    panels = plots.groups(KEY, trained, X, y, by=by)
    assert [panel.get_title() for panel in panels] == ["a", "b"]
    for panel, name in zip(panels, "ab", strict=True):
        np.testing.assert_allclose(line(panel, "data"), np.column_stack([X[:, 0], y])[by == name])
    assert panels[0].get_ylim() == panels[1].get_ylim()
    grid = np.linspace(-3, 3, 8)[:, None]
    at_by, order = np.repeat(["b", "a"], 4), np.random.default_rng(0).permutation(8)
    for x, labels in ((grid, at_by), (pd.DataFrame(grid), pd.Series(at_by)[order])):
        panels = plots.groups(KEY, trained, X, y, by=by, at=(x,), at_by=labels)
        np.testing.assert_allclose(line(panels[0], "mean")[:, 0], grid[4:, 0])
    frame, order = pd.DataFrame(X), np.random.default_rng(0).permutation(20)
    panels = plots.groups(KEY, trained, frame, y, by=pd.Series(by)[order])
    np.testing.assert_allclose(line(panels[0], "data"), np.column_stack([X[:, 0], y])[by == "a"])


def test_models_stand_beside_each_other_on_one_scale():
    trained, X, y = of_one_input()
    found = {"one": trained, "other": Candidate(0.0, None, None, trained)}
    own = Figure().subplots(1, 2)
    panels = plots.beside(KEY, found, X, y, picture=plots.forecast, new=(X + 8,), ax=own)
    assert list(panels) == list(own) and [panel.get_title() for panel in panels] == ["one", "other"]
    np.testing.assert_allclose(line(panels[0], "mean"), line(panels[1], "mean"))
    assert panels[0].get_ylim() == panels[1].get_ylim()
    assert "mean" in words(panels[0]) and not words(panels[1])


NOT_ALONG = {
    "new": (lambda m, X, y: plots.forecast(KEY, m, X, y, new=X), TypeError, "new"),
    "column": (lambda m, X, y: plots.forecast(KEY, m, X, y, new=(X,), column=1), ValueError, "column"),
    "by": (lambda m, X, y: plots.groups(KEY, m, X, y, by=np.zeros(3)), ValueError, "by"),
    "at": (lambda m, X, y: plots.groups(KEY, m, X, y, by=y, at=(X,)), ValueError, "at_by"),
    "names": (lambda m, X, y: plots.beside(KEY, [m], X, y), TypeError, "models"),
    "none": (lambda m, X, y: plots.beside(KEY, {}, X, y), ValueError, "models"),
}


@pytest.mark.parametrize("name", NOT_ALONG)
def test_what_cannot_be_shown_along_a_column_is_refused(name):
    call, error, words = NOT_ALONG[name]
    with pytest.raises(error, match=words):
        call(*of_one_input())
