"""Noise that the marginals of several GP sites share; the variance of the sum of these sites follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo._pytree import Fields, static
from gpzoo.linalg.operators import einsum, matmul, total


class SharedNoise(Fields):
    """The part of a value ``f`` that depends on standard normal noise ``e_s``, which several GP sites share.

    This part is ``sum_s loads_s[:, n, k]^T e_s`` at row ``n`` and output ``k``. ``s`` is a source of noise, such as a
    GP site. If ``apart`` is true, each output has its own ``e_s``; otherwise, all outputs have the same ``e_s``. Data
    reduce the prior's variance. This reduction is stored as a source, whose variance is subtracted (``taken``).

    Attributes:
        loads: ``[M_s, N, K]`` for each source, where ``M_s`` is the length of ``e_s``.
        sources: names of the sources.
        apart: whether each output has its own noise.
        taken: names of the sources whose variances and covariances are subtracted.
    """

    loads: tuple[Float[Array, "_ N K"], ...]
    sources: tuple[str, ...] = static()
    apart: bool = static(default=False)
    taken: frozenset[str] = static(default=frozenset())

    @classmethod
    def of(cls, factors: Mapping[str, Float[Array, "K _ N"]], apart: bool, taken: bool = False) -> Self:
        """The part for a site's own value; ``factors`` has the loads of the site, by the name of the source."""
        loads, sources = tuple(jnp.transpose(factor, (1, 2, 0)) for factor in factors.values()), tuple(factors)
        return cls(loads, sources, apart, frozenset(sources if taken else ()))

    def variance(self) -> Float[Array, "N K"]:
        """The variance of every entry; the variances of sources in ``taken`` are subtracted."""
        return self._signed(lambda x: jnp.sum(jnp.square(x), axis=0))

    def covariance(self) -> Float[Array, "N K K"]:
        """The covariance of the outputs of every row."""
        if self.apart:
            return self.variance()[..., None] * jnp.eye(self.loads[0].shape[-1], dtype=self.loads[0].dtype)
        return self._signed(lambda x: einsum("mnk,mnl->nkl", x, x))

    def _signed(self, product: Callable[[Array], Array]) -> Array:
        """The sum of the products of all loads with themselves, with a minus for sources in ``taken``."""
        each = zip(self.sources, map(product, self.loads), strict=True)
        return total(-x if source in self.taken else x for source, x in each)

    def beside(self, variance: Float[Array, "N *K"]) -> Float[Array, "N *K"]:
        """The variance of ``f``: the variance of the shared noise, plus ``variance``, which is not shared."""
        found = variance + self.variance().reshape(variance.shape)
        return jnp.maximum(found, jnp.finfo(found.dtype).eps * variance) if self.taken else found

    def plus(self, other: SharedNoise) -> SharedNoise:
        """The part of ``f + g``."""
        found = dict(zip(self.sources, self.loads, strict=True))
        for source, x in zip(other.sources, other.loads, strict=True):
            found[source] = found[source] + x if source in found else x
        apart, taken = self.apart or other.apart, self.taken | other.taken
        return SharedNoise(tuple(found.values()), tuple(found), apart, taken)

    # -- operations of GaussianMarginals on their parts --------------------------------------------------------------

    def scaled(self, c: Any) -> Self:
        """The part of ``f * c``; ``c`` is a number or has rank two."""
        return self._with_fields(loads=tuple(x * c for x in self.loads))

    def rows(self, index: Any) -> Self:
        """The part of ``f[index]``."""
        return self._with_fields(loads=tuple(x[:, index] for x in self.loads))

    def mixed(self, A: Any) -> Self:
        """The part of ``f @ A``."""
        self._refuse_apart("f @ A")
        return self._with_fields(loads=tuple(matmul(x, A) for x in self.loads))

    def columns(self, index: Any) -> Self:
        """The part of ``f[:, index]``, with an index that keeps the axis."""
        self._refuse_apart("f[:, k]")
        return self._with_fields(loads=tuple(x[:, :, index] for x in self.loads))

    def _refuse_apart(self, what: str) -> None:
        if self.apart:
            raise ValueError(
                f"GP sites {', '.join(self.sources)} have one joint q for each output, and their outputs are mixed or "
                f"chosen here ({what}), as they were not when the guide was set up: build a new guide for this call, "
                "or give each site its own q, InducingGuide(coupled=False)."
            )
