"""Diagnosis of a trained model: whether to believe it, and if not, what is wrong and what to try.

A new diagnostic is a function in its own file, which returns a :class:`Diagnosis` of :func:`finding` and :func:`table`.
Its words are in ``words.toml``. The numbers that it needs from the model are fields of :class:`Process` or
:class:`Outcomes` in ``measure.py``. :func:`_causes` or :func:`_effects` calls it. Findings before training are in
``check.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from numpyro.infer import SVI
from numpyro.optim import Adam

from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.diagnosis import approximation, chains, khat, loo, restarts
from gpzoo.inference.diagnosis.check import of_arguments, of_sums
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding, unavailable
from gpzoo.inference.diagnosis.mean_field import against_joint
from gpzoo.inference.diagnosis.measure import Measured, measure, places_of_data, without_data
from gpzoo.inference.diagnosis.outcomes import judge
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.fitted.summaries import SitePrediction
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.guides.draws import DrawsGuide
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.rows import number_of_rows
from gpzoo.inference.training.finished import End, Gain, end_of, gain_of_more_steps
from gpzoo.inference.training.sources import described_arguments

#: Largest number of rows for which a joint q of a sum is trained.
_MOST_ROWS = 10_000

#: Number of draws if the program draws something, or if transforms of outcomes are ranks among draws.
_DRAWS = 200


@entry_point
@checks.each_once()
def diagnose(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    train_args: tuple[Argument, ...] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Diagnose a trained model with data: findings about what is wrong, and tables. Held-out data are best.

    R-hat, effective sample sizes and traces are only for a model from :meth:`gpzoo.inference.Trained.of_draws`. The
    draws of an approximation are independent, so these numbers would be perfect for every approximation.

    :class:`~gpzoo.inference.GaussianProcessELBO` computes all bounds, because a trained model does not keep the
    objective of its training.

    If hyperparameters have posteriors, ``diagnose`` evaluates the program on all of ``train_args`` at 500 draws of the
    hyperparameters. If noise is not Gaussian, ``diagnose`` makes 20 draws of ``u`` for each of these 500 draws. This
    takes minutes for thousands of rows, or for a convolution over hundreds of rows.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, diagnose
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> y, guide = np.sin(X[:, 0]), InducingGuide(gp_regression, kmeans(8))
        >>> untrained = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, y))
        >>> [finding.name for finding in diagnose(jax.random.key(1), untrained, X, y).findings]
        ['parameter at its start', 'no better than a constant']

    Args:
        rng_key: key of the draws.
        trained: the result of :func:`~gpzoo.inference.fit`. If there are several trainings on the same data (restarts),
            the training with the highest bound is diagnosed. R-hat between the functions of all trainings tells whether
            there are several optima.
        *args: the program's positional arguments, data included.
        train_args: the positional arguments of training, if they differ from ``args``. ``diagnose`` compares
            hyperparameters with their posterior given the training data, and judges the units of these data.
        model_kwargs: the program's keyword arguments, by name.

    Raises:
        TypeError: for data that are not real numbers, or an ``rng_key`` that is not a key.
        ValueError: if data are not finite, or there are none; if parameters are missing or have another shape.
        FactorisationError: if the covariance of a GP site has no Cholesky factor; the message names the site.
    """
    rng_key = checks.rng_key(rng_key)
    subject = restarts.best(trained)[0]._bind(args, model_kwargs, seen=False)
    return diagnosed(rng_key, trained, subject, train_args)


