"""Check of ``q(theta)`` by k-hat: whether it is close enough to the posterior for importance weights to correct it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random
from jax.scipy.special import logsumexp
from numpyro.distributions.transforms import biject_to
from numpyro.distributions.util import scale_and_mask

from gpzoo import linalg
from gpzoo.inference.bounds.collapsed import CollapsedELBO
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding, finding, table, unavailable
from gpzoo.inference.fitted.map_batches import Batch, BatchFunction, BoundModel
from gpzoo.inference.fitted.psis import pareto
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.enumeration import scored
from gpzoo.inference.programs.gp_sites import Marginals, Use
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import given_value, run, sampled, unmasked
from gpzoo.posteriors.posterior import InducingPosterior

#: For a larger k-hat, the weights of any practical number of draws estimate nothing (Vehtari, Simpson, Gelman, Yao and
#: Gabry 2024, *Pareto smoothed importance sampling*, section 3.2).
LARGEST = 0.7

#: For a larger share of effective draws, weights correct little, whatever the shape of their tail. The posterior of log
#: noise variances has a slight skew. This skew alone gives a k-hat of 0.7 to 1.1, and a share above 0.9.
MOST_EFFECTIVE = 0.5

#: A smaller share of effective draws is a finding whatever k-hat is: from so few draws, k-hat has an error of 0.2.
FEWEST_EFFECTIVE = 0.2

#: An interval differs if weights shift its mean by more standard deviations, or change its width by a larger factor.
SHIFTED, WIDER = 0.5, 1.4

#: Draws of the hyperparameters. The tail is fitted to their 68 largest weights.
_DRAWS = 500

#: How many of these draws are computed at once.
_AT_ONCE = 10

#: Draws of ``u`` for each draw of the hyperparameters, if the evidence is estimated.
_OF_U = 20

TITLE = "Hyperparameters against their posterior"


class _Evidence(NamedTuple):
    """An expression for ``L(theta)``, the log density of the data given the hyperparameters.

    Attributes:
        log_joint: ``(key, theta [unconstrained, by site], at) -> log p(theta) + L(theta)``, the Jacobian included, and
            log weights of draws of ``u``; no weights if ``L`` is computed in closed form.
        words: a description of ``L``.
        estimated: whether draws of ``u`` estimate ``L``.
    """

    log_joint: Callable[[Array, dict[str, Array], Batch], tuple[Array, Array]]
    words: str
    estimated: bool = False


class _Weighed(NamedTuple):
    """Draws of ``q(theta)`` with their weights, on the host.

    Attributes:
        evidence: the evidence behind the weights.
        log_weights: log weights of the draws, ``[S]``.
        at_centre: log weights of draws of ``u`` with ``theta`` at its centre; none if ``L`` has a closed form.
        theta: the draws by site, unconstrained.
    """

    evidence: _Evidence
    log_weights: np.ndarray
    at_centre: np.ndarray
    theta: dict[str, np.ndarray]


def of_hyperparameters(rng_key: Array, subject: BoundModel, *, gaussian: bool) -> Diagnosis:
    """k-hat of ``log w = log p(theta) + L(theta) - log q(theta)`` in unconstrained space, the Jacobian included.

    ``L(theta)`` is the log evidence. It depends on the program:

    * Without latent GPs, ``L`` is exact.
    * With latent GPs and Gaussian noise, ``L`` is the collapsed bound (:class:`~gpzoo.inference.CollapsedELBO`).
    * With noise that is not Gaussian, ``L`` is the log of an importance estimate, with draws ``u ~ q(u)``, of
      ``int exp(E_p(f|u)[log p(y | f)]) p(u | theta) du``. This estimate has its own k-hat.

    Args:
        rng_key: key of the draws.
        subject: one training, at its training data.
        gaussian: whether the noise of all data is Gaussian.
    """
    if reason := why_not(subject.guide):
        return unavailable(TITLE, reason)
    try:
        weighed = _best(random.split(named_key(rng_key, "k-hat"), _DRAWS), subject, gaussian)
    except (TypeError, ValueError) as error:
        return unavailable(TITLE, f"log weights are not known ({error})")
    if bad := int((~np.isfinite(weighed.log_weights)).sum()):
        reason = f"{bad} of {_DRAWS} log weights are not finite: {weighed.evidence.words} fails at draws of q(theta)"
        return unavailable(TITLE, reason)
    smoothed, k = pareto(weighed.log_weights)
    of_u = pareto(weighed.at_centre)[1] if weighed.evidence.estimated else None
    weights = np.exp(smoothed - smoothed.max())
    weights /= weights.sum()
    effective = float(1 / (_DRAWS * np.sum(np.square(weights))))
    rows = [_corrected(name, draws, weights, subject.params) for name, draws in weighed.theta.items()]
    whole = ("all", sum(row[1] for row in rows), k, of_u, effective, None, None)
    findings: tuple[Finding, ...] = ()
    if effective < FEWEST_EFFECTIVE or (k > LARGEST and effective < MOST_EFFECTIVE):
        findings = (_finding(rows, k, of_u, effective),)
    note = {"words": weighed.evidence.words, "draws": _DRAWS, "largest": LARGEST}
    return Diagnosis(findings, table(TITLE, [whole, *rows], **note))


def _corrected(name: str, draws: np.ndarray, weights: np.ndarray, params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The row of a hyperparameter: the shift of its mean and the change of its standard deviation by the weights."""
    flat, spread = draws.reshape(len(draws), -1), np.ravel(params[f"{name}_scale"])
    mean = weights @ flat
    shift = np.abs(mean - np.ravel(params[f"{name}_loc"])) / spread
    wider = np.sqrt(weights @ np.square(flat - mean)) / spread
    furthest = float(wider[np.argmax(np.abs(np.log(wider)))])
    return name, flat.shape[1], None, None, None, float(shift.max()), furthest


