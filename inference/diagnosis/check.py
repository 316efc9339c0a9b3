"""Checks of data and of a program before a training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.errors import DatasetError, GPZooError, PrecisionWarning
from gpzoo.inference.diagnosis.findings import Finding, Findings, finding
from gpzoo.inference.diagnosis.measure import without_data
from gpzoo.inference.guides.coupling import added_sites
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.check_rows import dependence_on_rows
from gpzoo.inference.programs.program import Look, look, refuse_without_data, sites_of
from gpzoo.inference.programs.runs import Trace, data_of, terms_per_datum, unmasked
from gpzoo.inference.training.sources import checked_number_of_rows
from gpzoo.kernels import Constant, Kernel, Linear
from gpzoo.kernels.base import addends
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.processes.process import GaussianProcess

#: Between these standard deviations of a column, training finds its scale from lengthscales and variances around 1.
NARROW, WIDE = 0.05, 20.0

#: Standard deviations by which the mean of targets may differ from zero, the mean of a GP without a mean function. At
#: three, the mean of the targets uses up the GP's variance.
OFF_ZERO = 3.0

#: Distance from the median, in interquartile ranges, beyond which an entry is an outlier. In float32, the square of an
#: outlier hides all differences between the other entries.
OUTLYING = 1000.0

#: Distance from the median, in interquartile ranges, beyond which a target pulls a Gaussian likelihood. For normal data
#: it is nearly seven standard deviations.
FAR = 5.0

#: Share of rows that may repeat others, because measured data have a few repeated rows.
REPEATED = 0.1


@entry_point
def check(program: Callable, *args: Argument, model_kwargs: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """Problems before a training: refused data, unscaled columns, repeated rows, outliers, and GP sites that are drawn.

    ``check`` traces the program, and computes quantiles of arrays. If the program draws GP sites, ``check`` also runs
    the program a few times, to find the rows on which its terms depend.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import check
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> [finding.name for finding in check(gp_regression, 1e6 + X, X[:, 0])]
        ['lost in float32']

    Args:
        program: a program, before training.
        *args: the program's positional arguments, data included; or only a table, as for :func:`~gpzoo.inference.fit`.
            ``check`` reads only some rows of a table, at its start, in its middle and at its end.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        Findings, none if all is well. The ``site`` of a finding names an argument or a GP site, or several of them;
        it is ``None`` for a finding about the whole program.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrecisionWarning)
            if len(args) == 1 and checks.is_table(args[0]):
                args = _some_blocks(args[0])
            args, kwargs = arguments(program, args, model_kwargs)
        checked_number_of_rows(args)  # raises if the numbers of rows disagree
        looked = look(program, args, kwargs, refuse_data=True)
        seen = looked.trace
        if absent := without_data(seen):
            return Findings([finding("refused", None, "data", site=absent[0])])
        sites = sites_of(looked, program, args, kwargs, frozenset())
        refuse_without_data(seen)
    except (TypeError, ValueError, GPZooError, DatasetError) as error:
        return Findings([finding("refused", None, "program", reason=error)])
    findings = []
    for warning in caught:
        if issubclass(warning.category, PrecisionWarning):
            findings.append(finding("lost in float32", None, reason=warning.message))
    findings += of_arguments(program, args, seen)
    findings += [finding("drawn", site) for site in seen if site in sites.drawn]
    if sites.drawn:
        across = dependence_on_rows(program, args, kwargs, sites, frozenset()).across
        findings += [finding("rows together", site, name=site, term=across[site]) for site in sorted(across)]
    findings += of_sums(looked.sums, added_sites(looked))
    return Findings(findings + _shared(looked))