def diagnosed(rng_key: Array, several: Trained, subject: BoundModel, train_args: tuple | None) -> Diagnosis:
    """:func:`diagnose` of one or several trainings; ``subject`` is the best training at its checked arguments."""
    (trained, bounds), guide = restarts.best(several), subject.guide
    if train_args is not None:
        train_args = arguments(trained.model, train_args, described=trained.data)[0]
    trace = subject.look.trace
    if absent := without_data(trace):
        raise ValueError(
            f"Site {absent[0]!r} has no data: give it obs=y in the program, and pass the data, "
            "diagnose(key, trained, X, y)."
        )
    measured = measure(named_key(rng_key, "measure"), subject)
    predicted = partial(_predicted, rng_key, subject, measured)
    effects = _effects(subject, measured, predicted(trained) if measured.outcomes else {})
    outer = sorted(guide.sites.processes - guide.sites.inner)
    optima = restarts.compare(named_key(rng_key, "restarts"), several, bounds, predicted, outer)
    numbers = described_arguments(trained.model, subject.args, {})
    of_training = bool(numbers) and numbers.items() <= trained.data.items()
    causes = _causes(rng_key, trained, subject, train_args, of_training, measured, effects)
    findings = causes.findings + effects.findings
    if not isinstance(guide, DrawsGuide):
        apart = of_sums(subject.look.sums, guide.sites.coupled)
        if apart and number_of_rows(subject.args) <= _MOST_ROWS:
            apart = against_joint(named_key(rng_key, "mean field"), subject) or apart
        findings = (*apart, *findings)
    # Units explain why the approximation is wrong, and the approximation explains why its predictions are wrong.
    # Rows for a test may have any mean and any spread, so only units of training rows are judged.
    if effects.findings and (train_args is not None or of_training or not trained.data):
        findings = (*_odd_units(subject if train_args is None else replace(subject, args=train_args)), *findings)
    return Diagnosis.joined([optima, replace(Diagnosis.joined([effects, causes]), findings=findings)])


def _predicted(rng_key: Array, subject: BoundModel, measured: Measured, trained: Trained) -> dict[str, SitePrediction]:
    """Predictions at the rows by one training, with the densities of the data."""
    inputs, outcomes = list(subject.args), measured.outcomes
    if callable(subject.guide.hyperparameters):  # a user's own guide may read the data, which a prediction must not
        for place in places_of_data(subject.look.trace, subject.args).values():
            inputs[place] = None
    return trained.predict(
        named_key(rng_key, "predict"),
        *inputs,
        test_data={name: site.filled for name, site in outcomes.items()},
        num_draws=_DRAWS,
        keep_draws=any(site.judged_by_draws for site in outcomes.values()),
        model_kwargs=subject.kwargs,
    )


def _effects(subject: BoundModel, measured: Measured, at_rows: Mapping[str, SitePrediction]) -> Diagnosis:
    """Findings about predictions of the data."""
    reached = approximation.reached(measured, subject.guide.sites.inner, subject.look.needs)
    return Diagnosis.joined(judge(name, x, at_rows[name], reached[name]) for name, x in measured.outcomes.items())


def _causes(
    rng_key: Array,
    trained: Trained,
    subject: BoundModel,
    train_args: tuple | None,
    of_training: bool,
    measured: Measured,
    effects: Diagnosis,
) -> Diagnosis:
    """Findings about the approximation itself, and about its training."""
    by_draws, inner = isinstance(subject.guide, DrawsGuide), subject.guide.sites.inner
    rows = _rows_of_training(trained, subject.args)
    data, reason = _of_training(subject, train_args, rows, of_training)
    more = lambda: None if reason else _more_steps(rng_key, trained, subject, data)  # noqa: E731
    num_rows = rows or number_of_rows(subject.args)
    end = end_of(trained.losses, num_rows, more)
    gaussian = not (reason or by_draws) and all(site.noise is not None for site in measured.outcomes.values())
    return Diagnosis.joined(
        [
            approximation.course(trained.losses, num_rows, trained.backed_off, end),
            Diagnosis() if reason else _evaluation(rng_key, trained, subject, data, measured, end),
            chains.of_draws(subject),
            Diagnosis() if by_draws else approximation.by_site(measured),
            approximation.evidence(replace(subject, args=data)) if gaussian and measured.outcomes else Diagnosis(),
            approximation.inducing(measured, inner, drawn=by_draws),
            approximation.layers(measured, inner),
            approximation.parameters(subject.params, measured.starts),
            *_of_posterior(rng_key, subject, data, reason, of_training, measured, effects),
        ]
    )


