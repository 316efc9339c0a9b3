"""Groups of GP sites whose inducing variables share one ``q``: sites that a program adds, or that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpzoo.inference.guides.options import Options, for_site
from gpzoo.inference.programs.program import Look
from gpzoo.inference.programs.runs import unmasked
from gpzoo.inference.programs.sites import Sites
from gpzoo.posteriors.forms import Full, form_of

#: Most outputs in total that share one ``q`` by default. With a hundred inducing variables each, a step with ten
#: outputs takes twenty times as long as a step of the mean field.
MOST_OUTPUTS = 10


def coupled_sites(options: Options, sites: Sites, seen: Look) -> tuple[tuple[str, ...], ...]:
    """The groups of GP sites that share one ``q``, see ``coupled`` of :class:`~gpzoo.inference.InducingGuide`.

    The sites of each group are in the order of the program.

    Args:
        options: options of the guide.
        sites: sites of the program.
        seen: the result of :func:`~gpzoo.inference.programs.program.look` for the program.

    Raises:
        ValueError: if ``coupled`` names a site that cannot share one ``q``, or only one site with one output. The
            message has the name of the site, and the reason.
    """
    reasons = {name: _of_program(name, seen) or _of_options(name, options) for name in sites.processes}
    if isinstance(options.coupled, bool):
        return _added(seen, frozenset(reasons) - _with_a_reason(reasons)) if options.coupled else ()
    for group in options.coupled:
        for name in sorted(group & sites.processes):
            if reasons[name]:
                raise ValueError(f"InducingGuide(coupled=...) names GP site {name!r}, which {reasons[name]}.")
    groups = _in_order(merged(group & sites.processes for group in options.coupled), seen)
    for group in groups:
        alone = len(group) == 1 and frozenset().union(*options.coupled) <= sites.processes
        if alone and not unmasked(seen.trace[group[0]]["fn"]).num_outputs:
            raise ValueError(f"InducingGuide(coupled=...) names GP site {group[0]!r} alone, which has one output.")
    return groups


def outputs_together(groups: Iterable[tuple[str, ...]], seen: Look) -> frozenset[str]:
    """The sites whose outputs all share one ``q``, because the program mixes or chooses outputs in their group."""
    found: set[str] = set()
    for group in groups:
        if len(group) == 1 or seen.mixed & set(group) or len(_by_outputs(group, seen)) > 1:
            found.update(group)
    return frozenset(found)


def added_sites(seen: Look) -> tuple[tuple[str, ...], ...]:
    """The groups of GP sites that a program adds to each other; a guide with default options finds the same groups."""
    names = {name: _of_program(name, seen) for name in frozenset().union(*seen.added)}
    return _added(seen, frozenset(names) - _with_a_reason(names))


def _added(seen: Look, able: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    found: list[frozenset[str]] = []
    for group in merged(names & able for names in seen.added):
        outputs, alike = _by_outputs(group, seen), _by_outputs(group - seen.mixed, seen)
        few = sum((count or 1) * len(names) for count, names in outputs.items()) <= MOST_OUTPUTS
        found += [group] if few else alike.values()
    return _in_order([group for group in found if len(group) > 1], seen)


def _by_outputs(group: Iterable[str], seen: Look) -> dict[int | None, frozenset[str]]:
    """The sites of a group by their numbers of outputs."""
    found: dict[int | None, frozenset[str]] = {}
    for name in sorted(group):
        outputs = unmasked(seen.trace[name]["fn"]).num_outputs
        found[outputs] = found.get(outputs, frozenset()) | {name}
    return found


def _with_a_reason(reasons: Mapping[str, str | None]) -> frozenset[str]:
    return frozenset(name for name, reason in reasons.items() if reason)


def _of_program(name: str, seen: Look) -> str | None:
    """Why a site of a program has its own ``q`` in any case; ``None`` for no reason."""
    prior = unmasked(seen.trace[name]["fn"])
    reasons = {
        "is drawn": name in seen.arrays or prior.in_row is not None,
        "has a kernel that samples views": prior.samples_views,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _of_options(name: str, options: Options) -> str | None:
    """Why a site has its own ``q`` with the options of a guide; ``None`` for no reason."""
    inducing = for_site(options.inducing, name)
    reasons = {
        "is drawn": name in options.joint,
        "has a residual factor": name in options.residual,
        "is on a grid": getattr(inducing, "num_axes", 0) > 0,
        "has a covariance that is not full": type(form_of(for_site(options.covariance, name), inducing)) is not Full,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def merged(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Groups of names, after groups with a name in common are joined."""
    found: list[frozenset[str]] = []
    for group in groups:
        for other in [other for other in found if other & group]:
            found.remove(other)
            group |= other
        found.append(group)
    return [group for group in found if group]


def _in_order(groups: Iterable[frozenset[str]], seen: Look) -> tuple[tuple[str, ...], ...]:
    """Groups with their sites in the order of the program."""
    return tuple(tuple(name for name in seen.trace if name in group) for group in groups)
