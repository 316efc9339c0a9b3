"""Comparison of two posteriors of GP sites that a program adds: the mean field posterior and the joint posterior."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import optax
from jax import Array
from numpyro.infer import SVI

from gpzoo.errors import GPZooError
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.diagnosis.findings import Finding, finding
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.fitted.saved import OPTIONS
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.guides.coupling import added_sites
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.training.fit import fit
from gpzoo.inference.training.natural import NaturalGradients

#: Number of natural gradient steps of ``q(u)``, and their length.
_STEPS, _RATE = 20, 0.5


def against_joint(rng_key: Array, subject: BoundModel) -> list[Finding]:
    """Findings about GP sites that the program adds to each other, if each of these sites has its own ``q``.

    A joint ``q`` of these sites is compared with the separate ``q`` of the guide, at the same hyperparameters. The
    joint ``q`` and the separate ``q`` start at the trained parameters, and take the same number of natural gradient
    steps on all rows. The findings say how much higher the bound of the joint ``q`` is, and how much the standard
    deviations differ.

    Args:
        rng_key: key of draws in the bounds.
        subject: the model at the training data.
    """
    guide = subject.guide
    if type(guide) is not InducingGuide or guide.sites.coupled or not (groups := added_sites(subject.look)):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user saw these warnings in training
            found = [_after_steps(rng_key, subject, coupled) for coupled in (False, True)]
    except (GPZooError, ValueError):  # a form without natural steps, or steps that are too long
        return []
    (apart, own), (together, joint) = found
    ratios = []
    for name in [name for group in groups for name in group]:
        ratio = float(np.mean(np.sqrt(joint[name].variance)) / np.mean(np.sqrt(own[name].variance)))
        ratios.append(f"{ratio:.1f} ({name})")
    words: Mapping[str, Any] = {"gain": together - apart, "ratios": ", ".join(ratios)}
    return [finding("mean field", " + ".join(group), **words) for group in groups]


def _after_steps(rng_key: Array, subject: BoundModel, coupled: bool) -> tuple[float, dict[str, Any]]:
    """The bound, and predictions at the rows, after natural steps."""
    options: dict[str, Any] = {name: getattr(subject.guide, name) for name in OPTIONS}
    options["coupled"] = coupled
    guide = InducingGuide(subject.model, **options)
    guide.setup(*subject.args, model_kwargs=subject.kwargs)
    params = of_mean_field(subject.params, guide)
    optimiser = NaturalGradients(optax.set_to_zero(), guide, _RATE)
    svi = SVI(subject.model, guide, optimiser, GaussianProcessELBO())
    options = {"init_params": params, "progress": False, "model_kwargs": subject.kwargs}
    trained: Trained = fit(rng_key, svi, _STEPS, *subject.args, **options)
    return -float(trained.losses[-1]), trained.predict(rng_key, *subject.args, model_kwargs=subject.kwargs)


def of_mean_field(params: Mapping[str, Any], guide: InducingGuide) -> dict[str, Any]:
    """Parameters of a guide with a joint ``q`` of several sites that is equal to the mean field in ``params``."""
    found = dict(params)
    for group in guide.sites.coupled:
        sizes: list[int] = []
        for name in group:
            M, *outputs = found[f"{name}_mean"].shape
            form: Any = guide.form_at(name)
            values = (form.after(sizes) if sizes else form).alone(found[f"{name}_scale"])
            found |= {f"{name}_{field}": value for field, value in values.items()}
            sizes.append(form.num_rows(M, tuple(outputs)))
    return found