def _odd_units(subject: BoundModel) -> tuple[Finding, ...]:
    """Findings about the units of the data and the inputs: the findings of ``check`` named ``unscaled ...``."""
    of_data = of_arguments(subject.model, subject.args, subject.look.trace, repeats=False)
    return tuple(finding for finding in of_data if finding.name.startswith("unscaled"))


def _of_training(
    subject: BoundModel, train_args: tuple | None, rows: int | None, of_training: bool
) -> tuple[tuple, str]:
    """Positional arguments to use as training data, and a reason if they are not the training data, else ``""``."""
    data = subject.args if train_args is None else train_args
    if train_args is None and not of_training:
        return data, "it is about the training's data: pass train_args=(X, y)"
    if rows not in (None, number_of_rows(data)):
        return data, (
            f"q is a posterior given the {rows:,} rows of training, and these are {number_of_rows(data):,}: pass all, "
            "train_args=(X, y)"
        )
    return data, ""


def _more_steps(rng_key: Array, trained: Trained, subject: BoundModel, data: tuple) -> Gain | None:
    """The gain of more steps of the training; ``None`` if no steps are taken."""
    if isinstance(subject.guide, DrawsGuide):
        return None
    svi = SVI(subject.model, subject.guide, Adam(0.0), GaussianProcessELBO())  # the steps set their own rates
    size = trained.data.get("batch_size")
    return gain_of_more_steps(named_key(rng_key, "more steps"), svi, subject.params, data, size, subject.kwargs)


def _evaluation(
    rng_key: Array, trained: Trained, subject: BoundModel, data: tuple, measured: Measured, end: End
) -> Diagnosis:
    """The loss in evaluation, at the training data, of networks with a state such as running means."""
    if not any(site["type"] == "mutable" for site in subject.look.trace.values()):
        return Diagnosis()
    if not _same(subject.args, data):
        measured = measure(named_key(rng_key, "evaluation"), replace(subject, args=data))
    return approximation.evaluation(end, trained.losses, sum(measured.terms.values()), number_of_rows(data))


def _of_posterior(
    rng_key: Array,
    subject: BoundModel,
    data: tuple,
    reason: str,
    of_training: bool,
    measured: Measured,
    effects: Diagnosis,
) -> tuple[Diagnosis, Diagnosis]:
    """Findings about ``q`` as a posterior given the training data: about hyperparameters, and about all draws."""
    if reason:
        return unavailable(khat.TITLE, khat.why_not(subject.guide) or reason), unavailable(loo.TITLE, reason)
    gaussian = all(site.noise is not None for site in measured.outcomes.values())
    held_out = {}
    if not of_training and not _same(subject.args, data):
        for name in measured.outcomes:
            if (density := effects.arrays.get(f"{name}_log_density")) is not None:
                held_out[name] = density
    subject = replace(subject, args=data)
    return (
        khat.of_hyperparameters(named_key(rng_key, "k-hat"), subject, gaussian=gaussian),
        loo.of_draws(rng_key, subject, held_out),
    )


def _same(args: tuple, others: tuple) -> bool:
    """Whether all arrays of both have the same entries."""
    ours, theirs = jax.tree.leaves(args), jax.tree.leaves(others)
    return len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))


def _rows_of_training(trained: Trained, args: tuple) -> int | None:
    """Number of training rows, if the trained model records it."""
    if "table rows" in trained.data:
        return int(trained.data["table rows"])
    for name, argument in zip(checks.positional(trained.model, len(args))[0], args, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            # A type and a shape, such as "float32[200, 1]".
            described = str(trained.data.get(f"argument {name}{jax.tree_util.keystr(path)}", ""))
            sizes = re.findall(r"\d+", described.partition("[")[2])
            if sizes:
                # If the data are not shared, one of several trainings has a leading axis of trainings.
                return int(sizes[len(sizes) > max(np.ndim(leaf), 1)])
    return None
