"""Noise that the marginals of several GP sites share, by which the variance of their sum is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo._pytree import Fields, static


class SharedNoise(Fields):
    """The parts of a value ``f`` that depend on standard normal noise ``e_s`` of several sources.

    ``f_nk = constant + rest_nk + sum_s loads_s[:, n, k]^T e_s[:, k]``, with independent rest of variance
    ``residual_nk``. Each output has noise of its own. What data have taken from prior variances are sources as well,
    whose products count less than nothing.

    Attributes:
        residual: ``[N, K]``.
        loads: ``[M_s, N, K]`` for each source.
        sources: their names.
        taken: the names of those whose variances and covariances are taken away.
    """

    residual: Float[Array, "N K"]
    loads: tuple[Float[Array, "_ N K"], ...]
    sources: tuple[str, ...] = static()
    taken: frozenset[str] = static()

    @classmethod
    def of(
        cls, residual: Float[Array, "N *K"], factors: Mapping[str, Float[Array, "K _ N"]], taken: bool = False
    ) -> Self:
        """The parts of a site's own value, of which ``factors`` are by source."""
        loads = tuple(jnp.transpose(factor, (1, 2, 0)) for factor in factors.values())
        sources = tuple(factors)
        return cls(residual.reshape(len(residual), -1), loads, sources, frozenset(sources if taken else ()))

    def variance(self) -> Float[Array, "N K"]:
        """Of ``f``; rounding may leave less than nothing of what data take from."""
        total = self.residual
        for source, x in zip(self.sources, self.loads, strict=True):
            square = jnp.sum(jnp.square(x), axis=0)
            total = total - square if source in self.taken else total + square
        return jnp.maximum(total, jnp.finfo(total.dtype).eps * self.residual) if self.taken else total

    def plus(self, other: SharedNoise) -> SharedNoise:
        """The parts of ``f + g``."""
        found = dict(zip(self.sources, self.loads, strict=True))
        for source, x in zip(other.sources, other.loads, strict=True):
            found[source] = found[source] + x if source in found else x
        taken = self.taken | other.taken
        return SharedNoise(self.residual + other.residual, tuple(found.values()), tuple(found), taken)

    def beside(self, variance: Float[Array, "N *K"]) -> Self:
        """The parts of ``f + g`` for an independent ``g``."""
        return self._with_fields(residual=self.residual + variance.reshape(self.residual.shape))

    # -- what GaussianMarginals do to their parts --------------------------------------------------------------------

    def scaled(self, c: Any) -> Self:
        """The parts of ``f * c``, of a number or rank two."""
        loads = tuple(x * c for x in self.loads)
        return self._with_fields(residual=self.residual * jnp.square(c), loads=loads)

    def rows(self, index: Any) -> Self:
        """The parts of ``f[index]``."""
        return self._with_fields(residual=self.residual[index], loads=tuple(x[:, index] for x in self.loads))

    def mixed(self, A: Any) -> NoReturn:
        """Refused, since outputs of ``f @ A`` would share noise."""
        self._refuse("f @ A")

    def columns(self, index: Any) -> NoReturn:
        """Refused likewise."""
        self._refuse("f[:, k]")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(
            f"GP sites {', '.join(self.sources)} have one joint q here, by which their outputs are not mixed or chosen "
            f"({what}), as they were not when the guide was set up: InducingGuide(coupled=False) gives each its own."
        )
