"""Noise that the marginals of several GP sites share, by which the variance of their sum is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo._pytree import Fields, static
from gpzoo.linalg.operators import total


class SharedNoise(Fields):
    """The part of a value ``f`` that depends on standard normal noise ``e_s`` of several sources.

    It is ``sum_s loads_s[:, n, k]^T e_s``, with one ``e_s`` for all outputs or, where these are apart, one for each.

    Attributes:
        loads: ``[M_s, N, K]`` for each source.
        sources: their names.
        apart: whether each output has noise of its own.
    """

    loads: tuple[Float[Array, "_ N K"], ...]
    sources: tuple[str, ...] = static()
    apart: bool = static(default=False)

    @classmethod
    def of(cls, factors: Mapping[str, Float[Array, "K _ N"]], apart: bool) -> Self:
        """The part of a site's own value, of which ``factors`` are by source."""
        loads = tuple(jnp.transpose(factor, (1, 2, 0)) for factor in factors.values())
        return cls(loads, tuple(factors), apart)

    def variance(self) -> Float[Array, "N K"]:
        """Of every entry."""
        return total(jnp.sum(jnp.square(x), axis=0) for x in self.loads)

    def covariance(self) -> Float[Array, "N K K"]:
        """Of the outputs of every row."""
        if self.apart:
            return self.variance()[..., None] * jnp.eye(self.loads[0].shape[-1], dtype=self.loads[0].dtype)
        return total(jnp.einsum("mnk,mnl->nkl", x, x) for x in self.loads)

    def plus(self, other: SharedNoise) -> SharedNoise:
        """The part of ``f + g``."""
        found = dict(zip(self.sources, self.loads, strict=True))
        for source, x in zip(other.sources, other.loads, strict=True):
            found[source] = found[source] + x if source in found else x
        return SharedNoise(tuple(found.values()), tuple(found), self.apart or other.apart)

    # -- what GaussianMarginals do to their parts --------------------------------------------------------------------

    def scaled(self, c: Any) -> Self:
        """The part of ``f * c``, of a number or rank two."""
        return self._with_fields(loads=tuple(x * c for x in self.loads))

    def rows(self, index: Any) -> Self:
        """The part of ``f[index]``."""
        return self._with_fields(loads=tuple(x[:, index] for x in self.loads))

    def mixed(self, A: Any) -> Self:
        """The part of ``f @ A``."""
        self._refuse_apart("f @ A")
        return self._with_fields(loads=tuple(x @ A for x in self.loads))

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
