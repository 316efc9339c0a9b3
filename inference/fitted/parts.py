"""Addends of GP sites whose kernels are sums, under names that the user chooses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpzoo import _checks as checks
from gpzoo.inference.programs.runs import Trace, sampled, unmasked
from gpzoo.kernels.base import addends
from gpzoo.processes.process import GaussianProcess


def checked_parts(parts: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    """Checked names of the terms of each site's kernel, by site.

    Raises:
        TypeError: if ``parts`` is not a mapping from sites to names.
        ValueError: for a name that is given twice.
    """
    parts, found = {} if parts is None else parts, {}
    wanted = "parts must map GP sites to names of their addends, {'f': ('trend', 'season')};"
    checks.refuse(not isinstance(parts, Mapping), f"{wanted} got {parts!r}.", TypeError)
    for site, names in parts.items():
        given = isinstance(names, Sequence) and not isinstance(names, str) and all(isinstance(x, str) for x in names)
        message = f"parts[{site!r}] must be names of the kernel's addends, ('trend', 'season'); got {names!r}."
        checks.refuse(not given, message, TypeError)
        found[site] = tuple(names)
    every = [name for names in found.values() for name in names]
    checks.refuse(len(set(every)) < len(every), f"parts has a name twice: {sorted(every)}.")
    return found


def refuse_other_parts(
    parts: Mapping[str, tuple[str, ...]], trace: Trace, processes: Collection[str] | None = None
) -> None:
    """Refuse names of addends that do not fit the GP sites of a program and the kernels of these sites.

    Args:
        parts: names of addends, by site.
        trace: trace of the program.
        processes: the GP sites that may have addends; ``None`` allows all GP sites.

    Raises:
        ValueError: if a site of ``parts`` is not one of these GP sites, if the number of names differs from the number
            of addends of its kernel, or if a name is the name of a site.
    """
    known = {name for name, own in sampled(trace).items() if isinstance(unmasked(own["fn"]), GaussianProcess)}
    known = known if processes is None else known.intersection(processes)
    for site, names in parts.items():
        if site not in known:
            latent = "" if processes is None else "latent "
            raise ValueError(f"parts names {site!r}, but the {latent}GP sites are {sorted(known)}.")
        prior = unmasked(trace[site]["fn"])
        each = [type(kernel).__name__ for _, kernel in addends(prior.kernel.split_noise()[0])]
        if len(each) != len(names):
            raise ValueError(
                f"parts[{site!r}] has {len(names)} names, but the kernel of the site has {len(each)} addends without "
                f"white noise, in this order: {', '.join(each)}."
            )
        taken = sorted(set(names) & (trace.keys() | {f"{name}_u" for name in known}))
        checks.refuse(taken, f"parts[{site!r}] has names of sites: {taken}.")
