"""Attributes of objectives and optimisers that a training reads; a training never asks for their classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from gpzoo.inference.programs.gp_sites import SiteMode


class Objective(NamedTuple):
    """Attributes that an objective may have beside its ``loss``; NumPyro's own objectives have none.

    Attributes:
        name: name of the objective in messages; by default the name of its class.
        needs_all_rows: whether the objective cannot be estimated on a minibatch.
        takes_natural: whether it has a slope in ``q(u)`` that natural gradients can follow.
        takes_mesh: whether rows may be split over devices.
        trains_posterior: whether the trained ``q`` approximates the posterior given the data of the training.
        mode: which values GP sites have when gpzoo runs the guide outside of training steps; ``None`` for joint draws.
            Two modules do this: ``start.py``, for guides that are not an :class:`~gpzoo.inference.InducingGuide`, and
            ``failures.py``. In a step, the objective's ``loss`` sets its own mode.
        by_site: makes a variant of the objective, whose ``loss`` is a dictionary of the contributions of sites.
        finisher: ``finisher(guide, static)`` makes ``finish(params, args, arrays)``. This function puts the parameters
            that the objective finds by itself into the trained parameters. It is also called with the initial
            parameters, and raises an error if the objective does not fit the program. ``arrays`` and ``static`` are the
            program's keyword arguments.
    """

    name: str
    needs_all_rows: bool = False
    takes_natural: bool = True
    takes_mesh: bool = True
    trains_posterior: bool = True
    mode: SiteMode | None = None
    by_site: Callable[[], Any] | None = None
    finisher: Callable[[Any, dict[str, Any]], Callable[[Mapping[str, Any], tuple, dict], dict]] | None = None


class Optimiser(NamedTuple):
    """Attributes that an optimiser may have beside NumPyro's methods; optax's and NumPyro's own optimisers have none.

    Attributes:
        name: name of the optimiser in messages; by default the name of its class.
        needs_all_rows: whether its objective must be the same function at every step.
        backed_off: for an optimiser that takes natural steps of ``q(u)``: a function of its state. It returns, for
            each site, the number of steps that were shorter than asked for.
        refuse_at: a function of the number of a step, which raises an error if the optimiser cannot take this step.
        way_out: advice in the error message if a step fails; with ``None``, the advice is a lower learning rate.
    """

    name: str
    needs_all_rows: bool = False
    backed_off: Callable[[Any], Mapping[str, Any]] | None = None
    refuse_at: Callable[[int], None] | None = None
    way_out: str | None = None


def of_objective(objective: Any) -> Objective:
    """The attributes of an objective."""
    return Objective(**_said(objective, Objective))


def of_optimizer(optimizer: Any) -> Optimiser:
    """The attributes of an optimiser."""
    return Optimiser(**_said(optimizer, Optimiser))


def _said(by: Any, of: type[Objective] | type[Optimiser]) -> dict[str, Any]:
    defaults = {"name": type(by).__name__} | of._field_defaults
    return {name: getattr(by, name, default) for name, default in defaults.items()}


def refuse_no_parameters(parameters: Collection[str]) -> None:
    """Refuse a training if neither the program nor the guide has parameters.

    Args:
        parameters: names of all parameters.

    Raises:
        ValueError: if there are no parameters; the message says what to do instead.
    """
    if not parameters:
        raise ValueError(
            "There is nothing to train: neither the program nor its guide has a parameter. Write the hyperparameters "
            "as sites, numpyro.param or numpyro.sample. If they are known, exact regression predicts without training: "
            "predict(key, program, X_new, train_args=(X, y))."
        )


def refuse_misfits(svi: Any, num_steps: int, *, full: bool, mesh: bool) -> None:
    """Refuse an objective and an optimiser that do not fit each other, the number of steps, or the rows of a step.

    Args:
        svi: NumPyro's object.
        num_steps: number of steps.
        full: whether every step has all rows.
        mesh: whether rows are split over devices.

    Raises:
        TypeError: for an objective without ``loss``.
        ValueError: naming the objective or the optimiser; the message says what to do instead.
    """
    objective, driver = of_objective(svi.loss), of_optimizer(svi.optim)
    if not callable(getattr(svi.loss, "loss", None)):
        raise TypeError(
            f"{objective.name} is no objective: it must have loss(key, params, model, guide, *args, **kwargs), as "
            "GaussianProcessELBO() and NumPyro's objectives have."
        )
    if driver.backed_off is not None and not objective.takes_natural:
        raise ValueError(
            f"{objective.name} has no natural gradients: it has no slope in q(u). Leave natural out, or train q(u) "
            "with GaussianProcessELBO()."
        )
    if driver.refuse_at is not None and num_steps:
        driver.refuse_at(num_steps - 1)
    if mesh and not objective.takes_mesh:
        raise ValueError(f"mesh splits the rows of minibatches: with {objective.name} leave it out.")
    for said, other in ((objective, "an objective such as GaussianProcessELBO()"), (driver, "optax.adam(0.01)")):
        if said.needs_all_rows and not full:
            raise ValueError(
                f"{said.name} needs the same bound at every step, of all rows: train without batch_size, on arrays, or "
                f"with {other}."
            )
