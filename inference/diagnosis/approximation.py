"""Diagnosis of the approximation itself: inducing variables, layers, parameters, and the course of the training."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from gpzoo.inference.bounds.collapsed import CollapsedELBO, NoOptimumError
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding, finding, table
from gpzoo.inference.diagnosis.measure import Measured, Process
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.training.finished import MORE_STEPS, End
from gpzoo.inference.training.natural import shortened

#: A row is not reached from this ratio on: its variance given ``u``, divided by its prior variance. The model then says
#: nothing about the row. With an RBF kernel and well-separated inducing points, a row that is 2.1 lengthscales from the
#: nearest inducing point has this ratio.
UNREACHED = 0.99

#: Largest share of unreached rows without a finding. Held-out rows have a few outliers even if they are like the
#: training rows.
MOST_UNREACHED = 0.1

#: If a smaller share of the rows is reached, no row is judged by its outcome. The reached rows then lie at the border.
FEWEST_REACHED = 0.5

#: If the correlation of two inducing variables is higher, one of them is enough. With an RBF kernel, they then differ
#: by a twentieth of a lengthscale, which shifts a prediction by 5 % of its standard deviation under the prior.
DUPLICATE = 0.999

#: Share of inducing variables that may be near-duplicates. If there are more variables than the data determine,
#: training moves some of them onto others: up to two fifths of the variables in good fits.
MOST_DUPLICATES = 0.45

#: Inducing variables that may be near-duplicates of one variable: their share, and their number if there are few
#: variables. Training makes pairs and triples, up to a sixth of the variables. Larger groups started at one spot.
LARGEST_GROUP, OF_FEW = 1 / 4, 3

#: An inducing variable stands alone if its correlation with every other one is lower. An RBF kernel has this
#: correlation at 2.4 lengthscales.
ALONE = 0.05

#: An inner layer counts as its mean function if its deviations from this function, divided by the spread of its values,
#: are smaller. The inputs of the next layer have this spread, so the next layer cannot tell the two apart.
COLLAPSED = 0.01

#: Rows times squared number of inducing variables. Up to this product, bounds of the evidence are computed in seconds.
MOST_OF_BOUNDS = 10**9

#: Nats per row by which the bound may be lower in evaluation than over the last tenth of the training.
LOWER = 0.1

#: Relative change of a parameter that counts as none. The first step of Adam alone, at a rate of 0.001, moves a
#: parameter around 1 ten times as far.
UNMOVED = 1e-4


def by_site(measured: Measured) -> Diagnosis:
    """The contribution of each site to the bound."""
    rows = []
    for name, term in measured.terms.items():
        if name in measured.processes:
            rows.append((name, "-KL[q(u) || p(u)]", term, None))
        elif name in measured.outcomes:
            rows.append((name, "expected log likelihood", term, term / len(measured.outcomes[name].value)))
        else:
            rows.append((name, "log prior less log posterior", term, None))
    return Diagnosis(sections=table("The bound by site", rows))


def evidence(subject: BoundModel) -> Diagnosis:
    """The largest amount by which more inducing variables could raise the bound, if the noise is Gaussian.

    For other programs, and for many rows, the diagnosis is empty.
    """
    sizes = [np.shape(subject.params[f"{site}_mean"])[0] for site in subject.guide.sites.processes]
    if subject.num_rows * sum(sizes) ** 2 > MOST_OF_BOUNDS:
        return Diagnosis()
    try:
        found = CollapsedELBO().evidence(subject.params, subject.guide, *subject.args, model_kwargs=subject.kwargs)
    except NoOptimumError:
        return Diagnosis()
    least, most = map(float, found)
    missing = max(most - least, 0.0)
    rows = [("at least", least), ("at most", most)]
    which = "enough" if missing < 1 else "missing"
    return Diagnosis(
        sections=table("Bounds of the evidence", rows, which, missing=missing, per_row=missing / subject.num_rows)
    )


def reached(measured: Measured, inner: Collection[str], needs: Mapping[str, frozenset[str]]) -> dict[str, np.ndarray]:
    """Whether the inducing variables reach each row, ``[N]``, by data site.

    They reach a row if they reduce its prior variance by more than 1 %. If they reach fewer than half of the rows, no
    row counts as reached. The reached rows then lie at the border of the region that the inducing variables reach.

    Args:
        measured: numbers at the rows.
        inner: names of GP sites on which only other GP sites depend.
        needs: names of the latent sites on which each data site depends.
    """
    by_site = {}
    for name, outcomes in measured.outcomes.items():
        rows = len(outcomes.value)
        reached = np.ones(rows, bool)
        for process, site in measured.processes.items():
            if process in needs.get(name, ()) and process not in inner and len(site.mean) == rows:
                reached &= _reached(site)
        by_site[name] = reached if reached.sum() >= FEWEST_REACHED * rows else np.zeros(rows, bool)
    return by_site


def _reached(site: Process) -> np.ndarray:
    rows = len(site.mean)
    if site.residual is None:
        return np.ones(rows, bool)
    return _ratio(site.residual.reshape(rows, -1), site.prior_variance.reshape(rows, -1), axis=1) < UNREACHED


def _ratio(part: np.ndarray, whole: np.ndarray, axis: int | None = None) -> Any:
    return part.mean(axis=axis) / np.maximum(whole.mean(axis=axis), np.finfo(np.float32).tiny)


def inducing(measured: Measured, inner: Collection[str], *, drawn: bool = False) -> Diagnosis:
    """The number of inducing variables of each site that are in use, and the rows that they do not reach.

    Args:
        measured: numbers at the rows.
        inner: names of GP sites on which only other GP sites depend.
        drawn: whether ``u`` are draws at all inputs. Covariances of ``u`` are then not used.
    """
    rows, findings, arrays = [], [], {}
    for name, site in measured.processes.items():
        known = doubles = alone = None
        crowd = 0
        if site.eigenvalues is not None and not drawn:
            arrays[f"{name}_eigenvalues"] = site.eigenvalues
            known = float(np.mean(np.sum(1 - np.minimum(site.eigenvalues, 1), axis=-1)))
        if site.covariance is not None and not drawn:
            doubles, alone, crowd = _relations(site.covariance)
        left = None if site.residual is None else float(_ratio(site.residual, site.prior_variance))
        rows.append((name, site.num_inducing, doubles, known, left))
        M = site.num_inducing
        if doubles is not None and (doubles > MOST_DUPLICATES * M or crowd > max(LARGEST_GROUP * M, OF_FEW)):
            numbers = {"doubles": doubles, "number": M, "duplicate": DUPLICATE}
            findings.append(finding("inducing variables repeat each other", name, **numbers))
        if site.between:
            findings.append(finding("inducing inputs between categories", name, between=site.between, number=M))
        if name not in inner:
            findings += _reach(name, site, alone)
    return Diagnosis(tuple(findings), table("Inducing variables", rows), arrays)


def _relations(covariance: np.ndarray) -> tuple[int, float, int]:
    """Number of inducing variables that nearly repeat a kept one, share that stands alone, size of the largest group.

    Each number is the maximum over outputs.
    """
    size, doubles, alone, crowd = covariance.shape[-1], 0, 0.0, 0
    for K in covariance.reshape(-1, size, size):
        scale = np.sqrt(np.maximum(np.diagonal(K), np.finfo(np.float32).tiny))
        correlation = np.abs(K / scale / scale[:, None])
        near, kept = correlation > DUPLICATE, np.ones(size, bool)
        for i in range(1, size):
            kept[i] = not near[i, :i][kept[:i]].any()
        crowd = max(crowd, int(near.sum(axis=1).max()))
        np.fill_diagonal(correlation, 0)
        doubles = max(doubles, size - int(kept.sum()))
        alone = max(alone, float(np.mean(correlation.max(axis=1) < ALONE)) if size > 1 else 0.0)
    return doubles, alone, crowd


def _reach(name: str, site: Process, alone: float | None) -> list[Finding]:
    """The finding about rows that the inducing variables do not reach, if there is one."""
    on_grid = site.outside is not None
    share = 1 - float(_reached(site).mean()) if site.outside is None else site.outside / len(site.mean)
    if share <= MOST_UNREACHED:
        return []
    if alone is not None and alone > 1 - MOST_UNREACHED and not on_grid:
        return [finding("lengthscale too short", name, alone=alone, share=share)]
    return [finding("beyond the inducing variables", name, "grid" if on_grid else "points", share=share)]


def layers(measured: Measured, inner: Collection[str]) -> Diagnosis:
    """The difference between inner layers and their mean functions."""
    rows, findings = [], []
    for name, site in measured.processes.items():
        if name not in inner:
            continue
        spread = np.std(site.mean.reshape(len(site.mean), -1), axis=0)
        shift = np.sqrt(np.mean(np.square(site.mean - site.prior_mean)))
        noise, whole = np.sqrt(np.mean(site.variance)), np.sqrt(np.mean(np.square(spread)))
        rows.append((name, len(spread), float(whole), float(shift), float(noise)))
        if np.hypot(shift, noise) < COLLAPSED * max(whole, np.finfo(np.float32).tiny):
            findings.append(finding("layer collapsed to its mean", name, "mean", shift=shift, spread=whole))
        elif whole < COLLAPSED * noise:
            findings.append(finding("layer collapsed to its mean", name, "noise", spread=whole, noise=noise))
    return Diagnosis(tuple(findings), table("Inner layers", rows))


def evaluation(end: End, losses: np.ndarray, bound: float, rows: int) -> Diagnosis:
    """Whether the bound of a network with a state, such as running means, is lower in evaluation than in training.

    Args:
        end: how the training ended.
        losses: negative bounds, ``[num_steps]``.
        bound: bound of the training rows, in evaluation.
        rows: number of training rows.
    """
    if end.last is None:
        return Diagnosis()
    lower = -float(np.mean(losses[-(len(losses) // 10) :], dtype=np.float64)) - bound
    if lower < max(LOWER * rows, 3 * end.last.error):
        return Diagnosis()
    return Diagnosis((finding("evaluation far from training", None, lower=lower, per_row=lower / rows),))


def parameters(params: Mapping[str, Any], starts: Mapping[str, Any]) -> Diagnosis:
    """Parameters of the program, with a finding about the parameters that training has not moved from their start."""
    rows, unmoved = [], []
    findings: tuple[Finding, ...] = ()
    for name, start in starts.items():
        if name not in params:
            continue
        value, before = _numbers(params[name]), _numbers(start)
        if value.size != before.size or not value.size:
            continue
        moved = np.abs(value - before) > UNMOVED * np.maximum(np.abs(before), np.finfo(np.float32).tiny)
        rows.append((name, value.size, float(value.min()), float(value.max()), float(before.min()), int(moved.sum())))
        if not moved.any():
            unmoved.append(f"{name} ({_few(before)})")
    if unmoved:
        named = ", ".join(unmoved[:5]) + (f" and {len(unmoved) - 5} others" if len(unmoved) > 5 else "")
        findings = (finding("parameter at its start", None, named=named),)
    return Diagnosis(findings, table("Parameters of the program", rows))


def _numbers(tree: Any) -> np.ndarray:
    return np.concatenate(list(map(np.ravel, jax.tree.leaves(tree)))).astype(np.float64)


def _few(values: np.ndarray) -> str:
    return f"{values[0]:.4g}" if values.size == 1 else f"values from {values.min():.4g} to {values.max():.4g}"


def course(losses: np.ndarray, rows: int, backed_off: Mapping[str, Any], end: End) -> Diagnosis:
    """How the training ended.

    Args:
        losses: negative bounds, ``[num_steps]``.
        rows: number of training rows.
        backed_off: steps of natural gradients that were shortened, by site.
        end: how the training ended.
    """
    if end.last is None:
        return Diagnosis()
    tenth, findings = len(losses) // 10, []
    shown = [("steps", len(losses)), ("bound over the last tenth", float(-np.mean(losses[-tenth:], dtype=np.float64)))]
    shown += [("gain over the tenth before", end.last.nats), ("standard error of the gain", end.last.error)]
    if end.more is not None:
        shown += [(f"gain of {MORE_STEPS} more steps", end.more.nats), ("its standard error", end.more.error)]
    for site, count in backed_off.items():
        shown.append((f"shortened natural steps of {site}", int(count)))
        if words := shortened(site, int(count), len(losses)):
            findings.append(finding("natural steps shortened", site, reason=words))
    if end.unfinished:
        gain, numbers = end.gain.nats, {"steps": len(losses), "more": MORE_STEPS}
        found = finding("training not finished", None, end.unfinished, gain=gain, per_row=gain / rows, **numbers)
        findings.insert(0, found)
    return Diagnosis(tuple(findings), table("Training", shown))
