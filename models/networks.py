"""Networks of the deep-kernel experiments, as flax modules (Wilson et al. 2016, section 5). This module needs flax."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial, reduce

import jax.numpy as jnp
from jax import Array, lax

from gpzoo._extras import needs

with needs("flax", "A network of the deep-kernel experiments"):
    from flax import nnx


class FullyConnected(nnx.Module):
    """A fully connected network, ``d-1000-1000-500-50-c``, with rectified linear units.

    See Wilson et al. 2016, section 5.1.

    Args:
        num_inputs: number ``d`` of inputs; inputs with several axes are flattened.
        num_features: number ``c`` of features.
        widths: widths of the hidden layers.
        rngs: keys of the initial weights.
    """

    def __init__(
        self, num_inputs: int, num_features: int, widths: Sequence[int] = (1000, 1000, 500, 50), *, rngs: nnx.Rngs
    ) -> None:
        sizes = (num_inputs, *widths, num_features)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs, kernel_init=_HE) for a, b in itertools.pairwise(sizes)])

    def __call__(self, x: Array) -> Array:
        """Features ``[N, c]``."""
        x = x.reshape(len(x), -1)
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class LeNet(nnx.Module):
    """Two convolutions of 5x5 with max pooling, and a hidden layer of 500 units, as in Caffe's MNIST example.

    See Wilson et al. 2016, section 5.3.

    Args:
        num_features: number ``c`` of features.
        image_shape: shape ``(H, W, C)`` of an image.
        hidden: widths of the hidden layers after the convolutions. The baseline CNN+ of the paper has one more layer.
        rngs: keys of the initial weights.
    """

    def __init__(
        self,
        num_features: int,
        image_shape: tuple[int, int, int] = (28, 28, 1),
        hidden: Sequence[int] = (500,),
        *,
        rngs: nnx.Rngs,
    ) -> None:
        H, W, C = image_shape
        self.first = nnx.Conv(C, 20, (5, 5), padding="VALID", rngs=rngs)
        self.second = nnx.Conv(20, 50, (5, 5), padding="VALID", rngs=rngs)
        height, width = (((size - 4) // 2 - 4) // 2 for size in (H, W))
        self.top = FullyConnected(height * width * 50, num_features, hidden, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Features ``[N, c]``."""
        for layer in (self.first, self.second):
            x = _max_pool(layer(x), 2, "VALID")
        return self.top(x)


