"""Affine maps that make marginals from the outputs of a GP site, row by row."""

from __future__ import annotations

from typing import Any, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from gpzoo._pytree import Fields, static
from gpzoo.linalg.operators import einsum


class AffineMap(Fields):
    """The part of a value ``f`` that is linear in the outputs ``g`` ``[M, J]`` of one GP site.

    ``f_nk = constant + sum_j weights_nkj g_j[numbers_n]``, summed over sites. The ``parts`` of
    :class:`~gpzoo.GaussianMarginals` contain such maps. Operations on the marginals change the maps in the same way.

    Attributes:
        weights: ``[N, K]`` if output ``k`` of the value depends only on output ``k`` of the site, else ``[N, K, J]``.
            The axis ``N`` has length 1 if all rows have the same weights. The axis ``K`` of ``[N, K]`` has length 1 if
            all outputs have the same weights.
        numbers: rows of the site, one for each row of the value.
        site: name of the site.
        outputs: number ``J`` of the site's outputs.
        all_rows: whether ``numbers`` are all rows of the site, in the order of the site.
    """

    weights: Float[Array, "_ _ *J"]
    numbers: Integer[Array, " N"]
    site: str = static()
    outputs: int = static()
    all_rows: bool = static()

    def __init__(self, weights: Any, numbers: Any, site: str, outputs: int, all_rows: bool = True) -> None:
        self.weights, self.numbers, self.site, self.outputs, self.all_rows = weights, numbers, site, outputs, all_rows

    @classmethod
    def identity(cls, site: str, num_rows: int, outputs: int, dtype: Any) -> Self:
        """The map of a site's own value."""
        return cls(jnp.ones((1, 1), dtype), jnp.arange(num_rows), site, outputs)

    @property
    def apart(self) -> bool:
        """Whether each output of the value depends on one output of the site."""
        return self.weights.ndim == 2

    def dense(self) -> Float[Array, "_ K J"]:
        """The weights in their dense form, with an axis for the outputs of the site."""
        return (
            self.weights[:, :, None] * jnp.eye(self.outputs, dtype=self.weights.dtype) if self.apart else self.weights
        )

    def taken(self, columns: Float[Array, "... M"]) -> Float[Array, "... N"]:
        """The entries of ``columns`` for the rows of the value; ``columns`` has one entry for each row of the site."""
        return columns if self.all_rows else columns[..., self.numbers]

    def __call__(self, outputs: Float[Array, "J M"]) -> Float[Array, "N K"]:
        """This part of the value, for given outputs of the site."""
        rows = self.taken(outputs).T
        return self.weights * rows if self.apart else jnp.sum(self.weights * rows[:, None, :], axis=-1)

    # -- operations of GaussianMarginals on their parts --------------------------------------------------------------

    def scaled(self, c: Any) -> Self:
        """The part of ``f * c``; ``c`` is a number or has rank two."""
        c = jnp.asarray(c, self.weights.dtype)
        return self._with_fields(weights=self.weights * (c[:, :, None] if c.ndim and not self.apart else c))

    def mixed(self, A: Float[Array, "K L"]) -> Self:
        """The part of ``f @ A``."""
        return self._with_fields(weights=einsum("nkj,kl->nlj", self.dense(), A.astype(self.weights.dtype)))

    def rows(self, index: Any) -> AffineMap:
        """The part of ``f[index]``."""
        same = self.weights.shape[0] == 1
        weights = self.weights if same else self.weights[index]
        return AffineMap(weights, self.numbers[index], self.site, self.outputs, all_rows=False)

    def columns(self, index: Any) -> Self:
        """The part of ``f[:, index]``, with an index that keeps the axis."""
        return self._with_fields(weights=self.dense()[:, index])
