"""Forms of a normal ``q`` over the inducing variables of several GP sites, of which each site holds its rows.

With ``u_i`` the variables of site ``i`` (whitened where the site's are) and independent standard normal ``e_j``,

``u_i = m_i + sum_(j < i) C_ij e_j + L_i e_i``.

``C_ij`` and lower-triangular ``L_i`` are the rows of a lower-triangular root of the joint covariance, so that it can be
any. The priors of the sites are independent: the divergence from them is a sum over sites. What a sum of sites knows
better than each of them is in the ``e`` that they share (:class:`~gpzoo.processes.shared.SharedNoise`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import linalg
from gpzoo._pytree import static
from gpzoo.linalg.operators import matmul
from gpzoo.linalg.quadratic import lower_squares, lower_trace, spread, squares
from gpzoo.posteriors.base import Conditional, Form
from gpzoo.posteriors.forms import Full


class Coupled(Form):
    """The covariance of the first of several sites with one ``q``.

    Args:
        scale: lower-triangular ``L``, ``[M, M]`` or ``[D, M, M]``.
        group: names of the sites, in the order of the root's rows.
        sizes: numbers of inducing variables of the sites before this one.
    """

    scale: Any
    group: tuple[str, ...] = static(default=())
    sizes: tuple[int, ...] = static(default=())
    #: Whether what sites share is taken from their variances; see :class:`~gpzoo.processes.shared.SharedNoise`.
    taken: ClassVar[bool] = False

    def __init__(self, scale: Any = None, *, group: tuple[str, ...] = (), sizes: tuple[int, ...] = ()) -> None:
        self.scale, self.group, self.sizes = scale, group, sizes

    @property
    def said(self) -> str:
        """See :attr:`Form.said`."""
        return f"'full', coupled with {', '.join(map(repr, self.group))}"

    def goes_with(self, conditional: Conditional) -> bool:
        """No grids; see :meth:`Form.goes_with`."""
        return conditional.inducing.num_axes == 0

    def start(self, conditional: Conditional, scale: float | Array) -> Self:
        """The prior's factor times ``scale``, and nothing shared."""
        return self.with_values(scale=Full().start(conditional, scale).scale)

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Self:
        """See :meth:`Form.by_output`."""
        return self.with_values(scale=jnp.tril(self.scale if num_outputs is not None else self.scale[None]))

    def shared(self) -> list[Float[Array, "D M _"]]:
        """``C_ij`` for each site ``j`` before this one."""
        return []

    def root(self) -> Float[Array, "D M K"]:
        """``C_i1 ... L_i``, whose product with itself is the covariance of this site alone."""
        return jnp.concatenate([*self.shared(), self.scale], axis=-1)

    def factors(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> dict[str, Float[Array, "D _ N"]]:
        """``C_ij^T B`` and ``L_i^T B``, by the site whose noise they multiply."""
        return dict(zip(self.group, (spread(B, R) for R in (*self.shared(), self.scale)), strict=False))

    def squares(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
        """See :meth:`Form.squares`."""
        return linalg.total([lower_squares(B, self.scale), *(squares(B, C) for C in self.shared())])

    def log_det(self) -> Float[Array, ""]:
        """This site's part of the log determinant of the joint covariance."""
        return jnp.sum(jnp.log(jnp.square(linalg.diagonal(self.scale))))

    def trace(self) -> Float[Array, ""]:
        """See :meth:`Form.trace`."""
        return linalg.total([lower_trace(self.scale), *(jnp.sum(jnp.square(C)) for C in self.shared())])

    def given(
        self, mean: Float[Array, "M *D"], noise: Mapping[str, Float[Array, "_ *D"]]
    ) -> tuple[Float[Array, "M *D"], Coupled]:
        """Mean and covariance of this site's variables, given the noise of the sites before it.

        Args:
            mean: ``m``.
            noise: ``e`` of each site, by name.
        """
        outputs = None if mean.ndim == 1 else mean.shape[1]
        for name, C in zip(self.group, self.by_output(len(mean), outputs).shared(), strict=False):
            e = noise[name] if outputs is not None else noise[name][:, None]
            moved = jnp.einsum("dmk,kd->md", C, e)
            mean = mean + (moved if outputs is not None else moved[:, 0])
        return mean, Coupled(self.scale, group=self.group)


class CoupledAfter(Coupled):
    """The covariance of another one of these sites.

    Args:
        scale: lower-triangular ``L``, ``[M, M]`` or ``[D, M, M]``.
        cross: ``C`` of all sites before it, side by side: ``[M, K]`` or ``[D, M, K]``.
        group: see :class:`Coupled`.
        sizes: see :class:`Coupled`.
    """

    cross: Any = None

    def __init__(
        self, scale: Any = None, cross: Any = None, *, group: tuple[str, ...] = (), sizes: tuple[int, ...] = ()
    ) -> None:
        super().__init__(scale, group=group, sizes=sizes)
        self.cross = cross

    def start(self, conditional: Conditional, scale: float | Array) -> Self:
        """See :meth:`Coupled.start`."""
        shape = (*conditional.outputs, conditional.num_inducing, sum(self.sizes))
        return super().start(conditional, scale).with_values(cross=jnp.zeros(shape, conditional.dtype))

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Self:
        """See :meth:`Form.by_output`."""
        cross = self.cross if num_outputs is not None else self.cross[None]
        return super().by_output(num_inducing, num_outputs).with_values(cross=cross)

    def shared(self) -> list[Float[Array, "D M _"]]:
        """See :meth:`Coupled.shared`."""
        return jnp.split(self.cross, [sum(self.sizes[:i]) for i in range(1, len(self.sizes))], axis=-1)


def joint_root(forms: list[Coupled]) -> Float[Array, "*D T T"]:
    """The root of the covariance of all sites of a group, from their forms in its order."""
    rows, size = [], sum(form.scale.shape[-1] for form in forms)
    for form in forms:
        row = jnp.concatenate([getattr(form, "cross", form.scale[..., :0]), form.scale], axis=-1)
        pads = [(0, 0)] * (row.ndim - 1)
        rows.append(jnp.pad(row, [*pads, (0, size - row.shape[-1])]))
    return jnp.concatenate(rows, axis=-2)


def rows_of_root(root: Float[Array, "*D T T"], forms: list[Coupled]) -> list[Coupled]:
    """The forms of a group's sites with the values of a root of their joint covariance."""
    found, start = [], 0
    for form in forms:
        end = start + form.scale.shape[-1]
        row = root[..., start:end, :]
        values = {"cross": row[..., :start]} if isinstance(form, CoupledAfter) else {}
        found.append(form.with_values(scale=row[..., start:end], **values))
        start = end
    return found


def covariance(
    a: Mapping[str, Float[Array, "D _ N"]], b: Mapping[str, Float[Array, "D _ L"]]
) -> Float[Array, "D N L"] | None:
    """The covariance of two sites whose :meth:`Coupled.factors` are given; ``None`` where they share nothing."""
    return linalg.total([matmul(a[name].mT, b[name]) for name in a.keys() & b.keys()]) if a.keys() & b.keys() else None
