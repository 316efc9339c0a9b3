"""Views: patches against loops and golden numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo import View
from gpzoo.kernels import RBF, DoubleSum
from gpzoo.views.patches import Patches


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("stride, places", [(1, (4, 5)), (2, (2, 3)), (3, (2, 2))])
def test_patches_are_those_of_a_loop(channels, stride, places):
    X = np.random.default_rng(0).normal(size=(3, 5, 7, channels))
    view = Patches((5, 7, channels), (2, 3), stride=stride)
    patches = np.asarray(view.view(X))
    assert view.positions == places
    assert patches.shape == (3, view.num_views, view.view_size) == (3, places[0] * places[1] * channels, 6)
    index = 0
    for c, i, j in itertools.product(range(channels), range(0, 4, stride), range(0, 5, stride)):
        np.testing.assert_array_equal(patches[:, index], X[:, i : i + 2, j : j + 3, c].reshape(3, 6))
        index += 1


@pytest.mark.parametrize(
    "name",
    [
        "convgp_01_ti_rect_bernoulli",
        "convgp_03_weighted_digits_robustmax",
        "convgp_05_weighted_unwhitened_gaussian",
        "convgp_06_colour_perchannel_weighted",
    ],
)
def test_patches_golden(golden, name):
    arrays, _ = golden(name)
    height, width = (int(size) for size in arrays["in_image_shape"])
    X = arrays["in_X"].reshape(len(arrays["in_X"]), height, width, -1)
    view = Patches(X.shape[1:], arrays["in_patch_shape"])
    np.testing.assert_array_equal(view.view(X), arrays["out_patches"])


def test_patches_is_static_and_hashable():
    view = Patches((5, 4), (2, 3))
    assert view == Patches((5, 4, 1), (2, 3)) and hash(view) == hash(Patches((5, 4, 1), (2, 3)))
    assert jax.tree.leaves(view) == []
    assert jax.jit(lambda v: v)(view) == view


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((5, 4), (6, 2)), r"patch_shape \(6, 2\) does not fit into image_shape \(5, 4\)"),
        (((5, 4), (2, 5)), "does not fit"),
        (((5, 0), (1, 1)), r"image_shape must be 2 or 3 positive whole numbers, got \(5, 0\)"),
        (((5, 4), (1.5, 1)), "patch_shape must be 2 positive whole numbers"),
        (((5,), (1, 1)), "image_shape"),
        (((5, 4), (1, 1, 1)), "patch_shape"),
    ],
)
def test_patches_refuses_shapes(shapes, message):
    with pytest.raises(ValueError, match=message):
        Patches(*shapes)


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 5, 5, 1), (3, 5, 4, 2), (3, 20)])
def test_patches_refuses_images(shape):
    with pytest.raises(ValueError, match=r"X must be images \[N, H, W, C\].*got shape"):
        Patches((5, 4), (2, 3)).view(jnp.zeros(shape))


def test_a_view_of_images_is_told_its_rank():
    class Mirrored(View):
        num_views, view_size = 2, 12

        def view(self, X):
            return jnp.stack([X.reshape(len(X), -1), X[:, :, ::-1].reshape(len(X), -1)], axis=1)

    with pytest.raises(ValueError, match=r"\(5, 3, 4, 1\).*input_ndim = 3, and that of Mirrored is 1"):
        DoubleSum(RBF(), Mirrored())(np.zeros((5, 3, 4, 1)))


@pytest.mark.parametrize("num_views, view_size, more", [(4, 3, 0), (6, 3, 0), (5, 2, 0), (5, 4, 0), (5, 3, 1)])
@pytest.mark.parametrize("weighted", [False, True])
def test_views_of_another_shape_than_they_say_are_refused(num_views, view_size, more, weighted):
    said = {"num_views": property(lambda self: num_views), "view_size": property(lambda self: view_size)}

    def view(self, X):
        return jnp.stack([X[:, i : i + 3] for i in range(5)], axis=1).reshape(-1, 5, 3, *(1,) * more)

    kernel = DoubleSum(
        RBF(), type("Windows", (View,), {"view": view, **said})(), np.ones(num_views) if weighted else None
    )
    named, found = rf"\[N, num_views, view_size\] = \(2, {num_views}, {view_size}\)", r"shape \(2, 5, 3"
    for call in (kernel, kernel.diag, lambda X: kernel.cross_view(X, np.zeros((4, view_size)))):
        with pytest.raises(ValueError, match=f"Windows.view must give {named} .*{found}"):
            call(np.zeros((2, 7)))
