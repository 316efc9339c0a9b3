"""The property of convolutional kernels that the paper proves and the library can compute."""

from __future__ import annotations

import numpy as np

from gpzoo.reproductions.judge import Found, Judged, Value
from gpzoo.reproductions.records import Ours


def rank(found: Found, images: int, most: int) -> Judged:
    """The rank of the kernel matrix of images of 7 x 7 with one pixel on, by patches of 3 x 3 (appendix B)."""
    import jax
    import jax.numpy as jnp

    from gpzoo.kernels import RBF, Convolutional

    rng = np.random.RandomState(0)
    with jax.enable_x64(True):
        single = np.eye(49)[rng.permutation(49)[:images]].reshape(-1, 7, 7, 1)
        kernel = Convolutional(RBF(1.0, 1.0), (7, 7, 1), (3, 3), jnp.asarray(rng.standard_normal(25)))
        number = int(np.linalg.matrix_rank(np.asarray(kernel.gram(jnp.asarray(single))), hermitian=True))
    return Judged(number <= most, [Value("rank", Ours(number)), Value("images", Ours(images))])
