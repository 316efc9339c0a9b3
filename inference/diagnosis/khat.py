"""Is ``q(theta)`` close enough to the posterior of the hyperparameters to be corrected by weights?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random
from jax.scipy.special import logsumexp
from numpyro.distributions.transforms import biject_to

from gpzoo import linalg
from gpzoo.inference.asking.ask import identity_of
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.bounds.collapsed import CollapsedELBO
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding, Section
from gpzoo.inference.diagnosis.measure import log_prob
from gpzoo.inference.diagnosis.psis import pareto
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.enumeration import scored
from gpzoo.inference.programs.gp_sites import Marginals, Use
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import given_value, run, unmasked
from gpzoo.posteriors.posterior import InducingPosterior

#: Above this weights of any practical number of draws estimate nothing (Vehtari, Simpson, Gelman, Yao and Gabry 2024,
#: *Pareto smoothed importance sampling*, section 3.2).
LARGEST = 0.7

#: Share of effective draws from which on weights correct little, whatever the shape of their tail is: of log noise
#: variances the posterior has a slight skew, which alone gives a k-hat of 0.7 to 1.1 and a share above 0.9.
MOST_EFFECTIVE = 0.5

#: Share of effective draws below which k-hat is not asked: from so many draws it has an error of 0.2.
FEWEST_EFFECTIVE = 0.2

#: Shifts of a mean, in standard deviations, and factors of a standard deviation from which on an interval is another.
SHIFTED, WIDER = 0.5, 1.4

#: Draws of the hyperparameters: the tail is fitted to the largest 68 of as many weights.
_DRAWS = 500

#: Of these, how many are computed at once.
_AT_ONCE = 10

#: Draws of ``u`` for each draw of the hyperparameters, where the evidence is estimated.
_OF_U = 20

_COLLAPSED: Any = CollapsedELBO()
_COLLAPSED.at_once = True


class _Target(NamedTuple):
    """Log weights as a function of a key, parameters and arguments.

    Attributes:
        log_weight: ``(key, theta [unconstrained, by site], params, args, arrays) -> log p(theta) + L(theta)``, the
            Jacobian included, and log weights of draws of ``u``, none where ``L`` is computed.
        words: what ``L`` is.
        estimated: whether by draws of ``u``.
    """

    log_weight: Callable[..., tuple[Array, Array]]
    words: str
    estimated: bool = False


def of_hyperparameters(
    rng_key: Array, trained: Trained, params: Mapping[str, Any], args: tuple, kwargs: dict, *, gaussian: bool
) -> Diagnosis:
    """k-hat of ``log w = log p(theta) + L(theta) - log q(theta)`` in unconstrained space, the Jacobian included.

    ``L`` is the exact evidence of a program without latent GPs, else the collapsed bound where noise is Gaussian
    (:class:`~gpzoo.inference.CollapsedELBO`), else an importance estimate over ``u ~ q(u)`` of
    ``int exp(E_p(f|u)[log p(y | f)]) p(u | theta) du``, which has a k-hat of its own.

    Args:
        rng_key: of the draws.
        trained: one training.
        params: its parameters, checked.
        args: the data of training, checked: ``q`` is a posterior given these.
        kwargs: the program's keyword arguments, checked.
        gaussian: whether the noise of all data is.
    """
    guide: InducingGuide = trained.guide
    names = sorted(guide.sites.latents - guide.sites.processes)
    if reason := why_not(guide):
        return unavailable(reason)
    arrays, static = split_arrays(kwargs)
    location = {name: params[f"{name}_loc"] for name in names}
    scale = {name: params[f"{name}_scale"] for name in names}
    keys = random.split(named_key(rng_key, "k-hat"), _DRAWS)
    targets = _targets(scored(trained.model, guide.sites), guide, params, static, gaussian)
    try:
        target, log_weights, at_centre, theta = _best(keys, targets, trained, (params, args, arrays), static, location)
    except (TypeError, ValueError) as error:
        return unavailable(f"log weights are not known ({error})")
    if not np.isfinite(log_weights).all():
        bad = int((~np.isfinite(log_weights)).sum())
        return unavailable(f"{bad} of {_DRAWS} log weights are not finite: {target.words} fails at draws of q(theta)")
    smoothed, k = pareto(log_weights)
    own = pareto(at_centre)[1] if target.estimated else None
    weights = np.exp(smoothed - smoothed.max())
    weights /= weights.sum()
    effective = float(1 / (_DRAWS * np.sum(np.square(weights))))
    entries = sum(int(np.size(x)) for x in location.values())
    rows: list[tuple[Any, ...]] = [("all", entries, k, own, effective, None, None)]
    for name, draws in theta.items():
        flat, spread = draws.reshape(len(draws), -1), np.ravel(scale[name])
        mean = weights @ flat
        shift = np.abs(mean - np.ravel(location[name])) / spread
        wider = np.sqrt(weights @ np.square(flat - mean)) / spread
        furthest = float(wider[np.argmax(np.abs(np.log(wider)))])
        rows.append((name, flat.shape[1], None, None, None, float(shift.max()), furthest))
    note = (
        f"L is {target.words}. k: of the weights of {_DRAWS} draws; above {LARGEST} they are not reliable, and neither "
        "are shift and spread, unless most draws are effective. Effective: share of the draws that as many without "
        "weights would equal. Shift: of the mean under the weights, in standard deviations of q; spread: standard "
        "deviation over that of q; the entry that is furthest off, in unconstrained space."
    )
    columns = ("hyperparameter", "entries", "k-hat", "k-hat of u", "effective", "shift", "spread")
    section = Section(_TITLE, columns, tuple(rows), note)
    findings: tuple[Finding, ...] = ()
    if effective < FEWEST_EFFECTIVE or (k > LARGEST and effective < MOST_EFFECTIVE):
        name, *_, shift, wider = max(rows[1:], key=lambda row: _distance(*row[5:]))
        moved = _moved(name, shift, wider, at_least=k > LARGEST)
        noisy = own is not None and own > LARGEST
        findings = (
            Finding(
                "hyperparameters not trusted",
                None,
                f"k-hat of q(theta) is {k:.2f} and {effective:.0%} of the weighted draws count"
                + (f" (k-hat of u is {own:.2f}, so that this is not known well either)" if noisy else "")
                + f". {moved}: hyperparameters depend on each other or on u. Use NUTS with whitened(program), on some "
                "hundred rows if need be, or trust predictions and not the intervals of hyperparameters.",
            ),
        )
    return Diagnosis(findings, (section,))


def _distance(shift: float, wider: float) -> float:
    """How far a mean and a standard deviation are off; over 1 where that matters."""
    return max(shift / SHIFTED, float(abs(np.log(wider))) / np.log(WIDER))


def _moved(name: str, shift: float, wider: float, at_least: bool) -> str:
    """What the weights change of the hyperparameter that is furthest off, in words.

    Args:
        name: of the hyperparameter.
        shift: of its mean, in standard deviations of ``q``.
        wider: its standard deviation over that of ``q``.
        at_least: whether the weights are too uneven to know more.
    """
    if _distance(shift, wider) <= 1:
        return (
            f"Each mean and standard deviation is about right ({name} is furthest off, its mean by {shift:.2g} of its "
            "standard deviations), so that it is the shape"
        )
    said = [f"move the mean of {name} by {shift:.2g} of its standard deviations"] if shift > SHIFTED else []
    if _distance(0.0, wider) > 1:
        said.append(f"make the standard deviation of {name} {wider:.2g} times as large")
    return f"Weights {' and '.join(said)}{', at least' if at_least else ''}"


_TITLE = "Hyperparameters against their posterior"


def unavailable(reason: str) -> Diagnosis:
    """The table that says why there is no k-hat."""
    return Diagnosis(sections=(Section(_TITLE, ("k-hat",), (("not available",),), f"Not available: {reason}."),))


def why_not(guide: InducingGuide) -> str:
    """Why a guide has no ``q(theta)``; empty where it has."""
    if not guide.sites.latents - guide.sites.processes:
        return "hyperparameters are numpyro.param values, of which there is no posterior"
    if guide.hyperparameters == "point":
        return "hyperparameters are points; InducingGuide(..., hyperparameters='normal') gives them a posterior"
    if callable(guide.hyperparameters):
        return "hyperparameters have a guide of their own, whose draws have no density in unconstrained space here"
    return ""


# -- the evidence given theta ------------------------------------------------------------------------------------------


def _best(
    keys: Array, targets: Iterator[_Target], trained: Trained, given: tuple, static: dict, location: Mapping[str, Any]
) -> tuple[_Target, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The first target that these data have, and :func:`_weighed`."""
    *closed, last = targets
    for target in closed:
        try:
            found = _weighed(keys, target, trained, given, static, location)
        except (KeyError, ValueError):
            continue  # it has no closed form
        if np.isfinite(found[0]).any():
            return target, *found
    return last, *_weighed(keys, last, trained, given, static, location)


