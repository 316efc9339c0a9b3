"""The example networks are those of their sources: numbers of parameters, and what they compute, in NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.signal import correlate

nnx = pytest.importorskip("flax.nnx")

from gpzoo.models.networks import AlexNet, FullyConnected, LeNet, QuickCNN, ResNet20, _max_pool  # noqa: E402


def made(make):
    """A network whose initial weights come from one compiled program."""
    return nnx.jit(make)()


@pytest.mark.parametrize(
    ("make", "number"),
    [
        # d-1000-1000-500-50-c of the paper for d 8, c 2, by hand.
        (lambda rngs: FullyConnected(8, 2, rngs=rngs), 9000 + 1_001_000 + 500_500 + 25_050 + 102),
        # Published for Caffe's two examples, and for the residual network in its paper (0.27 million).
        (lambda rngs: LeNet(10, rngs=rngs), 431_080),
        (lambda rngs: QuickCNN(10, rngs=rngs), 145_578),
        (lambda rngs: ResNet20(10, rngs=rngs), 269_722),
    ],
)
def test_numbers_of_parameters(make, number):
    network = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(network, nnx.Param))) == number


@pytest.fixture
def images():
    return np.random.RandomState(0).randn(2, 16, 24, 3)


def convolved(x, layer, padding, stride=1):
    """Convolution as a sum of SciPy's correlations, of ``[N, H, W, C]``."""
    kernel = np.asarray(layer.kernel[...], np.float64)
    border = kernel.shape[0] // 2 if padding == "SAME" else 0
    x = np.pad(x, [(0, 0), (border, border), (border, border), (0, 0)])
    each = [
        np.stack([correlate(image, k, mode="valid")[..., 0] for k in np.moveaxis(kernel, -1, 0)], -1) for image in x
    ]
    bias = 0 if layer.bias is None else np.asarray(layer.bias[...], np.float64)
    return np.stack(each)[:, ::stride, ::stride] + bias


def pooled(x, reduce, size=3, stride=2):
    """Windows that begin in the image, cut where it ends."""
    rows = [x[:, i : i + size] for i in range(0, x.shape[1], stride)]
    each = [[reduce(row[:, :, j : j + size], axis=(1, 2)) for j in range(0, x.shape[2], stride)] for row in rows]
    return np.moveaxis(np.asarray(each), 2, 0)


def top(x, network):
    x = x.reshape(len(x), -1)
    for layer in network.layers:
        last = x @ np.asarray(layer.kernel[...], np.float64) + np.asarray(layer.bias[...])
        x = np.maximum(last, 0)
    return last


def test_convolutions_of_quick_cnn_are_caffes(images, standard_promotion):
    network = made(lambda: QuickCNN(4, images.shape[1:], rngs=nnx.Rngs(1)))
    x = images
    for layer, reduce in zip(network.convolutions, (np.max, np.mean, np.mean), strict=True):
        x = pooled(np.maximum(convolved(x, layer, "SAME"), 0), reduce)
    np.testing.assert_allclose(jax.jit(lambda x: network(x))(images), top(x, network.top), rtol=1e-5, atol=1e-5)


def test_lenet_is_caffes(images, standard_promotion):
    network = made(lambda: LeNet(4, images.shape[1:], rngs=nnx.Rngs(1)))
    x = images
    for layer in (network.first, network.second):
        x = pooled(convolved(x, layer, "VALID"), np.max, size=2)
    np.testing.assert_allclose(jax.jit(lambda x: network(x))(images), top(x, network.top), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding, width", [("SAME", 3), ("VALID", 2)])
@pytest.mark.parametrize("size", [(8, 9), (7, 2)])
def test_maxima_and_their_gradients_are_those_of_flax(size, padding, width):
    rng = np.random.default_rng(0)
    x = rng.permutation(4 * size[0] * size[1]).reshape(2, *size, 2).astype(np.float32)  # no ties

    def flax(x):
        return nnx.max_pool(x, (width, width), strides=(2, 2), padding=padding)

    weights = rng.standard_normal(flax(x).shape).astype(np.float32)
    found, wanted = (
        jax.jit(jax.value_and_grad(lambda x, pool=pool: (weights * pool(x)).sum()))(x)
        for pool in (lambda x: _max_pool(x, width, padding), flax)
    )
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)


def normalised(x, norm):
    """With the running statistics, which are zero and one."""
    return x / np.sqrt(1 + norm.epsilon) * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])


@pytest.mark.slow
def test_residual_network_is_that_of_its_paper(images, standard_promotion):
    network = made(lambda: ResNet20(4, rngs=nnx.Rngs(1)))
    network.eval()
    x = np.maximum(normalised(convolved(images, network.stem, "SAME"), network.norm), 0)
    widths = []
    for k, block in enumerate(network.blocks):
        stride = 2 if k in (3, 6) else 1
        inner = np.maximum(normalised(convolved(x, block.first, "SAME", stride), block.norms[0]), 0)
        inner = normalised(convolved(inner, block.second, "SAME"), block.norms[1])
        short = x[:, ::stride, ::stride]
        inner[..., : short.shape[-1]] += short
        x = np.maximum(inner, 0)
        widths.append(x.shape[1:])
    assert widths == [(16, 24, 16)] * 3 + [(8, 12, 32)] * 3 + [(4, 6, 64)] * 3
    np.testing.assert_allclose(
        jax.jit(lambda x: network(x))(images), top(x.mean(axis=(1, 2)), network.top), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow_but(shape=[(33, 20, 1)])
@pytest.mark.parametrize("shape", [(64, 64, 3), (33, 20, 1)])
def test_alexnet_takes_images_of_any_size(shape):
    found = jax.eval_shape(lambda: AlexNet(5, shape, (8,), rngs=nnx.Rngs(0))(jax.numpy.zeros((2, *shape), np.float32)))
    assert found.shape == (2, 5)