def _shared(seen: Look) -> list[Finding]:
    """Findings about added sites whose kernels each have a constant, or each have a linear function."""
    findings = []
    for names in dict.fromkeys(frozenset(names) for names in seen.sums.values()):
        by_kind: dict[str, list[str]] = {}
        for name in sorted(names):
            for kind in _levels(unmasked(seen.trace[name]["fn"]).kernel):
                by_kind.setdefault(kind, []).append(name)
        for kind, sites in by_kind.items():
            if len(sites) > 1:
                findings.append(finding("shared level", " + ".join(sites), kind=kind, names=", ".join(sites)))
    return findings


def _levels(kernel: Kernel) -> set[str]:
    """The kinds of constants and linear functions in a kernel."""
    kinds = {Constant: "a constant", Linear: "a linear function"}
    return {kinds[type(part)] for _, part in addends(kernel.split_noise()[0]) if type(part) in kinds}


def of_sums(sums: Mapping[str, frozenset[str]], coupled: Sequence[tuple[str, ...]]) -> list[Finding]:
    """Findings about GP sites that the program adds to each other, unless these sites have one joint ``q``.

    Args:
        sums: names of the GP sites that are added for a data site, by name of the data site.
        coupled: groups of names of GP sites that have one joint ``q``.
    """
    findings = []
    for names in dict.fromkeys(map(frozenset, sums.values())):
        if not any(names <= frozenset(group) for group in coupled):
            findings.append(finding("added sites", " + ".join(sorted(names)), names=", ".join(sorted(names))))
    return findings