class QuickCNN(nnx.Module):
    """Three convolutions of 5x5 with pooling, as in Caffe's CIFAR-10 "quick" example.

    See Wilson et al. 2016, section 5.3. Units of the hidden layer are rectified here, but linear in Caffe's example.

    Args:
        num_features: number ``c`` of features.
        image_shape: shape ``(H, W, C)`` of an image.
        hidden: widths of the hidden layers after the convolutions.
        rngs: keys of the initial weights.
    """

    def __init__(
        self,
        num_features: int,
        image_shape: tuple[int, int, int] = (32, 32, 3),
        hidden: Sequence[int] = (64,),
        *,
        rngs: nnx.Rngs,
    ) -> None:
        H, W, C = image_shape
        options = {"kernel_init": _HE, "rngs": rngs}
        self.convolutions = nnx.List([nnx.Conv(a, b, (5, 5), **options) for a, b in ((C, 32), (32, 32), (32, 64))])
        self.top = FullyConnected(-(-H // 8) * -(-W // 8) * 64, num_features, hidden, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Features ``[N, c]``."""
        for i, layer in enumerate(self.convolutions):
            # As in Caffe, padding does not count in a mean.
            mean = partial(nnx.avg_pool, window_shape=(3, 3), strides=(2, 2), padding="SAME", count_include_pad=False)
            x = (mean if i else _max_pool)(nnx.relu(layer(x)))
        return self.top(x)


class AlexNet(nnx.Module):
    """Five convolutions with max pooling and two wide hidden layers, after Krizhevsky et al. (2012), for small images.

    Wilson et al. 2016 do not say which variant they use for ImageNet (section 5.3). Here the first convolution is 5x5
    with stride 2, not 11x11 with stride 4. Hidden layers have 1,024 units, and there is no dropout.

    Args:
        num_features: number ``c`` of features.
        image_shape: shape ``(H, W, C)`` of an image.
        hidden: widths of the hidden layers after the convolutions.
        rngs: keys of the initial weights.
    """

    def __init__(
        self,
        num_features: int,
        image_shape: tuple[int, int, int] = (64, 64, 3),
        hidden: Sequence[int] = (1024, 1024),
        *,
        rngs: nnx.Rngs,
    ) -> None:
        H, W, C = image_shape
        options = {"kernel_init": _HE, "rngs": rngs}
        self.first = nnx.Conv(C, 64, (5, 5), strides=(2, 2), **options)
        self.second = nnx.Conv(64, 192, (5, 5), **options)
        self.rest = nnx.List([nnx.Conv(a, b, (3, 3), **options) for a, b in ((192, 384), (384, 256), (256, 256))])
        # The first convolution and three poolings each halve the image.
        self.top = FullyConnected(-(-H // 16) * -(-W // 16) * 256, num_features, hidden, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Features ``[N, c]``."""
        for layer in (self.first, self.second):
            x = _max_pool(nnx.relu(layer(x)))
        for layer in self.rest:
            x = nnx.relu(layer(x))
        return self.top(_max_pool(x))


def _max_pool(x: Array, width: int = 3, padding: str = "SAME") -> Array:
    """Max pooling with stride 2.

    The gradient of ``nnx.max_pool`` takes XLA three times as long: 159 ms instead of 47 ms for 100 images of 32x32 and
    32 channels on one core.
    """
    window, strides = (1, width, width, 1), (1, 2, 2, 1)
    x = jnp.pad(x, lax.padtype_to_pads(x.shape, window, strides, padding), constant_values=-jnp.inf)
    H, W = ((size - width) // 2 * 2 + 1 for size in x.shape[1:3])
    return reduce(jnp.maximum, [x[:, i : i + H : 2, j : j + W : 2] for i in range(width) for j in range(width)])


class ResNet20(nnx.Module):
    """The residual network of 20 layers for CIFAR-10 (He et al. 2016), with batch normalisation.

    Wilson et al. 2016 use this network in section 5.3.

    Args:
        num_features: number ``c`` of features.
        channels: number of channels of the images.
        hidden: widths of hidden layers after the convolutions. The original network has no hidden layers.
        rngs: keys of the initial weights.
    """

    def __init__(self, num_features: int, channels: int = 3, hidden: Sequence[int] = (), *, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(channels, 16, (3, 3), use_bias=False, kernel_init=_HE, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        widths = [(16, 16)] * 3 + [(16, 32)] + [(32, 32)] * 2 + [(32, 64)] + [(64, 64)] * 2
        self.blocks = nnx.List([_Residual(a, b, rngs=rngs) for a, b in widths])
        self.top = FullyConnected(64, num_features, hidden, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Features ``[N, c]``."""
        x = nnx.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.top(jnp.mean(x, axis=(1, 2)))


class _Residual(nnx.Module):
    def __init__(self, narrow: int, wide: int, *, rngs: nnx.Rngs) -> None:
        self.stride = 1 if narrow == wide else 2
        strides = (self.stride, self.stride)
        options = {"use_bias": False, "kernel_init": _HE, "rngs": rngs}
        # Centred on the pixels of the shortcut. With strides, "SAME" would be centred on their neighbours.
        self.first = nnx.Conv(narrow, wide, (3, 3), strides=strides, padding=((1, 1), (1, 1)), **options)
        self.second = nnx.Conv(wide, wide, (3, 3), **options)
        self.norms = nnx.List([nnx.BatchNorm(wide, momentum=0.9, rngs=rngs) for _ in range(2)])

    def __call__(self, x: Array) -> Array:
        y = nnx.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        # This shortcut has no parameters: it takes every other pixel, and zeros in the new channels.
        x = x[:, :: self.stride, :: self.stride]
        return nnx.relu(y + jnp.pad(x, [(0, 0)] * 3 + [(0, y.shape[-1] - x.shape[-1])]))


_HE = nnx.initializers.he_normal()
