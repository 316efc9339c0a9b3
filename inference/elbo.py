"""The objective: NumPyro's mean-field ELBO, with GP sites at their marginals and never without their analytic KL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.core import Tracer
from numpyro import handlers
from numpyro.infer import TraceMeanField_ELBO

from gpzoo import _checks as checks
from gpzoo._numpyro import Messenger
from gpzoo.inference._runs import ParameterNames
from gpzoo.inference.gp_sites import Bound, representing
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess


class GaussianProcessELBO(TraceMeanField_ELBO):
    """Evidence lower bound of a program with GP sites (convolutional GPs, eq. 5; deep GPs, eq. 17).

    :class:`numpyro.infer.TraceMeanField_ELBO` with three additions. The guide's GP sites are their marginals where the
    program allows, so that gpzoo likelihoods take exact expectations. A GP site keeps its analytic KL or the objective
    raises. Mutable state (batch normalisation) advances in the guide's run only; the model's run sees it frozen.

    Args:
        num_particles: number of draws of the sites that are drawn.
        vectorize_particles: see :class:`numpyro.infer.ELBO`.
        sum_sites: ``False`` gives the contribution of every site, by name.

    Raises:
        ValueError: when a GP site of the model has no :class:`~gpzoo.inference.InducingGuide` posterior, or its scale
            differs between guide and model; for parameters without a value, and values that nothing is called by.
    """

    def loss_with_mutable_state(
        self, rng_key: Array, param_map: dict[str, Any], model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Any:
        """Negative ELBO, in nats, and the mutable state; see :meth:`numpyro.infer.ELBO.loss_with_mutable_state`."""
        record: dict[str, dict[str, Any]] = {}

        def marginal_guide(*args: Any, **kwargs: Any) -> Any:
            nonlocal record
            with representing(Bound()), handlers.trace() as record:
                return guide(*args, **kwargs)

        def checked_model(*args: Any, **kwargs: Any) -> Any:
            with _ModelChecks(record):
                return model(*args, **kwargs)

        with ParameterNames() as seen:
            found = super().loss_with_mutable_state(rng_key, param_map, checked_model, marginal_guide, *args, **kwargs)
        # NumPyro's evaluate leaves mutable state out.
        checks.names("The objective's params", set(param_map), needed=seen.loose("param"), known=seen.names)
        return found


class _ModelChecks(Messenger):
    """Holds each GP site of the model's run against the guide's, and freezes mutable state."""

    def __init__(self, record: dict[str, dict[str, Any]]) -> None:
        super().__init__(None)
        self.record = record

    def process_message(self, msg: dict[str, Any]) -> None:
        name = msg.get("name")
        if msg["type"] == "mutable" and name in self.record:
            # A copy: networks write their new state into the dictionary they are handed.
            msg["value"] = jax.tree.map(lambda x: x, self.record[name]["value"])
            msg["stop"] = True

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        name, fn = msg["name"], msg["fn"]
        guide_site = self.record.get(name)
        guide_fn = None if guide_site is None else guide_site["fn"]
        if not isinstance(fn, GaussianProcess) and not isinstance(guide_fn, InducingPosterior):
            return
        if not (isinstance(fn, GaussianProcess) and isinstance(guide_fn, InducingPosterior)):
            raise ValueError(
                f"GP site {name!r} would lose its analytic KL: the model has {type(fn).__name__}, the guide "
                f"{'nothing' if guide_fn is None else type(guide_fn).__name__}. Use InducingGuide(model, ...) of this "
                "very model as the guide."
            )
        ours, theirs = _scale(guide_site), _scale(msg)
        if ours is not theirs and not _equal(ours, theirs):
            raise ValueError(
                f"GP site {name!r} has scale {ours} in the guide and {theirs} in the model, so its KL would be "
                "weighted wrongly. Apply handlers.scale to both, or to neither."
            )


def _scale(msg: dict[str, Any] | None) -> Any:
    return 1.0 if msg is None or msg["scale"] is None else msg["scale"]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return True  # an annealed scale: its value cannot be looked at here
    return bool(a == b)