def of_arguments(program: Callable, args: tuple, seen: Trace, *, repeats: bool = True) -> list[Finding]:
    """Findings about the numbers in each positional argument that is data or inputs in the trace.

    ``repeats`` says whether to look for repeated rows, which needs a sort.
    """
    names, optional = checks.positional(program, len(args))
    findings, inputs = [], {}
    for name, argument in zip(names, args, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            if np.ndim(leaf) == 0:
                continue
            of, array = f"{name}{jax.tree_util.keystr(path)}", np.asarray(leaf)
            if laws := _laws(seen, leaf):
                findings += _targets(of, array, laws)
            elif name not in optional:
                findings += _inputs(of, array)
                inputs[of] = array
    return findings + (_repeated(inputs) if repeats else [])


def _laws(seen: Trace, array: Any) -> list[Any]:
    """The distributions whose data are this array: GPs in exact regression, otherwise likelihoods."""
    laws, of_rows = [], terms_per_datum(seen)
    for name, site in data_of(seen).items():
        law = unmasked(site["fn"])
        if _is(site["value"], array) and (name in of_rows or isinstance(law, GaussianProcess)):
            laws.append(law)
    return laws


def _some_blocks(table: Any) -> tuple[np.ndarray, ...]:
    """Rows from both ends and from the middle of a table: a column by which a file is sorted differs between them."""
    last = len(table.block_rows) - 1
    blocks = [table.read(block) for block in sorted({0, last // 2, last})]
    return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))


def _is(value: Any, array: Any) -> bool:
    """Whether the data of a site are this array, or a part of it."""
    if isinstance(value, np.ndarray) and isinstance(array, np.ndarray):
        return np.shares_memory(value, array)
    return value is array


def _inputs(name: str, X: np.ndarray) -> list[Finding]:
    findings = _outliers(name, X, OUTLYING, "lost")
    if X.ndim == 2 and X.dtype != bool and not findings:
        spread = X.std(axis=0, dtype=np.float64)
        size = np.abs(X).max(axis=0).astype(np.float64)
        constant = spread <= 1e-6 * np.maximum(size, np.finfo(np.float32).tiny)
        if constant.any():
            findings.append(finding("constant columns", name, columns=_columns(constant)))
        odd = ~constant & ((spread < NARROW) | (spread > WIDE))
        if odd.any():
            numbers = {"least": spread[~constant].min(), "most": spread[~constant].max()}
            findings.append(finding("unscaled inputs", name, "columns", columns=_columns(odd), **numbers))
    if X.ndim > 2 and X.dtype != bool and X.size and not findings:
        numbers = {"least": float(X.min()), "most": float(X.max()), "spread": X.std(dtype=np.float64)}
        if numbers["spread"] > WIDE or numbers["most"] - numbers["least"] < NARROW:
            findings.append(finding("unscaled inputs", name, "images", **numbers))
    return findings


def _repeated(inputs: Mapping[str, np.ndarray]) -> list[Finding]:
    """A finding about rows that repeat other rows in all inputs at the same time."""
    inputs = {name: X for name, X in inputs.items() if len(X) > 1 and X.dtype.kind in "biuf"}
    # An array with one number for each row, beside a table of inputs, is an exposure or an error. It does not make
    # inputs distinct.
    if any(X.ndim > 1 for X in inputs.values()):
        inputs = {name: X for name, X in inputs.items() if X.ndim > 1 or np.array_equal(X, np.round(X))}
    rows = next(map(len, inputs.values()), 0)
    if not rows or any(len(X) != rows for X in inputs.values()):
        return []
    distinct = len(np.unique(np.hstack([X.reshape(rows, -1) for X in inputs.values()]), axis=0))
    if (repeated := rows - distinct) <= REPEATED * rows:
        return []
    return [finding("repeated rows", ", ".join(inputs), repeated=repeated, rows=rows, distinct=distinct)]


def _targets(name: str, y: np.ndarray, laws: list[Any]) -> list[Finding]:
    laws = [as_predictive(law) for law in laws if not isinstance(law, GaussianProcess)]
    columns = y.reshape(len(y), -1)
    if y.dtype.kind == "f":  # entries that were not observed are NaN; a column without observed entries says nothing
        columns = columns[:, ~np.isnan(columns).all(axis=0)]
        if not columns.size:
            return []
        typical = np.nanmedian(columns, axis=0)
        if len(y) > 1 and np.all(np.isnan(columns) | (columns == typical)):
            return [finding("constant targets", name, rows=len(y), value=typical[0])]
    elif len(y) > 1 and np.all(y == y[:1]):
        return [finding("constant targets", name, rows=len(y), value=y.flat[0])]
    if any(law.kind != "numbers" for law in laws):
        return []
    findings = _outliers(name, columns, OUTLYING, "lost")
    if not findings and all(law.light_tails for law in laws):
        findings = _outliers(name, columns, FAR, "far")
    numbers = columns.astype(np.float64)
    mean, spread = np.atleast_1d(np.nanmean(numbers, axis=0)), np.atleast_1d(np.nanstd(numbers, axis=0))
    odd = (spread < NARROW) | (spread > WIDE) | (np.abs(mean) > OFF_ZERO * spread)
    if odd.any() and not findings:
        j = int(np.argmax(odd))
        where = f" in column {j}" if len(mean) > 1 else ""
        findings.append(finding("unscaled targets", name, mean=mean[j], spread=spread[j], where=where))
    return findings


def _outliers(name: str, x: np.ndarray, ranges: float, which: str) -> list[Finding]:
    """Entries that are more than ``ranges`` interquartile ranges from the median of their column."""
    if x.dtype.kind != "f" or len(x) < 4:
        return []
    columns = x.reshape(len(x), -1)
    low, middle, high = np.nanquantile(columns, (0.25, 0.5, 0.75), axis=0)
    distance = np.abs(columns - middle)
    out = distance > ranges * np.where(high > low, high - low, np.inf)
    if not out.any():
        return []
    row, column = np.argwhere(out)[0]
    seen = np.sum(~np.isnan(columns))
    numbers = {"out": out.sum(), "size": seen, "ranges": ranges, "first": columns[row, column], "row": row}
    return [finding("outliers", name, which, **numbers)]


def _columns(which: np.ndarray) -> str:
    numbers = np.flatnonzero(which)
    if len(numbers) == 1:
        return f"column {numbers[0]} is"
    few = ", ".join(map(str, numbers[:3])) + (", ..." if len(numbers) > 3 else "")
    return f"{len(numbers)} of {len(which)} columns ({few}) are"
