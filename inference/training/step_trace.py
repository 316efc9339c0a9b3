"""A traced step of a training: its draws, its data sites, and whether these are scaled to all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer

from gpzoo._numpyro import Handler
from gpzoo.inference.programs.runs import unmasked
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.processes.process import GaussianProcess


class StepTrace(Handler):
    """A handler around a traced step that records its draws, data sites and plates."""

    def __init__(self) -> None:
        super().__init__()
        #: The guide's sites by name, in its order: whether their values are draws.
        self.guide: dict[str, bool] = {}
        self.data: dict[str, dict[str, Any]] = {}
        self.plates: dict[str, tuple[int, int]] = {}
        #: Whether the guide has drawn a site of which other sites are functions, such as NumPyro's ``_auto_latent``.
        self.joint = False

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Record a site; guides run before their programs."""
        if msg["type"] == "plate":
            self.plates[msg["name"]] = msg["args"]
        elif msg["type"] == "sample" and msg["is_observed"]:
            self.data[msg["name"]] = msg
        elif msg["type"] == "sample":
            self.joint |= bool(msg["infer"].get("is_auxiliary"))
            self.guide.setdefault(msg["name"], _is_drawn(msg, self.joint))


def expectations(step: StepTrace, needs: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """How each data site's expectation is computed, by name.

    Args:
        step: a traced step.
        needs: which sites each data site depends on.
    """
    found: dict[str, str] = {}
    for name, site in step.data.items():
        fn = unmasked(site["fn"])
        exact = isinstance(fn, GaussianProcess)
        found[name] = "closed form" if exact else as_predictive(fn).expectation
        given = [other for other, drawn in step.guide.items() if drawn and other in needs.get(name, ())]
        if given:
            integrates = exact or as_predictive(fn).is_marginal
            found[name] += f"{' given draws' if integrates else ''} of {', '.join(given)}"
    return found


def _is_drawn(site: dict[str, Any], joint: bool) -> bool:
    """Whether the value of a guide's site is a draw, or a function of a ``joint`` draw, and not a parameter."""
    if isinstance(unmasked(site["fn"]), dist.Delta) and not joint:
        return False
    return isinstance(site["value"], Array) and jnp.issubdtype(site["value"].dtype, jnp.floating)


def refuse_scales(step: StepTrace, rows: int, num_rows: int) -> None:
    """Refuse a bound whose data terms, from ``rows`` rows per step, are not scaled to all ``num_rows``.

    Raises:
        ValueError: if the size of a plate over the rows is not the number of rows of the data; with minibatches, if a
            data site is not scaled from the minibatch to all rows, a GP site is observed, or rows share discrete sites.
    """
    for name, site in step.data.items() if rows < num_rows else ():
        over = site["infer"].get("summed_out")
        if over and not site["cond_indep_stack"]:
            raise ValueError(
                f"The data {name!r} of different rows depend on each other through the discrete site(s) {over}, so "
                "that no minibatch estimates their density. Train without batch_size."
            )
        if isinstance(site["fn"], GaussianProcess):
            raise ValueError(
                f"GP site {name!r} is observed: its density is joint over all rows and no minibatch estimates it. "
                "Train without batch_size."
            )
    for name, (size, taken) in step.plates.items():
        if taken == rows and size not in (rows, num_rows):
            raise ValueError(
                f"Plate {name!r} has size {size}, but there are {num_rows} rows: each would count "
                f"{size / num_rows:.4g} times. Pass model_kwargs={{'num_data': {num_rows}}} to fit, or leave it out."
            )
    if rows == num_rows:
        return
    scaled = {name: _is_scaled(site, step.plates, rows, num_rows) for name, site in step.data.items()}
    if not any(scaled.values()):
        raise ValueError(
            f"No data site of {sorted(step.data)} is scaled from the minibatch to all {num_rows} rows, so the KL would "
            "outweigh the data. Put the data sites into numpyro.plate('data', num_data, subsample_size=len(X)) and "
            "give the program an argument num_data=None, which fit fills in."
        )
    for name, site in step.data.items():
        of_rows = np.shape(site["value"])[:1] == (rows,) and not isinstance(unmasked(site["fn"]), dist.Unit)
        if of_rows and not scaled[name]:
            others = [other for other, is_scaled in scaled.items() if is_scaled]
            raise ValueError(
                f"Data site {name!r} has {rows} rows, as the minibatch, but is not scaled to all {num_rows} rows, as "
                f"{others} are, so it would count too little. Put it into numpyro.plate('data', num_data, "
                "subsample_size=len(X)), too."
            )


def _is_scaled(site: dict[str, Any], plates: Mapping[str, tuple[int, int]], rows: int, num_rows: int) -> bool:
    """Whether a data site is in a plate of all rows, of which it has the minibatch, or has the scale of one."""
    scale = site["scale"]
    in_plate = any(plates.get(frame.name) == (num_rows, rows) for frame in site["cond_indep_stack"])
    return in_plate or isinstance(scale, Tracer) or bool(np.isclose(1.0 if scale is None else scale, num_rows / rows))
