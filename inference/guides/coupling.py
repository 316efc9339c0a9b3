"""Groups of GP sites whose inducing variables have one ``q``: those that a program adds, or that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    reasons = {name: _of_program(name, seen) or _of_options(name, options) for name in sites.processes}
    if isinstance(options.coupled, bool):
        return _added(seen, frozenset(reasons) - _with_a_reason(reasons)) if options.coupled else ()
    for group in options.coupled:
        for name in sorted(group & sites.processes):
            if reasons[name]:
                raise ValueError(f"InducingGuide(coupled=...) names GP site {name!r}, which {reasons[name]}.")
    groups = [_alike(group, seen) for group in merged(group & sites.processes for group in options.coupled)]
    if any(len(parts) != 1 for parts in groups):
        names = sorted(frozenset().union(*options.coupled))
        raise ValueError(f"InducingGuide(coupled=...) names {names}, which have different numbers of outputs.")
    return tuple(part for parts in groups for part in parts)


def added_sites(seen: Look) -> tuple[tuple[str, ...], ...]:
    """The groups that a guide without options would find in a program."""
    names = {name: _of_program(name, seen) for name in frozenset().union(*seen.added)}
    return _added(seen, frozenset(names) - _with_a_reason(names))


def _added(seen: Look, able: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(part for group in merged(names & able for names in seen.added) for part in _alike(group, seen))


def _with_a_reason(reasons: Mapping[str, str | None]) -> frozenset[str]:
    return frozenset(name for name, reason in reasons.items() if reason)


def _of_program(name: str, seen: Look) -> str | None:
    """Why a site of a program has a ``q`` of its own in any case; ``None`` for no reason."""
    prior = unmasked(seen.trace[name]["fn"])
    reasons = {
        "is drawn": name in seen.arrays or prior.in_row is not None,
        "has outputs that the program mixes or chooses": name in seen.mixed,
        "has a kernel that samples views": prior.samples_views,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _of_options(name: str, options: Options) -> str | None:
    """Why it has one with the options of a guide."""
    inducing = for_site(options.inducing, name)
    reasons = {
        "is drawn": name in options.joint,
        "has a residual factor": name in options.residual,
        "is on a grid": getattr(inducing, "num_axes", 0) > 0,
        "has a covariance that is not full": type(form_of(for_site(options.covariance, name), inducing)) is not Full,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def merged(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
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
