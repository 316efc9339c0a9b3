"""What of these data will hurt a training? To be asked before it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.errors import DatasetError, GPZooError, PrecisionWarning
from gpzoo.inference.diagnosis.findings import Finding, Findings
from gpzoo.inference.diagnosis.measure import kind_of, without_data
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.runs import terms_per_datum, unmasked
from gpzoo.inference.training._sources import Resident
from gpzoo.likelihoods.answers import answers
from gpzoo.processes.process import GaussianProcess
from gpzoo.tables.table import Table

#: Spreads of columns that lengthscales and variances around 1 still find: two units of a slider apart on either side.
NARROW, WIDE = 0.05, 20.0

#: Standard deviations by which targets may lie off zero, the mean of a GP without a mean function. At three the GP's
#: variance is spent on the mean.
OFF_ZERO = 3.0

#: Interquartile ranges from the median beyond which an entry is an outlier. Squared, in float32, it leaves nothing of
#: what the others differ by.
OUTLYING = 1000.0

#: Interquartile ranges from the median beyond which a Gaussian likelihood follows a target: nearly seven standard
#: deviations of what lies between.
FAR = 5.0

#: Share of rows that may repeat others: data sets of measurements have a few.
REPEATED = 0.1


@entry_point
def check(program: Callable, *args: Argument, model_kwargs: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """What will hurt: data that the program refuses, unscaled columns, repeated rows, outliers; GP sites it draws.

    Nothing is computed but one abstract run of the program.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import check
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> [finding.name for finding in check(gp_regression, 1e6 + X, X[:, 0])]
        ['lost in float32']

    Args:
        program: a program, before training.
        *args: its positional arguments, data included; or a table alone, as :func:`~gpzoo.inference.fit` takes it, of
            which the first, the middle and the last block are looked at.
        model_kwargs: its keyword arguments, by name.

    Returns:
        Findings, none if all is well. Their ``site`` is the name of the argument, or of a GP site that the program
        draws, with the line that does.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrecisionWarning)
            if len(args) == 1 and isinstance(args[0], Table):
                args = _some_blocks(args[0])
            args, kwargs = arguments(program, args, model_kwargs)
        Resident(args, None, [0], None)  # for its refusals
        looked = look(program, args, kwargs)
        seen = looked.trace
    except (TypeError, ValueError, GPZooError, DatasetError) as error:
        return Findings([Finding("refused", None, str(error))])
    if absent := without_data(seen):
        return Findings([Finding("refused", None, f"Site {absent[0]!r} has no data: pass it, check(program, X, y).")])
    lost = [str(w.message) for w in caught if issubclass(w.category, PrecisionWarning)]
    findings = [Finding("lost in float32", None, f"{text} Standardise it or use float64.") for text in lost]
    names, optional = checks.positional(program, len(args))
    data = terms_per_datum(seen)
    # Exact regression: a GP site is observed itself.
    exact = [
        s for s in seen.values() if s["type"] == "sample" and s["is_observed"] and isinstance(s["fn"], GaussianProcess)
    ]
    for name, argument in zip(names, args, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            if np.ndim(leaf) == 0:
                continue
            of, array = f"{name}{jax.tree_util.keystr(path)}", np.asarray(leaf)
            sites = [site for site in data.values() if _is(site["value"], leaf)]
            if sites or any(_is(site["value"], leaf) for site in exact):
                gaussian = all(answers(unmasked(site["fn"])).light_tails for site in sites)
                findings += _targets(of, array, {kind_of(site) for site in sites} or {"numbers"}, gaussian)
            elif name not in optional:
                findings += _inputs(of, array)
    findings += [Finding("drawn", site, _drawn(lines)) for site, lines in looked.lines.items()]
    return Findings(findings)


def _drawn(lines: tuple[str, ...]) -> str:
    return (
        f"the program draws it ({' and '.join(lines)}), by draws(f) or as the inputs or the mean of another GP: the "
        "bound is a mean over draws, and noisier than a closed form. Inputs of a GP have no other way; for the rest "
        "keep to f + c, f * c, f @ A, f + g and likelihoods such as likelihoods.Expected(fn, f), where they suffice."
    )


def _some_blocks(table: Table) -> tuple[np.ndarray, ...]:
    """Rows from either end and the middle: a column that a file is sorted by is not the same at all of these."""
    last = len(table.block_rows) - 1
    blocks = [table.read(block) for block in sorted({0, last // 2, last})]
    return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))


def _is(value: Any, array: Any) -> bool:
    """Whether a site's data are this array, or a part of it."""
    if isinstance(value, np.ndarray) and isinstance(array, np.ndarray):
        return np.shares_memory(value, array)
    return value is array


def _inputs(name: str, X: np.ndarray) -> list[Finding]:
    findings = _outliers(name, X)
    if X.ndim == 2 and X.dtype != bool and not findings:
        spread = X.std(axis=0, dtype=np.float64)
        size = np.abs(X).max(axis=0).astype(np.float64)
        constant = spread <= 1e-6 * np.maximum(size, np.finfo(np.float32).tiny)
        if constant.any():
            findings.append(
                Finding(
                    "constant columns",
                    name,
                    f"{_columns(constant)} the same at all rows, which say nothing and have no lengthscale: leave out.",
                )
            )
        odd = ~constant & ((spread < NARROW) | (spread > WIDE))
        if odd.any():
            least, most = spread[~constant].min(), spread[~constant].max()
            findings.append(
                Finding(
                    "unscaled inputs",
                    name,
                    f"{_columns(odd)} far from a spread of 1 (standard deviations from {least:.2g} to {most:.2g}), "
                    "around which lengthscales start: standardise the columns, or start lengthscales at their spreads.",
                )
            )
    if X.ndim > 2 and X.dtype != bool and X.size and not findings:
        least, most, spread = float(X.min()), float(X.max()), X.std(dtype=np.float64)
        if spread > WIDE or most - least < NARROW:
            findings.append(
                Finding(
                    "unscaled inputs",
                    name,
                    f"values from {least:.3g} to {most:.3g}, with a standard deviation of {spread:.2g}, where "
                    "lengthscales start around 1: scale pixels to 0..1, or start lengthscales at their spread.",
                )
            )
    if X.ndim >= 1 and len(X) > 1:
        distinct = len(np.unique(X.reshape(len(X), -1), axis=0))
        repeated = len(X) - distinct
        if repeated > REPEATED * len(X):
            findings.append(
                Finding(
                    "repeated rows",
                    name,
                    f"{repeated} of {len(X)} rows repeat others: held-out rows may be known from training, and "
                    "inducing variables that start at rows may coincide. Split by distinct inputs, and take at most "
                    f"{distinct} inducing variables.",
                )
            )
    return findings


def _targets(name: str, y: np.ndarray, kinds: set[str], gaussian: bool) -> list[Finding]:
    if y.dtype.kind == "f" and np.isnan(y).any():  # what was not observed is like what was
        y = np.where(np.isnan(y), np.nanmedian(y), y)
    if len(y) > 1 and np.all(y == y[:1]):
        text = f"all {len(y)} targets are {y.flat[0]:.4g}: there is nothing to learn. Look where they come from."
        return [Finding("constant targets", name, text)]
    if kinds != {"numbers"}:
        return []
    findings = _outliers(name, y) or (_far(name, y) if gaussian else [])
    columns = y.reshape(len(y), -1)
    mean, spread = columns.mean(axis=0, dtype=np.float64), columns.std(axis=0, dtype=np.float64)
    odd = (spread < NARROW) | (spread > WIDE) | (np.abs(mean) > OFF_ZERO * spread)
    if odd.any() and not findings:
        j = int(np.argmax(odd))
        findings.append(
            Finding(
                "unscaled targets",
                name,
                f"they are {mean[j]:.3g} give or take {spread[j]:.2g}"
                + (f" in column {j}" if len(mean) > 1 else "")
                + ", where a GP starts at 0 give or take 1: standardise them, and predictions back.",
            )
        )
    return findings


def _outliers(name: str, x: np.ndarray) -> list[Finding]:
    found = _beyond(x, OUTLYING)
    if found is None:
        return []
    text = (
        f"{found}: beside it float32 holds nothing of the others, and training may fail or fit it alone. Correct it, "
        "drop the row, or use a likelihood with heavier tails and float64."
    )
    return [Finding("outliers", name, text)]


def _far(name: str, y: np.ndarray) -> list[Finding]:
    found = _beyond(y, FAR)
    if found is None:
        return []
    text = (
        f"{found}. A Gaussian likelihood spends its noise variance on such, and predictions of all others are too "
        "wide. Correct them, or use heavier tails, such as likelihoods.Expected of a Student-t distribution."
    )
    return [Finding("outliers", name, text)]


def _beyond(x: np.ndarray, ranges: float) -> str | None:
    """Words of entries further from the median of their column than so many interquartile ranges."""
    if x.dtype.kind != "f" or len(x) < 4:
        return None
    columns = x.reshape(len(x), -1)
    low, middle, high = np.quantile(columns, (0.25, 0.5, 0.75), axis=0)
    distance = np.abs(columns - middle)
    out = distance > ranges * np.where(high > low, high - low, np.inf)
    if not out.any():
        return None
    row, column = (int(i) for i in np.argwhere(out)[0])
    return (
        f"{int(out.sum())} of {out.size} entries lie more than {ranges:.0f} times the interquartile range from the "
        f"median, the first {columns[row, column]:.4g} in row {row}"
    )


def _columns(which: np.ndarray) -> str:
    numbers = np.flatnonzero(which)
    if len(numbers) == 1:
        return f"column {numbers[0]} is"
    few = ", ".join(map(str, numbers[:3])) + (", ..." if len(numbers) > 3 else "")
    return f"{len(numbers)} of {len(which)} columns ({few}) are"
