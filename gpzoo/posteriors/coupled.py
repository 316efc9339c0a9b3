"""Forms of one normal ``q`` of the inducing variables of several GP sites; each site has its rows of the root.

Let ``u_i`` be the variables of site ``i`` (whitened if the site's variables are) and ``e_j`` independent standard
normal numbers. Then

``u_i = m_i + sum_(j < i) C_ij e_j + L_i e_i``.

``C_ij`` and lower-triangular ``L_i`` are the rows of a lower-triangular root of the joint covariance, which can be any
covariance. The priors of the sites are independent, so the KL divergence from them is a sum over sites. Often, the data
determine the sum of the sites better than each site. The noise ``e`` that the sites share
(:class:`~gpzoo.processes.shared.SharedNoise`) represents this.

If sites have the same number of outputs, and a program adds only outputs with the same number, each output has its own
root. Other programs mix or choose outputs, ``f @ A + g`` or ``f[:, 0] + g``, or add sites with different numbers of
outputs. Then a row of data can depend on several outputs. So ``u_i`` are the variables of all outputs of a site, one
output below the other, and there is one root (``together``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jax import Array, random
from jax.scipy.linalg import block_diag
from jaxtyping import Float, PRNGKeyArray

from gpzoo import linalg
from gpzoo._pytree import static
from gpzoo.linalg.operators import einsum, matmul
from gpzoo.linalg.quadratic import distance, lower_squares, lower_trace, spread, squares
from gpzoo.posteriors.base import Conditional, Form
from gpzoo.posteriors.forms import Full


class Coupled(Form):
    """The covariance of a site's inducing variables, for the first of several sites that share one ``q``.

    Args:
        scale: lower-triangular ``L``, ``[M, M]`` or ``[D, M, M]``; ``[D M, D M]`` if outputs are together.
        group: names of the sites, in the order of the root's rows.
        sizes: number of rows of the root for each site before this one.
        together: whether all outputs of these sites share one root. Otherwise, each output has its own root.
    """

    scale: Any
    group: tuple[str, ...] = static(default=())
    sizes: tuple[int, ...] = static(default=())
    together: bool = static(default=False)
    #: Whether the shared part is subtracted from variances; see :class:`~gpzoo.processes.shared.SharedNoise`.
    taken: ClassVar[bool] = False

    def __init__(
        self,
        scale: Any = None,
        *,
        group: tuple[str, ...] = (),
        sizes: tuple[int, ...] = (),
        together: bool = False,
    ) -> None:
        self.scale, self.group, self.sizes, self.together = scale, group, sizes, together

    @property
    def said(self) -> str:
        """See :attr:`Form.said`."""
        return f"'full' of one q with {', '.join(map(repr, self.group))}"

    def goes_with(self, conditional: Conditional) -> bool:
        """Whether the inducing variables are not a grid; see :meth:`Form.goes_with`."""
        return conditional.inducing.num_axes == 0

    def start(self, conditional: Conditional, scale: float | Array) -> Self:
        """The prior's factor times ``scale``, without shared noise."""
        return self.with_values(**self.alone(Full().start(conditional, scale).scale))

    def alone(self, scale: Float[Array, "*D M M"]) -> dict[str, Float[Array, "..."]]:
        """The values for which outputs and sites are independent, with ``scale`` as the root of each covariance."""
        return {"scale": block_diag(*scale) if self.together and scale.ndim == 3 else scale}

    def num_rows(self, num_inducing: int, outputs: tuple[int, ...]) -> int:
        """The number of rows of the root that belong to a site; if outputs are together, for all its outputs."""
        return num_inducing * math.prod(outputs) if self.together else num_inducing

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Self:
        """See :meth:`Form.by_output`; if outputs are together, each has its rows of the root."""
        return self.with_values(scale=self._rows(jnp.tril(self.scale), num_inducing, num_outputs))

    def _rows(
        self, x: Float[Array, "*D _ K"], num_inducing: int, num_outputs: int | None
    ) -> Float[Array, "D {num_inducing} K"]:
        return x.reshape(num_outputs or 1, num_inducing, x.shape[-1])

    def _stacked(self, x: Float[Array, "D M K"]) -> Float[Array, "_ _ K"]:
        """The matrices of outputs, one below the other if outputs are together."""
        return x.reshape(1, -1, x.shape[-1]) if self.together else x

    def shared(self) -> list[Float[Array, "D M _"]]:
        """``C_ij`` for each site ``j`` before this one."""
        return []

    def root(self) -> Float[Array, "D M K"]:
        """``C_i1 ... L_i``, a root of the covariance of this site's outputs alone."""
        return jnp.concatenate([*self.shared(), self.scale], axis=-1)

    def factors(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> dict[str, Float[Array, "D _ N"]]:
        """``C_ij^T B`` and ``L_i^T B``, each by the name of the site whose noise it multiplies."""
        return dict(zip(self.group, (spread(B, R) for R in (*self.shared(), self.scale)), strict=False))

    def squares(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
        """See :meth:`Form.squares`."""
        own = squares if self.together else lower_squares
        return linalg.total([own(B, self.scale), *(squares(B, C) for C in self.shared())])

    def log_det(self) -> Float[Array, ""]:
        """This site's part of the log determinant of the joint covariance."""
        return jnp.sum(jnp.log(jnp.square(linalg.diagonal(self._stacked(self.scale)))))

    def trace(self) -> Float[Array, ""]:
        """See :meth:`Form.trace`."""
        return linalg.total([lower_trace(self._stacked(self.scale)), *(jnp.sum(jnp.square(C)) for C in self.shared())])

    def distance(self, residual: Float[Array, "D M"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """See :meth:`Form.distance`."""
        return distance(self._stacked(self.root()), self._stacked(residual[..., None])[..., 0])

    def draw(self, key: PRNGKeyArray) -> Float[Array, "M D"]:
        """See :meth:`Form.draw`."""
        R = self.root()
        return self.spread_noise(R, random.normal(key, (R.shape[-1], 1 if self.together else len(R)), R.dtype))

    def spread_noise(self, R: Float[Array, "D M K"], e: Float[Array, "_ *_"]) -> Float[Array, "M D"]:
        """Rows of the root times noise. The noise is ``[K, D]``, or ``[M, D]`` if outputs are together."""
        e = e.T.reshape(-1, 1) if self.together else e.reshape(len(e), -1)
        return einsum("dmk,kd->md", R, jnp.broadcast_to(e, (R.shape[-1], len(R))))

    def given(
        self, mean: Float[Array, "M *D"], noise: Mapping[str, Float[Array, "_ *_"]]
    ) -> tuple[Float[Array, "M *D"], Coupled]:
        """Mean and covariance of this site's variables, given the noise of the earlier sites.

        Args:
            mean: ``m``.
            noise: ``e`` of each site, by the site's name.
        """
        outputs = None if mean.ndim == 1 else mean.shape[1]
        for name, C in zip(self.group, self.by_output(len(mean), outputs).shared(), strict=False):
            mean = mean + self.spread_noise(C, noise[name]).reshape(mean.shape)
        return mean, Coupled(self.scale, group=self.group, together=self.together)


class CoupledAfter(Coupled):
    """The covariance of a site's inducing variables, for all but the first of several sites that share one ``q``.

    Args:
        scale: see :class:`Coupled`.
        cross: the matrices ``C`` for all earlier sites, side by side: ``[M, K]`` or ``[D, M, K]``; ``[D M, K]`` if
            outputs are together. ``K`` is the sum of ``sizes``.
        group: see :class:`Coupled`.
        sizes: see :class:`Coupled`.
        together: see :class:`Coupled`.
    """

    cross: Any = None

    def __init__(self, scale: Any = None, cross: Any = None, **options: Any) -> None:
        super().__init__(scale, **options)
        self.cross = cross

    def after(self, sizes: Iterable[int]) -> CoupledAfter:
        """The same form for a site that follows others; ``sizes`` are their numbers of inducing variables."""
        return CoupledAfter(group=self.group, sizes=tuple(sizes), together=self.together)

    def alone(self, scale: Float[Array, "*D M M"]) -> dict[str, Float[Array, "..."]]:
        """See :meth:`Coupled.alone`."""
        scale = super().alone(scale)["scale"]
        return {"scale": scale, "cross": jnp.zeros((*scale.shape[:-1], sum(self.sizes)), scale.dtype)}

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Self:
        """See :meth:`Coupled.by_output`."""
        cross = self._rows(self.cross, num_inducing, num_outputs)
        return super().by_output(num_inducing, num_outputs).with_values(cross=cross)

    def shared(self) -> list[Float[Array, "D M _"]]:
        """See :meth:`Coupled.shared`."""
        return jnp.split(self.cross, [sum(self.sizes[:i]) for i in range(1, len(self.sizes))], axis=-1)


def joint_root(forms: list[Coupled]) -> Float[Array, "*D T T"]:
    """The root of the covariance of all sites of a group, from their forms in the group's order."""
    rows, size = [], sum(form.scale.shape[-1] for form in forms)
    for form in forms:
        row = jnp.concatenate([getattr(form, "cross", form.scale[..., :0]), form.scale], axis=-1)
        pads = [(0, 0)] * (row.ndim - 1)
        rows.append(jnp.pad(row, [*pads, (0, size - row.shape[-1])]))
    return jnp.concatenate(rows, axis=-2)


def rows_of_root(root: Float[Array, "*D T T"], forms: list[Coupled]) -> list[Coupled]:
    """The forms of a group's sites, with values from a root of their joint covariance."""
    found, start = [], 0
    for form in forms:
        end = start + form.scale.shape[-1]
        row = root[..., start:end, :]
        values = {"cross": row[..., :start]} if isinstance(form, CoupledAfter) else {}
        found.append(form.with_values(scale=row[..., start:end], **values))
        start = end
    return found


def covariance(
    a: Mapping[str, Float[Array, "_ _ N"]], b: Mapping[str, Float[Array, "_ _ L"]]
) -> Float[Array, "_ N L"] | None:
    """The covariance of two sites from their :meth:`Coupled.factors`; ``None`` if the sites share no noise.

    Output ``d`` of one site is paired with output ``d`` of the other site. A single output is paired with each output
    of the other site.
    """
    return linalg.total([matmul(a[name].mT, b[name]) for name in a.keys() & b.keys()]) if a.keys() & b.keys() else None
