"""Groups of GP sites whose inducing variables have one ``q``: those that a program adds, or that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpzoo.inference.guides.options import Options, for_site
from gpzoo.inference.programs.program import Look
from gpzoo.inference.programs.runs import unmasked
from gpzoo.inference.programs.sites import Sites
from gpzoo.posteriors.forms import Full, form_of


def coupled_sites(options: Options, sites: Sites, seen: Look) -> tuple[tuple[str, ...], ...]:
    """The groups of a program's sites, each in the order of the program; see :class:`~gpzoo.inference.InducingGuide`.

    Args:
        options: of the guide.
        sites: of the program.
        seen: a look at it.

    Raises:
        ValueError: naming sites that ``coupled`` names and that can have no joint ``q``, and why.
    """
    reasons = {name: _reason(name, options, sites, seen) for name in sites.processes}
    if isinstance(options.coupled, bool):
        able = frozenset(name for name, reason in reasons.items() if not reason)
        groups = connected(added & able for added in seen.added) if options.coupled else []
        return tuple(part for group in groups for part in _alike(group, seen))
    groups = connected(group & sites.processes for group in options.coupled)
    for group in groups:
        for name in sorted(group):
            if reasons[name]:
                raise ValueError(f"InducingGuide(coupled=...) names GP site {name!r}, which {reasons[name]}.")
        if len(_alike(group, seen)) > 1 or not _alike(group, seen):
            raise ValueError(f"InducingGuide(coupled=...) names {sorted(group)}, which need equal numbers of outputs.")
    return tuple(part for group in groups for part in _alike(group, seen))


def _reason(name: str, options: Options, sites: Sites, seen: Look) -> str | None:
    """Why a site has a ``q`` of its own in any case; ``None`` for no reason."""
    prior, inducing = unmasked(seen.trace[name]["fn"]), for_site(options.inducing, name)
    reasons = {
        "is drawn": name in sites.drawn | options.joint or prior.in_row is not None,
        "has outputs that the program mixes or chooses": name in seen.mixed,
        "has a residual factor": name in options.residual,
        "has a kernel that samples views": prior.samples_views,
        "is on a grid": getattr(inducing, "num_axes", 0) > 0,
        "has a covariance that is not full": type(form_of(for_site(options.covariance, name), inducing)) is not Full,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def connected(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Groups of names, those with a name in common put together, without groups of one."""
    found: list[frozenset[str]] = []
    for group in groups:
        for other in [other for other in found if other & group]:
            found.remove(other)
            group |= other
        found.append(group)
    return [group for group in found if len(group) > 1]


def _alike(group: frozenset[str], seen: Look) -> Sequence[tuple[str, ...]]:
    """The sites of a group by their numbers of outputs, in the program's order, without those that are alone."""
    by_outputs: dict[int | None, list[str]] = {}
    for name in seen.trace:
        if name in group:
            by_outputs.setdefault(unmasked(seen.trace[name]["fn"]).num_outputs, []).append(name)
    return [tuple(names) for names in by_outputs.values() if len(names) > 1]