def _distance(shift: float, wider: float) -> float:
    """The error of a mean and a standard deviation, on a scale where values over 1 matter."""
    return max(shift / SHIFTED, float(abs(np.log(wider))) / np.log(WIDER))


def _finding(rows: list[tuple[Any, ...]], k: float, of_u: float | None, effective: float) -> Finding:
    """The finding about the hyperparameter with the largest error, or about the shape of all hyperparameters."""
    name, *_, shift, wider = max(rows, key=lambda row: _distance(*row[5:]))
    off, wide = _distance(shift, wider) > 1, _distance(0.0, wider) > 1
    noisy = f" (k-hat of u is {of_u:.2f}, so that this is not known well either)" if (of_u or 0.0) > LARGEST else ""
    return finding(
        "hyperparameters not trusted",
        None,
        "shape" if not off else "both" if wide and shift > SHIFTED else "width" if wide else "mean",
        k=k,
        effective=effective,
        noisy=noisy,
        name=name,
        shift=shift,
        wider=wider,
        least=", at least" if k > LARGEST else "",
    )


def why_not(guide: InducingGuide) -> str:
    """Why a guide has no ``q(theta)``; empty if it has one."""
    if not guide.sites.latents - guide.sites.processes:
        return "hyperparameters are numpyro.param values, of which there is no posterior"
    if guide.hyperparameters == "draws":
        return "hyperparameters are draws of Markov chains, see Chains"
    if guide.hyperparameters == "point":
        return "hyperparameters are points; InducingGuide(..., hyperparameters='normal') gives them a posterior"
    if callable(guide.hyperparameters):
        return "hyperparameters have a guide of their own, whose draws have no density in unconstrained space here"
    return ""


# -- the evidence given theta ------------------------------------------------------------------------------------------


def _best(keys: Array, subject: BoundModel, gaussian: bool) -> _Weighed:
    """Draws of ``q(theta)``, with weights from the best available expression of the evidence."""
    *closed, last = _evidences(subject, gaussian)
    for evidence in closed:
        try:
            weighed = _weighed(keys, evidence, subject)
        except (KeyError, ValueError):
            continue  # this evidence has no closed form
        if np.isfinite(weighed.log_weights).any():
            return weighed
    return _weighed(keys, last, subject)


