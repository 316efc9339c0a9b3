"""Recognition networks for Pólya-Gamma likelihoods: ``c`` of ``q(omega) = PG(1, c)`` from an input and its label."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from gpzoo._extras import needs
from gpzoo.models.parameters import precision


def recognition(name: str, X: Array, y: Array, num_classes: int = 2, *, hidden: int = 64) -> Array:
    """A recognition network: from the input and the label of a row, it computes ``c_n`` of ``q(omega_n) = PG(1, c_n)``.

    See van der Wilk, Bauer, John and Hensman 2018, *Learning invariances using the marginal likelihood*, section 4.5.
    ``omega_n`` is the auxiliary variable of row ``n`` in the bound of :class:`~gpzoo.likelihoods.PolyaGamma`, and
    ``q(omega_n)`` is its approximate posterior.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import recognition
        >>> images, labels = np.zeros((5, 8, 8), np.float32), np.array([0, 1, 2, 1, 0])
        >>> handlers.seed(recognition, 0)("q", images, labels, num_classes=3).shape
        (5, 2)

    Args:
        name: name of the network's parameters, a ``numpyro.param`` site.
        X: inputs ``[N, ...]``.
        y: labels ``[N]``.
        num_classes: number of classes ``K``.
        hidden: units of the hidden layer.

    Returns:
        Positive numbers, ``[N]`` for two classes, else ``[N, K - 1]``.

    Raises:
        ModuleNotFoundError: without flax.
    """
    with needs("flax", "A recognition network"):
        from flax import linen
    from numpyro.contrib.module import flax_module

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: Array) -> Array:
            # Saturating units do not die after one large step, unlike rectified units.
            return linen.Dense(num_classes - 1)(jnp.tanh(linen.Dense(hidden)(x)))

    flat = X.reshape(len(X), -1)
    inputs = jnp.concatenate(
        [flat, jax.nn.one_hot(jnp.asarray(y).astype(jnp.int32), num_classes, dtype=precision(X))], axis=-1
    )
    c = jax.nn.softplus(flax_module(name, Network(), input_shape=inputs.shape)(inputs) + 1)
    return c[:, 0] if num_classes == 2 else c