def _weighed(
    keys: Array, target: _Target, trained: Trained, given: tuple, static: dict, location: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Log weights of draws of ``theta``; those of draws of ``u`` where ``theta`` is in its centre; and the draws."""

    def one(key: Array, spread: Array, params: dict, args: tuple, arrays: dict) -> tuple[Array, Array, dict]:
        noise = {name: random.normal(named_key(key, name), jnp.shape(x), x.dtype) for name, x in location.items()}
        theta = {name: params[f"{name}_loc"] + spread * params[f"{name}_scale"] * x for name, x in noise.items()}
        log_q = sum(jnp.sum(-jnp.square(noise[n]) / 2 - jnp.log(params[f"{n}_scale"])) for n in noise)
        found, of_u = target.log_weight(named_key(key, "u"), theta, params, args, arrays)
        return found - log_q, of_u, theta

    # The same program for every training of a program with these arguments.
    key = ("k-hat", target.words, identity_of(static))
    if key not in trained._compiled:
        trained._compiled[key] = jax.jit(jax.vmap(one, (0, *(None,) * 4)))
    params, args, arrays = given
    dtype = jnp.result_type(*location.values())

    def of(keys: Array, spread: float) -> tuple:
        return trained._compiled[key](keys, jnp.asarray(spread, dtype), dict(params), args, arrays)

    found = [of(keys[i : i + _AT_ONCE], 1.0) for i in range(0, len(keys), _AT_ONCE)]
    log_weights, _, theta = jax.tree.map(lambda *x: np.concatenate(x).astype(np.float64), *found)
    # As many draws of u as of theta.
    several = range(0, len(keys) // _OF_U * target.estimated, _AT_ONCE)
    centre = [np.ravel(of(random.split(keys[i], _AT_ONCE), 0.0)[1]) for i in several]
    return log_weights, np.concatenate([np.zeros(0), *centre]), theta


def _targets(
    model: Callable, guide: InducingGuide, params: Mapping[str, Any], static: dict, gaussian: bool
) -> Iterator[_Target]:
    """What there may be, the best first; the last always is, where draws of ``u`` have densities."""
    if not guide.sites.processes:

        def exact(*given: Any) -> tuple[Array, Array]:
            return _joint(model, static, Marginals(), None, *given)[0], jnp.zeros(())

        yield _Target(exact, "exact")
        return
    points: Any = copy(guide)
    points.hyperparameters = "point"
    names = guide.sites.latents - guide.sites.processes
    transforms = {name: biject_to(guide.sites.constraints[name]) for name in names & set(guide.sites.constraints)}

    def collapsed(key: Array, theta: dict, params: dict, args: tuple, arrays: dict) -> tuple[Array, Array]:
        values = {name: transforms[name](x) for name, x in theta.items()}
        jacobian = sum(jnp.sum(transforms[n].log_abs_det_jacobian(x, values[n])) for n, x in theta.items())
        given = {name: x for name, x in params.items() if name not in {f"{n}_scale" for n in names}}
        given |= {f"{name}_loc": x for name, x in values.items()}
        loss: Any = _COLLAPSED.loss(key, given, model, points, *args, **(arrays | static))
        return jacobian - loss, jnp.zeros(())

    if gaussian:
        yield _Target(collapsed, "the collapsed bound on the evidence")

    def estimated(key: Array, theta: dict, params: dict, args: tuple, arrays: dict) -> tuple[Array, Array]:
        def one(key: Array) -> tuple[Array, Array]:
            return _joint(model, static, _Weighted(), guide, key, theta, params, args, arrays)

        prior, of_u = jax.vmap(one)(random.split(key, _OF_U))
        return prior[0] + logsumexp(of_u) - np.log(_OF_U), of_u

    size = sum(int(np.size(params[f"{site}_mean"])) for site in guide.sites.processes)
    yield _Target(estimated, f"an importance estimate over u, of {size} dimensions, with {_OF_U} draws", True)


class _Weighted(Marginals):
    """A draw of ``u ~ q(u)`` and the marginals given it; ``<site>_log_weight`` is ``log p(u) - log q(u)``."""

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`Representation.posterior`."""
        conditional: Any = posterior.conditional
        mean, form = posterior._q()
        root: Any = form.root()
        root = root.dense() if hasattr(root, "dense") else root
        if conditional.deterministic or root.shape[-1] != root.shape[-2]:
            raise TypeError(f"q(u) of site {posterior.site!r} is {type(posterior.form).__name__}")
        noise = random.normal(numpyro.prng_key(), root.shape[:2], root.dtype)
        u = mean + (root @ noise[..., None])[..., 0].T
        white, size = u, jnp.zeros((), u.dtype)
        if not posterior.whiten:
            L = conditional.L.dense() if hasattr(conditional.L, "dense") else conditional.L
            white = conditional.solved(u.T[..., None])[..., 0].T
            outputs = u.shape[1] if L.ndim == 2 else 1
            size = outputs * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(L, axis1=-2, axis2=-1))))
        log_weight = (jnp.sum(jnp.square(noise)) - jnp.sum(jnp.square(white)) + form.log_det()) / 2 - size
        numpyro.deterministic(f"{posterior.site}_log_weight", log_weight)
        given = posterior.given(u.reshape(posterior.u_mean.shape))
        return super().posterior(given, use)