def _weighed(keys: Array, evidence: _Evidence, subject: BoundModel) -> _Weighed:
    """Draws with these keys, and their weights."""
    sites = subject.guide.sites
    location = {name: subject.params[f"{name}_loc"] for name in sorted(sites.latents - sites.processes)}
    dtype = jnp.result_type(*location.values())

    def of_draw(draw: tuple[Array, Array], at: Batch) -> tuple[Array, Array, dict[str, Array]]:
        (key, spread), theta, log_q = draw, {}, 0
        for name, x in location.items():
            noise, scale = random.normal(named_key(key, name), jnp.shape(x), x.dtype), at.params[f"{name}_scale"]
            theta[name] = at.params[f"{name}_loc"] + spread * scale * noise
            log_q += jnp.sum(-jnp.square(noise) / 2 - jnp.log(scale))
        log_joint, of_u = evidence.log_joint(named_key(key, "u"), theta, at)
        return log_joint - log_q, of_u, theta

    program = subject.compiled_for(BatchFunction("k-hat", of_draw, evidence.words, draws_together=None))

    def of(keys: Array, spread: float) -> tuple:
        return program((keys, jnp.full(len(keys), spread, dtype)), subject.batch())

    parts = [of(keys[i : i + _AT_ONCE], 1.0) for i in range(0, len(keys), _AT_ONCE)]
    log_weights, _, theta = jax.tree.map(lambda *x: np.concatenate(x).astype(np.float64), *parts)
    # As many draws of u as of theta.
    several = range(0, len(keys) // _OF_U * evidence.estimated, _AT_ONCE)
    centre = [np.ravel(of(random.split(keys[i], _AT_ONCE), 0.0)[1]) for i in several]
    return _Weighed(evidence, log_weights, np.concatenate([np.zeros(0), *centre]), theta)


def _evidences(subject: BoundModel, gaussian: bool) -> Iterator[_Evidence]:
    """Expressions of the evidence, the best one first. The last one always exists if draws of ``u`` have densities."""
    guide = subject.guide
    model = scored(subject.model, guide.sites)
    if not guide.sites.processes:
        yield _Evidence(partial(_exact, model), "exact")
        return
    if gaussian:
        yield _Evidence(partial(_collapsed, model, guide), "the collapsed bound on the evidence")
    size = 0
    for site in guide.sites.processes:
        size += int(np.size(subject.params[f"{site}_mean"]))
    words = f"an importance estimate over u, of {size} dimensions, with {_OF_U} draws"
    yield _Evidence(partial(_estimated, model, guide), words, True)


def _exact(model: Callable, key: Array, theta: dict[str, Array], at: Batch) -> tuple[Array, Array]:
    prior, data = _joint(model, None, key, theta, at)
    return prior + data, jnp.zeros(())


def _collapsed(
    model: Callable, guide: InducingGuide, key: Array, theta: dict[str, Array], at: Batch
) -> tuple[Array, Array]:
    points: Any = copy(guide)
    points.hyperparameters = "point"
    params, jacobian = dict(at.params), 0
    for name, x in theta.items():
        transform = biject_to(guide.sites.constraints[name])
        value = params[f"{name}_loc"] = transform(x)
        del params[f"{name}_scale"]
        jacobian += jnp.sum(transform.log_abs_det_jacobian(x, value))
    loss: Any = CollapsedELBO().loss(key, params, model, points, *at.args, **at.kwargs)
    return jacobian - loss, jnp.zeros(())


def _estimated(
    model: Callable, guide: InducingGuide, key: Array, theta: dict[str, Array], at: Batch
) -> tuple[Array, Array]:
    def one(key: Array) -> tuple[Array, Array]:
        return _joint(model, guide, key, theta, at)

    prior, of_u = jax.vmap(one)(random.split(key, _OF_U))
    return prior[0] + logsumexp(of_u) - np.log(_OF_U), of_u


class _GivenU(Marginals):
    """A draw of ``u ~ q(u)``, and the marginals given this draw; ``<site>_log_weight`` is ``log p(u) - log q(u)``."""

    draws = True

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`SiteMode.posterior`."""
        draw = posterior.draw_inducing(numpyro.prng_key())
        given = posterior.given(draw)
        log_weight = given.log_prior_of_inducing() - posterior.log_density_of(draw)
        numpyro.deterministic(f"{posterior.site}_log_weight", log_weight)
        return super().posterior(given, use)


def _joint(
    model: Callable, guide: InducingGuide | None, key: Array, theta: dict[str, Array], at: Batch
) -> tuple[Array, Array]:
    """``log p(theta)`` with the Jacobian, and the log density of the data; with a guide, given ``u`` and its weight."""
    jacobians: dict[str, Array] = {}

    def value_of(site: dict[str, Any]) -> Any:
        if site["type"] != "sample" or site["name"] not in theta:
            return given_value(at.params, site)
        transform = biject_to(unmasked(site["fn"]).support)
        value = transform(theta[site["name"]])
        jacobians[site["name"]] = jnp.sum(transform.log_abs_det_jacobian(theta[site["name"]], value))
        return value

    options = {"guide": guide, "model": model, "values": value_of, "complete": False}
    runs = run(key, at.args, at.kwargs, mode=_GivenU() if guide else Marginals(), **options)
    prior, data = linalg.total(jacobians.values()), jnp.zeros(())
    for name, site in sampled(runs.model).items():
        if name in theta:
            prior += _log_prob(site)
        elif site["is_observed"]:
            data += _log_prob(site)
    for name, site in runs.guide.items():
        if name.endswith("_log_weight") and site["type"] == "deterministic":
            data += site["value"]
    return prior, data


def _log_prob(site: Mapping[str, Any]) -> Array:
    """The log density of a site's value, scaled by its plates."""
    fn: Any = site["fn"]
    return jnp.sum(scale_and_mask(fn.log_prob(site["value"]), scale=site["scale"]))
