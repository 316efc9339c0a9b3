"""The sites of a program, as they were found at the first call of its guide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpyro.distributions.constraints import Constraint

from gpzoo.inference.programs.rows import Layout


@dataclass(frozen=True)
class Sites:
    """The sites of a program, found in its first traced call with data.

    Attributes:
        latents: names of the unobserved sample sites.
        processes: names of the GP sites among ``latents``.
        drawn: names of the GP sites whose value the program uses as an array.
        inner: names of the GP sites on which another GP site depends, such as the inner layers of a deep GP.
        names: names of all sample and param sites.
        parameters: shapes of the program's own ``numpyro.param`` sites by name; ``None`` for mutable sites and for
            sites with substituted values.
        constraints: constraints of the program's parameters and of latent sites that are not GPs, by name, if they do
            not depend on other values.
        enumerated: names of the unobserved discrete sites, which are summed out. They are not in ``latents``.
        plate_depth: see :func:`~gpzoo.inference.programs.enumeration.plate_depth`.
        within: which inputs of a GP site belong to one row, by site. A site is listed only if it is drawn, and the
            program needs several inputs of one row together.
        coupled: groups of GP sites whose inducing variables share one ``q``, each in the order of the program.
        together: names of the coupled sites whose outputs all share one ``q``, in place of one ``q`` for each output.
        descriptions: descriptions of sample sites, by name, see
            :func:`~gpzoo.inference.programs.program.descriptions_of`.
    """

    latents: frozenset[str]
    processes: frozenset[str]
    drawn: frozenset[str]
    inner: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    constraints: Mapping[str, Constraint] = field(default_factory=dict)
    enumerated: frozenset[str] = frozenset()
    plate_depth: int = 0
    within: Mapping[str, Layout] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    coupled: tuple[tuple[str, ...], ...] = ()
    together: frozenset[str] = frozenset()

    def group_of(self, site: str) -> tuple[str, ...]:
        """The GP sites that share one ``q`` with this site, this site included; none if it has its own ``q``."""
        return next((group for group in self.coupled if site in group), ())

    def drawn_as(self, site: str) -> Layout | None:
        """Which inputs of a GP site are drawn together if it is drawn; ``None`` if it has marginals."""
        return self.within.get(site, Layout()) if site in self.drawn else None