def _joint(
    model: Callable,
    static: dict,
    representation: Marginals,
    guide: InducingGuide | None,
    key: Array,
    theta: dict,
    params: dict,
    args: tuple,
    arrays: dict,
) -> tuple[Array, Array]:
    """``log p(theta)`` with the Jacobian, and the log density of data given ``u`` with the weight of ``u``.

    Without a guide the second is part of the first.
    """
    jacobians: dict[str, Array] = {}

    def value_of(site: dict[str, Any]) -> Any:
        if site["type"] != "sample" or site["name"] not in theta:
            return given_value(params, site)
        transform = biject_to(unmasked(site["fn"]).support)
        value = transform(theta[site["name"]])
        jacobians[site["name"]] = jnp.sum(transform.log_abs_det_jacobian(theta[site["name"]], value))
        return value

    runs = run(
        key,
        args,
        arrays | static,
        guide=guide,
        model=model,
        values=value_of,
        representation=representation,
        complete=False,
    )
    prior, data = linalg.total(jacobians.values()), jnp.zeros(())
    for name, site in runs.model.items():
        if site["type"] != "sample":
            continue
        if name in theta:
            prior += log_prob(site)
        elif site["is_observed"]:
            data += log_prob(site)
    weights = [site["value"] for name, site in runs.guide.items() if name.endswith("_log_weight")]
    if guide is None:
        return prior + data, jnp.zeros(())
    return prior, data + sum(weights)
